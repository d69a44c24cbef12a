//! The sampler's reference semantics, shared by every backend.
//!
//! Order, as people know it from llama.cpp: logit bias → grammar mask → penalties → DRY → top-n-sigma → top-k →
//! typical → top-p → min-p → XTC → temperature → draw.
//!
//! A draw is Gumbel-max: of the candidates that the filters leave, the one with the largest `logit / T + noise` is
//! drawn, which is a sample of their softmax. The noise of a token is [`gumbel`] of 64 bits that follow from (seed,
//! position of the row, id) alone ([`noise`]). The position is the row's own: that of the token whose row of logits
//! it is, one before the token drawn. So several rows of a sequence have their own draws, a row draws the same
//! whatever runs beside it, and whoever guesses a token with the same noise is mostly right.
//!
//! After the `f32` logits everything is integer: logits become [`Fixed`] once, `1/T` and the filters' edges are
//! constants of the [`SamplerRecord`], exponentials and logarithms come from [`tables`], sums do not depend on their
//! order, ties go to the lowest id. No number is wider than two 32-bit words: products of two words (temperature,
//! penalties, [`tables::exp`]), sums of weights, 64 random bits and their logarithm, squares. So every backend draws
//! the same token from the same logits. Vocabularies have at most 2²⁰ tokens.
//!
//! Precision: a logit loses less than 2⁻¹⁶, noise less than 4·10⁻⁶, so a token's chance is within a share of
//! 2⁻¹⁶/T + 10⁻⁵ of the softmax's, however small it is, down to 2⁻⁶⁰.
//!
//! At temperature 0 the largest adjusted logit is picked; among equals in fixed point the largest `f32` logit as it
//! came, then the lowest id. Truncation keeps the order of logits, so where nothing adjusts them this is the largest
//! `f32`.
//!
//! Reading order: [`Parameters`], [`SamplerRecord`], [`Row`], [`sample`], [`tables`], [`report`].
//!
//! ```
//! use tokkata_ir::sample::{Parameters, Row, Scratch, sample};
//!
//! let record = Parameters { temperature: 0.8, top_k: 2, seed: 7, ..Parameters::default() }.record();
//! let row = Row { logits: &[0.5, 3.0, 2.5], position: 41, ..Row::default() };
//! let token = sample(&record, &row, &mut Scratch::default())?;
//! assert!(token == 1 || token == 2);
//! # Ok::<(), tokkata_ir::sample::BadLogits>(())
//! ```

mod filter;
mod fixed;
mod mask;
mod noise;
mod record;
mod report;
mod row;
mod slot;
pub mod tables;

pub use fixed::Fixed;
pub use mask::Mask;
pub use noise::{chance, noise, uniform};
pub use record::{ALL, Coldness, Parameters, RECORD_WORDS, SamplerRecord};
pub use report::{MOST_LISTED, Report, report};
pub use row::{Row, SampleSide, penalised};
pub use slot::Sampler;

use filter::Candidate;
use tables::{gumbel, gumbel_bound};

/// Why nothing can be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadLogits {
    /// A logit is not a number, masked or not.
    NotANumber,
    /// Every token is excluded: by the mask, by its bias, or by a logit of −∞.
    NoCandidate,
}

/// In the place of a token: the row's logits are not numbers.
pub const NOT_A_NUMBER: i32 = -1;
/// In the place of a token: nothing may be drawn.
pub const NO_CANDIDATE: i32 = -2;

impl BadLogits {
    /// What stands in the place of a token.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            BadLogits::NotANumber => NOT_A_NUMBER,
            BadLogits::NoCandidate => NO_CANDIDATE,
        }
    }
}

/// Working memory of draws; what it holds does not matter.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    touched: Vec<(u32, Fixed)>,
    candidates: Vec<Candidate>,
}

/// Picks a token.
///
/// # Errors
/// [`BadLogits`] when a logit is not a number or no token is left.
pub fn sample(
    record: &SamplerRecord,
    row: &Row<'_>,
    scratch: &mut Scratch,
) -> Result<u32, BadLogits> {
    let (seed, position) = (record.seed, row.position);
    sample_by(record, row, scratch, |id| noise(seed, position, id))
}

/// Picks a token as [`sample`] does, with other noise: 64 bits of each token, the smallest of which win.
///
/// # Errors
/// As [`sample`].
pub fn sample_by(
    record: &SamplerRecord,
    row: &Row<'_>,
    scratch: &mut Scratch,
    noise: impl Fn(u32) -> u64,
) -> Result<u32, BadLogits> {
    row.touched(record, &mut scratch.touched);
    let Some(coldness) = record.coldness else {
        return greedy(row, &scratch.touched);
    };
    let candidates = &mut scratch.candidates;
    candidates.clear();
    // The deviation is that of all candidates.
    let k = if record.top_n_sigma > 0 {
        usize::MAX
    } else {
        kept(record)
    };
    select(row, &scratch.touched, k, candidates)?;
    if candidates.is_empty() {
        return Err(BadLogits::NoCandidate);
    }
    filter::top_n_sigma(candidates, record.top_n_sigma);
    filter::top_k(candidates, kept(record));
    filter::filter(candidates, record, row.position);
    Ok(draw(candidates, coldness, noise))
}

/// How many candidates top-k keeps.
fn kept(record: &SamplerRecord) -> usize {
    match record.top_k {
        0 => usize::MAX,
        k => k as usize,
    }
}

/// Id of the largest logit, the lowest among equals.
///
/// # Errors
/// [`BadLogits`] when a logit is not a number or all are −∞.
pub fn argmax(logits: &[f32]) -> Result<u32, BadLogits> {
    let row = Row {
        logits,
        ..Row::default()
    };
    greedy(&row, &[])
}

fn greedy(row: &Row<'_>, touched: &[(u32, Fixed)]) -> Result<u32, BadLogits> {
    let mut best: Option<(Fixed, f32, u32)> = None;
    let mut least = f32::NEG_INFINITY;
    row.walk(touched, |id, value, logit| {
        if best.is_none_or(|(v, l, _)| value > v || value == v && logit > l) {
            best = Some((value, logit, id));
            least = beaten(value, logit);
        }
        least
    })?;
    best.map(|b| b.2).ok_or(BadLogits::NoCandidate)
}

/// A logit up to which those that follow lose against a candidate with this value and this logit as it came.
fn beaten(value: Fixed, logit: f32) -> f32 {
    if value == Fixed::of(logit) {
        return logit;
    }
    value.next_down().floor()
}

/// The `k` best candidates, in no order.
fn select(
    row: &Row<'_>,
    touched: &[(u32, Fixed)],
    k: usize,
    best: &mut Vec<Candidate>,
) -> Result<(), BadLogits> {
    // The worst of the `k` best so far, once there are as many: what is no better comes later and loses.
    let mut least = f32::NEG_INFINITY;
    let full = k.saturating_mul(2).max(32);
    row.walk(touched, |id, value, _| {
        best.push(Candidate { id, value });
        if best.len() >= full {
            filter::top_k(best, k);
            let worst = best.iter().map(|c| c.value).min();
            least = worst.map_or(least, Fixed::floor);
        }
        least
    })?;
    filter::top_k(best, k);
    Ok(())
}

/// The candidate with the largest logit over the temperature plus noise; the lowest id among equals.
fn draw(candidates: &[Candidate], coldness: Coldness, noise: impl Fn(u32) -> u64) -> u32 {
    let top = filter::best(candidates);
    let mut best = (i32::MIN, 0);
    for c in candidates {
        let loss = coldness.cool(c.value.below(top));
        let bits = noise(c.id);
        if gumbel_bound(bits) - loss < best.0 {
            continue;
        }
        let score = gumbel(bits) - loss;
        if score > best.0 || score == best.0 && c.id < best.1 {
            best = (score, c.id);
        }
    }
    best.1
}

#[cfg(test)]
mod tests;
