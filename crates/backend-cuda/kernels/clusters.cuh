// Tiles of prompts' rows by outputs that clusters of two blocks go through on 9.0: both have the same rows, and outputs that lie
// beside each other.
#pragma once
#include "async.cuh"
#include "tiles.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTER 2u // blocks

// Pairs of tiles, of `wide` outputs each and `down` of them below each other.
template <int F> static __device__ __forceinline__ u32 pairs_of(const MatVec &op, u32 wide, u32 down) {
    u32 before = 0, tiles = 0, parts = op.gated ? 1 : PARTS;
    for (u32 i = 0; i < parts; i++) {
        u32 n = op.parts[i].end - before;
        before = op.parts[i].end;
        if (n && op.parts[i].dtype == F) tiles += (n + wide - 1) / wide;
    }
    return down * ((tiles + CLUSTER - 1) / CLUSTER);
}

// The outputs of a block's tile. A block without outputs copies those of the first tile for the other.
static __device__ __forceinline__ bool outputs_of(const MatVec &op, u32 format, u32 wide, u32 tile, Outputs *outs) {
    bool found = find_outputs(op, format, wide, tile, outs);
    if (!found) find_outputs(op, format, wide, 0, outs);
    return found;
}

// Tiles of a block that have rows of prompts. Those of the same outputs come one after the other, so that weights are read once.
template <int F, u32 ROWS, class Work> static __device__ __forceinline__ void each_tile(const Step &s, const MatVec &op, u32 count, u32 wide, Work work) {
    u32 lane = threadIdx.x & 31, down = (count + ROWS - 1) / ROWS, pairs = pairs_of<F>(op, wide, down);
    for (u32 pair = blockIdx.x / CLUSTER; pair < pairs; pair += gridDim.x / CLUSTER) {
        u32 first = pair % down * ROWS;
        bool any = false;
        #pragma unroll
        for (u32 r = lane; r < ROWS; r += 32) any |= first + r < count && of_prompt(s, op, first + r);
        if (!__any_sync(ALL_LANES, any)) continue;
        Outputs outs = {0, 0, 0};
        bool found = outputs_of(op, F, wide, pair / down * CLUSTER + cluster_rank(), &outs);
        work(first, outs, found, pair);
    }
}
#endif
