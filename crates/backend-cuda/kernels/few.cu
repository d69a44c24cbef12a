// Products of two to four replies' rows on 9.0, with weights of the formats whose units are 64 columns: blocks that stay go
// through tiles of 16 outputs, and two warps copy weights, a stretch of all 16 outputs at a time, before what is in front has ended.
//
// The order of sums is that of matvec.cu: lane l sums units l, l + 32, …, and lanes are summed in pairs. Warp w of eight
// has the lanes w and w + 8. Tensor cores multiply by eight columns where there are four rows: the first four are those of one
// unit, the other four those of the unit eight further, each by weights of its own and zeros for those of the other, so that no
// sum of a thread is idle. Eight warps take even stretches, eight others odd ones, whose lanes are 16 further.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "async.cuh"
#include "replies.cuh"

#define FEW 4u              // rows
#define EACH 8u             // warps that multiply a stretch
#define WARPS (2 * EACH)
#define FETCHING 2u         // and that fetch; one more ends tiles
#define TILE 16u            // outputs
#define STRETCH 1024u       // columns
#define MOST_PLACES 16u

extern __shared__ __align__(128) u8 whole[];

// Places of stretches in shared memory.
struct Ring {
    u32 places, bytes;      // and of each
};

template <int F> struct Stretch {
    static const u32 block = Group<F>::bytes, row = 4 * block, pitch = row + 16;
    static const u32 scales = TILE * pitch;     // of Q6_K, 16 bytes an output
};

// Lengths in shared memory: rows, their scales and sums, scales of a warp's units, sums of two tiles.
static __device__ __forceinline__ u32 row_pitch(u32 k) { return k + 16; }

#define UNIT_BYTES 640u     // of a warp
#define JOINT (WARPS * 2 * FEW * TILE)

struct Bars {
    u64 full[MOST_PLACES], empty[MOST_PLACES];
    u64 made[2], taken[2];  // sums of every other tile
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

// Two warps fetch: eight lanes a row, eight rows at a time.
template <int F> static __device__ __forceinline__ void fetch(const Rows &low, const Rows &high, u32 stretch, u32 to) {
    const u32 PIECES = Stretch<F>::row / 16;
    u32 own = threadIdx.x - WARPS * 32, r = own / 8, piece = own % 8;
    #pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u8 *w = (i ? high : low).w + stretch * Stretch<F>::row + piece * 16;
        u32 at = to + (r + 8 * i) * Stretch<F>::pitch + piece * 16;
        #pragma unroll
        for (u32 c = 0; c < PIECES; c += 8)
            if (c + 8 <= PIECES || c + piece < PIECES) copy16(at + c * 16, w + c * 16);
        if (F == T_Q6_K && piece == 0) copy8(to + Stretch<F>::scales + (r + 8 * i) * 16, (i ? high : low).scales + stretch * 8);
    }
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

// Adds bytes of 16 outputs by 32 columns times those of eight rows.
static __device__ __forceinline__ void mma_more(i32 *d, const u32 *a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void mma16_more(i32 *d, u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}

// Where a lane reads: in a place, of the rows, of their scales.
struct From {
    u32 w, x, d;
    u32 more;       // bytes of weights from the first unit's to the other one's
};

// Bytes of both runs of a unit: what lanes have of 16 outputs, in the order of tensor cores.
template <int F> static __device__ __forceinline__ void unpack(u32 at, u32 j, u32 (&a)[2][4]) {
    u32 v[4];
    const u32 nibbles = F == T_Q4_K ? 16 + 32 * j : F == T_Q5_K ? 48 + 32 * j : 64 * (j / 2) + 32 * (j & 1);
    load_matrices(v, at + nibbles);
    #pragma unroll
    for (int i = 0; i < 4; i++) a[0][i] = v[i] & 0x0f0f0f0fu, a[1][i] = v[i] >> 4 & 0x0f0f0f0fu;
    if (F == T_Q4_K) return;
    load_matrices(v, at + (F == T_Q5_K ? 16 : 128 + 32 * (j / 2)));
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (F == T_Q5_K) {
            u32 fifth = v[i] >> 2 * j;
            a[0][i] |= (fifth & 0x01010101u) << 4, a[1][i] |= (fifth >> 1 & 0x01010101u) << 4;
        } else {
            u32 upper = v[i] >> 2 * (j & 1);
            a[0][i] = less32(a[0][i] | (upper & 0x03030303u) << 4), a[1][i] = less32(a[1][i] | (upper >> 4 & 0x03030303u) << 4);
        }
    }
}

// What two units of a stretch add to the sums of a lane: two outputs by two rows.
template <int F> static __device__ __forceinline__ void add_units(const From &from, u32 place, float4 *units, u32 j, float (&acc)[4]) {
    u32 lane = threadIdx.x & 31, group = lane / 4, other = lane & 2 ? TILE : 0, o = lane % TILE;
    // Scales of one output's unit, which others read.
    u32 block_of = threadIdx.x / 128 % 2 + lane / TILE * 2;
    const u8 *own = whole + place + o * Stretch<F>::pitch + block_of * Stretch<F>::block;
    units[lane] = scales_of<F>(own, j);
    float *all = (float *)(units + 32);
    if (F == T_Q6_K) all[lane] = half_to_float(((const u16 *)(whole + place + Stretch<F>::scales + o * 16))[block_of]);
    u32 b[4], first[2][4], second[2][4];
    load_matrices(b, from.x);
    unpack<F>(from.w + place, j, first);
    unpack<F>(from.w + place + from.more, j, second);
    uint4 x[2] = {*(const uint4 *)(whole + from.d), *(const uint4 *)(whole + from.d + (F == T_Q6_K ? 64 : 32))};
    u32 mine = lane < 16 ? 0xffffffffu : 0;
    __syncwarp();
    float4 scale[2] = {units[other + group], units[other + group + 8]};
    float block[2] = {0.0f, 0.0f};
    if (F == T_Q6_K) block[0] = all[other + group], block[1] = all[other + group + 8];
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        u32 b0 = b[2 * run], b1 = b[2 * run + 1];
        float d[2] = {__uint_as_float(x[run].x), __uint_as_float(x[run].z)};
        float by[2] = {run ? scale[0].y : scale[0].x, run ? scale[1].y : scale[1].x};
        float more[2] = {run ? scale[0].w : scale[0].z, run ? scale[1].w : scale[1].z};
        i32 c[4];
        if (F == T_Q6_K) {
            i32 c1[4];
            mma16(c, first[run][0], first[run][1], b0 & mine, EXACT);
            mma16_more(c, second[run][0], second[run][1], b0 & ~mine);
            mma16(c1, first[run][2], first[run][3], b1 & mine, EXACT);
            mma16_more(c1, second[run][2], second[run][3], b1 & ~mine);
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                // Below 2^24, so exact.
                float v = __fmul_rn(exact(c[i]), by[i / 2]);
                v = __fmaf_rn(exact(c1[i]), more[i / 2], v);
                acc[i] = __fmaf_rn(__fmul_rn(block[i / 2], d[i & 1]), v, acc[i]);
            }
        } else {
            mma_rows(c, first[run], b0 & mine, b1 & mine, EXACT, EXACT);
            mma_more(c, second[run], b0 & ~mine, b1 & ~mine);
            float sum[2] = {exact((i32)x[run].y), exact((i32)x[run].w)};
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                float less = __fmul_rn(more[i / 2], sum[i & 1]);
                acc[i] = __fmaf_rn(d[i & 1], __fmaf_rn(by[i / 2], exact(c[i]), -less), acc[i]);
            }
        }
    }
}

// Where a block is in its ring.
struct Turn {
    u32 at, round;
    __device__ __forceinline__ void next(const Ring &ring, u32 places) {
        for (at += places; at >= ring.places; at -= ring.places) round++;
    }
};

// What a warp's lanes make of a tile's columns.
template <int F>
static __device__ __forceinline__ void tile_sums(const MatVec &op, const Ring &ring, u32 places, u32 turned, float4 *units, const Bars &bars, Turn turn, float (&acc)[4]) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32 % EACH, odd = threadIdx.x / (EACH * 32), j = warp % 4;
    u32 own = warp + (lane & 4 ? 8 : 0), run = own / 4 * 8 + first_run<F>(j);
    u32 of_scales = warp + (lane & 2 ? 8 : 0), scale_run = of_scales / 4 * 8 + first_run<F>(j);
    u32 column = run * 32 + (lane & 16 ? (F == T_Q6_K ? 64 : 32) : 0) + (lane & 8 ? 16 : 0);
    From from;
    from.w = shared_address(whole) + (lane % 16) * Stretch<F>::pitch + warp / 4 * Stretch<F>::block + lane / 16 * 16;
    from.x = shared_address(whole) + (lane & 3) * row_pitch(op.k) + (column ^ (own & 8) * 8) + odd * STRETCH;
    from.d = turned + scale_run * 32 + (lane & 1) * 16 + odd * STRETCH;
    from.more = 2 * Stretch<F>::block;
    turn.next(ring, odd);
    #pragma unroll 1
    for (u32 stretch = odd; stretch < op.k / STRETCH; stretch += 2) {
        bar_wait(shared_address(bars.full + turn.at), turn.round & 1);
        add_units<F>(from, places + turn.at * ring.bytes, units, j, acc);
        __syncwarp();
        if (lane == 0) bar_arrive(shared_address(bars.empty + turn.at));
        turn.next(ring, 2);
        from.x += 2 * STRETCH, from.d += 2 * STRETCH;
    }
}

// The sum of an output of a row: lanes w, w + 16, w + 8, w + 24 of each of eight pairs of warps, then these in pairs.
static __device__ __forceinline__ float total(const float *joint, u32 at) {
    const u32 N = FEW * TILE;
    float x[EACH];
    #pragma unroll
    for (u32 w = 0; w < EACH; w++) {
        const float *even = joint + 2 * w * N + at, *odd = even + 2 * EACH * N;
        x[w] = __fadd_rn(__fadd_rn(even[0], odd[0]), __fadd_rn(even[N], odd[N]));
    }
    #pragma unroll
    for (u32 d = EACH / 2; d > 0; d /= 2)
        #pragma unroll
        for (u32 w = 0; w < d; w++) x[w] = __fadd_rn(x[w], x[w + d]);
    return x[0];
}

// Rows in bytes, a unit of the second half of a kilobyte in the place of its neighbour: eight rows of tensor cores lie in
// banks of their own. In the place of rows that are not there stands what lies behind them, whose sums nobody reads.
static __device__ __forceinline__ void bring_rows(const MatVec &op, u32 turned) {
    u32 to = shared_address(whole), pieces = op.k / 16;
    #pragma unroll 1
    for (u32 i = threadIdx.x; i < pieces; i += WARPS * 32) {
        u32 c = i * 16, at = to + (c ^ (c >> 9 & 1) * 64);
        #pragma unroll
        for (u32 r = 0; r < FEW; r++) copy16(at + r * row_pitch(op.k), op.acts.q + (u64)r * op.k + c);
        copy16(to + turned + c, op.turned + (u64)(i / 2) * op.pitch + i % 2 * 2);
    }
    copies_end();
    copies_wait<0>();
    meet_threads(1, WARPS * 32);
}

// The warp that ends tiles, so that no other waits for it: what all sum of an output of a row is summed and written.
static __device__ __forceinline__ void end_tiles(const Step &s, const MatVec &op, const float *joints, const Bars &bars) {
    u32 lane = threadIdx.x & 31, count = rows_of(s, op.lead);
    u32 bits = wide_bits(op), wide = 1 << bits, all = FEW << bits;
    bool mine[2];
    #pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 e = lane + i * 32, row = e >> bits;
        mine[i] = e < all && row < count && !of_prompt(s, op, row);
    }
    Outputs outs;
    #pragma unroll 1
    for (u32 tile = blockIdx.x, n = 0; find_tile(op, tile, &outs); tile += gridDim.x, n++) {
        const Part &p = op.parts[outs.part];
        const float *joint = joints + n % 2 * JOINT;
        float add[2] = {0.0f, 0.0f};
        u64 to[2];
        bool writes[2];
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 e = lane + i * 32, o = outs.first + (e & (wide - 1));
            writes[i] = mine[i] && o < outs.count, to[i] = (u64)(e >> bits) * p.y_stride + p.y_first + o;
            if (writes[i] && p.add) add[i] = p.add[to[i]];
        }
        bar_wait(shared_address(bars.made + n % 2), n / 2 & 1);
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 e = lane + i * 32, row = e >> bits, c = (e & (wide - 1)), o = outs.first + c;
            if (!writes[i]) continue;
            float y = finished(p, total(joint, row * TILE + c), o, 0, false);
            if (op.gated) y = gated(op.act, y, finished(op.parts[1], total(joint, row * TILE + TILE / 2 + c), o, 0, false));
            if (p.add) y = __fadd_rn(y, add[i]);
            p.y[to[i]] = y;
        }
        __syncwarp();
        if (lane == 0) bar_arrive(shared_address(bars.taken + n % 2));
    }
}

extern "C" __global__ void __launch_bounds__((WARPS + FETCHING + 1) * 32, 1) few(Step s, MatVec op, Ring ring) {
    __shared__ __align__(8) Bars bars;
    u32 turned = FEW * row_pitch(op.k), units_at = turned + op.k, joint_at = units_at + WARPS * UNIT_BYTES, places = joint_at + 2 * JOINT * 4;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x < MOST_PLACES) bar_init(shared_address(bars.full + threadIdx.x), FETCHING * 32), bar_init(shared_address(bars.empty + threadIdx.x), EACH);
    if (threadIdx.x < 2) bar_init(shared_address(bars.made + threadIdx.x), WARPS), bar_init(shared_address(bars.taken + threadIdx.x), 1);
    bars_made();
    __syncthreads();
    begin_next();
    if (warp >= WARPS && warp < WARPS + FETCHING) {
        fetch_tiles(op, ring, shared_address(whole) + places, bars);
        return;
    }
    wait_before();
    if (warp >= WARPS) {
        end_tiles(s, op, (const float *)(whole + joint_at), bars);
        return;
    }
    bring_rows(op, turned);
    float4 *units = (float4 *)(whole + units_at + warp * UNIT_BYTES);
    Turn turn = {0, 0};
    Outputs outs;
    #pragma unroll 1
    for (u32 tile = blockIdx.x, n = 0; find_tile(op, tile, &outs); tile += gridDim.x, n++) {
        float acc[4] = {};
        switch (op.parts[outs.part].dtype) {
        case T_Q4_K: tile_sums<T_Q4_K>(op, ring, places, turned, units, bars, turn, acc); break;
        case T_Q5_K: tile_sums<T_Q5_K>(op, ring, places, turned, units, bars, turn, acc); break;
        default: tile_sums<T_Q6_K>(op, ring, places, turned, units, bars, turn, acc);
        }
        turn.next(ring, op.k / STRETCH);
        float *joint = (float *)(whole + joint_at) + n % 2 * JOINT;
        if (n >= 2) bar_wait(shared_address(bars.taken + n % 2), (n / 2 - 1) & 1);
        u32 at = (2 * warp + lane / 2 % 2) * FEW + (lane & 1) * 2;
        #pragma unroll
        for (u32 i = 0; i < 4; i++) joint[(at + i % 2) * TILE + lane / 4 + i / 2 * 8] = acc[i];
        __syncwarp();
        if (lane == 0) bar_arrive(shared_address(bars.made + n % 2));
    }
}
#endif
