// A draw from a row of logits, in integers from the logits on, as `ir::sample` says: `best_logits`, then `touch` where a row
// has bias, penalties or DRY, then `sample`, then `report` where one is asked for.
//
// 0 logits, 1 tokens, 2 values, 3 counts, 4 tokens of the vocabulary, 5 found; `report`: 6 tokens, 7 reports. Scratch of a logit
// row: as many values and counts as there are tokens in the vocabulary, behind the values of all rows LISTS words, 4 · LOOKERS
// words for what was found. `p(6)` of `sample`: the lists.
//
// The candidates of a row are the values that are not excluded; a filter excludes those it removes. Where few are left, they
// become a list.

#include "common.wgsl"
#include "num.wgsl"
#include "wide_reduce.wgsl"
#include "row_known.wgsl"

const THREADS: u32 = 256u;
// Workgroups that look at a row.
const LOOKERS: u32 = 64u;
// Candidates of a list.
const LISTED: u32 = 2048u;
const OFF: u32 = 0xffffffffu;
const MOST_REPORTED: u32 = 20u;
const REPORT_WORDS: u32 = 42u;

const NOT_A_NUMBER: u32 = 0xffffffffu;
const NO_CANDIDATE: u32 = 0xfffffffeu;
const STOPPED: u32 = 0xfffffffdu;

// What a workgroup found in its part of a row: the best value, its logit and its id (none: NONE), and whether there is what is
// not a number. Rows for which more than their logits counts have their values written down.
@compute @workgroup_size(THREADS)
fn best_logits(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let i = wg.y;
    let k = known_of(i, lid);
    if (k[K_RUNS] == 0u || k[K_LIVE] == 0u) { return; }
    let vocab = p(4u);
    let logits = p(0u) + i * vocab;
    let v = p(2u) + i * vocab;
    let plain = is_plain(k);
    var own = Wide(0u, 0u);
    var id = NONE;
    for (var t = wg.x * THREADS + lid; t < vocab; t += LOOKERS * THREADS) {
        let x = wf(logits + t);
        var value = EXCLUDED;
        if (is_nan(x)) {
            own = Wide(NONE, NONE);
        } else {
            let in_mask = t / 32u < k[K_MASK_WORDS];
            if (k[K_MASK] == 0u || (in_mask && ((words[k[K_MASK] + select(0u, t / 32u, in_mask)] >> (t & 31u)) & 1u) == 1u)) {
                value = fixed(x);
            }
            let rank = Wide(biased(value), ordered(x));
            if (value != EXCLUDED && !at_least(own, rank)) {
                own = rank;
                id = t;
            }
        }
        if (!plain) { set_wu(v + t, bitcast<u32>(value)); }
    }
    let best = largest(own, lid);
    let lowest = largest(Wide(0u, select(0u, NONE - id, own.high == best.high && own.low == best.low)), lid).low;
    if (lid == 0u) {
        let found = p(5u) + (i * LOOKERS + wg.x) * 4u;
        set_wu(found, best.high);
        set_wu(found + 1u, best.low);
        set_wu(found + 2u, NONE - lowest);
    }
}

// Candidates: values, and their ids where those are not their places.
struct List { values: u32, ids: u32, n: u32 }

fn value_at(l: List, j: u32) -> i32 { return bitcast<i32>(wu(l.values + j)); }
fn exclude(l: List, j: u32) { set_wu(l.values + j, bitcast<u32>(EXCLUDED)); }
fn id_at(l: List, j: u32) -> u32 {
    if (l.ids == NONE) { return j; }
    return wu(l.ids + j);
}

fn best_of(l: List, lid: u32) -> i32 {
    var best = EXCLUDED;
    for (var j = lid; j < l.n; j += THREADS) { best = max(best, value_at(l, j)); }
    return bitcast<i32>(largest(Wide(0u, biased(best)), lid).low ^ 0x80000000u);
}

// How candidates are sorted and what they weigh.
struct Order {
    top: i32,
    strange: bool,  // by the distance of their distance to `mean`, rather than by their distance
    mean: u32,
    weighted: bool, // by their exponential, rather than by one
}

fn sort_key(o: Order, v: i32) -> u32 {
    let d = below(v, o.top);
    if (!o.strange) { return d; }
    return select(o.mean - d, d - o.mean, d > o.mean);
}

fn mass_of(o: Order, v: i32) -> u32 {
    if (!o.weighted) { return 1u; }
    return exp_of(below(v, o.top));
}

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> carries: array<atomic<u32>, 256>;
var<workgroup> at_edge: atomic<u32>;
var<workgroup> edge: array<u32, 3>;

fn add_mass(bin: u32, mass: u32, weighted: bool) {
    if (!weighted) {
        atomicAdd(&bins[bin], mass);
    } else if (mass != 0u) {
        let before = atomicAdd(&bins[bin], mass);
        if (before + mass < before) { atomicAdd(&carries[bin], 1u); }
    }
}

fn clear_bins(lid: u32) {
    workgroupBarrier();
    atomicStore(&bins[lid], 0u);
    atomicStore(&carries[lid], 0u);
    if (lid == 0u) { edge[0] = 256u; }
    workgroupBarrier();
}

// The first bin with which masses reach the target (256: none does), and the mass before it.
fn edge_of(before: Wide, target_mass: Wide, lid: u32) -> array<u32, 3> {
    workgroupBarrier();
    let own = Wide(atomicLoad(&carries[lid]), atomicLoad(&bins[lid]));
    let first = sum_of(before, sum_before(own, lid));
    if (!at_least(first, target_mass) && at_least(sum_of(first, own), target_mass)) {
        edge[0] = lid;
        edge[1] = first.high;
        edge[2] = first.low;
    }
    return workgroupUniformLoad(&edge);
}

// The candidates whose keys are no larger as a list, where there are few; the same ones as before otherwise.
fn gathered(l: List, o: Order, most: u32, lists: u32, lid: u32) -> List {
    if (lid == 0u) { atomicStore(&at_edge, 0u); }
    workgroupBarrier();
    for (var j = lid; j < l.n; j += THREADS) {
        let v = value_at(l, j);
        if (v == EXCLUDED || sort_key(o, v) > most) { continue; }
        let place = atomicAdd(&at_edge, 1u);
        if (place < LISTED) {
            set_wu(lists + place, bitcast<u32>(v));
            set_wu(lists + LISTED + place, id_at(l, j));
        }
    }
    storageBarrier();
    workgroupBarrier();
    let n = same(atomicLoad(&at_edge), lid);
    if (n > LISTED) { return l; }
    return List(lists, lists + LISTED, n);
}

// How filters keep candidates: up to a key; up to the one, lower ids first among equals, with which their mass reaches a target; or
// all but the likely ones.
struct Cut { order: Order, near: bool, most: u32, wanted: Wide }

// Removes candidates behind a cut.
fn kept(all: List, cut: Cut, lists: u32, lid: u32) -> List {
    var l = all;
    let o = cut.order;
    var key = 0u;
    var before = Wide(0u, 0u);
    var reached = true;
    // First an edge of 16 fraction bits, where there is no list yet; then the key's bytes.
    for (var turn = 0u; turn < 5u; turn++) {
        if (turn == 0u && all.ids != NONE) { continue; }
        if (turn > 0u && cut.near) { break; }
        var most = cut.most;
        if (!cut.near) {
            let shift = select(32u - 8u * turn, 16u, turn == 0u);
            clear_bins(lid);
            for (var j = lid; j < l.n; j += THREADS) {
                let v = value_at(l, j);
                if (v == EXCLUDED) { continue; }
                let s = sort_key(o, v);
                if (turn <= 1u || ((s ^ key) >> ((shift + 8u) & 31u)) == 0u) {
                    add_mass(select((s >> shift) & 255u, min(s >> 16u, 255u), turn == 0u), mass_of(o, v), o.weighted);
                }
            }
            let found = edge_of(before, cut.wanted, lid);
            if (turn == 0u) {
                most = select(NONE, (found[0] << 16u) | 0xffffu, found[0] < 255u);
            } else {
                // Where nothing reaches the target, the next bytes find nothing either.
                reached = reached && found[0] != 256u;
                key |= (found[0] & 255u) << shift;
                before = Wide(found[1], found[2]);
            }
        }
        if (turn == 0u && most != NONE) { l = gathered(l, o, most, lists, lid); }
    }
    if (cut.near) {
        for (var j = lid; j < l.n; j += THREADS) {
            let v = value_at(l, j);
            if (v != EXCLUDED && sort_key(o, v) > cut.most) { exclude(l, j); }
        }
        storageBarrier();
    } else if (reached) {
        keep_ties(l, o, key, before, cut.wanted, lid);
    }
    return l;
}

fn is_tie(o: Order, v: i32, key: u32) -> bool { return v != EXCLUDED && sort_key(o, v) == key; }

// Removes what is behind a key, and those of the key itself, higher ids first, without which the mass reaches the target.
fn keep_ties(l: List, o: Order, key: u32, before: Wide, wanted: Wide, lid: u32) {
    if (lid == 0u) { atomicStore(&at_edge, 0u); }
    workgroupBarrier();
    for (var j = lid; j < l.n; j += THREADS) {
        let v = value_at(l, j);
        if (v != EXCLUDED && sort_key(o, v) > key) { exclude(l, j); }
        if (is_tie(o, v, key)) { atomicAdd(&at_edge, 1u); }
    }
    storageBarrier();
    workgroupBarrier();
    if (same(atomicLoad(&at_edge), lid) <= 1u) { return; }
    if (l.ids == NONE) {
        // Each thread takes a run of ids, and knows the mass of those before it.
        let run = (l.n + THREADS - 1u) / THREADS;
        let first = min(lid * run, l.n);
        let end = min(first + run, l.n);
        var own = Wide(0u, 0u);
        var sum = before;
        for (var twice = 0u; twice < 2u; twice++) {
            if (twice == 1u) { sum = sum_of(before, sum_before(own, lid)); }
            for (var j = first; j < end; j++) {
                let v = value_at(l, j);
                if (!is_tie(o, v, key)) { continue; }
                let mass = word_of(mass_of(o, v));
                if (twice == 0u) {
                    own = sum_of(own, mass);
                } else {
                    if (at_least(sum, wanted)) { exclude(l, j); }
                    sum = sum_of(sum, mass);
                }
            }
        }
    } else {
        // A list has no order: the mass of equals that have lower ids, for each.
        var gone = 0u;
        for (var j = lid; j < l.n; j += THREADS) {
            if (!is_tie(o, value_at(l, j), key)) { continue; }
            let id = id_at(l, j);
            var sum = before;
            for (var e = 0u; e < l.n; e++) {
                let w = value_at(l, e);
                if (is_tie(o, w, key) && id_at(l, e) < id) { sum = sum_of(sum, word_of(mass_of(o, w))); }
            }
            if (at_least(sum, wanted)) { gone |= 1u << (j / THREADS); }
        }
        storageBarrier();
        for (var j = lid; j < l.n; j += THREADS) {
            if (((gone >> (j / THREADS)) & 1u) == 1u) { exclude(l, j); }
        }
    }
    storageBarrier();
}

// Three sums over candidates: of distances with 8 fraction bits, of their squares, of ones; or of masses and of surprises.
struct Three { a: Wide, b: Wide, c: Wide }

fn sums_of(l: List, top: i32, squares: bool, lid: u32) -> Three {
    var s = Three();
    for (var j = lid; j < l.n; j += THREADS) {
        let v = value_at(l, j);
        if (v == EXCLUDED) { continue; }
        let d = below(v, top);
        let short = min(d >> 8u, 0x3fffffu);
        var x = word_of(short);
        if (!squares) { x = word_of(exp_of(d)); }
        s.a = sum_of(s.a, x);
        s.b = sum_of(s.b, lowered(product(x.low, select(d, short, squares)), select(8u, 0u, squares)));
        s.c = sum_of(s.c, word_of(1u));
    }
    let a = total(s.a, lid);
    let b = total(s.b, lid);
    return Three(a, b, total(s.c, lid));
}

// How far from the best candidates may be: so many standard deviations.
fn deviations(s: Three, n: u32) -> u32 {
    let mean = quotient(s.a, s.c).low;
    let about = difference(sum_of(s.b, multiplied(product(mean, mean), s.c.low)), multiplied(s.a, 2u * mean));
    let deviation = root(raised(quotient(about, s.c), 16u));
    let wide = lowered(product(deviation, n), 16u);
    return select(wide.low, NONE, wide.high != 0u);
}

// Removes the candidates above the threshold except the least of them: the lowest value, of the highest id.
fn xtc(l: List, top: i32, threshold: Wide, lid: u32) {
    var least = Wide(0u, 0u);
    for (var twice = 0u; twice < 2u; twice++) {
        if (twice == 1u) { least = largest(least, lid); }
        for (var j = lid; j < l.n; j += THREADS) {
            let v = value_at(l, j);
            if (v == EXCLUDED || !at_least(word_of(exp_of(below(v, top))), threshold)) { continue; }
            let rank = Wide(below(v, top) + 1u, id_at(l, j));
            if (twice == 1u) {
                if (rank.low != least.low) { exclude(l, j); }
            } else if (at_least(rank, least)) {
                least = rank;
            }
        }
    }
    storageBarrier();
}

fn drawn(l: List, top: i32, k: array<u32, K_WORDS>, lid: u32) -> u32 {
    let shift = min(k[1], 63u);
    var best = Wide(0u, 0u);
    for (var j = lid; j < l.n; j += THREADS) {
        let v = value_at(l, j);
        if (v == EXCLUDED) { continue; }
        let id = id_at(l, j);
        let cold = lowered(product(below(v, top), k[0]), shift);
        let loss = select(i32(min(cold.low, 0x40000000u)), 0x40000000, cold.high != 0u);
        let random = noise(k[14], k[15], k[K_POSITION], id);
        if (biased(gumbel_bound(random) - loss) < best.high) { continue; }
        let rank = Wide(biased(gumbel(random) - loss), NONE - id);
        if (at_least(rank, best)) { best = rank; }
    }
    return NONE - largest(best, lid).low;
}

const SIGMA: u32 = 0u;
const TOP_K: u32 = 1u;
const TYPICAL: u32 = 2u;
const TOP_P: u32 = 3u;
const MIN_P: u32 = 4u;
const XTC: u32 = 5u;
const DRAW: u32 = 6u;

fn is_on(step: u32, k: array<u32, K_WORDS>) -> bool {
    switch (step) {
        case SIGMA: { return k[6] != 0u; }
        case TOP_K: { return k[2] != 0u; }
        case TYPICAL: { return k[4] != OFF; }
        case TOP_P: { return k[3] != OFF; }
        case MIN_P: { return k[5] != OFF; }
        case XTC: { return k[7] == OFF || (k[7] != 0u && noise(k[14], k[15], k[K_POSITION], OFF).high < k[7]); }
        default: { return true; }
    }
}

// The token that is drawn behind all filters, of which `best` is the largest value that was found. One loop, so that compilers see each part once.
fn filtered(row: List, best: i32, k: array<u32, K_WORDS>, lists: u32, lid: u32) -> u32 {
    var l = row;
    var token = NO_CANDIDATE;
    // What was found is the largest value where nothing was touched since, and as long as nothing was removed.
    var top = best;
    var unknown = is_touched(k);
    for (var step = 0u; step <= DRAW; step++) {
        if (!is_on(step, k)) { continue; }
        if (unknown) { top = best_of(l, lid); }
        unknown = true;
        if (top == EXCLUDED) { break; }
        var s = Three();
        if (step == SIGMA || step == TYPICAL || step == TOP_P || step == XTC) { s = sums_of(l, top, step == SIGMA, lid); }
        if (step == DRAW) {
            token = drawn(l, top, k, lid);
        } else if (step == XTC) {
            xtc(l, top, share(s.a, k[8]), lid);
        } else {
            let weighted = step == TYPICAL || step == TOP_P;
            var cut = Cut(Order(top, step == TYPICAL, 0u, weighted), step == SIGMA || step == MIN_P, k[5], word_of(k[2]));
            if (step == SIGMA) { cut.most = deviations(s, k[6]); }
            if (step == TYPICAL) { cut.order.mean = quotient(s.b, lowered(s.a, 8u)).low; }
            if (weighted) {
                let mass = share(s.a, select(k[3], k[4], step == TYPICAL));
                cut.wanted = sum_of(mass, word_of(select(0u, 1u, step == TYPICAL || (mass.high | mass.low) == 0u)));
            }
            l = kept(l, cut, lists, lid);
        }
    }
    return token;
}

// The largest value; of equals the largest logit as it came, then the lowest id.
fn greedy(l: List, logits: u32, lid: u32) -> u32 {
    var own = Wide(0u, 0u);
    var id = NONE;
    for (var j = lid; j < l.n; j += THREADS) {
        let v = value_at(l, j);
        if (v == EXCLUDED) { continue; }
        let rank = Wide(biased(v), ordered(wf(logits + j)));
        if (!at_least(own, rank)) {
            own = rank;
            id = j;
        }
    }
    let best = largest(own, lid);
    if (best.high == 0u) { return NO_CANDIDATE; }
    return NONE - largest(Wide(0u, select(0u, NONE - id, own.high == best.high && own.low == best.low)), lid).low;
}

@compute @workgroup_size(THREADS)
fn sample(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let i = wg.x;
    let k = known_of(i, lid);
    if (k[K_RUNS] == 0u) { return; }
    let vocab = p(4u);
    var token = STOPPED;
    if (k[K_LIVE] != 0u) {
        let found = p(5u) + (i * LOOKERS + lid) * 4u;
        var own = Wide(0u, 0u);
        if (lid < LOOKERS) { own = Wide(wu(found), wu(found + 1u)); }
        let best = largest(own, lid);
        let row = List(p(2u) + i * vocab, NONE, vocab);
        if (best.high == NONE) {
            token = NOT_A_NUMBER;
        } else if (is_plain(k)) {
            var first = 0u;
            if (lid < LOOKERS && own.high == best.high && own.low == best.low) { first = NONE - wu(found + 2u); }
            token = NONE - largest(Wide(0u, first), lid).low;
            if (best.high == 0u) { token = NO_CANDIDATE; }
        } else if (k[0] == 0u) {
            token = greedy(row, p(0u) + i * vocab, lid);
        } else {
            token = filtered(row, bitcast<i32>(best.high ^ 0x80000000u), k, p(6u) + i * 2u * LISTED, lid);
        }
    }
    if (lid == 0u) { set_wu(p(1u) + i, token); }
}

// Log-probabilities of the drawn token and of the likeliest, of logits as they came.
@compute @workgroup_size(THREADS)
fn report(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let i = wg.x;
    let k = known_of(i, lid);
    if (k[K_RUNS] == 0u || k[K_BEST] == 0u) { return; }
    let token = same(wu(p(6u) + i), lid);
    if (token >= 0x80000000u) { return; }
    let vocab = p(4u);
    let logits = p(0u) + i * vocab;
    let out = p(7u) + i * REPORT_WORDS;
    var most = EXCLUDED;
    for (var t = lid; t < vocab; t += THREADS) { most = max(most, fixed(wf(logits + t))); }
    let top = bitcast<i32>(largest(Wide(0u, biased(most)), lid).low ^ 0x80000000u);
    var sum = Wide(0u, 0u);
    for (var t = lid; t < vocab; t += THREADS) {
        let v = fixed(wf(logits + t));
        if (v != EXCLUDED) { sum = sum_of(sum, word_of(exp_of(below(v, top)))); }
    }
    let log_total = (33u * LN_2 - neg_ln(total(sum, lid)) + 128u) >> 8u;
    let offset = clamp(top + i32(log_total), -MOST, MOST);
    var last = Wide(NONE, NONE);
    var n = 0u;
    for (var j = 0u; j < min(k[K_BEST] - 1u, MOST_REPORTED); j++) {
        var own = Wide(0u, 0u);
        for (var t = lid; t < vocab; t += THREADS) {
            let x = wf(logits + t);
            let rank = Wide(ordered(x), NONE - t);
            if (fixed(x) != EXCLUDED && !at_least(rank, last) && at_least(rank, own)) { own = rank; }
        }
        let best = largest(own, lid);
        if (best.high == 0u) { break; }
        last = best;
        n = j + 1u;
        let id = NONE - best.low;
        if (lid == 0u) {
            set_wu(out + 2u + 2u * j, id);
            set_wu(out + 3u + 2u * j, bitcast<u32>(minus(fixed(wf(logits + id)), offset)));
        }
    }
    if (lid == 0u) {
        set_wu(out, bitcast<u32>(minus(fixed(wf(logits + token)), offset)));
        set_wu(out + 1u, n);
    }
}
