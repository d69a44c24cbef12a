//! Files of whisper.cpp (`ggml-*.bin`): sizes, band weights, a vocabulary of bytes, and tensors one after the other.
//!
//! The container holds one family of models, so what it leaves unsaid (which tokens are special, how wide the
//! feed-forward is) follows from its sizes. Metadata and names come out as a GGUF file of the family has them.
//! Silero's net comes in a container that begins alike ([`silero`]).

mod names;
mod silero;
mod vocabulary;

use tokkata_core::{Metadata, Value};

use crate::error::{Fault, FormatError, Quoted, Result};
use crate::gguf::{sized, tensor_type};
use crate::model::{Container, Contents};
use crate::part::Part;
use crate::tensor::TensorInfo;

/// Largest size of a dimension that the header may name.
const MOST: u32 = 1 << 20;
/// Bins of a band's weights.
const BINS: u32 = 201;

/// Whether a file begins as these do.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(b"lmgg")
}

/// Reads a file that begins so.
pub(crate) fn from_part(part: Part) -> Result<Contents> {
    let read = match silero::is_one(part.bytes()) {
        true => silero::read(part.bytes()),
        false => read(part.bytes()),
    };
    let (metadata, tensors) = read.map_err(|fault| FormatError::new(&part.name, fault))?;
    Ok(Contents {
        container: Container::Ggml,
        layout: None,
        parts: vec![part],
        metadata,
        tensors,
        packed: Vec::new(),
        other: Vec::new(),
        directory: None,
    })
}

type Read = (Metadata, Vec<TensorInfo>);

fn read(bytes: &[u8]) -> std::result::Result<Read, Fault> {
    let mut walk = Walk { bytes, pos: 4 };
    let sizes = Sizes::read(&mut walk)?;
    let (bands, bins) = (walk.u32("the bands")?, walk.u32("the bands")?);
    if (bands, bins) != (sizes.bands, BINS) {
        return Err(wrong(
            format!("{bands} bands of {bins} weights"),
            format!("{} of {BINS}", sizes.bands),
        ));
    }
    walk.take(u64::from(bands) * u64::from(bins) * 4, "the bands")?;
    let mut metadata = sizes.metadata();
    let count = walk.u32("the vocabulary")?;
    let mut tokens = Vec::new();
    for _ in 0..count {
        let len = walk.u32("a token")?;
        tokens.push(walk.take(len.into(), "a token")?);
    }
    vocabulary::describe(&tokens, sizes.vocab, &mut metadata)?;
    let mut tensors = Vec::new();
    while walk.pos < bytes.len() {
        tensors.push(tensor(&mut walk, &names::canonical)?);
    }
    Ok((metadata, tensors))
}

fn wrong(found: String, expected: String) -> Fault {
    Fault::Split {
        found,
        expected,
        advice: "the file is damaged or of another family, copy or convert it again",
    }
}

/// The numbers at the beginning.
struct Sizes {
    vocab: u32,
    audio: [u32; 4],
    text: [u32; 4],
    bands: u32,
}

impl Sizes {
    fn read(walk: &mut Walk<'_>) -> std::result::Result<Self, Fault> {
        let mut numbers = [0; 11];
        for n in &mut numbers {
            *n = walk.u32("the sizes")?;
        }
        let [vocab, a, b, c, d, e, f, g, h, bands, _ftype] = numbers;
        if numbers[..10].iter().any(|&n| n == 0 || n > MOST) {
            return Err(wrong(
                format!("the sizes {numbers:?}"),
                format!("sizes of 1 to {MOST}"),
            ));
        }
        if (b, c) != (f, g) {
            return Err(wrong(
                format!("an encoder {b} wide with {c} heads and a decoder {f} wide with {g}"),
                "the same".to_owned(),
            ));
        }
        Ok(Sizes {
            vocab,
            audio: [a, b, c, d],
            text: [e, f, g, h],
            bands,
        })
    }

    fn metadata(&self) -> Metadata {
        let mut out = Metadata::default();
        let [_, width, heads, encoder] = self.audio;
        let [ctx, _, _, decoder] = self.text;
        out.insert("general.architecture", Value::from(names::FAMILY));
        let mut set = |key: &str, value| {
            out.insert(format!("{}.{key}", names::FAMILY), value);
        };
        set("context_length", Value::U32(ctx));
        set("embedding_length", Value::U32(width));
        set("block_count", Value::U32(encoder));
        set("decoder_block_count", Value::U32(decoder));
        set("feed_forward_length", Value::U32(4 * width));
        set("attention.head_count", Value::U32(heads));
        set("attention.head_count_kv", Value::U32(heads));
        set("attention.layer_norm_epsilon", Value::F32(1e-5));
        set("mel_bins", Value::U32(self.bands));
        out
    }
}

fn tensor(
    walk: &mut Walk<'_>,
    canonical: &dyn Fn(&str) -> Option<String>,
) -> std::result::Result<TensorInfo, Fault> {
    const WHAT: &str = "a tensor";
    let (dims, len, code) = (walk.u32(WHAT)?, walk.u32(WHAT)?, walk.u32(WHAT)?);
    if dims > 4 {
        return Err(Fault::Dims {
            tensor: Quoted::new("?"),
            found: dims.into(),
            limit: 4,
        });
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        shape.push(u64::from(walk.u32(WHAT)?));
    }
    shape.reverse();
    let raw = walk.take(len.into(), WHAT)?;
    let stored = std::str::from_utf8(raw).map_err(|_| Fault::Name {
        what: "tensor name",
        found: Quoted::new(raw),
    })?;
    let name = canonical(stored).ok_or_else(|| {
        wrong(
            format!("the tensor {}", Quoted::new(stored)),
            "one of the family's names".to_owned(),
        )
    })?;
    let dtype = tensor_type(stored, code)?;
    let (mut shape, bytes) = sized(stored, dtype, &shape)?;
    if name.ends_with(".bias") {
        // Those of convolutions are stored as columns.
        shape = vec![shape.iter().product()];
    }
    let offset = walk.pos as u64;
    walk.take(bytes, WHAT)?;
    Ok(TensorInfo {
        name,
        dtype,
        shape,
        part: 0,
        offset,
        bytes,
    })
}

/// A checked walk over the whole file.
struct Walk<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Walk<'a> {
    fn take(&mut self, need: u64, what: &'static str) -> std::result::Result<&'a [u8], Fault> {
        let (at, have) = (self.pos as u64, (self.bytes.len() - self.pos) as u64);
        if need > have {
            return Err(Fault::Truncated {
                what,
                at,
                need,
                have,
            });
        }
        let taken = &self.bytes[self.pos..self.pos + need as usize];
        self.pos += need as usize;
        Ok(taken)
    }

    fn u32(&mut self, what: &'static str) -> std::result::Result<u32, Fault> {
        let raw = self.take(4, what)?;
        Ok(u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]))
    }
}
