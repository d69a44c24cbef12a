// Halves as floats, and eight of these.

struct Eight { a: vec4<f32>, b: vec4<f32> }

// The value of a half, subnormal ones too, whatever the device makes of subnormal numbers.
fn half_exact(h: u32) -> f32 {
    let e = (h >> 10u) & 31u;
    let sign = (h & 0x8000u) << 16u;
    let raised = ((h & 0x7fffu) << 13u) + select(0x38000000u, 0x70000000u, e == 31u);
    let small = bitcast<u32>(f32(h & 1023u) * 5.9604644775390625e-8);
    return bitcast<f32>(select(raised, small, e == 0u) | sign);
}
