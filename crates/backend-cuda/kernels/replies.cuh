// What the kernels share that compute products of many replies' rows on tensor cores, in the order of matvec.cu: a row has the
// same bits from both.
//
// There, lane l of a warp sums units l, l + 32, … (runs of 32 columns, or of 64 in K formats), and lanes are summed in pairs:
// 16 apart first, then 8, 4, 2 and 1. Here four neighbouring units are a group, units of every group a warp each: warp w takes
// the lanes w, w + 4, …, one after the other in such an order that pairs are complete when they are summed, and four warps are
// summed last. The dot of a unit is exact in integers, so who makes it does not matter.
#pragma once
#include "tiles.cuh"

#ifdef HAS_TENSOR
// Keeps a number in its register, where the compiler would work it out again each time.
static __device__ __forceinline__ void keep(u32 &x) { asm volatile("" : "+r"(x)); }
template <class T> static __device__ __forceinline__ void keep(T *&p) { asm volatile("" : "+l"(p)); }

// Lanes of a warp's units, the order in which they are complete in pairs: bits turned round.
#define TURNS 8u
#define OUTS 32 // outputs of a tile
static __device__ __forceinline__ u32 turn(u32 q) { return (q & 1) << 2 | (q & 2) | (q >> 2 & 1); }

// Where a warp is: group `b` of those that its lane of turn `q` sums.
struct Place {
    u32 q, b;
    __device__ __forceinline__ void next(u32 groups) {
        b += TURNS;
        while (b >= groups && q < TURNS) q++, b = turn(q);
    }
};

template <int F> struct Group {
    static const bool large = F == T_Q4_K || F == T_Q5_K || F == T_Q6_K;
    static const u32 columns = large ? 256 : 128, runs = columns / 32;
    static const u32 bytes = F == T_Q4_K ? 144 : F == T_Q5_K ? 176 : F == T_Q6_K ? 208 : F == T_Q8_0 ? 128 : 64; // of an output
    static const u32 scales = large ? 0 : F == T_MXFP4 ? 4 : 8; // bytes beside them
    static const u32 pitch = large ? bytes : bytes + 16;        // an odd number of 16 bytes: rows in banks of their own
    static const u32 row = columns + 16;                        // of activations, likewise
};

template <int F, int ROWS> struct Stage {
    static const u32 acts = OUTS * Group<F>::pitch, scales = acts + ROWS * Group<F>::row,
                     bytes = scales + Group<F>::runs * ROWS * 8;
    // Behind the stages: scales as floats of two of them.
    static const u32 floats = Group<F>::large ? OUTS * 64 + (F == T_Q6_K ? OUTS * 4 : 0) : 0;
};

// Bytes of 16 outputs by 32 columns times 32 columns of 8 rows; what is added depends on the row.
static __device__ __forceinline__ void mma_rows(i32 *d, const u32 *a, u32 b0, u32 b1, i32 c0, i32 c1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%10,%11};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
}

// What a lane has of a unit of 16 outputs: bytes of one run or two, and two outputs' scales.
struct Unit {
    u32 a[2][4];
    float4 scale[2]; // by output: of each run, and minima of each; of Q6_K those of 16 columns each
    float all[2];    // of Q6_K
};

// Scales of unit `j` of an output's group, for formats that have many.
template <int F> static __device__ __forceinline__ float4 scales_of(const u8 *w, u32 j) {
    if (F == T_Q6_K) {
        u32 first = *(const u16 *)(w + 192 + 8 * (j / 2) + 2 * (j & 1)), second = *(const u16 *)(w + 196 + 8 * (j / 2) + 2 * (j & 1));
        return make_float4((float)(i8)first, (float)(i8)second, (float)(i8)(first >> 8), (float)(i8)(second >> 8));
    }
    uint4 head = *(const uint4 *)w;
    u32 sc = j < 2 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
    u32 mn = j < 2 ? head.z & 0x3f3f3f3fu : (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
    sc >>= 16 * (j & 1), mn >>= 16 * (j & 1);
    float d = half_to_float((u16)head.x), m = half_to_float((u16)(head.x >> 16));
    return make_float4(d * (float)(sc & 255), d * (float)(sc >> 8 & 255), m * (float)(mn & 255), m * (float)(mn >> 8 & 255));
}

// Bytes of unit `j` of the output whose group begins at `w`: those of outputs `h` of a lane's two.
template <int F> static __device__ __forceinline__ void load_bytes(const u32 *w, u32 t, u32 j, int h, Unit &u) {
    if (F == T_Q8_0) {
        u.a[0][h] = w[j * 8 + t], u.a[0][2 + h] = w[j * 8 + 4 + t];
    } else if (F == T_Q4_0) {
        u32 v = w[j * 4 + t];
        u.a[0][h] = v & 0x0f0f0f0fu, u.a[0][2 + h] = v >> 4 & 0x0f0f0f0fu;
    } else if (F == T_IQ4_NL || F == T_MXFP4) {
        look_up(F == T_MXFP4 ? FP4_WORDS : IQ4_WORDS, w[j * 4 + t], &u.a[0][h], &u.a[0][2 + h]);
    } else if (F == T_Q4_K || F == T_Q5_K) {
        #pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 v = w[(F == T_Q4_K ? 4 : 12) + j * 8 + 4 * c + t], x = v & 0x0f0f0f0fu, y = v >> 4 & 0x0f0f0f0fu;
            if (F == T_Q5_K) {
                u32 fifth = w[4 + 4 * c + t] >> 2 * j;
                x |= (fifth & 0x01010101u) << 4, y |= (fifth >> 1 & 0x01010101u) << 4;
            }
            u.a[0][2 * c + h] = x, u.a[1][2 * c + h] = y;
        }
    } else {
        u32 half = j / 2, p = j & 1;
        #pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 v = w[16 * half + 8 * p + 4 * c + t], more = w[32 + 8 * half + 4 * c + t] >> 2 * p;
            u.a[0][2 * c + h] = less32((v & 0x0f0f0f0fu) | (more & 0x03030303u) << 4);
            u.a[1][2 * c + h] = less32((v >> 4 & 0x0f0f0f0fu) | (more >> 4 & 0x03030303u) << 4);
        }
    }
}

// The scale of unit `j` of a group, for formats that have one.
template <int F> static __device__ __forceinline__ float scale_of(const u8 *scales, u32 j) {
    return F == T_MXFP4 ? e8m0_half(scales[j]) : half_to_float(((const u16 *)scales)[j]);
}

// Adds a run of eight rows: `b` are their bytes, `x` scales and sums of a lane's two rows.
template <int F, int RUN> static __device__ __forceinline__ void add_run(const Unit &u, u32 b0, u32 b1, uint4 x, float *acc) {
    float d[2] = {__uint_as_float(x.x), __uint_as_float(x.z)}, sum[2] = {__uint_as_float(x.y), __uint_as_float(x.w)};
    float scale[2] = {RUN ? u.scale[0].y : u.scale[0].x, RUN ? u.scale[1].y : u.scale[1].x};
    float more[2] = {RUN ? u.scale[0].w : u.scale[0].z, RUN ? u.scale[1].w : u.scale[1].z};
    if (F == T_Q6_K) {
        i32 c0[4], c1[4];
        mma16(c0, u.a[RUN][0], u.a[RUN][1], b0, EXACT);
        mma16(c1, u.a[RUN][2], u.a[RUN][3], b1, EXACT);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            // Below 2^24, so exact.
            float v = __fmul_rn(exact(c0[i]), scale[i / 2]);
            v = __fmaf_rn(exact(c1[i]), more[i / 2], v);
            acc[i] = __fmaf_rn(__fmul_rn(u.all[i / 2], d[i & 1]), v, acc[i]);
        }
        return;
    }
    i32 c[4];
    // Codes of Q4_0 are 8 more than what they say.
    float from[2] = {EXACT_FLOAT - (F == T_Q4_0 ? 8.0f * sum[0] : 0.0f), EXACT_FLOAT - (F == T_Q4_0 ? 8.0f * sum[1] : 0.0f)};
    mma_rows(c, u.a[RUN], b0, b1, __float_as_int(from[0]), __float_as_int(from[1]));
    if (F == T_Q4_K || F == T_Q5_K) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float less = __fmul_rn(more[i / 2], sum[i & 1]);
            acc[i] = __fmaf_rn(d[i & 1], __fmaf_rn(scale[i / 2], exact(c[i]), -less), acc[i]);
        }
    } else {
        #pragma unroll
        for (int i = 0; i < 4; i++) acc[i] = __fmaf_rn(__fmul_rn(scale[i / 2], d[i & 1]), exact(c[i]), acc[i]);
    }
}

static __device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

static __device__ __forceinline__ void load_two(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}

// A lane of turn `q` is complete: it is summed with what it makes a pair with, where that is there; so the last of three
// levels sums all in the end. Where a thread has many sums, all but the first level are `kept` in shared memory.
template <int NT, bool KEPT, int THREADS>
static __device__ __forceinline__ void complete(u32 q, float (&acc)[NT][4], float (&sums)[KEPT ? 1 : 3][NT][4], float4 *kept) {
    #pragma unroll
    for (int level = 0; level < 3; level++) {
        const int in = KEPT ? 0 : level;
        bool away = KEPT && level > 0, pairs = q >> level & 1, ends = !pairs || level == 2;
        #pragma unroll
        for (int n = 0; n < NT; n++) {
            float(&own)[4] = sums[in][n], (&x)[4] = acc[n];
            float4 &out = kept[((away ? level - 1 : 0) * NT + n) * THREADS];
            if (pairs) {
                float4 y = away ? out : make_float4(own[0], own[1], own[2], own[3]);
                x[0] = __fadd_rn(y.x, x[0]), x[1] = __fadd_rn(y.y, x[1]), x[2] = __fadd_rn(y.z, x[2]), x[3] = __fadd_rn(y.w, x[3]);
            }
            if (!ends) continue;
            if (away) out = make_float4(x[0], x[1], x[2], x[3]);
            else own[0] = x[0], own[1] = x[1], own[2] = x[2], own[3] = x[3];
            x[0] = x[1] = x[2] = x[3] = 0.0f;
        }
        if (ends) break;
    }
}

template <int NT, bool KEPT, int THREADS>
static __device__ __forceinline__ void completed(float (&acc)[NT][4], const float (&sums)[KEPT ? 1 : 3][NT][4], const float4 *kept) {
    #pragma unroll
    for (int n = 0; n < NT; n++) {
        const float(&own)[4] = sums[KEPT ? 0 : 2][n];
        float4 x = KEPT ? kept[(NT + n) * THREADS] : make_float4(own[0], own[1], own[2], own[3]);
        acc[n][0] = x.x, acc[n][1] = x.y, acc[n][2] = x.z, acc[n][3] = x.w;
    }
}

// The sum of an output of a row: the four warps' parts lie OUTS rows of PITCH apart.
template <int PITCH> static __device__ __forceinline__ float joined(const float *joint, u32 r, u32 o) {
    const float *from = joint + o * PITCH + r;
    return __fadd_rn(__fadd_rn(from[0], from[2 * OUTS * PITCH]), __fadd_rn(from[OUTS * PITCH], from[3 * OUTS * PITCH]));
}

// Writes a tile's rows of replies.
template <int ROWS>
static __device__ __forceinline__ void write_tile(const Step &s, const MatVec &op, const Outputs &outs, u32 first, u32 count, const float *joint) {
    const int PITCH = ROWS + 2;
    u32 wide = op.gated ? OUTS / 2 : OUTS;
    #pragma unroll 1
    for (u32 e = threadIdx.x; e < ROWS * wide; e += blockDim.x) {
        u32 r = e / wide, c = e % wide, row = first + r, o = outs.first + c;
        if (row >= count || o >= outs.count || of_prompt(s, op, row)) continue;
        const Part &p = op.parts[outs.part];
        float y = finished(p, joined<PITCH>(joint, r, c), o, 0, false);
        if (op.gated) y = gated(op.act, y, finished(op.parts[1], joined<PITCH>(joint, r, OUTS / 2 + c), o, 0, false));
        u64 to = (u64)row * p.y_stride + p.y_first + o;
        if (p.add) y = __fadd_rn(y, p.add[to]);
        p.y[to] = y;
    }
}

// The weight's row behind a row of a tile of OUTS: those of a gated pair have one half each.
static __device__ __forceinline__ Rows weight_row(const MatVec &op, const Outputs &outs, u32 r) {
    u32 part = outs.part;
    if (op.gated) part = r >= OUTS / 2, r %= OUTS / 2;
    u32 o = min(outs.first + r, outs.count - 1);
    const Part &p = op.parts[part];
    Rows rows = {p.data + (u64)o * p.row_bytes, p.scales + (u64)o * p.scale_bytes};
    return rows;
}

// The runs of unit `j` of a group; those of Q6_K lie one apart.
template <int F> static __device__ __forceinline__ u32 first_run(u32 j) {
    return !Group<F>::large ? j : F == T_Q6_K ? j / 2 * 4 + (j & 1) : 2 * j;
}
template <int F> static __device__ __forceinline__ u32 second_run(u32 j) { return first_run<F>(j) + (F == T_Q6_K ? 2 : 1); }

// Where a lane reads a run's bytes of a tile of rows, or of two runs or tiles.
template <int F, int NT> static __device__ __forceinline__ u32 lane_rows(u32 lane, u32 j) {
    u32 at = (lane & 8) * 2;
    if (Group<F>::large) return at + lane % 8 * Group<F>::row + (lane < 16 ? first_run<F>(j) : second_run<F>(j)) * 32;
    return at + (lane % 8 + (NT > 1 ? (lane & 16) / 2 : 0)) * Group<F>::row + first_run<F>(j) * 32;
}

// Adds a unit of all rows of a warp: their bytes from `from` on, scales and sums from `x` on.
template <int F, int NT, int ROWS> static __device__ __forceinline__ void add_unit(const Unit &u, u32 from, const uint4 *x, float (&acc)[NT][4]) {
    #pragma unroll
    for (int n = 0; n < NT; n++) {
        if (Group<F>::large) {
            u32 b[4];
            load_matrices(b, from + n * 8 * Group<F>::row);
            add_run<F, 0>(u, b[0], b[1], x[n * 4], acc[n]);
            add_run<F, 1>(u, b[2], b[3], x[n * 4 + (F == T_Q6_K ? 2 : 1) * ROWS / 2], acc[n]);
        } else if (NT == 1) {
            u32 b[2];
            load_two(b, from);
            add_run<F, 0>(u, b[0], b[1], x[0], acc[0]);
        } else if (n % 2 == 0) {
            u32 b[4];
            load_matrices(b, from + n * 8 * Group<F>::row);
            add_run<F, 0>(u, b[0], b[1], x[n * 4], acc[n]);
            add_run<F, 0>(u, b[2], b[3], x[n * 4 + 4], acc[(n + 1) % NT]);
        }
    }
}
#endif
