// Queries and keys between their products and attention: norms of heads, rotations, and the cache write.
#include "common.wgsl"
#include "reduce.wgsl"
#include "cache.wgsl"
#include "turn.wgsl"
#include "store.wgsl"

// 0..11 the cache, 12 q, 13 k, 14 v, 15 queries to, 16 query heads, 17 key heads, 18 columns of a head, 19..28 as in turn.wgsl,
// 29 columns of a value head.
const HEADS_AT: u32 = 19u;
const DIM: u32 = 256u;

// As their products leave them, then after norm and rotation.
var<workgroup> raw: array<f32, DIM>;
var<workgroup> columns: array<f32, DIM>;
var<workgroup> lives: u32;

// A workgroup of 64 threads for each head (x: queries, keys, values) of each row (y), a thread for four columns.
@compute @workgroup_size(64)
fn heads(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let row = wg.y;
    if (lid == 0u) {
        lives = 0u;
        if (row < rows_of(LEAD_ROWS)) { lives = row_flags(row) & ROW_LIVE; }
    }
    if (workgroupUniformLoad(&lives) == 0u) { return; }
    let n_q = p(16u);
    let n_k = p(17u);
    let is_value = wg.x >= n_q + n_k;
    let width = select(p(18u), p(29u), is_value);
    var head = wg.x;
    var x = p(12u) + (row * n_q + head) * width;
    var kind = OF_QUERIES;
    if (head >= n_q) {
        head -= n_q;
        kind = OF_KEYS;
        x = p(13u) + (row * n_k + head) * width;
    }
    if (is_value) {
        head -= n_k;
        x = p(14u) + (row * n_k + head) * width;
    }
    let own = four_at(x, lid, width);
    let inside = lid * 4u < width;
    if (is_value) {
        if (inside) {
#for i 4
            columns[lid * 4u + $iu] = own[$i];
#end
        }
    } else {
        // Both runs of 32 threads make the same sum.
        let squares = sum_lanes(square(four_at(x, (lid & 31u) + 32u, width), square(four_at(x, lid & 31u, width), 0.0)), lid);
        let y = normed(own, norm_weights(width, kind, head, lid), width, kind, squares);
        if (inside) {
#for i 4
            raw[lid * 4u + $iu] = y[$i];
#end
        }
        workgroupBarrier();
        if (inside) {
            let turns = turns_of(row, lid, width);
#for i 4
            let c$i = lid * 4u + $iu;
            let other$i = other_of(c$i);
            columns[c$i] = turned(y[$i], raw[other$i], turns.by[$i], other$i != c$i);
#end
        }
    }
    workgroupBarrier();
    if (wg.x < n_q) {
        for (var c = lid; c < width; c += 64u) { set_wf(p(15u) + (row * n_q + head) * width + c, columns[c]); }
        return;
    }
    let at = place(0u, seq_slot(row_seq(row)), place_of_row(row));
    if (at.block != NONE) { store_columns(select(4u, 8u, is_value), at, head * width, width, 0u, lid, 64u); }
}
