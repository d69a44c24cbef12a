// Products of prompts' rows on tensor cores, with weights of sixteen bits.
//
// A number of a row goes in parts of sixteen bits, two halves under a power of two that its row shares or three bfloats, so that
// little or nothing of it is rounded. The dot of 32 columns (64 on 9.0) is what tensor cores make of the parts, the smallest
// part first, from zero; dots are added one after the other, so a row's bits follow from the format and the number of columns
// alone.
//
// On 9.0 parts lie as tensor cores take them: 64 rows of 64 columns in one piece, two of these for every 128 rows, then the next
// columns.
#include "async.cuh"
#include "tiles.cuh"
#include "wgmma.cuh"

struct Cut {
    const float *x;
    u16 *parts;     // rows of each part, `apart` numbers from one part to the next
    float *units;   // what a row is multiplied by in the end
    u64 apart;
    u32 width, format;
};

#ifdef HAS_WGMMA
#define TILE_BYTES (64 * 128)
// Where 64 columns of a row begin, and how far it is to the next ones.
static __device__ __forceinline__ u64 tile_of(u32 row, u32 columns) {
    return ((u64)(row / 128) * ((columns + 63) / 64) * 2 + row / 64 % 2) * TILE_BYTES;
}
#endif
// Where four numbers of a row stand in a part, in bytes.
static __device__ __forceinline__ u64 place_of(u32 row, u32 column, u32 width) {
#ifdef HAS_WGMMA
    return tile_of(row, width) + column / 64 * 2 * TILE_BYTES + swizzled(row % 64, column / 8 % 8) + column % 8 * 2;
#else
    return ((u64)row * width + column) * 2;
#endif
}

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
#ifdef HAS_WGMMA
    u32 end = (op.width + 63) / 64 * 16; // tiles are whole
#else
    u32 end = op.width / 4;
#endif
    for (u32 c = threadIdx.x; c < end; c += blockDim.x) {
        float4 v = c < op.width / 4 ? x[c] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
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

template <int F, int BM, int BN> struct Sixteen {
#ifdef HAS_WGMMA
    static const int columns = 64, depth = F == T_F16 ? 4 : 3;
#else
    static const int columns = 32, depth = 4;
#endif
    static const int parts = F == T_F16 ? 2 : 3, rows = BM * columns * 2, outs = parts * rows, bytes = outs + BN * columns * 2;
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

// Tiles of BM rows by BN outputs; warps of WM by WN, or on 9.0 of 16 by all.
template <int F, int BM, int BN, int WM, int WN> static __device__ __forceinline__ void gemm16(const Step &s, const MatVec &op, u64 apart) {
#ifdef HAS_TENSOR
    typedef Sixteen<F, BM, BN> Size;
    const int THREADS = BM / WM * (BN / WN) * 32, P = Size::parts, DEPTH = Size::depth;
    const u32 PIECES = Size::columns / 8;
    extern __shared__ __align__(1024) u8 space[];
    __shared__ float units[BM];
    u32 warp = threadIdx.x >> 5, count = rows_of(s, op.lead), first = blockIdx.x * BM;
    if (first >= count) return;
    bool own = false;
    if (threadIdx.x < BM) {
        float unit = units[threadIdx.x] = row_unit(s, op, first + threadIdx.x, count, op.acts.d);
        own = unit != 0.0f;
    }
    Outputs outs;
    bool found = find_outputs(op, F, op.gated ? BN / 2 : BN, blockIdx.y, &outs);
    if (!__syncthreads_or(own) || !found) return;

    const int ROW_COPIES = BM * PIECES / THREADS, OUT_COPIES = BN * PIECES / THREADS;
    u32 space_at = shared_at(space), steps = (op.k + Size::columns - 1) / Size::columns, piece = threadIdx.x % PIECES;
    const u8 *x_from[ROW_COPIES], *w_from[OUT_COPIES];
    #pragma unroll
    for (int i = 0; i < ROW_COPIES; i++) {
        x_from[i] = op.acts.q + place_of(min(first + (threadIdx.x + i * THREADS) / PIECES, count - 1), piece * 8, op.k);
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
    const int MT = 1, NT = BN / 8;
    float acc[MT][NT][4] = {}, dots[2][NT][4];
    u32 m0 = warp * 16, n0 = 0;
    // While tensor cores make one dot, the one before it is added.
    auto multiply = [&](u32 t, float (&dot)[NT][4]) {
        copies_wait<AHEAD - 1>();
        tiles_written();
        __syncthreads();
        u32 tile = space_at + t % DEPTH * Size::bytes;
        u64 b = tile_at(tile + Size::outs);
        wgmma_begins();
        #pragma unroll
        for (int p = P - 1; p >= 0; p--) {
            u64 a = tile_at(tile + p * Size::rows + warp / 4 * 64 * 128);
            #pragma unroll
            for (int k = 0; k < 4; k++) wgmma<F == T_BF16>(dot, a + 2 * k, b + 2 * k, p < P - 1 || k > 0);
        }
        wgmma_commits();
        copy(t + AHEAD);
    };
    auto add = [&](float (&dot)[NT][4]) {
        wgmma_made(dot);
        #pragma unroll
        for (int n = 0; n < NT; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) acc[0][n][i] = __fadd_rn(acc[0][n][i], dot[n][i]);
    };
    u32 t = 0;
    #pragma unroll 1
    for (; t + 1 < steps; t += 2) {
        multiply(t, dots[0]);
        multiply(t + 1, dots[1]);
        wgmma_waits<1>();
        add(dots[0]);
        wgmma_waits<0>();
        add(dots[1]);
    }
    if (t < steps) {
        multiply(t, dots[0]);
        wgmma_waits<0>();
        add(dots[0]);
    }
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
#endif

    copies_wait<0>();
    write_tile<BM, BN, THREADS>(op, outs, first, (float *)space, units, m0, n0, acc);
#endif
}

#ifdef HAS_WGMMA
#define RING_THREADS 384
#define RING_BLOCKS 2 // of a cluster: tiles beside each other, which share their rows

// Tiles of 128 rows by 128 outputs. Four warps fill a ring of places in shared memory, each block of a cluster with half of the
// rows for all; twice four multiply what is there, 64 rows each and at their own pace: while the ones add their sums, the dots of
// the others are made.
template <int F> static __device__ __forceinline__ void gemm_ring(const Step &s, const MatVec &op, u64 apart) {
    const int BM = 128, BN = 128, NT = BN / 8, THREADS = 256;
    typedef Sixteen<F, BM, BN> Size;
    const int P = Size::parts, DEPTH = Size::depth;
    extern __shared__ __align__(1024) u8 space[];
    __shared__ float units[BM];
    __shared__ __align__(8) u64 bars[2 * DEPTH];
    u32 warp = threadIdx.x >> 5, count = rows_of(s, op.lead), first = blockIdx.x * BM, rank = cluster_rank();
    if (first >= count) return;
    bool own = false;
    if (threadIdx.x < BM) {
        float unit = units[threadIdx.x] = row_unit(s, op, first + threadIdx.x, count, op.acts.d);
        own = unit != 0.0f;
    }
    if (!__syncthreads_or(own)) return;
    Outputs outs = {0, 0, 0};
    // A block without outputs copies for the others.
    bool found = find_outputs(op, F, op.gated ? BN / 2 : BN, blockIdx.y, &outs);
    if (!found) find_outputs(op, F, op.gated ? BN / 2 : BN, 0, &outs);
    u32 space_at = shared_at(space), full = shared_at(bars), free = full + 8 * DEPTH, steps = (op.k + 63) / 64;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < DEPTH; i++) {
            bar_init(full + 8 * i, RING_THREADS - THREADS + 1);
            bar_init(free + 8 * i, RING_BLOCKS * THREADS / 32);
        }
        bars_made();
    }
    meet_cluster();

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
        for (u32 t = 0; t < steps; t++) {
            u32 stage = t % DEPTH, to = stage * Size::bytes;
            if (t >= DEPTH) bar_wait(free + 8 * stage, (t / DEPTH - 1) & 1);
            if (threadIdx.x == THREADS) {
                bar_expect(full + 8 * stage, P * Size::rows);
                #pragma unroll
                for (int p = 0; p < P; p++)
                    bulk_copy_to(space_at + to + p * Size::rows + rank * TILE_BYTES, rows + p * apart * 2 + (u64)t * 2 * TILE_BYTES, TILE_BYTES,
                                 full + 8 * stage, (1 << RING_BLOCKS) - 1);
            }
            // Beyond the columns nothing is read.
            bool there = t * 64 + piece * 8 < op.k;
            #pragma unroll
            for (int i = 0; i < BN / 16; i++) copy16(at + to + i * 2048, there ? w[i] + t * 128 : op.acts.q, there);
            copies_arrive(full + 8 * stage);
        }
        copies_wait<0>();
        meet_cluster();
        return;
    }
    float acc[1][NT][4] = {}, dot[NT][4];
    for (u32 t = 0; t < steps; t++) {
        u32 stage = t % DEPTH, tile = space_at + stage * Size::bytes;
        bar_wait(full + 8 * stage, t / DEPTH & 1);
        tiles_written();
        __syncwarp();
        u64 b = tile_at(tile + Size::outs);
        wgmma_begins();
        #pragma unroll
        for (int p = P - 1; p >= 0; p--) {
            u64 a = tile_at(tile + p * Size::rows + warp / 4 * TILE_BYTES);
            #pragma unroll
            for (int k = 0; k < 4; k++) wgmma<F == T_BF16>(dot, a + 2 * k, b + 2 * k, p < P - 1 || k > 0);
        }
        wgmma_commits();
        wgmma_waits<0>();
        wgmma_made(dot);
        if (threadIdx.x % 32 < RING_BLOCKS) bar_arrive_at(free + 8 * stage, threadIdx.x % 32);
        #pragma unroll
        for (int n = 0; n < NT; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) acc[0][n][i] = __fadd_rn(acc[0][n][i], dot[n][i]);
    }
    if (found) write_tile<BM, BN, THREADS>(op, outs, first, (float *)space, units, warp * 16, 0, acc);
    meet_cluster();
}
#endif

#ifdef HAS_WGMMA
#define LARGE(F)                                                                                                     \
    extern "C" __global__ void __cluster_dims__(1, RING_BLOCKS, 1) __launch_bounds__(RING_THREADS, 1) gemm_large_##F(Step s, MatVec op, u64 apart) {     \
        gemm_ring<T_##F>(s, op, apart);                                                                              \
    }
#else
#define LARGE(F)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_large_##F(Step s, MatVec op, u64 apart) {              \
        gemm16<T_##F, 128, 128, 64, 32>(s, op, apart);                                                               \
    }
#endif
#define GEMM(F)                                                                                                      \
    LARGE(F)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(128, 3) gemm_small_##F(Step s, MatVec op, u64 apart) {              \
        gemm16<T_##F, 64, 64, 32, 32>(s, op, apart);                                                                 \
    }
GEMM(F16) GEMM(BF16)
