// What kernels share that compute tiles of rows by outputs.
#pragma once
#include "products.cuh"
#include "tensor.cuh"

// Copies under way.
#ifndef STAGES
#define STAGES 4
#endif

// Bytes of a row in a tile, its pieces of 16 where they meet no others in their banks.
template <int BYTES> static __device__ __forceinline__ u32 spot(u32 row, u32 c) {
    return BYTES == 64 ? row * 64 + ((c ^ (row >> 1 & 3)) << 4) : row * 32 + ((c ^ (row >> 2 & 1)) << 4);
}

#ifdef HAS_TENSOR
// The part and the outputs of a tile; outputs of a gated pair alternate by 8 · `half` of a warp's.
struct Outputs {
    u32 part, first, count;
};

static __device__ __forceinline__ bool find_outputs(const MatVec &op, u32 format, u32 wide, u32 tile, Outputs *out) {
    u32 before = 0, parts = op.gated ? 1 : PARTS;
    for (u32 i = 0; i < parts; i++) {
        u32 n = op.parts[i].end - before;
        before = op.parts[i].end;
        if (n == 0 || op.parts[i].dtype != format) continue;
        u32 tiles = (n + wide - 1) / wide;
        if (tile < tiles) {
            out->part = i, out->first = tile * wide, out->count = n;
            return true;
        }
        tile -= tiles;
    }
    return false;
}

#define PAIRED 32 // outputs of a gated pair lie 16 by 16 beside each other

// What a row of a tile is multiplied by: 0 where it is no prompt's, and so is not written. `units` of all rows, or 0.
static __device__ __forceinline__ float row_unit(const Step &s, const MatVec &op, u32 row, u32 count, const float *units) {
    if (row >= count || !of_prompt(s, op, row)) return 0.0f;
    return units ? units[row] : 1.0f;
}

// Writes rows of prompts, four outputs a thread and row; `sums` has the rows, BN + 8 apart, `units` what each is multiplied by, if
// anything. Both lie in shared memory.
template <int ROWS, int BN, int THREADS, bool GATED, bool SCALED>
static __device__ __forceinline__ void write_outputs(const MatVec &op, const Outputs &outs, u32 first, const float *sums, const float *units) {
    const u32 WIDE = GATED ? BN / 2 : BN, GROUPS = WIDE / 4;
    u32 c = threadIdx.x % GROUPS * 4, o = outs.first + c;
    if (o >= outs.count) return;
    const Part &p = op.parts[outs.part], &up = op.parts[1];
    u32 n = min(4u, outs.count - o);
    float scale[2][4], bias[2][4];
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 at = o + min(i, n - 1);
        if (p.scale) scale[0][i] = p.scale[(p.y_first + at) % p.scale_len];
        if (p.bias) bias[0][i] = p.bias[p.y_first + at];
        if (GATED && up.scale) scale[1][i] = up.scale[(up.y_first + at) % up.scale_len];
        if (GATED && up.bias) bias[1][i] = up.bias[up.y_first + at];
    }
    bool whole = n == 4 && (p.y_stride | p.y_first) % 4 == 0;
    #pragma unroll 4
    for (u32 r = threadIdx.x / GROUPS; r < ROWS; r += THREADS / GROUPS) {
        u32 row = first + r;
        float unit = units[r], y[4];
        if (unit == 0.0f) continue;
        const float *from = sums + r * (BN + 8) + (GATED ? c / (PAIRED / 2) * PAIRED + c % (PAIRED / 2) : c);
        float4 a = *(const float4 *)from, b = GATED ? *(const float4 *)(from + PAIRED / 2) : a;
        y[0] = a.x, y[1] = a.y, y[2] = a.z, y[3] = a.w;
        float above[4] = {b.x, b.y, b.z, b.w};
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            if (SCALED) y[i] = __fmul_rn(y[i], unit), above[i] = __fmul_rn(above[i], unit);
            if (p.scale) y[i] = __fmul_rn(y[i], scale[0][i]);
            if (p.bias) y[i] = __fadd_rn(y[i], bias[0][i]);
            if (GATED) {
                if (up.scale) above[i] = __fmul_rn(above[i], scale[1][i]);
                if (up.bias) above[i] = __fadd_rn(above[i], bias[1][i]);
                y[i] = gated(op.act, y[i], above[i]);
            }
        }
        u64 to = (u64)row * p.y_stride + p.y_first + o;
        if (whole) {
            float4 add = p.add ? *(const float4 *)(p.add + to) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (p.add) y[0] = __fadd_rn(y[0], add.x), y[1] = __fadd_rn(y[1], add.y), y[2] = __fadd_rn(y[2], add.z), y[3] = __fadd_rn(y[3], add.w);
            *(float4 *)(p.y + to) = make_float4(y[0], y[1], y[2], y[3]);
        } else {
            #pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (i < n) p.y[to + i] = p.add ? __fadd_rn(y[i], p.add[to + i]) : y[i];
        }
    }
}
#endif
