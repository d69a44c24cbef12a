// The row of a product in shared memory, as blocks of a tape make it.
#pragma once
#include "tape_parts.cuh"

// Numbers of the row in bytes; whole warps take the 32 columns of a run.
static __device__ __noinline__ void put_any(u8 *space, u32 k, u32 c, float v) {
    Acts1 to = acts_in(space, k);
    u32 lane = threadIdx.x & 31, run = c / 32;
    float most = max_lanes(fabsf(v));
    i32 q = most > 0.0f ? __float2int_rn(__fmul_rn(v, __fdiv_rn(127.0f, most))) : 0, sum = sum_ints(q);
    ((u8 *)(lane < 16 ? to.low + spread(run) : to.high + spread(run)))[lane % 16] = (u8)q;
    if (lane == 0) to.d[run] = __fdiv_rn(most, 127.0f), to.s[run] = sum;
}

// Columns `first`, `first + step` and so on, of which there are ALL or those before `k`.
template <int N, bool ALL> static __device__ __forceinline__ void put(u8 *space, u32 k, u32 first, u32 step, const float *v, bool bytes) {
    Acts1 to = acts_in(space, k);
    u32 lane = first & 31;
    if (!bytes) {
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (ALL || first + i * step < k) to.x[first + i * step] = v[i];
        return;
    }
    float most[N];
    bool plain = true;
    #pragma unroll
    for (int i = 0; i < N; i++) most[i] = __uint_as_float(most_bits(__float_as_uint(v[i]) & 0x7fffffffu));
    #pragma unroll
    for (int i = 0; i < N; i++) plain &= in_reach(most[i]) || most[i] == 0.0f;
    if (!plain) {
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (ALL || first + i * step < k) put_any(space, k, first + i * step, v[i]);
        return;
    }
    const float c = 1.0f / 127.0f;
    i32 q[N], sum[N];
    #pragma unroll
    for (int i = 0; i < N; i++) q[i] = most[i] > 0.0f ? __float2int_rn(__fmul_rn(v[i], quotient(127.0f, divisor(most[i])))) : 0;
    #pragma unroll
    for (int i = 0; i < N; i++) sum[i] = sum_ints(q[i]);
    u32 run = first / 32, apart = step / 32;
    u8 *bytes_of = (u8 *)(lane < 16 ? to.low + spread(run) : to.high + spread(run)) + lane % 16;
    #pragma unroll
    for (int i = 0; i < N; i++) {
        if (!ALL && first + i * step >= k) continue;
        // Steps are of eight runs or more: what is spread lies evenly.
        bytes_of[i * (apart + apart / 8) * 16] = (u8)q[i];
        float d = __fmul_rn(most[i], c);
        if (lane == 0) to.d[run + i * apart] = __fmaf_rn(__fmaf_rn(-127.0f, d, most[i]), c, d), to.s[run + i * apart] = sum[i];
    }
}

// A sum over the first 256 threads, as `sum_block` has it.
static __device__ __forceinline__ float sum_first(float x, u32 tid, u32 which) {
    Front &f = front();
    u32 warp = tid >> 5, lane = tid & 31;
    x = sum_lanes(x);
    if (lane == 0) f.sums[which][warp] = x;
    meet_threads(NORM_MEETS, NORM_THREADS);
    x = f.sums[which][lane % (NORM_THREADS / 32)];
    for (int d = NORM_THREADS / 64; d > 0; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    return x;
}

// N numbers of the row, as far as it goes.
template <int N> static __device__ __forceinline__ void take_row(const Numbers &n, u32 set, u32 k, u32 first, u32 step, float *v) {
    u32 w[N];
    #pragma unroll
    for (int i = 0; i < N; i++) w[i] = first + i * step < k ? ask(n, first + i * step, set) : word_of(0.0f);
    get_all<N>(n.words + set, first, step, w);
    #pragma unroll
    for (int i = 0; i < N; i++) v[i] = number_of(w[i]);
}

// A row of at most N · 256 columns, by the first 256 threads.
template <int N> static __device__ __forceinline__ void make_normed(const Tape &t, u32 phase, const Product &p, u8 *space, u32 first) {
    u32 k = p.k;
    float v[N], w[N];
    if (N <= 8) {
        #pragma unroll
        for (int i = 0; i < N; i++) w[i] = p.w && first + i * NORM_THREADS < k ? p.w[first + i * NORM_THREADS] : 1.0f;
    }
    take_row<N>(p.from, front().state.set, k, first, NORM_THREADS, v);
    note(t, phase, 1);
    float mean = 0.0f, squares = 0.0f;
    if (p.kind == NORM_LAYER) {
        float m = 0.0f;
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * NORM_THREADS < k) m += v[i];
        mean = sum_first(m, first, 0) / (float)k;
    }
    #pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] -= mean;
        if (first + i * NORM_THREADS < k) squares = __fmaf_rn(v[i], v[i], squares);
    }
    squares = sum_first(squares, first, 1);
    float root = p.kind == NORM_L2 ? sqrtf(squares + p.eps)
               : p.kind == NORM_L2_MAX ? fmaxf(sqrtf(squares), p.eps)
                                       : sqrtf(squares / (float)k + p.eps);
    divide<N>(v, root);
    #pragma unroll
    for (int i = 0; i < N; i++) {
        u32 c = first + i * NORM_THREADS;
        if (p.w && c < k) v[i] = __fmul_rn(v[i], N <= 8 ? w[i] : p.w[c]);
        if (p.b && c < k) v[i] = __fadd_rn(v[i], p.b[c]);
        if (c >= k) v[i] = 0.0f;
    }
    put<N, false>(space, k, first, NORM_THREADS, v, p.bytes);
}

// Apart from the others, so that these keep their registers.
template <int N> static __device__ __noinline__ void make_other(u32 phase, u32 side) {
    Front &f = front();
    make_normed<N>(f.tape, phase, *(const Product *)f.instrs[phase % AHEAD].body, space_of(f.tape, side), threadIdx.x);
}

// A row of N · 256 columns, all of them there, by its root of mean squares: as `make_normed` has it. The words were asked for.
template <int N>
static __device__ __forceinline__ void make_simple(const Tape &t, u32 phase, const Product &p, u8 *space, u32 first, u32 set, u32 *asked, const float *w) {
    float v[N], squares = 0.0f;
    get_all<N>(p.from.words + set, first, NORM_THREADS, asked);
    note(t, phase, 1);
    #pragma unroll
    for (int i = 0; i < N; i++) v[i] = number_of(asked[i]);
    #pragma unroll
    for (int i = 0; i < N; i++) squares = __fmaf_rn(v[i], v[i], squares);
    squares = sum_first(squares, first, 1);
    divide<N>(v, sqrtf(squares / (float)(N * NORM_THREADS) + p.eps));
    #pragma unroll
    for (int i = 0; i < N; i++) v[i] = __fmul_rn(v[i], w[i]);
    put<N, true>(space, N * NORM_THREADS, first, NORM_THREADS, v, p.bytes);
}

// A row that no norm goes over, by all: eight columns at a time, of which the first words were asked for.
static __device__ __forceinline__ void make_plain(const Tape &t, u32 phase, const Product &p, u8 *space, u32 tid, u32 set, u32 *words) {
    u32 k = p.k;
    #pragma unroll 1
    for (u32 first = tid; first < k;) {
        float v[8];
        get_all<8>(p.from.words + set, first, THREADS, words);
        note(t, phase, 1);
        #pragma unroll
        for (int i = 0; i < 8; i++) v[i] = number_of(words[i]);
        u32 next = first + 8 * THREADS;
        #pragma unroll
        for (int i = 0; i < 8; i++) words[i] = next + i * THREADS < k ? ask(p.from, next + i * THREADS, set) : word_of(0.0f);
        if (first + 3 * THREADS < k) put<4, true>(space, k, first, THREADS, v, p.bytes);
        else put<4, false>(space, k, first, THREADS, v, p.bytes);
        if (first + 7 * THREADS < k) put<4, true>(space, k, first + 4 * THREADS, THREADS, v + 4, p.bytes);
        else if (first + 4 * THREADS < k) put<4, false>(space, k, first + 4 * THREADS, THREADS, v + 4, p.bytes);
        first = next;
    }
}
