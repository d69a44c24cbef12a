// Heads between their products and attention: norms and rotations, of heads.wgsl and attend.wgsl in one order of sums. Parameters
// from `HEADS_AT` on: weight of the queries' norm (NONE: none), its length, eps, the same of keys, then offset of the rotation,
// pairs, whether halves, turns.
#include "common.wgsl"
#include "reduce.wgsl"

const OF_QUERIES: u32 = 0u;
const OF_KEYS: u32 = 3u;

// A thread's share of the sum of squares of a head whose columns are shared among 64 threads.
fn squares_of(x: u32, width: u32, thread: u32) -> f32 {
    var squares = 0.0;
    for (var c = thread; c < width; c += 64u) {
        let v = wf(x + c);
        squares = fma(v, v, squares);
    }
    return squares;
}

// A column of head `head` that begins at `x`, with its norm; `squares` is the sum of all squares.
fn normed(x: u32, width: u32, kind: u32, head: u32, c: u32, squares: f32) -> f32 {
    let q = HEADS_AT + kind;
    let v = wf(x + c);
    if (p(q) == NONE) { return v; }
    return v / sqrt(squares / f32(width) + pf(q + 2u)) * vf(p(q) + (head * width + c) % p(q + 1u));
}

// A column of a head of a row after its rotation.
fn turned(x: u32, width: u32, kind: u32, head: u32, row: u32, c: u32, squares: f32) -> f32 {
    let y = normed(x, width, kind, head, c, squares);
    let offset = p(HEADS_AT + 6u);
    let pairs = p(HEADS_AT + 7u);
    if (c < offset || c >= offset + 2u * pairs) { return y; }
    let e = c - offset;
    var pair = e / 2u;
    var second = (e & 1u) == 1u;
    var apart = 1u;
    if (p(HEADS_AT + 8u) != 0u) {
        pair = e % pairs;
        second = e >= pairs;
        apart = pairs;
    }
    let t = p(HEADS_AT + 9u) + (row * pairs + pair) * 2u;
    if (second) {
        let z = normed(x, width, kind, head, c - apart, squares);
        return fma(z, wf(t + 1u), y * wf(t));
    }
    let z = normed(x, width, kind, head, c + apart, squares);
    return fma(-z, wf(t + 1u), y * wf(t));
}
