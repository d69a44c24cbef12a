//! A model that hears, shared by many callers.
//!
//! [`Transcriber::serve`] moves it to a thread of its own. Whoever asks measures its recording on its own thread; windows of
//! all recordings under way share steps.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use tokkata_audio::{Mix, Recording, Source};
use tokkata_engine::EngineError;
use tokkata_speech::{Options, Segment};

use super::job::width;
use super::{Abilities, Heard, Next, Sound, Transcriber, Whole, Work};
use crate::error::{Error, Result};

/// A model that hears, whose engine runs on a thread of its own. Dropping it ends what is under way.
pub struct Listener {
    asks: Option<Sender<Asked>>,
    thread: Option<JoinHandle<()>>,
    closing: Arc<AtomicBool>,
    abilities: Abilities,
    memory_bytes: u64,
    /// Hypotheses of a step.
    seqs: usize,
}

/// A recording on its way to the thread.
struct Asked {
    work: Work,
    line: Line,
}

/// What was heard and nobody has taken yet.
struct Shared {
    queue: Mutex<Queue>,
    dropped: Arc<AtomicBool>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Heard>,
    /// All segments so far, for one that is cancelled.
    segments: Vec<Segment>,
    language: String,
    over: bool,
    waker: Option<Waker>,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, heard: Heard) {
        Self::add(self.queue(), heard);
    }

    fn add(mut queue: MutexGuard<'_, Queue>, heard: Heard) {
        if queue.over {
            return;
        }
        match &heard {
            Heard::Language(code, _) => (*code).clone_into(&mut queue.language),
            Heard::Segments(segments, _) => queue.segments.extend_from_slice(segments),
            Heard::Done(_) | Heard::Failed(_) => queue.over = true,
        }
        queue.events.push_back(heard);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends it here and now, with what was heard so far.
    fn cancel(&self) {
        let queue = self.queue();
        self.dropped.store(true, Ordering::Relaxed);
        let text: String = queue.segments.iter().map(|s| s.text.as_str()).collect();
        let whole = Whole {
            text: text.trim().to_owned(),
            segments: queue.segments.clone(),
            language: queue.language.clone(),
            gap: 0.0,
        };
        Self::add(queue, Heard::Done(whole));
    }
}

/// The thread's end of a transcript. One that is let go of before its end has failed.
struct Line(Arc<Shared>);

impl Drop for Line {
    fn drop(&mut self) {
        let gone = EngineError::Gone("it was closed, or its device failed".to_owned());
        self.0.tell(Heard::Failed(gone.into()));
    }
}

/// A transcript on its way. Dropping it ends it.
pub struct Hearing {
    shared: Arc<Shared>,
    seconds: f64,
}

/// Ends a transcript from any thread.
#[derive(Clone)]
pub struct Hush(Arc<Shared>);

impl Hush {
    /// Ends it; what was heard so far comes as [`Heard::Done`].
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

impl Hearing {
    /// What comes next, or the promise to wake the task when it comes; `None` after [`Heard::Done`] or [`Heard::Failed`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        let mut queue = self.shared.queue();
        match queue.events.pop_front() {
            Some(heard) => Poll::Ready(Some(heard)),
            None if queue.over => Poll::Ready(None),
            None => {
                queue.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// What ends it from any thread.
    #[must_use]
    pub fn canceller(&self) -> Hush {
        Hush(Arc::clone(&self.shared))
    }

    /// Length of the recording, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.shared.dropped.store(true, Ordering::Relaxed);
    }
}

impl Transcriber {
    /// Moves it to a thread of its own, for many callers.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn serve(self) -> Result<Listener> {
        let (asks, queue) = channel();
        let closing = Arc::new(AtomicBool::new(false));
        let (abilities, seqs) = (self.abilities().clone(), self.seqs);
        let memory_bytes = self.model().memory_bytes();
        let told = Arc::clone(&closing);
        let thread = std::thread::Builder::new().name("listener".to_owned());
        let thread = thread.spawn(move || {
            // A panic is a bug of ours: those who wait hear that it is gone, and the process goes on.
            let _ = catch_unwind(AssertUnwindSafe(|| attend(self, &queue, &told)));
        });
        Ok(Listener {
            asks: Some(asks),
            thread: Some(thread.map_err(|source| Error::Thread { source })?),
            closing,
            abilities,
            memory_bytes,
            seqs,
        })
    }
}

/// Hears what is asked for until the listener is dropped. What is under way when the device fails ends with it.
fn attend(mut transcriber: Transcriber, queue: &Receiver<Asked>, closing: &AtomicBool) {
    let lines: RefCell<Vec<Option<Line>>> = RefCell::default();
    let mut next = |heard: usize| {
        let asked = match heard {
            0 => queue.recv().map_err(|_| Next::Over),
            _ => queue.try_recv().map_err(|_| Next::Later),
        };
        match asked {
            Ok(asked) => {
                let mut lines = lines.borrow_mut();
                // Of those that nobody waits for, nothing more is told.
                for line in lines.iter_mut() {
                    line.take_if(|line| line.0.dropped.load(Ordering::Relaxed));
                }
                lines.push(Some(asked.line));
                Next::Work(Box::new(asked.work))
            }
            Err(none) => none,
        }
    };
    let mut on = |number: usize, heard: Heard| {
        let last = matches!(heard, Heard::Done(_) | Heard::Failed(_));
        let mut lines = lines.borrow_mut();
        if let Some(line) = &lines[number] {
            line.0.tell(heard);
        }
        if last {
            lines[number] = None;
        }
        !closing.load(Ordering::Relaxed)
    };
    // What a device's failure ends is told as the lines fall.
    while transcriber.transcribe(&mut next, &mut on).is_err() {
        lines.borrow_mut().clear();
    }
}

impl Listener {
    /// What the model knows.
    #[must_use]
    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Bytes that the model takes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Hypotheses of a step, at most.
    #[must_use]
    pub fn widest(&self) -> usize {
        self.seqs
    }

    /// Asks for a transcript. The source is read once by the caller, and again window by window.
    ///
    /// # Errors
    /// The source's; as [`Listener::listen`].
    pub fn hear(
        &self,
        source: Source,
        mix: Mix,
        options: Options,
        detect: bool,
    ) -> Result<Hearing> {
        self.check(&options)?;
        self.listen(self.abilities.record(source, mix)?, options, detect)
    }

    fn check(&self, options: &Options) -> Result<()> {
        let file = || self.abilities.file.clone();
        if options.translate && !self.abilities.tokens().is_multilingual() {
            return Err(Error::EnglishOnly { file: file() });
        }
        let (found, most) = (width(options), self.seqs);
        if found > most {
            let file = file();
            return Err(Error::TooWide { file, found, most });
        }
        Ok(())
    }

    /// Asks for a transcript of a recording that was measured for this model.
    ///
    /// # Errors
    /// More beams or draws at once than the model has sequences; a translation by a model that knows English alone.
    pub fn listen(&self, recording: Recording, options: Options, detect: bool) -> Result<Hearing> {
        self.check(&options)?;
        let seconds = recording.seconds();
        let dropped = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                language: options.language.clone(),
                ..Queue::default()
            }),
            dropped: Arc::clone(&dropped),
        });
        let work = Work {
            sound: Sound::Recording(recording),
            options,
            detect,
            dropped,
        };
        let asked = Asked {
            work,
            line: Line(Arc::clone(&shared)),
        };
        // Where the thread is gone, the line falls with the message, and says so.
        if let Some(asks) = &self.asks {
            let _ = asks.send(asked);
        }
        Ok(Hearing { shared, seconds })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
