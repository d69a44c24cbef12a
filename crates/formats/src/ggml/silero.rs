//! Silero's net as whisper.cpp keeps it (`ggml-silero-*.bin`): a kind, a version, sizes, and tensors as those of the
//! family are. Names come out as the safetensors file of the net has them.

use tokkata_core::{Metadata, Value};

use super::{Read, Walk, tensor, wrong};
use crate::error::{Fault, Quoted};

/// What is known of the container's nets.
const KIND: &str = "silero-16k";
const FAMILY: &str = "silero-vad";

/// Samples of a step and before it, the convolutions, and what follows them.
const SIZES: [u32; 19] = [
    512, 64, 4, 129, 128, 3, 128, 64, 3, 64, 64, 3, 64, 128, 3, 128, 128, 128, 1,
];

const NAMES: &[(&str, &str)] = &[
    ("stft.forward_basis_buffer", "stft_conv.weight"),
    ("encoder.0.reparam_conv.weight", "conv1.weight"),
    ("encoder.0.reparam_conv.bias", "conv1.bias"),
    ("encoder.1.reparam_conv.weight", "conv2.weight"),
    ("encoder.1.reparam_conv.bias", "conv2.bias"),
    ("encoder.2.reparam_conv.weight", "conv3.weight"),
    ("encoder.2.reparam_conv.bias", "conv3.bias"),
    ("encoder.3.reparam_conv.weight", "conv4.weight"),
    ("encoder.3.reparam_conv.bias", "conv4.bias"),
    ("decoder.rnn.weight_ih", "lstm_cell.weight_ih"),
    ("decoder.rnn.weight_hh", "lstm_cell.weight_hh"),
    ("decoder.rnn.bias_ih", "lstm_cell.bias_ih"),
    ("decoder.rnn.bias_hh", "lstm_cell.bias_hh"),
    ("decoder.decoder.2.weight", "final_conv.weight"),
    ("decoder.decoder.2.bias", "final_conv.bias"),
];

/// Whether a file of whisper.cpp says that it is such a net; the others have a number of tokens here.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    bytes.get(8..).is_some_and(|b| b.starts_with(b"silero"))
}

pub(super) fn read(bytes: &[u8]) -> Result<Read, Fault> {
    let mut walk = Walk { bytes, pos: 4 };
    let len = walk.u32("the kind of net")?;
    let kind = walk.take(len.into(), "the kind of net")?;
    if kind != KIND.as_bytes() {
        return Err(wrong(
            format!("a net of the kind {}", Quoted::new(kind)),
            format!("{KIND:?}"),
        ));
    }
    let (mut version, mut sizes) = ([0; 3], [0; SIZES.len()]);
    for n in version.iter_mut().chain(&mut sizes) {
        *n = walk.u32("the sizes")?;
    }
    if sizes != SIZES {
        return Err(wrong(format!("the sizes {sizes:?}"), format!("{SIZES:?}")));
    }
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::from(FAMILY));
    let version = version.map(|n| n.to_string()).join(".");
    metadata.insert("general.version", Value::from(version.as_str()));
    let mut tensors = Vec::new();
    while walk.pos < bytes.len() {
        tensors.push(tensor(&mut walk, &canonical)?);
    }
    Ok((metadata, tensors))
}

fn canonical(stored: &str) -> Option<String> {
    let stored = stored.strip_prefix("_model.")?;
    let (_, name) = NAMES.iter().find(|n| n.0 == stored)?;
    Some((*name).to_owned())
}
