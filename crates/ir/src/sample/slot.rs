//! How the tokens of a sequence are drawn, kept in its slot from step to step.

use super::{Mask, Penalties, SampleSide, SamplerRecord};

/// Parameters of every draw of a sequence. The default is greedy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampler {
    /// Filters, temperature and seed.
    pub record: SamplerRecord,
    /// What tokens seen lately cost.
    pub penalties: PenaltyRule,
    /// Added to logits by id.
    pub bias: Vec<(u32, f32)>,
}

/// Repetition penalties by rule; which tokens they meet follows from the sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PenaltyRule {
    /// Divides positive and multiplies negative logits of seen tokens; 1 is off.
    pub repeat: f32,
    /// Subtracted per occurrence.
    pub frequency: f32,
    /// Subtracted once.
    pub presence: f32,
    /// How many of the newest tokens count; `None` for all.
    pub last_n: Option<u32>,
}

impl Default for PenaltyRule {
    fn default() -> Self {
        PenaltyRule {
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
            last_n: None,
        }
    }
}

impl PenaltyRule {
    /// Whether it changes no logit.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.repeat == 1.0 && self.frequency == 0.0 && self.presence == 0.0
    }

    /// The penalties after `tokens`.
    #[must_use]
    pub fn after(&self, tokens: &[u32]) -> Penalties {
        if self.is_off() {
            return Penalties::default();
        }
        let recent = self
            .last_n
            .map_or(tokens.len(), |n| tokens.len().min(n as usize));
        Penalties {
            repeat: self.repeat,
            frequency: self.frequency,
            presence: self.presence,
            counts: count(&tokens[tokens.len() - recent..]),
        }
    }
}

impl Sampler {
    /// What a draw after `tokens` needs beyond the record.
    #[must_use]
    pub fn side(&self, tokens: &[u32], mask: Option<Mask>, dry: Vec<(u32, f32)>) -> SampleSide {
        SampleSide {
            bias: self.bias.clone(),
            mask,
            penalties: self.penalties.after(tokens),
            dry,
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
        let rule = PenaltyRule {
            repeat: 1.5,
            last_n: Some(3),
            ..PenaltyRule::default()
        };
        assert_eq!(rule.after(&[9, 4, 7, 4]).counts, [(4, 2), (7, 1)]);
        let all = PenaltyRule {
            last_n: None,
            ..rule
        };
        assert_eq!(all.after(&[9, 4, 7, 4]).counts, [(4, 2), (7, 1), (9, 1)]);
        let off = PenaltyRule {
            last_n: Some(9),
            ..PenaltyRule::default()
        };
        assert_eq!(off.after(&[1, 1]), Penalties::default());
    }
}
