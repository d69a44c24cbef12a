//! The engine: requests in, steps through the backend, events out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokkata_ir::sample::SampleSide;
use tokkata_ir::step::{ROW_PROMPT, SeqStep};
use tokkata_ir::{
    BackendError, Instance, Limits, PlanRole, Program, StepBuilder, StepInputs, ValueId,
};

use crate::cache::{BlockCopy, Cache, CacheOptions};
use crate::error::EngineError;
use crate::request::{Event, EventKind, FinishReason, Request, RequestId, SessionId, logprobs};
use crate::schedule::{Budget, Part, order};
use crate::sequence::Sequence;
use crate::task::Task;

/// Tokens between snapshots of a recurrent state inside a long prompt.
const SNAPSHOT_TOKENS: usize = 1024;

/// Where the main plan leaves its results.
#[derive(Clone, Copy, Debug)]
struct Ports {
    plan: usize,
    logits: Option<ValueId>,
    tokens: Option<ValueId>,
}

/// How a task ended.
type Ending = Result<FinishReason, EngineError>;

/// Runs many requests over one loaded model, a step at a time.
pub struct Engine {
    pub(crate) program: Arc<Program>,
    pub(crate) instance: Box<dyn Instance>,
    pub(crate) cache: Cache,
    pub(crate) sessions: BTreeMap<SessionId, Option<Sequence>>,
    builder: StepBuilder,
    ports: Ports,
    waiting: VecDeque<Task>,
    running: Vec<Task>,
    next_id: u64,
}

impl Engine {
    /// An engine over a loaded program.
    ///
    /// # Errors
    /// A program without a main plan.
    pub fn new(
        program: Arc<Program>,
        instance: Box<dyn Instance>,
        options: &CacheOptions,
    ) -> Result<Self, EngineError> {
        let (plan, main) = program
            .plan(PlanRole::Main)
            .ok_or(EngineError::MissingOutput("main"))?;
        let ports = Ports {
            plan,
            logits: main.output("logits"),
            tokens: main.output("tokens"),
        };
        Ok(Engine {
            cache: Cache::new(&program.caches, &program.limits, options),
            builder: StepBuilder::new(&program.limits, &program.caches),
            program,
            instance,
            ports,
            sessions: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_id: 0,
        })
    }

    /// The sizes the program was built for.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.program.limits
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The loaded program on its device.
    #[must_use]
    pub fn instance(&self) -> &dyn Instance {
        self.instance.as_ref()
    }

    /// Whether steps are measured from now on, see [`Instance::times`].
    pub fn measure(&mut self, on: bool) {
        self.instance.measure(on);
    }

    /// The caches of all sequences.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Queues a request; its answer comes as events of [`Engine::step`].
    ///
    /// # Errors
    /// A prompt that is empty, longer than the context, or has tokens outside the vocabulary.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let seq = self.cache.sequence(request.salt);
        self.enqueue(seq, None, request)
    }

    /// Queues a request whose prompt continues what a session holds. Cached tokens that the prompt shares are used
    /// again, the rest is forgotten.
    ///
    /// # Errors
    /// As [`Engine::submit`]; an unknown or busy session.
    pub fn submit_to(&mut self, id: SessionId, request: Request) -> Result<RequestId, EngineError> {
        self.check(&request)?;
        let seq = self.take_session(id)?;
        self.enqueue(seq, Some(id), request)
    }

    fn check(&self, request: &Request) -> Result<(), EngineError> {
        let (tokens, ctx) = (request.prompt.len(), self.limits().ctx as usize);
        let n_vocab = self.program.n_vocab;
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens > ctx {
            return Err(EngineError::PromptTooLong { tokens, ctx });
        }
        match request.prompt.iter().find(|&&t| t >= n_vocab) {
            Some(&token) => Err(EngineError::UnknownToken { token, n_vocab }),
            None => Ok(()),
        }
    }

    fn enqueue(
        &mut self,
        seq: Sequence,
        session: Option<SessionId>,
        request: Request,
    ) -> Result<RequestId, EngineError> {
        self.check(&request)?;
        if self.ports.tokens.is_none() {
            return Err(EngineError::MissingOutput("tokens"));
        }
        let id = RequestId(self.next_id());
        self.waiting.push_back(Task::new(id, seq, session, request));
        Ok(id)
    }

    /// Ends a request at the next step.
    pub fn cancel(&mut self, id: RequestId) {
        let mut tasks = self.waiting.iter_mut().chain(&mut self.running);
        if let Some(task) = tasks.find(|t| t.id == id) {
            task.cancelled = true;
        }
    }

    /// Whether no request is waiting or running.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Runs one step of the tasks that fit into it.
    ///
    /// # Errors
    /// Only what ends the whole engine; a request that fails alone gets an event.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut events = self.reap();
        self.admit();
        self.begin(&mut events);
        let parts = self.form(&mut events);
        if parts.is_empty() {
            return Ok(events);
        }
        let sides = self.fill(&parts);
        match self.replay(&sides) {
            Ok(()) => self.collect(&parts, &mut events),
            Err(BackendError::NotANumber { seq }) => self.fail_one(&parts, seq, &mut events),
            Err(error) => return Err(error.into()),
        }
        Ok(events)
    }

    /// Ends cancelled tasks.
    fn reap(&mut self) -> Vec<Event> {
        let waiting = std::mem::take(&mut self.waiting);
        let (cancelled, waiting): (Vec<Task>, _) = waiting.into_iter().partition(|t| t.cancelled);
        self.waiting = waiting.into();
        self.running.extend(cancelled);
        let mut events = Vec::new();
        for i in (0..self.running.len()).rev() {
            if self.running[i].cancelled {
                self.finish(i, FinishReason::Cancelled, &mut events);
            }
        }
        events
    }

    /// Lets waiting tasks run while sequences and blocks last.
    fn admit(&mut self) {
        while self.running.len() < self.limits().seqs as usize {
            let Some(mut task) = self.waiting.pop_front() else {
                return;
            };
            self.resume(&mut task);
            let fits = self.cache.fits(&task.seq, task.pending().len());
            if !fits && (!self.running.is_empty() || self.drop_idle_session()) {
                self.cache.clear(&mut task.seq);
                self.waiting.push_front(task);
                if !self.running.is_empty() {
                    return;
                }
                continue;
            }
            self.running.push(task);
        }
    }

    /// Gives answers that are new what their constraints force them to begin with.
    fn begin(&mut self, events: &mut Vec<Event>) {
        for i in (0..self.running.len()).rev() {
            let ending = match self.running[i].begin() {
                Ok(forced) => self.append(i, forced, events),
                Err(error) => Some(Err(error)),
            };
            self.end(i, ending, events);
        }
    }

    fn end(&mut self, i: usize, ending: Option<Ending>, events: &mut Vec<Event>) {
        match ending {
            Some(Ok(reason)) => self.finish(i, reason, events),
            Some(Err(error)) => self.fail(i, error, events),
            None => {}
        }
    }

    /// Gives a task tokens that its constraint forces.
    fn append(&mut self, i: usize, forced: Vec<u32>, events: &mut Vec<Event>) -> Option<Ending> {
        let ctx = self.limits().ctx as usize;
        let task = &mut self.running[i];
        let request = task.id;
        forced.into_iter().find_map(|token| {
            let (kind, reason) = task.append(token, None, ctx);
            events.extend(kind.map(|kind| Event { request, kind }));
            reason.map(Ok)
        })
    }

    /// Keeps what a task's sequence shares with its tokens, or finds a stored prefix.
    fn resume(&mut self, task: &mut Task) {
        let shared = task
            .seq
            .tokens()
            .iter()
            .zip(&task.tokens)
            .take_while(|(a, b)| a == b)
            .count();
        let shared = shared.min(task.tokens.len() - 1);
        if self.cache.can_truncate(&task.seq, shared) {
            self.cache
                .truncate(&mut task.seq, shared)
                .expect("it can be truncated");
        } else {
            self.cache.clear(&mut task.seq);
        }
        if task.seq.is_empty() {
            self.cache.reuse(&mut task.seq, &task.tokens);
        }
        if task.stats.generated_tokens == 0 && task.stats.computed_tokens == 0 {
            task.stats.reused_tokens = task.seq.len();
        }
    }

    /// Chooses rows and reserves their blocks.
    fn form(&mut self, events: &mut Vec<Event>) -> Vec<Part> {
        loop {
            let parts = self.try_form();
            if !parts.is_empty() || self.running.is_empty() {
                return parts;
            }
            if self.running.len() > 1 {
                self.preempt(self.running.len() - 1);
            } else if !self.drop_idle_session() {
                match self.reserve(0, 1) {
                    Err(error) => self.fail(0, error, events),
                    Ok(()) => return parts,
                }
            }
        }
    }

    fn try_form(&mut self) -> Vec<Part> {
        let mut budget = Budget::new(self.limits());
        let mut parts: Vec<Part> = Vec::new();
        for i in order(&self.running) {
            let mut rows = usize::MAX;
            while let Some(part) = budget.part(i, &self.running[i], rows) {
                if self.reserve(i, part.rows).is_ok() {
                    budget.spend(&part);
                    parts.push(part);
                    break;
                }
                rows = part.rows / 2;
            }
        }
        parts
    }

    fn reserve(&mut self, i: usize, rows: usize) -> Result<(), EngineError> {
        let copies = self.cache.reserve(&mut self.running[i].seq, rows)?;
        self.copy(&copies);
        Ok(())
    }

    pub(crate) fn copy(&mut self, copies: &[BlockCopy]) {
        for copy in copies {
            self.instance.copy_block(copy.group, copy.from, copy.to);
        }
    }

    /// Takes a task's blocks; it computes again what is not stored when it runs next.
    fn preempt(&mut self, i: usize) {
        let mut task = self.running.remove(i);
        self.cache.clear(&mut task.seq);
        self.waiting.push_front(task);
    }

    /// Gives back the blocks of a session that is not answering.
    fn drop_idle_session(&mut self) -> bool {
        let idle = self
            .sessions
            .values_mut()
            .flatten()
            .find(|seq| !seq.is_empty());
        match idle {
            Some(seq) => {
                self.cache.clear(seq);
                true
            }
            None => false,
        }
    }

    /// Writes the step state; one side per logit row.
    fn fill(&mut self, parts: &[Part]) -> Vec<SampleSide> {
        let mut sides = Vec::new();
        self.builder.clear();
        for part in parts {
            let task = &mut self.running[part.task];
            task.start();
            if part.wants_logits {
                let mut side = task.sampling.side(&task.tokens);
                side.mask = task.constraint.as_mut().and_then(|c| c.mask());
                sides.push(side);
            }
            let last = [part.rows - 1];
            self.builder.push(&SeqStep {
                tokens: &task.pending()[..part.rows],
                past_len: task.seq.len(),
                tables: task.seq.tables(),
                logits: if part.wants_logits { &last } else { &[] },
                flags: if task.is_decoding() { 0 } else { ROW_PROMPT },
                sampler: task.sampling.record(task.tokens.len()),
                ..SeqStep::default()
            });
        }
        sides
    }

    fn replay(&mut self, sides: &[SampleSide]) -> Result<(), BackendError> {
        let inputs = StepInputs {
            sample: sides,
            ..StepInputs::default()
        };
        let state = self.builder.finish();
        self.instance.replay(self.ports.plan, state, &inputs)
    }

    /// Books the rows of a step and the tokens it picked.
    fn collect(&mut self, parts: &[Part], events: &mut Vec<Event>) {
        let mut picked = self.picked(parts).into_iter();
        let mut ended: Vec<(usize, Ending)> = Vec::new();
        for part in parts {
            self.commit(part, events);
            let token = if part.wants_logits {
                picked.next()
            } else {
                None
            };
            let ending = match token {
                Some((token, probabilities)) => self.take(part.task, token, probabilities, events),
                None if self.running[part.task].pending().is_empty() => {
                    Some(Ok(FinishReason::MaxTokens))
                }
                None => None,
            };
            ended.extend(ending.map(|ending| (part.task, ending)));
        }
        ended.sort_unstable_by_key(|&(i, _)| std::cmp::Reverse(i));
        for (i, ending) in ended {
            self.end(i, Some(ending), events);
        }
    }

    /// Gives a task the token that was picked for it, and those that its constraint forces after it.
    fn take(
        &mut self,
        i: usize,
        token: u32,
        probabilities: Option<crate::request::Logprobs>,
        events: &mut Vec<Event>,
    ) -> Option<Ending> {
        let ctx = self.limits().ctx as usize;
        let task = &mut self.running[i];
        let request = task.id;
        let (kind, reason) = task.accept(token, probabilities, ctx);
        events.extend(kind.map(|kind| Event { request, kind }));
        if let Some(reason) = reason {
            return Some(Ok(reason));
        }
        match task.constrain() {
            Ok(forced) => self.append(i, forced, events),
            Err(error) => Some(Err(error)),
        }
    }

    fn picked(&self, parts: &[Part]) -> Vec<(u32, Option<crate::request::Logprobs>)> {
        let Some(port) = self.ports.tokens else {
            return Vec::new();
        };
        let tokens = self.instance.ints(port);
        let wanting = parts.iter().filter(|p| p.wants_logits).enumerate();
        let one = |(row, part): (usize, &Part)| {
            let token =
                u32::try_from(tokens[row]).expect("a backend picks tokens of the vocabulary");
            let top = self.running[part.task].logprobs;
            let of = |top| {
                self.logit_row(row)
                    .map(|logits| logprobs(logits, token, top))
            };
            (token, top.and_then(of))
        };
        wanting.map(one).collect()
    }

    /// Logits of a logit row of the last step, `[n_vocab]`.
    #[must_use]
    pub fn logit_row(&self, row: usize) -> Option<&[f32]> {
        let width = self.program.n_vocab as usize;
        let logits = self.instance.floats(self.ports.logits?);
        logits.get(row * width..(row + 1) * width)
    }

    fn commit(&mut self, part: &Part, events: &mut Vec<Event>) {
        let task = &mut self.running[part.task];
        let (request, total) = (task.id, task.tokens.len());
        let tokens = task.pending()[..part.rows].to_vec();
        let prompt = !task.is_decoding();
        task.computed(part.rows);
        self.cache.commit(&mut task.seq, &tokens);
        let cached = task.seq.len();
        if prompt {
            let due = cached - task.seq.snapshot_len >= SNAPSHOT_TOKENS;
            if cached == total || due {
                self.cache.snapshot(&mut task.seq);
            }
            let kind = EventKind::Prompt { cached, total };
            events.push(Event { request, kind });
        }
    }

    fn finish(&mut self, i: usize, reason: FinishReason, events: &mut Vec<Event>) {
        let mut task = self.running.remove(i);
        let kind = task.finish(reason);
        events.push(Event {
            request: task.id,
            kind,
        });
        self.cache.snapshot(&mut task.seq);
        self.park(task);
    }

    fn fail(&mut self, i: usize, error: EngineError, events: &mut Vec<Event>) {
        let task = self.running.remove(i);
        let kind = EventKind::Failed(error);
        events.push(Event {
            request: task.id,
            kind,
        });
        self.park(task);
    }

    fn park(&mut self, task: Task) {
        match task.session.and_then(|id| self.sessions.get_mut(&id)) {
            Some(slot) => *slot = Some(task.seq),
            None => self.cache.release(task.seq),
        }
    }

    /// A sequence's logits are not numbers. The others' rows are computed again: nothing of the step was committed,
    /// but states were overwritten.
    fn fail_one(&mut self, parts: &[Part], seq: usize, events: &mut Vec<Event>) {
        let bad = parts[seq.min(parts.len() - 1)].task;
        if self.cache.is_recurrent() {
            for part in parts {
                self.cache.clear(&mut self.running[part.task].seq);
            }
        }
        self.fail(bad, BackendError::NotANumber { seq }.into(), events);
    }

    fn take_session(&mut self, id: SessionId) -> Result<Sequence, EngineError> {
        let slot = self
            .sessions
            .get_mut(&id)
            .ok_or(EngineError::UnknownSession(id.0))?;
        slot.take().ok_or(EngineError::SessionBusy(id.0))
    }

    /// Feeds tokens to sessions in one step, outside of any request; returns each session's first logit row.
    ///
    /// # Errors
    /// An unknown session, more rows than the limits allow, a full cache, or the backend's.
    pub fn feed(&mut self, parts: &[Feed<'_>]) -> Result<Vec<usize>, EngineError> {
        let limits = *self.limits();
        for part in parts {
            let seq = self
                .sessions
                .get_mut(&part.session)
                .and_then(Option::as_mut);
            let seq = seq.ok_or(EngineError::UnknownSession(part.session.0))?;
            let (tokens, ctx) = (seq.len() + part.tokens.len(), limits.ctx as usize);
            if tokens > ctx {
                return Err(EngineError::PromptTooLong { tokens, ctx });
            }
            let copies = self.cache.reserve(seq, part.tokens.len())?;
            self.copy(&copies);
        }
        let (sides, firsts) = self.fill_feed(parts);
        self.replay(&sides)?;
        for part in parts {
            if let Some(Some(seq)) = self.sessions.get_mut(&part.session) {
                self.cache.commit(seq, part.tokens);
            }
        }
        Ok(firsts)
    }

    fn fill_feed(&mut self, parts: &[Feed<'_>]) -> (Vec<SampleSide>, Vec<usize>) {
        let (mut firsts, mut rows) = (Vec::new(), 0);
        self.builder.clear();
        for part in parts {
            let Some(Some(seq)) = self.sessions.get(&part.session) else {
                continue;
            };
            let n = part.tokens.len();
            let logits: Vec<usize> = match part.logits {
                FeedLogits::None => Vec::new(),
                FeedLogits::Last => vec![n - 1],
                FeedLogits::All => (0..n).collect(),
            };
            firsts.push(rows);
            rows += logits.len();
            self.builder.push(&SeqStep {
                tokens: part.tokens,
                past_len: seq.len(),
                tables: seq.tables(),
                logits: &logits,
                flags: if part.rows == RowKind::Prompt {
                    ROW_PROMPT
                } else {
                    0
                },
                ..SeqStep::default()
            });
        }
        (vec![SampleSide::default(); rows], firsts)
    }
}

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

/// What rows count as; a backend may compute the two by different kernels.
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
