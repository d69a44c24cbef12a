// Plain numbers: eight of them are a block.

const BLOCK: u32 = 8u;

#if FORMAT == 0
const BLOCK_WORDS: u32 = 8u;

fn load8(at: u32, i: u32) -> Eight {
    let a = vec4<u32>(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u]);
    let b = vec4<u32>(weights[at + 4u], weights[at + 5u], weights[at + 6u], weights[at + 7u]);
    return Eight(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b));
}
#else
const BLOCK_WORDS: u32 = 4u;

#if FORMAT == 1
fn two(w: u32) -> vec2<f32> { return unpack2x16float(w); }
#else
fn two(w: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(w << 16u), bitcast<f32>(w & 0xffff0000u)); }
#endif

fn eight_of(w: vec4<u32>) -> Eight { return Eight(vec4<f32>(two(w.x), two(w.y)), vec4<f32>(two(w.z), two(w.w))); }

#if WEIGHTS_VEC4 == 0
fn load8(at: u32, i: u32) -> Eight { return eight_of(vec4<u32>(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u])); }
#endif
#endif
