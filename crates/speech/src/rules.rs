//! Which tokens may come next, as openai's filters have it.

use crate::sums::{self, log_sum_exp};
use crate::tokens::Tokens;

/// What is forbidden beside the pairing of timestamps.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The special tokens.
    pub tokens: Tokens,
    /// Never allowed, ascending.
    pub suppressed: Vec<u32>,
    /// Not allowed as the first token.
    pub blank: Vec<u32>,
    /// Whether timestamps are paired; the latest first one, where there is a bound.
    pub times: Option<Option<u32>>,
}

impl Rules {
    /// Takes away what may not come after `sampled`: its logits become −∞.
    pub fn apply(&self, logits: &mut [f32], sampled: &[u32]) {
        if sampled.is_empty() {
            forbid(logits, &self.blank);
        }
        forbid(logits, &self.suppressed);
        if let Some(latest) = self.times {
            self.pair(logits, sampled, latest);
        }
    }

    /// Timestamps come in pairs, but before the end, and do not go back; a text begins with one.
    fn pair(&self, logits: &mut [f32], sampled: &[u32], latest: Option<u32>) {
        let t = &self.tokens;
        let (times, eot) = (t.times as usize, t.eot as usize);
        forbid(logits, &[t.no_timestamps]);
        let is_time = |id: &u32| *id >= t.times;
        let last = sampled.last().is_some_and(is_time);
        let before = sampled.len() < 2 || is_time(&sampled[sampled.len() - 2]);
        if last && before {
            clear(&mut logits[times..]);
        } else if last {
            clear(&mut logits[..eot]);
        }
        if let Some(&newest) = sampled.iter().rfind(|id| is_time(id)) {
            // A stretch is no shorter than one step, so that no loop can begin.
            let end = if last && !before { newest } else { newest + 1 };
            let end = (end as usize).min(logits.len());
            clear(&mut logits[times..end.max(times)]);
        }
        if sampled.is_empty() {
            clear(&mut logits[..times]);
            if let Some(latest) = latest {
                let end = (times + latest as usize + 1).min(logits.len());
                clear(&mut logits[end..]);
            }
        }
        if times_outweigh(logits, times) {
            clear(&mut logits[..times]);
        }
    }
}

fn forbid(logits: &mut [f32], ids: &[u32]) {
    for &id in ids {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn clear(logits: &mut [f32]) {
    logits.fill(f32::NEG_INFINITY);
}

/// Whether all timestamps together are likelier than any single other token.
fn times_outweigh(logits: &[f32], times: usize) -> bool {
    let (text, times) = logits.split_at(times);
    let most = sums::largest(text);
    // Together they are at most so many times as likely as one of them; 1 is more than what is rounded below.
    let bound = f64::from(sums::largest(times)) + (times.len() as f64).ln() + 1.0;
    if bound < f64::from(most) {
        return false;
    }
    let log_sum = log_sum_exp(logits);
    let all = log_sum_exp(times) - log_sum;
    (all as f32) > ((f64::from(most) - log_sum) as f32)
}
