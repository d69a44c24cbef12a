// Products of one value by weights of one format, for rows of replies: with the norm before them, and with the gate or the sum
// behind them.
//
// 32 threads compute two outputs of `ROWS` rows, or one: thread l takes the runs of `COLUMNS` columns l, l + 32, …, every fourth
// column of a run is summed, and those four in pairs, then the runs, and threads in pairs as in `matmul.wgsl`. So the order of a row's sum
// follows from the number of columns alone.
#include "common.wgsl"
#include "reduce.wgsl"
#include "halves.wgsl"
#if WEIGHTS_VEC4
#include "formats_wide.wgsl"
#else
#include "formats.wgsl"
const GROUPS: u32 = BLOCK / 8u;
const COLUMNS: u32 = 8u;
#endif
#include "activations.wgsl"

// Teams of 32 threads, and outputs of a workgroup.
const TEAMS: u32 = THREADS / 32u;
#if GATED || SINGLE
const OUTPUTS: u32 = TEAMS;
#else
const OUTPUTS: u32 = TEAMS * 2u;
#endif

// Columns that are shared at a time, as vectors with one between every 32 columns, so that threads read from different banks; and the
// sums of every 16.
const ROW_VECS: u32 = CHUNK / 32u * 9u;
const ROW_SUMS: u32 = CHUNK / 16u;
const TILE_VECS: u32 = ROWS * ROW_VECS;
const TILE_SUMS: u32 = ROWS * ROW_SUMS;
var<workgroup> tile: array<vec4<f32>, TILE_VECS>;
#if WEIGHTS_VEC4
var<workgroup> sums: array<f32, TILE_SUMS>;
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

fn is_reply(row: u32) -> bool { return (row_flags(step_row(p(2u), row)) & ROW_PROMPT) == 0u; }

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

// Where the outputs of 32 threads lie: their part, the first of them, and two rows of weights.
struct Team { q: u32, o: u32, w: u32, w2: u32 }

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
#if GATED || SINGLE
    let o = (group - before) * OUTPUTS + team;
    return Team(q, o, p(q + PART_W) + min(o, last) * p(0u), p(q2 + PART_W) + min(o, last) * p(0u));
#else
    let o = (group - before) * OUTPUTS + team * 2u;
    return Team(q, o, p(q + PART_W) + min(o, last) * p(0u), p(q + PART_W) + min(o + 1u, last) * p(0u));
#endif
}

// Shares columns of the rows from `row` on, `last` of them at most.
fn share(begin: u32, k: u32, first: u32, last: u32, root: array<f32, ROWS>, lid: u32) {
    let columns = min(k - begin, CHUNK);
    for (var t = 0u; t < ROWS; t++) {
        let row = p(1u) + row_of(first, t, last) * k + begin;
        for (var i = lid; i * 16u < columns; i += THREADS) {
            let at = row + i * 16u;
            var v = array<vec4<f32>, 4>(wf4(at), wf4(at + 4u), wf4(at + 8u), wf4(at + 12u));
#if NORMED
            let scale = p(4u) + begin + i * 16u;
            v[0] *= root[t] * vf4(scale);
            v[1] *= root[t] * vf4(scale + 4u);
            v[2] *= root[t] * vf4(scale + 8u);
            v[3] *= root[t] * vf4(scale + 12u);
#endif
            let to = t * ROW_VECS + (i >> 1u) * 9u + (i & 1u) * 4u;
            tile[to] = v[0];
            tile[to + 1u] = v[1];
            tile[to + 2u] = v[2];
            tile[to + 3u] = v[3];
#if WEIGHTS_VEC4
            if (MINS) { sums[t * ROW_SUMS + i] = folded((v[0] + v[1]) + (v[2] + v[3])); }
#endif
        }
    }
    workgroupBarrier();
}

// Grid: as many workgroups as have something to do, or fewer, which go on then; runs of rows.
@compute @workgroup_size(THREADS)
fn products(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
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
    var next = raw_of(team.w >> 2u, min(lane, runs - 1u));
#if SINGLE == 0
    var next2 = raw_of(team.w2 >> 2u, min(lane, runs - 1u));
#endif
#endif
    let count = rows_of(p(2u));
    let first = wg.y * ROWS;
    let last = max(min(count, first + ROWS), 1u) - 1u;
    var wanted: array<bool, ROWS>;
    for (var t = 0u; t < ROWS; t++) { wanted[t] = first + t < count && is_reply(row_of(first, t, last)); }
    // The reciprocal of each row's root mean square.
    var root: array<f32, ROWS>;
#if NORMED
    for (var t = 0u; t < ROWS; t++) {
        let row = p(1u) + row_of(first, t, last) * k;
        var squares = 0.0;
        for (var c = lid * 4u; c < k; c += THREADS * 4u) {
            let v = wf4(row + c);
            squares = fma(v.x, v.x, squares);
            squares = fma(v.y, v.y, squares);
            squares = fma(v.z, v.z, squares);
            squares = fma(v.w, v.w, squares);
        }
        root[t] = 1.0 / sqrt(sum_block(squares, lid) / f32(k) + pf(5u));
    }
#endif
    if (k <= CHUNK) { share(0u, k, first, last, root, lid); }
    for (var group = wg.x; group < all; group += groups.x) {
        let own = team;
        let n = p(own.q + PART_N);
        if (group + groups.x < all) { team = team_of(group + groups.x, lid >> 5u); }
        var added: array<vec2<f32>, ROWS>;
        var sum: array<f32, ROWS>;
        var sum2: array<f32, ROWS>;
        for (var t = 0u; t < ROWS; t++) {
            added[t] = vec2<f32>();
            if (p(6u) != NONE) {
                let at = p(6u) + row_of(first, t, last) * n;
                added[t] = vec2<f32>(wf(at + min(own.o, n - 1u)), wf(at + min(own.o + 1u, n - 1u)));
            }
            sum[t] = 0.0;
            sum2[t] = 0.0;
        }
        for (var begin = 0u; begin < k; begin += CHUNK) {
            let columns = min(k - begin, CHUNK);
            if (k > CHUNK) {
                workgroupBarrier();
                share(begin, k, first, last, root, lid);
            }
            for (var g = lane; g * COLUMNS < columns; g += 32u) {
#if WEIGHTS_VEC4
                let here = begin / COLUMNS + g;
                // The next run of this row, or the first one of the next row.
                let goes_on = here + 32u < runs;
                let then = select(lane, here + 32u, goes_on);
                let r = next;
                next = raw_of(select(team.w, own.w, goes_on) >> 2u, min(then, runs - 1u));
                let f = factors(r, here);
#if SINGLE == 0
                let r2 = next2;
                next2 = raw_of(select(team.w2, own.w2, goes_on) >> 2u, min(then, runs - 1u));
                let f2 = factors(r2, here);
#endif
                var part: array<vec4<f32>, ROWS>;
                var part2: array<vec4<f32>, ROWS>;
                for (var t = 0u; t < ROWS; t++) {
                    part[t] = vec4<f32>();
                    part2[t] = vec4<f32>();
                }
                for (var j = 0u; j < 4u; j++) {
                    let v = codes_of(r, j);
#if SINGLE == 0
                    let v2 = codes_of(r2, j);
#endif
                    for (var t = 0u; t < ROWS; t++) {
                        let at = t * ROW_VECS + g * 9u + 2u * j;
                        let xa = tile[at];
                        let xb = tile[at + 1u];
                        part[t] = fma(v.b, xb, fma(v.a, xa, part[t]));
#if SINGLE == 0
                        part2[t] = fma(v2.b, xb, fma(v2.a, xa, part2[t]));
#endif
                    }
#if FORMAT == 14
                    if (j == 1u) {
                        for (var t = 0u; t < ROWS; t++) {
                            sum[t] = fma(f.x, folded(part[t]), sum[t]);
                            part[t] = vec4<f32>();
#if SINGLE == 0
                            sum2[t] = fma(f2.x, folded(part2[t]), sum2[t]);
                            part2[t] = vec4<f32>();
#endif
                        }
                    }
#endif
                }
                for (var t = 0u; t < ROWS; t++) {
#if FORMAT == 14
                    sum[t] = fma(f.y, folded(part[t]), sum[t]);
#if SINGLE == 0
                    sum2[t] = fma(f2.y, folded(part2[t]), sum2[t]);
#endif
#else
                    sum[t] = fma(f.x, folded(part[t]), sum[t]);
#if SINGLE == 0
                    sum2[t] = fma(f2.x, folded(part2[t]), sum2[t]);
#endif
                    if (MINS) {
                        let of_x = sums[t * ROW_SUMS + 2u * g] + sums[t * ROW_SUMS + 2u * g + 1u];
                        sum[t] = fma(-f.y, of_x, sum[t]);
#if SINGLE == 0
                        sum2[t] = fma(-f2.y, of_x, sum2[t]);
#endif
                    }
#endif
                }
#else
                let at = begin / 8u + g;
                let v = load8(own.w + at / GROUPS * BLOCK_WORDS, at % GROUPS);
#if SINGLE == 0
                let v2 = load8(own.w2 + at / GROUPS * BLOCK_WORDS, at % GROUPS);
#endif
                for (var t = 0u; t < ROWS; t++) {
                    let from_x = t * ROW_VECS + (g >> 2u) * 9u + (g & 3u) * 2u;
                    let xa = tile[from_x];
                    let xb = tile[from_x + 1u];
                    sum[t] += folded(fma(v.b, xb, v.a * xa));
#if SINGLE == 0
                    sum2[t] += folded(fma(v2.b, xb, v2.a * xa));
#endif
                }
#endif
            }
        }
        for (var t = 0u; t < ROWS; t++) {
            let y = sum_lanes(sum[t], lid);
#if SINGLE == 0
            let y2 = sum_lanes(sum2[t], lid);
#endif
            let row = first + t;
            if (lane == 0u && wanted[t] && own.o < n) {
#if GATED
                set_wf(p(own.q + PART_Y) + row * n + own.o, gated(8u, output(own.q, own.o, y), output(PART + 8u, own.o, y2)));
#else
                store(own.q, row, own.o, y, added[t].x);
#if SINGLE == 0
                if (own.o + 1u < n) { store(own.q, row, own.o + 1u, y2, added[t].y); }
#endif
#endif
            }
        }
    }
}
