//! Silero's net: how likely it is that somebody speaks, every 512 samples.
//!
//! A step sees 64 samples from before it. They are reflected at their end, become magnitudes of 129 frequencies at
//! four times, go through four convolutions that leave one time, and through an LSTM cell, whose state is what one step
//! tells the next. Weights are the user's file (`silero/file.rs`).

mod file;

use std::array::from_fn;
use std::path::Path;

use tokkata_formats::ModelFile;

use crate::error::Result;
use crate::source::Samples;
use crate::vad::Speech;

/// Samples of a step.
pub const STEP: usize = 512;
/// Samples before a step that it sees.
const CONTEXT: usize = 64;
/// Samples of one spectrum, and from one to the next.
const SPAN: usize = 256;
const HOP: usize = 128;
/// Frequencies of a spectrum.
const BINS: usize = 129;
/// Values of the LSTM cell.
const CELLS: usize = 128;
/// Outputs that are summed side by side.
const LANES: usize = 8;

/// The net.
#[derive(Clone)]
pub struct Silero {
    spectrum: Layer,
    convolutions: [Layer; 4],
    /// Of what goes into the cell, and then of what it gave out.
    cell: Layer,
    end: Vec<f32>,
    end_bias: f32,
}

/// A matrix, and what is added to its product: for every eight outputs, the weights of the first input, of the
/// second, and so on.
#[derive(Clone)]
struct Layer {
    weights: Vec<[f32; LANES]>,
    bias: Vec<[f32; LANES]>,
    inputs: usize,
}

impl std::fmt::Debug for Silero {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Silero").finish_non_exhaustive()
    }
}

impl Silero {
    /// Reads the file that the user names: the safetensors of the Python package, or whisper.cpp's.
    ///
    /// # Errors
    /// A file that cannot be read or holds something else.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        file::open(path.as_ref())
    }

    /// Takes the tensors of an opened file.
    ///
    /// # Errors
    /// A tensor that is missing, too many, of another shape or type, or holds what is not a number.
    pub fn new(file: &ModelFile) -> Result<Self> {
        file::read(file)
    }

    /// Begins with a recording.
    #[must_use]
    pub fn listen(&self) -> Listener<'_> {
        Listener {
            net: self,
            pending: vec![0.0; CONTEXT],
            hidden: [0.0; CELLS],
            cell: [0.0; CELLS],
        }
    }

    /// Hears samples to their end.
    ///
    /// # Errors
    /// Sound that cannot be read.
    pub fn hear(&self, mut samples: Samples) -> Result<Speech> {
        let (mut listener, mut block) = (self.listen(), Vec::new());
        let (mut probabilities, mut count) = (Vec::new(), 0);
        while samples.next_block(&mut block)? {
            count += block.len();
            listener.push(&block, &mut probabilities);
            block.clear();
        }
        listener.finish(&mut probabilities);
        Ok(Speech::new(probabilities, count))
    }
}

/// Hears one recording.
#[derive(Clone, Debug)]
pub struct Listener<'a> {
    net: &'a Silero,
    /// The context of the next step, and what came behind it.
    pending: Vec<f32>,
    hidden: [f32; CELLS],
    cell: [f32; CELLS],
}

impl Listener<'_> {
    /// Takes samples at [`RATE`](crate::RATE), and adds a probability for each step that is full.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.pending.extend_from_slice(samples);
        let mut from = 0;
        while self.pending.len() - from >= CONTEXT + STEP {
            let mut sound = [0.0; CONTEXT + STEP];
            sound.copy_from_slice(&self.pending[from..from + CONTEXT + STEP]);
            out.push(self.step(&sound));
            from += STEP;
        }
        self.pending.drain(..from);
    }

    /// No more will come: zeros fill the last step.
    pub fn finish(mut self, out: &mut Vec<f32>) {
        let rest = self.pending.len() - CONTEXT;
        if rest > 0 {
            self.push(&vec![0.0; STEP - rest], out);
        }
    }

    fn step(&mut self, sound: &[f32; CONTEXT + STEP]) -> f32 {
        let [first, second, third, fourth] = &self.net.convolutions;
        let frames = self.net.magnitudes(sound);
        let frames = first.convolve::<4>(&frames, 1);
        let frames = second.convolve::<2>(&frames, 2);
        let frames = third.convolve::<1>(&frames, 2);
        let mut inputs = fourth.convolve::<1>(&frames, 1);
        inputs.drain(..CELLS);
        inputs[CELLS..].copy_from_slice(&self.hidden);
        self.turn(&inputs);
        let spoken = self.hidden.iter().zip(&self.net.end);
        let sum: f32 = spoken.map(|(h, w)| h.max(0.0) * w).sum();
        sigmoid(sum + self.net.end_bias)
    }

    /// A step of the cell.
    fn turn(&mut self, inputs: &[f32]) {
        let mut gates = [0.0; 4 * CELLS];
        let net = self.net;
        net.cell.product([inputs], |at, [sum]| {
            gates[at..at + LANES].copy_from_slice(&sum);
        });
        for i in 0..CELLS {
            let [enter, keep, new, leave] = [0, 1, 2, 3].map(|gate| gates[gate * CELLS + i]);
            self.cell[i] = sigmoid(keep) * self.cell[i] + sigmoid(enter) * new.tanh();
            self.hidden[i] = sigmoid(leave) * self.cell[i].tanh();
        }
    }
}

impl Silero {
    /// Four frames of magnitudes, with one of zeros before them and one behind.
    fn magnitudes(&self, sound: &[f32; CONTEXT + STEP]) -> Vec<f32> {
        let mut mirrored = sound.to_vec();
        mirrored.extend(sound.iter().rev().skip(1).take(CONTEXT));
        let columns = [0, 1, 2, 3].map(|t| &mirrored[t * HOP..t * HOP + SPAN]);
        let mut parts = vec![[0.0; 4]; self.spectrum.outputs()];
        self.spectrum.product(columns, |at, sums| {
            for (t, sum) in sums.iter().enumerate() {
                for (part, x) in parts[at..].iter_mut().zip(sum) {
                    part[t] = *x;
                }
            }
        });
        let mut frames = vec![0.0; 6 * BINS];
        for (bin, (a, b)) in parts.iter().zip(&parts[BINS..]).take(BINS).enumerate() {
            for t in 0..4 {
                frames[(t + 1) * BINS + bin] = (a[t] * a[t] + b[t] * b[t]).sqrt();
            }
        }
        frames
    }
}

impl Layer {
    /// Of weights `[outputs][inputs]`; outputs are filled up with zeros.
    fn new(weights: &[f32], bias: &[f32], inputs: usize) -> Self {
        let lanes = |values: &[f32]| {
            let mut lanes = [0.0; LANES];
            lanes[..values.len()].copy_from_slice(values);
            lanes
        };
        let eights = weights.chunks(inputs * LANES);
        let across = eights.flat_map(|rows| {
            let column = move |k| rows.iter().skip(k).step_by(inputs);
            (0..inputs).map(move |k| lanes(&column(k).copied().collect::<Vec<_>>()))
        });
        Layer {
            weights: across.collect(),
            bias: bias.chunks(LANES).map(lanes).collect(),
            inputs,
        }
    }

    fn outputs(&self) -> usize {
        self.bias.len() * LANES
    }

    /// Three frames make one, where that is above zero; a frame of zeros lies before the frames and one behind them,
    /// and so it does with what comes out.
    fn convolve<const N: usize>(&self, frames: &[f32], stride: usize) -> Vec<f32> {
        let (channels, outputs) = (self.inputs / 3, self.outputs());
        let column = |t: usize| &frames[t * stride * channels..][..self.inputs];
        let mut out = vec![0.0; (N + 2) * outputs];
        self.product::<N>(from_fn(column), |at, sums| {
            for (t, sum) in sums.iter().enumerate() {
                let to = &mut out[(t + 1) * outputs + at..][..LANES];
                to.copy_from_slice(&sum.map(|x| x.max(0.0)));
            }
        });
        out
    }

    /// The products with some columns, eight outputs after the other.
    fn product<const N: usize>(
        &self,
        columns: [&[f32]; N],
        mut take: impl FnMut(usize, [[f32; LANES]; N]),
    ) {
        let columns = columns.map(|c| &c[..self.inputs]);
        let eights = self.weights.chunks_exact(self.inputs).zip(&self.bias);
        for (i, (weights, bias)) in eights.enumerate() {
            let mut sums = [*bias; N];
            for (k, w) in weights.iter().enumerate() {
                let add = |sum: [f32; LANES], x: f32| from_fn(|lane| sum[lane] + x * w[lane]);
                sums = from_fn(|t| add(sums[t], columns[t][k]));
            }
            take(i * LANES, sums);
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
