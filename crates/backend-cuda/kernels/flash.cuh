// What the kernels of attention over cached halves are given.
#pragma once
#include "cache.cuh"

struct Flash {
    Cache cache;
    const float *q;
    const float *sinks;
    float *out;
    float *partial;     // per row, head and split: largest score, sum of weights, weighted values
    u32 heads, kv_heads, window, splits;
    float scale;
    u32 looped;         // a block takes all splits of its row
    u32 kinds;          // whether rows of prompts are left to the kernels of prompts.cu
};

// Keys that a row sees: from `low` to `high`.
static __device__ __forceinline__ void seen(const Step &s, const Flash &op, u32 row, u32 *low, u32 *high) {
    u32 pos = place_of_row(s, row);
    *high = pos + 1;
    *low = op.window && pos + 1 > op.window ? pos + 1 - op.window : 0;
}
