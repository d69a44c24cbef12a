//! Which tensor of a model gets which type: presets such as `Q4_K_M`, overrides and fall-backs.
//!
//! The presets are tables of rules (`presets`); this module applies them. The outcome is
//! llama-quantize's for the same preset, model and options.

mod presets;
mod roles;

use fancy_regex::Regex;
use tokkata_core::DType;

pub use presets::{PRESETS, Preset};
use presets::{When, rules};
use roles::{Role, Traits};

/// What the mixes need to know of a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelFacts<'a> {
    /// The architecture as the file names it; a key into a table of exceptions.
    pub architecture: &'a str,
    /// Number of layers.
    pub n_layers: usize,
    /// Experts per layer; 0 or 1 for dense models.
    pub n_experts: usize,
    /// Attention heads of the first layer.
    pub n_heads: usize,
    /// Key and value heads of the first layer.
    pub n_kv_heads: usize,
}

/// What the mixes need to know of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorFacts<'a> {
    /// GGUF name.
    pub name: &'a str,
    /// Dimensions as GGUF stores them: row length first.
    pub shape: &'a [u64],
    /// The type it has now.
    pub dtype: DType,
}

/// What the user asked for.
#[derive(Clone, Debug, Default)]
pub struct MixOptions {
    /// Gives every tensor the preset's base type.
    pub pure: bool,
    /// Whether importance weights are at hand; some presets then choose coarser types.
    pub has_importance: bool,
    /// Type of the output matrix.
    pub output: Option<DType>,
    /// Type of the token embedding.
    pub embedding: Option<DType>,
    /// Leaves the output matrix as it is.
    pub keep_output: bool,
    /// Types by name; the first that matches wins.
    pub overrides: Vec<Override>,
}

/// A type for tensors whose name matches a pattern.
#[derive(Clone, Debug)]
pub struct Override {
    pattern: Regex,
    dtype: DType,
}

/// Why an override could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// Not of the form `PATTERN=TYPE`.
    #[error("'{text}' is not of the form PATTERN=TYPE, such as attn_v=q8_0")]
    Form {
        /// What was given.
        text: String,
    },
    /// No such type.
    #[error("'{name}' is no element type; use one such as q4_k or f16")]
    Type {
        /// What was given.
        name: String,
    },
    /// The pattern is not a regular expression.
    #[error("the pattern of '{text}' is not a regular expression: {source}")]
    Pattern {
        /// What was given.
        text: String,
        /// What is wrong with it.
        source: Box<fancy_regex::Error>,
    },
}

impl Override {
    /// Reads `PATTERN=TYPE`. Patterns match anywhere in a tensor's name.
    ///
    /// # Errors
    /// [`OverrideError`] when the form, the type or the pattern is wrong.
    pub fn parse(text: &str) -> Result<Self, OverrideError> {
        let form = || OverrideError::Form { text: text.into() };
        let (pattern, name) = text.split_once('=').ok_or_else(form)?;
        if pattern.is_empty() || name.is_empty() {
            return Err(form());
        }
        let dtype =
            DType::from_name(name).ok_or_else(|| OverrideError::Type { name: name.into() })?;
        let pattern = Regex::new(pattern).map_err(|e| OverrideError::Pattern {
            text: text.into(),
            source: Box::new(e),
        })?;
        Ok(Self { pattern, dtype })
    }

    /// A pattern too deep to decide counts as no match.
    fn matches(&self, name: &str) -> bool {
        self.pattern.is_match(name).unwrap_or(false)
    }
}

/// What becomes of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The type to write.
    pub dtype: DType,
    /// The type the mix asked for, where its blocks do not fit the rows.
    pub instead_of: Option<DType>,
    /// Whether the result is useless without importance weights for this tensor.
    pub needs_importance: bool,
}

/// Chooses a type for every tensor, in the order given.
///
/// ```
/// use tokkata_core::DType;
/// use tokkata_quant::mix::{MixOptions, ModelFacts, Preset, TensorFacts, mix};
/// let model = ModelFacts { architecture: "llama", n_layers: 1, n_experts: 0, n_heads: 32, n_kv_heads: 8 };
/// let tensor = TensorFacts { name: "blk.0.attn_q.weight", shape: &[4096, 4096], dtype: DType::F16 };
/// let preset = Preset::from_name("q4_k_m").expect("a preset");
/// assert_eq!(mix(preset, &model, &[tensor], &MixOptions::default())[0].dtype, DType::Q4_K);
/// ```
#[must_use]
pub fn mix(
    preset: &Preset,
    model: &ModelFacts<'_>,
    tensors: &[TensorFacts<'_>],
    options: &MixOptions,
) -> Vec<Choice> {
    let mut mixer = Mixer::new(preset, model, tensors, options);
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| (roles::layer(tensors[i].name), tensors[i].name));
    let keep = |t: &TensorFacts<'_>| Choice {
        dtype: t.dtype,
        instead_of: None,
        needs_importance: false,
    };
    let mut choices: Vec<Choice> = tensors.iter().map(keep).collect();
    for i in order {
        choices[i] = mixer.choose(&tensors[i]);
    }
    choices
}

/// Rules count tensors of a role in layer order, so choosing has state.
struct Mixer<'a> {
    preset: &'a Preset,
    model: &'a ModelFacts<'a>,
    options: &'a MixOptions,
    traits: Traits,
    tied: bool,
    n_values: usize,
    seen: [usize; Role::COUNT],
}

/// Where a tensor stands among those of its role.
struct Place {
    index: usize,
    count: usize,
}

impl<'a> Mixer<'a> {
    fn new(
        preset: &'a Preset,
        model: &'a ModelFacts<'a>,
        tensors: &[TensorFacts<'_>],
        options: &'a MixOptions,
    ) -> Self {
        let count = |role| tensors.iter().filter(|t| Role::of(t.name) == role).count();
        Self {
            preset,
            model,
            options,
            traits: Traits::of(model.architecture),
            tied: count(Role::Output) == 0,
            n_values: count(Role::Value),
            seen: [0; Role::COUNT],
        }
    }

    fn choose(&mut self, tensor: &TensorFacts<'_>) -> Choice {
        let quantisable = roles::is_quantisable(tensor, &self.traits);
        if !quantisable || (self.options.keep_output && tensor.name == "output.weight") {
            return Choice {
                dtype: tensor.dtype,
                instead_of: None,
                needs_importance: false,
            };
        }
        let wanted = self.wanted(tensor);
        let dtype = if wanted.forced {
            wanted.dtype
        } else {
            fitting(wanted.dtype, row(tensor))
        };
        Choice {
            dtype,
            instead_of: (dtype != wanted.dtype).then_some(wanted.dtype),
            needs_importance: self.needs_importance(tensor.name, dtype),
        }
    }

    fn wanted(&mut self, tensor: &TensorFacts<'_>) -> Wanted {
        let role = Role::of(tensor.name);
        let named = self
            .options
            .overrides
            .iter()
            .find(|o| o.matches(tensor.name))
            .map(|o| o.dtype);
        let per_layer = tensor.name == "per_layer_token_embd.weight";
        let by_role = match role {
            Role::Embedding if !(per_layer && named.is_some()) => self.options.embedding,
            Role::Output => self.options.output,
            _ => None,
        };
        if let Some(dtype) = by_role {
            return Wanted {
                dtype,
                forced: true,
            };
        }
        let base = self.preset.base;
        if !base.is_quantised() {
            return Wanted {
                dtype: base,
                forced: true,
            };
        }
        let dtype = match named {
            Some(dtype) => dtype,
            None if self.options.pure => base,
            None => self.by_rule(tensor, role),
        };
        Wanted {
            dtype,
            forced: false,
        }
    }

    fn by_rule(&mut self, tensor: &TensorFacts<'_>, role: Role) -> DType {
        let floor = self
            .traits
            .floor
            .iter()
            .any(|part| tensor.name.contains(part));
        if floor {
            return DType::Q8_0;
        }
        if role == Role::Output || (self.tied && role == Role::Embedding) {
            return self.head(tensor);
        }
        if self.preset.base == DType::MXFP4 {
            return self.experts_only(tensor, role);
        }
        let place = self.place(tensor.name, role);
        let found =
            rules(self.preset, role).find(|rule| rule.when.iter().all(|w| self.holds(*w, &place)));
        let dtype = found.map_or(self.preset.base, |rule| rule.dtype);
        let shared = role == Role::Value && !self.preset.tiny && self.is_wide();
        match dtype {
            DType::Q3_K | DType::Q4_K if shared => DType::Q5_K,
            other => other,
        }
    }

    /// The output matrix, or the embedding that stands for it.
    fn head(&self, tensor: &TensorFacts<'_>) -> DType {
        let base = self.preset.base;
        let fits = row(tensor).is_multiple_of(base.block_elems() as u64);
        match self.options.output {
            Some(dtype) => dtype,
            None if base == DType::MXFP4 || self.traits.falcon || !fits => DType::Q8_0,
            None => self.preset.head,
        }
    }

    fn experts_only(&self, tensor: &TensorFacts<'_>, role: Role) -> DType {
        let stacked = tensor.shape.get(2).is_some_and(|&n| n > 1);
        let feed_forward = matches!(role, Role::Up | Role::Gate | Role::Down);
        if stacked && (feed_forward || !self.traits.stacked_attention) {
            DType::MXFP4
        } else {
            DType::Q8_0
        }
    }

    /// Large llama-like models whose 8 query heads share a value head: values cost little there.
    fn is_wide(&self) -> bool {
        self.traits.wide_layers == Some(self.model.n_layers)
            && (!self.traits.wide_if_grouped || self.model.n_heads != self.model.n_kv_heads)
    }

    /// Counts the tensor; experts of a layer go by the layer's number instead.
    fn place(&mut self, name: &str, role: Role) -> Place {
        let seen = &mut self.seen[role as usize];
        let counted = *seen;
        *seen += 1;
        if role == Role::Value {
            return Place {
                index: counted,
                count: self.n_values,
            };
        }
        let by_layer = self.model.n_experts > 1 && !self.preset.tiny;
        let layer = roles::layer(name).filter(|_| by_layer);
        Place {
            index: layer.unwrap_or(counted),
            count: self.model.n_layers,
        }
    }

    fn holds(&self, when: When, place: &Place) -> bool {
        let Place { index, count } = *place;
        let grouped = self
            .model
            .n_heads
            .checked_div(self.model.n_kv_heads)
            .unwrap_or(0)
            >= 4;
        match when {
            When::FirstOf(parts) => index < count / parts,
            When::Before(n) => index < n,
            When::Middle => index >= count / 8 && index < 7 * count / 8,
            When::MoreBits => more_bits(index, count),
            When::Grouped => grouped,
            When::GroupedOrExperts => grouped || self.model.n_experts >= 4,
            When::EightExperts => self.model.n_experts == 8,
            When::Importance => self.options.has_importance,
            When::NoImportance => !self.options.has_importance,
            When::Falcon => self.traits.falcon,
            When::NotFalcon => !self.traits.falcon,
        }
    }

    fn needs_importance(&self, name: &str, dtype: DType) -> bool {
        if matches!(Role::of(name), Role::Embedding | Role::Output) {
            return false;
        }
        match dtype {
            DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS => true,
            DType::IQ2_S | DType::IQ3_XXS => true,
            DType::Q2_K => self.preset.name == "Q2_K_S",
            _ => false,
        }
    }
}

/// A type, and whether it is taken as it is even where blocks do not fit.
struct Wanted {
    dtype: DType,
    forced: bool,
}

fn row(tensor: &TensorFacts<'_>) -> u64 {
    tensor.shape.first().copied().unwrap_or(0)
}

/// The first and last eighth of the layers, and every third between.
fn more_bits(index: usize, count: usize) -> bool {
    let eighth = count / 8;
    index < eighth || index >= 7 * count / 8 || (index - eighth) % 3 == 2
}

/// `dtype`, or the nearest type whose blocks divide rows of `row` elements.
fn fitting(dtype: DType, row: u64) -> DType {
    let fits = |t: DType| row.is_multiple_of(t.block_elems() as u64);
    if fits(dtype) {
        return dtype;
    }
    let smaller = match dtype {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::Q2_0 | DType::Q2_K | DType::Q3_K | DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => {
            DType::IQ4_NL
        }
        DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => DType::IQ4_NL,
        _ => DType::F16,
    };
    if fits(smaller) { smaller } else { DType::F16 }
}
