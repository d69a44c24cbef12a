// Products of several rows of replies, which lie as integers of 16 bits, by weights of one format: the sums of `products.wgsl`, in their order.
//
// 32 threads have `EACH` rows of weights and `ROWS` rows, of which 1,024 columns are shared at a time, while the next ones are on their way.
#include "common.wgsl"
#include "reduce.wgsl"
#include "halves.wgsl"
#include "formats_wide.wgsl"
#include "activations.wgsl"
#include "parts.wgsl"
#include "integers_of_rows.wgsl"

// Vectors of columns under one scale.
#if FORMAT == 14
const UNDER_ONE: u32 = 2u;
#else
const UNDER_ONE: u32 = 4u;
#endif

// Vectors of a row that are shared at a time, and of all rows.
const SPAN: u32 = 5u * LANES;
const TILE_VECS: u32 = ROWS * SPAN;
var<workgroup> tile: array<vec4<u32>, TILE_VECS>;

// Grid: a workgroup for every `OUTPUTS` outputs; runs of rows. Parameters are those of `products.wgsl`, with rows as integers in the place of x.
@compute @workgroup_size(THREADS)
fn several(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let lane = lid & 31u;
    let k = p(3u);
    let runs = k / COLUMNS;
    let own = team_of(wg.x, lid >> 5u);
#for e EACH
    var next$e = raw_of(own.w[$e] >> 2u, min(lane, runs - 1u));
#end
    let n = p(own.q + PART_N);
    let first = wg.y * ROWS;
    let count = rows_of(p(2u));
    let last = max(min(count, first + ROWS), 1u) - 1u;
#for f FETCHES
    let place$f = min(lid + $fu * THREADS, TILE_VECS - 1u);
    let from$f = (p(1u) >> 2u) + row_of(first, place$f / SPAN, last) * row_vecs(k) + place$f % SPAN;
    var fetched$f = wv(from$f);
#end
#for t ROWS
    let flags$t = row_flags(step_row(p(2u), row_of(first, $tu, last)));
#for e EACH
    var sum$e_$t = 0.0;
#end
#end
    for (var begin = 0u; begin < runs; begin += LANES) {
        let g = begin + lane;
        let behind = min(begin + LANES, (runs - 1u) / LANES * LANES) * 5u;
        workgroupBarrier();
#for f FETCHES
        if (lid + $fu * THREADS < TILE_VECS) { tile[place$f] = fetched$f; }
#end
        workgroupBarrier();
#for f FETCHES
        fetched$f = wv(from$f + behind);
#end
#for e EACH
        let run$e = next$e;
        next$e = raw_of(own.w[$e] >> 2u, min(g + LANES, runs - 1u));
#end
        if (g < runs) {
#for e EACH
        let f$e = factors(run$e, g);
#for j 4
        let v$e_$j = words_of(run$e, $ju);
#end
#end
#for t ROWS
#for j 4
        let x$t_$j = tile[$tu * SPAN + $ju * LANES + lane];
#end
        let of_x$t = tile[$tu * SPAN + 4u * LANES + lane];
#for e EACH
        var high$e_$t = vec2<i32>();
        var low$e_$t = vec2<i32>();
#for j 4
        high$e_$t[$j / UNDER_ONE] += dot4I8Packed(v$e_$j.x, x$t_$j.x);
        high$e_$t[$j / UNDER_ONE] += dot4I8Packed(v$e_$j.y, x$t_$j.y);
        low$e_$t[$j / UNDER_ONE] += dot4I8Packed(v$e_$j.x, x$t_$j.z);
        low$e_$t[$j / UNDER_ONE] += dot4I8Packed(v$e_$j.y, x$t_$j.w);
#end
        sum$e_$t = with_run(sum$e_$t, (high$e_$t << vec2<u32>(8u)) + low$e_$t, of_x$t, f$e);
#end
#end
        }
    }
#for t ROWS
    var y$t: array<f32, EACH>;
#for e EACH
    y$t[$e] = sum_lanes(sum$e_$t, lid);
#end
    if (lane == 0u && first + $tu < count && (flags$t & ROW_PROMPT) == 0u) {
        let row = first + $tu;
#for o MADE
        let o$o = own.o + $ou;
        if (o$o < n) {
#if GATED
            let made = gated(8u, output(own.q, o$o, y$t[2u * $ou]), output(own.q + 8u, o$o, y$t[2u * $ou + 1u]));
            set_wf(p(own.q + PART_Y) + row * n + o$o, made);
#else
            var added = 0.0;
            if (p(6u) != NONE) { added = wf(p(6u) + row * n + o$o); }
            store(own.q, row, o$o, y$t[$o], added);
#endif
        }
#end
    }
#end
}
