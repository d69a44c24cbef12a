// Attention of a sequence's rows to those around them or to all, as encoders have it: nothing is cached.
//
// A block takes 64 rows of a head, and goes through the keys 64 at a time, cut at multiples of 64 from the sequence's beginning.
// Keys that a row does not see change nothing of its sums, so its bits are the same in any tile.
//
// On tensor cores queries, keys, values and the weights of the softmax go in two halves each, under a power of two that a row
// shares, so that little is rounded. The weights of 64 keys are summed up from zero there, then added. Where a key or value of the
// sequence is infinite or no number, its rows are summed without tensor cores: by another kernel, on 9.0 in the same launch.
#include "async.cuh"
#include "cut.cuh"

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
    u32 left;       // on 9.0 whether a product left the heads of prompts' rows in halves
    u32 pad;
    Cut cut;        // on 9.0 rows of prompts go there in halves, if it has parts
};

// Tiles of keys that so many rows from `begin` see, up to but without the second.
static __device__ __forceinline__ void tiles_seen(const Whole &op, u32 begin, u32 rows, u32 count, u32 *from, u32 *to) {
    *from = begin > op.reach ? (begin - op.reach) / TILE : 0;
    u32 last = min(begin + rows, count) - 1;
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
    tiles_seen(op, begin, TILE, count, &from, &to);
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

#ifdef HAS_WGMMA
#define WIDE (2 * TILE)

// Queries, keys or values: their rows in halves as products take them, every head under a power of two of its own.
static __device__ __forceinline__ Cut wide_cut(const Whole &op, u32 which) {
    u32 widths[3] = {op.heads * op.dim, op.k_width, op.v_width}, width = widths[which], before = 0;
    for (u32 i = 0; i < which; i++) before += widths[i];
    u64 rows = (op.rows + 127) / 128 * 128;
    return {which == 0 ? op.q : which == 1 ? op.k : op.v, op.parts + 2 * rows * before, op.units + rows * (before / 64), rows * width, width, T_F16};
}

// A block for 64 rows of 64 columns. Rows behind the last one are zeros.
KERNEL whole_cut_wide(Step s, Whole op) {
    const int EACH = TILE / 16;
    wait_before();
    Cut cut = wide_cut(op, blockIdx.z);
    u32 rows = rows_of(s, LEAD_ROWS), row = blockIdx.x * TILE + threadIdx.x / 16, c = blockIdx.y * 64 + threadIdx.x % 16 * 4;
    if (blockIdx.x * TILE >= rows || blockIdx.y * 64 >= cut.width) return;
    float4 v[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; i++)
        v[i] = row + i * 16 < rows ? *(const float4 *)(cut.x + (u64)(row + i * 16) * cut.width + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        u32 own = row + i * 16;
        bool there = op.left && own < rows && (s.flags[own] & ROW_PROMPT);
        cut_head(cut, own, there ? NO_COLUMN : c, v[i]);
    }
}

#endif

// Heads as they are, or in halves as `cut_head` leaves them.
struct FloatHeads {
    const float *x;
    u32 width, column;
    __device__ __forceinline__ float4 four(u32 row, u32 c) const { return *(const float4 *)(x + (u64)row * width + column + c); }
};
#ifdef HAS_WGMMA
struct HalfHeads {
    Cut cut;
    u32 head;
    __device__ __forceinline__ float4 four(u32 row, u32 c) const {
        const u8 *at = (const u8 *)cut.parts + tile_of(row, cut.width) + head * 2 * TILE_BYTES + swizzled(row % 64, c / 8) + c % 8 * 2;
        uint2 high = *(const uint2 *)at, low = *(const uint2 *)(at + cut.apart * 2);
        float unit = fabsf(cut.units[unit_of(row, cut.width) + head * 128]);
        auto of = [&](u32 a, u32 b) { return (half_to_float((u16)a) + half_to_float((u16)b)) * unit; };
        return make_float4(of(high.x, low.x), of(high.x >> 16, low.x >> 16), of(high.y, low.y), of(high.y >> 16, low.y >> 16));
    }
};
#endif

// A head's columns of 64 rows, `[column][row]`; behind the end those of the last row.
template <int D, class Heads> static __device__ __forceinline__ void load_across(float *to, const Heads &from, u32 first, u32 begin, u32 count) {
    u32 r = threadIdx.x % TILE, row = first + min(begin + r, count - 1);
    #pragma unroll
    for (u32 c = threadIdx.x / TILE * 4; c < D; c += 16) {
        float4 x = from.four(row, c);
        to[c * PITCH + r] = x.x, to[(c + 1) * PITCH + r] = x.y, to[(c + 2) * PITCH + r] = x.z, to[(c + 3) * PITCH + r] = x.w;
    }
}

// A block's 64 rows from `begin` on: a thread has four rows of four keys, and then of a sixteenth of the columns.
template <int D, class Heads>
static __device__ __forceinline__ void attend(const Step &s, const Whole &op, u32 begin, const Heads &q, const Heads &k, const Heads &v, float *space) {
    const int C = D / 16, ACROSS = D > TILE ? D : TILE;
    // Queries, keys and then the weights that they get, values.
    float *queries = space, *keys = queries + D * PITCH, *values = keys + ACROSS * PITCH;
    u32 head = blockIdx.x, seq = blockIdx.z, count = s.row_count[seq], first = s.first_row[seq], from, to;
    __syncthreads();
    tiles_seen(op, begin, TILE, count, &from, &to);
    u32 row4 = threadIdx.x / 16 * 4, key4 = threadIdx.x % 16 * 4, column = threadIdx.x % 16 * C;
    load_across<D>(queries, q, first, begin, count);
    float most[4], sum[4], keep[4], mix[4][C];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        most[i] = -INF, sum[i] = 0.0f;
        #pragma unroll
        for (int c = 0; c < C; c++) mix[i][c] = 0.0f;
    }
    for (u32 base = from * TILE; base < to * TILE; base += TILE) {
        __syncthreads();
        load_across<D>(keys, k, first, base, count);
        #pragma unroll
        for (u32 e = threadIdx.x; e < TILE * D / 4; e += 256) {
            u32 r = e / (D / 4), c = e % (D / 4) * 4;
            *(float4 *)(values + r * D + c) = v.four(first + min(base + r, count - 1), c);
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
#ifdef HAS_WGMMA
    #pragma unroll
    for (int i = 0; D == 64 && op.cut.parts && i < 4; i++) {
        u32 row = first + min(begin + row4 + i, count - 1);
        float4 y = *(const float4 *)(op.out + ((u64)row * op.heads + head) * D + column);
        bool own = begin + row4 + i < count && (s.flags[row] & ROW_PROMPT);
        cut_columns<T_F16>(op.cut, row, own ? head * D + column : op.cut.width, y);
    }
#endif
}

#ifdef HAS_WGMMA
// Two times 64 rows without tensor cores: seldom needed, so it takes no registers from what is.
static __device__ __noinline__ void attend_halves(Step s, Whole op, float *space) {
    u32 head = blockIdx.x, kv = head / (op.heads / op.kv_heads), begin = blockIdx.y * WIDE, end = min(begin + WIDE, s.row_count[blockIdx.z]);
    HalfHeads q = {wide_cut(op, 0), head}, k = {wide_cut(op, 1), kv}, v = {wide_cut(op, 2), kv};
    for (; begin < end; begin += TILE) attend<64>(s, op, begin, q, k, v, space);
}

// Two times 64 rows of a head of 64 columns, each by four warps, which share keys and values.
static __device__ __forceinline__ void whole_wide(const Step &s, const Whole &op) {
    const int D = 64, BYTES = TILE * D * 2, THREADS = 256;
    extern __shared__ __align__(1024) u8 wide_tiles[];
    __shared__ float shared[33];
    __shared__ __align__(16) float k_unit[2][TILE], v_unit[2][TILE];
    __shared__ __align__(8) u64 bars[2];
    wait_before();
    u32 head = blockIdx.x, seq = blockIdx.z, begin = blockIdx.y * WIDE, kv = head / (op.heads / op.kv_heads);
    if (seq >= rows_of(s, LEAD_SEQS) || begin >= s.row_count[seq]) return;
    u32 count = s.row_count[seq], first = s.first_row[seq], lane = threadIdx.x & 31, warp = one_for_all(threadIdx.x >> 5), pair = lane % 4 * 2;
    Cut q_cut = wide_cut(op, 0), k_cut = wide_cut(op, 1), v_cut = wide_cut(op, 2);
    float largest = 0.0f;
    for (u32 r = threadIdx.x; r < count; r += THREADS) {
        float k = k_cut.units[unit_of(first + r, op.k_width) + kv * 128], v = v_cut.units[unit_of(first + r, op.v_width) + kv * 128];
        largest = fmaxf(largest, k < 0.0f || v < 0.0f ? INF : v);
    }
    largest = max_block(largest, shared);
    if (largest == INF) {
        attend_halves(s, op, (float *)wide_tiles);
        return;
    }
    float inverse = largest > 0.0f ? 16384.0f / largest : 0.0f;

    // Tiles of a sequence that lie as they were cut are copied in one piece; else row by row, with zeros behind the end.
    bool aligned = first % TILE == 0 && (count % TILE == 0 || first + count == rows_of(s, LEAD_ROWS));
    u32 queries = shared_at(wide_tiles), ring = queries + 4 * BYTES, full = shared_at(bars), from, to;
    tiles_seen(op, begin, WIDE, count, &from, &to);
    auto copy_tile = [&](const Cut &cut, u32 at, u32 column, u32 t, u32 bar) {
        const u8 *parts = (const u8 *)cut.parts + column * 2 * TILE_BYTES;
        if (aligned) {
            parts += tile_of(first + t * TILE, cut.width);
            bulk_copy(at, parts, BYTES, bar);
            bulk_copy(at + BYTES, parts + cut.apart * 2, BYTES, bar);
            return;
        }
        u32 piece = threadIdx.x % 8;
        #pragma unroll
        for (u32 r = threadIdx.x / 8; r < TILE; r += THREADS / 8) {
            u32 in = t * TILE + r, row = first + min(in, count - 1);
            const u8 *x = parts + tile_of(row, cut.width) + swizzled(row % 64, piece);
            copy16(at + swizzled(r, piece), x, in < count);
            copy16(at + BYTES + swizzled(r, piece), x + cut.apart * 2, in < count);
        }
    };
    auto copy_own_units = [&](const Cut &cut, float *to, u32 column, u32 t, u32 bar) {
        const float *units = cut.units + column * 128;
        if (aligned) bulk_copy(shared_at(to), units + unit_of(first + t * TILE, cut.width), TILE * 4, bar);
        else if (threadIdx.x < TILE) copy4(shared_at(to + threadIdx.x), units + unit_of(first + min(t * TILE + threadIdx.x, count - 1), cut.width));
    };
    // Keys and values, and in the beginning queries.
    auto fetch = [&](u32 t, u32 bytes) {
        u32 at = ring + t % 2 * 4 * BYTES, bar = full + t % 2 * 8;
        if (!aligned || threadIdx.x == 0) {
            if (aligned) bar_expect(bar, 4 * BYTES + 2 * TILE * 4 + bytes);
            if (bytes) copy_tile(q_cut, queries, head, begin / TILE, bar), copy_tile(q_cut, queries + 2 * BYTES, head, begin / TILE + 1, bar);
            copy_tile(k_cut, at, kv, t, bar);
            copy_own_units(k_cut, k_unit[t % 2], kv, t, bar);
            copy_tile(v_cut, at + 2 * BYTES, kv, t, bar);
            copy_own_units(v_cut, v_unit[t % 2], kv, t, bar);
        }
        if (!aligned) copies_arrive(bar);
    };
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < 2; i++) bar_init(full + 8 * i, aligned ? 1 : THREADS);
        bars_made();
    }
    __syncthreads();
    fetch(from, 4 * BYTES);

    u32 row[2];
    float unit[2], best[2] = {-INF, -INF}, least[2] = {0.0f, 0.0f}, total[2] = {0.0f, 0.0f}, out[D / 8][4] = {};
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        row[h] = begin + warp * 16 + h * 8 + lane / 4;
        float own = fabsf(q_cut.units[unit_of(first + min(row[h], count - 1), q_cut.width) + head * 128]);
        // A row of zeros has scores of zero in any unit.
        unit[h] = __fmul_rn(__fmul_rn(own > 0.0f ? own : 1.0f, op.scale), 1.44269504f);
    }
    u64 q = tile_at(queries + warp / 4 * 2 * BYTES);
    bool idle = begin + warp / 4 * TILE >= count;
    #pragma unroll 1
    for (u32 t = from; t < to; t++) {
        u32 base = t * TILE, at = one_for_all(ring + t % 2 * 4 * BYTES);
        bar_wait(full + t % 2 * 8, (t - from) / 2 & 1);
        if (!aligned) tiles_written();
        __syncthreads();
        if (t + 1 < to) fetch(t + 1, 0);
        if (idle) continue;
        float score[8][4];
        u64 k = tile_at(at), v = tile_at(at + 2 * BYTES);
        wgmma_begins();
        #pragma unroll
        for (int i = 0; i < 4; i++) wgmma<false>(score, further(q, BYTES / 16 + 2 * i), further(k, 2 * i), i > 0);
        #pragma unroll
        for (int i = 0; i < 4; i++) wgmma<false>(score, further(q, 2 * i), further(k, BYTES / 16 + 2 * i), 1);
        #pragma unroll
        for (int i = 0; i < 4; i++) wgmma<false>(score, further(q, 2 * i), further(k, 2 * i), 1);
        wgmma_commits();
        wgmma_waits<0>();
        wgmma_made(score);
        // Scores before the row's unit, which is positive: the largest of them is the largest with it.
        float keep[2], most[2] = {-INF, -INF};
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 by = *(const float2 *)(k_unit[t % 2] + n * 8 + pair);
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
            float next = fmaxf(best[h], max_four(most[h])), low = next == -INF ? 0.0f : __fmul_rn(next, unit[h]);
            keep[h] = best[h] == -INF ? 0.0f : power_of_two(__fsub_rn(least[h], low));
            best[h] = next, least[h] = low;
            total[h] = __fmul_rn(total[h], keep[h]);
        }
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 by = *(const float2 *)(v_unit[t % 2] + n * 8 + pair);
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
        for (int i = 0; i < 4; i++)
            #pragma unroll
            for (int c = 0; c < 2; c++)
                #pragma unroll
                for (int h = 0; h < 2; h++) {
                    float a = score[2 * i + c][2 * h], b = score[2 * i + c][2 * h + 1];
                    p[i][c * 2 + h] = two_halves(a, b);
                    rest[i][c * 2 + h] = two_rests(a, b, p[i][c * 2 + h]);
                }
        float dot[D / 8][4];
        wgmma_begins();
        #pragma unroll
        for (int i = 0; i < 4; i++) wgmma_turned(dot, rest[i], further(v, i * 128), i > 0);
        #pragma unroll
        for (int i = 0; i < 4; i++) wgmma_turned(dot, p[i], further(v, BYTES / 16 + i * 128), 1);
        #pragma unroll
        for (int i = 0; i < 4; i++) wgmma_turned(dot, p[i], further(v, i * 128), 1);
        wgmma_commits();
        wgmma_waits<0>();
        wgmma_made(dot);
        #pragma unroll
        for (int n = 0; n < D / 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) out[n][i] = __fmaf_rn(out[n][i], keep[i / 2], dot[n][i]);
    }
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = sum_four(total[h]), by = __fmul_rn(largest, 1.0f / 16384.0f), most = 0.0f;
        u32 in = first + min(row[h], count - 1), flags = s.flags[in];
        bool cut = op.cut.parts && (flags & ROW_PROMPT);
        #pragma unroll
        for (int n = 0; n < D / 8; n++)
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                float &y = out[n][2 * h + i];
                y = flags & ROW_LIVE ? __fmul_rn(y / sum, by) : 0.0f;
                most = fmaxf(most, fabsf(y));
            }
        Power power = power_of(max_four(most));
        u64 to = tile_of(in, op.cut.width) + head * 2 * TILE_BYTES;
        if (cut && row[h] < count && lane % 4 == 0) op.cut.units[unit_of(in, op.cut.width) + head * 128] = power.down;
        #pragma unroll
        for (int n = 0; n < D / 8; n++) {
            float a = out[n][2 * h], b = out[n][2 * h + 1];
            u32 parts[2];
            cut_two<T_F16>(a * power.up, b * power.up, parts);
            if (row[h] >= count) continue;
            if (!cut) *(float2 *)(op.out + ((u64)in * op.heads + head) * D + n * 8 + pair) = make_float2(a, b);
            #pragma unroll
            for (int p = 0; p < 2; p++)
                if (cut) *(u32 *)((u8 *)(op.cut.parts + p * op.cut.apart) + to + swizzled(in % 64, n) + pair * 2) = parts[p];
        }
    }
}
#endif

// A block for 64 rows of a head.
template <int D> static __device__ __forceinline__ void whole(const Step &s, const Whole &op) {
    extern __shared__ __align__(16) float space[];
    u32 head = blockIdx.x, seq = blockIdx.z, begin = blockIdx.y * TILE, kv = head / (op.heads / op.kv_heads);
    if (seq >= rows_of(s, LEAD_SEQS) || begin >= s.row_count[seq]) return;
    if (op.parts && largest_unit(op, s.first_row[seq], s.row_count[seq], space) < INF) return;
    FloatHeads q = {op.q, op.heads * D, head * D}, k = {op.k, op.k_width, kv * D}, v = {op.v, op.v_width, kv * D};
    attend<D>(s, op, begin, q, k, v, space);
}

#define WHOLE(D) extern "C" __global__ void __launch_bounds__(256) whole_##D(Step s, Whole op) { whole<D>(s, op); }
#define WHOLE16(D) extern "C" __global__ void __launch_bounds__(128) whole16_##D(Step s, Whole op) { whole16<D>(s, op); }
WHOLE(32) WHOLE(128)
WHOLE16(32) WHOLE16(128)
#ifdef HAS_WGMMA
extern "C" __global__ void __launch_bounds__(256, 2) whole16_64(Step s, Whole op) { whole_wide(s, op); }
#else
WHOLE(64) WHOLE16(64)
#endif
