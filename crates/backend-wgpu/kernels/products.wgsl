// Products of one value by weights of one format, for rows of replies: with the norm before them, and with the gate or the sum
// behind them.
//
// 32 threads compute two outputs of `ROWS` rows, or one: thread l takes the runs of `COLUMNS` columns l, l + 32, …, every fourth
// column of a run is summed, and those four in pairs, then the runs, and threads in pairs as in `matmul.wgsl`. So the order of a row's sum
// follows from the number of columns alone.
//
// Vectors of weights are asked for `RUNS` runs at once.
//
// With `DOTS` a run of 32 columns is integers of 16 bits under a scale of its own, which are multiplied by codes byte by byte: its sum
// is exact but for the rounding of those integers.
#include "common.wgsl"
#include "reduce.wgsl"
#include "halves.wgsl"
#if WIDE
#include "formats_wide.wgsl"
#elif WEIGHTS_VEC4
#include "formats_plain.wgsl"
const COLUMNS: u32 = 8u;
alias Raw = vec4<u32>;
fn raw_of(row: u32, g: u32) -> Raw { return weights[row + g]; }
#else
#include "formats.wgsl"
const GROUPS: u32 = BLOCK / 8u;
const COLUMNS: u32 = 8u;
#endif
#include "activations.wgsl"
#include "parts.wgsl"
#include "columns.wgsl"

#if DOTS
// Columns that are shared at a time: of every eight of them the upper bytes and the lower ones, behind every 32 the sums of either half
// and their scale.
const ROW_VECS: u32 = CHUNK / 32u * 5u;
const TILE_VECS: u32 = ROWS * ROW_VECS;
var<workgroup> tile: array<vec4<u32>, TILE_VECS>;
#else
// Columns that are shared at a time, as vectors with one between every 32 columns, so that threads read from different banks; and the
// sums of every 16.
const ROW_VECS: u32 = CHUNK / 32u * 9u;
const ROW_SUMS: u32 = CHUNK / 16u;
const TILE_VECS: u32 = ROWS * ROW_VECS;
const TILE_SUMS: u32 = ROWS * ROW_SUMS;
var<workgroup> tile: array<vec4<f32>, TILE_VECS>;
#if WIDE
var<workgroup> sums: array<f32, TILE_SUMS>;
#endif
#endif

fn folded(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }

#if DOTS
fn vec_at(t: u32, run: u32) -> u32 { return t * ROW_VECS + run * 5u; }
fn put(to: u32, i: u32, v: vec4<u32>) { tile[to + i] = v; }
fn put_word(to: u32, i: u32, word: u32) { tile[to + 4u][i] = word; }
#else
// Shares sixteen columns.
fn share(t: u32, i: u32, x: Columns, inside: bool, lid: u32) {
    if (!inside) { return; }
    let to = t * ROW_VECS + (i >> 1u) * 9u + (i & 1u) * 4u;
    tile[to] = x.v[0];
    tile[to + 1u] = x.v[1];
    tile[to + 2u] = x.v[2];
    tile[to + 3u] = x.v[3];
#if WIDE
    if (MINS) { sums[t * ROW_SUMS + i] = folded((x.v[0] + x.v[1]) + (x.v[2] + x.v[3])); }
#endif
}
#endif

// Shares columns of the rows from `begin` on. Where all of a row are shared at once, each thread has its first ones already.
fn share_rows(begin: u32, k: u32, first: u32, last: u32, root: array<f32, ROWS>, held: array<Columns, ROWS>, lid: u32) {
    let columns = min(k - begin, CHUNK);
    for (var before = 0u; before * 16u < columns; before += THREADS) {
        let i = before + lid;
        let inside = i * 16u < columns;
        let c = begin + min(i * 16u, columns - 16u);
#if NORMED
        let w = weights_of(c);
#endif
#for t ROWS
        var x$t = held[$t];
        if (CHUNKED == 1u || before != 0u) { x$t = columns_of(p(1u) + row_of(first, $tu, last) * k, c); }
#if NORMED
        x$t = times(x$t, w, root[$t]);
#endif
        share($tu, i, x$t, inside, lid);
#end
    }
    workgroupBarrier();
}

#if DOTS
// The dot of eight columns' integers with codes.
fn dot_of(codes: vec2<u32>, x: vec4<u32>) -> i32 {
    let high = dot4I8Packed(codes.x, x.x) + dot4I8Packed(codes.y, x.y);
    return (high << 8u) + dot4I8Packed(codes.x, x.z) + dot4I8Packed(codes.y, x.w);
}
#endif

// Grid: as many workgroups as have something to do, or fewer, which go on then; runs of rows. Those from `MOST_GROUPS` on have nothing to do.
@compute @workgroup_size(THREADS)
fn products(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let strides = min(groups.x, MOST_GROUPS);
    if (wg.x >= strides) { return; }
    let lane = lid & 31u;
    let k = p(3u);
    let all = groups_of();
    var team = team_of(wg.x, lid >> 5u);
#if WEIGHTS_VEC4
    // Weights do not wait for what is made here before them.
    let runs = k / COLUMNS;
#for u RUNS
#for e EACH
    var next$e_$u = raw_of(team.w[$e] >> 2u, min(lane + 32u * $uu, runs - 1u));
#end
#end
#endif
    let first = wg.y * ROWS;
#if ROWS == 1
    let last = first;
#else
    let last = max(min(rows_of(p(2u)), first + ROWS), 1u) - 1u;
#endif
    // Rows are asked for before it is known whether they are wanted.
    var held: array<Columns, ROWS>;
    if ((CHUNKED == 0u || NORMED == 1u) && lid * 16u < k) {
#for t ROWS
        held[$t] = columns_of(p(1u) + row_of(first, $tu, last) * k, lid * 16u);
#end
    }
    let count = rows_of(p(2u));
#for t ROWS
    let flags$t = row_flags(step_row(p(2u), row_of(first, $tu, last)));
#end
    // The reciprocal of each row's root mean square.
    var root: array<f32, ROWS>;
#if NORMED
#for t ROWS
    var squares$t = squares(held[$t]);
    for (var c = (lid + THREADS) * 16u; c < k; c += THREADS * 16u) { squares$t += squares(columns_of(p(1u) + row_of(first, $tu, last) * k, c)); }
    root[$t] = 1.0 / sqrt(sum_block(squares$t, lid) / f32(k) + pf(5u));
#end
#endif
#if CHUNKED == 0
    share_rows(0u, k, first, last, root, held, lid);
#endif
    for (var group = wg.x; group < all; group += strides) {
        let own = team;
        let n = p(own.q + PART_N);
        if (group + strides < all) { team = team_of(group + strides, lid >> 5u); }
#for t ROWS
        var added$t = vec2<f32>();
        if (p(6u) != NONE) {
            let at = p(6u) + row_of(first, $tu, last) * n;
            added$t = vec2<f32>(wf(at + min(own.o, n - 1u)), wf(at + min(own.o + 1u, n - 1u)));
        }
#for e EACH
        var sum$e_$t = 0.0;
#end
#end
        for (var begin = 0u; begin < k; begin += CHUNK) {
            let columns = min(k - begin, CHUNK);
#if CHUNKED
            workgroupBarrier();
            share_rows(begin, k, first, last, root, held, lid);
#endif
            for (var turn = lane; turn * COLUMNS < columns; turn += 32u * RUNS) {
#if WEIGHTS_VEC4
                // The next runs of this row, or the first ones of the next row.
                let then = begin / COLUMNS + turn + 32u * RUNS;
                let goes_on = then < runs;
#for u RUNS
#for e EACH
                let run$e_$u = next$e_$u;
                next$e_$u = raw_of(select(team.w[$e], own.w[$e], goes_on) >> 2u, min(select(lane, then, goes_on) + 32u * $uu, runs - 1u));
#end
#end
#endif
#for u RUNS
                let g$u = turn + 32u * $uu;
                if ($uu == 0u || g$u * COLUMNS < columns) {
                let g = g$u;
                let here = begin / COLUMNS + g;
#if WEIGHTS_VEC4
#for e EACH
                let r$e = run$e_$u;
#end
#endif
#if DOTS
#for t ROWS
                let at$t = $tu * ROW_VECS + g * 5u;
#end
#for e EACH
#for t ROWS
                var dots$e_$t = vec2<i32>();
#end
#end
#for j 4
#for e EACH
                let v$e_$j = words_of(r$e, $ju);
#end
#for t ROWS
                let x$t_$j = tile[at$t + $ju];
#for e EACH
                dots$e_$t[$j / 2] += dot_of(v$e_$j, x$t_$j);
#end
#end
#end
#for e EACH
                let f$e = factors(r$e, here);
#for t ROWS
                sum$e_$t = with_run(sum$e_$t, dots$e_$t, tile[at$t + 4u], f$e);
#end
#end
#elif WIDE
#for t ROWS
                let at$t = $tu * ROW_VECS + g * 9u;
#end
#for e EACH
                let f$e = factors(r$e, here);
#for t ROWS
                var part$e_$t = vec4<f32>();
#end
#end
#for j 4
#for e EACH
                let v$e_$j = codes_of(r$e, $ju);
#end
#for t ROWS
                let xa$t_$j = tile[at$t + 2u * $ju];
                let xb$t_$j = tile[at$t + 2u * $ju + 1u];
#for e EACH
                part$e_$t = fma(v$e_$j.b, xb$t_$j, fma(v$e_$j.a, xa$t_$j, part$e_$t));
#end
#end
                if (FORMAT == 14u && $ju == 1u) {
#for e EACH
#for t ROWS
                    sum$e_$t = fma(f$e.x, folded(part$e_$t), sum$e_$t);
                    part$e_$t = vec4<f32>();
#end
#end
                }
#end
#for t ROWS
#for e EACH
                sum$e_$t = fma(select(f$e.x, f$e.y, FORMAT == 14u), folded(part$e_$t), sum$e_$t);
#end
                if (MINS) {
                    let of_x = sums[$tu * ROW_SUMS + 2u * g] + sums[$tu * ROW_SUMS + 2u * g + 1u];
#for e EACH
                    sum$e_$t = fma(-f$e.y, of_x, sum$e_$t);
#end
                }
#end
#else
#for e EACH
#if WEIGHTS_VEC4
                let v$e = eight_of(r$e);
#else
                let v$e = load8(own.w[$e] + here / GROUPS * BLOCK_WORDS, here % GROUPS);
#endif
#end
#for t ROWS
                let at$t = $tu * ROW_VECS + (g >> 2u) * 9u + (g & 3u) * 2u;
                let xa$t = tile[at$t];
                let xb$t = tile[at$t + 1u];
#for e EACH
                sum$e_$t += folded(fma(v$e.b, xb$t, v$e.a * xa$t));
#end
#end
#endif
                }
#end
            }
        }
#for t ROWS
#for e EACH
        let y$e_$t = sum_lanes(sum$e_$t, lid);
#end
        if (lane == 0u && first + $tu < count && (flags$t & ROW_PROMPT) == 0u && own.o < n) {
            let row = first + $tu;
#if GATED
            set_wf(p(own.q + PART_Y) + row * n + own.o, gated(8u, output(own.q, own.o, y0_$t), output(PART + 8u, own.o, y1_$t)));
#else
            store(own.q, row, own.o, y0_$t, added$t.x);
#if MADE == 2
            if (own.o + 1u < n) { store(own.q, row, own.o + 1u, y1_$t, added$t.y); }
#endif
#endif
        }
#end
    }
}
