// Routers, and routed rows by expert.

#include "common.wgsl"
#include "wide.wgsl"

const THREADS: u32 = 256u;
#include "reduce.wgsl"
#include "wide_reduce.wgsl"

const SCORE_SOFTMAX: u32 = 0u;
const SCORE_SIGMOID: u32 = 1u;
const SCORE_SQRT_SOFTPLUS: u32 = 3u;

// What there is room for.
const MOST_EXPERTS: u32 = 1024u;
const MOST_CHOSEN: u32 = 64u;
const MOST_GROUPS: u32 = 32u;

var<workgroup> scores: array<f32, MOST_EXPERTS>;
// What selects: a score, and whether it still may.
var<workgroup> picks: array<f32, MOST_EXPERTS>;
var<workgroup> chosen: array<u32, MOST_CHOSEN>;
var<workgroup> chosen_weights: array<f32, MOST_CHOSEN>;
var<workgroup> group_ranks: array<Wide, MOST_GROUPS>;

// Larger first, the lower index among equals.
fn rank_of(x: f32, i: u32) -> Wide {
    let b = bitcast<u32>(x);
    return Wide(biased(bitcast<i32>(select(b, b ^ 0x7fffffffu, (b >> 31u) == 1u))), NONE - i);
}

// The exponential's maximum and sum of a softmax, where scores are one.
fn softmax_of(kind: u32, logits: u32, n: u32, lid: u32) -> vec2<f32> {
    var most = -inf();
    var sum = 0.0;
    if (kind != SCORE_SOFTMAX) { return vec2<f32>(0.0, 1.0); }
    for (var e = lid; e < n; e += THREADS) { most = max(most, wf(logits + e)); }
    most = max_block(most, lid);
    for (var e = lid; e < n; e += THREADS) { sum += exp(wf(logits + e) - most); }
    return vec2<f32>(most, sum_block(sum, lid));
}

fn score_of(kind: u32, x: f32, softmax: vec2<f32>) -> f32 {
    if (kind == SCORE_SOFTMAX) { return exp(x - softmax.x) / softmax.y; }
    if (kind == SCORE_SIGMOID) { return sigmoid(x); }
    if (kind == SCORE_SQRT_SOFTPLUS) { return sqrt(softplus(x)); }
    return x;
}

// Groups of neighbours that are not among the best, by the sum of their best two, select no more.
fn keep_groups(n: u32, groups: u32, used: u32, lid: u32) {
    let per = n / groups;
    if (lid < MOST_GROUPS) {
        var own = Wide(0u, 0u);
        if (lid < groups) {
            var best = -inf();
            var second = -inf();
            for (var e = 0u; e < per; e++) {
                let x = picks[lid * per + e];
                if (x > best) {
                    second = best;
                    best = x;
                } else if (x > second) {
                    second = x;
                }
            }
            own = rank_of(select(best, best + second, per > 1u), lid);
        }
        group_ranks[lid] = own;
    }
    workgroupBarrier();
    for (var e = lid; e < n; e += THREADS) {
        let own = group_ranks[e / per];
        var better = 0u;
        for (var g = 0u; g < groups; g++) {
            if (!at_least(own, group_ranks[g])) { better++; }
        }
        if (better >= used) { picks[e] = -inf(); }
    }
    workgroupBarrier();
}

// The share of a choice in a softmax over what is left and falls short of it by little: one thread.
fn share_near(j: u32, n: u32, near_ties: f32) -> f32 {
    let peak = scores[chosen[j]];
    var sum = 0.0;
    for (var e = 0u; e < n; e++) {
        var left = true;
        for (var t = 0u; t < j; t++) { left = left && chosen[t] != e; }
        let x = scores[e];
        if (left && !((peak - x) / max(abs(x), peak) > near_ties)) { sum += exp(x - peak); }
    }
    return 1.0 / sum;
}

// A workgroup for each row. 0 logits, 1 bias, 2 table of choices by token, 3 ids, 4 weights, 5 lead, 6 experts, 7 chosen, 8 score,
// 9 score that selects, 10 groups, 11 groups used, 12 softmax of the chosen, 13 sigmoid of the chosen, 14 whether weights are
// divided by their sum, 15 what ids are divided by, 16 near ties, 17 scale, 18 tokens of the table.
@compute @workgroup_size(THREADS)
fn route(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let i = wg.x;
    let n = p(6u);
    let top_k = p(7u);
    if (same(rows_of(p(5u)), lid) <= i) { return; }
    let logits = p(0u) + i * n;
    let softmax = softmax_of(p(8u), logits, n, lid);
    for (var e = lid; e < n; e += THREADS) { scores[e] = score_of(p(8u), wf(logits + e), softmax); }
    if (p(2u) != NONE) {
        let row = step_row(p(5u), i);
        var token = row_token(row);
        if (token >= p(18u)) {
            if (lid == 0u && (row_flags(row) & ROW_LIVE) != 0u) { no_row(token, p(18u)); }
            token = 0u;
        }
        if (lid < top_k) { chosen[lid] = u32(vf(p(2u) + token * top_k + lid)); }
        workgroupBarrier();
    } else {
        var selecting = softmax;
        if (p(9u) != p(8u)) { selecting = softmax_of(p(9u), logits, n, lid); }
        for (var e = lid; e < n; e += THREADS) {
            var x = score_of(p(9u), wf(logits + e), selecting);
            if (p(1u) != NONE) { x += vf(p(1u) + e); }
            picks[e] = x;
        }
        workgroupBarrier();
        if (p(10u) != 0u) { keep_groups(n, p(10u), p(11u), lid); }
        for (var j = 0u; j < top_k; j++) {
            var best = Wide(0u, 0u);
            for (var e = lid; e < n; e += THREADS) {
                var taken = false;
                for (var t = 0u; t < j; t++) { taken = taken || chosen[t] == e; }
                let own = rank_of(picks[e], e);
                if (!taken && at_least(own, best)) { best = own; }
            }
            best = largest(best, lid);
            if (lid == 0u) { chosen[j] = NONE - best.low; }
            workgroupBarrier();
        }
    }
    if (lid != 0u) { return; }
    for (var j = 0u; j < top_k; j++) {
        if (pf(16u) > 0.0) { chosen_weights[j] = share_near(j, n, pf(16u)); } else { chosen_weights[j] = scores[chosen[j]]; }
    }
    if (p(12u) != 0u) {
        var most = -inf();
        var all = 0.0;
        for (var j = 0u; j < top_k; j++) { most = max(most, chosen_weights[j]); }
        for (var j = 0u; j < top_k; j++) {
            chosen_weights[j] = exp(chosen_weights[j] - most);
            all += chosen_weights[j];
        }
        for (var j = 0u; j < top_k; j++) { chosen_weights[j] /= all; }
    }
    var sum = 0.0;
    for (var j = 0u; j < top_k; j++) {
        if (p(13u) != 0u) { chosen_weights[j] = sigmoid(chosen_weights[j]); }
        sum += chosen_weights[j];
    }
    for (var j = 0u; j < top_k; j++) {
        var w = chosen_weights[j];
        if (p(14u) != 0u) { w /= max(sum, 6.103515625e-05); }
        set_wf(p(4u) + i * top_k + j, w * pf(17u));
        set_wu(p(3u) + i * top_k + j, chosen[j] / p(15u));
    }
}

// Routed rows in the order of their experts, and where each one's expert begins. 0 lead, 1 routed rows of a row, 2 ids, 3 order,
// 4 starts.
@compute @workgroup_size(128)
fn group(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let n = rows_of(p(0u)) * p(1u);
    for (var i = id.x; i < n; i += groups.x * 128u) {
        let own = wu(p(2u) + i);
        var place = 0u;
        var start = 0u;
        for (var j = 0u; j < n; j++) {
            let other = wu(p(2u) + j);
            if (other < own) { start++; }
            if (other < own || (other == own && j < i)) { place++; }
        }
        set_wu(p(3u) + place, i);
        set_wu(p(4u) + place, start);
    }
}
