// Where products of one value lie, how a run of dots joins a sum, and what becomes of sums, for 32 threads that have `EACH` rows of weights and make `MADE` outputs
// of them: as many, or half as many where a gate's row comes before that of what it gates.

// Parameters: 0 words of a row of weights, 1 x, 2 lead, 3 columns, 4 weight of the norm (NONE: it has none), 5 eps, 6 what is added,
// 7 parts, 8..14 the gate's function and clamp; then of each part eight.
const PART: u32 = 16u;
const PART_W: u32 = 0u;
const PART_Y: u32 = 1u;
const PART_END: u32 = 2u;      // the workgroup behind its last one
const PART_N: u32 = 3u;
const PART_SCALE: u32 = 4u;
const PART_SCALE_LEN: u32 = 5u;
const PART_BIAS: u32 = 6u;

// Teams of 32 threads, and outputs of a workgroup.
const TEAMS: u32 = THREADS / 32u;
const OUTPUTS: u32 = TEAMS * MADE;

// What a sum becomes: scaled, with its bias.
fn output(q: u32, o: u32, sum: f32) -> f32 {
    var y = sum;
    if (p(q + PART_SCALE) != NONE) { y *= vf(p(q + PART_SCALE) + o % p(q + PART_SCALE_LEN)); }
    if (p(q + PART_BIAS) != NONE) { y += vf(p(q + PART_BIAS) + o); }
    return y;
}

// An output of a row, with what is added to it.
fn store(q: u32, row: u32, o: u32, sum: f32, added: f32) {
    var y = output(q, o, sum);
    if (p(6u) != NONE) { y += added; }
    set_wf(p(q + PART_Y) + row * p(q + PART_N) + o, y);
}

// A row of the run, or the last one that is there. One alone is there, and need not wait for how many are.
fn row_of(first: u32, t: u32, last: u32) -> u32 {
#if ROWS == 1
    return first;
#else
    return min(first + t, last);
#endif
}

// Where the outputs of 32 threads lie: their part, the first of them, and their rows of weights.
struct Team { q: u32, o: u32, w: array<u32, EACH> }

fn team_of(group: u32, team: u32) -> Team {
    var before = 0u;
    var q = PART;
#if GATED == 0
    for (var i = 1u; i < p(7u); i++) {
        if (group >= p(q + PART_END)) {
            before = p(q + PART_END);
            q += 8u;
        }
    }
#endif
    let last = p(q + PART_N) - 1u;
    let row = p(0u);
    let o = (group - before) * OUTPUTS + team * MADE;
    return Team(q, o, array<u32, EACH>(
#for e EACH
#if GATED
        p(q + ($eu & 1u) * 8u + PART_W) + min(o + $eu / 2u, last) * row,
#else
        p(q + PART_W) + min(o + $eu, last) * row,
#endif
#end
    ));
}

// Workgroups of all parts.
fn groups_of() -> u32 {
#if GATED
    return p(PART + PART_END);
#else
    return p(PART + PART_END + 8u * (p(7u) - 1u));
#endif
}

#if DOTS
// A row's sum with a run of an output: its dots by halves, what of codes is to be taken off, and what they stand for.
fn with_run(sum: f32, dots: vec2<i32>, of_x: vec4<u32>, f: vec2<f32>) -> f32 {
    let x = vec2<i32>(bitcast<i32>(of_x.x), bitcast<i32>(of_x.y));
    let d = bitcast<f32>(of_x.z);
    let own = dots - OFFSET * x;
#if FORMAT == 14
    return fma(f.y * d, f32(own.y), fma(f.x * d, f32(own.x), sum));
#else
    let with_scale = fma(f.x * d, f32(own.x + own.y), sum);
    if (MINS) { return fma(-f.y * d, f32(x.x + x.y), with_scale); }
    return with_scale;
#endif
}
#endif
