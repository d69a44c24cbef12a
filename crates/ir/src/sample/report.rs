//! How likely tokens are, before sampling parameters.

use super::fixed::Fixed;
use super::row::Row;
use super::tables::{LN_2, exp, neg_ln};
use super::{BadLogits, argmax};

/// Most tokens that a report lists.
pub const MOST_LISTED: usize = 20;

/// Natural logarithms of probabilities, with 16 fraction bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// That of the token asked for.
    pub token: Fixed,
    /// The likeliest tokens, best first: by their `f32` logits, as the greedy draw, the lowest id among equals.
    pub best: Vec<(u32, Fixed)>,
}

/// Probabilities of a row of logits as they came: of `token` and of the likeliest `n`, at most [`MOST_LISTED`].
///
/// `−d − ln Σ e^(−d)` over distances to the largest logit in fixed point, within 6·10⁻⁵ for vocabularies up to 2¹⁸;
/// the sum is of integers, so that every device finds the same.
///
/// # Errors
/// [`BadLogits`] as for a draw.
///
/// # Panics
/// When the vocabulary has no such token.
pub fn report(logits: &[f32], token: u32, n: usize) -> Result<Report, BadLogits> {
    let top = Fixed::of(logits[argmax(logits)? as usize]);
    let values = logits.iter().map(|&x| Fixed::of(x));
    let real = values.filter(|&x| x != Fixed::EXCLUDED);
    let total: u64 = real.map(|x| u64::from(exp(x.below(top)))).sum();
    // Weights have 31 fraction bits and `neg_ln` takes 64.
    let log_total = (33 * LN_2 - neg_ln(total) + 128) >> 8;
    let offset = Fixed::from_bits(top.to_bits() + log_total as i32);
    let of = |id: u32| Fixed::of(logits[id as usize]).minus(offset);
    Ok(Report {
        token: of(token),
        best: likeliest(logits, n)?.map(|id| (id, of(id))).collect(),
    })
}

fn likeliest(logits: &[f32], n: usize) -> Result<impl Iterator<Item = u32>, BadLogits> {
    let n = n.min(MOST_LISTED);
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
    let row = Row {
        logits,
        ..Row::default()
    };
    row.walk(&[], |id, _, x| {
        let at = best.partition_point(|b| b.1 >= x);
        best.insert(at, (id, x));
        best.truncate(n);
        match best.last() {
            Some(last) if best.len() == n => last.1,
            Some(_) => f32::NEG_INFINITY,
            None => f32::INFINITY,
        }
    })?;
    Ok(best.into_iter().map(|b| b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::uniform;

    #[test]
    fn reports_are_close_to_the_exact_logarithms() {
        for (n, spread) in [(1, 1.0), (7, 3.0), (300, 0.0), (5000, 30.0), (200_000, 8.0)] {
            let logit = |i| (uniform(n as u64, i) >> 40) as f32 / 16_777_216.0 * spread - 3.0;
            let logits: Vec<f32> = (0..n as u64).map(logit).collect();
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            let exact = |id: u32| f64::from(logits[id as usize]) - sum.ln();
            let token = n as u32 / 2;
            let found = report(&logits, token, 20).unwrap();
            let close = |id, x: Fixed| assert!((f64::from(x.to_f32()) - exact(id)).abs() < 6e-5);
            close(token, found.token);
            found.best.iter().for_each(|&(id, x)| close(id, x));
            let mut order: Vec<u32> = (0..n as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            let ids: Vec<u32> = found.best.iter().map(|b| b.0).collect();
            assert_eq!(ids, order[..n.min(20)]);
        }
    }

    #[test]
    fn reports_take_the_lowest_of_equals_and_know_what_is_impossible() {
        let logits = [1.0, f32::NEG_INFINITY, 2.0, 2.0, 1.0];
        let found = report(&logits, 1, 3).unwrap();
        let ids: Vec<u32> = found.best.iter().map(|b| b.0).collect();
        assert_eq!((found.token, ids), (Fixed::EXCLUDED, vec![2, 3, 0]));
        assert_eq!(report(&logits, 0, 0).unwrap().best, []);
        assert_eq!(report(&logits, 0, 99).unwrap().best.len(), 4);
        assert_eq!(report(&[f32::NAN], 0, 1), Err(BadLogits::NotANumber));
        assert_eq!(
            report(&[f32::NEG_INFINITY], 0, 1),
            Err(BadLogits::NoCandidate)
        );
    }
}
