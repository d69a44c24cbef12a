//! Sums and maxima over a vocabulary: of sixteen lanes, so that a compiler makes vectors of them.

/// Numbers that are looked at together.
const LANES: usize = 16;
/// Rounds of lanes that are summed before the sum is widened.
const ROUNDS: usize = 64;

/// The largest number; −∞ of none.
pub(crate) fn largest(x: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (best, &x) in best.iter_mut().zip(chunk) {
            *best = if x > *best { x } else { *best };
        }
    }
    best.into_iter()
        .chain(rest.iter().copied())
        .fold(f32::NEG_INFINITY, f32::max)
}

/// The place of the largest number, of equal ones the first, and its lead.
pub(crate) fn leader(x: &[f32]) -> (usize, f32) {
    let (mut best, mut second) = ([f32::NEG_INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for ((best, second), &x) in best.iter_mut().zip(&mut second).zip(chunk) {
            let (above, below) = if x > *best { (x, *best) } else { (*best, x) };
            *best = above;
            *second = if below > *second { below } else { *second };
        }
    }
    let mut all: Vec<f32> = best.into_iter().chain(second).collect();
    all.extend(rest);
    all.sort_by(|a, b| b.total_cmp(a));
    let place = x.iter().position(|&x| x == all[0]).unwrap_or(0);
    (place, all[0] - all[1])
}

/// The logarithm of the sum of exponentials: exponentials in `f32`, within 2 units in the last place, their sum in `f64`.
pub(crate) fn log_sum_exp(x: &[f32]) -> f64 {
    let most = largest(x);
    if most == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    let mut sum = 0.0;
    for part in x.chunks(LANES * ROUNDS) {
        let mut sums = [0.0f32; LANES];
        for chunk in part.chunks(LANES) {
            for (sum, &x) in sums.iter_mut().zip(chunk) {
                *sum += exp(x - most);
            }
        }
        sum += sums.into_iter().map(f64::from).sum::<f64>();
    }
    f64::from(most) + sum.ln()
}

/// `exp(x)` for `x ≤ 0`: a power of two times a Taylor polynomial of the rest. Below −87 it is zero.
#[inline]
fn exp(x: f32) -> f32 {
    // Added to a small number it leaves the nearest integer in the low bits.
    const INTEGER: f32 = 12_582_912.0;
    const LN_2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
    let shifted = x * std::f32::consts::LOG2_E + INTEGER;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let n = shifted - INTEGER;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let tail = 1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0));
    let sum = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * tail))));
    if x < -87.0 { 0.0 } else { power * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(n: usize) -> Vec<f32> {
        let noise = |i: u64| crate::search::mix(7, i) >> 40;
        let number = |i| noise(i) as f32 / (1u64 << 24) as f32 * 40.0 - 20.0;
        (0..n as u64).map(number).collect()
    }

    #[test]
    fn exponentials_are_those_of_the_library() {
        let mut worst = 0.0f64;
        for i in 0..870_000 {
            let x = -i as f32 / 10_000.0;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / exact - 1.0).abs());
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst:e}");
        assert_eq!(exp(0.0), 1.0);
        for x in [-87.5, -100.0, -186.0, -1e30, f32::NEG_INFINITY] {
            assert_eq!(exp(x), 0.0, "{x}");
        }
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_are_those_of_doubles() {
        for n in [1, 15, 16, 17, 1024, 51_866] {
            let mut x = logits(n);
            if n > 16 {
                x[3] = f32::NEG_INFINITY;
            }
            let sum: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
            let error = (log_sum_exp(&x) - sum.ln()).abs();
            assert!(error < 3e-7, "{n}: {error:e}");
        }
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 40]), f64::NEG_INFINITY);
    }

    #[test]
    fn the_first_of_the_largest_leads() {
        for n in [1, 2, 16, 17, 40, 1000] {
            let mut x = logits(n);
            let mut sorted = x.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let second = sorted.get(1).copied().unwrap_or(f32::NEG_INFINITY);
            assert_eq!(largest(&x), sorted[0]);
            let (place, lead) = leader(&x);
            assert_eq!((x[place], lead), (sorted[0], sorted[0] - second), "{n}");
            x[n - 1] = sorted[0];
            let first = x.iter().position(|&x| x == sorted[0]);
            let lead = if first == Some(n - 1) { lead } else { 0.0 };
            assert_eq!(leader(&x), (first.unwrap_or(0), lead), "{n}");
        }
    }
}
