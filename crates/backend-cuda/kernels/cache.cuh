// Paged caches: where a position lies and how its numbers are kept.
#pragma once
#include "common.cuh"

struct Place {
    u8 *block;  // 0 where the position has no block
    u32 entry;  // in the block
};

static __device__ __forceinline__ Place place(const Cache &c, u32 slot, u32 pos) {
    Place p;
    u32 i = pos / c.block_size;
    u32 block = i < c.table_len ? c.tables[slot * c.table_len + i] : NO_BLOCK;
    p.block = block == NO_BLOCK ? (u8 *)0 : c.arena + (u64)block * 256u;
    p.entry = (pos % c.block_size) / c.entry;
    return p;
}

static __device__ __forceinline__ float load_cached(const Plane &p, const Place &at, u32 column) {
    const u8 *base = at.block + p.offset;
    u64 i = (u64)at.entry * p.width + column;
    switch (p.dtype) {
    case 0: return ((const float *)base)[i];
    case 1: return half_to_float(((const u16 *)base)[i]);
    case 30: return bfloat_to_float(((const u16 *)base)[i]);
    default: {
        u32 runs = (p.width + 31) / 32;
        u16 scale = ((const u16 *)(at.block + p.scales))[at.entry * runs + column / 32];
        return __fmul_rn((float)((const i8 *)base)[i], half_to_float(scale));
    }
    }
}

// Stores one run of 32 columns, a lane each; all lanes of a warp call it.
static __device__ void store_cached(const Plane &p, const Place &at, u32 run, float x, bool inside) {
    u32 lane = threadIdx.x & 31, column = run * 32 + lane;
    u8 *base = at.block + p.offset;
    u64 i = (u64)at.entry * p.width + column;
    if (p.dtype == 8) {
        float step = __fdiv_rn(max_lanes(inside ? fabsf(x) : 0.0f), 127.0f);
        float inverse = step == 0.0f ? 0.0f : __fdiv_rn(1.0f, step);
        if (inside) ((i8 *)base)[i] = (i8)roundf(__fmul_rn(x, inverse));
        u32 runs = (p.width + 31) / 32;
        if (lane == 0) ((u16 *)(at.block + p.scales))[at.entry * runs + run] = float_to_half(step);
        return;
    }
    if (!inside) return;
    if (p.dtype == 0) ((float *)base)[i] = x;
    if (p.dtype == 1) ((u16 *)base)[i] = float_to_half(x);
    if (p.dtype == 30) ((u16 *)base)[i] = float_to_bfloat(x);
}

// How the state of a sequence goes through its rows: in the block of place 0, or, where states are kept, from place j to
// place j + 1 with row j.
struct States {
    const u32 *table;
    u8 *base;
    bool keeps, fresh;
};

static __device__ __forceinline__ States states_of(const Step &s, const Cache &c, u32 seq) {
    States st;
    st.table = c.tables + s.slot[seq] * c.table_len;
    st.base = c.arena + c.k.offset;
    st.keeps = s.flags[s.first_row[seq]] & ROW_KEEPS;
    st.fresh = s.past_len[seq] == 0;
    return st;
}

static __device__ __forceinline__ float *state_at(const States &st, u32 place) {
    return (float *)(st.base + (u64)st.table[place] * 256u);
}

// The state before row `j` of a sequence; 0 where it is zeros.
static __device__ __forceinline__ const float *state_before(const States &st, u32 j) {
    return j == 0 && st.fresh ? (const float *)0 : state_at(st, st.keeps ? j : 0);
}

static __device__ __forceinline__ float *state_after(const States &st, u32 j) { return state_at(st, st.keeps ? j + 1 : 0); }
