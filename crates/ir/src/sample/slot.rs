//! How the tokens of a sequence are drawn, kept in its slot from step to step.

use super::{Fixed, Mask, SampleSide, SamplerRecord};

/// What all draws of a sequence have in common. The default is greedy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampler {
    /// Penalties, filters, temperature and seed.
    pub record: SamplerRecord,
    /// Added to logits by id.
    pub bias: Vec<(u32, Fixed)>,
}

impl Sampler {
    /// What a draw after `tokens` needs beyond the record. Ids that are in no vocabulary stand for rows without tokens.
    #[must_use]
    pub fn side(&self, tokens: &[u32], mask: Option<Mask>, dry: Vec<(u32, Fixed)>) -> SampleSide {
        let recent = tokens.len().min(self.record.recent as usize);
        SampleSide {
            bias: self.bias.clone(),
            mask,
            recent: tokens[tokens.len() - recent..].to_vec(),
            dry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Parameters;
    use super::*;

    #[test]
    fn penalties_look_at_the_newest_tokens_only() {
        let recent = |parameters: Parameters| {
            let sampler = Sampler {
                record: parameters.record(),
                ..Sampler::default()
            };
            sampler.side(&[9, 4, 7, 4], None, Vec::new()).recent
        };
        let three = Parameters {
            repeat: 1.5,
            recent: 3,
            ..Parameters::default()
        };
        assert_eq!(recent(three), [4, 7, 4]);
        let all = Parameters {
            recent: u32::MAX,
            ..three
        };
        assert_eq!(recent(all), [9, 4, 7, 4]);
        assert_eq!(recent(Parameters::default()), []);
    }
}
