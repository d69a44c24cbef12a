// Table look-ups and products with weights of any format.
//
// 32 threads compute an output of `ROWS` rows: thread l takes the groups of 8 columns l, l + 32, …, and threads are summed in
// pairs. So the order of a row's sum follows from the number of columns alone.
#include "common.wgsl"
#include "reduce.wgsl"
#include "formats.wgsl"

const GROUPS: u32 = BLOCK / 8u;

// Eight columns of a row of weights that begins at this word.
fn eight(row: u32, g: u32) -> Eight { return load8(row + g / GROUPS * BLOCK_WORDS, g % GROUPS); }

fn column_of(e: Eight, i: u32) -> f32 {
    if (i < 4u) { return e.a[i]; }
    return e.b[i - 4u];
}

// Rows of a table, of which a dispatch knows a segment: 0 lead, 1 width, 2 what the index is (0 token, 1 position, 2 fixed),
// 3 offset, 4 rows of the table, 5 the segment's first word, 6 words of a row, 7 its first row, 8 its rows, 9 embeddings,
// 10 to, 11 whether it is the first segment.
@compute @workgroup_size(64)
fn gather(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let i = wg.x;
    if (i >= rows_of(p(0u))) { return; }
    let width = p(1u);
    let row = step_row(p(0u), i);
    let to = p(10u) + i * width;
    if (p(9u) != NONE && (row_flags(row) & ROW_EMBEDS) != 0u) {
        if (p(11u) != 0u) {
            for (var c = lid; c < width; c += 64u) { set_wu(to + c, wu(p(9u) + i * width + c)); }
        }
        return;
    }
    var at = p(3u);
    if (p(2u) == 0u) { at = row_token(row); }
    if (p(2u) == 1u) { at = row_pos(row, 0u) + p(3u); }
    if (at >= p(4u)) {
        if (lid == 0u && p(11u) != 0u && (row_flags(row) & ROW_LIVE) != 0u) { no_row(at, p(4u)); }
        return;
    }
    if (at < p(7u) || at - p(7u) >= p(8u)) { return; }
    let start = p(5u) + (at - p(7u)) * p(6u);
    for (var g = lid; g * 8u < width; g += 64u) {
        let e = eight(start, g);
        for (var c = 0u; c < 8u; c++) {
            if (g * 8u + c < width) { set_wf(to + g * 8u + c, column_of(e, c)); }
        }
    }
}

// Eight columns of a row of x.
#if ALIGNED
fn row8(x: u32, g: u32, k: u32) -> Eight { return Eight(wf4(x + g * 8u), wf4(x + g * 8u + 4u)); }
#else
fn one(x: u32, c: u32, k: u32) -> f32 {
    if (c < k) { return wf(x + c); }
    return 0.0;
}

fn row8(x: u32, g: u32, k: u32) -> Eight {
    let c = g * 8u;
    return Eight(vec4<f32>(one(x, c, k), one(x, c + 1u, k), one(x, c + 2u, k), one(x, c + 3u, k)),
                 vec4<f32>(one(x, c + 4u, k), one(x, c + 5u, k), one(x, c + 6u, k), one(x, c + 7u, k)));
}
#endif

#if REPLIES
// Whether a row of y is a reply's: rows of prompts are made by `tiles.wgsl`.
fn is_reply(i: u32) -> bool { return (row_flags(step_row(p(8u), i)) & ROW_PROMPT) == 0u; }
#else
fn is_reply(i: u32) -> bool { return true; }
#endif

// 0 weights, 1 words of a row, 2 words from a matrix to the next one, 3 x, 4 y, 5 scale, 6 bias, 7 experts of routed rows, 8 lead,
// 9 outputs, 10 columns, 11 columns of a row of x, 12 from a part of x to the next one, 13 columns of a row of y, 14 from a part
// of y to the next one, 15 first output, 16 length of the scale, 17 biases of a matrix, 18 routed rows of a row (0 without
// experts), 19 the first matrix, 20 matrices.
@compute @workgroup_size(256)
fn matvec(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let lane = lid & 31u;
    let o = wg.x * 8u + (lid >> 5u);
    let k = p(10u);
    let top_k = p(18u);
    let count = rows_of(p(8u)) * max(top_k, 1u);
    let first = wg.y * ROWS;
    var there = o < p(9u) && first < count;
    var part = wg.z;
    var matrix = wg.z;
    var row = first;
    if (top_k > 0u && there) {
        row = first / top_k;
        part = first % top_k;
        matrix = wu(p(7u) + first) - p(19u);
        there = matrix < p(20u);
    }
    var sum: array<vec2<f32>, ROWS>;
    for (var t = 0u; t < ROWS; t++) { sum[t] = vec2<f32>(); }
    if (there) {
        let w = p(0u) + matrix * p(2u) + o * p(1u);
        let x = p(3u) + row * p(11u) + part * p(12u);
        let last = min(count - first, ROWS) - 1u;
        for (var g = lane; g * 8u < k; g += 32u) {
            let v = eight(w, g);
            for (var t = 0u; t < ROWS; t++) {
                let f = row8(x + min(t, last) * p(11u), g, k);
                var a = sum[t].x;
                a = fma(v.a.x, f.a.x, a);
                a = fma(v.a.y, f.a.y, a);
                a = fma(v.a.z, f.a.z, a);
                a = fma(v.a.w, f.a.w, a);
                var b = sum[t].y;
                b = fma(v.b.x, f.b.x, b);
                b = fma(v.b.y, f.b.y, b);
                b = fma(v.b.z, f.b.z, b);
                b = fma(v.b.w, f.b.w, b);
                sum[t] = vec2<f32>(a, b);
            }
        }
    }
    for (var t = 0u; t < ROWS; t++) {
        var y = sum_lanes(sum[t].x + sum[t].y, lid);
        if (lane == 0u && there && first + t < count && is_reply(first + t)) {
            let at = p(15u) + o;
            if (p(5u) != NONE) { y *= vf(p(5u) + select(at % p(16u), matrix + p(19u), top_k > 0u)); }
            if (p(6u) != NONE) { y += vf(p(6u) + select(0u, (matrix + p(19u)) * p(17u), top_k > 0u) + at); }
            set_wf(p(4u) + (row + t) * p(13u) + part * p(14u) + at, y);
        }
    }
}
