// Ops of a row alone: elementwise, columns, norms and statistics of runs, rotations, chosen rows.
#include "activate.cuh"

#define EACH(i, total) \
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x, i##_end = (total); i < i##_end; i += (u64)gridDim.x * blockDim.x)

KERNEL unary(Step s, u32 lead, u32 width, Act f, const float *x, float *y) {
    if (f.kind == F_IDENTITY) {
        EACH(i, (u64)rows_of(s, lead) * width) ((u32 *)y)[i] = ((const u32 *)x)[i];
        return;
    }
    EACH(i, (u64)rows_of(s, lead) * width) y[i] = activate(f, x[i]);
}

KERNEL suppress(Step s, u32 lead, u32 width, u32 first, u32 last, const float *x, float *y) {
    EACH(i, (u64)rows_of(s, lead) * width) {
        u32 c = i % width;
        y[i] = c >= first && c < last ? -3.402823466e38f : x[i];
    }
}

enum { CLAMP_NONE, CLAMP_BEFORE, CLAMP_AFTER, CLAMP_BEFORE_PLUS_ONE, CLAMP_UP_TANH };

KERNEL gate(Step s, u32 lead, u32 width, Act f, u32 clamp, float limit, const float *g, const float *u, float *y) {
    EACH(i, (u64)rows_of(s, lead) * width) {
        float a = g[i], b = u[i];
        float within = fminf(fmaxf(b, -limit), limit);
        switch (clamp) {
        case CLAMP_BEFORE: a = activate(f, fminf(a, limit)), b = within; break;
        case CLAMP_AFTER: a = fminf(activate(f, a), limit), b = within; break;
        case CLAMP_BEFORE_PLUS_ONE: a = activate(f, fminf(a, limit)), b = within + 1.0f; break;
        case CLAMP_UP_TANH: a = activate(f, a), b = limit * tanhf(b / limit); break;
        default: a = activate(f, a);
        }
        y[i] = a * b;
    }
}

static __device__ __forceinline__ float combined(u32 kind, float a, float b) {
    return kind == 0 ? __fadd_rn(a, b) : kind == 1 ? __fsub_rn(a, b) : kind == 2 ? __fmul_rn(a, b) : __fdiv_rn(a, b);
}

// The second operand has `stride` columns a row (0: the same for all rows), and repeats after `period` columns or
// serves `run` columns each.
KERNEL binary(Step s, u32 lead, u32 width, u32 kind, float a_scale, float b_scale, u32 stride, u32 period, u32 run,
              const float *a, const float *b, float *y) {
    EACH(i, (u64)rows_of(s, lead) * width) {
        u32 row = i / width, c = i % width;
        u32 at = run > 1 ? c / run : c % period;
        y[i] = combined(kind, __fmul_rn(a[i], a_scale), __fmul_rn(b[(u64)row * stride + at], b_scale));
    }
}

// Runs of columns from one place to another: slices, joins and repetitions.
struct Columns {
    u32 in_width, out_width;
    u32 runs, run;          // copied per row
    u32 in_first, in_stride, in_times; // run r comes from in_first + r / in_times * in_stride
    u32 out_first, out_stride;
};

KERNEL columns(Step s, u32 lead, Columns c, const u32 *x, u32 *y) {
    wait_before();
    u32 per_row = c.runs * c.run;
    EACH(i, (u64)rows_of(s, lead) * per_row) {
        u32 row = i / per_row, e = i % per_row, r = e / c.run, o = e % c.run;
        y[(u64)row * c.out_width + c.out_first + (u64)r * c.out_stride + o] =
            x[(u64)row * c.in_width + c.in_first + (u64)(r / c.in_times) * c.in_stride + o];
    }
}

KERNEL select_rows(Step s, u32 width, const u32 *x, u32 *y) {
    wait_before();
    EACH(i, (u64)rows_of(s, LEAD_LOGITS) * width) y[i] = x[(u64)s.logit_row[i / width] * width + i % width];
}

KERNEL pool(Step s, u32 width, u32 kind, const float *x, float *y) {
    EACH(i, (u64)rows_of(s, LEAD_SEQS) * width) {
        u32 q = i / width, c = i % width, first = s.first_row[q], n = s.row_count[q];
        float sum = 0.0f;
        if (n > 0 && kind == 1) sum = x[(u64)first * width + c];
        if (n > 0 && kind == 2) sum = x[(u64)(first + n - 1) * width + c];
        if (n > 0 && kind == 0) {
            for (u32 r = 0; r < n; r++) sum += x[(u64)(first + r) * width + c];
            sum /= (float)n;
        }
        y[i] = sum;
    }
}

#define KEPT 16 // columns that a thread asks for before it waits for any

// A block for each run of a row: x = run of blockIdx.x, y = row. Rows of prompts may be left to another kernel.
KERNEL normalise(Step s, u32 lead, u32 width, u32 run, u32 kind, float eps, const float *w, u32 w_len, const float *b,
            u32 b_len, const float *x, float *y, u32 replies) {
    __shared__ float shared[33];
    u32 first = blockIdx.x * run, tid = threadIdx.x, threads = blockDim.x;
    x += (u64)blockIdx.y * width + first;
    y += (u64)blockIdx.y * width + first;
    if (run <= KEPT * threads) {
        float v[KEPT], scale[KEPT], mean = 0.0f, squares = 0.0f;
        #pragma unroll
        for (u32 i = 0; i < KEPT; i++) scale[i] = w && tid + i * threads < run ? w[(first + tid + i * threads) % w_len] : 1.0f;
        wait_before();
        if (blockIdx.y >= rows_of(s, lead) || (replies && (s.flags[blockIdx.y] & ROW_PROMPT))) return;
        #pragma unroll
        for (u32 i = 0; i < KEPT; i++) v[i] = tid + i * threads < run ? x[tid + i * threads] : 0.0f;
        if (kind == NORM_LAYER) {
            #pragma unroll
            for (u32 i = 0; i < KEPT; i++)
                if (tid + i * threads < run) mean += v[i];
            mean = sum_block(mean, shared) / (float)run;
        }
        #pragma unroll
        for (u32 i = 0; i < KEPT; i++)
            if (tid + i * threads < run) v[i] -= mean, squares = __fmaf_rn(v[i], v[i], squares);
        float root = norm_root(kind, sum_block(squares, shared), run, eps);
        #pragma unroll
        for (u32 i = 0; i < KEPT; i++) {
            u32 c = tid + i * threads;
            if (c >= run) break;
            float z = v[i] / root;
            if (w) z *= scale[i];
            if (b) z += b[(first + c) % b_len];
            y[c] = z;
        }
        return;
    }
    wait_before();
    if (blockIdx.y >= rows_of(s, lead) || (replies && (s.flags[blockIdx.y] & ROW_PROMPT))) return;
    float mean = 0.0f;
    if (kind == NORM_LAYER) {
        for (u32 c = threadIdx.x; c < run; c += blockDim.x) mean += x[c];
        mean = sum_block(mean, shared) / (float)run;
    }
    float squares = 0.0f;
    for (u32 c = threadIdx.x; c < run; c += blockDim.x) {
        float v = x[c] - mean;
        squares = __fmaf_rn(v, v, squares);
    }
    squares = sum_block(squares, shared);
    float root = norm_root(kind, squares, run, eps);
    for (u32 c = threadIdx.x; c < run; c += blockDim.x) {
        float v = (x[c] - mean) / root;
        if (w) v *= w[(first + c) % w_len];
        if (b) v += b[(first + c) % b_len];
        y[c] = v;
    }
}

enum { RUN_SOFTMAX, RUN_SUM, RUN_RMS, RUN_CUT };

KERNEL runs(Step s, u32 lead, u32 width, u32 run, u32 kind, float p, const float *x, float *y) {
    __shared__ float shared[33];
    if (blockIdx.y >= rows_of(s, lead)) return;
    u32 n = width / run;
    x += (u64)blockIdx.y * width + blockIdx.x * run;
    if (kind == RUN_SOFTMAX) {
        y += (u64)blockIdx.y * width + blockIdx.x * run;
        float most = -INF, sum = 0.0f;
        for (u32 c = threadIdx.x; c < run; c += blockDim.x) most = fmaxf(most, x[c]);
        most = max_block(most, shared);
        for (u32 c = threadIdx.x; c < run; c += blockDim.x) sum += expf(x[c] - most);
        sum = sum_block(sum, shared);
        for (u32 c = threadIdx.x; c < run; c += blockDim.x) y[c] = expf(x[c] - most) / sum;
        return;
    }
    float sum = 0.0f;
    for (u32 c = threadIdx.x; c < run; c += blockDim.x) sum += kind == RUN_RMS ? x[c] * x[c] : x[c];
    sum = sum_block(sum, shared);
    if (kind == RUN_CUT) {
        y += (u64)blockIdx.y * width + blockIdx.x * run;
        float mean = sum / (float)run, squares = 0.0f;
        for (u32 c = threadIdx.x; c < run; c += blockDim.x) squares += (x[c] - mean) * (x[c] - mean);
        float std = sqrtf(sum_block(squares, shared) / (float)run);
        for (u32 c = threadIdx.x; c < run; c += blockDim.x) y[c] = fmaxf((x[c] - mean) - p * std, 0.0f);
        return;
    }
    if (threadIdx.x == 0) y[(u64)blockIdx.y * n + blockIdx.x] = kind == RUN_RMS ? sqrtf(sum / (float)run + p) : sum;
}

// A thread for each row; matrices are small.
KERNEL sinkhorn(Step s, u32 lead, u32 n, u32 iterations, float eps, const float *x, float *y) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows_of(s, lead)) return;
    x += (u64)row * n * n;
    y += (u64)row * n * n;
    for (u32 r = 0; r < n; r++) {
        float most = -INF, sum = 0.0f;
        for (u32 c = 0; c < n; c++) most = fmaxf(most, x[r * n + c]);
        for (u32 c = 0; c < n; c++) sum += expf(x[r * n + c] - most);
        for (u32 c = 0; c < n; c++) y[r * n + c] = expf(x[r * n + c] - most) / sum + eps;
    }
    for (u32 i = 0; i < 2 * iterations - 1; i++) {
        // Even turns divide columns, odd ones rows.
        u32 along = i % 2 == 0 ? n : 1, across = i % 2 == 0 ? 1 : n;
        for (u32 r = 0; r < n; r++) {
            float sum = 0.0f;
            for (u32 c = 0; c < n; c++) sum += y[r * across + c * along];
            sum += eps;
            for (u32 c = 0; c < n; c++) y[r * across + c * along] /= sum;
        }
    }
}

// Cosine and sine of each pair at each row of the step, in f64 so that far positions keep their angles.
KERNEL turns(Step s, u32 pairs, const float *freqs, const u32 *channels, float magnitude, float sign, u32 back,
             float2 *out) {
    EACH(i, (u64)rows_of(s, LEAD_ROWS) * pairs) {
        u32 row = i / pairs, p = i % pairs;
        u32 pos = s.pos[row * 4 + (channels ? channels[p] : 0)];
        pos = pos > back ? pos - back : 0;
        double angle = (double)sign * (double)pos * (double)freqs[p], sine, cosine;
        sincos(angle, &sine, &cosine);
        out[i] = make_float2((float)(cosine * (double)magnitude), (float)(sine * (double)magnitude));
    }
}

KERNEL rope(Step s, u32 lead, u32 width, u32 head_dim, u32 offset, u32 pairs, u32 halves, const float2 *turns,
            const float *x, float *y) {
    EACH(i, (u64)rows_of(s, lead) * width) {
        u32 row = i / width, c = i % width % head_dim;
        if (c < offset || c >= offset + 2 * pairs) {
            y[i] = x[i];
            continue;
        }
        c -= offset;
        u32 pair = halves ? c % pairs : c / 2;
        bool second = halves ? c >= pairs : c % 2 == 1;
        u32 apart = halves ? pairs : 1;
        float2 t = turns[(u64)step_row(s, lead, row) * pairs + pair];
        y[i] = second ? x[i - apart] * t.y + x[i] * t.x : x[i] * t.x - x[i + apart] * t.y;
    }
}

KERNEL pos_scale(Step s, u32 lead, u32 width, float coef, float length, float offset, const float *x, float *y) {
    EACH(i, (u64)rows_of(s, lead) * width) {
        u32 pos = s.pos[step_row(s, lead, i / width) * 4];
        double steps = floor(((double)pos + (double)offset) / (double)length);
        y[i] = x[i] * (float)(1.0 + (double)coef * log(steps + 1.0));
    }
}

// `Σ_j weights[j] · x[j]`.
KERNEL combine(Step s, u32 lead, u32 n, u32 k, const float *x, const float *w, float *y) {
    EACH(i, (u64)rows_of(s, lead) * n) {
        u64 row = i / n;
        u32 c = i % n;
        float sum = 0.0f;
        for (u32 j = 0; j < k; j++) sum = __fmaf_rn(w[row * k + j], x[(row * k + j) * n + c], sum);
        y[i] = sum;
    }
}
