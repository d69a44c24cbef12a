// Steps of one row in one launch: blocks that stay go through the instructions of a tape, meet behind each that others
// depend on, and fetch the weights of what comes next meanwhile. Every sum has the order that it has in the kernels that are
// launched one by one.
#include "flash.cuh"
#include "stream.cuh"

#define THREADS (WARPS * 32)
#define GROUPS (WARPS / 4)
#define NORM_THREADS 256u   // of the kernels whose norms these are

struct Tape {
    const Instr *instrs;
    u32 *meeting;       // blocks that arrived, blocks that ended
    u32 count;
    u32 piece;          // bytes of a piece of a warp's shared memory
    u32 space;          // bytes for a row, or for attention
    u32 pad;
};

// What a block knows while it runs.
struct Run {
    const Tape &tape;
    const Instr *instrs;
    const Stride *strides;
    u8 *space;
    float *shared;
    u32 met;            // arrivals to wait for
    u32 live;           // a bit for every lead that has rows
    u32 slot, pos;      // of the row's sequence, and of the row
};

static __device__ __forceinline__ void arrive(Run &run) {
    __syncthreads();
    run.met += gridDim.x;
    if (threadIdx.x == 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(run.tape.meeting) : "memory");
#endif
    }
}

static __device__ __forceinline__ void meet(const Run &run) {
    if (threadIdx.x == 0) {
        u32 seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(run.tape.meeting) : "memory");
        } while (seen < run.met);
    }
    __syncthreads();
}

// A sum over the first 256 threads, of which every thread gets the result.
static __device__ __forceinline__ float sum_first(float x, float *shared) {
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    x = sum_lanes(x);
    if (lane == 0 && warp < NORM_THREADS / 32) shared[warp] = x;
    __syncthreads();
    return sum_lanes(lane < NORM_THREADS / 32 ? shared[lane] : 0.0f);
}

// The row of a product in shared memory: normalised, in bytes or in parts of sixteen bits. A thread takes four columns at
// a time, eight threads a run; `w` are the norm's weights of its first ones. Code is kept short: what is cold is fetched anew.
static __device__ __forceinline__ void make_row(const Run &run, const Product &p, float4 w, const Acts1 &to) {
    const Source &from = p.from;
    u32 k = p.op.k, c = threadIdx.x * 4;
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    auto load = [&](u32 at) { return at < k ? __ldcg((const float4 *)(from.x + at)) : none; };
    float4 v = load(c), next = load(c + 4 * THREADS);
    float mean = 0.0f, root = 1.0f;
    if (from.kind != NORM_NONE) {
        u32 first = threadIdx.x < NORM_THREADS ? threadIdx.x : k;
        if (from.kind == NORM_LAYER) {
            float m = 0.0f;
            #pragma unroll 1
            for (u32 i = first; i < k; i += NORM_THREADS) m += __ldcg(from.x + i);
            mean = sum_first(m, run.shared) / (float)k;
        }
        float squares = 0.0f;
        #pragma unroll 4
        for (u32 i = first; i < k; i += NORM_THREADS) {
            float x = __ldcg(from.x + i) - mean;
            squares = __fmaf_rn(x, x, squares);
        }
        squares = sum_first(squares, run.shared + NORM_THREADS / 32);
        root = from.kind == NORM_L2 ? sqrtf(squares + from.eps)
             : from.kind == NORM_L2_MAX ? fmaxf(sqrtf(squares), from.eps)
                                        : sqrtf(squares / (float)k + from.eps);
    }
    // Whole warps: lanes beyond the columns change nothing.
    #pragma unroll 1
    for (; (c & ~127u) < k; c += 4 * THREADS) {
        float4 later = load(c + 8 * THREADS);
        if (from.kind != NORM_NONE) {
            v.x = (v.x - mean) / root, v.y = (v.y - mean) / root, v.z = (v.z - mean) / root, v.w = (v.w - mean) / root;
        }
        if (from.w) {
            if (c >= 4 * THREADS && c < k) w = *(const float4 *)(from.w + c);
            v.x = __fmul_rn(v.x, w.x), v.y = __fmul_rn(v.y, w.y), v.z = __fmul_rn(v.z, w.z), v.w = __fmul_rn(v.w, w.w);
        }
        if (from.b && c < k) {
            float4 b = *(const float4 *)(from.b + c);
            v.x = __fadd_rn(v.x, b.x), v.y = __fadd_rn(v.y, b.y), v.z = __fadd_rn(v.z, b.z), v.w = __fadd_rn(v.w, b.w);
        }
        if (from.form != IN_BYTES) {
            float four[1][4] = {{v.x, v.y, v.z, v.w}};
            if (from.form == IN_HALVES) put_parts<T_F16>(to, k, c, 0, four);
            else put_parts<T_BF16>(to, k, c, 0, four);
        } else {
            float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
            for (int d = 1; d < 8; d <<= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
            float scale = __fdiv_rn(127.0f, most);
            i32 q0 = __float2int_rn(__fmul_rn(v.x, scale)), q1 = __float2int_rn(__fmul_rn(v.y, scale));
            i32 q2 = __float2int_rn(__fmul_rn(v.z, scale)), q3 = __float2int_rn(__fmul_rn(v.w, scale));
            u32 q = __byte_perm(__byte_perm(q0, q1, 0x0040), __byte_perm(q2, q3, 0x0040), 0x5410);
            i32 sum = q0 + q1 + q2 + q3;
            if (!(most > 0.0f)) q = 0, sum = 0;
            for (int d = 1; d < 8; d <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, d);
            u32 at = c / 32, in = c % 32;
            if (c < k) {
                *(u32 *)((u8 *)(in < 16 ? to.low + spread(at) : to.high + spread(at)) + in % 16) = q;
                if (in == 0) to.d[at] = __fdiv_rn(most, 127.0f), to.s[at] = sum;
            }
        }
        v = next, next = later;
    }
}

static __device__ __forceinline__ float taken_of(u32 dtype, const u8 *body, const u8 *scales, u32 first, u32 end, const Acts1 &a, float sum) {
    switch (dtype) {
#define CASE(F) case T_##F: return taken<T_##F>(body, scales, first, end, a, sum);
        CASE(F16) CASE(BF16) CASE(Q4_0) CASE(IQ4_NL) CASE(MXFP4) CASE(Q8_0) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
#undef CASE
    }
    return sum;
}

static __device__ __forceinline__ void multiply(const Run &run, u32 phase, Stream &st, const u8 *pieces, u32 limit) {
    const Product &p = product(run.instrs[phase % AHEAD]);
    const MatVec &op = p.op;
    u32 lane = threadIdx.x & 31;
    float4 w = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    if (p.from.w && threadIdx.x * 4 < op.k) w = ((const float4 *)p.from.w)[threadIdx.x];
    meet(run);
    Acts1 acts = acts_in(run.space, op.k);
    make_row(run, p, w, acts);
    __syncthreads();
    float kept = 0.0f;
    #pragma unroll 1
    for (u32 n = 0;; n++) {
        u32 i = turn_of(op, n);
        if (i >= p.from.total) break;
        Output out = output_of(op, i);
        const Part &part = op.parts[out.part];
        bool ends = !op.gated || out.part == 1;
        u32 at = part.y_first + out.o;
        float add = 0.0f;
        if (part.add && ends && lane == 0) add = __ldcg(part.add + at);
        Stride stride = run.strides[part.dtype];
        float sum = 0.0f;
        #pragma unroll 1
        for (u32 c = 0; c < op.k; c += stride.columns) {
            wait_oldest(st);
            const u8 *body = pieces + st.taken % DEPTH * st.piece;
            sum = taken_of(part.dtype, body, body + stride.bytes, c, min(c + stride.columns, op.k), acts, sum);
            __syncwarp();
            st.taken++;
            fetch(st, run.live, run.instrs, run.strides, limit);
        }
        if (part.dtype == T_F16 || part.dtype == T_BF16) sum = own_run(sum);
        sum = sum_lanes(sum);
        if (!ends) {
            kept = sum;
            continue;
        }
        if (lane != 0) continue;
        float y;
        if (op.gated) y = gated(op.act, finished(op.parts[0], kept, out.o, 0, false), finished(part, sum, out.o, 0, false));
        else y = finished(part, sum, out.o, 0, false);
        const Part &to = op.parts[op.gated ? 0 : out.part];
        if (to.add) y = __fadd_rn(y, op.gated ? __ldcg(to.add + at) : add);
        to.y[at] = y;
    }
}

struct Attention {
    Heads heads;
    Flash flash;
    u32 *arrived;
};

template <int D, int G> struct __align__(16) Group {
    Space<D, G> sp;
    u16 new_k[D], new_v[D];
    u32 joins;
};

// Four warps.
static __device__ __forceinline__ void meet_group() {
    asm volatile("bar.sync %0, 128;" ::"r"((threadIdx.x >> 7) + 1) : "memory");
}

// Keys of a warp's 32 positions as `score_tile` takes them.
template <int D>
static __device__ __forceinline__ void load_keys(const Cache &cache, u32 slot, u32 kv, u32 base, u32 low, u32 high, uint4 (&k)[4][D / 32]) {
    u32 lane = threadIdx.x & 31;
    bool any = base < high && base + 32 > low;
    Place at = {0, 0};
    if (any) at = place(cache, slot, base);
    const u8 *keys = at.block + cache.k.offset + ((u64)at.entry * cache.k.width + kv * D) * 2;
    #pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 key = i * 8 + lane / 4;
        bool there = any && base + key >= low && base + key < high;
        #pragma unroll
        for (u32 j = 0; j < D / 32; j++)
            k[i][j] = there ? *(const uint4 *)(keys + (u64)key * cache.k.width * 2 + (j * 4 + lane % 4) * 16) : make_uint4(0, 0, 0, 0);
    }
}

// Heads on their way into the cache and attention over it, as `attend` of flash.cu does it: four warps for each split of the
// heads of a key head.
template <int D, int G> static __device__ __forceinline__ void attend(const Run &run, const Attention &a) {
    const int E = (G * D + 127) / 128;
    const u32 PIECES = D / 8, KEYS = 32 / PIECES;
    const Heads &h = a.heads;
    const Flash &op = a.flash;
    u32 lane = threadIdx.x & 31, group = threadIdx.x >> 7, warp = threadIdx.x >> 5 & 3, t = threadIdx.x & 127;
    u32 blocks = op.heads / G, per_kv = op.heads / op.kv_heads, slot = run.slot, pos = run.pos, high = pos + 1;
    u32 low = op.window && high > op.window ? high - op.window : 0;
    u32 first = low / SPLIT, last = pos / SPLIT, items = blocks * (last - first + 1);
    u32 item = group * gridDim.x + blockIdx.x;
    uint4 keys[4][D / 32];
    if (item < items) {
        u32 base = (first + item / blocks) * SPLIT + warp * 32, kv = item % blocks * G / per_kv;
        load_keys<D>(op.cache, slot, kv, base, low, pos, keys);
        if (base + lane >= low && base + lane < pos) {
            Place at = place(op.cache, slot, base);
            const u8 *v = at.block + op.cache.v.offset + ((u64)(at.entry + lane) * op.cache.v.width + kv * D) * 2;
            for (u32 c = 0; c < D * 2; c += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(v + c));
        }
    }
    meet(run);
    Group<D, G> &own = ((Group<D, G> *)run.space)[group];
    Space<D, G> &sp = own.sp;
    for (bool again = false; item < items; item += GROUPS * gridDim.x, again = true) {
        u32 split = first + item / blocks, head = item % blocks * G, kv = head / per_kv, base = split * SPLIT + warp * 32;
        float *out = op.out + head * D;
        if (again) {
            meet_group();
            load_keys<D>(op.cache, slot, kv, base, low, pos, keys);
        }
        for (u32 g = warp; g < G + (split == last ? 2 : 0); g += 4) {
            float y[D / 32];
            if (g <= G) turn_head<D>(h, 0, g < G ? head + g : kv, g < G, sp.mix[warp][0], y);
            #pragma unroll
            for (u32 r = 0; r < D / 32; r++) {
                u32 c = r * 32 + lane;
                if (g < G) sp.query[g][c] = y[r] * op.scale;
                if (g == G) own.new_k[c] = float_to_half(y[r]);
                if (g == G + 1) own.new_v[c] = float_to_half(__ldcg(h.v + kv * D + c));
            }
        }
        meet_group();
        Place mine = place(op.cache, slot, base);
        if (base >= high || base + 32 <= low) mine.block = 0;
        bool fresh = false;
        if (split == last) {
            Place at = place(op.cache, slot, pos);
            if (at.block && head % per_kv == 0) {
                u16 *k = (u16 *)(at.block + op.cache.k.offset) + (u64)at.entry * op.cache.k.width + kv * D;
                u16 *v = (u16 *)(at.block + op.cache.v.offset) + (u64)at.entry * op.cache.v.width + kv * D;
                for (u32 c = t; c < D; c += 128) k[c] = own.new_k[c], v[c] = own.new_v[c];
            }
            fresh = at.block != 0;
            #pragma unroll
            for (u32 i = 0; i < 4; i++)
                #pragma unroll
                for (u32 j = 0; j < D / 32; j++)
                    if (fresh && base + i * 8 + lane / 4 == pos) keys[i][j] = *(const uint4 *)((const u8 *)own.new_k + (j * 4 + lane % 4) * 16);
        }
        score_tile<D, G>(keys, base, low, high, sp);
        const u8 *values = mine.block + op.cache.v.offset + ((u64)mine.entry * op.cache.v.width + kv * D) * 2 + lane % PIECES * 16;
        weigh_tile<D, G, 8>([&](u32 i) {
            u32 key = i * KEYS + lane / PIECES;
            if (fresh && base + key == pos) return *(const uint4 *)((const u8 *)own.new_v + lane % PIECES * 16);
            bool there = mine.block && base + key >= low && base + key < pos;
            return there ? *(const uint4 *)(values + (u64)key * op.cache.v.width * 2) : make_uint4(0, 0, 0, 0);
        }, sp);
        meet_group();
        if (first == last) {
            #pragma unroll
            for (int e = 0; e < E; e++) {
                u32 i = t + e * 128;
                if (i >= G * D) break;
                Mix mix = begun(op, head + i / D), part = joined<D, G>(sp, i / D, i % D);
                take(mix, part.most, part.sum, part.y);
                out[i] = mix.y / mix.sum;
            }
            continue;
        }
        float *partial = op.partial + (u64)head * op.splits * (D + 2);
        for (u32 i = t; i < G * D; i += 128) {
            Mix part = joined<D, G>(sp, i / D, i % D);
            float *to = partial + ((u64)(i / D) * op.splits + split) * (D + 2);
            to[2 + i % D] = part.y;
            if (i % D == 0) to[0] = part.most, to[1] = part.sum;
        }
        __threadfence();
        meet_group();
        if (t == 0) {
            u32 *count = a.arrived + item % blocks;
            own.joins = atomicAdd(count, 1u) == last - first;
            if (own.joins) *count = 0;
        }
        meet_group();
        if (!own.joins) continue;
        __threadfence();
        #pragma unroll
        for (int e = 0; e < E; e++) {
            u32 i = t + e * 128;
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
}

struct Copy {
    const u32 *from;
    u32 *to;
    u32 width;
};

// An instruction of the tape comes into shared memory, and what it needs beside weights nearer.
static __device__ __forceinline__ void bring(const Run &run, Instr *instrs, u32 i, u32 thread) {
    if (i >= run.tape.count || thread >= sizeof(Instr) / 16) return;
    ((uint4 *)(instrs + i % AHEAD))[thread] = ((const uint4 *)(run.tape.instrs + i))[thread];
}

// D columns of a head, G heads of a key head together.
template <int D, int G> static __device__ __forceinline__ void play(const Step &s, const Tape &t) {
    extern __shared__ __align__(128) u8 whole[];
    __shared__ float shared[2 * NORM_THREADS / 32];
    __shared__ Stride strides[FORMATS];
    if (rows_of(s, LEAD_ROWS) == 0) return;
    Instr *instrs = (Instr *)whole;
    u8 *space = whole + AHEAD * sizeof(Instr), *pieces = space + t.space + (threadIdx.x >> 5) * DEPTH * t.piece;
    u32 seq = s.seq[0], live = 0;
    for (u32 lead = 0; lead < 3; lead++) live |= (u32)(rows_of(s, lead) > 0) << lead;
    Run run = {t, instrs, strides, space, shared, 0, live, s.slot[seq], place_of_row(s, 0)};
    Stream st = {};
    st.to = shared_address(pieces), st.piece = t.piece;
    make_strides(strides, t.piece);
    for (u32 i = 0; i < AHEAD; i++) bring(run, instrs, i, threadIdx.x);
    __syncthreads();
    u32 limit = min(AHEAD, t.count);
    for (u32 phase = 0; phase < t.count; phase++) {
        const Instr &in = instrs[phase % AHEAD];
        // All have begun the one before, and fetch nothing of the one before that: its place is free. Others see what comes
        // there after they have met.
        fetch(st, run.live, instrs, strides, limit);
        if (phase > 1) {
            bring(run, instrs, phase - 2 + AHEAD, threadIdx.x - 32);
            limit = min(phase - 1 + AHEAD, t.count);
        }
        if (!(run.live >> in.lead & 1)) {
            meet(run);
        } else if (in.kind == PRODUCTS) {
            multiply(run, phase, st, pieces, limit);
        } else if (in.kind == ATTEND) {
            attend<D, G>(run, *(const Attention *)in.body);
        } else {
            meet(run);
            const Copy &c = *(const Copy *)in.body;
            for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < c.width; i += gridDim.x * THREADS) c.to[i] = __ldcg(c.from + i);
        }
        if (in.meets) arrive(run);
        else __syncthreads();
    }
    wait_copies<0>();
    if (threadIdx.x == 0 && atomicAdd(t.meeting + 1, 1u) == gridDim.x - 1) t.meeting[0] = t.meeting[1] = 0;
}

#define TAPE(D, G) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) tape_##D##_##G(Step s, Tape t) { play<D, G>(s, t); }
TAPE(64, 1) TAPE(64, 2) TAPE(64, 4)
TAPE(128, 1) TAPE(128, 2) TAPE(128, 4)
