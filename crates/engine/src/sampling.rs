//! A request's sampling parameters, and what they ask of the next draw.

use tokkata_ir::sample::{PenaltyRule, Sampler, SamplerRecord};

use crate::dry::Dry;
use crate::error::EngineError;

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

    /// What a sequence slot is told.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        let record = SamplerRecord {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            seed: self.seed,
            ..SamplerRecord::default()
        };
        Sampler {
            record,
            penalties: PenaltyRule {
                repeat: self.repeat_penalty,
                frequency: self.frequency_penalty,
                presence: self.presence_penalty,
                last_n: self.repeat_last_n.and_then(|n| u32::try_from(n).ok()),
            },
            bias: self.bias.clone(),
        }
    }

    /// Refuses parameters that are not numbers, or that no draw could follow.
    ///
    /// # Errors
    /// [`EngineError::Sampling`] names the first.
    pub fn check(&self) -> Result<(), EngineError> {
        let number = "a finite number";
        let finite = [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("top_n_sigma", self.top_n_sigma),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("repeat_penalty", self.repeat_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ];
        let odd = finite.into_iter().find(|(_, x)| !x.is_finite());
        let odd = odd.map(|(name, x)| (name, x, number));
        let zero = (self.repeat_penalty <= 0.0).then_some((
            "repeat_penalty",
            self.repeat_penalty,
            "a number above 0",
        ));
        let bias = self.bias.iter().map(|b| b.1);
        let bias = bias.clone().find(|b| b.is_nan() || *b == f32::INFINITY);
        let bias = bias.map(|b| ("logit_bias", b, "a finite number or -inf"));
        match odd.or(zero).or(bias) {
            None => Ok(()),
            Some((name, found, expected)) => Err(EngineError::Sampling {
                name,
                found,
                expected,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_are_no_numbers_are_refused_by_name() {
        assert!(Sampling::default().check().is_ok());
        let with = |change: fn(&mut Sampling)| {
            let mut sampling = Sampling::default();
            change(&mut sampling);
            sampling.check().unwrap_err().to_string()
        };
        assert_eq!(
            with(|s| s.bias = vec![(1, f32::NEG_INFINITY), (5, f32::NAN)]),
            "logit_bias is NaN, expected a finite number or -inf"
        );
        assert_eq!(
            with(|s| s.top_p = f32::INFINITY),
            "top_p is inf, expected a finite number"
        );
        assert_eq!(
            with(|s| s.repeat_penalty = 0.0),
            "repeat_penalty is 0, expected a number above 0"
        );
    }
}
