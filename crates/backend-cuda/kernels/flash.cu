// Attention over cached halves, cut at multiples of 128 positions; and heads on their way into it.
#include "flash.cuh"

// A warp for each head: queries and keys are normalised and rotated, keys and values go to the cache.
KERNEL heads(Step s, Heads op) {
    __shared__ float space[4][MOST_DIM];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, h = blockIdx.x * 4 + warp, row = blockIdx.y;
    begin_next();
    wait_before();
    if (row >= rows_of(s, LEAD_ROWS) || h >= op.q_heads + op.k_heads + op.v_heads || !(s.flags[row] & ROW_LIVE)) return;
    u32 seq = s.seq[row];
    if (h >= op.q_heads + op.k_heads) {
        h -= op.q_heads + op.k_heads;
        Place at = place(op.cache, s.slot[seq], place_of_row(s, row));
        if (!at.block) return;
        const float *v = op.v + ((u64)row * op.v_heads + h) * op.dim_v;
        for (u32 r = 0; r < op.dim_v / 32; r++) store_cached(op.cache.v, at, h * op.dim_v / 32 + r, v[r * 32 + lane], true);
        return;
    }
    bool query = h < op.q_heads;
    if (!query) h -= op.q_heads;
    float y[MOST_DIM / 32];
    turn_head<MOST_DIM>(op, row, h, query, space[warp], y);
    Place at = {0, 0};
    if (!query) {
        at = place(op.cache, s.slot[seq], place_of_row(s, row));
        if (!at.block) return;
    }
    #pragma unroll
    for (u32 r = 0; r < MOST_DIM / 32; r++) {
        if (r >= op.dim / 32) break;
        if (query) op.q_out[((u64)row * op.q_heads + h) * op.dim + r * 32 + lane] = y[r];
        else store_cached(op.cache.k, at, h * op.dim / 32 + r, y[r], true);
    }
}

// Keys and values of a warp's 32 positions: of keys, four lanes have one, a quarter of its columns each in pieces of 16
// bytes; of values, a lane has 16 bytes of every second (or fourth).
template <int D> struct Tile {
    uint4 k[4][D / 32];
    uint4 v[D / 8];
};

template <int D>
static __device__ __forceinline__ void load_tile(const Cache &cache, u32 slot, u32 kv, u32 base, u32 low, u32 high, Tile<D> &t) {
    const u32 PIECES = D / 8, KEYS = 32 / PIECES;
    u32 lane = threadIdx.x & 31;
    const uint4 none = make_uint4(0, 0, 0, 0);
    if (base >= high || base + 32 <= low) {
        #pragma unroll
        for (u32 i = 0; i < 4; i++)
            #pragma unroll
            for (u32 j = 0; j < D / 32; j++) t.k[i][j] = none;
        #pragma unroll
        for (u32 i = 0; i < D / 8; i++) t.v[i] = none;
        return;
    }
    // A tile lies in one block.
    Place at = place(cache, slot, base);
    const u8 *keys = at.block + cache.k.offset + ((u64)at.entry * cache.k.width + kv * D) * 2;
    const u8 *values = at.block + cache.v.offset + ((u64)at.entry * cache.v.width + kv * D) * 2;
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 key = i * 8 + lane / 4;
        bool there = base + key >= low && base + key < high;
        #pragma unroll
        for (u32 j = 0; j < D / 32; j++)
            t.k[i][j] = there ? *(const uint4 *)(keys + (u64)key * cache.k.width * 2 + (j * 4 + lane % 4) * 16) : none;
    }
    #pragma unroll
    for (u32 i = 0; i < D / 8; i++) {
        u32 key = i * KEYS + lane / PIECES;
        bool there = base + key >= low && base + key < high;
        t.v[i] = there ? *(const uint4 *)(values + (u64)key * cache.v.width * 2 + lane % PIECES * 16) : none;
    }
}

// G query heads of one key head over a warp's 32 positions.
template <int D, int G>
static __device__ __forceinline__ void mix_tile(const Tile<D> &t, u32 base, u32 low, u32 high, Space<D, G> &sp) {
    score_tile<D, G>(t.k, base, low, high, sp);
    weigh_tile<D, G, D / 8>([&](u32 i) { return t.v[i]; }, sp);
}

// One split: a warp for each 32 positions.
template <int D, int G>
static __device__ __forceinline__ void one_split(const Step &s, const Flash &op, u32 seq, u32 kv, u32 split, u32 low, u32 high,
                                                 Space<D, G> &sp) {
    u32 base = split * SPLIT + (threadIdx.x >> 5) * 32;
    Tile<D> tile;
    load_tile<D>(op.cache, s.slot[seq], kv, base, low, high, tile);
    mix_tile<D, G>(tile, base, low, high, sp);
}

// In the place of a window: every row sees all that an encoder wrote.
#define ALL_ENCODED 0xffffffffu

static __device__ __forceinline__ void seen_or_encoded(const Step &s, const Flash &op, u32 row, u32 *low, u32 *high) {
    if (op.window == ALL_ENCODED) *low = 0, *high = max(s.slots[s.slot[s.seq[row]]].enc_len, 1u);
    else seen(s, op, row, low, high);
}

template <int D, int G> static __device__ __forceinline__ void flash(const Step &s, const Flash &op) {
    const int E = (G * D + 127) / 128;  // columns of a thread
    __shared__ Space<D, G> sp;
    u32 row = blockIdx.y, head = blockIdx.x * G, kv = head / (op.heads / op.kv_heads);
    begin_next();
    wait_before();
    if (row >= rows_of(s, LEAD_ROWS) || (op.kinds && (s.flags[row] & ROW_PROMPT))) return;
    float *out = op.out + ((u64)row * op.heads + head) * D;
    if (!(s.flags[row] & ROW_LIVE)) {
        if (blockIdx.z == 0)
            for (u32 i = threadIdx.x; i < G * D; i += 128) out[i] = 0.0f;
        return;
    }
    u32 low, high, seq = s.seq[row];
    seen_or_encoded(s, op, row, &low, &high);
    u32 first = low / SPLIT, last = (high - 1) / SPLIT;
    if (!op.looped) {
        if (blockIdx.z < first || blockIdx.z > last) return;
    }
    for (u32 i = threadIdx.x; i < G * D; i += 128) sp.query[i / D][i % D] = op.q[((u64)row * op.heads + head) * D + i] * op.scale;
    __syncthreads();
    if (!op.looped && first != last) {
        one_split<D, G>(s, op, seq, kv, blockIdx.z, low, high, sp);
        __syncthreads();
        for (u32 i = threadIdx.x; i < G * D; i += 128) {
            Mix part = joined<D, G>(sp, i / D, i % D);
            float *to = op.partial + (((u64)row * op.heads + head + i / D) * op.splits + blockIdx.z) * (D + 2);
            to[2 + i % D] = part.y;
            if (i % D == 0) to[0] = part.most, to[1] = part.sum;
        }
        return;
    }
    Mix mix[E];
    #pragma unroll
    for (int e = 0; e < E; e++) mix[e] = begun(op, head + min((threadIdx.x + e * 128) / D, G - 1));
    for (u32 split = first; split <= last; split++) {
        one_split<D, G>(s, op, seq, kv, split, low, high, sp);
        __syncthreads();
        #pragma unroll
        for (int e = 0; e < E; e++) {
            u32 i = threadIdx.x + e * 128;
            if (i >= G * D) break;
            Mix part = joined<D, G>(sp, i / D, i % D);
            take(mix[e], part.most, part.sum, part.y);
        }
        __syncthreads();
    }
    #pragma unroll
    for (int e = 0; e < E; e++)
        if (threadIdx.x + e * 128 < G * D) out[threadIdx.x + e * 128] = mix[e].y / mix[e].sum;
}

#define FEW_ROWS 4u // of a sequence that has several

// Groups of four warps that attend, to which several heads are dealt out.
template <int G> struct Groups {
    static const u32 count = G > 1 ? 2 : 1, warps = 4 * count, threads = 32 * warps;
    static const int heads = G / count;     // of one
};

// Queries and keys of a row on their way into the cache, and attention over it: heads and flash in one, for steps of one row of
// each sequence, or of few rows, of which each turns the keys of those before it for itself. What was cached before is loaded
// while the products before it still run. The last of a row's splits joins them all.
template <int D, int G> static __device__ __forceinline__ void attend(const Step &s, const Heads &h, const Flash &op, u32 *arrived) {
    const u32 WARPS = Groups<G>::warps, THREADS = Groups<G>::threads;
    const int OWN = Groups<G>::heads, E = (G * D + THREADS - 1) / THREADS;
    __shared__ Space<D, OWN> spaces[Groups<G>::count];
    __shared__ float own[WARPS][D];
    __shared__ __align__(16) u16 new_k[FEW_ROWS][D], new_v[FEW_ROWS][D];
    __shared__ bool joins;
    u32 row = blockIdx.y, head = blockIdx.x * G, per_kv = op.heads / op.kv_heads, kv = head / per_kv, split = blockIdx.z;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *out = op.out + ((u64)row * op.heads + head) * D;
    bool runs = row < rows_of(s, LEAD_ROWS) && (s.flags[row] & (ROW_LIVE | ROW_PROMPT)) == ROW_LIVE;
    if (!runs) {
        wait_before();
        bool dead = row < rows_of(s, LEAD_ROWS) && !(s.flags[row] & ROW_LIVE);
        for (u32 i = threadIdx.x; dead && split == 0 && i < G * D; i += THREADS) out[i] = 0.0f;
        return;
    }
    u32 low, high, seq = s.seq[row], slot = s.slot[seq];
    seen(s, op, row, &low, &high);
    u32 first = low / SPLIT, last = (high - 1) / SPLIT, pos = high - 1;
    if (split < first || split > last) {
        wait_before();
        return;
    }
    u32 base = split * SPLIT + warp % 4 * 32;
    // Of the split's positions, those of this step up to the row's own.
    u32 past = s.past_len[seq], fresh = max(past, split * SPLIT), end = min(high, (split + 1) * SPLIT), news = end > fresh ? end - fresh : 0;
    u32 first_new = s.first_row[seq] + fresh - past;
    Place at = place(op.cache, slot, pos);
    // Where a tile has no block, nothing of it is seen.
    bool there = base < end && base + 32 > fresh && place(op.cache, slot, base).block;
    Tile<D> tile;
    load_tile<D>(op.cache, slot, kv, base, low, past, tile);
    wait_before();
    // Heads are turned by the first warps, values made halves by the last ones.
    for (u32 n = WARPS - 1 - warp; n < news; n += WARPS) {
        const float *v = h.v + ((u64)(first_new + n) * h.v_heads + kv) * D;
        #pragma unroll
        for (u32 r = 0; r < D / 32; r++) new_v[n][r * 32 + lane] = float_to_half(v[r * 32 + lane]);
    }
    for (u32 g = warp; g < G + news; g += WARPS) {
        float y[D / 32];
        bool query = g < G;
        u32 n = query ? 0 : g - G;
        turn_head<D>(h, query ? row : first_new + n, query ? head + g : kv, query, own[warp], y);
        #pragma unroll
        for (u32 r = 0; r < D / 32; r++) {
            u32 c = r * 32 + lane;
            if (query) spaces[g / OWN].query[g % OWN][c] = y[r] * op.scale;
            else new_k[n][c] = float_to_half(y[r]);
        }
    }
    __syncthreads();
    if (news) {
        if (split == last && at.block && head % per_kv == 0) {
            u16 *k = (u16 *)(at.block + op.cache.k.offset) + (u64)at.entry * op.cache.k.width + kv * D;
            u16 *v = (u16 *)(at.block + op.cache.v.offset) + (u64)at.entry * op.cache.v.width + kv * D;
            for (u32 c = threadIdx.x; c < D; c += THREADS) k[c] = new_k[pos - fresh][c], v[c] = new_v[pos - fresh][c];
        }
        const u32 PIECES = D / 8, KEYS = 32 / PIECES;
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 n = base + i * 8 + lane / 4 - fresh;
            #pragma unroll
            for (u32 j = 0; j < D / 32; j++)
                if (there && n < news) tile.k[i][j] = *(const uint4 *)((const u8 *)new_k[n] + (j * 4 + lane % 4) * 16);
        }
        #pragma unroll
        for (u32 i = 0; i < D / 8; i++) {
            u32 n = base + i * KEYS + lane / PIECES - fresh;
            if (there && n < news) tile.v[i] = *(const uint4 *)((const u8 *)new_v[n] + lane % PIECES * 16);
        }
    }
    mix_tile<D, OWN>(tile, base, low, high, spaces[warp / 4]);
    __syncthreads();
    if (first == last) {
        #pragma unroll
        for (int e = 0; e < E; e++) {
            u32 i = threadIdx.x + e * THREADS, g = i / D;
            if (i >= G * D) break;
            Mix mix = begun(op, head + g), part = joined<D, OWN>(spaces[g / OWN], g % OWN, i % D);
            take(mix, part.most, part.sum, part.y);
            out[i] = mix.y / mix.sum;
        }
        return;
    }
    float *partial = op.partial + ((u64)row * op.heads + head) * op.splits * (D + 2);
    for (u32 i = threadIdx.x; i < G * D; i += THREADS) {
        u32 g = i / D;
        Mix part = joined<D, OWN>(spaces[g / OWN], g % OWN, i % D);
        float *to = partial + ((u64)g * op.splits + split) * (D + 2);
        to[2 + i % D] = part.y;
        if (i % D == 0) to[0] = part.most, to[1] = part.sum;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 *count = arrived + row * gridDim.x + blockIdx.x;
        joins = atomicAdd(count, 1u) == last - first;
        if (joins) *count = 0;
    }
    __syncthreads();
    if (!joins) return;
    __threadfence();
    #pragma unroll
    for (int e = 0; e < E; e++) {
        u32 i = threadIdx.x + e * THREADS;
        if (i >= G * D) break;
        Mix mix = begun(op, head + i / D);
        const float *from = partial + (u64)(i / D) * op.splits * (D + 2);
        #pragma unroll 4
        for (u32 n = first; n <= last; n++) {
            const float *p = from + (u64)n * (D + 2);
            take(mix, __ldcg(p), __ldcg(p + 1), __ldcg(p + 2 + i % D));
        }
        out[i] = mix.y / mix.sum;
    }
}

#define FLASH(D, G) extern "C" __global__ void __launch_bounds__(128) flash_##D##_##G(Step s, Flash op) { flash<D, G>(s, op); }
#define ATTEND(D, G)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(Groups<G>::threads) attend_##D##_##G(Step s, Heads h, Flash op, u32 *arrived) { \
        attend<D, G>(s, h, op, arrived);                                                                                          \
    }
ATTEND(64, 1) ATTEND(64, 2) ATTEND(64, 4) ATTEND(64, 8)
ATTEND(128, 1) ATTEND(128, 2) ATTEND(128, 4) ATTEND(128, 8)
FLASH(64, 1) FLASH(64, 2) FLASH(64, 4) FLASH(64, 8)
FLASH(128, 1) FLASH(128, 2) FLASH(128, 4) FLASH(128, 8)

// Joins the splits of rows that have several: a block for each head, a thread for each column.
KERNEL flash_join(Step s, Flash op) {
    u32 row = blockIdx.y, head = blockIdx.x, d = threadIdx.x, dim = blockDim.x;
    begin_next();
    wait_before();
    if (row >= rows_of(s, LEAD_ROWS) || !(s.flags[row] & ROW_LIVE) || (op.kinds && (s.flags[row] & ROW_PROMPT))) return;
    u32 low, high;
    seen_or_encoded(s, op, row, &low, &high);
    u32 first = low / SPLIT, last = (high - 1) / SPLIT;
    if (first == last) return;
    const float *from = op.partial + ((u64)row * op.heads + head) * op.splits * (dim + 2);
    Mix mix = begun(op, head);
    for (u32 i = first; i <= last; i++) {
        const float *p = from + (u64)i * (dim + 2);
        take(mix, p[0], p[1], p[2 + d]);
    }
    op.out[((u64)row * op.heads + head) * dim + d] = mix.y / mix.sum;
}
