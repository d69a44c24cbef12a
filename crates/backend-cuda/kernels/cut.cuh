// Rows of prompts in parts of sixteen bits, as products of `gemm16.cu` take them.
//
// On 9.0 parts lie as tensor cores take them: 64 rows of 64 columns in one piece, two of these for every 128 rows, then the next
// columns; and units of 128 rows, then those of the next columns.
#pragma once
#include "formats.cuh"
#include "wgmma.cuh"

struct Cut {
    const float *x;
    u16 *parts;     // rows of each part, `apart` numbers from one part to the next
    float *units;   // what a row is multiplied by in the end; on 9.0 every 64 columns of it
    u64 apart;
    u32 width, format;
};

template <int F> struct Cuts {
    static const int parts = F == T_F16 ? 2 : 3;
};

#ifdef HAS_WGMMA
#define TILE_BYTES (64 * 128)
// Where 64 columns of a row begin, and how far it is to the next ones.
static __device__ __forceinline__ u64 tile_of(u32 row, u32 columns) {
    return ((u64)(row / 128) * ((columns + 63) / 64) * 2 + row / 64 % 2) * TILE_BYTES;
}
// Where the unit of the first 64 columns of a row is; those of the next ones are 128 further.
static __device__ __forceinline__ u64 unit_of(u32 row, u32 columns) { return (u64)(row / 128) * ((columns + 63) / 64) * 128 + row % 128; }

// Two numbers in parts.
template <int F> static __device__ __forceinline__ void cut_two(float a, float b, u32 (&parts)[Cuts<F>::parts]) {
    #pragma unroll
    for (int p = 0; p < Cuts<F>::parts; p++) {
        parts[p] = two_firsts<F>(a, b);
        float x = F == T_F16 ? half_to_float((u16)parts[p]) : __uint_as_float(parts[p] << 16);
        float y = F == T_F16 ? half_to_float((u16)(parts[p] >> 16)) : __uint_as_float(parts[p] & 0xffff0000u);
        // What is infinite or no number has no second part.
        a = fabsf(x) < INF ? a - x : 0.0f, b = fabsf(y) < INF ? b - y : 0.0f;
    }
}

// Four columns of a row, of which sixteen lanes have 64; the largest number of those.
template <int F> static __device__ __forceinline__ float cut_columns(const Cut &op, u32 row, u32 column, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w}, most = largest_of_four(x);
    #pragma unroll
    for (u32 d = 1; d < 16; d <<= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
    if (column >= (op.width + 63) / 64 * 64) return most;
    Power power = F == T_F16 ? power_of(most) : Power{1.0f, 1.0f};
    if (column % 64 == 0) op.units[unit_of(row, op.width) + column / 64 * 128] = power.down;
    u32 a[Cuts<F>::parts], b[Cuts<F>::parts];
    cut_two<F>(v.x * power.up, v.y * power.up, a);
    cut_two<F>(v.z * power.up, v.w * power.up, b);
    u64 to = tile_of(row, op.width) + column / 64 * 2 * TILE_BYTES + swizzled(row % 64, column / 8 % 8) + column % 8 * 2;
    #pragma unroll
    for (int p = 0; p < Cuts<F>::parts; p++) *(uint2 *)((u8 *)(op.parts + p * op.apart) + to) = make_uint2(a[p], b[p]);
    return most;
}

// In the place of a column of what is not written.
#define NO_COLUMN 0xfffffffcu

// The unit of a head for attention, of its largest number: 0 says that the head is less than 2^-112 and taken for zeros, one below 0
// that numbers of it are infinite or none; the others are cut as if they were alone.
static __device__ __forceinline__ float head_unit(float most, bool wrong) {
    float down = power_of(most).down;
    return wrong ? -down : __float_as_uint(most) >> 23 > 14 ? down : 0.0f;
}

// As `cut_columns`, a head for attention.
static __device__ __forceinline__ void cut_head(const Cut &op, u32 row, u32 column, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w}, most = 0.0f;
    bool wrong = false;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        bool number = fabsf(x[i]) < INF;
        wrong |= !number;
        most = fmaxf(most, number ? fabsf(x[i]) : 0.0f);
    }
    #pragma unroll
    for (u32 d = 1; d < 16; d <<= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
    wrong = __ballot_sync(ALL_LANES, wrong) >> (threadIdx.x & 16) & 0xffff;
    if (column >= op.width) return;
    if (column % 64 == 0) op.units[unit_of(row, op.width) + column / 64 * 128] = head_unit(most, wrong);
    float up = power_of(most).up;
    u32 a[2], b[2];
    cut_two<T_F16>(v.x * up, v.y * up, a);
    cut_two<T_F16>(v.z * up, v.w * up, b);
    u64 to = tile_of(row, op.width) + column / 64 * 2 * TILE_BYTES + swizzled(row % 64, column / 8 % 8) + column % 8 * 2;
    #pragma unroll
    for (int p = 0; p < 2; p++) *(uint2 *)((u8 *)(op.parts + p * op.apart) + to) = make_uint2(a[p], b[p]);
}
#endif
