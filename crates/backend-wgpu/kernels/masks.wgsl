// Parameters of attention, and what a mask shows.
#include "common.wgsl"

const MASK_CAUSAL: u32 = 0u;
const MASK_WINDOW: u32 = 2u;
const MASK_CHUNK: u32 = 3u;
const MASK_SYMMETRIC: u32 = 4u;
const FROM_ROWS: u32 = 1u;
const FROM_CROSS: u32 = 2u;

// Parameters behind two caches, that of positions and that of entries.
const A_Q: u32 = 24u;
const A_K: u32 = 25u;
const A_V: u32 = 26u;
const A_SINKS: u32 = 27u;
const A_SLOPES: u32 = 28u;
const A_BIAS: u32 = 29u;       // [buckets, heads]
const A_BUCKETS: u32 = 30u;    // by distance: of keys up to the row, then of those after it
const A_CHOSEN: u32 = 31u;
const A_OUT: u32 = 32u;
const A_DISTANCES: u32 = 33u;
const A_HEADS: u32 = 34u;
const A_KV_HEADS: u32 = 35u;
const A_DIM_K: u32 = 36u;
const A_DIM_V: u32 = 37u;
const A_STRIDE_V: u32 = 38u;   // columns from a value head to the next
const A_K_WIDTH: u32 = 39u;    // of the step's own rows
const A_V_WIDTH: u32 = 40u;
const A_SCALE: u32 = 41u;
const A_CAP: u32 = 42u;        // no cap: 0
const A_MASK: u32 = 43u;
const A_MASK_N: u32 = 44u;
const A_SOURCE: u32 = 45u;
const A_HAS_ENTRIES: u32 = 46u;
const A_CHOSEN_WIDTH: u32 = 47u;
const A_CHOICES: u32 = 48u;
const A_UNIT: u32 = 49u;
const A_TAIL: u32 = 50u;
const A_PARTIAL: u32 = 51u;    // what workgroups leave, where a row's keys are divided among them
const A_SPLIT: u32 = 52u;      // 0 not divided, 1 by units, 2 by spans
const A_PARTS: u32 = 53u;      // parts of a row, where that does not follow from the longest sequence

// The first key that a row's mask shows, and the one after the last.
fn seen_range(row: u32) -> vec2<u32> {
    let seq = row_seq(row);
    let past = past_len(seq);
    let pos = place_of_row(row);
    let mask = p(A_MASK);
    let n = p(A_MASK_N);
    var low = 0u;
    var high = past + row_count(seq);
    if (p(A_SOURCE) == FROM_ROWS) { low = past; }
    if (p(A_SOURCE) == FROM_CROSS) { high = state[slot_at(seq_slot(seq)) + SLOT_ENC_LEN]; }
    if (mask == MASK_CAUSAL || mask == MASK_WINDOW || mask == MASK_CHUNK) { high = min(high, pos + 1u); }
    if (mask == MASK_WINDOW && pos + 1u > n) { low = max(low, pos + 1u - n); }
    if (mask == MASK_CHUNK) { low = max(low, pos / n * n); }
    if (mask == MASK_SYMMETRIC) {
        let side = n / 2u;
        if (pos > side) { low = max(low, pos - side); }
        high = min(high, pos + side + 1u);
    }
    return vec2<u32>(low, high);
}
