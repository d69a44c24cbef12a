// Products of one value by weights of one format, for rows of replies: with the norm before them, and with the gate or the sum
// behind them.
//
// 32 threads compute two outputs of `ROWS` rows: thread l takes the groups of 8 columns l, l + 32, …, and threads are summed in
// pairs, as in `matmul.wgsl`.
#include "common.wgsl"
#include "reduce.wgsl"
#include "formats.wgsl"
#include "activations.wgsl"

const GROUPS: u32 = BLOCK / 8u;
// Outputs of a workgroup.
#if GATED
const OUTPUTS: u32 = 8u;
#else
const OUTPUTS: u32 = 16u;
#endif

// Parameters: 0 words of a row of weights, 1 x, 2 lead, 3 columns, 4 weight of the norm (NONE: it has none), 5 eps, 6 what is added,
// 7 parts, 8..14 the gate's function and clamp; then of each part eight.
const PART: u32 = 16u;
const PART_W: u32 = 0u;
const PART_Y: u32 = 1u;
const PART_END: u32 = 2u;      // the workgroup behind its last one
const PART_N: u32 = 3u;
const PART_SCALE: u32 = 4u;
const PART_SCALE_LEN: u32 = 5u;
const PART_BIAS: u32 = 6u;

fn eight(row: u32, g: u32) -> Eight { return load8(row + g / GROUPS * BLOCK_WORDS, g % GROUPS); }

fn sum8(sum: vec2<f32>, v: Eight, x: Eight) -> vec2<f32> {
    var a = sum.x;
    a = fma(v.a.x, x.a.x, a);
    a = fma(v.a.y, x.a.y, a);
    a = fma(v.a.z, x.a.z, a);
    a = fma(v.a.w, x.a.w, a);
    var b = sum.y;
    b = fma(v.b.x, x.b.x, b);
    b = fma(v.b.y, x.b.y, b);
    b = fma(v.b.z, x.b.z, b);
    b = fma(v.b.w, x.b.w, b);
    return vec2<f32>(a, b);
}

// What a sum becomes: scaled, with its bias.
fn output(q: u32, o: u32, sum: f32) -> f32 {
    var y = sum;
    if (p(q + PART_SCALE) != NONE) { y *= vf(p(q + PART_SCALE) + o % p(q + PART_SCALE_LEN)); }
    if (p(q + PART_BIAS) != NONE) { y += vf(p(q + PART_BIAS) + o); }
    return y;
}

fn is_reply(row: u32) -> bool { return (row_flags(step_row(p(2u), row)) & ROW_PROMPT) == 0u; }

// An output of a row, with what is added to it.
fn store(q: u32, row: u32, o: u32, sum: f32) {
    let at = row * p(q + PART_N) + o;
    var y = output(q, o, sum);
    if (p(6u) != NONE) { y += wf(p(6u) + at); }
    set_wf(p(q + PART_Y) + at, y);
}

@compute @workgroup_size(256)
fn products(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let lane = lid & 31u;
    let k = p(3u);
    let count = rows_of(p(2u));
    let first = wg.y * ROWS;
    let last = max(min(count, first + ROWS), 1u) - 1u;
    let x = p(1u);
#if NORMED
    // The reciprocal of each row's root mean square.
    var root: array<f32, ROWS>;
    for (var t = 0u; t < ROWS; t++) {
        let row = x + min(first + t, last) * k;
        var squares = 0.0;
        for (var c = lid * 4u; c < k; c += 1024u) {
            let v = wf4(row + c);
            squares = fma(v.x, v.x, squares);
            squares = fma(v.y, v.y, squares);
            squares = fma(v.z, v.z, squares);
            squares = fma(v.w, v.w, squares);
        }
        root[t] = 1.0 / sqrt(sum_block(squares, lid) / f32(k) + pf(5u));
    }
#endif
    var before = 0u;
    var q = PART;
#if GATED
    let q2 = PART + 8u;
#else
    for (var i = 1u; i < p(7u); i++) {
        if (wg.x >= p(q + PART_END)) {
            before = p(q + PART_END);
            q += 8u;
        }
    }
    let q2 = q;
#endif
    let n = p(q + PART_N);
#if GATED
    let o = (wg.x - before) * OUTPUTS + (lid >> 5u);
    let o2 = o;
#else
    let o = (wg.x - before) * OUTPUTS + (lid >> 5u) * 2u;
    let o2 = o + 1u;
#endif
    let w = p(q + PART_W) + min(o, n - 1u) * p(0u);
    let w2 = p(q2 + PART_W) + min(o2, n - 1u) * p(0u);
    var sum: array<vec2<f32>, ROWS>;
    var sum2: array<vec2<f32>, ROWS>;
    for (var t = 0u; t < ROWS; t++) {
        sum[t] = vec2<f32>();
        sum2[t] = vec2<f32>();
    }
    for (var g = lane; g * 8u < k; g += 32u) {
        let v = eight(w, g);
        let v2 = eight(w2, g);
#if NORMED
        let at = p(4u) + g * 8u;
        let scale = Eight(vf4(at), vf4(at + 4u));
#endif
        for (var t = 0u; t < ROWS; t++) {
            let from_x = x + min(first + t, last) * k + g * 8u;
            var f = Eight(wf4(from_x), wf4(from_x + 4u));
#if NORMED
            f = Eight(f.a * root[t] * scale.a, f.b * root[t] * scale.b);
#endif
            sum[t] = sum8(sum[t], v, f);
            sum2[t] = sum8(sum2[t], v2, f);
        }
    }
    for (var t = 0u; t < ROWS; t++) {
        let y = sum_lanes(sum[t].x + sum[t].y, lid);
        let y2 = sum_lanes(sum2[t].x + sum2[t].y, lid);
        let row = first + t;
        if (lane == 0u && row < count && o < n && is_reply(row)) {
#if GATED
            set_wf(p(q + PART_Y) + row * n + o, gated(8u, output(q, o, y), output(q2, o, y2)));
#else
            store(q, row, o, y);
            if (o2 < n) { store(q, row, o2, y2); }
#endif
        }
    }
}
