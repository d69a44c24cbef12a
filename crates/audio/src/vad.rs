//! Where somebody speaks, and the pieces that are heard by themselves.

use crate::error::Result;
use crate::gate::{self, Cut, Stretch};
use crate::recording::Recording;
use crate::silero::{STEP, Silero};
use crate::{HOP, RATE};

/// What counts as speech. The rules are those of Silero's `get_speech_timestamps`, under its names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// How likely speech is where it begins.
    pub threshold: f64,
    /// How unlikely it is where it ends; 0.15 below the other, and at least 0.01, without.
    pub neg_threshold: Option<f64>,
    /// Speech that is shorter is none.
    pub min_speech_ms: u32,
    /// Silence that is shorter is none.
    pub min_silence_ms: u32,
    /// Speech that is longer is cut at its longest silence of a tenth of a second, or where it gets too long.
    pub max_speech_s: f64,
    /// What belongs to speech on both sides.
    pub pad_ms: u32,
    /// How far speech is heard behind its end, where no other begins.
    pub overlap_s: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            threshold: 0.5,
            neg_threshold: None,
            min_speech_ms: 250,
            min_silence_ms: 100,
            max_speech_s: 30.0,
            pad_ms: 30,
            overlap_s: 0.0,
        }
    }
}

impl From<&Rules> for Cut {
    /// What loudness can follow: frames for times, and no thresholds.
    fn from(rules: &Rules) -> Self {
        let frames = |ms: u32| (ms as usize + 5) / 10;
        Cut {
            min_sound: frames(rules.min_speech_ms),
            min_silence: frames(rules.min_silence_ms).max(1),
            pad: frames(rules.pad_ms),
            most: ((rules.max_speech_s * 100.0) as usize).max(1),
        }
    }
}

/// Speech, in samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first sample.
    pub from: usize,
    /// One past its last.
    pub to: usize,
}

/// How likely speech is, step by step.
#[derive(Clone, Debug, PartialEq)]
pub struct Speech {
    probabilities: Vec<f32>,
    samples: usize,
}

impl Speech {
    /// Of so many samples, [`STEP`] for each probability; the last may have fewer.
    #[must_use]
    pub fn new(probabilities: Vec<f32>, samples: usize) -> Self {
        Speech {
            probabilities,
            samples,
        }
    }

    /// How likely speech is in every step.
    #[must_use]
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// Where speech is.
    #[must_use]
    pub fn spans(&self, rules: &Rules) -> Vec<Span> {
        let mut walk = Walk::new(rules);
        for (step, p) in self.probabilities.iter().enumerate() {
            walk.hear(step * STEP, f64::from(*p));
        }
        let mut spans = walk.finish(self.samples);
        self.pad(&mut spans, samples(rules.pad_ms));
        spans
    }

    /// Where speech is, in the nearest frames.
    #[must_use]
    pub fn stretches(&self, rules: &Rules) -> Vec<Stretch> {
        let frame = |sample: usize| (sample + HOP / 2) / HOP;
        let one = |s: &Span| Stretch {
            from: frame(s.from),
            to: frame(s.to),
        };
        self.spans(rules).iter().map(one).collect()
    }

    /// Gives spans what lies around them; two that are too near for it share what lies between.
    fn pad(&self, spans: &mut [Span], pad: usize) {
        if let Some(first) = spans.first_mut() {
            first.from = first.from.saturating_sub(pad);
        }
        if let Some(last) = spans.last_mut() {
            last.to = (last.to + pad).min(self.samples);
        }
        for i in 1..spans.len() {
            let silence = spans[i].from - spans[i - 1].to;
            let pad = if silence < 2 * pad { silence / 2 } else { pad };
            spans[i - 1].to = (spans[i - 1].to + pad).min(self.samples);
            spans[i].from -= pad;
        }
    }
}

fn samples(ms: u32) -> usize {
    ms as usize * (RATE as usize / 1000)
}

/// Silence that speech which is too long may be cut at, in samples: it is longer than 98 ms.
const BREAK: usize = 98 * (RATE as usize / 1000);

/// A walk over probabilities.
struct Walk<'a> {
    rules: &'a Rules,
    low: f64,
    most: f64,
    found: Vec<Span>,
    /// Where the speech began that goes on.
    start: Option<usize>,
    /// Where it may have ended.
    end: Option<usize>,
    /// Silences in it.
    breaks: Vec<Span>,
}

impl<'a> Walk<'a> {
    fn new(rules: &'a Rules) -> Self {
        let low = (rules.threshold - 0.15).max(0.01);
        let around = STEP + 2 * samples(rules.pad_ms);
        Walk {
            rules,
            low: rules.neg_threshold.unwrap_or(low),
            most: f64::from(RATE) * rules.max_speech_s - around as f64,
            found: Vec::new(),
            start: None,
            end: None,
            breaks: Vec::new(),
        }
    }

    fn hear(&mut self, at: usize, p: f64) {
        let speaks = p >= self.rules.threshold;
        if let Some(from) = self.end.filter(|_| speaks) {
            if at - from > BREAK {
                self.breaks.push(Span { from, to: at });
            }
            self.end = None;
        }
        let Some(start) = self.start else {
            self.start = speaks.then_some(at);
            return;
        };
        if (at - start) as f64 > self.most && !self.cut(start, at) {
            return;
        }
        if p < self.low {
            self.fall_silent(at);
        }
    }

    /// Ends speech that is too long; whether the rest of it goes on.
    fn cut(&mut self, from: usize, at: usize) -> bool {
        // The first of the longest.
        let longest = self.breaks.iter().rev().max_by_key(|b| b.to - b.from);
        let longest = longest.copied();
        let to = longest.map_or(at, |b| b.from);
        self.found.push(Span { from, to });
        self.begin(longest.map(|b| b.to));
        self.start.is_some()
    }

    fn begin(&mut self, start: Option<usize>) {
        self.start = start;
        self.end = None;
        self.breaks.clear();
    }

    fn fall_silent(&mut self, at: usize) {
        let to = *self.end.get_or_insert(at);
        if at - to >= samples(self.rules.min_silence_ms) {
            self.keep(to);
            self.begin(None);
        }
    }

    fn keep(&mut self, to: usize) {
        let least = samples(self.rules.min_speech_ms);
        let long = self.start.filter(|from| to.saturating_sub(*from) > least);
        self.found.extend(long.map(|from| Span { from, to }));
    }

    fn finish(mut self, samples: usize) -> Vec<Span> {
        self.keep(samples);
        self.found
    }
}

/// The pieces of a recording that are heard by themselves: speech, and what lies between where one piece of at most so
/// many frames holds both. Without a net, speech is what is loud.
///
/// # Errors
/// A source that cannot be read another time.
pub fn pieces(
    recording: &Recording,
    net: Option<&Silero>,
    rules: &Rules,
    most: usize,
) -> Result<Vec<Stretch>> {
    let mut stretches = match net {
        Some(net) => net.hear(recording.samples()?)?.stretches(rules),
        None => recording.gate().stretches(rules.into()),
    };
    go_on(&mut stretches, rules, recording.frames(), most);
    Ok(gate::windows(&stretches, most))
}

/// Lets stretches go on behind their ends, as far as nothing else begins and one piece holds it.
fn go_on(stretches: &mut [Stretch], rules: &Rules, frames: usize, most: usize) {
    let further = (rules.overlap_s * 100.0) as usize;
    let mut next = frames;
    for s in stretches.iter_mut().rev() {
        let to = (s.to + further).min(next).min(s.from + most);
        s.to = to.max(s.to);
        next = s.from;
    }
}
