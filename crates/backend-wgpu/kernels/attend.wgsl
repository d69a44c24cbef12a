// Attention over cached keys for queries that share a key head, `GROUP` of them in a workgroup.
//
// The order of all sums follows from absolute positions. A unit is 64 positions from a multiple of 64 on: its scores, their sum over
// 32 threads in pairs, and its mix of values, for which every `PARTS`-th key is summed, then the parts in turn. Units are
// joined in turn to the sum of their span, 16 units from a multiple of 16 on, and spans in turn to the whole. So a row has the same bits
// whether a workgroup takes all its keys, a span or a unit, whatever else is computed.
#include "common.wgsl"
#include "reduce.wgsl"
#include "cache.wgsl"
#include "masks.wgsl"
#include "unit.wgsl"
#if HEADS
#include "turn.wgsl"
#include "store.wgsl"
#endif

const SPAN: u32 = 16u;
// Columns are taken by fours.
const FOURS_K: u32 = DIM_K / 4u;
const FOURS_V: u32 = DIM_V / 4u;
const PARTS: u32 = 128u / FOURS_V;
const QUERIES: u32 = GROUP * FOURS_K;
const MIXES: u32 = GROUP * FOURS_V;
const SCORES: u32 = GROUP * UNIT;
// Eight fours of a key, and one between keys, so that threads read from different banks.
const PITCH: u32 = 9u;

// A thread has `DOTS` queries, `FETCHES` times four fours of keys, and `EACH` fours of what is mixed; `AHEAD` loads of values and of parts are
// under way together.

const BY_UNITS: u32 = 1u;
const BY_SPANS: u32 = 2u;

const ANY: u32 = 1u;
// A score was no number.
const BROKEN: u32 = 2u;

var<workgroup> query: array<vec4<f32>, QUERIES>;
// Heads before their rotation, then keys, then what parts of a mix are.
var<workgroup> tile: array<vec4<f32>, 576>;
var<workgroup> scores: array<f32, SCORES>;
// Of each query: largest score, sum, whether a score was no number.
var<workgroup> of_unit: array<vec4<f32>, GROUP>;
var<workgroup> bounds: vec4<u32>;

#if HEADS
// In the place of a second cache.
const HEADS_AT: u32 = 12u;
const COLUMNS: u32 = 2u * DIM_K;
// Where the key lies in `tile`, behind queries, before its rotation.
const KEY: u32 = GROUP * FOURS_K;

// The row's key and value.
var<workgroup> columns: array<f32, COLUMNS>;

// Norms and rotations of the queries from head `first` on, and of the key and value of the row, which are written to the cache where
// this workgroup reads them. 32 threads for a head, whose sums are those of heads.wgsl.
fn take_heads(row: u32, first: u32, n: u32, kv_head: u32, writes: bool, lid: u32) {
    let lane = lid & 31u;
    let h = lid >> 5u;
    let number = first + min(h, n - 1u);
    let q = four_at(p(A_Q) + (row * p(A_HEADS) + number) * DIM_K, lane, DIM_K);
    let own = four_at(select(p(A_K), p(A_V), h == 1u) + (row * p(A_KV_HEADS) + kv_head) * DIM_K, lane, DIM_K);
    let of_q = norm_weights(DIM_K, OF_QUERIES, number, lane);
    let of_k = norm_weights(DIM_K, OF_KEYS, kv_head, lane);
    let turns = turns_of(row, lane, DIM_K);
    let y = normed(q, of_q, DIM_K, OF_QUERIES, sum_lanes(square(q, 0.0), lid));
    let z = normed(own, of_k, DIM_K, OF_KEYS, sum_lanes(square(own, 0.0), lid));
    let inside = lane < FOURS_K;
    if (inside && h < GROUP) { tile[h * FOURS_K + lane] = y; }
    if (inside && h == 0u) { tile[KEY + lane] = z; }
    workgroupBarrier();
    var query_turned = vec4<f32>();
    var key_turned = vec4<f32>();
    let heads_at = min(h, GROUP - 1u) * FOURS_K;
#for i 4
    let c$i = min(lane * 4u + $iu, DIM_K - 1u);
    let other$i = other_of(c$i);
    query_turned[$i] = turned(y[$i], tile[heads_at + (other$i >> 2u)][other$i & 3u], turns.by[$i], other$i != c$i);
    key_turned[$i] = turned(z[$i], tile[KEY + (other$i >> 2u)][other$i & 3u], turns.by[$i], other$i != c$i);
#end
    if (inside && h < GROUP) { query[h * FOURS_K + lane] = query_turned; }
    if (writes && inside && h < 2u) {
        let x = select(key_turned, own, h == 1u);
#for i 4
        columns[h * DIM_K + lane * 4u + $iu] = x[$i];
#end
    }
    workgroupBarrier();
    if (writes && h < 2u) {
        let at = place(0u, seq_slot(row_seq(row)), place_of_row(row));
        if (at.block != NONE) { store_columns(select(4u, 8u, h == 1u), at, kv_head * DIM_K, DIM_K, h * DIM_K, lane, 32u); }
    }
    if (writes) { storageBarrier(); }
}
#endif

// Sums over keys: of exponents less the largest score, and of values times them.
struct Sum {
    most: f32,
    sum: f32,
    flags: u32,
    mix: vec4<f32>,
}

fn nothing() -> Sum { return Sum(-inf(), 0.0, 0u, vec4<f32>()); }

fn joined(a: Sum, b: Sum) -> Sum {
    let next = max(a.most, b.most);
    let keep = select(exp(a.most - next), 0.0, a.most == -inf());
    let take = select(exp(b.most - next), 0.0, b.most == -inf());
    return Sum(next, fma(b.sum, take, a.sum * keep), a.flags | b.flags, fma(b.mix, vec4<f32>(take), a.mix * keep));
}

fn with_sink(head: u32) -> Sum {
    var sum = nothing();
    if (p(A_SINKS) != NONE) {
        sum.most = vf(p(A_SINKS) + head);
        sum.sum = 1.0;
    }
    return sum;
}

fn store_mix(row: u32, head: u32, four: u32, s: Sum) {
    let at = p(A_OUT) + (row * p(A_HEADS) + head) * DIM_V + four * 4u;
    let inverse = select(1.0 / s.sum, 0.0, s.sum == 0.0);
    if ((s.flags & BROKEN) != 0u || ((s.flags & ANY) != 0u && s.most == -inf())) {
        set_wu4(at, vec4<u32>(0x7fffffffu));
    } else {
        set_wu4(at, bitcast<vec4<u32>>(s.mix * inverse));
    }
}

// Parts of a row's keys that are computed by different workgroups.
fn parts_of_row() -> u32 {
    if (p(A_PARTS) != 0u) { return p(A_PARTS); }
    let positions = select(UNIT, UNIT * SPAN, p(A_SPLIT) == BY_SPANS);
    return (state[s(S_HEAD) + 3u] + positions - 1u) / positions;
}

// What a part of a row's keys leaves: four words, and its mix.
fn partial_at(row: u32, head: u32, part: u32) -> u32 {
    return p(A_PARTIAL) + ((row * p(A_HEADS) + head) * parts_of_row() + part) * (DIM_V + 4u);
}

// A row's first key and the one after its last; whether it is there, and whether it is live.
fn bounds_of(row: u32) -> vec4<u32> {
    if (row >= rows_of(LEAD_ROWS)) { return vec4<u32>(); }
#if REPLIES
    if ((row_flags(row) & ROW_PROMPT) != 0u) { return vec4<u32>(); }
#endif
    if ((row_flags(row) & ROW_LIVE) == 0u) { return vec4<u32>(0u, 0u, 1u, 0u); }
    return vec4<u32>(seen_range(row), 1u, 1u);
}

// Grid: key heads times runs of `GROUP` of their queries, rows, parts of a row.
@compute @workgroup_size(128)
fn attend(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let row = wg.y;
    let per_key = p(A_HEADS) / p(A_KV_HEADS);
    let runs = (per_key + GROUP - 1u) / GROUP;
    let kv_head = wg.x / runs;
    let first = kv_head * per_key + wg.x % runs * GROUP;
    let n = min(GROUP, per_key - wg.x % runs * GROUP);
    if (lid == 0u) { bounds = bounds_of(row); }
    let bound = workgroupUniformLoad(&bounds);
    if (bound.z == 0u) { return; }
    var u = bound.x / UNIT;
    var end = (bound.y + UNIT - 1u) / UNIT;
    if (p(A_SPLIT) != 0u) {
        let units = select(1u, SPAN, p(A_SPLIT) == BY_SPANS);
        u = max(u, wg.z * units);
        end = min(end, (wg.z + 1u) * units);
        if (u >= end) { return; }
    }
    let seq = row_seq(row);
    let pos = place_of_row(row);
#if HEADS
    if (bound.w != 0u) { take_heads(row, first, n, kv_head, bound.y <= end * UNIT, lid); }
#else
    for (var i = lid; i < QUERIES; i += 128u) {
        var q = vec4<f32>();
        if (i / FOURS_K < n) { q = wf4(p(A_Q) + (row * p(A_HEADS) + first) * DIM_K + i * 4u); }
        query[i] = q;
    }
#endif
    let j = lid & 63u;
    let part = lid / FOURS_V;
    let four = lid % FOURS_V;
#for i EACH
    var total$i = with_sink(min(first + (lid + $iu * 128u) / FOURS_V, p(A_HEADS) - 1u));
    var span$i = nothing();
#end
    for (; u < end; u++) {
        workgroupBarrier();
        find_keys(u, bound.x, bound.y, seq_slot(seq), lid);
        workgroupBarrier();
        // Dot products with key lid % 64 of the unit: of queries from (lid / 64) * DOTS on, or of half of the columns of the only one. A thread
        // fetches four keys of every eight fours, and everything is under way before any of it is used.
#for t FETCHES
#for f 4
        let fetched$t_$f = four_of(4u, (lid >> 3u) + $fu * 16u, kv_head * DIM_K + min($tu * 8u + (lid & 7u), FOURS_K - 1u) * 4u);
#end
#end
#for m DOTS
        var dot$m = 0.0;
#end
        let key = j * PITCH;
#for t FETCHES
        workgroupBarrier();
#for f 4
        tile[((lid >> 3u) + $fu * 16u) * PITCH + (lid & 7u)] = fetched$t_$f;
#end
        workgroupBarrier();
#if GROUP == 1
        let from$t = (lid >> 6u) * 4u;
        let to$t = min(from$t + 4u, FOURS_K - $tu * 8u);
#else
        let from$t = 0u;
        let to$t = min(8u, FOURS_K - $tu * 8u);
#endif
        for (var c = from$t; c < to$t; c++) {
            let x = tile[key + c];
#for m DOTS
#if GROUP == 1
            let q$m = query[$tu * 8u + c];
#else
            let q$m = query[((lid >> 6u) * DOTS + $mu) * FOURS_K + $tu * 8u + c];
#endif
            dot$m = fma(q$m.w, x.w, fma(q$m.z, x.z, fma(q$m.y, x.y, fma(q$m.x, x.x, dot$m))));
#end
        }
#end
#if GROUP == 1
        lanes[lid] = dot0;
        workgroupBarrier();
        dot0 = lanes[j] + lanes[j + 64u];
#endif
#for m DOTS
#if GROUP == 1
        let g$m = 0u;
#else
        let g$m = (lid >> 6u) * DOTS + $mu;
#endif
        let score$m = score_of(dot$m, min(first + g$m, p(A_HEADS) - 1u), u * UNIT + j, pos);
        if (GROUP > 1u || lid < UNIT) { scores[g$m * UNIT + j] = select(score$m, -inf(), key_block[j] == NONE); }
#end
        workgroupBarrier();
        // 32 threads for each query.
        let g = lid >> 5u;
        var a = 0.0;
        var b = 0.0;
        if (g < GROUP) {
            a = scores[g * UNIT + (lid & 31u)];
            b = scores[g * UNIT + (lid & 31u) + 32u];
        }
        let most = max_lanes(max(a, b), lid);
        let broken = max_lanes(select(0.0, 1.0, is_nan(a) || is_nan(b)), lid);
        let e = select(exp(a - most), 0.0, a == -inf());
        let f = select(exp(b - most), 0.0, b == -inf());
        let sum = sum_lanes(e + f, lid);
        if (g < GROUP) {
            scores[g * UNIT + (lid & 31u)] = e;
            scores[g * UNIT + (lid & 31u) + 32u] = f;
            if ((lid & 31u) == 0u) { of_unit[g] = vec4<f32>(most, sum, broken, 0.0); }
        }
        workgroupBarrier();
        if (part < PARTS) {
#for h GROUP
            var mix$h = vec4<f32>();
#end
            for (var k = part; k < UNIT; k += PARTS * AHEAD) {
#for i AHEAD
                let value$i = four_of(8u, min(k + $iu * PARTS, UNIT - 1u), kv_head * p(A_STRIDE_V) + four * 4u);
#end
#for i AHEAD
                if (k + $iu * PARTS < UNIT) {
#for h GROUP
                    mix$h = fma(vec4<f32>(scores[$hu * UNIT + k + $iu * PARTS]), value$i, mix$h);
#end
                }
#end
            }
#for h GROUP
            tile[($hu * PARTS + part) * FOURS_V + four] = mix$h;
#end
        }
        workgroupBarrier();
#for i EACH
        let at$i = lid + $iu * 128u;
        if (at$i < MIXES) {
            let parts = at$i / FOURS_V * PARTS * FOURS_V + at$i % FOURS_V;
            var mix = tile[parts];
            for (var q = 1u; q < PARTS; q++) { mix += tile[parts + q * FOURS_V]; }
            let found = of_unit[at$i / FOURS_V];
            if (u % SPAN == 0u) {
                total$i = joined(total$i, span$i);
                span$i = nothing();
            }
            span$i = joined(span$i, Sum(found.x, found.y, select(ANY, ANY | BROKEN, found.z > 0.0), mix));
        }
#end
    }
#for i EACH
    let mine$i = lid + $iu * 128u;
    if (mine$i < n * FOURS_V) {
        let head = first + mine$i / FOURS_V;
        if (p(A_SPLIT) == 0u) {
            store_mix(row, head, mine$i % FOURS_V, joined(total$i, span$i));
        } else {
            let to = partial_at(row, head, wg.z);
            if (mine$i % FOURS_V == 0u) { set_wu4(to, vec4<u32>(bitcast<u32>(span$i.most), bitcast<u32>(span$i.sum), span$i.flags, 0u)); }
            set_wu4(to + 4u + mine$i % FOURS_V * 4u, bitcast<vec4<u32>>(span$i.mix));
        }
    }
#end
}

// What parts of a row's keys left: a workgroup for each head (x) of each row (y), a thread for four columns.
@compute @workgroup_size(64)
fn merge(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let bound = bounds_of(wg.y);
    if (bound.z == 0u || lid >= FOURS_V) { return; }
    var total = with_sink(wg.x);
    var span = nothing();
    let spans = p(A_SPLIT) == BY_SPANS;
    let positions = select(UNIT, UNIT * SPAN, spans);
    let first = partial_at(wg.y, wg.x, 0u);
    let end = (bound.y + positions - 1u) / positions;
    for (var part = bound.x / positions; part < end; part += AHEAD) {
#for i AHEAD
        let at$i = first + min(part + $iu, end - 1u) * (DIM_V + 4u);
        let head$i = wu4(at$i);
        let mix$i = wu4(at$i + 4u + lid * 4u);
#end
#for i AHEAD
        if (part + $iu < end) {
            if (spans || (part + $iu) % SPAN == 0u) {
                total = joined(total, span);
                span = nothing();
            }
            span = joined(span, Sum(bitcast<f32>(head$i.x), bitcast<f32>(head$i.y), head$i.z, bitcast<vec4<f32>>(mix$i)));
        }
#end
    }
    store_mix(wg.y, wg.x, lid, joined(total, span));
}
