//! A recording's features, window by window.

use std::sync::Arc;

use crate::HOP;
use crate::error::{AudioError, Result};
use crate::gate::Gate;
use crate::mel::{self, Bands, LogMel};
use crate::source::{Mix, Samples, Source};

/// A recording that was heard once: how long it is, and how loud.
#[derive(Clone, Debug)]
pub struct Recording {
    source: Source,
    mix: Mix,
    bands: Arc<Bands>,
    frames: usize,
    samples: u64,
    peak: f32,
    gate: Gate,
}

/// Frames of a recording, `[frames, bands]`, as a model reads them; zeros behind the recording's end.
pub type Window = Vec<f32>;

impl Recording {
    /// Hears a source to its end.
    ///
    /// # Errors
    /// A source that cannot be read, or that holds nothing.
    pub fn measure(source: Source, mix: Mix, bands: Bands) -> Result<Self> {
        let bands = Arc::new(bands);
        let mut samples = source.open(mix)?;
        let mut log_mel = LogMel::new(bands.clone());
        let (mut block, mut values, mut levels) = (Vec::new(), Vec::new(), Vec::new());
        let (mut peak, mut count, mut gate) = (f32::NEG_INFINITY, 0, Gate::default());
        let highest = |peak: f32, values: &[f32]| values.iter().copied().fold(peak, f32::max);
        while samples.next_block(&mut block)? {
            count += block.len() as u64;
            levels.extend_from_slice(&block);
            let whole = levels.len() / HOP * HOP;
            gate.push(&levels[..whole]);
            levels.drain(..whole);
            log_mel.push(&block, &mut values);
            peak = highest(peak, &values);
            block.clear();
            values.clear();
        }
        if count == 0 {
            return Err(AudioError::Empty {
                name: source.name().to_owned(),
            });
        }
        let (frames, behind) = log_mel.finish(&mut values);
        peak = highest(highest(peak, &values), &behind);
        Ok(Recording {
            source,
            mix,
            bands,
            frames: frames as usize,
            samples: count,
            peak,
            gate,
        })
    }

    /// Frames that it has, of 10 ms each.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// How long it is, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.samples as f64 / f64::from(crate::RATE)
    }

    /// Its samples, in a pass of their own.
    ///
    /// # Errors
    /// A source that cannot be read another time.
    pub fn samples(&self) -> Result<Samples> {
        self.source.open(self.mix)
    }

    /// Where it is loud.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its windows.
    #[must_use]
    pub fn windows(&self) -> Windows {
        Windows {
            recording: self.clone(),
            reader: None,
        }
    }
}

/// Gives windows of a recording. Those that come in order are read in one pass; one that lies before the last begins
/// another.
pub struct Windows {
    recording: Recording,
    reader: Option<Reader>,
}

struct Reader {
    samples: Samples,
    log_mel: LogMel,
    block: Vec<f32>,
    /// Frames from `first` on.
    held: Vec<f32>,
    first: usize,
    ended: bool,
    /// The frames behind the last that still hear of it, once it has ended.
    behind: Vec<f32>,
}

impl Windows {
    /// The recording.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// `len` frames from `from` on.
    ///
    /// # Errors
    /// A source that cannot be read a second time.
    pub fn window(&mut self, from: usize, len: usize) -> Result<Window> {
        let bands = self.recording.bands.count();
        let end = (from + len).min(self.recording.frames).max(from);
        let mut reader = match self.reader.take() {
            Some(reader) if reader.first <= from => reader,
            _ => Reader::open(&self.recording)?,
        };
        reader.read(from, end, bands)?;
        let held = reader.held.get((from - reader.first) * bands..);
        let held = held.unwrap_or(&[]);
        let have = ((end - from) * bands).min(held.len());
        let mut window = held[..have].to_vec();
        mel::finish(&mut window, self.recording.peak);
        window.resize(len * bands, 0.0);
        self.reader = Some(reader);
        Ok(window)
    }
}

impl Windows {
    /// The first `len` frames, silence following the recording where it is shorter: not zeros, but what silence gives.
    ///
    /// # Errors
    /// As [`Windows::window`].
    pub fn opening(&mut self, len: usize) -> Result<Window> {
        let bands = self.recording.bands.count();
        let mut reader = Reader::open(&self.recording)?;
        reader.read(0, len, bands)?;
        let mut window = std::mem::take(&mut reader.held);
        if window.len() < len * bands {
            window.extend_from_slice(&reader.behind);
        }
        window.resize(len * bands, mel::SILENCE);
        mel::finish(&mut window, self.recording.peak);
        Ok(window)
    }
}

impl Reader {
    fn open(recording: &Recording) -> Result<Self> {
        Ok(Reader {
            samples: recording.source.open(recording.mix)?,
            log_mel: LogMel::new(recording.bands.clone()),
            block: Vec::new(),
            held: Vec::new(),
            first: 0,
            ended: false,
            behind: Vec::new(),
        })
    }

    /// Forgets what lies before `from` and reads up to `end`.
    fn read(&mut self, from: usize, end: usize, bands: usize) -> Result<()> {
        loop {
            let skip = (from - self.first).min(self.held.len() / bands);
            self.held.drain(..skip * bands);
            self.first += skip;
            if self.ended || self.first + self.held.len() / bands >= end {
                return Ok(());
            }
            self.block.clear();
            if self.samples.next_block(&mut self.block)? {
                self.log_mel.push(&self.block, &mut self.held);
            } else {
                self.behind = self.log_mel.finish(&mut self.held).1;
                self.ended = true;
            }
        }
    }
}

/// Features of sound that is still coming in. Their floor follows from the loudest value so far, not from that of the
/// whole recording, which nobody knows yet: early windows may differ from those of the same sound in a file.
pub struct Live {
    log_mel: LogMel,
    bands: usize,
    held: Vec<f32>,
    first: usize,
    peak: f32,
    ended: bool,
}

impl Live {
    /// For these bands.
    #[must_use]
    pub fn new(bands: Bands) -> Self {
        Live {
            bands: bands.count(),
            log_mel: LogMel::new(Arc::new(bands)),
            held: Vec::new(),
            first: 0,
            peak: f32::NEG_INFINITY,
            ended: false,
        }
    }

    /// Takes samples at [`RATE`](crate::RATE).
    pub fn push(&mut self, samples: &[f32]) {
        let before = self.held.len();
        self.log_mel.push(samples, &mut self.held);
        self.peak = self.held[before..]
            .iter()
            .copied()
            .fold(self.peak, f32::max);
    }

    /// No more will come.
    pub fn end(&mut self) {
        if !self.ended {
            let before = self.held.len();
            let (_, behind) = self.log_mel.finish(&mut self.held);
            let new = self.held[before..].iter().chain(&behind).copied();
            self.peak = new.fold(self.peak, f32::max);
            self.ended = true;
        }
    }

    /// Whether no more will come.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Frames that came so far, forgotten ones among them.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.first + self.held.len() / self.bands
    }

    /// `len` frames from `from` on, zeros where there are none yet. What lies before is forgotten.
    pub fn window(&mut self, from: usize, len: usize) -> Window {
        let skip = from
            .saturating_sub(self.first)
            .min(self.held.len() / self.bands);
        self.held.drain(..skip * self.bands);
        self.first += skip;
        let have = (len * self.bands).min(self.held.len());
        let mut window = self.held[..have].to_vec();
        mel::finish(&mut window, self.peak);
        window.resize(len * self.bands, 0.0);
        window
    }
}
