//! What a file that is not GGUF seems to be.

use crate::error::{Fault, Quoted};

const NOT_A_MODEL: &str = "copy or download the model again";

/// Starts of files that people take for GGUF, with what to do about each.
const KNOWN: &[(&[u8], &str, &str)] = &[
    (
        b"version https://git-lfs",
        "a Git LFS pointer",
        "fetch the file itself with git lfs pull",
    ),
    (
        b"<!",
        "an HTML page",
        "download the model itself instead of its web page",
    ),
    (
        b"<html",
        "an HTML page",
        "download the model itself instead of its web page",
    ),
    (
        b"PK\x03\x04",
        "a ZIP archive or PyTorch checkpoint",
        "convert it to GGUF or safetensors",
    ),
    (
        b"\x80\x02",
        "a Python pickle",
        "convert it to GGUF or safetensors",
    ),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (
        b"tjgg",
        "the retired GGJT format",
        "convert the model again to GGUF",
    ),
    (
        b"fmgg",
        "the retired GGMF format",
        "convert the model again to GGUF",
    ),
    (
        b"algg",
        "a GGLA adapter",
        "convert the adapter again to GGUF",
    ),
    (
        b"FUGG",
        "\"FUGG\", a byte-swapped magic",
        "convert the model again",
    ),
    (b"{", "JSON text", "name the model file or its directory"),
];

/// The fault of a file that does not start with the magic.
pub(super) fn wrong_magic(bytes: &[u8]) -> Fault {
    let known = KNOWN.iter().find(|(start, ..)| bytes.starts_with(start));
    if let Some(&(_, found, advice)) = known {
        return Fault::Magic {
            found: found.to_owned(),
            advice,
        };
    }
    if bytes.get(8) == Some(&b'{') {
        let advice = "name it with the ending .safetensors, beside its config.json";
        return Fault::Magic {
            found: "a safetensors header".to_owned(),
            advice,
        };
    }
    let found = Quoted::new(&bytes[..bytes.len().min(4)]).to_string();
    Fault::Magic {
        found,
        advice: NOT_A_MODEL,
    }
}
