// Products of prompts' rows on tensor cores, with weights of block formats and activations in bytes.
//
// A block computes a tile of rows by outputs, 64 columns at a time. The dot of a run of 32 columns is exact in integers;
// runs are added up one after the other, so a row's bits follow from the format and the number of columns alone, whatever
// tile it lies in. (Rows of answers are summed in another order, by matvec.cu.)
#include "tiles.cuh"

enum { SIMPLE, WITH_MINIMUM, WITH_TWO };

template <int F> struct Kind {
    static const int how = F == T_Q4_K || F == T_Q5_K ? WITH_MINIMUM : F == T_Q6_K ? WITH_TWO : SIMPLE;
    static const u32 bytes = F == T_Q8_0 || F == T_Q5_K || F == T_Q6_K ? 64 : 32; // of an output in a stage
    static const u32 block = F == T_Q4_K ? 144 : F == T_Q5_K ? 176 : F == T_Q6_K ? 208 : 0;
    static const int scales = how == SIMPLE ? 2 : how == WITH_MINIMUM ? 4 : 5;    // floats of an output in a stage
    static const bool sums = F == T_Q4_0 || how == WITH_MINIMUM;                // of activations are used
    static const int offset = F == T_Q4_0 ? 8 : 0;
};

// What the scales of four stages are made of, on their way.
struct Header {
    uint4 v;
    u32 d;
};

// `whole`: rows of scales begin at multiples of 16 bytes.
template <int F> static __device__ __forceinline__ Header header(const u8 *w, const u8 *scales, u32 block, u32 steps, bool whole) {
    Header h = {make_uint4(0, 0, 0, 0), 0};
    if (Kind<F>::how == WITH_MINIMUM) h.v = *(const uint4 *)(w + (u64)block * Kind<F>::block);
    else if (Kind<F>::how == WITH_TWO) {
        h.v = *(const uint4 *)(w + (u64)block * 208 + 192);
        h.d = *(const u16 *)(scales + (u64)block * 2);
    } else if (F == T_MXFP4) {
        const u16 *from = (const u16 *)scales + block * 4;
        u32 left = steps - block * 4;
        h.v.x = from[0] | (left > 1 ? (u32)from[1] << 16 : 0);
        h.v.y = left > 2 ? from[2] | (left > 3 ? (u32)from[3] << 16 : 0) : 0;
    } else if (whole) {
        h.v = *(const uint4 *)(scales + (u64)block * 16);
    } else {
        const u32 *from = (const u32 *)scales + block * 4;
        u32 left = steps - block * 4;
        h.v.x = from[0];
        if (left > 1) h.v.y = from[1];
        if (left > 2) h.v.z = from[2];
        if (left > 3) h.v.w = from[3];
    }
    return h;
}

static __device__ __forceinline__ u32 word_of(const uint4 &v, u32 i) { return i & 2 ? (i & 1 ? v.w : v.z) : (i & 1 ? v.y : v.x); }

// An output's scales of stage `t`, `pitch` floats apart.
template <int F> static __device__ __forceinline__ void put_scales(const Header &h, u32 t, float *to, u32 pitch) {
    u32 j = t % 4;
    if (Kind<F>::how == WITH_MINIMUM) {
        u32 sc = j < 2 ? h.v.y & 0x3f3f3f3fu : (h.v.w & 0x0f0f0f0fu) | (h.v.y >> 2 & 0x30303030u);
        u32 mn = j < 2 ? h.v.z & 0x3f3f3f3fu : (h.v.w >> 4 & 0x0f0f0f0fu) | (h.v.z >> 2 & 0x30303030u);
        sc >>= 16 * (j & 1), mn >>= 16 * (j & 1);
        float d = half_to_float((u16)h.v.x), m = half_to_float((u16)(h.v.x >> 16));
        to[0] = d * (float)(sc & 255), to[pitch] = d * (float)(sc >> 8 & 255);
        to[2 * pitch] = m * (float)(mn & 255), to[3 * pitch] = m * (float)(mn >> 8 & 255);
    } else if (Kind<F>::how == WITH_TWO) {
        u32 first = word_of(h.v, j & 2) >> 16 * (j & 1), second = word_of(h.v, (j & 2) + 1) >> 16 * (j & 1);
        to[0] = (float)(i8)first, to[pitch] = (float)(i8)(first >> 8);
        to[2 * pitch] = (float)(i8)second, to[3 * pitch] = (float)(i8)(second >> 8);
        to[4 * pitch] = half_to_float((u16)h.d);
    } else if (F == T_MXFP4) {
        u32 two = (j & 2 ? h.v.y : h.v.x) >> 16 * (j & 1);
        to[0] = e8m0_half((u8)two), to[pitch] = e8m0_half((u8)(two >> 8));
    } else {
        u32 two = word_of(h.v, j);
        to[0] = half_to_float((u16)two), to[pitch] = half_to_float((u16)(two >> 16));
    }
}

// The run of 32 columns that is half `j` of stage `t`: halves share bytes of a block.
template <int F> static __device__ __forceinline__ u32 run_of(u32 t, u32 j) {
    if (Kind<F>::how == WITH_TWO) return t / 4 * 8 + t % 4 / 2 * 4 + (t & 1) + 2 * j;
    return 2 * t + j;
}

// Where 16 bytes of an output's stage come from.
template <int F> static __device__ __forceinline__ const u8 *piece(const u8 *w, u32 t, u32 c) {
    if (F == T_Q4_K) return w + (u64)(t / 4) * 144 + 16 + 32 * (t % 4) + 16 * c;
    if (F == T_Q5_K) return w + (u64)(t / 4) * 176 + (c < 2 ? 48 + 32 * (t % 4) + 16 * c : 16 + 16 * (c - 2));
    if (F == T_Q6_K) return w + (u64)(t / 4) * 208 + (c < 2 ? 64 * (t % 4 / 2) + 32 * (t & 1) + 16 * c : 128 + 32 * (t % 4 / 2) + 16 * (c - 2));
    return w + (u64)t * Kind<F>::bytes + 16 * c;
}

#ifdef HAS_TENSOR
// Weights of 32 columns of half `j` of stage `t`, of the output in row `row` of the tile: a lane's eight.
template <int F> static __device__ __forceinline__ void weights_of(u32 tile, u32 row, u32 word, u32 t, u32 j, u32 *b0, u32 *b1) {
    const int B = Kind<F>::bytes;
    if (F == T_Q8_0) {
        *b0 = load_word(tile + spot<B>(row, 2 * j) + word), *b1 = load_word(tile + spot<B>(row, 2 * j + 1) + word);
    } else if (F == T_Q4_0) {
        u32 v = load_word(tile + spot<B>(row, j) + word);
        *b0 = v & 0x0f0f0f0fu, *b1 = v >> 4 & 0x0f0f0f0fu;
    } else if (F == T_IQ4_NL || F == T_MXFP4) {
        look_up(F == T_MXFP4 ? FP4_WORDS : IQ4_WORDS, load_word(tile + spot<B>(row, j) + word), b0, b1);
    } else {
        u32 v0 = load_word(tile + spot<B>(row, 0) + word) >> 4 * j & 0x0f0f0f0fu;
        u32 v1 = load_word(tile + spot<B>(row, 1) + word) >> 4 * j & 0x0f0f0f0fu;
        if (F == T_Q5_K) {
            u32 shift = 2 * (t % 4) + j;
            v0 |= (load_word(tile + spot<B>(row, 2) + word) >> shift & 0x01010101u) << 4;
            v1 |= (load_word(tile + spot<B>(row, 3) + word) >> shift & 0x01010101u) << 4;
        }
        if (F == T_Q6_K) {
            u32 shift = 2 * (t & 1) + 4 * j;
            v0 = less32(v0 | (load_word(tile + spot<B>(row, 2) + word) >> shift & 0x03030303u) << 4);
            v1 = less32(v1 | (load_word(tile + spot<B>(row, 3) + word) >> shift & 0x03030303u) << 4);
        }
        *b0 = v0, *b1 = v1;
    }
}

#endif

template <int F, int BM, int BN> struct Tiles {
    static const int rows = BM * 64, outs = BN * Kind<F>::bytes;
};

// Tiles of BM rows by BN outputs; warps of WM by WN.
template <int F, int BM, int BN, int WM, int WN> static __device__ __forceinline__ void gemm(const Step &s, const MatVec &op) {
#ifdef HAS_TENSOR
    const int THREADS = BM / WM * (BN / WN) * 32, MT = WM / 16, NT = WN / 8, B = Kind<F>::bytes, NS = Kind<F>::scales;
    typedef Tiles<F, BM, BN> Size;
    extern __shared__ __align__(128) u8 space[];
    __shared__ float units[BM];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, count = rows_of(s, op.lead), first = blockIdx.x * BM;
    if (first >= count) return;
    bool own = false;
    if (threadIdx.x < BM) {
        float unit = units[threadIdx.x] = row_unit(s, op, first + threadIdx.x, count, 0);
        own = unit != 0.0f;
    }
    Outputs outs;
    bool found = find_outputs(op, F, op.gated ? BN / 2 : BN, blockIdx.y, &outs);
    if (!__syncthreads_or(own) || !found) return;

    u32 rows_at = shared_at(space), outs_at = rows_at + STAGES * Size::rows, acts_at = outs_at + STAGES * Size::outs;
    const uint2 *acts = (const uint2 *)(space + STAGES * (Size::rows + Size::outs));
    float *scales = (float *)(acts + STAGES * 2 * BM);
    u32 steps = op.k / 64;
    bool whole = steps % 4 == 0;

    // The weight's row behind a row of the tile.
    const u8 *w_row = 0, *w_scales = 0;
    auto weight_row = [&](u32 r, const u8 **w, const u8 **sc) {
        u32 part = outs.part, o;
        if (op.gated) {
            u32 in = r % WN;
            part = in >= WN / 2;
            o = outs.first + r / WN * (WN / 2) + in % (WN / 2);
        } else {
            o = outs.first + r;
        }
        o = min(o, outs.count - 1);
        const Part &p = op.parts[part];
        *w = p.data + (u64)o * p.row_bytes;
        *sc = p.scales + (u64)o * p.scale_bytes;
    };
    // Threads that make scales keep their row; all keep where they copy from.
    if (threadIdx.x < BN) weight_row(threadIdx.x, &w_row, &w_scales);
    const int ROW_COPIES = BM * 4 / THREADS, OUTS = BN * (B / 16), OUT_COPIES = (OUTS + THREADS - 1) / THREADS;
    const u8 *x_from[ROW_COPIES];
    #pragma unroll
    for (int i = 0; i < ROW_COPIES; i++) {
        u32 r = (threadIdx.x + i * THREADS) / 4;
        x_from[i] = op.acts.q + (u64)min(first + r, count - 1) * op.k;
    }
    const u8 *w_from[OUT_COPIES];
    #pragma unroll
    for (int i = 0; i < OUT_COPIES; i++) {
        const u8 *unused;
        weight_row((threadIdx.x + i * THREADS) / (B / 16) % BN, &w_from[i], &unused);
    }
    const uint2 *acts_from = op.turned + first + threadIdx.x % (BM / 2) * 2;

    auto copy = [&](u32 t) {
        u32 at = t % STAGES;
        if (t < steps) {
            #pragma unroll
            for (int i = 0; i < ROW_COPIES; i++) {
                u32 e = threadIdx.x + i * THREADS, r = e / 4, c = e % 4;
                copy16(rows_at + at * Size::rows + spot<64>(r, c), x_from[i] + run_of<F>(t, c / 2) * 32 + c % 2 * 16);
            }
            #pragma unroll
            for (int i = 0; i < OUT_COPIES; i++) {
                u32 e = threadIdx.x + i * THREADS, r = e / (B / 16), c = e % (B / 16);
                if (OUTS % THREADS == 0 || e < OUTS) copy16(outs_at + at * Size::outs + spot<B>(r, c), piece<F>(w_from[i], t, c));
            }
            if (threadIdx.x < BM)
                copy16(acts_at + (at * BM + threadIdx.x) * 16, acts_from + (u64)run_of<F>(t, threadIdx.x / (BM / 2)) * op.pitch);
        }
        copies_end();
    };
    #pragma unroll
    for (int t = 0; t < STAGES - 1; t++) copy(t);
    Header now, next;
    if (threadIdx.x < BN) {
        now = header<F>(w_row, w_scales, 0, steps, whole);
        put_scales<F>(now, 0, scales + threadIdx.x, BN);
        if (steps > 4) next = header<F>(w_row, w_scales, 1, steps, whole);
    }

    float acc[MT][NT][4];
    #pragma unroll
    for (int m = 0; m < MT; m++)
        #pragma unroll
        for (int n = 0; n < NT; n++) acc[m][n][0] = acc[m][n][1] = acc[m][n][2] = acc[m][n][3] = 0.0f;
    u32 m0 = warp / (BN / WN) * WM, n0 = warp % (BN / WN) * WN, group = lane / 4, pair = lane % 4 * 2;
    u32 a_row = m0 + (lane & 15), a_piece = lane >> 4, word = lane % 4 * 4;

    for (u32 t = 0; t < steps; t++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        copy(t + STAGES - 1);
        if (threadIdx.x < BN && t + 1 < steps) {
            if ((t + 1) % 4 == 0) {
                now = next;
                if (t + 5 < steps) next = header<F>(w_row, w_scales, (t + 5) / 4, steps, whole);
            }
            put_scales<F>(now, t + 1, scales + ((t + 1) & 1) * NS * BN + threadIdx.x, BN);
        }
        u32 at = t % STAGES, rows_tile = rows_at + at * Size::rows, outs_tile = outs_at + at * Size::outs;
        const float *sc = scales + (t & 1) * NS * BN;
        #pragma unroll
        for (int j = 0; j < 2; j++) {
            u32 a[MT][4];
            float d[MT][2];
            i32 sum[MT][2];
            #pragma unroll
            for (int m = 0; m < MT; m++) {
                load_matrices(a[m], rows_tile + spot<64>(a_row + m * 16, 2 * j + a_piece));
                #pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint2 own = acts[(at * 2 + j) * BM + m0 + m * 16 + h * 8 + group];
                    d[m][h] = __uint_as_float(own.x);
                    sum[m][h] = Kind<F>::sums ? (i32)own.y : 0;
                }
            }
            #pragma unroll
            for (int n = 0; n < NT; n++) {
                u32 b0, b1, row = n0 + n * 8;
                weights_of<F>(outs_tile, row + group, word, t, j, &b0, &b1);
                if (Kind<F>::how == SIMPLE) {
                    float2 w = *(const float2 *)(sc + j * BN + row + pair);
                    #pragma unroll
                    for (int m = 0; m < MT; m++) {
                        i32 c[4];
                        mma32(c, a[m], b0, b1, EXACT - Kind<F>::offset * sum[m][0], EXACT - Kind<F>::offset * sum[m][1]);
                        #pragma unroll
                        for (int i = 0; i < 4; i++)
                            acc[m][n][i] = __fmaf_rn(__fmul_rn(i & 1 ? w.y : w.x, d[m][i / 2]), exact(c[i]), acc[m][n][i]);
                    }
                } else if (Kind<F>::how == WITH_MINIMUM) {
                    float2 w = *(const float2 *)(sc + j * BN + row + pair), low = *(const float2 *)(sc + (2 + j) * BN + row + pair);
                    #pragma unroll
                    for (int m = 0; m < MT; m++) {
                        i32 c[4];
                        mma32(c, a[m], b0, b1, EXACT, EXACT);
                        #pragma unroll
                        for (int i = 0; i < 4; i++) {
                            float less = __fmul_rn(i & 1 ? low.y : low.x, (float)sum[m][i / 2]);
                            float v = __fmaf_rn(i & 1 ? w.y : w.x, exact(c[i]), -less);
                            acc[m][n][i] = __fmaf_rn(d[m][i / 2], v, acc[m][n][i]);
                        }
                    }
                } else {
                    float2 w = *(const float2 *)(sc + 4 * BN + row + pair);
                    float2 f0 = *(const float2 *)(sc + 2 * j * BN + row + pair), f1 = *(const float2 *)(sc + (2 * j + 1) * BN + row + pair);
                    #pragma unroll
                    for (int m = 0; m < MT; m++) {
                        i32 c0[4], c1[4];
                        mma16(c0, a[m][0], a[m][1], b0, EXACT);
                        mma16(c1, a[m][2], a[m][3], b1, EXACT);
                        #pragma unroll
                        for (int i = 0; i < 4; i++) {
                            // Below 2^24, so exact.
                            float v = __fmul_rn(exact(c0[i]), i & 1 ? f0.y : f0.x);
                            v = __fmaf_rn(exact(c1[i]), i & 1 ? f1.y : f1.x, v);
                            acc[m][n][i] = __fmaf_rn(__fmul_rn(i & 1 ? w.y : w.x, d[m][i / 2]), v, acc[m][n][i]);
                        }
                    }
                }
            }
        }
    }

    // Sums through shared memory, half of the rows at a time, so that rows are written in one piece.
    const int PITCH = BN + 8;
    float *sums = (float *)space;
    for (u32 half = 0; half < 2; half++) {
        copies_wait<0>();
        __syncthreads();
        if (m0 / (BM / 2) == half) {
            #pragma unroll
            for (int m = 0; m < MT; m++)
                #pragma unroll
                for (int n = 0; n < NT; n++)
                    #pragma unroll
                    for (int h = 0; h < 2; h++)
                        *(float2 *)(sums + (m0 % (BM / 2) + m * 16 + h * 8 + group) * PITCH + n0 + n * 8 + pair) =
                            make_float2(acc[m][n][2 * h], acc[m][n][2 * h + 1]);
        }
        __syncthreads();
        u32 from = first + half * (BM / 2);
        if (op.gated) write_outputs<BM / 2, BN, THREADS, true, false>(op, outs, from, sums, units + half * (BM / 2));
        else write_outputs<BM / 2, BN, THREADS, false, false>(op, outs, from, sums, units + half * (BM / 2));
    }
#endif
}

// A warp for each row of a prompt where there is a norm, or for 512 columns of one.
KERNEL quantise_prompts(Step s, Quantise op) {
    u32 lane = threadIdx.x & 31, row = blockIdx.y * 4 + (threadIdx.x >> 5), first = 0, end = op.width;
    if (row >= rows_of(s, op.lead) || !(s.flags[row] & ROW_PROMPT)) return;
    const float4 *x = (const float4 *)(op.x + (u64)row * op.width);
    float mean = 0.0f, root = 1.0f;
    if (op.kind == NORM_NONE) {
        first = blockIdx.x * 512, end = min(first + 512, op.width);
    } else {
        if (op.kind == NORM_LAYER) {
            #pragma unroll 4
            for (u32 c = lane; c < op.width / 4; c += 32) mean += x[c].x + x[c].y + x[c].z + x[c].w;
            mean = sum_lanes(mean) / (float)op.width;
        }
        float squares = 0.0f;
        #pragma unroll 4
        for (u32 c = lane; c < op.width / 4; c += 32) {
            float4 v = x[c];
            v.x -= mean, v.y -= mean, v.z -= mean, v.w -= mean;
            squares = __fmaf_rn(v.x, v.x, squares), squares = __fmaf_rn(v.y, v.y, squares);
            squares = __fmaf_rn(v.z, v.z, squares), squares = __fmaf_rn(v.w, v.w, squares);
        }
        squares = sum_lanes(squares);
        root = norm_root(op.kind, squares, op.width, op.eps);
    }
    #pragma unroll 2
    for (u32 base = first; base < end; base += 128) {
        u32 c = base + lane * 4;
        bool in = c < end;
        float4 v = in ? x[c / 4] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (in && op.kind != NORM_NONE) {
            v.x = (v.x - mean) / root, v.y = (v.y - mean) / root, v.z = (v.z - mean) / root, v.w = (v.w - mean) / root;
            if (op.w) v.x *= op.w[c], v.y *= op.w[c + 1], v.z *= op.w[c + 2], v.w *= op.w[c + 3];
            if (op.b) v.x += op.b[c], v.y += op.b[c + 1], v.z += op.b[c + 2], v.w += op.b[c + 3];
        }
        if (in && op.y) *(float4 *)(op.y + (u64)row * op.width + c) = v;
        float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
        for (int d = 4; d > 0; d >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
        float inverse = most > 0.0f ? __fdiv_rn(127.0f, most) : 0.0f;
        i32 q[4] = {__float2int_rn(__fmul_rn(v.x, inverse)), __float2int_rn(__fmul_rn(v.y, inverse)),
                    __float2int_rn(__fmul_rn(v.z, inverse)), __float2int_rn(__fmul_rn(v.w, inverse))};
        i32 sum = q[0] + q[1] + q[2] + q[3];
        for (int d = 4; d > 0; d >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, d);
        if (!in) continue;
        *(u32 *)(op.q + (u64)row * op.width + c) = (q[0] & 255) | (q[1] & 255) << 8 | (q[2] & 255) << 16 | (u32)q[3] << 24;
        if (lane % 8 == 0) {
            u32 run = c / 32;
            float d = __fdiv_rn(most, 127.0f);
            u64 at = (u64)row * (op.width / 32) + run;
            op.d[at] = d, op.s[at] = sum;
            op.turned[(u64)run * op.pitch + row] = make_uint2(__float_as_uint(d), (u32)sum);
        }
    }
}

#ifndef VARIANTS
#define GEMM(F)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_large_##F(Step s, MatVec op) { gemm<T_##F, 128, 128, 64, 32>(s, op); } \
    extern "C" __global__ void __launch_bounds__(128, 4) gemm_small_##F(Step s, MatVec op) { gemm<T_##F, 64, 64, 32, 32>(s, op); }
GEMM(Q4_0) GEMM(IQ4_NL) GEMM(MXFP4) GEMM(Q8_0) GEMM(Q4_K) GEMM(Q5_K) GEMM(Q6_K)
#endif
