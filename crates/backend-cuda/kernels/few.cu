// Products of two to eight replies' rows on 9.0, with weights of the formats whose units are 64 columns: blocks that stay go
// through tiles of 16 outputs, and two warps copy weights, a stretch of all 16 outputs at a time, before what is in front has ended.
//
// The order of sums is that of matvec.cu: lane l sums units l, l + 32, …, and lanes are summed in pairs. Warp w of eight
// has the lanes w and w + 8 of even stretches, and those 16 further of odd ones. Tensor cores multiply by eight columns: those of
// one unit of eight rows, so that a thread has sums of either of a warp's units. Of four rows the first four columns are those of
// one unit, the other four those of the unit eight further, each by weights of its own and zeros for those of the other, so that
// no sum of a thread is idle.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "few.cuh"

#define HELD 4u             // stretches of rows that warps keep in registers, where there are as many
#define CHUNK 4096u         // columns of rows that have a barrier
#define MOST_CHUNKS 8u
#define MOST_PLACES 16u
#define UNIT_BYTES 512u     // scales of a warp's units of a stretch

// Places of stretches in shared memory.
struct Ring {
    u32 places, bytes;      // and of each
};

// Sums of tiles that wait for their end: floats of one, and places.
template <u32 N> struct Joint {
    static const u32 floats = WARPS * N * TILE, places = 16 / N;
};
#define MOST_JOINTS 4u

struct Bars {
    u64 rows[MOST_CHUNKS];
    u64 full[MOST_PLACES], empty[MOST_PLACES];
    u64 made[MOST_JOINTS], taken[MOST_JOINTS];  // sums of tiles
};

// Outputs of a tile are two to this power; those of a gated pair lie beside each other.
static __device__ __forceinline__ u32 wide_bits(const MatVec &op) { return op.gated ? 3 : 4; }

// Outputs of a tile, whatever their format.
static __device__ __forceinline__ bool find_tile(const MatVec &op, u32 tile, Outputs *out) {
    u32 before = 0, parts = op.gated ? 1 : PARTS, bits = wide_bits(op);
    for (u32 i = 0; i < parts; i++) {
        u32 n = op.parts[i].end - before, tiles = (n + (1 << bits) - 1) >> bits;
        before = op.parts[i].end;
        if (tile < tiles) {
            out->part = i, out->first = tile << bits, out->count = n;
            return true;
        }
        tile -= tiles;
    }
    return false;
}

// The weight's row behind a row of a tile: those of a gated pair have one half each.
static __device__ __forceinline__ Rows tile_row(const MatVec &op, const Outputs &outs, u32 r) {
    u32 part = outs.part;
    if (op.gated) part = r >= TILE / 2, r %= TILE / 2;
    return rows_at(op, {part, min(outs.first + r, outs.count - 1)});
}

static __device__ __forceinline__ void fetch_tiles(const MatVec &op, const Ring &ring, u32 places, const Bars &bars) {
    u32 at = 0, round = 0, r = threadIdx.x / 8 % 8;
    Outputs outs;
    #pragma unroll 1
    for (u32 tile = blockIdx.x; find_tile(op, tile, &outs); tile += gridDim.x) {
        Rows low = tile_row(op, outs, r), high = tile_row(op, outs, r + 8);
        u32 dtype = op.parts[outs.part].dtype;
        #pragma unroll 1
        for (u32 stretch = 0; stretch < op.k / STRETCH; stretch++) {
            if (round > 0) bar_wait(shared_address(bars.empty + at), (round - 1) & 1);
            u32 to = places + at * ring.bytes;
            switch (dtype) {
            case T_Q4_K: fetch<T_Q4_K>(low, high, stretch, to); break;
            case T_Q5_K: fetch<T_Q5_K>(low, high, stretch, to); break;
            default: fetch<T_Q6_K>(low, high, stretch, to);
            }
            copies_arrive(shared_address(bars.full + at));
            if (++at == ring.places) at = 0, round++;
        }
    }
}

// Where a block is in its ring.
struct Turn {
    u32 at, odd;
    __device__ __forceinline__ Turn after(const Ring &ring) const {
        bool last = at + 1 == ring.places;
        return {last ? 0 : at + 1, last ? odd ^ 1 : odd};
    }
};

// Where a warp is in its tiles.
struct Walk {
    u32 tile, n, part, end; // the end of the part's tiles
    Turn turn;
    // Whether there is a tile.
    __device__ __forceinline__ bool find(const MatVec &op) {
        u32 bits = wide_bits(op), parts = op.gated ? 1 : PARTS;
        while (tile >= end) {
            if (part + 1 >= parts) return false;
            part++;
            u32 outputs = op.parts[part].end - op.parts[part - 1].end;
            end += (outputs + (1 << bits) - 1) >> bits;
        }
        return true;
    }
};

// Where a warp finds things.
struct Warp {
    u32 number, turned, nothing, units, places, joint;
};

// Sums of a tile's stretches, of even ones and of odd ones.
template <int F, u32 N> struct Sum {
    const Ring &ring;
    const Warp &own;
    const Lane &l;
    u32 full, empty, j;
    float of[2][N / 4][4];

    // One stretch, or two.
    template <u32 M> __device__ __forceinline__ void add(Turn &turn, const RowPart<N> *p) {
        Turn at[M];
        u32 place[M];
        #pragma unroll
        for (u32 i = 0; i < M; i++) at[i] = turn, turn = turn.after(ring), place[i] = own.places + at[i].at * ring.bytes;
        #pragma unroll
        for (u32 i = 0; i < M; i++) bar_wait(full + at[i].at * 8, at[i].odd);
        #pragma unroll
        for (u32 i = 0; i < M; i++) put_scales<F>(l, place[i], j, i * UNIT_BYTES);
        __syncwarp();
        #pragma unroll
        for (u32 i = 0; i < M; i++) add_units<F, N>(l, place[i], j, i * UNIT_BYTES, p[i], of[i]);
        __syncwarp();
        if ((threadIdx.x & 31) > 0) return;
        #pragma unroll
        for (u32 i = 0; i < M; i++) bar_arrive(empty + at[i].at * 8);
    }

    // Lanes 16 apart, then those eight apart; what the first four sums are in the end: two outputs of two rows.
    __device__ __forceinline__ void join() {
        #pragma unroll
        for (u32 i = 0; i < N; i++) of[0][i / 4][i % 4] = __fadd_rn(of[0][i / 4][i % 4], of[1][i / 4][i % 4]);
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float &x = of[0][0][i];
            x = __fadd_rn(x, N == 4 ? __shfl_xor_sync(ALL_LANES, x, 2) : of[0][N / 4 - 1][i]);
        }
    }
};

// Tiles of one format, up to one of another.
template <int F, u32 N, bool KEPT>
static __device__ __forceinline__ void sum_tiles(const MatVec &op, const Ring &ring, const Bars &bars, const Warp &own, Walk &walk) {
    const u32 JOINTS = Joint<N>::places;
    u32 lane = threadIdx.x & 31, count = op.k / STRETCH;
    Lane l = lane_of<F, N>(own.number, lane, own.units);
    RowsAt from = rows_in_shared<F, N>(op, own.turned, own.nothing, own.number, lane);
    RowPart<N> held[HELD];
    if (KEPT) {
        bar_wait(shared_address(bars.rows), 0);
        #pragma unroll
        for (u32 i = 0; i < HELD; i++) load_part<F>(from, held[i]);
    }
    u32 to = own.joint + ((own.number * N + lane % (N / 2) * 2) * TILE + lane / 4 + (N == 4 ? (lane & 2) * 4 : 0)) * 4;
    u32 made = shared_address(bars.made), taken = shared_address(bars.taken);
    Sum<F, N> sum = {ring, own, l, shared_address(bars.full), shared_address(bars.empty), own.number % 4};
    keep(to), keep(sum.full), keep(sum.empty);
    #pragma unroll 1
    do {
        #pragma unroll
        for (u32 i = 0; i < 2 * N; i++) sum.of[i / N][i % N / 4][i % 4] = 0.0f;
        if (KEPT) {
            sum.template add<2>(walk.turn, held), sum.template add<2>(walk.turn, held + 2);
        } else {
            RowsAt at = from;
            RowPart<N> p[2];
            #pragma unroll 1
            for (u32 i = 0; i + 1 < count; i += 2) {
                bar_wait(shared_address(bars.rows + i * STRETCH / CHUNK), 0);
                load_part<F>(at, p[0]), load_part<F>(at, p[1]);
                sum.template add<2>(walk.turn, p);
            }
            if (count % 2) {
                bar_wait(shared_address(bars.rows + (count - 1) * STRETCH / CHUNK), 0);
                load_part<F>(at, p[0]);
                sum.template add<1>(walk.turn, p);
            }
        }
        sum.join();
        u32 place = walk.n % JOINTS, joint = to + place * Joint<N>::floats * 4;
        if (walk.n >= JOINTS) bar_wait(taken + place * 8, (walk.n / JOINTS - 1) & 1);
        const float(&x)[4] = sum.of[0][0];
        if (N == 4) {
            // Both lanes of a pair have the sums: one output each.
            put_float(joint, lane & 2 ? x[2] : x[0]), put_float(joint + TILE * 4, lane & 2 ? x[3] : x[1]);
        } else {
            #pragma unroll
            for (u32 i = 0; i < 4; i++) put_float(joint + i % 2 * TILE * 4 + i / 2 * 8 * 4, x[i]);
        }
        __syncwarp();
        if (lane == 0) bar_arrive(made + place * 8);
        walk.tile += gridDim.x, walk.n++;
    } while (walk.find(op) && op.parts[walk.part].dtype == F);
}

template <int F, u32 N>
static __device__ __forceinline__ void tiles_of(bool kept, const MatVec &op, const Ring &ring, const Bars &bars, const Warp &own, Walk &walk) {
    if (kept) sum_tiles<F, N, true>(op, ring, bars, own, walk);
    else sum_tiles<F, N, false>(op, ring, bars, own, walk);
}

// The sum of an output of a row: what eight warps have of it, in pairs.
template <u32 N> static __device__ __forceinline__ float total(const float *joint, u32 at) {
    float x[WARPS];
    #pragma unroll
    for (u32 w = 0; w < WARPS; w++) x[w] = joint[w * N * TILE + at];
    #pragma unroll
    for (u32 d = WARPS / 2; d > 0; d /= 2)
        #pragma unroll
        for (u32 w = 0; w < d; w++) x[w] = __fadd_rn(x[w], x[w + d]);
    return x[0];
}

// Rows in bytes; of four a unit of the second half of a kilobyte in the place of its neighbour, so that eight rows of tensor
// cores lie in banks of their own. In the place of rows that are not there stands what lies behind them, whose sums nobody
// reads. Each chunk of columns has a barrier.
template <u32 N> static __device__ __forceinline__ void bring_rows(const MatVec &op, u32 turned, const Bars &bars) {
    u32 to = shared_address(whole), c = threadIdx.x * 16;
    #pragma unroll 1
    for (u32 chunk = 0; chunk * CHUNK < op.k; chunk++, c += CHUNK) {
        if (c < op.k) {
            u32 at = to + (N == 4 ? c ^ (c >> 9 & 1) * 64 : c);
            const uint2 *x = op.turned + (u64)(c / 32) * op.pitch + c / 16 % 2 * (N / 2);
            #pragma unroll
            for (u32 r = 0; r < N; r++) copy16(at + r * row_pitch(op.k), op.acts.q + (u64)r * op.k + c);
            #pragma unroll
            for (u32 i = 0; i < N / 4; i++) copy16(to + turned + c * (N / 4) + i * 16, x + i * 2);
        }
        copies_arrive(shared_address(bars.rows + chunk));
    }
}

// Warps that end tiles, so that no other waits for them: what all sum of an output of a row is summed and written.
template <u32 N, bool GATED> static __device__ __forceinline__ void end_tiles(const Step &s, const MatVec &op, const float *joints, const Bars &bars) {
    const u32 JOINTS = Joint<N>::places, WIDE = GATED ? TILE / 2 : TILE, OWN = N * WIDE / 32;
    u32 lane = threadIdx.x & 31, count = rows_of(s, op.lead), first = lane / WIDE, c = lane % WIDE;
    bool mine[OWN];
    #pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        u32 row = first + i * (32 / WIDE);
        mine[i] = row < count && !of_prompt(s, op, row);
    }
    Outputs outs;
    #pragma unroll 1
    for (u32 n = threadIdx.x / 32 - WARPS - FETCHING; find_tile(op, blockIdx.x + n * gridDim.x, &outs); n += ENDING) {
        const Part &p = op.parts[outs.part];
        bool there = outs.first + c < outs.count;
        u32 o = there ? outs.first + c : outs.count - 1;
        const float *joint = joints + n % JOINTS * Joint<N>::floats + first * TILE + c;
        float add[OWN] = {}, y[OWN], up[OWN];
        u64 to[OWN];
        #pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            to[i] = (u64)(first + i * (32 / WIDE)) * p.y_stride + p.y_first + o;
            if (mine[i] && there && p.add) add[i] = p.add[to[i]];
        }
        bar_wait(shared_address(bars.made + n % JOINTS), n / JOINTS & 1);
        #pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            y[i] = total<N>(joint, i * (32 / WIDE) * TILE);
            if (GATED) up[i] = total<N>(joint, i * (32 / WIDE) * TILE + TILE / 2);
        }
        __syncwarp();
        if (lane == 0) bar_arrive(shared_address(bars.taken + n % JOINTS));
        #pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            y[i] = finished(p, y[i], o, 0, false);
            if (GATED) y[i] = gated(op.act, y[i], finished(op.parts[1], up[i], o, 0, false));
            if (p.add) y[i] = __fadd_rn(y[i], add[i]);
            if (mine[i] && there) p.y[to[i]] = y[i];
        }
    }
}

template <u32 N> static __device__ __forceinline__ void few_rows(const Step &s, const MatVec &op, const Ring &ring, Bars &bars) {
    u32 turned = N * row_pitch(op.k), units_at = turned + op.k / 4 * N, joint_at = units_at + WARPS * 2 * UNIT_BYTES;
    u32 nothing = joint_at + Joint<N>::places * Joint<N>::floats * 4, places = nothing + 16;
    u32 warp = threadIdx.x >> 5;
    if (threadIdx.x < MOST_PLACES) bar_init(shared_address(bars.full + threadIdx.x), FETCHING * 32), bar_init(shared_address(bars.empty + threadIdx.x), WARPS);
    if (threadIdx.x < MOST_CHUNKS) bar_init(shared_address(bars.rows + threadIdx.x), WARPS * 32);
    if (threadIdx.x < 4) ((u32 *)(whole + nothing))[threadIdx.x] = 0;
    if (threadIdx.x < MOST_JOINTS) bar_init(shared_address(bars.made + threadIdx.x), WARPS), bar_init(shared_address(bars.taken + threadIdx.x), 1);
    __syncthreads();
    begin_next();
    if (warp >= WARPS && warp < WARPS + FETCHING) {
        fetch_tiles(op, ring, shared_address(whole) + places, bars);
        return;
    }
    wait_before();
    if (warp >= WARPS) {
        const float *joints = (const float *)(whole + joint_at);
        if (op.gated) end_tiles<N, true>(s, op, joints, bars);
        else end_tiles<N, false>(s, op, joints, bars);
        return;
    }
    bring_rows<N>(op, turned, bars);
    u32 base = shared_address(whole);
    Warp own = {warp, turned, nothing, base + units_at + warp * 2 * UNIT_BYTES, base + places, base + joint_at};
    Walk walk = {blockIdx.x, 0, 0, 0, {0, 0}};
    walk.end = (op.parts[0].end + (1 << wide_bits(op)) - 1) >> wide_bits(op);
    bool found = walk.find(op), kept = op.k == HELD * STRETCH;
    #pragma unroll 1
    while (found) {
        switch (op.parts[walk.part].dtype) {
        case T_Q4_K: tiles_of<T_Q4_K, N>(kept, op, ring, bars, own, walk); break;
        case T_Q5_K: tiles_of<T_Q5_K, N>(kept, op, ring, bars, own, walk); break;
        default: tiles_of<T_Q6_K, N>(kept, op, ring, bars, own, walk);
        }
        found = walk.find(op);
    }
}

#define FEW(N, NAME)                                                                                                        \
    extern "C" __global__ void __launch_bounds__((WARPS + FETCHING + ENDING) * 32, 1) NAME(Step s, MatVec op, Ring ring) {  \
        __shared__ __align__(8) Bars bars;                                                                                  \
        few_rows<N>(s, op, ring, bars);                                                                                     \
    }
FEW(4, few) FEW(8, few_8)
#endif
