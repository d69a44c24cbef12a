//! A model that hears, on a thread of its own: recordings of all callers share its steps.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokkata::audio::Recording;
use tokkata::speech::{Abilities, Heard, Next, Sound, Transcriber, Work};
use tokkata::transcript::Options;

use crate::error::{ApiError, Result};

/// A model that hears, shared.
pub(crate) struct Hearing {
    pub(crate) id: String,
    /// What prepares recordings for it.
    pub(crate) abilities: Abilities,
    /// Hypotheses of one recording at most.
    pub(crate) widest: usize,
    memory_bytes: u64,
    asks: Sender<Ask>,
    thread: JoinHandle<()>,
    busy: Arc<AtomicUsize>,
    most: usize,
}

/// A recording, and who waits for it.
struct Ask {
    work: Work,
    heard: UnboundedSender<Heard>,
}

/// What is heard of a recording, piece by piece. Whoever drops it has left.
pub(crate) struct Listening {
    heard: UnboundedReceiver<Heard>,
    dropped: Arc<AtomicBool>,
    busy: Arc<AtomicUsize>,
}

impl Listening {
    /// What is heard next.
    ///
    /// # Errors
    /// A model that ended before the recording did.
    pub(crate) async fn next(&mut self) -> Result<Heard> {
        let heard = self.heard.recv().await;
        heard.ok_or_else(|| ApiError::unavailable("the model of speech has ended; try again"))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Hearing {
    /// Moves a model to a thread, with so many recordings that may wait.
    pub(crate) fn new(id: String, transcriber: Transcriber, queue: usize) -> Self {
        let seqs = transcriber.model().limits().seqs as usize;
        let (asks, asked) = channel();
        let abilities = transcriber.abilities().clone();
        let memory_bytes = transcriber.model().memory_bytes();
        let thread = std::thread::spawn(move || hear(transcriber, &asked));
        Hearing {
            id,
            abilities,
            widest: seqs.clamp(1, Options::default().best_of),
            memory_bytes,
            asks,
            thread,
            busy: Arc::default(),
            most: queue.saturating_add(seqs),
        }
    }

    /// Bytes that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Ends it when it has heard all, and returns when its memory is free.
    pub(crate) fn close(self) {
        drop(self.asks);
        // A thread that panicked has freed it, too.
        let _ = self.thread.join();
    }

    /// Asks for a transcript. Without a language it is found.
    ///
    /// # Errors
    /// Too many wait; the model has ended.
    pub(crate) fn listen(
        &self,
        recording: Recording,
        options: Options,
        detect: bool,
    ) -> Result<Listening> {
        let busy = self.busy.fetch_add(1, Ordering::AcqRel);
        let (heard, told) = unbounded_channel();
        let dropped = Arc::<AtomicBool>::default();
        let listening = Listening {
            heard: told,
            dropped: Arc::clone(&dropped),
            busy: Arc::clone(&self.busy),
        };
        if busy >= self.most {
            let text = format!("{busy} recordings are waiting; try again later");
            return Err(ApiError::overloaded(text, 5));
        }
        let work = Work {
            sound: Sound::Recording(recording),
            options,
            detect,
            dropped,
        };
        let gone = |_| ApiError::unavailable("the model of speech has ended; load it again");
        self.asks.send(Ask { work, heard }).map_err(gone)?;
        Ok(listening)
    }
}

/// Hears what is asked for until nobody can ask any more.
fn hear(mut transcriber: Transcriber, asks: &Receiver<Ask>) {
    loop {
        let waiting: RefCell<HashMap<usize, UnboundedSender<Heard>>> = RefCell::default();
        let mut count = 0;
        let mut next = |busy: usize| {
            let ask = match busy {
                0 => asks.recv().map_err(|_| TryRecvError::Disconnected),
                _ => asks.try_recv(),
            };
            match ask {
                Ok(ask) => {
                    waiting.borrow_mut().insert(count, ask.heard);
                    count += 1;
                    Next::Work(Box::new(ask.work))
                }
                Err(TryRecvError::Empty) => Next::Later,
                Err(TryRecvError::Disconnected) => Next::Over,
            }
        };
        let mut on = |number: usize, heard: Heard| {
            let last = matches!(heard, Heard::Done(_) | Heard::Failed(_));
            let mut waiting = waiting.borrow_mut();
            if let Some(caller) = waiting.get(&number) {
                // Whoever has left hears nothing.
                let _ = caller.send(heard);
            }
            if last {
                waiting.remove(&number);
            }
            waiting.retain(|_, caller| !caller.is_closed());
            true
        };
        match transcriber.transcribe(&mut next, &mut on) {
            Ok(()) => return,
            Err(error) => {
                tracing::error!(target: "tokkata::models", %error, "recordings under way have failed");
            }
        }
    }
}
