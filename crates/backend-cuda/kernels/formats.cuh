// Block formats: 32 elements of a row at a time, with the bits that the host's dequantiser gives.
//
// Every format is `(d * scale) * code - dmin * min`, rounded after each operation.
#pragma once
#include "common.cuh"
#include "grids.cuh"

enum {
    T_F32 = 0, T_F16 = 1, T_Q4_0 = 2, T_Q4_1 = 3, T_Q5_0 = 6, T_Q5_1 = 7, T_Q8_0 = 8, T_Q8_1 = 9, T_Q2_K = 10,
    T_Q3_K = 11, T_Q4_K = 12, T_Q5_K = 13, T_Q6_K = 14, T_Q8_K = 15, T_IQ2_XXS = 16, T_IQ2_XS = 17, T_IQ3_XXS = 18,
    T_IQ1_S = 19, T_IQ4_NL = 20, T_IQ3_S = 21, T_IQ2_S = 22, T_IQ4_XS = 23, T_IQ1_M = 29, T_BF16 = 30, T_TQ1_0 = 34,
    T_TQ2_0 = 35, T_MXFP4 = 39, T_NVFP4 = 40, T_Q1_0 = 41, T_Q2_0 = 42
};

static __device__ __forceinline__ u16 u16_at(const u8 *b, u32 i) { return (u16)(b[i] | b[i + 1] << 8); }
static __device__ __forceinline__ u32 u32_at(const u8 *b, u32 i) { return u16_at(b, i) | (u32)u16_at(b, i + 2) << 16; }
static __device__ __forceinline__ float half_at(const u8 *b, u32 i) { return half_to_float(u16_at(b, i)); }

static __device__ __forceinline__ float scaled(float scale, int code) { return __fmul_rn(scale, (float)code); }

static __device__ __forceinline__ u32 even_signs(u32 stored) {
    u32 low = stored & 127u;
    return low | (u32)(__popc(low) & 1) << 7;
}

static __device__ __forceinline__ void eight(u32 point, u32 signs, float scale, float *out) {
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        int v = IQ2_LEVELS[(point >> (2 * i)) & 3];
        out[i] = scaled(scale, (signs >> i) & 1 ? -v : v);
    }
}

static __device__ __forceinline__ void four(u32 point, u32 signs, bool odd, float scale, float *out) {
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        int q = (point >> (3 * i)) & 7;
        int v = odd ? 2 * q + 1 : IQ3_XXS_LEVELS[q];
        out[i] = scaled(scale, (signs >> i) & 1 ? -v : v);
    }
}

static __device__ __forceinline__ void shifted(u32 point, bool down, float scale, float *out) {
    #pragma unroll
    for (int i = 0; i < 8; i++) out[i] = scaled(scale, 8 * ((int)((point >> (2 * i)) & 3) - 1) + (down ? -1 : 1));
}

static __device__ __forceinline__ float e8m0_half(u8 b) {
    return __uint_as_float(b < 2 ? 0x00200000u << b : ((u32)b - 1) << 23);
}

static __device__ __forceinline__ int ue4m3_units(u8 b) {
    if (b == 0x7f) return 0;
    int e = (b >> 3) & 15, m = b & 7;
    return e == 0 ? m : (8 + m) << (e - 1);
}

// Scale and minimum of sub-block `s` of a Q4_K or Q5_K block.
static __device__ __forceinline__ void k_scales(const u8 *p, u32 s, int *scale, int *min) {
    if (s < 4) {
        *scale = p[s] & 63;
        *min = p[s + 4] & 63;
    } else {
        *scale = (p[s + 4] & 15) | (p[s - 4] >> 6) << 4;
        *min = p[s + 4] >> 4 | (p[s] >> 6) << 4;
    }
}

template <int F> struct Format;

#define FORMAT(name, block_elems, block_bytes_)                                     \
    template <> struct Format<T_##name> {                                           \
        static const u32 elems = block_elems, bytes = block_bytes_;                 \
        static __device__ __forceinline__ void group(const u8 *b, u32 g, float *o); \
    };                                                                              \
    __device__ __forceinline__ void Format<T_##name>::group(const u8 *b, u32 g, float *o)

#define EACH32 _Pragma("unroll") for (int i = 0; i < 32; i++)
#define NIBBLE(p) (i < 16 ? (p)[i] & 15 : (p)[i - 16] >> 4)

FORMAT(F32, 32, 128) { EACH32 o[i] = ((const float *)b)[i]; }
FORMAT(F16, 32, 64) { EACH32 o[i] = half_to_float(((const u16 *)b)[i]); }
FORMAT(BF16, 32, 64) { EACH32 o[i] = bfloat_to_float(((const u16 *)b)[i]); }
FORMAT(Q1_0, 128, 18) {
    float d = half_at(b, 0);
    EACH32 o[i] = scaled(d, 2 * ((b[2 + g * 4 + i / 8] >> (i % 8)) & 1) - 1);
}
FORMAT(Q2_0, 64, 18) {
    float d = half_at(b, 0);
    EACH32 o[i] = scaled(d, ((b[2 + g * 8 + i / 4] >> (2 * (i % 4))) & 3) - 1);
}
FORMAT(Q4_0, 32, 18) {
    float d = half_at(b, 0);
    EACH32 o[i] = scaled(d, (int)NIBBLE(b + 2) - 8);
}
FORMAT(Q4_1, 32, 20) {
    float d = half_at(b, 0), m = half_at(b, 2);
    EACH32 o[i] = __fadd_rn(scaled(d, NIBBLE(b + 4)), m);
}
FORMAT(Q5_0, 32, 22) {
    float d = half_at(b, 0);
    u32 h = u32_at(b, 2);
    EACH32 o[i] = scaled(d, (int)NIBBLE(b + 6) - 16 + (int)((h >> i) & 1) * 16);
}
FORMAT(Q5_1, 32, 24) {
    float d = half_at(b, 0), m = half_at(b, 2);
    u32 h = u32_at(b, 4);
    EACH32 o[i] = __fadd_rn(scaled(d, (int)NIBBLE(b + 8) + (int)((h >> i) & 1) * 16), m);
}
FORMAT(Q8_0, 32, 34) {
    float d = half_at(b, 0);
    EACH32 o[i] = scaled(d, (i8)b[2 + i]);
}
FORMAT(Q8_1, 32, 36) {
    float d = half_at(b, 0);
    EACH32 o[i] = scaled(d, (i8)b[4 + i]);
}
FORMAT(Q2_K, 256, 84) {
    float d = half_at(b, 80), m = half_at(b, 82);
    const u8 *q = b + 16 + 32 * (g / 4), *s = b + 2 * g;
    EACH32 o[i] = __fsub_rn(scaled(scaled(d, s[i / 16] & 15), (q[i] >> (2 * (g % 4))) & 3), scaled(m, s[i / 16] >> 4));
}
FORMAT(Q3_K, 256, 110) {
    float d = half_at(b, 108);
    const u8 *q = b + 32 + 32 * (g / 4);
    float scale[2];
    for (int j = 0; j < 2; j++) {
        int s = 2 * g + j;
        int low = (b[96 + s % 8] >> (4 * (s / 8))) & 15, high = (b[104 + s % 4] >> (2 * (s / 4))) & 3;
        scale[j] = scaled(d, (low | high << 4) - 32);
    }
    EACH32 o[i] = scaled(scale[i / 16], ((q[i] >> (2 * (g % 4))) & 3) + 4 * ((b[i] >> g) & 1) - 4);
}
FORMAT(Q4_K, 256, 144) {
    int scale, min;
    k_scales(b + 4, g, &scale, &min);
    float d = scaled(half_at(b, 0), scale), m = scaled(half_at(b, 2), min);
    const u8 *q = b + 16 + 32 * (g / 2);
    EACH32 o[i] = __fsub_rn(scaled(d, (q[i] >> (4 * (g & 1))) & 15), m);
}
FORMAT(Q5_K, 256, 176) {
    int scale, min;
    k_scales(b + 4, g, &scale, &min);
    float d = scaled(half_at(b, 0), scale), m = scaled(half_at(b, 2), min);
    const u8 *q = b + 48 + 32 * (g / 2);
    EACH32 o[i] = __fsub_rn(scaled(d, ((q[i] >> (4 * (g & 1))) & 15) + 16 * ((b[16 + i] >> g) & 1)), m);
}
FORMAT(Q6_K, 256, 210) {
    float d = half_at(b, 208);
    u32 h = g / 4, r = g % 4;
    const u8 *low = b + 64 * h + 32 * (r & 1), *high = b + 128 + 32 * h;
    float scale[2] = {scaled(d, (i8)b[192 + 2 * g]), scaled(d, (i8)b[193 + 2 * g])};
    EACH32 o[i] = scaled(scale[i / 16], (int)(((low[i] >> (4 * (r / 2))) & 15) | ((high[i] >> (2 * r)) & 3) << 4) - 32);
}
FORMAT(Q8_K, 256, 292) {
    float d = __uint_as_float(u32_at(b, 0));
    EACH32 o[i] = scaled(d, (i8)b[4 + 32 * g + i]);
}
FORMAT(IQ2_XXS, 256, 66) {
    u32 signs = u32_at(b, 6 + 8 * g);
    float d = scaled(__fmul_rn(half_at(b, 0), 0.125f), 2 * (int)(signs >> 28) + 1);
    #pragma unroll
    for (int l = 0; l < 4; l++) eight(GRID_IQ2_XXS[b[2 + 8 * g + l]], even_signs(signs >> (7 * l)), d, o + 8 * l);
}
FORMAT(IQ2_XS, 256, 74) {
    float d = __fmul_rn(half_at(b, 0), 0.125f);
    #pragma unroll
    for (int l = 0; l < 4; l++) {
        u32 word = u16_at(b, 2 + 8 * g + 2 * l);
        int scale = 2 * ((b[66 + g] >> (4 * (l / 2))) & 15) + 1;
        eight(GRID_IQ2_XS[word & 511], even_signs(word >> 9), scaled(d, scale), o + 8 * l);
    }
}
FORMAT(IQ2_S, 256, 82) {
    float d = __fmul_rn(half_at(b, 0), 0.125f);
    #pragma unroll
    for (int l = 0; l < 4; l++) {
        u32 high = (b[66 + g] >> (2 * l)) & 3;
        int scale = 2 * ((b[74 + g] >> (4 * (l / 2))) & 15) + 1;
        eight(GRID_IQ2_S[b[2 + 4 * g + l] | high << 8], b[34 + 4 * g + l], scaled(d, scale), o + 8 * l);
    }
}
FORMAT(IQ3_XXS, 256, 98) {
    u32 signs = u32_at(b, 66 + 4 * g);
    float d = scaled(__fmul_rn(half_at(b, 0), 0.25f), 2 * (int)(signs >> 28) + 1);
    #pragma unroll
    for (int l = 0; l < 8; l++)
        four(GRID_IQ3_XXS[b[2 + 8 * g + l]], even_signs(signs >> (7 * (l / 2))) >> (4 * (l % 2)), false, d, o + 4 * l);
}
FORMAT(IQ3_S, 256, 110) {
    float d = scaled(half_at(b, 0), 2 * ((b[106 + g / 2] >> (4 * (g % 2))) & 15) + 1);
    #pragma unroll
    for (int l = 0; l < 8; l++) {
        u32 ninth = (b[66 + g] >> l) & 1;
        four(GRID_IQ3_S[b[2 + 8 * g + l] | ninth << 8], b[74 + 4 * g + l / 2] >> (4 * (l % 2)), true, d, o + 4 * l);
    }
}
FORMAT(IQ1_S, 256, 50) {
    u32 word = u16_at(b, 34 + 2 * g);
    float d = scaled(__fmul_rn(half_at(b, 0), 0.125f), 2 * (int)((word >> 12) & 7) + 1);
    #pragma unroll
    for (int l = 0; l < 4; l++)
        shifted(GRID_IQ1[b[2 + 4 * g + l] | ((word >> (3 * l)) & 7) << 8], word & 0x8000, d, o + 8 * l);
}
FORMAT(IQ1_M, 256, 56) {
    u32 factor = 0;
    #pragma unroll
    for (int j = 0; j < 4; j++) factor |= (u32)(u16_at(b, 48 + 2 * j) >> 12) << (4 * j);
    float d = __fmul_rn(half_to_float((u16)factor), 0.125f);
    #pragma unroll
    for (int l = 0; l < 4; l++) {
        u32 s = 2 * g + l / 2, scale = 2 * ((u16_at(b, 48 + 2 * (s / 4)) >> (3 * (s % 4))) & 7) + 1;
        u32 nibble = b[32 + 2 * g + l / 2] >> (4 * (l % 2));
        shifted(GRID_IQ1[b[4 * g + l] | (nibble & 7) << 8], nibble & 8, scaled(d, (int)scale), o + 8 * l);
    }
}
FORMAT(IQ4_NL, 32, 18) {
    float d = half_at(b, 0);
    EACH32 o[i] = scaled(d, IQ4[NIBBLE(b + 2)]);
}
FORMAT(IQ4_XS, 256, 136) {
    int scale = ((b[4 + g / 2] >> (4 * (g % 2))) & 15) + ((u16_at(b, 2) >> (2 * g)) & 3) * 16 - 32;
    float d = scaled(half_at(b, 0), scale);
    const u8 *q = b + 8 + 16 * g;
    EACH32 o[i] = scaled(d, IQ4[NIBBLE(q)]);
}
FORMAT(MXFP4, 32, 17) {
    float d = e8m0_half(b[0]);
    EACH32 o[i] = scaled(d, FP4[NIBBLE(b + 1)]);
}
FORMAT(NVFP4, 64, 36) {
    EACH32 {
        u32 s = 2 * g + i / 16, j = i % 16;
        const u8 *q = b + 4 + 8 * s;
        o[i] = scaled(scaled(1.0f / 1024.0f, ue4m3_units(b[s])), FP4[j < 8 ? q[j] & 15 : q[j - 8] >> 4]);
    }
}
FORMAT(TQ1_0, 256, 54) {
    float d = half_at(b, 52);
    EACH32 {
        u32 e = 32 * g + i, n, at;
        if (e < 160) n = e / 32, at = e % 32;
        else if (e < 240) n = (e - 160) / 16, at = 32 + (e - 160) % 16;
        else n = (e - 240) / 4, at = 48 + (e - 240) % 4;
        u32 power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
        o[i] = scaled(d, (int)((((u32)b[at] * power & 255) * 3) >> 8) - 1);
    }
}
FORMAT(TQ2_0, 256, 66) {
    float d = half_at(b, 64);
    const u8 *q = b + 32 * (g / 4);
    EACH32 o[i] = scaled(d, ((q[i] >> (2 * (g % 4))) & 3) - 1);
}

#define EACH_FORMAT(M)                                                                                               \
    M(F32) M(F16) M(BF16) M(Q1_0) M(Q2_0) M(Q4_0) M(Q4_1) M(Q5_0) M(Q5_1) M(Q8_0) M(Q8_1) M(Q2_K) M(Q3_K) M(Q4_K)     \
    M(Q5_K) M(Q6_K) M(Q8_K) M(IQ2_XXS) M(IQ2_XS) M(IQ2_S) M(IQ3_XXS) M(IQ3_S) M(IQ1_S) M(IQ1_M) M(IQ4_NL) M(IQ4_XS)   \
    M(MXFP4) M(NVFP4) M(TQ1_0) M(TQ2_0)

// Group `g` of 32 elements of a row of `k`; zeros behind its end, which only plain numbers have inside a group.
template <int F> static __device__ __forceinline__ void row_group(const u8 *row, u32 g, u32 k, float *out) {
    const bool plain = F == T_F32 || F == T_F16 || F == T_BF16;
    if (plain && (g + 1) * 32 > k) {
        #pragma unroll
        for (int i = 0; i < 32; i++) {
            u32 e = g * 32 + i;
            float x = 0.0f;
            if (e < k) x = F == T_F32 ? ((const float *)row)[e] : F == T_F16 ? half_to_float(((const u16 *)row)[e])
                                                                            : bfloat_to_float(((const u16 *)row)[e]);
            out[i] = x;
        }
        return;
    }
    const u32 per_block = Format<F>::elems / 32;
    Format<F>::group(row + (u64)(g / per_block) * Format<F>::bytes, g % per_block, out);
}
