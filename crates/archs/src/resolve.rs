//! From a descriptor and a file to a [`ModelSpec`].
//!
//! The resolver looks at the header and at which tensors exist, turns every rule into a value for every layer
//! and checks each tensor's shape. A tensor that no part asked for is an error, unless the descriptor lists it.
//!
//! Parts: `env` (what names in rules mean), `weights` (tensors to weights), `norm`, `rope`, then one module per
//! block kind, and `stack`, which walks embedding, layers and head.

mod altup;
mod attention;
mod draft;
mod env;
mod ffn;
mod frames;
mod guest;
mod indexer;
mod meta;
mod mixers;
mod norm;
mod rope;
mod rwkv;
mod sound;
mod stack;
mod summary;
mod weights;
mod words;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokkata_ir::spec::Generation;
use tokkata_ir::{ConstData, ConstId, ModelSpec, WeightId};

use crate::error::ArchError;
use crate::expr::{EvalError, Expr, Val};
use crate::schema::{Descriptor, Rule, Word};
use crate::view::View;

pub(crate) use env::builtin_names;
pub(crate) use guest::resolve_guest;
use meta::Meta;
pub(crate) use weights::glob;
pub(crate) use words::BLOCKS;

const GUEST: &str = "it guesses for another model: give that one, and this with -md";
/// Largest product of sizes; sums of a few such products fit 32 bits.
const MAX_PRODUCT: u64 = 1 << 28;

/// Choices of a load that change what a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolveOptions {
    /// Positions the caches will hold; some scalings depend on it.
    pub ctx: u32,
}

/// Resolves `descriptor` against a file.
///
/// # Errors
/// [`ArchError`] names the key, tensor or rule at fault.
pub fn resolve(
    descriptor: &Descriptor,
    view: &dyn View,
    options: &ResolveOptions,
) -> Result<ModelSpec, ArchError> {
    let mut resolver = Resolver::new(descriptor, view, options);
    resolver.alone()?;
    resolver.require()?;
    resolver.model()?;
    resolver.check_leftovers()?;
    Ok(resolver.spec)
}

/// The metadata keys that resolving asks for, whether the file has them or not.
///
/// # Errors
/// As [`resolve`].
pub fn keys_read(
    descriptor: &Descriptor,
    view: &dyn View,
    options: &ResolveOptions,
) -> Result<BTreeSet<String>, ArchError> {
    let mut resolver = Resolver::new(descriptor, view, options);
    resolver.require()?;
    resolver.model()?;
    Ok(resolver.meta.into_read())
}

/// Which stack a part belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// The only stack, or a decoder.
    Main,
    /// The encoder of an encoder–decoder.
    Encoder,
    /// A multi-token-prediction head.
    Draft,
}

pub(crate) struct Resolver<'a> {
    desc: &'a Descriptor,
    view: &'a dyn View,
    meta: Meta<'a>,
    prefix: String,
    options: ResolveOptions,
    spec: ModelSpec,
    by_name: HashMap<String, WeightId>,
    used: RefCell<HashSet<String>>,
    layer: Cell<Option<u32>>,
    side: Cell<Side>,
    depth: Cell<u32>,
    builtin: &'static BTreeMap<&'static str, Rule>,
    kv_slots: HashMap<u32, tokkata_ir::SlotId>,
    /// Whether a layer before has an indexer.
    chooses: bool,
}

impl<'a> Resolver<'a> {
    fn new(desc: &'a Descriptor, view: &'a dyn View, options: &ResolveOptions) -> Self {
        let meta = view.metadata();
        let arch = meta
            .str("general.architecture")
            .unwrap_or_default()
            .to_owned();
        let spec = ModelSpec {
            arch: arch.clone(),
            ..ModelSpec::default()
        };
        Resolver {
            desc,
            view,
            meta: Meta::new(meta),
            prefix: arch,
            options: *options,
            spec,
            by_name: HashMap::new(),
            used: RefCell::default(),
            layer: Cell::new(None),
            side: Cell::new(Side::Main),
            depth: Cell::new(0),
            builtin: env::builtin(),
            kv_slots: HashMap::new(),
            chooses: false,
        }
    }

    fn unsupported(&self, why: String) -> ArchError {
        ArchError::Unsupported {
            arch: self.prefix.clone(),
            why,
        }
    }

    /// A drafter is no model by itself.
    fn alone(&self) -> Result<(), ArchError> {
        match self.desc.guest {
            Some(_) => Err(self.unsupported(GUEST.to_owned())),
            None => Ok(()),
        }
    }

    fn require(&self) -> Result<(), ArchError> {
        if let Some(why) = &self.desc.unsupported {
            return Err(self.unsupported(why.clone()));
        }
        for rule in &self.desc.require {
            if !self.truth(&rule.that)? {
                return Err(ArchError::Requirement {
                    arch: self.prefix.clone(),
                    say: rule.say.clone(),
                });
            }
        }
        Ok(())
    }

    fn model(&mut self) -> Result<(), ArchError> {
        let stack = self.word(self.desc.stack.as_ref(), "decoder")?;
        self.spec.n_embd = self.dim("n_embd")?;
        self.fit("n_embd", &[self.spec.n_embd])?;
        self.spec.n_ctx_train = self.number_or("context_length ?? 0", 0.0)? as u32;
        self.spec.bidirectional = match stack.as_str() {
            "encoder" | "diffusion" => true,
            "decoder" | "encoder_decoder" => false,
            other => return Err(self.bad_word("stack", other)),
        };
        self.spec.generation = match stack.as_str() {
            "encoder" => Generation::None,
            "diffusion" => {
                let shift = self
                    .desc
                    .shift_logits
                    .as_ref()
                    .map_or(Ok(false), |r| self.truth(r))?;
                Generation::Diffusion {
                    shift_logits: shift,
                }
            }
            _ => Generation::Autoregressive,
        };
        if stack == "encoder_decoder" {
            self.side.set(Side::Encoder);
            self.spec.encoder = Some(self.stack(Side::Encoder)?);
            self.side.set(Side::Main);
        }
        self.spec.main = self.stack(Side::Main)?;
        self.drafts()
    }

    pub(crate) fn layer_index(&self) -> u32 {
        self.layer.get().unwrap_or(0)
    }

    pub(crate) fn context(&self, source: &str) -> String {
        match self.layer.get() {
            Some(layer) => format!("\"{source}\" of layer {layer}"),
            None => format!("\"{source}\""),
        }
    }

    pub(crate) fn eval(&self, expr: &Expr) -> Result<Val, ArchError> {
        expr.eval(self).map_err(|error| match error {
            EvalError::Missing(key) => ArchError::MissingKey {
                key,
                rule: self.context(expr.source()),
            },
            EvalError::Bad(what) => ArchError::Rule {
                rule: self.context(expr.source()),
                what,
            },
        })
    }

    pub(crate) fn number(&self, rule: &Rule) -> Result<f64, ArchError> {
        match self.eval(&rule.0)? {
            Val::Num(x) => Ok(x),
            Val::Text(t) => Err(ArchError::Rule {
                rule: self.context(rule.0.source()),
                what: format!("'{t}' is a text where a number is needed"),
            }),
        }
    }

    pub(crate) fn truth(&self, rule: &Rule) -> Result<bool, ArchError> {
        Ok(self.eval(&rule.0)?.truth())
    }

    /// The rule's number, or the built-in rule's where the descriptor says nothing.
    pub(crate) fn number_of(&self, rule: Option<&Rule>, default: &str) -> Result<f64, ArchError> {
        match rule {
            Some(rule) => self.number(rule),
            None => self.number(&Rule::of(default)),
        }
    }

    pub(crate) fn truth_of(&self, rule: Option<&Rule>, default: &str) -> Result<bool, ArchError> {
        match rule {
            Some(rule) => self.truth(rule),
            None => self.truth(&Rule::of(default)),
        }
    }

    /// A number that 0 switches off.
    pub(crate) fn optional(&self, rule: Option<&Rule>) -> Result<Option<f32>, ArchError> {
        let value = rule.map_or(Ok(0.0), |r| self.number(r))?;
        Ok((value != 0.0).then_some(value as f32))
    }

    fn number_or(&self, source: &str, default: f64) -> Result<f64, ArchError> {
        match self.eval(&Rule::of(source).0)? {
            Val::Num(x) => Ok(x),
            Val::Text(_) => Ok(default),
        }
    }

    /// A rule that gives a size.
    pub(crate) fn size_of(&self, rule: Option<&Rule>, default: &str) -> Result<u32, ArchError> {
        let source = rule.map_or(default, |r| r.0.source());
        let x = self.number_of(rule, default)?;
        if x < 0.0 || x.fract() != 0.0 || x > f64::from(u32::MAX) {
            let what = format!("{x} is no size");
            return Err(ArchError::Rule {
                rule: self.context(source),
                what,
            });
        }
        Ok(x as u32)
    }

    /// Refuses sizes whose product no tensor may have, before anything multiplies them.
    pub(crate) fn fit(&self, what: &str, sizes: &[u32]) -> Result<(), ArchError> {
        let product = sizes
            .iter()
            .fold(1u64, |n, &s| n.saturating_mul(u64::from(s)));
        if product <= MAX_PRODUCT {
            return Ok(());
        }
        let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
        Err(ArchError::Rule {
            rule: self.context(what),
            what: format!("{} is no size", sizes.join(" × ")),
        })
    }

    /// A size that must not be zero.
    pub(crate) fn dim(&self, source: &str) -> Result<u32, ArchError> {
        let x = self.size_of(None, source)?;
        if x == 0 {
            return Err(ArchError::Rule {
                rule: self.context(source),
                what: "the size is 0".to_owned(),
            });
        }
        Ok(x)
    }

    pub(crate) fn word(&self, word: Option<&Word>, default: &str) -> Result<String, ArchError> {
        match word {
            None => Ok(default.to_owned()),
            Some(word) => match self.eval(&word.0)? {
                Val::Text(t) => Ok(t),
                Val::Num(x) => Ok(x.to_string()),
            },
        }
    }

    pub(crate) fn bad_word(&self, field: &str, word: &str) -> ArchError {
        ArchError::Rule {
            rule: self.context(field),
            what: format!(
                "found '{word}', expected one of {}",
                words::of(field).join(", ")
            ),
        }
    }

    pub(crate) fn constant(&mut self, data: ConstData) -> ConstId {
        let place = self
            .spec
            .consts
            .iter()
            .position(|c| *c == data)
            .unwrap_or_else(|| {
                self.spec.consts.push(data);
                self.spec.consts.len() - 1
            });
        ConstId(place as u32)
    }
}
