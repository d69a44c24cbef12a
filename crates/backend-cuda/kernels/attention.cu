// Cache writes, attention with every extra that the programs know, and chosen keys.
//
// Keys are taken in tiles of 64 that begin at multiples of 64 positions, so a row's numbers depend neither on what was
// cached when, nor on the rows beside it.
#include "cache.cuh"

KERNEL cache_write(Step s, Cache c, u32 values, const float *x) {
    Plane p = values ? c.v : c.k;
    u32 row = blockIdx.y, run = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (row >= rows_of(s, LEAD_ROWS) || run * 32 >= p.width || !(s.flags[row] & ROW_LIVE)) return;
    u32 pos = place_of_row(s, row), seq = s.seq[row];
    // Of rows that share an entry the last one's stay.
    if (c.entry > 1 && (pos + 1) % c.entry != 0 && row + 1 < s.first_row[seq] + s.row_count[seq]) return;
    Place at = place(c, s.slot[seq], pos);
    if (!at.block) return;
    u32 column = run * 32 + (threadIdx.x & 31);
    bool inside = column < p.width;
    store_cached(p, at, run, inside ? x[(u64)row * p.width + column] : 0.0f, inside);
}

KERNEL copy_block(u8 *arena, u64 from, u64 to, u64 bytes) {
    u64 n = bytes / 16;
    const uint4 *a = (const uint4 *)(arena + from);
    uint4 *b = (uint4 *)(arena + to);
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) b[i] = a[i];
}

// A plane of a block in canonical form, or from it.
KERNEL export_plane(u8 *block, Plane p, u32 entries, float *out) {
    u64 total = (u64)entries * p.width;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (u64)gridDim.x * blockDim.x) {
        Place at = {block, (u32)(i / p.width)};
        out[i] = load_cached(p, at, i % p.width);
    }
}

KERNEL import_plane(u8 *block, Plane p, u32 entries, const float *x) {
    u32 warps = gridDim.x * (blockDim.x >> 5), runs = (p.width + 31) / 32, lane = threadIdx.x & 31;
    for (u32 w = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); w < entries * runs; w += warps) {
        Place at = {block, w / runs};
        u32 column = w % runs * 32 + lane;
        bool inside = column < p.width;
        store_cached(p, at, w % runs, inside ? x[(u64)at.entry * p.width + column] : 0.0f, inside);
    }
}

enum { MASK_CAUSAL, MASK_FULL, MASK_WINDOW, MASK_CHUNK, MASK_SYMMETRIC };
enum { FROM_CACHE, FROM_ROWS, FROM_CROSS };

struct Attend {
    Cache cache;
    Cache entries;
    const float *q, *k, *v;
    const float *sinks;     // per head
    const float *slopes;    // per head
    const float *bias;      // [buckets, heads]
    const i32 *buckets;     // by distance: of keys up to the row, then of those after it
    const i32 *chosen;
    float *out;
    u32 distances;
    u32 heads, kv_heads, dim_k, dim_v;
    u32 stride_v;           // columns from a value head to the next
    u32 k_width, v_width;   // of the step's own rows
    float scale, cap;       // no cap: 0
    u32 mask, mask_n, source;
    u32 has_entries;
    u32 chosen_width, choices, unit, tail;
};

#define KEYS 64
#define MOST_VALUES 8

static __device__ bool listed(const i32 *ids, u32 n, i32 id) {
    u32 low = 0, high = n;
    while (low < high) {
        u32 mid = (low + high) / 2;
        i32 at = ids[mid];
        if (at == id) return true;
        if (at >= 0 && at < id) low = mid + 1;
        else high = mid;
    }
    return false;
}

// What the threads of a block share.
struct Tile {
    float score[KEYS];
    bool seen[KEYS];
    Place place[KEYS];
    u32 pos[KEYS];
    float reduced[33];
};

KERNEL attention(Step s, Attend op) {
    extern __shared__ float query[];
    __shared__ Tile tile;
    u32 row = blockIdx.y, head = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    if (row >= rows_of(s, LEAD_ROWS)) return;
    float *out = op.out + ((u64)row * op.heads + head) * op.dim_v;
    u32 seq = s.seq[row], slot = s.slot[seq], past = s.past_len[seq], count = s.row_count[seq];
    if (!(s.flags[row] & ROW_LIVE)) {
        for (u32 d = threadIdx.x; d < op.dim_v; d += blockDim.x) out[d] = 0.0f;
        return;
    }
    u32 pos = past + row - s.first_row[seq], kv_head = head / (op.heads / op.kv_heads);
    for (u32 d = threadIdx.x; d < op.dim_k; d += blockDim.x)
        query[d] = op.q[((u64)row * op.heads + head) * op.dim_k + d];
    u32 low = op.source == FROM_ROWS ? past : 0;
    u32 high = op.source == FROM_CROSS ? s.slots[slot].enc_len : past + count;
    if (op.mask == MASK_CAUSAL || op.mask == MASK_WINDOW || op.mask == MASK_CHUNK) high = min(high, pos + 1);
    if (op.mask == MASK_WINDOW && pos + 1 > op.mask_n) low = max(low, pos + 1 - op.mask_n);
    if (op.mask == MASK_CHUNK) low = max(low, pos / op.mask_n * op.mask_n);
    if (op.mask == MASK_SYMMETRIC) {
        u32 half = op.mask_n / 2;
        if (pos > half) low = max(low, pos - half);
        high = min(high, pos + half + 1);
    }
    const i32 *ids = op.chosen;
    u32 n_ids = 0, tail = op.tail ? (pos + 1) / max(op.unit, 1u) * op.unit : 0xffffffffu;
    if (ids) {
        n_ids = op.chosen_width / op.choices;
        ids += (u64)row * op.chosen_width + head / (op.heads / op.choices) * n_ids;
        while (n_ids > 0 && ids[n_ids - 1] < 0) n_ids--;
    }
    float most = op.sinks ? op.sinks[head] : -INF, sum = op.sinks ? 1.0f : 0.0f;
    float mix[MOST_VALUES];
    #pragma unroll
    for (int j = 0; j < MOST_VALUES; j++) mix[j] = 0.0f;
    // Scores that are no numbers, and scores of −∞ alone, leave nothing that is one.
    bool any = false, broken = false;
    u32 whole = op.has_entries ? (pos + 1) / op.entries.entry : 0;
    // First the positions, then the entries.
    for (u32 part = 0; part < 2; part++) {
        bool of_entries = part == 1, filtered = ids && (op.has_entries != 0) == of_entries;
        u32 from = of_entries ? 0 : low, to = of_entries ? whole : high;
        for (u32 base = from / KEYS * KEYS; base < to; base += KEYS) {
            __syncthreads();
            if (threadIdx.x < KEYS) {
                u32 k = base + threadIdx.x;
                bool seen = k >= from && k < to;
                if (seen && filtered) seen = k >= tail || listed(ids, n_ids, (i32)(k / op.unit));
                Place at = {0, 0};
                u32 key_pos = of_entries ? k * op.entries.entry : k;
                if (seen && of_entries) at = place(op.entries, slot, key_pos);
                else if (seen && op.source != FROM_ROWS) at = place(op.cache, slot, key_pos);
                tile.place[threadIdx.x] = at;
                tile.pos[threadIdx.x] = key_pos;
                tile.score[threadIdx.x] = -INF;
                tile.seen[threadIdx.x] = seen;
            }
            __syncthreads();
            for (u32 j = warp; j < KEYS; j += warps) {
                if (!tile.seen[j]) continue;
                u32 key_pos = tile.pos[j];
                float dot = 0.0f;
                if (of_entries || op.source != FROM_ROWS) {
                    const Plane &p = of_entries ? op.entries.k : op.cache.k;
                    for (u32 d = lane; d < op.dim_k; d += 32)
                        dot = __fmaf_rn(query[d], load_cached(p, tile.place[j], kv_head * op.dim_k + d), dot);
                } else {
                    const float *key = op.k + (u64)(s.first_row[seq] + key_pos - past) * op.k_width + kv_head * op.dim_k;
                    for (u32 d = lane; d < op.dim_k; d += 32) dot = __fmaf_rn(query[d], key[d], dot);
                }
                float score = sum_lanes(dot) * op.scale;
                if (op.cap > 0.0f) score = op.cap * tanhf(score / op.cap);
                u32 distance = key_pos > pos ? key_pos - pos : pos - key_pos;
                if (op.slopes) score -= op.slopes[head] * (float)distance;
                if (op.bias) {
                    u32 d = min(distance, op.distances - 1);
                    i32 bucket = op.buckets[key_pos > pos ? op.distances + d : d];
                    score += op.bias[bucket * op.heads + head];
                }
                __syncwarp();
                if (lane == 0) tile.score[j] = score;
            }
            __syncthreads();
            float best = -INF;
            bool here = false, nan = false;
            for (u32 j = lane; j < KEYS; j += 32) {
                best = fmaxf(best, tile.score[j]);
                here |= tile.seen[j], nan |= tile.score[j] != tile.score[j];
            }
            best = max_lanes(best);
            any |= __any_sync(ALL_LANES, here) != 0, broken |= __any_sync(ALL_LANES, nan) != 0;
            if (!__any_sync(ALL_LANES, here)) continue;
            float next = fmaxf(most, best), keep = most == -INF ? 0.0f : expf(most - next), total = 0.0f;
            __syncthreads();
            if (threadIdx.x < KEYS) {
                float score = tile.score[threadIdx.x];
                tile.score[threadIdx.x] = score == -INF ? 0.0f : expf(score - next);
            }
            __syncthreads();
            for (u32 j = lane; j < KEYS; j += 32) total += tile.score[j];
            sum = sum * keep + sum_lanes(total);
            most = next;
            #pragma unroll
            for (int v = 0; v < MOST_VALUES; v++) {
                u32 d = threadIdx.x + v * blockDim.x;
                if (d >= op.dim_v) break;
                float x = mix[v] * keep;
                for (u32 j = 0; j < KEYS; j++) {
                    float weight = tile.score[j];
                    if (!tile.seen[j]) continue;
                    float value;
                    if (of_entries) value = load_cached(op.entries.k, tile.place[j], kv_head * op.dim_k + d);
                    else if (op.source != FROM_ROWS) value = load_cached(op.cache.v, tile.place[j], kv_head * op.stride_v + d);
                    else value = op.v[(u64)(s.first_row[seq] + tile.pos[j] - past) * op.v_width + kv_head * op.stride_v + d];
                    x = __fmaf_rn(weight, value, x);
                }
                mix[v] = x;
            }
        }
    }
    float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    if (broken || (any && most == -INF)) inverse = __int_as_float(0x7fffffff);
    #pragma unroll
    for (int v = 0; v < MOST_VALUES; v++) {
        u32 d = threadIdx.x + v * blockDim.x;
        if (d < op.dim_v) out[d] = mix[v] * inverse;
    }
}

struct Select {
    Cache cache;
    const float *q, *w;
    float *scores;      // of the units, per block
    i32 *out;
    u32 most_units;
    u32 heads, dim, summed, top_k, unit, local;
    float scale;
};

// Floats as numbers of the same order.
static __device__ __forceinline__ u32 ordered(float x) {
    u32 b = __float_as_uint(x);
    return b >> 31 ? ~b : b | 0x80000000u;
}

// Blocks take rows and choices in turns; each has room for the scores of a row's units.
KERNEL select_units(Step s, Select op) {
    __shared__ u32 counts[256];
    __shared__ u32 found[4];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    u32 choices = op.summed ? 1 : op.heads, total = rows_of(s, LEAD_ROWS) * choices;
    float *scores = op.scores + (u64)blockIdx.x * op.most_units;
    for (u32 job = blockIdx.x; job < total; job += gridDim.x) {
        u32 row = job / choices, choice = job % choices;
        i32 *out = op.out + (u64)job * op.top_k;
        u32 seq = s.seq[row], slot = s.slot[seq];
        bool live = s.flags[row] & ROW_LIVE;
        u32 seen = live ? (place_of_row(s, row) + 1) / op.cache.entry : 0, units = (seen + op.unit - 1) / op.unit;
        __syncthreads();
        for (u32 u = warp; u < units; u += warps) {
            float best = -INF;
            for (u32 e = u * op.unit; e < min((u + 1) * op.unit, seen); e++) {
                Place at = place(op.cache, slot, e * op.cache.entry);
                float score = 0.0f;
                for (u32 h = op.summed ? 0 : choice; h < (op.summed ? op.heads : choice + 1); h++) {
                    const float *q = op.q + ((u64)row * op.heads + h) * op.dim;
                    float dot = 0.0f;
                    for (u32 d = lane; d < op.dim; d += 32) dot = __fmaf_rn(q[d], load_cached(op.cache.k, at, d), dot);
                    dot = sum_lanes(dot) * op.scale;
                    score = op.summed ? score + op.w[(u64)row * op.heads + h] * fmaxf(dot, 0.0f) : dot;
                }
                best = fmaxf(best, score);
            }
            if (u + op.local >= units) best = INF;
            if (lane == 0) scores[u] = best;
        }
        __syncthreads();
        // The key of the last unit that is chosen, digit by digit, and how many of that key are.
        u32 key = 0, left = op.top_k;
        if (units > op.top_k) {
            for (int shift = 24; shift >= 0; shift -= 8) {
                for (u32 i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
                __syncthreads();
                for (u32 u = threadIdx.x; u < units; u += blockDim.x) {
                    u32 k = ordered(scores[u]);
                    if (shift == 24 || (k >> (shift + 8)) == (key >> (shift + 8))) atomicAdd(&counts[(k >> shift) & 255], 1);
                }
                __syncthreads();
                if (threadIdx.x == 0) {
                    u32 digit = 255;
                    while (counts[digit] < left) left -= counts[digit--];
                    found[0] = key | digit << shift;
                    found[1] = left;
                }
                __syncthreads();
                key = found[0], left = found[1];
                __syncthreads();
            }
        }
        // One warp writes them in order.
        if (warp == 0) {
            u32 written = 0, ties = 0;
            for (u32 base = 0; base < units; base += 32) {
                u32 u = base + lane, k = u < units ? ordered(scores[u]) : 0;
                bool tie = units > op.top_k && u < units && k == key;
                u32 tied = __ballot_sync(ALL_LANES, tie);
                bool take = u < units && (units <= op.top_k || k > key || (tie && ties + __popc(tied & ((1u << lane) - 1)) < left));
                u32 taken = __ballot_sync(ALL_LANES, take);
                if (take) out[written + __popc(taken & ((1u << lane) - 1))] = (i32)u;
                written += __popc(taken);
                ties += __popc(tied);
            }
            for (u32 i = written + lane; i < op.top_k; i += 32) out[i] = -1;
        }
    }
}

struct Compress {
    Cache cache;
    const float *ape;
    float *out;
    u32 ratio, overlap, width, wide; // wide: columns of the inputs
};

KERNEL compress(Step s, Compress op) {
    u32 row = blockIdx.x;
    if (row >= rows_of(s, LEAD_ROWS)) return;
    float *out = op.out + (u64)row * op.width;
    u32 seq = s.seq[row], pos = place_of_row(s, row);
    bool ends = (s.flags[row] & ROW_LIVE) && (pos + 1) % op.ratio == 0;
    u32 most = (op.overlap ? 2 : 1) * op.ratio, first = pos + 1 > most ? pos + 1 - most : 0;
    for (u32 c = threadIdx.x; c < op.width; c += blockDim.x) {
        float best = -INF, sum = 0.0f, mix = 0.0f;
        for (u32 turn = 0; ends && turn < 2; turn++) {
            for (u32 q = first; q <= pos; q++) {
                Place at = place(op.cache, s.slot[seq], q);
                u32 column = c + (op.overlap && q + op.ratio > pos ? op.width : 0);
                float score = load_cached(op.cache.v, at, column) + op.ape[(q % op.ratio) * op.wide + column];
                if (turn == 0) {
                    best = fmaxf(best, score);
                } else {
                    float w = expf(score - best);
                    sum += w;
                    mix += w * load_cached(op.cache.k, at, column);
                }
            }
        }
        out[c] = ends ? mix / sum : 0.0f;
    }
}
