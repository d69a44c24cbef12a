// Queries and keys between their products and attention: norms of heads, rotations, and the cache write.
#include "common.wgsl"
#include "reduce.wgsl"
#include "cache.wgsl"

// 0..11 the cache, 12 q, 13 k, 14 v, 15 queries to, 16 query heads, 17 key heads, 18 columns of a head, 19 weight of the queries'
// norm (NONE: none), 20 its length, 21 eps, 22..24 the same of keys, 25 offset of the rotation, 26 pairs, 27 whether halves,
// 28 turns, 29 columns of a value head.
const DIM: u32 = 256u;

var<workgroup> head_columns: array<f32, DIM>;
var<workgroup> turned: array<f32, DIM>;
var<workgroup> lives: u32;

// A workgroup of 64 threads for each head (x: queries, keys, values) of each row (y).
@compute @workgroup_size(64)
fn heads(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let row = wg.y;
    if (lid == 0u) {
        lives = 0u;
        if (row < rows_of(LEAD_ROWS)) { lives = row_flags(row) & ROW_LIVE; }
    }
    if (workgroupUniformLoad(&lives) == 0u) { return; }
    let n_q = p(16u);
    let n_k = p(17u);
    var head = wg.x;
    var of_keys = false;
    var of_values = false;
    var width = p(18u);
    var x = p(12u) + (row * n_q + head) * width;
    if (head >= n_q) {
        head -= n_q;
        of_keys = head < n_k;
        x = p(13u) + (row * n_k + head) * width;
        if (!of_keys) {
            head -= n_k;
            of_values = true;
            width = p(29u);
            x = p(14u) + (row * n_k + head) * width;
        }
    }
    for (var c = lid; c < width; c += 64u) { head_columns[c] = wf(x + c); }
    let norm = select(19u, 22u, of_keys);
    if (!of_values && p(norm) != NONE) {
        var squares = 0.0;
        for (var c = lid; c < width; c += 64u) {
            let v = head_columns[c];
            squares = fma(v, v, squares);
        }
        squares = sum_block(squares, lid);
        let root = sqrt(squares / f32(width) + pf(norm + 2u));
        for (var c = lid; c < width; c += 64u) {
            head_columns[c] = head_columns[c] / root * vf(p(norm) + (head * width + c) % p(norm + 1u));
        }
    }
    workgroupBarrier();
    let offset = p(25u);
    let pairs = p(26u);
    for (var c = lid; c < width; c += 64u) {
        var y = head_columns[c];
        if (!of_values && c >= offset && c < offset + 2u * pairs) {
            let e = c - offset;
            var pair = e / 2u;
            var second = (e & 1u) == 1u;
            var apart = 1u;
            if (p(27u) != 0u) {
                pair = e % pairs;
                second = e >= pairs;
                apart = pairs;
            }
            let t = p(28u) + (row * pairs + pair) * 2u;
            if (second) {
                y = head_columns[c - apart] * wf(t + 1u) + y * wf(t);
            } else {
                y = y * wf(t) - head_columns[c + apart] * wf(t + 1u);
            }
        }
        turned[c] = y;
        if (!of_keys && !of_values) { set_wf(p(15u) + (row * n_q + head) * width + c, y); }
    }
    workgroupBarrier();
    if (!of_keys && !of_values) { return; }
    let at = place(0u, seq_slot(row_seq(row)), place_of_row(row));
    if (at.block == NONE) { return; }
    let q = select(4u, 8u, of_values);
    let plane_width = p(q + 2u);
    let column = head * width;
    if (p(q + 3u) == 1u || p(q + 3u) == 30u) {
        let base = at.block + p(q) + at.entry * ((plane_width + 1u) / 2u) + column / 2u;
        for (var w = lid; w < width / 2u; w += 64u) {
            var word = to_half(turned[2u * w]) | to_half(turned[2u * w + 1u]) << 16u;
            if (p(q + 3u) == 30u) { word = to_bfloat(turned[2u * w]) | to_bfloat(turned[2u * w + 1u]) << 16u; }
            cache[base + w] = word;
        }
    } else if (p(q + 3u) == 0u) {
        for (var c = lid; c < width; c += 64u) { cache[at.block + p(q) + at.entry * plane_width + column + c] = bitcast<u32>(turned[c]); }
    } else if (lid < width / 32u) {
        for (var c = 0u; c < 32u; c++) { run_values[c] = turned[lid * 32u + c]; }
        store_run(q, at, column / 32u + lid);
    }
}
