//! One recording on its way: which window it hears, and where its search stands.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokkata_engine::SessionId;
use tokkata_speech::tokens::{Vocabulary, softmax};
use tokkata_speech::transcript::Outcome;
use tokkata_speech::{Ask, Options, Search, Step, Transcript, WINDOW};

use super::hear::{Ear, Encoded, Part};
use super::sound::Ears;
use super::{Heard, Whole, Work};
use crate::error::Result;

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

    /// Does all that needs no step of the decoder.
    pub(super) fn advance(&mut self, ear: &mut Ear, on: &mut dyn FnMut(Heard)) -> Result<()> {
        while self.pending.is_empty() && !self.over {
            match std::mem::replace(&mut self.stage, Stage::Idle) {
                Stage::Idle => self.next_window(ear, on)?,
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

    fn next_window(&mut self, ear: &mut Ear, on: &mut dyn FnMut(Heard)) -> Result<()> {
        let Some(transcript) = &mut self.transcript else {
            self.sound.wait_for(WINDOW)?;
            let whole = self.sound.frames() >= WINDOW;
            let window = self.sound.opening(WINDOW)?;
            self.hear(ear, (0, if whole { WINDOW } else { 0 }), &window)?;
            let session = self.forked(ear)?;
            self.pending = vec![(session, vec![self.vocabulary.tokens.sot])];
            self.stage = Stage::Language;
            return Ok(());
        };
        self.sound.wait_for(transcript.seek() + WINDOW)?;
        transcript.extend(self.sound.frames());
        let Some(ask) = transcript.next_window() else {
            let whole = Whole {
                text: transcript.text(),
                segments: transcript.segments().to_vec(),
                language: self.options.language.clone(),
                gap: self.gap,
            };
            self.release(ear);
            self.over = true;
            on(Heard::Done(whole));
            return Ok(());
        };
        let place = (ask.seek, ask.size);
        if self.window.as_ref().is_none_or(|w| (w.0, w.1) != place) {
            let mut window = self.sound.window(ask.seek, ask.size)?;
            window.resize(window.len() / ask.size * WINDOW, 0.0);
            self.hear(ear, place, &window)?;
        }
        let session = self.forked(ear)?;
        self.pending = vec![(session, ask.prompt[..=ask.sot].to_vec())];
        self.stage = Stage::Silence { ask };
        Ok(())
    }

    fn hear(&mut self, ear: &mut Ear, place: (usize, usize), window: &[f32]) -> Result<()> {
        if let Some(old) = self.window.take() {
            ear.close(old.2.session);
        }
        self.window = Some((place.0, place.1, ear.encode(window)?));
        Ok(())
    }

    fn forked(&self, ear: &mut Ear) -> Result<SessionId> {
        let window = self.window.as_ref().expect("a window was encoded");
        ear.fork(window.2.session)
    }

    /// Takes the logits after what was pending.
    pub(super) fn take(&mut self, mut logits: Vec<Vec<f32>>, ear: &mut Ear) {
        let fed = std::mem::take(&mut self.pending);
        let t = self.vocabulary.tokens;
        self.stage = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Language => {
                ear.close(fed[0].0);
                let (code, all) = t.detect(&logits[0]);
                let probability = all.iter().copied().fold(0.0, f32::max);
                Stage::Found { code, probability }
            }
            Stage::Silence { ask } => {
                let no_speech = softmax(&logits[0])[t.no_speech as usize];
                let transcript = self.transcript.as_ref().expect("a window was asked for");
                let rules = transcript.rules();
                let search = Search::new(ask.search, rules, ask.prompt.len(), self.ctx);
                let rest = ask.prompt[ask.sot + 1..].to_vec();
                let search = Box::new(search);
                if rest.is_empty() {
                    self.step((ask, search, no_speech), &fed, &mut logits, ear)
                } else {
                    self.pending = vec![(fed[0].0, rest)];
                    Stage::Search {
                        ask,
                        search,
                        no_speech,
                    }
                }
            }
            Stage::Search {
                ask,
                search,
                no_speech,
            } => self.step((ask, search, no_speech), &fed, &mut logits, ear),
            other => other,
        };
    }

    /// One step of the search: hypotheses go on, are copied or end.
    fn step(
        &mut self,
        (ask, mut search, no_speech): (Ask, Box<Search>, f32),
        fed: &[Part],
        logits: &mut [Vec<f32>],
        ear: &mut Ear,
    ) -> Stage {
        let own = |path: usize| if fed.len() == 1 { 0 } else { path };
        let step = search.take(logits);
        let mut used = vec![false; fed.len()];
        if let Step::Feed(rows) = step {
            for (path, token) in rows {
                let place = own(path);
                let session = match std::mem::replace(&mut used[place], true) {
                    false => Ok(fed[place].0),
                    // What the first child is fed comes later, so that a copy is the parent still.
                    true => ear.fork(fed[place].0),
                };
                if let Ok(session) = session {
                    self.pending.push((session, vec![token]));
                }
            }
        }
        for (part, _) in fed.iter().zip(&used).filter(|(_, used)| !**used) {
            ear.close(part.0);
        }
        if self.pending.is_empty() {
            return Stage::Over {
                ask,
                search,
                no_speech,
            };
        }
        Stage::Search {
            ask,
            search,
            no_speech,
        }
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
