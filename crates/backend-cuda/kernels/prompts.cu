// Attention of prompts' rows over cached halves on tensor cores.
//
// A block takes 64 rows of a sequence and a head, and goes through the keys 64 positions at a time, cut at multiples of 64
// from the sequence's beginning: one half of its warps takes even tiles, the other half odd ones, and then the two are
// joined. Keys that a row does not see change nothing of its sums, so its bits are the same in any tile. Queries, scaled by a power of two, and the weights of the softmax go in two halves each, so that little is rounded.
#include "flash.cuh"
#include "tensor.cuh"

#define TILE 64

#ifdef HAS_TENSOR
// Whether one of two halves is infinite or no number; and the two, zeros in the place of such.
static __device__ __forceinline__ bool no_number(u32 v) { return ((v & 0x7fff7fffu) + 0x04000400u) & 0x80008000u; }
static __device__ __forceinline__ u32 numbers(u32 v) {
    u32 odd = ((v & 0x7fff7fffu) + 0x04000400u) & 0x80008000u;
    return v & ~(odd | (odd - (odd >> 15)));
}

// The warps of one half wait for each other.
static __device__ __forceinline__ void meet(u32 half) { asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory"); }

// Copies a tile of keys or values; zeros where the sequence has no position or no block.
template <int D> static __device__ __forceinline__ void copy_tile(u32 to, const Cache &cache, const Plane &plane, u32 slot, u32 base,
                                                                  u32 end, u32 kv) {
    const u32 PIECES = D / 8;
    Place low = place(cache, slot, base), high = place(cache, slot, base + 32);
    #pragma unroll
    for (u32 e = threadIdx.x % 128; e < TILE * PIECES; e += 128) {
        u32 r = e / PIECES, c = e % PIECES;
        const u8 *block = r < 32 ? low.block : high.block;
        u32 entry = (r < 32 ? low.entry : high.entry) + r % 32;
        bool there = block && base + r < end;
        const u8 *from = there ? block + plane.offset + ((u64)entry * plane.width + kv * D + c * 8) * 2 : cache.arena;
        copy16(to + r * D * 2 + ((c ^ (r & 7)) << 4), from, there);
    }
}
#endif

template <int D> static __device__ __forceinline__ void prompt(const Step &s, const Flash &op) {
#ifdef HAS_TENSOR
    const int K16 = D / 16, PITCH = D * 2, BYTES = TILE * PITCH, SPACE = D == 128 ? 3 * BYTES : 3 * BYTES + TILE * TILE * 4;
    extern __shared__ __align__(128) u8 space[];
    u32 seq = blockIdx.z, head = blockIdx.x, tile = gridDim.y - 1 - blockIdx.y, kv = head / (op.heads / op.kv_heads);
    if (seq >= rows_of(s, LEAD_SEQS)) return;
    u32 own = s.row_count[seq], start = s.first_row[seq];
    if (tile * TILE >= own || !(s.flags[start] & ROW_PROMPT)) return;
    u32 half = threadIdx.x / 128, lane = threadIdx.x & 31, warp = threadIdx.x % 128 >> 5, group = lane / 4, pair = lane % 4 * 2;
    u32 slot = s.slot[seq], past = s.past_len[seq], first = tile * TILE, last = min(first + TILE, own) - 1;
    u32 end = past + last + 1;

    // Queries: a lane has columns of two rows of its warp's sixteen.
    u32 high[K16][4], low[K16][4], pos[2];
    float unit[2];
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 row = first + warp * 16 + h * 8 + group;
        bool there = row <= last;
        pos[h] = past + row;
        const float *q = op.q + ((u64)(start + (there ? row : last)) * op.heads + head) * D;
        float most = 0.0f;
        #pragma unroll
        for (int k = 0; k < K16; k++)
            #pragma unroll
            for (int c = 0; c < 2; c++) {
                float2 v = *(const float2 *)(q + k * 16 + c * 8 + pair);
                most = fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y)));
            }
        most = max_four(most);
        // The power of two below the largest, where it is an ordinary number.
        u32 power = __float_as_uint(most) & 0x7f800000u;
        bool ordinary = power > 0x08000000u && power < 0x77000000u;
        float scale = ordinary ? __uint_as_float(0x7f000000u - power) : 1.0f;
        unit[h] = __fmul_rn(ordinary ? __uint_as_float(power) : 1.0f, op.scale);
        #pragma unroll
        for (int k = 0; k < K16; k++)
            #pragma unroll
            for (int c = 0; c < 2; c++) {
                float2 v = *(const float2 *)(q + k * 16 + c * 8 + pair);
                v.x *= scale, v.y *= scale;
                u32 two = two_halves(v.x, v.y);
                high[k][c * 2 + h] = two;
                low[k][c * 2 + h] = two_rests(v.x, v.y, two);
            }
    }

    float out[D / 8][4], best[2], total[2];
    #pragma unroll
    for (int n = 0; n < D / 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.0f;
    bool sinks = op.sinks && half == 0;
    best[0] = best[1] = sinks ? op.sinks[head] : -INF;
    total[0] = total[1] = sinks && pair == 0 ? 1.0f : 0.0f;

    u32 from_row = past + first, from = op.window && from_row + 1 > op.window ? from_row + 1 - op.window : 0;
    u32 t0 = from / TILE, t1 = (end - 1) / TILE;
    u8 *own_space = space + half * SPACE;
    u32 keys = shared_at(own_space), values = keys + 2 * BYTES;
    t0 += (t0 ^ half) & 1;
    if (t0 <= t1) copy_tile<D>(keys + (t0 >> 1 & 1) * BYTES, op.cache, op.cache.k, slot, t0 * TILE, end, kv);
    copies_end();
    for (u32 t = t0; t <= t1; t += 2) {
        u32 base = t * TILE, k_at = keys + (t >> 1 & 1) * BYTES;
        copies_wait<0>();
        meet(half);
        copy_tile<D>(values, op.cache, op.cache.v, slot, base, end, kv);
        copies_end();
        if (t + 2 <= t1) copy_tile<D>(keys + (~t >> 1 & 1) * BYTES, op.cache, op.cache.k, slot, base + 2 * TILE, end, kv);
        copies_end();

        float score[8][4];
        #pragma unroll
        for (int n = 0; n < 8; n++) score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0.0f;
        #pragma unroll
        for (int k = 0; k < K16; k++) {
            u32 b[8][2];
            #pragma unroll
            for (int n = 0; n < 8; n += 2) {
                u32 two[4], r = n * 8 + (lane & 7) + (lane >> 4) * 8;
                load_matrices(two, k_at + r * PITCH + (((k * 2 + (lane >> 3 & 1)) ^ (r & 7)) << 4));
                b[n][0] = two[0], b[n][1] = two[1], b[n + 1][0] = two[2], b[n + 1][1] = two[3];
            }
            #pragma unroll
            for (int n = 0; n < 8; n++) mma_halves(score[n], low[k], b[n][0], b[n][1]);
            #pragma unroll
            for (int n = 0; n < 8; n++) mma_halves(score[n], high[k], b[n][0], b[n][1]);
        }
        bool odd_score = false;
        #pragma unroll
        for (int n = 0; n < 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) odd_score |= score[n][i] != score[n][i];
        if (__any_sync(ALL_LANES, odd_score)) {
            // A key may be infinite: then the first half of a query says which infinity it is, not the rest.
            #pragma unroll
            for (int n = 0; n < 8; n += 2) {
                float first[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
                #pragma unroll
                for (int k = 0; k < K16; k++) {
                    u32 two[4], r = n * 8 + (lane & 7) + (lane >> 4) * 8;
                    load_matrices(two, k_at + r * PITCH + (((k * 2 + (lane >> 3 & 1)) ^ (r & 7)) << 4));
                    mma_halves(first[0], high[k], two[0], two[1]);
                    mma_halves(first[1], high[k], two[2], two[3]);
                }
                #pragma unroll
                for (int i = 0; i < 8; i++) {
                    float &x = score[n + i / 4][i % 4];
                    if (x != x) x = first[i / 4][i % 4];
                }
            }
        }
        float keep[2];
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = -INF;
            #pragma unroll
            for (int n = 0; n < 8; n++)
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    u32 key = base + n * 8 + pair + i;
                    bool sees = key <= pos[h] && (!op.window || key + op.window > pos[h]);
                    float &x = score[n][2 * h + i];
                    x = sees ? __fmul_rn(x, unit[h]) : -INF;
                    most = fmaxf(most, x);
                }
            float next = fmaxf(best[h], max_four(most));
            keep[h] = best[h] == -INF ? 0.0f : expf(best[h] - next);
            best[h] = next;
            total[h] = __fmul_rn(total[h], keep[h]);
            #pragma unroll
            for (int n = 0; n < 8; n++)
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &x = score[n][2 * h + i];
                    x = x == -INF ? 0.0f : expf(x - next);
                    total[h] += x;
                }
        }
        #pragma unroll
        for (int n = 0; n < D / 8; n++) {
            out[n][0] *= keep[0], out[n][1] *= keep[0];
            out[n][2] *= keep[1], out[n][3] *= keep[1];
        }
        copies_wait<1>();
        meet(half);
        // What is no number or infinite is kept from rows that do not see it: a weight of zero would not.
        bool hides = base + TILE - 1 > past + first || (op.window && base + op.window <= past + last);
        if (hides) {
            uint4 *tile_v = (uint4 *)(own_space + 2 * BYTES);
            // The keys are done with; they may be in the place of nothing else.
            float *weights = (float *)(own_space + (D == 128 ? (t >> 1 & 1) * BYTES : 3 * BYTES)) + warp * 16 * TILE;
            bool odd = false;
            for (u32 e = lane; e < BYTES / 16; e += 32) {
                uint4 v = tile_v[e];
                odd |= no_number(v.x) || no_number(v.y) || no_number(v.z) || no_number(v.w);
            }
            if (__any_sync(ALL_LANES, odd)) {
                // All four warps find the same.
                meet(half);
                #pragma unroll
                for (int n = 0; n < 8; n++)
                    #pragma unroll
                    for (int i = 0; i < 4; i++) weights[(i / 2 * 8 + group) * TILE + n * 8 + pair + i % 2] = score[n][i];
                __syncwarp();
                #pragma unroll 1
                for (u32 j = 0; j < TILE; j++) {
                    u32 key = base + j;
                    #pragma unroll
                    for (int n = 0; n < D / 8; n++) {
                        u32 v = *(const u32 *)((const u8 *)tile_v + j * PITCH + ((n ^ (j & 7)) << 4) + pair * 2);
                        if (!no_number(v)) continue;
                        #pragma unroll
                        for (int i = 0; i < 4; i++) {
                            float x = half_to_float((u16)(v >> 16 * (i % 2)));
                            bool sees = key <= pos[i / 2] && (!op.window || key + op.window > pos[i / 2]);
                            if (sees && !(fabsf(x) < INF)) out[n][i] += weights[(i / 2 * 8 + group) * TILE + j] * x;
                        }
                    }
                }
                meet(half);
                for (u32 e = threadIdx.x % 128; e < BYTES / 16; e += 128) {
                    uint4 v = tile_v[e];
                    tile_v[e] = make_uint4(numbers(v.x), numbers(v.y), numbers(v.z), numbers(v.w));
                }
                meet(half);
            }
        }
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 p[4], rest[4];
            #pragma unroll
            for (int c = 0; c < 2; c++)
                #pragma unroll
                for (int h = 0; h < 2; h++) {
                    float a = score[2 * k + c][2 * h], b = score[2 * k + c][2 * h + 1];
                    p[c * 2 + h] = two_halves(a, b);
                    rest[c * 2 + h] = two_rests(a, b, p[c * 2 + h]);
                }
            #pragma unroll
            for (int n = 0; n < D / 8; n += 4) {
                u32 b[4], c[4], r = k * 16 + (lane & 15);
                load_turned(b, values + r * PITCH + (((n + lane / 16) ^ (r & 7)) << 4));
                load_turned(c, values + r * PITCH + (((n + 2 + lane / 16) ^ (r & 7)) << 4));
                mma_halves(out[n], rest, b[0], b[1]);
                mma_halves(out[n + 1], rest, b[2], b[3]);
                mma_halves(out[n + 2], rest, c[0], c[1]);
                mma_halves(out[n + 3], rest, c[2], c[3]);
                mma_halves(out[n], p, b[0], b[1]);
                mma_halves(out[n + 1], p, b[2], b[3]);
                mma_halves(out[n + 2], p, c[0], c[1]);
                mma_halves(out[n + 3], p, c[2], c[3]);
            }
        }
        meet(half);
    }
    // The odd tiles join the even ones.
    float *joint = (float *)space + (warp * 32 + lane) * (D / 2 + 5);
    copies_wait<0>();
    __syncthreads();
    if (half == 1) {
        #pragma unroll
        for (int n = 0; n < D / 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) joint[n * 4 + i] = out[n][i];
        joint[D / 2] = best[0], joint[D / 2 + 1] = best[1], joint[D / 2 + 2] = total[0], joint[D / 2 + 3] = total[1];
    }
    __syncthreads();
    if (half == 1) return;
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        float other = joint[D / 2 + h], next = fmaxf(best[h], other);
        float a = best[h] == -INF ? 0.0f : expf(best[h] - next), b = other == -INF ? 0.0f : expf(other - next);
        total[h] = __fmaf_rn(joint[D / 2 + 2 + h], b, __fmul_rn(total[h], a));
        #pragma unroll
        for (int n = 0; n < D / 8; n++)
            #pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) out[n][i] = __fmaf_rn(joint[n * 4 + i], b, __fmul_rn(out[n][i], a));
    }
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 row = first + warp * 16 + h * 8 + group;
        float sum = sum_four(total[h]);
        if (row > last) continue;
        float *y = op.out + ((u64)(start + row) * op.heads + head) * D;
        #pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2 *)(y + n * 8 + pair) = make_float2(out[n][2 * h] / sum, out[n][2 * h + 1] / sum);
    }
#endif
}

extern "C" __global__ void __launch_bounds__(256) prompt_64(Step s, Flash op) { prompt<64>(s, op); }
extern "C" __global__ void __launch_bounds__(256) prompt_128(Step s, Flash op) { prompt<128>(s, op); }
