//! The engine: requests in, works through the device, events out.
//!
//! [`Engine::turn`] never blocks on anything but a device that computes when it is asked: it takes news of the works
//! under way, lets requests in, and submits what can run next. [`Engine::step`] waits until something has happened.

mod adapters;
mod admit;
mod collect;
mod feed;
mod form;
mod guess;
pub(crate) mod heads;
mod keep;
mod shift;

use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokkata_ir::{BackendError, Executor, Lead, Limits, PlanRole, Port, Program, SeqSlot, ValueId};
use web_time::Instant;

pub use adapters::{AdapterId, Through};
pub(crate) use adapters::{Attached, family};
pub use feed::{Fed, Feed, FeedLogits, RowKind};
pub use keep::KeptSession;

use crate::cache::{Cache, CacheOptions};
use crate::cost::Costs;
use crate::error::EngineError;
use crate::flight::{Flight, Turning};
use crate::input::{AllMedia, EncoderInput, Media};
use crate::masks::{MaskPool, Says};
use crate::request::{
    Event, EventKind, FinishReason, ReadRequest, Request, RequestId, SessionId, Urgency,
};
use crate::sequence::Sequence;
use crate::session::Session;
use crate::speculate::Speculator;
use crate::task::{Constrained, Encode, Goal, Inputs, PortRows, Read, Task, place_of};
use crate::turn::Turns;

/// Tokens between snapshots of a recurrent state inside a long prompt.
const SNAPSHOT_TOKENS: usize = 1024;

/// How an engine serves.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How its caches behave.
    pub cache: CacheOptions,
    /// Works under way at once.
    pub ahead: usize,
    /// Steps that a work may chain.
    pub chain: u32,
    /// Requests that may wait; more are refused.
    pub queue: usize,
    /// How long a step of prompts may take while nobody is answered; `None` fills every step.
    pub prompt_step: Option<Duration>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            cache: CacheOptions::default(),
            ahead: 1,
            chain: 0,
            queue: 4096,
            prompt_step: None,
        }
    }
}

/// Where the main plan leaves its results.
#[derive(Clone, Copy, Debug)]
struct Ports {
    plan: usize,
    logits: Option<ValueId>,
    tokens: Option<ValueId>,
    /// Where rows of media come in.
    embeds: Option<ValueId>,
}

/// Tells the time.
type Clock = Box<dyn Fn() -> Instant + Send>;

/// How a task ended.
type Ending = Result<FinishReason, EngineError>;

/// Runs many requests over one loaded model.
pub struct Engine {
    pub(crate) program: Arc<Program>,
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) cache: Cache,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    adapters: Vec<Attached>,
    /// What is used where nothing is said.
    pub(crate) usual: Option<Attached>,
    options: EngineOptions,
    ports: Ports,
    waiting: VecDeque<Task>,
    pub(crate) running: Vec<Task>,
    /// Ended, but with rows under way.
    leaving: Vec<Task>,
    flights: VecDeque<Flight>,
    slots: Vec<SeqSlot>,
    /// Contexts that move, with nothing of it under way.
    turning: Vec<Turning>,
    turns: OnceCell<Result<Turns, &'static str>>,
    masks: MaskPool,
    pub(crate) speculator: Option<Speculator>,
    /// The model's own head that guesses, where one is asked.
    heads: Option<heads::Heads>,
    /// Guesses under way, of which a draft has the places.
    guessing: Option<heads::Guessing>,
    pub(crate) costs: Costs,
    pub(crate) clock: Clock,
    out: VecDeque<Event>,
    /// Requests whose events nobody wants any more.
    unheard: Vec<RequestId>,
    /// The plan that rows were chosen of last.
    last_role: Option<PlanRole>,
    /// Whether the last rows of prompts were shared out.
    shared_slice: bool,
    last_news: Option<Instant>,
    /// Tokens of all answers.
    written: u64,
    /// Steps that are done.
    steps: u64,
    lost: Option<String>,
    next_id: u64,
}

impl Engine {
    /// An engine over a program on its device.
    ///
    /// # Errors
    /// A program without a main plan.
    pub fn new(
        program: Arc<Program>,
        executor: Box<dyn Executor>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let (plan, main) = program
            .plan(PlanRole::Main)
            .ok_or(EngineError::MissingOutput("main"))?;
        let ports = Ports {
            plan,
            logits: main.output("logits"),
            tokens: main.output("tokens"),
            embeds: main.input("embeds"),
        };
        let (caches, limits) = (&program.caches, &program.limits);
        Ok(Engine {
            cache: Cache::new(caches, limits, executor.arena(), &options.cache),
            slots: (0..limits.seqs).rev().map(SeqSlot).collect(),
            program,
            executor,
            ports,
            options,
            sessions: BTreeMap::new(),
            adapters: Vec::new(),
            usual: None,
            waiting: VecDeque::new(),
            running: Vec::new(),
            leaving: Vec::new(),
            flights: VecDeque::new(),
            turning: Vec::new(),
            turns: OnceCell::new(),
            masks: MaskPool::new(),
            speculator: None,
            heads: None,
            guessing: None,
            costs: Costs::default(),
            clock: Box::new(Instant::now),
            out: VecDeque::new(),
            unheard: Vec::new(),
            last_role: None,
            shared_slice: false,
            last_news: None,
            written: 0,
            steps: 0,
            lost: None,
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

    /// The program on its device.
    #[must_use]
    pub fn executor(&self) -> &dyn Executor {
        self.executor.as_ref()
    }

    /// Whether works are measured from now on, see [`Executor::times`].
    pub fn measure(&mut self, on: bool) {
        self.executor.measure(on);
    }

    /// The caches of all sequences.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Requests that wait, and those that run.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Steps that the device has done, well or badly.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets how many requests may wait.
    pub fn limit_queue(&mut self, queue: usize) {
        self.options.queue = queue;
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Queues a request; its answer comes as events.
    ///
    /// # Errors
    /// A prompt that is empty, longer than the context, or has tokens outside the vocabulary; parameters that are no
    /// numbers; a full queue; a lost device.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let (inputs, request) = self.check(request)?;
        let adapter = self.attached(request.adapter)?;
        let seq = self.sequence(request.salt, adapter);
        Ok(self.enqueue(|id| Task::answer(id, seq, None, (inputs, request))))
    }

    /// Queues a request whose prompt continues what a session holds. Cached tokens that the prompt shares are used
    /// again, the rest is forgotten.
    ///
    /// # Errors
    /// As [`Engine::submit`]; an unknown or busy session.
    pub fn submit_to(&mut self, id: SessionId, request: Request) -> Result<RequestId, EngineError> {
        let (inputs, request) = self.check(request)?;
        let adapter = self.attached(request.adapter)?;
        let mut seq = self.take_session(id)?;
        self.lead_through(&mut seq, adapter);
        Ok(self.enqueue(|task| Task::answer(task, seq, Some(id), (inputs, request))))
    }

    /// Queues a request for values; they come as events.
    ///
    /// # Errors
    /// As [`Engine::submit`]; an output that the program does not have; a text that must but does not fit into a step.
    pub fn submit_read(&mut self, request: ReadRequest) -> Result<RequestId, EngineError> {
        self.check_queue()?;
        let read = self.reading(&request)?;
        let encoder = match read.role {
            PlanRole::Encoder => None,
            _ => Some(request.encoder),
        };
        let adapter = self.attached(request.adapter)?;
        let mut seq = self.sequence(request.salt, adapter);
        if read.role == PlanRole::Encoder {
            seq.encoded = request.tokens.len();
        }
        let mut inputs = self.inputs(request.tokens, Vec::new(), encoder)?;
        inputs.fed = self.fed(read.role, request.inputs, inputs.tokens.len())?;
        if read.whole {
            self.check_step(inputs.tokens.len())?;
        }
        let what = (inputs, request.urgency);
        Ok(self.enqueue(|id| Task::read(id, seq, what, read)))
    }

    fn reading(&self, request: &ReadRequest) -> Result<Read, EngineError> {
        let missing = EngineError::MissingOutput("asked-for");
        let (_, plan) = self.program.plan(request.role).ok_or(missing)?;
        let value = plan.output(&request.output);
        let value = value.ok_or(EngineError::MissingOutput("asked-for"))?;
        Ok(Read {
            role: request.role,
            value,
            by_logit_row: plan.value(value).shape.lead == Lead::LogitRows,
            whole: request.whole,
        })
    }

    fn check(&self, mut request: Request) -> Result<(Inputs, Request), EngineError> {
        let prompt = std::mem::take(&mut request.prompt);
        let media = std::mem::take(&mut request.media);
        let encoder = request.encoder.take();
        if request.shift.is_some() {
            self.turns()?;
            if !media.is_empty() {
                return Err(EngineError::FixedContext("its prompt has media"));
            }
        }
        let inputs = self.inputs(prompt, media, Some(encoder))?;
        self.check_queue()?;
        request.sampling.check()?;
        self.check_vocabulary(request.told.iter().copied())?;
        match self.ports.tokens {
            Some(_) => Ok((inputs, request)),
            None => Err(EngineError::MissingOutput("tokens")),
        }
    }

    /// What a task reads. Without a choice of an encoder's input none is needed.
    fn inputs(
        &self,
        mut tokens: Vec<u32>,
        media: Vec<Media>,
        encoder: Option<Option<EncoderInput>>,
    ) -> Result<Inputs, EngineError> {
        if !media.is_empty() && self.ports.embeds.is_none() {
            return Err(EngineError::NoEmbeddings);
        }
        let longest = media.iter().filter(|m| m.span).map(|m| m.rows.len()).max();
        let width = self.program.n_embd as usize;
        self.check_step(longest.unwrap_or(0) / width.max(1))?;
        let media = AllMedia::new(media, &mut tokens, width)?;
        let own = tokens.iter().enumerate().filter(|(i, _)| !media.covers(*i));
        self.check_length(&tokens)?;
        self.check_vocabulary(own.map(|(_, &token)| token))?;
        let encode = match encoder {
            Some(input) => self.encoding(input)?,
            None => None,
        };
        Ok(Inputs {
            tokens,
            media,
            encode,
            fed: Vec::new(),
        })
    }

    /// What a plan's ports hold for so many tokens.
    fn fed(
        &self,
        role: PlanRole,
        inputs: Vec<(String, Arc<[f32]>)>,
        tokens: usize,
    ) -> Result<Vec<PortRows>, EngineError> {
        let (_, plan) = self.program.plan(role).expect("its output was found");
        let port = |(name, rows): (String, Arc<[f32]>)| {
            let port = plan.input(&name);
            let port = port.ok_or(EngineError::MissingInput(name))?;
            let width = plan.value(port).shape.width();
            match rows.len() == tokens * width {
                true => Ok(PortRows { port, width, rows }),
                false => Err(EngineError::WrongInput {
                    found: rows.len(),
                    tokens,
                    width,
                }),
            }
        };
        let fed: Vec<PortRows> = inputs.into_iter().map(port).collect::<Result<_, _>>()?;
        let missing = |p: &&Port| p.name != "embeds" && fed.iter().all(|f| f.port != p.value);
        match plan.inputs.iter().find(missing) {
            Some(port) => Err(EngineError::MissingInput(port.name.clone())),
            None => Ok(fed),
        }
    }

    fn encoding(&self, input: Option<EncoderInput>) -> Result<Option<Encode>, EngineError> {
        let has = self.program.plan(PlanRole::Encoder).is_some();
        let input = match input {
            None if has => return Err(EngineError::NothingEncoded),
            None => return Ok(None),
            Some(_) if !has => return Err(EngineError::NoEncoder),
            Some(input) if input.is_empty() => return Err(EngineError::NothingEncoded),
            Some(input) => input,
        };
        let most = self.limits().enc_rows.min(self.limits().rows) as usize;
        if input.len() > most {
            let tokens = input.len();
            return Err(EngineError::TextTooLong { tokens, rows: most });
        }
        if let EncoderInput::Tokens(tokens) = &input {
            self.check_vocabulary(tokens.iter().copied())?;
        }
        Ok(Some(Encode {
            input,
            done: false,
            told: false,
        }))
    }

    /// So many rows must fit into a step.
    fn check_step(&self, tokens: usize) -> Result<(), EngineError> {
        let rows = self.limits().rows as usize;
        if tokens > rows {
            return Err(EngineError::TextTooLong { tokens, rows });
        }
        Ok(())
    }

    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        self.check_length(tokens)?;
        self.check_vocabulary(tokens.iter().copied())
    }

    fn check_length(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let (tokens, ctx) = (tokens.len(), self.limits().ctx as usize);
        match tokens {
            0 => Err(EngineError::EmptyPrompt),
            _ if tokens > ctx => Err(EngineError::PromptTooLong { tokens, ctx }),
            _ => Ok(()),
        }
    }

    fn check_vocabulary(&self, mut tokens: impl Iterator<Item = u32>) -> Result<(), EngineError> {
        let n_vocab = self.program.n_vocab;
        match tokens.find(|&t| t >= n_vocab) {
            Some(token) => Err(EngineError::UnknownToken { token, n_vocab }),
            None => Ok(()),
        }
    }

    fn check_queue(&self) -> Result<(), EngineError> {
        if let Some(why) = &self.lost {
            return Err(BackendError::Lost(why.clone()).into());
        }
        let waiting = self.waiting.len();
        if waiting < self.options.queue {
            return Ok(());
        }
        let rows = self.waiting.iter().map(|t| t.pending().len()).sum();
        let seconds = self.costs.prompt(rows).as_secs().max(1);
        Err(EngineError::Overloaded { waiting, seconds })
    }

    fn enqueue(&mut self, make: impl FnOnce(RequestId) -> Task) -> RequestId {
        let id = RequestId(self.next_id());
        let task = make(id);
        let after = |t: &Task| t.urgency.priority >= task.urgency.priority;
        let place = self.waiting.iter().rposition(after).map_or(0, |i| i + 1);
        self.waiting.insert(place, task);
        id
    }

    /// Ends a request at the next turn.
    pub fn cancel(&mut self, id: RequestId) {
        let mut tasks = self.waiting.iter_mut().chain(&mut self.running);
        if let Some(task) = tasks.find(|t| t.id == id) {
            task.cancelled = true;
            if let Some(slot) = task.slot {
                self.executor.stop(slot);
            }
        }
    }

    /// Ends a request whose events nobody wants any more.
    pub fn abandon(&mut self, id: RequestId) {
        self.cancel(id);
        self.out.retain(|event| event.request != id);
        let mut tasks = self.waiting.iter().chain(&self.running);
        if tasks.any(|t| t.id == id) {
            self.unheard.push(id);
        }
    }

    /// Whether no request is waiting or running, and nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.running.is_empty()
            && self.leaving.is_empty()
            && self.flights.is_empty()
    }

    /// Whether a request has ended and nothing of it is under way.
    #[must_use]
    pub fn is_settled(&self, id: RequestId) -> bool {
        let mut tasks = self
            .waiting
            .iter()
            .chain(&self.running)
            .chain(&self.leaving);
        tasks.all(|task| task.id != id)
    }

    /// Takes what has happened and submits what can run next. Says whether anything did happen; if not, what is under
    /// way must be waited for.
    pub fn turn(&mut self) -> bool {
        let before = self.out.len();
        let submitted = self.advance();
        let news = self.listen(false);
        submitted | news | (self.out.len() != before)
    }

    /// As [`Engine::turn`], but waits for the device or a mask when nothing else is left to do.
    pub fn wait(&mut self) {
        if self.turn() || self.is_idle() {
            return;
        }
        if self.flights.is_empty() {
            self.rest(Duration::from_millis(50));
        } else {
            self.listen(true);
        }
    }

    /// Gives what is under way some time, at most as long as `patience`.
    pub fn rest(&mut self, patience: Duration) {
        if self.masks.is_busy() {
            self.hear(patience);
        } else if !self.flights.is_empty() {
            std::thread::sleep(patience / 16);
        }
    }

    /// Goes on until something has happened, and gives every event so far.
    pub fn step(&mut self) -> Vec<Event> {
        self.wait();
        self.events()
    }

    /// Every event so far.
    pub fn events(&mut self) -> Vec<Event> {
        self.out.drain(..).collect()
    }

    /// The next event of a request; others' stay.
    pub fn next_event(&mut self, id: RequestId) -> Option<EventKind> {
        let place = self.out.iter().position(|event| event.request == id)?;
        self.out.remove(place).map(|event| event.kind)
    }

    fn advance(&mut self) -> bool {
        if self.lost.is_some() {
            return false;
        }
        self.hear(Duration::ZERO);
        self.reap();
        self.shift();
        self.admit();
        self.guess();
        self.ask();
        let mut submitted = false;
        while !self.waits_for_states()
            && self.flights.len() < self.options.ahead.clamp(1, self.executor.depth())
        {
            match self.next_turning().or_else(|| self.form()) {
                Some((work, flight)) => self.launch(work, flight),
                None => break,
            }
            self.learn_guesses();
            submitted = true;
        }
        self.learn_guesses();
        submitted
    }

    fn say(&mut self, request: RequestId, kind: EventKind) {
        let last = matches!(kind, EventKind::Finished { .. } | EventKind::Failed(_));
        match self.unheard.iter().position(|&id| id == request) {
            None => self.out.push_back(Event { request, kind }),
            Some(place) if last => {
                self.unheard.swap_remove(place);
            }
            Some(_) => {}
        }
    }

    /// Ends cancelled tasks and those whose time is up.
    fn reap(&mut self) {
        let now = (self.clock)();
        let over = |urgency: &Urgency| urgency.deadline.is_some_and(|d| now >= d);
        let ends = |task: &Task| task.cancelled || over(&task.urgency);
        let (ended, waiting): (Vec<Task>, _) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(ends);
        self.waiting = waiting.into();
        let mut all = ended;
        while let Some(i) = self.running.iter().position(ends) {
            all.push(self.running.remove(i));
        }
        for task in all {
            let ending = if task.cancelled {
                Ok(FinishReason::Cancelled)
            } else {
                Err(EngineError::DeadlinePassed)
            };
            self.leave(task, ending);
        }
    }

    /// Says how a task ended, and parks its sequence as soon as nothing of it is under way.
    fn leave(&mut self, mut task: Task, ending: Ending) {
        self.forget_drafts(&task);
        let kind = match ending {
            Ok(reason) => task.finish(reason),
            Err(error) => EventKind::Failed(error),
        };
        self.say(task.id, kind);
        if task.flights > 0 {
            if let Some(slot) = task.slot {
                self.executor.stop(slot);
            }
            self.leaving.push(task);
        } else {
            self.park(task);
        }
    }

    /// Gives a task's slot back; its sequence stays with its session, or with the stored prefixes.
    fn park(&mut self, mut task: Task) {
        self.slots.extend(task.slot.take());
        self.cache.abandon(&mut task.seq);
        if task.refused && self.cache.is_recurrent() {
            // Its state has seen the row whose token was refused.
            self.cache.clear(&mut task.seq);
        }
        let (len, kept) = (task.seq.len(), task.kept_len());
        let goes_back = len > kept && self.cache.can_truncate(&task.seq, kept);
        // Blocks of drafts that did not count are given back in any case.
        self.cache
            .cut(&mut task.seq, if goes_back { kept } else { len });
        self.cache.snapshot(&mut task.seq);
        match task.session.and_then(|id| self.sessions.get_mut(&id)) {
            Some(session) => session.put(task.seq),
            None => self.cache.release(task.seq),
        }
    }

    /// The device is gone: every request ends by name.
    fn lose(&mut self, error: &BackendError) {
        let why = match error {
            BackendError::Lost(why) => why.clone(),
            other => other.to_string(),
        };
        self.lost = Some(why.clone());
        self.flights.clear();
        self.turning.clear();
        let waiting = std::mem::take(&mut self.waiting);
        let running = std::mem::take(&mut self.running);
        for mut task in waiting.into_iter().chain(running) {
            task.flights = 0;
            self.cache.abandon(&mut task.seq);
            self.cache.clear(&mut task.seq);
            self.leave(task, Err(BackendError::Lost(why.clone()).into()));
        }
        for mut task in std::mem::take(&mut self.leaving) {
            self.cache.abandon(&mut task.seq);
            self.cache.clear(&mut task.seq);
            self.park(task);
        }
    }

    /// Puts the answers of constraints where they belong.
    fn hear(&mut self, patience: Duration) {
        let mut patience = patience;
        while let Some(told) = self.masks.told(patience) {
            patience = Duration::ZERO;
            let id = told.request;
            if let Some(i) = place_of(&self.running, id) {
                let mut task = self.running.remove(i);
                match self.told(&mut task, told) {
                    Some(ending) => self.leave(task, ending),
                    None => self.running.insert(i, task),
                }
            } else if let Some(i) = place_of(&self.waiting, id) {
                // It was preempted while its constraint was away.
                let mut task = self.waiting.remove(i).expect("the place was found");
                match self.told(&mut task, told) {
                    Some(ending) => self.leave(task, ending),
                    None => self.waiting.insert(i, task),
                }
            }
        }
    }

    fn end(&mut self, i: usize, ending: Option<Ending>) {
        if let Some(ending) = ending {
            let task = self.running.remove(i);
            self.leave(task, ending);
        }
    }

    fn told(&mut self, task: &mut Task, told: crate::masks::Told) -> Option<Ending> {
        let says = match told.told {
            Ok(says) => says,
            Err(why) => return Some(Err(EngineError::Constraint(why))),
        };
        let answer = task.answer_mut()?;
        match says {
            Says::Next(forced, mask) => {
                // A state cannot go back: after its first refusal such an answer waits for its masks.
                let free = told.constraint.free() && !self.cache.is_recurrent();
                answer.constraint = match free {
                    true => Constrained::Free(told.constraint),
                    false => Constrained::Told(told.constraint, mask),
                };
                self.append(task, forced)
            }
            Says::Tried(masks) => {
                let draft = answer.own.next.get_or_insert_default();
                draft.tokens.truncate(masks.len());
                draft.masks = masks;
                answer.constraint = Constrained::Told(told.constraint, draft.first.take());
                None
            }
        }
    }

    /// Gives a task tokens that its constraint forces.
    fn append(&mut self, task: &mut Task, forced: Vec<u32>) -> Option<Ending> {
        let ctx = task.room(self.limits().ctx as usize);
        forced.into_iter().find_map(|token| {
            let (kind, reason) = task.append(token, None, ctx);
            if let Some(kind) = kind {
                self.say(task.id, kind);
            }
            reason.map(Ok)
        })
    }

    /// Asks the constraints that are to be asked.
    fn ask(&mut self) {
        for task in &mut self.running {
            let id = task.id;
            let Goal::Answer(answer) = &mut task.goal else {
                continue;
            };
            if let Constrained::Asks(..) = answer.constraint
                && let Constrained::Asks(constraint, ask) =
                    std::mem::replace(&mut answer.constraint, Constrained::Away)
            {
                self.masks.ask(id, constraint, ask);
            }
        }
    }

    fn take_session(&mut self, id: SessionId) -> Result<Sequence, EngineError> {
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or(EngineError::UnknownSession(id.0))?;
        session.take().ok_or(EngineError::SessionBusy(id.0))
    }
}
