//! Signals that other implementations make alike, from integers (`crates/conformance/data/speech/signals.py`).

#![allow(dead_code, reason = "every test takes what it needs")]

pub(crate) fn noise(n: usize, seed: u32, volume: i64) -> Vec<i64> {
    let mut x = seed;
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((i64::from(x >> 16) - 32_768) * volume) >> 15
        })
        .collect()
}

/// A triangle whose frequency goes from first to last, in 1/65536 of a turn per sample.
pub(crate) fn sweep(n: usize, first: i64, last: i64, volume: i64) -> Vec<i64> {
    let one = |i: i64| {
        let phase = first * i + (last - first) * i * i / (2 * n as i64);
        (((phase.rem_euclid(65_536) - 32_768).abs() - 16_384) * volume) >> 14
    };
    (0..n as i64).map(one).collect()
}

pub(crate) fn signal(kind: &str, n: usize) -> Vec<f32> {
    let ints = match kind {
        "noise" => noise(n, 1, 9000),
        "sweep" => {
            let both = sweep(n, 400, 26_000, 12_000)
                .into_iter()
                .zip(noise(n, 3, 200));
            both.map(|(a, b)| a + b).collect()
        }
        _ => {
            let both = sweep(n, 900, 5200, 15_000)
                .into_iter()
                .zip(noise(n, 7, 600));
            let quiet = |(i, (a, b)): (usize, (i64, i64))| {
                if (i / 4800) % 3 == 2 { 0 } else { a + b }
            };
            both.enumerate().map(quiet).collect()
        }
    };
    let float = |s: i64| s.clamp(-32_768, 32_767) as f32 / 32_768.0;
    ints.into_iter().map(float).collect()
}
