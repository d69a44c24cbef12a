// Products of two to four replies' rows on 9.0, with weights of the formats whose units are 64 columns: blocks that stay go
// through tiles of 16 outputs, and two warps copy weights, a stretch of all 16 outputs at a time, before what is in front has ended.
//
// The order of sums is that of matvec.cu: lane l sums units l, l + 32, …, and lanes are summed in pairs. Warp w of eight
// has the lanes w and w + 8 of even stretches, and those 16 further of odd ones. Tensor cores multiply by eight columns where
// there are four rows: the first four are those of one unit, the other four those of the unit eight further, each by weights of
// its own and zeros for those of the other, so that no sum of a thread is idle.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "async.cuh"
#include "replies.cuh"

#define FEW 4u              // rows
#define WARPS 8u            // that multiply
#define FETCHING 2u         // and that fetch; one more ends tiles
#define TILE 16u            // outputs
#define STRETCH 1024u       // columns
#define HELD 4u             // stretches of rows that warps keep in registers, where there are as many
#define CHUNK 4096u         // columns of rows that have a barrier
#define MOST_CHUNKS 8u
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

// Lengths in shared memory: a row, scales of a warp's units of two stretches, the warps' sums of a tile.
static __device__ __forceinline__ u32 row_pitch(u32 k) { return k + 16; }

#define UNIT_BYTES 512u
#define JOINT (WARPS * FEW * TILE)
#define JOINTS 4u

struct Bars {
    u64 rows[MOST_CHUNKS];
    u64 full[MOST_PLACES], empty[MOST_PLACES];
    u64 made[JOINTS], taken[JOINTS];    // sums of tiles
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

// Bytes without a sign of 16 outputs by 32 columns times those of eight rows; and more of them.
static __device__ __forceinline__ void mma_codes(i32 *d, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(EXACT));
}
static __device__ __forceinline__ void more_codes(i32 *d, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma16_more(i32 *d, const u32 *a, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}

static __device__ __forceinline__ float4 floats_in_shared(u32 at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ void put_floats(u32 at, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
static __device__ __forceinline__ u32 short_in_shared(u32 at) {
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ void put_float(u32 at, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory"); }

// Addresses of a lane, of weights in front of a place's.
struct Lane {
    u32 w, head;            // 16 bytes of an output; scales of an output's unit
    u32 mine, of_rows;      // where these go, and those of its outputs are
    u32 all;                // of Q6_K, its outputs' blocks
};

template <int F> static __device__ __forceinline__ Lane lane_of(u32 warp, u32 lane, u32 units) {
    u32 j = warp % 4, block_of = warp / 4 + lane / 16 * 2;
    const u32 nibbles = F == T_Q4_K ? 16 + 32 * j : F == T_Q5_K ? 48 + 32 * j : 64 * (j / 2) + 32 * (j & 1);
    Lane l;
    l.w = lane % 16 * Stretch<F>::pitch + warp / 4 * Stretch<F>::block + lane / 16 * 16 + nibbles;
    l.head = lane % 16 * Stretch<F>::pitch + block_of * Stretch<F>::block;
    l.mine = units + lane * 16, l.of_rows = units + ((lane & 2 ? TILE : 0) + lane / 4) * 16;
    l.all = Stretch<F>::scales + lane / 4 * 16 + (warp / 4 + (lane & 2)) * 2;
    keep(l.w), keep(l.head), keep(l.mine), keep(l.of_rows), keep(l.all);
    return l;
}

// What a lane knows of two units' rows: bytes for tensor cores, with zeros for those of the other unit, scales and sums.
struct RowPart {
    u32 first[4], second[4];
    float4 x[2];
};

// Where it reads them: zeros do not move on.
struct RowsAt {
    u32 first, second, scales, first_step, second_step;
};
template <int F> static __device__ __forceinline__ RowsAt rows_in_shared(const MatVec &op, u32 turned, u32 nothing, u32 warp, u32 lane) {
    u32 j = warp % 4, own = warp + (lane & 4 ? 8 : 0), run = own / 4 * 8 + first_run<F>(j);
    u32 of_scales = warp + (lane & 2 ? 8 : 0), scale_run = of_scales / 4 * 8 + first_run<F>(j);
    u32 column = run * 32 + (lane & 16 ? (F == T_Q6_K ? 64 : 32) : 0) + (lane & 8 ? 16 : 0);
    u32 base = shared_address(whole), at = base + (lane & 3) * row_pitch(op.k) + (column ^ (own & 8) * 8);
    RowsAt r;
    r.first = lane & 4 ? base + nothing : at, r.second = lane & 4 ? at : base + nothing;
    r.first_step = lane & 4 ? 0 : STRETCH, r.second_step = lane & 4 ? STRETCH : 0;
    r.scales = base + turned + scale_run * 32 + (lane & 1) * 16;
    return r;
}
template <int F> static __device__ __forceinline__ void load_part(RowsAt &at, RowPart &p) {
    load_matrices(p.first, at.first), load_matrices(p.second, at.second);
    #pragma unroll
    for (u32 run = 0; run < 2; run++) {
        float4 x = floats_in_shared(at.scales + run * (F == T_Q6_K ? 64 : 32));
        p.x[run] = make_float4(x.x, x.y - EXACT_FLOAT, x.z, x.w - EXACT_FLOAT);
    }
    at.first += at.first_step, at.second += at.second_step, at.scales += STRETCH;
}

// Byte `I` as a float: behind 2^23 an integer is the end of one.
template <int I> static __device__ __forceinline__ float float_of_byte(u32 v) {
    return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7540u + I)) - 8388608.0f;
}

// Scales of a unit's runs and the minima of each, from what stands before a block. Codes of Q4_K's second run are 16 times as large.
template <int F> static __device__ __forceinline__ float4 run_scales(u32 at, u32 j) {
    uint4 h = four_in_shared(at);
    u32 pick = j & 1 ? 0x7632u : 0x5410u, low = __byte_perm(h.y, h.z, pick);
    u32 v = j < 2 ? low & 0x3f3f3f3fu : (__byte_perm(h.w, h.w >> 4, pick) & 0x0f0f0f0fu) | (low >> 2 & 0x30303030u);
    float d = half_to_float((u16)h.x), m = half_to_float((u16)(h.x >> 16)), second = d * float_of_byte<1>(v);
    return make_float4(d * float_of_byte<0>(v), F == T_Q4_K ? second * 0.0625f : second, m * float_of_byte<2>(v), m * float_of_byte<3>(v));
}

// Codes of both runs of a unit without signs: what a lane has of 16 outputs, in the order of tensor cores.
template <int F> static __device__ __forceinline__ void unpack(u32 at, u32 j, u32 (&a)[2][4]) {
    u32 v[4];
    load_matrices(v, at);
    if (F == T_Q4_K) {
        #pragma unroll
        for (int i = 0; i < 4; i++) a[0][i] = v[i] & 0x0f0f0f0fu, a[1][i] = v[i] & 0xf0f0f0f0u;
        return;
    }
    u32 more[4];
    load_matrices(more, F == T_Q5_K ? at - 32 - 32 * j : at + 128 - 32 * (j / 2) - 32 * (j & 1));
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        a[0][i] = v[i] & 0x0f0f0f0fu, a[1][i] = v[i] >> 4 & 0x0f0f0f0fu;
        if (F == T_Q5_K) {
            u32 fifth = more[i] >> 2 * j;
            a[0][i] |= (fifth & 0x01010101u) << 4, a[1][i] |= (fifth >> 1 & 0x01010101u) << 4;
        } else {
            u32 upper = more[i] >> 2 * (j & 1);
            a[0][i] |= (upper & 0x03030303u) << 4, a[1][i] |= upper & 0x30303030u;
        }
    }
}

// Scales of the units of a stretch, made for the other lanes.
template <int F> static __device__ __forceinline__ void put_scales(const Lane &l, u32 place, u32 j, u32 to) {
    if (F == T_Q6_K) {
        u32 at = place + l.head + 192 + 8 * (j / 2) + 2 * (j & 1), low = short_in_shared(at), high = short_in_shared(at + 4);
        put_floats(l.mine + to, make_float4((float)(i8)low, (float)(i8)high, (float)(i8)(low >> 8), (float)(i8)(high >> 8)));
    } else {
        put_floats(l.mine + to, run_scales<F>(place + l.head, j));
    }
}

// What two units of a stretch add to the sums of a lane: two outputs by two rows.
template <int F> static __device__ __forceinline__ void add_units(const Lane &l, u32 place, u32 j, u32 to, const RowPart &p, float (&acc)[4]) {
    float block[2] = {0.0f, 0.0f};
    u32 first[2][4], second[2][4];
    if (F == T_Q6_K)
        for (u32 i = 0; i < 2; i++) block[i] = half_to_float((u16)short_in_shared(place + l.all + i * 8 * 16));
    unpack<F>(place + l.w, j, first);
    unpack<F>(place + l.w + 2 * Stretch<F>::block, j, second);
    float4 scale[2] = {floats_in_shared(l.of_rows + to), floats_in_shared(l.of_rows + to + 8 * 16)};
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        const u32 *b = p.first + 2 * run, *b2 = p.second + 2 * run;
        float d[2] = {p.x[run].x, p.x[run].z}, sum[2] = {p.x[run].y, p.x[run].w};
        float by[2] = {run ? scale[0].y : scale[0].x, run ? scale[1].y : scale[1].x};
        float more[2] = {run ? scale[0].w : scale[0].z, run ? scale[1].w : scale[1].z};
        i32 c[4];
        if (F == T_Q6_K) {
            // Codes are 32 more than what they say.
            const u32 LESS = 0xe0e0e0e0u;
            i32 c1[4];
            mma16(c, LESS, LESS, b[0] | b2[0], EXACT);
            mma16(c1, LESS, LESS, b[1] | b2[1], EXACT);
            mma16_more(c, first[run], b[0]), mma16_more(c1, first[run] + 2, b[1]);
            mma16_more(c, second[run], b2[0]), mma16_more(c1, second[run] + 2, b2[1]);
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                // Below 2^24, so exact.
                float v = __fmul_rn(exact(c[i]), by[i / 2]);
                v = __fmaf_rn(exact(c1[i]), more[i / 2], v);
                acc[i] = __fmaf_rn(__fmul_rn(block[i / 2], d[i & 1]), v, acc[i]);
            }
        } else {
            mma_codes(c, first[run], b);
            more_codes(c, second[run], b2);
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
template <int F> struct Sum {
    const Ring &ring;
    const Warp &own;
    const Lane &l;
    u32 full, empty, j;
    float even[4], odd[4];

    __device__ __forceinline__ void two(Turn &turn, const RowPart &p, const RowPart &q) {
        u32 lane = threadIdx.x & 31;
        Turn second = turn.after(ring);
        u32 at = own.places + turn.at * ring.bytes, at2 = own.places + second.at * ring.bytes;
        bar_wait(full + turn.at * 8, turn.odd);
        bar_wait(full + second.at * 8, second.odd);
        put_scales<F>(l, at, j, 0), put_scales<F>(l, at2, j, UNIT_BYTES);
        __syncwarp();
        add_units<F>(l, at, j, 0, p, even), add_units<F>(l, at2, j, UNIT_BYTES, q, odd);
        __syncwarp();
        if (lane == 0) bar_arrive(empty + turn.at * 8), bar_arrive(empty + second.at * 8);
        turn = second.after(ring);
    }
    __device__ __forceinline__ void one(Turn &turn, const RowPart &p) {
        u32 at = own.places + turn.at * ring.bytes;
        bar_wait(full + turn.at * 8, turn.odd);
        put_scales<F>(l, at, j, 0);
        __syncwarp();
        add_units<F>(l, at, j, 0, p, even);
        __syncwarp();
        if ((threadIdx.x & 31) == 0) bar_arrive(empty + turn.at * 8);
        turn = turn.after(ring);
    }
};

// Tiles of one format, up to one of another.
template <int F, bool KEPT> static __device__ __forceinline__ void sum_tiles(const MatVec &op, const Ring &ring, const Bars &bars, const Warp &own, Walk &walk) {
    u32 lane = threadIdx.x & 31, count = op.k / STRETCH;
    Lane l = lane_of<F>(own.number, lane, own.units);
    RowsAt from = rows_in_shared<F>(op, own.turned, own.nothing, own.number, lane);
    RowPart held[HELD];
    if (KEPT) {
        bar_wait(shared_address(bars.rows), 0);
        #pragma unroll
        for (u32 i = 0; i < HELD; i++) load_part<F>(from, held[i]);
    }
    u32 to = own.joint + ((own.number * FEW + (lane & 1) * 2) * TILE + lane / 4 + (lane & 2) * 4) * 4;
    u32 made = shared_address(bars.made), taken = shared_address(bars.taken);
    Sum<F> sum = {ring, own, l, shared_address(bars.full), shared_address(bars.empty), own.number % 4};
    keep(to), keep(sum.full), keep(sum.empty);
    #pragma unroll 1
    do {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) sum.even[i] = sum.odd[i] = 0.0f;
        if (KEPT) {
            sum.two(walk.turn, held[0], held[1]), sum.two(walk.turn, held[2], held[3]);
        } else {
            RowsAt at = from;
            #pragma unroll 1
            for (u32 i = 0; i + 1 < count; i += 2) {
                RowPart p, q;
                bar_wait(shared_address(bars.rows + i * STRETCH / CHUNK), 0);
                load_part<F>(at, p), load_part<F>(at, q);
                sum.two(walk.turn, p, q);
            }
            if (count % 2) {
                RowPart p;
                bar_wait(shared_address(bars.rows + (count - 1) * STRETCH / CHUNK), 0);
                load_part<F>(at, p);
                sum.one(walk.turn, p);
            }
        }
        // Lanes 16 apart, then those eight apart: a thread ends with one output of two rows.
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            sum.even[i] = __fadd_rn(sum.even[i], sum.odd[i]);
            sum.even[i] = __fadd_rn(sum.even[i], __shfl_xor_sync(ALL_LANES, sum.even[i], 2));
        }
        u32 place = walk.n % JOINTS, joint = to + place * JOINT * 4;
        if (walk.n >= JOINTS) bar_wait(taken + place * 8, (walk.n / JOINTS - 1) & 1);
        put_float(joint, lane & 2 ? sum.even[2] : sum.even[0]);
        put_float(joint + TILE * 4, lane & 2 ? sum.even[3] : sum.even[1]);
        __syncwarp();
        if (lane == 0) bar_arrive(made + place * 8);
        walk.tile += gridDim.x, walk.n++;
    } while (walk.find(op) && op.parts[walk.part].dtype == F);
}

template <int F>
static __device__ __forceinline__ void tiles_of(bool kept, const MatVec &op, const Ring &ring, const Bars &bars, const Warp &own, Walk &walk) {
    if (kept) sum_tiles<F, true>(op, ring, bars, own, walk);
    else sum_tiles<F, false>(op, ring, bars, own, walk);
}

// The sum of an output of a row: what eight warps have of it, in pairs.
static __device__ __forceinline__ float total(const float *joint, u32 at) {
    float x[WARPS];
    #pragma unroll
    for (u32 w = 0; w < WARPS; w++) x[w] = joint[w * FEW * TILE + at];
    #pragma unroll
    for (u32 d = WARPS / 2; d > 0; d /= 2)
        #pragma unroll
        for (u32 w = 0; w < d; w++) x[w] = __fadd_rn(x[w], x[w + d]);
    return x[0];
}

// Rows in bytes, a unit of the second half of a kilobyte in the place of its neighbour: eight rows of tensor cores lie in
// banks of their own. In the place of rows that are not there stands what lies behind them, whose sums nobody reads. Each
// chunk of columns has a barrier.
static __device__ __forceinline__ void bring_rows(const MatVec &op, u32 turned, const Bars &bars) {
    u32 to = shared_address(whole), c = threadIdx.x * 16;
    #pragma unroll 1
    for (u32 chunk = 0; chunk * CHUNK < op.k; chunk++, c += CHUNK) {
        if (c < op.k) {
            u32 at = to + (c ^ (c >> 9 & 1) * 64);
            #pragma unroll
            for (u32 r = 0; r < FEW; r++) copy16(at + r * row_pitch(op.k), op.acts.q + (u64)r * op.k + c);
            copy16(to + turned + c, op.turned + (u64)(c / 32) * op.pitch + c / 16 % 2 * 2);
        }
        copies_arrive(shared_address(bars.rows + chunk));
    }
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
        const float *joint = joints + n % JOINTS * JOINT;
        float add[2] = {0.0f, 0.0f};
        u64 to[2];
        bool writes[2];
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 e = lane + i * 32, o = outs.first + (e & (wide - 1));
            writes[i] = mine[i] && o < outs.count, to[i] = (u64)(e >> bits) * p.y_stride + p.y_first + o;
            if (writes[i] && p.add) add[i] = p.add[to[i]];
        }
        bar_wait(shared_address(bars.made + n % JOINTS), n / JOINTS & 1);
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
        if (lane == 0) bar_arrive(shared_address(bars.taken + n % JOINTS));
    }
}

extern "C" __global__ void __launch_bounds__((WARPS + FETCHING + 1) * 32, 1) few(Step s, MatVec op, Ring ring) {
    __shared__ __align__(8) Bars bars;
    u32 turned = FEW * row_pitch(op.k), units_at = turned + op.k, joint_at = units_at + WARPS * 2 * UNIT_BYTES;
    u32 nothing = joint_at + JOINTS * JOINT * 4, places = nothing + 16;
    u32 warp = threadIdx.x >> 5;
    if (threadIdx.x < MOST_PLACES) bar_init(shared_address(bars.full + threadIdx.x), FETCHING * 32), bar_init(shared_address(bars.empty + threadIdx.x), WARPS);
    if (threadIdx.x < MOST_CHUNKS) bar_init(shared_address(bars.rows + threadIdx.x), WARPS * 32);
    if (threadIdx.x < 4) ((u32 *)(whole + nothing))[threadIdx.x] = 0;
    if (threadIdx.x < JOINTS) bar_init(shared_address(bars.made + threadIdx.x), WARPS), bar_init(shared_address(bars.taken + threadIdx.x), 1);
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
    bring_rows(op, turned, bars);
    u32 base = shared_address(whole);
    Warp own = {warp, turned, nothing, base + units_at + warp * 2 * UNIT_BYTES, base + places, base + joint_at};
    Walk walk = {blockIdx.x, 0, 0, 0, {0, 0}};
    walk.end = (op.parts[0].end + (1 << wide_bits(op)) - 1) >> wide_bits(op);
    bool found = walk.find(op), kept = op.k == HELD * STRETCH;
    #pragma unroll 1
    while (found) {
        switch (op.parts[walk.part].dtype) {
        case T_Q4_K: tiles_of<T_Q4_K>(kept, op, ring, bars, own, walk); break;
        case T_Q5_K: tiles_of<T_Q5_K>(kept, op, ring, bars, own, walk); break;
        default: tiles_of<T_Q6_K>(kept, op, ring, bars, own, walk);
        }
        found = walk.find(op);
    }
}
#endif
