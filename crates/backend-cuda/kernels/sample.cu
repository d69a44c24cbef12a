// A draw from a row of logits, in integers from the logits on, as `ir::sample` says: a block for each row.
//
// The candidates of a row are the values in its scratch that are not excluded; a filter excludes those it removes.
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

struct Shared {
    u64 sums[256];
    u64 lanes[32];
    u64 found[2];
    u64 chunks[1024];
    u32 flags[4];
};

static __device__ u32 below(i32 value, i32 top) { return (u32)(top - value); }

static __device__ i32 best_of(const i32 *v, u32 n, Shared &sh) {
    i64 best = (i64)EXCLUDED;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) best = v[i] > best ? v[i] : best;
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

// Keeps the first candidates, lower ids first among equals, up to the one with which their mass reaches the target.
static __device__ void keep_mass(const Draw &op, i32 *v, const Order &o, u64 target, Shared &sh) {
    u32 key = 0;
    u64 before = 0;
    if (target == 0) target = 1;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < 256; i += blockDim.x) sh.sums[i] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x) {
            if (v[i] == EXCLUDED) continue;
            u32 k = sort_key(o, v[i]);
            if (shift == 24 || (k ^ key) >> (shift + 8) == 0) atomicAdd(&sh.sums[k >> shift & 255], mass_of(op, o, v[i]));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 digit = 0;
            while (digit < 256 && before + sh.sums[digit] < target) before += sh.sums[digit++];
            sh.found[0] = before;
            sh.found[1] = digit;
        }
        __syncthreads();
        before = sh.found[0];
        if (sh.found[1] == 256) return;
        key |= (u32)sh.found[1] << shift;
    }
    if (threadIdx.x == 0) sh.flags[0] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x) {
        if (v[i] == EXCLUDED) continue;
        u32 k = sort_key(o, v[i]);
        if (k > key) v[i] = EXCLUDED;
        if (k == key) atomicAdd(&sh.flags[0], 1);
    }
    __syncthreads();
    if (sh.flags[0] <= 1) return;
    // Ties: each thread takes a run of ids, and knows the mass of those before it.
    u32 run = (op.vocab + blockDim.x - 1) / blockDim.x, first = threadIdx.x * run, end = min(first + run, op.vocab);
    u64 own = 0;
    for (u32 i = first; i < end; i++)
        if (v[i] != EXCLUDED && sort_key(o, v[i]) == key) own += mass_of(op, o, v[i]);
    sh.chunks[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 sum = before;
        for (u32 t = 0; t < blockDim.x; t++) {
            u64 x = sh.chunks[t];
            sh.chunks[t] = sum;
            sum += x;
        }
    }
    __syncthreads();
    u64 sum = sh.chunks[threadIdx.x];
    for (u32 i = first; i < end; i++) {
        if (v[i] == EXCLUDED || sort_key(o, v[i]) != key) continue;
        i32 x = v[i];
        if (sum >= target) v[i] = EXCLUDED;
        sum += mass_of(op, o, x);
    }
    __syncthreads();
}

static __device__ void top_n_sigma(const Draw &op, i32 *v, u32 n, Shared &sh) {
    i32 top = best_of(v, op.vocab, sh);
    u64 sum = 0, squares = 0, count = 0;
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x) {
        if (v[i] == EXCLUDED) continue;
        u64 d = min(below(v[i], top) >> 8, (1u << 22) - 1);
        sum += d, squares += d * d, count++;
    }
    sum = sum_block_u64(sum, sh.lanes), squares = sum_block_u64(squares, sh.lanes), count = sum_block_u64(count, sh.lanes);
    u64 mean = sum / count, about = squares + count * mean * mean - 2 * mean * sum;
    u64 wide = (root((about / count) << 16) * n) >> 16;
    u32 most = wide > 0xffffffffull ? 0xffffffffu : (u32)wide;
    __syncthreads();
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x)
        if (v[i] != EXCLUDED && below(v[i], top) > most) v[i] = EXCLUDED;
    __syncthreads();
}

static __device__ void typical(const Draw &op, i32 *v, u32 p, Shared &sh) {
    i32 top = best_of(v, op.vocab, sh);
    u64 total = 0, sum = 0;
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x) {
        if (v[i] == EXCLUDED) continue;
        u32 d = below(v[i], top);
        u64 w = exp_of(op, d);
        total += w, sum += (w * d) >> 8;
    }
    total = sum_block_u64(total, sh.lanes), sum = sum_block_u64(sum, sh.lanes);
    Order order = {top, 1, (u32)(sum / (total >> 8)), 1};
    keep_mass(op, v, order, share(total, p) + 1, sh);
}

static __device__ u64 total_mass(const Draw &op, const i32 *v, i32 top, Shared &sh) {
    u64 total = 0;
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x)
        if (v[i] != EXCLUDED) total += exp_of(op, below(v[i], top));
    return sum_block_u64(total, sh.lanes);
}

static __device__ void xtc(const Draw &op, i32 *v, const u32 *record, u32 position, Shared &sh) {
    bool applies = record[7] == OFF || (record[7] != 0 && (u32)(noise(record[14], record[15], position, OFF) >> 32) < record[7]);
    if (!applies) return;
    i32 top = best_of(v, op.vocab, sh);
    u64 threshold = share(total_mass(op, v, top, sh), record[8]);
    // The least above: the lowest value, of the highest id.
    i64 least = (i64)1 << 63;
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x)
        if (v[i] != EXCLUDED && exp_of(op, below(v[i], top)) >= threshold) {
            i64 r = ((i64)below(v[i], top) << 32) | i;
            least = r > least ? r : least;
        }
    least = max_block_i64(least, (i64 *)sh.lanes);
    __syncthreads();
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x)
        if (v[i] != EXCLUDED && exp_of(op, below(v[i], top)) >= threshold && i != (u32)least) v[i] = EXCLUDED;
    __syncthreads();
}

static __device__ i32 drawn(const Draw &op, const i32 *v, const u32 *record, u32 position, Shared &sh) {
    i32 top = best_of(v, op.vocab, sh);
    i64 best = (i64)1 << 63;
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x) {
        if (v[i] == EXCLUDED) continue;
        u64 cold = ((u64)below(v[i], top) * record[0]) >> min(record[1], 63u);
        i32 loss = cold > (1ull << 30) ? 1 << 30 : (i32)cold;
        i32 score = gumbel(op, noise(record[14], record[15], position, i)) - loss;
        i64 r = ((i64)score << 32) | (OFF - i);
        best = r > best ? r : best;
    }
    best = max_block_i64(best, (i64 *)sh.lanes);
    return (i32)(OFF - (u32)best);
}

static __device__ __forceinline__ u32 ordered(float x) {
    u32 b = __float_as_uint(x + 0.0f);
    return b >> 31 ? ~b : b | 0x80000000u;
}

// The largest value; of equals the largest logit as it came, then the lowest id.
static __device__ i32 greedy(const Draw &op, const i32 *v, const float *logits, Shared &sh) {
    i64 best = (i64)1 << 63, own = (i64)1 << 63;
    u32 id = 0;
    for (u32 i = threadIdx.x; i < op.vocab; i += blockDim.x) {
        if (v[i] == EXCLUDED) continue;
        i64 r = (i64)v[i] << 32 | ordered(logits[i]);
        if (r > own) own = r, id = i;
    }
    best = max_block_i64(own, (i64 *)sh.lanes);
    if (best == (i64)1 << 63) return NO_CANDIDATE;
    i64 first = max_block_i64(own == best ? (i64)(OFF - id) : -1, (i64 *)sh.lanes);
    return (i32)(OFF - (u32)first);
}

// What bias, mask, penalties and DRY make of logits. Entries of a list may name a token more than once.
static __device__ void touch(const Draw &op, i32 *v, u32 *counts, const Slot &slot, const Logit &logit, u32 position) {
    const u32 *record = slot.record, *bias = (const u32 *)slot.bias, *dry = (const u32 *)logit.dry;
    if (threadIdx.x == 0)
        for (u32 i = 0; i < slot.n_bias; i++)
            if (bias[2 * i] < op.vocab) v[bias[2 * i]] = plus(v[bias[2 * i]], (i32)bias[2 * i + 1]);
    u32 recent = min(record[13], position + 1);
    const u32 *tokens = (const u32 *)slot.tokens + (position + 1 - recent);
    for (u32 i = threadIdx.x; i < recent; i += blockDim.x)
        if (tokens[i] < op.vocab) atomicAdd(&counts[tokens[i]], 1);
    __syncthreads();
    for (u32 i = threadIdx.x; i < recent; i += blockDim.x) {
        if (tokens[i] >= op.vocab) continue;
        u32 count = atomicExch(&counts[tokens[i]], 0);
        if (count > 0) v[tokens[i]] = penalised(v[tokens[i]], count, record);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 i = 0; i < logit.dry_count; i++)
            if (dry[2 * i] < op.vocab) v[dry[2 * i]] = minus(v[dry[2 * i]], (i32)dry[2 * i + 1]);
    __syncthreads();
}

// Blocks that look for the best of a row.
#define LOOKERS 64

// What a block found in its part of a row: the best, or that there is what is not a number.
struct Found {
    i64 best;
    u32 id;
    u32 broken;
};

// Whether nothing but the logits themselves decides.
static __device__ __forceinline__ bool is_plain(const Slot &slot, const Logit &logit) {
    return slot.record[0] == 0 && slot.record[13] == 0 && slot.n_bias == 0 && logit.dry_count == 0 && logit.mask == 0;
}

KERNEL best_logits(Step s, Draw op, Found *found) {
    __shared__ Shared sh;
    u32 i = blockIdx.y;
    if (i >= rows_of(s, LEAD_LOGITS)) return;
    u32 row = s.logit_row[i];
    if (!(s.flags[row] & ROW_LIVE) || !is_plain(s.slots[s.slot[s.seq[row]]], s.logit[i])) return;
    const float *logits = op.logits + (u64)i * op.vocab;
    i64 none = (i64)1 << 63, own = none;
    u32 id = 0;
    bool broken = false;
    for (u32 t = blockIdx.x * blockDim.x + threadIdx.x; t < op.vocab; t += LOOKERS * blockDim.x) {
        float x = logits[t];
        broken |= x != x;
        if (x != x || x == -INF) continue;
        i64 r = (i64)fixed(x) << 32 | ordered(x);
        if (r > own) own = r, id = t;
    }
    broken = __syncthreads_or(broken);
    i64 best = max_block_i64(own, (i64 *)sh.lanes);
    i64 first = max_block_i64(own == best && best != none ? (i64)(OFF - id) : -1, (i64 *)sh.lanes);
    if (threadIdx.x == 0) {
        Found f = {best, OFF - (u32)first, broken};
        found[i * LOOKERS + blockIdx.x] = f;
    }
}

// The best of what the blocks found; every thread of a warp calls it.
static __device__ i32 best_found(const Found *found) {
    i64 none = (i64)1 << 63, best = none;
    u32 id = OFF, broken = 0;
    for (u32 j = threadIdx.x; j < LOOKERS; j += 32) {
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

KERNEL sample(Step s, Draw op, const Found *found) {
    __shared__ Shared sh;
    u32 i = blockIdx.x;
    if (i >= rows_of(s, LEAD_LOGITS)) return;
    u32 row = s.logit_row[i];
    if (!(s.flags[row] & ROW_LIVE)) {
        if (threadIdx.x == 0) op.out[i] = STOPPED;
        return;
    }
    const Slot &slot = s.slots[s.slot[s.seq[row]]];
    const Logit &logit = s.logit[i];
    if (is_plain(slot, logit)) {
        if (threadIdx.x < 32) {
            i32 token = best_found(found + i * LOOKERS);
            if (threadIdx.x == 0) op.out[i] = token;
        }
        return;
    }
    const u32 *record = slot.record, *mask = (const u32 *)logit.mask;
    const float *logits = op.logits + (u64)i * op.vocab;
    i32 *v = op.values + (u64)i * op.vocab;
    u32 position = place_of_row(s, row);
    bool broken = false;
    for (u32 t = threadIdx.x; t < op.vocab; t += blockDim.x) {
        float x = logits[t];
        broken |= x != x;
        bool allowed = !mask || (t / 32 < logit.mask_words && mask[t / 32] >> (t % 32) & 1);
        v[t] = allowed && x == x ? fixed(x) : EXCLUDED;
    }
    if (__syncthreads_or(broken)) {
        if (threadIdx.x == 0) op.out[i] = NOT_A_NUMBER;
        return;
    }
    if (slot.n_bias || record[13] || logit.dry_count) touch(op, v, op.counts + (u64)i * op.vocab, slot, logit, position);
    i32 token;
    if (record[0] == 0) {
        token = greedy(op, v, logits, sh);
    } else if (best_of(v, op.vocab, sh) == EXCLUDED) {
        token = NO_CANDIDATE;
    } else {
        if (record[6]) top_n_sigma(op, v, record[6], sh);
        if (record[2] && record[2] < op.vocab) {
            Order order = {best_of(v, op.vocab, sh), 0, 0, 0};
            keep_mass(op, v, order, record[2], sh);
        }
        if (record[4] != OFF) typical(op, v, record[4], sh);
        if (record[3] != OFF) {
            i32 top = best_of(v, op.vocab, sh);
            Order order = {top, 0, 0, 1};
            keep_mass(op, v, order, share(total_mass(op, v, top, sh), record[3]), sh);
        }
        if (record[5] != OFF) {
            i32 top = best_of(v, op.vocab, sh);
            __syncthreads();
            for (u32 t = threadIdx.x; t < op.vocab; t += blockDim.x)
                if (v[t] != EXCLUDED && below(v[t], top) > record[5]) v[t] = EXCLUDED;
            __syncthreads();
        }
        xtc(op, v, record, position, sh);
        token = drawn(op, v, record, position, sh);
    }
    if (threadIdx.x == 0) op.out[i] = token;
}

// Log-probabilities of the drawn token and of the likeliest, of logits as they came.
KERNEL report(Step s, Draw op, const i32 *tokens, u32 *out) {
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
