// Products of few rows with weights of the usual formats: a warp computes an output of up to T rows.
//
// Block formats meet activations in bytes, one scale per 32 columns: integer dots are exact, and lane l sums blocks l,
// l + 32, … before lanes are summed in pairs, so a row's bits follow from the format and the number of columns alone.
#include "products.cuh"

// Columns of a row that a block of `quantise` has at once where there is a norm, and its threads then.
#define PIECE 4096u
#define NORM_THREADS 512u

// The largest of a warp's magnitudes; not a number where none is one.
static __device__ __forceinline__ float most_of(float v) {
#if __CUDA_ARCH__ >= 800
    bool number = v == v;
    float most = __uint_as_float(__reduce_max_sync(ALL_LANES, number ? __float_as_uint(fabsf(v)) : 0));
    return __any_sync(ALL_LANES, number) ? most : v;
#else
    return max_lanes(fabsf(v));
#endif
}

static __device__ __forceinline__ i32 sum_of(i32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(ALL_LANES, x);
#else
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    return x;
#endif
}

// A block for each 256 columns of a row, or for 512 where there is a norm: each of those sums the whole row, in the order of
// `root_of`.
KERNEL quantise(Step s, Quantise op) {
    __shared__ float shared[33], piece[PIECE];
    u32 row = blockIdx.y, lane = threadIdx.x & 31, c = blockIdx.x * blockDim.x + threadIdx.x;
    begin_next();
    bool in = c < op.width;
    float w = in && op.w ? op.w[c] : 0.0f;
    const float *x = op.x + (u64)row * op.width;
    wait_before();
    // Everything is asked for before anything is waited for.
    u32 count = rows_of(s, op.lead), flags = op.split ? s.flags[row] : 0;
    float v = in ? x[c] : 0.0f, first[PIECE / NORM_THREADS];
    #pragma unroll
    for (u32 i = 0; i < PIECE / NORM_THREADS; i++) {
        u32 own = threadIdx.x + i * NORM_THREADS;
        first[i] = op.kind != NORM_NONE && own < op.width ? x[own] : 0.0f;
    }
    if (row >= count || (flags & ROW_PROMPT)) return;
    if (op.kind != NORM_NONE) {
        float mean = 0.0f, squares = 0.0f;
        for (u32 pass = op.kind == NORM_LAYER ? 0 : 1; pass < 2; pass++) {
            for (u32 from = 0; from < op.width; from += PIECE) {
                __syncthreads();
                if (from == 0) {
                    #pragma unroll
                    for (u32 i = 0; i < PIECE / NORM_THREADS; i++) piece[threadIdx.x + i * NORM_THREADS] = first[i];
                } else {
                    #pragma unroll 8
                    for (u32 i = threadIdx.x; i < min(PIECE, op.width - from); i += NORM_THREADS) piece[i] = x[from + i];
                }
                __syncthreads();
                #pragma unroll 16
                for (u32 i = threadIdx.x; i < (threadIdx.x < 256 ? min(PIECE, op.width - from) : 0); i += 256) {
                    float one = piece[i] - mean;
                    if (pass == 0) squares += one;
                    else squares = __fmaf_rn(one, one, squares);
                }
            }
            squares = sum_block(squares, shared);
            if (pass == 0) mean = squares / (float)op.width, squares = 0.0f;
        }
        float root = norm_root(op.kind, squares, op.width, op.eps);
        v = (v - mean) / root;
    }
    // Whole warps: widths are multiples of 32.
    if (!in) return;
    if (op.w) v = __fmul_rn(v, w);
    if (op.b) v = __fadd_rn(v, op.b[c]);
    if (op.y) op.y[(u64)row * op.width + c] = v;
    if (!op.q) return;
    float most = most_of(v);
    i32 q = most > 0.0f ? __float2int_rn(__fmul_rn(v, __fdiv_rn(127.0f, most))) : 0, sum = sum_of(q);
    op.q[(u64)row * op.width + c] = (u8)q;
    if (lane == 0) {
        u64 run = ((u64)row * op.width + c) / 32;
        float d = __fdiv_rn(most, 127.0f);
        op.d[run] = d;
        op.s[run] = sum;
        if (op.turned) op.turned[(u64)(c / 32) * op.pitch + row] = make_uint2(__float_as_uint(d), __float_as_uint((float)sum));
    }
}

// Activations of a run of 32 columns.
struct Run {
    uint4 low, high;
    float d;
    i32 s;
};

static __device__ __forceinline__ Run load_run(const Acts &a, u64 run) {
    Run r;
    const uint4 *q = (const uint4 *)(a.q + run * 32);
    r.low = q[0], r.high = q[1];
    r.d = a.d[run];
    r.s = a.s[run];
    return r;
}

static __device__ __forceinline__ i32 dot32(uint4 a, uint4 b, const Run &r) { return dot16(b, r.high, dot16(a, r.low, 0)); }

// The sum of a lane for each row. `x_rows` are rows of activations, `runs` their runs.
template <int F, int T>
static __device__ __forceinline__ void lane_sum(const Part &p, const u8 *w, const u8 *scales, const MatVec &op,
                                                const u32 *x_rows, float *sum) {
    u32 lane = threadIdx.x & 31, runs = op.k / 32;
    if (F == T_F16 || F == T_BF16) {
        const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (u32 first = 0; first < op.k; first += 256) {
            u32 c = first + lane * 8;
            bool there = c < op.k;
            uint4 v = there ? load_weights(w + c * 2) : make_uint4(0, 0, 0, 0);
            #pragma unroll
            for (int t = 0; t < T; t++) {
                const float4 *x = (const float4 *)(op.x + (u64)x_rows[t] * op.k + c);
                sum[t] = plus_eight<F>(eight_of<F>(there ? x[0] : none, there ? x[1] : none), v, sum[t]);
            }
        }
        #pragma unroll
        for (int t = 0; t < T; t++) sum[t] = own_run(sum[t]);
        return;
    }
    if (F == T_Q4_0 || F == T_MXFP4 || F == T_IQ4_NL) {
        #pragma unroll 2
        for (u32 b = lane; b < runs; b += 32) {
            uint4 v = load_weights(w + b * 16), low, high;
            float d;
            i32 offset = 0;
            if (F == T_MXFP4) d = e8m0_half(scales[b]);
            else d = half_to_float(((const u16 *)scales)[b]);
            if (F == T_Q4_0) {
                low = masked(v, 0, 0x0f0f0f0fu), high = masked(v, 4, 0x0f0f0f0fu);
                offset = 8;
            } else {
                const u32 *table = F == T_MXFP4 ? FP4_WORDS : IQ4_WORDS;
                look_up(table, v.x, &low.x, &high.x), look_up(table, v.y, &low.y, &high.y);
                look_up(table, v.z, &low.z, &high.z), look_up(table, v.w, &low.w, &high.w);
            }
            #pragma unroll
            for (int t = 0; t < T; t++) {
                Run r = load_run(op.acts, (u64)x_rows[t] * runs + b);
                i32 dot = dot32(low, high, r) - offset * r.s;
                sum[t] = __fmaf_rn(__fmul_rn(d, r.d), (float)dot, sum[t]);
            }
        }
        return;
    }
    if (F == T_Q8_0) {
        #pragma unroll 2
        for (u32 b = lane; b < runs; b += 32) {
            uint4 low = load_weights(w + b * 32), high = load_weights(w + b * 32 + 16);
            float d = half_to_float(((const u16 *)scales)[b]);
            #pragma unroll
            for (int t = 0; t < T; t++) {
                Run r = load_run(op.acts, (u64)x_rows[t] * runs + b);
                sum[t] = __fmaf_rn(__fmul_rn(d, r.d), (float)dot32(low, high, r), sum[t]);
            }
        }
        return;
    }
    if (F == T_Q4_K || F == T_Q5_K) {
        // A lane takes 64 columns: low nibbles of 32 bytes, then the high ones.
        const u32 bytes = F == T_Q4_K ? 144 : 176;
        #pragma unroll 2
        for (u32 i = lane; i < runs / 2; i += 32) {
            u32 block = i / 4, j = i % 4;
            const u8 *b = w + (u64)block * bytes;
            uint4 h = load_weights(b);
            const u8 *qs = b + (F == T_Q4_K ? 16 : 48) + 32 * j;
            uint4 a0 = load_weights(qs), a1 = load_weights(qs + 16);
            u32 sc = j < 2 ? h.y & 0x3f3f3f3fu : (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u);
            u32 mn = j < 2 ? h.z & 0x3f3f3f3fu : (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u);
            sc >>= 16 * (j & 1), mn >>= 16 * (j & 1);
            float d = half_to_float((u16)h.x), m = half_to_float((u16)(h.x >> 16));
            float d0 = d * (float)(sc & 255), d1 = d * (float)(sc >> 8 & 255);
            float m0 = m * (float)(mn & 255), m1 = m * (float)(mn >> 8 & 255);
            uint4 low0 = masked(a0, 0, 0x0f0f0f0fu), low1 = masked(a1, 0, 0x0f0f0f0fu);
            uint4 high0 = masked(a0, 4, 0x0f0f0f0fu), high1 = masked(a1, 4, 0x0f0f0f0fu);
            if (F == T_Q5_K) {
                uint4 f0 = load_weights(b + 16), f1 = load_weights(b + 32);
                low0 = either(low0, raised(masked(f0, 2 * j, 0x01010101u), 4));
                low1 = either(low1, raised(masked(f1, 2 * j, 0x01010101u), 4));
                high0 = either(high0, raised(masked(f0, 2 * j + 1, 0x01010101u), 4));
                high1 = either(high1, raised(masked(f1, 2 * j + 1, 0x01010101u), 4));
            }
            #pragma unroll
            for (int t = 0; t < T; t++) {
                u64 run = (u64)x_rows[t] * runs + 2 * i;
                Run r0 = load_run(op.acts, run), r1 = load_run(op.acts, run + 1);
                float v0 = __fmaf_rn(d0, (float)dot32(low0, low1, r0), -__fmul_rn(m0, (float)r0.s));
                float v1 = __fmaf_rn(d1, (float)dot32(high0, high1, r1), -__fmul_rn(m1, (float)r1.s));
                sum[t] = __fmaf_rn(r0.d, v0, sum[t]);
                sum[t] = __fmaf_rn(r1.d, v1, sum[t]);
            }
        }
        return;
    }
    if (F == T_Q6_K) {
        // A lane takes two runs of 32 columns that share bytes of low nibbles.
        #pragma unroll 2
        for (u32 i = lane; i < runs / 2; i += 32) {
            u32 block = i / 4, h = i % 4 / 2, r = i & 1;
            const u8 *b = w + (u64)block * 208;
            uint4 l0 = load_weights(b + 64 * h + 32 * r), l1 = load_weights(b + 64 * h + 32 * r + 16);
            uint4 h0 = load_weights(b + 128 + 32 * h), h1 = load_weights(b + 144 + 32 * h);
            const i8 *sc = (const i8 *)(b + 192 + 8 * h + 2 * r);
            float d = half_to_float(((const u16 *)scales)[block]);
            uint4 a0 = less32(either(masked(l0, 0, 0x0f0f0f0fu), raised(masked(h0, 2 * r, 0x03030303u), 4)));
            uint4 a1 = less32(either(masked(l1, 0, 0x0f0f0f0fu), raised(masked(h1, 2 * r, 0x03030303u), 4)));
            uint4 c0 = less32(either(masked(l0, 4, 0x0f0f0f0fu), raised(masked(h0, 2 * r + 4, 0x03030303u), 4)));
            uint4 c1 = less32(either(masked(l1, 4, 0x0f0f0f0fu), raised(masked(h1, 2 * r + 4, 0x03030303u), 4)));
            i32 s0 = sc[0], s1 = sc[1], s2 = sc[4], s3 = sc[5];
            #pragma unroll
            for (int t = 0; t < T; t++) {
                u64 run = (u64)x_rows[t] * runs + block * 8 + 4 * h + r;
                Run r0 = load_run(op.acts, run), r1 = load_run(op.acts, run + 2);
                i32 v0 = dot16(a0, r0.low, 0) * s0 + dot16(a1, r0.high, 0) * s1;
                i32 v1 = dot16(c0, r1.low, 0) * s2 + dot16(c1, r1.high, 0) * s3;
                sum[t] = __fmaf_rn(__fmul_rn(d, r0.d), (float)v0, sum[t]);
                sum[t] = __fmaf_rn(__fmul_rn(d, r1.d), (float)v1, sum[t]);
            }
        }
        return;
    }
}

template <int T>
static __device__ __forceinline__ void part_sum(const Part &p, u32 o, u32 expert, const MatVec &op, const u32 *x_rows, float *sum) {
    const u8 *w = p.data + expert * p.part_bytes + o * p.row_bytes;
    const u8 *scales = p.scales + expert * p.part_scales + o * p.scale_bytes;
    #pragma unroll
    for (int t = 0; t < T; t++) sum[t] = 0.0f;
    switch (p.dtype) {
    case T_F16: lane_sum<T_F16, T>(p, w, scales, op, x_rows, sum); break;
    case T_BF16: lane_sum<T_BF16, T>(p, w, scales, op, x_rows, sum); break;
    case T_Q4_0: lane_sum<T_Q4_0, T>(p, w, scales, op, x_rows, sum); break;
    case T_IQ4_NL: lane_sum<T_IQ4_NL, T>(p, w, scales, op, x_rows, sum); break;
    case T_MXFP4: lane_sum<T_MXFP4, T>(p, w, scales, op, x_rows, sum); break;
    case T_Q8_0: lane_sum<T_Q8_0, T>(p, w, scales, op, x_rows, sum); break;
    case T_Q4_K: lane_sum<T_Q4_K, T>(p, w, scales, op, x_rows, sum); break;
    case T_Q5_K: lane_sum<T_Q5_K, T>(p, w, scales, op, x_rows, sum); break;
    case T_Q6_K: lane_sum<T_Q6_K, T>(p, w, scales, op, x_rows, sum); break;
    }
    #pragma unroll
    for (int t = 0; t < T; t++) sum[t] = sum_lanes(sum[t]);
}

template <int T> static __device__ __forceinline__ void matvec(const Step &s, const MatVec &op) {
    u32 lane = threadIdx.x & 31, warp = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    u32 routed = max(op.top_k, 1u), count = rows_of(s, op.lead) * routed, first = blockIdx.y * T;
    if (first >= count) return;
    if (op.kinds) {
        bool own = false;
        for (u32 t = first; t < min(first + T, count); t++) own |= !(s.flags[t] & ROW_PROMPT);
        if (!own) return;
    }
    u32 o = warp, i = 0;
    if (op.gated) {
        if (o >= op.parts[0].end) return;
    } else {
        while (i < PARTS && o >= op.parts[i].end) i++;
        if (i == PARTS) return;
        if (i > 0) o -= op.parts[i - 1].end;
    }
    u32 expert = op.ids ? (u32)op.ids[first] : 0, x_rows[T];
    #pragma unroll
    for (int t = 0; t < T; t++) {
        u32 row = min(first + t, count - 1);
        x_rows[t] = op.x_shared ? row / routed : row;
    }
    const Part &p = op.parts[i];
    float sum[T], up[T];
    part_sum<T>(p, o, expert, op, x_rows, sum);
    if (op.gated) part_sum<T>(op.parts[1], o, expert, op, x_rows, up);
    #pragma unroll
    for (int t = 0; t < T; t++) {
        if (lane != 0 || first + t >= count || of_prompt(s, op, first + t)) continue;
        float y = finished(p, sum[t], o, expert, op.ids != 0);
        if (op.gated) {
            float u = finished(op.parts[1], up[t], o, expert, op.ids != 0);
            y = gated(op.act, y, u);
        }
        u64 at = (u64)(first + t) * p.y_stride + p.y_first + o;
        if (p.add) y = __fadd_rn(y, p.add[at]);
        p.y[at] = y;
    }
}

extern "C" __global__ void __launch_bounds__(256) matvec_1(Step s, MatVec op) { matvec<1>(s, op); }
extern "C" __global__ void __launch_bounds__(256) matvec_2(Step s, MatVec op) { matvec<2>(s, op); }
extern "C" __global__ void __launch_bounds__(256) matvec_4(Step s, MatVec op) { matvec<4>(s, op); }
extern "C" __global__ void __launch_bounds__(256) matvec_8(Step s, MatVec op) { matvec<8>(s, op); }

// Takes blocks of a file apart: scales into one plane, everything else into another.
KERNEL split_blocks(u64 blocks, u32 bytes, u32 at, u32 len, const u8 *from, u8 *body, u8 *scales) {
    u64 total = blocks * bytes;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (u64)gridDim.x * blockDim.x) {
        u64 b = i / bytes;
        u32 c = (u32)(i % bytes);
        if (c >= at && c < at + len) scales[b * len + c - at] = from[i];
        else body[b * (bytes - len) + (c < at ? c : c - len)] = from[i];
    }
}
