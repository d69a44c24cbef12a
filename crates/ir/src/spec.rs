//! What a descriptor resolves to: one explicit row per layer, every rule already a value.
//!
//! A specification names weights, constants and cache slots by id; it holds no rule and no name of a family.
//! The plan builder walks it once.

use std::sync::Arc;

use crate::ids::{ConstId, GroupId, SlotId, WeightId};
use crate::op::{
    Act, BucketBias, ExpertGroups, GateClamp, Mask, NormKind, Pairing, PoolKind, Scan, Score,
};
use crate::program::{CacheKind, ConstData, SlotDef};
use crate::weight::WeightDef;

/// A resolved model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSpec {
    /// The architecture string of the file, for messages only.
    pub arch: String,
    /// Width of the residual stream.
    pub n_embd: u32,
    /// Rows of the token table.
    pub n_vocab: u32,
    /// Positions the model was trained for.
    pub n_ctx_train: u32,
    /// Whether rows see each other in both directions and nothing is cached.
    pub bidirectional: bool,
    /// How tokens are generated.
    pub generation: Generation,
    /// Weights by id.
    pub weights: Vec<WeightDef>,
    /// Constants by id.
    pub consts: Vec<ConstData>,
    /// Cache groups by id: kind and slots; sizes are the program's.
    pub groups: Vec<GroupSpec>,
    /// The stack that gives logits or vectors.
    pub main: StackSpec,
    /// The encoder of an encoder–decoder.
    pub encoder: Option<StackSpec>,
    /// Multi-token-prediction heads, or the one drafter of a file beside this one.
    pub drafts: Vec<DraftSpec>,
    /// What that drafter reads of the trunk.
    pub taps: Option<TapSpec>,
    /// Slots of each group that belong to no draft; those of drafts come after them.
    pub trunk_slots: Vec<u32>,
}

/// How text comes out of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// One token after the other.
    #[default]
    Autoregressive,
    /// Masked positions are filled step by step.
    Diffusion {
        /// Logits of a position are read one position earlier.
        shift_logits: bool,
    },
    /// No text: vectors only.
    None,
}

/// A cache group before it is sized.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSpec {
    /// What is kept.
    pub kind: CacheKind,
    /// One entry per layer.
    pub slots: Vec<SlotDef>,
}

/// Embedding, layers and head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StackSpec {
    /// Input stage; `None` when the stack takes embeddings only, or frames.
    pub embed: Option<EmbedSpec>,
    /// Input stage of a stack that reads frames, such as of sound.
    pub frames: Option<FramesSpec>,
    /// The residual frame when it is not a single stream.
    pub frame: Option<FrameSpec>,
    /// Start `[1, D]` of a second state that layers read and write; the first starts as the embedding.
    pub second_state: Option<WeightId>,
    /// Layers in execution order.
    pub layers: Vec<LayerSpec>,
    /// Output stage.
    pub head: HeadSpec,
}

/// Input stage.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedSpec {
    /// Token table `[V, D]`.
    pub table: WeightId,
    /// Multiplies token rows.
    pub scale: f32,
    /// Row of a type table added to every row.
    pub types: Option<WeightId>,
    /// Learned positions and the offset of their first row.
    pub positions: Option<(WeightId, u32)>,
    /// Norm of the sum.
    pub norm: Option<NormSpec>,
    /// Per-layer embeddings.
    pub per_layer: Option<PerLayerEmbed>,
}

/// Input stage that makes rows of frames: convolutions, each with its activation, and learned positions.
#[derive(Clone, Debug, PartialEq)]
pub struct FramesSpec {
    /// Channels of a frame.
    pub channels: u32,
    /// The convolutions, in order.
    pub convs: Vec<FrameConv>,
    /// After each of them.
    pub act: Act,
    /// Learned positions `[rows, D]`: so many rows the stack reads at most.
    pub positions: WeightId,
    /// How many.
    pub rows: u32,
}

impl FramesSpec {
    /// Frames that become one row.
    #[must_use]
    pub fn per_row(&self) -> u32 {
        self.convs.iter().map(|c| c.stride).product()
    }
}

/// A convolution over frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameConv {
    /// `[N, kernel · C]`, the channels of a tap beside each other.
    pub weight: WeightId,
    /// `[N]`.
    pub bias: Option<WeightId>,
    /// Taps.
    pub kernel: u32,
    /// Frames from one output to the next.
    pub stride: u32,
    /// Zeros on both sides.
    pub padding: u32,
}

/// Per-layer token embeddings of Gemma 3n and Gemma 4.
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayerEmbed {
    /// `[V, L · dim]`.
    pub table: WeightId,
    /// Columns per layer.
    pub dim: u32,
    /// Multiplies looked-up rows.
    pub scale: f32,
    /// Projects the input embedding: `[L · dim, D]`.
    pub proj: Proj,
    /// Multiplies the projection.
    pub proj_scale: f32,
    /// Norm of the projection, per layer.
    pub norm: NormSpec,
    /// Multiplies the sum of both.
    pub combine_scale: f32,
}

/// One layer of the stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerSpec {
    /// Index of the weight block; layers may share one.
    pub block: u32,
    /// Sublayers in order.
    pub steps: Vec<StepSpec>,
    /// Gate and projection of the per-layer embedding, added after the sublayers.
    pub per_layer: Option<PerLayerInject>,
    /// Adds the (normed) input embedding times this `[1]` weight at the layer's end.
    pub embed_skip: Option<WeightId>,
    /// Multiplies the stream at the end of the layer.
    pub out_scale: Option<WeightId>,
    /// Multiplies the stream at the end of the layer by a constant.
    pub rescale: Option<f32>,
    /// Norm of the stream at the end of the layer (between loops of a looped stack).
    pub end_norm: Option<NormSpec>,
    /// The layer starts from the sum of both states rather than from the layer before it.
    pub join_states: bool,
    /// The state that the layer's output becomes.
    pub store_state: Option<State>,
}

/// A state of a looped stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The one that starts as the embedding.
    First,
    /// The one that starts as a weight.
    Second,
}

/// Injection of a per-layer embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayerInject {
    /// `[dim, D]`.
    pub gate: Proj,
    /// Of the gate.
    pub act: Act,
    /// `[D, dim]`.
    pub proj: Proj,
    /// After the projection.
    pub norm: Option<NormSpec>,
}

/// One residual step: branches that read the stream and are summed into it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSpec {
    /// Branches, summed in order.
    pub branches: Vec<BranchSpec>,
    /// Multiplies the sum of the branches.
    pub scale: f32,
    /// Norm of that sum, before it is added.
    pub post_norm: Option<NormSpec>,
    /// What the sum is added to.
    pub skip: Skip,
    /// Multiplies the skipped value.
    pub skip_scale: f32,
    /// Norm after the addition.
    pub post_add: Option<NormSpec>,
    /// A second residual: the layer's input is added again and normed (Jina BERT v2).
    pub readd: Option<NormSpec>,
}

/// What a step's output is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The stream.
    Stream,
    /// The first branch's normed input.
    Normed,
}

/// One branch of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchSpec {
    /// What it reads.
    pub source: Source,
    /// Norm of what it reads.
    pub norm: Option<NormSpec>,
    /// What it computes.
    pub block: BlockSpec,
    /// Norm of its output.
    pub post_norm: Option<NormSpec>,
    /// Multiplies its output.
    pub scale: f32,
}

/// What a branch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The stream as the step finds it.
    Stream,
    /// The stream as the layer found it.
    LayerInput,
    /// The output of the branch before it in the same step.
    Previous,
    /// What a drafter has beside its stream.
    Beside,
}

/// A norm and its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Statistic.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
    /// Columns per run.
    pub width: u32,
    /// Multiplies.
    pub weight: Option<WeightId>,
    /// Added.
    pub bias: Option<WeightId>,
}

/// A linear map with its optional sidecars.
#[derive(Clone, Debug, PartialEq)]
pub struct Proj {
    /// `[N, K]`.
    pub weight: WeightId,
    /// Multiplies the product.
    pub scale: Option<WeightId>,
    /// Added last.
    pub bias: Option<WeightId>,
}

/// What a branch computes.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockSpec {
    /// Softmax attention.
    Attention(Box<AttentionSpec>),
    /// Multi-head latent attention.
    Mla(Box<MlaSpec>),
    /// Feed-forward.
    Ffn(Box<FfnSpec>),
    /// Mixture of experts.
    Moe(Box<MoeSpec>),
    /// One linear map.
    Linear(Proj),
    /// Mamba-1 and Mamba-2.
    Mamba(Box<MambaSpec>),
    /// RWKV-6 and its relatives.
    Rwkv6(Box<Rwkv6Spec>),
    /// RWKV-7.
    Rwkv7(Box<Rwkv7Spec>),
    /// RWKV's channel mix.
    ChannelMix(Box<ChannelMixSpec>),
    /// Gated delta rule.
    Delta(Box<DeltaSpec>),
    /// Gated short convolution.
    ShortConv(Box<ShortConvSpec>),
    /// Low-rank map around its input.
    Laurel(Box<LaurelSpec>),
    /// Linear attention with fixed decay.
    Lightning(Box<LightningSpec>),
    /// Attention over a window and summaries of what lies before.
    Summary(Box<SummarySpec>),
    /// The activation of the input, without a matrix.
    Activation(Act),
}

/// Rotary embedding of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Which columns pair up.
    pub pairing: Pairing,
    /// First rotated column of a head.
    pub offset: u32,
    /// Angle per position, f32.
    pub freqs: ConstId,
    /// Multiplies cos and sin.
    pub magnitude: f32,
    /// Position channel per pair.
    pub channels: Option<ConstId>,
}

/// A norm of queries, keys or values.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    /// The norm; its width says whether it is per head or over the whole row.
    pub norm: NormSpec,
    /// After the rotation rather than before.
    pub after_rope: bool,
    /// One gain per head, times the normed head.
    pub gain: Option<WeightId>,
}

/// Where the projections of an attention come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Qkv {
    /// Separate projections; `v` absent means values are the raw keys.
    Split {
        /// `[H·Dk, D]`, or `[2·H·Dk, D]` with an interleaved gate.
        q: Proj,
        /// `[Hkv·Dk, D]`; absent when keys and values are another layer's.
        k: Option<Proj>,
        /// `[Hkv·Dv, D]`.
        v: Option<Proj>,
    },
    /// One projection with rows `[Q | K | V]`, and separate biases if it has none of its own.
    Fused(Proj),
}

/// Scale by position of the queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Strength.
    pub coef: f32,
    /// Positions per step.
    pub length: f32,
    /// Added to the position.
    pub offset: f32,
}

/// A gate on the output of a mixer, computed from its normed input.
#[derive(Clone, Debug, PartialEq)]
pub struct OutGate {
    /// `[H, D]` (one per head) or `[H·Dv, D]`.
    pub proj: Proj,
    /// Activation.
    pub act: Act,
    /// One value per head.
    pub per_head: bool,
}

/// Softmax attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub n_heads: u32,
    /// Key heads.
    pub n_kv_heads: u32,
    /// Columns of a key head.
    pub dim_k: u32,
    /// Columns of a value head.
    pub dim_v: u32,
    /// Projections.
    pub qkv: Qkv,
    /// The query projection carries a gate, interleaved per head.
    pub q_gate: bool,
    /// Clamp of the projections.
    pub clamp: Option<f32>,
    /// Norm of queries.
    pub q_norm: Option<HeadNorm>,
    /// Norm of keys.
    pub k_norm: Option<HeadNorm>,
    /// Norm of values.
    pub v_norm: Option<HeadNorm>,
    /// Rotation; `None` on layers without positions.
    pub rope: Option<RopeSpec>,
    /// Multiplies scores.
    pub scale: f32,
    /// Soft cap of scores.
    pub cap: Option<f32>,
    /// Extra logit per head.
    pub sinks: Option<WeightId>,
    /// Slope per head.
    pub alibi: Option<ConstId>,
    /// Learned bias by distance.
    pub bucket: Option<BucketBias>,
    /// Which keys are seen.
    pub mask: Mask,
    /// Scale of queries by position.
    pub temperature: Option<Temperature>,
    /// Gate before the output projection.
    pub gate: Option<OutGate>,
    /// Norm before the output projection.
    pub sub_norm: Option<NormSpec>,
    /// Output projection.
    pub out: Proj,
    /// Multiplies the output.
    pub out_scale: f32,
    /// Where keys and values live.
    pub kv: KvPlace,
    /// What chooses the keys that are read, when not all that the mask shows.
    pub reads: Reads,
}

/// Which keys an attention reads, of those its mask shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Reads {
    /// All of them.
    All,
    /// Those that its own indexer chooses.
    Own(Box<IndexerSpec>),
    /// Those that the last indexer before it chose.
    Last,
}

/// When the key that several positions share is normed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// Each position's, before they become one.
    Before,
    /// The shared one.
    After,
}

/// What scores keys and chooses those that attention reads.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexerSpec {
    /// Query heads.
    pub n_heads: u32,
    /// Columns of a query and of the one key.
    pub dim: u32,
    /// `[H·dim, D]`, or `[H·dim, rank]` from the low rank of a latent attention's queries.
    pub q: Proj,
    /// The queries come from that low rank.
    pub from_rank: bool,
    /// Norm of each query head.
    pub q_norm: Option<NormSpec>,
    /// `[dim, D]`, or `[2·dim, D]` where runs overlap.
    pub k: Proj,
    /// Norm of the key.
    pub k_norm: Option<NormSpec>,
    /// How several positions share a key, which is normed before or after.
    pub compress: Option<(CompressSpec, NormPlace)>,
    /// Rotation of queries and keys, a shared key as the first of its positions.
    pub rope: Option<RopeSpec>,
    /// Weights of the heads, `[H, D]`; without, each head chooses for its own key head.
    pub weights: Option<Proj>,
    /// Multiplies products of queries and keys.
    pub scale: f32,
    /// Units chosen.
    pub top_k: u32,
    /// Keys of a unit.
    pub unit: u32,
    /// The last units up to the row, always chosen.
    pub local: u32,
    /// Positions behind the last whole unit are read too.
    pub tail: bool,
    /// Its keys.
    pub slot: SlotId,
}

/// Summaries of runs of positions, see [`crate::CompressOp`].
#[derive(Clone, Debug, PartialEq)]
pub struct CompressSpec {
    /// Positions of a run.
    pub ratio: u32,
    /// Runs reach into those before.
    pub overlap: bool,
    /// Scores `[D, n_embd]` or, with overlap, `[2·D, n_embd]`.
    pub scores: Proj,
    /// Added to them.
    pub ape: WeightId,
    /// The positions of a run that is not whole.
    pub slot: SlotId,
}

/// Attention of many heads over vectors that are keys and values at once: those of a window, and summaries of runs of
/// positions. What it reads of a vector's rotated columns is rotated back.
#[derive(Clone, Debug, PartialEq)]
pub struct SummarySpec {
    /// Heads.
    pub n_heads: u32,
    /// Columns of a head and of a vector.
    pub dim: u32,
    /// Query projection.
    pub q: MlaQuery,
    /// Norm of each query head.
    pub q_norm: NormSpec,
    /// `[dim, D]`.
    pub kv: Proj,
    /// Norm of a vector.
    pub kv_norm: NormSpec,
    /// Rotation of queries, vectors and, back, of the output.
    pub rope: RopeSpec,
    /// Multiplies scores.
    pub scale: f32,
    /// Which positions are seen.
    pub mask: Mask,
    /// Extra logit per head.
    pub sinks: WeightId,
    /// The window's vectors.
    pub slot: SlotId,
    /// Summaries of what lies before.
    pub history: Option<HistorySpec>,
    /// `[groups, rank, H·dim / groups]`.
    pub out_a: WeightId,
    /// Groups of heads in the output.
    pub groups: u32,
    /// `[D, groups·rank]`.
    pub out_b: Proj,
}

/// Summaries that an attention reads.
#[derive(Clone, Debug, PartialEq)]
pub struct HistorySpec {
    /// `[D, n_embd]` or, with overlap, `[2·D, n_embd]`.
    pub kv: Proj,
    /// How rows become summaries.
    pub compress: CompressSpec,
    /// Norm of a summary, before its rotation.
    pub norm: NormSpec,
    /// Summaries.
    pub slot: SlotId,
    /// Which of them are read.
    pub reads: Reads,
}

/// Where an attention keeps its keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPlace {
    /// Its own slot.
    Own(SlotId),
    /// Another layer's slot: nothing is written.
    Shared(SlotId),
    /// Nowhere: the step's own rows.
    None,
    /// An encoder's, written by the encoder plan from this layer's K and V.
    Cross(SlotId),
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaSpec {
    /// Heads.
    pub n_heads: u32,
    /// Width of the latent.
    pub kv_rank: u32,
    /// Unrotated columns of a head.
    pub dim_nope: u32,
    /// Rotated columns of a head.
    pub dim_rope: u32,
    /// Columns of a value head.
    pub dim_v: u32,
    /// Query projection, through a low rank when two.
    pub q: MlaQuery,
    /// `[rank + rope, D]`.
    pub kv_a: Proj,
    /// Norm of the latent.
    pub kv_norm: NormSpec,
    /// Norm of the shared rope key.
    pub k_rope_norm: Option<NormSpec>,
    /// How the latent becomes keys and values.
    pub form: MlaForm,
    /// Rotation of the rope columns.
    pub rope: Option<RopeSpec>,
    /// Multiplies scores.
    pub scale: f32,
    /// Scale of queries by position.
    pub temperature: Option<Temperature>,
    /// Which keys are seen.
    pub mask: Mask,
    /// Extra logit per head.
    pub sinks: Option<WeightId>,
    /// Gate before the output projection.
    pub gate: Option<OutGate>,
    /// Output projection.
    pub out: Proj,
    /// Slot of the latent (keys only) or of the expanded keys and values.
    pub kv: KvPlace,
    /// What chooses the keys that are read, when not all that the mask shows.
    pub reads: Reads,
}

/// Query side of latent attention.
#[derive(Clone, Debug, PartialEq)]
pub enum MlaQuery {
    /// One projection.
    Full(Proj),
    /// Down, norm, up.
    LowRank {
        /// `[rank, D]`.
        a: Proj,
        /// Norm of the low rank.
        norm: NormSpec,
        /// `[H·(nope + rope), rank]`.
        b: Proj,
    },
}

/// How the latent is used.
#[derive(Clone, Debug, PartialEq)]
pub enum MlaForm {
    /// Queries go to the latent space, values come back: only the latent is cached.
    Absorbed {
        /// `[H, rank, nope]`.
        k_b: WeightId,
        /// `[H, v, rank]`.
        v_b: WeightId,
    },
    /// Keys and values are expanded and cached per head.
    Expanded {
        /// `[H·(nope + v), rank]`.
        kv_b: Proj,
    },
}

/// Shape of a feed-forward.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnForm {
    /// `down(act(gate x) · up x)`.
    Gated {
        /// `[F, D]`.
        gate: Proj,
        /// `[F, D]`.
        up: Proj,
    },
    /// Gate and up in one matrix, gate rows first.
    Fused(Proj),
    /// `down(act(up x))`.
    Plain(Proj),
}

/// Feed-forward.
#[derive(Clone, Debug, PartialEq)]
pub struct FfnSpec {
    /// Width F.
    pub n_ff: u32,
    /// Input side.
    pub form: FfnForm,
    /// Activation.
    pub act: Act,
    /// Clamps.
    pub clamp: GateClamp,
    /// Gaussian sparsity of the gate, in standard deviations.
    pub sparsity: Option<f32>,
    /// Divides the activation per column.
    pub act_div: Option<WeightId>,
    /// Norm before the output projection.
    pub sub_norm: Option<NormSpec>,
    /// `[D, F]`.
    pub down: Proj,
}

/// One expert projection.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertProj {
    /// `[E, N, K]`.
    pub weight: WeightId,
    /// `[E]`.
    pub scale: Option<WeightId>,
    /// `[E, N]`.
    pub bias: Option<WeightId>,
}

/// Input side of the experts.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpertForm {
    /// Gate and up.
    Gated {
        /// `[E, F, D]`.
        gate: ExpertProj,
        /// `[E, F, D]`.
        up: ExpertProj,
    },
    /// Both in one, gate rows first.
    Fused(ExpertProj),
    /// Up only.
    Plain(ExpertProj),
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Experts.
    pub n_experts: u32,
    /// Chosen per row.
    pub top_k: u32,
    /// Width of an expert.
    pub n_ff: u32,
    /// Router matrix `[E, D]`.
    pub router: Proj,
    /// What the router reads.
    pub router_input: RouterInput,
    /// Weightless norm, scale and vector of the router's input (Gemma 4).
    pub router_norm: Option<(NormSpec, f32, Option<WeightId>)>,
    /// Scores.
    pub score: Score,
    /// Scores that select, when others.
    pub select: Option<Score>,
    /// Selection bias.
    pub bias: Option<WeightId>,
    /// Experts by token.
    pub table: Option<WeightId>,
    /// Group limit.
    pub groups: Option<ExpertGroups>,
    /// Softmax over the chosen.
    pub softmax_chosen: bool,
    /// Sigmoid of the chosen.
    pub sigmoid_chosen: bool,
    /// How near other experts must come to share the weight of a choice; 0 shares none.
    pub near_ties: f32,
    /// Weights sum to one.
    pub renormalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// Weights multiply the experts' input rather than their output.
    pub weigh_input: bool,
    /// Projection into the experts' space.
    pub latent_in: Option<Proj>,
    /// Norm before the way back.
    pub latent_norm: Option<NormSpec>,
    /// Projection out of it.
    pub latent_out: Option<Proj>,
    /// Input side.
    pub form: ExpertForm,
    /// Activation.
    pub act: Act,
    /// Clamps.
    pub clamp: GateClamp,
    /// `[E, D, F]`.
    pub down: ExpertProj,
    /// Always-on expert.
    pub shared: Option<FfnSpec>,
    /// Gate of the shared expert, `[1, D]`, sigmoid.
    pub shared_gate: Option<Proj>,
    /// Multiplies routed + shared.
    pub out_scale: f32,
    /// A second bank of experts on the output of the first, chosen by the same scores.
    pub second: Option<SecondExperts>,
}

/// Second-level experts.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondExperts {
    /// First-level experts per second-level expert.
    pub group: u32,
    /// Input side.
    pub form: ExpertForm,
    /// `[E / group, D, F]`.
    pub down: ExpertProj,
    /// Multiplies the output.
    pub scale: f32,
}

/// What a router reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterInput {
    /// What the experts read.
    Experts,
    /// The stream as the layer found it, unnormed.
    LayerInput,
    /// The stream as the step found it, unnormed.
    Stream,
}

/// Mamba mixers.
#[derive(Clone, Debug, PartialEq)]
pub struct MambaSpec {
    /// `ssm_in`.
    pub input: Proj,
    /// Order of the parts of the input projection.
    pub layout: MambaLayout,
    /// Convolution `[C, kernel]` and bias.
    pub conv: ConvSpec,
    /// Projection of x to dt, B and C, in `dt_order`.
    pub x_proj: Option<Proj>,
    /// Parts of `x_proj` in order.
    pub x_parts: XParts,
    /// Widening of dt, with bias.
    pub dt_proj: Option<Proj>,
    /// Norms of dt, B and C.
    pub dt_norm: Option<NormSpec>,
    /// Norm of B.
    pub b_norm: Option<NormSpec>,
    /// Norm of C.
    pub c_norm: Option<NormSpec>,
    /// Inner width.
    pub inner: u32,
    /// Heads of the scan (the inner width for Mamba-1).
    pub heads: u32,
    /// State columns.
    pub state: u32,
    /// Groups of B and C.
    pub groups: u32,
    /// Low rank of dt.
    pub dt_rank: u32,
    /// The recurrence.
    pub scan: Scan,
    /// Its state.
    pub slot: SlotId,
    /// Norm after the gate.
    pub out_norm: Option<NormSpec>,
    /// Output projection.
    pub out: Proj,
}

/// Parts of a Mamba input projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MambaLayout {
    /// `[x | z]`.
    XZ,
    /// `[z | x B C | dt]`.
    ZXbcDt,
    /// Per head `[z | x]`.
    HeadZX,
}

/// Order of what `x_proj` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XParts {
    /// `[dt | B | C]`.
    DtBC,
    /// `[B | C | dt]`.
    BCDt,
}

/// A causal depthwise convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvSpec {
    /// `[C, kernel]`.
    pub weight: WeightId,
    /// `[C]`.
    pub bias: Option<WeightId>,
    /// Taps.
    pub kernel: u32,
    /// Its state; `None` centres it.
    pub slot: Option<SlotId>,
}

/// RWKV-6 time mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv6Spec {
    /// Columns per head.
    pub head_dim: u32,
    /// State of the token shift.
    pub shift: SlotId,
    /// State of the recurrence.
    pub slot: SlotId,
    /// Static mix of the first interpolation, `[D]`.
    pub lerp_x: WeightId,
    /// Static mixes of w, k, v, r, g: one weight `[5, D]` or five of `[D]`.
    pub lerps: Vec<WeightId>,
    /// `[5·rank, D]`.
    pub w1: Proj,
    /// `[5, D, rank]`.
    pub w2: WeightId,
    /// Base decay `[D]`.
    pub decay: WeightId,
    /// `[rank, D]`.
    pub decay_w1: Proj,
    /// `[D, rank]`.
    pub decay_w2: Proj,
    /// Receptance.
    pub r: Proj,
    /// Key.
    pub k: Proj,
    /// Value.
    pub v: Proj,
    /// Gate.
    pub g: Proj,
    /// Activation of the gate.
    pub gate_act: Act,
    /// Keys are scaled by `1 − w`.
    pub scale_k: bool,
    /// Key and value heads, when fewer.
    pub kv_heads: u32,
    /// The recurrence.
    pub scan: Scan,
    /// Group norm of the output.
    pub out_norm: Option<NormSpec>,
    /// Output projection.
    pub out: Proj,
}

/// RWKV-7 time mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv7Spec {
    /// Columns per head.
    pub head_dim: u32,
    /// State of the token shift.
    pub shift: SlotId,
    /// State of the recurrence.
    pub slot: SlotId,
    /// Static mixes of r, w, k, v, a and perhaps g, each `[D]`.
    pub lerps: Vec<WeightId>,
    /// Decay: w0 `[D]`, w1 `[rank, D]`, w2 `[D, rank]`.
    pub w: LowRank,
    /// In-context rate.
    pub a: LowRank,
    /// Value residual; `None` on the layer that defines it.
    pub v_mix: Option<LowRank>,
    /// Gate without a base: g1, g2.
    pub g: Option<(Proj, Proj)>,
    /// `[D]`.
    pub k_k: WeightId,
    /// `[D]`.
    pub k_a: WeightId,
    /// `[D]`.
    pub r_k: WeightId,
    /// Receptance.
    pub r: Proj,
    /// Key.
    pub k: Proj,
    /// Value.
    pub v: Proj,
    /// Key and value heads, when fewer.
    pub kv_heads: u32,
    /// Group norm of the output.
    pub out_norm: Option<NormSpec>,
    /// Output projection.
    pub out: Proj,
}

/// `base + up(f(down x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// `[D]`.
    pub base: WeightId,
    /// `[rank, D]`.
    pub down: Proj,
    /// `[D, rank]`.
    pub up: Proj,
}

/// RWKV's channel mix.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelMixSpec {
    /// State of the token shift.
    pub shift: SlotId,
    /// Static mix of the key.
    pub lerp_k: WeightId,
    /// Static mix of the receptance.
    pub lerp_r: Option<WeightId>,
    /// `[F, D]`.
    pub key: Proj,
    /// `[D, F]`.
    pub value: Proj,
    /// `[D, D]`.
    pub receptance: Option<Proj>,
}

/// Gated delta rule.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaSpec {
    /// Key heads.
    pub k_heads: u32,
    /// Value heads.
    pub v_heads: u32,
    /// Columns of a key head.
    pub dim_k: u32,
    /// Columns of a value head.
    pub dim_v: u32,
    /// Projections before the convolution, joined in order q, k, v.
    pub qkv: Vec<Proj>,
    /// q, k and v come interleaved per key head with z: `[q | k | v·r | z·r]`.
    pub qkvz_grouped: bool,
    /// Convolutions: one over all of q, k, v or one each.
    pub convs: Vec<ConvSpec>,
    /// Decay input: one per value head, or per key column.
    pub alpha: DeltaInput,
    /// Write strength.
    pub beta: Proj,
    /// `beta` also holds the decay input, grouped per key head `[b·r | a·r]`.
    pub beta_alpha_grouped: bool,
    /// Log decay.
    pub decay: DeltaDecay,
    /// Epsilon of the L2 norm.
    pub l2_eps: f32,
    /// Recurrence.
    pub scan: Scan,
    /// Its state.
    pub slot: SlotId,
    /// Output gate z.
    pub z: Option<DeltaInput>,
    /// Activation of z.
    pub z_act: Act,
    /// Per-head norm of the output.
    pub out_norm: NormSpec,
    /// Output projection.
    pub out: Proj,
}

/// A projection, directly or through a low rank.
#[derive(Clone, Debug, PartialEq)]
pub enum DeltaInput {
    /// Part of another projection.
    Grouped,
    /// One map.
    Full(Proj),
    /// Two maps.
    LowRank(Proj, Proj),
}

/// Log decay of the delta rule.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaDecay {
    /// `[H]` or one per column: −e^A or +e^A as the file holds it.
    pub a: WeightId,
    /// Added to the input.
    pub dt_bias: Option<WeightId>,
    /// `bound · σ(a · (x + bias))` instead of `a · softplus(x + bias)`.
    pub lower_bound: Option<f32>,
}

/// Gated short convolution of LFM2.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// `[3D, D]`: B, C, x.
    pub input: Proj,
    /// The convolution.
    pub conv: ConvSpec,
    /// `[D, D]`.
    pub out: Proj,
}

/// Linear attention of MiniMax-01.
#[derive(Clone, Debug, PartialEq)]
pub struct LightningSpec {
    /// Heads.
    pub heads: u32,
    /// Columns per head.
    pub head_dim: u32,
    /// Rows per head `[q | k | v]`.
    pub qkv: Proj,
    /// Decay per head.
    pub slopes: ConstId,
    /// State.
    pub slot: SlotId,
    /// Norm of the output.
    pub out_norm: NormSpec,
    /// Sigmoid gate.
    pub gate: Proj,
    /// Output projection.
    pub out: Proj,
}

/// `x + norm(up(down x))` of Gemma 3n.
#[derive(Clone, Debug, PartialEq)]
pub struct LaurelSpec {
    /// `[rank, D]`.
    pub down: Proj,
    /// `[D, rank]`.
    pub up: Proj,
    /// Of the product.
    pub norm: Option<NormSpec>,
}

/// A residual frame other than a single stream.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameSpec {
    /// Streams that predict and correct each other.
    AltUp(AltUpSpec),
    /// Streams that every step reads and writes by weights of its own.
    Connected(ConnectedSpec),
    /// A stream that starts afresh every few layers, and a bank of what it was.
    Banked(BankedSpec),
}

/// Hyper-connections: n streams `x_i`, all the embedding at first. A step reads `Σ_i a_i x_i` and its output y goes to all:
/// `x_j ← b_j y + Σ_i m_ij x_i`, or `x_j ← b_j y + x_j` without a mix. The weights come from the streams themselves:
/// [`Connection`].
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectedSpec {
    /// Streams.
    pub n: u32,
    /// Norm of all streams as one row, before the weights are computed.
    pub norm: NormSpec,
    /// Added to the sigmoid that gives a.
    pub read_eps: f32,
    /// Multiplies the sigmoid that gives b.
    pub write_scale: f32,
    /// Added after it.
    pub write_eps: f32,
    /// How m becomes nearly doubly stochastic; `None` where streams do not mix.
    pub mix: Option<MixSpec>,
    /// Per layer, the connection of each step.
    pub layers: Vec<Vec<Connection>>,
    /// The connection `[n, n·D]` whose reading weights collapse the streams; their mean without one.
    pub collapse: Option<Connection>,
}

/// Weights of a step by rows of a map `[n + n + n·n, n·D]`: those that read, those that write, and m by rows of sources.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// With a scale and a bias for each row.
    pub map: Proj,
}

/// Sinkhorn's division of a mix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixSpec {
    /// Divisions of the columns.
    pub iterations: u32,
    /// Added to elements and sums.
    pub eps: f32,
}

/// Residual attention: before a step and before the head, a softmax over the bank and the stream weighs them, by
/// `score · norm(x)` of each. At the start of every `every`-th layer the stream enters the bank, and the layer's first
/// step replaces it rather than adding to it.
#[derive(Clone, Debug, PartialEq)]
pub struct BankedSpec {
    /// Layers from one entry to the next.
    pub every: u32,
    /// Norm of each candidate before it is scored.
    pub norm: NormSpec,
    /// Per layer, the vector `[D]` that scores before each step.
    pub layers: Vec<Vec<WeightId>>,
    /// The one before the head.
    pub head: WeightId,
}

/// AltUp streams of Gemma 3n.
#[derive(Clone, Debug, PartialEq)]
pub struct AltUpSpec {
    /// Streams.
    pub n: u32,
    /// The stream the layers work on.
    pub active: u32,
    /// Expansion `[n − 1]` of `[D, D]`.
    pub expand: Vec<Proj>,
    /// Collapse `[n − 1]` of `[D, D]`.
    pub collapse: Vec<Proj>,
    /// Per layer.
    pub layers: Vec<AltUpLayer>,
}

/// AltUp of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AltUpLayer {
    /// `[n, D]`.
    pub router: Proj,
    /// Norm of the router input.
    pub router_norm: NormSpec,
    /// Multiplies the normed router input.
    pub router_scale: f32,
    /// `[n·n, n]`.
    pub predict: Proj,
    /// `[n, n]`.
    pub correct: Proj,
    /// `[D]`.
    pub correct_scale: WeightId,
}

/// Output stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadSpec {
    /// Final norm.
    pub norm: Option<NormSpec>,
    /// Multiplies the hidden state.
    pub hidden_scale: Option<f32>,
    /// `[V, D]`; `None` when there are no logits.
    pub output: Option<Proj>,
    /// Multiplies the logits.
    pub scale: Option<f32>,
    /// Soft cap of the logits.
    pub cap: Option<f32>,
    /// Suppressed ids `first..last`.
    pub suppress: Option<(u32, u32)>,
    /// One vector per sequence.
    pub pool: Option<PoolKind>,
    /// Projections of the pooled vector.
    pub dense: Vec<Proj>,
    /// Classifier on the pooled vector.
    pub classifier: Option<ClassifierSpec>,
}

/// Classifier: pooled rows, dense, activation, norm, output.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifierSpec {
    /// The vector that it reads.
    pub pool: PoolKind,
    /// First map.
    pub dense: Option<Proj>,
    /// After it.
    pub act: Act,
    /// Norm.
    pub norm: Option<NormSpec>,
    /// Second map.
    pub out: Option<Proj>,
    /// Softmax over the labels.
    pub softmax: bool,
}

/// A multi-token-prediction head, or a drafter of another file.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftSpec {
    /// Columns of its stream.
    pub n_embd: u32,
    /// Where its stream begins.
    pub input: DraftInput,
    /// Own token table.
    pub table: WeightId,
    /// Scale of the table's rows.
    pub embed_scale: f32,
    /// Its layers; a head has one.
    pub layers: Vec<LayerSpec>,
    /// Index of the first layer among all.
    pub index: u32,
    /// Its head.
    pub head: HeadSpec,
    /// Hidden state taken after the final norm rather than before.
    pub post_norm: bool,
    /// Where the trunk has several streams, those of the head: the state is all of them side by side, each is normed and
    /// joined with the embedding for itself, and the layer reads and writes them by connections of its own, the only
    /// ones here.
    pub connected: Option<ConnectedSpec>,
    /// How it is run.
    pub form: DraftForm,
}

/// Where a drafter's stream begins.
#[derive(Clone, Debug, PartialEq)]
pub enum DraftInput {
    /// As a product of a token's embedding and the state before it, both normed.
    Joined {
        /// Norm of the embedding.
        enorm: NormSpec,
        /// Norm of the state.
        hnorm: NormSpec,
        /// `[D, 2D]`.
        proj: Proj,
    },
    /// As the state; embedding and state, both normed, stand beside it.
    Beside {
        /// Norm of the embedding.
        enorm: NormSpec,
        /// Norm of the state.
        hnorm: NormSpec,
        /// The stream is the normed state.
        normed: bool,
    },
    /// As a token's embedding.
    Tokens,
}

/// How a drafter is run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftForm {
    /// Its rows stand at the position of the state that they read, one before that of their token.
    pub at_state: bool,
    /// What the columns of its logits stand for, where these are not all tokens in order.
    pub ids: Option<Arc<[u32]>>,
    /// It fills masked tokens behind the newest one, all at once.
    pub block: Option<MaskedBlock>,
}

/// The block that a drafter fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedBlock {
    /// Tokens of it, the newest known one among them.
    pub size: u32,
    /// The token that stands for those that are not known.
    pub mask: u32,
}

/// What a drafter of another file reads of the trunk: a state, made of what goes into some of its layers.
#[derive(Clone, Debug, PartialEq)]
pub struct TapSpec {
    /// The layers, in order; their number stands for what the last one gives.
    pub layers: Vec<u32>,
    /// Norm of what goes into them, side by side.
    pub before: Option<NormSpec>,
    /// `[D of the drafter, layers · D]`.
    pub proj: Proj,
    /// Norm of the product.
    pub after: Option<NormSpec>,
    /// The drafter's layers keep keys and values of each state, so that no row of the drafter reads it.
    pub kept: bool,
}

impl ModelSpec {
    /// Adds a slot to the group of this kind, making the group when it is new.
    pub fn add_slot(&mut self, kind: CacheKind, slot: SlotDef) -> SlotId {
        let place = self
            .groups
            .iter()
            .position(|g| g.kind == kind)
            .unwrap_or_else(|| {
                self.groups.push(GroupSpec {
                    kind,
                    slots: Vec::new(),
                });
                self.groups.len() - 1
            });
        self.groups[place].slots.push(slot);
        let slot = self.groups[place].slots.len() as u32 - 1;
        SlotId {
            group: GroupId(place as u32),
            slot,
        }
    }
}
