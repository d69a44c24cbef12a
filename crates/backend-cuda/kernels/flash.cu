// Attention over cached halves, cut at multiples of 128 positions; and heads on their way into it.
#include "flash.cuh"

enum { NORM_RMS, NORM_LAYER, NORM_L2, NORM_L2_MAX, NORM_NONE };

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

// A warp for each head: queries and keys are normalised and rotated, keys and values go to the cache.
KERNEL heads(Step s, Heads op) {
    __shared__ float space[4][MOST_DIM];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, h = blockIdx.x * 4 + warp, row = blockIdx.y;
    if (row >= rows_of(s, LEAD_ROWS) || h >= op.q_heads + op.k_heads + op.v_heads || !(s.flags[row] & ROW_LIVE)) return;
    u32 seq = s.seq[row];
    if (h >= op.q_heads + op.k_heads) {
        h -= op.q_heads + op.k_heads;
        Place at = place(op.cache, s.slot[seq], place_of_row(s, row));
        if (!at.block) return;
        const float *v = op.v + ((u64)row * op.v_heads + h) * op.dim_v;
        for (u32 r = 0; r < op.dim_v / 32; r++) store_cached(op.cache.v, at, h * op.dim_v / 32 + r, v[r * 32 + lane], true);
        return;
    }
    bool query = h < op.q_heads;
    u32 kind = query ? op.kind_q : op.kind_k, w_len = query ? op.wq_len : op.wk_len;
    float eps = query ? op.eps_q : op.eps_k;
    const float *w = query ? op.wq : op.wk, *x = op.q + ((u64)row * op.q_heads + h) * op.dim;
    if (!query) h -= op.q_heads, x = op.k + ((u64)row * op.k_heads + h) * op.dim;
    float *own = space[warp], mean = 0.0f, squares = 0.0f, root = 1.0f;
    if (kind == NORM_LAYER) {
        for (u32 c = lane; c < op.dim; c += 32) mean += x[c];
        mean = sum_lanes(mean) / (float)op.dim;
    }
    if (kind != NORM_NONE) {
        for (u32 c = lane; c < op.dim; c += 32) squares = __fmaf_rn(x[c] - mean, x[c] - mean, squares);
        squares = sum_lanes(squares);
        root = kind == NORM_L2 ? sqrtf(squares + eps) : kind == NORM_L2_MAX ? fmaxf(sqrtf(squares), eps)
                                                                        : sqrtf(squares / (float)op.dim + eps);
    }
    for (u32 c = lane; c < op.dim; c += 32) {
        float v = (x[c] - mean) / root;
        own[c] = w ? v * w[(h * op.dim + c) % w_len] : v;
    }
    __syncwarp();
    const float2 *turns = op.turns + (u64)row * op.pairs;
    Place at = {0, 0};
    if (!query) {
        at = place(op.cache, s.slot[seq], place_of_row(s, row));
        if (!at.block) return;
    }
    for (u32 r = 0; r < op.dim / 32; r++) {
        u32 c = r * 32 + lane;
        float y = own[c];
        if (c >= op.offset && c < op.offset + 2 * op.pairs) {
            u32 i = c - op.offset, pair = op.halves ? i % op.pairs : i / 2, apart = op.halves ? op.pairs : 1;
            bool second = op.halves ? i >= op.pairs : i % 2 == 1;
            float2 t = turns[pair];
            y = second ? own[c - apart] * t.y + y * t.x : y * t.x - own[c + apart] * t.y;
        }
        if (query) op.q_out[((u64)row * op.q_heads + h) * op.dim + c] = y;
        else store_cached(op.cache.k, at, h * op.dim / 32 + r, y, true);
    }
}

static __device__ __forceinline__ void halves8(uint4 v, float *f) {
    u32 words[4] = {v.x, v.y, v.z, v.w};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = half_to_float((u16)words[i]);
        f[2 * i + 1] = half_to_float((u16)(words[i] >> 16));
    }
}

#define SPLIT 128

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

template <int D, int G> struct Space {
    float query[G][D];
    float best[4][G], total[4][G], mix[4][G][D];
};

// G query heads of one key head over one split: a warp for each 32 keys. Lanes hold a key each for the scores, and
// columns each for the values.
template <int D, int G>
static __device__ __forceinline__ void one_split(const Step &s, const Flash &op, u32 seq, u32 kv, u32 split, u32 low, u32 high,
                                                 Space<D, G> &sp) {
    const int N = D / 32;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float acc[G][N], m[G], l[G];
    #pragma unroll
    for (int g = 0; g < G; g++) {
        m[g] = -INF, l[g] = 0.0f;
        #pragma unroll
        for (int n = 0; n < N; n++) acc[g][n] = 0.0f;
    }
    u32 base = split * SPLIT + warp * 32;
    if (base < high && base + 32 > low) {
        // A tile lies in one block.
        Place at = place(op.cache, s.slot[seq], base);
        u32 key = base + lane;
        bool valid = key >= low && key < high;
        const u8 *keys = at.block + op.cache.k.offset + ((u64)at.entry * op.cache.k.width + kv * D) * 2;
        const u8 *values = at.block + op.cache.v.offset + ((u64)at.entry * op.cache.v.width + kv * D) * 2;
        float score[G];
        #pragma unroll
        for (int g = 0; g < G; g++) score[g] = 0.0f;
        if (valid) {
            const uint4 *k = (const uint4 *)(keys + (u64)lane * op.cache.k.width * 2);
            #pragma unroll 8
            for (int c = 0; c < D / 8; c++) {
                float f[8];
                halves8(k[c], f);
                #pragma unroll
                for (int g = 0; g < G; g++) {
                    const float4 *q = (const float4 *)&sp.query[g][c * 8];
                    float4 a = q[0], b = q[1];
                    score[g] = __fmaf_rn(f[0], a.x, score[g]), score[g] = __fmaf_rn(f[1], a.y, score[g]);
                    score[g] = __fmaf_rn(f[2], a.z, score[g]), score[g] = __fmaf_rn(f[3], a.w, score[g]);
                    score[g] = __fmaf_rn(f[4], b.x, score[g]), score[g] = __fmaf_rn(f[5], b.y, score[g]);
                    score[g] = __fmaf_rn(f[6], b.z, score[g]), score[g] = __fmaf_rn(f[7], b.w, score[g]);
                }
            }
        }
        #pragma unroll
        for (int g = 0; g < G; g++) {
            m[g] = max_lanes(valid ? score[g] : -INF);
            score[g] = valid && score[g] != -INF ? expf(score[g] - m[g]) : 0.0f;
            l[g] = sum_lanes(score[g]);
        }
        u32 first = low > base ? low - base : 0, end = min(high - base, 32u);
        #pragma unroll 8
        for (u32 j = first; j < end; j++) {
            const u16 *v = (const u16 *)(values + (u64)j * op.cache.v.width * 2) + lane * N;
            float f[N];
            if (N == 4) {
                uint2 w = *(const uint2 *)v;
                f[0] = half_to_float((u16)w.x), f[1] = half_to_float((u16)(w.x >> 16));
                f[N - 2] = half_to_float((u16)w.y), f[N - 1] = half_to_float((u16)(w.y >> 16));
            } else {
                u32 w = *(const u32 *)v;
                f[0] = half_to_float((u16)w), f[1] = half_to_float((u16)(w >> 16));
            }
            #pragma unroll
            for (int g = 0; g < G; g++) {
                float p = __shfl_sync(ALL_LANES, score[g], j);
                #pragma unroll
                for (int n = 0; n < N; n++) acc[g][n] = __fmaf_rn(p, f[n], acc[g][n]);
            }
        }
    }
    #pragma unroll
    for (int g = 0; g < G; g++) {
        if (lane == 0) sp.best[warp][g] = m[g], sp.total[warp][g] = l[g];
        #pragma unroll
        for (int n = 0; n < N; n++) sp.mix[warp][g][lane * N + n] = acc[g][n];
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

template <int D, int G> static __device__ __forceinline__ void flash(const Step &s, const Flash &op) {
    const int E = (G * D + 127) / 128;  // columns of a thread
    __shared__ Space<D, G> sp;
    u32 row = blockIdx.y, head = blockIdx.x * G, kv = head / (op.heads / op.kv_heads);
    if (row >= rows_of(s, LEAD_ROWS) || (op.kinds && (s.flags[row] & ROW_PROMPT))) return;
    float *out = op.out + ((u64)row * op.heads + head) * D;
    if (!(s.flags[row] & ROW_LIVE)) {
        if (blockIdx.z == 0)
            for (u32 i = threadIdx.x; i < G * D; i += 128) out[i] = 0.0f;
        return;
    }
    u32 low, high, seq = s.seq[row];
    seen(s, op, row, &low, &high);
    u32 first = low / SPLIT, last = (high - 1) / SPLIT;
    if (!op.looped) {
        if (blockIdx.z < first || blockIdx.z > last) return;
    }
    for (u32 i = threadIdx.x; i < G * D; i += 128) sp.query[i / D][i % D] = op.q[((u64)row * op.heads + head) * D + i] * op.scale;
    __syncthreads();
    if (!op.looped && first != last) {
        one_split<D, G>(s, op, seq, kv, blockIdx.z, low, high, sp);
        __syncthreads();
        for (u32 i = threadIdx.x; i < G * D; i += 128) {
            Mix part = joined<D, G>(sp, i / D, i % D);
            float *to = op.partial + (((u64)row * op.heads + head + i / D) * op.splits + blockIdx.z) * (D + 2);
            to[2 + i % D] = part.y;
            if (i % D == 0) to[0] = part.most, to[1] = part.sum;
        }
        return;
    }
    Mix mix[E];
    #pragma unroll
    for (int e = 0; e < E; e++) mix[e] = begun(op, head + min((threadIdx.x + e * 128) / D, G - 1));
    for (u32 split = first; split <= last; split++) {
        one_split<D, G>(s, op, seq, kv, split, low, high, sp);
        __syncthreads();
        #pragma unroll
        for (int e = 0; e < E; e++) {
            u32 i = threadIdx.x + e * 128;
            if (i >= G * D) break;
            Mix part = joined<D, G>(sp, i / D, i % D);
            take(mix[e], part.most, part.sum, part.y);
        }
        __syncthreads();
    }
    #pragma unroll
    for (int e = 0; e < E; e++)
        if (threadIdx.x + e * 128 < G * D) out[threadIdx.x + e * 128] = mix[e].y / mix[e].sum;
}

#define FLASH(D, G) extern "C" __global__ void __launch_bounds__(128) flash_##D##_##G(Step s, Flash op) { flash<D, G>(s, op); }
FLASH(64, 1) FLASH(64, 2) FLASH(64, 4) FLASH(64, 8)
FLASH(128, 1) FLASH(128, 2) FLASH(128, 4) FLASH(128, 8)

// Joins the splits of rows that have several: a block for each head, a thread for each column.
KERNEL flash_join(Step s, Flash op) {
    u32 row = blockIdx.y, head = blockIdx.x, d = threadIdx.x, dim = blockDim.x;
    if (row >= rows_of(s, LEAD_ROWS) || !(s.flags[row] & ROW_LIVE) || (op.kinds && (s.flags[row] & ROW_PROMPT))) return;
    u32 low, high;
    seen(s, op, row, &low, &high);
    u32 first = low / SPLIT, last = (high - 1) / SPLIT;
    if (first == last) return;
    const float *from = op.partial + ((u64)row * op.heads + head) * op.splits * (dim + 2);
    Mix mix = begun(op, head);
    for (u32 i = first; i <= last; i++) {
        const float *p = from + (u64)i * (dim + 2);
        take(mix, p[0], p[1], p[2 + d]);
    }
    op.out[((u64)row * op.heads + head) * dim + d] = mix.y / mix.sum;
}
