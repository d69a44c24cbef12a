// Ops of a row alone: elementwise, columns, norms and statistics of runs, rotations, chosen rows.
#include "common.wgsl"
#include "reduce.wgsl"
#include "activations.wgsl"

// Elementwise kernels: lead, elements of a row, then their own parameters. Threads go on to further elements.
const EACH: u32 = 256u;

@compute @workgroup_size(256)
fn unary(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 2 function, 3..6 its numbers, 7 x, 8 y
    let total = rows_of(p(0u)) * p(1u);
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        if (p(2u) == F_IDENTITY) { set_wu(p(8u) + i, wu(p(7u) + i)); } else { set_wf(p(8u) + i, activate(2u, wf(p(7u) + i))); }
    }
}

@compute @workgroup_size(256)
fn suppress(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 2 first, 3 last, 4 x, 5 y
    let total = rows_of(p(0u)) * p(1u);
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        let c = i % p(1u);
        var x = wu(p(4u) + i);
        if (c >= p(2u) && c < p(3u)) { x = 0xff7fffffu; }
        set_wu(p(5u) + i, x);
    }
}

@compute @workgroup_size(256)
fn gate(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 2 function, 3..6 its numbers, 7 clamp, 8 limit, 9 gate, 10 up, 11 y
    let total = rows_of(p(0u)) * p(1u);
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        set_wf(p(11u) + i, gated(2u, wf(p(9u) + i), wf(p(10u) + i)));
    }
}

fn combined(kind: u32, a: f32, b: f32) -> f32 {
    switch kind {
        case 0u: { return a + b; }
        case 1u: { return a - b; }
        case 2u: { return a * b; }
        default: { return a / b; }
    }
}

// The second operand has `stride` columns a row (0: the same for all rows), and repeats after `period` columns or serves `run`
// columns each.
@compute @workgroup_size(256)
fn binary(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 2 kind, 3 and 4 scales, 5 stride, 6 period, 7 run, 8 a, 9 b, 10 y, 11 whether b is a weight
    let width = p(1u);
    let total = rows_of(p(0u)) * width;
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        let row = i / width;
        let c = i % width;
        var at = c % p(6u);
        if (p(7u) > 1u) { at = c / p(7u); }
        at += p(9u) + row * p(5u);
        var b = 0.0;
        if (p(11u) != 0u) { b = vf(at); } else { b = wf(at); }
        set_wf(p(10u) + i, combined(p(2u), wf(p(8u) + i) * pf(3u), b * pf(4u)));
    }
}

// Runs of columns from one place to another: slices, joins and repetitions. Run r comes from first + r / times * stride.
@compute @workgroup_size(256)
fn columns(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 1 columns of x, 2 of y, 3 runs, 4 run, 5 first, 6 stride, 7 times, 8 first of y, 9 stride of y, 10 x, 11 y
    let per_row = p(3u) * p(4u);
    let total = rows_of(p(0u)) * per_row;
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        let row = i / per_row;
        let e = i % per_row;
        let r = e / p(4u);
        let o = e % p(4u);
        let to = row * p(2u) + p(8u) + r * p(9u) + o;
        set_wu(p(11u) + to, wu(p(10u) + row * p(1u) + p(5u) + r / p(7u) * p(6u) + o));
    }
}

@compute @workgroup_size(256)
fn select_rows(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 2 x, 3 y
    let width = p(1u);
    let total = rows_of(p(0u)) * width;
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        set_wu(p(3u) + i, wu(p(2u) + logit_row(i / width) * width + i % width));
    }
}

@compute @workgroup_size(256)
fn pool(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 2 kind, 3 x, 4 y
    let width = p(1u);
    let total = rows_of(p(0u)) * width;
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        let q = i / width;
        let start = p(3u) + first_row(q) * width + i % width;
        let n = row_count(q);
        var sum = 0.0;
        if (n > 0u && p(2u) == 1u) { sum = wf(start); }
        if (n > 0u && p(2u) == 2u) { sum = wf(start + (n - 1u) * width); }
        if (n > 0u && p(2u) == 0u) {
            for (var r = 0u; r < n; r++) { sum += wf(start + r * width); }
            sum /= f32(n);
        }
        set_wf(p(4u) + i, sum);
    }
}

// A workgroup for each run of a row: x = run, y = row.
@compute @workgroup_size(THREADS)
fn normalise(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    // 0 lead, 1 width, 2 run, 3 kind, 4 eps, 5 weight, 6 its length, 7 bias, 8 its length, 9 x, 10 y
    let inside = same(select(0u, 1u, wg.y < rows_of(p(0u))), lid);
    if (inside == 0u) { return; }
    let run = p(2u);
    let kind = p(3u);
    let first = wg.x * run;
    let x = p(9u) + wg.y * p(1u) + first;
    let y = p(10u) + wg.y * p(1u) + first;
    var mean = 0.0;
    if (kind == 1u) {
        for (var c = lid; c < run; c += THREADS) { mean += wf(x + c); }
        mean = sum_block(mean, lid) / f32(run);
    }
    var squares = 0.0;
    for (var c = lid; c < run; c += THREADS) {
        let v = wf(x + c) - mean;
        squares = fma(v, v, squares);
    }
    squares = sum_block(squares, lid);
    var root = sqrt(squares / f32(run) + pf(4u));
    if (kind == 2u) { root = sqrt(squares + pf(4u)); }
    if (kind == 3u) { root = max(sqrt(squares), pf(4u)); }
    for (var c = lid; c < run; c += THREADS) {
        var v = (wf(x + c) - mean) / root;
        if (p(5u) != NONE) { v *= vf(p(5u) + (first + c) % p(6u)); }
        if (p(7u) != NONE) { v += vf(p(7u) + (first + c) % p(8u)); }
        set_wf(y + c, v);
    }
}

const RUN_SOFTMAX: u32 = 0u;
const RUN_SUM: u32 = 1u;
const RUN_RMS: u32 = 2u;
const RUN_CUT: u32 = 3u;

@compute @workgroup_size(THREADS)
fn runs(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>) {
    // 0 lead, 1 width, 2 run, 3 kind, 4 number, 5 x, 6 y
    let inside = same(select(0u, 1u, wg.y < rows_of(p(0u))), lid);
    if (inside == 0u) { return; }
    let run = p(2u);
    let kind = p(3u);
    let n = p(1u) / run;
    let x = p(5u) + wg.y * p(1u) + wg.x * run;
    let y = p(6u) + wg.y * p(1u) + wg.x * run;
    if (kind == RUN_SOFTMAX) {
        var most = -inf();
        for (var c = lid; c < run; c += THREADS) { most = max(most, wf(x + c)); }
        most = max_block(most, lid);
        var sum = 0.0;
        for (var c = lid; c < run; c += THREADS) { sum += exp(wf(x + c) - most); }
        sum = sum_block(sum, lid);
        for (var c = lid; c < run; c += THREADS) { set_wf(y + c, exp(wf(x + c) - most) / sum); }
        return;
    }
    var sum = 0.0;
    for (var c = lid; c < run; c += THREADS) {
        let v = wf(x + c);
        if (kind == RUN_RMS) { sum += v * v; } else { sum += v; }
    }
    sum = sum_block(sum, lid);
    if (kind == RUN_CUT) {
        let mean = sum / f32(run);
        var squares = 0.0;
        for (var c = lid; c < run; c += THREADS) {
            let v = wf(x + c) - mean;
            squares += v * v;
        }
        let deviation = sqrt(sum_block(squares, lid) / f32(run));
        for (var c = lid; c < run; c += THREADS) { set_wf(y + c, max((wf(x + c) - mean) - pf(4u) * deviation, 0.0)); }
        return;
    }
    if (lid == 0u) {
        if (kind == RUN_RMS) { sum = sqrt(sum / f32(run) + pf(4u)); }
        set_wf(p(6u) + wg.y * n + wg.x, sum);
    }
}

// A thread for each row; matrices are small.
@compute @workgroup_size(32)
fn sinkhorn(@builtin(global_invocation_id) id: vec3<u32>) {
    // 0 lead, 1 n, 2 iterations, 3 eps, 4 x, 5 y
    let row = id.x;
    if (row >= rows_of(p(0u))) { return; }
    let n = p(1u);
    let x = p(4u) + row * n * n;
    let y = p(5u) + row * n * n;
    for (var r = 0u; r < n; r++) {
        var most = -inf();
        var sum = 0.0;
        for (var c = 0u; c < n; c++) { most = max(most, wf(x + r * n + c)); }
        for (var c = 0u; c < n; c++) { sum += exp(wf(x + r * n + c) - most); }
        for (var c = 0u; c < n; c++) { set_wf(y + r * n + c, exp(wf(x + r * n + c) - most) / sum + pf(3u)); }
    }
    for (var i = 0u; i < 2u * p(2u) - 1u; i++) {
        // Even turns divide columns, odd ones rows.
        let along = select(1u, n, i % 2u == 0u);
        let across = select(n, 1u, i % 2u == 0u);
        for (var r = 0u; r < n; r++) {
            var sum = 0.0;
            for (var c = 0u; c < n; c++) { sum += wf(y + r * across + c * along); }
            sum += pf(3u);
            for (var c = 0u; c < n; c++) {
                let at = y + r * across + c * along;
                set_wf(at, wf(at) / sum);
            }
        }
    }
}

// The upper word of a product.
fn mul_high(a: u32, b: u32) -> u32 {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let m1 = ah * bl + (low >> 16u);
    let m2 = al * bh + (m1 & 0xffffu);
    return ah * bh + (m1 >> 16u) + (m2 >> 16u);
}

// Cosine and sine of each pair at each row of the step. A pair's frequency comes as turns per position, a fraction of 64 bits, so
// that far positions keep their angles: 1 pairs, 2 fractions (low and high words), 3 channels, 4 magnitude, 5 whether backwards,
// 6 positions back, 7 to.
@compute @workgroup_size(256)
fn turns(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let pairs = p(1u);
    let total = rows_of(LEAD_ROWS) * pairs;
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        let row = i / pairs;
        let pair = i % pairs;
        var channel = 0u;
        if (p(3u) != NONE) { channel = vecs[p(3u) + pair]; }
        var pos = row_pos(row, channel);
        pos = select(0u, pos - p(6u), pos > p(6u));
        let low = vecs[p(2u) + 2u * pair];
        let high = vecs[p(2u) + 2u * pair + 1u];
        let turn = pos * high + mul_high(pos, low);
        // The nearest quarter turn, and an angle of at most an eighth from there.
        let quarter = (turn + 0x20000000u) >> 30u;
        let x = f32(i32(turn - (quarter << 30u))) * 1.4629180792671596e-9;
        let q = x * x;
        let sine = x * (1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * (1.0 / 362880.0)))));
        let cosine = 1.0 + q * (-0.5 + q * (1.0 / 24.0 + q * (-1.0 / 720.0 + q * (1.0 / 40320.0))));
        var c = cosine;
        var s = sine;
        if (quarter == 1u) { c = -sine; s = cosine; }
        if (quarter == 2u) { c = -cosine; s = -sine; }
        if (quarter == 3u) { c = sine; s = -cosine; }
        if (p(5u) != 0u) { s = -s; }
        set_wf(p(7u) + 2u * i, c * pf(4u));
        set_wf(p(7u) + 2u * i + 1u, s * pf(4u));
    }
}

@compute @workgroup_size(256)
fn rope(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 2 head_dim, 3 offset, 4 pairs, 5 halves, 6 turns, 7 x, 8 y
    let width = p(1u);
    let pairs = p(4u);
    let total = rows_of(p(0u)) * width;
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        var c = i % width % p(2u);
        let start = p(7u) + i;
        if (c < p(3u) || c >= p(3u) + 2u * pairs) {
            set_wu(p(8u) + i, wu(start));
            continue;
        }
        c -= p(3u);
        var pair = c / 2u;
        var second = c % 2u == 1u;
        var apart = 1u;
        if (p(5u) != 0u) {
            pair = c % pairs;
            second = c >= pairs;
            apart = pairs;
        }
        let t = p(6u) + (step_row(p(0u), i / width) * pairs + pair) * 2u;
        let cosine = wf(t);
        let sine = wf(t + 1u);
        var y = 0.0;
        if (second) { y = wf(start - apart) * sine + wf(start) * cosine; } else { y = wf(start) * cosine - wf(start + apart) * sine; }
        set_wf(p(8u) + i, y);
    }
}

@compute @workgroup_size(256)
fn pos_scale(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 2 strength, 3 length, 4 offset, 5 x, 6 y
    let total = rows_of(p(0u)) * p(1u);
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        let pos = f32(row_pos(step_row(p(0u), i / p(1u)), 0u)) + pf(4u);
        var steps = floor(pos / pf(3u));
        if (steps * pf(3u) > pos) { steps -= 1.0; }
        if ((steps + 1.0) * pf(3u) <= pos) { steps += 1.0; }
        set_wf(p(6u) + i, wf(p(5u) + i) * (1.0 + pf(2u) * log(steps + 1.0)));
    }
}

// `Σ_j weights[j] · x[j]`.
@compute @workgroup_size(256)
fn combine(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    // 1 n, 2 k, 3 x, 4 weights, 5 y
    let n = p(1u);
    let k = p(2u);
    let total = rows_of(p(0u)) * n;
    for (var i = wg.x * EACH + lid; i < total; i += groups.x * EACH) {
        let row = i / n;
        let c = i % n;
        var sum = 0.0;
        for (var j = 0u; j < k; j++) { sum = fma(wf(p(4u) + row * k + j), wf(p(3u) + (row * k + j) * n + c), sum); }
        set_wf(p(5u) + i, sum);
    }
}
