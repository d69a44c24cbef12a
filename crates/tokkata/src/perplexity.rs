//! How well a model predicts a text, and how far its predictions are from another model's.
//!
//! Numbers and files are those of llama-perplexity: a text is cut into chunks of one context, each begins with the
//! beginning-of-text token if the tokenizer asks for one, and the second half of each chunk is scored.

use tokkata_engine::{Engine, EngineError, Fed, Feed, FeedLogits, RowKind, SessionId};
use tokkata_ir::ValueId;
use tokkata_text::tokenizer::EncodeOptions;

use crate::error::Result;
use crate::model::Model;

/// Scores chunks of one context each.
pub struct Scorer<'a> {
    model: &'a mut Model,
    ctx: usize,
    first_token: Option<u32>,
    unscored: FeedLogits,
}

/// Sees what each step left.
pub trait Watch {
    /// Values of the main plan that it wants to see.
    fn keeps(&self) -> Vec<ValueId>;

    /// Looks at a step.
    ///
    /// # Errors
    /// Its own, which end the run.
    fn see(&mut self, engine: &mut Engine, fed: &Fed) -> Result<()>;
}

/// Nobody looks.
struct Nobody;

impl Watch for Nobody {
    fn keeps(&self) -> Vec<ValueId> {
        Vec::new()
    }

    fn see(&mut self, _: &mut Engine, _: &Fed) -> Result<()> {
        Ok(())
    }
}

impl<'a> Scorer<'a> {
    /// A scorer of chunks of `ctx` tokens, at most the context that `model` was loaded for.
    ///
    /// # Errors
    /// A model without a tokenizer.
    pub fn new(model: &'a mut Model, ctx: usize) -> Result<Self> {
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let first_token = model.tokenize("", options)?.first().copied();
        Ok(Scorer {
            model,
            ctx,
            first_token,
            unscored: FeedLogits::None,
        })
    }

    /// Computes logits of positions that are not scored, too.
    #[must_use]
    pub fn with_all_logits(mut self) -> Self {
        self.unscored = FeedLogits::All;
        self
    }

    /// Tokens of a chunk.
    #[must_use]
    pub fn ctx(&self) -> usize {
        self.ctx
    }

    /// Tokens of a chunk that are predicted and scored.
    #[must_use]
    pub fn scored(&self) -> usize {
        self.ctx - 1 - self.ctx / 2
    }

    /// Width of the logits.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.model.n_vocab() as usize
    }

    /// Feeds one chunk; `sink` gets logits, and the token that came next, of each scored position in order.
    ///
    /// # Errors
    /// Tokens outside of the vocabulary, or the backend's.
    pub fn chunk(&mut self, tokens: &[u32], sink: impl FnMut(&[f32], u32)) -> Result<()> {
        self.watched(tokens, &mut Nobody, sink)
    }

    /// Feeds one chunk without scoring it, while `watch` sees every step.
    ///
    /// # Errors
    /// As [`Scorer::chunk`], and those of `watch`.
    pub fn unscored(&mut self, tokens: &[u32], watch: &mut dyn Watch) -> Result<()> {
        let fed = self.fed(tokens)?;
        let session = self.model.engine().open_session(0);
        let result = self.skip(session, &fed, watch);
        self.model.engine().close_session(session);
        result
    }

    /// As [`Scorer::chunk`], while `watch` sees every step.
    ///
    /// # Errors
    /// As [`Scorer::chunk`], and those of `watch`.
    pub fn watched(
        &mut self,
        tokens: &[u32],
        watch: &mut dyn Watch,
        sink: impl FnMut(&[f32], u32),
    ) -> Result<()> {
        let fed = self.fed(tokens)?;
        let session = self.model.engine().open_session(0);
        let half = (self.ctx / 2).min(fed.len());
        let result = self
            .skip(session, &fed[..half], watch)
            .and_then(|()| self.score(session, &fed[half..], &tokens[half..], (watch, sink)));
        self.model.engine().close_session(session);
        result
    }

    /// What is fed for a chunk: it begins as a text does.
    fn fed(&self, tokens: &[u32]) -> Result<Vec<u32>> {
        let mut fed = tokens.to_vec();
        if let (Some(first), Some(token)) = (self.first_token, fed.first_mut()) {
            *token = first;
        }
        let n_vocab = self.model.n_vocab();
        match fed.iter().find(|&&t| t >= n_vocab) {
            Some(&token) => Err(EngineError::UnknownToken { token, n_vocab }.into()),
            None => Ok(fed),
        }
    }

    /// Feeds what is not scored.
    fn skip(&mut self, session: SessionId, fed: &[u32], watch: &mut dyn Watch) -> Result<()> {
        let limits = *self.model.limits();
        let rows = match self.unscored {
            FeedLogits::All => limits.rows.min(limits.logit_rows),
            _ => limits.rows,
        };
        for part in fed.chunks(rows.max(1) as usize) {
            let (engine, keep) = (self.model.engine(), watch.keeps());
            let fed = feed(engine, (session, part, self.unscored), &keep)?;
            watch.see(engine, &fed)?;
        }
        Ok(())
    }

    /// Feeds what is scored; `tokens` are what was fed, before the first was replaced.
    fn score(
        &mut self,
        session: SessionId,
        fed: &[u32],
        tokens: &[u32],
        (watch, mut sink): (&mut dyn Watch, impl FnMut(&[f32], u32)),
    ) -> Result<()> {
        let limits = *self.model.limits();
        let rows = limits.rows.min(limits.logit_rows).max(1) as usize;
        let engine = self.model.engine();
        let port = engine.logits_port()?;
        for (at, part) in fed.chunks(rows).enumerate() {
            let keep = [watch.keeps(), vec![port]].concat();
            let fed = feed(engine, (session, part, FeedLogits::All), &keep)?;
            watch.see(engine, &fed)?;
            for i in 0..part.len() {
                let row = &engine.read(&fed, port, Some(i..i + 1))?;
                // The chunk's last token has no successor in it.
                if let Some(&next) = tokens.get(at * rows + i + 1) {
                    sink(row, next);
                }
            }
        }
        Ok(())
    }
}

/// Feeds tokens to a session.
fn feed(
    engine: &mut Engine,
    (session, tokens, logits): (SessionId, &[u32], FeedLogits),
    keep: &[ValueId],
) -> Result<Fed> {
    let feed = Feed {
        session,
        tokens,
        rows: RowKind::Prompt,
        logits,
    };
    Ok(engine.feed(&[feed], keep)?)
}

/// A mean and the standard error of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
}

/// Sums of a quantity and of its square.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Values added.
    pub count: u64,
    sum: f64,
    squares: f64,
}

impl Sums {
    /// Adds one value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// The mean of what was added.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let count = self.count as f64;
        if self.count == 0 {
            return Estimate::default();
        }
        let mean = self.sum / count;
        let variance = self.squares / count - mean * mean;
        let certain = variance <= 0.0 || self.count < 2;
        let error = if certain {
            0.0
        } else {
            (variance / (count - 1.0)).sqrt()
        };
        Estimate { mean, error }
    }

    /// The exponential of the mean: the perplexity, if negative logarithms of probabilities were added.
    #[must_use]
    pub fn exponential(&self) -> Estimate {
        let log = self.estimate();
        let mean = log.mean.exp();
        Estimate {
            mean,
            error: mean * log.error,
        }
    }
}

/// What `softmax` needs of a row: the largest logit and the logarithm of the sum of exponentials below it.
#[derive(Clone, Copy, Debug)]
struct Norm {
    max: f32,
    log_sum: f64,
}

impl Norm {
    fn of(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from((x - max).exp())).sum();
        Norm {
            max,
            log_sum: sum.ln(),
        }
    }
}

/// The negative logarithm of the probability that `logits` give `token`.
#[must_use]
pub fn surprise(logits: &[f32], token: u32) -> f64 {
    let norm = Norm::of(logits);
    -(f64::from(logits[token as usize] - norm.max) - norm.log_sum)
}

/// Logarithms of probabilities in 16 bits each, as a file of a base run stores a row.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedRow {
    /// Scale, smallest logarithm, then the codes, little-endian.
    pub bytes: Vec<u8>,
}

impl PackedRow {
    /// Bytes of a row of `n_vocab` logits.
    #[must_use]
    pub fn len_bytes(n_vocab: usize) -> usize {
        2 * (n_vocab.next_multiple_of(2) + 4)
    }

    /// Packs a row. What is less likely than the likeliest by more than e¹⁶ becomes equally unlikely.
    #[must_use]
    pub fn pack(logits: &[f32]) -> Self {
        let norm = Norm::of(logits);
        let least = logits.iter().copied().fold(f32::INFINITY, f32::min);
        let least = least.max(norm.max - 16.0);
        let scale = (norm.max - least) / 65535.0;
        let smallest = least - norm.max - norm.log_sum as f32;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let code = |&x: &f32| {
            let steps = inverse * (x - least);
            if x > least {
                steps.round_ties_even() as u16
            } else {
                0
            }
        };
        let mut bytes = Vec::with_capacity(Self::len_bytes(logits.len()));
        bytes.extend(scale.to_le_bytes());
        bytes.extend(smallest.to_le_bytes());
        logits
            .iter()
            .for_each(|x| bytes.extend(code(x).to_le_bytes()));
        bytes.resize(Self::len_bytes(logits.len()), 0);
        PackedRow { bytes }
    }

    /// The logarithms of a row of `n_vocab`.
    pub fn logs(&self, n_vocab: usize) -> impl Iterator<Item = f32> {
        let (words, _) = self.bytes.as_chunks::<2>();
        let float = |at: usize| {
            let (a, b) = (words[at], words[at + 1]);
            f32::from_le_bytes([a[0], a[1], b[0], b[1]])
        };
        let (scale, smallest) = (float(0), float(2));
        let codes = words[4..].iter().take(n_vocab);
        codes.map(move |code| scale * f32::from(u16::from_le_bytes(*code)) + smallest)
    }
}

/// How far predictions are from those of a base run.
#[derive(Clone, Debug, Default)]
pub struct Divergence {
    /// Negative logarithms of probabilities of the text.
    pub own: Sums,
    /// The same of the base run.
    pub base: Sums,
    products: f64,
    /// Kullback–Leibler divergences from the base's distribution.
    pub divergence: Sums,
    /// Probability of the text's token less the base's.
    pub difference: Sums,
    /// Squares of these differences.
    pub squared: Sums,
    /// Positions where both think the same token likeliest.
    pub same_top: u64,
    /// Divergences of all positions.
    pub divergences: Vec<f32>,
    /// Differences of all positions.
    pub differences: Vec<f32>,
}

impl Divergence {
    /// Adds a position where `token` came next.
    pub fn add(&mut self, logits: &[f32], base: &PackedRow, token: u32) {
        let norm = Norm::of(logits);
        let log_sum = norm.max + norm.log_sum as f32;
        let (mut sum, mut likeliest, mut token_base) = (0.0f64, (f32::NEG_INFINITY, 0), 0.0f32);
        for (i, (log, x)) in base.logs(logits.len()).zip(logits).enumerate() {
            if log > likeliest.0 {
                likeliest = (log, i);
            }
            if i == token as usize {
                token_base = -log;
            }
            if log > -16.0 {
                sum += f64::from(log.exp() * (log - x + log_sum));
            }
        }
        let own = log_sum - logits[token as usize];
        let top = logits.iter().position(|&x| x == norm.max);
        self.same_top += u64::from(top == Some(likeliest.1));
        self.own.add(own.into());
        self.base.add(token_base.into());
        self.products += f64::from(own * token_base);
        self.divergence.add(sum);
        let difference = (-own).exp() - (-token_base).exp();
        self.difference.add(difference.into());
        self.squared.add((difference * difference).into());
        self.divergences.push(sum as f32);
        self.differences.push(difference);
    }

    /// The logarithm of the quotient of perplexities, this one's by the base's.
    #[must_use]
    pub fn log_ratio(&self) -> Estimate {
        let (own, base) = (self.own.estimate(), self.base.estimate());
        let variance = own.error.powi(2) + base.error.powi(2) - 2.0 * self.covariance();
        Estimate {
            mean: own.mean - base.mean,
            error: variance.max(0.0).sqrt(),
        }
    }

    fn covariance(&self) -> f64 {
        let count = self.own.count as f64;
        if self.own.count < 10 {
            return 0.0;
        }
        let means = (self.own.sum / count) * (self.base.sum / count);
        (self.products / count - means) / (count - 1.0)
    }

    /// Root of the mean square of differences of probability.
    #[must_use]
    pub fn rms_difference(&self) -> Estimate {
        let square = self.squared.estimate();
        let mean = square.mean.sqrt();
        let error = if mean > 0.0 {
            0.5 / mean * square.error
        } else {
            0.0
        };
        Estimate { mean, error }
    }

    /// The part of positions where both think the same token likeliest.
    #[must_use]
    pub fn same_top(&self) -> Estimate {
        let count = (self.own.count as f64).max(1.0);
        let mean = self.same_top as f64 / count;
        let error = (mean * (1.0 - mean) / (count - 1.0).max(1.0)).sqrt();
        Estimate { mean, error }
    }
}

/// The value below which a part `fraction` of sorted `values` lies, between neighbours in proportion.
#[must_use]
pub fn percentile(values: &[f32], fraction: f32) -> f32 {
    let Some(last) = values.len().checked_sub(1) else {
        return 0.0;
    };
    let place = fraction.clamp(0.0, 1.0) * last as f32;
    let (low, part) = (place as usize, place.fract());
    (1.0 - part) * values[low] + part * values[(low + 1).min(last)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surprise_is_the_logarithm_of_a_softmax() {
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        assert!((surprise(&logits, 1) - 4f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_row_survives_packing_but_for_the_unlikely() {
        let logits = [3.0, -2.5, 1.25, -40.0, 0.5];
        let row = PackedRow::pack(&logits);
        assert_eq!(row.bytes.len(), PackedRow::len_bytes(5));
        let logs: Vec<f32> = row.logs(5).collect();
        for i in [0, 1, 2, 4] {
            let exact = -surprise(&logits, i as u32);
            assert!((f64::from(logs[i]) - exact).abs() < 2e-4, "{i}");
        }
        assert!((logs[0] - logs[3] - 16.0).abs() < 1e-3);
    }

    #[test]
    fn a_model_does_not_differ_from_itself() {
        let mut same = Divergence::default();
        let mut other = Divergence::default();
        for i in 0..20u32 {
            let logits: Vec<f32> = (0..9).map(|j| ((i * 7 + j * 5) % 11) as f32).collect();
            let row = PackedRow::pack(&logits);
            same.add(&logits, &row, i % 9);
            let moved: Vec<f32> = logits.iter().rev().copied().collect();
            other.add(&moved, &row, i % 9);
        }
        assert!(same.divergence.estimate().mean.abs() < 1e-4);
        assert!(same.rms_difference().mean < 1e-4 && same.same_top().mean == 1.0);
        assert!(other.divergence.estimate().mean > 0.1 && other.same_top().mean < 1.0);
    }

    #[test]
    fn estimates_have_standard_errors() {
        let mut sums = Sums::default();
        [1.0, 3.0].into_iter().for_each(|x| sums.add(x));
        let want = Estimate {
            mean: 2.0,
            error: 1.0,
        };
        assert_eq!(sums.estimate(), want);
        assert_eq!(percentile(&[0.0, 1.0, 4.0], 0.75), 2.5);
    }
}
