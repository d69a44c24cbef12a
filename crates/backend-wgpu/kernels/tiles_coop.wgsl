// Products of many rows by cooperative matrices: halves, whose products are summed in single floats, 32 columns at a time.
//
// A row of x is halves under a power of two of its own, weights are halves times 16. A workgroup of eight subgroups of 32 has
// 128 outputs of 64 rows, a subgroup 32 of 32. 23 KiB are shared.
enable f16;
enable wgpu_cooperative_matrix;
#include "common.wgsl"
#include "reduce.wgsl"
#include "formats.wgsl"
#include "tile_rows.wgsl"

// Halves from a row of a tile to the next one.
const PITCH: u32 = 40u;
const SUBGROUPS_OF_TILE: u32 = 8u;
// Words before a row's halves: what they are multiplied by to be x.
const HEAD: u32 = 4u;

fn half_words(k: u32) -> u32 { return (k + 31u) / 32u * 16u + HEAD; }

// A row's halves, zeros up to a multiple of 32 columns. 0 x, 1 to, 2 lead, 3 columns, 4 columns of a row of x, 5 from a part to the
// next one, 6 parts. Grid: rows, parts. `half_words(columns)` words a row and part.
@compute @workgroup_size(256)
fn halve(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let k = p(3u);
    let inside = same(rows_of(p(2u)), lid) > wg.x;
    if (!inside) { return; }
    let x = p(0u) + wg.x * p(4u) + wg.y * p(5u);
    let to = p(1u) + (wg.x * p(6u) + wg.y) * half_words(k);
    var most = 0.0;
    for (var c = lid; c < k; c += 256u) { most = max(most, abs(wf(x + c))); }
    most = max_block(most, lid);
    // The largest number lies between 2¹⁴ and 2¹⁵.
    let exponent = clamp(268u - max(bitcast<u32>(most) >> 23u, 15u), 1u, 253u);
    let factor = bitcast<f32>(exponent << 23u);
    if (lid == 0u) { set_wu(to, (254u - exponent) << 23u); }
    for (var w = lid; w < half_words(k) - HEAD; w += 256u) {
        var two = vec2<f32>();
        if (2u * w < k) { two.x = wf(x + 2u * w); }
        if (2u * w + 1u < k) { two.y = wf(x + 2u * w + 1u); }
        set_wu(to + HEAD + w, pack2x16float(two * factor));
    }
}

var<workgroup> wanted_word: u32;
var<workgroup> half_w: array<f16, OUTPUTS * PITCH>;
var<workgroup> half_x: array<f16, TILE_ROWS * PITCH>;
var<workgroup> stage: array<f32, SUBGROUPS_OF_TILE * 256u>;

fn put_weights(at: u32, e: Eight) {
    let a = vec4<f16>(e.a * 16.0);
    let b = vec4<f16>(e.b * 16.0);
    half_w[at] = a.x;
    half_w[at + 1u] = a.y;
    half_w[at + 2u] = a.z;
    half_w[at + 3u] = a.w;
    half_w[at + 4u] = b.x;
    half_w[at + 5u] = b.y;
    half_w[at + 6u] = b.z;
    half_w[at + 7u] = b.w;
}

fn put_halves(at: u32, word: u32) {
    let two = vec2<f16>(unpack2x16float(word));
    half_x[at] = two.x;
    half_x[at + 1u] = two.y;
}

// What a subgroup staged: 16 outputs of 16 rows.
fn store_stage(sub: u32, lane: u32, row: u32, o: u32, count: u32, part: u32) {
    for (var e = lane; e < 256u; e += 32u) {
        let r = row + e / 16u;
        if (r >= count) { continue; }
        let halves = p(21u) + (r * p(20u) + part) * half_words(p(10u));
        store(r, count, o + e % 16u, part, stage[sub * 256u + e] * (wf(halves) * 0.0625));
    }
}

// Parameters of `matvec`, then 21 what `halve` left, of as many parts as there are matrices.
@compute @workgroup_size(256)
fn tiles_coop(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let k = p(10u);
    let count = rows_of(p(8u));
    let part = wg.z;
    let first = wg.y * TILE_ROWS;
    let wanted = is_any_wanted(first, count, lid);
    if (lid == 0u) { wanted_word = select(0u, 1u, wanted); }
    // Cooperative operations want to be told that all threads go on.
    if (workgroupUniformLoad(&wanted_word) == 0u) { return; }
    let w_output = min(wg.x * OUTPUTS + (lid >> 1u), p(9u) - 1u);
    let w = p(0u) + part * p(2u) + w_output * p(1u);
    let w_place = (lid >> 1u) * PITCH + (lid & 1u) * 16u;
    let x_row = min(first + (lid >> 2u), count - 1u);
    let x = p(21u) + (x_row * p(20u) + part) * half_words(k) + HEAD + (lid & 3u) * 4u;
    let x_place = (lid >> 2u) * PITCH + (lid & 3u) * 8u;
    let sub = lid >> 5u;
    let lane = lid & 31u;
    let row = (sub & 1u) * 32u;
    let o = (sub >> 1u) * 32u;
    var c00: coop_mat16x16<f32, C>;
    var c01: coop_mat16x16<f32, C>;
    var c10: coop_mat16x16<f32, C>;
    var c11: coop_mat16x16<f32, C>;
    for (var c = 0u; c < k; c += 32u) {
        var v: Eight;
        var u: Eight;
        let g = (c >> 3u) + (lid & 1u) * 2u;
        if (g * 8u < k) { v = load8(w + g / GROUPS * BLOCK_WORDS, g % GROUPS); }
        if (g * 8u + 8u < k) { u = load8(w + (g + 1u) / GROUPS * BLOCK_WORDS, (g + 1u) % GROUPS); }
        let at = x + c / 2u;
        let words = vec4<u32>(wu(at), wu(at + 1u), wu(at + 2u), wu(at + 3u));
        workgroupBarrier();
        put_weights(w_place, v);
        put_weights(w_place + 8u, u);
        put_halves(x_place, words.x);
        put_halves(x_place + 2u, words.y);
        put_halves(x_place + 4u, words.z);
        put_halves(x_place + 6u, words.w);
        workgroupBarrier();
        for (var i = 0u; i < 32u; i += 16u) {
            let a0 = coopLoadT<coop_mat16x16<f16, A>>(&half_x[row * PITCH + i], PITCH);
            let a1 = coopLoadT<coop_mat16x16<f16, A>>(&half_x[(row + 16u) * PITCH + i], PITCH);
            let b0 = coopLoad<coop_mat16x16<f16, B>>(&half_w[o * PITCH + i], PITCH);
            let b1 = coopLoad<coop_mat16x16<f16, B>>(&half_w[(o + 16u) * PITCH + i], PITCH);
            c00 = coopMultiplyAdd(a0, b0, c00);
            c01 = coopMultiplyAdd(a0, b1, c01);
            c10 = coopMultiplyAdd(a1, b0, c10);
            c11 = coopMultiplyAdd(a1, b1, c11);
        }
    }
    let out = wg.x * OUTPUTS + o;
    coopStoreT(c00, &stage[sub * 256u], 16u);
    workgroupBarrier();
    store_stage(sub, lane, first + row, out, count, part);
    workgroupBarrier();
    coopStoreT(c01, &stage[sub * 256u], 16u);
    workgroupBarrier();
    store_stage(sub, lane, first + row, out + 16u, count, part);
    workgroupBarrier();
    coopStoreT(c10, &stage[sub * 256u], 16u);
    workgroupBarrier();
    store_stage(sub, lane, first + row + 16u, out, count, part);
    workgroupBarrier();
    coopStoreT(c11, &stage[sub * 256u], 16u);
    workgroupBarrier();
    store_stage(sub, lane, first + row + 16u, out + 16u, count, part);
}
