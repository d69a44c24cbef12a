// What adapters add to products and look-ups: `y + b · (a · x)`, each row with the pair of its own adapter. In the place of
// weights stand the pairs, in that of `other` the parts of low rank, which `down` leaves and `up` reads.
//
// A run is an input of a product: a row's, a head's or an expert's. First lie the pairs, by adapter (there is no 0) and weight: where
// the matrices [rank, k] begin, where the matrices [rank, n] do, and the rank.
#include "common.wgsl"
#include "reduce.wgsl"

// Where a row's adapter stands among its flags.
const ADAPTER_SHIFT: u32 = 8u;

// Parameters: 0 lead, 1 weights, 2 runs that there is room for; then of each op twelve.
const FIRST_OP: u32 = 4u;
const OP_WORDS: u32 = 12u;
const OP_X: u32 = 0u;
const OP_Y: u32 = 1u;
const OP_OUT: u32 = 2u;         // may be where y is
const OP_IDS: u32 = 3u;         // matrices of runs, where they are chosen
const OP_WEIGHT: u32 = 4u;
const OP_HEADS: u32 = 5u;       // whether runs have matrices in turn
const OP_PARTS: u32 = 6u;       // runs of a row
const OP_N: u32 = 7u;
const OP_K: u32 = 8u;
const OP_X_STRIDE: u32 = 9u;    // columns of a row of x
const OP_X_PART: u32 = 10u;     // columns from a run's input to the next one's; 0: they share it
const OP_FIRST: u32 = 11u;      // of its runs among those of all ops

fn pair_word(i: u32) -> f32 { return bitcast<f32>(weights[i >> 2u][i & 3u]); }

// A run's matrices and their rank; without a pair there is none.
struct Own { a: u32, b: u32, rank: u32 }

fn pair_of(row: u32, weight: u32) -> vec4<u32> {
    let adapter = row_flags(row) >> ADAPTER_SHIFT;
    if (adapter == 0u) { return vec4<u32>(); }
    return weights[(adapter - 1u) * p(1u) + weight];
}

fn own_of(op: u32, run: u32) -> Own {
    let parts = p(op + OP_PARTS);
    let pair = pair_of(step_row(p(0u), run / parts), p(op + OP_WEIGHT));
    var matrix = 0u;
    if (pair.z != 0u && p(op + OP_HEADS) != 0u) { matrix = run % parts; }
    if (pair.z != 0u && p(op + OP_IDS) != NONE) { matrix = wu(p(op + OP_IDS) + run); }
    return Own(pair.x + matrix * pair.z * p(op + OP_K), pair.y + matrix * pair.z * p(op + OP_N), pair.z);
}

// A thread's share of the dot of a row of `a` with a run.
fn share(a: u32, x: u32, k: u32, lid: u32) -> f32 {
    var sum = 0.0;
#if ALIGNED
    for (var c = lid * 4u; c < k; c += THREADS * 4u) {
        let w = bitcast<vec4<f32>>(weights[(a + c) >> 2u]);
        let v = wf4(x + c);
        sum = fma(w.x, v.x, sum);
        sum = fma(w.y, v.y, sum);
        sum = fma(w.z, v.z, sum);
        sum = fma(w.w, v.w, sum);
    }
#else
    for (var c = lid; c < k; c += THREADS) { sum = fma(pair_word(a + c), wf(x + c), sum); }
#endif
    return sum;
}

// Grid: workgroups that share a run's ranks, runs, of which workgroups go on to further ones, ops.
@compute @workgroup_size(THREADS)
fn down(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let op = FIRST_OP + wg.z * OP_WORDS;
    let parts = p(op + OP_PARTS);
    let k = p(op + OP_K);
    let count = same(rows_of(p(0u)) * parts, lid);
    for (var run = wg.y; run < count; run += groups.y) {
        let own = own_of(op, run);
        let x = p(op + OP_X) + run / parts * p(op + OP_X_STRIDE) + run % parts * p(op + OP_X_PART);
        let rank = same(own.rank, lid);
        for (var r = wg.x; r < rank; r += groups.x) {
            let sum = sum_block(share(own.a + r * k, x, k, lid), lid);
            if (lid == 0u) { other[r * p(2u) + p(op + OP_FIRST) + run] = bitcast<u32>(sum); }
        }
    }
}

// Grid: columns, runs, ops.
@compute @workgroup_size(256)
fn up(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let op = FIRST_OP + wg.z * OP_WORDS;
    let c = wg.x * 256u + lid;
    let n = p(op + OP_N);
    let y = p(op + OP_Y);
    let out = p(op + OP_OUT);
    let count = rows_of(p(0u)) * p(op + OP_PARTS);
    if (c >= n) { return; }
    for (var run = wg.y; run < count; run += groups.y) {
        let own = own_of(op, run);
        let at = run * n + c;
        if (own.rank != 0u) {
            let low = p(op + OP_FIRST) + run;
            var sum = 0.0;
            for (var r = 0u; r < own.rank; r++) { sum = fma(pair_word(own.b + r * n + c), bitcast<f32>(other[r * p(2u) + low]), sum); }
            set_wf(out + at, wf(y + at) + sum);
        } else if (out != y) {
            set_wu(out + at, wu(y + at));
        }
    }
}

// A look-up by token, a workgroup for each row: 0 lead, 1 weights, 2 columns, 3 weight, 4 rows of the table, 5 y, 6 out.
@compute @workgroup_size(256)
fn tokens(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let i = wg.x;
    if (i >= rows_of(p(0u))) { return; }
    let row = step_row(p(0u), i);
    let token = row_token(row);
    let k = p(2u);
    var pair = pair_of(row, p(3u));
    if ((row_flags(row) & ROW_EMBEDS) != 0u || token >= p(4u)) { pair.z = 0u; }
    if (pair.z == 0u && p(5u) == p(6u)) { return; }
    for (var c = lid; c < k; c += 256u) {
        let at = i * k + c;
        if (pair.z == 0u) {
            set_wu(p(6u) + at, wu(p(5u) + at));
        } else {
            var sum = 0.0;
            for (var r = 0u; r < pair.z; r++) { sum = fma(pair_word(pair.y + r * p(4u) + token), pair_word(pair.x + r * k + c), sum); }
            set_wf(p(6u) + at, wf(p(5u) + at) + sum);
        }
    }
}
