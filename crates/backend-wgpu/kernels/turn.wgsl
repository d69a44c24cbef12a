// Heads between their products and attention: norms and rotations, of heads.wgsl and attend.wgsl in one order of sums. Parameters
// from `HEADS_AT` on: weight of the queries' norm (NONE: none), its length, eps, the same of keys, then offset of the rotation,
// pairs, whether halves, turns.
#include "common.wgsl"
#include "reduce.wgsl"

const OF_QUERIES: u32 = 0u;
const OF_KEYS: u32 = 3u;

// Four columns of a head, zeros behind its end.
fn four_at(x: u32, four: u32, width: u32) -> vec4<f32> {
    let v = wf4(x + min(four * 4u, width - 4u));
    return select(vec4<f32>(), v, vec4<bool>(four * 4u < width));
}

// What the norm of four columns of a head multiplies them by.
fn norm_weights(width: u32, kind: u32, head: u32, four: u32) -> vec4<f32> {
    let q = HEADS_AT + kind;
    if (p(q) == NONE) { return vec4<f32>(); }
    let at = p(q) + (head * width + min(four * 4u, width - 4u)) % p(q + 1u);
    return vec4<f32>(vf(at), vf(at + 1u), vf(at + 2u), vf(at + 3u));
}

// Four columns with their norm; `squares` is the sum of all squares.
fn normed(v: vec4<f32>, weights: vec4<f32>, width: u32, kind: u32, squares: f32) -> vec4<f32> {
    let q = HEADS_AT + kind;
    if (p(q) == NONE) { return v; }
    return v / sqrt(squares / f32(width) + pf(q + 2u)) * weights;
}

// The other column of a column's pair; the column itself where it is not turned.
fn other_of(c: u32) -> u32 {
    let offset = p(HEADS_AT + 6u);
    let pairs = p(HEADS_AT + 7u);
    let e = c - offset;
    if (c < offset || e >= 2u * pairs) { return c; }
    if (p(HEADS_AT + 8u) == 0u) { return offset + (e ^ 1u); }
    return select(c + pairs, c - pairs, e >= pairs);
}

// Cosine and sine of a column of a row, the latter with the sign of what it multiplies.
fn turn_of(row: u32, c: u32) -> vec2<f32> {
    let pairs = p(HEADS_AT + 7u);
    // Any pair will do for columns that are not turned.
    let e = min(c - min(c, p(HEADS_AT + 6u)), 2u * pairs - 1u);
    let halves = p(HEADS_AT + 8u) != 0u;
    let pair = select(e / 2u, e % pairs, halves);
    let second = select((e & 1u) == 1u, e >= pairs, halves);
    let t = p(HEADS_AT + 9u) + (row * pairs + pair) * 2u;
    let sine = wf(t + 1u);
    return vec2<f32>(wf(t), select(-sine, sine, second));
}

struct Turns { by: array<vec2<f32>, 4> }

// Those of four columns.
fn turns_of(row: u32, four: u32, width: u32) -> Turns {
    let c = min(four * 4u, width - 4u);
    return Turns(array<vec2<f32>, 4>(turn_of(row, c), turn_of(row, c + 1u), turn_of(row, c + 2u), turn_of(row, c + 3u)));
}

// A column after its rotation, from the other one of its pair.
fn turned(y: f32, other: f32, turn: vec2<f32>, is_turned: bool) -> f32 {
    return select(y, fma(other, turn.y, y * turn.x), is_turned);
}
