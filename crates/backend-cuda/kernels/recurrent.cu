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
};

// Frames of a sequence's rows, zeros around them: a warp for each output of a frame.
KERNEL conv1d(Step s, Conv1d op) {
    u32 lane = threadIdx.x & 31, o = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), row = blockIdx.y;
    u32 per_row = op.frames / op.stride;
    if (row >= rows_of(s, LEAD_ROWS) || o >= per_row * op.n) return;
    u32 seq = s.seq[row], first = s.first_row[seq], count = s.row_count[seq], n = o % op.n;
    if (count == 0) return;
    i32 start = (i32)(((row - first) * per_row + o / op.n) * op.stride) - (i32)op.padding, end = (i32)(count * op.frames);
    const float *x = op.x + (u64)first * op.frames * op.channels, *w = op.w + (u64)n * op.taps * op.channels;
    float sum = 0.0f;
    for (u32 i = lane; i < op.taps * op.channels; i += 32) {
        i32 frame = start + (i32)(i / op.channels);
        if (frame >= 0 && frame < end) sum = __fmaf_rn(w[i], x[(u64)frame * op.channels + i % op.channels], sum);
    }
    sum = sum_lanes(sum);
    if (lane == 0) op.y[(u64)row * per_row * op.n + o] = op.b ? sum + op.b[n] : sum;
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
