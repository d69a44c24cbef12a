// What every kernel sees: number types, the state of a step, reductions. No header of the toolkit is needed.
//
// Launches are sized by the most rows that a step of their bucket may have; what a step really has stands in `Step`,
// and blocks beyond it leave at once. So nothing that a launch is given changes from step to step.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#define KERNEL extern "C" __global__ void
#define INF __int_as_float(0x7f800000)
#define ALL_LANES 0xffffffffu
#define NO_BLOCK 0xffffffffu

// Row flags, as in the step state of the host.
#define ROW_LIVE 1u
#define ROW_EMBEDS 2u
#define ROW_LOGITS 4u
#define ROW_PROMPT 8u
#define ROW_KEEPS 16u
// Above them stands the row's adapter; 0 is none.
#define ADAPTER_SHIFT 8

// Leads of values; also the places of their counts in `Step::head`.
#define LEAD_ROWS 0u
#define LEAD_SEQS 1u
#define LEAD_LOGITS 2u

// What a logit row has beyond its row.
struct Logit {
    u64 mask;       // words, 0 for none
    u64 dry;        // pairs of id and penalty
    u32 mask_words;
    u32 dry_count;
    u32 best;       // 1 + tokens listed in a report; 0 without one
    u32 pad;
};

// What lives with a sequence slot.
struct Slot {
    u64 tokens;     // by position
    u64 stops;
    u64 bias;       // pairs of id and what is added
    u32 len;
    u32 n_tokens;
    u32 n_stops;
    u32 n_bias;
    u32 remaining;
    u32 limited;    // whether `remaining` counts
    u32 stopped;
    u32 heard;      // requests to stop that count no more
    u32 enc_len;
    u32 pad;
    u32 record[16];
};

struct Step {
    u32 *head;      // rows, sequences, logit rows, positions of the longest sequence; then, where a row of a table was asked
                    // for that is not there: 1, the row, the table's rows
    u32 *token;     // per row
    u32 *pos;       // 4 per row
    u32 *seq;
    u32 *flags;
    u32 *span_end;
    u32 *logit_row; // per logit row
    Logit *logit;
    u32 *slot;      // per sequence
    u32 *first_row;
    u32 *row_count; // 0 for a sequence that does not run
    u32 *past_len;
    Slot *slots;    // per slot
};

// Norms, and that there is none.
enum { NORM_RMS, NORM_LAYER, NORM_L2, NORM_L2_MAX, NORM_NONE };

// What a row is divided by, of the sum of its squares.
static __device__ __forceinline__ float norm_root(u32 kind, float squares, u32 width, float eps) {
    return kind == NORM_L2 ? sqrtf(squares + eps) : kind == NORM_L2_MAX ? fmaxf(sqrtf(squares), eps)
                                                                      : sqrtf(squares / (float)width + eps);
}

// A plane of a cache slot: keys or values of the entries of a block.
struct Plane {
    u32 offset;     // bytes into the block
    u32 scales;     // bytes into the block, of one half per 32 columns
    u32 width;      // columns
    u32 dtype;      // 0 F32, 1 F16, 30 BF16, 8 Q8_0
};

struct Cache {
    u8 *arena;
    const u32 *tables;  // per slot
    u32 table_len;
    u32 block_size;     // positions of a block
    u32 entry;          // positions of an entry
    u32 pad;
    Plane k;
    Plane v;            // that of the keys where there are no values
};

static __device__ __forceinline__ u32 rows_of(const Step &s, u32 lead) { return s.head[lead]; }

// The step's row behind a row of a value.
static __device__ __forceinline__ u32 step_row(const Step &s, u32 lead, u32 i) {
    return lead == LEAD_ROWS ? i : lead == LEAD_LOGITS ? s.logit_row[i] : s.first_row[i];
}

// A row of a table that is not there ends the step.
static __device__ __forceinline__ void no_row(const Step &s, u32 row, u32 rows) {
    if (atomicExch(&s.head[4], 1u) == 0) s.head[5] = row, s.head[6] = rows;
}

static __device__ __forceinline__ u32 place_of_row(const Step &s, u32 row) {
    u32 q = s.seq[row];
    return s.past_len[q] + row - s.first_row[q];
}

static __device__ __forceinline__ float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

static __device__ __forceinline__ u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

static __device__ __forceinline__ float bfloat_to_float(u16 h) { return __uint_as_float((u32)h << 16); }

static __device__ __forceinline__ u16 float_to_bfloat(float f) {
    u32 x = __float_as_uint(f);
    if ((x & 0x7fffffffu) > 0x7f800000u) return (u16)((x >> 16) | 64u);
    return (u16)((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
}

static __device__ __forceinline__ float sum_lanes(float x) {
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    return x;
}

static __device__ __forceinline__ float max_lanes(float x) {
    for (int d = 16; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, d));
    return x;
}

// Over a block of whole warps; every thread gets the result. `shared` holds 33 words.
static __device__ float sum_block(float x, float *shared) {
    u32 warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    x = sum_lanes(x);
    if (warps == 1) return x;
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = sum_lanes(lane < warps ? shared[lane] : 0.0f);
        if (lane == 0) shared[32] = x;
    }
    __syncthreads();
    return shared[32];
}

static __device__ float max_block(float x, float *shared) {
    u32 warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    x = max_lanes(x);
    if (warps == 1) return x;
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = max_lanes(lane < warps ? shared[lane] : -INF);
        if (lane == 0) shared[32] = x;
    }
    __syncthreads();
    return shared[32];
}

static __device__ u64 sum_block_u64(u64 x, u64 *shared) {
    u32 warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : 0;
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    return x;
}

// The sum over the threads before this one.
static __device__ u64 sum_before_u64(u64 x, u64 *shared) {
    u32 warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u64 sum = x;
    for (int d = 1; d < 32; d <<= 1) {
        u64 y = __shfl_up_sync(ALL_LANES, sum, d);
        if (lane >= d) sum += y;
    }
    __syncthreads();
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    u64 others = lane < warps && lane < warp ? shared[lane] : 0;
    for (int d = 16; d > 0; d >>= 1) others += __shfl_xor_sync(ALL_LANES, others, d);
    return others + sum - x;
}

static __device__ i64 max_block_i64(i64 x, i64 *shared) {
    u32 warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int d = 16; d > 0; d >>= 1) {
        i64 y = __shfl_xor_sync(ALL_LANES, x, d);
        x = y > x ? y : x;
    }
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = shared[lane < warps ? lane : 0];
    for (int d = 16; d > 0; d >>= 1) {
        i64 y = __shfl_xor_sync(ALL_LANES, x, d);
        x = y > x ? y : x;
    }
    return x;
}

// A kernel may begin while the one before it ends: what that one writes is there after `wait_before`. What the one before
// that wrote is there at once where the one between lets the next begin only after its own wait. Those that let it begin at once
// (`begin_next`) are followed by kernels that read nothing before their wait that launches of a plan write.
static __device__ __forceinline__ void begin_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void wait_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static __device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
