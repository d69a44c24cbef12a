// Products of one row: every block normalises the row and turns it into bytes for itself, then a warp computes R outputs at
// a time, each summed as matvec.cu sums it, so that a row has the same bits from both.
#include "products.cuh"

// A row in bytes: halves of a run apart, so that neighbours read neighbouring banks.
struct Row {
    uint4 *low, *high;
    float *d;
    i32 *s;
};

static __device__ __forceinline__ Row row_in(u8 *space, u32 runs) {
    Row r;
    r.low = (uint4 *)space, r.high = r.low + runs;
    r.d = (float *)(r.high + runs), r.s = (i32 *)(r.d + runs);
    return r;
}

static __device__ __forceinline__ void make_row(const MatVec &op, const Source &from, const Row &to) {
    __shared__ float shared[33];
    u32 runs = op.k / 32, lane = threadIdx.x & 31;
    if (from.kind == PREPARED) {
        for (u32 i = threadIdx.x; i < runs; i += blockDim.x) {
            to.low[i] = ((const uint4 *)op.acts.q)[2 * i], to.high[i] = ((const uint4 *)op.acts.q)[2 * i + 1];
            to.d[i] = op.acts.d[i], to.s[i] = op.acts.s[i];
        }
        return;
    }
    float mean = 0.0f, root = 1.0f;
    if (from.kind != NORM_NONE) root = root_of(from.x, op.k, from.kind, from.eps, shared, &mean);
    #pragma unroll 4
    for (u32 c = threadIdx.x; c < op.k; c += blockDim.x) {
        float v = from.x[c];
        if (from.kind != NORM_NONE) v = (v - mean) / root;
        if (from.w) v = __fmul_rn(v, from.w[c]);
        if (from.b) v = __fadd_rn(v, from.b[c]);
        float most = max_lanes(fabsf(v));
        i32 q = most > 0.0f ? __float2int_rn(__fmul_rn(v, __fdiv_rn(127.0f, most))) : 0, sum = q;
        for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, d);
        u32 run = c / 32;
        ((u8 *)(lane < 16 ? to.low + run : to.high + run))[lane % 16] = (u8)q;
        if (lane == 0) to.d[run] = __fdiv_rn(most, 127.0f), to.s[run] = sum;
    }
}

template <int F, int R>
static __device__ __forceinline__ void lane_sums(const Rows *rows, const MatVec &op, const float *x, const Row &row, float *sum) {
    u32 lane = threadIdx.x & 31, runs = op.k / 32;
    if (F == T_F16 || F == T_BF16) {
        const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        #pragma unroll 2
        for (u32 first = 0; first < op.k; first += 256) {
            u32 c = first + lane * 8;
            bool there = c < op.k;
            uint4 v[R];
            #pragma unroll
            for (int r = 0; r < R; r++) v[r] = there ? load_weights(rows[r].w + c * 2) : make_uint4(0, 0, 0, 0);
            const float4 *a = (const float4 *)(x + c);
            Eight e = eight_of<F>(there ? a[0] : none, there ? a[1] : none);
            #pragma unroll
            for (int r = 0; r < R; r++) sum[r] = plus_eight<F>(e, v[r], sum[r]);
        }
        #pragma unroll
        for (int r = 0; r < R; r++) sum[r] = own_run(sum[r]);
    } else if (F == T_Q4_0 || F == T_MXFP4 || F == T_IQ4_NL) {
        #pragma unroll 2
        for (u32 b = lane; b < runs; b += 32) {
            uint4 v[R];
            float d[R];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                v[r] = load_weights(rows[r].w + b * 16);
                d[r] = F == T_MXFP4 ? e8m0_half(rows[r].scales[b]) : half_to_float(((const u16 *)rows[r].scales)[b]);
            }
            uint4 low = row.low[b], high = row.high[b];
            float xd = row.d[b];
            i32 xs = row.s[b];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                uint4 first, second;
                if (F == T_Q4_0) {
                    first = masked(v[r], 0, 0x0f0f0f0fu), second = masked(v[r], 4, 0x0f0f0f0fu);
                } else {
                    const u32 *table = F == T_MXFP4 ? FP4_WORDS : IQ4_WORDS;
                    look_up(table, v[r].x, &first.x, &second.x), look_up(table, v[r].y, &first.y, &second.y);
                    look_up(table, v[r].z, &first.z, &second.z), look_up(table, v[r].w, &first.w, &second.w);
                }
                i32 dot = dot16(second, high, dot16(first, low, 0)) - (F == T_Q4_0 ? 8 * xs : 0);
                sum[r] = __fmaf_rn(__fmul_rn(d[r], xd), (float)dot, sum[r]);
            }
        }
    } else if (F == T_Q8_0) {
        #pragma unroll 2
        for (u32 b = lane; b < runs; b += 32) {
            uint4 v[R][2];
            float d[R];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                v[r][0] = load_weights(rows[r].w + b * 32), v[r][1] = load_weights(rows[r].w + b * 32 + 16);
                d[r] = half_to_float(((const u16 *)rows[r].scales)[b]);
            }
            uint4 low = row.low[b], high = row.high[b];
            float xd = row.d[b];
            #pragma unroll
            for (int r = 0; r < R; r++)
                sum[r] = __fmaf_rn(__fmul_rn(d[r], xd), (float)dot16(v[r][1], high, dot16(v[r][0], low, 0)), sum[r]);
        }
    } else if (F == T_Q4_K || F == T_Q5_K) {
        const u32 bytes = F == T_Q4_K ? 144 : 176;
        #pragma unroll 2
        for (u32 i = lane; i < runs / 2; i += 32) {
            u32 block = i / 4, j = i % 4;
            uint4 h[R], a0[R], a1[R], f0[R], f1[R];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                const u8 *b = rows[r].w + (u64)block * bytes, *qs = b + (F == T_Q4_K ? 16 : 48) + 32 * j;
                h[r] = load_weights(b), a0[r] = load_weights(qs), a1[r] = load_weights(qs + 16);
                if (F == T_Q5_K) f0[r] = load_weights(b + 16), f1[r] = load_weights(b + 32);
            }
            uint4 x0 = row.low[2 * i], x1 = row.high[2 * i], y0 = row.low[2 * i + 1], y1 = row.high[2 * i + 1];
            float2 xd = *(const float2 *)(row.d + 2 * i);
            int2 xs = *(const int2 *)(row.s + 2 * i);
            #pragma unroll
            for (int r = 0; r < R; r++) {
                u32 sc = j < 2 ? h[r].y & 0x3f3f3f3fu : (h[r].w & 0x0f0f0f0fu) | (h[r].y >> 2 & 0x30303030u);
                u32 mn = j < 2 ? h[r].z & 0x3f3f3f3fu : (h[r].w >> 4 & 0x0f0f0f0fu) | (h[r].z >> 2 & 0x30303030u);
                sc >>= 16 * (j & 1), mn >>= 16 * (j & 1);
                float d = half_to_float((u16)h[r].x), m = half_to_float((u16)(h[r].x >> 16));
                float d0 = d * (float)(sc & 255), d1 = d * (float)(sc >> 8 & 255);
                float m0 = m * (float)(mn & 255), m1 = m * (float)(mn >> 8 & 255);
                uint4 low0 = masked(a0[r], 0, 0x0f0f0f0fu), low1 = masked(a1[r], 0, 0x0f0f0f0fu);
                uint4 high0 = masked(a0[r], 4, 0x0f0f0f0fu), high1 = masked(a1[r], 4, 0x0f0f0f0fu);
                if (F == T_Q5_K) {
                    low0 = either(low0, raised(masked(f0[r], 2 * j, 0x01010101u), 4));
                    low1 = either(low1, raised(masked(f1[r], 2 * j, 0x01010101u), 4));
                    high0 = either(high0, raised(masked(f0[r], 2 * j + 1, 0x01010101u), 4));
                    high1 = either(high1, raised(masked(f1[r], 2 * j + 1, 0x01010101u), 4));
                }
                float v0 = __fmaf_rn(d0, (float)dot16(low1, x1, dot16(low0, x0, 0)), -__fmul_rn(m0, (float)xs.x));
                float v1 = __fmaf_rn(d1, (float)dot16(high1, y1, dot16(high0, y0, 0)), -__fmul_rn(m1, (float)xs.y));
                sum[r] = __fmaf_rn(xd.x, v0, sum[r]);
                sum[r] = __fmaf_rn(xd.y, v1, sum[r]);
            }
        }
    } else if (F == T_Q6_K) {
        #pragma unroll 2
        for (u32 i = lane; i < runs / 2; i += 32) {
            u32 block = i / 4, h = i % 4 / 2, p = i & 1, run = block * 8 + 4 * h + p;
            uint4 l0[R], l1[R], h0[R], h1[R];
            u32 sc[R][2];
            float d[R];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                const u8 *b = rows[r].w + (u64)block * 208;
                l0[r] = load_weights(b + 64 * h + 32 * p), l1[r] = load_weights(b + 64 * h + 32 * p + 16);
                h0[r] = load_weights(b + 128 + 32 * h), h1[r] = load_weights(b + 144 + 32 * h);
                sc[r][0] = *(const u16 *)(b + 192 + 8 * h + 2 * p), sc[r][1] = *(const u16 *)(b + 196 + 8 * h + 2 * p);
                d[r] = half_to_float(((const u16 *)rows[r].scales)[block]);
            }
            uint4 x0 = row.low[run], x1 = row.high[run], y0 = row.low[run + 2], y1 = row.high[run + 2];
            float xd = row.d[run], yd = row.d[run + 2];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                uint4 a0 = less32(either(masked(l0[r], 0, 0x0f0f0f0fu), raised(masked(h0[r], 2 * p, 0x03030303u), 4)));
                uint4 a1 = less32(either(masked(l1[r], 0, 0x0f0f0f0fu), raised(masked(h1[r], 2 * p, 0x03030303u), 4)));
                uint4 c0 = less32(either(masked(l0[r], 4, 0x0f0f0f0fu), raised(masked(h0[r], 2 * p + 4, 0x03030303u), 4)));
                uint4 c1 = less32(either(masked(l1[r], 4, 0x0f0f0f0fu), raised(masked(h1[r], 2 * p + 4, 0x03030303u), 4)));
                i32 v0 = dot16(a0, x0, 0) * (i8)sc[r][0] + dot16(a1, x1, 0) * (i8)(sc[r][0] >> 8);
                i32 v1 = dot16(c0, y0, 0) * (i8)sc[r][1] + dot16(c1, y1, 0) * (i8)(sc[r][1] >> 8);
                sum[r] = __fmaf_rn(__fmul_rn(d[r], xd), (float)v0, sum[r]);
                sum[r] = __fmaf_rn(__fmul_rn(d[r], yd), (float)v1, sum[r]);
            }
        }
    }
}

template <int R>
static __device__ __forceinline__ void sums_of(u32 dtype, const Rows *rows, const MatVec &op, const float *x, const Row &row, float *sum) {
    #pragma unroll
    for (int r = 0; r < R; r++) sum[r] = 0.0f;
    switch (dtype) {
#define CASE(F) case T_##F: lane_sums<T_##F, R>(rows, op, x, row, sum); break;
        CASE(F16) CASE(BF16) CASE(Q4_0) CASE(IQ4_NL) CASE(MXFP4) CASE(Q8_0) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
#undef CASE
    }
    #pragma unroll
    for (int r = 0; r < R; r++) sum[r] = sum_lanes(sum[r]);
}

static __device__ __forceinline__ void fetch_ahead(const u8 *from, u64 bytes) {
    for (u64 i = (threadIdx.x & 31) * 128; i < bytes; i += 32 * 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

template <int R> static __device__ __forceinline__ void vec(const Step &s, const MatVec &op, const Source &from) {
    extern __shared__ __align__(16) u8 space[];
    u32 total = from.total, lane = threadIdx.x & 31, stride = gridDim.x * (blockDim.x >> 5) * R;
    u32 first = (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * R;
    #pragma unroll
    for (int r = 0; r < R; r++) {
        if (first + r >= total) break;
        Output out = output_of(op, first + r);
        Rows rows = rows_at(op, out);
        fetch_ahead(rows.w, op.parts[out.part].row_bytes);
        if (op.parts[out.part].scale_bytes) fetch_ahead(rows.scales, op.parts[out.part].scale_bytes);
    }
    wait_before();
    if (rows_of(s, op.lead) == 0 || of_prompt(s, op, 0)) return;
    Row row = row_in(space, op.k / 32);
    if (from.form == IN_BYTES) {
        make_row(op, from, row);
        __syncthreads();
    }
    for (u32 i = first; i < total; i += stride) {
        Rows rows[R];
        Output outs[R];
        float sum[R];
        bool alike = i + R <= total;
        #pragma unroll
        for (int r = 0; r < R; r++) {
            outs[r] = output_of(op, min(i + r, total - 1));
            rows[r] = rows_at(op, outs[r]);
            alike &= op.parts[outs[r].part].dtype == op.parts[outs[0].part].dtype;
            if (i + stride + r < total) {
                Output next = output_of(op, i + stride + r);
                Rows ahead = rows_at(op, next);
                fetch_ahead(ahead.w, op.parts[next.part].row_bytes);
            }
        }
        if (R == 1 || alike) {
            sums_of<R>(op.parts[outs[0].part].dtype, rows, op, op.x, row, sum);
        } else {
            #pragma unroll 1
            for (int r = 0; r < R; r++) {
                float one;
                sums_of<1>(op.parts[outs[r].part].dtype, rows + r, op, op.x, row, &one);
                #pragma unroll
                for (int t = 0; t < R; t++)
                    if (t == r) sum[t] = one;
            }
        }
        #pragma unroll
        for (int r = 0; r < R; r++) {
            if (lane != r || i + r >= total || (op.gated && outs[r].part == 1)) continue;
            const Part &p = op.parts[outs[r].part];
            float y = finished(p, sum[r], outs[r].o, 0, false);
            if (op.gated) y = gated(op.act, y, finished(op.parts[1], sum[(r + 1) % R], outs[r].o, 0, false));
            u32 at = p.y_first + outs[r].o;
            if (p.add) y = __fadd_rn(y, p.add[at]);
            p.y[at] = y;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) vec_1(Step s, MatVec op, Source from) { vec<1>(s, op, from); }
extern "C" __global__ void __launch_bounds__(256) vec_2(Step s, MatVec op, Source from) { vec<2>(s, op, from); }
extern "C" __global__ void __launch_bounds__(256, 2) vec_4(Step s, MatVec op, Source from) { vec<4>(s, op, from); }
