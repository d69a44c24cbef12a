//! One recording on its way: which window it hears, and where its search stands.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokkata_audio::Window;
use tokkata_engine::SessionId;
use tokkata_speech::tokens::{Vocabulary, softmax};
use tokkata_speech::transcript::Outcome;
use tokkata_speech::{Ask, Options, Search, Step, Transcript, WINDOW};

use super::hear::{Ear, Encoded, Part};
use super::sound::Ears;
use super::{Heard, Whole, Work};
use crate::error::{Error, Result};

/// A recording in the making.
pub(super) struct Job {
    pub(super) number: usize,
    pub(super) dropped: Arc<AtomicBool>,
    pub(super) over: bool,
    vocabulary: Vocabulary,
    ctx: usize,
    sound: Ears,
    options: Options,
    transcript: Option<Transcript>,
    window: Option<(usize, usize, Encoded)>,
    stage: Stage,
    pending: Vec<Part>,
    gap: f32,
}

/// What its pending rows are for.
enum Stage {
    /// Nothing is pending.
    Idle,
    /// What is to be encoded next is there.
    Next(Next),
    /// The sound could not be read.
    Failed(Error),
    /// The language.
    Language,
    /// How likely it is that nobody speaks.
    Silence { ask: Ask },
    /// The search.
    Search {
        ask: Ask,
        search: Box<Search>,
        no_speech: f32,
    },
    /// The search is over.
    Over {
        ask: Ask,
        search: Box<Search>,
        no_speech: f32,
    },
    /// The language was heard.
    Found {
        code: &'static str,
        probability: f32,
    },
}

/// What is encoded next.
enum Next {
    /// The beginning, for its language.
    Opening { size: usize, window: Window },
    /// A window; its frames, where it is not encoded yet.
    Window { ask: Ask, window: Option<Window> },
    /// Nothing: all was heard.
    End,
}

/// What follows from the logits of what was fed.
pub(super) enum Weighed {
    /// Tokens behind sequences, by their places among those that were fed.
    Further(Vec<(usize, Vec<u32>)>),
    /// No sequence goes on.
    Over,
}

/// Sequences that a transcript may need at once.
pub(super) fn width(options: &Options) -> usize {
    let tries = options.temperatures.iter().any(|&t| t > 0.0);
    let drawn = if tries { options.best_of } else { 1 };
    options.beams.unwrap_or(1).max(drawn).max(1)
}

impl Job {
    pub(super) fn new(
        number: usize,
        work: Work,
        (vocabulary, bands): (Vocabulary, usize),
        ctx: usize,
    ) -> Self {
        let mut job = Job {
            number,
            dropped: work.dropped,
            over: false,
            ctx,
            sound: Ears::new(work.sound, bands),
            options: work.options,
            transcript: None,
            window: None,
            stage: Stage::Idle,
            pending: Vec::new(),
            gap: f32::INFINITY,
            vocabulary,
        };
        if !work.detect || !job.vocabulary.tokens.is_multilingual() {
            job.begin();
        }
        job
    }

    fn begin(&mut self) {
        let frames = self.sound.frames();
        let (vocabulary, options) = (self.vocabulary.clone(), self.options.clone());
        self.transcript = Some(Transcript::new(vocabulary, options, frames, self.ctx));
    }

    /// Sequences that it may need at once.
    pub(super) fn width(&self) -> usize {
        width(&self.options)
    }

    /// What is to be fed next.
    pub(super) fn pending(&self) -> &[Part] {
        &self.pending
    }

    /// Does all that needs no step of the decoder, up to where the next window has to be there.
    pub(super) fn advance(&mut self, ear: &mut Ear, on: &mut dyn FnMut(Heard)) -> Result<()> {
        while self.pending.is_empty() && !self.over {
            match std::mem::replace(&mut self.stage, Stage::Idle) {
                Stage::Idle => return Ok(()),
                Stage::Next(next) => self.encode(next, ear, on)?,
                Stage::Failed(error) => return Err(error),
                Stage::Found { code, probability } => {
                    code.clone_into(&mut self.options.language);
                    on(Heard::Language(code, probability));
                    self.begin();
                }
                Stage::Over {
                    ask,
                    search,
                    no_speech,
                } => self.settle(&ask, *search, no_speech, (ear, on))?,
                waiting => {
                    self.stage = waiting;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether it waits for its next window.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && !self.over && matches!(self.stage, Stage::Idle)
    }

    /// Makes the next window, which needs no device.
    pub(super) fn look(&mut self) {
        self.stage = self.next_window().map_or_else(Stage::Failed, Stage::Next);
    }

    fn next_window(&mut self) -> Result<Next> {
        let Some(transcript) = &mut self.transcript else {
            self.sound.wait_for(WINDOW)?;
            let whole = self.sound.frames() >= WINDOW;
            let window = self.sound.opening(WINDOW)?;
            let size = if whole { WINDOW } else { 0 };
            return Ok(Next::Opening { size, window });
        };
        self.sound.wait_for(transcript.seek() + WINDOW)?;
        transcript.extend(self.sound.frames());
        let Some(ask) = transcript.next_window() else {
            return Ok(Next::End);
        };
        let encoded = self.window.as_ref().map(|w| (w.0, w.1));
        if encoded == Some((ask.seek, ask.size)) {
            return Ok(Next::Window { ask, window: None });
        }
        let mut window = self.sound.window(ask.seek, ask.size)?;
        window.resize(window.len() / ask.size * WINDOW, 0.0);
        let window = Some(window);
        Ok(Next::Window { ask, window })
    }

    /// Encodes the next window, and lets the decoder begin with it.
    fn encode(&mut self, next: Next, ear: &mut Ear, on: &mut dyn FnMut(Heard)) -> Result<()> {
        match next {
            Next::Opening { size, window } => {
                self.hear(ear, (0, size), &window)?;
                let session = self.forked(ear)?;
                self.pending = vec![(session, vec![self.vocabulary.tokens.sot])];
                self.stage = Stage::Language;
            }
            Next::Window { ask, window } => {
                if let Some(window) = window {
                    self.hear(ear, (ask.seek, ask.size), &window)?;
                }
                let session = self.forked(ear)?;
                self.pending = vec![(session, ask.prompt[..=ask.sot].to_vec())];
                self.stage = Stage::Silence { ask };
            }
            Next::End => {
                let transcript = self.transcript.as_ref().expect("it came to its end");
                let whole = Whole {
                    text: transcript.text(),
                    segments: transcript.segments().to_vec(),
                    language: self.options.language.clone(),
                    gap: self.gap,
                };
                self.release(ear);
                self.over = true;
                on(Heard::Done(whole));
            }
        }
        Ok(())
    }

    fn hear(&mut self, ear: &mut Ear, place: (usize, usize), window: &[f32]) -> Result<()> {
        if let Some(old) = self.window.take() {
            ear.close(old.2.session);
        }
        let encoded = ear.encode(window, self.options.words)?;
        self.window = Some((place.0, place.1, encoded));
        Ok(())
    }

    fn forked(&self, ear: &mut Ear) -> Result<SessionId> {
        let window = self.window.as_ref().expect("a window was encoded");
        ear.fork(window.2.session)
    }

    /// Reads the logits after what is pending.
    pub(super) fn weigh(&mut self, logits: &mut [&mut [f32]]) -> Weighed {
        let t = self.vocabulary.tokens;
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Language => {
                let (code, all) = t.detect(logits[0]);
                let probability = all.iter().copied().fold(0.0, f32::max);
                self.stage = Stage::Found { code, probability };
                Weighed::Over
            }
            Stage::Silence { ask } => {
                let no_speech = softmax(logits[0])[t.no_speech as usize];
                let transcript = self.transcript.as_ref().expect("a window was asked for");
                let rules = transcript.rules();
                let search = Search::new(ask.search, rules, ask.prompt.len(), self.ctx);
                let rest = ask.prompt[ask.sot + 1..].to_vec();
                let search = Box::new(search);
                if rest.is_empty() {
                    return self.choose((ask, search, no_speech), logits);
                }
                self.stage = Stage::Search {
                    ask,
                    search,
                    no_speech,
                };
                Weighed::Further(vec![(0, rest)])
            }
            Stage::Search {
                ask,
                search,
                no_speech,
            } => self.choose((ask, search, no_speech), logits),
            other => {
                self.stage = other;
                Weighed::Over
            }
        }
    }

    /// One step of the search: hypotheses go on, are copied or end.
    fn choose(
        &mut self,
        (ask, mut search, no_speech): (Ask, Box<Search>, f32),
        logits: &mut [&mut [f32]],
    ) -> Weighed {
        let alone = logits.len() == 1;
        match search.take(logits) {
            Step::Feed(rows) => {
                let own = |path: usize| if alone { 0 } else { path };
                let rows = rows
                    .into_iter()
                    .map(|(path, token)| (own(path), vec![token]));
                self.stage = Stage::Search {
                    ask,
                    search,
                    no_speech,
                };
                Weighed::Further(rows.collect())
            }
            Step::Done => {
                self.stage = Stage::Over {
                    ask,
                    search,
                    no_speech,
                };
                Weighed::Over
            }
        }
    }

    /// Lets sequences that were fed go on, copies or closes them.
    pub(super) fn go_on(&mut self, weighed: Weighed, ear: &mut Ear) {
        let fed = std::mem::take(&mut self.pending);
        let mut used = vec![false; fed.len()];
        let further = match weighed {
            Weighed::Further(further) => further,
            Weighed::Over => Vec::new(),
        };
        for (place, tokens) in further {
            let session = match std::mem::replace(&mut used[place], true) {
                false => Ok(fed[place].0),
                // What the first child is fed comes later, so that a copy is the parent still.
                true => ear.fork(fed[place].0),
            };
            if let Ok(session) = session {
                self.pending.push((session, tokens));
            }
        }
        for (part, _) in fed.iter().zip(&used).filter(|(_, used)| !**used) {
            ear.close(part.0);
        }
        // A search that has no sequence left ends with what it found.
        self.stage = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Search {
                ask,
                search,
                no_speech,
            } if self.pending.is_empty() => Stage::Over {
                ask,
                search,
                no_speech,
            },
            stage => stage,
        };
    }

    /// Hands what was decoded to the transcript.
    fn settle(
        &mut self,
        ask: &Ask,
        search: Search,
        no_speech: f32,
        (ear, on): (&mut Ear, &mut dyn FnMut(Heard)),
    ) -> Result<()> {
        let decoded = search.finish();
        self.gap = self.gap.min(decoded.gap);
        let (vocabulary, options) = (&self.vocabulary, &self.options);
        let start = vocabulary
            .tokens
            .start(&options.language, options.translate);
        let window = &self.window.as_ref().expect("it was decoded").2;
        let mut failure = None;
        let mut align = |text: &[u32], frames: usize| {
            let of = (vocabulary, options.language.as_str());
            let timed = ear.align(window, of, (&start, text), frames);
            timed.unwrap_or_else(|error| {
                failure = Some(error);
                Vec::new()
            })
        };
        let transcript = self.transcript.as_mut().expect("a window was asked for");
        let outcome = transcript.decoded(ask, &decoded, no_speech, &mut align);
        let done = transcript.seek();
        if let Some(error) = failure {
            return Err(error);
        }
        if let Outcome::Segments(segments) = outcome {
            on(Heard::Segments(segments, done));
        }
        Ok(())
    }

    /// Gives back what it holds of the engine.
    pub(super) fn release(&mut self, ear: &mut Ear) {
        if let Some(window) = self.window.take() {
            ear.close(window.2.session);
        }
        for part in self.pending.drain(..) {
            ear.close(part.0);
        }
    }
}
