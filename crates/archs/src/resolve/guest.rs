//! A drafter in a file of its own, which guesses for another model: its layers, what it reads of that model's layers, and
//! what it borrows of it.

use std::sync::Arc;

use tokkata_ir::spec::{
    BlockSpec, DraftForm, DraftInput, DraftSpec, HeadSpec, LayerSpec, MaskedBlock, Proj, TapSpec,
};
use tokkata_ir::{Axis, Mask, ModelSpec};

use super::norm::Normed;
use super::weights::Want;
use super::{ResolveOptions, Resolver, Side};
use crate::beside::{Guest, PREFIX};
use crate::error::ArchError;
use crate::schema::{Descriptor, GuestRule};

/// Adds the drafter of `view` to the specification of the model that it guesses for.
///
/// # Errors
/// [`ArchError`] names the key, tensor or rule at fault.
pub(crate) fn resolve_guest(
    descriptor: &Descriptor,
    view: &Guest<'_>,
    options: &ResolveOptions,
    trunk: ModelSpec,
) -> Result<ModelSpec, ArchError> {
    let mut resolver = Resolver::new(descriptor, view, options);
    let rule = match (&descriptor.guest, &descriptor.unsupported) {
        (Some(rule), None) => rule,
        (_, why) => {
            let why = why.clone().unwrap_or_else(|| NO_GUEST.to_owned());
            return Err(resolver.unsupported(why));
        }
    };
    resolver.require()?;
    resolver.spec = trunk;
    resolver.guest(rule)?;
    resolver.check_leftovers()?;
    Ok(resolver.spec)
}

const NO_GUEST: &str = "it does not guess for other models by their states";
/// Most layers that a drafter reads.
const MOST_TAPS: usize = 64;

impl Resolver<'_> {
    fn guest(&mut self, rule: &GuestRule) -> Result<(), ArchError> {
        let trunk = self.leave_trunk()?;
        let width = self.spec.n_embd;
        let first = self.spec.weights.len();
        let layers = self.spec.main.layers.len() as u32;
        self.spec.n_embd = self.dim("n_embd")?;
        self.fit("n_embd", &[self.spec.n_embd])?;
        let taps = self.tap_spec(rule, width)?;
        let mut draft = self.guest_draft(rule, (trunk, width))?;
        self.side.set(Side::Main);
        draft.index = layers;
        (self.spec.taps, self.spec.drafts) = (Some(taps), vec![draft]);
        self.spec.n_embd = width;
        for weight in &mut self.spec.weights[first..] {
            weight.name.insert_str(0, PREFIX);
            weight.site.layer = weight.site.layer.map(|layer| layer + layers);
        }
        Ok(())
    }

    /// Takes away the heads that the trunk has itself; its output matrix.
    fn leave_trunk(&mut self) -> Result<Option<Proj>, ArchError> {
        let spec = &mut self.spec;
        if spec.main.frame.is_some() || spec.encoder.is_some() || spec.bidirectional {
            let what = format!(
                "models of architecture '{}' have no stream that it reads",
                spec.arch
            );
            return Err(self.refused("guest", what));
        }
        if !spec.drafts.is_empty() {
            spec.drafts.clear();
            spec.groups.truncate(spec.trunk_slots.len());
            let slots = spec.groups.iter_mut().zip(&spec.trunk_slots);
            slots.for_each(|(group, &n)| group.slots.truncate(n as usize));
        }
        spec.trunk_slots = spec.groups.iter().map(|g| g.slots.len() as u32).collect();
        Ok(spec.main.head.output.clone())
    }

    fn refused(&self, rule: &str, what: String) -> ArchError {
        ArchError::Rule {
            rule: self.context(rule),
            what,
        }
    }

    /// What is read of the trunk, whose stream has `width` columns.
    fn tap_spec(&mut self, rule: &GuestRule, width: u32) -> Result<TapSpec, ArchError> {
        let most = self.spec.main.layers.len() as u32;
        let found = self.numbers(TAPS).map_err(|_| ArchError::MissingKey {
            key: format!("{}.{TAPS}", self.prefix),
            rule: self.context("guest"),
        })?;
        let layers: Vec<u32> = found.iter().map(|&l| l as u32).collect();
        let count = self.size_of(rule.count.as_ref(), &layers.len().to_string())?;
        let whole = found.iter().all(|&l| (0.0..=f64::from(most)).contains(&l));
        if !whole || layers.is_empty() || layers.len() != count as usize || layers.len() > MOST_TAPS
        {
            let what = format!(
                "found the layers {found:?}, expected {count} of the {most} that the model has"
            );
            return Err(self.refused(TAPS, what));
        }
        let said = self.size_of(None, &format!("target_hidden_size ?? {width}"))?;
        if said != width {
            let what = format!("found {said} columns, expected the {width} of the model's stream");
            return Err(self.refused("target_hidden_size", what));
        }
        self.fit(TAPS, &[count, width])?;
        let (d, all) = (self.spec.n_embd, count * width);
        let before = self.norm_opt(rule.before.as_ref(), Normed::row(all))?;
        let proj = self.proj(
            "fc",
            Want {
                shape: &[d, all],
                axes: &[Axis::Embd, Axis::Other],
            },
        )?;
        Ok(TapSpec {
            layers,
            before,
            proj,
            after: self.norm_opt(rule.after.as_ref(), Normed::row(d))?,
            kept: rule.block.is_some(),
        })
    }

    fn guest_draft(
        &mut self,
        rule: &GuestRule,
        (trunk, width): (Option<Proj>, u32),
    ) -> Result<DraftSpec, ArchError> {
        let d = self.spec.n_embd;
        let borrowed = |found: u32, what: &str| ArchError::Rule {
            rule: "n_embd".to_owned(),
            what: format!("found {found} columns, expected {width} to borrow the model's {what}"),
        };
        let own = Want {
            shape: &[self.spec.n_vocab, d],
            axes: &[Axis::Vocab, Axis::Embd],
        };
        let table = match (self.weight_opt("token_embd", own)?, &self.spec.main.embed) {
            (Some(own), _) => own,
            (None, Some(embed)) if d == width => embed.table,
            _ => return Err(borrowed(d, "token table")),
        };
        self.side.set(Side::Draft);
        self.kv_slots.clear();
        let layers = self.guest_layers(rule)?;
        let input = self.guest_input(rule)?;
        let ids = self.guest_ids()?;
        let columns = ids
            .as_ref()
            .map_or(self.spec.n_vocab, |ids| ids.len() as u32);
        let own = Want {
            shape: &[columns, d],
            axes: &[Axis::Vocab, Axis::Embd],
        };
        let tied = ids.is_none() && self.find_global("token_embd").is_some();
        let output = match (self.find_global("output").is_some(), trunk) {
            (true, _) => self.proj("output", own)?,
            (false, _) if rule.block.is_some() && tied => self.proj("token_embd", own)?,
            (false, Some(trunk)) if d == width && ids.is_none() => trunk,
            (false, _) => return Err(borrowed(d, "output matrix")),
        };
        let head = &self.desc.head;
        let norm = self.norm_opt(self.desc.head.norm.as_ref(), Normed::row(d))?;
        let head = HeadSpec {
            norm,
            output: Some(output),
            scale: self.optional(head.scale.as_ref())?,
            cap: self.optional(head.cap.as_ref())?,
            ..HeadSpec::default()
        };
        let block = match &rule.block {
            None => None,
            Some(block) => Some(self.masked_block(block)?),
        };
        Ok(DraftSpec {
            n_embd: d,
            input,
            table,
            embed_scale: self
                .optional(self.desc.embed.scale.as_ref())?
                .unwrap_or(1.0),
            layers,
            index: 0,
            head,
            post_norm: false,
            connected: None,
            form: DraftForm {
                at_state: rule.block.is_none(),
                ids,
                block,
            },
        })
    }

    fn guest_layers(&mut self, rule: &GuestRule) -> Result<Vec<LayerSpec>, ArchError> {
        let count = self.size_of(None, "n_layers")?;
        let one = rule.block.is_none();
        if count == 0 || (one && count > 1) || count as usize > self.view.names().len() {
            let what = format!("found {count} layers, expected one");
            return Err(self.refused("block_count", what));
        }
        let steps = self.step_rules(Side::Draft);
        let mut layers = Vec::with_capacity(count as usize);
        for layer in 0..count {
            self.layer.set(Some(layer));
            let mut spec = self.layer_spec(layer, &steps)?;
            if rule.block.is_some() && !self.truth_of(None, "attention.causal ?? 0")? {
                open(&mut spec);
            }
            layers.push(spec);
        }
        self.layer.set(None);
        Ok(layers)
    }

    fn guest_input(&mut self, rule: &GuestRule) -> Result<DraftInput, ArchError> {
        if rule.block.is_some() {
            return Ok(DraftInput::Tokens);
        }
        self.layer.set(Some(0));
        let input = DraftInput::Beside {
            enorm: self.draft_norm("attn_norm")?,
            hnorm: self.draft_norm("attn_norm_2")?,
            normed: self.truth_of(None, "norm_before_residual ?? 0")?,
        };
        self.layer.set(None);
        Ok(input)
    }

    /// The tokens that the columns of its logits stand for, where it knows fewer.
    fn guest_ids(&mut self) -> Result<Option<Arc<[u32]>>, ArchError> {
        if self.view.tensor(IDS).is_none() {
            return Ok(None);
        }
        self.mark(IDS);
        let n_vocab = self.spec.n_vocab;
        let ids = self.view.floats(IDS)?;
        let known = |&id: &f32| id >= 0.0 && id < n_vocab as f32;
        if let Some(id) = ids.iter().find(|id| !known(id)) {
            return Err(ArchError::Tensor {
                name: IDS.to_owned(),
                what: format!("names the token {id}, of {n_vocab}"),
            });
        }
        Ok(Some(ids.into_iter().map(|id| id as u32).collect()))
    }

    fn masked_block(&self, size: &crate::schema::Rule) -> Result<MaskedBlock, ArchError> {
        let size = self.size_of(Some(size), "16")?;
        let mask = self.size_of(None, &format!("${MASK}"))?;
        if size < 2 || mask >= self.spec.n_vocab {
            let what = format!("found {size} tokens of a block, masked by token {mask}");
            return Err(self.refused("block_size", what));
        }
        Ok(MaskedBlock { size, mask })
    }
}

const TAPS: &str = "target_layers";
const IDS: &str = "d2t";
const MASK: &str = "tokenizer.ggml.mask_token_id";

/// Lets rows of a block see those behind them too: a window reaches as far ahead as a block is long at most.
fn open(layer: &mut LayerSpec) {
    let branches = layer.steps.iter_mut().flat_map(|s| &mut s.branches);
    for branch in branches {
        if let BlockSpec::Attention(a) = &mut branch.block {
            a.mask = match a.mask {
                Mask::Causal => Mask::Full,
                Mask::Window(w) => Mask::Symmetric(2 * w.saturating_sub(1)),
                other => other,
            };
        }
    }
}
