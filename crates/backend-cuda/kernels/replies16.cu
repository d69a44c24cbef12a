// Products of many replies' rows with weights of sixteen bits on tensor cores, in the order of sixteen.cuh: a row has the same
// bits alone and among others.
//
// A warp sums every eighth run: eight rows, either part of each, by four times eight outputs at once.
#include "async.cuh"
#include "tiles.cuh"
#include "wgmma.cuh"

#define OUTS 32     // outputs of a tile
#define RUNS 8      // of a stretch of 256 columns, each a warp's
#define PITCH 576   // bytes from a row of a stretch to the next: rows side by side in banks of their own

// Rows of replies in parts, and the units of their runs. Parts for the second step lie `apart` numbers behind those for the first.
//
// For `wide` parts lie as tensor cores take them, `apart` rows of 64 columns and then the next columns: eight rows of the first part,
// then of the second, a run's columns in the order of steps; and units by eight rows of either of two runs.
struct Cut {
    u16 *parts;
    float *units;
    u64 apart;
};

// Sums of quarters of tiles that wait for each other; and how many items of work were taken, then how often each warp's sums were
// written and read.
struct Quarters {
    float *sums;
    u32 *counts;
};

#define SLOTS 96        // tiles whose quarters wait for each other
#define MULTIPLYING 16  // warps of `wide`

// Eight columns of a row, where it is a reply's; four lanes have a run.
template <int F> static __device__ __forceinline__ bool cut_eight(const Step &s, const MatVec &op, u32 row, u32 c, Eight *e) {
    if (row >= rows_of(s, op.lead) || of_prompt(s, op, row)) return false;
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f), *x = (const float4 *)(op.x + (u64)row * op.k + c);
    *e = eight_of<F>(c < op.k ? x[0] : none, c < op.k ? x[1] : none);
    return true;
}

template <int F> static __device__ __forceinline__ void cut(const Step &s, const MatVec &op, const Cut &to) {
#ifdef HAS_TENSOR
    u32 row = blockIdx.y, c = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    Eight e;
    wait_before();
    if (!cut_eight<F>(s, op, row, c, &e) || c >= op.k) return;
    u16 *first = to.parts + (u64)row * op.k + c;
    *(uint4 *)first = e.first, *(uint4 *)(first + to.apart) = e.second;
    if (c % 32 == 0) to.units[(u64)row * ((op.k + 31) / 32) + c / 32] = e.unit;
#endif
}

extern "C" __global__ void cut_F16(Step s, MatVec op, Cut to) { cut<T_F16>(s, op, to); }
extern "C" __global__ void cut_BF16(Step s, MatVec op, Cut to) { cut<T_BF16>(s, op, to); }

// For `wide`, whose counts it sets to 0.
template <int F> static __device__ __forceinline__ void cut_wide(const Step &s, const MatVec &op, const Cut &to, const Quarters &quarters) {
#ifdef HAS_WGMMA
    u32 row = blockIdx.y, c = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    Eight e;
    wait_before();
    if (row == 0)
        for (u32 i = c / 8; i < 1 + SLOTS * MULTIPLYING; i += gridDim.x * blockDim.x) quarters.counts[i] = 0;
    if (!cut_eight<F>(s, op, row, c, &e) || c >= (op.k + 31) / 32 * 32) return;
    u64 first = c / 64 * to.apart + row / 8 * 8;
    u32 r = row % 8, run = c / 32 % 2, words[2][4] = {{e.first.x, e.first.z, e.second.x, e.second.z}, {e.first.y, e.first.w, e.second.y, e.second.w}};
    u32 *parts = (u32 *)to.parts + first * 64 + r * 32 + c / 8 % 4;
    #pragma unroll
    for (u32 p = 0; p < 2; p++)
        #pragma unroll
        for (u32 i = 0; i < 4; i++) parts[p * 256 + ((run * 4 + i) ^ r) * 4] = words[p][i];
    if (c % 32 == 0) to.units[first * 2 + run * 8 + r] = e.unit;
#endif
}

extern "C" __global__ void cut_wide_F16(Step s, MatVec op, Cut to, Quarters quarters) { cut_wide<T_F16>(s, op, to, quarters); }
extern "C" __global__ void cut_wide_BF16(Step s, MatVec op, Cut to, Quarters quarters) { cut_wide<T_BF16>(s, op, to, quarters); }

// A stretch of 256 columns on its way.
template <int ROWS> struct Stretch {
    u8 w[OUTS * PITCH], x[2][ROWS * PITCH];
    float units[ROWS][RUNS];
};

#ifdef HAS_TENSOR
// The sum of the eight runs' sums, `apart` numbers from each other.
static __device__ __forceinline__ float joined(const float *p, u32 apart) {
    float low = __fadd_rn(__fadd_rn(p[0], p[apart]), __fadd_rn(p[4 * apart], p[5 * apart]));
    return __fadd_rn(low, __fadd_rn(__fadd_rn(p[2 * apart], p[3 * apart]), __fadd_rn(p[6 * apart], p[7 * apart])));
}
#endif

// Tiles of 32 outputs by 8 · NT rows.
template <int F, int NT, int DEPTH> static __device__ __forceinline__ void replies(const Step &s, const MatVec &op, const Cut &cut) {
#ifdef HAS_TENSOR
    const int ROWS = 8 * NT, MT = OUTS / 8;
    extern __shared__ __align__(1024) u8 space[];
    Stretch<ROWS> *stages = (Stretch<ROWS> *)space;
    u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, first = blockIdx.x * ROWS, k = op.k;
    Outputs outs;
    bool found = find_outputs(op, F, op.gated ? OUTS / 2 : OUTS, blockIdx.y, &outs);

    // A warp copies a row's 256 columns at a time: every eighth of the outputs, and of the rows for either step.
    const u8 *w[MT];
    #pragma unroll
    for (int i = 0; i < MT; i++) {
        u32 r = warp + 8 * i, part = outs.part;
        if (op.gated) part = r >= OUTS / 2, r %= OUTS / 2;
        w[i] = op.parts[part].data + (u64)min(outs.first + r, outs.count - 1) * op.parts[part].row_bytes + lane * 16;
    }
    u32 runs = (k + 31) / 32, steps = (k + 255) / 256;
    auto copy_weights = [&](u32 t) {
        Stretch<ROWS> &to = stages[t % DEPTH];
        bool there = t < steps && t * 256 + lane * 8 < k;
        #pragma unroll
        for (int i = 0; i < MT; i++) copy16(shared_at(to.w + (warp + 8 * i) * PITCH + lane * 16), there ? w[i] + t * 512 : op.parts[0].data, there);
    };
    bool early = found && blockIdx.x == 0;
    if (early) {
        #pragma unroll
        for (u32 t = 0; t < DEPTH - 1; t++) copy_weights(t);
    }
    wait_before();
    u32 count = rows_of(s, op.lead);
    bool own = tid < ROWS && first + tid < count && !of_prompt(s, op, first + tid);
    if (!__syncthreads_or(own) || !found) {
        copies_end(), copies_wait<0>();
        return;
    }
    u32 row = min(first + tid / RUNS, count - 1);
    const u16 *x[NT];
    #pragma unroll
    for (int i = 0; i < NT; i++) x[i] = cut.parts + (u64)min(first + warp + 8 * i, count - 1) * k + lane * 8;
    const float *units = cut.units + (u64)row * runs + tid % RUNS;
    auto copy = [&](u32 t, bool weights) {
        if (t < steps) {
            Stretch<ROWS> &to = stages[t % DEPTH];
            bool there = t * 256 + lane * 8 < k;
            u32 from = there ? t * 256 : 0;
            if (weights) copy_weights(t);
            #pragma unroll
            for (int i = 0; i < NT; i++)
                #pragma unroll
                for (int p = 0; p < 2; p++)
                    copy16(shared_at(to.x[p] + (warp + 8 * i) * PITCH + lane * 16), there ? x[i] + p * cut.apart + from : cut.parts, there);
            if (tid < ROWS * RUNS && t * RUNS + tid % RUNS < runs) copy4(shared_at(&to.units[tid / RUNS][tid % RUNS]), units + t * RUNS);
        }
        copies_end();
    };
    #pragma unroll
    for (u32 t = 0; t < DEPTH - 1; t++) copy(t, !early);
    u32 group = lane / 4, four = lane % 4, at = warp * 64 + four * 16;
    float sum[NT][MT][2] = {};
    for (u32 t = 0; t < steps; t++) {
        copies_wait<DEPTH - 2>();
        __syncthreads();
        copy(t + DEPTH - 1, true);
        if (t * RUNS + warp >= runs) continue;
        const Stretch<ROWS> &from = stages[t % DEPTH];
        uint4 v[MT];
        #pragma unroll
        for (int m = 0; m < MT; m++) v[m] = *(const uint4 *)(from.w + (m * 8 + group) * PITCH + at);
        #pragma unroll
        for (int n = 0; n < NT; n++) {
            const u8 *rows = from.x[0] + (n * 8 + group) * PITCH + at;
            uint4 a = *(const uint4 *)rows, b = *(const uint4 *)(rows + ROWS * PITCH);
            float unit = from.units[n * 8 + group][warp];
            #pragma unroll
            for (int m = 0; m < MT; m++) {
                float d[4];
                run_dots<F>(d, a, b, v[m]);
                sum[n][m][0] = __fmaf_rn(__fadd_rn(d[0], d[2]), unit, sum[n][m][0]);
                sum[n][m][1] = __fmaf_rn(__fadd_rn(d[1], d[3]), unit, sum[n][m][1]);
            }
        }
    }

    // Sums of all warps: of a run OUTS rows of ROWS + 2.
    const u32 WIDE = ROWS + 2;
    float *joint = (float *)space;
    copies_wait<0>();
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < NT; n++)
        #pragma unroll
        for (int m = 0; m < MT; m++)
            #pragma unroll
            for (int i = 0; i < 2; i++) joint[(warp * OUTS + m * 8 + four * 2 + i) * WIDE + n * 8 + group] = sum[n][m][i];
    __syncthreads();
    u32 wide = op.gated ? OUTS / 2 : OUTS;
    for (u32 e = tid; e < ROWS * wide; e += 256) {
        u32 r = e / wide, c = e % wide, n = first + r, o = outs.first + c;
        if (n >= count || o >= outs.count || of_prompt(s, op, n)) continue;
        const Part &p = op.parts[outs.part];
        float y = finished(p, joined(joint + c * WIDE + r, OUTS * WIDE), o, 0, false);
        if (op.gated) y = gated(op.act, y, finished(op.parts[1], joined(joint + (OUTS / 2 + c) * WIDE + r, OUTS * WIDE), o, 0, false));
        u64 to = (u64)n * p.y_stride + p.y_first + o;
        if (p.add) y = __fadd_rn(y, p.add[to]);
        p.y[to] = y;
    }
#endif
}

#define WIDE_OUTS 128   // outputs of a tile
#define QUARTERS 4      // of a tile's columns, which are items of work each
#define PAIRS 8         // of warps that multiply by two runs of the same outputs
#define COPYING 4       // warps behind those
#define WIDE_THREADS ((MULTIPLYING + COPYING) * 32)
#define NO_ITEM 0xffffffffu
#define LATER 3         // steps of an item before a warp looks after its sums of the item before

// Quarters of tiles of 128 outputs by 8 · NT rows.
template <int NT> struct Wide {
    static const u32 rows = 8 * NT, row_bytes = rows * 256, stage = WIDE_OUTS * 128 + row_bytes, units = rows * 8;
    static const u32 depth = NT > 4 ? 5 : NT > 2 ? 7 : 9, sums = depth * (stage + units);
};

#ifdef HAS_WGMMA
// Where a piece of 16 bytes of an output's weights lies: those of neighbours in banks of their own.
static __device__ __forceinline__ u32 in_quarter(u32 row, u32 piece) { return row * 128 + ((piece ^ (row & 1) * 4) << 4); }

static __device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

static __device__ __forceinline__ float4 load_far(const float *p) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}

// Whether there are rows of replies among a tile's; and in how many tiles below each other.
template <u32 ROWS> static __device__ __forceinline__ bool any_reply(const Step &s, const MatVec &op, u32 first, u32 count) {
    bool any = false;
    #pragma unroll
    for (u32 r = threadIdx.x & 31; r < ROWS; r += 32) any |= first + r < count && !of_prompt(s, op, first + r);
    return __any_sync(ALL_LANES, any);
}
template <u32 ROWS> static __device__ __forceinline__ u32 tiles_below(const Step &s, const MatVec &op, u32 count) {
    u32 tiles = 0;
    for (u32 first = 0; first < count; first += ROWS) tiles += any_reply<ROWS>(s, op, first, count);
    return tiles;
}

// The tile behind an item. Quarters of a tile come one after the other, then those of other rows of the same outputs.
struct Item {
    u32 first; // row
    Outputs outs;
};
template <int F, u32 ROWS> static __device__ __forceinline__ bool find_item(const Step &s, const MatVec &op, u32 item, u32 count, u32 down, Item *at) {
    if (down == 0) return false;
    u32 tile = item / QUARTERS, before = tile % down;
    for (at->first = 0; count > ROWS && (!any_reply<ROWS>(s, op, at->first, count) || before-- > 0); at->first += ROWS) {}
    return find_outputs(op, F, op.gated ? WIDE_OUTS / 2 : WIDE_OUTS, tile / down, &at->outs);
}

// Where a warp's sums of a tile's quarters wait for each other: four times written and once read.
struct Meeting {
    u32 slot, turn, *counter;
    // Until the tile that had it before was read.
    __device__ __forceinline__ void wait() const {
        while (turn > 0 && word_at(counter) < turn * (QUARTERS + 1)) {}
    }
    // How often it was written before; what those who wrote did so far is there.
    __device__ __forceinline__ u32 taken() const {
        u32 before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
        return before - turn * (QUARTERS + 1);
    }
};
static __device__ __forceinline__ Meeting meeting_of(const Quarters &quarters, u32 tile, u32 part) {
    return {tile % SLOTS, tile / SLOTS, quarters.counts + 1 + tile % SLOTS * MULTIPLYING + part};
}

// 16 bytes, or zeros, of what is read once and leaves the cache first.
static __device__ __forceinline__ u64 read_once() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
static __device__ __forceinline__ void copy16_by(u64 policy, u32 to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(there ? 16 : 0), "l"(policy));
}

// A tile of the same kind as that of `tile_at`, from the lower half of its description.
static __device__ __forceinline__ u64 tile_from(u32 low) {
    u64 tile;
    asm("mov.b64 %0, {%1, %2};" : "=l"(tile) : "r"(low), "r"((u32)(tile_at(0) >> 32)));
    return tile;
}
#endif

// Quarters of the columns of tiles of 128 outputs by 8 · NT rows: so a row of activations is read a quarter as often. Four warps fill
// a ring of places in shared memory with items of work, which blocks take in turn; four times four multiply what is there, 64
// outputs by one of a quarter's two runs, at their own pace. Sums of a quarter go to memory, and who brings the last ones adds all
// four: while the next item is under way, so that nobody waits for memory.
template <int F, int NT> static __device__ __forceinline__ void wide(const Step &s, const MatVec &op, const Cut &cut, const Quarters &quarters) {
#ifdef HAS_WGMMA
    typedef Wide<NT> Size;
    const int DEPTH = Size::depth, GROUPS = NT > 2 ? 4 : NT, TIMES = NT / GROUPS, COPIES = WIDE_OUTS / 16;
    extern __shared__ __align__(1024) u8 space[];
    __shared__ __align__(8) u64 bars[2 * DEPTH];
    __shared__ u32 items[DEPTH], following;
    u32 warp = one_for_all(threadIdx.x >> 5), lane = threadIdx.x & 31, k = op.k, runs = (k + 31) / 32, steps = (k + 255) / 256;
    u32 count = rows_of(s, op.lead), down = tiles_below<Size::rows>(s, op, count);
    u32 space_at = shared_at(space), units_at = space_at + DEPTH * Size::stage, full = shared_at(bars), free = full + 8 * DEPTH, stage = 0, round = 0;
    if (threadIdx.x == 0) {
        #pragma unroll
        for (int i = 0; i < DEPTH; i++) bar_init(full + 8 * i, COPYING * 32 + 1), bar_init(free + 8 * i, MULTIPLYING);
        bars_made();
    }
    __syncthreads();
    if (warp >= MULTIPLYING) {
        fewer_registers<64>();
        // Eight threads copy an output's 64 columns, every sixteenth output's.
        u32 own = threadIdx.x - MULTIPLYING * 32, piece = own % 8, line = own / 8, w_to = space_at + in_quarter(line, piece);
        const u8 *w[COPIES];
        u64 once = read_once();
        Item at;
        auto begin_outputs = [&](u32 quarter) {
            #pragma unroll
            for (int i = 0; i < COPIES; i++) {
                u32 r = line + 16 * i, part = at.outs.part;
                if (op.gated) part = line >= 8, r = line % 8 + 8 * i; // beside each other in a warp
                w[i] = op.parts[part].data + (u64)min(at.outs.first + r, at.outs.count - 1) * op.parts[part].row_bytes + quarter * 128 + piece * 16;
            }
        };
        auto copy_outputs = [&](u32 t, u32 quarter, u32 to) {
            bool there = t * 256 + quarter * 64 + piece * 8 < k;
            #pragma unroll
            for (int i = 0; i < COPIES; i++) copy16_by(once, w_to + to * Size::stage + i * 2048, there ? w[i] + t * 512 : op.parts[0].data, there);
        };
        // Weights of the first item are asked for before the rows are there.
        u32 item = blockIdx.x, ahead = 0;
        bool found = find_item<F, Size::rows>(s, op, item, count, down, &at);
        if (found) {
            ahead = min(steps, (u32)DEPTH);
            begin_outputs(item % QUARTERS);
            for (u32 t = 0; t < ahead; t++) copy_outputs(t, item % QUARTERS, t);
        }
        wait_before();
        while (found) {
            u32 quarter = item % QUARTERS;
            u32 next = own == 0 ? atomicAdd(quarters.counts, 1) + gridDim.x : 0;
            begin_outputs(quarter);
            u64 from = quarter * cut.apart + at.first;
            for (u32 t = 0; t < steps; t++, from += 4 * cut.apart) {
                if (round > 0) bar_wait(free + 8 * stage, (round - 1) & 1);
                if (own == 0) {
                    bool there = t * 256 + quarter * 64 < k;
                    items[stage] = item;
                    bar_expect(full + 8 * stage, there ? Size::row_bytes + Size::units : 0);
                    if (there) {
                        bulk_copy(space_at + stage * Size::stage + WIDE_OUTS * 128, (const u8 *)cut.parts + from * 256, Size::row_bytes, full + 8 * stage);
                        bulk_copy(units_at + stage * Size::units, (const u8 *)cut.units + from * 8, Size::units, full + 8 * stage);
                    }
                }
                if (t >= ahead) copy_outputs(t, quarter, stage);
                copies_arrive(full + 8 * stage);
                if (++stage == DEPTH) stage = 0, round++;
            }
            ahead = 0;
            if (own == 0) following = next;
            meet_threads(PAIRS + 1, COPYING * 32);
            item = following;
            meet_threads(PAIRS + 1, COPYING * 32);
            found = find_item<F, Size::rows>(s, op, item, count, down, &at);
        }
        if (round > 0) bar_wait(free + 8 * stage, (round - 1) & 1);
        if (own == 0) items[stage] = NO_ITEM, bar_expect(full + 8 * stage, 0);
        copies_arrive(full + 8 * stage);
        copies_end(), copies_wait<0>();
    } else {
        more_registers<104>();
        u32 group = lane / 4, four = lane % 4, run = warp / 4 % 2, pair = warp / 8 * 4 + warp % 4;
        u32 w_at = space_at + pair * 2048 + in_quarter(group, run * 4 + four), unit_at = units_at + run * 32 + four * 8;
        u32 rows_at = one_for_all((u32)tile_at(space_at + WIDE_OUTS * 128) + run * 4), pending = NO_ITEM;
        // A warp adds the sums of both runs of a half of the rows.
        const u32 OWN = NT / 2;
        float4 *sums = (float4 *)(space + Size::sums) + pair * NT * 32 + lane;
        auto far_of = [&](const Meeting &meeting, u32 quarter) {
            return (float4 *)quarters.sums + (((meeting.slot * QUARTERS + quarter) * PAIRS + pair) * NT + run * OWN) * 32 + lane;
        };
        // Tells that a warp's sums of an item are in memory; the last one adds those of all quarters and writes what is made of them.
        auto finish = [&]() {
            Meeting meeting = meeting_of(quarters, pending / QUARTERS, warp);
            __syncwarp();
            u32 before = lane == 0 ? meeting.taken() : 0;
            before = one_for_all(before);
            __syncwarp();
            if (before == QUARTERS - 1) {
                Item at;
                find_item<F, Size::rows>(s, op, pending, count, down, &at);
                u32 first = at.first + run * OWN * 8, row = first + lane;
                u32 replies = __ballot_sync(ALL_LANES, lane < OWN * 8 && row < count && !of_prompt(s, op, row));
                const Part &p = op.parts[at.outs.part];
                u32 o = at.outs.first + pair * (op.gated ? 8 : 16) + group;
                #pragma unroll 2
                for (u32 n = 0; n < OWN; n++) {
                    float4 part[QUARTERS];
                    float add[4];
                    #pragma unroll
                    for (u32 q = 0; q < QUARTERS; q++) part[q] = load_far((const float *)(far_of(meeting, q) + n * 32));
                    u32 r = n * 8 + four * 2;
                    u64 to = (u64)(first + r) * p.y_stride + p.y_first + o;
                    auto there = [&](u32 i) { return !(op.gated && i >= 2) && o + i / 2 * 8 < at.outs.count && replies >> (r + i % 2) & 1; };
                    auto place = [&](u32 i) { return to + i % 2 * p.y_stride + i / 2 * 8; };
                    #pragma unroll
                    for (u32 i = 0; i < 4; i++) add[i] = p.add && there(i) ? p.add[place(i)] : 0.0f;
                    float4 whole = plus(plus(part[0], part[2]), plus(part[1], part[3]));
                    float y[4] = {whole.x, whole.y, whole.z, whole.w};
                    #pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        if (!there(i)) continue;
                        float v = finished(p, y[i], o + i / 2 * 8, 0, false);
                        if (op.gated) v = gated(op.act, v, finished(op.parts[1], y[i % 2 + 2], o, 0, false));
                        p.y[place(i)] = p.add ? __fadd_rn(v, add[i]) : v;
                    }
                }
                __syncwarp();
                if (lane == 0) meeting.taken();
            }
            pending = NO_ITEM;
        };
        wait_before();
        while (true) {
            bar_wait(full + 8 * stage, round & 1);
            u32 item = *(volatile u32 *)(items + stage), quarter = item % QUARTERS;
            __syncwarp();
            if (pending != NO_ITEM && (item == NO_ITEM || steps <= LATER + 1)) finish();
            if (item == NO_ITEM) break;
            float sum[NT][4] = {};
            u32 a[2][4];
            auto load = [&]() {
                uint4 v = four_in_shared(w_at + stage * Size::stage), next = four_in_shared(w_at + stage * Size::stage + 1024);
                a[0][0] = v.x, a[0][1] = next.x, a[0][2] = v.y, a[0][3] = next.y;
                a[1][0] = v.z, a[1][1] = next.z, a[1][2] = v.w, a[1][3] = next.w;
            };
            auto wait = [&]() { bar_wait(full + 8 * stage, round & 1), __syncwarp(); };
            auto read = [&]() {
                __syncwarp();
                if (lane == 0) bar_arrive(free + 8 * stage);
                if (++stage == DEPTH) stage = 0, round++;
            };
            auto begin = [&](float (&d)[2 * GROUPS][4], int n) {
                u32 rows = rows_at + stage * (Size::stage / 16) + n * GROUPS * 128;
                wgmma_begins();
                wgmma_own<F == T_BF16>(d, a[0], tile_from(rows), 0);
                wgmma_own<F == T_BF16>(d, a[1], tile_from(rows + 2), 1);
                wgmma_commits();
            };
            auto add = [&](float (&d)[2 * GROUPS][4], int from) {
                wgmma_made(d);
                #pragma unroll
                for (int n = 0; n < GROUPS; n++) {
                    float2 unit = load_floats(unit_at + stage * Size::units + (from * GROUPS + n) * 64);
                    float (&to)[4] = sum[from * GROUPS + n];
                    #pragma unroll
                    for (int i = 0; i < 4; i++) to[i] = __fmaf_rn(__fadd_rn(d[2 * n][i], d[2 * n + 1][i]), i & 1 ? unit.y : unit.x, to[i]);
                }
            };
            u32 t = 0;
            // Steps that have the warp's run, all or all but the last. While some warps add, others' dots are made.
            u32 own = (runs + RUNS - 1 - quarter * 2 - run) / RUNS;
            #pragma unroll 1
            for (; t < own; t++) {
                wait();
                load();
                float d[2 * GROUPS][4];
                #pragma unroll
                for (int n = 0; n < TIMES; n++) {
                    begin(d, n);
                    wgmma_waits<0>();
                    add(d, n);
                }
                read();
                if (t == LATER && pending != NO_ITEM) finish();
            }
            for (; t < steps; t++) {
                wait();
                read();
            }

            // The sums of both runs.
            auto four_of = [&](int n) { return make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]); };
            meet_threads(1 + pair, 64); // those of the item before were read
            #pragma unroll
            for (int n = 0; n < NT; n++)
                if (n / OWN != run) sums[n * 32] = four_of(n);
            meet_threads(1 + pair, 64);
            Meeting meeting = meeting_of(quarters, item / QUARTERS, warp);
            meeting.wait();
            float4 *far = far_of(meeting, quarter);
            #pragma unroll
            for (int n = 0; n < NT; n++)
                if (n / OWN == run) far[n % OWN * 32] = plus(four_of(n), sums[n * 32]);
            pending = item;
        }
    }
#endif
}

#define REPLIES(F)                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 2) replies_8_##F(Step s, MatVec op, Cut cut) { replies<T_##F, 1, 4>(s, op, cut); }  \
    extern "C" __global__ void __launch_bounds__(256, 2) replies_16_##F(Step s, MatVec op, Cut cut) { replies<T_##F, 2, 3>(s, op, cut); } \
    extern "C" __global__ void __launch_bounds__(256, 1) replies_32_##F(Step s, MatVec op, Cut cut) { replies<T_##F, 4, 4>(s, op, cut); }

#define WIDE(F, ROWS)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1) wide_##ROWS##_##F(Step s, MatVec op, Cut cut, Quarters quarters) { \
        wide<T_##F, ROWS / 8>(s, op, cut, quarters);                                                                              \
    }
WIDE(F16, 16) WIDE(F16, 32) WIDE(F16, 64)
WIDE(BF16, 16) WIDE(BF16, 32) WIDE(BF16, 64)
REPLIES(F16) REPLIES(BF16)
