// Products of replies' rows with weights of sixteen bits: what all kernels that make them share.
//
// A run of 32 columns of a row goes in two parts of sixteen bits under a power of two of its own, so that 22 bits of its largest
// number are kept (16 with bfloats). Its dot is what tensor cores make of either part in two steps of 16 columns, from zero; both
// are added and multiplied by the power. Every eighth run is summed up in turn, then the eight sums in pairs: 4 apart, then
// neighbours, then the rest: ((0 + 1) + (4 + 5)) + ((2 + 3) + (6 + 7)). A lane has eight columns of a run: of the first step its
// columns 0 to 3, of the second 4 to 7. Without tensor cores a lane sums its eight columns of every 256 one after the other.
#pragma once
#include "common.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HAS_TENSOR 1
#endif

#ifdef HAS_TENSOR
// Halves: 16 x 16 by 16 x 8, added to floats.
static __device__ __forceinline__ void mma_halves(float *d, const u32 *a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of bfloats.
static __device__ __forceinline__ void mma_bfloats(float *d, const u32 *a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers as halves.
static __device__ __forceinline__ u32 two_halves(float a, float b) {
    u32 two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(b), "f"(a));
    return two;
}

static __device__ __forceinline__ u32 two_bfloats(float a, float b) {
    u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(b), "f"(a));
    return two;
}

// What a run whose largest number is `most` is multiplied by, so that this lies between 2^14 and 2^15, and what undoes it.
struct Power {
    float up, down;
};
static __device__ __forceinline__ Power power_of(float most) {
    u32 power = __float_as_uint(most) >> 23;
    bool ordinary = power > 14 && power < 255;
    return {ordinary ? __uint_as_float((268 - power) << 23) : 1.0f, ordinary ? __uint_as_float((power - 14) << 23) : 1.0f};
}

// Two numbers' first part, and what it leaves of them: nothing of what is infinite or no number.
template <int F> static __device__ __forceinline__ u32 two_firsts(float a, float b) {
    return F == T_F16 ? two_halves(a, b) : two_bfloats(a, b);
}
template <int F> static __device__ __forceinline__ u32 two_left(float a, float b, u32 first) {
    float x = F == T_F16 ? half_to_float((u16)first) : __uint_as_float(first << 16);
    float y = F == T_F16 ? half_to_float((u16)(first >> 16)) : __uint_as_float(first & 0xffff0000u);
    return two_firsts<F>(fabsf(x) < INF ? a - x : 0.0f, fabsf(y) < INF ? b - y : 0.0f);
}

// Four numbers of a run under its power as tensor cores take them for a step: both parts of the first two, then of the others.
template <int F> static __device__ __forceinline__ uint4 cut_four(const float *x, float up) {
    float a = __fmul_rn(x[0], up), b = __fmul_rn(x[1], up), c = __fmul_rn(x[2], up), d = __fmul_rn(x[3], up);
    u32 ab = two_firsts<F>(a, b), cd = two_firsts<F>(c, d);
    return make_uint4(ab, two_left<F>(a, b, ab), cd, two_left<F>(c, d, cd));
}

static __device__ __forceinline__ float largest_of_four(const float *x) {
    return fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
}

// The dots of a run: rows of what either step takes by outputs of `w`.
template <int F> static __device__ __forceinline__ void run_dots(float *d, uint4 first, uint4 second, uint4 w) {
    u32 a[4] = {first.x, first.y, first.z, first.w}, b[4] = {second.x, second.y, second.z, second.w};
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    if (F == T_F16) mma_halves(d, a, w.x, w.y), mma_halves(d, b, w.z, w.w);
    else mma_bfloats(d, a, w.x, w.y), mma_bfloats(d, b, w.z, w.w);
}
#endif

// Eight numbers of a lane: on tensor cores what either step takes.
struct Eight {
#ifdef HAS_TENSOR
    uint4 first, second;
    float unit; // of the run, which four lanes share
#else
    float x[8];
#endif
};

// All lanes of a warp come together.
template <int F> static __device__ __forceinline__ Eight eight_of(float4 a, float4 b) {
    Eight e;
#ifdef HAS_TENSOR
    float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, most = fmaxf(largest_of_four(x), largest_of_four(x + 4));
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
    Power p = power_of(most);
    e.first = cut_four<F>(x, p.up), e.second = cut_four<F>(x + 4, p.up);
    e.unit = p.down;
#else
    e.x[0] = a.x, e.x[1] = a.y, e.x[2] = a.z, e.x[3] = a.w, e.x[4] = b.x, e.x[5] = b.y, e.x[6] = b.z, e.x[7] = b.w;
#endif
    return e;
}

#ifdef HAS_TENSOR
// The dot of a run where every four lanes have one of eight runs and its weights; in the lane that `own_run` takes it from.
template <int F> static __device__ __forceinline__ float own_dot(const Eight &e, uint4 w) {
    float d[4];
    run_dots<F>(d, e.first, e.second, w);
    bool odd = threadIdx.x & 4;
    return __fadd_rn(odd ? d[1] : d[0], odd ? d[3] : d[2]);
}
#endif

// Adds what a lane's eight columns of a row are with an output's weights.
template <int F> static __device__ __forceinline__ float plus_eight(const Eight &e, uint4 w, float sum) {
#ifdef HAS_TENSOR
    return __fmaf_rn(own_dot<F>(e, w), e.unit, sum);
#else
    u32 words[4] = {w.x, w.y, w.z, w.w};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        float low = F == T_F16 ? half_to_float((u16)words[i]) : __uint_as_float(words[i] << 16);
        float high = F == T_F16 ? half_to_float((u16)(words[i] >> 16)) : __uint_as_float(words[i] & 0xffff0000u);
        sum = __fmaf_rn(high, e.x[2 * i + 1], __fmaf_rn(low, e.x[2 * i], sum));
    }
    return sum;
#endif
}

// A lane's sum as `sum_lanes` takes it.
static __device__ __forceinline__ float own_run(float sum) {
#ifdef HAS_TENSOR
    u32 lane = threadIdx.x & 31;
    return (lane & 3) == lane >> 3 ? sum : 0.0f;
#else
    return sum;
#endif
}
