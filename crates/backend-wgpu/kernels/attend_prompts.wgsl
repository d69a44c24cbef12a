// Attention of rows of prompts over cached keys: a workgroup for 32 queries, of `GROUP` heads that share a key head in 32 / GROUP rows.
//
// The order of all sums follows from absolute positions: units of 64 in turn. A score's products are summed column after column; a
// unit's exponents, less the largest score so far, in four parts; its values key after key, and then with what earlier units left. So a
// row has the same bits whichever rows are beside it.
#include "common.wgsl"
#include "cache.wgsl"
#include "masks.wgsl"
#include "unit.wgsl"

const THREADS: u32 = 256u;
const QUERIES: u32 = 32u;
const ROWS_OF_TILE: u32 = QUERIES / GROUP;
// Columns are taken by fours.
const FOURS_K: u32 = DIM_K / 4u;
const FOURS_V: u32 = DIM_V / 4u;
// Of a thread: queries `APART` apart, of which 16 threads share each, and fours of values 16 apart.
const APART: u32 = THREADS / 16u;
const EACH: u32 = QUERIES / APART;
// Threads that share the exponents of a query, of which each has so many fours.
const SHARERS: u32 = THREADS / QUERIES;
const FOURS_OF_SHARER: u32 = UNIT / 4u / SHARERS;
const FOURS_EACH: u32 = (FOURS_V + 15u) / 16u;
const MIXES: u32 = EACH * FOURS_EACH;
// Fours of a key and a query at a time, and one between keys, so that threads read from different banks.
const STEP: u32 = 8u;
const PITCH: u32 = STEP + 1u;
// Fours of scores from a query to the next.
const SCORES_PITCH: u32 = UNIT / 4u + 1u;
// Values at a time.
const VALUES: u32 = select(select(4u, 8u, FOURS_V <= 32u), 16u, FOURS_V <= 16u);
const KEY_FETCHES: u32 = UNIT * STEP / THREADS;
const QUERY_FETCHES: u32 = QUERIES * STEP / THREADS;
const VALUE_FETCHES: u32 = (VALUES * FOURS_V + THREADS - 1u) / THREADS;

// Keys, then scores.
var<workgroup> tile: array<vec4<f32>, UNIT * PITCH>;
// Queries, then values.
var<workgroup> side: array<vec4<f32>, max(QUERIES * PITCH, VALUES * FOURS_V)>;
// Of each row: first key and the one after its last, position, whether it is stored.
var<workgroup> row_keys: array<vec4<u32>, ROWS_OF_TILE>;
// Of each query's sharers: largest score, then sum.
var<workgroup> parts: array<f32, THREADS>;
// What is left of the sums of earlier units; at the end what sums are multiplied by.
var<workgroup> factors: array<f32, QUERIES>;
// Rows of one sequence: their first key and the one after their last, its slot, the row after.
var<workgroup> run_of_rows: vec4<u32>;
// Whether a value of the unit is infinite or no number.
var<workgroup> odd: atomic<u32>;

// Keys of the rows of a tile.
fn take_rows(first: u32, lid: u32) {
    if (lid >= ROWS_OF_TILE) { return; }
    let row = first + lid;
    var keys = vec4<u32>();
    if (row < rows_of(LEAD_ROWS) && (row_flags(row) & ROW_PROMPT) != 0u) {
        keys.w = 1u;
        if ((row_flags(row) & ROW_LIVE) != 0u) { keys = vec4<u32>(seen_range(row), place_of_row(row), 1u); }
    }
    row_keys[lid] = keys;
}

// From a row of the tile on: those of its sequence. Rows that are not stored have no keys.
fn run_from(first: u32, start: u32) -> vec4<u32> {
    let rows = rows_of(LEAD_ROWS);
    if (first + start >= rows) { return vec4<u32>(0u, 0u, 0u, ROWS_OF_TILE); }
    let end = min(ROWS_OF_TILE, rows - first);
    let seq = row_seq(first + start);
    var low = NONE;
    var high = 0u;
    var r = start;
    for (; r < end; r++) {
        if (row_seq(first + r) != seq) { break; }
        let keys = row_keys[r];
        if (keys.y > keys.x) {
            low = min(low, keys.x);
            high = max(high, keys.y);
        }
    }
    return vec4<u32>(min(low, high), high, seq_slot(seq), select(r, ROWS_OF_TILE, r == end));
}

// What a thread fetches: fours of keys of the unit and of queries from four `c` on, zeros behind the last, and of values from key `first` on.
fn keys_of(lid: u32, c: u32, kv_head: u32) -> array<vec4<f32>, KEY_FETCHES> {
    let four = c + lid % STEP;
    var keys: array<vec4<f32>, KEY_FETCHES>;
    for (var i = 0u; i < KEY_FETCHES; i++) {
        let x = four_of(4u, lid / STEP + i * (THREADS / STEP), kv_head * DIM_K + min(four, FOURS_K - 1u) * 4u);
        keys[i] = select(vec4<f32>(), x, four < FOURS_K);
    }
    return keys;
}

fn queries_of(lid: u32, c: u32, first: u32, first_head: u32) -> array<vec4<f32>, QUERY_FETCHES> {
    let four = c + lid % STEP;
    var queries: array<vec4<f32>, QUERY_FETCHES>;
    for (var i = 0u; i < QUERY_FETCHES; i++) {
        let m = lid / STEP + i * (THREADS / STEP);
        let row = min(first + m / GROUP, rows_of(LEAD_ROWS) - 1u);
        let head = min(first_head + m % GROUP, p(A_HEADS) - 1u);
        let x = wf4(p(A_Q) + (row * p(A_HEADS) + head) * DIM_K + min(four, FOURS_K - 1u) * 4u);
        queries[i] = select(vec4<f32>(), x, four < FOURS_K);
    }
    return queries;
}

fn values_of(lid: u32, first: u32, kv_head: u32) -> array<vec4<f32>, VALUE_FETCHES> {
    var values: array<vec4<f32>, VALUE_FETCHES>;
    for (var i = 0u; i < VALUE_FETCHES; i++) {
        let at = min(lid + i * THREADS, VALUES * FOURS_V - 1u);
        values[i] = four_of(8u, first + at / FOURS_V, kv_head * p(A_STRIDE_V) + at % FOURS_V * 4u);
    }
    return values;
}

fn is_odd(x: vec4<f32>) -> bool {
    return any((bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u));
}

fn dot4(q: vec4<f32>, k: vec4<f32>, sum: f32) -> f32 { return fma(q.w, k.w, fma(q.z, k.z, fma(q.y, k.y, fma(q.x, k.x, sum)))); }

// Grid: key heads times runs of `GROUP` of their queries, tiles of rows.
@compute @workgroup_size(THREADS)
fn attend_prompts(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // Those of most keys first.
    let first = (groups.y - 1u - wg.y) * ROWS_OF_TILE;
    let per_key = p(A_HEADS) / p(A_KV_HEADS);
    let runs = (per_key + GROUP - 1u) / GROUP;
    let kv_head = wg.x / runs;
    let first_head = kv_head * per_key + wg.x % runs * GROUP;
    let heads = min(GROUP, per_key - wg.x % runs * GROUP);
    take_rows(first, lid);
    let lane = lid & 15u;
    let own = lid >> 4u;
    // Where this thread fetches from: a four of a key and of a query.
    let four = lid & (STEP - 1u);
    let fetcher = lid / STEP;
    let query = lid / SHARERS;
    let part = lid % SHARERS;
    let of_query = lid - part;
    var most = -inf();
    var sum = 0.0;
    if (p(A_SINKS) != NONE) {
        most = vf(p(A_SINKS) + min(first_head + query % GROUP, p(A_HEADS) - 1u));
        sum = 1.0;
    }
    var broken = false;
    var total: array<vec4<f32>, MIXES>;
    for (var i = 0u; i < MIXES; i++) { total[i] = vec4<f32>(); }
    workgroupBarrier();
    var start = 0u;
    while (start < ROWS_OF_TILE) {
        if (lid == 0u) { run_of_rows = run_from(first, start); }
        let run = workgroupUniformLoad(&run_of_rows);
        var seen: array<vec2<u32>, EACH>;
        for (var i = 0u; i < EACH; i++) {
            let r = (own + i * APART) / GROUP;
            seen[i] = select(vec2<u32>(), row_keys[r].xy, r >= start && r < run.w);
        }
        for (var u = run.x / UNIT; u * UNIT < run.y; u++) {
            workgroupBarrier();
            find_keys(u, run.x, run.y, run.z, lid);
            if (lid == 0u) { atomicStore(&odd, 0u); }
            workgroupBarrier();
            // Scores of four keys of four queries.
            var score: array<vec4<f32>, EACH>;
            for (var i = 0u; i < EACH; i++) { score[i] = vec4<f32>(); }
            // What is multiplied next is on its way.
            var keys = keys_of(lid, 0u, kv_head);
            var queries = queries_of(lid, 0u, first, first_head);
            var values: array<vec4<f32>, VALUE_FETCHES>;
            for (var c = 0u; c < FOURS_K; c += STEP) {
                workgroupBarrier();
                // Keys of one thread lie 16 apart.
                for (var i = 0u; i < KEY_FETCHES; i++) {
                    let j = fetcher + i * (THREADS / STEP);
                    tile[((j & 3u) * 16u + (j >> 2u)) * PITCH + four] = keys[i];
                }
                for (var i = 0u; i < QUERY_FETCHES; i++) { side[(fetcher + i * (THREADS / STEP)) * PITCH + four] = queries[i]; }
                workgroupBarrier();
                if (c + STEP < FOURS_K) {
                    keys = keys_of(lid, c + STEP, kv_head);
                    queries = queries_of(lid, c + STEP, first, first_head);
                } else {
                    values = values_of(lid, 0u, kv_head);
                }
                for (var f = 0u; f < STEP; f++) {
                    let k0 = tile[lane * PITCH + f];
                    let k1 = tile[(lane + 16u) * PITCH + f];
                    let k2 = tile[(lane + 32u) * PITCH + f];
                    let k3 = tile[(lane + 48u) * PITCH + f];
                    for (var i = 0u; i < EACH; i++) {
                        let q = side[(own + i * APART) * PITCH + f];
                        let s = score[i];
                        score[i] = vec4<f32>(dot4(q, k0, s.x), dot4(q, k1, s.y), dot4(q, k2, s.z), dot4(q, k3, s.w));
                    }
                }
            }
            workgroupBarrier();
            for (var i = 0u; i < EACH; i++) {
                let m = own + i * APART;
                let head = min(first_head + m % GROUP, p(A_HEADS) - 1u);
                let pos = row_keys[m / GROUP].z;
                let k = u * UNIT + lane * 4u;
                var s = score[i];
                s = vec4<f32>(score_of(s.x, head, k, pos), score_of(s.y, head, k + 1u, pos), score_of(s.z, head, k + 2u, pos), score_of(s.w, head, k + 3u, pos));
                let at = vec4<u32>(k, k + 1u, k + 2u, k + 3u);
                let blocks = vec4<u32>(key_block[lane * 4u], key_block[lane * 4u + 1u], key_block[lane * 4u + 2u], key_block[lane * 4u + 3u]);
                let shown = (at >= vec4<u32>(seen[i].x)) & (at < vec4<u32>(seen[i].y)) & (blocks != vec4<u32>(NONE));
                tile[m * SCORES_PITCH + lane] = select(vec4<f32>(-inf()), s, shown);
            }
            workgroupBarrier();
            // Exponents.
            let at_scores = query * SCORES_PITCH + part;
            var e: array<vec4<f32>, FOURS_OF_SHARER>;
            var larger = vec4<f32>(-inf());
            for (var i = 0u; i < FOURS_OF_SHARER; i++) {
                e[i] = tile[at_scores + i * SHARERS];
                larger = max(larger, e[i]);
                broken = broken || any((bitcast<vec4<u32>>(e[i]) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u));
            }
            parts[lid] = max(max(larger.x, larger.y), max(larger.z, larger.w));
            workgroupBarrier();
            var next = most;
            for (var i = 0u; i < SHARERS; i++) { next = max(next, parts[of_query + i]); }
            let keep = select(exp(most - next), 1.0, most == next);
            most = next;
            for (var i = 0u; i < FOURS_OF_SHARER; i++) {
                e[i] = select(exp(e[i] - vec4<f32>(next)), vec4<f32>(), e[i] == vec4<f32>(-inf()));
                tile[at_scores + i * SHARERS] = e[i];
            }
            var four_sums = e[0];
            for (var i = 1u; i < FOURS_OF_SHARER; i++) { four_sums += e[i]; }
            workgroupBarrier();
            parts[lid] = (four_sums.x + four_sums.y) + (four_sums.z + four_sums.w);
            if (part == 0u) { factors[query] = keep; }
            var mix: array<vec4<f32>, MIXES>;
            for (var i = 0u; i < MIXES; i++) { mix[i] = vec4<f32>(); }
            for (var j = 0u; j < UNIT; j += VALUES) {
                // What was put there is read.
                workgroupBarrier();
                for (var i = 0u; i < VALUE_FETCHES; i++) {
                    let at = lid + i * THREADS;
                    if (at < VALUES * FOURS_V) { side[at] = values[i]; }
                    if (is_odd(values[i])) { atomicStore(&odd, 1u); }
                }
                workgroupBarrier();
                values = values_of(lid, min(j + VALUES, UNIT - VALUES), kv_head);
                if (atomicLoad(&odd) != 0u) {
                    // Values that a row does not see are no part of its sums, whatever they are.
                    for (var i = 0u; i < VALUES; i++) {
                        let k = u * UNIT + j + i;
                        for (var m = 0u; m < EACH; m++) {
                            if (k < seen[m].x || k >= seen[m].y) { continue; }
                            let w = tile[(own + m * APART) * SCORES_PITCH + (j + i) / 4u][(j + i) & 3u];
                            for (var n = 0u; n < FOURS_EACH; n++) {
                                let v = side[i * FOURS_V + min(lane + n * 16u, FOURS_V - 1u)];
                                mix[m * FOURS_EACH + n] = fma(vec4<f32>(w), v, mix[m * FOURS_EACH + n]);
                            }
                        }
                    }
                } else {
                    for (var i = 0u; i < VALUES; i += 4u) {
                        var w: array<vec4<f32>, EACH>;
                        for (var m = 0u; m < EACH; m++) { w[m] = tile[(own + m * APART) * SCORES_PITCH + (j + i) / 4u]; }
                        for (var n = 0u; n < FOURS_EACH; n++) {
                            let at = i * FOURS_V + min(lane + n * 16u, FOURS_V - 1u);
                            let v0 = side[at];
                            let v1 = side[at + FOURS_V];
                            let v2 = side[at + 2u * FOURS_V];
                            let v3 = side[at + 3u * FOURS_V];
                            for (var m = 0u; m < EACH; m++) {
                                let x = fma(vec4<f32>(w[m].y), v1, fma(vec4<f32>(w[m].x), v0, mix[m * FOURS_EACH + n]));
                                mix[m * FOURS_EACH + n] = fma(vec4<f32>(w[m].w), v3, fma(vec4<f32>(w[m].z), v2, x));
                            }
                        }
                    }
                }
            }
            var unit_sum = 0.0;
            for (var i = 0u; i < SHARERS; i++) { unit_sum += parts[of_query + i]; }
            sum = fma(sum, keep, unit_sum);
            for (var m = 0u; m < EACH; m++) {
                let kept = vec4<f32>(factors[own + m * APART]);
                for (var n = 0u; n < FOURS_EACH; n++) { total[m * FOURS_EACH + n] = fma(total[m * FOURS_EACH + n], kept, mix[m * FOURS_EACH + n]); }
            }
        }
        start = run.w;
    }
    // The factor of a query's sums: no number where a score was none, or all were −∞.
    workgroupBarrier();
    parts[lid] = select(0.0, 1.0, broken);
    workgroupBarrier();
    if (part == 0u) {
        let keys = row_keys[query / GROUP];
        var odds = 0.0;
        for (var i = 0u; i < SHARERS; i++) { odds += parts[lid + i]; }
        var factor = select(1.0 / sum, 0.0, sum == 0.0);
        if (odds > 0.0 || (keys.y > keys.x && most == -inf())) { factor = -1.0; }
        factors[query] = factor;
    }
    workgroupBarrier();
    for (var m = 0u; m < EACH; m++) {
        let q = own + m * APART;
        if (row_keys[q / GROUP].w == 0u || q % GROUP >= heads) { continue; }
        let to = p(A_OUT) + ((first + q / GROUP) * p(A_HEADS) + first_head + q % GROUP) * DIM_V;
        for (var n = 0u; n < FOURS_EACH; n++) {
            let at = lane + n * 16u;
            if (at >= FOURS_V) { continue; }
            let x = bitcast<vec4<u32>>(total[m * FOURS_EACH + n] * factors[q]);
            set_wu4(to + at * 4u, select(x, vec4<u32>(0x7fffffffu), factors[q] == -1.0));
        }
    }
}
