// What few.cu does with a stretch of 1024 columns of 16 outputs: how it comes into shared memory, what lanes have of it and of
// the rows, and what they add to their sums.
#pragma once
#include "async.cuh"
#include "replies.cuh"

#define WARPS 8u            // that multiply
#define FETCHING 2u         // and that fetch
#define ENDING 2u           // and that end tiles in turn
#define TILE 16u            // outputs
#define STRETCH 1024u       // columns

extern __shared__ __align__(128) u8 whole[];

template <int F> struct Stretch {
    static const u32 block = Group<F>::bytes, row = 4 * block, pitch = row + 16;
    static const u32 scales = TILE * pitch;     // of Q6_K, 16 bytes an output
};

static __device__ __forceinline__ u32 row_pitch(u32 k) { return k + 16; } // in shared memory

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

// Addresses of a lane, of weights in front of a place's.
struct Lane {
    u32 w, head;            // 16 bytes of an output; scales of an output's unit
    u32 mine, of_rows;      // where these go, and those of its outputs are
    u32 all;                // of Q6_K, its outputs' blocks
};

template <int F, u32 N> static __device__ __forceinline__ Lane lane_of(u32 warp, u32 lane, u32 units) {
    u32 j = warp % 4, block_of = warp / 4 + lane / 16 * 2, other = N == 4 ? lane & 2 : 0;
    const u32 nibbles = F == T_Q4_K ? 16 + 32 * j : F == T_Q5_K ? 48 + 32 * j : 64 * (j / 2) + 32 * (j & 1);
    Lane l;
    l.w = lane % 16 * Stretch<F>::pitch + warp / 4 * Stretch<F>::block + lane / 16 * 16 + nibbles;
    l.head = lane % 16 * Stretch<F>::pitch + block_of * Stretch<F>::block;
    l.mine = units + lane * 16, l.of_rows = units + ((other ? TILE : 0) + lane / 4) * 16;
    l.all = Stretch<F>::scales + lane / 4 * 16 + (warp / 4 + other) * 2;
    keep(l.w), keep(l.head), keep(l.mine), keep(l.of_rows), keep(l.all);
    return l;
}

// What a lane knows of two units' rows: bytes for tensor cores, of four rows with zeros for those of the other unit. Of four rows
// it has scales and sums of two by run; of eight it reads those of both units anew each time, since registers are too few.
template <u32 N> struct RowPart {
    u32 first[4], second[4], scales;
    float4 x[2];
};

// Where it reads them: zeros do not move on.
struct RowsAt {
    u32 first, second, scales, first_step, second_step;
};
template <int F, u32 N> static __device__ __forceinline__ RowsAt rows_in_shared(const MatVec &op, u32 turned, u32 nothing, u32 warp, u32 lane) {
    u32 j = warp % 4, run = warp / 4 * 8 + first_run<F>(j);
    u32 column = run * 32 + (lane & 16 ? (F == T_Q6_K ? 64 : 32) : 0) + (lane & 8 ? 16 : 0);
    u32 base = shared_address(whole), at = base + lane % N * row_pitch(op.k) + column;
    RowsAt r = {at, at + 512, base + turned + run * N * 8 + (lane & 3) * 16, STRETCH, STRETCH};
    if (N == 4) {
        u32 far = base + lane % N * row_pitch(op.k) + (column + 512 ^ 64);
        r.first = lane & 4 ? base + nothing : at, r.second = lane & 4 ? far : base + nothing;
        r.first_step = lane & 4 ? 0 : STRETCH, r.second_step = lane & 4 ? STRETCH : 0;
        r.scales = base + turned + (run + (lane & 2) * 8) * N * 8 + (lane & 1) * 16;
    }
    return r;
}
template <int F, u32 N> static __device__ __forceinline__ float4 row_scales(u32 at, u32 unit, u32 run) {
    return floats_in_shared(at + (unit * 16 + run * (F == T_Q6_K ? 2 : 1)) * N * 8);
}
template <int F, u32 N> static __device__ __forceinline__ void load_part(RowsAt &at, RowPart<N> &p) {
    load_matrices(p.first, at.first), load_matrices(p.second, at.second);
    p.scales = at.scales;
    #pragma unroll
    for (u32 run = 0; run < 2; run++)
        if (N == 4) p.x[run] = row_scales<F, N>(at.scales, 0, run);
    at.first += at.first_step, at.second += at.second_step, at.scales += STRETCH / 4 * N;
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

// What a lane has of a run of two outputs: scales, minima or scales of the second half, and blocks' scales.
struct OfRun {
    float by[2], more[2], block[2];
};

// Adds a run of two rows, `x` their scales and sums.
template <int F> static __device__ __forceinline__ void add_dots(const i32 (&c)[2][4], const OfRun &w, const float4 &x, float (&acc)[4]) {
    float d[2] = {x.x, x.z}, sum[2] = {x.y, x.w};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (F == T_Q6_K) {
            // Below 2^24, so exact.
            float v = __fmul_rn(exact(c[0][i]), w.by[i / 2]);
            v = __fmaf_rn(exact(c[1][i]), w.more[i / 2], v);
            acc[i] = __fmaf_rn(__fmul_rn(w.block[i / 2], d[i & 1]), v, acc[i]);
        } else {
            float less = __fmul_rn(w.more[i / 2], sum[i & 1]);
            acc[i] = __fmaf_rn(d[i & 1], __fmaf_rn(w.by[i / 2], exact(c[0][i]), -less), acc[i]);
        }
    }
}

#define LESS 0xe0e0e0e0u // codes of Q6_K are 32 more than what they say

// Dots of a run of a unit, of Q6_K of either half of it.
template <int F> static __device__ __forceinline__ void run_dots(i32 (&c)[2][4], const u32 *a, const u32 *b) {
    if (F == T_Q6_K) {
        mma16(c[0], LESS, LESS, b[0], EXACT), mma16(c[1], LESS, LESS, b[1], EXACT);
        mma16_more(c[0], a, b[0]), mma16_more(c[1], a + 2, b[1]);
    } else {
        mma_codes(c[0], a, b, EXACT);
    }
}
// The same of two units, whose rows have zeros where the other's do not.
template <int F> static __device__ __forceinline__ void run_dots(i32 (&c)[2][4], const u32 *a, const u32 *b, const u32 *a2, const u32 *b2) {
    if (F == T_Q6_K) {
        mma16(c[0], LESS, LESS, b[0] | b2[0], EXACT), mma16(c[1], LESS, LESS, b[1] | b2[1], EXACT);
        mma16_more(c[0], a, b[0]), mma16_more(c[1], a + 2, b[1]);
        mma16_more(c[0], a2, b2[0]), mma16_more(c[1], a2 + 2, b2[1]);
    } else {
        mma_codes(c[0], a, b, EXACT);
        more_codes(c[0], a2, b2);
    }
}

// What two units of a stretch add to the sums of a lane: two outputs by two rows, of eight rows for either unit.
template <int F, u32 N>
static __device__ __forceinline__ void add_units(const Lane &l, u32 place, u32 j, u32 to, const RowPart<N> &p, float (&acc)[N / 4][4]) {
    const u32 OWN = N / 2; // runs that have sums of their own
    u32 first[2][4], second[2][4];
    float block[OWN] = {};
    float4 x[OWN], scale[OWN];
    #pragma unroll
    for (u32 i = 0; i < OWN; i++) x[i] = N == 4 ? p.x[i] : row_scales<F, N>(p.scales, i / 2, i % 2);
    #pragma unroll
    for (u32 i = 0; i < OWN; i++)
        if (F == T_Q6_K) block[i] = half_to_float((u16)short_in_shared(place + l.all + i / 2 * 4 + i % 2 * 8 * 16));
    unpack<F>(place + l.w, j, first);
    unpack<F>(place + l.w + 2 * Stretch<F>::block, j, second);
    #pragma unroll
    for (u32 i = 0; i < OWN; i++) scale[i] = floats_in_shared(l.of_rows + to + (i / 2 * TILE + i % 2 * 8) * 16);
    #pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        u32 unit = i / 2, run = i % 2;
        float4 a = scale[unit * 2], b = scale[unit * 2 + 1];
        OfRun w = {{run ? a.y : a.x, run ? b.y : b.x}, {run ? a.w : a.z, run ? b.w : b.z}, {block[unit * 2], block[unit * 2 + 1]}};
        i32 c[2][4];
        if (N == 4) run_dots<F>(c, first[run], p.first + 2 * run, second[run], p.second + 2 * run);
        else run_dots<F>(c, unit ? second[run] : first[run], (unit ? p.second : p.first) + 2 * run);
        add_dots<F>(c, w, x[i], acc[unit]);
    }
}
