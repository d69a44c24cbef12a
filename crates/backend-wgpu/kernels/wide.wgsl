// Integers of 64 bits as two words.

struct Wide { high: u32, low: u32 }

fn word_of(x: u32) -> Wide { return Wide(0u, x); }

fn sum_of(a: Wide, b: Wide) -> Wide {
    let low = a.low + b.low;
    return Wide(a.high + b.high + select(0u, 1u, low < a.low), low);
}

fn difference(a: Wide, b: Wide) -> Wide {
    return Wide(a.high - b.high - select(0u, 1u, a.low < b.low), a.low - b.low);
}

fn at_least(a: Wide, b: Wide) -> bool { return a.high > b.high || (a.high == b.high && a.low >= b.low); }

// Numbers whose order is that of signed ones.
fn biased(x: i32) -> u32 { return bitcast<u32>(x) ^ 0x80000000u; }
