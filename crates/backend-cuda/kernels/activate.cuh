// Functions of an element.
#pragma once
#include "common.cuh"

enum {
    F_IDENTITY, F_SILU, F_GELU, F_GELU_ERF, F_GELU_QUICK, F_RELU, F_RELU2, F_SIGMOID, F_TANH, F_SOFTPLUS, F_EXP,
    F_NEG_EXP, F_XIELU, F_SITU, F_SWISH, F_SIGNED_SQRT, F_AFFINE, F_SOFTCAP, F_CLAMP
};

struct Act {
    u32 kind;
    float a, b, c, d;
};

static __device__ __forceinline__ float activate(const Act &f, float x) {
    switch (f.kind) {
    case F_SILU: return x * sigmoid(x);
    case F_GELU: return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case F_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case F_GELU_QUICK: return x * sigmoid(1.702f * x);
    case F_RELU: return fmaxf(x, 0.0f);
    case F_RELU2: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    case F_SIGMOID: return sigmoid(x);
    case F_TANH: return tanhf(x);
    case F_SOFTPLUS: return softplus(x);
    case F_EXP: return expf(x);
    case F_NEG_EXP: return -expf(x);
    case F_XIELU: {
        float curve = x > 0.0f ? f.b * x * x : (expm1f(fminf(x, f.d)) - x) * f.a;
        return curve + f.c * x;
    }
    case F_SITU: return f.a * tanhf(x / f.a) * sigmoid(x);
    case F_SWISH: return x * sigmoid(f.a * x);
    case F_SIGNED_SQRT: {
        float root = sqrtf(fmaxf(fabsf(x), f.a));
        return x > 0.0f ? root : x < 0.0f ? -root : 0.0f;
    }
    case F_AFFINE: return __fadd_rn(__fmul_rn(x, f.a), f.b);
    case F_SOFTCAP: return f.a * tanhf(x / f.a);
    case F_CLAMP: return fminf(fmaxf(x, f.a), f.b);
    default: return x;
    }
}
