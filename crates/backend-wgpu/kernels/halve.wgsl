// Rows of halves for cooperative matrices: two halves for each column under a power of two of the row's own, of which the second is what
// the first leaves.
#include "common.wgsl"
#include "reduce.wgsl"

// Words before a row's halves: what they are multiplied by to be x.
const HEAD: u32 = 4u;

// A row's halves, of an even number of columns. 0 x, 1 to, 2 lead, 3 columns, 4 columns of a row of x. Grid: rows. HEAD words a row, then
// the first of all halves, then the second ones.
@compute @workgroup_size(256)
fn halve(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let k = p(3u);
    let inside = same(rows_of(p(2u)), lid) > wg.x;
    if (!inside) { return; }
    let x = p(0u) + wg.x * p(4u);
    let to = p(1u) + wg.x * (HEAD + k);
    var most = 0.0;
    for (var c = lid; c < k; c += 256u) { most = max(most, abs(wf(x + c))); }
    most = max_block(most, lid);
    // The largest number lies between 2¹⁴ and 2¹⁵.
    let exponent = clamp(268u - max(bitcast<u32>(most) >> 23u, 15u), 1u, 253u);
    let factor = bitcast<f32>(exponent << 23u);
    if (lid == 0u) { set_wu(to, (254u - exponent) << 23u); }
    for (var w = lid; w < k / 2u; w += 256u) {
        let two = vec2<f32>(wf(x + 2u * w), wf(x + 2u * w + 1u)) * factor;
        // The first eleven bits, since compilers may take what is packed and unpacked for what it was.
        let high = bitcast<vec2<f32>>(bitcast<vec2<u32>>(two) & vec2<u32>(0xffffe000u));
        set_wu(to + HEAD + w, pack2x16float(high));
        set_wu(to + HEAD + k / 2u + w, pack2x16float(two - high));
    }
}
