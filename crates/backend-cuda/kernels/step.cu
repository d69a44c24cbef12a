// The steps of works: changes of slots, rows of a step out of slots, and what a step leaves in them.
//
// The host writes words (`Work` and its parts below); what it cannot know yet, such as the token that was drawn last or
// which slots have stopped, is read here.
#include "common.cuh"

#define STOPPED (-3)
#define COMPUTED (-4)
#define NO_TOKEN 0xffffffffu
#define REPORT_WORDS 42

enum { DELTA_CLEAR, DELTA_LENGTH, DELTA_TABLE, DELTA_TOKENS, DELTA_SAMPLER, DELTA_STOP, DELTA_ENCODED };

static __device__ __forceinline__ u32 request(const volatile u32 *requests, u32 slot) { return requests[slot]; }

// One block: changes in order. A change is: kind, slot, words of data, and the data.
KERNEL apply_deltas(Slot *slots, u32 *tables, const u32 *groups, u32 n_groups, const volatile u32 *requests, const u32 *words,
             u32 count) {
    const u32 *at = words;
    for (u32 i = 0; i < count; i++) {
        u32 kind = at[0], slot = at[1], len = at[2];
        const u32 *data = at + 3;
        Slot &q = slots[slot];
        u32 *tokens = (u32 *)q.tokens;
        __syncthreads();
        switch (kind) {
        case DELTA_CLEAR:
            for (u32 g = 0; g < n_groups; g++)
                for (u32 b = threadIdx.x; b < groups[2 * g + 1]; b += blockDim.x)
                    tables[groups[2 * g] + slot * groups[2 * g + 1] + b] = NO_BLOCK;
            if (threadIdx.x < 16) q.record[threadIdx.x] = data[threadIdx.x];
            if (threadIdx.x == 0) {
                q.len = q.n_tokens = q.n_stops = q.n_bias = q.remaining = q.limited = q.stopped = q.enc_len = 0;
                q.heard = request(requests, slot);
            }
            break;
        case DELTA_LENGTH:
            if (threadIdx.x == 0) q.len = data[0], q.stopped = 0, q.heard = request(requests, slot);
            break;
        case DELTA_TABLE:
            for (u32 b = threadIdx.x; b < len - 1; b += blockDim.x) tables[data[0] + b] = data[1 + b];
            break;
        case DELTA_TOKENS: {
            u32 had = q.n_tokens;
            __syncthreads();
            for (u32 t = had + threadIdx.x; t < data[0]; t += blockDim.x) tokens[t] = NO_TOKEN;
            for (u32 t = threadIdx.x; t < len - 1; t += blockDim.x) tokens[data[0] + t] = data[1 + t];
            if (threadIdx.x == 0) q.n_tokens = data[0] + len - 1;
            break;
        }
        case DELTA_SAMPLER: {
            u32 *bias = (u32 *)((u64)data[17] << 32 | data[16]);
            for (u32 t = threadIdx.x; t < len - 18; t += blockDim.x) bias[t] = data[18 + t];
            if (threadIdx.x < 16) q.record[threadIdx.x] = data[threadIdx.x];
            if (threadIdx.x == 0) q.bias = (u64)bias, q.n_bias = (len - 18) / 2;
            break;
        }
        case DELTA_STOP: {
            u32 *stops = (u32 *)((u64)data[2] << 32 | data[1]);
            for (u32 t = threadIdx.x; t < len - 3; t += blockDim.x) stops[t] = data[3 + t];
            if (threadIdx.x == 0) {
                q.stops = (u64)stops, q.n_stops = len - 3, q.remaining = data[0], q.limited = 1, q.stopped = 0;
                q.heard = request(requests, slot);
            }
            break;
        }
        default:
            if (threadIdx.x == 0) q.enc_len = data[0];
        }
        at = data + len;
        __syncthreads();
    }
}

enum { ROWS_TOKENS, ROWS_DRAWN, ROWS_EMBEDS };

// A sequence's rows in a work; places are words from the work's first.
struct Part {
    u32 slot, rows, first_row, kind;
    u32 tokens;         // place
    u32 first_logit, logits;
    u32 flags, span_end;
    u32 positions;      // place of 4 words per row; 0 for none
    u32 last;           // whether its last row's logits are wanted
    u32 pad;
};

struct Wanted {
    u32 row;            // of its sequence's rows
    u32 best;
    u32 mask, mask_words;
    u32 dry, dry_count; // place, pairs
    u32 part;
    u32 pad;
};

struct Plan {
    u32 parts, wanted, rows, pad;   // counts; parts and wanted follow
};

static __device__ __forceinline__ const Part *parts_of(const Plan *plan) { return (const Part *)(plan + 1); }
static __device__ __forceinline__ const Wanted *wanted_of(const Plan *plan) { return (const Wanted *)(parts_of(plan) + plan->parts); }

// One block, a warp for each sequence.
KERNEL prepare(Step s, const volatile u32 *requests, const u32 *words, const Plan *plan) {
    __shared__ u32 longest, live_parts;
    if (threadIdx.x == 0) longest = live_parts = 0;
    __syncthreads();
    u32 lane = threadIdx.x & 31;
    for (u32 i = threadIdx.x >> 5; i < plan->parts; i += blockDim.x >> 5) {
        const Part part = parts_of(plan)[i];
        Slot &q = s.slots[part.slot];
        u32 *tokens = (u32 *)q.tokens, len = q.len, had = q.n_tokens;
        bool live = !q.stopped && request(requests, part.slot) == q.heard;
        __syncwarp();
        if (live && part.kind == ROWS_TOKENS) {
            for (u32 t = had + lane; t < len; t += 32) tokens[t] = NO_TOKEN;
            for (u32 t = lane; t < part.rows; t += 32) tokens[len + t] = words[part.tokens + t];
        }
        if (live && part.kind == ROWS_EMBEDS)
            for (u32 t = had + lane; t < len + part.rows; t += 32) tokens[t] = NO_TOKEN;
        __syncwarp();
        for (u32 r = lane; r < part.rows; r += 32) {
            u32 row = part.first_row + r, token = live ? tokens[len + r] : 0;
            // What was to be drawn may not have been.
            if (part.kind == ROWS_DRAWN && (len + r >= had || token == NO_TOKEN)) token = 0;
            s.token[row] = token;
            s.seq[row] = i;
            s.flags[row] = live ? ROW_LIVE | part.flags : 0;
            s.span_end[row] = part.span_end;
            for (u32 c = 0; c < 4; c++)
                s.pos[row * 4 + c] = part.positions ? words[part.positions + 4 * r + c] : c < 3 ? len + r : 0;
        }
        for (u32 l = lane; l < part.logits; l += 32) {
            const Wanted w = wanted_of(plan)[part.first_logit + l];
            Logit logit;
            logit.mask = w.mask ? (u64)(words + w.mask) : 0;
            logit.dry = (u64)(words + w.dry);
            logit.mask_words = w.mask_words;
            logit.dry_count = w.dry_count;
            logit.best = w.best;
            logit.pad = 0;
            s.logit[part.first_logit + l] = logit;
            s.logit_row[part.first_logit + l] = part.first_row + w.row;
        }
        if (lane == 0) {
            s.slot[i] = part.slot;
            s.first_row[i] = part.first_row;
            s.row_count[i] = live ? part.rows : 0;
            s.past_len[i] = len;
            if (!live) q.stopped = 1;
            if (live && part.kind != ROWS_DRAWN) q.n_tokens = len + part.rows;
            if (live) atomicMax(&longest, len + part.rows), atomicAdd(&live_parts, 1);
        }
    }
    __syncthreads();
    // Where nothing runs, nothing is done.
    if (threadIdx.x == 0) {
        s.head[0] = live_parts ? plan->rows : 0;
        s.head[1] = live_parts ? plan->parts : 0;
        s.head[2] = live_parts ? plan->wanted : 0;
        s.head[3] = longest;
        s.head[4] = 0;
    }
}

// One block: slots move on, and results go to the host. A record is: its number (written last), a row of a table that is
// not there (three words, as in `Step::head`), two words per sequence (whether it ran, its length before), two per logit row
// (what was drawn, whether that ends its answer), and the reports. A step that failed stops its slots.
KERNEL finish(Step s, const Plan *plan, const i32 *drawn, const u32 *reports, u32 *record, u32 number, u32 most_seqs,
              u32 most_logits) {
    bool failed = s.head[4];
    if (threadIdx.x < 3) record[1 + threadIdx.x] = s.head[4 + threadIdx.x];
    u32 *of_seqs = record + 4, *of_logits = of_seqs + 2 * most_seqs, *of_reports = of_logits + 2 * most_logits;
    for (u32 i = threadIdx.x; i < plan->parts; i += blockDim.x) {
        const Part part = parts_of(plan)[i];
        Slot &q = s.slots[part.slot];
        bool live = s.row_count[i] > 0;
        of_seqs[2 * i] = live;
        of_seqs[2 * i + 1] = s.past_len[i];
        u32 ends = 0;
        if (live && failed) q.stopped = 1;
        if (live && !failed) {
            q.len += part.rows;
            i32 code = part.logits && drawn ? drawn[part.first_logit + part.logits - 1] : COMPUTED;
            if (part.last && code >= 0) {
                ((u32 *)q.tokens)[q.n_tokens++] = (u32)code;
                if (q.limited) {
                    q.remaining = q.remaining > 0 ? q.remaining - 1 : 0;
                    ends = q.remaining == 0;
                }
                const u32 *stops = (const u32 *)q.stops;
                for (u32 j = 0; j < q.n_stops; j++) ends |= stops[j] == (u32)code;
                q.stopped = ends;
            } else if (part.last) {
                q.stopped = code != COMPUTED;
            }
        }
        for (u32 j = 0; j < part.logits; j++) {
            of_logits[2 * (part.first_logit + j)] = !live ? (u32)STOPPED : drawn ? (u32)drawn[part.first_logit + j] : (u32)COMPUTED;
            of_logits[2 * (part.first_logit + j) + 1] = j + 1 == part.logits ? ends : 0;
        }
    }
    for (u32 i = threadIdx.x; reports && i < plan->wanted * REPORT_WORDS; i += blockDim.x)
        if (wanted_of(plan)[i / REPORT_WORDS].best) of_reports[i] = reports[i];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *(volatile u32 *)record = number;
}

// Rows of a value for later; zeros for those that did not run. In a chain those that ran stand together, and a step in
// which none did leaves what the last one left.
KERNEL keep(Step s, const Plan *plan, u32 lead, u32 width, u32 chained, const u32 *from, u32 *to) {
    u32 i = blockIdx.x, count = lead == LEAD_ROWS ? plan->rows : lead == LEAD_SEQS ? plan->parts : plan->wanted;
    if (i >= count) return;
    u32 part = lead == LEAD_SEQS ? i : lead == LEAD_ROWS ? s.seq[i] : wanted_of(plan)[i].part;
    bool live = s.row_count[part] > 0;
    u32 at = i;
    if (chained) {
        if (!live) return;
        at = 0;
        for (u32 p = 0; p < part; p++) at += s.row_count[p] > 0;
    }
    for (u32 c = blockIdx.y * blockDim.x + threadIdx.x; c < width; c += gridDim.y * blockDim.x)
        to[(u64)at * width + c] = live ? from[(u64)i * width + c] : 0;
}

KERNEL to_floats(u64 n, const i32 *from, float *to) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) to[i] = (float)from[i];
}

KERNEL to_ints(u64 n, const float *from, i32 *to) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) to[i] = (i32)from[i];
}
