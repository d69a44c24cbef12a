//! Filters of candidates. Each keeps a set that does not depend on the order in which candidates are looked at:
//! sums are of integers, ties at an edge go to the lowest id.
//!
//! Weights are `e^(−d)` of a candidate's distance `d` to the best that is left, with 31 fraction bits; their sum fits
//! two words for up to 2²⁴ candidates.

use std::cmp::Ordering;

use super::fixed::Fixed;
use super::noise::chance;
use super::record::{ALL, SamplerRecord};
use super::tables::exp;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) value: Fixed,
}

impl Candidate {
    /// Best first; the lowest id among equals.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        other.value.cmp(&self.value).then(self.id.cmp(&other.id))
    }
}

/// The value of the best.
pub(super) fn best(candidates: &[Candidate]) -> Fixed {
    let values = candidates.iter().map(|c| c.value);
    values.max().unwrap_or(Fixed::EXCLUDED)
}

/// The filters between top-k and temperature. At least one candidate is left of any.
pub(super) fn filter(candidates: &mut Vec<Candidate>, record: &SamplerRecord, position: u32) {
    typical(candidates, record.typical_p);
    top_p(candidates, record.top_p);
    min_p(candidates, record.min_p);
    xtc(candidates, record, position);
}

/// Keeps what is within so many standard deviations of the best.
///
/// Distances are cut to 8 fraction bits and 22 bits in all, so that the sum of 2²⁰ squares fits two words; their mean
/// is rounded down, the deviation has 16 fraction bits, rounded down.
pub(super) fn top_n_sigma(candidates: &mut Vec<Candidate>, n: u32) {
    if n == 0 {
        return;
    }
    let top = best(candidates);
    let (mut sum, mut squares) = (0u64, 0u64);
    for c in &*candidates {
        let d = u64::from(c.value.below(top) >> 8).min((1 << 22) - 1);
        sum += d;
        squares = squares.wrapping_add(d * d);
    }
    let count = candidates.len() as u64;
    let mean = sum / count;
    // Modulo 2⁶⁴ all the way: the squares of distances to the mean fit.
    let about = squares
        .wrapping_add((count * mean).wrapping_mul(mean))
        .wrapping_sub((2 * mean).wrapping_mul(sum));
    let deviation = ((about / count) << 16).isqrt();
    let most = ((deviation * u64::from(n)) >> 16).min(u64::from(u32::MAX)) as u32;
    candidates.retain(|c| c.value.below(top) <= most);
}

/// The `k` best, in no order.
pub(super) fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, Candidate::order);
        candidates.truncate(k);
    }
}

/// Keeps the candidates nearest to the expected surprise, until their mass exceeds `p`.
///
/// A surprise is `d + ln Σ`, its expectation `Σ w·d / Σ w + ln Σ`: the logarithm falls out. Products have 8 bits cut.
fn typical(candidates: &mut Vec<Candidate>, p: u32) {
    if p == ALL {
        return;
    }
    let top = best(candidates);
    let (mut total, mut sum) = (0u64, 0u64);
    for c in &*candidates {
        let d = c.value.below(top);
        let w = u64::from(exp(d));
        total += w;
        sum += (w * u64::from(d)) >> 8;
    }
    let mean = (sum / (total >> 8)) as u32;
    let strange = |c: &Candidate| c.value.below(top).abs_diff(mean);
    let order = |a: &Candidate, b: &Candidate| strange(a).cmp(&strange(b)).then(a.id.cmp(&b.id));
    let target = part(total, p) + 1;
    keep_mass(candidates, order, |c| exp(c.value.below(top)), target);
}

/// Keeps the best candidates until their mass reaches `p`.
fn top_p(candidates: &mut Vec<Candidate>, p: u32) {
    if p == ALL {
        return;
    }
    let (top, total) = mass(candidates);
    let weight = |c: &Candidate| exp(c.value.below(top));
    keep_mass(candidates, Candidate::order, weight, part(total, p));
}

/// The value of the best and the sum of all weights.
fn mass(candidates: &[Candidate]) -> (Fixed, u64) {
    let top = best(candidates);
    let weights = candidates.iter().map(|c| exp(c.value.below(top)));
    (top, weights.map(u64::from).sum())
}

/// The share `p` of a sum, rounded down: two products of words, added.
fn part(total: u64, p: u32) -> u64 {
    let (high, low) = (total >> 32, total & u64::from(u32::MAX));
    high * u64::from(p) + ((low * u64::from(p)) >> 32)
}

/// Keeps the first candidates in `order` up to the one with which their weights reach `target`. Sorts no more of
/// them than needed.
fn keep_mass(
    candidates: &mut Vec<Candidate>,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
    weight: impl Fn(&Candidate) -> u32,
    target: u64,
) {
    let (mut sorted, mut front, mut sum) = (0, 64, 0);
    while sorted < candidates.len() {
        let end = candidates.len().min(sorted + front);
        let rest = &mut candidates[sorted..];
        if front < rest.len() {
            rest.select_nth_unstable_by(front, &order);
        }
        candidates[sorted..end].sort_unstable_by(&order);
        for (i, c) in candidates[sorted..end].iter().enumerate() {
            sum += u64::from(weight(c));
            if sum >= target {
                return candidates.truncate(sorted + i + 1);
            }
        }
        (sorted, front) = (end, front * 8);
    }
}

fn min_p(candidates: &mut Vec<Candidate>, most: u32) {
    let top = best(candidates);
    candidates.retain(|c| c.value.below(top) <= most);
}

/// Removes the candidates above the threshold except the least of them.
fn xtc(candidates: &mut Vec<Candidate>, record: &SamplerRecord, position: u32) {
    let applies = record.xtc_probability == ALL
        || record.xtc_probability != 0 && chance(record.seed, position) < record.xtc_probability;
    if !applies {
        return;
    }
    let (top, total) = mass(candidates);
    let threshold = part(total, record.xtc_threshold);
    let above = |c: &Candidate| u64::from(exp(c.value.below(top))) >= threshold;
    let least = candidates
        .iter()
        .copied()
        .filter(above)
        .max_by(Candidate::order);
    candidates.retain(|c| !above(c) || Some(*c) == least);
}

#[cfg(test)]
mod tests {
    use super::super::{Parameters, uniform};
    use super::*;

    /// Ids that the filters keep, in `f64` and by sorting.
    fn exact(logits: &[f32], p: &Parameters) -> Vec<u32> {
        let mut left: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&x| f64::from(x))).collect();
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        if p.top_n_sigma > 0.0 {
            let n = left.len() as f64;
            let mean = left.iter().map(|c| c.1).sum::<f64>() / n;
            let square = left.iter().map(|c| (c.1 - mean).powi(2)).sum::<f64>() / n;
            let floor = f64::from(best) - f64::from(p.top_n_sigma) * square.sqrt();
            left.retain(|c| c.1 >= floor);
        }
        left.sort_by(|a, b| b.1.total_cmp(&a.1));
        left.truncate(if p.top_k == 0 {
            usize::MAX
        } else {
            p.top_k as usize
        });
        if p.typical_p < 1.0 {
            let chances = chances(&left);
            let entropy: f64 = chances.iter().map(|p| -p * p.ln()).sum();
            let mut order: Vec<usize> = (0..left.len()).collect();
            let strange = |i: usize| (-chances[i].ln() - entropy).abs();
            order.sort_by(|&a, &b| strange(a).total_cmp(&strange(b)));
            let kept = reaching(order.iter().map(|&i| chances[i]), p.typical_p);
            left = order[..kept].iter().map(|&i| left[i]).collect();
            left.sort_by(|a, b| b.1.total_cmp(&a.1));
        }
        if p.top_p < 1.0 {
            left.truncate(reaching(chances(&left).into_iter(), p.top_p));
        }
        let top = left[0].1;
        left.retain(|c| (c.1 - top).exp() >= f64::from(p.min_p));
        if p.xtc_probability > 0.0 {
            let above = chances(&left);
            let above = above.iter().filter(|&&c| c >= f64::from(p.xtc_threshold));
            left.drain(..above.count().saturating_sub(1));
        }
        let mut ids: Vec<u32> = left.iter().map(|c| c.0).collect();
        ids.sort_unstable();
        ids
    }

    fn chances(left: &[(u32, f64)]) -> Vec<f64> {
        let sum: f64 = left.iter().map(|c| c.1.exp()).sum();
        left.iter().map(|c| c.1.exp() / sum).collect()
    }

    fn reaching(mut chances: impl Iterator<Item = f64>, p: f32) -> usize {
        let mut sum = 0.0;
        let found = chances.position(|c| {
            sum += c;
            sum >= f64::from(p)
        });
        found.unwrap() + 1
    }

    #[test]
    fn filters_keep_what_exact_arithmetic_keeps() {
        let mut sizes = std::collections::HashSet::new();
        for case in 0..600u64 {
            let unit = |i: u64| (uniform(case, i) >> 40) as f32 / 16_777_216.0;
            let some = |i: u64, x: f32, off: f32| {
                if uniform(case, i).is_multiple_of(3) {
                    x
                } else {
                    off
                }
            };
            let parameters = Parameters {
                top_n_sigma: some(1, 0.5 + 2.0 * unit(2), 0.0),
                top_k: some(3, 1.0 + 100.0 * unit(4), 0.0) as u32,
                typical_p: some(5, 0.02 + 0.9 * unit(6), 1.0),
                top_p: some(7, 0.02 + 0.9 * unit(8), 1.0),
                min_p: some(9, unit(10).powi(3), 0.0),
                xtc_probability: some(11, 1.0, 0.0),
                xtc_threshold: 0.3 * unit(12),
                ..Parameters::default()
            };
            let spread = 1.0 + 20.0 * unit(13);
            let logits: Vec<f32> = (0..300).map(|i| unit(100 + i) * spread - 5.0).collect();
            let record = parameters.record();
            let values = (0..).zip(logits.iter().map(|&x| Fixed::of(x)));
            let mut left: Vec<Candidate> =
                values.map(|(id, value)| Candidate { id, value }).collect();
            top_n_sigma(&mut left, record.top_n_sigma);
            top_k(
                &mut left,
                if record.top_k == 0 {
                    300
                } else {
                    record.top_k as usize
                },
            );
            filter(&mut left, &record, 0);
            let mut ids: Vec<u32> = left.iter().map(|c| c.id).collect();
            ids.sort_unstable();
            assert_eq!(ids, exact(&logits, &parameters), "{case}: {parameters:?}");
            sizes.insert(ids.len());
        }
        assert!(sizes.len() > 50, "filters keep different sets: {sizes:?}");
    }

    #[test]
    fn mass_is_found_wherever_the_front_ends() {
        let candidate = |id| Candidate {
            id,
            value: Fixed::ZERO,
        };
        for n in [1, 63, 64, 65, 575, 576, 577, 3000] {
            for target in [0, 1, 64, 65, 575, 576, 577, 2999, 3000] {
                let mut all: Vec<Candidate> = (0..n).rev().map(candidate).collect();
                keep_mass(&mut all, Candidate::order, |_| 1, target);
                let ids: Vec<u32> = all.iter().map(|c| c.id).collect();
                let kept = (target as u32).clamp(1, n);
                if target <= u64::from(n) {
                    assert_eq!(ids, (0..kept).collect::<Vec<u32>>(), "{target} of {n}");
                }
            }
        }
    }
}
