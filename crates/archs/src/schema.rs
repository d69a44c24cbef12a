//! The schema of descriptors: what a TOML file may say.
//!
//! Every field has a default, so that a descriptor says only what is special. A [`Rule`] is an expression
//! (see [`crate::expr`]) evaluated for each layer; a [`Word`] is a literal or, after `=`, an expression.
//! Names of tensors are those of GGUF without the layer prefix and without `.weight`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::expr::Expr;
use crate::hf::rules::HfRule;

/// A numeric rule: a number, a boolean or an expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule(pub Expr);

/// A word: a literal, or an expression that gives one.
#[derive(Clone, Debug, PartialEq)]
pub struct Word(pub Expr);

impl Rule {
    /// Parses a rule of this crate; a mistake is our bug.
    ///
    /// # Panics
    /// When the source is no expression.
    #[must_use]
    pub fn of(source: &str) -> Self {
        Rule(Expr::parse(source).unwrap_or_else(|e| panic!("built-in rule {source}: {e}")))
    }
}

impl Word {
    /// A literal word.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Word(Expr::text(text))
    }
}

struct RuleVisitor;

impl Visitor<'_> for RuleVisitor {
    type Value = Rule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a boolean or an expression")
    }

    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Rule, E> {
        Ok(Rule(Expr::constant(f64::from(u8::from(v)))))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Rule, E> {
        Ok(Rule(Expr::constant(v as f64)))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Rule, E> {
        Ok(Rule(Expr::constant(v)))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Rule, E> {
        Expr::parse(v)
            .map(Rule)
            .map_err(|e| E::custom(format!("in expression \"{v}\": {e}")))
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RuleVisitor)
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.strip_prefix('=') {
            Some(expr) => Expr::parse(expr)
                .map(Word)
                .map_err(|e| de::Error::custom(format!("in \"{text}\": {e}"))),
            None => Ok(Word(Expr::text(&text))),
        }
    }
}

/// A norm: a tensor's name, or a table that says more.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
#[allow(
    clippy::large_enum_variant,
    reason = "a descriptor holds a handful of norms"
)]
pub enum NormRule {
    /// The tensor; kind and epsilon are the file's defaults.
    Name(String),
    /// More.
    Full(NormTable),
}

/// A norm in full.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NormTable {
    /// The tensor, or two with `??` between them of which the first that exists counts; without one the norm has no weight.
    pub tensor: Option<String>,
    /// `rms`, `layer`, `l2`.
    pub kind: Option<Word>,
    /// Added under the root.
    pub eps: Option<Rule>,
    /// `row`, `head` (one weight for all heads), `distinct` (one weight per head).
    pub per: Option<Word>,
    /// Columns per run, where `per` does not say it.
    pub width: Option<Rule>,
    /// The bias tensor must exist.
    pub bias: bool,
    /// A bias tensor may exist and is not added.
    pub ignore_bias: bool,
    /// The norm exists on the layers where its tensor does.
    pub optional: bool,
    /// The norm exists where this holds.
    pub when: Option<Rule>,
    /// After the rotation (queries and keys).
    pub after_rope: bool,
    /// One gain per head in this tensor, without a weight per column.
    pub gain: Option<String>,
}

/// Defaults of all norms.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NormDefaults {
    /// `rms` or `layer`.
    pub kind: Option<Word>,
    /// Epsilon; by kind the usual key.
    pub eps: Option<Rule>,
    /// Every norm has a bias tensor.
    pub bias: bool,
    /// Norms have no weights at all.
    pub weightless: bool,
}

/// Which layers look through a window.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WindowRule {
    /// Positions; 0 or absent means none.
    pub size: Option<Rule>,
    /// Whether a layer is windowed.
    pub pattern: Option<Rule>,
    /// `window`, `chunk` or `symmetric`.
    pub kind: Option<Word>,
}

/// Rotary embedding.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RopeRule {
    /// `adjacent`, `halves` or `none`.
    pub pairing: Option<Word>,
    /// Whether a layer rotates.
    pub when: Option<Rule>,
    /// Rotated columns.
    pub dims: Option<Rule>,
    /// First rotated column.
    pub offset: Option<Rule>,
    /// Base.
    pub theta: Option<Rule>,
    /// Whether the header's scaling applies to a layer.
    pub scaled: Option<Rule>,
    /// Whether frequency factors of the file apply to a layer.
    pub factors: Option<Rule>,
    /// YaRN magnitude: `mscale` over all dimensions, when the file has one.
    pub log_multiplier: Option<Rule>,
    /// YaRN `mscale` of the numerator.
    pub mscale: Option<Rule>,
    /// YaRN's fast and slow rotations.
    pub beta_fast: Option<Rule>,
    /// YaRN's slow rotations.
    pub beta_slow: Option<Rule>,
    /// `contiguous` or `interleaved`: position channels by `rope.dimension_sections`.
    pub sections: Option<Word>,
}

macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// The layers that have it.
            pub when: Option<Rule>,
            /// Norm of its input.
            pub norm: Option<NormRule>,
            /// Norm of its output.
            pub post_norm: Option<NormRule>,
            /// Multiplies its output.
            pub scale_out: Option<Rule>,
            /// `stream`, `layer_input` or `previous`.
            pub source: Option<Word>,
            $($(#[$fdoc])* pub $field: $ty,)*
        }

        impl $name {
            /// The fields every block has.
            #[must_use]
            pub fn branch(&self) -> BranchRule<'_> {
                BranchRule {
                    when: self.when.as_ref(),
                    norm: self.norm.as_ref(),
                    post_norm: self.post_norm.as_ref(),
                    scale_out: self.scale_out.as_ref(),
                    source: self.source.as_ref(),
                }
            }
        }
    )*};
}

/// The fields every block has.
#[derive(Clone, Copy, Debug)]
pub struct BranchRule<'a> {
    /// The layers that have it.
    pub when: Option<&'a Rule>,
    /// Norm of its input.
    pub norm: Option<&'a NormRule>,
    /// Norm of its output.
    pub post_norm: Option<&'a NormRule>,
    /// Multiplies its output.
    pub scale_out: Option<&'a Rule>,
    /// What it reads.
    pub source: Option<&'a Word>,
}

blocks! {
    /// Softmax attention.
    AttentionRule {
        /// Query heads.
        heads: Option<Rule>,
        /// Key heads.
        kv_heads: Option<Rule>,
        /// Columns of a key head.
        dim_k: Option<Rule>,
        /// Columns of a value head.
        dim_v: Option<Rule>,
        /// Columns of what is projected, where these are not the stream's.
        width: Option<Rule>,
        /// `split`, `fused` or `auto` (whichever the file has).
        qkv: Option<Word>,
        /// Tensor of the queries.
        q: Option<String>,
        /// Tensor of the keys.
        k: Option<String>,
        /// Tensor of the values.
        v: Option<String>,
        /// Tensor of all three.
        fused: Option<String>,
        /// Values are the raw keys on layers without a value tensor.
        v_from_k: bool,
        /// Tensor of the output projection.
        out: Option<String>,
        /// Biases: `optional`, `none`, `required` on Q, K and V.
        bias: Option<Word>,
        /// A bias of the output projection may exist and is not added.
        ignore_out_bias: bool,
        /// The query projection carries an interleaved gate.
        q_gate: bool,
        /// Clamp of the projections; 0 is none.
        clamp: Option<Rule>,
        /// Norm of queries.
        q_norm: Option<NormRule>,
        /// Norm of keys.
        k_norm: Option<NormRule>,
        /// Norm of values.
        v_norm: Option<NormRule>,
        /// Multiplies scores.
        scale: Option<Rule>,
        /// Soft cap of scores; 0 is none.
        cap: Option<Rule>,
        /// Tensor of the sinks.
        sinks: Option<String>,
        /// Whether the sinks must exist.
        sinks_required: bool,
        /// ALiBi's maximum bias; 0 is none.
        alibi: Option<Rule>,
        /// Tensor of the bucket bias; a layer without one takes layer 0's.
        bucket: Option<String>,
        /// Whether rows see each other in both directions.
        bidirectional: Option<Rule>,
        /// Position temperature: strength; 0 is none.
        temperature: Option<Rule>,
        /// Position temperature: positions per step.
        temperature_length: Option<Rule>,
        /// Position temperature: added to the position.
        temperature_offset: Option<Rule>,
        /// Tensor of the output gate.
        gate: Option<String>,
        /// Activation of the output gate.
        gate_act: Option<Word>,
        /// The gate exists where its tensor does.
        gate_optional: bool,
        /// Norm before the output projection.
        sub_norm: Option<NormRule>,
        /// The layer whose keys and values are read.
        kv_from: Option<Rule>,
        /// Multiplies the output.
        out_scale: Option<Rule>,
    }

    /// Multi-head latent attention.
    MlaRule {
        /// Heads.
        heads: Option<Rule>,
        /// Width of the query's low rank; 0 is a full projection.
        q_rank: Option<Rule>,
        /// Width of the latent.
        kv_rank: Option<Rule>,
        /// Columns of a head, rotated ones included.
        dim_k: Option<Rule>,
        /// Columns of a value head.
        dim_v: Option<Rule>,
        /// Rotated columns of a head.
        dim_rope: Option<Rule>,
        /// Multiplies scores.
        scale: Option<Rule>,
        /// Norm of the query's low rank.
        q_norm: Option<NormRule>,
        /// Norm of the latent.
        kv_norm: Option<NormRule>,
        /// Norm of the shared rope key.
        k_rope_norm: Option<NormRule>,
        /// Position temperature: strength; 0 is none.
        temperature: Option<Rule>,
        /// Position temperature: positions per step.
        temperature_length: Option<Rule>,
        /// Position temperature: added to the position.
        temperature_offset: Option<Rule>,
        /// Tensor of the sinks.
        sinks: Option<String>,
        /// Whether the sinks must exist.
        sinks_required: bool,
        /// Tensor of the output gate.
        gate: Option<String>,
        /// Activation of the output gate.
        gate_act: Option<Word>,
        /// The gate exists where its tensor does.
        gate_optional: bool,
    }

    /// Feed-forward.
    FfnRule {
        /// `gated`, `fused`, `plain`, `auto` (by the tensors and their shapes) or `none`: the activation alone.
        form: Option<Word>,
        /// Width.
        width: Option<Rule>,
        /// Tensor of the gate.
        gate: Option<String>,
        /// Tensor of the input projection.
        up: Option<String>,
        /// Tensor of the output projection.
        down: Option<String>,
        /// Activation.
        act: Option<Word>,
        /// Parameters of the activation.
        params: BTreeMap<String, Rule>,
        /// `before`, `after`, `before_plus_one` or `up_tanh`.
        clamp: Option<Word>,
        /// Bound of the clamp; 0 is none.
        limit: Option<Rule>,
        /// Gaussian sparsity in standard deviations; 0 is none.
        sparsity: Option<Rule>,
        /// Tensor that divides the activation.
        act_div: Option<String>,
        /// Norm before the output projection.
        sub_norm: Option<NormRule>,
        /// Biases may exist and are not added.
        ignore_bias: bool,
    }

    /// Mixture of experts.
    MoeRule {
        /// Experts.
        experts: Option<Rule>,
        /// Chosen per row.
        top_k: Option<Rule>,
        /// Width of an expert.
        width: Option<Rule>,
        /// Tensor of the router.
        router: Option<String>,
        /// `experts`, `layer_input` or `stream`.
        router_input: Option<Word>,
        /// Weightless norm of the router's input, times 1/sqrt(width), times this tensor.
        router_vector: Option<String>,
        /// `softmax`, `sigmoid`, `logits`, `sqrt_softplus`, or a number as files write it.
        score: Option<Word>,
        /// Score that selects, when another.
        select: Option<Word>,
        /// Layers whose experts follow from the token.
        by_token: Option<Rule>,
        /// Tensor of the selection bias.
        bias: Option<String>,
        /// The bias must exist.
        bias_required: bool,
        /// Softmax over the chosen scores.
        softmax_chosen: Option<Rule>,
        /// Sigmoid of the chosen scores.
        sigmoid_chosen: bool,
        /// How near other experts' logits must come to a choice to share its weight; 0 shares none.
        near_ties: Option<Rule>,
        /// Weights sum to one.
        renormalise: Option<Rule>,
        /// Multiplies the weights; 0 is 1.
        scale: Option<Rule>,
        /// Weights multiply the experts' input.
        weigh_input: bool,
        /// `gated`, `fused`, `plain` or `auto`.
        form: Option<Word>,
        /// Activation.
        act: Option<Word>,
        /// Parameters of the activation.
        params: BTreeMap<String, Rule>,
        /// `before`, `after`, `before_plus_one` or `up_tanh`.
        clamp: Option<Word>,
        /// Bound of the clamp; 0 is none.
        limit: Option<Rule>,
        /// Tensor into the experts' space.
        latent_in: Option<String>,
        /// Its width.
        latent_width: Option<Rule>,
        /// Norm on the way back.
        latent_norm: Option<NormRule>,
        /// Tensor out of the experts' space.
        latent_out: Option<String>,
        /// Whether there is a shared expert.
        shared: Option<Rule>,
        /// Its width.
        shared_width: Option<Rule>,
        /// Its form.
        shared_form: Option<Word>,
        /// Bound of its clamp; 0 is none.
        shared_limit: Option<Rule>,
        /// Tensor of its gate.
        shared_gate: Option<String>,
        /// Multiplies routed + shared.
        out_scale: Option<Rule>,
        /// First-level experts per second-level expert; 0 is none.
        second_group: Option<Rule>,
        /// Multiplies the second level's output.
        second_scale: Option<Rule>,
    }

    /// One linear map in place of a mixer.
    LinearRule {
        /// The tensor.
        tensor: Option<String>,
    }

    /// Mamba mixers.
    MambaRule {
        /// 1 or 2.
        version: Option<Rule>,
        /// Inner width.
        inner: Option<Rule>,
        /// State columns.
        state: Option<Rule>,
        /// Heads (Mamba-2) or rank of dt (Mamba-1).
        rank: Option<Rule>,
        /// Groups of B and C.
        groups: Option<Rule>,
        /// Taps of the convolution.
        kernel: Option<Rule>,
        /// `xz`, `zxbcdt` or `head_zx`.
        layout: Option<Word>,
        /// Rank of dt where it differs.
        dt_rank: Option<Rule>,
        /// Norms of dt, B and C: `none`, `weighted` or `weightless`.
        dt_b_c_norm: Option<Word>,
        /// Norm after the gate.
        out_norm: Option<NormRule>,
    }

    /// RWKV-6 and its relatives.
    Rwkv6Rule {
        /// Columns per head.
        head_dim: Option<Rule>,
        /// Columns of the interpolations' low rank.
        mix_rank: Option<Rule>,
        /// Columns of the decay's low rank.
        decay_rank: Option<Rule>,
        /// Key and value heads.
        kv_heads: Option<Rule>,
        /// Gated linear attention without bonus.
        gla: bool,
    }

    /// RWKV-7.
    Rwkv7Rule {
        /// Columns per head.
        head_dim: Option<Rule>,
        /// Key and value heads.
        kv_heads: Option<Rule>,
    }

    /// RWKV's channel mix.
    ChannelMixRule {
        /// Width.
        width: Option<Rule>,
        /// A receptance gates the output.
        receptance: bool,
    }

    /// Gated delta rule.
    DeltaRule {
        /// `gdn` or `kda`.
        flavour: Option<Word>,
        /// Key heads.
        k_heads: Option<Rule>,
        /// Value heads.
        v_heads: Option<Rule>,
        /// Columns of a key head.
        dim_k: Option<Rule>,
        /// Columns of a value head.
        dim_v: Option<Rule>,
        /// Taps.
        kernel: Option<Rule>,
        /// Value head h uses key head `h mod Hk`.
        tiled: bool,
        /// Epsilon of the L2 norm.
        l2_eps: Option<Rule>,
        /// Activation of the output gate.
        z_act: Option<Word>,
        /// Bound of the bounded decay; 0 is the softplus decay.
        lower_bound: Option<Rule>,
        /// The stored decay is −e^A, also where it is bounded.
        negative_a: bool,
    }

    /// Gated short convolution.
    ShortConvRule {
        /// Taps.
        kernel: Option<Rule>,
        /// Taps on both sides.
        centred: Option<Rule>,
    }

    /// Low-rank map around its input.
    LaurelRule {
        /// Columns of the low rank.
        rank: Option<Rule>,
    }

    /// Attention over a window and summaries of what lies before; keys are values.
    SummaryRule {
        /// Heads.
        heads: Option<Rule>,
        /// Columns of a head.
        dim: Option<Rule>,
        /// Columns of the query's low rank.
        q_rank: Option<Rule>,
        /// Positions of a summary; 0 on layers without.
        ratio: Option<Rule>,
        /// Whether a summary reaches into the positions of the one before.
        overlap: Option<Rule>,
        /// Groups of heads in the output.
        groups: Option<Rule>,
        /// Columns of a group's low rank.
        out_rank: Option<Rule>,
    }

    /// Linear attention with fixed decay.
    LightningRule {
        /// Norm of the output.
        out_norm: Option<NormRule>,
    }
}

/// One residual step.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepRule {
    /// Blocks by name, summed.
    pub run: Vec<String>,
    /// Multiplies the sum.
    pub scale: Option<Rule>,
    /// Norm of the sum before it is added.
    pub post_norm: Option<NormRule>,
    /// `stream` or `normed`.
    pub skip: Option<Word>,
    /// Multiplies the skipped value.
    pub skip_scale: Option<Rule>,
    /// Norm after the addition.
    pub post_add: Option<NormRule>,
    /// Norm after adding the layer's input once more.
    pub readd: Option<NormRule>,
    /// The layers that have the step.
    pub when: Option<Rule>,
}

/// Input stage.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbedRule {
    /// Token table.
    pub tensor: Option<String>,
    /// Multiplies token rows.
    pub scale: Option<Rule>,
    /// Norm of the sum.
    pub norm: Option<NormRule>,
    /// Table of learned positions.
    pub positions: Option<String>,
    /// The positions exist where their tensor does.
    pub positions_optional: bool,
    /// Table whose row 0 is added.
    pub types: Option<String>,
    /// The types exist where their tensor does.
    pub types_optional: bool,
    /// Columns of per-layer embeddings; 0 is none.
    pub per_layer: Option<Rule>,
    /// The token table is absent and the output matrix serves as one.
    pub from_output: bool,
}

/// Input stage of an encoder that reads frames.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FramesRule {
    /// Channels of a frame.
    pub channels: Option<Rule>,
    /// Tensors of the convolutions, `[N, C, kernel]`.
    pub convs: Vec<String>,
    /// Frames from one output to the next, for each of them.
    pub strides: Vec<Rule>,
    /// Activation after each of them.
    pub act: Option<Word>,
    /// Table of learned positions.
    pub positions: String,
}

/// Output stage.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeadRule {
    /// Final norm.
    pub norm: Option<NormRule>,
    /// There is no final norm.
    pub no_norm: bool,
    /// `tied` (always), `fallback` (the token table where no output tensor is), `untied`, `none`.
    pub output: Option<Word>,
    /// Tensor of the output matrix.
    pub tensor: Option<String>,
    /// Rows of the output matrix, where fewer than the vocabulary.
    pub rows: Option<Rule>,
    /// A bias of the output may exist and is not added.
    pub ignore_bias: bool,
    /// Multiplies the hidden state.
    pub hidden_scale: Option<Rule>,
    /// Multiplies the logits; 0 is none.
    pub scale: Option<Rule>,
    /// Divides the logits; 0 is none.
    pub divide: Option<Rule>,
    /// Soft cap; 0 is none.
    pub cap: Option<Rule>,
    /// Suppressed ids: first.
    pub suppress_first: Option<Rule>,
    /// Suppressed ids: one past the last.
    pub suppress_last: Option<Rule>,
    /// Default pooling: `none`, `mean`, `cls`, `last`.
    pub pool: Option<Word>,
    /// Activation of the classifier.
    pub classifier_act: Option<Word>,
    /// Softmax over the classifier's labels.
    pub classifier_softmax: bool,
    /// Projections of the pooled vector.
    pub dense: Vec<String>,
}

/// What else a layer does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LayerRule {
    /// Number of layers run.
    pub count: Option<Rule>,
    /// Weight block of a layer.
    pub block: Option<Rule>,
    /// Before the names of blocks and of the final norm.
    pub prefix: Option<String>,
    /// Weight of one value that multiplies the stream at the end.
    pub out_scale: Option<String>,
    /// Weight of one value that multiplies the input embedding, added at the end.
    pub embed_skip: Option<String>,
    /// Multiplies the stream at the end; 0 is none.
    pub rescale: Option<Rule>,
    /// The final norm is applied at the end of a layer where this holds.
    pub end_norm: Option<Rule>,
}

/// What chooses the keys that `attention` or `mla` reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IndexerRule {
    /// The layers whose attention reads chosen keys.
    pub when: Option<Rule>,
    /// Of these, the layers that choose; the others read what the last one chose.
    pub own: Option<Rule>,
    /// Query heads.
    pub heads: Option<Rule>,
    /// Columns of a query and of the one key.
    pub dim: Option<Rule>,
    /// Tensor of the queries.
    pub q: Option<String>,
    /// The queries come from the block's input rather than from the low rank of its own queries.
    pub from_input: bool,
    /// Norm of each query head.
    pub q_norm: Option<NormRule>,
    /// Tensor of the key.
    pub k: Option<String>,
    /// Norm of the key.
    pub k_norm: Option<NormRule>,
    /// Tensor of the heads' weights; `none` lets each head choose for its own key head.
    pub weights: Option<String>,
    /// `adjacent` or `halves`, where it differs from the block's.
    pub pairing: Option<Word>,
    /// First rotated column.
    pub offset: Option<Rule>,
    /// Multiplies products of queries and keys.
    pub scale: Option<Rule>,
    /// Units chosen.
    pub top_k: Option<Rule>,
    /// Keys of a unit.
    pub unit: Option<Rule>,
    /// The last units up to the row, always chosen.
    pub local: Option<Rule>,
    /// Positions that share a key.
    pub ratio: Option<Rule>,
    /// A shared key reaches into the positions of the one before.
    pub overlap: bool,
    /// A shared key is normed rather than those of its positions.
    pub norm_shared: bool,
    /// Positions behind the last whole unit are read too.
    pub tail: Option<Rule>,
}

/// Streams of AltUp.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AltUpRule {
    /// Streams.
    pub n: Option<Rule>,
    /// The stream the layers work on.
    pub active: Option<Rule>,
}

/// Streams that every step reads and writes by weights of its own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectedRule {
    /// Streams.
    pub n: Option<Rule>,
    /// For each step of a layer, the beginning of its tensors' names: `_fn`, `_base` and `_scale` follow.
    pub tensors: Vec<String>,
    /// Added to the reading weights.
    pub read_eps: Option<Rule>,
    /// Multiplies the writing weights.
    pub write_scale: Option<Rule>,
    /// Added to the writing weights.
    pub write_eps: Option<Rule>,
    /// Divisions of the mix's columns; 0 where streams do not mix.
    pub mix: Option<Rule>,
    /// Added to the mix and its sums.
    pub mix_eps: Option<Rule>,
    /// The same beginning for the collapse, which takes the mean without it.
    pub collapse: Option<String>,
}

/// A stream that starts afresh every few layers and a bank of what it was.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BankedRule {
    /// Layers from one entry of the bank to the next.
    pub every: Option<Rule>,
    /// For each step of a layer, the tensor that scores the bank and the stream before it.
    pub scores: Vec<String>,
    /// The tensor that scores before the head.
    pub head: String,
}

/// A looped stack of two states: one starts as the embedding, the other as a tensor.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoopRule {
    /// Where the second state starts.
    pub tensor: String,
    /// The layers that start from the sum of both states.
    pub join: Option<Rule>,
    /// The state that a layer's output becomes: 1, 2 or 0 for neither.
    pub store: Option<Rule>,
}

/// Multi-token-prediction heads, in the layers behind the trunk.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DraftRule {
    /// Whether the hidden state is taken after the final norm.
    pub post_norm: bool,
    /// Residual steps, where others than those of the trunk.
    pub steps: Vec<StepRule>,
    /// Norm before its output matrix; `nextn.shared_head_norm` or else the trunk's.
    pub head_norm: Option<NormRule>,
}

/// A drafter in a file of its own, which reads the states of the model that it guesses for. Its layers are the
/// descriptor's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestRule {
    /// Layers that it reads; as many as its file names by default.
    pub count: Option<Rule>,
    /// Norm of what it reads.
    pub before: Option<NormRule>,
    /// Norm of the state that becomes of it.
    pub after: Option<NormRule>,
    /// It fills masked tokens all at once: tokens of such a block. Its layers keep the states as keys and values then;
    /// otherwise a row reads a token and the state before it.
    pub block: Option<Rule>,
}

/// Tensors a descriptor leaves alone.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnusedRule {
    /// Name with `*` for any run of characters.
    pub name: String,
    /// Why it is not needed.
    pub why: String,
}

/// A descriptor.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Descriptor {
    /// Architecture strings of files.
    pub names: Vec<String>,
    /// The descriptor whose tables this one changes.
    pub extends: Option<String>,
    /// One line about the family.
    pub about: String,
    /// `decoder`, `encoder`, `diffusion` or `encoder_decoder`.
    pub stack: Option<Word>,
    /// Diffusion: logits of a position are read one position earlier.
    pub shift_logits: Option<Rule>,
    /// The family is known and cannot be run; why.
    pub unsupported: Option<String>,
    /// Own variables.
    pub vars: BTreeMap<String, Rule>,
    /// Facts that must hold, with the message shown otherwise.
    pub require: Vec<RequireRule>,
    /// Norm defaults.
    pub norm: NormDefaults,
    /// Input stage.
    pub embed: EmbedRule,
    /// What an encoder reads in the place of tokens.
    pub frames: Option<FramesRule>,
    /// Windows.
    pub window: WindowRule,
    /// Rotation.
    pub rope: RopeRule,
    /// Residual steps of a layer.
    pub steps: Vec<StepRule>,
    /// Residual steps of an encoder layer, for `encoder_decoder`.
    pub encoder_steps: Vec<StepRule>,
    /// Block.
    pub attention: AttentionRule,
    /// Block: attention over an encoder's rows.
    pub cross: AttentionRule,
    /// Block.
    pub mla: MlaRule,
    /// Block.
    pub ffn: FfnRule,
    /// Block.
    pub moe: MoeRule,
    /// Block.
    pub linear: LinearRule,
    /// Block.
    pub mamba: MambaRule,
    /// Block.
    pub rwkv6: Rwkv6Rule,
    /// Block.
    pub rwkv7: Rwkv7Rule,
    /// Block.
    pub channel_mix: ChannelMixRule,
    /// Block.
    pub delta: DeltaRule,
    /// Block.
    pub short_conv: ShortConvRule,
    /// Block.
    pub laurel: LaurelRule,
    /// Block.
    pub lightning: LightningRule,
    /// Block.
    pub summary: SummaryRule,
    /// Rest of a layer.
    pub layer: LayerRule,
    /// What chooses the keys that attention reads.
    pub indexer: Option<IndexerRule>,
    /// Streams.
    pub altup: Option<AltUpRule>,
    /// Streams, in another way.
    pub connected: Option<ConnectedRule>,
    /// A stream and its past.
    pub banked: Option<BankedRule>,
    /// States of a looped stack.
    #[serde(rename = "loop")]
    pub states: Option<LoopRule>,
    /// Output stage.
    pub head: HeadRule,
    /// Multi-token prediction.
    pub draft: Option<DraftRule>,
    /// A drafter for other models.
    pub guest: Option<GuestRule>,
    /// Tensors left alone.
    pub unused: Vec<UnusedRule>,
    /// Hugging Face files.
    pub hf: HfRule,
}

/// A fact that must hold.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequireRule {
    /// The fact.
    pub that: Rule,
    /// What to say otherwise.
    pub say: String,
}

impl Descriptor {
    /// Whether the family has an encoder beside its decoder.
    #[must_use]
    pub fn has_encoder(&self) -> bool {
        self.stack
            .as_ref()
            .is_some_and(|s| *s == Word::of("encoder_decoder"))
    }

    /// The files that architecture `name` is run from: GGUF always, Hugging Face directories where the descriptor names
    /// their classes, which are those of its first architecture.
    #[must_use]
    pub fn containers(&self, name: &str) -> &'static str {
        let first = self.names.first().is_some_and(|first| first == name);
        if self.unsupported.is_some() {
            "–"
        } else if self.guest.is_some() {
            "GGUF, beside a model"
        } else if self.hf.classes.is_empty() || !first {
            "GGUF"
        } else {
            "GGUF, Hugging Face"
        }
    }
}
