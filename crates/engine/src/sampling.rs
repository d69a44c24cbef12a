//! A request's sampling parameters, and what they ask of the next draw.

use tokkata_ir::sample::{Fixed, Parameters, Sampler};

use crate::dry::Dry;
use crate::watermark::Watermark;

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
    /// Lets whoever has its key tell the text. The host draws then, a step at a time and without drafts.
    pub watermark: Option<Watermark>,
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
            watermark: None,
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

    /// What all draws have in common.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        // A bias that is no number is refused by `check`; what is not allowed here cannot be drawn.
        let bias = |&(id, x): &(u32, f32)| (id, Fixed::new(x).unwrap_or(Fixed::EXCLUDED));
        Sampler {
            record: self.parameters().record(),
            bias: self.bias.iter().map(bias).collect(),
        }
    }

    fn parameters(&self) -> Parameters {
        let last_n = self.repeat_last_n.map(u32::try_from);
        Parameters {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            repeat: self.repeat_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            recent: last_n.and_then(Result::ok).unwrap_or(u32::MAX),
            seed: self.seed,
        }
    }

    /// Refuses parameters with which no draw makes sense.
    ///
    /// # Errors
    /// [`BadSampling`] names the first: a number that is not finite (biases may be infinite), a repeat penalty that is
    /// not above 0.
    pub fn check(&self) -> Result<(), BadSampling> {
        let numbers = [
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
            (
                "dry multiplier",
                self.dry.as_ref().map_or(0.0, |d| d.multiplier),
            ),
            ("dry base", self.dry.as_ref().map_or(0.0, |d| d.base)),
        ];
        let bad = |&(name, value): &(&str, f32)| {
            !value.is_finite() || name == "repeat_penalty" && value <= 0.0
        };
        if let Some(&(name, value)) = numbers.iter().find(|n| bad(n)) {
            return Err(BadSampling::Parameter { name, value });
        }
        match self.bias.iter().find(|b| b.1.is_nan()) {
            Some(&(token, _)) => Err(BadSampling::Bias { token }),
            None => self.check_watermark(),
        }
    }

    fn check_watermark(&self) -> Result<(), BadSampling> {
        match self.watermark {
            Some(mark) if !(1..=Watermark::WIDEST).contains(&mark.width) => {
                Err(BadSampling::Watermark { width: mark.width })
            }
            _ => Ok(()),
        }
    }

    /// The watermark of what is drawn: greedy answers have none.
    pub(crate) fn mark(&self) -> Option<&Watermark> {
        self.watermark.as_ref().filter(|_| self.temperature > 0.0)
    }
}

/// A sampling parameter that is not what it has to be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum BadSampling {
    #[error("found {value} for {name}, expected a number in its range")]
    Parameter { name: &'static str, value: f32 },
    #[error("the bias of token {token} is not a number")]
    Bias { token: u32 },
    #[error(
        "found a context of {width} tokens for the watermark, expected 1 to {}",
        Watermark::WIDEST
    )]
    Watermark { width: usize },
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
            sampling
                .sampler()
                .side(&[9, 4, 7, 4], None, Vec::new())
                .recent,
            [4, 7, 4]
        );
        let all = Sampling {
            repeat_last_n: None,
            ..sampling
        };
        assert_eq!(
            all.sampler().side(&[9, 4, 7, 4], None, Vec::new()).recent,
            [9, 4, 7, 4]
        );
    }

    #[test]
    fn biases_may_exclude_but_not_be_no_numbers() {
        let with = |bias| Sampling {
            bias: vec![(1, 0.5), (7, bias)],
            ..Sampling::default()
        };
        let never = with(f32::NEG_INFINITY);
        assert_eq!(never.check(), Ok(()));
        let half = Fixed::new(0.5).unwrap();
        assert_eq!(never.sampler().bias, [(1, half), (7, Fixed::EXCLUDED)]);
        let error = with(f32::NAN).check().unwrap_err();
        assert_eq!(error.to_string(), "the bias of token 7 is not a number");
    }

    #[test]
    fn parameters_out_of_range_are_refused_by_name() {
        let cold = Sampling {
            temperature: f32::NAN,
            ..Sampling::default()
        };
        let text = "found NaN for temperature, expected a number in its range";
        assert_eq!(cold.check().unwrap_err().to_string(), text);
        let free = Sampling {
            repeat_penalty: 0.0,
            ..Sampling::default()
        };
        let text = "found 0 for repeat_penalty, expected a number in its range";
        assert_eq!(free.check().unwrap_err().to_string(), text);
    }
}
