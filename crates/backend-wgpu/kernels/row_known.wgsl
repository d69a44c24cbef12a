// What a workgroup knows of a logit row, the same for all of its threads.

const K_RUNS: u32 = 16u;      // whether there is such a row
const K_LIVE: u32 = 17u;
const K_POSITION: u32 = 18u;
const K_MASK: u32 = 19u;      // word of `words`, 0 none
const K_MASK_WORDS: u32 = 20u;
const K_DRY: u32 = 21u;
const K_DRY_COUNT: u32 = 22u;
const K_BIAS: u32 = 23u;      // word of `state`
const K_N_BIAS: u32 = 24u;
const K_TOKENS: u32 = 25u;    // word of `state`
const K_BEST: u32 = 26u;
const K_WORDS: u32 = 27u;

// The sampler's record, then the words above.
var<workgroup> row_words: array<u32, K_WORDS>;

fn known_of(i: u32, lid: u32) -> array<u32, K_WORDS> {
    if (lid == 0u) { row_words[K_RUNS] = 0u; }
    if (i < rows_of(LEAD_LOGITS)) {
        let row = logit_row(i);
        let slot = seq_slot(row_seq(row));
        let s = slot_at(slot);
        let l = logit_at(i);
        if (lid < 16u) { row_words[lid] = state[s + SLOT_RECORD + lid]; }
        if (lid == 0u) {
            row_words[K_RUNS] = 1u;
            row_words[K_LIVE] = row_flags(row) & ROW_LIVE;
            row_words[K_POSITION] = place_of_row(row);
            row_words[K_MASK] = state[l + LOGIT_MASK];
            row_words[K_MASK_WORDS] = state[l + LOGIT_MASK_WORDS];
            row_words[K_DRY] = state[l + LOGIT_DRY];
            row_words[K_DRY_COUNT] = state[l + LOGIT_DRY_COUNT];
            row_words[K_BIAS] = state[s + SLOT_BIAS];
            row_words[K_N_BIAS] = state[s + SLOT_N_BIAS];
            row_words[K_TOKENS] = slot_tokens(slot);
            row_words[K_BEST] = state[l + LOGIT_BEST];
        }
    }
    return workgroupUniformLoad(&row_words);
}

// Whether lists or penalties change logits.
fn is_touched(k: array<u32, K_WORDS>) -> bool { return k[13] != 0u || k[K_N_BIAS] != 0u || k[K_DRY_COUNT] != 0u; }

// Whether nothing but the logits themselves decides.
fn is_plain(k: array<u32, K_WORDS>) -> bool { return k[0] == 0u && k[K_MASK] == 0u && !is_touched(k); }
