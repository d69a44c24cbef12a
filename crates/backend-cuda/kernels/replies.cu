// Products of many replies' rows on tensor cores, with weights of block formats and activations in bytes.
#include "replies.cuh"



// Tiles of 32 outputs by 8 · NT rows; of a warp 16 by 8 · NT, and every fourth unit.
template <int F, int NT, int DEPTH> static __device__ __forceinline__ void replies(const Step &s, const MatVec &op) {
#ifdef HAS_TENSOR
    typedef Group<F> G;
    const int ROWS = 8 * NT, THREADS = 256;
    typedef Stage<F, ROWS> Size;
    const bool KEPT = NT >= 4; // whether most incomplete sums are kept in shared memory
    extern __shared__ __align__(128) u8 space[];
    u32 groups = op.k / G::columns, tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, first = blockIdx.x * ROWS;
    Outputs outs;
    bool own = false, found = find_outputs(op, F, op.gated ? OUTS / 2 : OUTS, blockIdx.y, &outs);
    u32 count = rows_of(s, op.lead);
    if (first >= count) return;
    for (u32 r = first + tid; r < min(first + ROWS, count); r += THREADS) own |= !of_prompt(s, op, r);
    if (!__syncthreads_or(own) || !found) return;

    u32 space_at = shared_at(space);
    // What a thread copies: of every row pieces of 16 bytes, every eighth.
    const u32 PIECES = G::bytes / 16, ROW_PIECES = G::columns / 16, TWOS = ROWS / 2;
    u32 row = tid / 8, piece = tid % 8;
    bool copies_row = row < min((u32)ROWS, count - first);
    const u8 *w_from = weight_row(op, outs, row).w + piece * 16, *s_from = weight_row(op, outs, tid % OUTS).scales;
    const u8 *x_from = op.acts.q + (u64)min(first + row, count - 1) * op.k + piece * 16;
    const uint2 *t_from = op.turned + (u64)min(tid / TWOS, G::runs - 1) * op.pitch + first + tid % TWOS * 2;
    u32 w_to = space_at + row * G::pitch + piece * 16, x_to = space_at + Size::acts + row * G::row + piece * 16;
    u32 t_to = space_at + Size::scales + tid * 16, s_to = space_at + tid % OUTS * G::pitch + G::bytes;
    keep(w_from), keep(x_from), keep(t_from), keep(w_to), keep(x_to), keep(t_to);
    if (G::scales) keep(s_from), keep(s_to);
    u64 runs_apart = (u64)G::runs * op.pitch * 8;
    auto copy = [&](const Place &at, u32 stage) {
        if (at.q < TURNS) {
            u32 to = stage * Size::bytes;
            const u8 *w = w_from + at.b * G::bytes, *x = x_from + at.b * G::columns;
            #pragma unroll
            for (u32 c = 0; c < PIECES; c += 8)
                if (c + 8 <= PIECES || c + piece < PIECES) copy16(w_to + to + c * 16, w + c * 16);
            if (G::scales == 8 && tid < OUTS) copy8(s_to + to, s_from + at.b * 8);
            if (G::scales == 4 && tid < OUTS) copy4(s_to + to, s_from + at.b * 4);
            // Rows that are not there keep what stands in their places: nobody reads their sums.
            if (copies_row) {
                #pragma unroll
                for (u32 c = 0; c < ROW_PIECES; c += 8) copy16(x_to + to + c * 16, x + c * 16);
            }
            if (G::runs * TWOS >= THREADS || tid < G::runs * TWOS) copy16(t_to + to, (const u8 *)t_from + at.b * runs_apart);
        }
        copies_end();
    };

    u32 unit = warp % 4, ow = warp / 4, group = lane / 4, t = lane % 4;
    float4 *kept = (float4 *)(space + DEPTH * Size::bytes + 2 * Size::floats) + tid;
    // Scales of formats that have many become floats a group ahead: an output's unit by a thread.
    u32 made_row = tid / 4, made_unit = tid % 4;
    bool makes = G::large && tid < OUTS * 4;
    const u16 *blocks = 0; // scales of blocks, which have no room in a stage
    u16 block = 0;
    Place at = {0, 0}, then = at, ahead = at;
    if (F == T_Q6_K && makes) blocks = (const u16 *)weight_row(op, outs, made_row).scales, block = blocks[0];
    auto make = [&](u32 stage, u32 turn) {
        u8 *to = space + DEPTH * Size::bytes + turn * Size::floats;
        if (makes) {
            ((float4 *)to)[tid] = scales_of<F>(space + stage * Size::bytes + made_row * G::pitch, made_unit);
            if (F == T_Q6_K && made_unit == 0) ((float *)(to + OUTS * 64))[made_row] = half_to_float(block);
        }
    };
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
    // Where a lane reads in a stage.
    u32 rows_from = space_at + Size::acts + lane_rows<F, NT>(lane, unit), words_from = (ow * 16 + group) * G::pitch;
    u32 first_from = Size::scales + first_run<F>(unit) * ROWS * 8 + t * 16;
    u32 floats_from = DEPTH * Size::bytes + ((ow * 16 + group) * 4 + unit) * 16, all_from = DEPTH * Size::bytes + OUTS * 64 + (ow * 16 + group) * 4;
    keep(rows_from), keep(words_from), keep(first_from), keep(floats_from), keep(t);
    if (F == T_Q6_K) keep(all_from);
    u32 stage = 0, free = DEPTH - 1, turn = 0, q = 0;
    while (true) {
        for (; q < at.q; q++) complete<NT, KEPT, THREADS>(q, acc, sums, kept);
        if (at.q >= TURNS) break;
        u32 next = stage + 1 == DEPTH ? 0 : stage + 1;
        if (G::large) copies_wait<DEPTH - 3>();
        else copies_wait<DEPTH - 2>();
        __syncthreads();
        copy(ahead, free), ahead.next(groups);
        Unit u;
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const u8 *w = space + words_from + stage * Size::bytes + 8 * h * G::pitch;
            load_bytes<F>((const u32 *)w, t, unit, h, u);
            if (G::large) u.scale[h] = *(const float4 *)(space + floats_from + turn * Size::floats + h * 512);
            else u.scale[h].x = scale_of<F>(w + G::bytes, unit);
            if (F == T_Q6_K) u.all[h] = *(const float *)(space + all_from + turn * Size::floats + 32 * h);
        }
        add_unit<F, NT, ROWS>(u, rows_from + stage * Size::bytes, (const uint4 *)(space + first_from + stage * Size::bytes), acc);
        at = then, then.next(groups);
        if (G::large && at.q < TURNS) {
            make(next, turn ^ 1);
            if (F == T_Q6_K && makes && then.q < TURNS) block = blocks[then.b];
        }
        turn ^= 1, stage = next, free = free + 1 == DEPTH ? 0 : free + 1;
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
            *(float2 *)(joint + (unit * OUTS + ow * 16 + h * 8 + group) * (ROWS + 2) + n * 8 + t * 2) =
                make_float2(acc[n][2 * h], acc[n][2 * h + 1]);
    __syncthreads();
    write_tile<ROWS>(s, op, outs, first, count, joint);
#endif
}

#define REPLIES(F)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 3) replies_8_##F(Step s, MatVec op) { replies<T_##F, 1, 6>(s, op); }    \
    extern "C" __global__ void __launch_bounds__(256, 2) replies_16_##F(Step s, MatVec op) { replies<T_##F, 2, 5>(s, op); } \
    extern "C" __global__ void __launch_bounds__(256, 2) replies_32_##F(Step s, MatVec op) { replies<T_##F, 4, 4>(s, op); }
REPLIES(Q4_0) REPLIES(IQ4_NL) REPLIES(MXFP4) REPLIES(Q8_0) REPLIES(Q4_K) REPLIES(Q5_K) REPLIES(Q6_K)
