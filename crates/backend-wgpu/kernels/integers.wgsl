// Rows as integers of 16 bits, for products of several rows: the norm before them, and what `products.wgsl` makes of columns itself.
#include "common.wgsl"
#include "reduce.wgsl"
#include "columns.wgsl"
#include "integers_of_rows.wgsl"

fn vec_at(row: u32, run: u32) -> u32 { return (p(0u) >> 2u) + row * row_vecs(p(3u)) + vec_of(run); }
fn put(to: u32, i: u32, v: vec4<u32>) { set_wu4(4u * (to + i * LANES), v); }
fn put_word(to: u32, i: u32, word: u32) { set_wu(4u * (to + 4u * LANES) + i, word); }

// Parameters: those of `products.wgsl` up to 5, but for 0, where they go. Grid: rows, also where none of them runs any more.
@compute @workgroup_size(THREADS)
fn integers(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let k = p(3u);
    let x = p(1u) + wg.x * k;
#if NORMED
    var sum = 0.0;
    for (var c = lid * 16u; c < k; c += THREADS * 16u) { sum += squares(columns_of(x, c)); }
    let root = 1.0 / sqrt(sum_block(sum, lid) / f32(k) + pf(5u));
#endif
    for (var before = 0u; before * 16u < k; before += THREADS) {
        let i = before + lid;
        let c = min(i * 16u, k - 16u);
        var own = columns_of(x, c);
#if NORMED
        own = times(own, weights_of(c), root);
#endif
        share(wg.x, i, own, i * 16u < k, lid);
    }
}
