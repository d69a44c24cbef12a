// Which of a tile's rows are stored, and where sums of OUTPUTS outputs of TILE_ROWS rows go. Parameters are those of `matvec`, without experts.

var<workgroup> any_row: atomic<u32>;

// Whether a row is stored by this launch.
fn is_wanted(row: u32, count: u32) -> bool {
    if (row >= count) { return false; }
#if KIND
    return (row_flags(step_row(p(8u), row)) & ROW_PROMPT) != 0u;
#else
    return true;
#endif
}

fn is_any_wanted(first: u32, count: u32, lid: u32) -> bool {
    if (lid == 0u) { atomicStore(&any_row, 0u); }
    workgroupBarrier();
    if (lid < TILE_ROWS && is_wanted(first + lid, count)) { atomicStore(&any_row, 1u); }
    workgroupBarrier();
    return same(atomicLoad(&any_row), lid) != 0u;
}

fn store(row: u32, count: u32, o: u32, part: u32, sum: f32) {
    if (is_wanted(row, count)) { store_wanted(row, o, part, sum); }
}

fn store_wanted(row: u32, o: u32, part: u32, sum: f32) {
    if (o >= p(9u)) { return; }
    let at = p(15u) + o;
    var y = sum;
    if (p(5u) != NONE) { y *= vf(p(5u) + at % p(16u)); }
    if (p(6u) != NONE) { y += vf(p(6u) + at); }
    set_wf(p(4u) + row * p(13u) + part * p(14u) + at, y);
}
