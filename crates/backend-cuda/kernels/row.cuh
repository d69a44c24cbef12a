// A row of a product in shared memory, as tapes make it.
#pragma once
#include "products.cuh"

static __device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// A row in shared memory: bytes with their scales and sums, or parts of sixteen bits with the units of runs. Halves of a run in
// bytes lie apart and leave a gap after eight, so that lanes find other banks than their neighbours whether they take every run or
// every second one. What the first steps on tensor cores take lies apart from what the second ones do.
struct Acts1 {
    uint4 *low, *high;
    float *d;
    i32 *s;
    uint4 *first, *second;
    float *unit;
};

// Columns with those that fill the last run.
static __device__ __forceinline__ u32 whole_runs(u32 k) { return (k + 31) & ~31u; }

static __device__ __forceinline__ u32 spread(u32 run) { return run + (run >> 3); }

static __device__ __forceinline__ Acts1 acts_in(u8 *space, u32 k) {
    Acts1 a;
    u32 runs = k / 32, wide = (spread(runs) + 1) & ~1u;
    a.low = (uint4 *)space, a.high = a.low + wide;
    a.d = (float *)(a.high + wide), a.s = (i32 *)(a.d + runs);
    u32 padded = whole_runs(k);
    a.first = (uint4 *)space, a.second = a.first + padded / 8, a.unit = (float *)(a.second + padded / 8);
    return a;
}

// What is in shared memory at an address.
static __device__ __forceinline__ uint4 four_in_shared(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
static __device__ __forceinline__ float one_in_shared(u32 at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

static __device__ __forceinline__ float4 floats_in_shared(u32 at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ void put_floats(u32 at, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
static __device__ __forceinline__ u32 short_in_shared(u32 at) {
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ void put_float(u32 at, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory"); }

// Byte `I` as a float: behind 2^23 an integer is the end of one.
template <int I> static __device__ __forceinline__ float float_of_byte(u32 v) {
    return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7540u + I)) - 8388608.0f;
}

// Scales of a unit's runs and the minima of each, from what stands before a block. Codes of Q4_K's second run are 16 times as large.
template <int F> static __device__ __forceinline__ float4 run_scales(u32 at, u32 j) {
    uint4 h = four_in_shared(at);
    u32 pick = j & 1 ? 0x7632u : 0x5410u, low = __byte_perm(h.y, h.z, pick);
    u32 v = j < 2 ? low & 0x3f3f3f3fu : (__byte_perm(h.w, h.w >> 4, pick) & 0x0f0f0f0fu) | (low >> 2 & 0x30303030u);
    float d = half_to_float((u16)h.x), m = half_to_float((u16)(h.x >> 16)), second = d * float_of_byte<1>(v);
    return make_float4(d * float_of_byte<0>(v), F == T_Q4_K ? second * 0.0625f : second, m * float_of_byte<2>(v), m * float_of_byte<3>(v));
}

// Addresses in shared memory: of R rows' weights of sixteen bits, a lane's own, and of the row in parts that they are multiplied by.
template <int R> struct Sixteens {
    u32 w[R], first, second, unit;
};
template <int R> static __device__ __forceinline__ Sixteens<R> sixteens_at(const Acts1 &a) {
    Sixteens<R> s;
    s.first = shared_address(a.first), s.second = shared_address(a.second), s.unit = shared_address(a.unit);
    return s;
}
template <int R> struct Sums {
    float of[R];
};

#ifdef HAS_TENSOR
// Adds N stretches of 256 columns from a lane's `c` on: all are read before the first is multiplied.
template <int F, int N, int R> static __device__ __forceinline__ void plus_stretches(Sixteens<R> &s, u32 c, Sums<R> &sums) {
    Eight e[N];
    uint4 v[N][R];
    float d[N][R];
    #pragma unroll
    for (int n = 0; n < N; n++) {
        u32 at = c + 256 * n;
        e[n].first = four_in_shared(s.first + at * 2), e[n].second = four_in_shared(s.second + at * 2);
        #pragma unroll
        for (int r = 0; r < R; r++) v[n][r] = four_in_shared(s.w[r] + 512 * n);
        e[n].unit = one_in_shared(s.unit + at / 32 * 4);
    }
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int r = 0; r < R; r++) d[n][r] = own_dot<F>(e[n], v[n][r]);
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int r = 0; r < R; r++) sums.of[r] = __fmaf_rn(d[n][r], e[n].unit, sums.of[r]);
    #pragma unroll
    for (int r = 0; r < R; r++) s.w[r] += 512 * N;
}
#endif

// Adds the columns from `first` to `end`, N stretches at a time; on its own, so that it has registers for them.
// Columns behind the last, which weights may have none of, are 0.
template <int F, int N, int R> static __device__ __noinline__ Sums<R> sixteen_sums(Sixteens<R> s, u32 first, u32 end, Sums<R> sums) {
#ifdef HAS_TENSOR
    u32 own = (threadIdx.x & 31) * 8;
    #pragma unroll 1
    for (; first + 256 * N <= end; first += 256 * N) plus_stretches<F, N, R>(s, first + own, sums);
    #pragma unroll 1
    for (; first + 256 <= end; first += 256) plus_stretches<F, 1, R>(s, first + own, sums);
    if (first >= end) return sums;
    u32 c = first + own;
    const uint4 none = make_uint4(0, 0, 0, 0);
    Eight e;
    e.first = c < end ? four_in_shared(s.first + c * 2) : none, e.second = c < end ? four_in_shared(s.second + c * 2) : none;
    e.unit = (c & ~31u) < end ? one_in_shared(s.unit + c / 32 * 4) : 0.0f;
    #pragma unroll
    for (int r = 0; r < R; r++) sums.of[r] = plus_eight<F>(e, c < end ? four_in_shared(s.w[r]) : none, sums.of[r]);
#endif
    return sums;
}

// Puts N times four columns of a row in parts, from `c` on and every `step` after it; the eight lanes of a run come together.
// Columns behind the last are 0.
template <int F, int N> static __device__ __forceinline__ void put_parts(const Acts1 &to, u32 k, u32 c, u32 step, const float (&v)[N][4]) {
#ifdef HAS_TENSOR
    float x[N][4], most[N];
    #pragma unroll
    for (int n = 0; n < N; n++) {
        #pragma unroll
        for (int i = 0; i < 4; i++) x[n][i] = c + n * step < k ? v[n][i] : 0.0f;
        most[n] = largest_of_four(x[n]);
    }
    #pragma unroll
    for (u32 d = 1; d < 8; d <<= 1)
        #pragma unroll
        for (int n = 0; n < N; n++) most[n] = fmaxf(most[n], __shfl_xor_sync(ALL_LANES, most[n], d));
    #pragma unroll
    for (int n = 0; n < N; n++) {
        u32 at = c + n * step;
        Power p = power_of(most[n]);
        uint4 four = cut_four<F>(x[n], p.up);
        if (at >= whole_runs(k)) continue;
        (at & 4 ? to.second : to.first)[at / 8] = four;
        if (at % 32 == 0) to.unit[at / 32] = p.down;
    }
#endif
}
