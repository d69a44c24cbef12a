// Weights on their way to a warp: rows in portions, through a few pieces of shared memory of the warp's own, fetched across
// the phases of a tape; and what a lane makes of a portion, in the order of matvec.cu.
#pragma once
#include "row.cuh"

#define DEPTH 4u    // portions on their way
#define AHEAD 8u    // instructions of a tape in shared memory
#define WARPS 16u   // of a block

enum { PRODUCTS, ATTEND, COPY };

// An instruction of a tape and what its kernel gets: a product's, an attention's, or three words of a copy.
struct __align__(16) Instr {
    u32 kind;
    u32 lead;
    u32 meets;      // whether all blocks meet behind it
    u32 pad;
    u8 body[624];
};

struct Product {
    MatVec op;
    Source from;
};

static __device__ __forceinline__ const Product &product(const Instr &in) { return *(const Product *)in.body; }

// Columns, bytes and bytes of scales that the lanes of a warp take at a time; or so many times that as a piece holds.
struct __align__(16) Stride {
    u32 columns, bytes, scales, pad;
};

#define FORMATS 43u // numbers of formats, of which each has its stride in shared memory

static __device__ __forceinline__ Stride stride_of(u32 dtype) {
    switch (dtype) {
    case T_Q4_0: case T_IQ4_NL: return {1024, 512, 64, 0};
    case T_MXFP4: return {1024, 512, 32, 0};
    case T_Q8_0: return {1024, 1024, 64, 0};
    case T_Q4_K: return {2048, 1152, 0, 0};
    case T_Q5_K: return {2048, 1408, 0, 0};
    case T_Q6_K: return {2048, 1664, 16, 0};
    default: return {256, 512, 0, 0};
    }
}

// Strides of portions; the threads of a block make them.
static __device__ __forceinline__ void make_strides(Stride *strides, u32 piece) {
    if (threadIdx.x >= FORMATS) return;
    Stride s = stride_of(threadIdx.x);
    u32 times = piece / (s.bytes + s.scales);
    strides[threadIdx.x] = {s.columns * times, s.bytes * times, s.scales * times, 0};
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
static __device__ __forceinline__ void copy16(u32 to, const u8 *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
static __device__ __forceinline__ void copy4(u32 to, const u8 *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}
static __device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#else
// Tapes are for 8.0 and later.
static __device__ __forceinline__ void copy16(u32, const u8 *) {}
static __device__ __forceinline__ void copy4(u32, const u8 *) {}
static __device__ __forceinline__ void copies_end() {}
template <int N> static __device__ __forceinline__ void wait_copies() {}
#endif

// Which outputs of a phase are a warp's, in turn: those of a gated pair follow each other.
static __device__ __forceinline__ u32 turn_of(const MatVec &op, u32 n) {
    u32 warps = gridDim.x * WARPS, own = (threadIdx.x >> 5) * gridDim.x + blockIdx.x;
    return op.gated ? 2 * (own + (n >> 1) * warps) + (n & 1) : own + n * warps;
}

struct Stream {
    u32 phase, turn;        // of the next portion, whose row is the turn before that
    const u8 *body, *scales;
    u32 left, scales_left;  // bytes of the row
    u32 unit, unit_scales;  // bytes of a portion
    u32 fetched, taken;
    u32 to;                 // the warp's pieces
    u32 piece;              // bytes of one
};

// Starts copies while there is room, up to the instruction `limit`; `live` has a bit for every lead that has rows.
static __device__ __forceinline__ void fetch(Stream &st, u32 live, const Instr *instrs, const Stride *strides, u32 limit) {
    u32 lane = threadIdx.x & 31;
    while (st.fetched - st.taken < DEPTH) {
        while (st.left == 0) {
            if (st.phase >= limit) return;
            const Instr &in = instrs[st.phase % AHEAD];
            const MatVec &op = product(in).op;
            u32 i = 0;
            bool more = in.kind == PRODUCTS && (live >> in.lead & 1);
            if (more) i = turn_of(op, st.turn), more = i < product(in).from.total;
            if (!more) {
                st.phase++, st.turn = 0;
                continue;
            }
            st.turn++;
            Output out = output_of(op, i);
            const Part &p = op.parts[out.part];
            Stride stride = strides[p.dtype];
            st.left = (u32)p.row_bytes, st.scales_left = (u32)p.scale_bytes;
            st.body = p.data + (u64)out.o * st.left, st.scales = p.scales + (u64)out.o * st.scales_left;
            st.unit = stride.bytes, st.unit_scales = stride.scales;
        }
        u32 to = st.to + st.fetched % DEPTH * st.piece, n = min(st.unit, st.left), m = min(st.unit_scales, st.scales_left);
        u32 i = lane * 16;
        #pragma unroll 1
        for (; i + 1536 < n; i += 2048) {
            #pragma unroll
            for (u32 j = 0; j < 2048; j += 512) copy16(to + i + j, st.body + i + j);
        }
        #pragma unroll 1
        for (; i < n; i += 512) copy16(to + i, st.body + i);
        if (((u32)(u64)st.scales | m) % 16 == 0) {
            #pragma unroll 1
            for (u32 i = lane * 16; i < m; i += 512) copy16(to + st.unit + i, st.scales + i);
        } else {
            #pragma unroll 1
            for (u32 i = lane * 4; i < m; i += 128) copy4(to + st.unit + i, st.scales + i);
        }
        copies_end();
        st.body += n, st.scales += m, st.left -= n, st.scales_left -= m;
        st.fetched++;
    }
}

// Waits for the oldest portion.
static __device__ __forceinline__ void wait_oldest(const Stream &st) {
    switch (st.fetched - st.taken) {
    case 4: wait_copies<3>(); break;
    case 3: wait_copies<2>(); break;
    case 2: wait_copies<1>(); break;
    default: wait_copies<0>();
    }
    __syncwarp();
}

// Adds what the lanes make of a portion that begins at column `first` and ends before `end`.
template <int F> static __device__ __forceinline__ float taken(const u8 *body, const u8 *scales, u32 first, u32 end, const Acts1 &a, float sum) {
    u32 lane = threadIdx.x & 31;
    if (F == T_F16 || F == T_BF16) {
        Sixteens<1> at = sixteens_at<1>(a);
        at.w[0] = shared_address(body) + lane * 16;
        sum = sixteen_sums<F, 4, 1>(at, first, end, {{sum}}).of[0];
    } else if (F == T_Q4_0 || F == T_MXFP4 || F == T_IQ4_NL || F == T_Q8_0) {
        u32 from = first / 32, to = end / 32;
        #pragma unroll 2
        for (u32 b = from + lane; b < to; b += 32) {
            uint4 low, high;
            float d = F == T_MXFP4 ? e8m0_half(scales[b - from]) : half_to_float(((const u16 *)scales)[b - from]);
            if (F == T_Q8_0) {
                low = ((const uint4 *)body)[2 * (b - from)], high = ((const uint4 *)body)[2 * (b - from) + 1];
            } else {
                uint4 v = ((const uint4 *)body)[b - from];
                if (F == T_Q4_0) {
                    low = masked(v, 0, 0x0f0f0f0fu), high = masked(v, 4, 0x0f0f0f0fu);
                } else {
                    const u32 *table = F == T_MXFP4 ? FP4_WORDS : IQ4_WORDS;
                    look_up(table, v.x, &low.x, &high.x), look_up(table, v.y, &low.y, &high.y);
                    look_up(table, v.z, &low.z, &high.z), look_up(table, v.w, &low.w, &high.w);
                }
            }
            u32 at = spread(b);
            i32 dot = dot16(high, a.high[at], dot16(low, a.low[at], 0)) - (F == T_Q4_0 ? 8 * a.s[b] : 0);
            sum = __fmaf_rn(__fmul_rn(d, a.d[b]), (float)dot, sum);
        }
    } else if (F == T_Q4_K || F == T_Q5_K) {
        const u32 bytes = F == T_Q4_K ? 144 : 176;
        u32 from = first / 64, to = end / 64;
        #pragma unroll 2
        for (u32 i = from + lane; i < to; i += 32) {
            u32 j = i % 4;
            const u8 *b = body + (i - from) / 4 * bytes, *qs = b + (F == T_Q4_K ? 16 : 48) + 32 * j;
            uint4 h = *(const uint4 *)b, a0 = *(const uint4 *)qs, a1 = *(const uint4 *)(qs + 16);
            u32 at = spread(2 * i);
            uint4 x0 = a.low[at], x1 = a.high[at], y0 = a.low[at + 1], y1 = a.high[at + 1];
            float2 xd = *(const float2 *)(a.d + 2 * i);
            int2 xs = *(const int2 *)(a.s + 2 * i);
            u32 sc = j < 2 ? h.y & 0x3f3f3f3fu : (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u);
            u32 mn = j < 2 ? h.z & 0x3f3f3f3fu : (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u);
            sc >>= 16 * (j & 1), mn >>= 16 * (j & 1);
            float d = half_to_float((u16)h.x), m = half_to_float((u16)(h.x >> 16));
            float d0 = d * (float)(sc & 255), d1 = d * (float)(sc >> 8 & 255);
            float m0 = m * (float)(mn & 255), m1 = m * (float)(mn >> 8 & 255);
            uint4 low0 = masked(a0, 0, 0x0f0f0f0fu), low1 = masked(a1, 0, 0x0f0f0f0fu);
            uint4 high0 = masked(a0, 4, 0x0f0f0f0fu), high1 = masked(a1, 4, 0x0f0f0f0fu);
            if (F == T_Q5_K) {
                uint4 f0 = *(const uint4 *)(b + 16), f1 = *(const uint4 *)(b + 32);
                low0 = either(low0, raised(masked(f0, 2 * j, 0x01010101u), 4));
                low1 = either(low1, raised(masked(f1, 2 * j, 0x01010101u), 4));
                high0 = either(high0, raised(masked(f0, 2 * j + 1, 0x01010101u), 4));
                high1 = either(high1, raised(masked(f1, 2 * j + 1, 0x01010101u), 4));
            }
            float v0 = __fmaf_rn(d0, (float)dot16(low1, x1, dot16(low0, x0, 0)), -__fmul_rn(m0, (float)xs.x));
            float v1 = __fmaf_rn(d1, (float)dot16(high1, y1, dot16(high0, y0, 0)), -__fmul_rn(m1, (float)xs.y));
            sum = __fmaf_rn(xd.x, v0, sum);
            sum = __fmaf_rn(xd.y, v1, sum);
        }
    } else if (F == T_Q6_K) {
        u32 from = first / 64, to = end / 64;
        #pragma unroll 2
        for (u32 i = from + lane; i < to; i += 32) {
            u32 h = i % 4 / 2, p = i & 1, run = i / 4 * 8 + 4 * h + p;
            const u8 *b = body + (i - from) / 4 * 208;
            uint4 l0 = *(const uint4 *)(b + 64 * h + 32 * p), l1 = *(const uint4 *)(b + 64 * h + 32 * p + 16);
            uint4 h0 = *(const uint4 *)(b + 128 + 32 * h), h1 = *(const uint4 *)(b + 144 + 32 * h);
            u32 s0 = *(const u16 *)(b + 192 + 8 * h + 2 * p), s1 = *(const u16 *)(b + 196 + 8 * h + 2 * p);
            float d = half_to_float(((const u16 *)scales)[(i - from) / 4]);
            u32 at = spread(run);
            uint4 x0 = a.low[at], x1 = a.high[at], y0 = a.low[at + 2], y1 = a.high[at + 2];
            float xd = a.d[run], yd = a.d[run + 2];
            uint4 a0 = less32(either(masked(l0, 0, 0x0f0f0f0fu), raised(masked(h0, 2 * p, 0x03030303u), 4)));
            uint4 a1 = less32(either(masked(l1, 0, 0x0f0f0f0fu), raised(masked(h1, 2 * p, 0x03030303u), 4)));
            uint4 c0 = less32(either(masked(l0, 4, 0x0f0f0f0fu), raised(masked(h0, 2 * p + 4, 0x03030303u), 4)));
            uint4 c1 = less32(either(masked(l1, 4, 0x0f0f0f0fu), raised(masked(h1, 2 * p + 4, 0x03030303u), 4)));
            i32 v0 = dot16(a0, x0, 0) * (i8)s0 + dot16(a1, x1, 0) * (i8)(s0 >> 8);
            i32 v1 = dot16(c0, y0, 0) * (i8)s1 + dot16(c1, y1, 0) * (i8)(s1 >> 8);
            sum = __fmaf_rn(__fmul_rn(d, xd), (float)v0, sum);
            sum = __fmaf_rn(__fmul_rn(d, yd), (float)v1, sum);
        }
    }
    return sum;
}
