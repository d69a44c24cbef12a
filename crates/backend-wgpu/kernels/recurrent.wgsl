// Convolutions, shifts and recurrences along a sequence. A sequence that does not run keeps its state.

#include "common.wgsl"
#include "cache.wgsl"

const THREADS: u32 = 128u;
#include "reduce.wgsl"

// A number of a state, zero where there is none.
fn kept(old: u32, i: u32) -> f32 {
    if (old == NONE) { return 0.0; }
    return bitcast<f32>(cache[old + i]);
}

fn keep(to: u32, i: u32, x: f32) { cache[to + i] = bitcast<u32>(x); }

// The number `i` of a line of what is kept and then of the step's rows.
fn of_line(old: u32, x: u32, i: u32, tail: u32, width: u32, ch: u32) -> f32 {
    if (i < tail) { return kept(old, i * width + ch); }
    return wf(x + (i - tail) * width);
}

// A thread for each channel of a sequence; taps lie oldest first. 0 cache, 12 width, 13 taps, 14 weight, 15 bias, 16 x, 17 y.
@compute @workgroup_size(THREADS)
fn conv(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let width = p(12u);
    let taps = p(13u);
    let ch = wg.x * THREADS + lid;
    let seq = wg.y;
    if (seq >= rows_of(LEAD_SEQS) || ch >= width) { return; }
    let n = row_count(seq);
    if (n == 0u) { return; }
    let tail = taps - 1u;
    let keeps = keeps_states(seq);
    let old = state_before(0u, seq, 0u);
    let x = p(16u) + first_row(seq) * width + ch;
    let y = p(17u) + first_row(seq) * width + ch;
    var bias = 0.0;
    if (p(15u) != NONE) { bias = vf(p(15u) + ch); }
    for (var r = 0u; r < n; r++) {
        var sum = bias;
        for (var i = 0u; i < taps; i++) {
            sum = fma(vf(p(14u) + ch * taps + i), of_line(old, x, r + i, tail, width, ch), sum);
        }
        set_wf(y + r * width, sum);
        if (!keeps && r + 1u < n) { continue; }
        let to = state_after(0u, seq, r);
        // In rising order, since the state may lie in its own place.
        for (var i = 0u; i < tail; i++) { keep(to, i * width + ch, of_line(old, x, r + 1u + i, tail, width, ch)); }
    }
}

// Taps centred over the step's own rows. 0 width, 1 taps, 2 weight, 3 bias, 4 x, 5 y.
@compute @workgroup_size(THREADS)
fn conv_centred(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let width = p(0u);
    let taps = p(1u);
    let ch = wg.x * THREADS + lid;
    let row = wg.y;
    if (row >= rows_of(LEAD_ROWS) || ch >= width) { return; }
    let seq = row_seq(row);
    let first = first_row(seq);
    let n = row_count(seq);
    if (n == 0u) { return; }
    let before = (taps - 1u) / 2u;
    var sum = 0.0;
    if (p(3u) != NONE) { sum = vf(p(3u) + ch); }
    for (var i = 0u; i < taps; i++) {
        // Beyond either end: what is before the first row is a large number.
        let r = row - first + i - before;
        if (r < n) { sum = fma(vf(p(2u) + ch * taps + i), wf(p(4u) + (first + r) * width + ch), sum); }
    }
    set_wf(p(5u) + row * width + ch, sum);
}

// Frames of a sequence's rows, zeros around them: 32 threads for each output of a frame. 0 weight, 1 bias, 2 x, 3 y, 4 outputs,
// 5 channels, 6 taps, 7 stride, 8 padding, 9 frames of a row of x.
@compute @workgroup_size(THREADS)
fn conv1d(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let outputs = p(4u);
    let channels = p(5u);
    let frames = p(9u);
    let per_row = frames / p(7u);
    let lane = lid & 31u;
    let o = wg.x * (THREADS / 32u) + (lid >> 5u);
    let row = wg.y;
    var sum = 0.0;
    var inside = row < rows_of(LEAD_ROWS) && o < per_row * outputs;
    if (inside) {
        let seq = row_seq(row);
        let first = first_row(seq);
        let count = row_count(seq);
        inside = count != 0u;
        let start = ((row - first) * per_row + o / outputs) * p(7u) - p(8u);
        let x = p(2u) + first * frames * channels;
        let w = p(0u) + (o % outputs) * p(6u) * channels;
        for (var i = lane; i < p(6u) * channels; i += 32u) {
            // Before the first frame: a large number.
            let frame = start + i / channels;
            if (frame < count * frames) { sum = fma(vf(w + i), wf(x + frame * channels + i % channels), sum); }
        }
    }
    sum = sum_lanes(sum, lid);
    if (inside && lane == 0u) {
        if (p(1u) != NONE) { sum += vf(p(1u) + o % outputs); }
        set_wf(p(3u) + row * per_row * outputs + o, sum);
    }
}

// The row before each row. 0 cache, 12 width, 13 x, 14 y.
@compute @workgroup_size(THREADS)
fn shift(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let width = p(12u);
    let ch = wg.x * THREADS + lid;
    let seq = wg.y;
    if (seq >= rows_of(LEAD_SEQS) || ch >= width) { return; }
    let n = row_count(seq);
    if (n == 0u) { return; }
    let keeps = keeps_states(seq);
    var before = kept(state_before(0u, seq, 0u), ch);
    for (var r = 0u; r < n; r++) {
        let at = (first_row(seq) + r) * width + ch;
        let x = wf(p(13u) + at);
        set_wf(p(14u) + at, before);
        before = x;
        if (keeps || r + 1u == n) { keep(state_after(0u, seq, r), ch, before); }
    }
}

const SCAN_MAMBA1: u32 = 0u;
const SCAN_MAMBA2: u32 = 1u;
const SCAN_WKV6: u32 = 2u;
const SCAN_GLA: u32 = 3u;
const SCAN_WKV7: u32 = 4u;
const SCAN_DELTA: u32 = 5u;
const SCAN_DECAY: u32 = 6u;

// Of scans: 0 cache, 12 to 17 inputs, 18 output, 19 to 21 weights (a or first or slopes, d, bias of dt), 22 kind, 23 columns of the
// output, 24 heads, 25 key heads, 26 columns of a state or of a key head, 27 columns of a value head, 28 groups, 29 whether key
// heads are tiled, 30 whether decays are as wide as keys, 31 what multiplies the output.

// States whose rows are an output's own: 32 threads for each, along the state's columns.
@compute @workgroup_size(THREADS)
fn scan_rows(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let seq = wg.y;
    let i = wg.x * (THREADS / 32u) + (lid >> 5u);
    let lane = lid & 31u;
    let kind = p(22u);
    let n = p(26u);
    let inside = i < p(23u);
    var own = 0u;
    if (seq < rows_of(LEAD_SEQS)) { own = row_count(seq); }
    let count = same(own, lid);
    for (var r = 0u; r < count; r++) {
        let row = first_row(seq) + r;
        var old = state_before(0u, seq, r);
        if (old != NONE) { old += i * n; }
        let to = state_after(0u, seq, r) + i * n;
        var y = 0.0;
        if (kind == SCAN_WKV7) {
            let at = row * p(23u) + i / p(27u) * n;
            var removed = 0.0;
            if (inside) {
                for (var j = lane; j < n; j += 32u) { removed -= kept(old, j) * wf(p(16u) + at + j); }
            }
            removed = sum_lanes(removed, lid);
            if (inside) {
                let v = wf(p(15u) + row * p(23u) + i);
                for (var j = lane; j < n; j += 32u) {
                    let x = wf(p(13u) + at + j) * kept(old, j) + v * wf(p(14u) + at + j)
                        + removed * wf(p(16u) + at + j) * wf(p(17u) + at + j);
                    keep(to, j, x);
                    y += x * wf(p(12u) + at + j);
                }
            }
            y = sum_lanes(y, lid);
        } else {
            let one = kind == SCAN_MAMBA1;
            let head = i / p(27u);
            var skip = 0.0;
            if (inside) {
                let group = select(head / (p(24u) / p(28u)) * n, 0u, one);
                let bc = row * select(p(28u) * n, n, one) + group;
                let x = wf(p(12u) + row * p(23u) + i);
                var delta = wf(p(13u) + row * p(24u) + head);
                if (p(21u) != NONE) { delta += vf(p(21u) + head); }
                delta = softplus(delta);
                for (var j = lane; j < n; j += 32u) {
                    let a = vf(p(19u) + select(head, i * n + j, one));
                    let z = exp(delta * a) * kept(old, j) + delta * x * wf(p(14u) + bc + j);
                    keep(to, j, z);
                    y += z * wf(p(15u) + bc + j);
                }
                skip = vf(p(20u) + head) * x;
            }
            y = sum_lanes(y, lid) + skip;
        }
        if (inside && lane == 0u) { set_wf(p(18u) + row * p(23u) + i, y); }
    }
}

// States whose columns are an output's own: a thread for each, over the rows of the state.
@compute @workgroup_size(64)
fn scan_columns(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let width = p(23u);
    let o = wg.x * 64u + lid;
    let seq = wg.y;
    if (seq >= rows_of(LEAD_SEQS) || o >= width) { return; }
    let kind = p(22u);
    let n = p(26u);
    let columns = p(27u);
    let h = o / columns;
    let own = h * n * columns + o % columns;
    var key_head = h;
    if (kind == SCAN_DELTA) { key_head = select(h / (p(24u) / p(25u)), h % p(25u), p(29u) != 0u); }
    let keys = p(25u) * n;
    var decay = 0.0;
    if (kind == SCAN_DECAY) { decay = exp(-vf(p(19u) + h)); }
    for (var r = 0u; r < row_count(seq); r++) {
        let row = first_row(seq) + r;
        var old = state_before(0u, seq, r);
        if (old != NONE) { old += own; }
        let to = state_after(0u, seq, r) + own;
        let q = p(12u) + row * keys + key_head * n;
        let k = p(13u) + row * keys + key_head * n;
        let v = wf(p(14u) + row * width + o);
        var y = 0.0;
        if (kind == SCAN_DELTA) {
            let wide = p(30u) != 0u;
            let g = p(15u) + select(row * p(24u) + h, (row * p(24u) + h) * n, wide);
            var error = v;
            var keeping = exp(wf(g));
            for (var i = 0u; i < n; i++) {
                if (wide) { keeping = exp(wf(g + i)); }
                let x = keeping * kept(old, i * columns);
                keep(to, i * columns, x);
                error -= x * wf(k + i);
            }
            error *= wf(p(16u) + row * p(24u) + h);
            for (var i = 0u; i < n; i++) {
                let x = kept(to, i * columns) + wf(k + i) * error;
                keep(to, i * columns, x);
                y += wf(q + i) * x;
            }
            y *= bitcast<f32>(p(31u));
        } else {
            let w = p(15u) + row * keys + key_head * n;
            for (var i = 0u; i < n; i++) {
                let x = kept(old, i * columns);
                let kv = wf(k + i) * v;
                var turned = decay;
                if (kind != SCAN_DECAY) { turned = wf(w + i); }
                let next = turned * x + kv;
                keep(to, i * columns, next);
                if (kind == SCAN_WKV6) {
                    y += wf(q + i) * (vf(p(19u) + h * n + i) * kv + x);
                } else {
                    y += wf(q + i) * next;
                }
            }
            if (kind == SCAN_GLA) { y *= bitcast<f32>(p(31u)); }
        }
        set_wf(p(18u) + row * width + o, y);
    }
}
