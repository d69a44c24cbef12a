// Products on a tape by tiles of 16 rows of weights: eight warps share a tile, eight others have the tile beside it. Of the lanes
// of matvec.cu a warp has those whose columns are its own, so that a sum goes on in one lane from its first column to its last; what
// warps have of a tile another warp adds in pairs and writes, while they go on with the next.
//
// A place of shared memory holds some columns of a tile's rows, a little apart so that eight rows lie in banks of their own. Places
// follow each other in a ring of bytes, as many as there is room for, with columns of both tiles in turn.
#pragma once
#include "tape_fetch.cuh"
#include "tape_row.cuh"

#define TILE 16u            // rows of weights; of a gated pair eight rows of each
#define TILE_WARPS 8u
#define ENDERS 2u           // warps that end tiles, those of either half of the warps
#define JOINTS 2u           // tiles of a half that wait for their end

// Columns of a tile in a place.
template <int F> struct Chunk {
    static const bool sixteen = F == T_F16 || F == T_BF16, blocks = F == T_Q4_K || F == T_Q5_K || F == T_Q6_K;
    static const u32 block = F == T_Q4_K ? 144 : F == T_Q5_K ? 176 : 208; // bytes of 256 columns
    static const u32 columns = sixteen ? 1024 : F == T_Q4_K ? 4096 : 2048;
    static const u32 row = blocks ? columns / 256 * block : 2048, pitch = row + (sixteen ? 64 : 16), scales = TILE * pitch;
    static const u32 scale_row = 128, scale_pitch = scale_row + 16; // of Q8_0
};

struct Joints {
    u64 made[2][JOINTS], taken[2][JOINTS];
    u32 begins[MOST_SLOTS], ends[MOST_SLOTS];   // of places
    float of[2][JOINTS][TILE_WARPS * 64];
};
static_assert(sizeof(Joints) == 8384, "as the host has it");
// Behind the ring, which is one slot.
static __device__ __forceinline__ Joints &joints(const Tape &t) { return *(Joints *)(whole + slot_at(t, 1)); }

struct TileAt {
    u32 part, at, o, count; // the first of its units, of the instruction and of the part
};

static __device__ __forceinline__ bool next_tile(const Product &p, u32 &at, u32 end, TileAt &t) {
    if (at >= end) return false;
    u32 part = 0;
    while (at >= p.parts[part].end) part++;
    t.part = part, t.at = at, t.o = part ? at - p.parts[part - 1].end : at;
    t.count = min(min(p.parts[part].end, end) - at, p.gated ? TILE / 2 : TILE);
    at += t.count;
    return true;
}

static __device__ __forceinline__ u32 chunks_of(const Product &p, const TileAt &t) {
    u32 dtype = p.parts[t.part].dtype, columns = Chunk<T_Q8_0>::columns;
    if (dtype == T_F16 || dtype == T_BF16) columns = Chunk<T_F16>::columns;
    if (dtype == T_Q4_K) columns = Chunk<T_Q4_K>::columns;
    return (p.k + columns - 1) / columns;
}

// A block's tiles of a product, two by two where both have as many places.
struct Tiles {
    u32 at, end, chunks;
    TileAt of[2];
    bool both;
    __device__ __forceinline__ Tiles(const Product &p) : at(share(p, blockIdx.x)), end(share(p, blockIdx.x + 1)) {}
    __device__ __forceinline__ bool next(const Product &p) {
        if (!next_tile(p, at, end, of[0])) return false;
        u32 second = at;
        both = next_tile(p, at, end, of[1]), chunks = chunks_of(p, of[0]);
        if (both && chunks_of(p, of[1]) != chunks) both = false, at = second;
        return true;
    }
};

// Where scales of Q6_K begin inside of 16 bytes, and bytes of a tile's.
static __device__ __forceinline__ u32 scales_front(const Piece &p, u32 o) { return (u32)(u64)(p.scales + (u64)o * p.scale_bytes) & 15; }
static __device__ __forceinline__ u32 scales_bytes(const Piece &p, const TileAt &t) { return (scales_front(p, t.o) + t.count * p.scale_bytes + 15) & ~15u; }

// The ring of bytes as the warp that fetches sees it.
struct Ring {
    u32 place, oldest, at;  // places that were begun, the oldest that may be in use, where the next may begin
    __device__ __forceinline__ void retire(u32 empty) {
        bar_wait(empty + oldest % MOST_SLOTS * 8, oldest / MOST_SLOTS & 1);
        oldest++;
    }
    // Room for so many bytes.
    __device__ __forceinline__ u32 reserve(const Tape &t, u32 bytes) {
        Joints &j = joints(t);
        u32 empty = shared_address(front().empty), *begins = j.begins, *ends = j.ends;
        if (at + bytes > t.slot_bytes) {
            while (oldest != place && begins[oldest % MOST_SLOTS] >= at) retire(empty);
            at = 0;
        }
        while (oldest != place) {
            u32 i = oldest % MOST_SLOTS;
            if (place - oldest < MOST_SLOTS && (begins[i] >= at + bytes || ends[i] <= at)) break;
            retire(empty);
        }
        u32 own = at;
        __syncwarp();
        if ((threadIdx.x & 31) == 0) begins[place % MOST_SLOTS] = own, ends[place % MOST_SLOTS] = own + bytes;
        __syncwarp();
        at += bytes;
        return own;
    }
};

template <int F> static __device__ __forceinline__ void fetch_chunk(const Tape &t, const Product &p, const TileAt &tile, u32 chunk, Ring &ring) {
    Front &f = front();
    const Piece &piece = p.parts[tile.part], &gate = p.parts[1];
    u32 lane = threadIdx.x & 31, rows = p.gated ? 2 * tile.count : tile.count, bytes = min(Chunk<F>::row, piece.row_bytes - chunk * Chunk<F>::row);
    u32 scales = F == T_Q8_0 ? bytes / 16 * rows : F == T_Q6_K ? scales_bytes(piece, tile) : 0, gate_scales = F == T_Q6_K && p.gated ? scales_bytes(gate, tile) : 0;
    u32 room = Chunk<F>::scales + (F == T_Q8_0 ? TILE * Chunk<F>::scale_pitch : scales + gate_scales);
    u32 to = slot_at(t, 0) + ring.reserve(t, room), place = ring.place++ % MOST_SLOTS;
    u32 base = shared_address(whole), full = shared_address(f.full + place);
    if (lane == 0) f.headers[place].data = to, bar_expect(full, bytes * rows + scales + gate_scales);
    __syncwarp();
    // A lane has a row.
    bool second = p.gated && lane >= TILE / 2;
    u32 r = p.gated ? lane % (TILE / 2) : lane;
    const Piece &own = second ? gate : piece;
    if (lane < TILE && r < tile.count) {
        bulk_copy(base + to + lane * Chunk<F>::pitch, own.data + (u64)(tile.o + r) * own.row_bytes + chunk * Chunk<F>::row, bytes, full);
        if (F == T_Q8_0) bulk_copy(base + to + Chunk<F>::scales + lane * Chunk<F>::scale_pitch, own.scales + (u64)(tile.o + r) * own.scale_bytes + chunk * Chunk<F>::scale_row, bytes / 16, full);
    }
    if (F == T_Q6_K && lane == 0) {
        bulk_copy(base + to + Chunk<F>::scales, piece.scales + (u64)tile.o * piece.scale_bytes - scales_front(piece, tile.o), scales, full);
        if (p.gated) bulk_copy(base + to + Chunk<F>::scales + scales, gate.scales + (u64)tile.o * gate.scale_bytes - scales_front(gate, tile.o), gate_scales, full);
    }
    __syncwarp();
}

static __device__ __forceinline__ void fetch_product(const Tape &t, const Product &p, Ring &ring) {
    Tiles tiles(p);
    #pragma unroll 1
    while (tiles.next(p)) {
        #pragma unroll 1
        for (u32 i = 0; i < (tiles.both ? 2 : 1) * tiles.chunks; i++) {
            u32 odd = tiles.both ? i & 1 : 0, chunk = tiles.both ? i / 2 : i;
            TileAt tile = odd ? tiles.of[1] : tiles.of[0];
            switch (p.parts[tile.part].dtype) {
            case T_Q4_K: fetch_chunk<T_Q4_K>(t, p, tile, chunk, ring); break;
            case T_Q5_K: fetch_chunk<T_Q5_K>(t, p, tile, chunk, ring); break;
            case T_Q6_K: fetch_chunk<T_Q6_K>(t, p, tile, chunk, ring); break;
            case T_Q8_0: fetch_chunk<T_Q8_0>(t, p, tile, chunk, ring); break;
            default: fetch_chunk<T_F16>(t, p, tile, chunk, ring);
            }
        }
    }
}

static __device__ __forceinline__ void fetch_tiles(const Tape &t) {
    u32 asked = 0;
    Ring ring = {0, 0, 0};
    #pragma unroll 1
    for (u32 phase = 0; phase < t.count; phase++) {
        const Instr &in = bring_instr(t, phase, asked);
        clear_next(in);
        if (!(front().state.live >> in.lead & 1)) continue;
        if (in.kind == ATTEND) prefetch_cached(*(const Attention *)in.body);
        if (in.kind != PRODUCTS) continue;
        const Product &p = *(const Product *)in.body;
        prefetch_norm(p);
        fetch_product(t, p, ring);
    }
}

// Adds unit `i` of 64 columns of two rows, whose blocks begin at `b` and, Q6_K's scales, at `s`, as matvec.cu does.
template <int F> static __device__ __forceinline__ void plus_units(const u32 *b, const u32 *s, u32 i, const Acts1 &a, float *sum) {
    u32 j = i % 4;
    if (F == T_Q6_K) {
        u32 h = j / 2, p = j & 1, run = i / 4 * 8 + 4 * h + p, at = spread(run);
        uint4 x0 = a.low[at], x1 = a.high[at], y0 = a.low[at + 2], y1 = a.high[at + 2];
        float xd = a.d[run], yd = a.d[run + 2];
        const uint4 less = make_uint4(0xe0e0e0e0u, 0xe0e0e0e0u, 0xe0e0e0e0u, 0xe0e0e0e0u);
        i32 b0 = dot16(less, x0, 0), b1 = dot16(less, x1, 0), c0 = dot16(less, y0, 0), c1 = dot16(less, y1, 0);
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            uint4 l0 = four_in_shared(b[r] + 64 * h + 32 * p), l1 = four_in_shared(b[r] + 64 * h + 32 * p + 16);
            uint4 h0 = four_in_shared(b[r] + 128 + 32 * h), h1 = four_in_shared(b[r] + 144 + 32 * h);
            u32 s0 = short_in_shared(b[r] + 192 + 8 * h + 2 * p), s1 = short_in_shared(b[r] + 196 + 8 * h + 2 * p);
            float d = half_to_float((u16)short_in_shared(s[r]));
            i32 v0 = dot16(six_bits(l0, h0, 0, 4 - 2 * p, 0), x0, b0) * (i8)s0 + dot16(six_bits(l1, h1, 0, 4 - 2 * p, 0), x1, b1) * (i8)(s0 >> 8);
            i32 v1 = dot16(six_bits(l0, h0, 4, 0, 2 * p), y0, c0) * (i8)s1 + dot16(six_bits(l1, h1, 4, 0, 2 * p), y1, c1) * (i8)(s1 >> 8);
            sum[r] = __fmaf_rn(__fmul_rn(d, xd), (float)v0, sum[r]);
            sum[r] = __fmaf_rn(__fmul_rn(d, yd), (float)v1, sum[r]);
        }
        return;
    }
    u32 at = spread(2 * i);
    uint4 x0 = a.low[at], x1 = a.high[at], y0 = a.low[at + 1], y1 = a.high[at + 1];
    float2 xd = *(const float2 *)(a.d + 2 * i);
    int2 xs = *(const int2 *)(a.s + 2 * i);
    float less[2] = {exact(xs.x + EXACT), exact(xs.y + EXACT)};
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        u32 qs = b[r] + (F == T_Q4_K ? 16 : 48) + 32 * j;
        uint4 a0 = four_in_shared(qs), a1 = four_in_shared(qs + 16);
        float4 scale = run_scales<F>(b[r], j);
        uint4 low0 = masked(a0, 0, 0x0f0f0f0fu), low1 = masked(a1, 0, 0x0f0f0f0fu), high0, high1;
        if (F == T_Q4_K) {
            // Where they stand, with a sixteenth of the scale.
            high0 = masked(a0, 0, 0xf0f0f0f0u), high1 = masked(a1, 0, 0xf0f0f0f0u);
        } else {
            uint4 f0 = four_in_shared(b[r] + 16), f1 = four_in_shared(b[r] + 32);
            low0 = either(low0, raised(masked(f0, 2 * j, 0x01010101u), 4)), low1 = either(low1, raised(masked(f1, 2 * j, 0x01010101u), 4));
            high0 = either(masked(a0, 4, 0x0f0f0f0fu), raised(masked(f0, 2 * j + 1, 0x01010101u), 4));
            high1 = either(masked(a1, 4, 0x0f0f0f0fu), raised(masked(f1, 2 * j + 1, 0x01010101u), 4));
        }
        float v0 = exact(codes16(low1, x1, codes16(low0, x0, EXACT))), v1 = exact(codes16(high1, y1, codes16(high0, y0, EXACT)));
        sum[r] = __fmaf_rn(xd.x, __fmaf_rn(scale.x, v0, -__fmul_rn(scale.z, less[0])), sum[r]);
        sum[r] = __fmaf_rn(xd.y, __fmaf_rn(scale.y, v1, -__fmul_rn(scale.w, less[1])), sum[r]);
    }
}

// A warp's place: which it is, and which of eight warps the warp is.
struct Share {
    u32 at, chunk, own;
};

// K formats: a warp has every eighth block, a lane a unit of it, of rows g and g + 8.
template <int F> static __device__ __forceinline__ void sum_blocks(const Product &p, const TileAt &tile, const Share &share, const Acts1 &acts, float (&sum)[2]) {
    u32 lane = threadIdx.x & 31, g = lane / 4, base = shared_address(whole) + share.at;
    #pragma unroll
    for (u32 i = 0; i < Chunk<F>::columns / 256 / TILE_WARPS; i++) {
        u32 n = i * TILE_WARPS + share.own, block = share.chunk * (Chunk<F>::columns / 256) + n, b[2], s[2] = {0, 0};
        if (block >= p.k / 256) return;
        b[0] = base + g * Chunk<F>::pitch + n * Chunk<F>::block, b[1] = b[0] + 8 * Chunk<F>::pitch;
        if (F == T_Q6_K) {
            const Piece &piece = p.parts[tile.part], &gate = p.parts[1];
            u32 first = base + Chunk<F>::scales + block * 2;
            s[0] = first + scales_front(piece, tile.o) + g * piece.scale_bytes, s[1] = s[0] + 8 * piece.scale_bytes;
            if (p.gated) s[1] = first + scales_bytes(piece, tile) + scales_front(gate, tile.o) + g * gate.scale_bytes;
        }
        plus_units<F>(b, s, block * 4 + (lane & 3), acts, sum);
    }
}

// Q8_0: a warp has four runs of every 32, a lane one of them, of rows g and g + 8.
static __device__ __forceinline__ void sum_runs(const Product &p, const Share &share, const Acts1 &acts, float (&sum)[2]) {
    const int F = T_Q8_0;
    u32 lane = threadIdx.x & 31, g = lane / 4, column = share.own * 128 + (lane & 3) * 32, base = shared_address(whole) + share.at;
    u32 w = base + g * Chunk<F>::pitch + column, s = base + Chunk<F>::scales + g * Chunk<F>::scale_pitch + column / 16;
    u32 first = share.chunk * Chunk<F>::columns + column;
    #pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 run = first / 32 + i * 32, at = spread(run);
        if (run >= p.k / 32) break;
        uint4 x = acts.low[at], y = acts.high[at];
        float xd = acts.d[run];
        #pragma unroll
        for (u32 r = 0; r < 2; r++) {
            u32 from = w + i * 1024 + r * 8 * Chunk<F>::pitch;
            float d = half_to_float((u16)short_in_shared(s + i * 64 + r * 8 * Chunk<F>::scale_pitch));
            i32 dot = dot16(four_in_shared(from + 16), y, dot16(four_in_shared(from), x, 0));
            sum[r] = __fmaf_rn(__fmul_rn(d, xd), (float)dot, sum[r]);
        }
    }
}

// Sixteen bits: a warp has every eighth run, the first of four lanes the sums of rows g and g + 8. Of the columns of tensor
// cores one has the row's first parts, one what they leave.
template <int F> static __device__ __forceinline__ void sum_halves(const Product &p, const Share &share, const Acts1 &acts, float (&sum)[2]) {
    u32 lane = threadIdx.x & 31, g = lane / 4, t = lane & 3, stretch = share.chunk * 4;
    u32 w = shared_address(whole) + share.at + g * Chunk<F>::pitch + share.own * 64 + t * 16;
    u32 first = shared_address(acts.first) + (stretch * 32 + share.own * 4 + t) * 16, apart = shared_address(acts.second) - shared_address(acts.first);
    const float *unit = acts.unit + stretch * 8 + share.own;
    u32 count = min(4u, p.k / 256 - stretch);
    #pragma unroll
    for (u32 n = 0; n < 4; n += 2) {
        float d[2][2];
        uint4 v[2][2], x[2], y[2];
        if (n >= count) break;
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            x[i] = four_in_shared(first + (n + i) * 512), y[i] = four_in_shared(first + apart + (n + i) * 512);
            v[i][0] = four_in_shared(w + (n + i) * 512), v[i][1] = four_in_shared(w + 8 * Chunk<F>::pitch + (n + i) * 512);
        }
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 b0 = g == 0 ? x[i].x : x[i].y, b1 = g == 0 ? x[i].z : x[i].w, b2 = g == 0 ? y[i].x : y[i].y, b3 = g == 0 ? y[i].z : y[i].w;
            u32 a[4] = {v[i][0].x, v[i][1].x, v[i][0].y, v[i][1].y}, b[4] = {v[i][0].z, v[i][1].z, v[i][0].w, v[i][1].w};
            float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (F == T_F16) mma_halves(c, a, b0, b1), mma_halves(c, b, b2, b3);
            else mma_bfloats(c, a, b0, b1), mma_bfloats(c, b, b2, b3);
            d[i][0] = __fadd_rn(c[0], c[1]), d[i][1] = __fadd_rn(c[2], c[3]);
        }
        #pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (n + i >= count) break;
            sum[0] = __fmaf_rn(d[i][0], unit[(n + i) * 8], sum[0]), sum[1] = __fmaf_rn(d[i][1], unit[(n + i) * 8], sum[1]);
        }
    }
}

// A warp's sums of a tile, whose places are `step` apart.
template <int F> static __device__ __forceinline__ void sum_tile(const Product &p, const Tiles &tiles, const TileAt &tile, u32 place, u32 step, const Acts1 &acts, float (&sum)[2]) {
    Front &f = front();
    Share share;
    share.own = threadIdx.x >> 5 & 7;
    #pragma unroll 1
    for (share.chunk = 0; share.chunk < tiles.chunks; share.chunk++, place += step) {
        u32 i = place % MOST_SLOTS;
        bar_wait(shared_address(f.full + i), place / MOST_SLOTS & 1);
        share.at = f.headers[i].data;
        if (F == T_Q8_0) sum_runs(p, share, acts, sum);
        else if (F == T_F16 || F == T_BF16) sum_halves<F>(p, share, acts, sum);
        else sum_blocks<F>(p, tile, share, acts, sum);
        __syncwarp();
        // Each of eight warps for two.
        if ((threadIdx.x & 31) == 0) bar_arrive_twice(shared_address(f.empty + i));
    }
}

// The row as `multiply` makes it, for all threads.
static __device__ __forceinline__ Acts1 make_row(const Tape &t, const Turn &turn, const Product &p) {
    u32 tid = threadIdx.x, phase = turn.phase, k = p.k, set = front().state.set;
    Row asked;
    ask_row(p, tid, set, asked);
    u8 *space = space_of(t, turn.side);
    bool plain = p.kind == NORM_RMS && p.w && !p.b;
    if (p.kind == NORM_NONE) {
        make_plain(t, phase, p, space, tid, set, asked);
    } else if (plain && k > 2048) {
        make_simple<16>(t, phase, p, space, tid, set, asked);
    } else if (plain && k > 1024) {
        make_simple<8>(t, phase, p, space, tid, set, asked);
    } else if (tid < NORM_THREADS) {
        if (plain) make_simple<4>(t, phase, p, space, tid, set, asked);
        else if (k <= 1024) make_other<4>(phase, turn.side);
        else if (k <= 2048) make_other<8>(phase, turn.side);
        else make_other<16>(phase, turn.side);
    }
    meet_threads(ALL_MEET, THREADS);
    return acts_in(space, k);
}

// Products of a block; `place` counts those of its ring, `done` the tiles of the warp.
static __device__ __forceinline__ void multiply_tiles(const Tape &t, Turn &turn, u32 &done) {
    u32 tid = threadIdx.x, lane = tid & 31, half = tid / 32 / TILE_WARPS, own = tid / 32 % TILE_WARPS;
    const Product &p = *(const Product *)front().instrs[turn.phase % AHEAD].body;
    if (p.share == 0 && blockIdx.x >= p.longer) return;
    if (t.spaces == 1) meet_threads(ALL_MEET, THREADS);
    Acts1 acts = make_row(t, turn, p);
    note(t, turn.phase, 2);
    Joints &joint = joints(t);
    Tiles tiles(p);
    #pragma unroll 1
    while (tiles.next(p)) {
        u32 step = tiles.both ? 2 : 1, first = turn.ring + half;
        turn.ring += step * tiles.chunks;
        if (half && !tiles.both) continue;
        TileAt tile = half ? tiles.of[1] : tiles.of[0];
        float sum[2] = {0.0f, 0.0f};
        switch (p.parts[tile.part].dtype) {
        case T_Q4_K: sum_tile<T_Q4_K>(p, tiles, tile, first, step, acts, sum); break;
        case T_Q5_K: sum_tile<T_Q5_K>(p, tiles, tile, first, step, acts, sum); break;
        case T_Q6_K: sum_tile<T_Q6_K>(p, tiles, tile, first, step, acts, sum); break;
        case T_Q8_0: sum_tile<T_Q8_0>(p, tiles, tile, first, step, acts, sum); break;
        case T_F16: sum_tile<T_F16>(p, tiles, tile, first, step, acts, sum); break;
        default: sum_tile<T_BF16>(p, tiles, tile, first, step, acts, sum);
        }
        u32 j = done % JOINTS, n = done / JOINTS;
        if (n > 0) bar_wait(shared_address(&joint.taken[half][j]), (n - 1) & 1);
        float *to = joint.of[half][j] + own * 64 + lane;
        to[0] = sum[0], to[32] = sum[1];
        __syncwarp();
        if (lane == 0) bar_arrive(shared_address(&joint.made[half][j]));
        done++;
    }
    if (t.spaces == 2) turn.side ^= 1;
}

// What eight warps have of a row of a tile: in the order of `sum_lanes`, or of sixteen.cuh.
static __device__ __forceinline__ float total(const float *joint, bool sixteen) {
    float x[TILE_WARPS];
    #pragma unroll
    for (u32 w = 0; w < TILE_WARPS; w++) x[w] = joint[w * 64];
    if (sixteen) {
        // Others have added zeros to what is below 0 and vanishes.
        #pragma unroll
        for (u32 w = 0; w < TILE_WARPS; w++) x[w] = __fadd_rn(x[w], 0.0f);
        float y = __fadd_rn(__fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[4], x[5])), __fadd_rn(__fadd_rn(x[2], x[3]), __fadd_rn(x[6], x[7])));
        return __shfl_sync(ALL_LANES, y, threadIdx.x & 28);
    }
    #pragma unroll
    for (u32 d = TILE_WARPS / 2; d > 0; d /= 2)
        #pragma unroll
        for (u32 w = 0; w < d; w++) x[w] = __fadd_rn(x[w], x[w + d]);
    x[0] += __shfl_xor_sync(ALL_LANES, x[0], 2);
    return x[0] + __shfl_xor_sync(ALL_LANES, x[0], 1);
}

// A warp that ends the tiles of one half.
static __device__ __forceinline__ void end_tiles(const Tape &t, u32 half) {
    Front &f = front();
    Joints &joint = joints(t);
    u32 lane = threadIdx.x & 31, live = f.state.live, set = f.state.set, done = 0;
    #pragma unroll 1
    for (u32 phase = 0; phase < t.count; phase++) {
        bar_wait(shared_address(f.here + phase % AHEAD), phase / AHEAD & 1);
        const Instr &in = f.instrs[phase % AHEAD];
        const Product &p = *(const Product *)in.body;
        Tiles tiles(p);
        #pragma unroll 1
        while (in.kind == PRODUCTS && (live >> in.lead & 1) && tiles.next(p)) {
            if (half && !tiles.both) continue;
            TileAt tile = half ? tiles.of[1] : tiles.of[0];
            const Piece &piece = p.parts[tile.part];
            // Of four lanes the first has row g, the second row g + 8, unless that is what the first is gated by.
            u32 unit = p.gated ? lane / 4 : lane / 4 + (lane & 1) * 8, o = tile.o + unit, add = 0;
            bool does = (lane & 3) < (p.gated ? 1 : 2) && unit < tile.count, adds = p.add.x || p.add.words;
            if (adds && does) add = ask(p.add, o, set);
            u32 j = done % JOINTS;
            bar_wait(shared_address(&joint.made[half][j]), done / JOINTS & 1);
            bool sixteen = piece.dtype == T_F16 || piece.dtype == T_BF16;
            float y = total(joint.of[half][j] + lane, sixteen), up = total(joint.of[half][j] + 32 + lane, sixteen);
            __syncwarp();
            if (lane == 0) bar_arrive(shared_address(&joint.taken[half][j]));
            done++;
            if (!does) continue;
            y = finished(piece, o, !p.gated && (lane & 1) ? up : y);
            if (p.gated) y = gated(p.act, y, finished(p.parts[1], o, up));
            if (adds) y = __fadd_rn(y, got(p.add, o, set, add));
            if (p.words) put_word(p.words + set + tile.at + unit, word_of(y));
            if (piece.y) piece.y[o] = y;
        }
        __syncwarp();
        if (lane == 0) bar_arrive(shared_address(f.done + phase % AHEAD));
    }
}
