//! Text of diffusion models: masked positions are filled step by step.
//!
//! [`Model::denoise`] appends masks to a prompt and, in every step, computes the logits of all positions, picks a
//! token for each mask and keeps the picks that it is surest of. [`Model::generate`] answers requests to such models
//! in this way, with the options of [`Model::set_diffusion`]. Schedules and algorithms are those of LLaDA
//! (arXiv:2502.09992) and Dream (arXiv:2508.15487) under the names that llama.cpp gives them.

use std::num::NonZeroU32;

use tokkata_engine::{
    EngineError, Event, EventKind, Feed, FeedLogits, FinishReason, Request, RequestId, RowKind,
    Sampling, Stats, StopStrings,
};
use tokkata_ir::Limits;
use tokkata_ir::sample::uniform;
use tokkata_ir::spec::Generation as Way;
use web_time::Instant;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::OpenOptions;

/// Which picks are kept first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Any, by chance.
    Origin,
    /// Those whose distribution has the least entropy.
    Entropy,
    /// Those that lead their runner-up by the most.
    Margin,
    /// As many as the schedule says, by chance.
    Random,
    /// The likeliest.
    #[default]
    Confidence,
}

impl Algorithm {
    /// All, with their names, in the order of their numbers.
    pub const ALL: [(&'static str, Algorithm); 5] = [
        ("origin", Algorithm::Origin),
        ("entropy", Algorithm::Entropy),
        ("margin", Algorithm::Margin),
        ("random", Algorithm::Random),
        ("confidence", Algorithm::Confidence),
    ];

    /// The algorithm with this name or number.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let number = name.parse().ok().and_then(|n: usize| Algorithm::ALL.get(n));
        let found = number.or_else(|| Algorithm::ALL.iter().find(|a| a.0 == name));
        found.map(|a| a.1)
    }
}

/// How many masks a step fills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// A share that follows the time from 1 down to `eps`.
    Timesteps {
        /// Where the time ends.
        eps: f32,
    },
    /// Block after block, each in an equal number of steps.
    Blocks {
        /// Positions of a block.
        length: usize,
    },
}

/// How masks are filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiffusionOptions {
    /// Steps in all.
    pub steps: usize,
    /// How many masks a step fills.
    pub schedule: Schedule,
    /// Which.
    pub algorithm: Algorithm,
    /// Draws the positions that are kept with this temperature; 0 keeps the surest.
    pub algorithm_temperature: f32,
    /// Strength of classifier-free guidance, which costs a second pass per step; 0 is off.
    pub guidance: f32,
    /// Tokens are drawn from all of the distribution, as LLaDA does by adding Gumbel noise, and weighed without it.
    pub gumbel: bool,
}

impl Default for DiffusionOptions {
    fn default() -> Self {
        DiffusionOptions {
            steps: 128,
            schedule: Schedule::Timesteps { eps: 1e-3 },
            algorithm: Algorithm::Confidence,
            algorithm_temperature: 0.0,
            guidance: 0.0,
            gumbel: false,
        }
    }
}

/// What is to be denoised.
#[derive(Clone, Copy, Debug)]
pub struct Canvas<'a> {
    /// Tokens that are given.
    pub prompt: &'a [u32],
    /// Positions in all.
    pub length: usize,
    /// The token that stands for what is not known yet.
    pub mask: u32,
}

/// How far it came.
#[derive(Clone, Copy, Debug)]
pub struct Denoised<'a> {
    /// The step that begins; as many as there are when all is done.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// All positions, masks among them.
    pub tokens: &'a [u32],
}

/// Hears of every step; `false` ends the answer as it is.
pub type Watch = Box<dyn FnMut(Denoised<'_>) -> bool + Send>;

/// What a model that writes by diffusion keeps between answers.
pub(crate) struct Diffusion {
    shift: bool,
    options: DiffusionOptions,
    watch: Option<Watch>,
}

impl Checkpoint {
    /// How text comes out of the model.
    ///
    /// # Errors
    /// A model that cannot be run.
    pub fn generation(&self) -> Result<Way> {
        Ok(self.spec(1)?.generation)
    }

    /// Whether the model writes text at all.
    ///
    /// # Errors
    /// A model that gives vectors alone, that hears speech, or that cannot be run.
    pub fn must_write(&self) -> Result<()> {
        if crate::speech::hears(self) {
            let file = self.path().display().to_string();
            return Err(Error::Speech { file });
        }
        match self.generation()? {
            Way::None => Err(Error::NoText {
                file: self.path().display().to_string(),
            }),
            _ => Ok(()),
        }
    }
}

impl OpenOptions {
    /// Limits of a model whose every position is computed in every step: the context that was chosen, or else the
    /// rows of a step.
    pub(crate) fn diffusion_limits(&self, trained: Option<u32>) -> Limits {
        let limits = self.limits(trained);
        let length = self
            .ctx
            .map_or(limits.rows.min(limits.ctx), NonZeroU32::get);
        Limits {
            rows: length,
            logit_rows: length,
            ctx: length,
            ..limits
        }
    }
}

impl Diffusion {
    pub(crate) fn of(way: Way) -> Option<Self> {
        match way {
            Way::Diffusion { shift_logits } => Some(Diffusion {
                shift: shift_logits,
                options: DiffusionOptions::default(),
                watch: None,
            }),
            Way::Autoregressive | Way::None => None,
        }
    }
}

impl Model {
    /// Whether it writes by diffusion.
    #[must_use]
    pub fn is_diffusion(&self) -> bool {
        self.diffusion.is_some()
    }

    /// How [`Model::generate`] fills masks from now on, and who hears of its steps. Other models ignore it.
    pub fn set_diffusion(&mut self, options: DiffusionOptions, watch: Option<Watch>) {
        if let Some(diffusion) = &mut self.diffusion {
            (diffusion.options, diffusion.watch) = (options, watch);
        }
    }

    /// The tokens of the canvas once its masks are filled. Of the sampling parameters temperature, top-k, top-p and
    /// the seed count; temperature 0 takes the likeliest token everywhere.
    ///
    /// # Errors
    /// A model that does not write by diffusion; a canvas that is too long or has no room for an answer.
    pub fn denoise(
        &mut self,
        canvas: &Canvas<'_>,
        options: &DiffusionOptions,
        sampling: &Sampling,
        mut watch: impl FnMut(Denoised<'_>) -> bool,
    ) -> Result<Vec<u32>> {
        let shift = self.diffusion.as_ref().map(|d| d.shift);
        let shift = shift.ok_or(EngineError::MissingOutput("denoising"))?;
        self.check_canvas(canvas)?;
        let mut run = Run::new(canvas, options, sampling);
        let steps = run.steps * run.blocks;
        for done in 0..steps {
            let (block, step) = (done / run.steps, done % run.steps);
            if step == 0 {
                run.enter(block);
            }
            let masks = run.masks();
            if masks.is_empty() {
                continue;
            }
            if !watch(run.seen(done)) {
                return Ok(run.tokens);
            }
            let logits = self.canvas_logits(&run)?;
            let n_vocab = self.n_vocab() as usize;
            let row = |at: usize| if shift { at.saturating_sub(1) } else { at };
            run.step(step, &masks, |at| &logits[row(at) * n_vocab..][..n_vocab]);
        }
        watch(run.seen(steps));
        Ok(run.tokens)
    }

    /// Denoises by the options that were set, while whoever was named watches.
    fn watched(&mut self, canvas: &Canvas<'_>, sampling: &Sampling) -> Result<Vec<u32>> {
        let kept = self.diffusion.as_mut();
        let (options, mut watch) = kept.map_or_else(
            || (DiffusionOptions::default(), None),
            |d| (d.options, d.watch.take()),
        );
        let tokens = self.denoise(canvas, &options, sampling, |seen| {
            watch.as_mut().is_none_or(|watch| watch(seen))
        });
        if let Some(diffusion) = &mut self.diffusion {
            diffusion.watch = watch;
        }
        tokens
    }

    fn check_canvas(&self, canvas: &Canvas<'_>) -> Result<()> {
        let (tokens, ctx) = (canvas.length, self.limits().ctx as usize);
        if canvas.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt.into());
        }
        if tokens > ctx || canvas.prompt.len() >= tokens {
            let tokens = tokens.max(canvas.prompt.len() + 1);
            return Err(EngineError::PromptTooLong { tokens, ctx }.into());
        }
        Ok(())
    }

    /// The token that stands for what is not known yet.
    ///
    /// # Errors
    /// A file without a tokenizer, or whose tokenizer has no such token.
    pub fn mask(&self) -> Result<u32> {
        let mask = self.tokenizer()?.special().mask;
        mask.ok_or_else(|| Error::NoMask {
            file: self.checkpoint.path().display().to_string(),
        })
    }

    /// Logits of every position, guided away from what they are without the prompt.
    fn canvas_logits(&mut self, run: &Run<'_>) -> Result<Vec<f32>> {
        let mut logits = self.all_logits(&run.tokens)?;
        if run.options.guidance > 0.0 {
            let mut blind = run.tokens.clone();
            blind[..run.canvas.prompt.len()].fill(run.canvas.mask);
            let without = self.all_logits(&blind)?;
            let scale = run.options.guidance + 1.0;
            for (with, without) in logits.iter_mut().zip(without) {
                *with = without + scale * (*with - without);
            }
        }
        Ok(logits)
    }

    fn all_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let session = self.engine.open_session(0);
        let logits = self.engine.logits_port()?;
        let feed = Feed {
            session,
            tokens,
            rows: RowKind::Prompt,
            logits: FeedLogits::All,
        };
        let fed = self.engine.feed(&[feed], &[logits]);
        self.engine.close_session(session);
        Ok(self.engine.read(&fed?, logits, None)?)
    }

    /// The events of an answer that came all at once, newest first.
    pub(crate) fn denoised(&mut self, request: Request, id: RequestId) -> Result<Vec<Event>> {
        if request.constraint.is_some() {
            let why = "a model that fills its answer in any order cannot follow a grammar";
            return Err(EngineError::Constraint(why.to_owned()).into());
        }
        let started = Instant::now();
        let mask = self.mask()?;
        let (n, ctx) = (request.prompt.len(), self.limits().ctx as usize);
        let canvas = Canvas {
            prompt: &request.prompt,
            length: request
                .stop
                .max_tokens
                .map_or(ctx, |max| n.saturating_add(max).min(ctx)),
            mask,
        };
        let tokens = if request.stop.max_tokens == Some(0) {
            request.prompt.clone()
        } else {
            self.watched(&canvas, &request.sampling)?
        };
        let stats = Stats {
            prompt_tokens: n,
            computed_tokens: n,
            generate_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            ..Stats::default()
        };
        Ok(told(&tokens[n..], request, id, stats))
    }
}

/// The events that tell an answer, newest first.
fn told(tokens: &[u32], mut request: Request, id: RequestId, mut stats: Stats) -> Vec<Event> {
    let mut stop = StopStrings::new(std::mem::take(&mut request.stop.stop_strings));
    let mut kinds = Vec::new();
    let mut reason = FinishReason::MaxTokens;
    for &token in tokens {
        stats.generated_tokens += 1;
        if request.stop.stop_ids.contains(&token) {
            reason = FinishReason::EndOfText;
            break;
        }
        let mut bytes = Vec::new();
        if let Some(decoder) = &mut request.decoder {
            decoder.push(token, &mut bytes);
        }
        let scan = stop.push(&bytes);
        kinds.push(EventKind::Token {
            id: token,
            text: scan.text,
            logprobs: None,
        });
        if let Some(which) = scan.stopped {
            reason = FinishReason::StopString(which);
            break;
        }
    }
    let mut text = Vec::new();
    if !matches!(reason, FinishReason::StopString(_)) {
        let mut bytes = Vec::new();
        if let Some(decoder) = &mut request.decoder {
            decoder.finish(&mut bytes);
        }
        text = stop.push(&bytes).text;
        text.extend(stop.finish());
    }
    kinds.push(EventKind::Finished {
        text,
        reason,
        stats,
    });
    let event = |kind| Event { request: id, kind };
    kinds.into_iter().rev().map(event).collect()
}

/// A canvas that is being filled.
struct Run<'a> {
    canvas: Canvas<'a>,
    options: DiffusionOptions,
    sampling: &'a Sampling,
    tokens: Vec<u32>,
    blocks: usize,
    /// Steps of a block.
    steps: usize,
    /// Positions of the block that is being filled.
    start: usize,
    end: usize,
    /// Masks that each step of the block fills, where it has a fixed number.
    counts: Vec<usize>,
    draws: u64,
}

impl<'a> Run<'a> {
    fn new(canvas: &Canvas<'a>, options: &DiffusionOptions, sampling: &'a Sampling) -> Self {
        let mut tokens = canvas.prompt.to_vec();
        tokens.resize(canvas.length, canvas.mask);
        let blocks = match options.schedule {
            Schedule::Timesteps { .. } => 1,
            Schedule::Blocks { length } => canvas.length.div_ceil(length.max(1)),
        };
        Run {
            canvas: *canvas,
            options: *options,
            sampling,
            tokens,
            blocks,
            steps: (options.steps / blocks).max(1),
            start: 0,
            end: canvas.length,
            counts: Vec::new(),
            draws: 0,
        }
    }

    /// Begins a block; those past the end of the canvas are empty.
    fn enter(&mut self, block: usize) {
        let Schedule::Blocks { length } = self.options.schedule else {
            return;
        };
        let (prompt, end) = (self.canvas.prompt.len(), self.canvas.length);
        self.start = (prompt + block * length.max(1)).min(end);
        self.end = (self.start + length.max(1)).min(end);
        let masks = self.masks().len();
        let share = |i| masks / self.steps + usize::from(i < masks % self.steps);
        self.counts = (0..self.steps).map(share).collect();
    }

    fn seen(&self, step: usize) -> Denoised<'_> {
        Denoised {
            step,
            steps: self.steps * self.blocks,
            tokens: &self.tokens,
        }
    }

    /// Masked positions of the block.
    fn masks(&self) -> Vec<usize> {
        let masked = |&i: &usize| self.tokens[i] == self.canvas.mask;
        (self.start..self.end).filter(masked).collect()
    }

    /// Uniform in 0..1, another one each time.
    fn chance(&mut self) -> f32 {
        self.draws += 1;
        let bits = uniform(self.sampling.seed ^ 0x4D41_534B, self.draws) >> 40;
        bits as f32 / 16_777_216.0
    }

    /// Masks that a step fills.
    fn count(&self, step: usize, masks: usize) -> usize {
        match self.options.schedule {
            Schedule::Blocks { .. } => self.counts[step],
            Schedule::Timesteps { eps } => {
                let steps = self.steps as f32;
                let time = |step: usize| 1.0 - step as f32 / steps * (1.0 - eps);
                let share = if step + 1 < self.steps {
                    1.0 - time(step + 1) / time(step)
                } else {
                    1.0
                };
                (masks as f32 * share) as usize
            }
        }
    }

    fn step<'l>(&mut self, step: usize, masks: &[usize], logits: impl Fn(usize) -> &'l [f32]) {
        let count = self.count(step, masks.len()).min(masks.len());
        if self.options.algorithm == Algorithm::Origin {
            let share = count as f32 / masks.len() as f32;
            for &at in masks {
                if self.chance() < share {
                    self.tokens[at] = self.pick(logits(at)).token;
                }
            }
            return;
        }
        if count == 0 {
            return;
        }
        let picks: Vec<(f32, usize, u32)> = masks
            .iter()
            .map(|&at| {
                let pick = self.pick(logits(at));
                (self.confidence(&pick), at, pick.token)
            })
            .collect();
        for (_, at, token) in self.surest(picks, count) {
            self.tokens[at] = token;
        }
    }

    /// The picks that are kept.
    fn surest(
        &mut self,
        mut picks: Vec<(f32, usize, u32)>,
        count: usize,
    ) -> Vec<(f32, usize, u32)> {
        let temperature = self.options.algorithm_temperature;
        if temperature <= 0.0 {
            picks.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            picks.truncate(count);
            return picks;
        }
        let mut kept = Vec::with_capacity(count);
        for _ in 0..count {
            let scaled: Vec<f32> = picks.iter().map(|p| p.0 / temperature).collect();
            let which = drawn(&softmax(&scaled), self.chance());
            kept.push(picks.remove(which));
        }
        kept
    }

    fn pick(&mut self, logits: &[f32]) -> Pick {
        let temperature = self.sampling.temperature;
        if self.options.gumbel && temperature > 0.0 {
            return self.pick_of_all(logits, temperature);
        }
        let mut candidates = candidates(logits, self.sampling.top_k as usize);
        top_p(&mut candidates, self.sampling.top_p);
        let scale = if temperature > 0.0 { temperature } else { 1.0 };
        let scaled: Vec<f32> = candidates.iter().map(|c| c.1 / scale).collect();
        let probabilities = softmax(&scaled);
        let which = if temperature > 0.0 {
            drawn(&probabilities, self.chance())
        } else {
            0
        };
        Pick {
            token: candidates[which].0,
            which,
            probabilities,
        }
    }

    /// A draw at a temperature from every token, weighed at temperature 1.
    fn pick_of_all(&mut self, logits: &[f32], temperature: f32) -> Pick {
        let candidates = candidates(logits, 0);
        let at = |t: f32| -> Vec<f32> { candidates.iter().map(|c| c.1 / t).collect() };
        let which = drawn(&softmax(&at(temperature)), self.chance());
        Pick {
            token: candidates[which].0,
            which,
            probabilities: softmax(&at(1.0)),
        }
    }

    fn confidence(&mut self, pick: &Pick) -> f32 {
        let p = &pick.probabilities;
        match self.options.algorithm {
            Algorithm::Origin | Algorithm::Confidence => p[pick.which],
            Algorithm::Entropy => p.iter().map(|p| p * (p + 1e-10).ln()).sum(),
            Algorithm::Margin => p[0] - p.get(1).copied().unwrap_or(0.0),
            Algorithm::Random => self.chance(),
        }
    }
}

/// A token and the distribution it comes from, the likeliest first.
struct Pick {
    token: u32,
    which: usize,
    probabilities: Vec<f32>,
}

/// Tokens with their logits, best first, the lowest id among equals; `k` of them, or all for 0.
fn candidates(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if (1..all.len()).contains(&k) {
        all.select_nth_unstable_by(k, order);
        all.truncate(k);
    }
    all.sort_unstable_by(order);
    all
}

/// Keeps the likeliest candidates of this mass.
fn top_p(candidates: &mut Vec<(u32, f32)>, p: f32) {
    if p >= 1.0 {
        return;
    }
    let logits: Vec<f32> = candidates.iter().map(|c| c.1).collect();
    let mut sum = 0.0;
    let reached = softmax(&logits).into_iter().position(|x| {
        sum += x;
        sum >= p
    });
    candidates.truncate(reached.map_or(candidates.len(), |i| i + 1));
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|&x| (x - max).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

/// The place that a chance in 0..1 falls on.
fn drawn(probabilities: &[f32], chance: f32) -> usize {
    let mut sum = 0.0;
    let found = probabilities.iter().position(|p| {
        sum += p;
        chance < sum
    });
    found.unwrap_or(probabilities.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(options: DiffusionOptions, length: usize) -> Run<'static> {
        let canvas = Canvas {
            prompt: &[1, 2, 3],
            length,
            mask: 0,
        };
        let sampling = Box::leak(Box::new(Sampling::greedy()));
        Run::new(&canvas, &options, sampling)
    }

    #[test]
    fn every_mask_is_filled_by_the_last_step() {
        for steps in [1, 5, 40] {
            let mut run = run(
                DiffusionOptions {
                    steps,
                    ..DiffusionOptions::default()
                },
                20,
            );
            for step in 0..steps {
                let masks = run.masks();
                let logits = vec![0.0, 1.0, 3.0];
                run.step(step, &masks, |_| &logits);
            }
            assert_eq!(run.tokens[3..], [2; 17], "{steps}");
        }
    }

    #[test]
    fn blocks_begin_after_the_prompt_and_share_the_steps() {
        let schedule = Schedule::Blocks { length: 8 };
        let mut run = run(
            DiffusionOptions {
                schedule,
                steps: 12,
                ..DiffusionOptions::default()
            },
            16,
        );
        assert_eq!((run.blocks, run.steps), (2, 6));
        run.enter(0);
        assert_eq!((run.start, run.end), (3, 11));
        assert_eq!(run.counts, [2, 2, 1, 1, 1, 1]);
        run.enter(1);
        assert_eq!((run.start, run.end, run.masks().len()), (11, 16, 5));
    }

    #[test]
    fn the_surest_pick_is_kept_first() {
        let of = |algorithm, rows: [&'static [f32]; 2]| {
            let mut run = run(
                DiffusionOptions {
                    algorithm,
                    ..DiffusionOptions::default()
                },
                5,
            );
            let picks: Vec<(f32, usize, u32)> = (0..2)
                .map(|i| {
                    let pick = run.pick(rows[i]);
                    (run.confidence(&pick), i, pick.token)
                })
                .collect();
            run.surest(picks, 1)[0].1
        };
        let (sure, torn): (&[f32], &[f32]) = (&[0.0, 9.0, 1.0], &[0.0, 5.0, 5.0]);
        for algorithm in [Algorithm::Confidence, Algorithm::Margin, Algorithm::Entropy] {
            assert_eq!(of(algorithm, [torn, sure]), 1, "{algorithm:?}");
            assert_eq!(of(algorithm, [sure, torn]), 0, "{algorithm:?}");
            assert_eq!(
                of(algorithm, [sure, sure]),
                0,
                "{algorithm:?}: the first of equals"
            );
        }
    }

    #[test]
    fn draws_follow_their_probabilities() {
        assert_eq!(
            [0.0, 0.29, 0.31, 0.99].map(|c| drawn(&[0.3, 0.6, 0.1], c)),
            [0, 0, 1, 2]
        );
        assert_eq!(Algorithm::from_name("1"), Some(Algorithm::Entropy));
        assert_eq!(Algorithm::from_name("margin"), Some(Algorithm::Margin));
        assert_eq!(Algorithm::from_name("5"), None);
    }
}
