// Attention on a tape where blocks are few for what is cached: each has splits of its own, one after the other.
#pragma once
#include "tape_attention.cuh"

// What eight warps make of a split, while eight others wait for theirs: of keys, four lanes have two, a pair of warps a tile of
// 32; of values, a warp has half of the columns, a lane four of them of every second (or fourth) position.
template <int D, int G> struct __align__(16) Deep {
    static const u32 AT_ONCE = G * D < 128 ? 2 : G * D / 64;    // splits that a warp brings to be joined
    float query[G][D];
    float weight[8][32][G], score[8][32][G];    // of the tiles of two splits
    float best[8][G], total[8][G];
    float most[WARPS * AT_ONCE], sum[WARPS * AT_ONCE];
    float4 steps[32];                           // what is kept of those before a split, its weight and its sum
    u16 new_k[D], new_v[D];
    union {
        float mix[8][G][D];
        float own[G + 1][D];
        float joins[WARPS * AT_ONCE][32];
    };
};

// Splits that are joined in order: warps bring them, and one of them takes them up, a lane each of what all columns share.
template <int D, int G> static __device__ __forceinline__ void join_deep(const Attention &a, Deep<D, G> &m, u32 first, u32 last, u32 mark) {
    const u32 N = Deep<D, G>::AT_ONCE, ALL = WARPS * N;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    #pragma unroll 1
    for (u32 piece = blockIdx.x; piece < a.heads * (D / 32); piece += gridDim.x) {
        u32 head = piece / (D / 32), column = piece % (D / 32) * 32 + lane;
        const u64 *from = a.partial + (u64)head * a.splits * (D + 2);
        Mix mix = begun(a, head);
        #pragma unroll 1
        for (u32 n = first; n <= last; n += ALL) {
            meet_threads(ALL_MEET, THREADS);
            if (n + warp * N <= last) {
                Joined<N> of = ask_splits<D, N>(from, n + warp * N, last, column, mark);
                #pragma unroll
                for (u32 j = 0; j < N; j++) m.joins[warp * N + j][lane] = of.y[j];
                if (lane < N) m.most[warp * N + lane] = of.most, m.sum[warp * N + lane] = of.sum;
            }
            meet_threads(ALL_MEET, THREADS);
            if (warp != 0) continue;
            #pragma unroll 1
            for (u32 i = 0; i < ALL && n + i <= last; i += 32) {
                // As `take` has it: largest scores up to a split do not depend on how they are found.
                bool there = n + i + lane <= last;
                float most = there ? m.most[i + lane] : -INF, next = most;
                #pragma unroll
                for (u32 d = 1; d < 32; d <<= 1) {
                    float x = __shfl_up_sync(ALL_LANES, next, d);
                    if (lane >= d) next = fmaxf(next, x);
                }
                next = fmaxf(mix.most, next);
                float before = __shfl_up_sync(ALL_LANES, next, 1);
                if (lane == 0) before = mix.most;
                float keep = before == -INF ? 0.0f : expf(before - next), weight = most == -INF ? 0.0f : expf(most - next);
                m.steps[lane] = make_float4(keep, weight, there ? __fmul_rn(m.sum[i + lane], weight) : 0.0f, 0.0f);
                __syncwarp();
                u32 count = min(32u, last - n - i + 1);
                #pragma unroll 8
                for (u32 j = 0; j < count; j++) {
                    float4 step = m.steps[j];
                    mix.sum = __fmaf_rn(mix.sum, step.x, step.z);
                    mix.y = __fmaf_rn(mix.y, step.x, __fmul_rn(m.joins[i + j][lane], step.y));
                }
                mix.most = __shfl_sync(ALL_LANES, next, 31);
                __syncwarp();
            }
        }
        if (warp == 0) put_out(a, head * D + column, mix.y / mix.sum);
    }
}

// Where a warp's keys and values lie, and how far it is from one of its positions to the next.
struct Lines {
    const u8 *k, *v;
    u32 k_step, v_step;
    bool there, whole;
};

template <int D> static __device__ __forceinline__ Lines lines_of(const Cache &cache, const Place &at, u32 kv, u32 base, u32 low, u32 high) {
    const u32 PIECES = D / 8, KEYS = 32 / PIECES;
    u32 lane = threadIdx.x & 31, half = threadIdx.x >> 5 & 1;
    u32 k_width = cache.k.width * 2, v_width = cache.v.width * 2;
    Lines of;
    of.k = at.block + cache.k.offset + (u64)(at.entry + half * 16 + lane / 4) * k_width + kv * D * 2 + lane % 4 * 16;
    of.v = at.block + cache.v.offset + (u64)(at.entry + lane / PIECES) * v_width + (kv * D + half * (D / 2) + lane % PIECES * 4) * 2;
    of.k_step = k_width * 8, of.v_step = v_width * KEYS;
    of.there = at.block != 0, of.whole = of.there && base >= low && base + 32 <= high;
    return of;
}

template <int D> static __device__ __forceinline__ void load_deep_keys(const Lines &of, u32 base, u32 low, u32 high, uint4 (&k)[2][D / 32]) {
    u32 key = base + (threadIdx.x >> 5 & 1) * 16 + (threadIdx.x & 31) / 4;
    if (of.whole) {
        #pragma unroll
        for (u32 n = 0; n < 2; n++)
            #pragma unroll
            for (u32 j = 0; j < D / 32; j++) k[n][j] = *(const uint4 *)(of.k + n * of.k_step + j * 64);
        return;
    }
    #pragma unroll
    for (u32 n = 0; n < 2; n++) {
        bool there = of.there && key + n * 8 >= low && key + n * 8 < high;
        #pragma unroll
        for (u32 j = 0; j < D / 32; j++) k[n][j] = there ? *(const uint4 *)(of.k + n * of.k_step + j * 64) : make_uint4(0, 0, 0, 0);
    }
}

template <int D> static __device__ __forceinline__ void load_deep_values(const Lines &of, u32 base, u32 low, u32 high, uint2 *v) {
    const u32 PIECES = D / 8, KEYS = 32 / PIECES;
    u32 key = base + (threadIdx.x & 31) / PIECES;
    if (of.whole) {
        #pragma unroll
        for (u32 i = 0; i < D / 8; i++) v[i] = *(const uint2 *)(of.v + i * of.v_step);
        return;
    }
    #pragma unroll
    for (u32 i = 0; i < D / 8; i++) {
        bool there = of.there && key + i * KEYS >= low && key + i * KEYS < high;
        v[i] = there ? *(const uint2 *)(of.v + i * of.v_step) : make_uint2(0, 0);
    }
}

// Adds the lanes that are `bit` apart, each of which keeps half of the sums: the upper lanes the upper half.
template <int N> static __device__ __forceinline__ void add_halves(float *x, u32 bit) {
    bool upper = threadIdx.x & bit;
    #pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float own = upper ? x[i + N / 2] : x[i], other = upper ? x[i] : x[i + N / 2];
        x[i] = own + __shfl_xor_sync(ALL_LANES, other, bit);
    }
}

// A block has one group of heads, and of its splits its two halves take every so many-th.
template <int D, int G> static __device__ __forceinline__ void attend_deep(const Tape &t, u32 phase, u32 space, u32 base_mark) {
    const u32 PIECES = D / 8, KEYS = 32 / PIECES;
    Front &f = front();
    u32 mark = base_mark + phase + 1;
    const Attention &a = *(const Attention *)f.instrs[phase % AHEAD].body;
    u32 i0 = threadIdx.x, lane = i0 & 31, warp = i0 >> 5, side = warp >> 3, pair = warp >> 1, half = warp & 1;
    u32 groups = a.heads / G, per_kv = a.heads / a.kv_heads, pos = f.state.pos, slot = f.state.slot, high = pos + 1;
    u32 low = a.window && high > a.window ? high - a.window : 0, first = low / SPLIT, last = pos / SPLIT;
    if (t.spaces == 1) meet_threads(ALL_MEET, THREADS);
    Deep<D, G> &m = *(Deep<D, G> *)space_of(t, space);
    #pragma unroll 1
    for (u32 group = blockIdx.x % groups; group < groups; group += gridDim.x) {
        // Blocks of this group, and which of them this one is.
        u32 shares = gridDim.x > groups ? (gridDim.x - 1 - group) / groups + 1 : 1, share = blockIdx.x / groups;
        u32 head = group * G, kv = head / per_kv, split = first + side * shares + share;
        bool fresh = (last - first) % shares == share;
        Asked<D> asked = ask_heads<D, G>(a, head, kv, fresh);
        uint4 k[2][D / 32];
        u32 base = split * SPLIT + pair % 4 * 32;
        Lines of = lines_of<D>(a.cache, tile_at(a.cache, slot, base, low, pos), kv, base, low, pos);
        load_deep_keys<D>(of, base, low, pos, k);
        turn_heads<D, G>(phase, head, kv, fresh, asked, m.query, m.own, m.new_k, m.new_v);
        meet_threads(ALL_MEET, THREADS);
        note(t, phase, 1);
        bool placed = false;
        if (fresh) {
            Place to = place(a.cache, slot, pos);
            placed = to.block != 0;
            if (placed && head % per_kv == 0) keep_row<D>(a.cache, to, kv, m.new_k, m.new_v);
        }
        #pragma unroll 1
        for (; split <= last; split += 2 * shares) {
            u32 next = base + 2 * shares * SPLIT;
            Place behind = tile_at(a.cache, slot, next, low, pos);
            bool new_row = placed && split == last;
            if (new_row) {
                #pragma unroll
                for (u32 n = 0; n < 2; n++)
                    #pragma unroll
                    for (u32 j = 0; j < D / 32; j++)
                        if (base + half * 16 + n * 8 + lane / 4 == pos) k[n][j] = *(const uint4 *)((const u8 *)m.new_k + (j * 4 + lane % 4) * 16);
            }
            // Scores of sixteen positions.
            float score[2][G];
            #pragma unroll
            for (int g = 0; g < G; g++) score[0][g] = score[1][g] = 0.0f;
            #pragma unroll
            for (int j = 0; j < D / 32; j++) {
                float x[2][8];
                halves8(k[0][j], x[0]), halves8(k[1][j], x[1]);
                #pragma unroll
                for (int g = 0; g < G; g++) {
                    const float4 *query = (const float4 *)&m.query[g][(j * 4 + lane % 4) * 8];
                    #pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float4 q = query[i];
                        #pragma unroll
                        for (int n = 0; n < 2; n++) {
                            float s = score[n][g];
                            s = __fmaf_rn(x[n][4 * i], q.x, s), s = __fmaf_rn(x[n][4 * i + 1], q.y, s);
                            s = __fmaf_rn(x[n][4 * i + 2], q.z, s), score[n][g] = __fmaf_rn(x[n][4 * i + 3], q.w, s);
                        }
                    }
                }
            }
            uint2 v[D / 8];
            load_deep_values<D>(of, base, low, pos, v);
            // The four lanes of a position, each of which has the sum of one head in the end.
            u32 g_own = G == 4 ? (lane & 1) * 2 + (lane >> 1 & 1) : lane & (G - 1);
            #pragma unroll
            for (u32 n = 0; n < 2; n++) {
                u32 own = half * 16 + n * 8 + lane / 4;
                bool seen = base + own >= low && base + own < high;
                float (&x)[G] = score[n];
                if (G > 1) add_halves<G>(x, 1);
                else x[0] += __shfl_xor_sync(ALL_LANES, x[0], 1);
                if (G > 2) add_halves<G / 2>(x, 2);
                else x[0] += __shfl_xor_sync(ALL_LANES, x[0], 2);
                if (lane % 4 < G) m.score[pair][own][g_own] = seen ? x[0] : -INF;
            }
            meet_threads(SIDE_MEETS + side, THREADS / 2);
            // Weights of the tile, a head to every fourth lane; each warp of a pair leaves half of them.
            float own[4], most = -INF, sum = 0.0f;
            #pragma unroll
            for (u32 i = 0; i < 4; i++) own[i] = m.score[pair][i * 8 + lane / 4][lane % 4 % G], most = fmaxf(most, own[i]);
            #pragma unroll
            for (u32 d = 4; d < 32; d <<= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
            #pragma unroll
            for (u32 i = 0; i < 4; i++) {
                float w = own[i] == -INF ? 0.0f : expf(own[i] - most);
                sum += w;
                if (i / 2 == half && lane % 4 < G) m.weight[pair][i * 8 + lane / 4][lane % 4] = w;
            }
            #pragma unroll
            for (u32 d = 4; d < 32; d <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, d);
            if (half == 0 && lane < G) m.best[pair][lane] = most, m.total[pair][lane] = sum;
            if (new_row) {
                #pragma unroll
                for (u32 i = 0; i < D / 8; i++)
                    if (base + i * KEYS + lane / PIECES == pos) v[i] = *(const uint2 *)(m.new_v + half * (D / 2) + lane % PIECES * 4);
            }
            meet_threads(PAIR_MEETS + pair, 64);
            float acc[G * 4];
            #pragma unroll
            for (int i = 0; i < G * 4; i++) acc[i] = 0.0f;
            #pragma unroll
            for (u32 i = 0; i < D / 8; i++) {
                float x[4] = {half_to_float((u16)v[i].x), half_to_float((u16)(v[i].x >> 16)), half_to_float((u16)v[i].y), half_to_float((u16)(v[i].y >> 16))};
                #pragma unroll
                for (int g = 0; g < G; g++) {
                    float w = m.weight[pair][i * KEYS + lane / PIECES][g];
                    #pragma unroll
                    for (int n = 0; n < 4; n++) acc[g * 4 + n] = __fmaf_rn(w, x[n], acc[g * 4 + n]);
                }
            }
            of = lines_of<D>(a.cache, behind, kv, next, low, pos);
            load_deep_keys<D>(of, next, low, pos, k);
            // Lanes of a piece have positions each, and some of its sums in the end.
            const u32 MINE = G * 4 / KEYS;
            u32 first_sum = (lane >> (D == 128 ? 4 : 3) & 1) * (G * 2) + (D == 128 ? 0 : (lane >> 4 & 1) * G);
            add_halves<G * 4>(acc, PIECES);
            if (D == 64) add_halves<G * 2>(acc, 16);
            #pragma unroll
            for (u32 i = 0; i < MINE; i++) {
                u32 n = first_sum + i;
                m.mix[pair][n / 4][half * (D / 2) + lane % PIECES * 4 + n % 4] = acc[i];
            }
            meet_threads(SIDE_MEETS + side, THREADS / 2);
            const u32 EACH = THREADS / 2 / G;
            u32 g = i0 % (THREADS / 2) / EACH;
            u64 *to = a.partial + ((u64)(head + g) * a.splits + split) * (D + 2);
            if (i0 % EACH < D) {
                Keeps part = keeps_of<G>(m.best + side * 4, m.total + side * 4, g);
                #pragma unroll
                for (u32 d = i0 % EACH; d < D; d += EACH) put_word(to + 2 + d, marked(kept<D, G>(part, m.mix + side * 4, g, d), mark));
                if (i0 % EACH == 0) put_word(to, marked(part.most, mark)), put_word(to + 1, marked(part.sum, mark));
            }
            base = next;
        }
        meet_threads(ALL_MEET, THREADS);
    }
    note(t, phase, 2);
    join_deep<D, G>(a, m, first, last, mark);
}

// As space is counted where the tape is made.
template <int D, int G> static __device__ __forceinline__ void check_spaces() {
    const u32 NEAR = G < 2 ? G : 2, NEAR_SPACE = NEAR * (24 * D + 2592) + 12 * D;
    const u32 DEEP_SPACE = G * (4 * D + 2112) + 4 * D + 512 + Deep<D, G>::AT_ONCE * 2176;
    static_assert(sizeof(Mind<D, NEAR>) == NEAR_SPACE && sizeof(Deep<D, G>) == DEEP_SPACE, "bytes of attention");
}

// The same, apart from what calls it.
template <int D, int G> static __device__ __noinline__ void attend_near_apart(u32 phase, u32 space, u32 base_mark) {
    attend_near<D, G>(front().tape, phase, space, base_mark);
}

// A block for each split of two heads of a key head, while there are as many; otherwise all heads of a key head together.
template <int D, int G, bool DEEP> static __device__ __forceinline__ void attend(const Tape &t, Turn &turned, u32 base_mark) {
    const u32 NEAR = G < 2 ? G : 2;
    check_spaces<D, G>();
    Front &f = front();
    const Attention &a = *(const Attention *)f.instrs[turned.phase % AHEAD].body;
    u32 high = f.state.pos + 1, low = a.window && high > a.window ? high - a.window : 0;
    u32 blocks = a.heads / NEAR * (f.state.pos / SPLIT - low / SPLIT + 1);
    bool deep = DEEP && blocks > t.near;
    // Warps of a block without a split do not meet: the space that their last row lies in is not yet free.
    if (!deep && blockIdx.x >= blocks) return;
    if (deep) attend_deep<D, G>(t, turned.phase, turned.side, base_mark);
    else if (DEEP) attend_near_apart<D, NEAR>(turned.phase, turned.side, base_mark);
    else attend_near<D, NEAR>(t, turned.phase, turned.side, base_mark);
    if (t.spaces == 2) turned.side ^= 1;
}
