// Units of keys: 64 positions from a multiple of 64 on, where they lie, and what their scores are.
const UNIT: u32 = 64u;

var<workgroup> key_block: array<u32, UNIT>;
var<workgroup> key_entry: array<u32, UNIT>;

// Where the keys of a unit from position `low` on and before `high` lie; 64 threads.
fn find_keys(u: u32, low: u32, high: u32, slot: u32, lid: u32) {
    if (lid >= UNIT) { return; }
    let k = u * UNIT + lid;
    var at = Place(NONE, 0u);
    if (k >= low && k < high) { at = place(0u, slot, k); }
    key_block[lid] = at.block;
    key_entry[lid] = at.entry;
}

// Four columns of a key or value of the unit; zeros where it is not to be seen.
fn four_of(q: u32, j: u32, column: u32) -> vec4<f32> {
    let there = key_block[j] != NONE;
    let x = load_four(q, Place(select(0u, key_block[j], there), key_entry[j]), column);
    return select(vec4<f32>(), x, vec4<bool>(there));
}

// Score of a key, from its dot product with a query. EXTRAS: with a cap, slopes or learned biases, where there are some.
fn score_of(dot: f32, head: u32, k: u32, pos: u32) -> f32 {
    var score = dot * pf(A_SCALE);
#if EXTRAS
    if (pf(A_CAP) > 0.0) { score = pf(A_CAP) * tanh_of(score / pf(A_CAP)); }
    let after = k > pos;
    let distance = select(pos - k, k - pos, after);
    if (p(A_SLOPES) != NONE) { score -= vf(p(A_SLOPES) + head) * f32(distance); }
    if (p(A_BIAS) != NONE) {
        let d = min(distance, p(A_DISTANCES) - 1u);
        let bucket = vecs[p(A_BUCKETS) + select(d, p(A_DISTANCES) + d, after)];
        score += vf(p(A_BIAS) + bucket * p(A_HEADS) + head);
    }
#endif
    return score;
}
