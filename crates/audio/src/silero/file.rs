//! The net's weights out of a file.

use std::io::Read;
use std::path::Path;

use tokkata_formats::{ModelFile, TensorInfo};

use super::{BINS, CELLS, Layer, SPAN, Silero};
use crate::error::{AudioError, Result};

const EXPECTED: &str = "silero_vad_16k.safetensors of the Python package silero-vad, or whisper.cpp's ggml-silero-*.bin";

/// Channels into a convolution and out of it.
const CHANNELS: [(usize, usize); 4] = [(BINS, 128), (128, 64), (64, 64), (64, CELLS)];

pub(super) fn open(path: &Path) -> Result<Silero> {
    let mut start = Vec::new();
    let begun = std::fs::File::open(path).and_then(|file| file.take(4).read_to_end(&mut start));
    let known = path.extension().is_some_and(|e| e == "safetensors") || start == *b"lmgg";
    // What is empty or cannot be read is told of as for any model.
    if begun.is_ok() && !known && !start.is_empty() {
        return Err(wrong(path, kind(&start, path).to_owned()));
    }
    read(&ModelFile::open(path)?)
}

/// What a file is that is none of those which are read.
fn kind(start: &[u8], path: &Path) -> &'static str {
    match start {
        b"GGUF" => "a GGUF file",
        b"PK\x03\x04" => "a ZIP archive, as those of TorchScript are",
        _ if path.extension().is_some_and(|e| e == "onnx") => "an ONNX file",
        _ => "a file of another kind",
    }
}

fn wrong(path: &Path, found: String) -> AudioError {
    AudioError::Net {
        name: path.display().to_string(),
        found,
        expected: EXPECTED.to_owned(),
    }
}

pub(super) fn read(file: &ModelFile) -> Result<Silero> {
    let mut tensors = Tensors { file, taken: 0 };
    if let Some(family) = file.architecture().filter(|f| *f != "silero-vad") {
        return Err(wrong(
            file.path(),
            format!("a model of the family {family}"),
        ));
    }
    let spectrum = tensors.take("stft_conv.weight", &[2 * BINS, SPAN])?;
    let silero = Silero {
        spectrum: Layer::new(&spectrum, &[0.0; 2 * BINS], SPAN),
        convolutions: [
            tensors.convolution(1)?,
            tensors.convolution(2)?,
            tensors.convolution(3)?,
            tensors.convolution(4)?,
        ],
        cell: tensors.cell()?,
        end: tensors.take("final_conv.weight", &[CELLS])?,
        end_bias: tensors.take("final_conv.bias", &[])?[0],
    };
    tensors.none_left()?;
    Ok(silero)
}

/// `[out][channel][frame]` as `[out][frame][channel]`.
fn by_frame(weights: &[f32], channels: usize) -> Vec<f32> {
    let rows = weights.chunks_exact(3 * channels);
    rows.flat_map(|row| (0..3).flat_map(move |t| row.iter().skip(t).step_by(3).copied()))
        .collect()
}

struct Tensors<'a> {
    file: &'a ModelFile,
    taken: usize,
}

impl Tensors<'_> {
    fn wrong(&self, found: String, expected: String) -> AudioError {
        AudioError::Net {
            name: self.file.path().display().to_string(),
            found,
            expected,
        }
    }

    /// A tensor of this shape, of which dimensions of one element are no part.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let Some(info) = self.file.tensor(name) else {
            let found = format!("no tensor {name}");
            return Err(self.wrong(found, EXPECTED.to_owned()));
        };
        let sizes: Vec<usize> = info.shape.iter().copied().filter(|&n| n != 1).collect();
        if sizes != shape {
            let found = format!("the shape {:?} for the tensor {name}", info.shape);
            return Err(self.wrong(found, format!("{shape:?}")));
        }
        self.taken += 1;
        self.numbers(info)
    }

    fn numbers(&self, info: &TensorInfo) -> Result<Vec<f32>> {
        let bytes = self.file.data(info)?;
        let numbers = tokkata_quant::dequantize_vec(info.dtype, bytes, info.elements());
        let finite = numbers.ok().filter(|all| all.iter().all(|x| x.is_finite()));
        finite.ok_or_else(|| {
            let found = format!("what is no number in the tensor {}", info.name);
            self.wrong(found, "numbers alone; download the file again".to_owned())
        })
    }

    fn convolution(&mut self, number: usize) -> Result<Layer> {
        let (from, to) = CHANNELS[number - 1];
        let weights = self.take(&format!("conv{number}.weight"), &[to, from, 3])?;
        let bias = self.take(&format!("conv{number}.bias"), &[to])?;
        Ok(Layer::new(&by_frame(&weights, from), &bias, 3 * from))
    }

    fn cell(&mut self) -> Result<Layer> {
        let mut parts = Vec::new();
        for part in ["ih", "hh"] {
            let name = |kind: &str| format!("lstm_cell.{kind}_{part}");
            let weights = self.take(&name("weight"), &[4 * CELLS, CELLS])?;
            parts.push((weights, self.take(&name("bias"), &[4 * CELLS])?));
        }
        let (ins, outs) = (&parts[0], &parts[1]);
        let rows = ins.0.chunks_exact(CELLS).zip(outs.0.chunks_exact(CELLS));
        let weights: Vec<f32> = rows.flat_map(|(a, b)| [a, b].concat()).collect();
        let bias: Vec<f32> = ins.1.iter().zip(&outs.1).map(|(a, b)| a + b).collect();
        Ok(Layer::new(&weights, &bias, 2 * CELLS))
    }

    fn none_left(&self) -> Result<()> {
        let found = self.file.tensors().len() + self.file.other_tensors().len();
        match found == self.taken {
            true => Ok(()),
            false => Err(self.wrong(format!("{found} tensors"), format!("{}", self.taken))),
        }
    }
}
