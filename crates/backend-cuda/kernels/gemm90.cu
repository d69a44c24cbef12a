// Products of prompts' rows on 9.0, with weights of block formats and of sixteen bits.
//
// A row is halves under a power of two of its own, weights are made halves on their way to tensor cores (both keep eleven bits).
// Tensor cores sum sixteen columns after sixteen, so a row's bits follow from the format and the number of columns alone, whatever
// tile it lies in.
#include "clusters.cuh"
#include "cut.cuh"
#include "products.cuh"

#ifdef HAS_WGMMA
#define OUTS 128            // of a tile; a warp has sixteen
#define MULTIPLYING 8u      // warps, then one that copies rows, and those that copy weights
#define COPYING 3u
#define THREADS ((MULTIPLYING + 1 + COPYING) * 32)
#define STEP 64u            // columns that rows are copied by

// What weights of each part are multiplied by, so that the largest ones are large halves and small ones ordinary ones, and what undoes it.
struct Scaled {
    float up[PARTS], down[PARTS];
};

// No weight of a block is larger; of bfloats a block is eight.
static __device__ __forceinline__ float most_of_block(u32 dtype, u64 b, const u8 *data, const u8 *scales) {
    if (dtype == T_BF16) {
        uint4 w = *(const uint4 *)(data + b * 16);
        u32 words[4] = {w.x, w.y, w.z, w.w};
        float most = 0.0f;
        #pragma unroll
        for (int i = 0; i < 4; i++) most = fmaxf(most, fmaxf(fabsf(__uint_as_float(words[i] << 16)), fabsf(__uint_as_float(words[i] & 0xffff0000u))));
        return most;
    }
    if (dtype == T_Q4_K || dtype == T_Q5_K) {
        u32 head = *(const u32 *)(data + b * (dtype == T_Q4_K ? 144 : 176));
        float d = fabsf(half_to_float((u16)head)), m = fabsf(half_to_float((u16)(head >> 16)));
        return 63.0f * (d * (dtype == T_Q4_K ? 15.0f : 31.0f) + m);
    }
    float d = fabsf(half_to_float(((const u16 *)scales)[b]));
    return d * (dtype == T_Q6_K ? 128.0f * 32.0f : dtype == T_Q4_0 ? 8.0f : 128.0f);
}

// The largest of all blocks' bounds, as bits.
KERNEL most_of_weights(u64 blocks, u32 dtype, const u8 *data, const u8 *scales, u32 *most) {
    __shared__ float shared[33];
    float own = 0.0f;
    for (u64 b = (u64)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += (u64)gridDim.x * blockDim.x) {
        float m = most_of_block(dtype, b, data, scales);
        own = fmaxf(own, m < INF ? m : INF);
    }
    own = max_block(own, shared);
    if (threadIdx.x == 0) atomicMax(most, __float_as_uint(own));
}

// What weights are copied by: a block of 256 columns of an output, whose scales may lie apart, or 64 columns of sixteen bits; `NT` times
// eight rows.
template <int F, int NT> struct Size {
    static const bool large = F == T_Q4_K || F == T_Q5_K || F == T_Q6_K, sixteen = F == T_F16 || F == T_BF16;
    static const u32 steps = sixteen ? 1 : 4, columns = steps * STEP;
    static const u32 bytes = F == T_Q4_K ? 144 : F == T_Q5_K ? 176 : F == T_Q6_K ? 208 : F == T_Q8_0 ? 256 : 128;
    static const u32 pitch = large || sixteen ? bytes : bytes + 16; // of blocks an odd number of 16 bytes: outputs in banks of their own
    static const u32 weights = OUTS * pitch, rows = NT * 8 * STEP * 2;
    static const u32 blocks = sixteen ? (NT == 16 ? 6 : 4) : F == T_Q8_0 ? 2 : 3, depth = NT == 16 ? 6 : bytes < 192 ? 4 : 3;  // under way
};

// Columns of sixteen as lanes take them for tensor cores: four that lie beside each other are the first two of either half.
static __device__ __forceinline__ u64 place_of(u32 row, u32 column, u32 width) {
    return tile_of(row, width) + column / 64 * 2 * TILE_BYTES + swizzled(row % 64, column / 16 % 4 * 2) + column % 16;
}

// A block for each row of a prompt, which is normalised where there is a norm: a thread has four times four columns at most.
KERNEL halve_prompts(Step s, Quantise op, u8 *rows, float *units) {
    const u32 TIMES = 4;
    __shared__ float shared[33];
    u32 row = blockIdx.x, first = threadIdx.x * 4, beside = blockDim.x * 4;
    bool norms = op.kind != NORM_NONE;
    float4 scale[TIMES], v[TIMES];
    #pragma unroll
    for (u32 i = 0; i < TIMES; i++) {
        u32 c = first + i * beside;
        scale[i] = op.w && c < op.width ? *(const float4 *)(op.w + c) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    }
    wait_before();
    // There is room for every row: it is asked for before it is known whether it counts.
    #pragma unroll
    for (u32 i = 0; i < TIMES; i++) {
        u32 c = first + i * beside;
        v[i] = c < op.width ? *(const float4 *)(op.x + (u64)row * op.width + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (row >= rows_of(s, op.lead) || !(s.flags[row] & ROW_PROMPT)) return;
    if (norms) {
        float mean = 0.0f, squares = 0.0f;
        if (op.kind == NORM_LAYER) {
            #pragma unroll
            for (u32 i = 0; i < TIMES; i++) mean += (v[i].x + v[i].y) + (v[i].z + v[i].w);
            mean = sum_block(mean, shared) / (float)op.width;
        }
        #pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            if (first + i * beside >= op.width) continue;
            v[i].x -= mean, v[i].y -= mean, v[i].z -= mean, v[i].w -= mean;
            squares = __fmaf_rn(v[i].w, v[i].w, __fmaf_rn(v[i].z, v[i].z, __fmaf_rn(v[i].y, v[i].y, __fmaf_rn(v[i].x, v[i].x, squares))));
        }
        float root = norm_root(op.kind, sum_block(squares, shared), op.width, op.eps);
        #pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            u32 c = first + i * beside;
            v[i].x = v[i].x / root * scale[i].x, v[i].y = v[i].y / root * scale[i].y;
            v[i].z = v[i].z / root * scale[i].z, v[i].w = v[i].w / root * scale[i].w;
            if (c >= op.width) continue;
            if (op.b) v[i].x += op.b[c], v[i].y += op.b[c + 1], v[i].z += op.b[c + 2], v[i].w += op.b[c + 3];
            if (op.y) *(float4 *)(op.y + (u64)row * op.width + c) = v[i];
        }
    }
    float most = 0.0f;
    #pragma unroll
    for (u32 i = 0; i < TIMES; i++) most = fmaxf(fmaxf(most, fmaxf(fabsf(v[i].x), fabsf(v[i].y))), fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
    Power power = power_of(max_block(most, shared));
    if (threadIdx.x == 0) units[row] = power.down;
    #pragma unroll
    for (u32 i = 0; i < TIMES; i++) {
        u32 c = first + i * beside;
        if (c >= op.width) continue;
        u64 to = place_of(row, c, op.width);
        *(u32 *)(rows + to) = two_halves(v[i].x * power.up, v[i].y * power.up);
        *(u32 *)(rows + (to ^ 16)) = two_halves(v[i].z * power.up, v[i].w * power.up);
    }
}

static __device__ __forceinline__ u32 twice(float x) { return two_halves(x, x); }

static __device__ __forceinline__ u32 less_halves(u32 x, u32 y) {
    u32 z;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
static __device__ __forceinline__ u32 times_halves(u32 x, u32 y) {
    u32 z;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
static __device__ __forceinline__ u32 more_halves(u32 x, u32 y, u32 z) {
    u32 w;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(x), "r"(y), "r"(z));
    return w;
}

// Two bytes behind 1024, as halves: twice that, and the bytes' places.
#define THOUSAND 0x64006400u
#define FIRST_TWO 0x5150u
#define OTHER_TWO 0x5352u

// Four codes, `LESS` more than what they say, as halves that are scaled and less a minimum.
template <u32 LESS, bool MINIMUM> static __device__ __forceinline__ void four_halves(u32 codes, u32 scale, u32 minimum, u32 &first, u32 &other) {
    const u32 NOTHING = THOUSAND + LESS * 0x10001u;
    u32 a = less_halves(__byte_perm(codes, THOUSAND, FIRST_TWO), NOTHING), b = less_halves(__byte_perm(codes, THOUSAND, OTHER_TWO), NOTHING);
    first = MINIMUM ? more_halves(a, scale, minimum) : times_halves(a, scale);
    other = MINIMUM ? more_halves(b, scale, minimum) : times_halves(b, scale);
}

template <int F> struct Codes {
    static const u32 less = F == T_Q4_0 ? 8 : F == T_Q6_K ? 32 : F == T_Q8_0 || F == T_IQ4_NL ? 128 : 0;
    static const bool minimum = F == T_Q4_K || F == T_Q5_K;
};

// Codes of step `j` of a block: of two outputs' columns 4 t to 4 t + 3 of every sixteen. A lane reads where `at` says.
template <int F> static __device__ __forceinline__ void codes_of(u32 at, u32 j, u32 (&q)[4][2]) {
    u32 v[4], w[4];
    if (F == T_Q4_K || F == T_Q5_K) {
        load_matrices(v, at + (F == T_Q4_K ? 16 : 48) + 32 * j);
        #pragma unroll
        for (int i = 0; i < 4; i++) q[i / 2][i % 2] = v[i] & 0x0f0f0f0fu, q[2 + i / 2][i % 2] = v[i] >> 4 & 0x0f0f0f0fu;
        if (F == T_Q4_K) return;
        load_matrices(w, at + 16);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 fifth = w[i] >> 2 * j;
            q[i / 2][i % 2] |= (fifth & 0x01010101u) << 4, q[2 + i / 2][i % 2] |= (fifth >> 1 & 0x01010101u) << 4;
        }
    } else if (F == T_Q6_K) {
        u32 x[4], shift = 4 * (j & 1);
        load_matrices(v, at + 64 * (j / 2)), load_matrices(x, at + 64 * (j / 2) + 32), load_matrices(w, at + 128 + 32 * (j / 2));
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 more = w[i] >> shift;
            q[i / 2][i % 2] = (v[i] >> shift & 0x0f0f0f0fu) | (more & 0x03030303u) << 4;
            q[2 + i / 2][i % 2] = (x[i] >> shift & 0x0f0f0f0fu) | (more << 2 & 0x30303030u);
        }
    } else if (F == T_Q8_0) {
        load_matrices(v, at + 64 * j), load_matrices(w, at + 64 * j + 32);
        #pragma unroll
        for (int i = 0; i < 4; i++) q[i / 2][i % 2] = v[i] ^ 0x80808080u, q[2 + i / 2][i % 2] = w[i] ^ 0x80808080u;
    } else {
        load_matrices(v, at + 32 * j);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 low = v[i] & 0x0f0f0f0fu, high = v[i] >> 4 & 0x0f0f0f0fu;
            if (F == T_IQ4_NL) look_up(IQ4_WORDS, v[i], &low, &high), low ^= 0x80808080u, high ^= 0x80808080u;
            q[i / 2 * 2][i % 2] = low, q[i / 2 * 2 + 1][i % 2] = high;
        }
    }
}

// Scales of step `j` of an output's block, twice each: of two runs of 32 columns and, negative, their minima, or of four runs of 16.
template <int F> static __device__ __forceinline__ uint4 scales_of(const u8 *block, float d, u32 j, float up) {
    if (Codes<F>::minimum) {
        uint4 head = *(const uint4 *)block;
        u32 sc = j < 2 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
        u32 mn = j < 2 ? head.z & 0x3f3f3f3fu : (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
        sc >>= 16 * (j & 1), mn >>= 16 * (j & 1);
        float s = half_to_float((u16)head.x) * up, m = half_to_float((u16)(head.x >> 16)) * -up;
        return make_uint4(twice(s * (float)(sc & 255)), twice(s * (float)(sc >> 8 & 255)), twice(m * (float)(mn & 255)), twice(m * (float)(mn >> 8 & 255)));
    }
    if (F == T_Q6_K) {
        u32 sc = *(const u32 *)(block + 192 + 4 * j);
        d *= up;
        return make_uint4(twice(d * (float)(i8)sc), twice(d * (float)(i8)(sc >> 8)), twice(d * (float)(i8)(sc >> 16)), twice(d * (float)(i8)(sc >> 24)));
    }
    u32 two = *(const u32 *)(block + Size<F, 16>::bytes + 4 * j);
    return make_uint4(twice(half_to_float((u16)two) * up), twice(half_to_float((u16)(two >> 16)) * up), 0, 0);
}

// Weights of a step, as tensor cores take them.
template <int F> static __device__ __forceinline__ void weights_of(u32 at, u32 j, const uint4 (&scales)[2], u32 (&a)[4][4]) {
    u32 q[4][2];
    codes_of<F>(at, j, q);
    #pragma unroll
    for (u32 k = 0; k < 4; k++)
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const uint4 &s = scales[h];
            u32 scale = F == T_Q6_K ? (k == 0 ? s.x : k == 1 ? s.y : k == 2 ? s.z : s.w) : k < 2 ? s.x : s.y;
            four_halves<Codes<F>::less, Codes<F>::minimum>(q[k][h], scale, k < 2 ? s.z : s.w, a[k][h], a[k][2 + h]);
        }
}

// 64 columns of sixteen bits have 32 bytes of sixteen of them where no output's of the four that are read at once lie.
static __device__ __forceinline__ u32 column_spot(u32 row, u32 sixteenth) { return (sixteenth ^ (row & 3)) * 32; }

// Weights of sixteen bits of a step. A lane reads from `at` on, where its first output's are.
template <int F> static __device__ __forceinline__ void halves_of(u32 at, u32 (&a)[4][4]) {
    u32 lane = threadIdx.x & 31;
    #pragma unroll
    for (u32 k = 0; k < 4; k++)
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            uint2 w = load_words(at + h * 8 * STEP * 2 + column_spot(lane / 4, k));
            a[k][h] = F == T_F16 ? w.x : two_halves(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u));
            a[k][2 + h] = F == T_F16 ? w.y : two_halves(__uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u));
        }
}

// Tensor cores may read them until now.
static __device__ __forceinline__ void were_read(u32 (&a)[4][4]) {
    #pragma unroll
    for (int k = 0; k < 4; k++) asm volatile("" ::"r"(a[k][0]), "r"(a[k][1]), "r"(a[k][2]), "r"(a[k][3]) : "memory");
}

// The weight's row behind a row of a tile: of a gated pair a warp has eight outputs each.
static __device__ __forceinline__ Rows tile_row(const MatVec &op, const Outputs &outs, u32 r) {
    u32 part = outs.part, o = outs.first + r;
    if (op.gated) part = r / 8 % 2, o = outs.first + r / 16 * 8 + r % 8;
    return rows_at(op, {part, min(o, outs.count - 1)});
}

// A warp's outputs of 32 rows in shared memory: rows of sixteen, so far apart that neither those who write nor those who read meet.
#define PITCH 20
#define PUT (32 * PITCH)

// What four outputs are finished with; where there is no scale or no bias, what changes nothing.
struct Ends {
    float scale[4], bias[4];

    __device__ __forceinline__ Ends(const Part &p, const Outputs &outs, u32 o) {
        #pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 own = p.y_first + min(o + i, outs.count - 1);
            scale[i] = p.scale ? p.scale[own % p.scale_len] : 1.0f, bias[i] = p.bias ? p.bias[own] : -0.0f;
        }
    }
    __device__ __forceinline__ float of(float y, u32 i) const { return __fadd_rn(__fmul_rn(y, scale[i]), bias[i]); }
};

// Writes a warp's outputs of a tile's rows, times their units and what undoes their parts' scales, 32 rows at a time: the code for these is there once. A lane has four
// outputs of a row, of a gated pair four of each. What is read is asked for before it is needed.
template <bool GATED, int NT> static __device__ __forceinline__ void write_sums(const Step &s, const MatVec &op, const Outputs &outs, const float *units, const Scaled &scaled, u32 first, u32 count, const float (&sums)[NT][4], float *put) {
    const u32 LANES = GATED ? 2 : 4, BESIDE = 32 / LANES, TIMES = 32 / BESIDE;
    u32 lane = threadIdx.x & 31, c = lane % LANES * 4, o = outs.first + threadIdx.x / 32 * (GATED ? 8 : 16) + c, n = o < outs.count ? min(4u, outs.count - o) : 0;
    const Part &p = op.parts[outs.part];
    bool whole = n == 4 && (p.y_stride | p.y_first) % 4 == 0;
    float down = scaled.down[outs.part], other = GATED ? scaled.down[1] * scaled.up[0] : 1.0f, unit[NT / 4], *to = put + lane % 4 * 2 * PITCH + lane / 4;
    u32 prompts[NT / 4];
    #pragma unroll
    for (u32 i = 0; i < NT / 4; i++) {
        u32 row = min(first + i * 32 + lane, count - 1);
        unit[i] = units[row] * down, prompts[i] = of_prompt(s, op, row) && first + i * 32 + lane < count;
    }
    Ends own(p, outs, o), up(op.parts[GATED ? 1 : outs.part], outs, o);
    #pragma unroll 1
    for (u32 begin = 0; begin < NT; begin += 4) {
        float of_row = 0.0f;
        u32 there = 0;
        #pragma unroll
        for (u32 i = 0; i < NT / 4; i++)
            if (i * 4 == begin) of_row = unit[i], there = prompts[i];
        there = __ballot_sync(ALL_LANES, there);
        if (there == 0) continue;
        #pragma unroll
        for (u32 i = 0; i < NT; i++)
            if (i / 4 * 4 == begin) {
                #pragma unroll
                for (u32 j = 0; j < 4; j++) to[(i % 4 * 8 + j % 2) * PITCH + j / 2 * 8] = sums[i][j];
            }
        __syncwarp();
        u64 at = (u64)(first + begin * 8 + lane / LANES) * p.y_stride + p.y_first + o;
        float4 add[TIMES];
        #pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            bool is = p.add && whole && there >> (lane / LANES + i * BESIDE) & 1;
            add[i] = is ? *(const float4 *)(p.add + at + (u64)(i * BESIDE) * p.y_stride) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        #pragma unroll
        for (u32 i = 0; i < TIMES; i++, at += (u64)BESIDE * p.y_stride) {
            u32 r = lane / LANES + i * BESIDE;
            float u = __shfl_sync(ALL_LANES, of_row, r), v = u * other;
            float4 a = *(const float4 *)(put + r * PITCH + c), b = GATED ? *(const float4 *)(put + r * PITCH + c + 8) : a;
            float y[4] = {a.x, a.y, a.z, a.w}, z[4] = {b.x, b.y, b.z, b.w};
            #pragma unroll
            for (u32 j = 0; j < 4; j++) {
                y[j] = own.of(__fmul_rn(y[j], u), j);
                if (GATED) y[j] = gated(op.act, y[j], up.of(__fmul_rn(z[j], v), j));
            }
            if (n == 0 || !(there >> r & 1)) continue;
            if (whole) {
                if (p.add) y[0] = __fadd_rn(y[0], add[i].x), y[1] = __fadd_rn(y[1], add[i].y), y[2] = __fadd_rn(y[2], add[i].z), y[3] = __fadd_rn(y[3], add[i].w);
                *(float4 *)(p.y + at) = make_float4(y[0], y[1], y[2], y[3]);
            } else {
                #pragma unroll
                for (u32 j = 0; j < 4; j++)
                    if (j < n) p.y[at + j] = p.add ? __fadd_rn(y[j], p.add[at + j]) : y[j];
            }
        }
        __syncwarp();
    }
}

// Tiles of 128 outputs by `NT` times eight rows, one after the other. Warps fill two rings in shared memory: of weights, and of rows,
// of which each block of a cluster copies half for both. Twice four multiply at their own pace, sixteen outputs each: they make halves of
// the next weights while tensor cores are at work.
template <int F, int NT> static __device__ __forceinline__ void gemm90(const Step &s, const MatVec &op, const u8 *rows, const float *units, const Scaled &scaled) {
    typedef Size<F, NT> Size;
    const u32 ROWS = NT * 8, DEPTH = Size::depth, SLOTS = Size::blocks;
    extern __shared__ __align__(1024) u8 space[];
    __shared__ __align__(8) u64 bars[2 * (DEPTH + SLOTS)];
    __shared__ __align__(16) uint4 made[MULTIPLYING][4][16];
    u32 warp = one_for_all(threadIdx.x >> 5), lane = threadIdx.x & 31, count = rows_of(s, op.lead), rank = cluster_rank();
    u32 wide = op.gated ? OUTS / 2 : OUTS, space_at = shared_at(space), weights_at = space_at + DEPTH * Size::rows;
    float *put = (float *)(space + DEPTH * Size::rows + SLOTS * Size::weights) + warp * PUT;
    u32 full = shared_at(bars), free = full + 8 * DEPTH, weights_full = free + 8 * DEPTH, weights_free = weights_full + 8 * SLOTS;
    u32 steps = op.k / STEP, blocks = op.k / Size::columns, stage = 0, round = 0, slot = 0, turn = 0;
    auto next_stage = [&]() {
        if (++stage == DEPTH) stage = 0, round++;
    };
    auto next_slot = [&]() {
        if (++slot == SLOTS) slot = 0, turn++;
    };
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < DEPTH; i++) bar_init(full + 8 * i, 1), bar_init(free + 8 * i, CLUSTER * MULTIPLYING);
        for (u32 i = 0; i < SLOTS; i++) bar_init(weights_full + 8 * i, COPYING * 32), bar_init(weights_free + 8 * i, MULTIPLYING);
        bars_made();
    }
    meet_cluster();
    if (warp > MULTIPLYING) {
        fewer_registers<72>();
        // Eight threads copy a block of an output, every twelfth of which is theirs.
        const u32 PIECES = Size::bytes / 16, BESIDE = COPYING * 4, LINES = (OUTS + BESIDE - 1) / BESIDE;
        u32 own = threadIdx.x - (MULTIPLYING + 1) * 32, piece = own % 8, line = own / 8;
        const u8 *w[LINES];
        each_tile<F, ROWS>(s, op, count, wide, [&](u32, const Outputs &outs, bool, u32) {
            #pragma unroll
            for (u32 i = 0; i < LINES; i++) w[i] = tile_row(op, outs, line + i * BESIDE).w + piece * 16;
            u32 own_at = Size::sixteen ? column_spot(line, piece / 2) + piece % 2 * 16 : piece * 16;
            // So many blocks have their places behind one address: copies that made addresses anew waited for each other.
            const u32 AHEAD = Size::sixteen ? 4 : 1;
            for (u32 b = 0; b < blocks; b += AHEAD) {
                #pragma unroll
                for (u32 j = 0; j < AHEAD; j++) {
                    if (turn > 0) bar_wait(weights_free + 8 * slot, (turn - 1) & 1);
                    u32 to = weights_at + slot * Size::weights;
                    #pragma unroll
                    for (u32 i = 0; i < LINES; i++) {
                        u32 r = line + i * BESIDE;
                        if (i + 1 == LINES && r >= OUTS) break;
                        #pragma unroll
                        for (u32 c = 0; c < PIECES; c += 8)
                            if (c + 8 <= PIECES || c + piece < PIECES)
                                copy16(to + r * Size::pitch + c * 16 + own_at, w[i] + j * Size::bytes + c * 16);
                    }
                    if (!Size::large && !Size::sixteen)
                        for (u32 r = own; r < OUTS; r += COPYING * 32)
                            copy16(to + r * Size::pitch + Size::bytes, tile_row(op, outs, r).scales + b * 16);
                    copies_arrive(weights_full + 8 * slot);
                    next_slot();
                }
                #pragma unroll
                for (u32 i = 0; i < LINES; i++) w[i] += AHEAD * Size::bytes;
            }
        });
        copies_wait<0>();
    } else if (warp == MULTIPLYING) {
        fewer_registers<72>();
        wait_before();
        each_tile<F, ROWS>(s, op, count, wide, [&](u32 first, const Outputs &, bool, u32) {
            // Half of the rows are those of a tile of 64, or two of these that lie beside each other.
            const u32 HALF = Size::rows / 2;
            const u8 *from = rows + tile_of(first + rank * (ROWS / 2), op.k);
            for (u32 t = 0; t < steps; t++) {
                if (round > 0) bar_wait(free + 8 * stage, (round - 1) & 1);
                if (lane == 0) {
                    bar_expect(full + 8 * stage, Size::rows);
                    bulk_copy_to(space_at + stage * Size::rows + rank * HALF, from + (u64)t * 2 * TILE_BYTES, HALF, full + 8 * stage, (1 << CLUSTER) - 1);
                }
                __syncwarp();
                next_stage();
            }
        });
    } else {
        more_registers<216>();
        wait_before();
        u32 w_from = weights_at + (warp * 16 + lane % 16) * Size::pitch + lane / 16 * 16;
        const u8 *head = space + (weights_at - space_at) + (warp * 16 + lane % 16) * Size::pitch;
        u32 halves_from = weights_at + (warp * 16 + lane / 4) * Size::pitch + lane % 4 * 8;
        uint4(&scales)[4][16] = made[warp];
        each_tile<F, ROWS>(s, op, count, wide, [&](u32 first, const Outputs &outs, bool found, u32) {
            float sums[NT][4] = {};
            u32 a[2][4][4], before = 0;
            const u16 *ds = (const u16 *)tile_row(op, outs, warp * 16 + lane % 16).scales;
            u16 d = F == T_Q6_K ? ds[0] : 0;
            float up = scaled.up[op.gated ? lane / 8 % 2 : outs.part];
            auto prepare = [&](u32 t, u32 (&to)[4][4]) {
                u32 j = t % Size::steps, at = slot * Size::weights;
                if (j == 0) {
                    bar_wait(weights_full + 8 * slot, turn & 1);
                    __syncwarp();
                }
                if (j == 0 && !Size::sixteen) {
                    #pragma unroll
                    for (u32 i = 0; i < 2; i++) {
                        u32 own = lane / 16 * 2 + i;
                        scales[own][lane % 16] = scales_of<F>(head + at, half_to_float(d), own, up);
                    }
                    if (F == T_Q6_K && t / 4 + 1 < blocks) d = ds[t / 4 + 1];
                    __syncwarp();
                }
                if (Size::sixteen) {
                    halves_of<F>(halves_from + at, to);
                } else {
                    uint4 two[2] = {scales[j][lane / 4], scales[j][lane / 4 + 8]};
                    weights_of<F>(w_from + at, j, two, to);
                }
                if (j == Size::steps - 1) {
                    __syncwarp();
                    if (lane == 0) bar_arrive(weights_free + 8 * slot);
                    next_slot();
                }
            };
            prepare(0, a[0]);
            #pragma unroll 1
            for (u32 t = 0; t < steps; t += 4) {
                #pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    bar_wait(full + 8 * stage, round & 1);
                    u64 b = tile_at(one_for_all(space_at + stage * Size::rows));
                    wgmma_begins();
                    #pragma unroll
                    for (int k = 0; k < 4; k++) wgmma_own<false>(sums, a[i % 2][k], further(b, 2 * k), 1);
                    wgmma_commits();
                    // The step before is done: its rows may go, its weights make room for the next ones.
                    wgmma_waits<1>();
                    were_read(a[(i + 1) % 2]);
                    if (t + i > 0 && lane < CLUSTER) bar_arrive_at(free + 8 * before, lane);
                    before = stage;
                    next_stage();
                    if (i < 3 || t + 4 < steps) prepare(t + i + 1, a[(i + 1) % 2]);
                }
            }
            wgmma_waits<0>();
            wgmma_made(sums);
            if (lane < CLUSTER) bar_arrive_at(free + 8 * before, lane);
            if (!found) return;
            if (op.gated) write_sums<true>(s, op, outs, units, scaled, first, count, sums, put);
            else write_sums<false>(s, op, outs, units, scaled, first, count, sums, put);
        });
    }
    meet_cluster();
}

#define GEMM(NAME, F, NT)                                                                                                    \
    extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)                                   \
        NAME##_##F(Step s, MatVec op, const u8 *rows, const float *units, Scaled scaled) {                                   \
        gemm90<T_##F, NT>(s, op, rows, units, scaled);                                                                       \
    }
#define BOTH(F) GEMM(gemm90_large, F, 32) GEMM(gemm90_small, F, 16)
BOTH(F16) BOTH(BF16) BOTH(Q4_0) BOTH(IQ4_NL) BOTH(Q8_0) BOTH(Q4_K) BOTH(Q5_K) BOTH(Q6_K)
#endif
