//! What an indexer does with its scores: the sum over heads, and the units with the largest.

use super::attention::{GROUPS, TILE};
use super::lanes::{Lanes, N, simd_fn};

#[inline(always)]
fn sum_heads<L: Lanes>(scores: &[f32], weights: &[f32], scale: f32, out: &mut [f32]) {
    assert!(scores.len() >= weights.len() * TILE && out.len() >= TILE);
    for g in 0..GROUPS {
        let mut sum = L::load(&out[g * N..]);
        for (head, &weight) in weights.iter().enumerate() {
            let score = L::load(&scores[head * TILE + g * N..]).mul(L::splat(scale));
            sum = score.max(L::zero()).fma(L::splat(weight), sum);
        }
        sum.store(&mut out[g * N..]);
    }
}

simd_fn! {
    /// Adds `weight · max(scale · score, 0)` of each head's scores, `[heads, TILE]`, to the sums of a tile.
    pub(crate) fn add_heads(scores: &[f32], weights: &[f32], scale: f32, out: &mut [f32]) = sum_heads;
}

/// Units and how many of them are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choose {
    /// Scores of a unit.
    pub(crate) unit: usize,
    /// The last units, chosen whatever their scores.
    pub(crate) local: usize,
}

/// Numbers of the units with the largest scores, ascending, −1 behind the last; of equal ones the first. A score that is
/// not a number is the smallest. `ranks` is room for a number per unit.
pub(crate) fn choose(of: Choose, scores: &[f32], ids: &mut [i32], ranks: &mut Vec<u32>) {
    let count = scores.len().div_ceil(of.unit);
    if count <= ids.len() {
        return choose_all(count, ids);
    }
    let open = count - of.local;
    ranks.clear();
    let largest = |unit: &[f32]| unit.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s));
    ranks.extend(
        scores
            .chunks(of.unit)
            .take(open)
            .map(|unit| rank(largest(unit))),
    );
    let (own, local) = ids.split_at_mut(ids.len() - of.local);
    let mut places = own.iter_mut();
    if let Some(least) = Threshold::find(ranks, places.len()) {
        let mut equal = least.equal;
        for (i, &rank) in ranks.iter().enumerate() {
            let taken = rank > least.rank || rank == least.rank && equal > 0;
            equal -= usize::from(taken && rank == least.rank);
            if taken {
                *places
                    .next()
                    .expect("as many are taken as there are places") = i as i32;
            }
        }
    }
    for (place, unit) in local.iter_mut().zip(open..) {
        *place = unit as i32;
    }
}

/// All of `count` units.
pub(crate) fn choose_all(count: usize, ids: &mut [i32]) {
    for (i, id) in ids.iter_mut().enumerate() {
        *id = if i < count { i as i32 } else { -1 };
    }
}

/// A number that is larger for a larger score.
fn rank(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// The smallest rank of the largest few, and how many of it are among them.
#[derive(Clone, Copy, Debug)]
struct Threshold {
    rank: u32,
    equal: usize,
}

impl Threshold {
    /// That of the `n` largest, digit by digit from the highest; `None` of none.
    fn find(ranks: &[u32], n: usize) -> Option<Self> {
        if n == 0 {
            return None;
        }
        let (mut known, mut left) = (0, n);
        for (shift, bits) in [(21, 11), (10, 11), (0, 10)] {
            let mut counts = [0_u32; 1 << 11];
            let above = shift + bits;
            for &rank in ranks {
                let alike = above == 32 || rank >> above == known >> above;
                counts[(rank >> shift) as usize & ((1 << bits) - 1)] += u32::from(alike);
            }
            let mut digit = (1 << bits) - 1;
            while (counts[digit] as usize) < left {
                left -= counts[digit] as usize;
                digit -= 1;
            }
            known |= (digit as u32) << shift;
        }
        Some(Threshold {
            rank: known,
            equal: left,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(of: Choose, k: usize, scores: &[f32]) -> Vec<i32> {
        let mut ids = vec![7; k];
        choose(of, scores, &mut ids, &mut Vec::new());
        ids
    }

    /// By sorting.
    fn wanted(of: Choose, k: usize, scores: &[f32]) -> Vec<i32> {
        let units: Vec<f32> = scores
            .chunks(of.unit)
            .map(|u| u.iter().copied().fold(f32::NEG_INFINITY, f32::max))
            .collect();
        let open = units.len().saturating_sub(of.local);
        let mut order: Vec<usize> = (0..units.len()).collect();
        let rank = |u: usize| if u >= open { f32::INFINITY } else { units[u] };
        order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)).then(a.cmp(&b)));
        order.truncate(k);
        order.sort_unstable();
        let mut ids: Vec<i32> = order.iter().map(|&u| u as i32).collect();
        ids.resize(k, -1);
        ids
    }

    #[test]
    fn the_largest_are_chosen_and_the_first_of_equal_ones() {
        let noise = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e5).sin();
        let coarse = |i: u32| (noise(i) * 3.0).round();
        for n in [1, 5, 64, 333, 2000] {
            for scores in [
                (0..n).map(noise).collect::<Vec<f32>>(),
                (0..n).map(coarse).collect(),
                vec![-1.5; n as usize],
            ] {
                for (unit, local) in [(1, 0), (4, 0), (1, 2), (5, 3)] {
                    for k in [3, 17, 256] {
                        let of = Choose { unit, local };
                        assert_eq!(
                            chosen(of, k, &scores),
                            wanted(of, k, &scores),
                            "{n} {of:?} {k}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_chosen_last() {
        let of = Choose { unit: 1, local: 0 };
        let scores = [f32::NAN, -1.0, f32::NEG_INFINITY, -f32::NAN, 2.0];
        assert_eq!(chosen(of, 2, &scores), [1, 4]);
        assert_eq!(chosen(of, 3, &scores), [0, 1, 4]);
    }
}
