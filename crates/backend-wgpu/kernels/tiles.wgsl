// Products of many rows with weights of any format: a workgroup for 128 outputs of 64 rows, 16 columns at a time.
//
// A thread sums eight outputs of four rows in registers, column after column: the order of a row's sum is that of its columns.
#include "common.wgsl"
#include "formats.wgsl"
#include "tile_rows.wgsl"

// Vectors of 16 columns, and one between rows, so that threads read from different banks.
const PITCH: u32 = 5u;
const GROUPS: u32 = BLOCK / 8u;
const OUTPUTS: u32 = 128u;
const TILE_ROWS: u32 = 64u;

var<workgroup> tile_w: array<vec4<f32>, OUTPUTS * PITCH>;
var<workgroup> tile_x: array<vec4<f32>, TILE_ROWS * PITCH>;

// Four columns of a row of x, zeros behind its end.
#if ALIGNED
fn row4(x: u32, c: u32, k: u32) -> vec4<f32> {
    if (c >= k) { return vec4<f32>(); }
    return wf4(x + c);
}
#else
fn one(x: u32, c: u32, k: u32) -> f32 {
    if (c >= k) { return 0.0; }
    return wf(x + c);
}

fn row4(x: u32, c: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(one(x, c, k), one(x, c + 1u, k), one(x, c + 2u, k), one(x, c + 3u, k));
}
#endif

// Four products are added among themselves first, so that a long sum is rounded a fourth as often.
fn dot4(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 { return sum + fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, w.x * x.x))); }

// Sums of eight outputs, 16 apart.
struct Sums { a: vec4<f32>, b: vec4<f32> }

fn with_columns(s: Sums, w: array<vec4<f32>, 8>, x: vec4<f32>) -> Sums {
    return Sums(vec4<f32>(dot4(w[0], x, s.a.x), dot4(w[1], x, s.a.y), dot4(w[2], x, s.a.z), dot4(w[3], x, s.a.w)),
                vec4<f32>(dot4(w[4], x, s.b.x), dot4(w[5], x, s.b.y), dot4(w[6], x, s.b.z), dot4(w[7], x, s.b.w)));
}

fn store_row(row: u32, count: u32, o: u32, part: u32, s: Sums) {
    store(row, count, o, part, s.a.x);
    store(row, count, o + 16u, part, s.a.y);
    store(row, count, o + 32u, part, s.a.z);
    store(row, count, o + 48u, part, s.a.w);
    store(row, count, o + 64u, part, s.b.x);
    store(row, count, o + 80u, part, s.b.y);
    store(row, count, o + 96u, part, s.b.z);
    store(row, count, o + 112u, part, s.b.w);
}

// Of a thread: outputs o, o + 16 and so on of rows r, r + 16 and so on, where o is its number's low half and r its high one.
struct Tile { a: Sums, b: Sums, c: Sums, d: Sums }

// The sums of a tile. Every thread fetches eight columns of the row of weights `w`, that of output lid / 2, and four of the row of
// x at `x`, that of row lid / 4.
fn tile_of(w: u32, x: u32, k: u32, lid: u32) -> Tile {
    let w_place = (lid >> 1u) * PITCH + (lid & 1u) * 2u;
    let x_place = (lid >> 2u) * PITCH + (lid & 3u);
    let o = lid & 15u;
    let r = lid >> 4u;
    var t = Tile();
    for (var c = 0u; c < k; c += 16u) {
        var v: Eight;
        let g = (c >> 3u) + (lid & 1u);
        if (g * 8u < k) { v = load8(w + g / GROUPS * BLOCK_WORDS, g % GROUPS); }
        let f = row4(x, c + (lid & 3u) * 4u, k);
        workgroupBarrier();
        tile_w[w_place] = v.a;
        tile_w[w_place + 1u] = v.b;
        tile_x[x_place] = f;
        workgroupBarrier();
        for (var i = 0u; i < 4u; i++) {
            let at = o * PITCH + i;
            let four = array<vec4<f32>, 8>(tile_w[at], tile_w[at + 16u * PITCH], tile_w[at + 32u * PITCH], tile_w[at + 48u * PITCH],
                tile_w[at + 64u * PITCH], tile_w[at + 80u * PITCH], tile_w[at + 96u * PITCH], tile_w[at + 112u * PITCH]);
            let row = r * PITCH + i;
            t.a = with_columns(t.a, four, tile_x[row]);
            t.b = with_columns(t.b, four, tile_x[row + 16u * PITCH]);
            t.c = with_columns(t.c, four, tile_x[row + 32u * PITCH]);
            t.d = with_columns(t.d, four, tile_x[row + 48u * PITCH]);
        }
    }
    return t;
}

// Parameters are those of `matvec`, without experts. With KIND only rows of prompts are stored.
@compute @workgroup_size(256)
fn tiles(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let count = rows_of(p(8u));
    let part = wg.z;
    let first = wg.y * TILE_ROWS;
    if (!is_any_wanted(first, count, lid)) { return; }
    let w = p(0u) + part * p(2u) + min(wg.x * OUTPUTS + (lid >> 1u), p(9u) - 1u) * p(1u);
    let x = p(3u) + min(first + (lid >> 2u), count - 1u) * p(11u) + part * p(12u);
    let t = tile_of(w, x, p(10u), lid);
    let out = wg.x * OUTPUTS + (lid & 15u);
    let row = first + (lid >> 4u);
    store_row(row, count, out, part, t.a);
    store_row(row + 16u, count, out, part, t.b);
    store_row(row + 32u, count, out, part, t.c);
    store_row(row + 48u, count, out, part, t.d);
}
