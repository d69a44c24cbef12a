//! Watermarks: draws whose noise follows from a secret key and the answer's newest tokens, so that whoever has the key
//! can tell such a text, without the model.
//!
//! The scheme is Aaronson's: a draw stays Gumbel-max over the same candidates, and so keeps its distribution; only
//! where its noise comes from changes. The noise is Philox-4×32-10 over the key and a context of tokens, as vLLM's
//! `philox4x32-10-v1` has it: its detector finds these texts, and [`Watermark::detect`] finds its. Contexts that came
//! before would draw the same again, and are drawn by the seed. Greedy answers have no noise, and no watermark.

use std::collections::HashSet;

use tokkata_ir::sample::{BadLogits, Row, SamplerRecord, Scratch, sample, sample_by};

/// What is searched for a context that came before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeats {
    /// Nothing: contexts draw the same whenever they come, which makes texts run in circles.
    None,
    /// The answer.
    #[default]
    Answer,
    /// The prompt as well; the answer's first tokens, whose context is not whole, are drawn by the seed.
    Everything,
}

/// A key, and how draws follow from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// The secret.
    pub key: u64,
    /// Tokens of a context, 1 to [`Watermark::WIDEST`]: after an edit so many tokens tell nothing.
    pub width: usize,
    /// Where contexts that came before are drawn by the seed.
    pub repeats: Repeats,
    /// How many of the newest tokens are searched for them; `None` for all.
    pub reach: Option<usize>,
}

/// What a text says of a watermark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// Tokens that count.
    pub scored: usize,
    /// The sum of their scores: 1 a token in texts without this watermark.
    pub score: f64,
    /// How likely such a text has this score or more: `Q(scored, score)` of the gamma distribution.
    pub p_value: f64,
}

impl std::fmt::Debug for Watermark {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watermark")
            .field("width", &self.width)
            .field("repeats", &self.repeats)
            .field("reach", &self.reach)
            .finish_non_exhaustive()
    }
}

/// Stands where a context has no token.
const NOTHING: u32 = u32::MAX;

impl Watermark {
    /// Tokens that a context can have.
    pub const WIDEST: usize = 64;

    /// A watermark with this key, a context of four tokens and repeats within the newest 8,192 of an answer.
    #[must_use]
    pub fn new(key: u64) -> Self {
        Watermark {
            key,
            width: 4,
            repeats: Repeats::default(),
            reach: Some(8192),
        }
    }

    /// Draws a token as [`sample`] does, after a prompt of so many of the tokens.
    ///
    /// # Errors
    /// As [`sample`].
    pub fn sample(
        &self,
        (tokens, prompt): (&[u32], usize),
        (record, row): (&SamplerRecord, &Row<'_>),
        scratch: &mut Scratch,
    ) -> Result<u32, BadLogits> {
        match self.noise_after(tokens, prompt) {
            Some(noise) => sample_by(record, row, scratch, |id| noise.bits(id)),
            None => sample(record, row, scratch),
        }
    }

    /// What noise follows from after these tokens; `None` where the seed draws.
    fn noise_after(&self, tokens: &[u32], prompt: usize) -> Option<Noise> {
        let answer = &tokens[prompt..];
        let whole = answer.len() >= self.width;
        let searched = match self.repeats {
            Repeats::None => &[],
            Repeats::Answer => answer,
            Repeats::Everything if whole => tokens,
            Repeats::Everything => return None,
        };
        let context = self.context(answer);
        let first = self.reach.map_or(0, |n| searched.len().saturating_sub(n));
        let repeated = (first..searched.len())
            .rev()
            .any(|end| self.context(&searched[..end]).eq(context.clone()));
        (!repeated).then(|| Noise::new(self.key, context))
    }

    /// The newest tokens, in their order.
    fn context<'a>(&self, tokens: &'a [u32]) -> impl ExactSizeIterator<Item = u32> + Clone + 'a {
        let (width, len) = (self.width, tokens.len());
        (0..width).map(move |i| match (len + i).checked_sub(width) {
            Some(at) => tokens[at],
            None => NOTHING,
        })
    }

    /// How likely a text is that has these tokens, if nobody drew it with this key. Contexts count once.
    #[must_use]
    pub fn detect(&self, tokens: &[u32]) -> Detection {
        self.score(tokens, true)
    }

    fn score(&self, tokens: &[u32], once: bool) -> Detection {
        let mut seen = HashSet::new();
        let (mut scored, mut score) = (0, 0.0);
        for (at, &token) in tokens.iter().enumerate() {
            let context = self.context(&tokens[..at]);
            if once && !seen.insert(context.clone().collect::<Vec<u32>>()) {
                continue;
            }
            scored += 1;
            score -= (-Noise::new(self.key, context).uniform(token)).ln_1p();
        }
        Detection {
            scored,
            score,
            p_value: gamma_above(scored, score),
        }
    }
}

/// The noise of all tokens behind one context.
struct Noise {
    key: [u32; 2],
    state: [u32; 4],
}

impl Noise {
    fn new(key: u64, context: impl ExactSizeIterator<Item = u32>) -> Self {
        /// What tells contexts from tokens: "WMCX".
        const CONTEXT: u32 = 0x574D_4358;
        let key = [key as u32, (key >> 32) as u32];
        let width = context.len();
        let mut state = [CONTEXT, width as u32, 0, 0];
        let mut context = context.fuse();
        for offset in (0..width as u32).step_by(4) {
            for (i, word) in state.iter_mut().enumerate() {
                *word ^= context.next().unwrap_or(NOTHING - i as u32);
            }
            state = philox(state, [key[0] ^ offset, key[1]]);
        }
        Noise { key, state }
    }

    fn word(&self, token: u32) -> u32 {
        /// "WMTK".
        const TOKEN: u32 = 0x574D_544B;
        let [a, b, c, d] = self.state;
        let key = [self.key[0] ^ d, self.key[1] ^ TOKEN];
        philox([token >> 2, a, b, c], key)[token as usize & 3]
    }

    /// 64 bits for a draw: half way between two words, the largest of which wins where in draws the smallest does.
    fn bits(&self, token: u32) -> u64 {
        u64::from(!self.word(token)) << 32 | 1 << 31
    }

    /// Between 0 and 1, in `f32` as detectors have it.
    fn uniform(&self, token: u32) -> f64 {
        const PARTS: f64 = (1 << 24) as f64;
        let part = f64::from(self.word(token) >> 8);
        f64::from(((part + 1.0) / (PARTS + 1.0)) as f32)
    }
}

/// Philox-4×32 with 10 rounds (Salmon and others, *Parallel random numbers: as easy as 1, 2, 3*, 2011).
fn philox(counter: [u32; 4], [mut a, mut b]: [u32; 2]) -> [u32; 4] {
    let mut x = counter;
    for _ in 0..10 {
        let first = u64::from(x[0]) * 0xD251_1F53;
        let second = u64::from(x[2]) * 0xCD9E_8D57;
        x = [
            (second >> 32) as u32 ^ x[1] ^ a,
            second as u32,
            (first >> 32) as u32 ^ x[3] ^ b,
            first as u32,
        ];
        a = a.wrapping_add(0x9E37_79B9);
        b = b.wrapping_add(0xBB67_AE85);
    }
    x
}

/// How likely a sum of `n` exponential numbers is at least `score`: `e⁻ˢ · Σ sⁱ / i!` over `i < n`.
fn gamma_above(n: usize, score: f64) -> f64 {
    if n == 0 || score <= 0.0 {
        return 1.0;
    }
    let mut terms = vec![0.0];
    let mut term: f64 = 0.0;
    for i in 1..n {
        term += score.ln() - (i as f64).ln();
        terms.push(term);
    }
    let most = terms.iter().copied().fold(0.0, f64::max);
    let sum: f64 = terms.iter().map(|t| (t - most).exp()).sum();
    (most + sum.ln() - score).min(0.0).exp()
}

#[cfg(test)]
mod tests;
