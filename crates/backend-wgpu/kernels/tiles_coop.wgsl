// Products of many rows by cooperative matrices: halves, whose products are summed in single floats, SIDE columns at a time.
//
// A row of x is a half for each column (`halve.wgsl`); weights of blocks are halves times a power of two, others halves as they are. A workgroup has
// OUTPUTS outputs of TILE_ROWS rows, a subgroup of LANES threads 2 · SIDE rows of ACROSS · SIDE outputs.
enable f16;
enable wgpu_cooperative_matrix;
#include "common.wgsl"
#if WIDE
#include "halves.wgsl"
#include "formats_wide.wgsl"
#elif FORMAT != 1
#include "formats.wgsl"
#endif
#include "tile_rows.wgsl"

// Outputs of a tile, and vectors of halves from a row of one to the next, whose places lie in different banks.
const OUTPUTS: u32 = 128u;
const PITCH: u32 = STEP / 4u + 2u;
// Words before a row's halves: what they are multiplied by to be x.
const HEAD: u32 = 4u;
#if WEIGHTS_VEC4
const WEIGHT_WORDS: u32 = 4u;
#else
const WEIGHT_WORDS: u32 = 1u;
const GROUPS: u32 = BLOCK / 8u;
#endif
const SUBGROUPS_OF_TILE: u32 = 256u / LANES;
const SUBGROUPS_DOWN: u32 = TILE_ROWS / (2u * SIDE);

#if SIDE == 8
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sum = coop_mat8x8<f32, C>;
#else
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;
#endif

fn half_words(k: u32) -> u32 { return HEAD + k / 2u; }

var<workgroup> wanted_word: u32;
var<workgroup> half_w: array<vec4<f16>, OUTPUTS * PITCH>;
var<workgroup> half_x: array<vec4<f16>, TILE_ROWS * PITCH>;
var<workgroup> stage: array<f32, SUBGROUPS_OF_TILE * SIDE * SIDE>;
// What sums of a row are multiplied by; negative: nobody wants it.
var<workgroup> row_factor: array<f32, TILE_ROWS>;

fn halves4(a: u32, b: u32) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(a), unpack2x16float(b))); }

// Threads have eight columns of X_ROWS rows of x each, which lie so far apart.
const ROWS_APART: u32 = 256u / (STEP / 8u);

// Words before those of a row of the tile, or of the last one.
fn x_at(row: u32, first: u32, count: u32, k: u32) -> u32 { return min(first + row, count - 1u) * half_words(k); }

fn put_x(at: u32, v: vec4<u32>) {
    half_x[at] = halves4(v.x, v.y);
    half_x[at + 1u] = halves4(v.z, v.w);
}

// Half of a row's STEP weights on their way to shared memory: from column `c` on.
#if FORMAT == 1
fn factor_of_weights() -> f32 { return 1.0; }
struct Fetched { q: array<vec4<u32>, STEP / 16u> }
fn fetched(row: u32, c: u32) -> Fetched {
    var f: Fetched;
    for (var i = 0u; i < STEP / 16u; i++) { f.q[i] = weights[row + c / 8u + i]; }
    return f;
}
fn put_weights(at: u32, f: Fetched, c: u32) {
    for (var i = 0u; i < STEP / 16u; i++) {
        half_w[at + 2u * i] = halves4(f.q[i].x, f.q[i].y);
        half_w[at + 2u * i + 1u] = halves4(f.q[i].z, f.q[i].w);
    }
}
#else
// So that neither large nor small weights are lost, a power of two of the weight's own.
fn factor_of_weights() -> f32 { return pf(22u); }
fn put8(at: u32, e: Eight) {
    half_w[at] = vec4<f16>(e.a);
    half_w[at + 1u] = vec4<f16>(e.b);
}
#if WIDE
struct Fetched { r: Raw }
fn fetched(row: u32, c: u32) -> Fetched { return Fetched(raw_of(row, c / 32u)); }
fn put_codes(at: u32, r: Raw, j: u32, f: vec2<f32>) {
    let e = codes_of(r, j);
#if FORMAT == 14
    let scale = vec4<f32>(select(f.x, f.y, j > 1u));
    put8(at, Eight(e.a * scale, e.b * scale));
#else
    put8(at, Eight(fma(e.a, vec4<f32>(f.x), vec4<f32>(-f.y)), fma(e.b, vec4<f32>(f.x), vec4<f32>(-f.y))));
#endif
}
fn put_weights(at: u32, w: Fetched, c: u32) {
    let f = factors(w.r, c / 32u) * factor_of_weights();
#if STEP == 64
    put_codes(at, w.r, 0u, f);
    put_codes(at + 2u, w.r, 1u, f);
    put_codes(at + 4u, w.r, 2u, f);
    put_codes(at + 6u, w.r, 3u, f);
#else
    let j = (c >> 3u) & 2u;
    put_codes(at, w.r, j, f);
    put_codes(at + 2u, w.r, j + 1u, f);
#endif
}
#else
struct Fetched { e: array<Eight, STEP / 16u> }
fn fetched(row: u32, c: u32) -> Fetched {
    var f: Fetched;
    for (var i = 0u; i < STEP / 16u; i++) {
        let g = c / 8u + i;
        f.e[i] = load8(row + g / GROUPS * BLOCK_WORDS, g % GROUPS);
    }
    return f;
}
fn put_weights(at: u32, f: Fetched, c: u32) {
    let by = factor_of_weights();
    for (var i = 0u; i < STEP / 16u; i++) { put8(at + 2u * i, Eight(f.e[i].a * by, f.e[i].b * by)); }
}
#endif
#endif

// What a subgroup staged: outputs from `o` on of rows from the tile's row `row` on.
fn store_stage(sub: u32, lane: u32, first: u32, row: u32, o: u32) {
    workgroupBarrier();
    for (var e = lane; e < SIDE * SIDE; e += LANES) {
        let r = row + e / SIDE;
        let factor = row_factor[r];
        if (factor >= 0.0) { store_wanted(first + r, o + e % SIDE, 0u, stage[sub * SIDE * SIDE + e] * factor); }
    }
    workgroupBarrier();
}

// Parameters of `matvec`, then 21 what `halve` left, 22 what weights are multiplied by. One matrix, a multiple of STEP columns.
@compute @workgroup_size(256)
fn tiles_coop(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let k = p(10u);
    let count = rows_of(p(8u));
    let first = wg.y * TILE_ROWS;
    let wanted = is_any_wanted(first, count, lid);
    if (lid == 0u) { wanted_word = select(0u, 1u, wanted); }
    // Cooperative operations want to be told that all threads go on.
    if (workgroupUniformLoad(&wanted_word) == 0u) { return; }
    if (lid < TILE_ROWS) {
        var factor = -1.0;
        if (is_wanted(first + lid, count)) { factor = wf(p(21u) + (first + lid) * half_words(k)) / factor_of_weights(); }
        row_factor[lid] = factor;
    }
    let column = (lid & 1u) * (STEP / 2u);
    let w = (p(0u) + min(wg.x * OUTPUTS + (lid >> 1u), p(9u) - 1u) * p(1u)) / WEIGHT_WORDS;
    let w_place = (lid >> 1u) * PITCH + column / 4u;
    // Every thread has eight columns of rows that lie ROWS_APART apart.
    let x = p(21u) + HEAD + lid % (STEP / 8u) * 4u;
    let x_row = lid / (STEP / 8u);
    let x_place = x_row * PITCH + lid % (STEP / 8u) * 2u;
    let sub = lid / LANES;
    let lane = lid % LANES;
    let row = sub % SUBGROUPS_DOWN * (2u * SIDE);
    let o = sub / SUBGROUPS_DOWN * (ACROSS * SIDE);
#for t ACROSS
    var upper$t: Sum;
    var lower$t: Sum;
#end
    // Weights of the next columns are on their way while these are multiplied; to have x's on their way too takes longer.
    var next = fetched(w, column);
    for (var c = 0u; c < k; c += STEP) {
#for i X_ROWS
        let x$i = wu4(x + x_at(x_row + $iu * ROWS_APART, first, count, k) + c / 2u);
#end
        workgroupBarrier();
        put_weights(w_place, next, c + column);
#for i X_ROWS
        put_x(x_place + $iu * ROWS_APART * PITCH, x$i);
#end
        workgroupBarrier();
        next = fetched(w, min(c + STEP, k - STEP) + column);
        for (var i = 0u; i < STEP / 4u; i += SIDE / 4u) {
            let upper = coopLoadT<Left>(&half_x[row * PITCH + i], PITCH);
            let lower = coopLoadT<Left>(&half_x[(row + SIDE) * PITCH + i], PITCH);
#for t ACROSS
            let weight$t = coopLoad<Right>(&half_w[(o + $tu * SIDE) * PITCH + i], PITCH);
            upper$t = coopMultiplyAdd(upper, weight$t, upper$t);
            lower$t = coopMultiplyAdd(lower, weight$t, lower$t);
#end
        }
    }
    let out = wg.x * OUTPUTS + o;
    let staged = sub * SIDE * SIDE;
#for t ACROSS
    coopStoreT(upper$t, &stage[staged], SIDE);
    store_stage(sub, lane, first, row, out + $tu * SIDE);
    coopStoreT(lower$t, &stage[staged], SIDE);
    store_stage(sub, lane, first, row + SIDE, out + $tu * SIDE);
#end
}
