// Steps of one row in one launch, on 9.0. Blocks that stay go through the instructions of a tape, each on its own: a number
// that another block reads is a word that is 0 until it is there, and who needs it looks at that word until then. There are two
// sets of words, one of which is emptied in every step for the next. Warps that do not compute fetch instructions and weights, as far
// ahead as shared memory has room. Every sum has the order that it has in the kernels that are launched one by one.
#pragma once
#include "tape_tiles.cuh"
#include "tape_deep.cuh"
#include "tape_products.cuh"

// D columns of a head, G heads of a key head together; products by whole rows or by tiles.
template <int D, int G, bool DEEP, bool TILED> static __device__ __forceinline__ void play(const Step &s, const Tape &t) {
    if (rows_of(s, LEAD_ROWS) == 0) return;
    Front &f = front();
    if (threadIdx.x == 0) {
        u32 live = 0;
        for (u32 lead = 0; lead < 3; lead++) live |= (u32)(rows_of(s, lead) > 0) << lead;
        f.tape = t;
        f.state = {*(volatile u32 *)t.state, live, s.slot[s.seq[0]], place_of_row(s, 0), *(volatile u32 *)(t.state + 2) * t.apart};
    }
    const u32 READERS = TILED ? WARPS + ENDERS : WARPS; // of instructions
    if (threadIdx.x < MOST_SLOTS) {
        bar_init(shared_address(f.full + threadIdx.x), 1), bar_init(shared_address(f.empty + threadIdx.x), WARPS);
    } else if (threadIdx.x < MOST_SLOTS + AHEAD) {
        bar_init(shared_address(f.here + threadIdx.x - MOST_SLOTS), 1), bar_init(shared_address(f.done + threadIdx.x - MOST_SLOTS), READERS);
    } else if (TILED && threadIdx.x < MOST_SLOTS + AHEAD + 2 * JOINTS) {
        Joints &j = joints(t);
        u32 i = threadIdx.x - MOST_SLOTS - AHEAD;
        bar_init(shared_address(&j.made[0][0] + i), TILE_WARPS), bar_init(shared_address(&j.taken[0][0] + i), 1);
    }
    bars_made();
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        fewer_registers<56>();
        u32 warp = threadIdx.x / 32 - WARPS;
        if (TILED && warp == 0) fetch_tiles(t);
        else if (TILED && warp <= ENDERS) end_tiles(t, warp - 1);
        else if (warp == 0) fetch_all(t);
    } else {
        u32 base = f.state.base, live = f.state.live;
        more_registers<104>();
        Turn turn = {0, 0, 0, 0};
        u32 tiles = 0;
        #pragma unroll 1
        for (; turn.phase < t.count; turn.phase++) {
            u32 phase = turn.phase;
            bar_wait(shared_address(f.here + phase % AHEAD), phase / AHEAD & 1);
            const Instr &in = f.instrs[phase % AHEAD];
            note(t, phase, 0);
            if (!(live >> in.lead & 1)) {
            } else if (in.kind == PRODUCTS) {
                if (TILED) multiply_tiles(t, turn, tiles);
                else multiply(t, turn);
            } else if (in.kind == ATTEND) {
                attend<D, G, DEEP>(t, turn, base);
            } else {
                const Copy &c = *(const Copy *)in.body;
                for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < c.width; i += gridDim.x * THREADS)
                    c.to[i] = __float_as_uint(got(c.from, i, f.state.set, ask(c.from, i, f.state.set)));
            }
            note(t, phase, 3);
            __syncwarp();
            if ((threadIdx.x & 31) == 0) bar_arrive(shared_address(f.done + phase % AHEAD));
        }
    }
    __syncthreads();
    // The last block to end moves the marks on: all have read where they begin.
    if (threadIdx.x == 0 && atomicAdd(t.state + 1, 1u) == gridDim.x - 1) t.state[0] = f.state.base + t.count, t.state[1] = 0, t.state[2] = f.state.set == 0;
}
