//! Flags of sampling, with llama.cpp's names and defaults.

use std::hash::{BuildHasher, Hasher};

use anyhow::Result;
use clap::Args;
use tokkata::{Dry, Request, Sampling, Tokenizer};

use crate::args::usage;

/// How tokens are picked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Seed; -1 for a random one
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    seed: i64,
    /// Temperature; 0 always takes the likeliest token
    #[arg(
        long,
        visible_alias = "temperature",
        value_name = "T",
        default_value_t = 0.8
    )]
    temp: f32,
    /// Keep this many candidates; 0 for all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 40,
        allow_negative_numbers = true
    )]
    top_k: i64,
    /// Keep the likeliest candidates of this mass; 1 for all
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Keep candidates of this share of the best one's probability; 0 for all
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,
    /// Keep the most typical candidates of this mass; 1 for all
    #[arg(
        long = "typical",
        visible_alias = "typical-p",
        value_name = "P",
        default_value_t = 1.0
    )]
    typical: f32,
    /// Keep logits within this many standard deviations of the best; negative or 0 for all
    #[arg(long, visible_alias = "top-nsigma", value_name = "N", default_value_t = -1.0, allow_negative_numbers = true)]
    top_n_sigma: f32,
    /// Probability that XTC removes the top candidates
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    xtc_probability: f32,
    /// XTC removes candidates above this probability, but the last of them
    #[arg(long, value_name = "P", default_value_t = 0.1)]
    xtc_threshold: f32,
    /// Penalty of recent tokens; 1 is none
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,
    /// How many tokens are recent; -1 for all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true
    )]
    repeat_last_n: i64,
    /// Penalty of recent tokens, once
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    presence_penalty: f32,
    /// Penalty of recent tokens, per occurrence
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    frequency_penalty: f32,
    /// Strength of DRY; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    dry_multiplier: f32,
    /// Growth of DRY per repeated token
    #[arg(long, value_name = "X", default_value_t = 1.75)]
    dry_base: f32,
    /// Repetitions that DRY allows
    #[arg(long, value_name = "N", default_value_t = 2)]
    dry_allowed_length: usize,
    /// How many tokens DRY searches; -1 for all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    dry_penalty_last_n: i64,
    /// A text that no repetition crosses; given again, another [default: newline : " *]
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Change a token's likelihood: TOKEN+BIAS or TOKEN-BIAS
    #[arg(short, long, value_name = "BIAS")]
    logit_bias: Vec<String>,
    /// Never end the answer by itself
    #[arg(long)]
    ignore_eos: bool,
}

impl SamplingArgs {
    /// Sampling for one tokenizer, and the seed to be shown when it was made up.
    pub(crate) fn sampling(&self, tokenizer: &Tokenizer) -> Result<(Sampling, Option<u64>)> {
        self.check()?;
        let random = u64::try_from(self.seed).is_err().then(random_seed);
        let sampling = Sampling {
            temperature: self.temp,
            top_k: u32::try_from(self.top_k).unwrap_or(0),
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            top_n_sigma: self.top_n_sigma.max(0.0),
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repeat_last_n: usize::try_from(self.repeat_last_n).ok(),
            dry: (self.dry_multiplier != 0.0).then(|| self.dry(tokenizer)),
            bias: self.bias()?,
            seed: random.unwrap_or(self.seed as u64),
        };
        Ok((sampling, random.filter(|_| self.temp > 0.0)))
    }

    /// Sets the parameters of a request.
    pub(crate) fn apply(&self, sampling: &Sampling, request: &mut Request) {
        request.sampling = sampling.clone();
        if self.ignore_eos {
            let ends = request.stop.stop_ids.drain(..);
            request
                .sampling
                .bias
                .extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
    }

    /// Whether answers never end by themselves.
    pub(crate) fn ignores_end(&self) -> bool {
        self.ignore_eos
    }

    fn check(&self) -> Result<()> {
        let sane = |name: &str, value: f32, ok: bool| {
            if ok && value.is_finite() {
                return Ok(());
            }
            Err(usage(format!(
                "found {value} for --{name}, expected a number in its range"
            )))
        };
        let share = |x: f32| (0.0..=1.0).contains(&x);
        sane("temp", self.temp, self.temp >= 0.0)?;
        sane("top-p", self.top_p, share(self.top_p))?;
        sane("min-p", self.min_p, share(self.min_p))?;
        sane("typical", self.typical, share(self.typical))?;
        sane(
            "xtc-probability",
            self.xtc_probability,
            share(self.xtc_probability),
        )?;
        sane(
            "xtc-threshold",
            self.xtc_threshold,
            share(self.xtc_threshold),
        )?;
        sane(
            "repeat-penalty",
            self.repeat_penalty,
            self.repeat_penalty > 0.0,
        )?;
        sane("presence-penalty", self.presence_penalty, true)?;
        sane("frequency-penalty", self.frequency_penalty, true)
    }

    fn dry(&self, tokenizer: &Tokenizer) -> Dry {
        let usual = ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
        let given = if self.dry_sequence_breaker.is_empty() {
            usual
        } else {
            self.dry_sequence_breaker.clone()
        };
        let contains = |id: &u32| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(*id));
            given
                .iter()
                .any(|b| b != "none" && text.contains(b.as_str()))
        };
        Dry {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed_length: self.dry_allowed_length,
            last_n: usize::try_from(self.dry_penalty_last_n).ok(),
            breakers: (0..tokenizer.vocab_size() as u32)
                .filter(contains)
                .collect(),
        }
    }

    fn bias(&self) -> Result<Vec<(u32, f32)>> {
        let one = |text: &String| {
            let at = text.find(['+', '-'])?;
            Some((text[..at].parse().ok()?, text[at..].parse().ok()?))
        };
        let wrong = |text: &String| {
            usage(format!(
                "found --logit-bias {text}, expected TOKEN+BIAS or TOKEN-BIAS"
            ))
        };
        self.logit_bias
            .iter()
            .map(|t| one(t).ok_or_else(|| wrong(t)))
            .collect()
    }
}

/// A seed that nobody can foresee; below 2³², so that it can be typed again.
fn random_seed() -> u64 {
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.finish() & u64::from(u32::MAX)
}
