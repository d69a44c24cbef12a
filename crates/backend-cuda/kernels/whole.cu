// Attention of a sequence's rows to those around them or to all, as encoders have it: nothing is cached.
//
// A block takes 64 rows of a head, and goes through the keys 64 at a time, cut at multiples of 64 from the sequence's beginning.
// Keys that a row does not see change nothing of its sums, so its bits are the same in any tile.
//
// On tensor cores queries, keys, values and the weights of the softmax go in two halves each, under a power of two that a row
// shares, so that little is rounded. The weights of 64 keys are summed up from zero there, then added. Where a key or value of the
// sequence is infinite or no number, the kernel without tensor cores takes its place.
#include "tensor.cuh"

#define TILE 64
// Of what is read by columns: four more, so that threads read from different banks.
#define PITCH (TILE + 4)
// The weight of a value that a row does not see: it may be no number.
#define UNSEEN -1.0f

struct Whole {
    const float *q, *k, *v;
    float *out;
    u16 *parts;     // of queries, then keys, then values: the first halves of all rows, then the second ones; 0 without tensor cores
    float *units;   // of keys, then values, then queries: what a row is multiplied by in the end
    u32 heads, kv_heads, dim, k_width, v_width;
    u32 reach;      // rows before and after a row that it sees
    u32 rows;       // that there is room for
    float scale;
};

// Tiles of keys that rows from `begin` see, up to but without the second.
static __device__ __forceinline__ void tiles_seen(const Whole &op, u32 begin, u32 count, u32 *from, u32 *to) {
    *from = begin > op.reach ? (begin - op.reach) / TILE : 0;
    u32 last = min(begin + TILE, count) - 1;
    *to = (count - 1 - last > op.reach ? last + op.reach : count - 1) / TILE + 1;
}

static __device__ __forceinline__ bool sees(const Whole &op, u32 row, u32 key, u32 count) {
    return key < count && (key > row ? key - row : row - key) <= op.reach;
}

// The largest unit of the values of a sequence, infinite where one of its keys or values is infinite or no number.
static __device__ __forceinline__ float largest_unit(const Whole &op, u32 first, u32 count, float *shared) {
    float most = 0.0f;
    for (u32 r = threadIdx.x; r < count; r += blockDim.x) {
        float k = op.units[first + r], v = op.units[op.rows + first + r];
        most = fmaxf(most, k == INF ? INF : v);
    }
    return max_block(most, shared);
}

// A block for each row: of queries, keys or values.
KERNEL whole_cut(Step s, Whole op) {
    __shared__ float shared[33];
    u32 row = blockIdx.x, which = blockIdx.y, widest = op.heads * op.dim;
    if (row >= rows_of(s, LEAD_ROWS)) return;
    u32 width = which == 0 ? widest : which == 1 ? op.k_width : op.v_width;
    u64 before = which == 0 ? 0 : 2 * (u64)op.rows * (widest + (which == 1 ? 0 : op.k_width));
    const float4 *x = (const float4 *)((which == 0 ? op.q : which == 1 ? op.k : op.v) + (u64)row * width);
    float most = 0.0f;
    for (u32 c = threadIdx.x; c < width / 4; c += blockDim.x) {
        float4 v = x[c];
        bool number = v.x - v.x == 0.0f && v.y - v.y == 0.0f && v.z - v.z == 0.0f && v.w - v.w == 0.0f;
        most = fmaxf(most, number ? fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))) : INF);
    }
    most = max_block(most, shared);
    // The largest number lies between 2^14 and 2^15 then. Rows of less than 2^-112 are zeros.
    u32 power = __float_as_uint(most) >> 23;
    bool ordinary = power > 14 && power < 255;
    float scale = ordinary ? __uint_as_float((268 - power) << 23) : power == 255 ? 1.0f : 0.0f;
    if (threadIdx.x == 0)
        op.units[(which + 2) % 3 * op.rows + row] = ordinary ? __uint_as_float((power - 14) << 23) : power == 255 ? INF : 0.0f;
    u16 *high = op.parts + before + (u64)row * width, *low = high + (u64)op.rows * width;
    for (u32 c = threadIdx.x; c < width / 4; c += blockDim.x) {
        float4 v = x[c];
        float left[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
        u16 a[4], b[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i] = float_to_half(left[i]);
            b[i] = float_to_half(left[i] - half_to_float(a[i]));
        }
        *(uint2 *)(high + c * 4) = make_uint2(a[0] | (u32)a[1] << 16, a[2] | (u32)a[3] << 16);
        *(uint2 *)(low + c * 4) = make_uint2(b[0] | (u32)b[1] << 16, b[2] | (u32)b[3] << 16);
    }
}

#ifdef HAS_TENSOR
// Both halves of a head's columns of 64 rows; zeros behind the end.
template <int D> static __device__ __forceinline__ void copy_halves(u32 to, const u16 *from, u64 apart, u32 width, u32 begin, u32 count) {
    const u32 PIECES = D / 8;
    #pragma unroll
    for (u32 e = threadIdx.x; e < TILE * PIECES; e += 128) {
        u32 r = e / PIECES, c = e % PIECES;
        bool there = begin + r < count;
        const u16 *piece = from + (there ? (u64)(begin + r) * width + c * 8 : 0);
        u32 at = to + r * D * 2 + ((c ^ (r & 7 & (PIECES - 1))) << 4);
        copy16(at, piece, there);
        copy16(at + TILE * D * 2, piece + apart, there);
    }
}

// Units of 64 rows; behind the end that of the last.
static __device__ __forceinline__ void copy_units(float *to, const float *from, u32 begin, u32 count) {
    if (threadIdx.x < TILE) copy4(shared_at(to + threadIdx.x), from + min(begin + threadIdx.x, count - 1));
}

static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

template <int D> static __device__ __forceinline__ void whole16(const Step &s, const Whole &op) {
#ifdef HAS_TENSOR
    const int K16 = D / 16, ROW = D * 2, BYTES = TILE * ROW, TURN = D / 8 < 8 ? D / 8 - 1 : 7;
    extern __shared__ __align__(128) u8 tiles[];
    __shared__ float shared[33];
    __shared__ __align__(16) float k_unit[TILE], v_unit[TILE];
    u32 head = blockIdx.x, seq = blockIdx.z, begin = blockIdx.y * TILE, kv = head / (op.heads / op.kv_heads);
    if (seq >= rows_of(s, LEAD_SEQS) || begin >= s.row_count[seq]) return;
    u32 count = s.row_count[seq], first = s.first_row[seq], lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 group = lane / 4, pair = lane % 4 * 2;
    float largest = largest_unit(op, first, count, shared);
    if (largest == INF) return;
    float inverse = largest > 0.0f ? 16384.0f / largest : 0.0f;

    u64 widest = op.heads * D, q_apart = op.rows * widest, k_apart = (u64)op.rows * op.k_width, v_apart = (u64)op.rows * op.v_width;
    const u16 *k_from = op.parts + 2 * q_apart + (u64)first * op.k_width + kv * D;
    const u16 *v_from = op.parts + 2 * (q_apart + k_apart) + (u64)first * op.v_width + kv * D;
    const float *k_units = op.units + first, *v_units = k_units + op.rows, *q_units = v_units + op.rows;
    u32 keys = shared_at(tiles), values = keys + 2 * BYTES, from, to;
    tiles_seen(op, begin, count, &from, &to);
    copy_halves<D>(keys, k_from, k_apart, op.k_width, from * TILE, count);
    copy_units(k_unit, k_units, from * TILE, count);
    copies_end();

    // Queries: a lane has columns of two rows of its warp's sixteen.
    u32 high[K16][4], low[K16][4], row[2];
    float unit[2];
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        row[h] = begin + warp * 16 + h * 8 + group;
        u32 in = first + min(row[h], count - 1);
        const u16 *q = op.parts + in * widest + head * D;
        float own = q_units[min(row[h], count - 1)];
        // A row of zeros has scores of zero in any unit.
        unit[h] = __fmul_rn(__fmul_rn(own > 0.0f ? own : 1.0f, op.scale), 1.44269504f);
        #pragma unroll
        for (int k = 0; k < K16; k++)
            #pragma unroll
            for (int c = 0; c < 2; c++) {
                high[k][c * 2 + h] = *(const u32 *)(q + k * 16 + c * 8 + pair);
                low[k][c * 2 + h] = *(const u32 *)(q + q_apart + k * 16 + c * 8 + pair);
            }
    }
    float out[D / 8][4], best[2] = {-INF, -INF}, total[2] = {0.0f, 0.0f};
    #pragma unroll
    for (int n = 0; n < D / 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.0f;

    #pragma unroll 1
    for (u32 t = from; t < to; t++) {
        u32 base = t * TILE;
        copies_wait<0>();
        __syncthreads();
        copy_halves<D>(values, v_from, v_apart, op.v_width, base, count);
        copy_units(v_unit, v_units, base, count);
        copies_end();
        float score[8][4];
        #pragma unroll
        for (int n = 0; n < 8; n += 2) {
            #pragma unroll
            for (int i = 0; i < 8; i++) score[n + i / 4][i % 4] = 0.0f;
            #pragma unroll
            for (int k = 0; k < K16; k++) {
                u32 a[4], b[4], r = n * 8 + (lane & 7) + (lane >> 4) * 8;
                u32 at = keys + r * ROW + (((k * 2 + (lane >> 3 & 1)) ^ (r & TURN)) << 4);
                load_matrices(a, at);
                load_matrices(b, at + BYTES);
                mma_halves(score[n], low[k], a[0], a[1]);
                mma_halves(score[n + 1], low[k], a[2], a[3]);
                mma_halves(score[n], high[k], b[0], b[1]);
                mma_halves(score[n + 1], high[k], b[2], b[3]);
                mma_halves(score[n], high[k], a[0], a[1]);
                mma_halves(score[n + 1], high[k], a[2], a[3]);
            }
        }
        // Scores before the row's unit, which is positive: the largest of them is the largest with it.
        float keep[2], least[2], most[2] = {-INF, -INF};
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 by = *(const float2 *)(k_unit + n * 8 + pair);
            score[n][0] *= by.x, score[n][1] *= by.y;
            score[n][2] *= by.x, score[n][3] *= by.y;
        }
        if (op.reach < count || base + TILE > count) {
            #pragma unroll
            for (int n = 0; n < 8; n++)
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!sees(op, row[i / 2], base + n * 8 + pair + i % 2, count)) score[n][i] = -INF;
        }
        #pragma unroll
        for (int n = 0; n < 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) most[i / 2] = fmaxf(most[i / 2], score[n][i]);
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            float next = fmaxf(best[h], max_four(most[h]));
            least[h] = next == -INF ? 0.0f : __fmul_rn(next, unit[h]);
            keep[h] = best[h] == -INF ? 0.0f : power_of_two(__fsub_rn(__fmul_rn(best[h], unit[h]), least[h]));
            best[h] = next;
            total[h] = __fmul_rn(total[h], keep[h]);
        }
        copies_wait<0>();
        __syncthreads();
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 by = *(const float2 *)(v_unit + n * 8 + pair);
            by.x *= inverse, by.y *= inverse;
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                float a = power_of_two(__fsub_rn(__fmul_rn(score[n][2 * h], unit[h]), least[h]));
                float b = power_of_two(__fsub_rn(__fmul_rn(score[n][2 * h + 1], unit[h]), least[h]));
                total[h] += a + b;
                score[n][2 * h] = a * by.x, score[n][2 * h + 1] = b * by.y;
            }
        }
        u32 p[4][4], rest[4][4];
        #pragma unroll
        for (int k = 0; k < 4; k++)
            #pragma unroll
            for (int c = 0; c < 2; c++)
                #pragma unroll
                for (int h = 0; h < 2; h++) {
                    float a = score[2 * k + c][2 * h], b = score[2 * k + c][2 * h + 1];
                    p[k][c * 2 + h] = two_halves(a, b);
                    rest[k][c * 2 + h] = two_rests(a, b, p[k][c * 2 + h]);
                }
        if (t + 1 < to) {
            copy_halves<D>(keys, k_from, k_apart, op.k_width, base + TILE, count);
            copy_units(k_unit, k_units, base + TILE, count);
        }
        copies_end();
        #pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            float dot[2][4] = {};
            #pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 a[4], b[4], r = k * 16 + (lane & 15), at = values + r * ROW + (((n + lane / 16) ^ (r & TURN)) << 4);
                load_turned(a, at);
                load_turned(b, at + BYTES);
                mma_halves(dot[0], rest[k], a[0], a[1]);
                mma_halves(dot[1], rest[k], a[2], a[3]);
                mma_halves(dot[0], p[k], b[0], b[1]);
                mma_halves(dot[1], p[k], b[2], b[3]);
                mma_halves(dot[0], p[k], a[0], a[1]);
                mma_halves(dot[1], p[k], a[2], a[3]);
            }
            #pragma unroll
            for (int i = 0; i < 8; i++) out[n + i / 4][i % 4] = __fmaf_rn(out[n + i / 4][i % 4], keep[i % 4 / 2], dot[i / 4][i % 4]);
        }
    }
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = sum_four(total[h]);
        if (row[h] >= count) continue;
        bool live = s.flags[first + row[h]] & ROW_LIVE;
        float by = __fmul_rn(largest, 1.0f / 16384.0f);
        float *y = op.out + ((u64)(first + row[h]) * op.heads + head) * D;
        #pragma unroll
        for (int n = 0; n < D / 8; n++) {
            float a = out[n][2 * h] / sum, b = out[n][2 * h + 1] / sum;
            *(float2 *)(y + n * 8 + pair) = live ? make_float2(__fmul_rn(a, by), __fmul_rn(b, by)) : make_float2(0.0f, 0.0f);
        }
    }
#endif
}

// A head's columns of 64 rows, `[column][row]`; behind the end those of the last row.
template <int D> static __device__ __forceinline__ void load_across(float *to, const float *from, u32 width, u32 begin, u32 count) {
    u32 r = threadIdx.x % TILE;
    const float *row = from + (u64)min(begin + r, count - 1) * width;
    #pragma unroll
    for (u32 c = threadIdx.x / TILE * 4; c < D; c += 16) {
        float4 x = *(const float4 *)(row + c);
        to[c * PITCH + r] = x.x, to[(c + 1) * PITCH + r] = x.y, to[(c + 2) * PITCH + r] = x.z, to[(c + 3) * PITCH + r] = x.w;
    }
}

// A thread has four rows of four keys, and then of a sixteenth of the columns.
template <int D> static __device__ __forceinline__ void whole(const Step &s, const Whole &op) {
    const int C = D / 16, ACROSS = D > TILE ? D : TILE;
    extern __shared__ __align__(16) float space[];
    // Queries, keys and then the weights that they get, values.
    float *queries = space, *keys = queries + D * PITCH, *values = keys + ACROSS * PITCH;
    u32 head = blockIdx.x, seq = blockIdx.z, begin = blockIdx.y * TILE;
    if (seq >= rows_of(s, LEAD_SEQS) || begin >= s.row_count[seq]) return;
    u32 count = s.row_count[seq], first = s.first_row[seq], kv = head / (op.heads / op.kv_heads), from, to;
    if (op.parts && largest_unit(op, first, count, space) < INF) return;
    __syncthreads();
    tiles_seen(op, begin, count, &from, &to);
    u32 row4 = threadIdx.x / 16 * 4, key4 = threadIdx.x % 16 * 4, column = threadIdx.x % 16 * C;
    const float *k = op.k + (u64)first * op.k_width + kv * D, *v = op.v + (u64)first * op.v_width + kv * D;
    load_across<D>(queries, op.q + (u64)first * op.heads * D + head * D, op.heads * D, begin, count);
    float most[4], sum[4], keep[4], mix[4][C];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        most[i] = -INF, sum[i] = 0.0f;
        #pragma unroll
        for (int c = 0; c < C; c++) mix[i][c] = 0.0f;
    }
    for (u32 base = from * TILE; base < to * TILE; base += TILE) {
        __syncthreads();
        load_across<D>(keys, k, op.k_width, base, count);
        #pragma unroll
        for (u32 e = threadIdx.x; e < TILE * D / 4; e += 256) {
            u32 r = e / (D / 4), c = e % (D / 4) * 4;
            *(float4 *)(values + r * D + c) = *(const float4 *)(v + (u64)min(base + r, count - 1) * op.v_width + c);
        }
        __syncthreads();
        float score[4][4];
        #pragma unroll
        for (int i = 0; i < 4; i++)
            #pragma unroll
            for (int j = 0; j < 4; j++) score[i][j] = 0.0f;
        #pragma unroll 8
        for (int d = 0; d < D; d++) {
            float4 a = *(const float4 *)(queries + d * PITCH + row4), b = *(const float4 *)(keys + d * PITCH + key4);
            float x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
            #pragma unroll
            for (int i = 0; i < 4; i++)
                #pragma unroll
                for (int j = 0; j < 4; j++) score[i][j] = __fmaf_rn(x[i], y[j], score[i][j]);
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float best = -INF;
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                score[i][j] = sees(op, begin + row4 + i, base + key4 + j, count) ? score[i][j] * op.scale : -INF;
                best = fmaxf(best, score[i][j]);
            }
            for (int d = 1; d < 16; d <<= 1) best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, d));
            float next = fmaxf(most[i], best);
            keep[i] = most[i] == -INF ? 0.0f : expf(most[i] - next);
            #pragma unroll
            for (int j = 0; j < 4; j++) score[i][j] = score[i][j] == -INF ? 0.0f : expf(score[i][j] - next);
            float total = (score[i][0] + score[i][1]) + (score[i][2] + score[i][3]);
            for (int d = 1; d < 16; d <<= 1) total += __shfl_xor_sync(ALL_LANES, total, d);
            sum[i] = __fmaf_rn(sum[i], keep[i], total);
            most[i] = next;
            #pragma unroll
            for (int j = 0; j < 4; j++)
                if (!sees(op, begin + row4 + i, base + key4 + j, count)) score[i][j] = UNSEEN;
        }
        __syncthreads();
        #pragma unroll
        for (int j = 0; j < 4; j++)
            *(float4 *)(keys + (key4 + j) * PITCH + row4) = make_float4(score[0][j], score[1][j], score[2][j], score[3][j]);
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 4; i++)
            #pragma unroll
            for (int c = 0; c < C; c++) mix[i][c] = __fmul_rn(mix[i][c], keep[i]);
        #pragma unroll 8
        for (int key = 0; key < TILE; key++) {
            float4 a = *(const float4 *)(keys + key * PITCH + row4);
            float w[4] = {a.x, a.y, a.z, a.w}, y[C];
            #pragma unroll
            for (int c = 0; c < C; c++) y[c] = values[key * D + column + c];
            #pragma unroll
            for (int i = 0; i < 4; i++)
                #pragma unroll
                for (int c = 0; c < C; c++) mix[i][c] = w[i] == UNSEEN ? mix[i][c] : __fmaf_rn(w[i], y[c], mix[i][c]);
        }
    }
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 row = begin + row4 + i;
        if (row >= count) break;
        // Scores of −∞ alone leave nothing that is a number.
        float inverse = most[i] == -INF ? __int_as_float(0x7fffffff) : 1.0f / sum[i];
        bool live = s.flags[first + row] & ROW_LIVE;
        float *out = op.out + ((u64)(first + row) * op.heads + head) * D + column;
        #pragma unroll
        for (int c = 0; c < C; c++) out[c] = live ? mix[i][c] * inverse : 0.0f;
    }
}

#define WHOLE(D)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) whole_##D(Step s, Whole op) { whole<D>(s, op); }               \
    extern "C" __global__ void __launch_bounds__(128) whole16_##D(Step s, Whole op) { whole16<D>(s, op); }
WHOLE(32) WHOLE(64) WHOLE(128)
