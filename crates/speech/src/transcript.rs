//! From window to window through one recording, as openai's loop goes.
//!
//! A [`Transcript`] says which window is to be heard and with which prompt ([`Transcript::next_window`]), and takes what was
//! decoded of it ([`Transcript::decoded`]): another try at a higher temperature, nothing because nobody spoke, or segments.

use crate::WINDOW;
use crate::ratio::compression_ratio;
use crate::rules::Rules;
use crate::search::{Decoded, SearchOptions, mix};
use crate::tokens::Vocabulary;
use crate::words::{self, Timed};

/// What is asked of a transcript.
#[derive(Clone, Debug)]
pub struct Options {
    /// Code of the language spoken.
    pub language: String,
    /// English is wanted, whatever is spoken.
    pub translate: bool,
    /// Temperatures to try, in order.
    pub temperatures: Vec<f32>,
    /// Hypotheses drawn at once at a temperature.
    pub best_of: usize,
    /// Beams at temperature 0.
    pub beams: Option<usize>,
    /// Finished hypotheses that end a beam search, by the beam.
    pub patience: f32,
    /// The exponent of the length in judging hypotheses.
    pub length_penalty: Option<f32>,
    /// A text that is more repetitive is tried again.
    pub ratio: Option<f32>,
    /// A text that is less likely is tried again.
    pub logprob: Option<f32>,
    /// A window of which this is more likely is silence.
    pub no_speech: Option<f32>,
    /// Whether a window is told what was said before.
    pub carry: bool,
    /// A text before the first.
    pub prompt: Option<String>,
    /// Whether it stands before every window.
    pub carry_prompt: bool,
    /// No timestamps are asked for.
    pub no_timestamps: bool,
    /// The latest first timestamp, in seconds.
    pub first_time: Option<f32>,
    /// Suppress what is no speech.
    pub suppress_non_speech: bool,
    /// Suppress blanks at the beginning.
    pub suppress_blank: bool,
    /// Suppressed besides.
    pub suppress: Vec<u32>,
    /// Stretches to hear, in seconds from, to, from, to; the last may go on to the end.
    pub clips: Vec<f64>,
    /// When words were said.
    pub words: bool,
    /// Silence longer than this around what may be no speech is skipped, in seconds; needs words.
    pub skip_silence: Option<f64>,
    /// Tokens of a window at most; half of the context without.
    pub most: Option<usize>,
    /// Seeds what is drawn.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            language: "en".to_owned(),
            translate: false,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            best_of: 5,
            beams: Some(5),
            patience: 1.0,
            length_penalty: None,
            ratio: Some(2.4),
            logprob: Some(-1.0),
            no_speech: Some(0.6),
            carry: true,
            prompt: None,
            carry_prompt: false,
            no_timestamps: false,
            first_time: Some(1.0),
            suppress_non_speech: true,
            suppress_blank: true,
            suppress: Vec::new(),
            clips: Vec::new(),
            words: false,
            skip_silence: None,
            most: None,
            seed: 0,
        }
    }
}

/// A stretch of text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// The first frame of its window.
    pub seek: usize,
    /// Where it begins, in seconds.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
    /// What was said.
    pub text: String,
    /// Its tokens, timestamps among them.
    pub tokens: Vec<u32>,
    /// The temperature that gave it.
    pub temperature: f32,
    /// Mean log-probability of its window.
    pub avg_logprob: f32,
    /// How repetitive its window is.
    pub ratio: f64,
    /// How likely it is that nobody spoke.
    pub no_speech: f32,
    /// Its words, where they were asked for.
    pub words: Vec<Word>,
}

/// A word.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Word {
    /// Its text, with the space before it.
    pub word: String,
    /// Where it begins, in seconds.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
    /// Mean probability of its tokens.
    pub probability: f64,
}

/// A window to be decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Its first frame.
    pub seek: usize,
    /// Frames that are heard; the rest of the window is empty.
    pub size: usize,
    /// What the decoder reads first.
    pub prompt: Vec<u32>,
    /// Where the transcript begins in it.
    pub sot: usize,
    /// How to search.
    pub search: SearchOptions,
}

/// What became of a window.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is to be decoded again, at the next temperature.
    Again,
    /// It counts: these segments are new.
    Segments(Vec<Segment>),
}

/// A transcript in the making.
pub struct Transcript {
    vocabulary: Vocabulary,
    options: Options,
    ctx: usize,
    frames: usize,
    clips: Vec<(usize, usize)>,
    clip: usize,
    seek: usize,
    tries: usize,
    initial: Vec<u32>,
    all: Vec<u32>,
    reset: usize,
    last_speech: f64,
    segments: Vec<Segment>,
    suppressed: Vec<u32>,
    blank: Vec<u32>,
}

/// Frames of a second.
const PER_SECOND: f64 = 100.0;
/// Seconds of a timestamp's step.
const TIME: f64 = 0.02;
/// Frames of a timestamp's step.
const STRIDE: usize = 2;

impl Transcript {
    /// Of a recording of so many frames, for a decoder with a context of so many tokens.
    #[must_use]
    pub fn new(vocabulary: Vocabulary, options: Options, frames: usize, ctx: usize) -> Self {
        let t = vocabulary.tokens;
        let mut suppressed = options.suppress.clone();
        if options.suppress_non_speech {
            suppressed.extend(vocabulary.non_speech());
        }
        if !suppressed.is_empty() {
            let marks = [t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm];
            suppressed.extend(marks);
            suppressed.push(t.no_speech);
        }
        suppressed.sort_unstable();
        suppressed.dedup();
        let mut blank = Vec::new();
        if options.suppress_blank {
            blank = vocabulary.encode(" ");
            blank.push(t.eot);
        }
        let text = options.prompt.as_deref().map(str::trim);
        let initial = text.map_or(Vec::new(), |p| vocabulary.encode(&format!(" {p}")));
        let mut points: Vec<usize> = options.clips.iter().map(|s| rounded(*s)).collect();
        if points.is_empty() {
            points.push(0);
        }
        if points.len() % 2 == 1 {
            points.push(frames);
        }
        let clips: Vec<(usize, usize)> = points.chunks(2).map(|c| (c[0], c[1])).collect();
        Transcript {
            ctx,
            frames,
            seek: clips[0].0,
            clips,
            clip: 0,
            tries: 0,
            all: initial.clone(),
            initial,
            reset: 0,
            last_speech: 0.0,
            segments: Vec::new(),
            suppressed,
            blank,
            vocabulary,
            options,
        }
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What may come next.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let first = self.options.first_time.filter(|&t| t > 0.0);
        let first = first.map(|t| (f64::from(t) / TIME).round_ties_even() as u32);
        Rules {
            tokens: self.vocabulary.tokens,
            suppressed: self.suppressed.clone(),
            blank: self.blank.clone(),
            times: (!self.options.no_timestamps).then_some(first),
        }
    }

    /// More of the recording has come in.
    pub fn extend(&mut self, frames: usize) {
        if let Some(last) = self.clips.last_mut().filter(|c| c.1 == self.frames) {
            last.1 = frames;
        }
        self.frames = frames;
    }

    /// Where the next window begins.
    #[must_use]
    pub fn seek(&self) -> usize {
        self.seek
    }

    /// The segments so far.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The whole text so far.
    #[must_use]
    pub fn text(&self) -> String {
        self.vocabulary.decode(&self.all[self.initial.len()..])
    }

    /// The next window; none at the end.
    pub fn next_window(&mut self) -> Option<Ask> {
        let end = loop {
            let &(start, end) = self.clips.get(self.clip)?;
            self.seek = self.seek.max(start);
            if self.seek < end {
                break end;
            }
            self.clip += 1;
            if let Some(next) = self.clips.get(self.clip) {
                self.seek = next.0;
            }
        };
        let rest = self.frames.saturating_sub(self.seek);
        if rest == 0 {
            // A clip that begins behind the end of the recording.
            self.clip = self.clips.len();
            return None;
        }
        let size = WINDOW.min(rest).min(end - self.seek);
        let t = &self.vocabulary.tokens;
        let mut start = t.start(&self.options.language, self.options.translate);
        if self.options.no_timestamps {
            start.push(t.no_timestamps);
        }
        let mut prompt = Vec::new();
        let before = self.before();
        if !before.is_empty() {
            prompt.push(t.sot_prev);
            let most = self.ctx / 2 - 1;
            prompt.extend_from_slice(&before[before.len().saturating_sub(most)..]);
        }
        let sot = prompt.len();
        prompt.extend(start);
        let temperature = self.options.temperatures.get(self.tries).copied();
        let search = SearchOptions {
            temperature: temperature.unwrap_or(0.0),
            best_of: self.options.best_of,
            beams: self.options.beams,
            patience: self.options.patience,
            length_penalty: self.options.length_penalty,
            most: self.options.most.unwrap_or(self.ctx / 2),
            seed: mix(self.options.seed, (self.seek * 16 + self.tries) as u64),
        };
        Some(Ask {
            seek: self.seek,
            size,
            prompt,
            sot,
            search,
        })
    }

    /// What a window is told of what came before.
    fn before(&self) -> Vec<u32> {
        if !self.options.carry_prompt {
            return self.all[self.reset..].to_vec();
        }
        let ignored = self.initial.len().max(self.reset).min(self.all.len());
        let most = (self.ctx / 2 - 1).saturating_sub(self.initial.len());
        let rest = &self.all[ignored..];
        // A length of 0 counts from the end as nothing being cut, in openai's code.
        let from = if most == 0 {
            0
        } else {
            rest.len().saturating_sub(most)
        };
        [&self.initial[..], &rest[from..]].concat()
    }

    /// Takes what was decoded of the window that [`Transcript::next_window`] gave. `align` times the words of a text in it, by
    /// its tokens and the frames that were heard.
    pub fn decoded(
        &mut self,
        ask: &Ask,
        decoded: &Decoded,
        no_speech: f32,
        align: &mut dyn FnMut(&[u32], usize) -> Vec<Timed>,
    ) -> Outcome {
        let text = self.vocabulary.decode(&decoded.tokens);
        let ratio = compression_ratio(text.trim());
        if self.fails(ratio, decoded.avg_logprob, no_speech)
            && self.tries + 1 < self.options.temperatures.len()
        {
            self.tries += 1;
            return Outcome::Again;
        }
        self.tries = 0;
        if self.is_silence(decoded.avg_logprob, no_speech) {
            self.seek += ask.size;
            return Outcome::Segments(Vec::new());
        }
        let shape = Segment {
            seek: ask.seek,
            temperature: ask.search.temperature,
            avg_logprob: decoded.avg_logprob,
            ratio,
            no_speech,
            ..Segment::default()
        };
        let (mut segments, single) = self.cut(ask, &decoded.tokens, &shape);
        if self.options.words && !self.time_words(ask, &mut segments, single, align) {
            return Outcome::Segments(Vec::new());
        }
        for s in &mut segments {
            if s.start == s.end || s.text.trim().is_empty() {
                s.text.clear();
                s.tokens.clear();
                s.words.clear();
            }
            self.all.extend_from_slice(&s.tokens);
        }
        if !self.options.carry || ask.search.temperature > 0.5 {
            self.reset = self.all.len();
        }
        self.segments.extend(segments.iter().cloned());
        Outcome::Segments(segments)
    }

    /// Whether a text is too repetitive or too unlikely, unless nobody spoke.
    fn fails(&self, ratio: f64, logprob: f32, no_speech: f32) -> bool {
        let o = &self.options;
        let repetitive = o.ratio.is_some_and(|most| ratio > f64::from(most));
        let unlikely = o.logprob.is_some_and(|least| logprob < least);
        let silent = o.no_speech.is_some_and(|most| no_speech > most) && unlikely;
        (repetitive || unlikely) && !silent
    }

    fn is_silence(&self, logprob: f32, no_speech: f32) -> bool {
        let o = &self.options;
        let silent = o.no_speech.is_some_and(|most| no_speech > most);
        silent && !o.logprob.is_some_and(|least| logprob > least)
    }

    /// Cuts the tokens of a window where two timestamps meet, and moves on. Says also whether a single timestamp ends them.
    fn cut(&mut self, ask: &Ask, tokens: &[u32], shape: &Segment) -> (Vec<Segment>, bool) {
        let times = self.vocabulary.tokens.times;
        let is_time = |id: &u32| *id >= times;
        let offset = ask.seek as f64 / PER_SECOND;
        let at = |id: u32| f64::from(id - times.min(id)) * TIME;
        let single = matches!(tokens, [.., a, b] if !is_time(a) && is_time(b));
        let segment = |start: f64, end: f64, tokens: &[u32]| Segment {
            start,
            end,
            text: self.vocabulary.decode(tokens),
            tokens: tokens.to_vec(),
            ..shape.clone()
        };
        let pairs = tokens.windows(2).enumerate();
        let mut cuts: Vec<usize> = pairs
            .filter(|(_, w)| is_time(&w[0]) && is_time(&w[1]))
            .map(|(i, _)| i + 1)
            .collect();
        if cuts.is_empty() {
            let last = tokens.iter().rfind(|id| is_time(id));
            let duration = match last.filter(|&&id| id != times) {
                Some(&id) => at(id),
                None => ask.size as f64 / PER_SECOND,
            };
            self.seek += ask.size;
            return (vec![segment(offset, offset + duration, tokens)], single);
        }
        if single {
            cuts.push(tokens.len());
        }
        let (mut segments, mut from) = (Vec::new(), 0);
        for to in cuts {
            let slice = &tokens[from..to];
            let (start, end) = (at(slice[0]), at(slice[slice.len() - 1]));
            segments.push(segment(offset + start, offset + end, slice));
            from = to;
        }
        if single {
            self.seek += ask.size;
        } else {
            self.seek += (tokens[from - 1] - times) as usize * STRIDE;
        }
        (segments, single)
    }

    /// Times the words of new segments, moves to the last one's end, and skips what is silence or none of speech. False
    /// where the window does not count.
    fn time_words(
        &mut self,
        ask: &Ask,
        segments: &mut Vec<Segment>,
        single: bool,
        align: &mut dyn FnMut(&[u32], usize) -> Vec<Timed>,
    ) -> bool {
        let eot = self.vocabulary.tokens.eot;
        let text = |s: &Segment| s.tokens.iter().copied().filter(|&t| t < eot).collect();
        let texts: Vec<Vec<u32>> = segments.iter().map(text).collect();
        let timed = match segments.is_empty() {
            true => Vec::new(),
            false => align(&texts.concat(), ask.size),
        };
        words::place(segments, &texts, timed, self.last_speech);
        let offset = ask.seek as f64 / PER_SECOND;
        let end = words::end(segments).filter(|&e| e > offset);
        if !single && let Some(end) = end {
            self.seek = rounded(end);
        }
        if let Some(threshold) = self.options.skip_silence {
            let window_end = (ask.seek + WINDOW) as f64 / PER_SECOND;
            if !single && let Some(end) = end {
                self.seek = if window_end - end > threshold {
                    rounded(end)
                } else {
                    ask.seek + ask.size
                };
            }
            let first = segments.iter().find(|s| !s.words.is_empty());
            if let Some(first) = first.filter(|s| words::is_anomaly(s)) {
                let gap = first.start - offset;
                if gap > threshold {
                    self.seek = ask.seek + rounded(gap);
                    return false;
                }
            }
            self.skip_anomalies(ask, segments, threshold);
        }
        if let Some(end) = words::end(segments) {
            self.last_speech = end;
        }
        true
    }

    /// Drops what stands between silences and is likely no speech, with all behind it.
    fn skip_anomalies(&mut self, ask: &Ask, segments: &mut Vec<Segment>, threshold: f64) {
        let offset = ask.seek as f64 / PER_SECOND;
        let window_end = (ask.seek + WINDOW) as f64 / PER_SECOND;
        let mut last_end = self.last_speech;
        for i in 0..segments.len() {
            let s = &segments[i];
            if s.words.is_empty() {
                continue;
            }
            if words::is_anomaly(s) {
                let next = segments[i + 1..].iter().find(|s| !s.words.is_empty());
                let next_start = match next {
                    Some(next) => next.words[0].start,
                    None => offset + ask.size as f64 / PER_SECOND,
                };
                let before =
                    s.start - last_end > threshold || s.start < threshold || s.start - offset < 2.0;
                let after = next_start - s.end > threshold
                    || next.is_some_and(words::is_anomaly)
                    || window_end - s.end < 2.0;
                if before && after {
                    self.seek = rounded(s.start.max(offset + 1.0));
                    if self.frames as f64 / PER_SECOND - s.end < threshold {
                        self.seek = self.frames;
                    }
                    segments.truncate(i);
                    return;
                }
            }
            last_end = s.end;
        }
    }
}

/// Seconds as frames.
fn rounded(seconds: f64) -> usize {
    (seconds * PER_SECOND).round_ties_even().max(0.0) as usize
}
