//! From any rate to [`RATE`].
//!
//! Rubato's resampler by Fourier transforms, with a filter as long as a block (a sinc under a squared Blackman–Harris
//! window). Up to 90 % of the lower rate's half it is flat within 0.1 dB; what lies above the half is down by 80 dB or
//! more. `tests/resample.rs` sweeps it.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler as _};

use crate::RATE;

/// Samples of a block at [`RATE`], at least; the length of the filter.
const BLOCK: usize = 512;

/// One channel's samples, brought to [`RATE`] as they come. The result is as long as the input lasts, and begins with it.
pub struct Resampler {
    /// None where nothing is to be done.
    fft: Option<Fft<f32>>,
    rate: u64,
    pending: Vec<f32>,
    block: Vec<f32>,
    /// Samples taken and given.
    taken: u64,
    given: u64,
    /// Samples of the filter's delay that are still to be dropped.
    delay: usize,
}

impl Resampler {
    /// From `rate` samples per second.
    ///
    /// # Panics
    /// A rate of 0.
    #[must_use]
    pub fn new(rate: u32) -> Self {
        assert!(rate > 0, "a rate is not 0");
        let fft = (rate != RATE).then(|| {
            let block = BLOCK * (rate as usize).div_ceil(RATE as usize);
            let fft = Fft::new(rate as usize, RATE as usize, block, 1, FixedSync::Both);
            fft.expect("both rates are positive")
        });
        let delay = fft.as_ref().map_or(0, rubato::Resampler::output_delay);
        let block = fft.as_ref().map_or(0, rubato::Resampler::output_frames_max);
        Resampler {
            fft,
            rate: u64::from(rate),
            pending: Vec::new(),
            block: vec![0.0; block],
            taken: 0,
            given: 0,
            delay,
        }
    }

    /// Takes samples and appends what is ready.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        if self.fft.is_none() {
            out.extend_from_slice(samples);
            return;
        }
        self.taken += samples.len() as u64;
        self.pending.extend_from_slice(samples);
        self.run(out);
    }

    /// Appends the rest: as many samples in all as the input lasts, rounded up.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        let Some(need) = self.fft.as_ref().map(rubato::Resampler::input_frames_next) else {
            return;
        };
        let total = (self.taken * u64::from(RATE)).div_ceil(self.rate);
        while self.given < total {
            let before = out.len();
            let len = self.pending.len().next_multiple_of(need).max(need);
            self.pending.resize(len, 0.0);
            self.run(out);
            let over = self.given.saturating_sub(total) as usize;
            out.truncate(out.len() - over.min(out.len() - before));
            self.given = self.given.min(total);
        }
    }

    fn run(&mut self, out: &mut Vec<f32>) {
        let fft = self.fft.as_mut().expect("there is something to do");
        let need = fft.input_frames_next();
        let mut at = 0;
        while self.pending.len() - at >= need {
            let input = InterleavedSlice::new(&self.pending[at..at + need], 1, need);
            let len = self.block.len();
            let output = InterleavedSlice::new_mut(&mut self.block, 1, len);
            let (input, mut output) = (input.expect("it fits"), output.expect("it fits"));
            let done = fft.process_into_buffer(&input, &mut output, None);
            let (_, given) = done.expect("a block has the size that was asked for");
            let drop = self.delay.min(given);
            self.delay -= drop;
            out.extend_from_slice(&self.block[drop..given]);
            self.given += (given - drop) as u64;
            at += need;
        }
        self.pending.drain(..at);
    }
}
