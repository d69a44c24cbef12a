// Products of prompts' rows on tensor cores, with weights of sixteen bits.
//
// A number of a row goes in parts of sixteen bits, two halves under a power of two that its row shares or three bfloats, so that
// little or nothing of it is rounded. The dot of 32 columns is what tensor cores make of the parts, the smallest part first, from
// zero; dots are added one after the other, so a row's bits follow from the format and the number of columns alone. On 9.0 it is
// 64 columns, which have a power of their own: whoever makes them can cut them, without the rest of the row.
#include "activate.cuh"
#include "async.cuh"
#include "cut.cuh"
#include "tiles.cuh"

// What happens to the outputs of prompts' rows in the end, on 9.0.
struct Ending {
    u16 *parts;     // where they go in parts, as the next product takes them; 0: as floats
    float *units;
    u64 apart;
    u32 function;   // of an output
    u32 pad;
};

#ifdef HAS_WGMMA
// A thread for four columns of a prompt's row.
KERNEL cut_rows(Step s, Cut op) {
    u32 row = blockIdx.x, c = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
    if (row >= rows_of(s, LEAD_ROWS) || !(s.flags[row] & ROW_PROMPT)) return;
    float4 v = c < op.width ? *(const float4 *)(op.x + (u64)row * op.width + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (op.format == T_F16) cut_columns<T_F16>(op, row, c, v);
    else cut_columns<T_BF16>(op, row, c, v);
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
    static const int columns = 64, depth = F == T_F16 ? 4 : 3;
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
// Tiles of 128 rows by so many outputs that lie beside each other.
static __device__ __forceinline__ u32 tiles_beside(const MatVec &op, u32 format, u32 wide) {
    u32 before = 0, tiles = 0, parts = op.gated ? 1 : PARTS;
    for (u32 i = 0; i < parts; i++) {
        u32 n = op.parts[i].end - before;
        before = op.parts[i].end;
        if (n && op.parts[i].dtype == format) tiles += (n + wide - 1) / wide;
    }
    return tiles;
}

// A thread's outputs of a tile by tensor cores: of two rows, eight apart, two of every eight outputs.
struct Own {
    u32 row, rows;  // the first, and how many the value has
    bool wanted[2]; // whether they are rows of a prompt
};

// Scales and biases of outputs from `o` on, as far as there are any: all are read before the first is used.
template <int N> static __device__ __forceinline__ void scale_outputs(const Part &p, u32 o, u32 count, float (&y)[N][4]) {
    float by[N][2];
    if (p.scale) {
        #pragma unroll
        for (int n = 0; n < N; n++)
            #pragma unroll
            for (int i = 0; i < 2; i++) by[n][i] = p.scale[(p.y_first + min(o + n * 8 + i, count - 1)) % p.scale_len];
        #pragma unroll
        for (int n = 0; n < N; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) y[n][i] = __fmul_rn(y[n][i], by[n][i % 2]);
    }
    if (p.bias) {
        #pragma unroll
        for (int n = 0; n < N; n++)
            #pragma unroll
            for (int i = 0; i < 2; i++) by[n][i] = p.bias[p.y_first + min(o + n * 8 + i, count - 1)];
        #pragma unroll
        for (int n = 0; n < N; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) y[n][i] = __fadd_rn(y[n][i], by[n][i % 2]);
    }
}

template <u32 KIND, int N> static __device__ __forceinline__ void activate_outputs(float (&y)[N][4]) {
    const Act f = {KIND, 0.0f, 0.0f, 0.0f, 0.0f};
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++) y[n][i] = activate(f, y[n][i]);
}

// As floats, behind a sum where there is one, whose other numbers are all read before the first is used.
template <int N> static __device__ __forceinline__ void put_floats(const Part &p, const Own &own, u32 o, u32 count, float (&y)[N][4]) {
    u64 at[2];
    #pragma unroll
    for (int h = 0; h < 2; h++) at[h] = (u64)min(own.row + h * 8, own.rows - 1) * p.y_stride + p.y_first;
    if ((p.y_stride | p.y_first) % 2 == 0 && o / 8 * 8 + N * 8 <= count) {
        float2 add[N][2];
        if (p.add) {
            #pragma unroll
            for (int n = 0; n < N; n++)
                #pragma unroll
                for (int h = 0; h < 2; h++) add[n][h] = *(const float2 *)(p.add + at[h] + o + n * 8);
            #pragma unroll
            for (int n = 0; n < N; n++)
                #pragma unroll
                for (int i = 0; i < 4; i++) y[n][i] = __fadd_rn(y[n][i], i % 2 ? add[n][i / 2].y : add[n][i / 2].x);
        }
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            if (!own.wanted[h]) continue;
            #pragma unroll
            for (int n = 0; n < N; n++) *(float2 *)(p.y + at[h] + o + n * 8) = make_float2(y[n][2 * h], y[n][2 * h + 1]);
        }
        return;
    }
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 c = o + n * 8 + i % 2;
            if (c >= count || !own.wanted[i / 2]) continue;
            u64 to = at[i / 2] + c;
            p.y[to] = p.add ? __fadd_rn(y[n][i], p.add[to]) : y[n][i];
        }
}

// Four lanes have four numbers each: the first of all four go to the first lane, and so on.
static __device__ __forceinline__ uint4 turned_four(u32 (&v)[4]) {
    u32 lane = threadIdx.x;
    #pragma unroll
    for (int step = 1; step < 4; step *= 2)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            bool high = lane & step;
            u32 got = __shfl_xor_sync(ALL_LANES, high ? v[i] : v[i + step], step);
            if (high) v[i] = got;
            else v[i + step] = got;
        }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

// Cut into parts, 64 outputs from `first` on at a time.
template <int F, int N> static __device__ __forceinline__ void put_parts16(const Ending &end, const Own &own, u32 first, u32 count, float (&y)[N][4]) {
    u32 lane = threadIdx.x & 31;
    #pragma unroll
    for (int piece = 0; piece < N / 8; piece++) {
        u32 begin = first + piece * 64;
        if (begin >= count) break;
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = 0.0f;
            #pragma unroll
            for (int n = 0; n < 8; n++)
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &x = y[piece * 8 + n][2 * h + i];
                    if (begin + n * 8 + lane % 4 * 2 + i >= count) x = 0.0f;
                    most = fmaxf(most, fabsf(x));
                }
            most = max_four(most);
            Power power = F == T_F16 ? power_of(most) : Power{1.0f, 1.0f};
            u32 row = own.row + h * 8;
            if (own.wanted[h] && lane % 4 == 0) end.units[unit_of(row, count) + begin / 64 * 128] = power.down;
            u8 *to = (u8 *)end.parts + tile_of(row, count) + begin / 64 * 2 * TILE_BYTES;
            #pragma unroll
            for (int n = 0; n < 8; n += 4) {
                u32 cut[4][Cuts<F>::parts];
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float *x = &y[piece * 8 + n + i][2 * h];
                    cut_two<F>(x[0] * power.up, x[1] * power.up, cut[i]);
                }
                #pragma unroll
                for (int p = 0; p < Cuts<F>::parts; p++) {
                    u32 four[4] = {cut[0][p], cut[1][p], cut[2][p], cut[3][p]};
                    uint4 whole = turned_four(four);
                    if (own.wanted[h]) *(uint4 *)(to + p * end.apart * 2 + swizzled(row % 64, n + lane % 4)) = whole;
                }
            }
        }
    }
}

// What a warp does with its sixteen rows of a tile.
template <int F, int N>
static __device__ __forceinline__ void finish_tile(const MatVec &op, const Ending &end, const Outputs &outs, const Own &own, float (&y)[N][4]) {
    u32 pair = threadIdx.x % 4 * 2;
    const Part &p = op.parts[outs.part];
    if (op.gated) {
        float gate[N / 2][4], up[N / 2][4];
        #pragma unroll
        for (int n = 0; n < N / 2; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) gate[n][i] = y[n / 2 * 4 + n % 2][i], up[n][i] = y[n / 2 * 4 + 2 + n % 2][i];
        scale_outputs(p, outs.first + pair, outs.count, gate);
        scale_outputs(op.parts[1], outs.first + pair, outs.count, up);
        #pragma unroll
        for (int n = 0; n < N / 2; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) gate[n][i] = gated(op.act, gate[n][i], up[n][i]);
        put_floats(p, own, outs.first + pair, outs.count, gate);
        return;
    }
    scale_outputs(p, outs.first + pair, outs.count, y);
    switch (end.function) {
    case F_SILU: activate_outputs<F_SILU>(y); break;
    case F_GELU: activate_outputs<F_GELU>(y); break;
    case F_GELU_ERF: activate_outputs<F_GELU_ERF>(y); break;
    case F_GELU_QUICK: activate_outputs<F_GELU_QUICK>(y); break;
    case F_RELU: activate_outputs<F_RELU>(y); break;
    case F_RELU2: activate_outputs<F_RELU2>(y); break;
    }
    if (end.parts) put_parts16<F>(end, own, outs.first, outs.count, y);
    else put_floats(p, own, outs.first + pair, outs.count, y);
}

static __device__ __forceinline__ float load_float(u32 at) { return __uint_as_float(load_word(at)); }

// The thread's rows among sixteen from `first` on.
static __device__ __forceinline__ Own own_rows(const Step &s, const MatVec &op, u32 first, u32 count) {
    Own own = {first + (threadIdx.x & 31) / 4, count, {false, false}};
    #pragma unroll
    for (int h = 0; h < 2; h++) own.wanted[h] = own.row + h * 8 < count && of_prompt(s, op, own.row + h * 8);
    return own;
}
#endif

// Tiles of BM rows by BN outputs; warps of WM by WN, or on 9.0 of 16 by all.
template <int F, int BM, int BN, int WM, int WN> static __device__ __forceinline__ void gemm16(const Step &s, const MatVec &op, u64 apart, const Ending &end) {
#ifdef HAS_TENSOR
    typedef Sixteen<F, BM, BN> Size;
    const int THREADS = BM / WM * (BN / WN) * 32, P = Size::parts, DEPTH = Size::depth;
    const u32 PIECES = Size::columns / 8;
    extern __shared__ __align__(1024) u8 space[];
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
    float acc[NT][4] = {}, dots[2][NT][4];
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
            for (int i = 0; i < 4; i++) acc[n][i] = __fmaf_rn(dot[n][i], by[i / 2], acc[n][i]);
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
    finish_tile<F>(op, end, outs, own_rows(s, op, first + m0, count), acc);
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
#define RING_THREADS 384
#define RING_BLOCKS 2 // of a cluster: tiles beside each other, which share their rows

// Tiles of 128 rows by 128 outputs, one after the other. Four warps fill a ring of places in shared memory, each block of a cluster
// with half of the rows for all, and go on to the next tile while the last one ends; twice four multiply what is there, 64 rows each
// and at their own pace: while the ones add their sums, the dots of the others are made.
template <int F> static __device__ __forceinline__ void gemm_ring(const Step &s, const MatVec &op, u64 apart, const Ending &end) {
    const int BM = 128, BN = 128, NT = BN / 8, THREADS = 256;
    typedef Sixteen<F, BM, BN> Size;
    const int P = Size::parts, DEPTH = Size::depth;
    extern __shared__ __align__(1024) u8 space[];
    __shared__ __align__(8) u64 bars[2 * DEPTH];
    u32 warp = one_for_all(threadIdx.x >> 5), lane = threadIdx.x & 31, count = rows_of(s, op.lead), rank = cluster_rank();
    u32 down = (count + BM - 1) / BM, wide = op.gated ? BN / 2 : BN;
    u32 pairs = down * ((tiles_beside(op, F, wide) + RING_BLOCKS - 1) / RING_BLOCKS);
    u32 space_at = shared_at(space), units_at = space_at + DEPTH * Size::bytes, full = shared_at(bars), free = full + 8 * DEPTH;
    u32 steps = (op.k + 63) / 64, stage = 0, round = 0;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < DEPTH; i++) {
            bar_init(full + 8 * i, RING_THREADS - THREADS + 1);
            bar_init(free + 8 * i, RING_BLOCKS * THREADS / 32);
        }
        bars_made();
    }
    meet_cluster();
    // Tiles of the same outputs come one after the other, so that weights are read once.
    for (u32 pair = blockIdx.x / RING_BLOCKS; pair < pairs; pair += gridDim.x / RING_BLOCKS) {
        u32 first = pair % down * BM;
        bool any = false;
        #pragma unroll
        for (u32 r = lane; r < BM; r += 32) any |= first + r < count && of_prompt(s, op, first + r);
        if (!__any_sync(ALL_LANES, any)) continue;
        Outputs outs = {0, 0, 0};
        // A block without outputs copies for the others.
        bool found = find_outputs(op, F, wide, pair / down * RING_BLOCKS + rank, &outs);
        if (!found) find_outputs(op, F, wide, 0, &outs);
        if (warp >= THREADS / 32) {
            // Eight threads copy 64 columns of an output, every sixteenth of which is theirs.
            u32 piece = threadIdx.x % 8, line = (threadIdx.x - THREADS) / 8, at = space_at + swizzled(line, piece) + Size::outs;
            const u8 *w[BN / 16];
            #pragma unroll
            for (int i = 0; i < BN / 16; i++) {
                const Part &p = op.parts[op.gated ? i & 1 : outs.part];
                u32 o = min(outs.first + line + (op.gated ? i / 2 : i) * 16, outs.count - 1);
                w[i] = p.data + (u64)o * p.row_bytes + piece * 16;
            }
            const u8 *rows = op.acts.q + tile_of(first + rank * 64, op.k);
            const float *units = op.acts.d + unit_of(first + threadIdx.x - THREADS, op.k);
            for (u32 t = 0; t < steps; t++) {
                u32 to = stage * Size::bytes;
                if (round > 0) bar_wait(free + 8 * stage, (round - 1) & 1);
                if (threadIdx.x == THREADS) {
                    bar_expect(full + 8 * stage, P * Size::rows);
                    #pragma unroll
                    for (int p = 0; p < P; p++)
                        bulk_copy_to(space_at + to + p * Size::rows + rank * TILE_BYTES, rows + p * apart * 2 + (u64)t * 2 * TILE_BYTES,
                                     TILE_BYTES, full + 8 * stage, (1 << RING_BLOCKS) - 1);
                }
                // Beyond the columns nothing is read.
                bool there = t * 64 + piece * 8 < op.k;
                #pragma unroll
                for (int i = 0; i < BN / 16; i++) copy16(at + to + i * 2048, there ? w[i] + t * 128 : op.acts.q, there);
                copy4(units_at + (stage * BM + threadIdx.x - THREADS) * 4, units + t * BM);
                copies_arrive(full + 8 * stage);
                if (++stage == DEPTH) stage = 0, round++;
            }
            continue;
        }
        float acc[NT][4] = {}, dot[NT][4];
        u32 unit = units_at + (warp * 16 + lane / 4) * 4;
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
            if (lane < RING_BLOCKS) bar_arrive_at(free + 8 * stage, lane);
            #pragma unroll
            for (int n = 0; n < NT; n++)
                #pragma unroll
                for (int i = 0; i < 4; i++) acc[n][i] = __fmaf_rn(dot[n][i], by[i / 2], acc[n][i]);
            if (++stage == DEPTH) stage = 0, round++;
        }
        if (found) finish_tile<F>(op, end, outs, own_rows(s, op, first + warp * 16, count), acc);
    }
    if (warp >= THREADS / 32) copies_wait<0>();
    meet_cluster();
}
#endif

#ifdef HAS_WGMMA
#define LARGE(F)                                                                                                     \
    extern "C" __global__ void __cluster_dims__(RING_BLOCKS, 1, 1) __launch_bounds__(RING_THREADS, 1)                \
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
