// What kernels share that compute tiles of rows by outputs.
#pragma once
#include "products.cuh"
#include "tensor.cuh"

// An integer whose bits are a float of 2^23 + 2^22 and that integer: sums that begin at it need no conversion.
#define EXACT 0x4b400000
#define EXACT_FLOAT 12582912.0f

// Copies under way.
#ifndef STAGES
#define STAGES 4
#endif

// Bytes of a row in a tile, its pieces of 16 where they meet no others in their banks.
template <int BYTES> static __device__ __forceinline__ u32 spot(u32 row, u32 c) {
    return BYTES == 64 ? row * 64 + ((c ^ (row >> 1 & 3)) << 4) : row * 32 + ((c ^ (row >> 2 & 1)) << 4);
}

#ifdef HAS_TENSOR
static __device__ __forceinline__ float exact(i32 sum) { return __int_as_float(sum) - EXACT_FLOAT; }

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
#endif
