// Cache writes, attention with every extra that the programs know, and chosen keys.
//
// Keys are taken in tiles of 64 that begin at multiples of 64 positions, so a row's numbers depend neither on what was
// cached when, nor on the rows beside it.
#include "common.wgsl"
#include "reduce.wgsl"
#include "cache.wgsl"
#include "masks.wgsl"

// 0..11 the cache, 12 whether values, 13 x: a thread for each run of 32 columns.
@compute @workgroup_size(32)
fn cache_write(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let q = select(4u, 8u, p(12u) != 0u);
    let width = p(q + 2u);
    let row = wg.y;
    let run = wg.x * 32u + lid;
    if (row >= rows_of(LEAD_ROWS) || run * 32u >= width || (row_flags(row) & ROW_LIVE) == 0u) { return; }
    let pos = place_of_row(row);
    let seq = row_seq(row);
    // Of rows that share an entry the last one's stay.
    if (p(3u) > 1u && (pos + 1u) % p(3u) != 0u && row + 1u < first_row(seq) + row_count(seq)) { return; }
    let at = place(0u, seq_slot(seq), pos);
    if (at.block == NONE) { return; }
    for (var c = 0u; c < 32u; c++) {
        var x = 0.0;
        if (run * 32u + c < width) { x = wf(p(13u) + row * width + run * 32u + c); }
        run_values[c] = x;
    }
    store_run(q, at, run);
}

const KEYS: u32 = 64u;
// Columns of values that a thread sums: as many as there are threads apart.
const VALUES: u32 = 8u;

fn listed(ids: u32, n: u32, id: u32) -> bool {
    var low = 0u;
    var high = n;
    while (low < high) {
        let mid = (low + high) / 2u;
        let at = i32(wu(ids + mid));
        if (at == i32(id)) { return true; }
        if (at >= 0 && at < i32(id)) { low = mid + 1u; } else { high = mid; }
    }
    return false;
}

var<workgroup> query: array<f32, DIM_K>;
var<workgroup> scores: array<f32, KEYS>;
var<workgroup> key_seen: array<u32, KEYS>;
var<workgroup> key_block: array<u32, KEYS>;
var<workgroup> key_entry: array<u32, KEYS>;
var<workgroup> key_pos: array<u32, KEYS>;
var<workgroup> bounds: vec4<u32>;

// A workgroup of 128 threads for each head (x) of each row (y).
@compute @workgroup_size(128)
fn attention(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let row = wg.y;
    let head = wg.x;
    let heads = p(A_HEADS);
    let dim_k = p(A_DIM_K);
    let dim_v = p(A_DIM_V);
    let out = p(A_OUT) + (row * heads + head) * dim_v;
    if (lid == 0u) {
        let inside = row < rows_of(LEAD_ROWS);
        let live = inside && (row_flags(row) & ROW_LIVE) != 0u;
        bounds = vec4<u32>(0u, 0u, 0u, select(select(0u, 1u, inside), 2u, live));
        if (live) {
            var whole = 0u;
            if (p(A_HAS_ENTRIES) != 0u) { whole = (place_of_row(row) + 1u) / p(12u + 3u); }
            bounds = vec4<u32>(seen_range(row), whole, 2u);
        }
    }
    let bound = workgroupUniformLoad(&bounds);
    if (bound.w == 0u) { return; }
    if (bound.w == 1u) {
        for (var d = lid; d < dim_v; d += 128u) { set_wf(out + d, 0.0); }
        return;
    }
    let seq = row_seq(row);
    let slot = seq_slot(seq);
    let past = past_len(seq);
    let pos = place_of_row(row);
    let kv_head = head / (heads / p(A_KV_HEADS));
    for (var d = lid; d < dim_k; d += 128u) { query[d] = wf(p(A_Q) + (row * heads + head) * dim_k + d); }
    var ids = p(A_CHOSEN);
    let chosen = ids != NONE;
    var n_ids = 0u;
    var tail = NONE;
    if (p(A_TAIL) != 0u) { tail = (pos + 1u) / max(p(A_UNIT), 1u) * p(A_UNIT); }
    if (chosen) {
        n_ids = p(A_CHOSEN_WIDTH) / p(A_CHOICES);
        ids += row * p(A_CHOSEN_WIDTH) + head / (heads / p(A_CHOICES)) * n_ids;
        while (n_ids > 0u && i32(wu(ids + n_ids - 1u)) < 0) { n_ids -= 1u; }
    }
    var most = -inf();
    var sum = 0.0;
    if (p(A_SINKS) != NONE) {
        most = vf(p(A_SINKS) + head);
        sum = 1.0;
    }
    var mix: array<f32, VALUES>;
    for (var v = 0u; v < VALUES; v++) { mix[v] = 0.0; }
    // Scores that are no numbers, and scores of −∞ alone, leave nothing that is one.
    var any_here = false;
    var broken = false;
    // First the positions, then the entries.
    for (var turn = 0u; turn < 2u; turn++) {
        let of_entries = turn == 1u;
        let cached = of_entries || p(A_SOURCE) != FROM_ROWS;
        let filtered = chosen && (p(A_HAS_ENTRIES) != 0u) == of_entries;
        let start = select(bound.x, 0u, of_entries);
        let to = select(bound.y, bound.z, of_entries);
        let c = select(0u, 12u, of_entries);
        for (var base = start / KEYS * KEYS; base < to; base += KEYS) {
            workgroupBarrier();
            if (lid < KEYS) {
                let k = base + lid;
                var seen = k >= start && k < to;
                if (seen && filtered) { seen = k >= tail || listed(ids, n_ids, k / p(A_UNIT)); }
                var at = Place(NONE, 0u);
                let at_pos = select(k, k * p(12u + 3u), of_entries);
                if (seen && cached) { at = place(c, slot, at_pos); }
                key_block[lid] = at.block;
                key_entry[lid] = at.entry;
                key_pos[lid] = at_pos;
                scores[lid] = -inf();
                key_seen[lid] = select(0u, 1u, seen);
            }
            workgroupBarrier();
            // Two threads for each key.
            let j = lid >> 1u;
            var dot = 0.0;
            if (key_seen[j] != 0u) {
                let at = Place(key_block[j], key_entry[j]);
                if (cached) {
                    let column = kv_head * dim_k;
#if FOURS
                    for (var d = (lid & 1u) * 4u; d < dim_k; d += 8u) {
                        let key = load_four(c + 4u, at, column + d);
                        dot = fma(query[d], key.x, dot);
                        dot = fma(query[d + 1u], key.y, dot);
                        dot = fma(query[d + 2u], key.z, dot);
                        dot = fma(query[d + 3u], key.w, dot);
                    }
#else
                    for (var d = lid & 1u; d < dim_k; d += 2u) { dot = fma(query[d], load_cached(c + 4u, at, column + d), dot); }
#endif
                } else {
                    let key = p(A_K) + (first_row(seq) + key_pos[j] - past) * p(A_K_WIDTH) + kv_head * dim_k;
                    for (var d = lid & 1u; d < dim_k; d += 2u) { dot = fma(query[d], wf(key + d), dot); }
                }
            }
            lanes[lid] = dot;
            workgroupBarrier();
            if ((lid & 1u) == 0u && key_seen[j] != 0u) {
                var score = (lanes[lid] + lanes[lid + 1u]) * pf(A_SCALE);
                if (pf(A_CAP) > 0.0) { score = pf(A_CAP) * tanh_of(score / pf(A_CAP)); }
                let after = key_pos[j] > pos;
                let distance = select(pos - key_pos[j], key_pos[j] - pos, after);
                if (p(A_SLOPES) != NONE) { score -= vf(p(A_SLOPES) + head) * f32(distance); }
                if (p(A_BIAS) != NONE) {
                    let d = min(distance, p(A_DISTANCES) - 1u);
                    let bucket = vecs[p(A_BUCKETS) + select(d, p(A_DISTANCES) + d, after)];
                    score += vf(p(A_BIAS) + bucket * heads + head);
                }
                scores[j] = score;
            }
            workgroupBarrier();
            var best = -inf();
            var here = false;
            for (var i = 0u; i < KEYS; i++) {
                let score = scores[i];
                if (key_seen[i] != 0u) {
                    here = true;
                    if (is_nan(score)) { broken = true; }
                    best = max(best, score);
                }
            }
            if (here) { any_here = true; }
            let next = max(most, best);
            let keep = select(exp(most - next), 0.0, most == -inf());
            workgroupBarrier();
            if (lid < KEYS) {
                let score = scores[lid];
                scores[lid] = select(exp(score - next), 0.0, score == -inf());
            }
            workgroupBarrier();
            if (here) {
                var total = 0.0;
                for (var i = 0u; i < KEYS; i++) { total += scores[i]; }
                sum = sum * keep + total;
                most = next;
                for (var v = 0u; v < VALUES; v++) {
                    let d = lid + v * 128u;
                    if (d < dim_v) {
                        var x = mix[v] * keep;
                        for (var i = 0u; i < KEYS; i++) {
                            if (key_seen[i] == 0u) { continue; }
                            let at = Place(key_block[i], key_entry[i]);
                            var value = 0.0;
                            if (of_entries) {
                                value = load_cached(16u, at, kv_head * dim_k + d);
                            } else if (cached) {
                                value = load_cached(8u, at, kv_head * p(A_STRIDE_V) + d);
                            } else {
                                value = wf(p(A_V) + (first_row(seq) + key_pos[i] - past) * p(A_V_WIDTH) + kv_head * p(A_STRIDE_V) + d);
                            }
                            x = fma(scores[i], value, x);
                        }
                        mix[v] = x;
                    }
                }
            }
        }
    }
    var inverse = select(1.0 / sum, 0.0, sum == 0.0);
    let no_number = broken || (any_here && most == -inf());
    for (var v = 0u; v < VALUES; v++) {
        let d = lid + v * 128u;
        if (d < dim_v) {
            set_wf(out + d, mix[v] * inverse);
            if (no_number) { set_wu(out + d, 0x7fffffffu); }
        }
    }
}

// Floats as numbers of the same order.
fn ordered(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    return select(b | 0x80000000u, ~b, b >> 31u != 0u);
}

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> found: vec4<u32>;

// Workgroups take rows and choices in turns; each has room for the scores of a row's units: 0..11 the cache, 12 q, 13 weights,
// 14 scores, 15 to, 16 most units, 17 heads, 18 columns, 19 whether summed, 20 chosen, 21 unit, 22 local, 23 scale.
@compute @workgroup_size(256)
fn select_units(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let heads = p(17u);
    let dim = p(18u);
    let summed = p(19u) != 0u;
    let top_k = p(20u);
    let unit = p(21u);
    let choices = select(heads, 1u, summed);
    let space = p(14u) + wg.x * p(16u);
    let total = same(rows_of(LEAD_ROWS) * choices, lid);
    for (var job = wg.x; job < total; job += groups.x) {
        let row = job / choices;
        let choice = job % choices;
        let out = p(15u) + job * top_k;
        let slot = seq_slot(row_seq(row));
        var seen = 0u;
        if ((row_flags(row) & ROW_LIVE) != 0u) { seen = (place_of_row(row) + 1u) / p(3u); }
        seen = same(seen, lid);
        let units = (seen + unit - 1u) / unit;
        for (var u = lid; u < units; u += 256u) {
            var best = -inf();
            for (var e = u * unit; e < min((u + 1u) * unit, seen); e++) {
                let at = place(0u, slot, e * p(3u));
                var score = 0.0;
                for (var h = select(choice, 0u, summed); h < select(choice + 1u, heads, summed); h++) {
                    let q = p(12u) + (row * heads + h) * dim;
                    var dot = 0.0;
                    for (var d = 0u; d < dim; d++) { dot = fma(wf(q + d), load_cached(4u, at, d), dot); }
                    dot *= pf(23u);
                    if (summed) { score += wf(p(13u) + row * heads + h) * max(dot, 0.0); } else { score = dot; }
                }
                best = max(best, score);
            }
            if (u + p(22u) >= units) { best = inf(); }
            set_wf(space + u, best);
        }
        storageBarrier();
        workgroupBarrier();
        // The key of the last unit that is chosen, digit by digit, and how many of that key are.
        var key = 0u;
        var left = top_k;
        if (units > top_k) {
            for (var digit = 0u; digit < 4u; digit++) {
                let shift = 24u - 8u * digit;
                atomicStore(&counts[lid], 0u);
                workgroupBarrier();
                for (var u = lid; u < units; u += 256u) {
                    let k = ordered(wf(space + u));
                    if (digit == 0u || ((k ^ key) >> (shift + 8u)) == 0u) { atomicAdd(&counts[(k >> shift) & 255u], 1u); }
                }
                workgroupBarrier();
                if (lid == 0u) {
                    var d = 255u;
                    while (d > 0u && atomicLoad(&counts[d]) < left) {
                        left -= atomicLoad(&counts[d]);
                        d -= 1u;
                    }
                    found = vec4<u32>(key | (d << shift), left, 0u, 0u);
                }
                let f = workgroupUniformLoad(&found);
                key = f.x;
                left = f.y;
            }
        }
        // One thread writes them in order.
        if (lid == 0u) {
            var written = 0u;
            var ties = 0u;
            for (var u = 0u; u < units; u++) {
                let k = ordered(wf(space + u));
                var take = units <= top_k || k > key;
                if (units > top_k && k == key) {
                    take = ties < left;
                    ties += 1u;
                }
                if (take) {
                    set_wu(out + written, u);
                    written += 1u;
                }
            }
            for (var i = written; i < top_k; i++) { set_wu(out + i, NONE); }
        }
        storageBarrier();
        workgroupBarrier();
    }
}

// 0..11 the cache, 12 what is added to scores, 13 to, 14 ratio, 15 whether overlapping, 16 columns, 17 columns of the inputs.
@compute @workgroup_size(128)
fn compress(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let row = wg.x;
    if (row >= rows_of(LEAD_ROWS)) { return; }
    let ratio = p(14u);
    let width = p(16u);
    let seq = row_seq(row);
    let pos = place_of_row(row);
    let ends = (row_flags(row) & ROW_LIVE) != 0u && (pos + 1u) % ratio == 0u;
    let most = select(ratio, 2u * ratio, p(15u) != 0u);
    var first = 0u;
    if (pos + 1u > most) { first = pos + 1u - most; }
    for (var c = lid; c < width; c += 128u) {
        var best = -inf();
        var sum = 0.0;
        var mix = 0.0;
        for (var turn = 0u; ends && turn < 2u; turn++) {
            for (var q = first; q <= pos; q++) {
                let at = place(0u, seq_slot(seq), q);
                let column = c + select(0u, width, p(15u) != 0u && q + ratio > pos);
                let score = load_cached(8u, at, column) + vf(p(12u) + (q % ratio) * p(17u) + column);
                if (turn == 0u) {
                    best = max(best, score);
                } else {
                    let w = exp(score - best);
                    sum += w;
                    mix += w * load_cached(4u, at, column);
                }
            }
        }
        set_wf(p(13u) + row * width + c, select(0.0, mix / sum, ends));
    }
}
