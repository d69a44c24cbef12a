// Routers, and routed rows by expert.
#include "common.cuh"

enum { SCORE_SOFTMAX, SCORE_SIGMOID, SCORE_LOGITS, SCORE_SQRT_SOFTPLUS };

struct Route {
    const float *logits;
    const float *bias;
    const float *table;  // [V, top_k]
    i32 *ids;
    float *weights;
    u32 lead, experts, top_k, score, select, groups, used;
    u32 softmax_chosen, sigmoid_chosen, renormalise, divisor;
    float near_ties, scale;
    u32 vocab;
};

static __device__ void scores_of(u32 kind, const float *logits, u32 n, float *out, float *shared) {
    if (kind == SCORE_SOFTMAX) {
        float most = -INF, sum = 0.0f;
        for (u32 e = threadIdx.x; e < n; e += blockDim.x) most = fmaxf(most, logits[e]);
        most = max_block(most, shared);
        for (u32 e = threadIdx.x; e < n; e += blockDim.x) sum += expf(logits[e] - most);
        sum = sum_block(sum, shared);
        for (u32 e = threadIdx.x; e < n; e += blockDim.x) out[e] = expf(logits[e] - most) / sum;
    } else {
        for (u32 e = threadIdx.x; e < n; e += blockDim.x) {
            float x = logits[e];
            out[e] = kind == SCORE_SIGMOID ? sigmoid(x) : kind == SCORE_SQRT_SOFTPLUS ? sqrtf(softplus(x)) : x;
        }
    }
    __syncthreads();
}

// Larger first, the lower index among equals, as one number.
static __device__ __forceinline__ i64 rank(float x, u32 i) {
    u32 b = __float_as_uint(x);
    i32 key = (i32)(b >> 31 ? b ^ 0x7fffffffu : b);
    return (i64)key << 32 | (i64)(0xffffffffu - i);
}

#define GONE ((i64)1 << 63)

// A block for each row. Shared: scores and what selects, both as long as there are experts.
KERNEL route(Step s, Route op) {
    extern __shared__ float space[];
    __shared__ float shared[33];
    __shared__ i64 shared_rank[32];
    __shared__ float weight[64];
    __shared__ u32 chosen[64];
    u32 i = blockIdx.x, n = op.experts;
    if (i >= rows_of(s, op.lead)) return;
    const float *logits = op.logits + (u64)i * n;
    float *score = space, *pick = space + n;
    scores_of(op.score, logits, n, score, shared);
    if (op.table) {
        u32 row = step_row(s, op.lead, i), token = s.token[row];
        if (token >= op.vocab) {
            if (threadIdx.x == 0 && (s.flags[row] & ROW_LIVE)) no_row(s, token, op.vocab);
            token = 0;
        }
        if (threadIdx.x < op.top_k) chosen[threadIdx.x] = (u32)op.table[(u64)token * op.top_k + threadIdx.x];
        __syncthreads();
    } else {
        if (op.select != op.score) scores_of(op.select, logits, n, pick, shared);
        for (u32 e = threadIdx.x; e < n; e += blockDim.x)
            pick[e] = (op.select == op.score ? score[e] : pick[e]) + (op.bias ? op.bias[e] : 0.0f);
        __syncthreads();
        if (op.groups && threadIdx.x < 32) {
            // A lane for each group (of at most 32): the sum of its best two.
            u32 g = threadIdx.x, per = n / op.groups;
            float best = -INF, second = -INF;
            for (u32 e = 0; g < op.groups && e < per; e++) {
                float x = pick[g * per + e];
                if (x > best) second = best, best = x;
                else if (x > second) second = x;
            }
            float strength = g < op.groups ? (per > 1 ? best + second : best) : -INF;
            i64 own = g < op.groups ? rank(strength, g) : GONE;
            u32 better = 0;
            for (u32 o = 0; o < 32; o++) better += __shfl_sync(ALL_LANES, own, o) > own;
            for (u32 e = 0; g < op.groups && better >= op.used && e < per; e++) pick[g * per + e] = -INF;
        }
        __syncthreads();
        for (u32 j = 0; j < op.top_k; j++) {
            i64 best = GONE;
            for (u32 e = threadIdx.x; e < n; e += blockDim.x) {
                bool taken = false;
                for (u32 t = 0; t < j; t++) taken |= chosen[t] == e;
                i64 r = rank(pick[e], e);
                if (!taken && r > best) best = r;
            }
            best = max_block_i64(best, shared_rank);
            if (threadIdx.x == 0) chosen[j] = 0xffffffffu - (u32)best;
            __syncthreads();
        }
    }
    if (threadIdx.x != 0) return;
    for (u32 j = 0; j < op.top_k; j++) {
        float peak = score[chosen[j]];
        weight[j] = peak;
        if (op.near_ties > 0.0f) {
            float sum = 0.0f;
            for (u32 e = 0; e < n; e++) {
                bool left = true;
                for (u32 t = 0; t < j; t++) left &= chosen[t] != e;
                float x = score[e];
                if (left && !((peak - x) / fmaxf(fabsf(x), peak) > op.near_ties)) sum += expf(x - peak);
            }
            weight[j] = 1.0f / sum;
        }
    }
    if (op.softmax_chosen) {
        float most = -INF, sum = 0.0f;
        for (u32 j = 0; j < op.top_k; j++) most = fmaxf(most, weight[j]);
        for (u32 j = 0; j < op.top_k; j++) sum += weight[j] = expf(weight[j] - most);
        for (u32 j = 0; j < op.top_k; j++) weight[j] /= sum;
    }
    float sum = 0.0f;
    for (u32 j = 0; j < op.top_k; j++) {
        if (op.sigmoid_chosen) weight[j] = sigmoid(weight[j]);
        sum += weight[j];
    }
    for (u32 j = 0; j < op.top_k; j++) {
        float w = weight[j];
        if (op.renormalise) w /= fmaxf(sum, 6.103515625e-05f);
        op.weights[(u64)i * op.top_k + j] = w * op.scale;
        op.ids[(u64)i * op.top_k + j] = (i32)(chosen[j] / op.divisor);
    }
}

// Routed rows in the order of their experts, and where each one's expert begins.
KERNEL group(Step s, u32 lead, u32 k, const i32 *ids, i32 *order, i32 *starts) {
    u32 n = rows_of(s, lead) * k;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u32 place = 0, start = 0;
        for (u32 j = 0; j < n; j++) {
            start += ids[j] < ids[i];
            place += ids[j] < ids[i] || (ids[j] == ids[i] && j < i);
        }
        order[place] = (i32)i;
        starts[place] = (i32)start;
    }
}
