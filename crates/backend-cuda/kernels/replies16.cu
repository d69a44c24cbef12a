// Products of many replies' rows with weights of sixteen bits, in the order of matvec.cu: a row has the same bits from both.
//
// A warp computes four outputs of eight rows: lane l takes columns 8 · l to 8 · l + 7 of every 256, one after the other.
#include "tiles.cuh"

#define ROWS 8
#define OUTPUTS 4
#define WARPS 8
#define DEPTH 4

#ifdef HAS_TENSOR
// Eight weights as floats.
template <int F> static __device__ __forceinline__ void floats_of(uint4 v, float *f) {
    u32 words[4] = {v.x, v.y, v.z, v.w};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = F == T_F16 ? half_to_float((u16)words[i]) : __uint_as_float(words[i] << 16);
        f[2 * i + 1] = F == T_F16 ? half_to_float((u16)(words[i] >> 16)) : __uint_as_float(words[i] & 0xffff0000u);
    }
}
#endif

// 256 columns of a tile, on their way.
struct Stretch {
    uint4 w[WARPS][OUTPUTS][32];    // by lane
    float4 x[ROWS][64];             // the first halves of lanes' eight, then the second ones
};

template <int F> static __device__ __forceinline__ void replies(const Step &s, const MatVec &op) {
#ifdef HAS_TENSOR
    extern __shared__ __align__(16) Stretch space[];
    u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, first = blockIdx.x * ROWS, k = op.k;
    u32 count = rows_of(s, op.lead);
    if (first >= count) return;
    Outputs outs;
    const u32 wide = WARPS * OUTPUTS;
    bool own = tid < ROWS && first + tid < count && !of_prompt(s, op, first + tid);
    bool found = find_outputs(op, F, op.gated ? wide / 2 : wide, blockIdx.y, &outs);
    if (!__syncthreads_or(own) || !found) return;

    // Outputs of the warp; of a gated pair two of each.
    const u8 *w[OUTPUTS];
    u32 o_first = outs.first + warp * (op.gated ? OUTPUTS / 2 : OUTPUTS);
    #pragma unroll
    for (u32 r = 0; r < OUTPUTS; r++) {
        u32 part = op.gated ? r / (OUTPUTS / 2) : outs.part, o = o_first + (op.gated ? r % (OUTPUTS / 2) : r);
        w[r] = op.parts[part].data + (u64)min(o, outs.count - 1) * op.parts[part].row_bytes + lane * 16;
    }
    // A thread copies a piece of two rows.
    u32 row = tid / 64, piece = tid % 64, steps = (k + 255) / 256;
    const float *x[2];
    #pragma unroll
    for (u32 i = 0; i < 2; i++) x[i] = op.x + (u64)min(first + row + 4 * i, count - 1) * k + piece * 4;
    auto copy = [&](u32 t) {
        if (t < steps) {
            Stretch &to = space[t % DEPTH];
            bool there = t * 256 + piece * 4 < k, own = t * 256 + lane * 8 < k;
            #pragma unroll
            for (u32 r = 0; r < OUTPUTS; r++) copy16(shared_at(&to.w[warp][r][lane]), own ? w[r] + t * 512 : w[r] - lane * 16, own);
            #pragma unroll
            for (u32 i = 0; i < 2; i++) copy16(shared_at(&to.x[row + 4 * i][piece % 2 * 32 + piece / 2]), there ? x[i] + t * 256 : op.x, there);
        }
        copies_end();
    };
    #pragma unroll
    for (u32 t = 0; t < DEPTH - 1; t++) copy(t);
    float sum[OUTPUTS][ROWS] = {};
    for (u32 t = 0; t < steps; t++) {
        copies_wait<DEPTH - 2>();
        __syncthreads();
        copy(t + DEPTH - 1);
        const Stretch &from = space[t % DEPTH];
        float f[OUTPUTS][8];
        #pragma unroll
        for (u32 r = 0; r < OUTPUTS; r++) floats_of<F>(from.w[warp][r][lane], f[r]);
        if (t * 256 + lane * 8 >= k) continue;
        #pragma unroll
        for (u32 n = 0; n < ROWS; n++) {
            float4 a = from.x[n][lane], b = from.x[n][32 + lane];
            #pragma unroll
            for (u32 r = 0; r < OUTPUTS; r++) {
                float y = sum[r][n];
                y = __fmaf_rn(f[r][0], a.x, y), y = __fmaf_rn(f[r][1], a.y, y);
                y = __fmaf_rn(f[r][2], a.z, y), y = __fmaf_rn(f[r][3], a.w, y);
                y = __fmaf_rn(f[r][4], b.x, y), y = __fmaf_rn(f[r][5], b.y, y);
                y = __fmaf_rn(f[r][6], b.z, y), y = __fmaf_rn(f[r][7], b.w, y);
                sum[r][n] = y;
            }
        }
    }
    // A lane for each sum.
    float y = 0.0f;
    #pragma unroll
    for (u32 r = 0; r < OUTPUTS; r++)
        #pragma unroll
        for (u32 n = 0; n < ROWS; n++) {
            float all = sum_lanes(sum[r][n]);
            if (lane == r * ROWS + n) y = all;
        }
    float up = __shfl_down_sync(ALL_LANES, y, OUTPUTS / 2 * ROWS);
    u32 r = lane / ROWS, n = first + lane % ROWS, o = o_first + r;
    if (n >= count || o >= outs.count || of_prompt(s, op, n) || (op.gated && r >= OUTPUTS / 2)) return;
    const Part &p = op.parts[outs.part];
    y = finished(p, y, o, 0, false);
    if (op.gated) y = gated(op.act, y, finished(op.parts[1], up, o, 0, false));
    u64 to = (u64)n * p.y_stride + p.y_first + o;
    if (p.add) y = __fadd_rn(y, p.add[to]);
    p.y[to] = y;
#endif
}

extern "C" __global__ void __launch_bounds__(256, 2) replies_8_F16(Step s, MatVec op) { replies<T_F16>(s, op); }
extern "C" __global__ void __launch_bounds__(256, 2) replies_8_BF16(Step s, MatVec op) { replies<T_BF16>(s, op); }
