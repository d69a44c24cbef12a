//! A request on its way: its tokens, its sequence, and how far its answer got.

use std::time::Instant;

use crate::error::EngineError;
use crate::request::{
    Constraint, Decoder, EventKind, FinishReason, Logprobs, Request, RequestId, SessionId, Stats,
};
use crate::sampling::Sampling;
use crate::sequence::Sequence;
use crate::stop::StopStrings;

/// A request that is waiting or running.
pub(crate) struct Task {
    pub(crate) id: RequestId,
    pub(crate) session: Option<SessionId>,
    pub(crate) seq: Sequence,
    /// Prompt and answer.
    pub(crate) tokens: Vec<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) stats: Stats,
    pub(crate) cancelled: bool,
    begun: bool,
    max_tokens: usize,
    stop_ids: Vec<u32>,
    stop: StopStrings,
    decoder: Option<Box<dyn Decoder>>,
    started: Option<Instant>,
    answered: Option<Instant>,
}

impl Task {
    pub(crate) fn new(
        id: RequestId,
        seq: Sequence,
        session: Option<SessionId>,
        r: Request,
    ) -> Self {
        Task {
            id,
            session,
            seq,
            stats: Stats {
                prompt_tokens: r.prompt.len(),
                ..Stats::default()
            },
            tokens: r.prompt,
            sampling: r.sampling,
            constraint: r.constraint,
            logprobs: r.logprobs,
            cancelled: false,
            begun: false,
            max_tokens: r.stop.max_tokens.unwrap_or(usize::MAX),
            stop_ids: r.stop.stop_ids,
            stop: StopStrings::new(r.stop.stop_strings),
            decoder: r.decoder,
            started: None,
            answered: None,
        }
    }

    /// Tokens that are not cached yet.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.seq.len()..]
    }

    /// Whether the next step only feeds the newest token of the answer.
    pub(crate) fn is_decoding(&self) -> bool {
        self.pending().len() == 1 && self.stats.generated_tokens > 0
    }

    /// Whether a token is to be picked once everything is cached.
    pub(crate) fn wants_token(&self) -> bool {
        self.stats.generated_tokens < self.max_tokens
    }

    /// A step with rows of this task begins.
    pub(crate) fn start(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    /// Counts those of the next rows of its sequence that belong to the prompt.
    pub(crate) fn computed(&mut self, rows: usize) {
        if self.answered.is_none() {
            let left = self.stats.prompt_tokens.saturating_sub(self.seq.len());
            self.stats.computed_tokens += rows.min(left);
        }
    }

    /// The tokens that the answer must begin with, the first time that it is asked.
    pub(crate) fn begin(&mut self) -> Result<Vec<u32>, EngineError> {
        let mut forced = Vec::new();
        if let Some(constraint) = self.constraint.as_mut().filter(|_| !self.begun) {
            self.begun = true;
            let begun = constraint.begin(&mut forced);
            begun.map_err(EngineError::Constraint)?;
        }
        Ok(forced)
    }

    /// Takes the token that was picked; says what happened, and why the answer ends if it does.
    pub(crate) fn accept(
        &mut self,
        token: u32,
        logprobs: Option<Logprobs>,
        ctx: usize,
    ) -> (Option<EventKind>, Option<FinishReason>) {
        self.clock();
        self.append(token, logprobs, ctx)
    }

    /// Tells the constraint of the newest token, and returns the tokens that must follow it.
    pub(crate) fn constrain(&mut self) -> Result<Vec<u32>, EngineError> {
        let mut forced = Vec::new();
        if let (Some(constraint), Some(&token)) = (&mut self.constraint, self.tokens.last()) {
            let accepted = constraint.accept(token, &mut forced);
            accepted.map_err(EngineError::Constraint)?;
        }
        Ok(forced)
    }

    /// Takes a token, picked or forced.
    pub(crate) fn append(
        &mut self,
        token: u32,
        logprobs: Option<Logprobs>,
        ctx: usize,
    ) -> (Option<EventKind>, Option<FinishReason>) {
        self.stats.generated_tokens += 1;
        if self.stop_ids.contains(&token) {
            return (None, Some(FinishReason::EndOfText));
        }
        self.tokens.push(token);
        let mut bytes = Vec::new();
        if let Some(decoder) = &mut self.decoder {
            decoder.push(token, &mut bytes);
        }
        let scan = self.stop.push(&bytes);
        let reason = match scan.stopped {
            Some(which) => Some(FinishReason::StopString(which)),
            None if !self.wants_token() => Some(FinishReason::MaxTokens),
            None if self.tokens.len() > ctx => Some(FinishReason::ContextFull),
            None => None,
        };
        let event = EventKind::Token {
            id: token,
            text: scan.text,
            logprobs,
        };
        (Some(event), reason)
    }

    fn clock(&mut self) {
        let now = Instant::now();
        let since = |t: Instant| u64::try_from((now - t).as_nanos()).unwrap_or(u64::MAX);
        match self.answered {
            Some(t) => self.stats.generate_ns = since(t),
            None => {
                self.stats.prompt_ns = self.started.map_or(0, since);
                self.answered = Some(now);
            }
        }
    }

    /// The event that ends the answer.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> EventKind {
        let mut text = Vec::new();
        if !matches!(reason, FinishReason::StopString(_)) {
            let mut bytes = Vec::new();
            if let Some(decoder) = &mut self.decoder {
                decoder.finish(&mut bytes);
            }
            let scan = self.stop.push(&bytes);
            text = scan.text;
            if scan.stopped.is_none() {
                text.extend(self.stop.finish());
            }
        }
        EventKind::Finished {
            text,
            reason,
            stats: self.stats,
        }
    }
}
