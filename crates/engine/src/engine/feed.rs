//! Steps by hand: tokens fed to sessions outside of any request, for tools that look at what comes out.

use std::ops::Range;

use tokkata_ir::{
    Delta, LogitRow, PlanRole, RowInput, SeqRows, SeqSlot, Source, StepTime, Ticket, ValueId, Work,
};

use super::Engine;
use crate::error::EngineError;
use crate::request::SessionId;

/// Tokens for a session in [`Engine::feed`].
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// Whose.
    pub session: SessionId,
    /// At least one token; all sessions' together at most the limits' rows.
    pub tokens: &'a [u32],
    /// What the rows count as.
    pub rows: RowKind,
    /// Which rows' logits are wanted.
    pub logits: FeedLogits,
}

/// What rows count as; a device may compute the two by different kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Rows of a prompt.
    Prompt,
    /// Rows of an answer.
    Answer,
}

/// Rows whose logits [`Engine::feed`] leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedLogits {
    /// No row.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
}

impl FeedLogits {
    fn of(self, rows: usize) -> Range<usize> {
        match self {
            FeedLogits::None => 0..0,
            FeedLogits::Last => rows.saturating_sub(1)..rows,
            FeedLogits::All => 0..rows,
        }
    }
}

/// What a step by hand left.
#[derive(Clone, Debug)]
pub struct Fed {
    ticket: Ticket,
    plan: usize,
    /// First logit row of each session.
    pub firsts: Vec<usize>,
}

/// Rows of the prompts that are measured, behind such a one that warms up.
const MEASURED_ROWS: [u32; 2] = [16, 80];
const WARM_UP_ROWS: u32 = 48;
/// Rows of answers that are measured.
const DRAFT_ROWS: [usize; 4] = [2, 4, 8, 16];

impl Engine {
    /// Learns what steps cost before anybody asks, so that the first prompts beside answers are cut well: an answer's row,
    /// and few and many rows of a prompt, after some that warm up.
    ///
    /// # Errors
    /// As [`Engine::feed`].
    pub fn measure_costs(&mut self) -> Result<(), EngineError> {
        let session = self.open_session(u64::MAX);
        let measured = self
            .measure_steps(session)
            .and_then(|()| self.measure_drafts(session));
        self.close_session(session);
        self.forget_prefixes();
        measured
    }

    /// What steps of more rows of answers cost, if there will be drafts.
    fn measure_drafts(&mut self, session: SessionId) -> Result<(), EngineError> {
        let limits = *self.limits();
        let most = limits.logit_rows.min(limits.rows).min(limits.ctx / 16) as usize;
        let most = if self.speculates() { most } else { 0 };
        for rows in DRAFT_ROWS.into_iter().filter(|&n| n <= most) {
            let started = (self.clock)();
            let feed = Feed {
                session,
                tokens: &[0; DRAFT_ROWS[DRAFT_ROWS.len() - 1]][..rows],
                rows: RowKind::Answer,
                logits: FeedLogits::All,
            };
            self.feed(&[feed], &[])?;
            let took = (self.clock)() - started;
            self.costs.saw_rows(rows, took.as_nanos() as f64);
        }
        Ok(())
    }

    fn measure_steps(&mut self, session: SessionId) -> Result<(), EngineError> {
        let limits = *self.limits();
        let fits = |rows: u32| rows.min(limits.rows).min(limits.ctx / 4).max(1) as usize;
        let [few, many] = MEASURED_ROWS.map(fits);
        let tokens = vec![0; many];
        let mut took = |kind: RowKind, rows: usize| {
            let started = (self.clock)();
            let feed = Feed {
                session,
                tokens: &tokens[..rows],
                rows: kind,
                logits: FeedLogits::Last,
            };
            self.feed(&[feed], &[])?;
            Ok::<_, EngineError>((self.clock)() - started)
        };
        took(RowKind::Prompt, fits(WARM_UP_ROWS))?;
        took(RowKind::Answer, 1)?;
        let answer = took(RowKind::Answer, 1)?;
        let few = (few, took(RowKind::Prompt, few)?);
        let many = (many, took(RowKind::Prompt, many)?);
        self.costs.saw(1, &[], answer);
        self.costs.compared(few, many);
        Ok(())
    }

    /// Feeds tokens to sessions in one step and waits for it. What `keep` names of the main plan can be read until the
    /// result is dropped.
    ///
    /// # Errors
    /// Requests under way; an unknown or busy session, or one that is named twice; no tokens, unknown ones, or more
    /// rows than the limits allow; a full cache; the device's.
    pub fn feed(&mut self, parts: &[Feed<'_>], keep: &[ValueId]) -> Result<Fed, EngineError> {
        self.check_feed(parts)?;
        let mut work = Work {
            plan: self.ports.plan,
            keep: keep.to_vec(),
            ..Work::default()
        };
        let (mut firsts, mut logit_rows) = (Vec::new(), 0);
        for (i, part) in parts.iter().enumerate() {
            if let Err(error) = self.write_feed(part, SeqSlot(i as u32), &mut work) {
                self.abandon_feed(parts);
                return Err(error);
            }
            firsts.push(logit_rows);
            logit_rows += part.logits.of(part.tokens.len()).len();
        }
        let ticket = self.run(work);
        let ticket = ticket.inspect_err(|_| self.abandon_feed(parts))?;
        for part in parts {
            let session = self.sessions.get_mut(&part.session);
            let seq = session.and_then(|s| s.seq_mut()).expect("it was found");
            let answer = part.rows == RowKind::Answer;
            self.cache.commit(seq, part.tokens, answer);
        }
        let plan = self.ports.plan;
        Ok(Fed {
            ticket,
            plan,
            firsts,
        })
    }

    /// Runs the encoder for an empty session, whose later rows read what it wrote, as do those of its forks. What `keep`
    /// names of the encoder's plan can be read until the result is dropped.
    ///
    /// # Errors
    /// A model without an encoder of such rows, and rows that it does not take; a session that holds tokens; as
    /// [`Engine::feed`].
    pub fn encode(
        &mut self,
        session: SessionId,
        rows: &[f32],
        keep: &[ValueId],
    ) -> Result<Fed, EngineError> {
        if !self.is_idle() || !self.session(session)?.is_empty() {
            return Err(EngineError::SessionBusy(session.0));
        }
        let found = self.program.plan(PlanRole::Encoder);
        let (plan, port, width) = found
            .and_then(|(i, plan)| Some((i, plan.inputs.first()?.value, plan)))
            .map(|(i, port, plan)| (i, port, plan.value(port).shape.width()))
            .ok_or(EngineError::MissingOutput("frames"))?;
        let (count, most) = (
            rows.len() / width,
            self.limits().rows.min(self.limits().enc_rows),
        );
        if count == 0 || !rows.len().is_multiple_of(width) || count > most as usize {
            return Err(EngineError::StepTooLarge {
                what: "encoder rows",
                found: count,
                most: most as usize,
            });
        }
        let slot = SeqSlot(0);
        let seq = self.sessions.get_mut(&session).and_then(|s| s.seq_mut());
        let seq = seq.expect("it was found");
        seq.encoded = 0;
        self.cache.clear(seq);
        seq.encoded = count;
        let copies = self.cache.reserve(seq, 0)?;
        seq.forget_synced();
        let mut deltas = vec![(slot, Delta::Clear)];
        deltas.extend(seq.changes().into_iter().map(|d| (slot, d)));
        let work = Work {
            plan,
            copies,
            deltas,
            rows: vec![SeqRows {
                input: RowInput::Embeds(count as u32),
                prompt: true,
                adapter: seq.adapter_number(),
                ..SeqRows::tokens(slot, &[])
            }],
            feeds: vec![(port, Source::Host(rows.to_vec()))],
            keep: keep.to_vec(),
            ..Work::default()
        };
        let ticket = self.run(work)?;
        Ok(Fed {
            ticket,
            plan,
            firsts: Vec::new(),
        })
    }

    fn check_feed(&mut self, parts: &[Feed<'_>]) -> Result<(), EngineError> {
        let limits = *self.limits();
        let busy = parts.first().filter(|_| !self.is_idle());
        if let Some(part) = busy {
            return Err(EngineError::SessionBusy(part.session.0));
        }
        let rows: usize = parts.iter().map(|p| p.tokens.len()).sum();
        let logits = parts.iter().map(|p| p.logits.of(p.tokens.len()).len());
        let (logits, seqs) = (logits.sum::<usize>(), parts.len());
        let most = [limits.rows, limits.logit_rows, limits.seqs].map(|n| n as usize);
        for (what, found, most) in [
            ("rows", rows, most[0]),
            ("logit rows", logits, most[1]),
            ("sequences", seqs, most[2]),
        ] {
            if found > most {
                return Err(EngineError::StepTooLarge { what, found, most });
            }
        }
        for (i, part) in parts.iter().enumerate() {
            let len = self.session(part.session)?.len();
            if parts[..i].iter().any(|p| p.session == part.session) {
                return Err(EngineError::SessionBusy(part.session.0));
            }
            self.check_tokens(part.tokens)?;
            let (tokens, ctx) = (len + part.tokens.len(), limits.ctx as usize);
            if tokens > ctx {
                return Err(EngineError::PromptTooLong { tokens, ctx });
            }
        }
        Ok(())
    }

    fn write_feed(
        &mut self,
        part: &Feed<'_>,
        slot: SeqSlot,
        work: &mut Work,
    ) -> Result<(), EngineError> {
        let session = self.sessions.get_mut(&part.session);
        let seq = session.and_then(|s| s.seq_mut()).expect("it was checked");
        work.copies
            .extend(self.cache.reserve(seq, part.tokens.len())?);
        seq.forget_synced();
        let mut deltas = vec![Delta::Clear];
        deltas.extend(seq.changes());
        deltas.push(Delta::Length(seq.len() as u32));
        if seq.encoded > 0 {
            deltas.push(Delta::Encoded(seq.encoded as u32));
        }
        work.deltas.extend(deltas.into_iter().map(|d| (slot, d)));
        let logit = |row: usize| LogitRow {
            row: row as u32,
            ..LogitRow::default()
        };
        work.rows.push(SeqRows {
            logits: part.logits.of(part.tokens.len()).map(logit).collect(),
            prompt: part.rows == RowKind::Prompt,
            adapter: seq.adapter_number(),
            ..SeqRows::tokens(slot, part.tokens)
        });
        Ok(())
    }

    /// Nothing of a step counts. A state may have been changed.
    fn abandon_feed(&mut self, parts: &[Feed<'_>]) {
        for part in parts {
            let session = self.sessions.get_mut(&part.session);
            if let Some(seq) = session.and_then(|s| s.seq_mut()) {
                self.cache.abandon(seq);
                if self.cache.is_recurrent() {
                    self.cache.clear(seq);
                }
            }
        }
    }

    /// Submits a work and waits until it is done.
    pub(super) fn run(&mut self, work: Work) -> Result<Ticket, EngineError> {
        let ticket = match self.executor.submit(work) {
            Ok(ticket) => ticket,
            Err(tokkata_ir::Refusal::Backend(error)) => return Err(error.into()),
            Err(tokkata_ir::Refusal::Busy(_)) => unreachable!("nothing is under way"),
        };
        loop {
            let news = self.executor.wait()?;
            let news = news.expect("a work is under way");
            let bad = |r: &tokkata_ir::RowResult| r.status == tokkata_ir::RowStatus::NotANumber;
            if let Some(error) = news.failure {
                return Err(error.into());
            }
            if news.rows.iter().any(bad) {
                return Err(EngineError::NotANumber);
            }
            if news.done {
                return Ok(ticket);
            }
        }
    }

    /// Rows of a value that a step by hand kept, `[rows, width]`; all of them without a range.
    ///
    /// # Errors
    /// A value that was not kept; the device's.
    pub fn read(
        &mut self,
        fed: &Fed,
        value: ValueId,
        rows: Option<Range<usize>>,
    ) -> Result<Vec<f32>, EngineError> {
        let mut out = Vec::new();
        self.read_into(fed, value, rows, &mut out)?;
        Ok(out)
    }

    /// As [`Engine::read`], into memory that is used again: what it held is gone. The width of a row.
    ///
    /// # Errors
    /// As [`Engine::read`].
    pub fn read_into(
        &mut self,
        fed: &Fed,
        value: ValueId,
        rows: Option<Range<usize>>,
        out: &mut Vec<f32>,
    ) -> Result<usize, EngineError> {
        let rows = match rows {
            Some(rows) => rows,
            None => 0..self.executor.rows(&fed.ticket, value)?,
        };
        let width = self.program.plans[fed.plan].value(value).shape.width();
        out.resize(rows.len() * width, 0.0);
        self.executor.read(&fed.ticket, value, rows, out)?;
        Ok(width)
    }

    /// All rows of a value of integers that a step by hand kept.
    ///
    /// # Errors
    /// As [`Engine::read`].
    pub fn read_ints(&mut self, fed: &Fed, value: ValueId) -> Result<Vec<i32>, EngineError> {
        let rows = 0..self.executor.rows(&fed.ticket, value)?;
        let plan = &self.program.plans[fed.plan];
        let mut out = vec![0; rows.len() * plan.value(value).shape.width()];
        self.executor
            .read_ints(&fed.ticket, value, rows, &mut out)?;
        Ok(out)
    }

    /// The main plan's logits, where it has them.
    ///
    /// # Errors
    /// [`EngineError::MissingOutput`].
    pub fn logits_port(&self) -> Result<ValueId, EngineError> {
        self.ports
            .logits
            .ok_or(EngineError::MissingOutput("logits"))
    }

    /// Times of a step by hand, when it was measured.
    #[must_use]
    pub fn times(&self, fed: &Fed) -> Vec<StepTime> {
        self.executor.times(&fed.ticket)
    }
}
