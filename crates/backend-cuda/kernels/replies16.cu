// Products of many replies' rows with weights of sixteen bits on tensor cores, in the order of sixteen.cuh: a row has the same
// bits alone and among others.
//
// A warp sums every eighth run: eight rows, either part of each, by four times eight outputs at once.
#include "async.cuh"
#include "tiles.cuh"

#define OUTS 32     // outputs of a tile
#define RUNS 8      // of a stretch of 256 columns, each a warp's
#define PITCH 576   // bytes from a row of a stretch to the next: rows side by side in banks of their own

// Rows of replies in parts, those for the second steps `apart` numbers behind those for the first, and the units of their runs.
struct Cut {
    u16 *parts;
    float *units;
    u64 apart;
};

// Four lanes a run.
template <int F> static __device__ __forceinline__ void cut(const Step &s, const MatVec &op, const Cut &to) {
#ifdef HAS_TENSOR
    u32 row = blockIdx.y, c = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    wait_before();
    if (row >= rows_of(s, op.lead) || of_prompt(s, op, row)) return;
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f), *x = (const float4 *)(op.x + (u64)row * op.k + c);
    Eight e = eight_of<F>(c < op.k ? x[0] : none, c < op.k ? x[1] : none);
    if (c >= op.k) return;
    u16 *first = to.parts + (u64)row * op.k + c;
    *(uint4 *)first = e.first, *(uint4 *)(first + to.apart) = e.second;
    if (c % 32 == 0) to.units[(u64)row * ((op.k + 31) / 32) + c / 32] = e.unit;
#endif
}

extern "C" __global__ void cut_F16(Step s, MatVec op, Cut to) { cut<T_F16>(s, op, to); }
extern "C" __global__ void cut_BF16(Step s, MatVec op, Cut to) { cut<T_BF16>(s, op, to); }

// A stretch of 256 columns on its way.
template <int ROWS> struct Stretch {
    u8 w[OUTS * PITCH], x[2][ROWS * PITCH];
    float units[ROWS][RUNS];
};

#ifdef HAS_TENSOR
// The sum of the eight runs' sums, `apart` numbers from each other.
static __device__ __forceinline__ float joined(const float *p, u32 apart) {
    float low = __fadd_rn(__fadd_rn(p[0], p[apart]), __fadd_rn(p[4 * apart], p[5 * apart]));
    return __fadd_rn(low, __fadd_rn(__fadd_rn(p[2 * apart], p[3 * apart]), __fadd_rn(p[6 * apart], p[7 * apart])));
}
#endif

// Tiles of 32 outputs by 8 · NT rows.
template <int F, int NT, int DEPTH> static __device__ __forceinline__ void replies(const Step &s, const MatVec &op, const Cut &cut) {
#ifdef HAS_TENSOR
    const int ROWS = 8 * NT, MT = OUTS / 8;
    extern __shared__ __align__(128) u8 space[];
    Stretch<ROWS> *stages = (Stretch<ROWS> *)space;
    u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, first = blockIdx.x * ROWS, k = op.k;
    Outputs outs;
    bool found = find_outputs(op, F, op.gated ? OUTS / 2 : OUTS, blockIdx.y, &outs);

    // A warp copies a row's 256 columns at a time: every eighth of the outputs, and of the rows for either step.
    const u8 *w[MT];
    #pragma unroll
    for (int i = 0; i < MT; i++) {
        u32 r = warp + 8 * i, part = outs.part;
        if (op.gated) part = r >= OUTS / 2, r %= OUTS / 2;
        w[i] = op.parts[part].data + (u64)min(outs.first + r, outs.count - 1) * op.parts[part].row_bytes + lane * 16;
    }
    u32 runs = (k + 31) / 32, steps = (k + 255) / 256;
    auto copy_weights = [&](u32 t) {
        Stretch<ROWS> &to = stages[t % DEPTH];
        bool there = t < steps && t * 256 + lane * 8 < k;
        #pragma unroll
        for (int i = 0; i < MT; i++) copy16(shared_at(to.w + (warp + 8 * i) * PITCH + lane * 16), there ? w[i] + t * 512 : op.parts[0].data, there);
    };
    bool early = found && blockIdx.x == 0;
    if (early) {
        #pragma unroll
        for (u32 t = 0; t < DEPTH - 1; t++) copy_weights(t);
    }
    wait_before();
    u32 count = rows_of(s, op.lead);
    bool own = tid < ROWS && first + tid < count && !of_prompt(s, op, first + tid);
    if (!__syncthreads_or(own) || !found) {
        copies_end(), copies_wait<0>();
        return;
    }
    u32 row = min(first + tid / RUNS, count - 1);
    const u16 *x[NT];
    #pragma unroll
    for (int i = 0; i < NT; i++) x[i] = cut.parts + (u64)min(first + warp + 8 * i, count - 1) * k + lane * 8;
    const float *units = cut.units + (u64)row * runs + tid % RUNS;
    auto copy = [&](u32 t, bool weights) {
        if (t < steps) {
            Stretch<ROWS> &to = stages[t % DEPTH];
            bool there = t * 256 + lane * 8 < k;
            u32 from = there ? t * 256 : 0;
            if (weights) copy_weights(t);
            #pragma unroll
            for (int i = 0; i < NT; i++)
                #pragma unroll
                for (int p = 0; p < 2; p++)
                    copy16(shared_at(to.x[p] + (warp + 8 * i) * PITCH + lane * 16), there ? x[i] + p * cut.apart + from : cut.parts, there);
            if (tid < ROWS * RUNS && t * RUNS + tid % RUNS < runs) copy4(shared_at(&to.units[tid / RUNS][tid % RUNS]), units + t * RUNS);
        }
        copies_end();
    };
    #pragma unroll
    for (u32 t = 0; t < DEPTH - 1; t++) copy(t, !early);
    u32 group = lane / 4, four = lane % 4, at = warp * 64 + four * 16;
    float sum[NT][MT][2] = {};
    for (u32 t = 0; t < steps; t++) {
        copies_wait<DEPTH - 2>();
        __syncthreads();
        copy(t + DEPTH - 1, true);
        if (t * RUNS + warp >= runs) continue;
        const Stretch<ROWS> &from = stages[t % DEPTH];
        uint4 v[MT];
        #pragma unroll
        for (int m = 0; m < MT; m++) v[m] = *(const uint4 *)(from.w + (m * 8 + group) * PITCH + at);
        #pragma unroll
        for (int n = 0; n < NT; n++) {
            const u8 *rows = from.x[0] + (n * 8 + group) * PITCH + at;
            uint4 a = *(const uint4 *)rows, b = *(const uint4 *)(rows + ROWS * PITCH);
            float unit = from.units[n * 8 + group][warp];
            #pragma unroll
            for (int m = 0; m < MT; m++) {
                float d[4];
                run_dots<F>(d, a, b, v[m]);
                sum[n][m][0] = __fmaf_rn(__fadd_rn(d[0], d[2]), unit, sum[n][m][0]);
                sum[n][m][1] = __fmaf_rn(__fadd_rn(d[1], d[3]), unit, sum[n][m][1]);
            }
        }
    }

    // Sums of all warps: of a run OUTS rows of ROWS + 2.
    const u32 WIDE = ROWS + 2;
    float *joint = (float *)space;
    copies_wait<0>();
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < NT; n++)
        #pragma unroll
        for (int m = 0; m < MT; m++)
            #pragma unroll
            for (int i = 0; i < 2; i++) joint[(warp * OUTS + m * 8 + four * 2 + i) * WIDE + n * 8 + group] = sum[n][m][i];
    __syncthreads();
    u32 wide = op.gated ? OUTS / 2 : OUTS;
    for (u32 e = tid; e < ROWS * wide; e += 256) {
        u32 r = e / wide, c = e % wide, n = first + r, o = outs.first + c;
        if (n >= count || o >= outs.count || of_prompt(s, op, n)) continue;
        const Part &p = op.parts[outs.part];
        float y = finished(p, joined(joint + c * WIDE + r, OUTS * WIDE), o, 0, false);
        if (op.gated) y = gated(op.act, y, finished(op.parts[1], joined(joint + (OUTS / 2 + c) * WIDE + r, OUTS * WIDE), o, 0, false));
        u64 to = (u64)n * p.y_stride + p.y_first + o;
        if (p.add) y = __fadd_rn(y, p.add[to]);
        p.y[to] = y;
    }
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HAS_CLUSTERS 1
#endif

#define WIDE_OUTS 128 // outputs of a tile that four blocks share
#define WIDE_PITCH (WIDE_OUTS + 8)

// 64 columns of every 256, which are two runs, on their way.
template <int ROWS> struct Quarter {
    u8 w[WIDE_OUTS * 128], x[2][ROWS * 128];
    float units[ROWS][2];
};

#ifdef HAS_CLUSTERS
// Where a piece of 16 bytes of a row lies: those of neighbours in banks of their own.
static __device__ __forceinline__ u32 in_quarter(u32 row, u32 piece) { return row * 128 + ((piece ^ (row & 1) * 4) << 4); }

// A number in the shared memory of a block of the cluster.
static __device__ __forceinline__ float of_block(u32 at, u32 block) {
    float v;
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}
#endif

// Tiles of 128 outputs by 8 · NT rows, each by a cluster of four blocks that take a quarter of the columns: so a row of
// activations is read a quarter as often.
template <int F, int NT, int DEPTH> static __device__ __forceinline__ void wide(const Step &s, const MatVec &op, const Cut &cut) {
#ifdef HAS_CLUSTERS
    const int ROWS = 8 * NT, MT = WIDE_OUTS / 32, W_COPIES = WIDE_OUTS / 32, X_COPIES = (ROWS + 31) / 32;
    extern __shared__ __align__(128) u8 space[];
    Quarter<ROWS> *stages = (Quarter<ROWS> *)space;
    u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, first = blockIdx.x * ROWS, k = op.k, quarter = blockIdx.y % 4;
    Outputs outs;
    bool found = find_outputs(op, F, op.gated ? WIDE_OUTS / 2 : WIDE_OUTS, blockIdx.y / 4, &outs);

    // Eight threads copy a row's 64 columns.
    u32 piece = tid % 8, line = tid / 8, column = quarter * 64 + piece * 8;
    const u8 *w[W_COPIES];
    #pragma unroll
    for (int i = 0; i < W_COPIES; i++) {
        u32 r = line + 32 * i, part = outs.part;
        if (op.gated) part = r >= WIDE_OUTS / 2, r %= WIDE_OUTS / 2;
        w[i] = op.parts[part].data + (u64)min(outs.first + r, outs.count - 1) * op.parts[part].row_bytes + column * 2;
    }
    u32 runs = (k + 31) / 32, steps = (k + 255) / 256;
    auto copy_weights = [&](u32 t) {
        Quarter<ROWS> &to = stages[t % DEPTH];
        bool there = t < steps && t * 256 + column < k;
        #pragma unroll
        for (int i = 0; i < W_COPIES; i++) copy16(shared_at(to.w) + in_quarter(line + 32 * i, piece), there ? w[i] + t * 512 : op.parts[0].data, there);
    };
    bool early = found && blockIdx.x == 0;
    if (early) {
        #pragma unroll
        for (u32 t = 0; t < DEPTH - 1; t++) copy_weights(t);
    }
    wait_before();
    u32 count = rows_of(s, op.lead);
    bool own = tid < ROWS && first + tid < count && !of_prompt(s, op, first + tid);
    if (!__syncthreads_or(own) || !found) {
        copies_end(), copies_wait<0>();
        return;
    }
    const u16 *x[X_COPIES];
    #pragma unroll
    for (int i = 0; i < X_COPIES; i++) x[i] = cut.parts + (u64)min(first + line + 32 * i, count - 1) * k + column;
    u32 run_from = quarter * 2 + tid % 2;
    const float *units = cut.units + (u64)min(first + tid / 2, count - 1) * runs + run_from;
    auto copy = [&](u32 t, bool weights) {
        if (t < steps) {
            Quarter<ROWS> &to = stages[t % DEPTH];
            bool there = t * 256 + column < k;
            u32 from = there ? t * 256 : 0;
            if (weights) copy_weights(t);
            if (ROWS >= 32 || line < ROWS) {
                #pragma unroll
                for (int i = 0; i < X_COPIES; i++)
                    #pragma unroll
                    for (int p = 0; p < 2; p++)
                        copy16(shared_at(to.x[p]) + in_quarter(line + 32 * i, piece), there ? x[i] + p * cut.apart + from : cut.parts, there);
            }
            if (tid < ROWS * 2 && t * RUNS + run_from < runs) copy4(shared_at(&to.units[tid / 2][tid % 2]), units + t * RUNS);
        }
        copies_end();
    };
    #pragma unroll
    for (u32 t = 0; t < DEPTH - 1; t++) copy(t, !early);

    // A warp has one of the runs and 32 outputs.
    u32 group = lane / 4, four = lane % 4, run = warp % 2, at = in_quarter(group, run * 4 + four), w_at = warp / 2 * MT * 8 * 128 + at;
    float sum[NT][MT][2] = {};
    for (u32 t = 0; t < steps; t++) {
        copies_wait<DEPTH - 2>();
        __syncthreads();
        copy(t + DEPTH - 1, true);
        if (t * RUNS + quarter * 2 + run >= runs) continue;
        const Quarter<ROWS> &from = stages[t % DEPTH];
        uint4 v[MT];
        #pragma unroll
        for (int m = 0; m < MT; m++) v[m] = *(const uint4 *)(from.w + w_at + m * 8 * 128);
        #pragma unroll
        for (int n = 0; n < NT; n++) {
            uint4 a = *(const uint4 *)(from.x[0] + n * 8 * 128 + at), b = *(const uint4 *)(from.x[1] + n * 8 * 128 + at);
            float unit = from.units[n * 8 + group][run];
            #pragma unroll
            for (int m = 0; m < MT; m++) {
                float d[4];
                run_dots<F>(d, a, b, v[m]);
                sum[n][m][0] = __fmaf_rn(__fadd_rn(d[0], d[2]), unit, sum[n][m][0]);
                sum[n][m][1] = __fmaf_rn(__fadd_rn(d[1], d[3]), unit, sum[n][m][1]);
            }
        }
    }

    // The sums of both runs, then those of four blocks.
    float *joint = (float *)space;
    copies_wait<0>();
    __syncthreads();
    auto place = [&](int n, int m) { return (float2 *)(joint + (n * 8 + group) * WIDE_PITCH + (warp / 2 * MT + m) * 8 + four * 2); };
    if (run == 1) {
        #pragma unroll
        for (int n = 0; n < NT; n++)
            #pragma unroll
            for (int m = 0; m < MT; m++) *place(n, m) = make_float2(sum[n][m][0], sum[n][m][1]);
    }
    __syncthreads();
    if (run == 0) {
        #pragma unroll
        for (int n = 0; n < NT; n++)
            #pragma unroll
            for (int m = 0; m < MT; m++) {
                float2 other = *place(n, m);
                *place(n, m) = make_float2(__fadd_rn(sum[n][m][0], other.x), __fadd_rn(sum[n][m][1], other.y));
            }
    }
    meet_cluster();
    u32 width = op.gated ? WIDE_OUTS / 8 : WIDE_OUTS / 4;
    for (u32 e = tid; e < ROWS * width; e += 256) {
        u32 r = e / width, c = quarter * width + e % width, n = first + r, o = outs.first + c;
        if (n >= count || o >= outs.count || of_prompt(s, op, n)) continue;
        auto whole = [&](u32 c) {
            u32 at = shared_at(joint + r * WIDE_PITCH + c);
            return __fadd_rn(__fadd_rn(of_block(at, 0), of_block(at, 2)), __fadd_rn(of_block(at, 1), of_block(at, 3)));
        };
        const Part &p = op.parts[outs.part];
        float y = finished(p, whole(c), o, 0, false);
        if (op.gated) y = gated(op.act, y, finished(op.parts[1], whole(WIDE_OUTS / 2 + c), o, 0, false));
        u64 to = (u64)n * p.y_stride + p.y_first + o;
        if (p.add) y = __fadd_rn(y, p.add[to]);
        p.y[to] = y;
    }
    meet_cluster(); // sums are read by others
#endif
}

#ifdef HAS_CLUSTERS
#define CLUSTER __cluster_dims__(1, 4, 1)
#else
#define CLUSTER
#endif
#define REPLIES(F)                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 2) replies_8_##F(Step s, MatVec op, Cut cut) { replies<T_##F, 1, 4>(s, op, cut); }  \
    extern "C" __global__ void __launch_bounds__(256, 2) replies_16_##F(Step s, MatVec op, Cut cut) { replies<T_##F, 2, 3>(s, op, cut); } \
    extern "C" __global__ void __launch_bounds__(256, 1) replies_32_##F(Step s, MatVec op, Cut cut) { replies<T_##F, 4, 4>(s, op, cut); }

#define WIDE(F)                                                                                                                          \
    extern "C" __global__ void CLUSTER __launch_bounds__(256, 2) wide_16_##F(Step s, MatVec op, Cut cut) { wide<T_##F, 2, 5>(s, op, cut); } \
    extern "C" __global__ void CLUSTER __launch_bounds__(256, 2) wide_32_##F(Step s, MatVec op, Cut cut) { wide<T_##F, 4, 4>(s, op, cut); } \
    extern "C" __global__ void CLUSTER __launch_bounds__(256, 2) wide_64_##F(Step s, MatVec op, Cut cut) { wide<T_##F, 8, 3>(s, op, cut); }
WIDE(F16) WIDE(BF16)
REPLIES(F16) REPLIES(BF16)
