//! Speech to text: recordings through a model that hears.
//!
//! A [`Transcriber`] owns a loaded model. It hears the windows of many recordings side by side: each step of its decoder
//! has the rows of every hypothesis of every recording. Beams and repeated tries share what the encoder wrote of a window.
//! What is asked and what counts is decided by [`tokkata_speech`]; this module moves tokens, caches and logits.

mod heads;
mod hear;
mod job;
mod listener;
mod sound;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokkata_audio::{Bands, Mix, Recording, Source};
use tokkata_core::DType;
use tokkata_ir::PlanRole;
use tokkata_speech::tokens::Vocabulary;
use tokkata_speech::{Options, Segment, Tokens};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::OpenOptions;
use crate::weights::Progress;

pub use listener::{Hearing, Hush, Listener};
pub use sound::Sound;

use hear::Ear;
use job::{Job, Weighed};

/// A recording to be transcribed.
pub struct Work {
    /// What is heard.
    pub sound: Sound,
    /// What is asked.
    pub options: Options,
    /// Whether the language is to be found; the options' is the one where the model knows only that.
    pub detect: bool,
    /// Becomes true when nobody waits for it any more: it is dropped then, and nothing more is told of it.
    pub dropped: Arc<AtomicBool>,
}

/// Hypotheses of a window in usual searches: five beams, or the best of five.
pub const HYPOTHESES: u32 = 5;

/// What a [`Transcriber`] has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Windows that are heard at once.
    pub windows: u32,
    /// Hypotheses of each.
    pub hypotheses: u32,
    /// Whether the attention that words are timed by can be read.
    pub words: bool,
}

/// What a [`Transcriber`] is given when it has room for another recording.
pub enum Next {
    /// A recording.
    Work(Box<Work>),
    /// None now, though one may come while others are heard.
    Later,
    /// None any more.
    Over,
}

impl From<Option<Work>> for Next {
    fn from(work: Option<Work>) -> Self {
        work.map_or(Next::Over, |work| Next::Work(Box::new(work)))
    }
}

/// What happened to a recording.
#[derive(Debug)]
pub enum Heard {
    /// Its language, by code, and how likely.
    Language(&'static str, f32),
    /// New segments, and how many of its frames are done.
    Segments(Vec<Segment>, usize),
    /// All of it is done.
    Done(Whole),
    /// It cannot be transcribed; others go on.
    Failed(Error),
}

/// A finished transcript.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    /// The text.
    pub text: String,
    /// Its segments.
    pub segments: Vec<Segment>,
    /// Code of the language.
    pub language: String,
    /// The smallest lead of a chosen token over the next, of greedy searches.
    pub gap: f32,
}

/// A loaded model that hears.
pub struct Transcriber {
    ear: Ear,
    abilities: Abilities,
    seqs: usize,
    /// Room for the logits of a step.
    logits: Vec<f32>,
}

/// What a model that hears knows, for whoever prepares recordings elsewhere while it is busy.
#[derive(Clone)]
pub struct Abilities {
    vocabulary: Vocabulary,
    bands: usize,
    file: String,
}

/// Layers and heads of a decoder whose attention follows the sound, where the file names them.
fn named_heads(checkpoint: &Checkpoint) -> Option<Vec<(u32, u32)>> {
    let directory = checkpoint.file().directory()?;
    let config = directory.read_json("generation_config.json").ok()??;
    let pairs = config.get("alignment_heads")?.as_array()?;
    let pair =
        |p: &serde_json::Value| Some((p.get(0)?.as_u64()? as u32, p.get(1)?.as_u64()? as u32));
    pairs.iter().map(pair).collect()
}

impl Transcriber {
    /// Loads a model with room for so much. Sequences and context of the options are not looked at.
    ///
    /// # Errors
    /// As [`Model::load`]; a model that does not hear.
    pub fn load(
        checkpoint: Checkpoint,
        options: &OpenOptions,
        room: Room,
        progress: Option<Progress<'_>>,
    ) -> Result<Self> {
        let file = checkpoint.path().display().to_string();
        let no_speech = || Error::NoSpeech { file: file.clone() };
        let spec = checkpoint.spec(1)?;
        let frames = spec.encoder.as_ref().and_then(|e| e.frames.as_ref());
        let frames = frames.ok_or_else(no_speech)?;
        let bands = frames.channels as usize;
        let layers = spec.main.layers.len() as u32;
        let n_heads = heads_of(&checkpoint);
        let name = checkpoint.path().file_name().unwrap_or_default();
        let published = || heads::published(&name.to_string_lossy(), (layers, n_heads));
        let heads = named_heads(&checkpoint)
            .or_else(published)
            .unwrap_or_else(|| {
                let last = layers / 2..layers;
                last.flat_map(|l| (0..n_heads).map(move |h| (l, h)))
                    .collect()
            });
        let tokens = Tokens::of_vocab(spec.n_vocab).ok_or_else(|| Error::SpeechVocabulary {
            file: file.clone(),
            found: spec.n_vocab,
        })?;
        let seqs = room.windows * room.hypotheses;
        let positions = u64::from(frames.rows) * u64::from(room.windows + 1);
        let tokens_held = u64::from(spec.n_ctx_train) * u64::from(seqs + 1);
        let per_position = 2 * u64::from(layers) * u64::from(spec.n_embd) * kv_bytes(options.kv);
        // A quarter more for blocks that are not full.
        let held = (positions + tokens_held) * per_position / 4 * 5 + (16 << 20);
        let mut aligned: Vec<u32> = heads.iter().map(|h| h.0).collect();
        aligned.sort_unstable();
        aligned.dedup();
        let options = OpenOptions {
            seqs,
            logit_rows: seqs,
            ctx: checkpoint.trained_ctx().and_then(NonZeroU32::new),
            aligned: if room.words { aligned } else { Vec::new() },
            no_prefix_cache: true,
            kv_memory: options.kv_memory.or(Some(held)),
            ..options.clone()
        };
        let vocabulary = Vocabulary::new(Arc::clone(checkpoint.tokenizer()?), tokens);
        let model = Model::load(checkpoint, &options, progress)?;
        let seqs = model.limits().seqs as usize;
        let heads = if room.words { heads } else { Vec::new() };
        let ear = Ear::new(model, heads, n_heads)?;
        Ok(Transcriber {
            ear,
            abilities: Abilities {
                vocabulary,
                bands,
                file,
            },
            seqs,
            logits: Vec::new(),
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        self.ear.model()
    }

    /// What it knows.
    #[must_use]
    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Transcribes recordings side by side, as many at once as the model has places for; `next` gives them, and is
    /// told how many are being heard: with none it may wait. `on` hears what happens to each by its number, and says
    /// whether to go on.
    ///
    /// # Errors
    /// The device's, which end everything. A recording that fails is told to `on`.
    pub fn transcribe(
        &mut self,
        next: &mut dyn FnMut(usize) -> Next,
        on: &mut dyn FnMut(usize, Heard) -> bool,
    ) -> Result<()> {
        let mut jobs: VecDeque<Job> = VecDeque::new();
        let (mut count, mut more) = (0, true);
        let ctx = self.ear.ctx();
        loop {
            let mut width: usize = jobs.iter().map(Job::width).sum();
            while more && width < self.seqs {
                let work = match next(jobs.len()) {
                    Next::Work(work) => work,
                    Next::Later => break,
                    Next::Over => {
                        more = false;
                        break;
                    }
                };
                let able = (self.abilities.vocabulary.clone(), self.abilities.bands);
                let job = Job::new(count, *work, able, ctx);
                count += 1;
                width += job.width();
                jobs.push_back(job);
                if width + jobs.back().map_or(0, Job::width) > self.seqs {
                    break;
                }
            }
            if jobs.is_empty() {
                if more {
                    continue;
                }
                return Ok(());
            }
            if !self.round(&mut jobs, on)? {
                jobs.iter_mut().for_each(|job| job.release(&mut self.ear));
                return Ok(());
            }
        }
    }

    /// Everything that can be done in one step.
    fn round(
        &mut self,
        jobs: &mut VecDeque<Job>,
        on: &mut dyn FnMut(usize, Heard) -> bool,
    ) -> Result<bool> {
        let mut going = true;
        self.advance(jobs, &mut |number, heard| going &= on(number, heard));
        let mut idle: Vec<&mut Job> = jobs.iter_mut().filter(|job| job.is_idle()).collect();
        side_by_side(&mut idle, 1, |job| job.look());
        self.advance(jobs, &mut |number, heard| going &= on(number, heard));
        jobs.retain(|job| !job.over);
        let mut fed = Vec::new();
        let mut rows = self.ear.rows();
        let mut seqs = self.seqs;
        for (i, job) in jobs.iter().enumerate() {
            let pending = job.pending();
            let own: usize = pending.iter().map(|p| p.1.len()).sum();
            if own <= rows && pending.len() <= seqs && !pending.is_empty() {
                rows -= own;
                seqs -= pending.len();
                fed.push(i);
            }
        }
        let parts: Vec<_> = fed
            .iter()
            .flat_map(|&i| jobs[i].pending())
            .cloned()
            .collect();
        let mut logits = std::mem::take(&mut self.logits);
        let width = self.ear.feed(&parts, &mut logits)?;
        let mut rows = logits.chunks_exact_mut(width);
        let all = jobs.iter_mut().enumerate();
        let mut fed: Vec<Turn<'_>> = all
            .filter(|(i, _)| fed.contains(i))
            .map(|(_, job)| Turn {
                logits: rows.by_ref().take(job.pending().len()).collect(),
                job,
                weighed: Weighed::Over,
            })
            .collect();
        // A thread is worth its beginning where it has several rows of a vocabulary to read.
        side_by_side(&mut fed, 4, |turn| {
            turn.weighed = turn.job.weigh(&mut turn.logits);
        });
        for turn in fed {
            turn.job.go_on(turn.weighed, &mut self.ear);
        }
        self.logits = logits;
        Ok(going)
    }

    /// Lets all jobs advance; those that fail or that nobody waits for are over.
    fn advance(&mut self, jobs: &mut VecDeque<Job>, on: &mut dyn FnMut(usize, Heard)) {
        for job in jobs.iter_mut().filter(|job| !job.over) {
            let number = job.number;
            if job.dropped.load(Ordering::Relaxed) {
                job.release(&mut self.ear);
                job.over = true;
                continue;
            }
            let outcome = job.advance(&mut self.ear, &mut |heard| on(number, heard));
            if let Err(error) = outcome {
                job.release(&mut self.ear);
                job.over = true;
                on(number, Heard::Failed(error));
            }
        }
    }
}

/// A job, the logits of what it fed, and what follows from them.
struct Turn<'a> {
    job: &'a mut Job,
    logits: Vec<&'a mut [f32]>,
    weighed: Weighed,
}

/// Does something with all of several, at least `least` on each of some threads.
fn side_by_side<T: Send>(all: &mut [T], least: usize, each: impl Fn(&mut T) + Sync) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = all.len().div_ceil(cores).max(least);
    let each = &each;
    std::thread::scope(|scope| {
        let mut parts = all.chunks_mut(share);
        let own = parts.next();
        for part in parts {
            scope.spawn(move || part.iter_mut().for_each(each));
        }
        own.into_iter().flatten().for_each(each);
    });
}

impl Abilities {
    /// Bands of the features that it reads.
    #[must_use]
    pub fn bands(&self) -> usize {
        self.bands
    }

    /// Its tokens.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.vocabulary.tokens
    }

    /// Hears a source once, as [`Work`] needs it.
    ///
    /// # Errors
    /// The source's.
    pub fn record(&self, source: Source, mix: Mix) -> Result<Recording> {
        Ok(Recording::measure(source, mix, Bands::slaney(self.bands))?)
    }

    /// Checks a language, given as a code or a name.
    ///
    /// # Errors
    /// One that the model does not know.
    pub fn language(&self, word: &str) -> Result<&'static str> {
        let tokens = &self.vocabulary.tokens;
        let known = |code: &&str| tokens.of_language(code).is_some();
        let code = tokkata_speech::language::code(word).filter(known);
        let fits = |code: &&str| tokens.is_multilingual() || *code == "en";
        code.filter(fits).ok_or_else(|| {
            let all = &tokkata_speech::language::ALL[..tokens.languages as usize];
            let all = match tokens.is_multilingual() {
                true => all.iter().map(|l| l.0).collect::<Vec<_>>().join(" "),
                false => "en".to_owned(),
            };
            Error::Language {
                file: self.file.clone(),
                found: word.to_owned(),
                known: all,
            }
        })
    }
}

/// Bytes of a cached value, at most.
fn kv_bytes(kv: DType) -> u64 {
    if kv == DType::F32 { 4 } else { 2 }
}

/// Heads of a decoder's attention.
fn heads_of(checkpoint: &Checkpoint) -> u32 {
    let metadata = checkpoint.metadata();
    let arch = metadata.str("general.architecture").unwrap_or_default();
    let heads = metadata.uint(&format!("{arch}.attention.head_count"));
    heads.map_or(1, |n| n as u32)
}

/// Whether a file's model hears.
#[must_use]
pub fn hears(checkpoint: &Checkpoint) -> bool {
    let spec = checkpoint.spec(1);
    spec.is_ok_and(|s| s.encoder.is_some_and(|e| e.frames.is_some()))
}

/// Whether a loaded program hears.
#[must_use]
pub(crate) fn program_hears(program: &tokkata_ir::Program) -> bool {
    let encoder = program.plan(PlanRole::Encoder);
    encoder.is_some_and(|(_, plan)| plan.input("frames").is_some())
}
