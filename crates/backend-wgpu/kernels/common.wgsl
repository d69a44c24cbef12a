// What every kernel sees: bindings, the state of a step, number types.
//
// Dispatches are sized by the most rows that a step may have; what a step really has stands in the head of `state`, and
// workgroups beyond it leave at once. So nothing that a dispatch is given changes from step to step.

@group(0) @binding(0) var<uniform> params: array<vec4<u32>, 16>;
#if ATOMIC_WORK
@group(0) @binding(1) var<storage, read_write> work: array<atomic<u32>>;
#elif WORK_VEC4
@group(0) @binding(1) var<storage, read_write> work: array<vec4<u32>>;
#else
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
#endif
@group(0) @binding(2) var<storage, read_write> state: array<u32>;
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;
#if WEIGHTS_VEC4
@group(0) @binding(4) var<storage, read> weights: array<vec4<u32>>;
#else
@group(0) @binding(4) var<storage, read> weights: array<u32>;
#endif
#if VECS_VEC4
@group(0) @binding(5) var<storage, read> vecs: array<vec4<u32>>;
#else
@group(0) @binding(5) var<storage, read> vecs: array<u32>;
#endif
@group(0) @binding(6) var<storage, read> words: array<u32>;
@group(0) @binding(7) var<storage, read_write> other: array<u32>;

// Where the parts of `state` begin, by the constants S_NAME.
@group(0) @binding(8) var<uniform> state_places: array<vec4<u32>, 8>;

const NONE: u32 = 0xffffffffu;
const NO_BLOCK: u32 = 0xffffffffu;

const ROW_LIVE: u32 = 1u;
const ROW_EMBEDS: u32 = 2u;
const ROW_LOGITS: u32 = 4u;
const ROW_PROMPT: u32 = 8u;
const ROW_KEEPS: u32 = 16u;

const LEAD_ROWS: u32 = 0u;
const LEAD_SEQS: u32 = 1u;
const LEAD_LOGITS: u32 = 2u;

const SLOT_WORDS: u32 = 32u;
const SLOT_LEN: u32 = 0u;
const SLOT_N_TOKENS: u32 = 1u;
const SLOT_STOPS: u32 = 2u;
const SLOT_N_STOPS: u32 = 3u;
const SLOT_BIAS: u32 = 4u;
const SLOT_N_BIAS: u32 = 5u;
const SLOT_REMAINING: u32 = 6u;
const SLOT_LIMITED: u32 = 7u;
const SLOT_STOPPED: u32 = 8u;
const SLOT_HEARD: u32 = 9u;
const SLOT_ENC_LEN: u32 = 10u;
const SLOT_RECORD: u32 = 16u;

const LOGIT_WORDS: u32 = 8u;
const LOGIT_MASK: u32 = 0u;
const LOGIT_MASK_WORDS: u32 = 1u;
const LOGIT_DRY: u32 = 2u;
const LOGIT_DRY_COUNT: u32 = 3u;
const LOGIT_BEST: u32 = 4u;

fn s(i: u32) -> u32 { return state_places[i >> 2u][i & 3u]; }
fn p(i: u32) -> u32 { return params[i >> 2u][i & 3u]; }
fn pf(i: u32) -> f32 { return bitcast<f32>(p(i)); }

#if ATOMIC_WORK
fn wu(i: u32) -> u32 { return atomicLoad(&work[i]); }
fn set_wu(i: u32, x: u32) { atomicStore(&work[i], x); }
fn wu4(i: u32) -> vec4<u32> { return vec4<u32>(wu(i), wu(i + 1u), wu(i + 2u), wu(i + 3u)); }
#elif WORK_VEC4
fn wu(i: u32) -> u32 { return work[i >> 2u][i & 3u]; }
fn set_wu(i: u32, x: u32) { work[i >> 2u][i & 3u] = x; }
// Four words from a multiple of 4 on.
fn wu4(i: u32) -> vec4<u32> { return work[i >> 2u]; }
fn set_wu4(i: u32, x: vec4<u32>) { work[i >> 2u] = x; }
#else
fn wu(i: u32) -> u32 { return work[i]; }
fn set_wu(i: u32, x: u32) { work[i] = x; }
fn wu4(i: u32) -> vec4<u32> { return vec4<u32>(work[i], work[i + 1u], work[i + 2u], work[i + 3u]); }
fn set_wu4(i: u32, x: vec4<u32>) {
    work[i] = x.x;
    work[i + 1u] = x.y;
    work[i + 2u] = x.z;
    work[i + 3u] = x.w;
}
#endif
// A vector of four words.
#if WORK_VEC4
fn wv(i: u32) -> vec4<u32> { return work[i]; }
#else
fn wv(i: u32) -> vec4<u32> { return wu4(4u * i); }
#endif
fn wf4(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(wu4(i)); }
fn wf(i: u32) -> f32 { return bitcast<f32>(wu(i)); }
fn set_wf(i: u32, x: f32) { set_wu(i, bitcast<u32>(x)); }
#if VECS_VEC4
fn vu(i: u32) -> u32 { return vecs[i >> 2u][i & 3u]; }
// Four floats from a multiple of 4 on.
fn vf4(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(vecs[i >> 2u]); }
#else
fn vu(i: u32) -> u32 { return vecs[i]; }
#endif
fn vf(i: u32) -> f32 { return bitcast<f32>(vu(i)); }

// The head: rows, sequences, logit rows, positions of the longest sequence; then, where a row of a table was asked for that is
// not there: 1, the row, the table's rows.
fn rows_of(lead: u32) -> u32 { return state[s(S_HEAD) + lead]; }
fn row_token(row: u32) -> u32 { return state[s(S_TOKEN) + row]; }
fn row_pos(row: u32, channel: u32) -> u32 { return state[s(S_POS) + row * 4u + channel]; }
fn row_seq(row: u32) -> u32 { return state[s(S_SEQ) + row]; }
fn row_flags(row: u32) -> u32 { return state[s(S_FLAGS) + row]; }

fn row_span_end(row: u32) -> u32 { return state[s(S_SPAN_END) + row]; }
fn logit_row(i: u32) -> u32 { return state[s(S_LOGIT_ROW) + i]; }
fn logit_at(i: u32) -> u32 { return s(S_LOGIT) + i * LOGIT_WORDS; }
fn seq_slot(seq: u32) -> u32 { return state[s(S_SLOT) + seq]; }
fn first_row(seq: u32) -> u32 { return state[s(S_FIRST_ROW) + seq]; }
fn row_count(seq: u32) -> u32 { return state[s(S_ROW_COUNT) + seq]; }
fn past_len(seq: u32) -> u32 { return state[s(S_PAST_LEN) + seq]; }
fn slot_at(slot: u32) -> u32 { return s(S_SLOTS) + slot * SLOT_WORDS; }
fn slot_tokens(slot: u32) -> u32 { return s(S_TOKENS) + slot * s(S_TOKENS_OF_SLOT); }

// The step's row behind a row of a value.
fn step_row(lead: u32, i: u32) -> u32 {
    if (lead == LEAD_ROWS) { return i; }
    if (lead == LEAD_LOGITS) { return logit_row(i); }
    return first_row(i);
}

fn place_of_row(row: u32) -> u32 {
    let q = row_seq(row);
    return past_len(q) + row - first_row(q);
}

// A row of a table that is not there ends the step.
fn no_row(row: u32, rows: u32) {
    state[s(S_HEAD) + 4u] = 1u;
    state[s(S_HEAD) + 5u] = row;
    state[s(S_HEAD) + 6u] = rows;
}

fn inf() -> f32 { return bitcast<f32>(0x7f800000u + p(63u) * 0u); }

// As a bitwise test, since compilers may take numbers for granted.
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn half(bits: u32) -> f32 { return unpack2x16float(bits & 0xffffu).x; }

fn to_half(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    let sign = (b >> 16u) & 0x8000u;
    let m = b & 0x7fffffffu;
    if (m > 0x7f800000u) { return sign | 0x7e00u; }
    if (m >= 0x477ff000u) { return sign | 0x7c00u; }
    if (m >= 0x38800000u) {
        let r = m + 0xfffu + ((m >> 13u) & 1u);
        return sign | ((r - 0x38000000u) >> 13u);
    }
    if (m < 0x33000000u) { return sign; }
    // A subnormal half: the mantissa shifted, rounded to even.
    let shift = 126u - (m >> 23u);
    let mantissa = (m & 0x7fffffu) | 0x800000u;
    let kept = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let middle = 1u << (shift - 1u);
    let up = rest > middle || (rest == middle && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}

fn bfloat(bits: u32) -> f32 { return bitcast<f32>(bits << 16u); }

fn to_bfloat(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) { return (b >> 16u) | 64u; }
    return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}

fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }

// log(1 + x) of 0 to 1: drivers' logarithms near 1 are coarse.
fn log1p(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let q = s * s;
    let series = 1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * (1.0 / 13.0))))));
    return 2.0 * s * series;
}

fn softplus(x: f32) -> f32 { return max(x, 0.0) + log1p(exp(-abs(x))); }

// exp(x) - 1 without losing small x.
fn expm1(x: f32) -> f32 {
    if (abs(x) >= 0.5) { return exp(x) - 1.0; }
    let series = 1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0 * (1.0 + x / 7.0 * (1.0 + x / 8.0))))));
    return x * series;
}

// The hyperbolic tangent, of large numbers too.
fn tanh_of(x: f32) -> f32 {
    let e = expm1(2.0 * min(abs(x), 16.0));
    let t = e / (e + 2.0);
    if (is_nan(x)) { return x; }
    return select(t, -t, x < 0.0);
}

var<workgroup> same_word: u32;

// Thread 0's number, the same for all threads of the workgroup.
fn same(x: u32, lid: u32) -> u32 {
    if (lid == 0u) { same_word = x; }
    return workgroupUniformLoad(&same_word);
}
