// Convolutions, shifts and recurrences along a sequence. A sequence that does not run keeps its state.
#include "cache.cuh"

#define MOST_TAPS 16

// A thread for each channel of a sequence; taps lie oldest first.
KERNEL conv(Step s, Cache c, u32 width, u32 taps, const float *w, const float *b, const float *x, float *y) {
    u32 ch = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y;
    if (seq >= rows_of(s, LEAD_SEQS) || ch >= width || s.row_count[seq] == 0) return;
    u32 n = s.row_count[seq], tail = taps - 1;
    States st = states_of(s, c, seq);
    const float *before = state_before(st, 0);
    x += (u64)s.first_row[seq] * width + ch;
    y += (u64)s.first_row[seq] * width + ch;
    float line[MOST_TAPS], weight[MOST_TAPS];
    for (u32 i = 0; i < tail; i++) line[i] = before ? before[(u64)i * width + ch] : 0.0f;
    for (u32 i = 0; i < taps; i++) weight[i] = w[(u64)ch * taps + i];
    float bias = b ? b[ch] : 0.0f;
    for (u32 r = 0; r < n; r++) {
        line[tail] = x[(u64)r * width];
        float sum = bias;
        for (u32 i = 0; i < taps; i++) sum = __fmaf_rn(weight[i], line[i], sum);
        y[(u64)r * width] = sum;
        for (u32 i = 0; i < tail; i++) line[i] = line[i + 1];
        if (!st.keeps && r + 1 < n) continue;
        float *after = state_after(st, r);
        for (u32 i = 0; i < tail; i++) after[(u64)i * width + ch] = line[i];
    }
}

// Taps centred over the step's own rows.
KERNEL conv_centred(Step s, u32 width, u32 taps, const float *w, const float *b, const float *x, float *y) {
    u32 ch = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (row >= rows_of(s, LEAD_ROWS) || ch >= width) return;
    u32 seq = s.seq[row], first = s.first_row[seq], n = s.row_count[seq], before = (taps - 1) / 2;
    if (n == 0) return;
    float sum = b ? b[ch] : 0.0f;
    for (u32 i = 0; i < taps; i++) {
        i32 r = (i32)(row - first + i) - (i32)before;
        if (r >= 0 && r < (i32)n) sum = __fmaf_rn(w[(u64)ch * taps + i], x[(u64)(first + r) * width + ch], sum);
    }
    y[(u64)row * width + ch] = sum;
}

struct Conv1d {
    const float *w, *b, *x;
    float *y;
    u32 n, channels, taps, stride, padding, frames; // frames: of a row of x
    u32 left;       // whether rows of prompts are left to products
    u32 pad;
};

#define CONV_TILE 128
#define CONV_STEP 16

// Frames of a sequence's rows, zeros around them: a block for 128 outputs of 128 frames, a thread for eight of eight. What a
// frame is made of lies in one piece, as do an output's weights.
KERNEL conv1d(Step s, Conv1d op) {
    __shared__ __align__(16) float frames[CONV_STEP][CONV_TILE + 4], weights[CONV_STEP][CONV_TILE + 4];
    u32 per_row = op.frames / op.stride, total = rows_of(s, LEAD_ROWS) * per_row, f0 = blockIdx.y * CONV_TILE, n0 = blockIdx.x * CONV_TILE;
    if (f0 >= total) return;
    u32 r = threadIdx.x / 2, piece = threadIdx.x % 2 * 8, own = min(f0 + r, total - 1), row = own / per_row, columns = op.taps * op.channels;
    u32 seq = s.seq[row], first = s.first_row[seq];
    i32 start = ((i32)(own - first * per_row) * (i32)op.stride - (i32)op.padding) * (i32)op.channels;
    i32 end = (i32)(s.row_count[seq] * op.frames * op.channels);
    const float *x = op.x + (u64)first * op.frames * op.channels, *w = op.w + (u64)min(n0 + r, op.n - 1) * columns;
    // Four channels are of one frame then.
    bool fours = op.channels % 4 == 0;
    float next_x[8], next_w[8], acc[8][8] = {};
    auto fetch = [&](u32 k) {
        #pragma unroll
        for (u32 i = 0; fours && i < 8; i += 4) {
            u32 c = k + piece + i;
            i32 at = start + (i32)c;
            const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float4 a = c < columns && at >= 0 && at < end ? *(const float4 *)(x + at) : none, b = c < columns ? *(const float4 *)(w + c) : none;
            next_x[i] = a.x, next_x[i + 1] = a.y, next_x[i + 2] = a.z, next_x[i + 3] = a.w;
            next_w[i] = b.x, next_w[i + 1] = b.y, next_w[i + 2] = b.z, next_w[i + 3] = b.w;
        }
        #pragma unroll
        for (u32 i = 0; !fours && i < 8; i++) {
            u32 c = k + piece + i;
            i32 at = start + (i32)c;
            next_x[i] = c < columns && at >= 0 && at < end ? x[at] : 0.0f;
            next_w[i] = c < columns ? w[c] : 0.0f;
        }
    };
    fetch(0);
    // A thread has two times four frames and two times four outputs.
    u32 row4 = threadIdx.x / 16 * 4, out4 = threadIdx.x % 16 * 4;
    for (u32 k = 0; k < columns; k += CONV_STEP) {
        __syncthreads();
        #pragma unroll
        for (u32 i = 0; i < 8; i++) frames[piece + i][r] = next_x[i], weights[piece + i][r] = next_w[i];
        __syncthreads();
        fetch(k + CONV_STEP);
        float dot[8][8] = {};
        #pragma unroll
        for (u32 c = 0; c < CONV_STEP; c++) {
            float f[8], v[8];
            #pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float4 a = *(const float4 *)&frames[c][row4 + i * 64], b = *(const float4 *)&weights[c][out4 + i * 64];
                f[4 * i] = a.x, f[4 * i + 1] = a.y, f[4 * i + 2] = a.z, f[4 * i + 3] = a.w;
                v[4 * i] = b.x, v[4 * i + 1] = b.y, v[4 * i + 2] = b.z, v[4 * i + 3] = b.w;
            }
            #pragma unroll
            for (int i = 0; i < 8; i++)
                #pragma unroll
                for (int j = 0; j < 8; j++) dot[i][j] = __fmaf_rn(v[j], f[i], dot[i][j]);
        }
        #pragma unroll
        for (int i = 0; i < 64; i++) acc[i / 8][i % 8] += dot[i / 8][i % 8];
    }
    #pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 frame = f0 + row4 + i / 4 * 64 + i % 4;
        if (frame >= total || s.row_count[s.seq[frame / per_row]] == 0) continue;
        if (op.left && (s.flags[frame / per_row] & ROW_PROMPT)) continue;
        #pragma unroll
        for (u32 j = 0; j < 8; j++) {
            u32 n = n0 + out4 + j / 4 * 64 + j % 4;
            if (n < op.n) op.y[(u64)frame * op.n + n] = op.b ? acc[i][j] + op.b[n] : acc[i][j];
        }
    }
}

KERNEL shift(Step s, Cache c, u32 width, const float *x, float *y) {
    u32 ch = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y;
    if (seq >= rows_of(s, LEAD_SEQS) || ch >= width || s.row_count[seq] == 0) return;
    States st = states_of(s, c, seq);
    const float *first = state_before(st, 0);
    float before = first ? first[ch] : 0.0f;
    u32 n = s.row_count[seq];
    for (u32 j = 0; j < n; j++) {
        u64 at = (u64)(s.first_row[seq] + j) * width + ch;
        y[at] = before;
        before = x[at];
        if (st.keeps || j + 1 == n) state_after(st, j)[ch] = before;
    }
}

enum { SCAN_MAMBA1, SCAN_MAMBA2, SCAN_WKV6, SCAN_GLA, SCAN_WKV7, SCAN_DELTA, SCAN_DECAY };

struct Scan {
    Cache cache;
    const float *in[6];
    float *out;
    const float *a, *d, *bias; // first weights; slopes in `a`
    u32 kind;
    u32 width;      // columns of the output
    u32 heads, k_heads, n, p;  // n: state columns or columns of a key head; p: columns of a value head
    u32 groups, tiled, wide_decay;
    float scale;
};

// States whose rows are an output's own: a warp for each, lanes along the state's columns.
KERNEL scan_rows(Step s, Scan op) {
    u32 i = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31, seq = blockIdx.y;
    if (seq >= rows_of(s, LEAD_SEQS) || i >= op.width || s.row_count[seq] == 0) return;
    u32 n = op.n, first = s.first_row[seq], end = first + s.row_count[seq];
    States st = states_of(s, op.cache, seq);
    u32 head = op.kind == SCAN_MAMBA1 ? i : i / op.p;
    for (u32 row = first; row < end; row++) {
        const float *from = state_before(st, row - first);
        float *state = state_after(st, row - first) + (u64)i * n;
        if (from) from += (u64)i * n;
        float y = 0.0f;
        if (op.kind == SCAN_WKV7) {
            u64 at = (u64)row * op.width + head * n;
            const float *r = op.in[0] + at, *w = op.in[1] + at, *k = op.in[2] + at;
            const float *kappa = op.in[4] + at, *rate = op.in[5] + at;
            float v = op.in[3][(u64)row * op.width + i], removed = 0.0f;
            for (u32 j = lane; j < n; j += 32) removed -= (from ? from[j] : 0.0f) * kappa[j];
            removed = sum_lanes(removed);
            for (u32 j = lane; j < n; j += 32) {
                float x = w[j] * (from ? from[j] : 0.0f) + v * k[j] + removed * kappa[j] * rate[j];
                state[j] = x;
                y += x * r[j];
            }
            y = sum_lanes(y);
        } else {
            bool one = op.kind == SCAN_MAMBA1;
            u32 wide = one ? n : op.groups * n, group = one ? 0 : head / (op.heads / op.groups) * n;
            u32 dts = one ? op.width : op.heads;
            float x = op.in[0][(u64)row * op.width + i];
            float delta = op.in[1][(u64)row * dts + head];
            if (op.bias) delta += op.bias[head];
            delta = softplus(delta);
            const float *b = op.in[2] + (u64)row * wide + group, *c = op.in[3] + (u64)row * wide + group;
            float keep = one ? 0.0f : expf(delta * op.a[head]);
            for (u32 j = lane; j < n; j += 32) {
                if (one) keep = expf(delta * op.a[(u64)i * n + j]);
                float z = keep * (from ? from[j] : 0.0f) + delta * x * b[j];
                state[j] = z;
                y += z * c[j];
            }
            y = sum_lanes(y) + op.d[head] * x;
        }
        if (lane == 0) op.out[(u64)row * op.width + i] = y;
    }
}

// States whose columns are an output's own: a thread for each, over the rows of the state.
KERNEL scan_columns(Step s, Scan op) {
    u32 o = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y;
    if (seq >= rows_of(s, LEAD_SEQS) || o >= op.width || s.row_count[seq] == 0) return;
    u32 n = op.n, p = op.p, h = o / p, j = o % p, first = s.first_row[seq], end = first + s.row_count[seq];
    States st = states_of(s, op.cache, seq);
    u64 own = (u64)h * n * p + j;
    u32 key_head = h;
    if (op.kind == SCAN_DELTA) key_head = op.tiled ? h % op.k_heads : h / (op.heads / op.k_heads);
    u32 keys = op.k_heads * n;
    float decay = op.kind == SCAN_DECAY ? expf(-op.a[h]) : 0.0f;
    for (u32 row = first; row < end; row++) {
        const float *q = op.in[0] + (u64)row * keys + key_head * n, *k = op.in[1] + (u64)row * keys + key_head * n;
        float v = op.in[2][(u64)row * op.width + o], y = 0.0f;
        const float *from = state_before(st, row - first);
        float *state = state_after(st, row - first) + own;
        if (from) from += own;
        if (op.kind == SCAN_DELTA) {
            const float *g = op.in[3] + (u64)row * (op.wide_decay ? op.heads * n : op.heads) + (op.wide_decay ? h * n : h);
            float beta = op.in[4][(u64)row * op.heads + h], error = v;
            float keep = op.wide_decay ? 0.0f : expf(g[0]);
            for (u32 i = 0; i < n; i++) {
                if (op.wide_decay) keep = expf(g[i]);
                float x = keep * (from ? from[(u64)i * p] : 0.0f);
                state[(u64)i * p] = x;
                error -= x * k[i];
            }
            for (u32 i = 0; i < n; i++) {
                float x = state[(u64)i * p] + k[i] * beta * error;
                state[(u64)i * p] = x;
                y += q[i] * x;
            }
            y *= op.scale;
        } else {
            const float *w = op.kind == SCAN_DECAY ? 0 : op.in[3] + (u64)row * keys + key_head * n;
            for (u32 i = 0; i < n; i++) {
                float x = from ? from[(u64)i * p] : 0.0f, kv = k[i] * v;
                if (op.kind == SCAN_WKV6) y += q[i] * (op.a[h * n + i] * kv + x);
                x = (w ? w[i] : decay) * x + kv;
                state[(u64)i * p] = x;
                if (op.kind != SCAN_WKV6) y += q[i] * x;
            }
            if (op.kind == SCAN_GLA) y *= op.scale;
        }
        op.out[(u64)row * op.width + o] = y;
    }
}
