// Where rows lie as integers: of every 32 runs of 32 columns the first vectors of all, then the second ones, and so on, so that 32 threads
// read what lies together. A run has four vectors of bytes, and one of the sums of either half and their scale.
const LANES: u32 = 32u;

fn row_vecs(k: u32) -> u32 { return (k + 1023u) / 1024u * 5u * LANES; }
fn vec_of(run: u32) -> u32 { return (run >> 5u) * 5u * LANES + (run & 31u); }
