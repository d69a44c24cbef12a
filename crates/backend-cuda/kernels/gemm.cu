// Products of prompts' rows on tensor cores, with weights of block formats and activations in bytes.
//
// A block computes a tile of rows by outputs, 64 columns at a time. The dot of a run of 32 columns is exact in integers;
// runs are added up one after the other, so a row's bits follow from the format and the number of columns alone, whatever
// tile it lies in. (Rows of answers are summed in another order, by matvec.cu.)
#include "products.cuh"
#include "tensor.cuh"

// An integer whose bits are a float of 2^23 + 2^22 and that integer: sums that begin at it need no conversion.
#define EXACT 0x4b400000
#define EXACT_FLOAT 12582912.0f

// Copies under way.
#define STAGES 4

enum { SIMPLE, WITH_MINIMUM, WITH_TWO };

template <int F> struct Kind {
    static const int how = F == T_Q4_K || F == T_Q5_K ? WITH_MINIMUM : F == T_Q6_K ? WITH_TWO : SIMPLE;
    static const u32 bytes = F == T_Q8_0 || F == T_Q5_K || F == T_Q6_K ? 64 : 32; // of an output in a stage
    static const u32 block = F == T_Q4_K ? 144 : F == T_Q5_K ? 176 : F == T_Q6_K ? 208 : 0;
    static const int scales = how == SIMPLE ? 2 : how == WITH_MINIMUM ? 4 : 5;    // floats of an output in a stage
    static const bool sums = F == T_Q4_0 || how == WITH_MINIMUM;                // of activations are read
    static const int offset = F == T_Q4_0 ? 8 : 0;
};

// What a stage's scales are made of, on their way.
struct Header {
    uint4 v;
};

template <int F> static __device__ __forceinline__ Header header(const u8 *w, const u8 *scales, u32 t) {
    Header h = {make_uint4(0, 0, 0, 0)};
    if (Kind<F>::how == WITH_MINIMUM) h.v = *(const uint4 *)(w + (u64)(t / 4) * Kind<F>::block);
    else if (Kind<F>::how == WITH_TWO) {
        uint2 s = *(const uint2 *)(w + (u64)(t / 4) * 208 + 192 + 8 * (t % 4 / 2));
        h.v.x = s.x >> 16 * (t & 1) & 0xffffu | s.y >> 16 * (t & 1) << 16;
        h.v.y = *(const u16 *)(scales + (u64)(t / 4) * 2);
    } else if (F == T_MXFP4) h.v.x = *(const u16 *)(scales + (u64)t * 2);
    else h.v.x = *(const u32 *)(scales + (u64)t * 4);
    return h;
}

// An output's scales of stage `t`, `pitch` floats apart.
template <int F> static __device__ __forceinline__ void put_scales(const Header &h, u32 t, float *to, u32 pitch) {
    if (Kind<F>::how == WITH_MINIMUM) {
        u32 j = t % 4;
        u32 sc = j < 2 ? h.v.y & 0x3f3f3f3fu : (h.v.w & 0x0f0f0f0fu) | (h.v.y >> 2 & 0x30303030u);
        u32 mn = j < 2 ? h.v.z & 0x3f3f3f3fu : (h.v.w >> 4 & 0x0f0f0f0fu) | (h.v.z >> 2 & 0x30303030u);
        sc >>= 16 * (j & 1), mn >>= 16 * (j & 1);
        float d = half_to_float((u16)h.v.x), m = half_to_float((u16)(h.v.x >> 16));
        to[0] = d * (float)(sc & 255), to[pitch] = d * (float)(sc >> 8 & 255);
        to[2 * pitch] = m * (float)(mn & 255), to[3 * pitch] = m * (float)(mn >> 8 & 255);
    } else if (Kind<F>::how == WITH_TWO) {
        #pragma unroll
        for (int i = 0; i < 4; i++) to[i * pitch] = (float)(i8)(h.v.x >> 8 * i);
        to[4 * pitch] = half_to_float((u16)h.v.y);
    } else if (F == T_MXFP4) {
        to[0] = e8m0_half((u8)h.v.x), to[pitch] = e8m0_half((u8)(h.v.x >> 8));
    } else {
        to[0] = half_to_float((u16)h.v.x), to[pitch] = half_to_float((u16)(h.v.x >> 16));
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

// Bytes of a row in a tile, its pieces of 16 where they meet no others in their banks.
template <int BYTES> static __device__ __forceinline__ u32 spot(u32 row, u32 c) {
    return BYTES == 64 ? row * 64 + ((c ^ (row >> 1 & 3)) << 4) : row * 32 + ((c ^ (row >> 2 & 1)) << 4);
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

static __device__ __forceinline__ float exact(i32 sum) { return __int_as_float(sum) - EXACT_FLOAT; }
#endif

// The part and the outputs of a tile; outputs of a gated pair alternate by 8 · `half` of a warp's.
struct Outputs {
    u32 part, first, count;
};

static __device__ __forceinline__ bool find_outputs(const MatVec &op, u32 format, u32 wide, u32 tile, Outputs *out) {
    u32 before = 0, parts = op.gated ? 1 : PARTS;
    for (u32 i = 0; i < parts; i++) {
        u32 n = op.parts[i].end - before;
        before = op.parts[i].end;
        if (n == 0 || op.parts[i].dtype != format) continue;
        u32 tiles = (n + wide - 1) / wide;
        if (tile < tiles) {
            out->part = i, out->first = tile * wide, out->count = n;
            return true;
        }
        tile -= tiles;
    }
    return false;
}

template <int F, int BM, int BN> struct Tiles {
    static const int rows = BM * 64, outs = BN * Kind<F>::bytes;
};

// Tiles of BM rows by BN outputs; warps of WM by WN.
template <int F, int BM, int BN, int WM, int WN> static __device__ __forceinline__ void gemm(const Step &s, const MatVec &op) {
#ifdef HAS_TENSOR
    const int THREADS = BM / WM * (BN / WN) * 32, MT = WM / 16, NT = WN / 8, B = Kind<F>::bytes, NS = Kind<F>::scales;
    typedef Tiles<F, BM, BN> Size;
    extern __shared__ __align__(128) u8 space[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, count = rows_of(s, op.lead), first = blockIdx.y * BM;
    if (first >= count) return;
    bool own = false;
    for (u32 r = first + threadIdx.x; r < min(first + BM, count); r += THREADS) own |= of_prompt(s, op, r);
    Outputs outs;
    bool found = find_outputs(op, F, op.gated ? BN / 2 : BN, blockIdx.x, &outs);
    if (!__syncthreads_or(own) || !found) return;

    u32 rows_at = shared_at(space), outs_at = rows_at + STAGES * Size::rows, d_at = outs_at + STAGES * Size::outs;
    float *act_d = (float *)(space + STAGES * (Size::rows + Size::outs));
    i32 *act_s = (i32 *)(act_d + STAGES * BM * 2);
    float *scales = (float *)(act_s + (Kind<F>::sums ? STAGES * BM * 2 : 0));
    u32 s_at = d_at + STAGES * BM * 8, runs = op.k / 32, steps = op.k / 64;

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
    const int ROW_COPIES = BM * 4 / THREADS, OUT_COPIES = BN * (B / 16) / THREADS;
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
        weight_row((threadIdx.x + i * THREADS) / (B / 16), &w_from[i], &unused);
    }
    u64 own_runs = (u64)min(first + threadIdx.x, count - 1) * runs;

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
                copy16(outs_at + at * Size::outs + spot<B>(r, c), piece<F>(w_from[i], t, c));
            }
            if (threadIdx.x < BM) {
                u32 to = (at * BM + threadIdx.x) * 8;
                #pragma unroll
                for (int j = 0; j < 2; j++) {
                    copy4(d_at + to + 4 * j, op.acts.d + own_runs + run_of<F>(t, j));
                    if (Kind<F>::sums) copy4(s_at + to + 4 * j, op.acts.s + own_runs + run_of<F>(t, j));
                }
            }
        }
        copies_end();
    };
    #pragma unroll
    for (int t = 0; t < STAGES - 1; t++) copy(t);
    Header next;
    if (threadIdx.x < BN) {
        put_scales<F>(header<F>(w_row, w_scales, 0), 0, scales + threadIdx.x, BN);
        if (steps > 1) next = header<F>(w_row, w_scales, 1);
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
            put_scales<F>(next, t + 1, scales + ((t + 1) & 1) * NS * BN + threadIdx.x, BN);
            if (t + 2 < steps) next = header<F>(w_row, w_scales, t + 2);
        }
        u32 at = t % STAGES, rows_tile = rows_at + at * Size::rows, outs_tile = outs_at + at * Size::outs;
        const float *sc = scales + (t & 1) * NS * BN, *ad = act_d + at * BM * 2;
        const i32 *as = act_s + at * BM * 2;
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
                    u32 r = (m0 + m * 16 + h * 8 + group) * 2 + j;
                    d[m][h] = ad[r];
                    sum[m][h] = Kind<F>::sums ? as[r] : 0;
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
    u32 wide = op.gated ? BN / 2 : BN;
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
        #pragma unroll 1
        for (u32 e = threadIdx.x; e < BM / 2 * wide; e += THREADS) {
            u32 r = e / wide, c = e % wide, row = first + half * (BM / 2) + r, o = outs.first + c;
            if (row >= count || o >= outs.count || !of_prompt(s, op, row)) continue;
            const Part &p = op.parts[outs.part];
            u32 at = r * PITCH + (op.gated ? c / (WN / 2) * WN + c % (WN / 2) : c);
            float y = finished(p, sums[at], o, 0, false);
            if (op.gated) y = gated(op.act, y, finished(op.parts[1], sums[at + WN / 2], o, 0, false));
            u64 to = (u64)row * p.y_stride + p.y_first + o;
            if (p.add) y = __fadd_rn(y, p.add[to]);
            p.y[to] = y;
        }
    }
#endif
}

#define GEMM(F)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_large_##F(Step s, MatVec op) { gemm<T_##F, 128, 128, 64, 32>(s, op); } \
    extern "C" __global__ void __launch_bounds__(128, 3) gemm_small_##F(Step s, MatVec op) { gemm<T_##F, 64, 64, 32, 32>(s, op); }
GEMM(Q4_0) GEMM(IQ4_NL) GEMM(MXFP4) GEMM(Q8_0) GEMM(Q4_K) GEMM(Q5_K) GEMM(Q6_K)
