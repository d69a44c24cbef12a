// What kernels of 9.0 are made of: bulk copies into shared memory, the barriers that they end at, clusters of blocks, and words
// that carry a number with the mark of who made it.
#pragma once
#include "row.cuh"

// Now and then a warp of images that are made to be disturbed sleeps up to four microseconds, in front of what others see of it and
// behind what it waited for: no bit may follow from who is late.
static __device__ __forceinline__ void disturb() {
#ifdef DISTURBED
    u32 x = (u32)clock64() * 2654435761u ^ (blockIdx.x << 5 | threadIdx.x >> 5) * 0x9e3779b1u;
    x ^= x >> 15, x *= 0x2c1b3c6du, x ^= x >> 13;
    if ((x & 31) == 0) asm volatile("nanosleep.u32 %0;" ::"r"(x >> 20) : "memory");
#endif
}

// Threads of some warps wait for each other; each number serves one set of warps at a time.
static __device__ __forceinline__ void meet_threads(u32 number, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

static __device__ __forceinline__ void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

static __device__ __forceinline__ void bar_init(u32 bar, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// Barriers that were made are seen by copies too.
static __device__ __forceinline__ void bars_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// An arrival, and bytes that are on their way.
static __device__ __forceinline__ void bar_expect(u32 bar, u32 bytes) {
    disturb();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void bar_arrive(u32 bar) {
    disturb();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
static __device__ __forceinline__ void bar_arrive_twice(u32 bar) {
    disturb();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(bar) : "memory");
}
// The same at a barrier of a block of the cluster.
static __device__ __forceinline__ void bar_arrive_at(u32 bar, u32 block) {
    disturb();
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar), "r"(block) : "memory");
}
static __device__ __forceinline__ void bar_wait(u32 bar, u32 parity) {
    u32 done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
    disturb();
}
// An arrival when the thread's copies so far have ended.
static __device__ __forceinline__ void copies_arrive(u32 bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
// Addresses and bytes are multiples of 16.
static __device__ __forceinline__ void bulk_copy(u32 to, const void *from, u32 bytes, u32 bar) {
    disturb();
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
// Into the shared memory of several blocks of the cluster, each of which has a barrier there.
static __device__ __forceinline__ void bulk_copy_to(u32 to, const void *from, u32 bytes, u32 bar, u16 blocks) {
    disturb();
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(bar), "h"(blocks) : "memory");
}
static __device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
static __device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
static __device__ __forceinline__ u64 word_at(const u64 *p) {
    u64 w;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(w) : "l"(p) : "memory");
    return w;
}
static __device__ __forceinline__ u32 word_at(const u32 *p) {
    u32 w;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(w) : "l"(p) : "memory");
    return w;
}
// Words that are there each for itself; the address is a multiple of 16.
static __device__ __forceinline__ uint4 four_words_at(const u32 *p) {
    uint4 w;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(p) : "memory");
    return w;
}
static __device__ __forceinline__ void put_word(u32 *p, u32 w) {
    disturb();
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(w) : "memory");
}
static __device__ __forceinline__ void put_word(u64 *p, u64 w) {
    disturb();
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(w) : "memory");
}
// Registers of a warp go over to the warps that compute.
template <int N> static __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> static __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
static __device__ __forceinline__ u32 most_bits(u32 x) {
    u32 y;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}
static __device__ __forceinline__ i32 sum_ints(i32 x) {
    i32 y;
    asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}
static __device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
    return t;
}
static __device__ __forceinline__ float about_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
