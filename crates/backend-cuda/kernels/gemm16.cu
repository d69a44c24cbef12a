// Products of prompts' rows on tensor cores, with weights of sixteen bits.
//
// A number of a row goes in parts of sixteen bits, two halves under a power of two that its row shares or three bfloats, so that
// little or nothing of it is rounded. The dot of 32 columns is what tensor cores make of the parts, the smallest part first, from
// zero; dots are added one after the other, so a row's bits follow from the format and the number of columns alone. On 9.0 it is
// 64 columns, which have a power of their own: whoever makes them can cut them, without the rest of the row.
#include "activate.cuh"
#include "async.cuh"
#include "clusters.cuh"
#include "cut.cuh"
#include "tiles.cuh"

// What happens to the outputs of prompts' rows in the end, on 9.0.
struct Ending {
    u16 *parts;     // where they go in parts, as the next product takes them; 0: as floats
    float *units;
    u64 apart;
    u32 function;   // of an output
    u32 heads;      // whether they are heads of 64 columns for attention: each weight's `apart` rows behind those of the weights before
};

#ifdef HAS_WGMMA
// A thread for four columns of a prompt's row.
KERNEL cut_rows(Step s, Cut op) {
    u32 row = blockIdx.x, c = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
    wait_before();
    if (row >= rows_of(s, LEAD_ROWS) || !(s.flags[row] & ROW_PROMPT)) return;
    float4 v = c < op.width ? *(const float4 *)(op.x + (u64)row * op.width + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (op.format == T_F16) cut_columns<T_F16>(op, row, c, v);
    else cut_columns<T_BF16>(op, row, c, v);
}

// What a convolution makes one frame of each prompt's row of: `op.width` numbers that lie beside each other in the frames of the
// sequence, zeros around these. `x` of `op` has rows of so many frames, of which one is made for every `stride`; `own` says which.
KERNEL cut_frames(Step s, Cut op, u32 channels, u32 frames, u32 stride, u32 padding, u32 own) {
    u32 row = blockIdx.x, c = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
    wait_before();
    if (row >= rows_of(s, LEAD_ROWS) || !(s.flags[row] & ROW_PROMPT)) return;
    u32 seq = s.seq[row], first = s.first_row[seq];
    i32 frame = (i32)(((row - first) * (frames / stride) + own) * stride) - (i32)padding;
    i32 at = frame * (i32)channels + (i32)c, end = (i32)(s.row_count[seq] * frames * channels);
    bool there = c < op.width && at >= 0 && at < end;
    const float *x = op.x + (u64)first * frames * channels;
    cut_columns<T_F16>(op, row, c, there ? *(const float4 *)(x + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
}

// Floats that are halves, as such.
KERNEL to_halves(u64 n, const float *x, u16 *y) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) y[i] = float_to_half(x[i]);
}

// Normalises a prompt's row and cuts it: a thread has two times four columns. `y` gets the numbers too, if it is there; `x` of `op`
// is not read.
KERNEL cut_norm(Step s, Cut op, u32 kind, float eps, const float *w, const float *b, const float *x, float *y) {
    __shared__ float shared[33];
    u32 row = blockIdx.x, c[2] = {threadIdx.x * 4, (threadIdx.x + blockDim.x) * 4};
    float4 scale[2], offset[2], v[2];
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        bool in = c[i] < op.width;
        scale[i] = w && in ? *(const float4 *)(w + c[i]) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        offset[i] = b && in ? *(const float4 *)(b + c[i]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    wait_before();
    // There is room for every row: it is asked for before it is known whether it counts.
    #pragma unroll
    for (int i = 0; i < 2; i++) v[i] = c[i] < op.width ? *(const float4 *)(x + (u64)row * op.width + c[i]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row >= rows_of(s, LEAD_ROWS) || !(s.flags[row] & ROW_PROMPT)) return;
    float mean = 0.0f, squares = 0.0f;
    if (kind == NORM_LAYER)
        mean = sum_block(((v[0].x + v[0].y) + (v[0].z + v[0].w)) + ((v[1].x + v[1].y) + (v[1].z + v[1].w)), shared) / (float)op.width;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        if (c[i] >= op.width) continue;
        v[i].x -= mean, v[i].y -= mean, v[i].z -= mean, v[i].w -= mean;
        squares = __fmaf_rn(v[i].w, v[i].w, __fmaf_rn(v[i].z, v[i].z, __fmaf_rn(v[i].y, v[i].y, __fmaf_rn(v[i].x, v[i].x, squares))));
    }
    float root = norm_root(kind, sum_block(squares, shared), op.width, eps);
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        bool in = c[i] < op.width;
        v[i].x = v[i].x / root * scale[i].x, v[i].y = v[i].y / root * scale[i].y;
        v[i].z = v[i].z / root * scale[i].z, v[i].w = v[i].w / root * scale[i].w;
        if (b) v[i].x += offset[i].x, v[i].y += offset[i].y, v[i].z += offset[i].z, v[i].w += offset[i].w;
        if (!in) v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (y && in) *(float4 *)(y + (u64)row * op.width + c[i]) = v[i];
        if (op.format == T_F16) cut_columns<T_F16>(op, row, c[i], v[i]);
        else cut_columns<T_BF16>(op, row, c[i], v[i]);
    }
}
#else
// Where four numbers of a row stand in a part, in bytes.
static __device__ __forceinline__ u64 place_of(u32 row, u32 column, u32 width) { return ((u64)row * width + column) * 2; }

// A block for each row of a prompt.
KERNEL cut_rows(Step s, Cut op) {
    __shared__ float shared[33];
    u32 row = blockIdx.x;
    if (row >= rows_of(s, LEAD_ROWS) || !(s.flags[row] & ROW_PROMPT)) return;
    const float4 *x = (const float4 *)(op.x + (u64)row * op.width);
    float most = 0.0f, scale = 1.0f;
    if (op.format == T_F16) {
        for (u32 c = threadIdx.x; c < op.width / 4; c += blockDim.x) {
            float4 v = x[c];
            most = fmaxf(fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
        }
        // The largest number lies between 2^14 and 2^15 then, where it is an ordinary one.
        u32 power = __float_as_uint(max_block(most, shared)) >> 23;
        bool ordinary = power > 14 && power < 255;
        if (ordinary) scale = __uint_as_float((268 - power) << 23);
        if (threadIdx.x == 0) op.units[row] = ordinary ? __uint_as_float((power - 14) << 23) : 1.0f;
    } else if (threadIdx.x == 0) {
        op.units[row] = 1.0f;
    }
    u32 parts = op.format == T_F16 ? 2 : 3;
    for (u32 c = threadIdx.x; c < op.width / 4; c += blockDim.x) {
        float4 v = x[c];
        float left[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
        for (u32 p = 0; p < parts; p++) {
            u16 cut[4];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                cut[i] = op.format == T_F16 ? float_to_half(left[i]) : float_to_bfloat(left[i]);
                float taken = op.format == T_F16 ? half_to_float(cut[i]) : bfloat_to_float(cut[i]);
                // What is infinite or no number has no second part.
                left[i] = fabsf(taken) < INF ? left[i] - taken : 0.0f;
            }
            *(uint2 *)((u8 *)(op.parts + p * op.apart) + place_of(row, c * 4, op.width)) =
                make_uint2(cut[0] | (u32)cut[1] << 16, cut[2] | (u32)cut[3] << 16);
        }
    }
}
#endif

template <int F, int BM, int BN> struct Sixteen {
#ifdef HAS_WGMMA
    static const int columns = 64, depth = BM > 64 ? (F == T_F16 ? 3 : 2) : F == T_F16 ? 4 : 3;
#else
    static const int columns = 32, depth = 4;
#endif
    // Of a stage: the parts of its rows, one after the other, then its outputs; on 9.0 units of rows lie behind all stages.
    static const int parts = Cuts<F>::parts, rows = BM * columns * 2, outs = parts * rows, bytes = outs + BN * columns * 2;
};

#ifdef HAS_TENSOR
// Sums of a thread's rows in a tile: of warps of `acc`'s size.
template <int PITCH, int MT, int NT> static __device__ __forceinline__ void put_sums(float *sums, const float (&acc)[MT][NT][4]) {
    u32 lane = threadIdx.x & 31;
    #pragma unroll
    for (int m = 0; m < MT; m++)
        #pragma unroll
        for (int n = 0; n < NT; n++)
            #pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)(sums + (m * 16 + h * 8 + lane / 4) * PITCH + n * 8 + lane % 4 * 2) = make_float2(acc[m][n][2 * h], acc[m][n][2 * h + 1]);
}

// Writes a tile through shared memory that nothing else needs any more, half of the rows at a time, so that rows are written in
// one piece.
template <int BM, int BN, int THREADS, int MT, int NT>
static __device__ __forceinline__ void write_tile(const MatVec &op, const Outputs &outs, u32 first, float *sums, const float *units, u32 m0,
                                                  u32 n0, const float (&acc)[MT][NT][4]) {
    for (u32 half = 0; half < 2; half++) {
        meet_threads(1, THREADS);
        if (m0 / (BM / 2) == half) put_sums<BN + 8>(sums + m0 % (BM / 2) * (BN + 8) + n0, acc);
        meet_threads(1, THREADS);
        u32 from = first + half * (BM / 2);
        if (op.gated) write_outputs<BM / 2, BN, THREADS, true, true>(op, outs, from, sums, units + half * (BM / 2));
        else write_outputs<BM / 2, BN, THREADS, false, true>(op, outs, from, sums, units + half * (BM / 2));
    }
}
#endif

#ifdef HAS_WGMMA
// Rows of prompts among 32 from `first` on: a bit for each.
static __device__ __forceinline__ u32 prompts_of(const Step &s, const MatVec &op, u32 first, u32 count) {
    u32 row = first + (threadIdx.x & 31);
    return __ballot_sync(ALL_LANES, row < count && of_prompt(s, op, row));
}

// Outputs of a lane, from `o` on: what they are multiplied by, and what is added.
template <int N> struct Lines {
    float scale[N], bias[N];
};
template <int N> static __device__ __forceinline__ Lines<N> lines_of(const Part &p, u32 o, u32 count) {
    Lines<N> l;
    #pragma unroll
    for (u32 i = 0; i < N; i++) {
        u32 at = p.y_first + min(o + i, count - 1);
        l.scale[i] = p.scale ? p.scale[at % p.scale_len] : 1.0f;
        l.bias[i] = p.bias ? p.bias[at] : 0.0f;
    }
    return l;
}
template <int T, int N> static __device__ __forceinline__ void put_lines(const Part &p, const Lines<N> &l, float (&y)[T][N]) {
    #pragma unroll
    for (int t = 0; p.scale && t < T; t++)
        #pragma unroll
        for (int i = 0; i < N; i++) y[t][i] = __fmul_rn(y[t][i], l.scale[i]);
    #pragma unroll
    for (int t = 0; p.bias && t < T; t++)
        #pragma unroll
        for (int i = 0; i < N; i++) y[t][i] = __fadd_rn(y[t][i], l.bias[i]);
}

template <int N> static __device__ __forceinline__ void load_outputs(float (&y)[N], const float *from) {
    #pragma unroll
    for (int i = 0; i < N; i += 4) {
        float4 x = *(const float4 *)(from + i);
        y[i] = x.x, y[i + 1] = x.y, y[i + 2] = x.z, y[i + 3] = x.w;
    }
}

template <u32 KIND, int T, int N> static __device__ __forceinline__ void activate_outputs(float (&y)[T][N]) {
    const Act f = {KIND, 0.0f, 0.0f, 0.0f, 0.0f};
    #pragma unroll
    for (int t = 0; t < T; t++)
        #pragma unroll
        for (int i = 0; i < N; i++) y[t][i] = activate(f, y[t][i]);
}

// Rows of a tile as floats, by a warp: their sums lie in shared memory, sixteen rows after sixteen once they are `there`. A lane has
// four outputs of a row; of several rows at a time, so that none waits for another.
template <int BN, int ROWS, bool GATED, class There>
static __device__ __forceinline__ void write_floats(const MatVec &op, const Outputs &outs, u32 first, u32 prompts, const float *sums, There there) {
    const u32 PITCH = BN + 8, LANES = (GATED ? BN / 2 : BN) / 4, BESIDE = 32 / LANES, TIMES = 4, STEP = TIMES * BESIDE;
    u32 lane = threadIdx.x & 31, c = lane % LANES * 4, o = outs.first + c, n = o < outs.count ? min(4u, outs.count - o) : 0;
    const Part &p = op.parts[outs.part], &up = op.parts[1];
    Lines<4> lines = lines_of<4>(p, o, outs.count), above = lines_of<4>(GATED ? up : p, o, outs.count);
    sums += GATED ? c / (PAIRED / 2) * PAIRED + c % (PAIRED / 2) : c;
    u64 at = (u64)first * p.y_stride + p.y_first + o;
    bool whole = __all_sync(ALL_LANES, n == 4 && (p.y_stride | p.y_first) % 4 == 0);
    // What is added is asked for before the rows in front are written.
    float4 next[TIMES], add[TIMES];
    auto fetch = [&](u32 r) {
        #pragma unroll
        for (u32 t = 0; p.add && whole && t < TIMES; t++) {
            u32 row = r + t * BESIDE;
            next[t] = prompts >> row & 1 ? *(const float4 *)(p.add + at + row * p.y_stride) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    };
    fetch(lane / LANES);
    #pragma unroll 1
    for (u32 begin = lane / LANES; begin < ROWS; begin += STEP) {
        float y[TIMES][4], z[TIMES][4];
        #pragma unroll
        for (u32 t = 0; t < TIMES; t++) add[t] = next[t];
        if (begin + STEP < ROWS) fetch(begin + STEP);
        if (begin % 16 < BESIDE) there(begin / 16);
        #pragma unroll
        for (u32 t = 0; t < TIMES; t++) load_outputs(y[t], sums + (begin + t * BESIDE) * PITCH);
        put_lines(p, lines, y);
        if (GATED) {
            #pragma unroll
            for (u32 t = 0; t < TIMES; t++) load_outputs(z[t], sums + (begin + t * BESIDE) * PITCH + PAIRED / 2);
            put_lines(up, above, z);
            #pragma unroll
            for (u32 t = 0; t < TIMES; t++)
                #pragma unroll
                for (int i = 0; i < 4; i++) y[t][i] = gated(op.act, y[t][i], z[t][i]);
        }
        if (!whole) {
            #pragma unroll
            for (u32 t = 0; t < TIMES; t++) {
                u32 row = begin + t * BESIDE;
                #pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    u64 to = at + row * p.y_stride + i;
                    if (i < n && (prompts >> row & 1)) p.y[to] = p.add ? __fadd_rn(y[t][i], p.add[to]) : y[t][i];
                }
            }
            continue;
        }
        #pragma unroll
        for (u32 t = 0; p.add && t < TIMES; t++)
            y[t][0] = __fadd_rn(y[t][0], add[t].x), y[t][1] = __fadd_rn(y[t][1], add[t].y), y[t][2] = __fadd_rn(y[t][2], add[t].z),
            y[t][3] = __fadd_rn(y[t][3], add[t].w);
        #pragma unroll
        for (u32 t = 0; t < TIMES; t++) {
            u32 row = begin + t * BESIDE;
            if (prompts >> row & 1) *(float4 *)(p.y + at + row * p.y_stride) = make_float4(y[t][0], y[t][1], y[t][2], y[t][3]);
        }
    }
}

// The same in parts, as the next product takes them, or as attention takes heads. A lane has eight outputs of a row.
template <int F, bool HEADS, int BN, int ROWS, class There>
static __device__ __forceinline__ void write_parts(const MatVec &op, const Ending &end, const Outputs &outs, u32 first, u32 prompts, u32 count,
                                                   const float *sums, There there) {
    const u32 PITCH = BN + 8, LANES = BN / 8, BESIDE = 32 / LANES, TIMES = 2, STEP = TIMES * BESIDE, P = Cuts<F>::parts;
    u32 lane = threadIdx.x & 31, c = lane % LANES * 8, o = outs.first + c, n = o < outs.count ? min(8u, outs.count - o) : 0;
    const Part &p = op.parts[outs.part];
    Lines<8> lines = lines_of<8>(p, o, outs.count);
    // Heads of a weight lie behind those of the weights before.
    u64 before = HEADS && outs.part ? op.parts[outs.part - 1].end : 0, apart = HEADS ? end.apart * outs.count : end.apart;
    u8 *parts = (u8 *)(end.parts + 2 * end.apart * before) + tile_of(first, outs.count) + o / 64 * 2 * TILE_BYTES;
    float *units = end.units + end.apart * (before / 64) + unit_of(first, outs.count) + o / 64 * 128;
    bool inside = o < (outs.count + 63) / 64 * 64;
    sums += c;
    #pragma unroll 1
    for (u32 begin = lane / LANES; begin < ROWS; begin += STEP) {
        float y[TIMES][8], most[TIMES];
        bool wrong[TIMES], behind[TIMES];
        if (begin % 16 < BESIDE) there(begin / 16);
        #pragma unroll
        for (u32 t = 0; t < TIMES; t++) load_outputs(y[t], sums + (begin + t * BESIDE) * PITCH);
        put_lines(p, lines, y);
        if (!HEADS) {
            switch (end.function) {
            case F_SILU: activate_outputs<F_SILU>(y); break;
            case F_GELU: activate_outputs<F_GELU>(y); break;
            case F_GELU_ERF: activate_outputs<F_GELU_ERF>(y); break;
            case F_GELU_QUICK: activate_outputs<F_GELU_QUICK>(y); break;
            case F_RELU: activate_outputs<F_RELU>(y); break;
            case F_RELU2: activate_outputs<F_RELU2>(y); break;
            }
        }
        #pragma unroll
        for (u32 t = 0; t < TIMES; t++) {
            most[t] = 0.0f, wrong[t] = false;
            // Attention reads rows of zeros behind the last one.
            behind[t] = HEADS && first + begin + t * BESIDE >= count;
            #pragma unroll
            for (u32 i = 0; i < 8; i++) {
                float &x = y[t][i];
                if (i >= n || behind[t]) x = 0.0f;
                bool number = !HEADS || fabsf(x) < INF;
                wrong[t] |= !number;
                most[t] = fmaxf(most[t], number ? fabsf(x) : 0.0f);
            }
        }
        #pragma unroll
        for (u32 d = 1; d < 8; d <<= 1)
            #pragma unroll
            for (u32 t = 0; t < TIMES; t++) most[t] = fmaxf(most[t], __shfl_xor_sync(ALL_LANES, most[t], d));
        #pragma unroll
        for (u32 t = 0; t < TIMES; t++) {
            u32 row = begin + t * BESIDE, cut[4][P];
            Power power = F == T_F16 ? power_of(most[t]) : Power{1.0f, 1.0f};
            float unit = HEADS ? head_unit(most[t], __ballot_sync(ALL_LANES, wrong[t]) >> (lane & 24) & 0xff) : power.down;
            #pragma unroll
            for (int i = 0; i < 4; i++) cut_two<F>(y[t][2 * i] * power.up, y[t][2 * i + 1] * power.up, cut[i]);
            if (!inside || !(prompts >> row & 1 || behind[t])) continue;
            if (lane % 8 == 0) units[row] = unit;
            #pragma unroll
            for (int i = 0; i < P; i++)
                *(uint4 *)(parts + i * apart * 2 + swizzled((first + row) % 64, c / 8 % 8)) = make_uint4(cut[0][i], cut[1][i], cut[2][i], cut[3][i]);
        }
    }
}

template <int F, int BN, int ROWS, class There>
static __device__ __forceinline__ void write_rows(const MatVec &op, const Ending &end, const Outputs &outs, u32 first, u32 prompts, u32 count,
                                                  const float *sums, There there) {
    if (op.gated) write_floats<BN, ROWS, true>(op, outs, first, prompts, sums, there);
    else if (end.heads) write_parts<T_F16, true, BN, ROWS>(op, end, outs, first, prompts, count, sums, there);
    else if (end.parts) write_parts<F, false, BN, ROWS>(op, end, outs, first, prompts, count, sums, there);
    else write_floats<BN, ROWS, false>(op, outs, first, prompts, sums, there);
}

static __device__ __forceinline__ float load_float(u32 at) { return __uint_as_float(load_word(at)); }
#endif

// Tiles of BM rows by BN outputs; warps of WM by WN, or on 9.0 of 16 by all.
template <int F, int BM, int BN, int WM, int WN> static __device__ __forceinline__ void gemm16(const Step &s, const MatVec &op, u64 apart, const Ending &end) {
#ifdef HAS_TENSOR
    typedef Sixteen<F, BM, BN> Size;
    const int THREADS = BM / WM * (BN / WN) * 32, P = Size::parts, DEPTH = Size::depth;
    const u32 PIECES = Size::columns / 8;
    extern __shared__ __align__(1024) u8 space[];
    wait_before();
    u32 warp = threadIdx.x >> 5, count = rows_of(s, op.lead), first = blockIdx.x * BM;
    if (first >= count) return;
    bool own = false;
#ifdef HAS_WGMMA
    if (threadIdx.x < BM) own = row_unit(s, op, first + threadIdx.x, count, 0) != 0.0f;
#else
    __shared__ float units[BM];
    if (threadIdx.x < BM) {
        float unit = units[threadIdx.x] = row_unit(s, op, first + threadIdx.x, count, op.acts.d);
        own = unit != 0.0f;
    }
#endif
    Outputs outs;
    bool found = find_outputs(op, F, op.gated ? BN / 2 : BN, blockIdx.y, &outs);
    if (!__syncthreads_or(own) || !found) return;

    const int ROW_COPIES = BM * PIECES / THREADS, OUT_COPIES = BN * PIECES / THREADS;
    u32 space_at = shared_at(space), steps = (op.k + Size::columns - 1) / Size::columns, piece = threadIdx.x % PIECES;
    const u8 *x_from[ROW_COPIES], *w_from[OUT_COPIES];
    #pragma unroll
    for (int i = 0; i < ROW_COPIES; i++) {
        u32 row = min(first + (threadIdx.x + i * THREADS) / PIECES, count - 1);
#ifdef HAS_WGMMA
        x_from[i] = op.acts.q + tile_of(row, op.k) + swizzled(row % 64, piece);
#else
        x_from[i] = op.acts.q + place_of(row, piece * 8, op.k);
#endif
    }
    #pragma unroll
    for (int i = 0; i < OUT_COPIES; i++) {
        u32 r = (threadIdx.x + i * THREADS) / PIECES, part = outs.part, o = outs.first + r;
        if (op.gated) {
            u32 in = r % PAIRED;
            part = in >= PAIRED / 2;
            o = outs.first + r / PAIRED * (PAIRED / 2) + in % (PAIRED / 2);
        }
        const Part &p = op.parts[part];
        w_from[i] = p.data + (u64)min(o, outs.count - 1) * p.row_bytes + piece * 16;
    }
#ifdef HAS_WGMMA
    u32 units_at = space_at + DEPTH * Size::bytes;
    const float *units_from = op.acts.d + unit_of(first, op.k) + threadIdx.x % BM;
#endif
    auto place = [&](u32 r) {
#ifdef HAS_WGMMA
        return swizzled(r, piece);
#else
        return spot<64>(r, piece);
#endif
    };
    auto copy = [&](u32 t) {
        if (t < steps) {
            u32 to = space_at + t % DEPTH * Size::bytes;
            // Beyond the columns nothing is read.
            bool there = t * Size::columns + piece * 8 < op.k;
            u32 from = there ? t * Size::columns * 2 : 0;
#ifdef HAS_WGMMA
            u32 x_step = t * 2 * TILE_BYTES;
            bool x_there = true;
            if (threadIdx.x < BM) copy4(units_at + (t % DEPTH * BM + threadIdx.x) * 4, units_from + t * 128);
#else
            u32 x_step = from;
            bool x_there = there;
#endif
            #pragma unroll
            for (int i = 0; i < ROW_COPIES; i++) {
                u32 r = (threadIdx.x + i * THREADS) / PIECES;
                #pragma unroll
                for (int p = 0; p < P; p++) copy16(to + p * Size::rows + place(r), x_there ? x_from[i] + p * apart * 2 + x_step : op.acts.q, x_there);
            }
            #pragma unroll
            for (int i = 0; i < OUT_COPIES; i++) {
                u32 r = (threadIdx.x + i * THREADS) / PIECES;
                copy16(to + Size::outs + place(r), there ? w_from[i] + from : op.acts.q, there);
            }
        }
        copies_end();
    };
#ifdef HAS_WGMMA
    const int AHEAD = DEPTH - 2;
#else
    const int AHEAD = DEPTH - 1;
#endif
    #pragma unroll
    for (int t = 0; t < AHEAD; t++) copy(t);

#ifdef HAS_WGMMA
    const int NT = BN / 8;
    float acc[1][NT][4] = {}, dots[2][NT][4];
    u32 m0 = warp * 16;
    // While tensor cores make one dot, the one before it is added.
    auto multiply = [&](u32 t, float (&dot)[NT][4]) {
        copies_wait<AHEAD - 1>();
        tiles_written();
        __syncthreads();
        u32 tile = one_for_all(space_at + t % DEPTH * Size::bytes), warps = one_for_all(threadIdx.x / 128);
        u64 b = tile_at(tile + Size::outs);
        wgmma_begins();
        #pragma unroll
        for (int p = P - 1; p >= 0; p--) {
            u64 a = tile_at(tile + p * Size::rows + warps * TILE_BYTES);
            #pragma unroll
            for (int k = 0; k < 4; k++) wgmma<F == T_BF16>(dot, further(a, 2 * k), further(b, 2 * k), p < P - 1 || k > 0);
        }
        wgmma_commits();
        copy(t + AHEAD);
    };
    auto add = [&](u32 t, float (&dot)[NT][4]) {
        wgmma_made(dot);
        const float *unit = (const float *)(space + DEPTH * Size::bytes) + t % DEPTH * BM + m0 + (threadIdx.x & 31) / 4;
        float by[2] = {unit[0], unit[8]};
        #pragma unroll
        for (int n = 0; n < NT; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) acc[0][n][i] = __fmaf_rn(dot[n][i], by[i / 2], acc[0][n][i]);
    };
    u32 t = 0;
    #pragma unroll 1
    for (; t + 1 < steps; t += 2) {
        multiply(t, dots[0]);
        multiply(t + 1, dots[1]);
        wgmma_waits<1>();
        add(t, dots[0]);
        wgmma_waits<0>();
        add(t + 1, dots[1]);
    }
    if (t < steps) {
        multiply(t, dots[0]);
        wgmma_waits<0>();
        add(t, dots[0]);
    }
    // Nothing else needs the places of copies any more.
    __syncthreads();
    float *sums = (float *)space + m0 * (BN + 8);
    put_sums<BN + 8>(sums, acc);
    u32 prompts = prompts_of(s, op, first + m0, count);
    auto there = [](u32) { __syncwarp(); };
    write_rows<F, BN, 16>(op, end, outs, first + m0, prompts, count, sums, there);
#else
    const int MT = WM / 16, NT = WN / 8;
    u32 lane = threadIdx.x & 31;
    float acc[MT][NT][4] = {};
    u32 m0 = warp / (BN / WN) * WM, n0 = warp % (BN / WN) * WN;
    u32 a_row = m0 + (lane & 15), a_piece = lane >> 4, b_row = n0 + (lane & 7) + (lane & 16) / 2, b_piece = lane >> 3 & 1;
    for (u32 t = 0; t < steps; t++) {
        copies_wait<DEPTH - 2>();
        __syncthreads();
        copy(t + DEPTH - 1);
        u32 tile = space_at + t % DEPTH * Size::bytes;
        u32 b[NT][2][2];
        #pragma unroll
        for (int n = 0; n < NT; n += 2)
            #pragma unroll
            for (int k = 0; k < 2; k++) {
                u32 four[4];
                load_matrices(four, tile + Size::outs + spot<64>(b_row + n * 8, 2 * k + b_piece));
                b[n][k][0] = four[0], b[n][k][1] = four[1], b[n + 1][k][0] = four[2], b[n + 1][k][1] = four[3];
            }
        #pragma unroll
        for (int m = 0; m < MT; m++) {
            float dot[NT][4] = {};
            #pragma unroll
            for (int p = P - 1; p >= 0; p--)
                #pragma unroll
                for (int k = 0; k < 2; k++) {
                    u32 a[4];
                    load_matrices(a, tile + p * Size::rows + spot<64>(a_row + m * 16, 2 * k + a_piece));
                    #pragma unroll
                    for (int n = 0; n < NT; n++) {
                        if (F == T_F16) mma_halves(dot[n], a, b[n][k][0], b[n][k][1]);
                        else mma_bfloats(dot[n], a, b[n][k][0], b[n][k][1]);
                    }
                }
            #pragma unroll
            for (int n = 0; n < NT; n++)
                #pragma unroll
                for (int i = 0; i < 4; i++) acc[m][n][i] = __fadd_rn(acc[m][n][i], dot[n][i]);
        }
    }
    copies_wait<0>();
    write_tile<BM, BN, THREADS>(op, outs, first, (float *)space, units, m0, n0, acc);
#endif
#endif
}

#ifdef HAS_WGMMA
#define RING_THREADS 512
#define MULTIPLYING 8 // warps, then those that copy, then those that write
#define COPYING 4

// Tiles of 128 rows by 128 outputs, one after the other. Four warps fill a ring of places in shared memory, each block of a cluster
// with half of the rows for all, and go on to the next tile while the last one ends; twice four multiply what is there, 64 rows each
// and at their own pace: while the ones add their sums, the dots of the others are made. Sums of a tile go through shared memory to
// four warps that write them, 32 rows each, while the next tile is made.
template <int F> static __device__ __forceinline__ void gemm_ring(const Step &s, const MatVec &op, u64 apart, const Ending &end) {
    const int BM = 128, BN = 128, NT = BN / 8, PITCH = BN + 8;
    typedef Sixteen<F, BM, BN> Size;
    const int P = Size::parts, DEPTH = Size::depth;
    extern __shared__ __align__(1024) u8 space[];
    __shared__ __align__(8) u64 bars[2 * DEPTH + 2 * MULTIPLYING];
    u32 warp = one_for_all(threadIdx.x >> 5), lane = threadIdx.x & 31, count = rows_of(s, op.lead), rank = cluster_rank();
    u32 down = (count + BM - 1) / BM, wide = op.gated ? BN / 2 : BN;
    u32 pairs = pairs_of<F>(op, wide, down);
    u32 space_at = shared_at(space), units_at = space_at + DEPTH * Size::bytes, full = shared_at(bars), free = full + 8 * DEPTH;
    u32 steps = (op.k + 63) / 64, stage = 0, round = 0;
    // A multiplying warp's sums, and whether they are there or may be written anew.
    float *sums = (float *)(space + DEPTH * (Size::bytes + BM * 4));
    u32 made = free + 8 * DEPTH, written = made + 8 * MULTIPLYING, turn = 0;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < DEPTH; i++) {
            bar_init(full + 8 * i, COPYING * 32 + 1);
            bar_init(free + 8 * i, CLUSTER * MULTIPLYING);
        }
        for (u32 i = 0; i < 2 * MULTIPLYING; i++) bar_init(made + 8 * i, 1);
        bars_made();
    }
    meet_cluster();
    if (warp >= MULTIPLYING + COPYING) {
        more_registers<144>();
        wait_before();
        u32 own = warp - MULTIPLYING - COPYING, bar = 16 * own;
        const float *from = sums + own * 32 * PITCH;
        each_tile<F, BM>(s, op, count, wide, [&](u32 first, const Outputs &outs, bool found, u32) {
            if (!found) return;
            first += own * 32;
            u32 prompts = prompts_of(s, op, first, count);
            auto there = [&](u32 half) { bar_wait(made + bar + 8 * half, turn & 1); };
            write_rows<F, BN, 32>(op, end, outs, first, prompts, count, from, there);
            __syncwarp();
            if (lane < 2) bar_arrive(written + bar + 8 * lane);
            turn++;
        });
    } else if (warp >= MULTIPLYING) {
        fewer_registers<64>();
        // Eight threads copy 64 columns of an output, every sixteenth of which is theirs.
        u32 own = threadIdx.x - MULTIPLYING * 32, piece = own % 8, line = own / 8, at = space_at + swizzled(line, piece) + Size::outs;
        const u8 *w[BN / 16];
        auto begin_outputs = [&](const Outputs &outs) {
            #pragma unroll
            for (int i = 0; i < BN / 16; i++) {
                const Part &p = op.parts[op.gated ? i & 1 : outs.part];
                u32 o = min(outs.first + line + (op.gated ? i / 2 : i) * 16, outs.count - 1);
                w[i] = p.data + (u64)o * p.row_bytes + piece * 16;
            }
        };
        auto copy_outputs = [&](u32 t, u32 to) {
            // Beyond the columns nothing is read.
            bool there = t * 64 + piece * 8 < op.k;
            #pragma unroll
            for (int i = 0; i < BN / 16; i++) copy16(at + to * Size::bytes + i * 2048, there ? w[i] + t * 128 : op.acts.q, there);
        };
        // Weights of the first tile are asked for before the rows are there.
        u32 ahead = blockIdx.x / CLUSTER < pairs ? min(steps, (u32)DEPTH) : 0;
        Outputs begun = {0, 0, 0};
        if (ahead > 0) outputs_of(op, F, wide, blockIdx.x / CLUSTER / down * CLUSTER + rank, &begun);
        begin_outputs(begun);
        for (u32 t = 0; t < ahead; t++) copy_outputs(t, t);
        wait_before();
        each_tile<F, BM>(s, op, count, wide, [&](u32 first, const Outputs &outs, bool, u32 pair) {
            if (pair != blockIdx.x / CLUSTER && ahead > 0) copies_wait<0>(), ahead = 0;
            begin_outputs(outs);
            const u8 *rows = op.acts.q + tile_of(first + rank * 64, op.k);
            const float *units = op.acts.d + unit_of(first + own, op.k);
            for (u32 t = 0; t < steps; t++) {
                u32 to = stage * Size::bytes;
                if (round > 0) bar_wait(free + 8 * stage, (round - 1) & 1);
                if (own == 0) {
                    bar_expect(full + 8 * stage, P * Size::rows);
                    #pragma unroll
                    for (int p = 0; p < P; p++)
                        bulk_copy_to(space_at + to + p * Size::rows + rank * TILE_BYTES, rows + p * apart * 2 + (u64)t * 2 * TILE_BYTES,
                                     TILE_BYTES, full + 8 * stage, (1 << CLUSTER) - 1);
                }
                if (t >= ahead) copy_outputs(t, stage);
                copy4(units_at + (stage * BM + own) * 4, units + t * BM);
                copies_arrive(full + 8 * stage);
                if (++stage == DEPTH) stage = 0, round++;
            }
            ahead = 0;
        });
        copies_wait<0>();
    } else {
        more_registers<152>();
        wait_before();
        u32 unit = units_at + (warp * 16 + lane / 4) * 4;
        each_tile<F, BM>(s, op, count, wide, [&](u32, const Outputs &, bool found, u32) {
            float acc[1][NT][4] = {}, dot[NT][4];
            for (u32 t = 0; t < steps; t++) {
                u32 tile = one_for_all(space_at + stage * Size::bytes);
                bar_wait(full + 8 * stage, round & 1);
                tiles_written();
                __syncwarp();
                float by[2] = {load_float(unit + stage * BM * 4), load_float(unit + stage * BM * 4 + 32)};
                u64 b = tile_at(tile + Size::outs);
                wgmma_begins();
                #pragma unroll
                for (int p = P - 1; p >= 0; p--) {
                    u64 a = tile_at(tile + p * Size::rows + warp / 4 * TILE_BYTES);
                    #pragma unroll
                    for (int k = 0; k < 4; k++) wgmma<F == T_BF16>(dot, further(a, 2 * k), further(b, 2 * k), p < P - 1 || k > 0);
                }
                wgmma_commits();
                wgmma_waits<0>();
                wgmma_made(dot);
                if (lane < CLUSTER) bar_arrive_at(free + 8 * stage, lane);
                #pragma unroll
                for (int n = 0; n < NT; n++)
                    #pragma unroll
                    for (int i = 0; i < 4; i++) acc[0][n][i] = __fmaf_rn(dot[n][i], by[i / 2], acc[0][n][i]);
                if (++stage == DEPTH) stage = 0, round++;
            }
            if (!found) return;
            if (turn > 0) bar_wait(written + 8 * warp, (turn - 1) & 1);
            put_sums<PITCH>(sums + warp * 16 * PITCH, acc);
            __syncwarp();
            if (lane == 0) bar_arrive(made + 8 * warp);
            turn++;
        });
    }
    meet_cluster();
}
#endif

#ifdef HAS_WGMMA
#define LARGE(F)                                                                                                     \
    extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(RING_THREADS, 1)                \
        gemm_large_##F(Step s, MatVec op, u64 apart, Ending end) {                                                   \
        gemm_ring<T_##F>(s, op, apart, end);                                                                         \
    }
#else
#define LARGE(F)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_large_##F(Step s, MatVec op, u64 apart, Ending end) {  \
        gemm16<T_##F, 128, 128, 64, 32>(s, op, apart, end);                                                          \
    }
#endif
#define GEMM(F)                                                                                                      \
    LARGE(F)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(128, 3) gemm_small_##F(Step s, MatVec op, u64 apart, Ending end) {  \
        gemm16<T_##F, 64, 64, 32, 32>(s, op, apart, end);                                                            \
    }
GEMM(F16) GEMM(BF16)
