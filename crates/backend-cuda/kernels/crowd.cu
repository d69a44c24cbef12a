// Products of many replies' rows on 9.0, with weights of the formats whose units are 64 columns: blocks that stay go through tiles of
// outputs by rows, and warps of their own copy weights and rows, a group of 256 columns at a time.
//
// The order of sums is that of replies.cuh: of a group's four units each is two warps', who take the lanes of their unit one after the
// other in such an order that pairs are complete when they are summed. Four warps' sums are added in the end.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "few.cuh"

#define MOST_PLACES 8u
#define COPYING 4u  // warps: two weights, two rows
#define BLOCK 256u  // columns of a group
#define MOST_ASKED 4096u // bytes of an output's weights

// Places of groups in shared memory, and bytes of each.
struct Ring {
    u32 places, bytes;
};

struct Bars {
    u64 full[MOST_PLACES], empty[MOST_PLACES];
};

// Tiles of OG times MT times 16 outputs by RG times NT times eight rows, of which a warp has MT times 16 and NT times eight. A place has
// rows, their scales and sums by run, weights, and of Q6_K the words that hold blocks' scales.
template <u32 MT_, u32 NT_, u32 OG_, u32 RG_> struct Tile {
    static const u32 MT = MT_, NT = NT_, OG = OG_, RG = RG_, warps = 4 * OG * RG, threads = warps * 32;
    static const u32 outs = 16 * MT * OG, rows = 8 * NT * RG, pitch = BLOCK + 16, scales = rows * pitch, weights = scales + rows * 64;
    static const u32 apart = threads * 16, level = MT * NT * apart, made = 2 * level, places = made + warps * MT * 16 * 16;
};

// Where a block is in its ring.
struct Turn {
    u32 at, odd;
    __device__ __forceinline__ void next(const Ring &ring) {
        if (++at == ring.places) at = 0, odd ^= 1;
    }
};

// Tiles beside each other, and the outputs of one, whatever their format; a gated pair shares them.
template <u32 ACROSS> static __device__ __forceinline__ u32 tiles_across(const MatVec &op) {
    u32 wide = op.gated ? ACROSS / 2 : ACROSS, before = 0, all = 0;
    for (u32 i = 0; i < (op.gated ? 1 : PARTS); i++) {
        all += (op.parts[i].end - before + wide - 1) / wide;
        before = op.parts[i].end;
    }
    return all;
}
template <u32 ACROSS> static __device__ __forceinline__ bool tile_across(const MatVec &op, u32 tile, Outputs *outs) {
    u32 wide = op.gated ? ACROSS / 2 : ACROSS, before = 0;
    for (u32 i = 0; i < (op.gated ? 1 : PARTS); i++) {
        u32 n = op.parts[i].end - before, tiles = (n + wide - 1) / wide;
        before = op.parts[i].end;
        if (tile < tiles) {
            outs->part = i, outs->first = tile * wide, outs->count = n;
            return true;
        }
        tile -= tiles;
    }
    return false;
}

// Tiles of a block: the outputs of each, whatever their format, and its first row. Those of the same outputs follow each other. Where
// the last round would leave half of the blocks idle, its tiles are cut into halves of their outputs; so are all where there are few.
template <class Tile> struct Walk {
    static const u32 ACROSS = Tile::outs, ROWS = Tile::rows;
    static const bool HALVES = Tile::MT == 2;
    u32 tile, count, down, whole; // `whole` tiles before those in halves
    u32 first, end, known;        // rows, and the first one of those that replies are known to be among
    bool half;
    Outputs outs;

    __device__ __forceinline__ Walk(const Step &s, const MatVec &op) {
        count = rows_of(s, op.lead), down = (count + ROWS - 1) / ROWS, tile = blockIdx.x, known = ~0u;
        u32 all = tiles_across<ACROSS>(op) * down, rest = all % gridDim.x;
        whole = HALVES && (2 * rest <= gridDim.x || all < gridDim.x) ? all - rest : all;
    }
    __device__ __forceinline__ bool find(const Step &s, const MatVec &op) {
        for (;; tile += gridDim.x) {
            half = HALVES && tile >= whole;
            u32 own = half ? whole + (tile - whole) / 2 : tile;
            if (!tile_across<ACROSS>(op, own / down, &outs)) return false;
            if (half && (tile - whole) % 2) outs.first += op.gated ? ACROSS / 4 : ACROSS / 2;
            if (outs.first >= outs.count) continue;
            first = own % down * ROWS, end = min(count, first + ROWS);
            if (!op.kinds || first == known) return true;
            bool any = false;
            for (u32 r = first + (threadIdx.x & 31); r < end; r += 32) any |= !of_prompt(s, op, r);
            if (__any_sync(ALL_LANES, any)) {
                known = first;
                return true;
            }
        }
    }
};

// The weight's row behind row `r` of eight of a tile, and `8 i` further: of a gated pair every 16 rows are eight outputs of each.
static __device__ __forceinline__ Rows tile_row(const MatVec &op, const Outputs &outs, u32 r, u32 i) {
    u32 part = op.gated ? i % 2 : outs.part, o = outs.first + r + 8 * (op.gated ? i / 2 : i);
    return rows_at(op, {part, min(o, outs.count - 1)});
}

// Weights lie in a place by halves, of which the first has the rows of the first eight of every sixteen: of a gated pair they are one part's.
static __device__ __forceinline__ Rows half_row(const MatVec &op, const Outputs &outs, u32 h, u32 r) { return tile_row(op, outs, r % 8, r / 8 * 2 + h); }
template <class Tile> static __device__ __forceinline__ u32 spot_of(u32 r) { return r / 8 % 2 * (Tile::outs / 2) + r / 16 * 8 + r % 8; }

// Asks for weights of what is likely to be a block's first tile, before it is known how many rows there are.
template <class Tile> static __device__ __forceinline__ void ask_first(const MatVec &op) {
    const u32 ACROSS = Tile::outs;
    Outputs outs;
    bool halves = Walk<Tile>::HALVES && tiles_across<ACROSS>(op) < gridDim.x;
    if (!tile_across<ACROSS>(op, halves ? blockIdx.x / 2 : blockIdx.x, &outs)) return;
    u32 bytes = min((u32)op.parts[outs.part].row_bytes, MOST_ASKED);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(tile_row(op, outs, threadIdx.x % 8, threadIdx.x / 8).w), "r"(bytes) : "memory");
}

// Walks through places of the ring, of which those who copy wait until they are free.
struct Free {
    u32 at, round;
    __device__ __forceinline__ void wait(const Bars &bars) const {
        if (round > 0) bar_wait(shared_address(bars.empty + at), (round - 1) & 1);
    }
    __device__ __forceinline__ void next(const Ring &ring, const Bars &bars) {
        copies_arrive(shared_address(bars.full + at));
        if (++at == ring.places) at = 0, round++;
    }
};

// Copies the weights of a tile, of each half of its rows a warp: its lanes take turns at 16 bytes.
template <int F, class Tile> static __device__ __forceinline__ void copy_tile(const MatVec &op, const Ring &ring, u32 to, const Bars &bars, const Walk<Tile> &walk, Free &free) {
    const u32 BYTES = Group<F>::bytes, PIECES = BYTES / 16, HALF = Tile::outs / 2, OWN = (HALF * PIECES + 31) / 32;
    u32 lane = threadIdx.x % 32, h = threadIdx.x / 32 % 2, groups = op.k / BLOCK, pieces = (walk.half ? HALF / 2 : HALF) * PIECES;
    const u8 *w = half_row(op, walk.outs, h, 0).w, *scales = half_row(op, walk.outs, h, lane % HALF).scales;
    u32 own[OWN];
    #pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        u32 at = min(lane + 32 * i, pieces - 1), r = at / PIECES;
        own[i] = (u32)(half_row(op, walk.outs, h, r).w - w) + (at - r * PIECES) * 16;
    }
    to += Tile::weights + h * HALF * BYTES + lane * 16;
    u32 scales_to = Tile::outs * BYTES - h * HALF * (BYTES - 4) - lane * 12;
    #pragma unroll 1
    for (Place place = {0, 0}; place.q < TURNS; place.next(groups)) {
        free.wait(bars);
        u32 at = to + free.at * ring.bytes;
        const u8 *from = w + place.b * BYTES;
        #pragma unroll
        for (u32 i = 0; i < OWN; i++)
            if ((i + 1) * 32 <= HALF / 2 * PIECES || lane + i * 32 < pieces) copy16(at + i * 512, from + own[i]);
        if (F == T_Q6_K && lane < HALF) copy4(at + scales_to, scales + (place.b & ~1u) * 2);
        free.next(ring, bars);
    }
}

template <class Tile> static __device__ __forceinline__ void copy_weights(const Step &s, const MatVec &op, const Ring &ring, u32 places, const Bars &bars, Walk<Tile> walk) {
    Free free = {0, 0};
    for (; walk.find(s, op); walk.tile += gridDim.x) {
        switch (op.parts[walk.outs.part].dtype) {
        case T_Q4_K: copy_tile<T_Q4_K>(op, ring, places, bars, walk, free); break;
        case T_Q5_K: copy_tile<T_Q5_K>(op, ring, places, bars, walk, free); break;
        default: copy_tile<T_Q6_K>(op, ring, places, bars, walk, free);
        }
    }
    copies_wait<0>();
}

template <class Tile> static __device__ __forceinline__ void copy_rows(const Step &s, const MatVec &op, const Ring &ring, u32 places, const Bars &bars, Walk<Tile> walk) {
    const u32 TWOS = Tile::rows / 2, TIMES = TWOS / 8, OWN = Tile::rows / 8;
    u32 own = threadIdx.x % 64, r = own / 8, piece = own % 8 * 16, groups = op.k / BLOCK;
    Free free = {0, 0};
    const u8 *x[OWN];
    for (; walk.find(s, op); walk.tile += gridDim.x) {
        // In the place of rows that are not there stands another, whose sums nobody reads.
        #pragma unroll
        for (u32 i = 0; i < OWN; i++) x[i] = op.acts.q + (u64)min(walk.first + r + 8 * i, walk.end - 1) * op.k + piece;
        const uint2 *turned = op.turned + walk.first + own % TWOS * 2 + (u64)(own / TWOS) * op.pitch;
        u64 beside = (u64)op.pitch * (64 / TWOS);
        #pragma unroll 1
        for (Place place = {0, 0}; place.q < TURNS; place.next(groups)) {
            free.wait(bars);
            u32 to = places + free.at * ring.bytes;
            #pragma unroll
            for (u32 i = 0; i < OWN; i++) {
                copy16(to + (r + 8 * i) * Tile::pitch + piece, x[i] + place.b * BLOCK);
                copy16(to + (r + 8 * i) * Tile::pitch + piece + 128, x[i] + place.b * BLOCK + 128);
            }
            const uint2 *from = turned + (u64)(place.b * 8) * op.pitch;
            #pragma unroll
            for (u32 i = 0; i < TIMES; i++, from += beside) copy16(to + Tile::scales + (own + 64 * i) * 16, from);
            free.next(ring, bars);
        }
    }
    copies_wait<0>();
}

// Puts the sums of a thread into shared memory, or adds to them what is there.
template <u32 APART, u32 MT, u32 NT> static __device__ __forceinline__ void put_sums(u32 at, const float (&x)[MT][NT][4]) {
    #pragma unroll
    for (u32 i = 0; i < MT * NT; i++, at += APART) {
        const float(&y)[4] = x[i / NT][i % NT];
        put_floats(at, make_float4(y[0], y[1], y[2], y[3]));
    }
}
template <u32 APART, u32 MT, u32 NT> static __device__ __forceinline__ void plus_sums(u32 at, float (&x)[MT][NT][4]) {
    #pragma unroll
    for (u32 i = 0; i < MT * NT; i++, at += APART) {
        float(&y)[4] = x[i / NT][i % NT];
        float4 z = floats_in_shared(at);
        y[0] = __fadd_rn(z.x, y[0]), y[1] = __fadd_rn(z.y, y[1]), y[2] = __fadd_rn(z.z, y[2]), y[3] = __fadd_rn(z.w, y[3]);
    }
}

// The lane of turn `q` is complete: it is summed with what it makes a pair with, as far as that is there; the last one sums all.
// What the first four are lies in local memory, which is read once.
template <class Tile, u32 MT, u32 NT> static __device__ __forceinline__ void complete(u32 q, float (&acc)[MT][NT][4], float4 *half, u32 kept) {
    const u32 LEVEL = Tile::level, APART = Tile::apart;
    if (q % 2 == 0) {
        put_sums<APART>(kept, acc);
        return;
    }
    plus_sums<APART>(kept, acc);
    if (q % 4 == 1) {
        put_sums<APART>(kept + LEVEL, acc);
        return;
    }
    plus_sums<APART>(kept + LEVEL, acc);
    #pragma unroll
    for (u32 i = 0; i < MT * NT; i++) {
        float(&x)[4] = acc[i / NT][i % NT];
        if (q == 3) {
            half[i] = make_float4(x[0], x[1], x[2], x[3]);
        } else {
            float4 y = half[i];
            x[0] = __fadd_rn(y.x, x[0]), x[1] = __fadd_rn(y.y, x[1]), x[2] = __fadd_rn(y.z, x[2]), x[3] = __fadd_rn(y.w, x[3]);
        }
    }
}

// Where a lane reads in a place.
struct From {
    u32 w, head, all, rows, scales, mine, made;
};

template <int F, class Tile, u32 MT, u32 NT> static __device__ __forceinline__ From from_of(u32 warp, u32 lane, u32 base) {
    const u32 BYTES = Group<F>::bytes;
    u32 j = warp % 4, first = warp / 4 % Tile::OG * 16 * MT, beside = warp / 4 / Tile::OG * NT, nibbles = F == T_Q4_K ? 16 + 32 * j : F == T_Q5_K ? 48 + 32 * j : 64 * (j / 2) + 32 * (j & 1);
    From f;
    f.w = Tile::weights + spot_of<Tile>(first + lane % 16) * BYTES + lane / 16 * 16 + nibbles;
    f.head = Tile::weights + spot_of<Tile>(first + lane % (16 * MT)) * BYTES;
    f.all = Tile::weights + Tile::outs * BYTES + spot_of<Tile>(first + lane / 4) * 4;
    f.rows = lane_rows<F, NT>(lane, j) + beside * 8 * Tile::pitch;
    f.scales = Tile::scales + first_run<F>(j) * Tile::rows * 8 + beside * 64 + lane % 4 * 16;
    f.made = base + Tile::made + warp * MT * 16 * 16 + lane / 4 * 16, f.mine = base + Tile::made + warp * MT * 16 * 16 + lane % (16 * MT) * 16;
    keep(f.w), keep(f.head), keep(f.rows), keep(f.scales), keep(f.made), keep(f.mine);
    return f;
}

// Dots of halves of a run of Q6_K on top of SMALL are integers from 0 on, which as floats are so many times the smallest of all.
// What is made of them is exact up to the product by a block's scale, so it has the bits that other kernels give it, as long as that
// scale times a row's is no smaller than ordinary floats are.
#define SMALL 65536
#define UP 0x1p118f
#define DOWN 0x1p31f
static __device__ __forceinline__ void add_small(const i32 (&c)[2][4], const OfRun &w, const float4 &x, float (&acc)[4]) {
    float d[2] = {x.x, x.z};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        float less = __fmul_rn(__fadd_rn(w.by[i / 2], w.more[i / 2]), -0x1p-133f);
        float v = __fmaf_rn(__int_as_float(c[1][i]), w.more[i / 2], __fmaf_rn(__int_as_float(c[0][i]), w.by[i / 2], less));
        acc[i] = __fmaf_rn(__fmul_rn(w.block[i / 2], d[i & 1]), v, acc[i]);
    }
}

// Adds a unit of a group.
template <int F, class Tile, u32 MT, u32 NT> static __device__ __forceinline__ void add_group(const From &f, u32 place, u32 j, u32 b, float (&acc)[MT][NT][4]) {
    if (F == T_Q6_K) {
        u32 at = place + f.head + 192 + 8 * (j / 2) + 2 * (j & 1), low = short_in_shared(at), high = short_in_shared(at + 4);
        put_floats(f.mine, make_float4((float)(i8)low * UP, (float)(i8)high * UP, (float)(i8)(low >> 8) * UP, (float)(i8)(high >> 8) * UP));
    } else {
        put_floats(f.mine, run_scales<F>(place + f.head, j));
    }
    __syncwarp();
    u32 a[MT][2][4];
    float4 scale[MT][2];
    float all[MT][2] = {};
    #pragma unroll
    for (u32 m = 0; m < MT; m++) {
        unpack<F>(place + f.w + m * 8 * Group<F>::bytes, j, a[m]);
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            scale[m][h] = floats_in_shared(f.made + (m * 16 + h * 8) * 16);
            if (F == T_Q6_K) all[m][h] = half_to_float((u16)short_in_shared(place + f.all + (m * 8 + h * (Tile::outs / 2)) * 4 + b % 2 * 2)) * DOWN;
        }
        if (F == T_Q6_K)
            #pragma unroll
            for (u32 i = 0; i < 8; i++) a[m][i / 4][i % 4] = less32(a[m][i / 4][i % 4]);
    }
    #pragma unroll
    for (u32 n = 0; n < NT; n++) {
        u32 x[4];
        load_matrices(x, place + f.rows + n * 8 * Tile::pitch);
        #pragma unroll
        for (u32 run = 0; run < 2; run++) {
            float4 of = floats_in_shared(place + f.scales + n * 64 + run * (F == T_Q6_K ? 2 : 1) * Tile::rows * 8);
            #pragma unroll
            for (u32 m = 0; m < MT; m++) {
                float4 p = scale[m][0], q = scale[m][1];
                OfRun w = {{run ? p.y : p.x, run ? q.y : q.x}, {run ? p.w : p.z, run ? q.w : q.z}, {all[m][0], all[m][1]}};
                i32 c[2][4];
                const u32 *own = a[m][run];
                if (F == T_Q6_K) {
                    mma16(c[0], own[0], own[1], x[2 * run], SMALL), mma16(c[1], own[2], own[3], x[2 * run + 1], SMALL);
                    add_small(c, w, of, acc[m][n]);
                } else {
                    mma_codes(c[0], own, x + 2 * run, EXACT);
                    add_dots<F>(c, w, of, acc[m][n]);
                }
            }
        }
    }
}

// Adds what the four units' warps put there of a tile, and writes it: each has every fourth of what is eight rows
// by 16 outputs. There is little code, since it is not in the caches when a tile ends.
template <class Tile> static __device__ __forceinline__ void end_tile(const Step &s, const MatVec &op, const Walk<Tile> &walk) {
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, unit = warp % 4, joint = shared_address(whole) + (threadIdx.x - unit * 32) * 16;
    const u32 NT = Tile::NT;
    u32 mt = walk.half ? 1 : Tile::MT;
    const Part &p = op.parts[walk.outs.part], &q = op.gated ? op.parts[1] : p;
    meet_threads(1, Tile::threads);
    #pragma unroll 1
    for (u32 e = unit; e < mt * NT; e += 4) {
        u32 m = e / NT, n = e % NT, at = joint + e * Tile::apart;
        float4 a = floats_in_shared(at), b = floats_in_shared(at + 512), c = floats_in_shared(at + 1024), d = floats_in_shared(at + 1536);
        float low[2] = {__fadd_rn(__fadd_rn(a.x, c.x), __fadd_rn(b.x, d.x)), __fadd_rn(__fadd_rn(a.y, c.y), __fadd_rn(b.y, d.y))};
        float high[2] = {__fadd_rn(__fadd_rn(a.z, c.z), __fadd_rn(b.z, d.z)), __fadd_rn(__fadd_rn(a.w, c.w), __fadd_rn(b.w, d.w))};
        u32 o = walk.outs.first + (warp / 4 % Tile::OG * mt + m) * (op.gated ? 8 : 16) + lane / 4, over = op.gated ? o : o + 8;
        u32 row = walk.first + 8 * (warp / 4 / Tile::OG * NT + n) + lane % 4 * 2;
        #pragma unroll 1
        for (u32 i = 0; i < 2; i++, row++, low[0] = low[1], high[0] = high[1]) {
            if (row >= walk.end || o >= walk.outs.count || of_prompt(s, op, row)) continue;
            bool both = !op.gated && over < walk.outs.count;
            float *y = p.y + (u64)row * p.y_stride + p.y_first + o;
            const float *add = p.add + (y - p.y);
            float more = p.add ? *add : 0.0f, above = p.add && both ? add[8] : 0.0f;
            float v = finished(p, low[0], o, 0, false), w = finished(q, high[0], min(over, walk.outs.count - 1), 0, false);
            if (op.gated) v = gated(op.act, v, w);
            *y = p.add ? __fadd_rn(v, more) : v;
            if (both) y[8] = p.add ? __fadd_rn(w, above) : w;
        }
    }
    meet_threads(1, Tile::threads);
}

// Sums of a tile of NT times eight rows, or fewer than the place has.
template <int F, class Tile, u32 MT, u32 NT>
static __device__ __forceinline__ void sum_tile(const MatVec &op, const Ring &ring, const Bars &bars, Turn &turn) {
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, base = shared_address(whole), groups = op.k / BLOCK;
    u32 kept = base + threadIdx.x * 16, full = shared_address(bars.full), empty = shared_address(bars.empty);
    From from = from_of<F, Tile, MT, NT>(warp, lane, base);
    float4 apart[MT * NT], *half = apart;
    keep(half), keep(kept), keep(full), keep(empty);
    float acc[MT][NT][4];
    #pragma unroll 1
    for (u32 q = 0; q < TURNS; q++) {
        #pragma unroll
        for (u32 i = 0; i < MT * NT * 4; i++) acc[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
        #pragma unroll 1
        for (u32 b = ::turn(q); b < groups; b += TURNS) {
            bar_wait(full + turn.at * 8, turn.odd);
            add_group<F, Tile, MT, NT>(from, base + Tile::places + turn.at * ring.bytes, warp % 4, b, acc);
            __syncwarp();
            if (lane == 0) bar_arrive(empty + turn.at * 8);
            turn.next(ring);
        }
        complete<Tile>(q, acc, half, kept);
    }
    put_sums<Tile::apart>(kept, acc);
}

template <int F, class Tile>
static __device__ __forceinline__ void sum_tile(const MatVec &op, const Ring &ring, const Bars &bars, Turn &turn, bool half) {
    if (Walk<Tile>::HALVES && half) sum_tile<F, Tile, 1, Tile::NT>(op, ring, bars, turn);
    else sum_tile<F, Tile, Tile::MT, Tile::NT>(op, ring, bars, turn);
}

static __device__ __forceinline__ u32 shared_bytes() {
    u32 n;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(n));
    return n;
}

template <class Tile> static __device__ __forceinline__ void crowd(const Step &s, const MatVec &op, Bars &bars) {
    u32 warp = threadIdx.x >> 5, places = shared_address(whole) + Tile::places;
    if (threadIdx.x < MOST_PLACES) bar_init(shared_address(bars.full + threadIdx.x), COPYING * 32), bar_init(shared_address(bars.empty + threadIdx.x), Tile::warps);
    __syncthreads();
    begin_next();
    if (threadIdx.x < Tile::outs) ask_first<Tile>(op);
    wait_before();
    if (rows_of(s, op.lead) == 0) return;
    Walk<Tile> walk(s, op);
    Ring ring = {0, 0};
    for (u32 i = 0; i < (op.gated ? 1 : PARTS); i++) {
        u32 d = op.parts[i].dtype, bytes = d == T_Q6_K ? Group<T_Q6_K>::bytes + 4 : d == T_Q5_K ? (u32)Group<T_Q5_K>::bytes : (u32)Group<T_Q4_K>::bytes;
        ring.bytes = max(ring.bytes, Tile::weights + bytes * Tile::outs);
    }
    ring.places = min(MOST_PLACES, (shared_bytes() - Tile::places) / ring.bytes);
    if (warp >= Tile::warps) {
        fewer_registers<64>();
        if (warp < Tile::warps + COPYING / 2) copy_weights<Tile>(s, op, ring, places, bars, walk);
        else copy_rows<Tile>(s, op, ring, places, bars, walk);
    } else {
        more_registers<(Tile::warps > 8 ? 104 : 216)>();
        Turn turn = {0, 0};
        #pragma unroll 1
        for (; walk.find(s, op); walk.tile += gridDim.x) {
            switch (op.parts[walk.outs.part].dtype) {
            case T_Q4_K: sum_tile<T_Q4_K, Tile>(op, ring, bars, turn, walk.half); break;
            case T_Q5_K: sum_tile<T_Q5_K, Tile>(op, ring, bars, turn, walk.half); break;
            default: sum_tile<T_Q6_K, Tile>(op, ring, bars, turn, walk.half);
            }
            end_tile<Tile>(s, op, walk);
        }
    }
}

#define CROWD(NAME, ...)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(Tile<__VA_ARGS__>::threads + COPYING * 32, 1) NAME(Step s, MatVec op) {         \
        __shared__ __align__(8) Bars bars;                                                                                       \
        crowd<Tile<__VA_ARGS__>>(s, op, bars);                                                                                   \
    }
CROWD(crowd_64_16, 2, 2, 2, 1) CROWD(crowd_64_32, 2, 4, 2, 1) CROWD(crowd_32_64, 1, 4, 2, 2) CROWD(crowd_64_64, 2, 4, 2, 2)
#endif
