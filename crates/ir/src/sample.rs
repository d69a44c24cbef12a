//! The sampler's reference semantics, shared by every backend.
//!
//! Order, as people know it from llama.cpp: logit bias → grammar mask → penalties → DRY → top-n-sigma → top-k →
//! typical → top-p → min-p → XTC → temperature → draw. Logits are f32; the draw depends on (seed, position) alone;
//! exponentials are computed by [`exp`] here, sums are fixed-point and ties go to the lowest id, so that a host
//! and a device pick the same token.

mod mask;
mod report;
mod slot;

pub use mask::{Mask, MaskSetter};
pub use report::logprobs;
pub use slot::{PenaltyRule, Sampler};

/// In the place of a token: the row's logits are not numbers.
pub const NOT_A_NUMBER: i32 = -1;
/// In the place of a token: nothing may be drawn.
pub const NO_CANDIDATE: i32 = -2;

/// Words of a record in the step state.
pub const RECORD_WORDS: usize = 12;

/// Parameters of one sequence's draw. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerRecord {
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
    /// Seed of the draw.
    pub seed: u64,
    /// Position of the token drawn.
    pub counter: u64,
}

impl Default for SamplerRecord {
    fn default() -> Self {
        SamplerRecord {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 1.0,
            seed: 0,
            counter: 0,
        }
    }
}

impl SamplerRecord {
    /// The record as words of the step state.
    #[must_use]
    pub fn to_words(self) -> [u32; RECORD_WORDS] {
        [
            self.temperature.to_bits(),
            self.top_k,
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.typical_p.to_bits(),
            self.top_n_sigma.to_bits(),
            self.xtc_probability.to_bits(),
            self.xtc_threshold.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.counter as u32,
            (self.counter >> 32) as u32,
        ]
    }

    /// The record from words of the step state.
    #[must_use]
    pub fn from_words(words: &[u32]) -> Self {
        let f = |i: usize| f32::from_bits(words[i]);
        let wide = |i: usize| u64::from(words[i]) | u64::from(words[i + 1]) << 32;
        SamplerRecord {
            temperature: f(0),
            top_k: words[1],
            top_p: f(2),
            min_p: f(3),
            typical_p: f(4),
            top_n_sigma: f(5),
            xtc_probability: f(6),
            xtc_threshold: f(7),
            seed: wide(8),
            counter: wide(10),
        }
    }
}

/// What a draw needs beyond the record: per logit row, prepared by the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSide {
    /// Added to logits by id.
    pub bias: Vec<(u32, f32)>,
    /// What is allowed; `None` allows all.
    pub mask: Option<Mask>,
    /// Penalties of the tokens seen lately.
    pub penalties: Penalties,
    /// Subtracted from logits by id (DRY, computed by the host).
    pub dry: Vec<(u32, f32)>,
}

/// Repetition penalties over recent tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Penalties {
    /// Divides positive and multiplies negative logits of seen tokens; 1 is off.
    pub repeat: f32,
    /// Subtracted per occurrence.
    pub frequency: f32,
    /// Subtracted once.
    pub presence: f32,
    /// Token and how often it was seen.
    pub counts: Vec<(u32, u32)>,
}

impl Default for Penalties {
    fn default() -> Self {
        Penalties {
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
            counts: Vec::new(),
        }
    }
}

/// The logits are not numbers, or no candidate is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLogits;

impl BadLogits {
    /// What stands in the place of a token.
    #[must_use]
    pub fn code(self) -> i32 {
        NOT_A_NUMBER
    }
}

/// Picks a token. `logits` is scratch: bias, mask and penalties are applied in place.
///
/// # Errors
/// [`BadLogits`] when a logit is NaN or none is above −∞.
pub fn sample(
    logits: &mut [f32],
    record: &SamplerRecord,
    side: &SampleSide,
) -> Result<u32, BadLogits> {
    adjust(logits, side);
    let best = argmax(logits)?;
    if record.temperature <= 0.0 {
        return Ok(best);
    }
    let mut candidates = top_k(logits, record);
    typical(&mut candidates, record.typical_p);
    top_p(&mut candidates, record.top_p);
    min_p(&mut candidates, record.min_p);
    xtc(&mut candidates, record);
    Ok(draw(&candidates, record))
}

/// Applies bias, mask, penalties and DRY in place.
pub fn adjust(logits: &mut [f32], side: &SampleSide) {
    for &(id, bias) in &side.bias {
        if let Some(x) = logits.get_mut(id as usize) {
            *x += bias;
        }
    }
    if let Some(mask) = side.mask.as_ref().and_then(Mask::words) {
        for (i, x) in logits.iter_mut().enumerate() {
            if mask.get(i / 32).is_none_or(|w| w >> (i % 32) & 1 == 0) {
                *x = f32::NEG_INFINITY;
            }
        }
    }
    let p = &side.penalties;
    for &(id, count) in &p.counts {
        if let Some(x) = logits.get_mut(id as usize) {
            *x = if *x > 0.0 {
                *x / p.repeat
            } else {
                *x * p.repeat
            };
            *x -= p.frequency * count as f32 + if count > 0 { p.presence } else { 0.0 };
        }
    }
    for &(id, penalty) in &side.dry {
        if let Some(x) = logits.get_mut(id as usize) {
            *x -= penalty;
        }
    }
}

/// Id of the largest logit, the lowest among equals.
///
/// # Errors
/// [`BadLogits`] when a logit is NaN or all are −∞.
pub fn argmax(logits: &[f32]) -> Result<u32, BadLogits> {
    let top = largest(logits).filter(|&x| x > f32::NEG_INFINITY);
    let place = top.and_then(|top| logits.iter().position(|&x| x == top));
    place.map(|i| i as u32).ok_or(BadLogits)
}

/// Logits looked at together: independent enough for vectors.
const LANES: usize = 16;

/// The largest logit, `None` when one is NaN.
fn largest(logits: &[f32]) -> Option<f32> {
    let (mut most, mut odd) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let (blocks, rest) = logits.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            odd[i] |= block[i].is_nan();
            most[i] = if block[i] > most[i] {
                block[i]
            } else {
                most[i]
            };
        }
    }
    if odd.contains(&true) || rest.iter().any(|x| x.is_nan()) {
        return None;
    }
    Some(
        most.iter()
            .chain(rest)
            .copied()
            .fold(f32::NEG_INFINITY, f32::max),
    )
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
}

/// The `top_k` best candidates, best first; ids ascending among equals.
fn top_k(logits: &[f32], record: &SamplerRecord) -> Vec<Candidate> {
    let floor = sigma_floor(logits, record.top_n_sigma);
    let order = |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id));
    let k = match record.top_k as usize {
        0 => logits.len(),
        k => k.min(logits.len()),
    };
    let mut best: Vec<Candidate> = Vec::with_capacity((2 * k).min(logits.len()));
    // The worst of the `k` best so far, once there are as many: what is below is not looked at again.
    let mut least = floor;
    for (b, block) in logits.chunks(LANES).enumerate() {
        if !block.iter().fold(false, |any, &x| any | (x >= least)) {
            continue;
        }
        let good = |&(_, &x): &(usize, &f32)| x > f32::NEG_INFINITY && x >= least;
        let good = block.iter().enumerate().filter(good);
        best.extend(good.map(|(i, &logit)| Candidate {
            id: (b * LANES + i) as u32,
            logit,
        }));
        if best.len() >= k.saturating_mul(2).max(LANES) {
            best.select_nth_unstable_by(k - 1, order);
            best.truncate(k);
            least = best[k - 1].logit;
        }
    }
    best.sort_unstable_by(order);
    best.truncate(k);
    best
}

fn sigma_floor(logits: &[f32], n: f32) -> f32 {
    if n <= 0.0 {
        return f32::NEG_INFINITY;
    }
    let finite = logits
        .iter()
        .filter(|x| x.is_finite())
        .map(|&x| f64::from(x));
    let (count, sum) = finite
        .clone()
        .fold((0.0, 0.0), |(c, s), x| (c + 1.0, s + x));
    let mean = sum / count;
    let var = finite.clone().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    let max = finite.fold(f64::NEG_INFINITY, f64::max);
    (max - f64::from(n) * var.sqrt()) as f32
}

/// Unnormalised weights relative to the best as 32.32 fixed-point.
fn weights(candidates: &[Candidate], temperature: f32) -> Vec<u64> {
    let max = candidates
        .iter()
        .map(|c| c.logit)
        .fold(f32::NEG_INFINITY, f32::max);
    candidates
        .iter()
        .map(|c| fixed(exp((c.logit - max) / temperature)))
        .collect()
}

fn fixed(x: f32) -> u64 {
    (f64::from(x) * 4_294_967_296.0) as u64
}

fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.is_empty() {
        return;
    }
    let weights = weights(candidates, 1.0);
    let total: u128 = weights.iter().map(|&w| u128::from(w)).sum();
    let target = (f64::from(p) * total as f64) as u128;
    let mut sum = 0;
    let keep = weights.iter().position(|&w| {
        sum += u128::from(w);
        sum >= target
    });
    candidates.truncate(keep.map_or(candidates.len(), |i| i + 1));
}

fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 || candidates.is_empty() {
        return;
    }
    let best = candidates[0].logit;
    candidates.retain(|c| c.logit == best || exp(c.logit - best) >= p);
}

fn typical(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.is_empty() {
        return;
    }
    let weights = weights(candidates, 1.0);
    let total = weights.iter().map(|&w| w as f64).sum::<f64>();
    let surprise: Vec<f64> = weights
        .iter()
        .map(|&w| -(w as f64 / total).max(1e-30).ln())
        .collect();
    let entropy: f64 = weights
        .iter()
        .zip(&surprise)
        .map(|(&w, s)| w as f64 / total * s)
        .sum();
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|&a, &b| {
        (surprise[a] - entropy)
            .abs()
            .total_cmp(&(surprise[b] - entropy).abs())
            .then(a.cmp(&b))
    });
    let mut sum = 0.0;
    let mut keep = vec![false; candidates.len()];
    for i in order {
        keep[i] = true;
        sum += weights[i] as f64 / total;
        if sum > f64::from(p) {
            break;
        }
    }
    let mut flags = keep.iter();
    candidates.retain(|_| *flags.next().expect("one flag per candidate"));
}

/// Removes the candidates above the threshold except the least of them.
fn xtc(candidates: &mut Vec<Candidate>, record: &SamplerRecord) {
    if record.xtc_probability <= 0.0 || record.xtc_threshold > 0.5 || candidates.len() < 2 {
        return;
    }
    let chance =
        (uniform(record.seed ^ 0x5854_435F_5854_435F, record.counter) >> 40) as f32 / 16_777_216.0;
    if chance > record.xtc_probability {
        return;
    }
    let weights = weights(candidates, 1.0);
    let total = weights.iter().map(|&w| w as f64).sum::<f64>();
    let above = weights
        .iter()
        .take_while(|&&w| w as f64 / total >= f64::from(record.xtc_threshold))
        .count();
    if above > 1 {
        candidates.drain(..above - 1);
    }
}

fn draw(candidates: &[Candidate], record: &SamplerRecord) -> u32 {
    let weights = weights(candidates, record.temperature);
    let total: u128 = weights.iter().map(|&w| u128::from(w)).sum();
    let point = (u128::from(uniform(record.seed, record.counter)) * total) >> 64;
    let mut sum = 0;
    for (candidate, &w) in candidates.iter().zip(&weights) {
        sum += u128::from(w);
        if point < sum {
            return candidate.id;
        }
    }
    candidates[candidates.len() - 1].id
}

/// Uniform 64 bits of (seed, counter): SplitMix64's finaliser over both words.
#[must_use]
pub fn uniform(seed: u64, counter: u64) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    mix(mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15)) ^ counter.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// `e^x` for x ≤ 0 by range reduction and a degree-6 polynomial in plain f32 operations, so that every backend can
/// repeat it bit for bit. Relative error below 3e-7; 0 below −87.
#[must_use]
pub fn exp(x: f32) -> f32 {
    if x < -87.0 {
        return 0.0;
    }
    let n = (x * std::f32::consts::LOG2_E).round();
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    p * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(temperature: f32, seed: u64, counter: u64) -> SamplerRecord {
        SamplerRecord {
            temperature,
            seed,
            counter,
            ..SamplerRecord::default()
        }
    }

    #[test]
    fn exp_is_close_to_libm() {
        for i in 0..8700 {
            let x = -(i as f32) / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) - want).abs() <= 3e-7 * want, "{x}");
        }
    }

    /// Numbers with many equals, zeros of both signs and −∞ among them.
    fn logits(n: usize, seed: usize) -> Vec<f32> {
        let number = |i: usize| match (i * 7919 + seed * 104_729) % 97 {
            0 => -0.0,
            1 => 0.0,
            2 => f32::NEG_INFINITY,
            x => (x as f32 - 60.0) / 4.0,
        };
        (0..n).map(number).collect()
    }

    #[test]
    fn the_best_are_those_of_a_sort() {
        for n in [1, 15, 16, 17, 100, 1000] {
            for k in [0, 1, 2, 5, 16, 40, 99, 2000] {
                let logits = logits(n, n + k as usize);
                let record = SamplerRecord {
                    top_k: k,
                    ..record(1.0, 0, 0)
                };
                let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
                all.retain(|(_, x)| *x > f32::NEG_INFINITY);
                all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                all.truncate(if k == 0 { n } else { k as usize });
                let best = top_k(&logits, &record);
                let best: Vec<(u32, f32)> = best.iter().map(|c| (c.id, c.logit)).collect();
                assert_eq!(best, all, "{k} of {n}");
                let first = logits
                    .iter()
                    .position(|&x| all.first().is_some_and(|a| x == a.1));
                assert_eq!(argmax(&logits).ok(), first.map(|i| i as u32), "{n}");
            }
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_refuses_nan() {
        let side = SampleSide::default();
        assert_eq!(
            sample(&mut [1.0, 3.0, 3.0], &record(0.0, 0, 0), &side),
            Ok(1)
        );
        assert_eq!(
            sample(&mut [1.0, f32::NAN], &record(0.0, 0, 0), &side),
            Err(BadLogits)
        );
        assert_eq!(
            sample(&mut [f32::NEG_INFINITY], &record(0.0, 0, 0), &side),
            Err(BadLogits)
        );
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.0f32, (2.0f32).ln(), (5.0f32).ln()];
        let mut counts = [0u32; 3];
        for i in 0..8000 {
            let id = sample(
                &mut logits.clone(),
                &record(1.0, 7, i),
                &SampleSide::default(),
            )
            .unwrap();
            counts[id as usize] += 1;
        }
        for (count, share) in counts.iter().zip([1.0, 2.0, 5.0]) {
            let want: f64 = 1000.0 * share;
            assert!(
                (f64::from(*count) - want).abs() < 4.0 * want.sqrt(),
                "{counts:?}"
            );
        }
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = vec![4.0, 3.0, 2.0, 1.0, 0.0];
        let seen = |r: SamplerRecord| {
            let mut ids: Vec<u32> = (0..400)
                .map(|i| {
                    sample(
                        &mut logits.clone(),
                        &SamplerRecord { counter: i, ..r },
                        &SampleSide::default(),
                    )
                })
                .map(Result::unwrap)
                .collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let base = record(1.5, 3, 0);
        assert_eq!(seen(SamplerRecord { top_k: 2, ..base }), [0, 1]);
        assert_eq!(seen(SamplerRecord { top_p: 0.6, ..base }), [0]);
        assert_eq!(seen(SamplerRecord { top_p: 0.7, ..base }), [0, 1]);
        assert_eq!(seen(SamplerRecord { min_p: 0.3, ..base }), [0, 1]);
        assert_eq!(
            seen(SamplerRecord {
                xtc_probability: 1.0,
                xtc_threshold: 0.2,
                top_k: 3,
                ..base
            }),
            [1, 2]
        );
    }

    #[test]
    fn bias_mask_and_penalties_apply_in_order() {
        let side = SampleSide {
            bias: vec![(0, 10.0)],
            mask: Some(Mask::ready(vec![0b110])),
            penalties: Penalties {
                repeat: 2.0,
                presence: 1.0,
                frequency: 0.5,
                counts: vec![(1, 2)],
            },
            dry: vec![(2, 0.25)],
        };
        let mut logits = [0.0, 4.0, 1.0];
        adjust(&mut logits, &side);
        assert_eq!(logits, [f32::NEG_INFINITY, 0.0, 0.75]);
    }

    #[test]
    fn records_survive_the_step_state() {
        let r = SamplerRecord {
            seed: u64::MAX - 5,
            counter: 1 << 40,
            top_k: 40,
            ..record(0.8, 0, 0)
        };
        assert_eq!(SamplerRecord::from_words(&r.to_words()), r);
    }
}
