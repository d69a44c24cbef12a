//! Answers on their way: from the engine's events to what dialects send.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::{Value, json};
use tokkata::{Answer, Canceller, EventKind, FinishReason, Logprobs, Stats};
use web_time::Instant;

use crate::beams::{Beams, Subject};
use crate::calls::{Call, Stage};
use crate::error::{ApiError, Result};
use crate::reader::{Reader, format_of};
use crate::served::{Permit, Served};
use crate::talk::Prepared;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// What the model thinks.
    Reasoning(String),
    /// What it says.
    Content(String),
    /// What is new of a call; of a [`Whole`] answer, all of it.
    Call(Call),
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its probability, where that was asked for.
    pub logprobs: Option<Logprobs>,
}

/// What came of one of the answers.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Which answer.
    pub choice: usize,
    /// Text that became certain.
    pub parts: Vec<Part>,
    /// The token that was picked.
    pub token: Option<Token>,
    /// Tokens of the prompt that are cached, and all of them.
    pub progress: Option<(usize, usize)>,
    /// The end of the answer.
    pub end: Option<End>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    Stop,
    /// This stop string did.
    StopString(String),
    /// It has as many tokens as it may.
    Length,
    /// It calls tools.
    Calls,
    /// It was cancelled.
    Cancelled,
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub struct End {
    /// Why it ended.
    pub finish: Finish,
    /// What it cost.
    pub stats: Stats,
    /// Tokens of it that are reasoning.
    pub reasoning_tokens: usize,
    /// The context was full, so that something is missing.
    pub full: bool,
    /// From its arrival to the first token.
    pub first: Option<Duration>,
}

/// One answer.
struct Choice {
    /// `None` before it was asked for.
    answer: Option<Answer>,
    /// What came of it and is still to be told.
    ahead: VecDeque<Option<EventKind>>,
    reader: Reader,
    /// The answer was cut after its call.
    cut: bool,
    ended: bool,
    reasoning_tokens: usize,
    /// Tokens of the prompt that are cached, those that were before it came, and all of them.
    prompt: (usize, usize, usize),
    /// Cached ones of which the caller knows.
    told: usize,
    tokens: usize,
    begun: Option<Instant>,
    first: Option<Instant>,
    last: Instant,
}

/// All answers to one call.
pub struct Run {
    model: Arc<Served>,
    prepared: Vec<Prepared>,
    choices: Vec<Choice>,
    /// Searches under way, each with its prompt and the first of its answers.
    searches: Vec<(usize, usize, Beams)>,
    arrived: Instant,
    turn: usize,
    stopper: Stopper,
    _permits: Vec<Permit>,
}

/// Ends all answers of a [`Run`] from any thread, while another one waits for them.
#[derive(Clone, Default)]
pub struct Stopper(Arc<Mutex<Stops>>);

#[derive(Default)]
struct Stops {
    stopped: bool,
    answers: Vec<Canceller>,
}

impl Stopper {
    /// Ends the answers; the last step of each still comes.
    pub fn stop(&self) {
        let mut stops = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stops.stopped = true;
        stops.answers.iter().for_each(Canceller::cancel);
    }

    /// Takes one more answer.
    pub(crate) fn add(&self, answer: &Answer) {
        let mut stops = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stops.answers.push(answer.canceller());
        if stops.stopped {
            answer.cancel();
        }
    }
}

impl Run {
    /// Asks for the answers to several prompts: of each prompt the first at once, and the others when its prompt is
    /// cached.
    pub fn start(model: &Arc<Served>, prepared: Vec<Prepared>) -> Result<Self> {
        prepared.iter().try_for_each(|p| p.check(model))?;
        let mut permits = Vec::new();
        let mut choices: Vec<Choice> = Vec::new();
        let stopper = Stopper::default();
        let mut searches = Vec::new();
        for (prompt, one) in prepared.iter().enumerate() {
            if let Some(penalty) = one.params.beams {
                searches.push((prompt, choices.len(), Beams::new(model, one, penalty)?));
            }
            for i in 0..one.params.n {
                permits.push(model.admit()?);
                let choice = Choice::new(model, one, i)?;
                choice.answer.iter().for_each(|answer| stopper.add(answer));
                choices.push(choice);
            }
            let most = one
                .params
                .max_tokens
                .unwrap_or(model.service.limits().ctx as usize);
            model.metrics.most_tokens.observe(most as f64);
        }
        Ok(Run {
            model: Arc::clone(model),
            prepared,
            choices,
            searches,
            arrived: Instant::now(),
            turn: 0,
            stopper,
            _permits: permits,
        })
    }

    /// Whether nothing was asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// How many answers there are.
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// The parameters of an answer.
    pub fn params(&self, choice: usize) -> &crate::params::Params {
        &self.prepared[self.prompt_of(choice).0].params
    }

    /// Which prompt an answer is to, and which of its answers it is.
    fn prompt_of(&self, choice: usize) -> (usize, usize) {
        let mut left = choice;
        for (i, one) in self.prepared.iter().enumerate() {
            if left < one.params.n {
                return (i, left);
            }
            left -= one.params.n;
        }
        (0, 0)
    }

    /// The next piece of any answer; `None` after the last.
    ///
    /// # Errors
    /// The first answer that fails ends all of them.
    pub async fn next(&mut self) -> Option<Result<Step>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// What ends the answers from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// The next piece, or the promise to wake the task when it comes; `None` after the last.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Step>>> {
        if let Err(error) = self.search(cx) {
            self.searches.clear();
            self.choices.iter_mut().for_each(|c| c.ended = true);
            let seconds = self.seconds();
            self.model.metrics.ended("error", None, None, seconds);
            return Poll::Ready(Some(Err(error)));
        }
        let n = self.choices.len();
        for i in 0..n {
            let at = (self.turn + i) % n;
            let choice = &mut self.choices[at];
            if choice.ended {
                continue;
            }
            if let Poll::Ready(event) = choice.poll_next(cx) {
                self.turn = at + 1;
                return Poll::Ready(Some(self.took(at, event)));
            }
        }
        if self.choices.iter().all(|c| c.ended) {
            return Poll::Ready(None);
        }
        Poll::Pending
    }

    /// The end of an answer, if it has come already: one who writes tokens may tell it with the last of them.
    pub fn end_at_hand(&mut self, choice: usize) -> Option<Step> {
        let own = &mut self.choices[choice];
        if own.ended {
            return None;
        }
        match own.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(event @ EventKind::Finished { .. })) => Some(self.step(choice, event)),
            Poll::Ready(event) => {
                own.ahead.push_front(event);
                None
            }
            Poll::Pending => None,
        }
    }

    /// Goes on with searches, whose answers are told once they are found.
    fn search(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let mut i = 0;
        while let Some((prompt, first, beams)) = self.searches.get_mut(i) {
            let subject = Subject {
                model: &self.model,
                one: &self.prepared[*prompt],
                stopper: &self.stopper,
            };
            let Poll::Ready(found) = beams.poll(cx, subject) else {
                i += 1;
                continue;
            };
            for (choice, events) in self.choices[*first..].iter_mut().zip(found?) {
                choice.ahead = events.into_iter().map(Some).collect();
            }
            self.searches.remove(i);
        }
        Ok(())
    }

    fn took(&mut self, at: usize, event: Option<EventKind>) -> Result<Step> {
        let step = match event {
            None => {
                self.choices[at].ended = true;
                return Err(ApiError::internal("the answer ended without a reason"));
            }
            Some(EventKind::Failed(error)) => {
                self.choices[at].ended = true;
                self.model
                    .metrics
                    .ended("error", None, None, self.seconds());
                return Err(error.into());
            }
            Some(event) => self.step(at, event),
        };
        let is_prompt = step.token.is_none() && step.end.is_none();
        if !is_prompt {
            self.ask_rest(at)?;
        }
        Ok(step)
    }

    /// Asks for the other answers to the same prompt.
    fn ask_rest(&mut self, at: usize) -> Result<()> {
        let (prompt, place) = self.prompt_of(at);
        let one = &self.prepared[prompt];
        if one.params.beams.is_some() {
            return Ok(());
        }
        let first = at - place;
        for i in 0..one.params.n {
            let choice = &mut self.choices[first + i];
            if choice.answer.is_none() {
                let request = one.request(&self.model, i)?;
                let answer = self.model.service.generate(request);
                self.stopper.add(&answer);
                choice.answer = Some(answer);
            }
        }
        Ok(())
    }

    fn ctx(&self) -> usize {
        self.model.service.limits().ctx as usize
    }

    /// How far the prompt of a step's answer has come, if that is news.
    pub fn news_of_prompt(&mut self, step: &Step) -> Option<Value> {
        let so_far = self.so_far(step.choice);
        let told = &mut self.choices[step.choice].told;
        let cached = so_far.reused_tokens + so_far.computed_tokens;
        let is_news = cached > *told;
        *told = (*told).max(cached);
        (is_news && (step.progress.is_some() || step.token.is_some())).then(|| progress(&so_far))
    }

    /// What an answer has cost so far.
    pub fn so_far(&self, choice: usize) -> Stats {
        let choice = &self.choices[choice];
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let (cached, reused, total) = choice.prompt;
        let begun = self.arrived;
        let now = choice.begun.map(|_| Instant::now());
        Stats {
            prompt_tokens: total,
            reused_tokens: reused,
            computed_tokens: choice
                .first
                .map_or(cached, |_| total)
                .saturating_sub(reused),
            generated_tokens: choice.tokens,
            prompt_ns: choice.first.or(now).map_or(0, |t| nanos(t - begun)),
            generate_ns: choice.first.map_or(0, |first| nanos(choice.last - first)),
            ..Stats::default()
        }
    }

    fn seconds(&self) -> f64 {
        self.arrived.elapsed().as_secs_f64()
    }

    fn step(&mut self, at: usize, event: EventKind) -> Step {
        let mut step = Step {
            choice: at,
            ..Step::default()
        };
        match event {
            EventKind::Prompt {
                cached,
                reused,
                total,
            } => {
                let choice = &mut self.choices[at];
                choice.prompt = (cached, reused, total);
                choice.begun.get_or_insert_with(Instant::now);
                step.progress = Some((cached, total));
            }
            EventKind::Token { id, text, logprobs } => {
                self.clock(at);
                let choice = &mut self.choices[at];
                step.token = Some(Token { id, logprobs });
                step.parts = choice.reader.read(&text);
                choice.reasoning_tokens += usize::from(choice.reader.reasons());
                if choice.reader.is_over() && !choice.cut {
                    choice.cut = true;
                    if let Some(answer) = &choice.answer {
                        answer.cancel();
                    }
                }
            }
            EventKind::Finished {
                text,
                reason,
                stats,
            } => {
                let finish = self.finish(at, &text, reason, &mut step);
                step.end = Some(End {
                    finish,
                    stats,
                    reasoning_tokens: self.choices[at].reasoning_tokens,
                    full: reason == FinishReason::ContextFull
                        || stats.prompt_tokens + stats.generated_tokens > self.ctx(),
                    first: self.choices[at].first.map(|t| t - self.arrived),
                });
                self.count(at, reason, &stats);
            }
            EventKind::Values { .. } | EventKind::Failed(_) => {}
        }
        step
    }

    fn finish(&mut self, at: usize, text: &[u8], reason: FinishReason, step: &mut Step) -> Finish {
        let (keeps, stop) = {
            let params = self.params(at);
            let stop = match reason {
                FinishReason::StopString(which) => params.stop.get(which).cloned(),
                _ => None,
            };
            (params.keep_stop, stop)
        };
        let choice = &mut self.choices[at];
        choice.ended = true;
        if !choice.cut {
            step.parts = choice.reader.read(text);
            step.parts.extend(choice.reader.read_last());
        }
        if let Some(stop) = stop.as_ref().filter(|_| keeps) {
            step.parts.push(Part::Content(stop.clone()));
        }
        match reason {
            _ if choice.cut => Finish::Calls,
            FinishReason::EndOfText if choice.reader.has_called() => Finish::Calls,
            FinishReason::EndOfText => Finish::Stop,
            FinishReason::StopString(_) => Finish::StopString(stop.unwrap_or_default()),
            FinishReason::MaxTokens | FinishReason::ContextFull => Finish::Length,
            FinishReason::Cancelled => Finish::Cancelled,
        }
    }

    fn clock(&mut self, at: usize) {
        let now = Instant::now();
        let choice = &mut self.choices[at];
        choice.tokens += 1;
        match choice.first {
            Some(_) => {
                let gap = now - choice.last;
                self.model.metrics.gap.observe(gap.as_secs_f64());
            }
            None => {
                choice.first = Some(now);
                let first = now - self.arrived;
                self.model.metrics.first_token.observe(first.as_secs_f64());
            }
        }
        choice.last = now;
    }

    fn count(&self, at: usize, reason: FinishReason, stats: &Stats) {
        let how = match reason {
            FinishReason::EndOfText | FinishReason::StopString(_) => "stop",
            FinishReason::MaxTokens | FinishReason::ContextFull => "length",
            FinishReason::Cancelled => "abort",
        };
        let first = self.choices[at].first;
        let first = first.map(|t| (t - self.arrived).as_secs_f64());
        self.model
            .metrics
            .ended(how, Some(stats), first, self.seconds());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let left = self
            .choices
            .iter()
            .filter(|c| !c.ended && (c.answer.is_some() || !self.searches.is_empty()));
        for _ in left {
            self.model
                .metrics
                .ended("abort", None, None, self.seconds());
        }
    }
}

impl Choice {
    /// What happened next; nothing does before it is asked for.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<EventKind>> {
        match (self.ahead.pop_front(), &mut self.answer) {
            (Some(event), _) => Poll::Ready(event),
            (None, Some(answer)) => answer.poll_next(cx),
            (None, None) => Poll::Pending,
        }
    }

    fn new(model: &Arc<Served>, one: &Prepared, place: usize) -> Result<Self> {
        let reading = one.reading.as_ref();
        let reader = Reader::new(reading.map(|r| (r, format_of(model, r))));
        let answer = match place {
            0 if one.params.beams.is_none() => Some(model.service.generate(one.request(model, 0)?)),
            _ => None,
        };
        Ok(Choice {
            answer,
            ahead: VecDeque::new(),
            reader,
            cut: false,
            ended: false,
            reasoning_tokens: 0,
            prompt: (0, 0, 0),
            told: 0,
            tokens: 0,
            begun: None,
            first: None,
            last: Instant::now(),
        })
    }
}

/// A name that nothing else has: a prefix and 24 letters and digits.
pub fn id(prefix: &str) -> String {
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let mut out = prefix.to_owned();
    for _ in 0..3 {
        let mut bits = crate::params::random();
        for _ in 0..8 {
            out.push(char::from(LETTERS[(bits % 62) as usize]));
            bits /= 62;
        }
    }
    out
}

/// What an answer cost in time, as llama.cpp names it.
pub fn timings(stats: &Stats) -> Value {
    let ms = |ns: u64| ns as f64 / 1e6;
    let rate = |n: usize, ns: u64| {
        if ns > 0 {
            n as f64 * 1e9 / ns as f64
        } else {
            0.0
        }
    };
    let each = |n: usize, ns: u64| if n > 0 { ms(ns) / n as f64 } else { 0.0 };
    let (prompt, generated) = (stats.computed_tokens, stats.generated_tokens);
    let mut timings = json!({
        "cache_n": stats.reused_tokens,
        "prompt_n": prompt,
        "prompt_ms": ms(stats.prompt_ns),
        "prompt_per_token_ms": each(prompt, stats.prompt_ns),
        "prompt_per_second": rate(prompt, stats.prompt_ns),
        "predicted_n": generated,
        "predicted_ms": ms(stats.generate_ns),
        "predicted_per_token_ms": each(generated, stats.generate_ns),
        "predicted_per_second": rate(generated.saturating_sub(1), stats.generate_ns),
    });
    if stats.drafted_tokens > 0 {
        timings["draft_n"] = stats.drafted_tokens.into();
        timings["draft_n_accepted"] = stats.accepted_tokens.into();
    }
    timings
}

/// How long an answer took, as vLLM names it. Between tokens nothing is told where there is one at most.
pub fn metrics(end: &End) -> Value {
    let stats = &end.stats;
    let ms = |ns: u64| ns as f64 / 1e6;
    let first = end.first.map_or(0.0, |t| t.as_secs_f64() * 1e3);
    let gaps = stats.generated_tokens.saturating_sub(1);
    let rate = match stats.generate_ns {
        0 => 0.0,
        ns => gaps as f64 * 1e9 / ns as f64,
    };
    let mut metrics = json!({
        "time_to_first_token_ms": first,
        "generation_time_ms": ms(stats.generate_ns),
        "queue_time_ms": (first - ms(stats.prompt_ns)).max(0.0),
        "tokens_per_second": rate,
    });
    if gaps > 0 {
        metrics["mean_itl_ms"] = (ms(stats.generate_ns) / gaps as f64).into();
    }
    metrics
}

/// How far a prompt has come, with what of it was cached before.
fn progress(stats: &Stats) -> Value {
    json!({
        "total": stats.prompt_tokens,
        "cache": stats.reused_tokens,
        "processed": stats.reused_tokens + stats.computed_tokens,
        "time_ms": stats.prompt_ns / 1_000_000,
    })
}

/// Everything that came of one answer.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    /// What the model thought.
    pub reasoning: String,
    /// What it said.
    pub content: String,
    /// Its calls of tools.
    pub calls: Vec<Call>,
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// The parts in order.
    pub parts: Vec<Part>,
    /// Its end, once it has come.
    pub end: Option<End>,
}

impl Whole {
    /// Takes a step of this answer.
    pub fn take(&mut self, step: Step) {
        for part in step.parts {
            match &part {
                Part::Reasoning(text) => self.reasoning.push_str(text),
                Part::Content(text) => self.content.push_str(text),
                Part::Call(new) => match self.calls.last_mut() {
                    Some(call) if new.stage != Stage::Begins => call.take(new.clone()),
                    _ => self.calls.push(new.clone()),
                },
            }
            match (self.parts.last_mut(), part) {
                (Some(Part::Reasoning(old)), Part::Reasoning(new))
                | (Some(Part::Content(old)), Part::Content(new)) => old.push_str(&new),
                (Some(Part::Call(old)), Part::Call(new)) if new.stage != Stage::Begins => {
                    old.take(new);
                }
                (_, part) => self.parts.push(part),
            }
        }
        self.tokens.extend(step.token);
        self.end = step.end.or(self.end.take());
    }

    /// Its tokens, and the one that ended it.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let own = self.tokens.iter().map(|t| t.id);
        own.chain(self.stats().end_token).collect()
    }

    /// What it cost.
    pub fn stats(&self) -> Stats {
        self.end.as_ref().map_or_else(Stats::default, |e| e.stats)
    }
}

/// Waits for all answers.
pub async fn collect(run: &mut Run) -> Result<Vec<Whole>> {
    let mut all = vec![Whole::default(); run.len()];
    while let Some(step) = run.next().await {
        let step = step?;
        all[step.choice].take(step);
    }
    Ok(all)
}

/// Tokens of several answers to one prompt or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of prompts.
    pub prompt: usize,
    /// Those of them that were cached.
    pub cached: usize,
    /// Tokens of answers.
    pub completion: usize,
    /// Those of them that are reasoning.
    pub reasoning: usize,
}

impl Usage {
    /// Adds an answer; `first` says that its prompt was not counted yet.
    pub fn add(&mut self, end: &End, first: bool) {
        if first {
            self.prompt += end.stats.prompt_tokens;
            self.cached += end.stats.reused_tokens;
        }
        self.completion += end.stats.generated_tokens;
        self.reasoning += end.reasoning_tokens;
    }

    /// As chat and completion APIs write it.
    pub fn object(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}
