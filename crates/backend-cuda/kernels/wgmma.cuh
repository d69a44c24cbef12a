// Tensor cores of 9.0: four warps multiply 64 rows by N columns of tiles that lie in shared memory.
#pragma once
#include "tensor.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HAS_WGMMA 1

// A tile of rows of 128 bytes, whose pieces of 16 lie where `swizzled` says; its address is a multiple of 1024.
static __device__ __forceinline__ u64 tile_at(u32 at) { return (u64)(at >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
// The same tile from so many times 16 bytes on.
static __device__ __forceinline__ u64 further(u64 tile, u32 pieces) { return (tile & 0xffffffff00000000ull) | ((u32)tile + pieces); }
static __device__ __forceinline__ u32 swizzled(u32 row, u32 piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// A word that all lanes have, known as such to the compiler: descriptors made of it need no moves in front of each product.
static __device__ __forceinline__ u32 one_for_all(u32 x) { return __shfl_sync(ALL_LANES, x, 0); }

// What threads wrote is seen by tensor cores after the threads' next meeting.
static __device__ __forceinline__ void tiles_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_begins() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commits() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N of the last commits are under way.
template <int N> static __device__ __forceinline__ void wgmma_waits() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What was waited for is not read before.
template <int N> static __device__ __forceinline__ void wgmma_made(float (&d)[N][4]) {
    #pragma unroll
    for (int n = 0; n < N; n++) asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

// 64 rows of 16 columns by as many rows of 16 columns as `d` has columns; added to `d` or put there.
template <bool BFLOATS> static __device__ __forceinline__ void wgmma(float (&d)[8][4], u64 a, u64 b, int adds) {
    if (BFLOATS)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
            "%23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}"
            : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
              "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
              "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
              "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
              "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]) : "l"(a), "l"(b), "r"(adds));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
            "%23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}"
            : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
              "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
              "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
              "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
              "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]) : "l"(a), "l"(b), "r"(adds));
}

template <bool BFLOATS> static __device__ __forceinline__ void wgmma(float (&d)[16][4], u64 a, u64 b, int adds) {
    if (BFLOATS)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
            "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
            "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, "
            "%65, p, 1, 1, 0, 0;\n}"
            : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
              "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
              "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
              "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
              "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]),
              "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
              "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]),
              "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
              "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]),
              "+f"(d[15][3]) : "l"(a), "l"(b), "r"(adds));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
            "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
            "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, "
            "%65, p, 1, 1, 0, 0;\n}"
            : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
              "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
              "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
              "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
              "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]),
              "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
              "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]),
              "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
              "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]),
              "+f"(d[15][3]) : "l"(a), "l"(b), "r"(adds));
}

// 64 rows of 16 halves, which lie in registers, by 16 rows of 64 halves that are summed over; added to `d` or put there.
static __device__ __forceinline__ void wgmma_turned(float (&d)[8][4], const u32 *a, u64 b, int adds) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
          "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
          "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
          "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
}
#define FOUR(x) "+f"((x)[0]), "+f"((x)[1]), "+f"((x)[2]), "+f"((x)[3])
#define WGMMA_OWN(N, TYPE, D, A, B, ADDS, ...)                                                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\nwgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE \
                 " {" D "}, {" A "}, " B ", p, 1, 1, 0;\n}" : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))
#define D8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define D16 D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define D32 D16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D64                                                                                                                  \
    D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, " \
        "%55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D128                                                                                                                 \
    D64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
        "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, " \
        "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define EIGHT(d, n)                                                                                                          \
    FOUR(d[n]), FOUR(d[n + 1]), FOUR(d[n + 2]), FOUR(d[n + 3]), FOUR(d[n + 4]), FOUR(d[n + 5]), FOUR(d[n + 6]), FOUR(d[n + 7])
#define OWN_16(TYPE) WGMMA_OWN("16", TYPE, D8, "%8, %9, %10, %11", "%12", "%13", FOUR(d[0]), FOUR(d[1]))
#define OWN_32(TYPE) WGMMA_OWN("32", TYPE, D16, "%16, %17, %18, %19", "%20", "%21", FOUR(d[0]), FOUR(d[1]), FOUR(d[2]), FOUR(d[3]))
#define OWN_64(TYPE)                                                                                                        \
    WGMMA_OWN("64", TYPE, D32, "%32, %33, %34, %35", "%36", "%37", FOUR(d[0]), FOUR(d[1]), FOUR(d[2]), FOUR(d[3]), FOUR(d[4]), \
              FOUR(d[5]), FOUR(d[6]), FOUR(d[7]))
#define OWN_128(TYPE) WGMMA_OWN("128", TYPE, D64, "%64, %65, %66, %67", "%68", "%69", EIGHT(d, 0), EIGHT(d, 8))
#define OWN_256(TYPE)                                                                                                       \
    WGMMA_OWN("256", TYPE, D128, "%128, %129, %130, %131", "%132", "%133", EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24))

// 64 rows of 16 columns, which lie in registers, by as many rows of 16 columns as `d` has columns.
template <bool BFLOATS> static __device__ __forceinline__ void wgmma_own(float (&d)[2][4], const u32 *a, u64 b, int adds) {
    if (BFLOATS) OWN_16("bf16");
    else OWN_16("f16");
}
template <bool BFLOATS> static __device__ __forceinline__ void wgmma_own(float (&d)[4][4], const u32 *a, u64 b, int adds) {
    if (BFLOATS) OWN_32("bf16");
    else OWN_32("f16");
}
template <bool BFLOATS> static __device__ __forceinline__ void wgmma_own(float (&d)[8][4], const u32 *a, u64 b, int adds) {
    if (BFLOATS) OWN_64("bf16");
    else OWN_64("f16");
}
template <bool BFLOATS> static __device__ __forceinline__ void wgmma_own(float (&d)[16][4], const u32 *a, u64 b, int adds) {
    if (BFLOATS) OWN_128("bf16");
    else OWN_128("f16");
}
template <bool BFLOATS> static __device__ __forceinline__ void wgmma_own(float (&d)[32][4], const u32 *a, u64 b, int adds) {
    if (BFLOATS) OWN_256("bf16");
    else OWN_256("f16");
}
#endif
