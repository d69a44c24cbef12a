// What bias, penalties and DRY make of the values that `best_logits` left: between it and `sample`, where any row of a work has
// some. Entries of a list may name a token more than once. Compiled with ATOMIC_WORK.
//
// 2 values, 3 counts (a word for each token, zeros before and after), 4 tokens of the vocabulary. Grid: logit rows.

#include "common.wgsl"
#include "num.wgsl"
#include "row_known.wgsl"

fn penalised(x: i32, count: u32, k: array<u32, K_WORDS>) -> i32 {
    let per_token = times(bitcast<i32>(k[11]), count, 0u);
    return minus(times(x, select(k[9], k[10], x > 0), 24u), plus(per_token, bitcast<i32>(k[12])));
}

@compute @workgroup_size(256)
fn touch(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let k = known_of(wg.x, lid);
    if (k[K_RUNS] == 0u || k[K_LIVE] == 0u || !is_touched(k)) { return; }
    let vocab = p(4u);
    let v = p(2u) + wg.x * vocab;
    let counts = p(3u) + wg.x * vocab;
    if (lid == 0u) {
        for (var i = 0u; i < k[K_N_BIAS]; i++) {
            let id = state[k[K_BIAS] + 2u * i];
            if (id < vocab) { set_wu(v + id, bitcast<u32>(plus(bitcast<i32>(wu(v + id)), bitcast<i32>(state[k[K_BIAS] + 2u * i + 1u])))); }
        }
    }
    let recent = min(k[13], k[K_POSITION] + 1u);
    let tokens = k[K_TOKENS] + (k[K_POSITION] + 1u - recent);
    for (var i = lid; i < recent; i += 256u) {
        let id = state[tokens + i];
        if (id < vocab) { atomicAdd(&work[counts + id], 1u); }
    }
    storageBarrier();
    for (var i = lid; i < recent; i += 256u) {
        let id = state[tokens + i];
        if (id >= vocab) { continue; }
        let count = atomicExchange(&work[counts + id], 0u);
        if (count > 0u) { set_wu(v + id, bitcast<u32>(penalised(bitcast<i32>(wu(v + id)), count, k))); }
    }
    storageBarrier();
    if (lid == 0u) {
        for (var i = 0u; i < k[K_DRY_COUNT]; i++) {
            let id = words[k[K_DRY] + 2u * i];
            if (id < vocab) { set_wu(v + id, bitcast<u32>(minus(bitcast<i32>(wu(v + id)), bitcast<i32>(words[k[K_DRY] + 2u * i + 1u])))); }
        }
    }
}
