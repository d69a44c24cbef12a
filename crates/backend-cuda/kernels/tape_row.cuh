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

// A column of the row in parts; whole warps take the 32 of a run.
template <int F> static __device__ __forceinline__ void put_part(const Acts1 &to, u32 k, u32 c, float v) {
    Power p = power_of(__uint_as_float(most_bits(__float_as_uint(v) & 0x7fffffffu)));
    float x = __fmul_rn(v, p.up);
    u32 first = two_firsts<F>(x, 0.0f), rest = two_left<F>(x, 0.0f, first);
    if (c >= whole_runs(k)) return;
    u16 *four = (u16 *)((c & 4 ? to.second : to.first) + c / 8) + (c & 2) * 2 + (c & 1);
    four[0] = (u16)first, four[2] = (u16)rest;
    if (c % 32 == 0) to.unit[c / 32] = p.down;
}

// Columns `first`, `first + step` and so on, as far as they are before `k`.
template <int N> static __device__ __forceinline__ void put(u8 *space, u32 k, u32 first, u32 step, const float *v, u32 form) {
    Acts1 to = acts_in(space, k);
    u32 lane = first & 31;
    if (form != IN_BYTES) {
        #pragma unroll
        for (int i = 0; i < N; i++) {
            if (form == IN_HALVES) put_part<T_F16>(to, k, first + i * step, v[i]);
            else put_part<T_BF16>(to, k, first + i * step, v[i]);
        }
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
            if (first + i * step < k) put_any(space, k, first + i * step, v[i]);
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
        if (first + i * step >= k) continue;
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
    put<N>(space, k, first, NORM_THREADS, v, p.form);
}

// Apart from the others, so that these keep their registers.
template <int N> static __device__ __noinline__ void make_other(u32 phase, u32 side) {
    Front &f = front();
    make_normed<N>(f.tape, phase, *(const Product *)f.instrs[phase % AHEAD].body, space_of(f.tape, side), threadIdx.x);
}

// Four columns of a row in bytes from `c` on; the eight lanes of a run come together, as those of its warp do.
static __device__ __forceinline__ void put_four(u8 *space, u32 k, u32 c, const float *v) {
    Acts1 to = acts_in(space, k);
    float most = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    #pragma unroll
    for (u32 d = 1; d < 8; d <<= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
    float scale, step;
    if (in_reach(most)) {
        const float part = 1.0f / 127.0f;
        scale = quotient(127.0f, divisor(most)), step = __fmul_rn(most, part);
        step = __fmaf_rn(__fmaf_rn(-127.0f, step, most), part, step);
    } else {
        scale = slow_quotient(127.0f, most), step = slow_quotient(most, 127.0f);
    }
    i32 q[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) q[i] = most > 0.0f ? __float2int_rn(__fmul_rn(v[i], scale)) : 0;
    i32 sum = q[0] + q[1] + q[2] + q[3];
    #pragma unroll
    for (u32 d = 1; d < 8; d <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, d);
    u32 run = c / 32, in = c % 32;
    if (c >= k) return;
    u32 four = __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
    *(u32 *)((u8 *)(in < 16 ? to.low + spread(run) : to.high + spread(run)) + in % 16) = four;
    if (in == 0) to.d[run] = step, to.s[run] = sum;
}

static __device__ __forceinline__ u32 group_at(u32 tid, u32 i) { return (tid + i * THREADS) * 4; }

// N groups of a thread from the first on.
template <int N> static __device__ __forceinline__ void put_groups(u8 *space, u32 k, u32 tid, u32 first, const float (&v)[N][4], u32 form) {
    u32 c = group_at(tid, first), step = THREADS * 4;
    if (form == IN_HALVES) {
        put_parts<T_F16>(acts_in(space, k), k, c, step, v);
    } else if (form == IN_BFLOATS) {
        put_parts<T_BF16>(acts_in(space, k), k, c, step, v);
    } else {
        #pragma unroll
        for (int n = 0; n < N; n++)
            if (n == 0 || group_at(tid & ~31u, first + n) < k) put_four(space, k, c + n * step, v[n]);
    }
}

// What a thread asks for before it waits for anything: eight columns of the row in two groups, those `group_at` says, and what
// it sums of the row for its norm, if it is one of the first 256. With weights of the norm, of groups.
struct Row {
    u32 four[2][4];
    float w[8];
    u32 summed[16];
};

static __device__ __forceinline__ void ask_four(const Numbers &n, u32 set, u32 c, u32 k, u32 *four) {
    four[0] = four[1] = four[2] = four[3] = word_of(0.0f);
    if (c >= k) return;
    if (n.words) {
        uint4 x = four_words_at(n.words + set + c);
        four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
    } else {
        float4 x = __ldcg((const float4 *)(n.x + c));
        four[0] = word_of(x.x), four[1] = word_of(x.y), four[2] = word_of(x.z), four[3] = word_of(x.w);
    }
}

static __device__ __forceinline__ void get_four(const Numbers &n, u32 set, u32 c, u32 *four, float *v) {
    while (!four[0] || !four[1] || !four[2] || !four[3]) {
        uint4 x = four_words_at(n.words + set + c);
        four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
    }
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < 4; i++) v[i] = number_of(four[i]);
}

static __device__ __forceinline__ void ask_row(const Product &p, u32 tid, u32 set, Row &row) {
    u32 k = p.k;
    bool simple = p.kind == NORM_RMS && p.w && !p.b;
    #pragma unroll
    for (int i = 0; i < 8; i++) row.w[i] = 1.0f;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 c = group_at(tid, i);
        ask_four(p.from, set, c, p.kind == NORM_NONE || simple ? k : 0, row.four[i]);
        if (simple && c < k) {
            float4 w = *(const float4 *)(p.w + c);
            row.w[4 * i] = w.x, row.w[4 * i + 1] = w.y, row.w[4 * i + 2] = w.z, row.w[4 * i + 3] = w.w;
        }
    }
    u32 end = simple && tid < NORM_THREADS ? k : 0;
    #pragma unroll
    for (int i = 0; i < 16; i++) row.summed[i] = word_of(0.0f);
    #pragma unroll
    for (int i = 0; i < 4; i++)
        if (tid + i * NORM_THREADS < end) row.summed[i] = ask(p.from, tid + i * NORM_THREADS, set);
    if (end > 4 * NORM_THREADS) {
        #pragma unroll
        for (int i = 4; i < 8; i++)
            if (tid + i * NORM_THREADS < end) row.summed[i] = ask(p.from, tid + i * NORM_THREADS, set);
    }
    if (end > 8 * NORM_THREADS) {
        #pragma unroll
        for (int i = 8; i < 16; i++)
            if (tid + i * NORM_THREADS < end) row.summed[i] = ask(p.from, tid + i * NORM_THREADS, set);
    }
}

// A row of at most N · 256 columns by its root of mean squares, as `make_normed` has it: the first 256 threads sum, and as many
// as there are groups make them.
template <int N> static __device__ __forceinline__ void make_simple(const Tape &t, u32 phase, const Product &p, u8 *space, u32 tid, u32 set, Row &row) {
    Front &f = front();
    u32 k = p.k, lane = tid & 31;
    if (tid < NORM_THREADS) {
        // Columns that are not there add nothing to what is not below 0.
        float squares = 0.0f;
        get_all<N>(p.from.words + set, tid, NORM_THREADS, row.summed);
        #pragma unroll
        for (int i = 0; i < N; i++) squares = __fmaf_rn(number_of(row.summed[i]), number_of(row.summed[i]), squares);
        squares = sum_lanes(squares);
        if (lane == 0) f.sums[1][tid >> 5] = squares;
    }
    const int GROUPS = N == 16 ? 2 : 1;
    float v[GROUPS][4];
    #pragma unroll
    for (int i = 0; i < GROUPS; i++) get_four(p.from, set, group_at(tid, i), row.four[i], v[i]);
    note(t, phase, 1);
    meet_threads(NORM_MEETS, N == 4 ? NORM_THREADS : THREADS);
    float squares = f.sums[1][lane % (NORM_THREADS / 32)];
    #pragma unroll
    for (int d = NORM_THREADS / 64; d > 0; d >>= 1) squares += __shfl_xor_sync(ALL_LANES, squares, d);
    float root = sqrtf(squares / (float)k + p.eps);
    if (tid - lane >= k / 4) return;
    #pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        divide<4>(v[i], root);
        #pragma unroll
        for (int n = 0; n < 4; n++) v[i][n] = __fmul_rn(v[i][n], row.w[4 * i + n]);
    }
    put_groups(space, k, tid, 0, v, p.form);
}

// A row that no norm goes over: while two groups of a thread are made, the next four are on their way.
static __device__ __forceinline__ void make_plain(const Tape &t, u32 phase, const Product &p, u8 *space, u32 tid, u32 set, Row &row) {
    u32 k = p.k, first = tid & ~31u;
    u32 more[4][4];
    #pragma unroll
    for (int i = 0; i < 4; i++) ask_four(p.from, set, group_at(tid, 2 + i), k, more[i]);
    #pragma unroll 1
    for (u32 n = 0; group_at(first, n) < k; n += 2) {
        float v[2][4];
        #pragma unroll
        for (int i = 0; i < 2; i++) get_four(p.from, set, group_at(tid, n + i), row.four[i], v[i]);
        note(t, phase, 1);
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            #pragma unroll
            for (int c = 0; c < 4; c++) row.four[i][c] = more[i][c], more[i][c] = more[2 + i][c];
            ask_four(p.from, set, group_at(tid, n + 6 + i), k, more[2 + i]);
        }
        put_groups(space, k, tid, n, v, p.form);
    }
}

// What is left of a sum after its scale and bias.
static __device__ __noinline__ float finished(const Piece &from, u32 o, float x) {
    if (from.scale) x = __fmul_rn(x, from.scale[o % from.scale_len]);
    if (from.bias) x = __fadd_rn(x, from.bias[o]);
    return x;
}

// Numbers of six bits of Q6_K, whose dots begin at what 32 less of each makes.
static __device__ __forceinline__ u32 six_bits(u32 l, u32 h, u32 down, u32 up, u32 off) { return (l >> down & 0x0f0f0f0fu) | (h << up >> off & 0x30303030u); }
static __device__ __forceinline__ uint4 six_bits(uint4 l, uint4 h, u32 down, u32 up, u32 off) {
    return make_uint4(six_bits(l.x, h.x, down, up, off), six_bits(l.y, h.y, down, up, off), six_bits(l.z, h.z, down, up, off), six_bits(l.w, h.w, down, up, off));
}
