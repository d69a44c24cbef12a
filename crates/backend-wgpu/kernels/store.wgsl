// Writes a head's columns, which lie in `columns` from `start` on, to an entry of a plane: `threads` together, one at least for every 32 columns.
#include "cache.wgsl"

fn store_columns(q: u32, at: Place, column: u32, width: u32, start: u32, thread: u32, threads: u32) {
    let dtype = cached_type(q);
    let plane_width = p(q + 2u);
    if (dtype == 1u || dtype == 30u) {
        let base = at.block + p(q) + at.entry * ((plane_width + 1u) / 2u) + column / 2u;
        for (var w = thread; w < width / 2u; w += threads) {
            let x = columns[start + 2u * w];
            let y = columns[start + 2u * w + 1u];
            var word = to_half(x) | (to_half(y) << 16u);
            if (dtype == 30u) { word = to_bfloat(x) | (to_bfloat(y) << 16u); }
            cache[base + w] = word;
        }
    } else if (dtype == 0u) {
        for (var c = thread; c < width; c += threads) { cache[at.block + p(q) + at.entry * plane_width + column + c] = bitcast<u32>(columns[start + c]); }
    } else if (thread < width / 32u) {
        for (var c = 0u; c < 32u; c++) { run_values[c] = columns[start + thread * 32u + c]; }
        store_run(q, at, column / 32u + thread);
    }
}
