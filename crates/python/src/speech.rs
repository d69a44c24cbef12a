//! Speech to text.

use std::path::PathBuf;
use std::sync::Mutex;
use std::task::{Context, Poll};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokkata::audio::{Mix, Source};
use tokkata::speech::{Heard, Hearing, Hush, Listener};
use tokkata::transcript::{Options, Segment};
use tokkata_requests::reply::wait_for;

use crate::answer::{PATIENCE, alone, check_process};
use crate::failure::facade;
use crate::notify::waker;

/// What is asked of a recording.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Hear {
    language: Option<String>,
    translate: bool,
    prompt: Option<String>,
    beams: usize,
    best_of: usize,
    temperatures: Vec<f32>,
    words: bool,
    timestamps: bool,
    context: bool,
    channel: Option<usize>,
    clips: Vec<f64>,
    seed: u64,
}

/// What is heard: a file, the bytes of one, or samples of one channel, `rate` of them per second.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Sound {
    path: Option<PathBuf>,
    data: Option<Vec<u8>>,
    samples: Option<PyBuffer<f32>>,
    rate: u32,
}

/// A word: text, start, end, probability.
type Word = (String, f64, f64, f64);
/// A segment: text, start, end, tokens, words, mean log-probability, no speech, temperature.
type Part = (String, f64, f64, Vec<u32>, Vec<Word>, f32, f32, f32);
/// What comes next: a language and its probability, segments, or the whole text.
type Item = (Option<(&'static str, f32)>, Vec<Part>, Option<String>);

fn part(segment: Segment) -> Part {
    let words = segment.words.into_iter();
    (
        segment.text,
        segment.start,
        segment.end,
        segment.tokens,
        words
            .map(|w| (w.word, w.start, w.end, w.probability))
            .collect(),
        segment.avg_logprob,
        segment.no_speech,
        segment.temperature,
    )
}

/// A transcript on its way. Each item is (language and its probability or None, segments, the whole text or None).
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Transcript {
    hearing: Mutex<Hearing>,
    hush: Hush,
    /// Length of the recording, in seconds.
    #[pyo3(get)]
    seconds: f64,
    process: u32,
}

/// Asks for a transcript of a file, of a file's bytes, or of samples at a rate.
pub(crate) fn start(
    py: Python<'_>,
    listener: &Listener,
    sound: Sound,
    asked: Hear,
) -> PyResult<Transcript> {
    let source = match (sound.path, sound.data, sound.samples) {
        (Some(path), ..) => Source::file(path),
        (_, Some(bytes), _) => Source::bytes("audio", bytes),
        (.., Some(samples)) => {
            let samples = samples.to_vec(py)?;
            py.detach(|| Source::samples_at("audio", &samples, sound.rate))
                .map_err(|e| PyValueError::new_err(e.to_string()))?
        }
        _ => return Err(PyValueError::new_err("audio: found none")),
    };
    let language = asked.language.as_deref();
    let language = language
        .map(|word| listener.abilities().language(word))
        .transpose();
    let language = language.map_err(facade)?;
    let options = Options {
        language: language.unwrap_or("en").to_owned(),
        translate: asked.translate,
        temperatures: asked.temperatures,
        best_of: asked.best_of.max(1),
        beams: Some(asked.beams).filter(|&n| n > 1),
        carry: asked.context,
        prompt: asked.prompt,
        no_timestamps: !asked.timestamps,
        clips: asked.clips,
        words: asked.words,
        seed: asked.seed,
        ..Options::default()
    };
    let mix = asked.channel.map_or(Mix::Mean, Mix::Channel);
    let heard = py.detach(|| listener.hear(source, mix, options, language.is_none()));
    let hearing = heard.map_err(facade)?;
    Ok(Transcript {
        hush: hearing.canceller(),
        seconds: hearing.seconds(),
        hearing: Mutex::new(hearing),
        process: std::process::id(),
    })
}

fn item(heard: Heard) -> PyResult<Item> {
    match heard {
        Heard::Language(code, probability) => Ok((Some((code, probability)), Vec::new(), None)),
        Heard::Segments(segments, _) => Ok((None, segments.into_iter().map(part).collect(), None)),
        Heard::Done(whole) => Ok((None, Vec::new(), Some(whole.text))),
        Heard::Failed(error) => Err(facade(error)),
    }
}

#[pymethods]
impl Transcript {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// What comes next; waits for it without the interpreter lock.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Item>> {
        check_process(self.process)?;
        loop {
            let heard = {
                let mut hearing = alone!(self.hearing);
                let hearing = &mut *hearing;
                py.detach(|| wait_for(Some(PATIENCE), |cx| hearing.poll_next(cx)))
            };
            match heard {
                Some(heard) => return heard.map(item).transpose(),
                None => {
                    if let Err(signal) = py.check_signals() {
                        self.cancel();
                        return Err(signal);
                    }
                }
            }
        }
    }

    /// What comes next if it is there, as `Answer.poll`.
    fn poll(&self, call: Py<PyAny>) -> PyResult<(bool, Option<Item>)> {
        check_process(self.process)?;
        let waker = waker(call);
        let mut cx = Context::from_waker(&waker);
        let heard = alone!(self.hearing).poll_next(&mut cx);
        match heard {
            Poll::Pending => Ok((false, None)),
            Poll::Ready(heard) => Ok((true, heard.map(item).transpose()?)),
        }
    }

    /// Ends it, from any thread; what was heard so far still comes.
    fn cancel(&self) {
        self.hush.cancel();
    }
}
