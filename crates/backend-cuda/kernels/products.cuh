// What the kernels of products are given, and what they share.
#pragma once
#include "formats.cuh"
#include "sixteen.cuh"

// Rows of activations: bytes, scales, and sums of bytes.
struct Acts {
    const u8 *q;
    const float *d;
    const i32 *s;
};

struct Quantise {
    const float *x;
    float *y;           // normalised rows; 0 where nobody reads them
    u8 *q;              // 0 where nobody reads bytes
    float *d;
    i32 *s;
    const float *w, *b; // of the norm
    u32 lead, width;
    u32 kind;           // of the norm; none: 4
    float eps;
    uint2 *turned;      // scales and sums run by run; 0 without tensor cores
    u32 pitch;
    u32 split;          // whether rows of prompts have a launch of their own
};

// What a row is divided by, and its mean where that is taken off: by the first 256 threads of a block, or by all of fewer.
static __device__ float root_of(const float *x, u32 width, u32 kind, float eps, float *shared, float *mean) {
    u32 step = min(blockDim.x, 256), first = threadIdx.x < step ? threadIdx.x : width;
    float squares = 0.0f, m = 0.0f;
    if (kind == NORM_LAYER) {
        #pragma unroll 8
        for (u32 c = first; c < width; c += step) m += x[c];
        m = sum_block(m, shared) / (float)width;
    }
    #pragma unroll 8
    for (u32 c = first; c < width; c += step) {
        float v = x[c] - m;
        squares = __fmaf_rn(v, v, squares);
    }
    squares = sum_block(squares, shared);
    *mean = m;
    return norm_root(kind, squares, width, eps);
}

// One weight of a product.
struct Part {
    const u8 *data;
    const u8 *scales;       // apart from the blocks, where they would misalign them
    float *y;
    const float *scale;     // of outputs
    const float *bias;
    const float *add;       // rows as long as y's
    u64 row_bytes;
    u64 scale_bytes;        // of a row's scales
    u64 part_bytes;         // from an expert's rows to the next one's
    u64 part_scales;
    u32 end;                // outputs up to here, those of earlier parts counted in
    u32 dtype;
    u32 y_stride, y_first;
    u32 scale_len;
    u32 bias_part;
};

#define PARTS 4

struct MatVec {
    Part parts[PARTS];
    Acts acts;
    const float *x;
    const i32 *ids;         // experts of routed rows
    u32 lead, k;
    u32 top_k;              // routed rows of a row; 0 without experts
    u32 x_shared;           // whether the routed rows of a row share its input
    u32 gated;              // the second part's outputs are multiplied by an activation of the first's
    u32 act;
    u32 kinds;              // whether rows of prompts are left to the kernels of gemm.cu
    u32 pitch;              // rows from a run of `turned` to the next one
    const uint2 *turned;    // scales and sums of rows, run by run
};

static __device__ __forceinline__ uint4 load_weights(const void *p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

static __device__ __forceinline__ i32 dot16(uint4 w, uint4 x, i32 sum) {
    sum = __dp4a((i32)w.x, (i32)x.x, sum);
    sum = __dp4a((i32)w.y, (i32)x.y, sum);
    sum = __dp4a((i32)w.z, (i32)x.z, sum);
    return __dp4a((i32)w.w, (i32)x.w, sum);
}

// An integer whose bits are a float of 2^23 + 2^22 and that integer: sums that begin at it need no conversion.
#define EXACT 0x4b400000
#define EXACT_FLOAT 12582912.0f
static __device__ __forceinline__ float exact(i32 sum) { return __int_as_float(sum) - EXACT_FLOAT; }

// Codes without a sign by bytes with one.
static __device__ __forceinline__ i32 codes4(u32 w, u32 x, i32 sum) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(w), "r"(x));
    return sum;
}
static __device__ __forceinline__ i32 codes16(uint4 w, uint4 x, i32 sum) {
    return codes4(w.w, x.w, codes4(w.z, x.z, codes4(w.y, x.y, codes4(w.x, x.x, sum))));
}

static __device__ __forceinline__ uint4 masked(uint4 v, u32 shift, u32 mask) {
    return make_uint4(v.x >> shift & mask, v.y >> shift & mask, v.z >> shift & mask, v.w >> shift & mask);
}

static __device__ __forceinline__ uint4 either(uint4 a, uint4 b) {
    return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w);
}

static __device__ __forceinline__ uint4 raised(uint4 v, u32 shift) {
    return make_uint4(v.x << shift, v.y << shift, v.z << shift, v.w << shift);
}

// Bytes of 0..63 less 32, as signed bytes.
static __device__ __forceinline__ u32 less32(u32 v) { return ((v | 0x80808080u) - 0x20202020u) ^ 0x80808080u; }
static __device__ __forceinline__ uint4 less32(uint4 v) { return make_uint4(less32(v.x), less32(v.y), less32(v.z), less32(v.w)); }

// Eight nibbles as bytes of a table of sixteen: those of low nibbles, and those of high ones.
static __device__ __forceinline__ void look_up(const u32 *table, u32 q, u32 *low, u32 *high) {
    u32 at = q & 0x77777777u, pick = 0x32103210u | (q & 0x88888888u) >> 1;
    u32 a = __byte_perm(__byte_perm(table[0], table[1], at), __byte_perm(table[2], table[3], at), pick);
    u32 b = __byte_perm(__byte_perm(table[0], table[1], at >> 16), __byte_perm(table[2], table[3], at >> 16), pick >> 16);
    *low = __byte_perm(a, b, 0x6420);
    *high = __byte_perm(a, b, 0x7531);
}

static __device__ const u32 FP4_WORDS[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
static __device__ const u32 IQ4_WORDS[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};

static __device__ __forceinline__ float finished(const Part &p, float y, u32 o, u32 expert, bool routed) {
    if (p.scale) y = __fmul_rn(y, p.scale[routed ? expert : (p.y_first + o) % p.scale_len]);
    if (p.bias) y = __fadd_rn(y, p.bias[(u64)expert * p.bias_part + p.y_first + o]);
    return y;
}

// The gate's activation of one product times another.
static __device__ __forceinline__ float gated(u32 act, float y, float up) {
    float a = act == 1 ? y * sigmoid(y) : 0.5f * y * (1.0f + tanhf(0.7978845608028654f * (y + 0.044715f * y * y * y)));
    return a * up;
}

// Whether a row of products belongs to the kernels for prompts.
static __device__ __forceinline__ bool of_prompt(const Step &s, const MatVec &op, u32 row) {
    return op.kinds && (s.flags[row] & ROW_PROMPT);
}

// Forms of a row of products: as it is, in bytes, or in parts of sixteen bits.
enum { IN_FLOATS, IN_BYTES, IN_HALVES, IN_BFLOATS };

#define PREPARED 5 // in the place of a norm: bytes, scales and sums are there

// What the row comes from.
struct Source {
    const float *x;
    const float *w, *b;
    u32 kind;
    float eps;
    u32 form;   // that products read
    u32 total;  // outputs; those of a gated pair beside each other
};

// Rows of a weight's blocks, of scales where these lie apart.
struct Rows {
    const u8 *w, *scales;
};

// An output of the launch: its part and its place there.
struct Output {
    u32 part, o;
};

static __device__ __forceinline__ Output output_of(const MatVec &op, u32 i) {
    Output out = {0, i};
    if (op.gated) {
        out.part = i & 1, out.o = i / 2;
    } else {
        while (i >= op.parts[out.part].end) out.part++;
        if (out.part > 0) out.o -= op.parts[out.part - 1].end;
    }
    return out;
}

static __device__ __forceinline__ Rows rows_at(const MatVec &op, Output out) {
    const Part &p = op.parts[out.part];
    Rows r = {p.data + (u64)out.o * p.row_bytes, p.scales + (u64)out.o * p.scale_bytes};
    return r;
}
