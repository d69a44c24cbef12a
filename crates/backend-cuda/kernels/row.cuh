// A row of a product in shared memory, as tapes make it.
#pragma once
#include "products.cuh"

static __device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// A row in shared memory: bytes with their scales and sums, or floats. Halves of a run lie apart and leave a gap after eight,
// so that lanes find other banks than their neighbours whether they take every run or every second one.
struct Acts1 {
    uint4 *low, *high;
    float *d;
    i32 *s;
    float *x;
};

static __device__ __forceinline__ u32 spread(u32 run) { return run + (run >> 3); }

static __device__ __forceinline__ Acts1 acts_in(u8 *space, u32 k) {
    Acts1 a;
    u32 runs = k / 32, wide = (spread(runs) + 1) & ~1u;
    a.low = (uint4 *)space, a.high = a.low + wide;
    a.d = (float *)(a.high + wide), a.s = (i32 *)(a.d + runs);
    a.x = (float *)space;
    return a;
}
