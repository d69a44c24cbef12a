// Columns of rows on their way to products: their norm, and with `DOTS` integers of 16 bits in their place.

// Sixteen columns of a row, and what a norm multiplies them by.
struct Columns { v: array<vec4<f32>, 4> }

fn columns_of(row: u32, c: u32) -> Columns {
    return Columns(array<vec4<f32>, 4>(wf4(row + c), wf4(row + c + 4u), wf4(row + c + 8u), wf4(row + c + 12u)));
}
fn weights_of(c: u32) -> Columns {
    let at = p(4u) + c;
    return Columns(array<vec4<f32>, 4>(vf4(at), vf4(at + 4u), vf4(at + 8u), vf4(at + 12u)));
}
fn times(x: Columns, w: Columns, root: f32) -> Columns {
    return Columns(array<vec4<f32>, 4>(x.v[0] * (root * w.v[0]), x.v[1] * (root * w.v[1]), x.v[2] * (root * w.v[2]), x.v[3] * (root * w.v[3])));
}

fn squares(x: Columns) -> f32 { return square(x.v[3], square(x.v[2], square(x.v[1], square(x.v[0], 0.0)))); }

#if DOTS
// The largest integer that a column becomes: its upper byte is no more than 127.
const MOST: f32 = 32512.0;

fn largest(v: vec4<f32>) -> f32 {
    let a = abs(v);
    return max(max(a.x, a.y), max(a.z, a.w));
}
fn is_finite(v: vec4<f32>) -> bool { return all((bitcast<vec4<u32>>(v) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u)); }
fn summed(v: vec4<i32>) -> i32 { return (v.x + v.y) + (v.z + v.w); }

// Makes sixteen columns integers, every other thread the first ones of 32: upper bytes and lower ones of every eight, their sum, and the scale that all share.
// What is no finite number makes them none. Whoever includes this says where they go: `vec_at` is a run's first vector, `put` and the others fill it.
fn share(t: u32, i: u32, x: Columns, inside: bool, lid: u32) {
    let finite = is_finite(x.v[0]) && is_finite(x.v[1]) && is_finite(x.v[2]) && is_finite(x.v[3]);
    var most = max(max(largest(x.v[0]), largest(x.v[1])), max(largest(x.v[2]), largest(x.v[3])));
    if (!finite) { most = bitcast<f32>(0x7f000000u); }
    most = max_pair(most, lid);
    if (!inside) { return; }
    let up = select(0.0, MOST / most, most > 1e-30);
    let to = vec_at(t, i >> 1u);
    var sum = 0;
#for j 2
    let a$j = vec4<i32>(round(x.v[2u * $ju] * up));
    let b$j = vec4<i32>(round(x.v[2u * $ju + 1u] * up));
    let high_a$j = (a$j + 128) >> vec4<u32>(8u);
    let high_b$j = (b$j + 128) >> vec4<u32>(8u);
    put(to, (i & 1u) * 2u + $ju, vec4<u32>(pack4xI8(high_a$j), pack4xI8(high_b$j), pack4xI8(a$j - (high_a$j << vec4<u32>(8u))), pack4xI8(b$j - (high_b$j << vec4<u32>(8u)))));
    sum += summed(a$j) + summed(b$j);
#end
    let scale = select(most / MOST, bitcast<f32>(0x7fc00000u + p(63u) * 0u), most > 1e38);
    put_word(to, i & 1u, bitcast<u32>(sum));
    if ((i & 1u) == 0u) { put_word(to, 2u, bitcast<u32>(scale)); }
}
#endif
