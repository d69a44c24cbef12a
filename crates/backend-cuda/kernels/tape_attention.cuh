// Attention on a tape.
#pragma once
#include "tape_parts.cuh"

template <int D, int G> struct __align__(16) Mind {
    float query[G][D];
    float weight[WARPS][32][G];
    float score[4][32][G];
    float best[4][G], total[4][G], mix[4][G][D];
    float own[G + 2][D];
    u16 new_k[D], new_v[D];
};

// A head as `turn_head` makes it.
template <int D>
static __device__ __forceinline__ void turn(u32 set, const Attention &a, u32 h, bool query, u32 lane, float *own, float *y) {
    u32 kind = query ? a.kind_q : a.kind_k, w_len = query ? a.wq_len : a.wk_len;
    float eps = query ? a.eps_q : a.eps_k;
    const Numbers &from = query ? a.q : a.k;
    const float *w = query ? a.wq : a.wk;
    u32 w_first = w_len == D ? 0 : h * D % w_len;
    float raw[D / 32], weight[D / 32];
    float2 turns[D / 32];
    u32 words[D / 32];
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++) {
        u32 c = r * 32 + lane, i = c - a.offset;
        bool turned = c >= a.offset && i < 2 * a.pairs;
        weight[r] = w ? w[w_first + c < w_len ? w_first + c : (w_first + c) % w_len] : 1.0f;
        u32 pair = a.halves ? (i >= a.pairs ? i - a.pairs : i) : i / 2;
        turns[r] = turned ? a.turns[pair] : make_float2(0.0f, 0.0f);
        words[r] = ask(from, h * D + c, set);
    }
    get_all<D / 32>(from.words + set, h * D + lane, 32, words);
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++) raw[r] = number_of(words[r]);
    float mean = 0.0f, squares = 0.0f, root = 1.0f;
    if (kind == NORM_LAYER) {
        #pragma unroll
        for (u32 r = 0; r < D / 32; r++) mean += raw[r];
        mean = sum_lanes(mean) / (float)D;
    }
    if (kind != NORM_NONE) {
        #pragma unroll
        for (u32 r = 0; r < D / 32; r++) squares = __fmaf_rn(raw[r] - mean, raw[r] - mean, squares);
        squares = sum_lanes(squares);
        root = kind == NORM_L2 ? sqrtf(squares + eps) : kind == NORM_L2_MAX ? fmaxf(sqrtf(squares), eps)
                                                                        : sqrtf(squares / (float)D + eps);
    }
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++) raw[r] -= mean;
    if (kind != NORM_NONE) divide<D / 32>(raw, root);
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++) own[r * 32 + lane] = raw[r] * weight[r];
    __syncwarp();
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++) {
        u32 c = r * 32 + lane;
        float v = own[c];
        if (c >= a.offset && c < a.offset + 2 * a.pairs) {
            u32 i = c - a.offset, apart = a.halves ? a.pairs : 1;
            bool second = a.halves ? i >= a.pairs : i % 2 == 1;
            float2 t = turns[r];
            v = second ? __fmaf_rn(own[c - apart], t.y, __fmul_rn(v, t.x)) : __fmaf_rn(v, t.x, -__fmul_rn(own[c + apart], t.y));
        }
        y[r] = v;
    }
}

template <int D> static __device__ __noinline__ void turn_any(u32 phase, u32 h, bool query, float *own) {
    float y[D / 32];
    u32 lane = threadIdx.x & 31;
    turn<D>(front().state.set, *(const Attention *)front().instrs[phase % AHEAD].body, h, query, lane, own, y);
    __syncwarp();
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++) own[r * 32 + lane] = y[r];
    __syncwarp();
}

// Whether heads are rotated whole, by halves, behind a plain norm or none.
template <int D> static __device__ __forceinline__ bool turns_whole(const Attention &a, bool query) {
    u32 kind = query ? a.kind_q : a.kind_k, w_len = query ? a.wq_len : a.wk_len;
    bool plain = kind == NORM_RMS ? w_len == D && (query ? a.wq : a.wk) != 0 : kind == NORM_NONE;
    return plain && (query ? a.q : a.k).words && a.halves && a.offset == 0 && a.pairs == D / 2;
}

// Such a head, whose words were asked for, as `turn` makes it: what belongs together is a lane's own.
template <int D>
static __device__ __forceinline__ void turn_whole(const Attention &a, const u32 *from, bool query, u32 lane, u32 *asked, float *y) {
    const u32 N = D / 32, HALF = D / 64;
    bool normed = (query ? a.kind_q : a.kind_k) == NORM_RMS;
    const float *w = query ? a.wq : a.wk;
    float weight[N], v[N];
    float2 turns[HALF];
    #pragma unroll
    for (u32 r = 0; r < N; r++) weight[r] = normed ? w[r * 32 + lane] : 1.0f;
    #pragma unroll
    for (u32 r = 0; r < HALF; r++) turns[r] = a.turns[r * 32 + lane];
    get_all<N>(from, lane, 32, asked);
    #pragma unroll
    for (u32 r = 0; r < N; r++) v[r] = number_of(asked[r]);
    if (normed) {
        float squares = 0.0f;
        #pragma unroll
        for (u32 r = 0; r < N; r++) squares = __fmaf_rn(v[r], v[r], squares);
        squares = sum_lanes(squares);
        divide<N>(v, sqrtf(squares / (float)D + (query ? a.eps_q : a.eps_k)));
    }
    #pragma unroll
    for (u32 r = 0; r < N; r++) v[r] *= weight[r];
    #pragma unroll
    for (u32 r = 0; r < HALF; r++) {
        float2 t = turns[r];
        float lower = v[r], upper = v[r + HALF];
        y[r] = __fmaf_rn(lower, t.x, -__fmul_rn(upper, t.y));
        y[r + HALF] = __fmaf_rn(lower, t.y, __fmul_rn(upper, t.x));
    }
}

// What four warps of a tile of 32 positions hold of it: of keys, four lanes have one, a warp eight; of values, a warp has a
// quarter of the columns, a lane two of them of every second (or fourth) position.
template <int D> struct Cached {
    uint4 k[D / 32];
    u32 v[D / 8];
};

// Where a tile lies, if any of it is in sight.
static __device__ __forceinline__ Place tile_at(const Cache &cache, u32 slot, u32 base, u32 low, u32 high) {
    Place at = {0, 0};
    if (base < high && base + 32 > low) at = place(cache, slot, base);
    return at;
}

template <int D>
static __device__ __forceinline__ void load_keys(const Cache &cache, const Place &at, u32 kv, u32 base, u32 low, u32 high, u32 tid, uint4 *k) {
    u32 lane = tid & 31, key = (tid >> 5 & 3) * 8 + lane / 4;
    const u8 *keys = at.block + cache.k.offset + ((u64)(at.entry + key) * cache.k.width + kv * D) * 2 + lane % 4 * 16;
    bool there = at.block && base + key >= low && base + key < high;
    #pragma unroll
    for (u32 j = 0; j < D / 32; j++) k[j] = there ? *(const uint4 *)(keys + j * 64) : make_uint4(0, 0, 0, 0);
}

template <int D>
static __device__ __forceinline__ void load_values(const Cache &cache, const Place &at, u32 kv, u32 base, u32 low, u32 high, u32 tid, u32 *v) {
    const u32 PIECES = D / 8, KEYS = 32 / PIECES;
    u32 lane = tid & 31, quarter = tid >> 5 & 3, step = cache.v.width * 2 * KEYS;
    const u8 *values = at.block + cache.v.offset + ((u64)(at.entry + lane / PIECES) * cache.v.width + kv * D + quarter * (D / 4)) * 2 + lane % PIECES * 4;
    if (at.block && base >= low && base + 32 <= high) {
        #pragma unroll
        for (u32 i = 0; i < D / 8; i++) v[i] = *(const u32 *)(values + (u64)i * step);
        return;
    }
    #pragma unroll
    for (u32 i = 0; i < D / 8; i++) {
        u32 n = base + i * KEYS + lane / PIECES;
        v[i] = at.block && n >= low && n < high ? *(const u32 *)(values + (u64)i * step) : 0;
    }
}

// What the tiles make of a split, as `joined` has it.
struct Keeps {
    float most, sum, keep[4];
};

template <int G> static __device__ __forceinline__ Keeps keeps_of(const float (*best)[G], const float (*total)[G], u32 g) {
    Keeps of;
    of.most = fmaxf(fmaxf(best[0][g], best[1][g]), fmaxf(best[2][g], best[3][g]));
    of.sum = 0.0f;
    #pragma unroll
    for (int w = 0; w < 4; w++) {
        of.keep[w] = best[w][g] == -INF ? 0.0f : expf(best[w][g] - of.most);
        of.sum = __fmaf_rn(total[w][g], of.keep[w], of.sum);
    }
    return of;
}

template <int D, int G> static __device__ __forceinline__ float kept(const Keeps &of, const float (*mixes)[G][D], u32 g, u32 d) {
    float y = 0.0f;
    #pragma unroll
    for (int w = 0; w < 4; w++) y = __fmaf_rn(mixes[w][g][d], of.keep[w], y);
    return y;
}

static __device__ __forceinline__ Mix begun(const Attention &a, u32 head) {
    Mix mix = {-INF, 0.0f, 0.0f};
    if (a.sinks) mix.most = a.sinks[head], mix.sum = 1.0f;
    return mix;
}

static __device__ __forceinline__ void put_out(const Attention &a, u32 i, float y) {
    if (a.words) put_word(a.words + front().state.set + i, word_of(y));
    if (a.out) a.out[i] = y;
}

// Heads of queries, and of a new row's key, a warp each, as words that were asked for.
template <int D> struct Asked {
    u32 words[D / 32];
    bool simple;        // whether they were, and are turned whole
};

template <int D, int G> static __device__ __forceinline__ Asked<D> ask_heads(const Attention &a, u32 head, u32 kv, bool fresh) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    bool query = warp < G;
    Asked<D> asked;
    asked.simple = warp < G + (fresh ? 1 : 0) && turns_whole<D>(a, query);
    const u32 *from = (query ? a.q : a.k).words + front().state.set + (query ? head + warp : kv) * D;
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++)
        asked.words[r] = asked.simple ? word_at(from + r * 32 + lane) : 0;
    return asked;
}

// Queries, and the key and the value of a new row, when they are there; rows of `own` are for heads that are not turned whole.
template <int D, int G>
static __device__ __forceinline__ void turn_heads(u32 phase, u32 head, u32 kv, bool fresh, Asked<D> &asked, float (*query)[D], float (*own)[D], u16 *new_k, u16 *new_v) {
    const Attention &a = *(const Attention *)front().instrs[phase % AHEAD].body;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, set = front().state.set, own_head = warp < G ? head + warp : kv;
    if (warp >= G + (fresh ? 2 : 0)) return;
    float y[D / 32];
    if (asked.simple) turn_whole<D>(a, (warp < G ? a.q : a.k).words + set + own_head * D, warp < G, lane, asked.words, y);
    else if (warp <= G) turn_any<D>(phase, own_head, warp < G, own[warp]);
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++)
        if (!asked.simple && warp <= G) y[r] = own[warp][r * 32 + lane];
    #pragma unroll
    for (u32 r = 0; r < D / 32; r++) {
        u32 n = r * 32 + lane;
        if (warp < G) query[warp][n] = y[r] * a.scale;
        if (warp == G) new_k[n] = float_to_half(y[r]);
        if (warp == G + 1) new_v[n] = float_to_half(got(a.v, kv * D + n, set, ask(a.v, kv * D + n, set)));
    }
}

template <int D>
static __device__ __forceinline__ void keep_row(const Cache &cache, const Place &at, u32 kv, const u16 *new_k, const u16 *new_v) {
    u32 i = threadIdx.x;
    u16 *k = (u16 *)(at.block + cache.k.offset) + (u64)at.entry * cache.k.width + kv * D;
    u16 *v = (u16 *)(at.block + cache.v.offset) + (u64)at.entry * cache.v.width + kv * D;
    if (i < D) k[i] = new_k[i], v[i] = new_v[i];
}

// Of N splits from `n` on: a column each, and, a lane each, the largest score and the sum; a warp's columns are of one head.
template <int N> struct Joined {
    float y[N];
    float most, sum;
};

template <int D, int N> static __device__ __forceinline__ Joined<N> ask_splits(const u64 *from, u32 n, u32 last, u32 column, u32 mark) {
    u64 w[N], own[2];
    u32 rest = min(last - n, N - 1u);
    const u64 *p = from + (u64)n * (D + 2), *q = p + min((threadIdx.x & 31) % N, rest) * (D + 2);
    own[0] = word_at(q), own[1] = word_at(q + 1);
    #pragma unroll
    for (u32 j = 0; j < N; j++) w[j] = word_at(p + min(j, rest) * (D + 2) + 2 + column);
    for (bool all = false; !all;) {
        all = true;
        #pragma unroll
        for (u32 c = 0; c < 2; c++)
            if (!is_marked(own[c], mark)) all = false, own[c] = word_at(q + c);
        #pragma unroll
        for (u32 j = 0; j < N; j++)
            if (!is_marked(w[j], mark)) all = false, w[j] = word_at(p + min(j, rest) * (D + 2) + 2 + column);
    }
    __syncwarp();
    Joined<N> of;
    #pragma unroll
    for (u32 j = 0; j < N; j++) of.y[j] = marked_number(w[j]);
    of.most = marked_number(own[0]), of.sum = marked_number(own[1]);
    return of;
}

// Each split joins a part of the columns.
template <int D, int G> static __device__ __forceinline__ void join_splits(u32 phase, u32 base, u32 first, u32 last) {
    const Attention &a = *(const Attention *)front().instrs[phase % AHEAD].body;
    u32 i0 = threadIdx.x, blocks = a.heads / G, count = last - first + 1, mark = base + phase + 1;
    u32 head = blockIdx.x % blocks * G, per = (G * D / 32 + count - 1) / count * 32, i = blockIdx.x / blocks * per + i0;
    if (i0 >= per || i >= G * D) return;
    Mix mix = begun(a, head + i / D);
    const u64 *from = a.partial + (u64)(head + i / D) * a.splits * (D + 2);
    #pragma unroll 1
    for (u32 n = first; n <= last; n += 8) {
        Joined<8> of = ask_splits<D, 8>(from, n, last, i % D, mark);
        #pragma unroll
        for (u32 j = 0; j < 8; j++) {
            float most = __shfl_sync(ALL_LANES, of.most, j), sum = __shfl_sync(ALL_LANES, of.sum, j);
            if (n + j <= last) take(mix, most, sum, of.y[j]);
        }
    }
    put_out(a, head * D + i, mix.y / mix.sum);
}

// Heads on their way into the cache and attention over it, as `attend` of flash.cu does it: a block for each split of the G
// heads of a key head, four warps for each 32 positions.
template <int D, int G> static __device__ __forceinline__ void attend_near(const Tape &t, u32 phase, u32 side, u32 base_mark) {
    const u32 PIECES = D / 8, KEYS = 32 / PIECES;
    Front &f = front();
    const Attention &a = *(const Attention *)f.instrs[phase % AHEAD].body;
    u32 i0 = threadIdx.x, lane = i0 & 31, warp = i0 >> 5, tile = warp >> 2, quarter = warp & 3;
    u32 blocks = a.heads / G, per_kv = a.heads / a.kv_heads, pos = f.state.pos, high = pos + 1;
    u32 mark = base_mark + phase + 1;
    u32 low = a.window && high > a.window ? high - a.window : 0;
    u32 first = low / SPLIT, last = pos / SPLIT, count = last - first + 1;
    if (t.spaces == 1) meet_threads(ALL_MEET, THREADS);
    Mind<D, G> &m = *(Mind<D, G> *)space_of(t, side);
    u32 split = first + blockIdx.x / blocks, head = blockIdx.x % blocks * G, kv = head / per_kv, base = split * SPLIT + tile * 32;
    Cached<D> c;
    Asked<D> asked = ask_heads<D, G>(a, head, kv, split == last);
    Place tile_place = tile_at(a.cache, f.state.slot, base, low, pos);
    load_keys<D>(a.cache, tile_place, kv, base, low, pos, i0, c.k);
    turn_heads<D, G>(phase, head, kv, split == last, asked, m.query, m.own, m.new_k, m.new_v);
    note(t, phase, 1);
    load_values<D>(a.cache, tile_place, kv, base, low, pos, i0, c.v);
    meet_threads(ALL_MEET, THREADS);
    if (split == last) {
        Place at = place(a.cache, f.state.slot, pos);
        if (at.block && head % per_kv == 0) keep_row<D>(a.cache, at, kv, m.new_k, m.new_v);
        if (at.block && base + quarter * 8 + lane / 4 == pos) {
            #pragma unroll
            for (u32 j = 0; j < D / 32; j++) c.k[j] = *(const uint4 *)((const u8 *)m.new_k + (j * 4 + lane % 4) * 16);
        }
        #pragma unroll
        for (u32 i = 0; i < D / 8; i++)
            if (at.block && base + i * KEYS + lane / PIECES == pos) c.v[i] = *(const u32 *)((const u8 *)m.new_v + (quarter * (D / 4) + lane % PIECES * 2) * 2);
    }
    // Scores of eight positions.
    float score[G];
    #pragma unroll
    for (int g = 0; g < G; g++) score[g] = 0.0f;
    #pragma unroll
    for (int j = 0; j < D / 32; j++) {
        float f[8];
        halves8(c.k[j], f);
        #pragma unroll
        for (int g = 0; g < G; g++) {
            const float4 *q = (const float4 *)&m.query[g][(j * 4 + lane % 4) * 8];
            float4 x = q[0], y = q[1];
            float s = score[g];
            s = __fmaf_rn(f[0], x.x, s), s = __fmaf_rn(f[1], x.y, s), s = __fmaf_rn(f[2], x.z, s), s = __fmaf_rn(f[3], x.w, s);
            s = __fmaf_rn(f[4], y.x, s), s = __fmaf_rn(f[5], y.y, s), s = __fmaf_rn(f[6], y.z, s), score[g] = __fmaf_rn(f[7], y.w, s);
        }
    }
    u32 key = base + quarter * 8 + lane / 4;
    #pragma unroll
    for (int g = 0; g < G; g++) {
        float x = score[g];
        x += __shfl_xor_sync(ALL_LANES, x, 1);
        x += __shfl_xor_sync(ALL_LANES, x, 2);
        if (lane % 4 == 0) m.score[tile][quarter * 8 + lane / 4][g] = key >= low && key < high ? x : -INF;
    }
    meet_threads(TILE_MEETS + tile, 128);
    // Weights of the tile, which every warp makes for itself.
    #pragma unroll
    for (int g = 0; g < G; g++) {
        float own[4], most = -INF, sum = 0.0f;
        #pragma unroll
        for (int i = 0; i < 4; i++) own[i] = m.score[tile][i * 8 + lane / 4][g], most = fmaxf(most, own[i]);
        for (int d = 4; d < 32; d <<= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = own[i], w = x == -INF ? 0.0f : expf(x - most);
            sum += w;
            if (lane % 4 == 0) m.weight[warp][i * 8 + lane / 4][g] = w;
        }
        for (int d = 4; d < 32; d <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, d);
        if (quarter == 0 && lane == 0) m.best[tile][g] = most, m.total[tile][g] = sum;
    }
    __syncwarp();
    float acc[G][2];
    #pragma unroll
    for (int g = 0; g < G; g++) acc[g][0] = acc[g][1] = 0.0f;
    #pragma unroll
    for (u32 i = 0; i < D / 8; i++) {
        float v0 = half_to_float((u16)c.v[i]), v1 = half_to_float((u16)(c.v[i] >> 16));
        #pragma unroll
        for (int g = 0; g < G; g++) {
            float w = m.weight[warp][i * KEYS + lane / PIECES][g];
            acc[g][0] = __fmaf_rn(w, v0, acc[g][0]), acc[g][1] = __fmaf_rn(w, v1, acc[g][1]);
        }
    }
    #pragma unroll
    for (int g = 0; g < G; g++)
        #pragma unroll
        for (int n = 0; n < 2; n++) {
            float x = acc[g][n];
            for (u32 d = PIECES; d < 32; d <<= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
            if (lane < PIECES) m.mix[tile][g][quarter * (D / 4) + lane * 2 + n] = x;
        }
    meet_threads(ALL_MEET, THREADS);
    if (i0 < G * D) {
        Keeps part = keeps_of<G>(m.best, m.total, i0 / D);
        float y = kept<D, G>(part, m.mix, i0 / D, i0 % D);
        if (count == 1) {
            Mix mix = begun(a, head + i0 / D);
            take(mix, part.most, part.sum, y);
            put_out(a, head * D + i0, mix.y / mix.sum);
        } else {
            u64 *to = a.partial + ((u64)(head + i0 / D) * a.splits + split) * (D + 2);
            put_word(to + 2 + i0 % D, marked(y, mark));
            if (i0 % D == 0) put_word(to, marked(part.most, mark)), put_word(to + 1, marked(part.sum, mark));
        }
    }
    note(t, phase, 2);
    if (count > 1) join_splits<D, G>(phase, base_mark, first, last);
}
