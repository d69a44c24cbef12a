// Of integers of 64 bits over a workgroup of `THREADS` threads, a power of two, which call them together.

var<workgroup> lane_words: array<Wide, THREADS>;

fn largest(x: Wide, lid: u32) -> Wide {
    workgroupBarrier();
    lane_words[lid] = x;
    for (var d = THREADS / 2u; d > 0u; d >>= 1u) {
        workgroupBarrier();
        if (lid < d) {
            let other = lane_words[lid + d];
            if (at_least(other, lane_words[lid])) { lane_words[lid] = other; }
        }
    }
    return workgroupUniformLoad(&lane_words[0]);
}

fn total(x: Wide, lid: u32) -> Wide {
    workgroupBarrier();
    lane_words[lid] = x;
    for (var d = THREADS / 2u; d > 0u; d >>= 1u) {
        workgroupBarrier();
        if (lid < d) { lane_words[lid] = sum_of(lane_words[lid], lane_words[lid + d]); }
    }
    return workgroupUniformLoad(&lane_words[0]);
}

// The sum of what the threads before this one have.
fn sum_before(x: Wide, lid: u32) -> Wide {
    var sum = x;
    for (var d = 1u; d < THREADS; d <<= 1u) {
        workgroupBarrier();
        lane_words[lid] = sum;
        workgroupBarrier();
        if (lid >= d) { sum = sum_of(sum, lane_words[lid - d]); }
    }
    return difference(sum, x);
}
