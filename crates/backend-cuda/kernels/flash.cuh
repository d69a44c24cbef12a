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

struct Heads {
    Cache cache;
    const float *q, *k, *v;
    float *q_out;
    const float *wq, *wk;   // of the norms
    const float2 *turns;
    u32 q_heads, k_heads, v_heads, dim, dim_v;
    u32 offset, pairs, halves;
    u32 kind_q, kind_k, wq_len, wk_len;
    float eps_q, eps_k;
};

#define MOST_DIM 256

// A head of queries or keys of at most so many columns, normalised and rotated by a warp: column `r · 32 + lane` in `y[r]`. `own` is the warp's.
template <u32 MOST> static __device__ __forceinline__ void turn_head(const Heads &op, u32 row, u32 h, bool query, float *own, float *y) {
    u32 lane = threadIdx.x & 31, kind = query ? op.kind_q : op.kind_k, w_len = query ? op.wq_len : op.wk_len;
    u32 heads = query ? op.q_heads : op.k_heads;
    float eps = query ? op.eps_q : op.eps_k;
    const float *w = query ? op.wq : op.wk, *x = (query ? op.q : op.k) + ((u64)row * heads + h) * op.dim;
    u32 w_first = w_len == op.dim ? 0 : h * op.dim % w_len;
    const float2 *turns = op.turns + (u64)row * op.pairs;
    // Everything is asked for before anything is waited for.
    float raw[MOST / 32], weight[MOST / 32];
    float2 turn[MOST / 32];
    #pragma unroll
    for (u32 r = 0; r < MOST / 32; r++) {
        u32 c = r * 32 + lane, i = c - op.offset;
        bool there = c < op.dim, turned = there && c >= op.offset && i < 2 * op.pairs;
        raw[r] = there ? x[c] : 0.0f;
        weight[r] = there && w ? w[w_first + c < w_len ? w_first + c : (w_first + c) % w_len] : 1.0f;
        u32 pair = op.halves ? (i >= op.pairs ? i - op.pairs : i) : i / 2;
        if (turned) turn[r] = turns[pair];
    }
    float mean = 0.0f, squares = 0.0f, root = 1.0f;
    if (kind == NORM_LAYER) {
        #pragma unroll
        for (u32 r = 0; r < MOST / 32; r++)
            if (r * 32 + lane < op.dim) mean += raw[r];
        mean = sum_lanes(mean) / (float)op.dim;
    }
    if (kind != NORM_NONE) {
        #pragma unroll
        for (u32 r = 0; r < MOST / 32; r++)
            if (r * 32 + lane < op.dim) squares = __fmaf_rn(raw[r] - mean, raw[r] - mean, squares);
        squares = sum_lanes(squares);
        root = kind == NORM_L2 ? sqrtf(squares + eps) : kind == NORM_L2_MAX ? fmaxf(sqrtf(squares), eps)
                                                                        : sqrtf(squares / (float)op.dim + eps);
    }
    #pragma unroll
    for (u32 r = 0; r < MOST / 32; r++) {
        u32 c = r * 32 + lane;
        if (c < op.dim) own[c] = (raw[r] - mean) / root * weight[r];
    }
    __syncwarp();
    #pragma unroll
    for (u32 r = 0; r < MOST / 32; r++) {
        u32 c = r * 32 + lane;
        if (c >= op.dim) break;
        float v = own[c];
        if (c >= op.offset && c < op.offset + 2 * op.pairs) {
            u32 i = c - op.offset, apart = op.halves ? op.pairs : 1;
            bool second = op.halves ? i >= op.pairs : i % 2 == 1;
            float2 t = turn[r];
            v = second ? __fmaf_rn(own[c - apart], t.y, __fmul_rn(v, t.x)) : __fmaf_rn(v, t.x, -__fmul_rn(own[c + apart], t.y));
        }
        y[r] = v;
    }
    __syncwarp();
}

#define SPLIT 128

static __device__ __forceinline__ void halves8(uint4 v, float *f) {
    u32 words[4] = {v.x, v.y, v.z, v.w};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = half_to_float((u16)words[i]);
        f[2 * i + 1] = half_to_float((u16)(words[i] >> 16));
    }
}

// What is known of a head's columns after some splits. Splits are taken in order, whoever computes them, so that a row
// has the same bits from one block as from many.
struct Mix {
    float most, sum, y;
};

static __device__ __forceinline__ Mix begun(const Flash &op, u32 head) {
    Mix mix = {-INF, 0.0f, 0.0f};
    if (op.sinks) mix.most = op.sinks[head], mix.sum = 1.0f;
    return mix;
}

static __device__ __forceinline__ void take(Mix &mix, float most, float sum, float y) {
    float next = fmaxf(mix.most, most);
    float a = mix.most == -INF ? 0.0f : expf(mix.most - next), b = most == -INF ? 0.0f : expf(most - next);
    mix.sum = __fmaf_rn(mix.sum, a, __fmul_rn(sum, b));
    mix.y = __fmaf_rn(mix.y, a, __fmul_rn(y, b));
    mix.most = next;
}

template <int D, int G> struct __align__(16) Space {
    float query[G][D];
    float weight[4][32][G];
    float best[4][G], total[4][G], mix[4][G][D];
};

// What G query heads of one key head make of the keys of a warp's 32 positions, of which four lanes have one.
template <int D, int G>
static __device__ __forceinline__ void score_tile(const uint4 (&keys)[4][D / 32], u32 base, u32 low, u32 high, Space<D, G> &sp) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    float score[4][G];
    #pragma unroll
    for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int g = 0; g < G; g++) score[i][g] = 0.0f;
    #pragma unroll
    for (int j = 0; j < D / 32; j++) {
        float f[4][8];
        #pragma unroll
        for (int i = 0; i < 4; i++) halves8(keys[i][j], f[i]);
        #pragma unroll
        for (int g = 0; g < G; g++) {
            const float4 *q = (const float4 *)&sp.query[g][(j * 4 + lane % 4) * 8];
            float4 a = q[0], b = q[1];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = score[i][g];
                x = __fmaf_rn(f[i][0], a.x, x), x = __fmaf_rn(f[i][1], a.y, x), x = __fmaf_rn(f[i][2], a.z, x);
                x = __fmaf_rn(f[i][3], a.w, x), x = __fmaf_rn(f[i][4], b.x, x), x = __fmaf_rn(f[i][5], b.y, x);
                x = __fmaf_rn(f[i][6], b.z, x), score[i][g] = __fmaf_rn(f[i][7], b.w, x);
            }
        }
    }
    #pragma unroll
    for (int g = 0; g < G; g++) {
        float most = -INF, sum = 0.0f;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = score[i][g];
            x += __shfl_xor_sync(ALL_LANES, x, 1);
            x += __shfl_xor_sync(ALL_LANES, x, 2);
            u32 key = base + i * 8 + lane / 4;
            score[i][g] = x = key >= low && key < high ? x : -INF;
            most = fmaxf(most, x);
        }
        for (int d = 4; d < 32; d <<= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = score[i][g], w = x == -INF ? 0.0f : expf(x - most);
            sum += w;
            if (lane % 4 == 0) sp.weight[warp][i * 8 + lane / 4][g] = w;
        }
        for (int d = 4; d < 32; d <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, d);
        if (lane == 0) sp.best[warp][g] = most, sp.total[warp][g] = sum;
    }
    __syncwarp();
}

// The values of those positions, weighed, so many at a time: `values(i)` are a lane's 16 bytes of the i-th of its positions.
template <int D, int G, int TOGETHER, class Values> static __device__ __forceinline__ void weigh_tile(const Values &values, Space<D, G> &sp) {
    const u32 PIECES = D / 8, KEYS = 32 / PIECES;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    float acc[G][8];
    #pragma unroll
    for (int g = 0; g < G; g++)
        #pragma unroll
        for (int n = 0; n < 8; n++) acc[g][n] = 0.0f;
    #pragma unroll TOGETHER
    for (u32 i = 0; i < D / 8; i++) {
        u32 key = i * KEYS + lane / PIECES;
        float f[8];
        halves8(values(i), f);
        #pragma unroll
        for (int g = 0; g < G; g++) {
            float w = sp.weight[warp][key][g];
            #pragma unroll
            for (int n = 0; n < 8; n++) acc[g][n] = __fmaf_rn(w, f[n], acc[g][n]);
        }
    }
    #pragma unroll
    for (int g = 0; g < G; g++)
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            float x = acc[g][n];
            for (u32 d = PIECES; d < 32; d <<= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
            if (lane < PIECES) sp.mix[warp][g][lane * 8 + n] = x;
        }
}

// The four warps' parts of a split as one.
template <int D, int G> static __device__ __forceinline__ Mix joined(const Space<D, G> &sp, u32 g, u32 d) {
    Mix mix;
    mix.most = fmaxf(fmaxf(sp.best[0][g], sp.best[1][g]), fmaxf(sp.best[2][g], sp.best[3][g]));
    mix.sum = mix.y = 0.0f;
    #pragma unroll
    for (int w = 0; w < 4; w++) {
        float keep = sp.best[w][g] == -INF ? 0.0f : expf(sp.best[w][g] - mix.most);
        mix.sum = __fmaf_rn(sp.total[w][g], keep, mix.sum);
        mix.y = __fmaf_rn(sp.mix[w][g][d], keep, mix.y);
    }
    return mix;
}
