// Paged caches: where a position lies and how its numbers are kept. A cache slot takes 12 parameters from `c` on: the word of
// `state` at which slot 0's table begins, the table's length, positions of a block, positions of an entry, then of keys and of
// values (those of the keys where there are none): words into the block, of scales, columns, type (0 F32, 1 F16, 30 BF16,
// 8 Q8_0). An entry of a plane is whole words.

struct Place {
    block: u32,  // word of `cache`; NONE where the position has no block
    entry: u32,
}

fn place(c: u32, slot: u32, pos: u32) -> Place {
    let i = pos / p(c + 2u);
    let len = p(c + 1u);
    if (i >= len) { return Place(NONE, 0u); }
    let block = state[p(c) + slot * len + i];
    if (block == NO_BLOCK) { return Place(NONE, 0u); }
    return Place(block * 64u, (pos % p(c + 2u)) / p(c + 3u));
}

// The type of a plane: known before a kernel is made where there is `CACHE`, one more than the type.
fn cached_type(q: u32) -> u32 {
#if CACHE
    return CACHE - 1u;
#else
    return p(q + 3u);
#endif
}

// A number of the plane whose parameters begin at `q`.
fn load_cached(q: u32, at: Place, column: u32) -> f32 {
    let width = p(q + 2u);
    let base = at.block + p(q);
    let dtype = cached_type(q);
    if (dtype == 0u) { return bitcast<f32>(cache[base + at.entry * width + column]); }
    if (dtype == 8u) {
        let runs = (width + 31u) / 32u;
        let scale = half(cache[at.block + p(q + 1u) + at.entry * runs + column / 32u]);
        let word = cache[base + at.entry * runs * 8u + column / 4u];
        return f32(extractBits(i32(word), (column & 3u) * 8u, 8u)) * scale;
    }
    let word = cache[base + at.entry * ((width + 1u) / 2u) + column / 2u];
    let bits = (word >> ((column & 1u) * 16u)) & 0xffffu;
    if (dtype == 1u) { return half(bits); }
    return bfloat(bits);
}

// Four numbers from a column on, which is a multiple of 4; columns beyond the width are anything.
fn load_four(q: u32, at: Place, column: u32) -> vec4<f32> {
    let width = p(q + 2u);
    let base = at.block + p(q);
    let dtype = cached_type(q);
    if (dtype == 1u) {
        let w = base + at.entry * ((width + 1u) / 2u) + column / 2u;
        return vec4<f32>(unpack2x16float(cache[w]), unpack2x16float(cache[w + 1u]));
    }
    if (dtype == 0u) {
        let w = base + at.entry * width + column;
        return bitcast<vec4<f32>>(vec4<u32>(cache[w], cache[w + 1u], cache[w + 2u], cache[w + 3u]));
    }
    if (dtype == 8u) {
        let runs = (width + 31u) / 32u;
        let scale = half(cache[at.block + p(q + 1u) + at.entry * runs + column / 32u]);
        let word = i32(cache[base + at.entry * runs * 8u + column / 4u]);
        let codes = vec4<i32>(extractBits(word, 0u, 8u), extractBits(word, 8u, 8u), extractBits(word, 16u, 8u), extractBits(word, 24u, 8u));
        return vec4<f32>(codes) * scale;
    }
    let w = base + at.entry * ((width + 1u) / 2u) + column / 2u;
    return vec4<f32>(bfloat(cache[w] & 0xffffu), bfloat(cache[w] >> 16u), bfloat(cache[w + 1u] & 0xffffu), bfloat(cache[w + 1u] >> 16u));
}

// Whether states of a sequence are kept row by row: in the block of place 0, or from place j to place j + 1 with row j.
fn keeps_states(seq: u32) -> bool { return (row_flags(first_row(seq)) & ROW_KEEPS) != 0u; }

fn state_at(c: u32, seq: u32, i: u32) -> u32 {
    return state[p(c) + seq_slot(seq) * p(c + 1u) + i] * 64u + p(c + 4u);
}

// The state before row `j` of a sequence, a word of `cache`; NONE where it is zeros.
fn state_before(c: u32, seq: u32, j: u32) -> u32 {
    if (j == 0u && past_len(seq) == 0u) { return NONE; }
    return state_at(c, seq, select(0u, j, keeps_states(seq)));
}

fn state_after(c: u32, seq: u32, j: u32) -> u32 {
    return state_at(c, seq, select(0u, j + 1u, keeps_states(seq)));
}

var<private> run_values: array<f32, 32>;

// Stores `run_values` as a run of 32 columns; one thread.
fn store_run(q: u32, at: Place, run: u32) {
    let width = p(q + 2u);
    let base = at.block + p(q);
    let dtype = cached_type(q);
    let n = min(width - run * 32u, 32u);
    if (dtype == 0u) {
        for (var c = 0u; c < n; c++) { cache[base + at.entry * width + run * 32u + c] = bitcast<u32>(run_values[c]); }
        return;
    }
    if (dtype == 8u) {
        var most = 0.0;
        var broken = false;
        for (var c = 0u; c < 32u; c++) {
            most = max(most, abs(run_values[c]));
            if (is_nan(run_values[c])) { broken = true; }
        }
        let step = most / 127.0;
        let inverse = select(1.0 / step, 0.0, step == 0.0);
        let runs = (width + 31u) / 32u;
        for (var w = 0u; w < 8u; w++) {
            var word = 0u;
            for (var b = 0u; b < 4u; b++) {
                let x = run_values[w * 4u + b] * inverse;
                let code = i32(sign(x) * floor(abs(x) + 0.5));
                word |= (u32(code) & 0xffu) << (b * 8u);
            }
            cache[base + (at.entry * runs + run) * 8u + w] = word;
        }
        cache[at.block + p(q + 1u) + at.entry * runs + run] = select(to_half(step), 0x7e00u, broken);
        return;
    }
    for (var w = 0u; w < (n + 1u) / 2u; w++) {
        let x = run_values[w * 2u];
        let y = run_values[w * 2u + 1u];
        var word = 0u;
        if (dtype == 1u) { word = to_half(x) | (to_half(y) << 16u); } else { word = to_bfloat(x) | (to_bfloat(y) << 16u); }
        cache[base + at.entry * ((width + 1u) / 2u) + run * 16u + w] = word;
    }
}
