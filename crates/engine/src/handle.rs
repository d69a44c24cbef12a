//! An engine on a thread of its own, and how any other thread reaches it.
//!
//! [`Engine::spawn`] gives an [`EngineHandle`], which can be cloned and sent anywhere. A request's events come through
//! an [`Answer`], which threads can block on and tasks of any async runtime can await: it needs none itself. Dropping an
//! answer cancels its request. Where there are no threads, as in a browser, [`Engine::drive`] leaves the turns to the caller.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use web_time::Instant;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::request::{EventKind, ReadRequest, Request, RequestId, SessionId};

/// How long the thread waits for a mask or a late device before it listens for callers again.
const PATIENCE: Duration = Duration::from_millis(2);

/// Events of one request, on their way to whoever waits for them.
#[derive(Default)]
struct Stream {
    events: VecDeque<EventKind>,
    /// No more will come.
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Shared {
    stream: Mutex<Stream>,
    changed: Condvar,
}

impl Shared {
    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Stream)) {
        let mut stream = self.stream();
        change(&mut stream);
        let waker = stream.waker.take();
        drop(stream);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Something to be done with the engine, between two of its turns.
type Call = Box<dyn FnOnce(&mut Engine) + Send>;

enum Command {
    Submit(Ask, Arc<Shared>),
    Cancel(Arc<Shared>),
    Call(Call),
    /// The same when no request is under way.
    IdleCall(Call),
}

/// Ends a request from any thread, while another one waits for its events.
#[derive(Clone)]
pub struct Canceller {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

impl Canceller {
    /// Ends the request; its last event still comes.
    pub fn cancel(&self) {
        // An engine that is gone has ended it.
        let _ = self
            .commands
            .send(Command::Cancel(Arc::clone(&self.shared)));
    }
}

/// What a request is for.
enum Ask {
    Answer(Option<SessionId>, Box<Request>),
    Read(ReadRequest),
}

/// Reaches an engine from any thread.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
}

/// The events of one request, in order. Dropping it cancels the request.
pub struct Answer {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

impl EngineHandle {
    /// Asks for an answer. Whatever may be wrong with the request comes as its only event.
    #[must_use]
    pub fn generate(&self, request: Request) -> Answer {
        self.ask(Ask::Answer(None, Box::new(request)))
    }

    /// Asks for an answer that continues what a session holds.
    #[must_use]
    pub fn generate_in(&self, session: SessionId, request: Request) -> Answer {
        self.ask(Ask::Answer(Some(session), Box::new(request)))
    }

    /// Asks for values: vectors, scores, logits.
    #[must_use]
    pub fn read(&self, request: ReadRequest) -> Answer {
        self.ask(Ask::Read(request))
    }

    fn ask(&self, ask: Ask) -> Answer {
        let shared = Arc::new(Shared::default());
        let command = Command::Submit(ask, Arc::clone(&shared));
        if self.commands.send(command).is_err() {
            let gone = EngineError::Gone("it was shut down".to_owned());
            shared.change(|s| s.close(Some(gone)));
        }
        Answer {
            shared,
            commands: self.commands.clone(),
        }
    }

    /// Does something with the engine between two of its turns, and waits for what it gives: sessions, caches, figures.
    ///
    /// # Errors
    /// [`EngineError::Gone`] when the engine's thread has ended.
    pub fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        self.call(Command::Call, call)
    }

    /// The same once no request is under way, as steps by hand need; requests that come meanwhile wait.
    ///
    /// # Errors
    /// As [`EngineHandle::with`].
    pub fn with_idle<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        self.call(Command::IdleCall, call)
    }

    fn call<T: Send + 'static>(
        &self,
        command: fn(Call) -> Command,
        call: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let gone = || EngineError::Gone("it was shut down".to_owned());
        let (give, take) = channel();
        let call: Call = Box::new(move |engine| {
            // Nobody may be waiting any more.
            let _ = give.send(call(engine));
        });
        let sent = self.commands.send(command(call));
        sent.map_err(|_| gone())?;
        take.recv().map_err(|_| gone())
    }
}

impl Answer {
    /// The next event; `None` after the last. Blocks this thread.
    pub fn next_blocking(&mut self) -> Option<EventKind> {
        let mut stream = self.shared.stream();
        loop {
            if let Some(event) = stream.events.pop_front() {
                return Some(event);
            }
            if stream.closed {
                return None;
            }
            let waited = self.shared.changed.wait(stream);
            stream = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next event, if one comes in time; `None` after the last, and when the time is up.
    pub fn next_within(&mut self, patience: Duration) -> Option<EventKind> {
        let end = Instant::now().checked_add(patience);
        let mut stream = self.shared.stream();
        loop {
            if let Some(event) = stream.events.pop_front() {
                return Some(event);
            }
            let left = end.map_or(Duration::MAX, |end| {
                end.saturating_duration_since(Instant::now())
            });
            if stream.closed || left.is_zero() {
                return None;
            }
            let waited = self.shared.changed.wait_timeout(stream, left);
            stream = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<EventKind> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next event, or the promise to wake the task when it comes.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<EventKind>> {
        let mut stream = self.shared.stream();
        match stream.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if stream.closed => Poll::Ready(None),
            None => {
                stream.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Whether no event is left and none will come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let stream = self.shared.stream();
        stream.closed && stream.events.is_empty()
    }

    /// Ends the request; its last event still comes.
    pub fn cancel(&self) {
        self.canceller().cancel();
    }

    /// What ends the request from any thread.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller {
            shared: Arc::clone(&self.shared),
            commands: self.commands.clone(),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.shared.stream().closed {
            self.cancel();
        }
    }
}

impl Stream {
    fn close(&mut self, error: Option<EngineError>) {
        if !self.closed {
            self.events.extend(error.map(EventKind::Failed));
            self.closed = true;
        }
    }
}

impl Engine {
    /// Runs the engine on a thread of its own, until every handle and every answer is dropped.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn spawn(self) -> std::io::Result<(EngineHandle, JoinHandle<()>)> {
        let (handle, mut driver) = self.drive();
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || {
            // A panic is a bug of ours: those who wait hear of it by name, and the process goes on.
            if catch_unwind(AssertUnwindSafe(|| driver.serve())).is_err() {
                driver.fail_all("it panicked");
            }
        })?;
        Ok((handle, thread))
    }

    /// Leaves the turns to the caller. What waits for an answer must not do so on the thread that drives.
    #[must_use]
    pub fn drive(self) -> (EngineHandle, Driver) {
        let (commands, queue) = channel();
        let driver = Driver {
            engine: self,
            queue,
            answers: HashMap::new(),
            idle_calls: VecDeque::new(),
            held: Vec::new(),
        };
        (EngineHandle { commands }, driver)
    }
}

/// What a turn left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// More may be done at once.
    On,
    /// The device, or a mask, must be waited for.
    Waiting,
    /// No request is left; one may come.
    Idle,
    /// No request is left, and no handle to ask for one.
    Over,
}

/// Gives an engine its turns, and its events to those who wait for them.
pub struct Driver {
    engine: Engine,
    queue: Receiver<Command>,
    answers: HashMap<RequestId, Arc<Shared>>,
    /// What waits until no request is under way.
    idle_calls: VecDeque<Call>,
    /// Requests that wait for those calls.
    held: Vec<(Ask, Arc<Shared>)>,
}

impl Driver {
    fn serve(&mut self) {
        loop {
            // Before it waits: a mask that came while the engine rested may have ended the last request.
            self.deliver();
            let open = if self.engine.is_idle() {
                self.wait_for_command()
            } else {
                self.take_commands()
            };
            match self.go_on(open) {
                Turned::Over => return,
                Turned::Waiting => self.engine.rest(PATIENCE),
                Turned::On | Turned::Idle => {}
            }
        }
    }

    /// Does what was asked for, and one turn of the engine. Never waits.
    pub fn turn(&mut self) -> Turned {
        let open = self.take_commands();
        let turned = self.go_on(open);
        self.deliver();
        turned
    }

    fn go_on(&mut self, open: bool) -> Turned {
        self.call_if_idle();
        if !open && self.engine.is_idle() {
            return Turned::Over;
        }
        match (self.engine.turn(), self.engine.is_idle()) {
            (_, true) => Turned::Idle,
            (true, false) => Turned::On,
            (false, false) => Turned::Waiting,
        }
    }

    fn wait_for_command(&mut self) -> bool {
        match self.queue.recv() {
            Ok(command) => {
                self.obey(command);
                self.take_commands()
            }
            Err(_) => false,
        }
    }

    /// Does what callers have asked for so far; false once no caller is left.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.queue.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(ask, shared) if self.idle_calls.is_empty() => self.submit(ask, shared),
            Command::Submit(ask, shared) => self.held.push((ask, shared)),
            Command::Cancel(shared) => {
                let is_held = |(_, s): &(Ask, Arc<Shared>)| Arc::ptr_eq(s, &shared);
                if let Some(place) = self.held.iter().position(is_held) {
                    let (ask, shared) = self.held.remove(place);
                    self.submit(ask, shared);
                }
                let own = |(_, s): &(&RequestId, &Arc<Shared>)| Arc::ptr_eq(s, &shared);
                if let Some((&id, _)) = self.answers.iter().find(own) {
                    self.engine.cancel(id);
                }
            }
            Command::Call(call) => call(&mut self.engine),
            Command::IdleCall(call) => self.idle_calls.push_back(call),
        }
    }

    fn submit(&mut self, ask: Ask, shared: Arc<Shared>) {
        let submitted = match ask {
            Ask::Answer(None, request) => self.engine.submit(*request),
            Ask::Answer(Some(session), request) => self.engine.submit_to(session, *request),
            Ask::Read(request) => self.engine.submit_read(request),
        };
        match submitted {
            Ok(id) => drop(self.answers.insert(id, shared)),
            Err(error) => shared.change(|s| s.close(Some(error))),
        }
    }

    /// Does what has waited for an engine without requests, and then lets those in that have waited for it.
    fn call_if_idle(&mut self) {
        while self.engine.is_idle()
            && let Some(call) = self.idle_calls.pop_front()
        {
            call(&mut self.engine);
        }
        if self.idle_calls.is_empty() {
            for (ask, shared) in std::mem::take(&mut self.held) {
                self.submit(ask, shared);
            }
        }
    }

    /// Hands events to those who wait for them. What came of one request at once is heard at once, such as its last token
    /// and its end.
    fn deliver(&mut self) {
        let mut events = self.engine.events().into_iter().peekable();
        while let Some(event) = events.next() {
            let request = event.request;
            let mut kinds = vec![event.kind];
            while let Some(more) = events.next_if(|e| e.request == request) {
                kinds.push(more.kind);
            }
            let is_last =
                |k: &EventKind| matches!(k, EventKind::Finished { .. } | EventKind::Failed(_));
            let last = kinds.iter().any(is_last);
            let shared = if last {
                self.answers.remove(&request)
            } else {
                self.answers.get(&request).cloned()
            };
            if let Some(shared) = shared {
                shared.change(|stream| {
                    stream.events.extend(kinds);
                    stream.closed |= last;
                });
            }
        }
    }

    fn fail_all(&mut self, why: &str) {
        for (_, shared) in self.answers.drain() {
            let gone = EngineError::Gone(why.to_owned());
            shared.change(|s| s.close(Some(gone)));
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.fail_all("it was shut down");
    }
}
