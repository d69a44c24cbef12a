// Products of routed rows with the matrices of their experts: rows in the order of their experts, 64 of them at a time, once for each
// expert among them.
#include "tiles.wgsl"

var<workgroup> run_length: atomic<u32>;

fn routed_at(place: u32) -> u32 { return wu(p(21u) + place); }
fn expert_of(routed: u32) -> u32 { return wu(p(7u) + routed); }

// Whether what is routed is stored by this launch.
fn is_routed(place: u32, count: u32) -> bool {
    if (place >= count) { return false; }
    return is_wanted(routed_at(place) / p(18u), NONE);
}

fn store_one(routed: u32, matrix: u32, o: u32, sum: f32) {
    if (o >= p(9u)) { return; }
    let at = p(15u) + o;
    var y = sum;
    if (p(5u) != NONE) { y *= vf(p(5u) + matrix + p(19u)); }
    if (p(6u) != NONE) { y += vf(p(6u) + (matrix + p(19u)) * p(17u) + at); }
    set_wf(p(4u) + routed / p(18u) * p(13u) + routed % p(18u) * p(14u) + at, y);
}

// A row of a tile, if it is one of the expert's.
fn store_routed(place: u32, first: u32, end: u32, matrix: u32, o: u32, s: Sums) {
    if (place < first || place >= end || !is_routed(place, end)) { return; }
    let routed = routed_at(place);
    store_one(routed, matrix, o, s.a.x);
    store_one(routed, matrix, o + 16u, s.a.y);
    store_one(routed, matrix, o + 32u, s.a.z);
    store_one(routed, matrix, o + 48u, s.a.w);
    store_one(routed, matrix, o + 64u, s.b.x);
    store_one(routed, matrix, o + 80u, s.b.y);
    store_one(routed, matrix, o + 96u, s.b.z);
    store_one(routed, matrix, o + 112u, s.b.w);
}

// Parameters are those of `matvec`, then 21 the order that `group` gives. Grid: outputs / 128, routed rows / 64.
@compute @workgroup_size(256)
fn tiles_routed(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let top_k = p(18u);
    let count = same(rows_of(p(8u)) * top_k, lid);
    let tile = wg.y * TILE_ROWS;
    let last = min(tile + TILE_ROWS, count);
    let o = wg.x * OUTPUTS;
    var first = tile;
    while (first < last) {
        // How many of the tile's rows from here on are the same expert's, and whether any is wanted.
        let expert = same(expert_of(routed_at(first)), lid);
        if (lid == 0u) {
            atomicStore(&run_length, 0u);
            atomicStore(&any_row, 0u);
        }
        workgroupBarrier();
        if (lid < TILE_ROWS && tile + lid >= first && tile + lid < last) {
            if (expert_of(routed_at(tile + lid)) == expert) {
                atomicAdd(&run_length, 1u);
                if (is_routed(tile + lid, count)) { atomicStore(&any_row, 1u); }
            }
        }
        workgroupBarrier();
        let end = first + same(atomicLoad(&run_length), lid);
        let wanted = same(atomicLoad(&any_row), lid) != 0u;
        let matrix = expert - p(19u);
        if (wanted && matrix < p(20u)) {
            let w = p(0u) + matrix * p(2u) + min(o + (lid >> 1u), p(9u) - 1u) * p(1u);
            let routed = routed_at(clamp(tile + (lid >> 2u), first, end - 1u));
            let x = p(3u) + routed / top_k * p(11u) + routed % top_k * p(12u);
            let t = tile_of(w, x, p(10u), lid);
            let place = tile + (lid >> 4u);
            let out = o + (lid & 15u);
            store_routed(place, first, end, matrix, out, t.a);
            store_routed(place + 16u, first, end, matrix, out, t.b);
            store_routed(place + 32u, first, end, matrix, out, t.c);
            store_routed(place + 48u, first, end, matrix, out, t.d);
        }
        first = end;
    }
}
