//! Greedy, sampled and beam search over one window, one step at a time.
//!
//! A [`Search`] is given the logits after each of its hypotheses and says which of them go on, with which token: rows
//! that name their parent, so that whoever holds the caches can share and permute them.

use crate::rules::Rules;
use crate::sums::{leader, log_sum_exp};

/// How hypotheses are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchOptions {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Hypotheses that are drawn at once at a temperature.
    pub best_of: usize,
    /// Hypotheses that go on at once, at temperature 0; without it there is one.
    pub beams: Option<usize>,
    /// Finished hypotheses that end a beam search, by the beam.
    pub patience: f32,
    /// The exponent of the length by which hypotheses are judged; without it, their mean.
    pub length_penalty: Option<f32>,
    /// Tokens at most.
    pub most: usize,
    /// Seeds what is drawn.
    pub seed: u64,
}

impl Default for SearchOptions {
    fn default() -> Self {
        SearchOptions {
            temperature: 0.0,
            best_of: 1,
            beams: None,
            patience: 1.0,
            length_penalty: None,
            most: 224,
            seed: 0,
        }
    }
}

/// What is to be fed next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A token behind each of these hypotheses, by their places before.
    Feed(Vec<(usize, u32)>),
    /// Nothing: the search is over.
    Done,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    /// The tokens, without the end.
    pub tokens: Vec<u32>,
    /// Mean log-probability, the end included.
    pub avg_logprob: f32,
    /// The smallest lead of the likeliest token over the next, of a greedy search.
    pub gap: f32,
}

/// A hypothesis.
#[derive(Clone, Debug, Default)]
struct Path {
    tokens: Vec<u32>,
    sum: f32,
    ended: bool,
}

/// A search over one window.
pub struct Search {
    options: SearchOptions,
    rules: Rules,
    paths: Vec<Path>,
    finished: Vec<Path>,
    steps: usize,
    /// Positions that the context has left.
    room: usize,
    gap: f32,
}

impl Search {
    /// After a prompt of so many tokens in a context of so many.
    #[must_use]
    pub fn new(options: SearchOptions, rules: Rules, prompt: usize, ctx: usize) -> Self {
        let count = match (options.beams, options.temperature > 0.0) {
            (Some(beams), false) => beams.max(1),
            (None, false) => 1,
            (_, true) => options.best_of.max(1),
        };
        Search {
            options,
            rules,
            paths: vec![Path::default(); count],
            finished: Vec::new(),
            steps: 0,
            room: (ctx + 1).saturating_sub(prompt),
            gap: f32::INFINITY,
        }
    }

    /// Hypotheses that are fed at once, at most.
    #[must_use]
    pub fn width(&self) -> usize {
        self.paths.len()
    }

    /// Takes the logits after each hypothesis that was fed; before the first step those after the prompt, once. What may not
    /// come is left out of them.
    pub fn take(&mut self, rows: &mut [&mut [f32]]) -> Step {
        let count = self.paths.len();
        let mut copies = match rows.len() {
            1 if count > 1 => vec![rows[0].to_vec(); count],
            _ => Vec::new(),
        };
        let mut rows: Vec<&mut [f32]> = match copies.is_empty() {
            true => rows.iter_mut().map(|row| &mut **row).collect(),
            false => copies.iter_mut().map(Vec::as_mut_slice).collect(),
        };
        self.steps += 1;
        let chosen = if self.beams() {
            self.beam(&mut rows)
        } else {
            self.draw(&mut rows)
        };
        let over = self.steps >= self.options.most || self.steps >= self.room || self.is_over();
        if over {
            return Step::Done;
        }
        Step::Feed(chosen)
    }

    fn beams(&self) -> bool {
        self.options.beams.is_some() && self.options.temperature == 0.0
    }

    fn is_over(&self) -> bool {
        if self.beams() {
            self.finished.len() >= self.candidates()
        } else {
            self.paths.iter().all(|p| p.ended)
        }
    }

    /// Finished hypotheses that are enough.
    fn candidates(&self) -> usize {
        let wanted = self.paths.len() as f64 * f64::from(self.options.patience);
        (wanted.round_ties_even() as usize).max(1)
    }

    /// One token for each hypothesis. Those that have ended are fed the end again.
    fn draw(&mut self, rows: &mut [&mut [f32]]) -> Vec<(usize, u32)> {
        let (eot, temperature) = (self.rules.tokens.eot, self.options.temperature);
        let mut chosen = Vec::new();
        for (i, (path, logits)) in self.paths.iter_mut().zip(rows).enumerate() {
            let logits = &mut **logits;
            self.rules.apply(logits, &path.tokens);
            let id = if temperature > 0.0 {
                let seed = mix(mix(self.options.seed, i as u64), self.steps as u64);
                drawn(logits, temperature, seed)
            } else {
                let (id, gap) = leader(logits);
                if !path.ended {
                    self.gap = self.gap.min(gap);
                }
                id as u32
            };
            if path.ended {
                chosen.push((i, eot));
                continue;
            }
            path.sum += (f64::from(logits[id as usize]) - log_sum_exp(logits)) as f32;
            path.ended = id == eot;
            path.tokens.push(id);
            chosen.push((i, id));
        }
        chosen
    }

    /// The likeliest continuations of all hypotheses together.
    fn beam(&mut self, rows: &mut [&mut [f32]]) -> Vec<(usize, u32)> {
        let (eot, width) = (self.rules.tokens.eot, self.paths.len());
        let mut scored: Vec<(f32, usize, u32)> = Vec::new();
        // Before the first step all hypotheses are one.
        let own = if self.steps == 1 { 1 } else { width };
        for (i, (path, logits)) in self.paths.iter().zip(rows).enumerate().take(own) {
            let logits = &mut **logits;
            self.rules.apply(logits, &path.tokens);
            let log_sum = log_sum_exp(logits);
            for id in top(logits, width + 1) {
                let logprob = (f64::from(logits[id as usize]) - log_sum) as f32;
                scored.push((path.sum + logprob, i, id));
            }
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut next, mut chosen, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for (sum, i, id) in scored {
            let mut tokens = self.paths[i].tokens.clone();
            tokens.push(id);
            let path = Path {
                tokens,
                sum,
                ended: id == eot,
            };
            if path.ended {
                ended.push(path);
                continue;
            }
            next.push(path);
            chosen.push((i, id));
            if next.len() == width {
                break;
            }
        }
        let room = self.candidates().saturating_sub(self.finished.len());
        self.finished.extend(ended.into_iter().take(room));
        self.paths = next;
        chosen
    }

    /// The best hypothesis.
    #[must_use]
    pub fn finish(mut self) -> Decoded {
        let eot = self.rules.tokens.eot;
        let mut all = if self.beams() {
            let mut all = std::mem::take(&mut self.finished);
            let mut open = std::mem::take(&mut self.paths);
            open.sort_by(|a, b| b.sum.total_cmp(&a.sum));
            let missing = self.options.beams.unwrap_or(1).saturating_sub(all.len());
            all.extend(open.into_iter().take(missing));
            all
        } else {
            std::mem::take(&mut self.paths)
        };
        for path in &mut all {
            let end = path.tokens.iter().position(|&t| t == eot);
            path.tokens.truncate(end.unwrap_or(path.tokens.len()));
        }
        let score = |path: &Path| {
            let len = path.tokens.len() as f64;
            let penalty = match self.options.length_penalty {
                None => len,
                Some(alpha) => ((5.0 + len) / 6.0).powf(f64::from(alpha)),
            };
            f64::from(path.sum) / penalty
        };
        // Of equal ones the first; one without tokens has no score.
        let mut best = 0;
        for i in 1..all.len() {
            let (new, old) = (score(&all[i]), score(&all[best]));
            if new > old || old.is_nan() {
                best = i;
            }
        }
        let best = all.swap_remove(best);
        Decoded {
            avg_logprob: best.sum / (best.tokens.len() + 1) as f32,
            tokens: best.tokens,
            gap: self.gap,
        }
    }
}

/// The ids of the largest logits, in order.
fn top(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(count + 1);
    for (id, l) in logits.iter().enumerate() {
        let full = best.len() == count;
        if full && best.last().is_some_and(|&b| logits[b as usize] >= *l) {
            continue;
        }
        let at = best.partition_point(|&b| logits[b as usize] >= *l);
        best.insert(at, id as u32);
        best.truncate(count);
    }
    best
}

/// A token drawn at a temperature: the largest of logits plus noise (Gumbel-max).
fn drawn(logits: &[f32], temperature: f32, seed: u64) -> u32 {
    let noisy = |(id, &l): (usize, &f32)| {
        let bits = mix(seed, id as u64) >> 11;
        let uniform = (bits as f64 + 0.5) / (1u64 << 53) as f64;
        (f64::from(l / temperature) - (-uniform.ln()).ln(), id)
    };
    let all = logits.iter().enumerate().map(noisy);
    let best = all.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    best.map_or(0, |b| b.1 as u32)
}

/// A number that follows from two (splitmix).
#[must_use]
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
