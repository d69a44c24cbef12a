//! Flags of sampling, with llama.cpp's names and defaults.

use std::hash::{BuildHasher, Hasher};

use anyhow::Result;
use clap::Args;
use tokkata::{Dry, Request, Sampling, Tokenizer, Watermark};

use crate::args::usage;
use crate::watermark;

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
        default_value_t = 1.0,
        hide_short_help = true
    )]
    typical: f32,
    /// Keep logits within this many standard deviations of the best; negative or 0 for all
    #[arg(long, visible_alias = "top-nsigma", value_name = "N", default_value_t = -1.0, allow_negative_numbers = true, hide_short_help = true)]
    top_n_sigma: f32,
    /// Probability that XTC removes the top candidates
    #[arg(long, value_name = "P", default_value_t = 0.0, hide_short_help = true)]
    xtc_probability: f32,
    /// XTC removes candidates above this probability, but the last of them
    #[arg(long, value_name = "P", default_value_t = 0.1, hide_short_help = true)]
    xtc_threshold: f32,
    /// Penalty of recent tokens; 1 is none
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,
    /// How many tokens are recent; -1 for all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    repeat_last_n: i64,
    /// Penalty of recent tokens, once
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    presence_penalty: f32,
    /// Penalty of recent tokens, per occurrence
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    frequency_penalty: f32,
    /// Strength of DRY; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0, hide_short_help = true)]
    dry_multiplier: f32,
    /// Growth of DRY per repeated token
    #[arg(long, value_name = "X", default_value_t = 1.75, hide_short_help = true)]
    dry_base: f32,
    /// Repetitions that DRY allows
    #[arg(long, value_name = "N", default_value_t = 2, hide_short_help = true)]
    dry_allowed_length: usize,
    /// How many tokens DRY searches; -1 for all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, hide_short_help = true)]
    dry_penalty_last_n: i64,
    /// A text that no repetition crosses; given again, another [default: newline : " *]
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    dry_sequence_breaker: Vec<String>,
    /// Change a token's likelihood: TOKEN+BIAS or TOKEN-BIAS
    #[arg(short, long, value_name = "BIAS", hide_short_help = true)]
    logit_bias: Vec<String>,
    /// Never end the answer by itself
    #[arg(long, hide_short_help = true)]
    ignore_eos: bool,
    /// Use only these samplers, with ; or , between: penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc,
    /// temperature. They act in this order
    #[arg(long, value_name = "NAMES", value_parser = Samplers::parse, default_value = "", hide_default_value = true, hide_short_help = true)]
    samplers: Samplers,
    /// Lets whoever has its key tell the text by `tokkata watermark`, as JSON: {"key": 42}, beside it vLLM's
    /// context_width, deduplicate_contexts and deduplicate_contexts_max_history
    #[arg(long, value_name = "JSON", value_parser = watermark::parse, hide_short_help = true)]
    watermark_config: Option<Watermark>,
}

/// A step between logits and a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sampler {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    Typical,
    TopP,
    MinP,
    Xtc,
    Temperature,
}

/// Samplers in the order in which they act, by their first name and other ones.
const SAMPLERS: [(Sampler, &[&str]); 9] = [
    (Sampler::Penalties, &["penalties"]),
    (Sampler::Dry, &["dry"]),
    (Sampler::TopNSigma, &["top_n_sigma", "top-n-sigma"]),
    (Sampler::TopK, &["top_k", "top-k"]),
    (
        Sampler::Typical,
        &["typ_p", "typ-p", "typ", "typical", "typical_p", "typical-p"],
    ),
    (Sampler::TopP, &["top_p", "top-p", "nucleus"]),
    (Sampler::MinP, &["min_p", "min-p"]),
    (Sampler::Xtc, &["xtc"]),
    (Sampler::Temperature, &["temperature", "temp"]),
];

/// The samplers that are used; all of them where none is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Samplers(Vec<Sampler>);

impl Samplers {
    fn parse(text: &str) -> Result<Self, String> {
        let names = text.split([';', ',']).map(str::trim);
        let names = names.filter(|n| !n.is_empty());
        let one = |name: &str| {
            let known = SAMPLERS.iter().find(|s| s.1.contains(&name));
            let all: Vec<&str> = SAMPLERS.iter().map(|s| s.1[0]).collect();
            let wrong = || format!("found '{name}', expected some of {}", all.join(";"));
            known.map(|s| s.0).ok_or_else(wrong)
        };
        let named = names.map(one).collect::<Result<Vec<Sampler>, String>>()?;
        if named.is_sorted_by(|a, b| a < b) {
            return Ok(Samplers(named));
        }
        let mut sorted = named;
        sorted.sort_unstable();
        sorted.dedup();
        let names = SAMPLERS.iter().filter(|s| sorted.contains(&s.0));
        let names: Vec<&str> = names.map(|s| s.1[0]).collect();
        Err(format!(
            "found '{text}', expected an order in which samplers act here: {}",
            names.join(";")
        ))
    }

    fn has(&self, sampler: Sampler) -> bool {
        self.0.is_empty() || self.0.contains(&sampler)
    }
}

/// What a full context does.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct ShiftArgs {
    /// When the context is full, forget half of it and go on, rather than end the answer
    #[arg(long, overrides_with = "no_context_shift")]
    context_shift: bool,
    /// End the answer when the context is full (as by default)
    #[arg(long, hide = true, overrides_with = "context_shift")]
    no_context_shift: bool,
    /// Tokens of the prompt that stay when the context is shifted; -1 for all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    keep: i64,
}

impl ShiftArgs {
    /// For a prompt of so many tokens: those that stay, if the context is to be shifted.
    pub(crate) fn kept(self, prompt: usize) -> Option<usize> {
        let keep = usize::try_from(self.keep).map_or(prompt, |n| n.min(prompt));
        self.context_shift.then_some(keep)
    }
}

impl SamplingArgs {
    /// Sampling for one tokenizer, which DRY alone asks for, and the seed to be shown when it was made up.
    pub(crate) fn sampling(
        &self,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(Sampling, Option<u64>)> {
        self.check()?;
        let used = |sampler| self.samplers.has(sampler);
        let pick = |sampler, value: f32, off: f32| if used(sampler) { value } else { off };
        let top_k = u32::try_from(self.top_k).unwrap_or(0);
        let random = u64::try_from(self.seed).is_err().then(random_seed);
        let dry = if used(Sampler::Dry) && self.dry_multiplier != 0.0 {
            let nobody = || usage("DRY wants a model that is named");
            Some(self.dry(tokenizer.ok_or_else(nobody)?))
        } else {
            None
        };
        let sampling = Sampling {
            temperature: pick(Sampler::Temperature, self.temp, 1.0),
            top_k: if used(Sampler::TopK) { top_k } else { 0 },
            top_p: pick(Sampler::TopP, self.top_p, 1.0),
            min_p: pick(Sampler::MinP, self.min_p, 0.0),
            typical_p: pick(Sampler::Typical, self.typical, 1.0),
            top_n_sigma: pick(Sampler::TopNSigma, self.top_n_sigma.max(0.0), 0.0),
            xtc_probability: pick(Sampler::Xtc, self.xtc_probability, 0.0),
            xtc_threshold: self.xtc_threshold,
            repeat_penalty: pick(Sampler::Penalties, self.repeat_penalty, 1.0),
            frequency_penalty: pick(Sampler::Penalties, self.frequency_penalty, 0.0),
            presence_penalty: pick(Sampler::Penalties, self.presence_penalty, 0.0),
            repeat_last_n: usize::try_from(self.repeat_last_n).ok(),
            dry,
            bias: self.bias()?,
            seed: random.unwrap_or(self.seed as u64),
            watermark: self.watermark_config,
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

    /// The same as members of a request.
    pub(crate) fn body(&self) -> Result<serde_json::Map<String, serde_json::Value>> {
        self.check()?;
        let others = !self.samplers.0.is_empty() || !self.logit_bias.is_empty();
        if others || self.dry_multiplier != 0.0 || self.watermark_config.is_some() {
            return Err(usage(
                "--samplers, --logit-bias, --watermark-config and DRY are set where the server is started",
            ));
        }
        let body = serde_json::json!({
            "temperature": self.temp,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "typical_p": self.typical,
            "top_n_sigma": self.top_n_sigma,
            "xtc_probability": self.xtc_probability,
            "xtc_threshold": self.xtc_threshold,
            "repeat_penalty": self.repeat_penalty,
            "repeat_last_n": self.repeat_last_n,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "ignore_eos": self.ignore_eos,
            "seed": self.seed(),
        });
        Ok(body.as_object().cloned().unwrap_or_default())
    }

    /// The seed, if one was given.
    pub(crate) fn seed(&self) -> Option<u64> {
        u64::try_from(self.seed).ok()
    }

    /// Whether answers never end by themselves.
    pub(crate) fn ignores_end(&self) -> bool {
        self.ignore_eos
    }

    fn check(&self) -> Result<()> {
        const SHARE: &str = "a number from 0 to 1";
        let share = |x: f32| (0.0..=1.0).contains(&x);
        let any = "a number";
        let ranges = [
            (
                "temp",
                self.temp,
                self.temp >= 0.0,
                "a number of at least 0",
            ),
            ("top-p", self.top_p, share(self.top_p), SHARE),
            ("min-p", self.min_p, share(self.min_p), SHARE),
            ("typical", self.typical, share(self.typical), SHARE),
            (
                "xtc-probability",
                self.xtc_probability,
                share(self.xtc_probability),
                SHARE,
            ),
            (
                "xtc-threshold",
                self.xtc_threshold,
                share(self.xtc_threshold),
                SHARE,
            ),
            (
                "repeat-penalty",
                self.repeat_penalty,
                self.repeat_penalty > 0.0,
                "a number above 0",
            ),
            ("presence-penalty", self.presence_penalty, true, any),
            ("frequency-penalty", self.frequency_penalty, true, any),
            ("top-n-sigma", self.top_n_sigma, true, any),
            ("dry-multiplier", self.dry_multiplier, true, any),
            ("dry-base", self.dry_base, true, any),
        ];
        let wrong = ranges.iter().find(|r| !(r.1.is_finite() && r.2));
        wrong.map_or(Ok(()), |(name, found, _, range)| {
            Err(usage(format!(
                "found {found} for --{name}, expected {range}"
            )))
        })
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
            let bias: f32 = text[at..].parse().ok()?;
            (!bias.is_nan()).then_some((text[..at].parse().ok()?, bias))
        };
        let wrong = |text: &String| {
            usage(format!(
                "found --logit-bias {text}, expected TOKEN+BIAS or TOKEN-BIAS, a token's id and a number"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_are_named_in_the_order_in_which_they_act() {
        let read = |text: &str| Samplers::parse(text).map(|s| s.0);
        assert_eq!(
            read("top_k;top_p;temperature"),
            Ok(vec![Sampler::TopK, Sampler::TopP, Sampler::Temperature])
        );
        assert_eq!(read("nucleus,temp").map(|s| s.len()), Ok(2));
        let error = read("temperature;top_k").expect_err("another order");
        assert!(error.ends_with("act here: top_k;temperature"), "{error}");
        assert!(
            read("top_x")
                .expect_err("no name")
                .contains("expected some of penalties;")
        );
        let some = Samplers::parse("min_p").expect("a name");
        assert!(some.has(Sampler::MinP) && !some.has(Sampler::TopK));
        assert!(Samplers::default().has(Sampler::TopK));
    }
}
