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

// Teams of 32 threads, of which each has `EACH` rows of weights, and outputs of a workgroup.
const TEAMS: u32 = THREADS / 32u;
#if GATED || SINGLE
const OUTPUTS: u32 = TEAMS;
#else
const OUTPUTS: u32 = TEAMS * 2u;
#endif

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

// What a sum becomes: scaled, with its bias.
fn output(q: u32, o: u32, sum: f32) -> f32 {
    var y = sum;
    if (p(q + PART_SCALE) != NONE) { y *= vf(p(q + PART_SCALE) + o % p(q + PART_SCALE_LEN)); }
    if (p(q + PART_BIAS) != NONE) { y += vf(p(q + PART_BIAS) + o); }
    return y;
}

// An output of a row, with what is added to it.
fn store(q: u32, row: u32, o: u32, sum: f32, added: f32) {
    var y = output(q, o, sum);
    if (p(6u) != NONE) { y += added; }
    set_wf(p(q + PART_Y) + row * p(q + PART_N) + o, y);
}

fn folded(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }

// A row of the run, or the last one that is there. One alone is there, and need not wait for how many are.
fn row_of(first: u32, t: u32, last: u32) -> u32 {
#if ROWS == 1
    return first;
#else
    return min(first + t, last);
#endif
}

// Where the outputs of 32 threads lie: their part, the first of them, and their rows of weights.
struct Team { q: u32, o: u32, w: array<u32, EACH> }

fn team_of(group: u32, team: u32) -> Team {
    var before = 0u;
    var q = PART;
#if GATED
    let q2 = PART + 8u;
#else
    for (var i = 1u; i < p(7u); i++) {
        if (group >= p(q + PART_END)) {
            before = p(q + PART_END);
            q += 8u;
        }
    }
    let q2 = q;
#endif
    let last = p(q + PART_N) - 1u;
    let row = p(0u);
#if SINGLE
    let o = (group - before) * OUTPUTS + team;
    return Team(q, o, array<u32, EACH>(p(q + PART_W) + min(o, last) * row));
#elif GATED
    let o = (group - before) * OUTPUTS + team;
    return Team(q, o, array<u32, EACH>(p(q + PART_W) + min(o, last) * row, p(q2 + PART_W) + min(o, last) * row));
#else
    let o = (group - before) * OUTPUTS + team * 2u;
    return Team(q, o, array<u32, EACH>(p(q + PART_W) + min(o, last) * row, p(q + PART_W) + min(o + 1u, last) * row));
#endif
}

// Sixteen columns of a row, and what a norm multiplies them by.
struct Columns { v: array<vec4<f32>, 4> }

fn columns_of(row: u32, c: u32) -> Columns {
    return Columns(array<vec4<f32>, 4>(wf4(row + c), wf4(row + c + 4u), wf4(row + c + 8u), wf4(row + c + 12u)));
}
fn weights_of(c: u32) -> Columns {
    let at = p(4u) + c;
    return Columns(array<vec4<f32>, 4>(vf4(at), vf4(at + 4u), vf4(at + 8u), vf4(at + 12u)));
}
fn times(x: Columns, w: Columns, root: f32) -> Columns {
    return Columns(array<vec4<f32>, 4>(x.v[0] * (root * w.v[0]), x.v[1] * (root * w.v[1]), x.v[2] * (root * w.v[2]), x.v[3] * (root * w.v[3])));
}

fn squares(x: Columns) -> f32 { return square(x.v[3], square(x.v[2], square(x.v[1], square(x.v[0], 0.0)))); }

#if DOTS
// The largest integer that a column becomes: its upper byte is no more than 127.
const MOST: f32 = 32512.0;

fn largest(v: vec4<f32>) -> f32 {
    let a = abs(v);
    return max(max(a.x, a.y), max(a.z, a.w));
}
fn is_finite(v: vec4<f32>) -> bool { return all((bitcast<vec4<u32>>(v) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u)); }
fn summed(v: vec4<i32>) -> i32 { return (v.x + v.y) + (v.z + v.w); }

// Shares sixteen columns, every other thread the first ones of 32: as integers under a scale of these. What is no finite number makes it none.
fn share(t: u32, i: u32, x: Columns, inside: bool, lid: u32) {
    let finite = is_finite(x.v[0]) && is_finite(x.v[1]) && is_finite(x.v[2]) && is_finite(x.v[3]);
    var most = max(max(largest(x.v[0]), largest(x.v[1])), max(largest(x.v[2]), largest(x.v[3])));
    if (!finite) { most = bitcast<f32>(0x7f000000u); }
    most = max_pair(most, lid);
    if (!inside) { return; }
    let up = select(0.0, MOST / most, most > 1e-30);
    let to = t * ROW_VECS + (i >> 1u) * 5u;
    var sum = 0;
#for j 2
    let a$j = vec4<i32>(round(x.v[2u * $ju] * up));
    let b$j = vec4<i32>(round(x.v[2u * $ju + 1u] * up));
    let high_a$j = (a$j + 128) >> vec4<u32>(8u);
    let high_b$j = (b$j + 128) >> vec4<u32>(8u);
    tile[to + (i & 1u) * 2u + $ju] = vec4<u32>(pack4xI8(high_a$j), pack4xI8(high_b$j), pack4xI8(a$j - (high_a$j << vec4<u32>(8u))), pack4xI8(b$j - (high_b$j << vec4<u32>(8u))));
    sum += summed(a$j) + summed(b$j);
#end
    let scale = select(most / MOST, bitcast<f32>(0x7fc00000u + p(63u) * 0u), most > 1e38);
    tile[to + 4u][i & 1u] = bitcast<u32>(sum);
    if ((i & 1u) == 0u) { tile[to + 4u][2] = bitcast<u32>(scale); }
}
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

// A row's sum with a run of an output: its dots by halves, what of codes is to be taken off, and what they stand for.
fn with_run(sum: f32, dots: vec2<i32>, of_x: vec4<u32>, f: vec2<f32>) -> f32 {
    let x = vec2<i32>(bitcast<i32>(of_x.x), bitcast<i32>(of_x.y));
    let d = bitcast<f32>(of_x.z);
    let own = dots - OFFSET * x;
#if FORMAT == 14
    return fma(f.y * d, f32(own.y), fma(f.x * d, f32(own.x), sum));
#else
    let with_scale = fma(f.x * d, f32(own.x + own.y), sum);
    if (MINS) { return fma(-f.y * d, f32(x.x + x.y), with_scale); }
    return with_scale;
#endif
}
#endif

// Grid: as many workgroups as have something to do, or fewer, which go on then; runs of rows. Those from `MOST_GROUPS` on have nothing to do.
@compute @workgroup_size(THREADS)
fn products(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let strides = min(groups.x, MOST_GROUPS);
    if (wg.x >= strides) { return; }
    let lane = lid & 31u;
    let k = p(3u);
#if GATED
    let all = p(PART + PART_END);
#else
    let all = p(PART + PART_END + 8u * (p(7u) - 1u));
#endif
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
#if SINGLE == 0
            if (own.o + 1u < n) { store(own.q, row, own.o + 1u, y1_$t, added$t.y); }
#endif
#endif
        }
#end
    }
}
