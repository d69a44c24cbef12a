// Tapes of 9.0 for small models: a warp sums whole rows of weights.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "tape_play.cuh"

#define TAPE(D, G) \
    extern "C" __global__ void __launch_bounds__(THREADS + 128, 1) tape_##D##_##G(Step s, Tape t) { play<D, G, false, false>(s, t); }
TAPE(64, 1) TAPE(64, 2)
TAPE(128, 1) TAPE(128, 2)
#define DEEP_TAPE(D, G) \
    extern "C" __global__ void __launch_bounds__(THREADS + 128, 1) deep_tape_##D##_##G(Step s, Tape t) { play<D, G, true, false>(s, t); }
DEEP_TAPE(64, 1) DEEP_TAPE(64, 2) DEEP_TAPE(64, 4)
DEEP_TAPE(128, 1) DEEP_TAPE(128, 2) DEEP_TAPE(128, 4)
#endif
