// Products on a tape.
#pragma once
#include "tape_row.cuh"

// Rows of weights and of their scales in shared memory.
template <int R> struct Rows1 {
    u32 w[R], s[R];
};

template <class T> static __device__ __forceinline__ const T &in_shared(u32 at) { return *(const T *)(whole + at); }

// What a lane makes of R rows, in the order of matvec.cu.
template <int F, int R> static __device__ __forceinline__ void lane_sums(const Rows1<R> &rows, u32 lane, u32 k, const Acts1 &a, float *sum) {
    const int U = R >= 4 ? 1 : 2;
    if (F == T_F16 || F == T_BF16) {
        Sixteens<R> at = sixteens_at<R>(a);
        Sums<R> sums;
        #pragma unroll
        for (int r = 0; r < R; r++) at.w[r] = shared_address(whole) + rows.w[r] + lane * 16, sums.of[r] = 0.0f;
        sums = sixteen_sums<F, R == 1 ? 4 : 2, R>(at, 0, k, sums);
        #pragma unroll
        for (int r = 0; r < R; r++) sum[r] = own_run(sums.of[r]);
    } else if (F == T_Q4_0 || F == T_MXFP4 || F == T_IQ4_NL || F == T_Q8_0) {
        u32 runs = k / 32;
        #pragma unroll U
        for (u32 b = lane; b < runs; b += 32) {
            u32 at = spread(b);
            uint4 x = a.low[at], y = a.high[at];
            float xd = a.d[b];
            i32 xs = a.s[b];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                uint4 low, high;
                float d = F == T_MXFP4 ? e8m0_half(in_shared<u8>(rows.s[r] + b)) : half_to_float(in_shared<u16>(rows.s[r] + b * 2));
                if (F == T_Q8_0) {
                    low = in_shared<uint4>(rows.w[r] + b * 32), high = in_shared<uint4>(rows.w[r] + b * 32 + 16);
                } else {
                    uint4 v = in_shared<uint4>(rows.w[r] + b * 16);
                    if (F == T_Q4_0) {
                        low = masked(v, 0, 0x0f0f0f0fu), high = masked(v, 4, 0x0f0f0f0fu);
                    } else {
                        const u32 *table = F == T_MXFP4 ? FP4_WORDS : IQ4_WORDS;
                        look_up(table, v.x, &low.x, &high.x), look_up(table, v.y, &low.y, &high.y);
                        look_up(table, v.z, &low.z, &high.z), look_up(table, v.w, &low.w, &high.w);
                    }
                }
                i32 dot = dot16(high, y, dot16(low, x, 0)) - (F == T_Q4_0 ? 8 * xs : 0);
                sum[r] = __fmaf_rn(__fmul_rn(d, xd), (float)dot, sum[r]);
            }
        }
    } else if (F == T_Q4_K || F == T_Q5_K) {
        const u32 bytes = F == T_Q4_K ? 144 : 176;
        #pragma unroll 1
        for (u32 i = lane; i < k / 64; i += 32) {
            u32 j = i % 4, at = spread(2 * i);
            uint4 x0 = a.low[at], x1 = a.high[at], y0 = a.low[at + 1], y1 = a.high[at + 1];
            float2 xd = *(const float2 *)(a.d + 2 * i);
            int2 xs = *(const int2 *)(a.s + 2 * i);
            #pragma unroll
            for (int r = 0; r < R; r++) {
                u32 b = rows.w[r] + i / 4 * bytes, qs = b + (F == T_Q4_K ? 16 : 48) + 32 * j;
                uint4 h = in_shared<uint4>(b), a0 = in_shared<uint4>(qs), a1 = in_shared<uint4>(qs + 16);
                u32 sc = j < 2 ? h.y & 0x3f3f3f3fu : (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u);
                u32 mn = j < 2 ? h.z & 0x3f3f3f3fu : (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u);
                sc >>= 16 * (j & 1), mn >>= 16 * (j & 1);
                float d = half_to_float((u16)h.x), m = half_to_float((u16)(h.x >> 16));
                float d0 = d * (float)(sc & 255), d1 = d * (float)(sc >> 8 & 255);
                float m0 = m * (float)(mn & 255), m1 = m * (float)(mn >> 8 & 255);
                uint4 low0 = masked(a0, 0, 0x0f0f0f0fu), low1 = masked(a1, 0, 0x0f0f0f0fu);
                uint4 high0 = masked(a0, 4, 0x0f0f0f0fu), high1 = masked(a1, 4, 0x0f0f0f0fu);
                if (F == T_Q5_K) {
                    uint4 f0 = in_shared<uint4>(b + 16), f1 = in_shared<uint4>(b + 32);
                    low0 = either(low0, raised(masked(f0, 2 * j, 0x01010101u), 4));
                    low1 = either(low1, raised(masked(f1, 2 * j, 0x01010101u), 4));
                    high0 = either(high0, raised(masked(f0, 2 * j + 1, 0x01010101u), 4));
                    high1 = either(high1, raised(masked(f1, 2 * j + 1, 0x01010101u), 4));
                }
                float v0 = __fmaf_rn(d0, (float)dot16(low1, x1, dot16(low0, x0, 0)), -__fmul_rn(m0, (float)xs.x));
                float v1 = __fmaf_rn(d1, (float)dot16(high1, y1, dot16(high0, y0, 0)), -__fmul_rn(m1, (float)xs.y));
                sum[r] = __fmaf_rn(xd.x, v0, sum[r]);
                sum[r] = __fmaf_rn(xd.y, v1, sum[r]);
            }
        }
    } else if (F == T_Q6_K) {
        #pragma unroll 1
        for (u32 i = lane; i < k / 64; i += 32) {
            u32 h = i % 4 / 2, p = i & 1, run = i / 4 * 8 + 4 * h + p, at = spread(run);
            uint4 x0 = a.low[at], x1 = a.high[at], y0 = a.low[at + 2], y1 = a.high[at + 2];
            float xd = a.d[run], yd = a.d[run + 2];
            const uint4 less = make_uint4(0xe0e0e0e0u, 0xe0e0e0e0u, 0xe0e0e0e0u, 0xe0e0e0e0u);
            i32 b0 = dot16(less, x0, 0), b1 = dot16(less, x1, 0), c0 = dot16(less, y0, 0), c1 = dot16(less, y1, 0);
            #pragma unroll
            for (int r = 0; r < R; r++) {
                u32 b = rows.w[r] + i / 4 * 208;
                uint4 l0 = in_shared<uint4>(b + 64 * h + 32 * p), l1 = in_shared<uint4>(b + 64 * h + 32 * p + 16);
                uint4 h0 = in_shared<uint4>(b + 128 + 32 * h), h1 = in_shared<uint4>(b + 144 + 32 * h);
                u32 s0 = in_shared<u16>(b + 192 + 8 * h + 2 * p), s1 = in_shared<u16>(b + 196 + 8 * h + 2 * p);
                float d = half_to_float(in_shared<u16>(rows.s[r] + i / 4 * 2));
                i32 v0 = dot16(six_bits(l0, h0, 0, 4 - 2 * p, 0), x0, b0) * (i8)s0 + dot16(six_bits(l1, h1, 0, 4 - 2 * p, 0), x1, b1) * (i8)(s0 >> 8);
                i32 v1 = dot16(six_bits(l0, h0, 4, 0, 2 * p), y0, c0) * (i8)s1 + dot16(six_bits(l1, h1, 4, 0, 2 * p), y1, c1) * (i8)(s1 >> 8);
                sum[r] = __fmaf_rn(__fmul_rn(d, xd), (float)v0, sum[r]);
                sum[r] = __fmaf_rn(__fmul_rn(d, yd), (float)v1, sum[r]);
            }
        }
    }
}

// Sums over all lanes, each in the order of `sum_lanes`; a lane gets that of row `lane / (32 / R)`.
template <int R> static __device__ __forceinline__ float over_lanes(const float *sum, u32 lane) {
    float x = sum[0];
    int d = 16;
    if (R == 4) {
        bool upper = lane & 16, odd = lane & 8;
        float a = (upper ? sum[2 % R] : sum[0]) + __shfl_xor_sync(ALL_LANES, upper ? sum[0] : sum[2 % R], 16);
        float b = (upper ? sum[3 % R] : sum[1 % R]) + __shfl_xor_sync(ALL_LANES, upper ? sum[1 % R] : sum[3 % R], 16);
        x = (odd ? b : a) + __shfl_xor_sync(ALL_LANES, odd ? a : b, 8);
        d = 4;
    } else if (R == 2) {
        bool upper = lane & 16;
        x = (upper ? sum[1 % R] : sum[0]) + __shfl_xor_sync(ALL_LANES, upper ? sum[0] : sum[1 % R], 16);
        d = 8;
    }
    #pragma unroll
    for (; d > 0; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    return x;
}

// One row, where a pair has two formats.
static __device__ __noinline__ float one_sum(u32 dtype, u32 w, u32 scales, u32 k, u32 space) {
    Rows1<1> row = {{w}, {scales}};
    Acts1 acts = acts_in(whole + space, k);
    float sum = 0.0f;
    u32 lane = threadIdx.x & 31;
    switch (dtype) {
#define CASE(F) case T_##F: lane_sums<T_##F, 1>(row, lane, k, acts, &sum); break;
        CASE(F16) CASE(BF16) CASE(Q4_0) CASE(IQ4_NL) CASE(MXFP4) CASE(Q8_0) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
#undef CASE
    }
    return sum_lanes(sum);
}

// Row `r` of a group of a warp: units first, then what they are gated by.
static __device__ __forceinline__ void row_at(const Header &h, u32 first, u32 units, u32 r, u32 *w, u32 *scales) {
    bool second = r >= units;
    u32 i = min(first + (second ? r - units : r), h.units - 1);
    *w = second ? h.gate + i * h.gate_bytes : h.data + i * h.row_bytes;
    *scales = second ? h.gate_scales + i * h.gate_scale_bytes : h.scales + i * h.scale_bytes;
}

// Sums of R rows; a lane gets that of row `lane / (32 / R)`.
template <int F, int R> static __device__ __forceinline__ float sums_of(const Header &h, u32 first, u32 units, u32 lane, u32 k, const Acts1 &a) {
    Rows1<R> rows;
    float sum[R];
    #pragma unroll
    for (u32 r = 0; r < R; r++) row_at(h, first, units, r, rows.w + r, rows.s + r), sum[r] = 0.0f;
    lane_sums<F, R>(rows, lane, k, a, sum);
    return over_lanes<R>(sum, lane);
}

// The same, with half of a warp for half of the rows.
template <int F, int R> static __device__ __forceinline__ float sums_of_halves(const Header &h, u32 first, u32 units, u32 lane, u32 k, const Acts1 &a) {
    const int S = R / 2;
    Rows1<S> rows;
    float sum[S];
    #pragma unroll
    for (u32 s = 0; s < S; s++) row_at(h, first, units, lane / 16 * S + s, rows.w + s, rows.s + s), sum[s] = 0.0f;
    lane_sums<F, S>(rows, lane & 15, k, a, sum);
    float x = sum[0];
    if (S == 2) {
        bool odd = lane & 8;
        x = (odd ? sum[S - 1] : sum[0]) + __shfl_xor_sync(ALL_LANES, odd ? sum[0] : sum[S - 1], 8);
    } else {
        x += __shfl_xor_sync(ALL_LANES, x, 8);
    }
    for (int d = 4; d > 0; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    return x;
}

static __device__ __noinline__ float mixed_sums(const Product &p, const Header &h, u32 first, u32 units, u32 lane, u32 space) {
    float y = 0.0f;
    u32 rows = 2 * units;
    #pragma unroll 1
    for (u32 r = 0; r < rows; r++) {
        u32 w, scales;
        row_at(h, first, units, r, &w, &scales);
        float x = one_sum(p.parts[r >= units].dtype, w, scales, p.k, space);
        if (lane / (32 / rows) == r) y = x;
    }
    return y;
}

static __device__ __forceinline__ void multiply(const Tape &t, Turn &turn) {
    Front &f = front();
    u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, phase = turn.phase;
    const Product &p = *(const Product *)f.instrs[phase % AHEAD].body;
    if (p.share == 0 && blockIdx.x >= p.longer) return;
    if (t.spaces == 1) meet_threads(ALL_MEET, THREADS);
    // Everything is asked for before anything is waited for.
    u32 k = p.k, set = f.state.set;
    Row asked;
    ask_row(p, tid, set, asked);
    bar_wait(shared_address(f.full + turn.ring), turn.round & 1);
    const Header &front_of = f.headers[turn.ring];
    u32 what = front_of.what, rows = front_of.sums & 3, units = what & GATED ? 1 << rows >> 1 : 1 << rows, own = lane >> (5 - rows);
    u32 first = ((warp - front_of.turn) % WARPS) * units, unit = first + own, row = front_of.row;
    bool mine = (lane & (31 >> rows)) == 0 && own < units;
    u32 add = 0;
    if (what & ADDS && mine && unit < front_of.units) add = ask(p.add, front_of.o + unit, set);
    u8 *space = space_of(t, turn.side);
    if (row == ROW_PLAIN) {
        make_plain(t, phase, p, space, tid, set, asked);
    } else if (row == ROW_LONG) {
        make_simple<16>(t, phase, p, space, tid, set, asked);
    } else if (row == ROW_2048) {
        make_simple<8>(t, phase, p, space, tid, set, asked);
    } else if (tid < NORM_THREADS) {
        if (row == ROW_1024) make_simple<4>(t, phase, p, space, tid, set, asked);
        else if (k <= 1024) make_other<4>(phase, turn.side);
        else if (k <= 2048) make_other<8>(phase, turn.side);
        else make_other<16>(phase, turn.side);
    }
    Acts1 acts = acts_in(space, k);
    meet_threads(ALL_MEET, THREADS);
    note(t, phase, 2);
    #pragma unroll 1
    for (bool early = true;; early = false) {
        const Header &h = f.headers[turn.ring];
        u32 what = h.what;
        #pragma unroll 1
        for (bool there = early; first < h.units; first += WARPS * units, there = false) {
            unit = first + own;
            bool does = mine && unit < h.units;
            if (!there && what & ADDS && does) add = ask(p.add, h.o + unit, set);
            float y;
            switch (h.sums) {
#define CASE(F, N, R) case SUM_##F + N: y = sums_of<T_##F, R>(h, first, units, lane, k, acts); break;
                CASE(Q4_0, 0, 1) CASE(Q4_0, 1, 2) CASE(Q4_0, 2, 4)
                CASE(Q8_0, 0, 1) CASE(Q8_0, 1, 2) CASE(Q8_0, 2, 4)
                CASE(IQ4_NL, 0, 1) CASE(IQ4_NL, 1, 2) CASE(IQ4_NL, 2, 4)
                CASE(MXFP4, 0, 1) CASE(MXFP4, 1, 2) CASE(MXFP4, 2, 4)
                CASE(F16, 0, 1) CASE(F16, 1, 2) CASE(F16, 2, 4)
                CASE(BF16, 0, 1) CASE(BF16, 1, 2) CASE(BF16, 2, 4)
                CASE(Q4_K, 0, 1) CASE(Q4_K, 1, 2)
                CASE(Q5_K, 0, 1) CASE(Q5_K, 1, 2)
                CASE(Q6_K, 0, 1) CASE(Q6_K, 1, 2)
#undef CASE
#define CASE(F, N, R) case SUM_##F + SUM_HALVES + N: y = sums_of_halves<T_##F, R>(h, first, units, lane, k, acts); break;
                CASE(Q4_K, 1, 2) CASE(Q4_K, 2, 4)
                CASE(Q5_K, 1, 2) CASE(Q5_K, 2, 4)
                CASE(Q6_K, 1, 2) CASE(Q6_K, 2, 4)
#undef CASE
            default: y = mixed_sums(p, f.headers[turn.ring], first, units, lane, (u32)(space - whole));
            }
            float up = what & GATED ? __shfl_xor_sync(ALL_LANES, y, 16) : 0.0f;
            if (!does) continue;
            u32 o = h.o + unit;
            if (what & SCALED) {
                y = finished(p.parts[h.part], o, y);
                if (what & GATED) up = finished(p.parts[1], o, up);
            }
            if (what & GATED) y = gated(p.act, y, up);
            if (what & ADDS) y = __fadd_rn(y, got(p.add, o, set, add));
            if (what & WORDS) put_word(p.words + set + h.at + unit, word_of(y));
            if (what & OUT) p.parts[h.part].y[o] = y;
        }
        __syncwarp();
        if (lane == 0) bar_arrive(shared_address(f.empty + turn.ring));
        if (++turn.ring == t.slots) turn.ring = 0, turn.round++;
        if (what & LAST) break;
        bar_wait(shared_address(f.full + turn.ring), turn.round & 1);
        const Header &next = f.headers[turn.ring];
        rows = next.sums & 3, units = next.what & GATED ? 1 << rows >> 1 : 1 << rows, own = lane >> (5 - rows);
        mine = (lane & (31 >> rows)) == 0 && own < units;
        first = ((warp - next.turn) % WARPS) * units;
    }
    if (t.spaces == 2) turn.side ^= 1;
}
