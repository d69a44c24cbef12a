// What adapters add to products and look-ups: `y + b · (a · x)`, each row with the pair of its own adapter.
//
// `down` leaves the parts of low rank, `up` adds what they give. A block takes several runs of an input at once, a row's or a
// head's or an expert's, whose pairs may be others; threads and their order are those of one run alone.
#include "common.cuh"

// A pair by adapter and weight. Without one there is no rank.
struct Pair {
    const float *a; // matrices [rank, k]
    const float *b; // matrices [rank, n], turned
    u32 rank;
    u32 pad;
};

struct Adapters {
    float *low;     // by rank, then by run
    u64 pad;
    Pair pairs[1];  // by adapter, of which there is no 0, then by weight
};

enum { FORM_PRODUCT, FORM_HEADS, FORM_EXPERTS };

// One op.
struct Adapt {
    const float *x;
    const float *y;     // may be `out`
    float *out;
    const i32 *ids;     // matrices of runs, where they are chosen
    u32 weight, form;
    u32 parts;          // runs of a row
    u32 n, k;           // outputs and columns of a run
    u32 x_stride;       // columns of a row of x
    u32 x_part;         // columns from a run's input to the next one's; 0: they share it
    u32 first;          // of its runs among those of all ops
};

#define OPS 4

// Ops of one lead.
struct Adapts {
    const Adapters *all;
    u32 lead, weights;
    u32 runs;           // that there is room for
    u32 pad;
    Adapt ops[OPS];
};

static __device__ __forceinline__ const Pair *pair_of(const Step &s, const Adapters *all, u32 weights, u32 weight, u32 row) {
    u32 adapter = s.flags[row] >> ADAPTER_SHIFT;
    if (adapter == 0) return 0;
    const Pair *pair = all->pairs + (u64)(adapter - 1) * weights + weight;
    return pair->rank ? pair : 0;
}

// A run's pair, with its matrix of each.
struct Own {
    const float *a, *b;
    u32 rank;
};

static __device__ __forceinline__ Own own_of(const Step &s, const Adapts &all, const Adapt &op, u32 run) {
    Own own = {0, 0, 0};
    u32 i = run / op.parts;
    const Pair *pair = pair_of(s, all.all, all.weights, op.weight, step_row(s, all.lead, i));
    if (!pair) return own;
    u32 matrix = op.form == FORM_HEADS ? run % op.parts : op.form == FORM_EXPERTS ? (u32)op.ids[run] : 0;
    own.rank = pair->rank;
    own.a = pair->a + (u64)matrix * own.rank * op.k;
    own.b = pair->b + (u64)matrix * own.rank * op.n;
    return own;
}

// Sums of R rows of `a` with T runs, of which only the first is known to be there.
template <int R, int T, bool FOURS>
static __device__ __forceinline__ void dots(const float *const (&a)[R], const float *const (&x)[T], u32 k, float (&sum)[R][T]) {
    #pragma unroll
    for (int r = 0; r < R; r++)
        #pragma unroll
        for (int t = 0; t < T; t++) sum[r][t] = 0.0f;
    if constexpr (FOURS) {
        #pragma unroll 4
        for (u32 c = threadIdx.x * 4; c < k; c += blockDim.x * 4) {
            float4 w[R], v[T];
            #pragma unroll
            for (int r = 0; r < R; r++) w[r] = *(const float4 *)(a[r] + c);
            #pragma unroll
            for (int t = 0; t < T; t++) v[t] = *(const float4 *)(x[t] + c);
            #pragma unroll
            for (int r = 0; r < R; r++)
                #pragma unroll
                for (int t = 0; t < T; t++) {
                    sum[r][t] = __fmaf_rn(w[r].x, v[t].x, sum[r][t]);
                    sum[r][t] = __fmaf_rn(w[r].y, v[t].y, sum[r][t]);
                    sum[r][t] = __fmaf_rn(w[r].z, v[t].z, sum[r][t]);
                    sum[r][t] = __fmaf_rn(w[r].w, v[t].w, sum[r][t]);
                }
        }
    } else {
        for (u32 c = threadIdx.x; c < k; c += blockDim.x)
            #pragma unroll
            for (int r = 0; r < R; r++)
                #pragma unroll
                for (int t = 0; t < T; t++) sum[r][t] = __fmaf_rn(a[r][c], x[t][c], sum[r][t]);
    }
}

#define WARPS 4 // of a block of `down`

// The parts of low rank of T runs from `first` on: R at a time.
template <int R, int T, bool FOURS> static __device__ __forceinline__ void down(const Step &s, const Adapts &all) {
    __shared__ float warps[R][T][WARPS];
    const Adapt &op = all.ops[blockIdx.z];
    u32 count = rows_of(s, all.lead) * op.parts, first = blockIdx.x * T, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (first >= count) return;
    Own own[T];
    const float *x[T];
    u32 most = 0;
    bool alike = true;
    #pragma unroll
    for (int t = 0; t < T; t++) {
        u32 run = min(first + t, count - 1);
        own[t] = own_of(s, all, op, run);
        x[t] = op.x + (u64)(run / op.parts) * op.x_stride + (u64)(run % op.parts) * op.x_part;
        most = max(most, own[t].rank);
        alike &= own[t].a == own[0].a;
    }
    float *low = all.all->low + op.first + first;
    for (u32 r0 = blockIdx.y * R; r0 < most; r0 += gridDim.y * R) {
        float sum[R][T];
        if (T == 1 || alike) {
            const float *a[R];
            #pragma unroll
            for (int r = 0; r < R; r++) a[r] = own[0].a + (u64)min(r0 + r, most - 1) * op.k;
            dots<R, T, FOURS>(a, x, op.k, sum);
        } else {
            #pragma unroll
            for (int t = 0; t < T; t++) {
                float one[R][1];
                const float *a[R], *of[1] = {x[t]};
                u32 k = r0 < own[t].rank ? op.k : 0;
                #pragma unroll
                for (int r = 0; r < R; r++) a[r] = own[t].a + (u64)min(r0 + r, max(own[t].rank, 1) - 1) * op.k;
                dots<R, 1, FOURS>(a, of, k, one);
                #pragma unroll
                for (int r = 0; r < R; r++) sum[r][t] = one[r][0];
            }
        }
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < R; r++)
            #pragma unroll
            for (int t = 0; t < T; t++) {
                float whole = sum_lanes(sum[r][t]);
                if (lane == 0) warps[r][t][warp] = whole;
            }
        __syncthreads();
        if (threadIdx.x < R * T) {
            u32 r = threadIdx.x / T, t = threadIdx.x % T, rank = 0;
            #pragma unroll
            for (int i = 0; i < T; i++)
                if (i == t) rank = own[i].rank;
            if (first + t < count && r0 + r < rank) {
                const float *w = warps[r][t];
                low[(u64)(r0 + r) * all.runs + t] = (w[0] + w[1]) + (w[2] + w[3]);
            }
        }
    }
}

// Adds to T runs from `first` on; a thread has a column.
template <int T> static __device__ __forceinline__ void up(const Step &s, const Adapts &all) {
    const Adapt &op = all.ops[blockIdx.z];
    u32 count = rows_of(s, all.lead) * op.parts, first = blockIdx.x * T, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (first >= count || c >= op.n) return;
    Own own[T];
    float sum[T];
    bool alike = true;
    #pragma unroll
    for (int t = 0; t < T; t++) {
        own[t] = own_of(s, all, op, min(first + t, count - 1));
        alike &= own[t].b == own[0].b;
        sum[t] = 0.0f;
    }
    const float *low = all.all->low + op.first + first;
    if (T > 1 && alike && own[0].rank && first + T <= count) {
        #pragma unroll 4
        for (u32 r = 0; r < own[0].rank; r++) {
            float b = own[0].b[(u64)r * op.n + c];
            #pragma unroll
            for (int t = 0; t < T; t++) sum[t] = __fmaf_rn(b, low[(u64)r * all.runs + t], sum[t]);
        }
    } else {
        #pragma unroll
        for (int t = 0; t < T; t++) {
            if (first + t >= count) break;
            #pragma unroll 8
            for (u32 r = 0; r < own[t].rank; r++)
                sum[t] = __fmaf_rn(own[t].b[(u64)r * op.n + c], low[(u64)r * all.runs + t], sum[t]);
        }
    }
    #pragma unroll
    for (int t = 0; t < T; t++) {
        u64 at = (u64)(first + t) * op.n + c;
        if (first + t >= count || (!own[t].rank && op.y == op.out)) continue;
        op.out[at] = own[t].rank ? __fadd_rn(op.y[at], sum[t]) : op.y[at];
    }
}

#define DOWN(NAME, R, T) \
    extern "C" __global__ void __launch_bounds__(128) NAME(Step s, Adapts all) { down<R, T, false>(s, all); } \
    extern "C" __global__ void __launch_bounds__(128) NAME##_fours(Step s, Adapts all) { down<R, T, true>(s, all); }
DOWN(down_few, 1, 1)
DOWN(down_many, 4, 4)
extern "C" __global__ void __launch_bounds__(256) up_few(Step s, Adapts all) { up<1>(s, all); }
extern "C" __global__ void __launch_bounds__(256) up_many(Step s, Adapts all) { up<8>(s, all); }

// A look-up by token: a block for each row, `n` rows of the table.
KERNEL tokens(Step s, u32 lead, u32 width, u32 weight, u32 n, const Adapters *all, u32 weights, const float *y, float *out) {
    u32 i = blockIdx.x;
    if (i >= rows_of(s, lead)) return;
    u32 row = step_row(s, lead, i), token = s.token[row];
    const Pair *pair = pair_of(s, all, weights, weight, row);
    if ((s.flags[row] & ROW_EMBEDS) || token >= n) pair = 0;
    if (!pair && y == out) return;
    u32 rank = pair ? pair->rank : 0;
    for (u32 c = threadIdx.x; c < width; c += blockDim.x) {
        u64 at = (u64)i * width + c;
        float sum = 0.0f;
        for (u32 r = 0; r < rank; r++) sum = __fmaf_rn(pair->b[(u64)r * n + token], pair->a[(u64)r * width + c], sum);
        out[at] = pair ? __fadd_rn(y[at], sum) : y[at];
    }
}
