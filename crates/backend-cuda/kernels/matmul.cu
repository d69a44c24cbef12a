// Table look-ups and products with weights of any format.
//
// A warp computes an output of up to four rows: lane l takes the groups of 32 elements l, l + 32, …, and lanes are
// summed in pairs. So the order of a row's sum follows from the number of columns alone.
#include "formats.cuh"

// Rows of one format. Where scales lie apart, `data` holds blocks without them.
struct Segment {
    const u8 *data;
    u64 row_bytes;
    const u8 *scales;
    u64 scale_bytes;
    u32 rows;
    u32 dtype;
};

enum { INDEX_TOKEN, INDEX_POSITION, INDEX_FIXED };

struct Gather {
    const Segment *segments;
    u32 n_segments, width, index, offset, table_rows, lead;
    const float *embeds;
    float *out;
};

static __device__ void any_group(u32 dtype, const u8 *row, u32 g, u32 k, float *out) {
    switch (dtype) {
#define CASE(F) case T_##F: return row_group<T_##F>(row, g, k, out);
        EACH_FORMAT(CASE)
#undef CASE
    }
}

// Bytes of a block in front of its scale, and of the scale.
static __device__ void scale_place(u32 dtype, u32 *bytes, u32 *at, u32 *len) {
    *at = 0, *len = 2;
    switch (dtype) {
    case T_Q4_0: case T_IQ4_NL: *bytes = 18; break;
    case T_Q8_0: *bytes = 34; break;
    case T_Q6_K: *bytes = 210, *at = 208; break;
    default: *bytes = 17, *len = 1;
    }
}

// Group `g` of a row whose scales lie apart: the block is put together first.
static __device__ void split_group(const Segment &p, u32 at, u32 g, float *out) {
    u32 bytes, place, len, per_block = p.dtype == T_Q6_K ? 8 : 1, block = g / per_block;
    scale_place(p.dtype, &bytes, &place, &len);
    u8 whole[212];
    const u8 *body = p.data + at * p.row_bytes + (u64)block * (bytes - len);
    const u8 *scale = p.scales + at * p.scale_bytes + (u64)block * len;
    for (u32 i = 0; i < bytes; i++)
        whole[i] = i >= place && i < place + len ? scale[i - place] : body[i < place ? i : i - len];
    any_group(p.dtype, whole, g % per_block, (g % per_block + 1) * 32, out);
}

// A warp for 32 groups of a row, of which each lane has one: what they are is written group by group.
KERNEL gather(Step s, Gather op) {
    __shared__ float groups[32][33];
    u32 i = blockIdx.x, lane = threadIdx.x, first = blockIdx.y * 1024, end = min(op.width, first + 1024);
    if (i >= rows_of(s, op.lead)) return;
    u32 row = step_row(s, op.lead, i);
    float *out = op.out + (u64)i * op.width;
    if (op.embeds && (s.flags[row] & ROW_EMBEDS)) {
        for (u32 c = first + lane; c < end; c += 32) out[c] = op.embeds[(u64)i * op.width + c];
        return;
    }
    u32 at = op.index == INDEX_TOKEN ? s.token[row] : op.index == INDEX_POSITION ? s.pos[row * 4] + op.offset : op.offset;
    if (at >= op.table_rows) {
        if (lane == 0 && first == 0 && (s.flags[row] & ROW_LIVE)) no_row(s, at, op.table_rows);
        return;
    }
    const Segment *part = op.segments;
    while (at >= part->rows) at -= part->rows, part++;
    const u8 *data = part->data + at * part->row_bytes;
    u32 g = first / 32 + lane;
    if (g * 32 < end) {
        float x[32];
        if (part->scales) split_group(*part, at, g, x);
        else any_group(part->dtype, data, g, op.width, x);
        for (u32 e = 0; e < 32 && g * 32 + e < end; e++) groups[lane][e] = x[e];
    }
    __syncwarp();
    for (u32 c = first + lane; c < end; c += 32) out[c] = groups[(c - first) / 32][lane];
}

struct Product {
    const u8 *w;
    u64 row_bytes;
    u64 part_bytes;     // from a head's or an expert's rows to the next one's
    const float *x;
    float *y;
    const float *scale; // by output, or by expert
    const float *bias;
    const i32 *ids;     // experts of routed rows
    u32 lead, n, k;
    u32 x_stride;       // columns of a row of x
    u32 x_part;         // columns from a head's or a routed row's input to the next one's
    u32 y_stride, y_part, y_first;
    u32 scale_len;
    u32 bias_part;
    u32 top_k;          // routed rows of a row; 0 without experts
    u32 tile;           // rows of a warp
};

#define TILE 4

template <int F> static __device__ __forceinline__ void product(const Step &s, const Product &op) {
    u32 lane = threadIdx.x & 31, o = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), part = blockIdx.z;
    u32 count = rows_of(s, op.lead) * (op.top_k ? op.top_k : 1), first = blockIdx.y * op.tile;
    if (o >= op.n || first >= count) return;
    u32 rows = min(count - first, op.tile);
    u32 row = first, y_part = part;
    if (op.top_k) row = first / op.top_k, y_part = first % op.top_k, part = (u32)op.ids[first];
    const u8 *w = op.w + part * op.part_bytes + o * op.row_bytes;
    const float *x = op.x + (u64)row * op.x_stride + (u64)y_part * op.x_part;
    bool aligned = ((op.x_stride | op.x_part | op.k) & 3) == 0;
    float sum[TILE] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 g = lane; g * 32 < op.k; g += 32) {
        float v[32];
        row_group<F>(w, g, op.k, v);
        if (aligned && (g + 1) * 32 <= op.k) {
            #pragma unroll
            for (u32 t = 0; t < TILE; t++) {
                if (t >= rows) break;
                const float4 *from = (const float4 *)(x + (u64)t * op.x_stride + g * 32);
                #pragma unroll
                for (int i = 0; i < 8; i++) {
                    float4 f = from[i];
                    sum[t] = __fmaf_rn(v[4 * i], f.x, sum[t]);
                    sum[t] = __fmaf_rn(v[4 * i + 1], f.y, sum[t]);
                    sum[t] = __fmaf_rn(v[4 * i + 2], f.z, sum[t]);
                    sum[t] = __fmaf_rn(v[4 * i + 3], f.w, sum[t]);
                }
            }
        } else {
            for (u32 t = 0; t < TILE; t++) {
                if (t >= rows) break;
                const float *from = x + (u64)t * op.x_stride + g * 32;
                float part_sum = t == 0 ? sum[0] : t == 1 ? sum[1] : t == 2 ? sum[2] : sum[3];
                #pragma unroll
                for (int i = 0; i < 32; i++)
                    if (g * 32 + i < op.k) part_sum = __fmaf_rn(v[i], from[i], part_sum);
                if (t == 0) sum[0] = part_sum;
                if (t == 1) sum[1] = part_sum;
                if (t == 2) sum[2] = part_sum;
                if (t == 3) sum[3] = part_sum;
            }
        }
    }
    #pragma unroll
    for (u32 t = 0; t < TILE; t++) {
        float y = sum_lanes(sum[t]);
        if (lane == 0 && t < rows) {
            if (op.scale) y = __fmul_rn(y, op.scale[op.top_k ? part : (op.y_first + o) % op.scale_len]);
            if (op.bias) y = __fadd_rn(y, op.bias[(op.top_k ? part * op.bias_part : 0) + op.y_first + o]);
            op.y[(u64)(row + t) * op.y_stride + (u64)y_part * op.y_part + op.y_first + o] = y;
        }
    }
}

#define MATMUL(F) KERNEL matmul_##F(Step s, Product op) { product<T_##F>(s, op); }
EACH_FORMAT(MATMUL)
