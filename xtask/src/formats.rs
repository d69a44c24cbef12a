//! What is known of every element type, found out by trying.

#[path = "../../crates/quant/tests/support/inputs.rs"]
#[allow(dead_code)]
mod inputs;

use anyhow::{Result, bail};
use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::fixture::{Feed, Fixture, Rows, noises};
use tokkata_core::DType;
use tokkata_ir::{BackendError, Device, LoadOptions, Op, WeightSource};
use tokkata_quant::{can_quantize, dequantize, dequantize_vec, quantize};

/// Rows and columns of the products; blocks of every type divide the columns.
const N: u32 = 9;
const K: u32 = 256;
/// Rows of activations.
const T: usize = 3;

/// What trying gave: a word for the table, or why it failed.
type Cell = std::result::Result<&'static str, String>;

/// Prints the table; fails if a cell does.
pub(crate) fn run() -> Result<()> {
    println!("| type | dequantise | ref | cpu | quantise |\n|---|---|---|---|---|");
    let mut failures = Vec::new();
    for &dtype in DType::ALL {
        let cells = [
            ("dequantise", reads(dtype)),
            ("ref", product(dtype, &RefBackend::default(), 1e-5)),
            // Products may round activations to eight bits.
            ("cpu", product(dtype, &CpuBackend, 0.02)),
            ("quantise", writes(dtype)),
        ];
        let mut line = format!("| {dtype} |");
        for (what, cell) in cells {
            line += &format!(" {} |", cell.as_ref().map_or("FAILS", |word| word));
            failures.extend(cell.err().map(|why| format!("{dtype} {what}: {why}")));
        }
        println!("{line}");
    }
    if failures.is_empty() {
        return Ok(());
    }
    bail!("{}", failures.join("; "))
}

/// Reads blocks and compares with llama.cpp's digests, or with the definition of the type.
fn reads(dtype: DType) -> Cell {
    let goldens = include_str!("../../crates/quant/tests/goldens/dequantise.txt");
    let golden = goldens.lines().find_map(|line| {
        let rest = line.strip_prefix(&format!("{dtype} "))?;
        rest.strip_prefix("random ").or(rest.strip_prefix("all "))
    });
    let bytes = match dtype {
        DType::F16 | DType::BF16 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        _ => {
            let size = dtype.block_bytes();
            inputs::random_bytes(&format!("{dtype} random"), inputs::RANDOM_BLOCKS * size)
        }
    };
    let elems = bytes.len() / dtype.block_bytes() * dtype.block_elems();
    let values = dequantize_vec(dtype, &bytes, elems).map_err(|e| e.to_string())?;
    let expected = match golden {
        Some(golden) => golden.to_owned(),
        None => inputs::value_digest(&defined(dtype, &bytes)),
    };
    if inputs::value_digest(&values) == expected {
        Ok("exact")
    } else {
        Err("values differ".to_owned())
    }
}

/// Values by definition, of the types that llama.cpp has no reader for.
fn defined(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let word = |b: &[u8]| {
        b.iter()
            .rev()
            .fold(0u64, |word, &byte| word << 8 | u64::from(byte))
    };
    let size = dtype.block_bytes();
    if dtype == DType::Q8_1 {
        let block = |b: &[u8]| {
            let scale = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
            let codes = b[4..].iter();
            codes
                .map(|&c| scale * f32::from(c as i8))
                .collect::<Vec<f32>>()
        };
        return bytes.chunks_exact(size).flat_map(block).collect();
    }
    let value = |b: &[u8]| match dtype {
        DType::F32 => f32::from_bits(word(b) as u32),
        DType::F64 => f64::from_bits(word(b)) as f32,
        DType::I8 => f32::from(word(b) as i8),
        DType::I16 => f32::from(word(b) as i16),
        DType::I32 => word(b) as i32 as f32,
        _ => word(b) as i64 as f32,
    };
    bytes.chunks_exact(size).map(value).collect()
}

/// Writes rows of four kinds and compares with llama.cpp's digests.
fn writes(dtype: DType) -> Cell {
    if !can_quantize(dtype) {
        return Ok("–");
    }
    let importance = inputs::importance(inputs::WIDTH);
    let goldens = include_str!("../../crates/quant/tests/goldens/quantise.txt");
    let mut compared = 0;
    for line in goldens.lines() {
        let parts: Vec<&str> = line.split(' ').collect();
        let [name, shape, kind, digest, ..] = parts[..] else {
            return Err(format!("malformed golden {line}"));
        };
        // Rows with blocks of zeros, which llama.cpp misplaces in this type.
        let misplaced = dtype == DType::IQ3_S && shape == "edges";
        if name != dtype.name() || misplaced {
            continue;
        }
        let rows = inputs::shape(shape);
        let weights = (kind == "weighted").then_some(&importance[..]);
        let mut bytes = vec![0; dtype.row_bytes(rows.len()).unwrap_or(0)];
        let written = quantize(dtype, &rows, inputs::WIDTH, weights, &mut bytes);
        written.map_err(|e| e.to_string())?;
        if inputs::digest(&bytes) != digest {
            return Err(format!("{shape} {kind} differs"));
        }
        compared += 1;
    }
    match compared {
        0 if dtype == DType::F32 => Ok("as it is"),
        0 => Err("nothing to compare with".to_owned()),
        _ => Ok("equal bytes"),
    }
}

/// A matrix whose bytes are given.
struct Matrix {
    dtype: DType,
    bytes: Vec<u8>,
}

impl WeightSource for Matrix {
    fn tensor(&self, _name: &str) -> Option<(DType, Vec<usize>)> {
        Some((self.dtype, vec![N as usize, K as usize]))
    }

    fn read(
        &self,
        _name: &str,
        offset: u64,
        out: &mut [u8],
    ) -> std::result::Result<(), BackendError> {
        let start = offset as usize;
        let bytes = self.bytes.get(start..start + out.len());
        let bytes = bytes.ok_or_else(|| BackendError::Weight("out of range".to_owned()))?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn decode(
        &self,
        dtype: DType,
        raw: &[u8],
        out: &mut [f32],
    ) -> std::result::Result<(), BackendError> {
        dequantize(dtype, raw, out).map_err(|e| BackendError::Weight(e.to_string()))
    }
}

impl Matrix {
    fn new(dtype: DType) -> Self {
        let values = noises(dtype.name(), (N * K) as usize);
        let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap_or(0)];
        let flat = [1.0; K as usize];
        if quantize(dtype, &values, K as usize, Some(&flat), &mut bytes).is_err() {
            bytes = by_hand(dtype, &values);
        }
        Matrix { dtype, bytes }
    }
}

/// Bytes of the types that nothing is quantised to.
fn by_hand(dtype: DType, values: &[f32]) -> Vec<u8> {
    let byte = |v: &f32| (v * 100.0) as i8;
    let block = |head: &[u8], chunk: &[f32], tail: usize| {
        let codes = chunk.iter().map(|v| byte(v) as u8);
        let zeros = std::iter::repeat_n(0, tail);
        head.iter()
            .copied()
            .chain(codes)
            .chain(zeros)
            .collect::<Vec<u8>>()
    };
    let elems = values.chunks(dtype.block_elems());
    match dtype {
        // Scale and sum, then codes.
        DType::Q8_1 => elems
            .flat_map(|c| block(&[0x00, 0x24, 0, 0], c, 0))
            .collect(),
        // Scale and codes, then sums.
        DType::Q8_K => elems
            .flat_map(|c| block(&0.01f32.to_le_bytes(), c, 32))
            .collect(),
        DType::F64 => values
            .iter()
            .flat_map(|&v| f64::from(v).to_le_bytes())
            .collect(),
        _ => values
            .iter()
            .flat_map(|v| i64::from(byte(v)).to_le_bytes()[..dtype.block_bytes()].to_vec())
            .collect(),
    }
}

/// A product on a device against one computed here from the decoded matrix.
fn product(dtype: DType, device: &dyn Device, tolerance: f64) -> Cell {
    let matrix = Matrix::new(dtype);
    let mut fixture = Fixture::default();
    let zeros = vec![0.0; (N * K) as usize];
    let weight = fixture.matrix(DType::F32, &[N, K], &zeros);
    let x = fixture.input(&[K]);
    let op = Op::Matmul {
        weight,
        scale: None,
        bias: None,
    };
    let out = fixture.op(op, &[x], &[N]);
    let run = fixture.load_with(&matrix, device, &LoadOptions::default());
    let mut run = run.map_err(|e| e.to_string())?;
    let rows = noises("activations", T * K as usize);
    let feed = Feed {
        values: vec![(x, rows.clone())],
        ..Feed::default()
    };
    run.step(&[Rows::first(T)], &feed)
        .map_err(|e| e.to_string())?;
    let error = relative_error(&run.floats(out), &expected(&matrix, &rows)?);
    if error <= tolerance {
        Ok("yes")
    } else {
        Err(format!("relative error {error:.2e}"))
    }
}

fn expected(matrix: &Matrix, rows: &[f32]) -> std::result::Result<Vec<f64>, String> {
    let (n, k) = (N as usize, K as usize);
    let weights = dequantize_vec(matrix.dtype, &matrix.bytes, n * k).map_err(|e| e.to_string())?;
    let dot = |x: &[f32], w: &[f32]| -> f64 {
        let terms = x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b));
        terms.sum()
    };
    let row = |x| {
        weights
            .chunks(k)
            .map(move |w| dot(x, w))
            .collect::<Vec<_>>()
    };
    Ok(rows.chunks(k).flat_map(row).collect())
}

fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    let square = |(a, b): (&f32, &f64)| (f64::from(*a) - b).powi(2);
    let error: f64 = found.iter().zip(expected).map(square).sum();
    let size: f64 = expected.iter().map(|b| b * b).sum();
    // A NaN must not pass as small.
    let ratio = (error / size).sqrt();
    if found.len() == expected.len() && ratio.is_finite() {
        ratio
    } else {
        f64::INFINITY
    }
}
