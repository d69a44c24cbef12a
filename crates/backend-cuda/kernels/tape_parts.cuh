// Tapes of 9.0: what an instruction is, what lies in shared memory, and the words that blocks hand numbers on in.
#pragma once
#include "async.cuh"
#include "flash.cuh"

#define WARPS 16u           // that compute
#define THREADS (WARPS * 32)
#define NORM_THREADS 256u   // of the kernels whose norms these are
#define AHEAD 8u            // instructions in shared memory
#define LOOK 3u             // of which so many are asked for before they are needed
#define MOST_SLOTS 16u
#define MOST_NORM 4096u     // columns of a row that is normalised
#define ALL_MEET 1u         // numbers of barriers
#define NORM_MEETS 2u
#define TILE_MEETS 3u        // four warps each
#define PAIR_MEETS 3u        // two warps each
#define SIDE_MEETS 11u       // eight warps each

extern __shared__ __align__(128) u8 whole[];

enum { PRODUCTS, ATTEND, COPY };

// Numbers that were there before the tape, or words of an instruction before.
struct Numbers {
    const float *x;
    const u32 *words;
};

// One weight of a product. Units are outputs, or pairs of outputs where the second part is gated by the first.
struct Piece {
    const u8 *data, *scales;
    float *y;           // for readers behind the tape; 0 without any
    const float *scale, *bias;
    u32 row_bytes, scale_bytes;
    u32 end;            // units up to here, those of earlier parts counted in
    u32 dtype;
    u32 scale_len;
    u32 per_slot;       // units that a slot holds
};

struct Product {
    Piece parts[PARTS];
    Numbers from, add;
    const float *w, *b; // of the norm
    u32 *words;         // of the outputs; 0 where nobody on the tape reads them
    u32 share, longer;  // units of a block, and blocks that have one more
    u32 k;
    u32 gated, act;
    u32 kind;           // of the norm
    float eps;
    u32 form;           // of the row that the product reads
};

struct Attention {
    Cache cache;
    Numbers q, k, v;
    const float *wq, *wk;
    const float2 *turns;
    const float *sinks;
    float *out;         // as a product's y
    u32 *words;
    u64 *partial;       // per head and split: largest score, sum of weights, weighted values
    u32 heads, kv_heads, window, splits;
    float scale;
    u32 offset, pairs, halves;
    u32 kind_q, kind_k, wq_len, wk_len;
    float eps_q, eps_k;
};

struct Copy {
    Numbers from;
    u32 *to;
    u32 width;
    u32 pad;
};

struct __align__(16) Instr {
    u32 kind;
    u32 lead;
    u32 pad[2];
    u8 body[368];
};

struct Tape {
    const Instr *instrs;
    u32 *state;         // the mark before the first instruction's, blocks that ended, which of two sets of words comes next
    u64 *watch;         // four times per block and instruction; 0 where nobody asks
    u32 count;
    u32 slots;          // places for weights
    u32 slot_bytes;
    u32 space;          // bytes for a row, or for attention
    u32 spaces;         // one or two of them
    u32 apart;          // from one set of words to the other
    u32 near;           // blocks that splits have at most where each has one
    u32 pad;
};

// What lies in a slot: units of one part. Addresses are in shared memory.
struct __align__(16) Header {
    u32 data, scales;   // the part's rows
    u32 gate, gate_scales;
    u32 row_bytes, scale_bytes;
    u32 gate_bytes, gate_scale_bytes;
    u32 units;
    u32 at, o;          // the first of them, of the instruction and of the part
    u32 turn;           // of the warp that takes the first of them
    u32 sums;           // how rows are summed, and above the logarithm of a warp's rows at a time
    u32 row;            // how the row is made
    u32 what;           // bits
    u32 part;
};

enum { LAST = 1, GATED = 2, ADDS = 4, SCALED = 8, OUT = 16, WORDS = 32 };

// How rows are summed: by format, four apart for one, two or four rows; two rows or more of K formats by the halves of a warp
// where they have too few columns for all of it; rows of two formats.
enum { SUM_Q4_0 = 0, SUM_Q8_0 = 4, SUM_IQ4_NL = 8, SUM_MXFP4 = 12, SUM_F16 = 16, SUM_BF16 = 20, SUM_Q4_K = 24, SUM_Q5_K = 28, SUM_Q6_K = 32,
       SUM_HALVES = 12, SUM_MIXED = 48 };

// How a row is made: of up to 1,024, 2,048 or 4,096 columns by their root of mean squares, as it is, or any other way.
enum { ROW_1024, ROW_2048, ROW_LONG, ROW_PLAIN, ROW_OTHER };

// What all warps know.
struct State {
    u32 base;           // marks count from here
    u32 live;           // a bit for every lead that has rows
    u32 slot, pos;      // of the row's sequence, and of the row
    u32 set;            // where this step's words begin
    u32 pad[3];
};

// Where a warp is.
struct Turn {
    u32 phase;
    u32 ring, round;    // the slot that comes next, and how often all were there
    u32 side;           // which of two spaces comes next
};

struct Front {
    Instr instrs[AHEAD];
    Header headers[MOST_SLOTS];
    u64 full[MOST_SLOTS], empty[MOST_SLOTS];
    u64 here[AHEAD], done[AHEAD];
    float sums[2][NORM_THREADS / 32];
    State state;
    Tape tape;
    u32 pad[760];
};
static_assert(sizeof(Front) == 7680, "as the host has it");

static __device__ __forceinline__ Front &front() { return *(Front *)whole; }

// A split's number beside the mark of its instruction.
static __device__ __forceinline__ u64 marked(float x, u32 mark) { return (u64)mark << 32 | __float_as_uint(x); }
static __device__ __forceinline__ float marked_number(u64 word) { return __uint_as_float((u32)word); }
static __device__ __forceinline__ bool is_marked(u64 word, u32 mark) { return (u32)(word >> 32) == mark; }

// A number as a word that is not 0, which is what words are before: bits that no sum has are taken off.
#define NO_SUM 0x7fffa5c3u
static __device__ __forceinline__ u32 word_of(float x) {
    u32 w = __float_as_uint(x) ^ NO_SUM;
    return w ? w : 1;
}
static __device__ __forceinline__ float number_of(u32 word) { return __uint_as_float(word ^ NO_SUM); }
static __device__ __forceinline__ u32 ask(const Numbers &n, u32 i, u32 set) {
    return n.words ? word_at(n.words + set + i) : word_of(__ldcg(n.x + i));
}
static __device__ __forceinline__ float got(const Numbers &n, u32 i, u32 set, u32 word) {
    while (!word) word = word_at(n.words + set + i);
    return number_of(word);
}
// Waits for N words that were asked for: those that are not there are asked for again together.
template <int N> static __device__ __forceinline__ void get_all(const u32 *words, u32 first, u32 step, u32 *w) {
    for (;;) {
        bool all = true;
        #pragma unroll
        for (int i = 0; i < N; i++) all &= w[i] != 0;
        if (all) return;
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (!w[i]) w[i] = word_at(words + first + i * step);
    }
}

// Quotients of one divisor as `/` has them, where neither is out of reach.
struct Divisor {
    float y, r;
};
static __device__ __forceinline__ bool in_reach(float x) {
    u32 size = __float_as_uint(x) & 0x7fffffffu;
    return size - 0x2b800000u < 0x28000000u;    // 2^-40 to 2^40
}
static __device__ __forceinline__ Divisor divisor(float y) {
    float r = about_inverse(y);
    return {y, __fmaf_rn(r, __fmaf_rn(-y, r, 1.0f), r)};
}
static __device__ __forceinline__ float quotient(float x, const Divisor &d) {
    float q = __fmul_rn(x, d.r);
    q = __fmaf_rn(__fmaf_rn(-d.y, q, x), d.r, q);
    return __fmaf_rn(__fmaf_rn(-d.y, q, x), d.r, q);
}
static __device__ __forceinline__ float slow_quotient(float x, float y) { return x / y; }
// Of N numbers by one.
template <int N> static __device__ __forceinline__ void divide(float *x, float y) {
    Divisor d = divisor(y);
    bool plain = in_reach(y);
    #pragma unroll
    for (int i = 0; i < N; i++) plain &= in_reach(x[i]) || x[i] == 0.0f;
    if (plain) {
        #pragma unroll
        for (int i = 0; i < N; i++) x[i] = quotient(x[i], d);
    } else {
        #pragma unroll
        for (int i = 0; i < N; i++) x[i] = slow_quotient(x[i], y);
    }
}

static __device__ __forceinline__ u8 *space_of(const Tape &t, u32 side) { return whole + sizeof(Front) + side * t.space; }
static __device__ __forceinline__ u32 slot_at(const Tape &t, u32 slot) {
    return (u32)sizeof(Front) + t.spaces * t.space + slot * t.slot_bytes;
}

static __device__ __forceinline__ void note(const Tape &t, u32 phase, u32 what) {
    if (t.watch && threadIdx.x == 0) t.watch[((u64)blockIdx.x * t.count + phase) * 4 + what] = now();
}

// The first of a block's units.
static __device__ __forceinline__ u32 share(const Product &p, u32 block) { return block * p.share + min(block, p.longer); }

// Whether a format's rows of so many columns are summed two at once, by half a warp each: the other half has no columns.
static __device__ __forceinline__ bool is_short(u32 dtype, u32 k) {
    return (dtype == T_Q4_K || dtype == T_Q5_K || dtype == T_Q6_K) && k <= 1024;
}

// Units of a warp at a time.
static __device__ __forceinline__ u32 together(u32 units, bool gated, u32 dtype, u32 k) {
    bool four = !(dtype == T_Q4_K || dtype == T_Q5_K || dtype == T_Q6_K) || is_short(dtype, k);
    if (gated) return units > WARPS && four ? 2 : 1;
    return units > 2 * WARPS && four ? 4 : units > WARPS ? 2 : 1;
}

static __device__ __forceinline__ u32 sums_by(u32 dtype) {
    switch (dtype) {
    case T_Q4_0: return SUM_Q4_0;
    case T_Q8_0: return SUM_Q8_0;
    case T_IQ4_NL: return SUM_IQ4_NL;
    case T_MXFP4: return SUM_MXFP4;
    case T_F16: return SUM_F16;
    case T_BF16: return SUM_BF16;
    case T_Q4_K: return SUM_Q4_K;
    case T_Q5_K: return SUM_Q5_K;
    default: return SUM_Q6_K;
    }
}
