//! How likely tokens were.

use crate::device::{Logprob, Logprobs};

/// Probabilities of a row of logits.
#[must_use]
pub fn logprobs(logits: &[f32], picked: u32, top: usize) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let log_sum = sum.ln() + f64::from(max);
    let of = |token: u32| Logprob {
        token,
        logprob: (f64::from(logits[token as usize]) - log_sum) as f32,
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    let top = top.min(ids.len());
    if top < ids.len() {
        ids.select_nth_unstable_by(top, order);
        ids.truncate(top);
    }
    ids.sort_unstable_by(order);
    Logprobs {
        picked: of(picked),
        top: ids.into_iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_sum_to_one_and_come_best_first() {
        let got = logprobs(&[0.0, 2.0, 1.0, 2.0], 2, 3);
        let ids: Vec<u32> = got.top.iter().map(|l| l.token).collect();
        assert_eq!(ids, [1, 3, 2]);
        let all = logprobs(&[0.0, 2.0, 1.0, 2.0], 0, 9);
        let sum: f32 = all.top.iter().map(|l| l.logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(
            got.picked,
            Logprob {
                token: 2,
                logprob: got.top[2].logprob
            }
        );
    }
}
