//! Transcripts: what is asked, and its events.

use std::collections::VecDeque;
use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

use tokkata::audio::{Mix, Source as Sound};
use tokkata::speech::{Heard, Hearing, Hush};
use tokkata::transcript::{Options, Segment, Word};
use tokkata_requests::reply::wait_for;

use crate::border::{guard, list, maybe_text, options, place, text};
use crate::model::{Loaded, model};
use crate::request::{FINISHED, Source, ask};
use crate::status::{Error, OK};
use crate::types::{tokkata_model, tokkata_request, tokkata_transcribe_options};

const SEGMENT: i32 = 6;
const LANGUAGE: i32 = 7;

/// `TOKKATA_FINISH_STOP` and `TOKKATA_FINISH_CANCELLED`.
const ENDED: i32 = 0;
const CANCELLED: i32 = 4;

/// A transcript on its way.
pub(crate) struct Speech {
    hearing: Hearing,
    ready: VecDeque<Part>,
    over: bool,
}

/// What one event tells.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) kind: i32,
    pub(crate) text: String,
    pub(crate) words: Vec<Word>,
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) logprob: f32,
    pub(crate) no_speech: f32,
    pub(crate) finish: i32,
}

impl From<Segment> for Part {
    fn from(segment: Segment) -> Self {
        Part {
            kind: SEGMENT,
            text: segment.text,
            words: segment.words,
            start: segment.start,
            end: segment.end,
            logprob: segment.avg_logprob,
            no_speech: segment.no_speech,
            finish: 0,
        }
    }
}

impl Speech {
    pub(crate) fn canceller(&self) -> Hush {
        self.hearing.canceller()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over && self.ready.is_empty()
    }

    /// What comes next; nothing at the end, or when the patience is at its end.
    pub(crate) fn next(&mut self, patience: Option<Duration>) -> Result<Option<Part>, Error> {
        while self.ready.is_empty() && !self.over {
            let Some(heard) = wait_for(patience, |cx| self.hearing.poll_next(cx)) else {
                return Ok(None);
            };
            match heard {
                None => self.over = true,
                Some(Heard::Language(code, probability)) => self.ready.push_back(Part {
                    kind: LANGUAGE,
                    text: code.to_owned(),
                    logprob: probability.ln(),
                    ..Part::default()
                }),
                Some(Heard::Segments(segments, _)) => {
                    self.ready.extend(segments.into_iter().map(Part::from));
                }
                Some(Heard::Done(whole)) => {
                    let cancelled = self.canceller().is_cancelled();
                    self.ready.push_back(Part {
                        kind: FINISHED,
                        text: whole.text,
                        finish: if cancelled { CANCELLED } else { ENDED },
                        ..Part::default()
                    });
                }
                Some(Heard::Failed(error)) => {
                    self.over = true;
                    return Err(error.into());
                }
            }
        }
        Ok(self.ready.pop_front())
    }
}

/// Asks for a transcript.
///
/// # Safety
/// Pointers of the options are as the header says.
unsafe fn start(
    model: Arc<Loaded>,
    sound: Sound,
    given: &tokkata_transcribe_options,
) -> Result<*mut tokkata_request, Error> {
    let listener = model.listener()?;
    // SAFETY: the caller's promise.
    let (language, prompt, clips) = unsafe {
        (
            maybe_text(given.language, given.language_len, "language")?,
            maybe_text(given.prompt, given.prompt_len, "prompt")?,
            list(given.clips, given.n_clips, "clips")?,
        )
    };
    let known = language
        .as_deref()
        .map(|word| listener.abilities().language(word));
    let language = known.transpose()?;
    let mix = usize::try_from(given.channel).map_or(Mix::Mean, Mix::Channel);
    let asked = Options {
        language: language.unwrap_or("en").to_owned(),
        translate: given.translate != 0,
        temperatures: temperatures(given.temperature, given.temperature_step)?,
        best_of: given.best_of.max(1) as usize,
        beams: (given.beams > 1).then_some(given.beams as usize),
        carry: given.no_context == 0,
        prompt,
        no_timestamps: given.no_timestamps != 0,
        clips: clips.to_vec(),
        words: given.words != 0,
        seed: given.seed,
        ..Options::default()
    };
    let hearing = listener.hear(sound, mix, asked, language.is_none())?;
    let speech = Speech {
        hearing,
        ready: VecDeque::new(),
        over: false,
    };
    Ok(ask(model, Source::Speech(Box::new(speech))))
}

/// A first temperature and those of further tries.
fn temperatures(first: f32, step: f32) -> Result<Vec<f32>, Error> {
    let fits = |t: f32| (0.0..=1.0).contains(&t);
    if !fits(first) || !fits(step) {
        return Err(Error::argument(format!(
            "temperature: found {first} and steps of {step}, expected 0 to 1"
        )));
    }
    let more = (1..).map(|i| first + step * i as f32);
    let more = more.take_while(|&t| step > 0.0 && t <= 1.0 + 1e-6);
    Ok(std::iter::once(first).chain(more).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_transcribe(
    model: *const tokkata_model,
    path: *const c_char,
    path_len: usize,
    options: *const tokkata_transcribe_options,
    out: *mut *mut tokkata_request,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let (path, out) = (text(path, path_len, "path")?, place(out, "out")?);
        let given = self::options(options, "options")?;
        out.write(start(model, Sound::file(path), &given)?);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_transcribe_pcm(
    model: *const tokkata_model,
    samples: *const f32,
    n: usize,
    rate: u32,
    options: *const tokkata_transcribe_options,
    out: *mut *mut tokkata_request,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let (samples, out) = (list(samples, n, "samples")?, place(out, "out")?);
        let given = self::options(options, "options")?;
        let sound = Sound::samples_at("samples", samples, rate).map_err(tokkata::Error::from)?;
        out.write(start(model, sound, &given)?);
        Ok(OK)
    })
}
