//! Log-mel features: energies of 25 ms in bands that are even to the ear, every 10 ms.
//!
//! A frame is the Hann-windowed spectrum of 400 samples around every 160th one, the first with the beginning mirrored
//! before it. Its power goes into triangular bands on Slaney's scale (linear up to 1 kHz, logarithmic above), each of
//! equal area. Values here are `log10(max(energy, 1e-10))`; [`finish`] brings them to what a model reads.

use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

use crate::{HOP, RATE};

/// Samples of a frame.
pub const WINDOW: usize = 400;
/// Frequencies of its spectrum.
pub const BINS: usize = WINDOW / 2 + 1;
/// Samples before the place that a frame stands for.
const BACK: usize = WINDOW / 2;
/// The value of silence.
pub(crate) const SILENCE: f32 = -10.0;
/// Decades below the largest value at which all smaller ones are cut.
const RANGE: f32 = 8.0;

/// Weights of frequencies in bands.
#[derive(Clone, Debug, PartialEq)]
pub struct Bands {
    /// For each band its first bin and the weights from there on.
    bands: Vec<(usize, Vec<f32>)>,
}

impl Bands {
    /// So many triangles from 0 Hz to half of [`RATE`], on Slaney's scale.
    #[must_use]
    pub fn slaney(count: usize) -> Self {
        let top = to_mel(f64::from(RATE) / 2.0);
        let corner = |i: usize| to_hertz(top * i as f64 / (count + 1) as f64);
        let weights = |band: usize| {
            let [low, mid, high] = [0, 1, 2].map(|i| corner(band + i));
            let weight = |bin: usize| {
                let f = bin as f64 * f64::from(RATE) / WINDOW as f64;
                let slope = ((f - low) / (mid - low)).min((high - f) / (high - mid));
                (slope.max(0.0) * 2.0 / (high - low)) as f32
            };
            (0..BINS).map(weight).collect::<Vec<f32>>()
        };
        let rows: Vec<f32> = (0..count).flat_map(weights).collect();
        Self::from_rows(count, &rows).expect("as many weights as bins")
    }

    /// Weights of a file, `[count, 201]`; `None` for another number of them.
    #[must_use]
    pub fn from_rows(count: usize, rows: &[f32]) -> Option<Self> {
        if count == 0 || rows.len() != count * BINS {
            return None;
        }
        let band = |row: &[f32]| {
            let first = row.iter().position(|&w| w != 0.0).unwrap_or(0);
            let end = row.iter().rposition(|&w| w != 0.0).map_or(first, |i| i + 1);
            (first, row[first..end].to_vec())
        };
        let bands = rows.chunks_exact(BINS).map(band).collect();
        Some(Bands { bands })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bands.len()
    }

    /// All weights, `[count, 201]`.
    #[must_use]
    pub fn rows(&self) -> Vec<f32> {
        let mut rows = vec![0.0; self.count() * BINS];
        for (row, (first, weights)) in rows.chunks_exact_mut(BINS).zip(&self.bands) {
            row[*first..first + weights.len()].copy_from_slice(weights);
        }
        rows
    }
}

/// Linear to 1 kHz, 27 bands per factor of 6.4 above.
fn to_mel(hertz: f64) -> f64 {
    if hertz < 1000.0 {
        hertz * 3.0 / 200.0
    } else {
        15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4f64.ln()
    }
}

fn to_hertz(mel: f64) -> f64 {
    if mel < 15.0 {
        mel * 200.0 / 3.0
    } else {
        1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp()
    }
}

/// Makes frames of samples as they come.
pub struct LogMel {
    bands: Arc<Bands>,
    fft: Arc<dyn RealToComplex<f64>>,
    hann: Vec<f64>,
    /// Samples from the next frame's first one on; until the first frame, those of the recording.
    held: Vec<f32>,
    begun: bool,
    samples: u64,
    frames: u64,
    scratch: Scratch,
}

struct Scratch {
    input: Vec<f64>,
    spectrum: Vec<realfft::num_complex::Complex<f64>>,
    work: Vec<realfft::num_complex::Complex<f64>>,
    power: Vec<f64>,
}

impl LogMel {
    /// For these bands.
    #[must_use]
    pub fn new(bands: Arc<Bands>) -> Self {
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(WINDOW);
        // In single precision, as the models were trained with: quiet bands beside loud ones feel the difference.
        let turn = (std::f64::consts::TAU / WINDOW as f64) as f32;
        let scratch = Scratch {
            input: fft.make_input_vec(),
            spectrum: fft.make_output_vec(),
            work: fft.make_scratch_vec(),
            power: vec![0.0; BINS],
        };
        LogMel {
            bands,
            fft,
            hann: (0..WINDOW)
                .map(|i| f64::from(0.5 - 0.5 * (turn * i as f32).cos()))
                .collect(),
            held: Vec::new(),
            begun: false,
            samples: 0,
            frames: 0,
            scratch,
        }
    }

    /// Takes samples at [`RATE`] and appends the frames that they complete, `[frames, bands]`.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.held.extend_from_slice(samples);
        self.samples += samples.len() as u64;
        self.begin();
        self.run(u64::MAX, out);
    }

    /// Ends the recording: appends the frames up to its last whole 10 ms, silence following it. Gives how many frames
    /// there are in all, and the values of those behind the last that still hear of it.
    pub fn finish(&mut self, out: &mut Vec<f32>) -> (u64, Vec<f32>) {
        let frames = self.samples / HOP as u64;
        self.held.resize(self.held.len() + 2 * WINDOW, 0.0);
        self.begin();
        self.run(frames, out);
        let mut behind = Vec::new();
        self.run(frames + 2, &mut behind);
        (frames, behind)
    }

    /// Puts the mirrored beginning before the samples, once there are enough.
    fn begin(&mut self) {
        if !self.begun && self.held.len() > BACK {
            let mirrored: Vec<f32> = self.held[1..=BACK].iter().rev().copied().collect();
            self.held.splice(0..0, mirrored);
            self.begun = true;
        }
    }

    fn run(&mut self, until: u64, out: &mut Vec<f32>) {
        let mut at = 0;
        while self.begun && self.frames < until && self.held.len() - at >= WINDOW {
            self.frame(at, out);
            self.frames += 1;
            at += HOP;
        }
        self.held.drain(..at);
    }

    fn frame(&mut self, at: usize, out: &mut Vec<f32>) {
        let s = &mut self.scratch;
        let windowed = self.held[at..at + WINDOW].iter().zip(&self.hann);
        for (x, (sample, w)) in s.input.iter_mut().zip(windowed) {
            *x = f64::from(*sample) * w;
        }
        let done = self
            .fft
            .process_with_scratch(&mut s.input, &mut s.spectrum, &mut s.work);
        done.expect("all lengths are the transform's own");
        for (power, c) in s.power.iter_mut().zip(&s.spectrum) {
            *power = c.norm_sqr();
        }
        for (first, weights) in &self.bands.bands {
            let powers = &s.power[*first..first + weights.len()];
            let energy: f64 = powers
                .iter()
                .zip(weights)
                .map(|(p, w)| p * f64::from(*w))
                .sum();
            out.push(energy.max(1e-10).log10() as f32);
        }
    }
}

/// What a model reads: values no more than eight decades below the largest of the recording, scaled by a quarter.
pub fn finish(values: &mut [f32], peak: f32) {
    for v in values {
        *v = (v.max(peak - RANGE) + 4.0) / 4.0;
    }
}
