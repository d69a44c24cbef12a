// A draw from a row of logits, in integers from the logits on, as `ir::sample` says: many blocks look at parts of a row
// (`sift`), and one makes a token of what they found (`sample`), or goes through the whole row where that is not enough.
//
// Candidates are the values of a row or a list that are not excluded; a filter excludes those it removes.
#include "common.cuh"

#define EXCLUDED ((i32)0x80000000)
#define MOST ((1 << 30) - (1 << 6))
#define OFF 0xffffffffu
#define LN_2 11629080u
#define LOG2_E 3098164009u
#define NOT_A_NUMBER (-1)
#define NO_CANDIDATE (-2)
#define STOPPED (-3)
#define LISTED 20
#define REPORT_WORDS (2 + 2 * LISTED)

struct Draw {
    const float *logits;
    i32 *out;
    i32 *values;        // scratch: per row
    u32 *counts;        // scratch of zeros: per row
    const u32 *exps;    // 257
    const u32 *lns;     // 513
    const u32 *ln_lns;  // 257
    u32 vocab;
    u32 pad;
};

static __device__ __forceinline__ i32 cut(i64 x) { return x > MOST ? MOST : x < -MOST ? -MOST : (i32)x; }

static __device__ __forceinline__ i32 fixed(float x) {
    if (x == -INF) return EXCLUDED;
    return __float2int_rz(fminf(fmaxf(x * 65536.0f, -(float)MOST), (float)MOST));
}

static __device__ __forceinline__ i32 plus(i32 a, i32 b) {
    return a == EXCLUDED || b == EXCLUDED ? EXCLUDED : cut((i64)a + b);
}

static __device__ __forceinline__ i32 minus(i32 a, i32 b) { return b == EXCLUDED ? EXCLUDED : plus(a, -b); }

static __device__ __forceinline__ i32 times(i32 a, u32 factor, u32 shift) {
    if (a == EXCLUDED) return a;
    u64 m = ((u64)(u32)(a < 0 ? -a : a) * factor) >> shift;
    i32 r = m > (u64)MOST ? MOST : (i32)m;
    return a < 0 ? -r : r;
}

static __device__ __forceinline__ i32 penalised(i32 x, u32 count, const u32 *record) {
    i32 per_token = times((i32)record[11], count, 0);
    return minus(times(x, x > 0 ? record[10] : record[9], 24), plus(per_token, (i32)record[12]));
}

static __device__ __forceinline__ u32 exp_of(const Draw &op, u32 d) {
    if (d >= 1u << 21) return 0;
    u32 turns = __umulhi(d << 10, LOG2_E), n = turns >> 25, i = turns >> 17 & 255;
    u32 e = op.exps[i], value = e - __umulhi(e - op.exps[i + 1], turns << 15);
    return n == 0 ? value : n < 32 ? (value + (1u << (n - 1))) >> n : 0;
}

static __device__ __forceinline__ u32 neg_ln(const Draw &op, u64 v) {
    v |= 1;
    u32 zeros = __clzll((i64)v), mantissa = (u32)((v << zeros) >> 32);
    u32 i = mantissa >> 22 & 511, rest = mantissa >> 6 & 0xffff, ln = op.lns[i];
    return zeros * LN_2 + ln - (((ln - op.lns[i + 1]) * rest) >> 16);
}

static __device__ i32 gumbel(const Draw &op, u64 v) {
    if (v >> 63) return (i32)neg_ln(op, (u64)neg_ln(op, ~v) << 32) - 8 * (i32)LN_2;
    u32 i = (u32)(v >> 55), rest = (u32)(v >> 39) & 0xffff, low = op.ln_lns[i];
    u32 bend = low + (((op.ln_lns[i + 1] - low) * rest) >> 16);
    return (i32)neg_ln(op, v) - (i32)bend;
}

static __device__ __forceinline__ void rounds(u32 &a, u32 &b, u32 r0, u32 r1, u32 r2, u32 r3) {
    a += b, b = __funnelshift_l(b, b, r0) ^ a;
    a += b, b = __funnelshift_l(b, b, r1) ^ a;
    a += b, b = __funnelshift_l(b, b, r2) ^ a;
    a += b, b = __funnelshift_l(b, b, r3) ^ a;
}

// Threefry-2×32 with 13 rounds.
static __device__ __forceinline__ u64 noise(u32 k0, u32 k1, u32 position, u32 id) {
    u32 k2 = 0x1bd11bdau ^ k0 ^ k1, a = position + k0, b = id + k1;
    rounds(a, b, 13, 15, 26, 6);
    a += k1, b += k2 + 1;
    rounds(a, b, 17, 29, 16, 24);
    a += k2, b += k0 + 2;
    rounds(a, b, 13, 15, 26, 6);
    a += k0, b += k1 + 3;
    a += b, b = __funnelshift_l(b, b, 17) ^ a;
    return (u64)a << 32 | b;
}

static __device__ __forceinline__ u64 share(u64 total, u32 p) { return (total >> 32) * p + (((total & 0xffffffffull) * p) >> 32); }

static __device__ u64 root(u64 x) {
    u64 r = (u64)sqrt((double)x);
    while (r * r > x) r--;
    while ((r + 1) * (r + 1) <= x) r++;
    return r;
}

// Sets of keys of which a mass is kept, and the distance that one of them spans at first.
#define BINS 2048u
#define BIN_SHIFT 11

// Blocks that look at a row, and the most values of which each keeps its part at hand.
#define LOOKERS 64u
#define PART 6144u
// Candidates that each of them lists where top-k keeps no more.
#define MOST_LISTED 128u

struct Shared {
    u64 sums[BINS];
    u64 lanes[33];
    u64 found[2];
    u32 flags[4];
};

// Candidates: values, and their ids where those are not their places. Ids rise with places.
struct Row {
    i32 *v;
    const u32 *ids;
    u32 n;
};

static __device__ __forceinline__ u32 id_of(const Row &row, u32 i) { return row.ids ? row.ids[i] : i; }

static __device__ u32 below(i32 value, i32 top) { return (u32)(top - value); }

static __device__ i32 best_of(const Row &row, Shared &sh) {
    i64 best = (i64)EXCLUDED;
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x) best = row.v[i] > best ? row.v[i] : best;
    return (i32)max_block_i64(best, (i64 *)sh.lanes);
}

// How candidates are sorted and what they weigh.
struct Order {
    i32 top;
    u32 strange;    // by the distance of their distance to `mean`, rather than by their distance
    u32 mean;
    u32 weighted;   // by their exponential, rather than by one
};

static __device__ __forceinline__ u32 sort_key(const Order &o, i32 v) {
    u32 d = below(v, o.top);
    return !o.strange ? d : d > o.mean ? d - o.mean : o.mean - d;
}

static __device__ __forceinline__ u64 mass_of(const Draw &op, const Order &o, i32 v) {
    return o.weighted ? exp_of(op, below(v, o.top)) : 1;
}

// The first bin with which the mass reaches the target, and the mass before it; BINS where none does.
static __device__ u32 edge_bin(u64 &before, u64 target, Shared &sh) {
    __syncthreads();
    if (threadIdx.x == 0) sh.found[1] = BINS;
    u32 own = BINS / blockDim.x, first = threadIdx.x * own;
    u64 mass = 0;
    for (u32 b = first; b < first + own; b++) mass += sh.sums[b];
    u64 sum = before + sum_before_u64(mass, sh.lanes);
    if (sum < target && sum + mass >= target) {
        u32 b = first;
        while (sum + sh.sums[b] < target) sum += sh.sums[b++];
        sh.found[0] = sum;
        sh.found[1] = b;
    }
    __syncthreads();
    before = sh.found[0];
    return (u32)sh.found[1];
}

// Keeps the first candidates, lower ids first among equals, up to the one with which their mass reaches the target.
static __device__ void keep_mass(const Draw &op, const Row &row, const Order &o, u64 target, Shared &sh) {
    if (target == 0) target = 1;
    u32 key = 0;
    u64 before = 0;
    // Bits of the key that are known, from the top, and those of a bin. Almost all candidates are near: the first bins are of
    // near keys alone, and the last one holds all others, which take turns of their own where the target lies among them.
    u32 known = 32, shift = BIN_SHIFT;
    bool near = true;
    for (;;) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) sh.sums[i] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < row.n; i += blockDim.x) {
            i32 x = row.v[i];
            if (x == EXCLUDED) continue;
            u32 k = sort_key(o, x);
            if (near) {
                atomicAdd(&sh.sums[min(k >> BIN_SHIFT, BINS - 1)], mass_of(op, o, x));
            } else if (((u64)(k ^ key) >> known) == 0) {
                atomicAdd(&sh.sums[(k >> shift) & ((1u << (known - shift)) - 1)], mass_of(op, o, x));
            }
        }
        u64 sum = before;
        u32 bin = edge_bin(sum, target, sh);
        if (bin == BINS) return;
        if (near && bin == BINS - 1) {
            shift = 32 - BIN_SHIFT;
        } else {
            key |= bin << shift, before = sum, known = shift;
            if (shift == 0) break;
            shift = shift > BIN_SHIFT ? shift - BIN_SHIFT : 0;
        }
        near = false;
    }
    if (threadIdx.x == 0) sh.flags[0] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x) {
        if (row.v[i] == EXCLUDED) continue;
        u32 k = sort_key(o, row.v[i]);
        if (k > key) row.v[i] = EXCLUDED;
        if (k == key) atomicAdd(&sh.flags[0], 1);
    }
    __syncthreads();
    if (sh.flags[0] <= 1) return;
    // Ties: each thread takes a run of places, and knows the mass of those before it.
    u32 run = (row.n + blockDim.x - 1) / blockDim.x, first = min(threadIdx.x * run, row.n), end = min(first + run, row.n);
    u64 own = 0;
    for (u32 i = first; i < end; i++)
        if (row.v[i] != EXCLUDED && sort_key(o, row.v[i]) == key) own += mass_of(op, o, row.v[i]);
    u64 sum = before + sum_before_u64(own, sh.lanes);
    for (u32 i = first; i < end; i++) {
        i32 x = row.v[i];
        if (x == EXCLUDED || sort_key(o, x) != key) continue;
        if (sum >= target) row.v[i] = EXCLUDED;
        sum += mass_of(op, o, x);
    }
    __syncthreads();
}

// Keeps the k best.
static __device__ void keep_best(const Draw &op, const Row &row, u32 k, Shared &sh) {
    Order order = {best_of(row, sh), 0, 0, 0};
    keep_mass(op, row, order, k, sh);
}

// Writes down candidates and their ids in their order, and EXCLUDED behind them up to `most`, which they do not exceed.
static __device__ void list(const Row &row, u32 first_id, i32 *values, u32 *ids, u32 most, Shared &sh) {
    u32 run = (row.n + blockDim.x - 1) / blockDim.x, first = min(threadIdx.x * run, row.n), end = min(first + run, row.n);
    u32 own = 0;
    for (u32 i = first; i < end; i++) own += row.v[i] != EXCLUDED;
    u32 place = (u32)sum_before_u64(own, sh.lanes);
    if (threadIdx.x == blockDim.x - 1) sh.flags[0] = place + own;
    for (u32 i = first; i < end; i++)
        if (row.v[i] != EXCLUDED) values[place] = row.v[i], ids[place++] = first_id + id_of(row, i);
    __syncthreads();
    for (u32 i = sh.flags[0] + threadIdx.x; i < most; i += blockDim.x) values[i] = EXCLUDED;
    __syncthreads();
}

static __device__ void top_n_sigma(const Draw &op, const Row &row, u32 n, Shared &sh) {
    i32 top = best_of(row, sh);
    u64 sum = 0, squares = 0, count = 0;
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x) {
        if (row.v[i] == EXCLUDED) continue;
        u64 d = min(below(row.v[i], top) >> 8, (1u << 22) - 1);
        sum += d, squares += d * d, count++;
    }
    sum = sum_block_u64(sum, sh.lanes), squares = sum_block_u64(squares, sh.lanes), count = sum_block_u64(count, sh.lanes);
    u64 mean = sum / count, about = squares + count * mean * mean - 2 * mean * sum;
    u64 wide = (root((about / count) << 16) * n) >> 16;
    u32 most = wide > 0xffffffffull ? 0xffffffffu : (u32)wide;
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x)
        if (row.v[i] != EXCLUDED && below(row.v[i], top) > most) row.v[i] = EXCLUDED;
    __syncthreads();
}

static __device__ void typical(const Draw &op, const Row &row, u32 p, Shared &sh) {
    i32 top = best_of(row, sh);
    u64 total = 0, sum = 0;
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x) {
        if (row.v[i] == EXCLUDED) continue;
        u32 d = below(row.v[i], top);
        u64 w = exp_of(op, d);
        total += w, sum += (w * d) >> 8;
    }
    total = sum_block_u64(total, sh.lanes), sum = sum_block_u64(sum, sh.lanes);
    Order order = {top, 1, (u32)(sum / (total >> 8)), 1};
    keep_mass(op, row, order, share(total, p) + 1, sh);
}

static __device__ u64 total_mass(const Draw &op, const Row &row, i32 top, Shared &sh) {
    u64 total = 0;
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x)
        if (row.v[i] != EXCLUDED) total += exp_of(op, below(row.v[i], top));
    return sum_block_u64(total, sh.lanes);
}

static __device__ void xtc(const Draw &op, const Row &row, const u32 *record, u32 position, Shared &sh) {
    bool applies = record[7] == OFF || (record[7] != 0 && (u32)(noise(record[14], record[15], position, OFF) >> 32) < record[7]);
    if (!applies) return;
    i32 top = best_of(row, sh);
    u64 threshold = share(total_mass(op, row, top, sh), record[8]);
    // The least above: the lowest value, of the highest id.
    i64 least = (i64)1 << 63;
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x)
        if (row.v[i] != EXCLUDED && exp_of(op, below(row.v[i], top)) >= threshold) {
            i64 r = ((i64)below(row.v[i], top) << 32) | i;
            least = r > least ? r : least;
        }
    least = max_block_i64(least, (i64 *)sh.lanes);
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x)
        if (row.v[i] != EXCLUDED && exp_of(op, below(row.v[i], top)) >= threshold && i != (u32)least) row.v[i] = EXCLUDED;
    __syncthreads();
}

static __device__ i32 drawn(const Draw &op, const Row &row, const u32 *record, u32 position, Shared &sh) {
    i32 top = best_of(row, sh);
    i64 best = (i64)1 << 63;
    for (u32 i = threadIdx.x; i < row.n; i += blockDim.x) {
        if (row.v[i] == EXCLUDED) continue;
        u64 cold = ((u64)below(row.v[i], top) * record[0]) >> min(record[1], 63u);
        i32 loss = cold > (1ull << 30) ? 1 << 30 : (i32)cold;
        u32 id = id_of(row, i);
        i32 score = gumbel(op, noise(record[14], record[15], position, id)) - loss;
        i64 r = ((i64)score << 32) | (OFF - id);
        best = r > best ? r : best;
    }
    best = max_block_i64(best, (i64 *)sh.lanes);
    return (i32)(OFF - (u32)best);
}

static __device__ __forceinline__ u32 ordered(float x) {
    u32 b = __float_as_uint(x + 0.0f);
    return b >> 31 ? ~b : b | 0x80000000u;
}

// What bias, mask, penalties and DRY make of the logits from one id on. Entries of a list may name a token more than once.
// Returns whether one of the logits is not a number.
static __device__ bool touch(const Draw &op, const Row &row, u32 first, u32 i, const Slot &slot, const Logit &logit, u32 position) {
    const u32 *record = slot.record, *bias = (const u32 *)slot.bias, *dry = (const u32 *)logit.dry, *mask = (const u32 *)logit.mask;
    const float *logits = op.logits + (u64)i * op.vocab + first;
    u32 *counts = op.counts + (u64)i * op.vocab + first;
    bool broken = false;
    for (u32 t = threadIdx.x; t < row.n; t += blockDim.x) {
        float x = logits[t];
        u32 id = first + t;
        broken |= x != x;
        bool allowed = !mask || (id / 32 < logit.mask_words && mask[id / 32] >> (id % 32) & 1);
        row.v[t] = allowed && x == x ? fixed(x) : EXCLUDED;
    }
    broken = __syncthreads_or(broken);
    if (slot.n_bias && threadIdx.x == 0)
        for (u32 j = 0; j < slot.n_bias; j++) {
            u32 t = bias[2 * j] - first;
            if (t < row.n) row.v[t] = plus(row.v[t], (i32)bias[2 * j + 1]);
        }
    u32 recent = min(record[13], position + 1);
    if (recent) {
        const u32 *tokens = (const u32 *)slot.tokens + (position + 1 - recent);
        for (u32 j = threadIdx.x; j < recent; j += blockDim.x)
            if (tokens[j] - first < row.n) atomicAdd(&counts[tokens[j] - first], 1);
        __syncthreads();
        for (u32 j = threadIdx.x; j < recent; j += blockDim.x) {
            u32 t = tokens[j] - first;
            if (t >= row.n) continue;
            u32 count = atomicExch(&counts[t], 0);
            if (count > 0) row.v[t] = penalised(row.v[t], count, record);
        }
        __syncthreads();
    }
    if (logit.dry_count && threadIdx.x == 0)
        for (u32 j = 0; j < logit.dry_count; j++) {
            u32 t = dry[2 * j] - first;
            if (t < row.n) row.v[t] = minus(row.v[t], (i32)dry[2 * j + 1]);
        }
    __syncthreads();
    return broken;
}

// What a block found in its part of a row: the best, or that there is what is not a number.
struct Found {
    i64 best;
    u32 id;
    u32 broken;
};

// How a row's token is found: the logits themselves decide; what is made of them does; the best of all parts are drawn from;
// or one block goes through all candidates.
enum Way { PLAIN, BEST, LISTS, WHOLE };

static __device__ __forceinline__ Way way_of(const Draw &op, const Slot &slot, const Logit &logit) {
    const u32 *record = slot.record;
    bool fits = op.vocab <= LOOKERS * PART;
    if (record[0] == 0) {
        bool plain = record[13] == 0 && slot.n_bias == 0 && logit.dry_count == 0 && logit.mask == 0;
        return plain ? PLAIN : fits ? BEST : WHOLE;
    }
    bool few = record[2] != 0 && record[2] <= MOST_LISTED && record[6] == 0;
    return few && fits && op.vocab >= 2 * LOOKERS * MOST_LISTED ? LISTS : WHOLE;
}

// The largest value; of equals the largest logit as it came, then the lowest id.
static __device__ __forceinline__ void better(i64 &best, u32 &id, i32 value, float logit, u32 t) {
    i64 r = (i64)value << 32 | ordered(logit);
    if (r > best) best = r, id = t;
}

static __device__ Found found_of(i64 own, u32 id, bool broken, Shared &sh) {
    i64 none = (i64)1 << 63, best = max_block_i64(own, (i64 *)sh.lanes);
    i64 first = max_block_i64(own == best && best != none ? (i64)(OFF - id) : -1, (i64 *)sh.lanes);
    Found f = {best, OFF - (u32)first, broken};
    return f;
}

KERNEL sift(Step s, Draw op, Found *found) {
    wait_before();
    __shared__ Shared sh;
    __shared__ i32 part[PART];
    u32 i = blockIdx.y;
    if (i >= rows_of(s, LEAD_LOGITS)) return;
    u32 row = s.logit_row[i];
    if (!(s.flags[row] & ROW_LIVE)) return;
    const Slot &slot = s.slots[s.slot[s.seq[row]]];
    const Logit &logit = s.logit[i];
    Way way = way_of(op, slot, logit);
    if (way == WHOLE) return;
    const float *logits = op.logits + (u64)i * op.vocab;
    i64 own = (i64)1 << 63;
    u32 id = 0;
    bool broken = false;
    if (way == PLAIN) {
        for (u32 t = blockIdx.x * blockDim.x + threadIdx.x; t < op.vocab; t += LOOKERS * blockDim.x) {
            float x = logits[t];
            broken |= x != x;
            if (x == x && x != -INF) better(own, id, fixed(x), x, t);
        }
        broken = __syncthreads_or(broken);
    } else {
        u32 width = (op.vocab + LOOKERS - 1) / LOOKERS, first = min(blockIdx.x * width, op.vocab);
        Row candidates = {part, 0, min(width, op.vocab - first)};
        broken = touch(op, candidates, first, i, slot, logit, place_of_row(s, row));
        for (u32 t = threadIdx.x; t < candidates.n; t += blockDim.x)
            if (part[t] != EXCLUDED) better(own, id, part[t], logits[first + t], first + t);
        if (way == LISTS) {
            u32 k = slot.record[2];
            i32 *values = op.values + (u64)i * op.vocab;
            keep_best(op, candidates, k, sh);
            list(candidates, first, values + blockIdx.x * k, (u32 *)values + (LOOKERS + blockIdx.x) * k, k, sh);
        }
    }
    Found f = found_of(own, id, broken, sh);
    if (threadIdx.x == 0) found[i * LOOKERS + blockIdx.x] = f;
}

// The best of what the blocks found; every thread of a warp calls it.
static __device__ i32 best_found(const Found *found) {
    i64 none = (i64)1 << 63, best = none;
    u32 id = OFF, broken = 0;
    for (u32 j = threadIdx.x & 31; j < LOOKERS; j += 32) {
        Found f = found[j];
        broken |= f.broken;
        if (f.best != none && (f.best > best || (f.best == best && f.id < id))) best = f.best, id = f.id;
    }
    for (int d = 16; d > 0; d >>= 1) {
        i64 b = __shfl_xor_sync(ALL_LANES, best, d);
        u32 o = __shfl_xor_sync(ALL_LANES, id, d);
        broken |= __shfl_xor_sync(ALL_LANES, broken, d);
        if (b > best || (b == best && o < id)) best = b, id = o;
    }
    return broken ? NOT_A_NUMBER : best == none ? NO_CANDIDATE : (i32)id;
}

// The filters behind top-k, and the draw.
static __device__ i32 filtered(const Draw &op, const Row &row, const u32 *record, u32 position, Shared &sh) {
    if (record[4] != OFF) typical(op, row, record[4], sh);
    if (record[3] != OFF) {
        i32 top = best_of(row, sh);
        Order order = {top, 0, 0, 1};
        keep_mass(op, row, order, share(total_mass(op, row, top, sh), record[3]), sh);
    }
    if (record[5] != OFF) {
        i32 top = best_of(row, sh);
        __syncthreads();
        for (u32 t = threadIdx.x; t < row.n; t += blockDim.x)
            if (row.v[t] != EXCLUDED && below(row.v[t], top) > record[5]) row.v[t] = EXCLUDED;
        __syncthreads();
    }
    xtc(op, row, record, position, sh);
    return drawn(op, row, record, position, sh);
}

KERNEL sample(Step s, Draw op, const Found *found) {
    wait_before();
    __shared__ Shared sh;
    __shared__ i32 values[MOST_LISTED];
    __shared__ u32 ids[MOST_LISTED];
    u32 i = blockIdx.x;
    if (i >= rows_of(s, LEAD_LOGITS)) return;
    u32 at = s.logit_row[i];
    if (!(s.flags[at] & ROW_LIVE)) {
        if (threadIdx.x == 0) op.out[i] = STOPPED;
        return;
    }
    const Slot &slot = s.slots[s.slot[s.seq[at]]];
    const Logit &logit = s.logit[i];
    Way way = way_of(op, slot, logit);
    const u32 *record = slot.record;
    u32 position = place_of_row(s, at);
    i32 *v = op.values + (u64)i * op.vocab, token;
    if (way != WHOLE) {
        token = best_found(found + i * LOOKERS);
        if (way == LISTS && token >= 0) {
            Row listed = {v, (u32 *)v + LOOKERS * record[2], LOOKERS * record[2]};
            keep_best(op, listed, record[2], sh);
            list(listed, 0, values, ids, MOST_LISTED, sh);
            Row kept = {values, ids, record[2]};
            token = filtered(op, kept, record, position, sh);
        }
        if (threadIdx.x == 0) op.out[i] = token;
        return;
    }
    Row row = {v, 0, op.vocab};
    bool broken = touch(op, row, 0, i, slot, logit, position);
    if (broken) {
        token = NOT_A_NUMBER;
    } else if (best_of(row, sh) == EXCLUDED) {
        token = NO_CANDIDATE;
    } else if (record[0] == 0) {
        const float *logits = op.logits + (u64)i * op.vocab;
        i64 own = (i64)1 << 63;
        u32 id = 0;
        for (u32 t = threadIdx.x; t < op.vocab; t += blockDim.x)
            if (v[t] != EXCLUDED) better(own, id, v[t], logits[t], t);
        token = (i32)found_of(own, id, false, sh).id;
    } else {
        if (record[6]) top_n_sigma(op, row, record[6], sh);
        if (record[2] && record[2] < op.vocab) keep_best(op, row, record[2], sh);
        token = filtered(op, row, record, position, sh);
    }
    if (threadIdx.x == 0) op.out[i] = token;
}

// Log-probabilities of the drawn token and of the likeliest, of logits as they came.
KERNEL report(Step s, Draw op, const i32 *tokens, u32 *out) {
    wait_before();
    __shared__ Shared sh;
    u32 i = blockIdx.x;
    if (i >= rows_of(s, LEAD_LOGITS)) return;
    u32 wanted = s.logit[i].best;
    if (wanted == 0 || tokens[i] < 0) return;
    const float *logits = op.logits + (u64)i * op.vocab;
    out += (u64)i * REPORT_WORDS;
    float most = -INF;
    for (u32 t = threadIdx.x; t < op.vocab; t += blockDim.x) most = fmaxf(most, logits[t]);
    i32 top = fixed(max_block(most, (float *)sh.sums));
    u64 total = 0;
    for (u32 t = threadIdx.x; t < op.vocab; t += blockDim.x) {
        i32 v = fixed(logits[t]);
        if (v != EXCLUDED) total += exp_of(op, below(v, top));
    }
    total = sum_block_u64(total, sh.lanes);
    u32 log_total = (33 * LN_2 - neg_ln(op, total) + 128) >> 8;
    i32 offset = cut((i64)top + (i32)log_total);
    u32 n = min(wanted - 1, (u32)LISTED), listed = 0;
    i64 last = 0x7fffffffffffffffll;
    for (u32 j = 0; j < n; j++) {
        i64 best = -1;
        for (u32 t = threadIdx.x; t < op.vocab; t += blockDim.x) {
            if (fixed(logits[t]) == EXCLUDED) continue;
            i64 r = (i64)((u64)ordered(logits[t]) << 31 | (0x7fffffffu - t));
            if (r < last && r > best) best = r;
        }
        best = max_block_i64(best, (i64 *)sh.lanes);
        if (best < 0) break;
        last = best;
        u32 id = 0x7fffffffu - (u32)(best & 0x7fffffff);
        if (threadIdx.x == 0) out[2 + 2 * j] = id, out[3 + 2 * j] = (u32)minus(fixed(logits[id]), offset);
        listed++;
    }
    if (threadIdx.x == 0) out[0] = (u32)minus(fixed(logits[tokens[i]]), offset), out[1] = listed;
}
