// Steps of one row in one launch, on 9.0. Blocks that stay go through the instructions of a tape, each on its own: a number
// that another block reads is a word that is 0 until it is there, and who needs it looks at that word until then. There are two
// sets of words, one of which is emptied in every step for the next. One warp of a block fetches instructions and weights, as far
// ahead as shared memory has room. Every sum has the order that it has in the kernels that are launched one by one.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "tape_deep.cuh"
#include "tape_fetch.cuh"
#include "tape_products.cuh"

// D columns of a head, G heads of a key head together.
template <int D, int G, bool DEEP> static __device__ __forceinline__ void play(const Step &s, const Tape &t) {
    if (rows_of(s, LEAD_ROWS) == 0) return;
    Front &f = front();
    if (threadIdx.x == 0) {
        u32 live = 0;
        for (u32 lead = 0; lead < 3; lead++) live |= (u32)(rows_of(s, lead) > 0) << lead;
        f.tape = t;
        f.state = {*(volatile u32 *)t.state, live, s.slot[s.seq[0]], place_of_row(s, 0), *(volatile u32 *)(t.state + 2) * t.apart};
    }
    if (threadIdx.x < MOST_SLOTS) {
        bar_init(shared_address(f.full + threadIdx.x), 1), bar_init(shared_address(f.empty + threadIdx.x), WARPS);
    } else if (threadIdx.x < MOST_SLOTS + AHEAD) {
        bar_init(shared_address(f.here + threadIdx.x - MOST_SLOTS), 1), bar_init(shared_address(f.done + threadIdx.x - MOST_SLOTS), WARPS);
    }
    bars_made();
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        fewer_registers<56>();
        if (threadIdx.x < THREADS + 32) fetch_all(t);
    } else {
        u32 base = f.state.base, live = f.state.live;
        more_registers<104>();
        Turn turn = {0, 0, 0, 0};
        #pragma unroll 1
        for (; turn.phase < t.count; turn.phase++) {
            u32 phase = turn.phase;
            bar_wait(shared_address(f.here + phase % AHEAD), phase / AHEAD & 1);
            const Instr &in = f.instrs[phase % AHEAD];
            note(t, phase, 0);
            if (!(live >> in.lead & 1)) {
            } else if (in.kind == PRODUCTS) {
                multiply(t, turn);
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

#define TAPE(D, G) \
    extern "C" __global__ void __launch_bounds__(THREADS + 128, 1) tape_##D##_##G(Step s, Tape t) { play<D, G, false>(s, t); }
TAPE(64, 1) TAPE(64, 2)
TAPE(128, 1) TAPE(128, 2)
#define DEEP_TAPE(D, G) \
    extern "C" __global__ void __launch_bounds__(THREADS + 128, 1) deep_tape_##D##_##G(Step s, Tape t) { play<D, G, true>(s, t); }
DEEP_TAPE(64, 1) DEEP_TAPE(64, 2) DEEP_TAPE(64, 4)
DEEP_TAPE(128, 1) DEEP_TAPE(128, 2) DEEP_TAPE(128, 4)
#endif
