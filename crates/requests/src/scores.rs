//! Probabilities of tokens that were given rather than drawn.

use std::sync::Arc;

use tokkata::{EventKind, Logprob, Logprobs, Urgency};

use crate::error::{ApiError, Result};
use crate::served::Served;

/// A token of a prompt.
#[derive(Clone, Debug)]
pub struct Scored {
    /// Its probability, and the likeliest tokens in its place.
    pub logprobs: Logprobs,
    /// Its place among all tokens, from the likeliest, which is the first.
    pub rank: usize,
}

/// The probability of each token after those before it, with so many likeliest ones or instead with these; `None` of
/// the first.
pub async fn prompt_logprobs(
    model: &Arc<Served>,
    ids: &[u32],
    asked: (usize, &[u32]),
) -> Result<Vec<Option<Scored>>> {
    let mut out = vec![None];
    if ids.len() < 2 {
        return Ok(out);
    }
    let read = ids[..ids.len() - 1].to_vec();
    let mut answer = model.service.logits(read, Urgency::default());
    while let Some(event) = answer.next().await {
        match event {
            EventKind::Values { values, width } => {
                for row in values.chunks(width.max(1)) {
                    let next = ids[out.len()];
                    let own = row[next as usize];
                    out.push(Some(Scored {
                        logprobs: logprobs(row, next, asked),
                        rank: 1 + row.iter().filter(|x| **x > own).count(),
                    }));
                }
            }
            EventKind::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    match out.len() == ids.len() {
        true => Ok(out),
        false => Err(ApiError::internal(
            "not every token of the prompt got a probability",
        )),
    }
}

/// What a row of logits says of a token, and of the likeliest `most` or of those that are `told`.
pub(crate) fn logprobs(row: &[f32], token: u32, (most, told): (usize, &[u32])) -> Logprobs {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    let norm = f64::from(max) + sum.ln();
    let of = |id: u32| Logprob {
        token: id,
        logprob: (f64::from(row[id as usize]) - norm) as f32,
    };
    if !told.is_empty() {
        return Logprobs {
            picked: of(token),
            top: told.iter().copied().map(of).collect(),
        };
    }
    let mut best: Vec<u32> = (0..row.len() as u32).collect();
    let order = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
    if most < best.len() {
        best.select_nth_unstable_by(most, order);
    }
    best.truncate(most);
    best.sort_by(order);
    Logprobs {
        picked: of(token),
        top: best.into_iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_a_softmax() {
        let row = [0.0, 2.0f32.ln(), 1.0f32.ln()];
        let found = logprobs(&row, 0, (2, &[]));
        assert!((f64::from(found.picked.logprob) - 0.25f64.ln()).abs() < 1e-6);
        let ids: Vec<u32> = found.top.iter().map(|l| l.token).collect();
        assert_eq!(ids, [1, 0]);
        assert!((f64::from(found.top[0].logprob) - 0.5f64.ln()).abs() < 1e-6);
        let chosen = logprobs(&row, 0, (2, &[2]));
        assert_eq!(chosen.top.len(), 1);
        assert_eq!(chosen.top[0].token, 2);
    }
}
