// Sums and maxima over runs of 32 threads in one order of additions, whatever the width of a subgroup, and over workgroups of
// `THREADS` threads. All threads of a workgroup call them together.

// A sum with four squares more.
fn square(v: vec4<f32>, sum: f32) -> f32 { return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum)))); }

var<workgroup> lanes: array<f32, 256>;
var<workgroup> warps: array<f32, 8>;

#if SUBGROUPS
// Subgroups of 32 and more, whose lanes are consecutive threads.
fn sum_lanes(x: f32, lid: u32) -> f32 {
    var s = x;
    s += subgroupShuffleXor(s, 16u);
    s += subgroupShuffleXor(s, 8u);
    s += subgroupShuffleXor(s, 4u);
    s += subgroupShuffleXor(s, 2u);
    s += subgroupShuffleXor(s, 1u);
    return s;
}

fn max_lanes(x: f32, lid: u32) -> f32 {
    var s = x;
    s = max(s, subgroupShuffleXor(s, 16u));
    s = max(s, subgroupShuffleXor(s, 8u));
    s = max(s, subgroupShuffleXor(s, 4u));
    s = max(s, subgroupShuffleXor(s, 2u));
    s = max(s, subgroupShuffleXor(s, 1u));
    return s;
}

// Of a thread and its neighbour.
fn max_pair(x: f32, lid: u32) -> f32 { return max(x, subgroupShuffleXor(x, 1u)); }
#else
fn max_pair(x: f32, lid: u32) -> f32 {
    workgroupBarrier();
    lanes[lid] = x;
    workgroupBarrier();
    return max(x, lanes[lid ^ 1u]);
}

fn sum_lanes(x: f32, lid: u32) -> f32 {
    var s = x;
    for (var d = 16u; d > 0u; d >>= 1u) {
        workgroupBarrier();
        lanes[lid] = s;
        workgroupBarrier();
        s += lanes[lid ^ d];
    }
    return s;
}

fn max_lanes(x: f32, lid: u32) -> f32 {
    var s = x;
    for (var d = 16u; d > 0u; d >>= 1u) {
        workgroupBarrier();
        lanes[lid] = s;
        workgroupBarrier();
        s = max(s, lanes[lid ^ d]);
    }
    return s;
}
#endif

fn sum_block(x: f32, lid: u32) -> f32 {
    let s = sum_lanes(x, lid);
    workgroupBarrier();
    if ((lid & 31u) == 0u) { warps[lid >> 5u] = s; }
    workgroupBarrier();
    var sum = warps[0];
    for (var w = 1u; w < THREADS / 32u; w++) { sum += warps[w]; }
    return sum;
}

fn max_block(x: f32, lid: u32) -> f32 {
    let s = max_lanes(x, lid);
    workgroupBarrier();
    if ((lid & 31u) == 0u) { warps[lid >> 5u] = s; }
    workgroupBarrier();
    var most = warps[0];
    for (var w = 1u; w < THREADS / 32u; w++) { most = max(most, warps[w]); }
    return most;
}
