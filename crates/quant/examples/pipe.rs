//! Quantises over a pipe, for `tests/compare.py`.
//!
//! A request is four little-endian `u32` (type code, rows, row length, 1 where importance follows),
//! the rows and the importance as `f32`; the reply is the bytes.

use std::io::{self, Read, Write};

use tokkata_core::DType;
use tokkata_quant::quantize;

fn floats(input: &mut impl Read, count: usize) -> io::Result<Vec<f32>> {
    let mut bytes = vec![0; 4 * count];
    input.read_exact(&mut bytes)?;
    Ok(bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b))
        .collect())
}

fn answer(header: [u32; 4], input: &mut impl Read) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let [code, rows, width, weighted] = header;
    let dtype = DType::from_ggml(code).ok_or("no such type")?;
    let x = floats(input, rows as usize * width as usize)?;
    let importance = if weighted == 1 {
        Some(floats(input, width as usize)?)
    } else {
        None
    };
    let mut bytes = vec![
        0;
        dtype
            .row_bytes(x.len())
            .ok_or("rows are not whole blocks")?
    ];
    quantize(dtype, &x, width as usize, importance.as_deref(), &mut bytes)?;
    Ok(bytes)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut header = [0; 16];
    while input.read_exact(&mut header).is_ok() {
        let words = header.as_chunks::<4>().0;
        let header = std::array::from_fn(|i| u32::from_le_bytes(words[i]));
        output.write_all(&answer(header, &mut input)?)?;
        output.flush()?;
    }
    Ok(())
}
