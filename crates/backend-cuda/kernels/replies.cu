// Products of many replies' rows on tensor cores, with weights of block formats and activations in bytes.
#include "replies.cuh"

// Tiles of 16 · OW outputs by 8 · NT rows; of a warp 16 by 8 · NT, and every fourth unit.
template <int F, int OW, int NT, int DEPTH> static __device__ __forceinline__ void replies(const Step &s, const MatVec &op) {
#ifdef HAS_TENSOR
    typedef Group<F> G;
    const int OUTS = 16 * OW, ROWS = 8 * NT, THREADS = OW * 128;
    typedef Stage<F, OUTS, ROWS> Size;
    extern __shared__ __align__(128) u8 space[];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, count = rows_of(s, op.lead), first = blockIdx.x * ROWS;
    if (first >= count) return;
    Outputs outs;
    bool own = false, found = find_outputs(op, F, op.gated ? OUTS / 2 : OUTS, blockIdx.y, &outs);
    for (u32 r = first + threadIdx.x; r < min(first + ROWS, count); r += THREADS) own |= !of_prompt(s, op, r);
    if (!__syncthreads_or(own) || !found) return;
    u32 groups = op.k / G::columns;

    // What a thread copies.
    const u32 PIECES = G::bytes / 16, OUT_COPIES = (OUTS * PIECES + THREADS - 1) / THREADS;
    const u32 ROW_PIECES = G::columns / 16, ROW_COPIES = (ROWS * ROW_PIECES + THREADS - 1) / THREADS;
    const u32 TWOS = ROWS / 2, TWO_COPIES = (G::runs * TWOS + THREADS - 1) / THREADS;
    const u8 *w_from[OUT_COPIES], *x_from[ROW_COPIES], *s_from = 0;
    #pragma unroll
    for (u32 i = 0; i < OUT_COPIES; i++) {
        u32 e = threadIdx.x + i * THREADS;
        w_from[i] = weight_row<OUTS>(op, outs, e / PIECES % OUTS).w + e % PIECES * 16;
    }
    #pragma unroll
    for (u32 i = 0; i < ROW_COPIES; i++) {
        u32 e = threadIdx.x + i * THREADS;
        x_from[i] = op.acts.q + (u64)min(first + e / ROW_PIECES, count - 1) * op.k + e % ROW_PIECES * 16;
    }
    if (G::scales && threadIdx.x < OUTS) s_from = weight_row<OUTS>(op, outs, threadIdx.x).scales;
    u32 space_at = shared_at(space);
    auto copy = [&](const Place &at, u32 stage) {
        if (at.q < TURNS) {
            u32 to = space_at + stage * Size::bytes;
            #pragma unroll
            for (u32 i = 0; i < OUT_COPIES; i++) {
                u32 e = threadIdx.x + i * THREADS;
                if (OUTS * PIECES % THREADS == 0 || e < OUTS * PIECES)
                    copy16(to + e / PIECES * G::pitch + e % PIECES * 16, w_from[i] + (u64)at.b * G::bytes);
            }
            if (G::scales && threadIdx.x < OUTS) {
                u32 place = to + threadIdx.x * G::pitch + G::bytes;
                const u8 *from = s_from + at.b * G::scales;
                if (G::scales == 8) copy8(place, from);
                else copy4(place, from);
            }
            #pragma unroll
            for (u32 i = 0; i < ROW_COPIES; i++) {
                u32 e = threadIdx.x + i * THREADS;
                if (ROWS * ROW_PIECES % THREADS == 0 || e < ROWS * ROW_PIECES)
                    copy16(to + Size::acts + e / ROW_PIECES * G::row + e % ROW_PIECES * 16, x_from[i] + at.b * G::columns);
            }
            #pragma unroll
            for (u32 i = 0; i < TWO_COPIES; i++) {
                u32 e = threadIdx.x + i * THREADS;
                if (G::runs * TWOS % THREADS == 0 || e < G::runs * TWOS)
                    copy16(to + Size::scales + e * 16, op.turned + (u64)(at.b * G::runs + e / TWOS) * op.pitch + first + e % TWOS * 2);
            }
        }
        copies_end();
    };

    u32 unit = warp % 4, ow = warp / 4, group = lane / 4, t = lane % 4;
    const bool KEPT = NT >= 4;
    float4 *kept = (float4 *)(space + DEPTH * Size::bytes + 2 * Size::floats) + threadIdx.x;
    // Scales of formats that have many become floats a group ahead: an output's unit by a thread.
    u32 made_row = threadIdx.x / 4, made_unit = threadIdx.x % 4;
    bool makes = G::large && threadIdx.x < OUTS * 4;
    const u16 *blocks = 0; // scales of blocks, which have no room in a stage
    u16 block = 0;
    if (F == T_Q6_K && makes) blocks = (const u16 *)weight_row<OUTS>(op, outs, made_row).scales, block = blocks[0];
    auto make = [&](u32 stage, u32 turn) {
        u8 *to = space + DEPTH * Size::bytes + turn * Size::floats;
        if (makes) {
            ((float4 *)to)[threadIdx.x] = scales_of<F>(space + stage * Size::bytes + made_row * G::pitch, made_unit);
            if (F == T_Q6_K && made_unit == 0) ((float *)(to + OUTS * 64))[made_row] = half_to_float(block);
        }
    };
    Place at = {0, 0}, then = {0, 0}, ahead = {0, 0};
    #pragma unroll
    for (u32 i = 0; i < DEPTH - 1; i++) copy(ahead, i), ahead.next(groups);
    float acc[NT][4] = {}, sums[KEPT ? 1 : 3][NT][4] = {};
    then.next(groups);
    if (G::large) {
        copies_wait<DEPTH - 2>();
        __syncthreads();
        make(0, 0);
        if (F == T_Q6_K && makes && then.q < TURNS) block = blocks[then.b];
    }
    u32 rows_from = space_at + Size::acts + lane_rows<F, NT>(lane, unit);
    const u8 *words_from = space + (ow * 16 + group) * G::pitch;
    const u8 *first_from = space + Size::scales + first_run<F>(unit) * ROWS * 8 + t * 16;
    const u8 *floats_from = space + DEPTH * Size::bytes + ((ow * 16 + group) * 4 + unit) * 16;
    const u8 *all_from = space + DEPTH * Size::bytes + OUTS * 64 + (ow * 16 + group) * 4;
    u32 stage = 0, free = DEPTH - 1, turn = 0;
    while (at.q < TURNS) {
        u32 next = stage + 1 == DEPTH ? 0 : stage + 1;
        if (G::large) copies_wait<DEPTH - 3>();
        else copies_wait<DEPTH - 2>();
        __syncthreads();
        copy(ahead, free), ahead.next(groups);
        Unit u;
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const u8 *w = words_from + stage * Size::bytes + 8 * h * G::pitch;
            load_bytes<F>((const u32 *)w, t, unit, h, u);
            if (G::large) u.scale[h] = *(const float4 *)(floats_from + turn * Size::floats + h * 512);
            else u.scale[h].x = scale_of<F>(w + G::bytes, unit);
            if (F == T_Q6_K) u.all[h] = *(const float *)(all_from + turn * Size::floats + 32 * h);
        }
        add_unit<F, NT, ROWS>(u, rows_from + stage * Size::bytes, (const uint4 *)(first_from + stage * Size::bytes), acc);
        u32 q = at.q;
        at = then, then.next(groups);
        if (G::large && at.q < TURNS) {
            make(next, turn ^ 1);
            if (F == T_Q6_K && makes && then.q < TURNS) block = blocks[then.b];
        }
        turn ^= 1, stage = next, free = free + 1 == DEPTH ? 0 : free + 1;
        for (; q < at.q; q++) complete<NT, KEPT, THREADS>(q, acc, sums, kept);
    }
    completed<NT, KEPT, THREADS>(acc, sums, kept);

    // The four warps of each sum.
    float *joint = (float *)space;
    copies_wait<0>();
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < NT; n++)
        #pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(joint + (unit * OUTS + ow * 16 + h * 8 + group) * (ROWS + 2) + n * 8 + t * 2) = make_float2(acc[n][2 * h], acc[n][2 * h + 1]);
    __syncthreads();
    write_tile<OUTS, ROWS, THREADS>(s, op, outs, first, count, joint);
#endif
}

#define REPLIES(F)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(256) replies_8_##F(Step s, MatVec op) { replies<T_##F, 2, 1, 6>(s, op); }   \
    extern "C" __global__ void __launch_bounds__(256, 2) replies_16_##F(Step s, MatVec op) { replies<T_##F, 2, 2, 5>(s, op); } \
    extern "C" __global__ void __launch_bounds__(256, 2) replies_32_##F(Step s, MatVec op) { replies<T_##F, 2, 4, 4>(s, op); }
REPLIES(Q4_0) REPLIES(IQ4_NL) REPLIES(MXFP4) REPLIES(Q8_0) REPLIES(Q4_K) REPLIES(Q5_K) REPLIES(Q6_K)
