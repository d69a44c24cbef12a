// Rows of halves for cooperative matrices, under a power of two of the row's own.
#include "common.wgsl"
#include "reduce.wgsl"

// Words before a row's halves: what they are multiplied by to be x.
const HEAD: u32 = 4u;

// The nearest numbers of eleven bits, the even one of two: packing rounds as drivers like.
fn nearest(x: vec2<f32>) -> vec2<f32> {
    let bits = bitcast<vec2<u32>>(x);
    let rounded = (bits + 0x0fffu + ((bits >> vec2<u32>(13u)) & vec2<u32>(1u))) & vec2<u32>(0xffffe000u);
    let finite = (bits & vec2<u32>(0x7f800000u)) != vec2<u32>(0x7f800000u);
    return bitcast<vec2<f32>>(select(bits, rounded, finite));
}

// A row's halves, of an even number of columns. 0 x, 1 to, 2 lead, 3 columns, 4 columns of a row of x. Grid: rows. HEAD words a row, then
// its halves.
@compute @workgroup_size(256)
fn halve(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let k = p(3u);
    let inside = same(rows_of(p(2u)), lid) > wg.x;
    if (!inside) { return; }
    let x = p(0u) + wg.x * p(4u);
    let to = p(1u) + wg.x * (HEAD + k / 2u);
    var most = 0.0;
    for (var c = lid; c < k; c += 256u) { most = max(most, abs(wf(x + c))); }
    most = max_block(most, lid);
    // The largest number lies between 2¹⁴ and 2¹⁵.
    let exponent = clamp(268u - max(bitcast<u32>(most) >> 23u, 15u), 1u, 253u);
    let factor = bitcast<f32>(exponent << 23u);
    if (lid == 0u) { set_wu(to, (254u - exponent) << 23u); }
    for (var w = lid; w < k / 2u; w += 256u) {
        let two = vec2<f32>(wf(x + 2u * w), wf(x + 2u * w + 1u)) * factor;
        set_wu(to + HEAD + w, pack2x16float(nearest(two)));
    }
}
