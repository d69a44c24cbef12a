// The steps of works: changes of slots, rows of a step out of slots, and what a step leaves in them.
//
// The host writes words (a plan and its parts below); what it cannot know yet, such as the token that was drawn last or
// which slots have stopped, is read here.
#include "common.wgsl"
#include "cache.wgsl"

const STOPPED: u32 = 0xfffffffdu;
const COMPUTED: u32 = 0xfffffffcu;
const NO_TOKEN: u32 = 0xffffffffu;
const REPORT_WORDS: u32 = 42u;

const DELTA_CLEAR: u32 = 0u;
const DELTA_LENGTH: u32 = 1u;
const DELTA_TABLE: u32 = 2u;
const DELTA_TOKENS: u32 = 3u;
const DELTA_SAMPLER: u32 = 4u;
const DELTA_STOP: u32 = 5u;

fn request(slot: u32) -> u32 { return state[s(S_REQUESTS) + slot]; }

// One workgroup: changes in order. A change is: kind, slot, words of data, and the data. Parameters: the first word, changes,
// groups, then of each group its first word among the tables and words of a slot.
@compute @workgroup_size(256)
fn apply_deltas(@builtin(local_invocation_index) lid: u32) {
    var at = p(0u);
    let count = p(1u);
    for (var i = 0u; i < count; i++) {
        let kind = words[at];
        let slot = words[at + 1u];
        let len = words[at + 2u];
        let data = at + 3u;
        let q = slot_at(slot);
        let had = state[q + SLOT_N_TOKENS];
        workgroupBarrier();
        storageBarrier();
        switch kind {
            case DELTA_CLEAR: {
                for (var g = 0u; g < p(2u); g++) {
                    let first = s(S_TABLES) + p(3u + 2u * g) + slot * p(4u + 2u * g);
                    for (var b = lid; b < p(4u + 2u * g); b += 256u) { state[first + b] = NO_BLOCK; }
                }
                if (lid < 16u) { state[q + SLOT_RECORD + lid] = words[data + lid]; }
                if (lid == 0u) {
                    for (var f = 0u; f < SLOT_RECORD; f++) { state[q + f] = 0u; }
                    state[q + SLOT_HEARD] = request(slot);
                }
            }
            case DELTA_LENGTH: {
                if (lid == 0u) {
                    state[q + SLOT_LEN] = words[data];
                    state[q + SLOT_STOPPED] = 0u;
                    state[q + SLOT_HEARD] = request(slot);
                }
            }
            case DELTA_TABLE: {
                for (var b = lid; b < len - 1u; b += 256u) { state[s(S_TABLES) + words[data] + b] = words[data + 1u + b]; }
            }
            case DELTA_TOKENS: {
                let first = words[data];
                let tokens = slot_tokens(slot);
                for (var t = had + lid; t < first; t += 256u) { state[tokens + t] = NO_TOKEN; }
                for (var t = lid; t < len - 1u; t += 256u) { state[tokens + first + t] = words[data + 1u + t]; }
                if (lid == 0u) { state[q + SLOT_N_TOKENS] = first + len - 1u; }
            }
            case DELTA_SAMPLER: {
                let bias = words[data + 16u];
                for (var t = lid; t < len - 17u; t += 256u) { state[bias + t] = words[data + 17u + t]; }
                if (lid < 16u) { state[q + SLOT_RECORD + lid] = words[data + lid]; }
                if (lid == 0u) {
                    state[q + SLOT_BIAS] = bias;
                    state[q + SLOT_N_BIAS] = (len - 17u) / 2u;
                }
            }
            case DELTA_STOP: {
                let stops = words[data + 1u];
                for (var t = lid; t < len - 2u; t += 256u) { state[stops + t] = words[data + 2u + t]; }
                if (lid == 0u) {
                    state[q + SLOT_STOPS] = stops;
                    state[q + SLOT_N_STOPS] = len - 2u;
                    state[q + SLOT_REMAINING] = words[data];
                    state[q + SLOT_LIMITED] = 1u;
                    state[q + SLOT_STOPPED] = 0u;
                    state[q + SLOT_HEARD] = request(slot);
                }
            }
            default: {
                if (lid == 0u) { state[q + SLOT_ENC_LEN] = words[data]; }
            }
        }
        at = data + len;
        workgroupBarrier();
        storageBarrier();
    }
}

const ROWS_TOKENS: u32 = 0u;
const ROWS_DRAWN: u32 = 1u;
const ROWS_EMBEDS: u32 = 2u;

// A sequence's rows in a work; places are words from the work's first.
const PART_WORDS: u32 = 12u;
const PART_SLOT: u32 = 0u;
const PART_ROWS: u32 = 1u;
const PART_FIRST_ROW: u32 = 2u;
const PART_KIND: u32 = 3u;
const PART_TOKENS: u32 = 4u;
const PART_FIRST_LOGIT: u32 = 5u;
const PART_LOGITS: u32 = 6u;
const PART_FLAGS: u32 = 7u;
const PART_SPAN_END: u32 = 8u;
const PART_POSITIONS: u32 = 9u;  // place of 4 words per row; 0 for none
const PART_LAST: u32 = 10u;      // whether its last row's logits are wanted

const WANTED_WORDS: u32 = 8u;
const WANTED_ROW: u32 = 0u;
const WANTED_BEST: u32 = 1u;
const WANTED_MASK: u32 = 2u;
const WANTED_MASK_WORDS: u32 = 3u;
const WANTED_DRY: u32 = 4u;
const WANTED_DRY_COUNT: u32 = 5u;
const WANTED_PART: u32 = 6u;

// A plan begins with the numbers of parts, logit rows and rows; parts and logit rows follow.
const PLAN_WORDS: u32 = 4u;

fn part_at(plan: u32, i: u32) -> u32 { return plan + PLAN_WORDS + i * PART_WORDS; }
fn wanted_at(plan: u32, i: u32) -> u32 { return plan + PLAN_WORDS + words[plan] * PART_WORDS + i * WANTED_WORDS; }

var<workgroup> longest: atomic<u32>;
var<workgroup> live_parts: atomic<u32>;

// One workgroup, 32 threads for each sequence. Parameters: the plan.
@compute @workgroup_size(256)
fn prepare(@builtin(local_invocation_index) lid: u32) {
    if (lid == 0u) {
        atomicStore(&longest, 0u);
        atomicStore(&live_parts, 0u);
    }
    let plan = p(0u);
    let parts = words[plan];
    let lane = lid & 31u;
    for (var first = 0u; first < parts; first += 8u) {
        let i = first + (lid >> 5u);
        let there = i < parts;
        let part = part_at(plan, select(0u, i, there));
        let slot = words[part + PART_SLOT];
        let q = slot_at(slot);
        let tokens = slot_tokens(slot);
        let len = state[q + SLOT_LEN];
        let had = state[q + SLOT_N_TOKENS];
        let live = state[q + SLOT_STOPPED] == 0u && request(slot) == state[q + SLOT_HEARD];
        workgroupBarrier();
        storageBarrier();
        if (there) {
            let n = words[part + PART_ROWS];
            let kind = words[part + PART_KIND];
            let positions = words[part + PART_POSITIONS];
            if (live && kind == ROWS_TOKENS) {
                for (var t = had + lane; t < len; t += 32u) { state[tokens + t] = NO_TOKEN; }
            }
            if (live && kind == ROWS_EMBEDS) {
                for (var t = had + lane; t < len + n; t += 32u) { state[tokens + t] = NO_TOKEN; }
            }
            for (var r = lane; r < n; r += 32u) {
                let row = words[part + PART_FIRST_ROW] + r;
                var token = 0u;
                if (live && kind == ROWS_TOKENS) {
                    token = words[words[part + PART_TOKENS] + r];
                    state[tokens + len + r] = token;
                } else if (live && kind == ROWS_EMBEDS) {
                    token = NO_TOKEN;
                } else if (live) {
                    token = state[tokens + len + r];
                    // What lies behind the slot's tokens may be none.
                    if (len + r >= had || token == NO_TOKEN) { token = 0u; }
                }
                state[s(S_TOKEN) + row] = token;
                state[s(S_SEQ) + row] = i;
                state[s(S_FLAGS) + row] = select(0u, ROW_LIVE | words[part + PART_FLAGS], live);
                state[s(S_SPAN_END) + row] = words[part + PART_SPAN_END];
                for (var c = 0u; c < 4u; c++) {
                    var pos = select(0u, len + r, c < 3u);
                    if (positions != 0u) { pos = words[positions + 4u * r + c]; }
                    state[s(S_POS) + row * 4u + c] = pos;
                }
            }
            for (var l = lane; l < words[part + PART_LOGITS]; l += 32u) {
                let index = words[part + PART_FIRST_LOGIT] + l;
                let wanted = wanted_at(plan, index);
                let logit = logit_at(index);
                state[logit + LOGIT_MASK] = words[wanted + WANTED_MASK];
                state[logit + LOGIT_MASK_WORDS] = words[wanted + WANTED_MASK_WORDS];
                state[logit + LOGIT_DRY] = words[wanted + WANTED_DRY];
                state[logit + LOGIT_DRY_COUNT] = words[wanted + WANTED_DRY_COUNT];
                state[logit + LOGIT_BEST] = words[wanted + WANTED_BEST];
                state[s(S_LOGIT_ROW) + index] = words[part + PART_FIRST_ROW] + words[wanted + WANTED_ROW];
            }
            if (lane == 0u) {
                state[s(S_SLOT) + i] = slot;
                state[s(S_FIRST_ROW) + i] = words[part + PART_FIRST_ROW];
                state[s(S_ROW_COUNT) + i] = select(0u, n, live);
                state[s(S_PAST_LEN) + i] = len;
                if (!live) { state[q + SLOT_STOPPED] = 1u; }
                if (live && kind != ROWS_DRAWN) { state[q + SLOT_N_TOKENS] = len + n; }
                if (live) {
                    atomicMax(&longest, len + n);
                    atomicAdd(&live_parts, 1u);
                }
            }
        }
    }
    workgroupBarrier();
    // Where nothing runs, nothing is done.
    if (lid == 0u) {
        let runs = atomicLoad(&live_parts) > 0u;
        state[s(S_HEAD)] = select(0u, words[plan + 2u], runs);
        state[s(S_HEAD) + 1u] = select(0u, parts, runs);
        state[s(S_HEAD) + 2u] = select(0u, words[plan + 1u], runs);
        state[s(S_HEAD) + 3u] = atomicLoad(&longest);
        state[s(S_HEAD) + 4u] = 0u;
    }
}

// One workgroup: slots move on, and results go to a record. A record is: its number, a row of a table that is not there (three
// words, as in the head), two words per sequence (whether it ran, its length before), two per logit row (what was drawn,
// whether that ends its answer), and the reports. A step that failed stops its slots. Parameters: the plan, drawn tokens (work),
// reports (work), the record (state), the number, whether reports are wanted.
@compute @workgroup_size(256)
fn finish(@builtin(local_invocation_index) lid: u32) {
    let plan = p(0u);
    let drawn = p(1u);
    let record = p(3u);
    let parts = words[plan];
    let wanted = words[plan + 1u];
    let failed = state[s(S_HEAD) + 4u] != 0u;
    if (lid == 0u) { state[record] = p(4u); }
    if (lid < 3u) { state[record + 1u + lid] = state[s(S_HEAD) + 4u + lid]; }
    let of_seqs = record + 4u;
    let of_logits = of_seqs + 2u * parts;
    let of_reports = of_logits + 2u * wanted;
    for (var i = lid; i < parts; i += 256u) {
        let part = part_at(plan, i);
        let slot = words[part + PART_SLOT];
        let q = slot_at(slot);
        let live = state[s(S_ROW_COUNT) + i] > 0u;
        let logits = words[part + PART_LOGITS];
        let first = words[part + PART_FIRST_LOGIT];
        let last = words[part + PART_LAST] != 0u;
        state[of_seqs + 2u * i] = select(0u, 1u, live);
        state[of_seqs + 2u * i + 1u] = state[s(S_PAST_LEN) + i];
        var ends = 0u;
        if (live && failed) { state[q + SLOT_STOPPED] = 1u; }
        if (live && !failed) {
            state[q + SLOT_LEN] += words[part + PART_ROWS];
            var code = COMPUTED;
            if (logits > 0u && drawn != NONE) { code = wu(drawn + first + logits - 1u); }
            if (last && i32(code) >= 0) {
                let n = state[q + SLOT_N_TOKENS];
                state[slot_tokens(slot) + n] = code;
                state[q + SLOT_N_TOKENS] = n + 1u;
                if (state[q + SLOT_LIMITED] != 0u) {
                    let left = max(state[q + SLOT_REMAINING], 1u) - 1u;
                    state[q + SLOT_REMAINING] = left;
                    ends = select(0u, 1u, left == 0u);
                }
                let stops = state[q + SLOT_STOPS];
                for (var j = 0u; j < state[q + SLOT_N_STOPS]; j++) {
                    if (state[stops + j] == code) { ends = 1u; }
                }
                state[q + SLOT_STOPPED] = ends;
            } else if (last) {
                state[q + SLOT_STOPPED] = select(0u, 1u, code != COMPUTED);
            }
        }
        for (var j = 0u; j < logits; j++) {
            var code = STOPPED;
            if (live) {
                code = COMPUTED;
                if (drawn != NONE) { code = wu(drawn + first + j); }
            }
            state[of_logits + 2u * (first + j)] = code;
            state[of_logits + 2u * (first + j) + 1u] = select(0u, ends, j + 1u == logits);
        }
    }
    if (p(5u) != 0u) {
        for (var i = lid; i < wanted * REPORT_WORDS; i += 256u) { state[of_reports + i] = wu(p(2u) + i); }
    }
}

// Rows of a value for later; zeros for those that did not run. In a chain those that ran stand together, and a step in
// which none did leaves what the last one left. Parameters: the plan, lead, width, whether chained, from (work); to `other`.
@compute @workgroup_size(128)
fn keep(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    let plan = p(0u);
    let lead = p(1u);
    let width = p(2u);
    let i = wg.x;
    var part = i;
    if (lead == LEAD_ROWS) { part = row_seq(i); }
    if (lead == LEAD_LOGITS) { part = words[wanted_at(plan, i) + WANTED_PART]; }
    let live = row_count(part) > 0u;
    var at = i;
    if (p(3u) != 0u) {
        if (!live) { return; }
        at = 0u;
        for (var q = 0u; q < part; q++) { at += select(0u, 1u, row_count(q) > 0u); }
    }
    for (var c = lid; c < width; c += 128u) {
        var x = 0u;
        if (live) { x = wu(p(4u) + i * width + c); }
        other[at * width + c] = x;
    }
}

// A port's value. Parameters: words, from (`words`, or `other` where p(4) is set), to (work), conversion: 0 none, 1 ints to floats,
// 2 floats to ints.
@compute @workgroup_size(256)
fn feed(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = wg.x * 256u + lid; i < p(0u); i += groups.x * 256u) {
        var x = 0u;
        if (p(4u) != 0u) { x = other[p(1u) + i]; } else { x = words[p(1u) + i]; }
        if (p(3u) == 1u) { x = bitcast<u32>(f32(i32(x))); }
        if (p(3u) == 2u) { x = bitcast<u32>(i32(bitcast<f32>(x))); }
        set_wu(p(2u) + i, x);
    }
}

// Parameters: from, to (words of `cache`), words.
@compute @workgroup_size(256)
fn copy_block(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = wg.x * 256u + lid; i < p(2u); i += groups.x * 256u) { cache[p(1u) + i] = cache[p(0u) + i]; }
}

// A plane of a block in canonical form, or from it. Parameters: the block's word, entries, to or from (`other`, `words`), nothing,
// and the plane.
@compute @workgroup_size(256)
fn export_plane(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let width = p(6u);
    for (var i = wg.x * 256u + lid; i < p(1u) * width; i += groups.x * 256u) {
        other[p(2u) + i] = bitcast<u32>(load_cached(4u, Place(p(0u), i / width), i % width));
    }
}

@compute @workgroup_size(256)
fn import_plane(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let width = p(6u);
    let runs = (width + 31u) / 32u;
    for (var i = wg.x * 256u + lid; i < p(1u) * runs; i += groups.x * 256u) {
        let entry = i / runs;
        let run = i % runs;
        for (var c = 0u; c < 32u; c++) {
            var x = 0.0;
            if (run * 32u + c < width) { x = bitcast<f32>(words[p(2u) + entry * width + run * 32u + c]); }
            run_values[c] = x;
        }
        store_run(4u, Place(p(0u), entry), run);
    }
}
