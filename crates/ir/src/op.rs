//! Semantic, unfused ops. `backend-ref` is their executable meaning.
//!
//! In the comments `x` is the first input, `[T, D]` a value of T rows and D columns; `x[g]` is the row seen as
//! consecutive runs. Weights appear as ids; a weight used elementwise repeats along the row when it is shorter.

use crate::ids::{ConstId, SlotId, WeightId};

/// One operation of a plan. Inputs and outputs are listed by the node that carries it.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Derives what depends on lengths from the step state. No inputs, no outputs.
    Prepare,
    /// `out[t] = table[index(t)]`: `[T, D]`. With an input, rows flagged as embeddings copy it instead.
    Gather {
        /// The table `[N, D]`.
        table: WeightId,
        /// Which row each row takes.
        index: GatherIndex,
    },
    /// Normalises each run of `width` columns.
    Norm {
        /// The statistic.
        kind: NormKind,
        /// Added under the root.
        eps: f32,
        /// Columns per run; divides the row.
        width: u32,
        /// Multiplies; as long as a run (shared) or as the row (distinct).
        weight: Option<WeightId>,
        /// Added last; same length rule.
        bias: Option<WeightId>,
    },
    /// `out = (x · weightᵀ) ⊙ scale + bias`: `[T, K] → [T, N]`.
    Matmul {
        /// `[N, K]`.
        weight: WeightId,
        /// `[1]` or `[N]`.
        scale: Option<WeightId>,
        /// `[N]`.
        bias: Option<WeightId>,
    },
    /// Per-head product: `[T, H·K] → [T, H·N]`, head h with `weight[h]` of `[N, K]`.
    HeadMatmul {
        /// `[H, N, K]`.
        weight: WeightId,
        /// Heads of the weight and of the row.
        heads: u32,
    },
    /// Takes `start..start + len` of each run of `group` columns.
    Slice {
        /// Columns per run.
        group: u32,
        /// First column taken.
        start: u32,
        /// Columns taken.
        len: u32,
    },
    /// Joins inputs run by run: input i is `groups` runs (or one, repeated), output `groups` runs of their sum.
    Concat {
        /// Runs of the output.
        groups: u32,
    },
    /// Repeats each run of `width` columns `times` times, neighbours together (`tiled = false`) or the row as a whole.
    Repeat {
        /// Columns per run.
        width: u32,
        /// Copies.
        times: u32,
        /// Repeat the row rather than each run.
        tiled: bool,
    },
    /// Rotary position embedding of every run of `head_dim` columns.
    Rope(RopeOp),
    /// `x · (1 + coef · ln(floor((pos + offset) / length) + 1))`.
    PosScale {
        /// Strength.
        coef: f32,
        /// Positions per step.
        length: f32,
        /// Added to the position.
        offset: f32,
    },
    /// Stores inputs k (and v, unless the slot keeps keys only) at each row's place in the slot.
    CacheWrite {
        /// Where.
        slot: SlotId,
    },
    /// Softmax attention. Inputs: q, then k and v when the source is the step's own rows, then the chosen units when
    /// there is a selection.
    Attention(AttentionOp),
    /// Chooses what a row's attention reads: see [`SelectOp`].
    Select(SelectOp),
    /// Summarises runs of positions: see [`CompressOp`].
    Compress(CompressOp),
    /// `f(x)`.
    Unary(Act),
    /// `f(gate) · up`, inputs gate and up.
    Gate {
        /// Activation of the gate.
        act: Act,
        /// Clamps as some families do.
        clamp: GateClamp,
    },
    /// `a_scale·a ∘ b_scale·b`; b repeats along the row when it is shorter (b of one column scales rows).
    Binary {
        /// The operation.
        kind: BinaryKind,
        /// Multiplies the first input.
        a_scale: f32,
        /// Multiplies the second input.
        b_scale: f32,
    },
    /// `x ∘ weight`, the weight repeating along the row.
    Weighted {
        /// The operation.
        kind: BinaryKind,
        /// Length divides the row.
        weight: WeightId,
    },
    /// Each run of `width` columns times (or plus) one column of the second input `[T, D/width]`.
    PerRun {
        /// The operation.
        kind: BinaryKind,
        /// Columns per run.
        width: u32,
    },
    /// `x · scale + offset`.
    Affine {
        /// Multiplies.
        scale: f32,
        /// Added.
        offset: f32,
    },
    /// `cap · tanh(x / cap)`.
    Softcap {
        /// The bound.
        cap: f32,
    },
    /// `clamp(x, lo, hi)`.
    Clamp {
        /// Lower bound.
        lo: f32,
        /// Upper bound.
        hi: f32,
    },
    /// Softmax over each run of `width` columns.
    Softmax {
        /// Columns per run.
        width: u32,
    },
    /// Makes each row, an `n × n` matrix m by rows, nearly doubly stochastic (Sinkhorn and Knopp, 1967): softmax of its
    /// rows, plus `eps`; then columns, and `iterations − 1` times rows and columns, are divided by their sum plus `eps`.
    Sinkhorn {
        /// Rows and columns.
        n: u32,
        /// Divisions of the columns.
        iterations: u32,
        /// Added to the elements after the softmax and to every sum.
        eps: f32,
    },
    /// Sums each run of `width` columns: `[T, D] → [T, D/width]`.
    SumRuns {
        /// Columns per run.
        width: u32,
    },
    /// Root mean square of each run of `width` columns: `[T, D] → [T, D/width]`.
    RmsRuns {
        /// Columns per run.
        width: u32,
        /// Added under the root.
        eps: f32,
    },
    /// `relu(x - (mean + z · std))` over the row, the Gaussian top-k of Gemma 3n. The deviation divides by the
    /// number of columns, as the model was trained; dividing by one less is `z · sqrt(n / (n − 1))`.
    GaussianTopK {
        /// Standard deviations above the mean.
        z: f32,
    },
    /// Sets columns `first..last` to −∞ (f32 lowest), such as image tokens of Chameleon.
    Suppress {
        /// First column.
        first: u32,
        /// One past the last.
        last: u32,
    },
    /// Keeps the rows whose logits the step wants: `[Rows, D] → [LogitRows, D]`.
    SelectRows,
    /// One vector per sequence: `[Rows, D] → [Seqs, D]`.
    Pool(PoolKind),
    /// Chooses experts. Input logits `[T, E]`; outputs ids (i32) and weights, both `[T, k]`.
    Route(RouteOp),
    /// Orders routed rows by expert. Input ids `[T, k]`; output a permutation and offsets, i32 `[T, k]` each.
    Group {
        /// Number of experts.
        n_experts: u32,
    },
    /// Segmented product: inputs x (`[T, K]` or `[T, k·K]`) and ids `[T, k]`; output `[T, k·N]`.
    Experts {
        /// `[E, N, K]`.
        weight: WeightId,
        /// `[E]`, per expert.
        scale: Option<WeightId>,
        /// `[E, N]`.
        bias: Option<WeightId>,
        /// Experts per row.
        top_k: u32,
    },
    /// `Σ_j weights[j] · x[j]`: inputs `[T, k·N]` and `[T, k]`; output `[T, N]`.
    Combine,
    /// What an attached adapter adds to what was made with a weight. Inputs as [`AdaptForm`] says, the last float of them
    /// y, what was made; output like y. A row that goes through an adapter with a pair `a`, `b` for the weight gets
    /// `y + b · (a · x)`, every other one y.
    Adapt {
        /// The weight, `[N, K]` or `[E, N, K]`; its data is not read.
        weight: WeightId,
        /// What was made with it.
        form: AdaptForm,
    },
    /// Depthwise convolution over time along a sequence, its tail kept in the slot.
    Conv {
        /// `[C, kernel]`, oldest tap first.
        weight: WeightId,
        /// `[C]`.
        bias: Option<WeightId>,
        /// Taps.
        kernel: u32,
        /// State of `(kernel − 1) · C` values; `None` centres the taps over the step's own rows.
        slot: Option<SlotId>,
    },
    /// Dense convolution over frames, several of which a row may hold: see [`Conv1dOp`].
    Conv1d(Conv1dOp),
    /// The previous row of the sequence (zeros before the first), the last one kept in the slot.
    Shift {
        /// State of one row.
        slot: SlotId,
    },
    /// A recurrence along a sequence with its state in a slot.
    Scan {
        /// Which recurrence.
        scan: Scan,
        /// Its state.
        slot: SlotId,
    },
    /// Picks a token per logit row from the sequence's sampler record: `[LogitRows, V] → i32 [LogitRows, 1]`.
    Sample,
    /// Moves a value to another device; the identity on one.
    Copy,
}

/// What an adapter's pair is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdaptForm {
    /// A product. Inputs x `[T, K]` and y `[T, N]`.
    Product,
    /// A product per head. Inputs x `[T, H·K]` and y `[T, H·N]`; part h with matrix h.
    Heads,
    /// A product with chosen matrices. Inputs x (`[T, K]` or `[T, k·K]`), y `[T, k·N]` and ids `[T, k]`.
    Experts,
    /// A look-up by token. Input y `[T, K]`; `y + b[token] · a`. Rows that read embeddings stay as they are.
    Tokens,
}

/// How `Gather` finds its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherIndex {
    /// The row's token.
    Token,
    /// The row's position plus an offset.
    Position {
        /// Added to the position.
        offset: u32,
    },
    /// Always the same row.
    Fixed(u32),
}

/// Statistic of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps)`.
    Rms,
    /// `(x − mean) / sqrt(var + eps)`.
    Layer,
    /// `x / sqrt(sum(x²) + eps)`.
    L2,
    /// `x / max(sqrt(sum(x²)), eps)`.
    L2Max,
}

/// Elementwise binary operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryKind {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient.
    Div,
}

/// Elementwise function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// `x`.
    Identity,
    /// `x · σ(x)`.
    Silu,
    /// Tanh form of GELU.
    Gelu,
    /// Exact GELU by erf.
    GeluErf,
    /// `x · σ(1.702 x)`.
    GeluQuick,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    Relu2,
    /// `1 / (1 + e^−x)`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `e^x`.
    Exp,
    /// `−e^x`.
    NegExp,
    /// xIELU of Apertus: `x > 0 ? αp·x² + β·x : (expm1(min(x, eps)) − x)·αn + β·x`.
    Xielu {
        /// Negative-side strength.
        alpha_n: f32,
        /// Positive-side strength.
        alpha_p: f32,
        /// Linear part.
        beta: f32,
        /// Upper bound inside expm1.
        eps: f32,
    },
    /// `β·tanh(x/β)·σ(x)`, the gate of Kimi K3.
    Situ {
        /// Bound.
        beta: f32,
    },
    /// `x · σ(alpha · x)`.
    Swish {
        /// Slope inside the sigmoid.
        alpha: f32,
    },
    /// `σ(x)` if 0 else sign-preserving root, `sign(x)·sqrt(max(|x|, eps))`.
    SignedSqrt {
        /// Lower bound of |x|.
        eps: f32,
    },
}

/// Clamps around a gated activation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum GateClamp {
    /// None.
    #[default]
    None,
    /// `act(min(g, L)) · clamp(u, −L, L)`.
    Before(f32),
    /// `min(act(g), L) · clamp(u, −L, L)`.
    After(f32),
    /// `act(min(g, L)) · (clamp(u, −L, L) + 1)`, gpt-oss.
    BeforePlusOne(f32),
    /// `act(g) · L·tanh(u / L)`.
    UpTanh(f32),
}

/// Which elements a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `(2i, 2i + 1)`; "norm" in GGUF tools.
    Adjacent,
    /// `(i, i + n/2)`; "neox".
    Halves,
}

/// Rotary embedding of `2 · len(freqs)` columns of every head, starting at `offset`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeOp {
    /// Which columns form a pair.
    pub pairing: Pairing,
    /// Columns per head.
    pub head_dim: u32,
    /// First rotated column of a head.
    pub offset: u32,
    /// Angle per position of each pair, f32.
    pub freqs: ConstId,
    /// Multiplies cos and sin.
    pub magnitude: f32,
    /// Position channel (0..4) of each pair, u32; all channel 0 when absent.
    pub channels: Option<ConstId>,
    /// Rotate backwards.
    pub inverse: bool,
    /// Rows are rotated as those this many positions before, at least those of position 0.
    pub back: u32,
}

/// Which keys a row may see, by positions p (row) and q (key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// `q ≤ p`.
    Causal,
    /// All keys of the sequence.
    Full,
    /// `q ≤ p` and `p − q < w`.
    Window(u32),
    /// `q ≤ p` and `q ≥ floor(p / c)·c`.
    Chunk(u32),
    /// `|p − q| ≤ w / 2`.
    Symmetric(u32),
}

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// A cache slot, the step's own rows already written.
    Cache(SlotId),
    /// The step's own rows: inputs k and v.
    Rows,
    /// An encoder's keys and values, written once per sequence.
    Cross(SlotId),
}

/// Softmax attention of `n_heads` query heads over `n_kv_heads` key heads.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionOp {
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads; divides the query heads.
    pub n_kv_heads: u32,
    /// Columns of a query and key head.
    pub dim_k: u32,
    /// Columns of a value head; with a keys-only slot the values are the first `dim_v` columns of the keys.
    pub dim_v: u32,
    /// Multiplies the scores.
    pub scale: f32,
    /// `cap · tanh(score / cap)` after scaling.
    pub cap: Option<f32>,
    /// One extra logit per head, with no value, `[H]`.
    pub sinks: Option<WeightId>,
    /// Slope per head times `−|p − q|`, f32 `[H]`.
    pub alibi: Option<ConstId>,
    /// Learned bias by distance bucket.
    pub bucket: Option<BucketBias>,
    /// Which keys are seen.
    pub mask: Mask,
    /// Where keys and values come from.
    pub source: KvSource,
    /// Entries that are read besides, each a key that is its own value: those of [`CacheKind::Entries`] that end at the row
    /// or before.
    ///
    /// [`CacheKind::Entries`]: crate::CacheKind::Entries
    pub entries: Option<SlotId>,
    /// Which units of positions are read, of those the mask shows, or which of the entries where there are some: the last
    /// input holds their numbers.
    pub selection: Option<Selection>,
}

/// What the numbers of a selection mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Positions (or entries) of a unit: number u stands for `u·unit .. (u + 1)·unit`.
    pub unit: u32,
    /// Selections per row: one for all heads, or one for each key head.
    pub choices: u32,
    /// The positions behind the last whole unit up to the row are read too.
    pub tail: bool,
}

/// Each run of `ratio` positions as one row. Inputs: values x and scores s, `[T, D]` each, or `[T, 2·D]` with overlap; output
/// `[T, D]`. The row that ends a run gets `Σ_q w_q ⊙ x_q` over the run's positions q, w the softmax over q of
/// `s_q + ape[q mod ratio]` in each column; other rows get zeros. With overlap the first D columns of the run before count
/// too, and of the run's own positions the last D; before the first run there is none. Inputs are kept in the slot.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressOp {
    /// Keys and values as wide as the inputs, over a window of a run, or of two with overlap.
    pub slot: SlotId,
    /// Positions of a run.
    pub ratio: u32,
    /// Whether a run reaches into the one before.
    pub overlap: bool,
    /// Added to scores, `[ratio, D]` or `[ratio, 2·D]`.
    pub ape: WeightId,
}

/// Convolution over the frames of a sequence, all of whose rows are the step's own: an encoder's. A row is what the
/// encoder hands on in the end, so it holds as many frames, one after another, as strides are yet to come: inputs
/// `[T, frames·C]`, output `[T, frames/stride·N]`. With x the frames of a sequence and zeros around them,
/// `out[t] = bias + Σ_j weight[j] · x[t·stride + j − padding]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv1dOp {
    /// `[N, kernel·C]`, the channels of a tap beside each other.
    pub weight: WeightId,
    /// `[N]`.
    pub bias: Option<WeightId>,
    /// Taps.
    pub kernel: u32,
    /// Frames from one output to the next; divides the frames of a row.
    pub stride: u32,
    /// Zeros before the first frame and behind the last: less than half of the taps, of which at most `stride` are left
    /// over, so that there is an output for every `stride` frames.
    pub padding: u32,
    /// Frames of a row of the input.
    pub frames: u32,
}

/// The units with the largest scores. Inputs: q `[T, H·D]` and, where heads are summed, their weights w `[T, H]`; output
/// the numbers of the chosen units, i32 `[T, choices · top_k]`, ascending, −1 behind the last.
///
/// Entry e of the slot stands for the positions `e·n .. (e + 1)·n` of its group's [`CacheKind::Entries`]; row p sees
/// those that end at p or before. With weights the score of an entry is `Σ_h w_h · max(scale · q_h·k_e, 0)` and there is
/// one choice per row; without, each head chooses for itself by `scale · q_h·k_e`. A unit of several entries has the
/// largest of their scores. Of equal scores the earlier unit counts as larger.
///
/// [`CacheKind::Entries`]: crate::CacheKind::Entries
#[derive(Clone, Debug, PartialEq)]
pub struct SelectOp {
    /// The keys: one head, no values.
    pub slot: SlotId,
    /// Query heads.
    pub n_heads: u32,
    /// Columns of a query and of a key.
    pub dim: u32,
    /// Multiplies the products.
    pub scale: f32,
    /// Whether heads are summed by weights.
    pub summed: bool,
    /// Units chosen.
    pub top_k: u32,
    /// Entries of a unit.
    pub unit: u32,
    /// The last units up to the row, which are chosen whatever their scores.
    pub local: u32,
}

impl SelectOp {
    /// Choices of a row.
    #[must_use]
    pub fn choices(&self) -> u32 {
        if self.summed { 1 } else { self.n_heads }
    }
}

/// T5's relative position bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketBias {
    /// `[buckets, H]`.
    pub table: WeightId,
    /// Number of buckets.
    pub buckets: u32,
    /// Distances beyond share the last bucket.
    pub max_distance: u32,
    /// Half the buckets for keys after the row.
    pub bidirectional: bool,
}

/// One vector per sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Mean of the rows.
    Mean,
    /// First row.
    First,
    /// Last row.
    Last,
}

/// Score function of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid per expert.
    Sigmoid,
    /// The logits themselves.
    Logits,
    /// `sqrt(softplus(logit))`.
    SqrtSoftplus,
}

/// Expert selection: scores → selection (+ bias, groups) → top-k → weights → renormalise → scale.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteOp {
    /// Experts.
    pub n_experts: u32,
    /// Chosen per row.
    pub top_k: u32,
    /// Score that gives the weights.
    pub score: Score,
    /// Score that selects, when another one.
    pub select: Option<Score>,
    /// Added to the selection score only, `[E]`.
    pub bias: Option<WeightId>,
    /// Experts chosen by token, `[V, top_k]`, whatever their scores; a row of the step has a token.
    pub table: Option<WeightId>,
    /// Selection is limited to the best groups (scored by the sum of their best two).
    pub groups: Option<ExpertGroups>,
    /// Softmax over the chosen scores.
    pub softmax_chosen: bool,
    /// Sigmoid of the chosen scores.
    pub sigmoid_chosen: bool,
    /// The weight of a choice is its share of a softmax over the experts that are left when it is made and fall short of
    /// it by no more than this part of the larger magnitude; 0 takes the score itself.
    pub near_ties: f32,
    /// Divide by the sum (at least 2⁻¹⁴).
    pub renormalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// Chosen ids are divided by this (1 for themselves): second-level experts of GroveMoE.
    pub id_divisor: u32,
}

/// Group-limited expert selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of neighbouring experts.
    pub count: u32,
    /// Groups kept.
    pub used: u32,
}

/// Recurrences. Shapes are of one row; S is the state, updated in row order.
#[derive(Clone, Debug, PartialEq)]
pub enum Scan {
    /// Mamba-1. Inputs x `[I]`, dt `[I]` (before softplus), B `[N]`, C `[N]`.
    /// `Δ = softplus(dt); S[i,n] ← exp(Δ_i A[i,n])·S + Δ_i x_i B_n; y_i = Σ_n S[i,n] C_n + D_i x_i`.
    Mamba1 {
        /// State columns N.
        state: u32,
        /// `[I, N]`, negative.
        a: WeightId,
        /// `[I]`.
        d: WeightId,
    },
    /// Mamba-2: one decay per head. Inputs x `[H·P]`, dt `[H]` (before bias and softplus), B `[G·N]`, C `[G·N]`.
    Mamba2 {
        /// Heads H.
        heads: u32,
        /// State columns N.
        state: u32,
        /// Groups G of B and C.
        groups: u32,
        /// `[H]`, negative.
        a: WeightId,
        /// `[H]`.
        d: WeightId,
        /// `[H]`, added to dt.
        dt_bias: Option<WeightId>,
    },
    /// RWKV-6. Inputs r, k, v, w (decay in 0..1), each `[H·N]`.
    /// `o_j = Σ_i r_i (u_i k_i v_j + S_ij); S_ij ← w_i S_ij + k_i v_j`.
    Wkv6 {
        /// Columns per head N.
        head_dim: u32,
        /// Bonus u `[H·N]`.
        first: WeightId,
    },
    /// Gated linear attention. Inputs r, k, v, w: `S ← diag(w) S + k vᵀ; o = scale · rᵀ S`.
    Gla {
        /// Columns per head.
        head_dim: u32,
        /// Multiplies the output.
        scale: f32,
    },
    /// RWKV-7. Inputs r, w (decay), k, v, κ (normalised key), a (in-context rate), each `[H·N]`.
    /// `s_i = −Σ_j S_ij κ_j; S_ij ← w_j S_ij + v_i k_j + s_i κ_j a_j; o_i = Σ_j S_ij r_j`.
    Wkv7 {
        /// Columns per head N.
        head_dim: u32,
    },
    /// Gated delta rule. Inputs q, k `[Hk·Dk]`, v `[Hv·Dv]`, g (log decay, `[Hv]` or `[Hv·Dk]`), β `[Hv]`.
    /// `S ← e^g S; e = β (v − Sᵀ k); S ← S + k eᵀ; o = scale · Sᵀ q`.
    GatedDelta {
        /// Key heads.
        k_heads: u32,
        /// Value heads, a multiple.
        v_heads: u32,
        /// Columns of a key head.
        dim_k: u32,
        /// Columns of a value head.
        dim_v: u32,
        /// Value head h uses key head `h mod Hk` rather than `h / (Hv / Hk)`.
        tiled: bool,
        /// Multiplies the output.
        scale: f32,
    },
    /// Linear attention with fixed decay. Inputs q, k, v `[H·D]`: `S ← e^{−s_h} S + k vᵀ; o = Sᵀ q`.
    Decay {
        /// Heads.
        heads: u32,
        /// s per head, f32 `[H]`.
        slopes: ConstId,
    },
}

impl Op {
    /// Whether each output row depends on the same input row (and the row's own step state) alone.
    #[must_use]
    pub fn is_row_local(&self) -> bool {
        !matches!(
            self,
            Op::Prepare
                | Op::CacheWrite { .. }
                | Op::Attention(_)
                | Op::Select(_)
                | Op::Compress(_)
                | Op::Conv { .. }
                | Op::Conv1d(_)
                | Op::Shift { .. }
                | Op::Scan { .. }
                | Op::SelectRows
                | Op::Pool(_)
                | Op::Sample
                | Op::Group { .. }
        )
    }

    /// Whether the op writes a cache, so that it stays though no one reads its outputs.
    #[must_use]
    pub fn writes_state(&self) -> bool {
        matches!(
            self,
            Op::CacheWrite { .. }
                | Op::Compress(_)
                | Op::Shift { .. }
                | Op::Scan { .. }
                | Op::Conv { slot: Some(_), .. }
        )
    }

    /// The weights this op reads.
    #[must_use]
    pub fn weights(&self) -> Vec<WeightId> {
        if let Op::Adapt { .. } = self {
            return Vec::new();
        }
        let mut op = self.clone();
        op.weights_mut().into_iter().map(|id| *id).collect()
    }

    /// The weights this op names, to be renumbered.
    pub fn weights_mut(&mut self) -> Vec<&mut WeightId> {
        let mut ids = Vec::new();
        match self {
            Op::Gather { table, .. } => ids.push(table),
            Op::Norm { weight, bias, .. } => ids.extend([weight, bias].into_iter().flatten()),
            Op::Matmul {
                weight,
                scale,
                bias,
            }
            | Op::Experts {
                weight,
                scale,
                bias,
                ..
            } => {
                ids.push(weight);
                ids.extend([scale, bias].into_iter().flatten());
            }
            Op::HeadMatmul { weight, .. }
            | Op::Weighted { weight, .. }
            | Op::Adapt { weight, .. } => ids.push(weight),
            Op::Conv { weight, bias, .. } => {
                ids.push(weight);
                ids.extend(bias);
            }
            Op::Conv1d(c) => {
                ids.push(&mut c.weight);
                ids.extend(&mut c.bias);
            }
            Op::Attention(a) => {
                ids.extend(&mut a.sinks);
                ids.extend(a.bucket.as_mut().map(|b| &mut b.table));
            }
            Op::Compress(c) => ids.push(&mut c.ape),
            Op::Route(r) => ids.extend([&mut r.bias, &mut r.table].into_iter().flatten()),
            Op::Scan { scan, .. } => match scan {
                Scan::Mamba1 { a, d, .. } => ids.extend([a, d]),
                Scan::Mamba2 { a, d, dt_bias, .. } => {
                    ids.extend([a, d]);
                    ids.extend(dt_bias);
                }
                Scan::Wkv6 { first, .. } => ids.push(first),
                Scan::Gla { .. }
                | Scan::Wkv7 { .. }
                | Scan::GatedDelta { .. }
                | Scan::Decay { .. } => {}
            },
            _ => {}
        }
        ids
    }

    /// The cache slots that this op reads or writes.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotId> {
        let mut op = self.clone();
        op.slots_mut().into_iter().map(|slot| *slot).collect()
    }

    /// The cache slots that this op reads or writes, to be renumbered.
    pub fn slots_mut(&mut self) -> Vec<&mut SlotId> {
        match self {
            Op::CacheWrite { slot } | Op::Shift { slot } | Op::Scan { slot, .. } => vec![slot],
            Op::Conv { slot, .. } => slot.iter_mut().collect(),
            Op::Select(s) => vec![&mut s.slot],
            Op::Compress(c) => vec![&mut c.slot],
            Op::Attention(a) => {
                let own = match &mut a.source {
                    KvSource::Cache(slot) | KvSource::Cross(slot) => Some(slot),
                    KvSource::Rows => None,
                };
                own.into_iter().chain(&mut a.entries).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The op's short name in dumps.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Prepare => "prepare",
            Op::Gather { .. } => "gather",
            Op::Norm { .. } => "norm",
            Op::Matmul { .. } => "matmul",
            Op::HeadMatmul { .. } => "head_matmul",
            Op::Slice { .. } => "slice",
            Op::Concat { .. } => "concat",
            Op::Repeat { .. } => "repeat",
            Op::Rope(_) => "rope",
            Op::PosScale { .. } => "pos_scale",
            Op::CacheWrite { .. } => "cache_write",
            Op::Attention(_) => "attention",
            Op::Select(_) => "select",
            Op::Compress(_) => "compress",
            Op::Unary(_) => "unary",
            Op::Gate { .. } => "gate",
            Op::Binary { .. } => "binary",
            Op::Weighted { .. } => "weighted",
            Op::PerRun { .. } => "per_run",
            Op::Affine { .. } => "affine",
            Op::Softcap { .. } => "softcap",
            Op::Clamp { .. } => "clamp",
            Op::Softmax { .. } => "softmax",
            Op::Sinkhorn { .. } => "sinkhorn",
            Op::SumRuns { .. } => "sum_runs",
            Op::RmsRuns { .. } => "rms_runs",
            Op::GaussianTopK { .. } => "gaussian_top_k",
            Op::Suppress { .. } => "suppress",
            Op::SelectRows => "select_rows",
            Op::Pool(_) => "pool",
            Op::Route(_) => "route",
            Op::Group { .. } => "group",
            Op::Experts { .. } => "experts",
            Op::Combine => "combine",
            Op::Adapt { .. } => "adapt",
            Op::Conv { .. } => "conv",
            Op::Conv1d(_) => "conv1d",
            Op::Shift { .. } => "shift",
            Op::Scan { .. } => "scan",
            Op::Sample => "sample",
            Op::Copy => "copy",
        }
    }
}
