//! The vocabulary: bytes of tokens by rank in the file; special tokens and merges follow from it.

use std::collections::HashMap;

use bstr::BString;
use tokkata_core::{Array, Metadata, Value};

use super::wrong;
use crate::error::Fault;

/// Timestamps from 0 to 30 seconds, every fiftieth of one.
const TIMES: u32 = 1501;
/// The first vocabulary with more than one language.
const MANY: u32 = 51_865;
/// Special tokens beside languages and timestamps.
const MARKS: u32 = 8;
const LANGUAGES: &str = "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur \
    hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be \
    tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue";

/// Adds the tokenizer to the metadata.
pub(super) fn describe(tokens: &[&[u8]], vocab: u32, out: &mut Metadata) -> Result<(), Fault> {
    let base = if vocab >= MANY { 50_257 } else { 50_256 };
    let languages: Vec<&str> = LANGUAGES.split_whitespace().collect();
    let count = vocab.checked_sub(base + MARKS + TIMES);
    let count = count.filter(|n| (99..=languages.len() as u32).contains(n));
    let Some(count) = count.filter(|_| tokens.len() as u32 >= base) else {
        return Err(wrong(
            format!("a vocabulary of {vocab} with {} tokens", tokens.len()),
            "51864 with 50256 tokens, or 51865 or 51866 with 50257".to_owned(),
        ));
    };
    let tokens = &tokens[..base as usize];
    let mut texts: Vec<BString> = tokens.iter().map(|t| letters(t)).collect();
    let mut kinds = vec![1; texts.len()];
    let mark = |name: &str| BString::from(format!("<|{name}|>"));
    texts.extend(["endoftext", "startoftranscript"].map(mark));
    texts.extend(languages[..count as usize].iter().map(|l| mark(l)));
    let marks = ["translate", "transcribe", "startoflm", "startofprev"];
    texts.extend(marks.map(mark));
    texts.extend(["nospeech", "notimestamps"].map(mark));
    texts.extend((0..TIMES).map(|i| mark(&format!("{:.2}", f64::from(i) * 0.02))));
    kinds.resize(texts.len(), 3);
    let mut set = |key: &str, value| out.insert(format!("tokenizer.ggml.{key}"), value);
    set("model", Value::from("gpt2"));
    set("pre", Value::from("gpt-2"));
    set("merges", Value::Array(Array::Str(merges(tokens))));
    set("tokens", Value::Array(Array::Str(texts)));
    set("token_type", Value::Array(Array::I32(kinds)));
    set("bos_token_id", Value::U32(base));
    set("eos_token_id", Value::U32(base));
    set("add_bos_token", Value::Bool(false));
    Ok(())
}

/// Bytes in the alphabet that byte-level tokenizers write them in.
fn letters(bytes: &[u8]) -> BString {
    let mut next = 256u32;
    let mut alphabet = ['\0'; 256];
    for b in 0..=255u8 {
        let own = matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        alphabet[usize::from(b)] = if own {
            char::from(b)
        } else {
            next += 1;
            char::from_u32(next - 1).expect("letters of Latin Extended-A")
        };
    }
    let text: String = bytes.iter().map(|&b| alphabet[usize::from(b)]).collect();
    text.into()
}

/// The merges that make each token of those before it, `left right`.
fn merges(tokens: &[&[u8]]) -> Vec<BString> {
    let ranks = (0..).zip(tokens).map(|(i, t)| (*t, i));
    let ranks: HashMap<&[u8], usize> = ranks.collect();
    let mut merges = Vec::new();
    for (rank, token) in tokens.iter().enumerate() {
        let parts = parts(token, rank, &ranks);
        if let [left, right] = parts[..] {
            let mut merge = letters(left);
            merge.push(b' ');
            merge.extend_from_slice(&letters(right));
            merges.push(merge);
        }
    }
    merges
}

/// What is left of a token when only merges before its own are made.
fn parts<'a>(token: &'a [u8], rank: usize, ranks: &HashMap<&[u8], usize>) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    loop {
        let pairs = ends.windows(3).enumerate();
        let ranked = pairs.filter_map(|(i, w)| Some((*ranks.get(&token[w[0]..w[2]])?, i)));
        match ranked.filter(|r| r.0 < rank).min() {
            Some((_, i)) => drop(ends.remove(i + 1)),
            None => return ends.windows(2).map(|w| &token[w[0]..w[1]]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_follow_from_ranks() {
        let tokens: [&[u8]; 7] = [b"a", b"b", b" ", b"ab", b" a", b"abab", b" ab"];
        let found: Vec<String> = merges(&tokens).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["a b", "\u{120} a", "ab ab", "\u{120} ab"]);
    }

    #[test]
    fn a_vocabulary_of_no_known_size_is_refused() {
        let tokens: Vec<&[u8]> = vec![b"a"; 50_257];
        for (vocab, fits) in [
            (51_863, false),
            (51_865, true),
            (51_866, true),
            (52_000, false),
        ] {
            let mut out = Metadata::default();
            assert_eq!(describe(&tokens, vocab, &mut out).is_ok(), fits, "{vocab}");
        }
        assert!(describe(&tokens[..9], 51_865, &mut Metadata::default()).is_err());
    }
}
