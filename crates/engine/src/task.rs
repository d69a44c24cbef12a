//! A request on its way: its tokens, its sequence, and how far it got.

use std::sync::Arc;

use tokkata_ir::sample::{BadLogits, MOST_LISTED, Mask, Scratch};
use tokkata_ir::{LogitRow, Logprobs, PlanRole, SeqSlot, ValueId};
use web_time::Instant;

use crate::dry::dry_penalties;
use crate::input::{AllMedia, EncoderInput};
use crate::masks::Ask;
use crate::request::{
    Constraint, Decoder, EventKind, FinishReason, Request, RequestId, SessionId, Stats, Urgency,
};
use crate::sampling::Sampling;
use crate::sequence::Sequence;
use crate::speculate::{Draft, Own};
use crate::stop::StopStrings;
use crate::watermark::Watermark;

/// A request that is waiting or running.
pub(crate) struct Task {
    pub(crate) id: RequestId,
    pub(crate) session: Option<SessionId>,
    pub(crate) seq: Sequence,
    /// Prompt and answer.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// By position: which of the rows that it had once were an answer's. They are computed again as they were.
    pub(crate) had: Vec<bool>,
    pub(crate) media: AllMedia,
    pub(crate) encode: Option<Encode>,
    /// What the ports of its plan hold.
    pub(crate) fed: Vec<PortRows>,
    pub(crate) urgency: Urgency,
    pub(crate) goal: Goal,
    pub(crate) stats: Stats,
    pub(crate) cancelled: bool,
    /// The slot that holds its sequence, once it runs.
    pub(crate) slot: Option<SeqSlot>,
    /// Works under way that have rows of it.
    pub(crate) flights: usize,
    /// How often a younger task was let in before it.
    pub(crate) passed: usize,
    /// Its slot must be told everything.
    pub(crate) fresh: bool,
    /// Its slot must be told how long it is and how much may come: rows were tried that may not count.
    pub(crate) tried: bool,
    /// The first position from which its slot must be told its tokens again.
    pub(crate) told: usize,
    /// Tokens that stay when its context is full and moves.
    pub(crate) shift: Option<usize>,
    /// Its context is moving.
    pub(crate) turning: bool,
    /// It runs in works of its own: one that it shared with others failed.
    pub(crate) alone: bool,
    /// A token that was drawn for it is refused: its rows under way do not count.
    pub(crate) refused: bool,
    /// What the model's own head has read of it.
    pub(crate) head: crate::engine::heads::Own,
    started: Option<Instant>,
    answered: Option<Instant>,
}

/// What a task is for.
pub(crate) enum Goal {
    /// To write an answer.
    Answer(Box<Answer>),
    /// To read an output.
    Read(Read),
}

/// What a task's encoder reads, and how far it got.
#[derive(Debug)]
pub(crate) struct Encode {
    pub(crate) input: EncoderInput,
    /// Its caches are written.
    pub(crate) done: bool,
    /// The slot knows how many positions they have.
    pub(crate) told: bool,
}

/// What a task reads: tokens, some of which stand for media, and its encoder's input.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) tokens: Vec<u32>,
    pub(crate) media: AllMedia,
    pub(crate) encode: Option<Encode>,
    pub(crate) fed: Vec<PortRows>,
}

/// What a port of a plan holds for each token of a task.
#[derive(Clone, Debug)]
pub(crate) struct PortRows {
    pub(crate) port: ValueId,
    pub(crate) width: usize,
    pub(crate) rows: Arc<[f32]>,
}

/// An output that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) role: PlanRole,
    pub(crate) value: ValueId,
    /// Every row must be listed among the logit rows.
    pub(crate) by_logit_row: bool,
    /// All rows run in one step.
    pub(crate) whole: bool,
}

/// An answer on its way.
pub(crate) struct Answer {
    pub(crate) sampling: Sampling,
    pub(crate) constraint: Constrained,
    pub(crate) logprobs: Option<usize>,
    pub(crate) told: Vec<u32>,
    /// Tokens under way whose values are not known yet.
    pub(crate) draws: usize,
    /// Its drafts.
    pub(crate) own: Own,
    max_tokens: usize,
    pub(crate) stop_ids: Arc<[u32]>,
    has_stop_strings: bool,
    stop: StopStrings,
    decoder: Option<Box<dyn Decoder>>,
}

/// What restricts an answer, and where it is.
pub(crate) enum Constrained {
    /// Nothing does.
    No,
    /// Something that is asked of each token once it was drawn.
    Free(Box<dyn Constraint>),
    /// It must be asked.
    Asks(Box<dyn Constraint>, Ask),
    /// It is being asked.
    Away,
    /// It said what may come next.
    Told(Box<dyn Constraint>, Option<Mask>),
}

impl Constrained {
    fn new(constraint: Option<Box<dyn Constraint>>) -> Self {
        match constraint {
            None => Constrained::No,
            Some(free) if free.free() => Constrained::Free(free),
            Some(other) => Constrained::Asks(other, Ask::Begin),
        }
    }
}

impl Task {
    fn new(id: RequestId, seq: Sequence, session: Option<SessionId>, inputs: Inputs) -> Self {
        let Inputs {
            tokens,
            media,
            encode,
            fed,
        } = inputs;
        Task {
            id,
            session,
            seq,
            stats: Stats {
                prompt_tokens: tokens.len(),
                ..Stats::default()
            },
            prompt_len: tokens.len(),
            had: Vec::new(),
            tokens,
            media,
            encode,
            fed,
            urgency: Urgency::default(),
            goal: Goal::Read(Read {
                role: PlanRole::Main,
                value: ValueId(0),
                by_logit_row: false,
                whole: false,
            }),
            cancelled: false,
            slot: None,
            flights: 0,
            passed: 0,
            fresh: true,
            tried: false,
            told: usize::MAX,
            shift: None,
            turning: false,
            alone: false,
            refused: false,
            head: crate::engine::heads::Own::default(),
            started: None,
            answered: None,
        }
    }

    /// A task that writes.
    pub(crate) fn answer(
        id: RequestId,
        seq: Sequence,
        session: Option<SessionId>,
        (inputs, r): (Inputs, Request),
    ) -> Self {
        Task {
            urgency: r.urgency,
            shift: r.shift,
            goal: Goal::Answer(Box::new(Answer {
                sampling: r.sampling,
                constraint: Constrained::new(r.constraint),
                logprobs: r.logprobs,
                told: r.told,
                draws: 0,
                own: Own::new(),
                max_tokens: r.stop.max_tokens.unwrap_or(usize::MAX),
                stop_ids: r.stop.stop_ids.into(),
                has_stop_strings: !r.stop.stop_strings.is_empty(),
                stop: StopStrings::new(r.stop.stop_strings),
                decoder: r.decoder,
            })),
            ..Task::new(id, seq, session, inputs)
        }
    }

    /// A task that reads.
    pub(crate) fn read(
        id: RequestId,
        seq: Sequence,
        (inputs, urgency): (Inputs, Urgency),
        read: Read,
    ) -> Self {
        Task {
            urgency,
            goal: Goal::Read(read),
            ..Task::new(id, seq, None, inputs)
        }
    }

    /// The plan that its next rows run.
    pub(crate) fn role(&self) -> PlanRole {
        match &self.goal {
            _ if self.encodes() => PlanRole::Encoder,
            Goal::Answer(_) => PlanRole::Main,
            Goal::Read(read) => read.role,
        }
    }

    /// Whether its encoder is to run before anything else.
    pub(crate) fn encodes(&self) -> bool {
        self.encode.as_ref().is_some_and(|e| !e.done)
    }

    /// What its encoder wrote is gone.
    pub(crate) fn forget_encoded(&mut self) {
        if let Some(encode) = &mut self.encode {
            encode.done = false;
        }
    }

    /// Tokens that are known and neither cached nor under way.
    pub(crate) fn pending(&self) -> &[u32] {
        self.tokens.get(self.seq.end()..).unwrap_or(&[])
    }

    /// Whether the next row only feeds the newest token of the answer.
    pub(crate) fn is_decoding(&self) -> bool {
        let written = self.seq.end() >= self.prompt_len && self.tokens.len() > self.prompt_len;
        match &self.goal {
            Goal::Answer(answer) => answer.draws > 0 || written && self.pending().len() <= 1,
            Goal::Read(_) => false,
        }
    }

    /// Rows of one kind that could run next: tokens or media of a prompt, or tokens of an answer.
    pub(crate) fn runnable(&self) -> usize {
        let (pending, at) = (self.pending().len(), self.seq.end());
        let pending = pending.min(self.media.end_of_stretch(at).saturating_sub(at));
        pending.min(self.end_of_kind(at).saturating_sub(at))
    }

    /// First position whose row is of another kind than the one here.
    fn end_of_kind(&self, at: usize) -> usize {
        let answer = self.is_answer(at);
        let known = self.had.len().max(at);
        let other = self.had.iter().skip(at).position(|&kind| kind != answer);
        match other {
            Some(rows) => at + rows,
            None if self.is_answer(known) != answer => known,
            None if answer => usize::MAX,
            None => self.prompt_len,
        }
    }

    /// Whether the row at a position is an answer's.
    pub(crate) fn is_answer(&self, at: usize) -> bool {
        self.had.get(at).copied().unwrap_or(at >= self.prompt_len)
    }

    /// Its rows are about to be lost, and will be computed again as they were.
    pub(crate) fn note_kinds(&mut self) {
        if self.had.len() < self.seq.answers.len() {
            self.had.clone_from(&self.seq.answers);
        }
    }

    /// Rows that must run in one step, if its next ones must: an encoder's, those of a text whose rows see each other,
    /// the rest of a span.
    pub(crate) fn whole_rows(&self) -> Option<usize> {
        if let Some(encode) = self.encode.as_ref().filter(|e| !e.done) {
            return Some(encode.input.len());
        }
        match &self.goal {
            Goal::Read(read) if read.whole => Some(self.tokens.len()),
            _ => {
                let (places, media) = self.media.at(self.seq.end())?;
                media.span.then(|| places.end - self.seq.end())
            }
        }
    }

    /// By position: which rows of its tokens are an answer's.
    pub(crate) fn kinds(&self) -> Vec<bool> {
        (0..self.tokens.len()).map(|i| self.is_answer(i)).collect()
    }

    /// Tokens that it may have in a context of so many positions.
    pub(crate) fn room(&self, ctx: usize) -> usize {
        match self.shift {
            Some(_) => usize::MAX,
            None => ctx,
        }
    }

    /// Whether its next row has no place in a context of so many positions, and the context is to move.
    pub(crate) fn must_shift(&self, ctx: usize) -> bool {
        self.shift.is_some() && !self.turning && self.flights == 0 && self.seq.end() >= ctx
    }

    /// Tokens in the middle are forgotten, prompt or answer.
    pub(crate) fn forget_between(&mut self, keep: usize, count: usize) {
        self.tokens.drain(keep..keep + count);
        let gone = self.prompt_len.saturating_sub(keep).min(count);
        self.prompt_len -= gone;
        let had = self.had.len();
        self.had.drain(keep.min(had)..(keep + count).min(had));
        self.fresh = true;
    }

    /// Whether any of its rows ran.
    pub(crate) fn has_begun(&self) -> bool {
        self.started.is_some()
    }

    /// Rows of its prompt that were not cached.
    pub(crate) fn prompt_rows(&self) -> usize {
        self.stats.computed_tokens + self.pending().len()
    }

    /// A step with rows of this task begins.
    pub(crate) fn start(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    /// Counts rows of its prompt that were computed.
    pub(crate) fn computed(&mut self, rows: usize) {
        if self.answered.is_none() {
            let left = self.stats.prompt_tokens.saturating_sub(self.seq.len());
            self.stats.computed_tokens += rows.min(left);
        }
    }

    /// The answer, which the caller knows it to be for.
    pub(crate) fn answer_mut(&mut self) -> Option<&mut Answer> {
        match &mut self.goal {
            Goal::Answer(answer) => Some(answer),
            Goal::Read(_) => None,
        }
    }

    /// Takes a token that was drawn; says what happened, and why the answer ends if it does.
    pub(crate) fn accept(
        &mut self,
        token: u32,
        logprobs: Option<Logprobs>,
        ctx: usize,
    ) -> (Option<EventKind>, Option<FinishReason>) {
        self.clock();
        self.append(token, logprobs, ctx)
    }

    /// Takes a token, drawn or forced.
    pub(crate) fn append(
        &mut self,
        token: u32,
        logprobs: Option<Logprobs>,
        ctx: usize,
    ) -> (Option<EventKind>, Option<FinishReason>) {
        let Goal::Answer(answer) = &mut self.goal else {
            return (None, None);
        };
        self.stats.generated_tokens += 1;
        if answer.stop_ids.contains(&token) {
            self.stats.end_token = Some(token);
            return (None, Some(FinishReason::EndOfText));
        }
        self.tokens.push(token);
        let scan = answer.scan(token);
        let spent = self.stats.generated_tokens >= answer.max_tokens;
        let reason = match scan.stopped {
            Some(which) => Some(FinishReason::StopString(which)),
            None if spent => Some(FinishReason::MaxTokens),
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

    /// The event that ends it well.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> EventKind {
        let mut text = Vec::new();
        if let Goal::Answer(answer) = &mut self.goal
            && !matches!(reason, FinishReason::StopString(_))
        {
            text = answer.rest();
        }
        EventKind::Finished {
            text,
            reason,
            stats: self.stats,
        }
    }

    /// The answer's own tokens that its cache should hold when it ends: all but the newest.
    pub(crate) fn kept_len(&self) -> usize {
        let written = self.tokens.len() - self.prompt_len;
        self.tokens.len() - usize::from(written > 0)
    }
}

impl Answer {
    /// Whether a token is to be drawn once everything is cached.
    pub(crate) fn wants_token(&self, generated: usize) -> bool {
        generated + self.draws < self.max_tokens
    }

    /// Tokens that may still be drawn.
    pub(crate) fn remaining(&self, generated: usize) -> u32 {
        u32::try_from(self.max_tokens.saturating_sub(generated)).unwrap_or(u32::MAX)
    }

    /// Whether rows may run on a token that is not known yet. What only the host can see may end the answer before
    /// them, which a state cannot take back.
    pub(crate) fn runs_ahead(&self, recurrent: bool) -> bool {
        matches!(self.constraint, Constrained::No | Constrained::Free(_))
            && self.sampling.dry.is_none()
            && self.sampling.mark().is_none()
            && !(recurrent && self.has_stop_strings)
    }

    /// Whether a token could be drawn now: what restricts it is known.
    pub(crate) fn knows_mask(&self) -> bool {
        !matches!(self.constraint, Constrained::Asks(..) | Constrained::Away)
    }

    /// Whether the answer was asked to have no tokens at all.
    pub(crate) fn wants_none(&self) -> bool {
        self.max_tokens == 0
    }

    /// How a row's token is drawn after `tokens`; `None` while its mask is not known.
    pub(crate) fn logit_row(&self, row: usize, tokens: &[u32]) -> Option<LogitRow> {
        let mask = match &self.constraint {
            Constrained::No | Constrained::Free(_) => None,
            Constrained::Told(_, mask) => mask.clone(),
            Constrained::Asks(..) | Constrained::Away => return None,
        };
        Some(self.masked_row(row, tokens, mask))
    }

    /// How a row's token is drawn after `tokens` by a mask.
    pub(crate) fn masked_row(&self, row: usize, tokens: &[u32], mask: Option<Mask>) -> LogitRow {
        let dry = self.sampling.dry.as_ref();
        LogitRow {
            row: row as u32,
            mask,
            dry: dry.map_or_else(Vec::new, |dry| dry_penalties(dry, tokens)),
            best: self
                .logprobs
                .filter(|_| self.tells_of_rows().is_none())
                .map(|n| n as u8),
        }
    }

    /// Draws with the answer's watermark, in place of the device, from the logits behind these tokens, of which so many
    /// are the prompt.
    pub(crate) fn draw(
        &self,
        (mark, position): (&Watermark, u32),
        (tokens, prompt): (&[u32], usize),
        logits: &[f32],
    ) -> Result<u32, BadLogits> {
        let sampler = self.sampling.sampler();
        let asked = self.logit_row(0, tokens).unwrap_or_default();
        let side = sampler.side(tokens, asked.mask, asked.dry);
        let row = side.row(logits, position);
        let scratch = &mut Scratch::default();
        mark.sample((tokens, prompt), (&sampler.record, &row), scratch)
    }

    /// What the host reports of each row of logits: so many of the likeliest tokens, or these; `None` where the device
    /// reports, or nobody does.
    pub(crate) fn tells_of_rows(&self) -> Option<(usize, &[u32])> {
        let most = self.logprobs?;
        let own = most > MOST_LISTED || !self.told.is_empty() || self.sampling.mark().is_some();
        own.then_some((most, &self.told))
    }

    /// Whether the host looks at each row of logits.
    pub(crate) fn reads_rows(&self) -> bool {
        self.tells_of_rows().is_some() || self.sampling.mark().is_some()
    }

    /// Whether a token that was drawn without a mask is one that the mask forbids.
    pub(crate) fn refuses(&mut self, token: u32) -> bool {
        match &mut self.constraint {
            Constrained::Free(constraint) => constraint.refuses(token),
            _ => false,
        }
    }

    /// The next token is drawn by the constraint's mask, and nothing is tried behind it.
    pub(crate) fn draw_by_mask(&mut self) -> Result<(), String> {
        self.own.next = None;
        self.constraint = match std::mem::replace(&mut self.constraint, Constrained::No) {
            Constrained::Free(mut constraint) => {
                let mask = constraint.mask()?;
                Constrained::Told(constraint, mask)
            }
            other => other,
        };
        Ok(())
    }

    /// The constraint is to be asked what follows a token, and those that were taken since it said anything.
    /// One that is free takes the token at once.
    pub(crate) fn ask_after(&mut self, token: u32) -> Result<(), String> {
        if let Constrained::Free(constraint) = &mut self.constraint {
            return constraint.accept(token, &mut Vec::new());
        }
        self.constraint = match std::mem::replace(&mut self.constraint, Constrained::No) {
            Constrained::Told(constraint, _) => {
                Constrained::Asks(constraint, Ask::Accept(vec![token]))
            }
            Constrained::Asks(constraint, Ask::Accept(mut tokens)) => {
                tokens.push(token);
                Constrained::Asks(constraint, Ask::Accept(tokens))
            }
            other => other,
        };
        Ok(())
    }

    /// A draft is tried next; what restricts the answer is asked about it before.
    pub(crate) fn try_next(&mut self, mut draft: Draft) {
        self.constraint = match std::mem::replace(&mut self.constraint, Constrained::No) {
            Constrained::Told(constraint, mask) if !draft.tokens.is_empty() => {
                draft.first.clone_from(&mask);
                Constrained::Asks(constraint, Ask::Try(draft.tokens.clone(), mask))
            }
            other => other,
        };
        draft.masks = vec![None; draft.tokens.len()];
        self.own.next = Some(draft);
    }

    /// The first tokens of the draft that was to be tried next.
    pub(crate) fn try_now(&mut self, tokens: usize) -> Draft {
        let mut draft = self.own.next.take().unwrap_or_default();
        draft.tokens.truncate(tokens);
        self.own.unwatch();
        draft
    }

    /// How tokens are drawn behind each token of a draft, whose first row is this one, after `tokens`.
    pub(crate) fn draft_rows(&self, first: usize, tokens: &[u32], draft: &Draft) -> Vec<LogitRow> {
        let mut seen = tokens.to_vec();
        let row = |(j, (&token, mask)): (usize, (&u32, &Option<Mask>))| {
            seen.push(token);
            self.masked_row(first + j, &seen, mask.clone())
        };
        let each = draft.tokens.iter().zip(&draft.masks).enumerate();
        each.map(row).collect()
    }

    /// Whether something may be tried: what restricts the answer can go back, and nothing failed.
    pub(crate) fn may_try(&self) -> bool {
        let goes_back = match &self.constraint {
            Constrained::No | Constrained::Free(_) => true,
            // A free one is drawn by its mask once only: tokens behind would be drawn without it.
            Constrained::Told(constraint, _) => constraint.goes_back() && !constraint.free(),
            Constrained::Asks(..) | Constrained::Away => false,
        };
        let drawn_here = self.sampling.mark().is_some();
        goes_back && !drawn_here && !self.own.never && self.own.trial.is_none()
    }

    fn scan(&mut self, token: u32) -> crate::stop::Scan {
        let mut bytes = Vec::new();
        if let Some(decoder) = &mut self.decoder {
            decoder.push(token, &mut bytes);
        }
        self.stop.push(&bytes)
    }

    /// Text that was held back.
    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(decoder) = &mut self.decoder {
            decoder.finish(&mut bytes);
        }
        let scan = self.stop.push(&bytes);
        let mut text = scan.text;
        if scan.stopped.is_none() {
            text.extend(self.stop.finish());
        }
        text
    }
}

/// Where among some tasks a request's is.
pub(crate) fn place_of<'a>(
    tasks: impl IntoIterator<Item = &'a Task>,
    id: RequestId,
) -> Option<usize> {
    tasks.into_iter().position(|task| task.id == id)
}
