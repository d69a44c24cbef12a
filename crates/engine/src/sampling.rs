//! A request's sampling parameters, and what they ask of the next draw.

use tokkata_ir::sample::{Penalties, SampleSide, SamplerRecord};

use crate::dry::{Dry, dry_penalties};

/// How tokens are picked. The default is llama.cpp's: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 picks the largest logit.
    pub temperature: f32,
    /// Candidates kept; 0 keeps all.
    pub top_k: u32,
    /// Smallest set of this probability mass; 1 keeps all.
    pub top_p: f32,
    /// Least probability relative to the best; 0 keeps all.
    pub min_p: f32,
    /// Locally typical mass; 1 keeps all.
    pub typical_p: f32,
    /// Keep logits within this many standard deviations of the best; 0 keeps all.
    pub top_n_sigma: f32,
    /// Probability that XTC removes the top candidates; 0 never.
    pub xtc_probability: f32,
    /// XTC removes candidates above this, except the last of them.
    pub xtc_threshold: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted per recent occurrence.
    pub frequency_penalty: f32,
    /// Subtracted once from recent tokens.
    pub presence_penalty: f32,
    /// How many of the newest tokens are recent; `None` for all.
    pub repeat_last_n: Option<usize>,
    /// Penalises continuing a repeated run of tokens.
    pub dry: Option<Dry>,
    /// Added to logits by id.
    pub bias: Vec<(u32, f32)>,
    /// Seed of every draw; with a position it decides the draw alone.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: Some(64),
            dry: None,
            bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Always the largest logit.
    #[must_use]
    pub fn greedy() -> Self {
        Sampling {
            temperature: 0.0,
            ..Sampling::default()
        }
    }

    /// The record of a draw at `position`.
    #[must_use]
    pub fn record(&self, position: usize) -> SamplerRecord {
        SamplerRecord {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            seed: self.seed,
            counter: position as u64,
        }
    }

    /// Biases and penalties after `tokens`.
    #[must_use]
    pub fn side(&self, tokens: &[u32]) -> SampleSide {
        SampleSide {
            bias: self.bias.clone(),
            mask: None,
            penalties: self.penalties(tokens),
            dry: self
                .dry
                .as_ref()
                .map_or_else(Vec::new, |dry| dry_penalties(dry, tokens)),
        }
    }

    fn penalties(&self, tokens: &[u32]) -> Penalties {
        let off = self.repeat_penalty == 1.0
            && self.frequency_penalty == 0.0
            && self.presence_penalty == 0.0;
        if off {
            return Penalties::default();
        }
        let recent = self.repeat_last_n.unwrap_or(tokens.len()).min(tokens.len());
        Penalties {
            repeat: self.repeat_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            counts: count(&tokens[tokens.len() - recent..]),
        }
    }
}

/// Tokens and how often each occurs, by id.
fn count(tokens: &[u32]) -> Vec<(u32, u32)> {
    let mut sorted = tokens.to_vec();
    sorted.sort_unstable();
    sorted
        .chunk_by(|a, b| a == b)
        .map(|run| (run[0], run.len() as u32))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_look_at_the_newest_tokens_only() {
        let sampling = Sampling {
            repeat_penalty: 1.5,
            repeat_last_n: Some(3),
            ..Sampling::default()
        };
        assert_eq!(
            sampling.side(&[9, 4, 7, 4]).penalties.counts,
            [(4, 2), (7, 1)]
        );
        let all = Sampling {
            repeat_last_n: None,
            ..sampling
        };
        assert_eq!(
            all.side(&[9, 4, 7, 4]).penalties.counts,
            [(4, 2), (7, 1), (9, 1)]
        );
        assert_eq!(Sampling::default().side(&[1, 1]), SampleSide::default());
    }
}
