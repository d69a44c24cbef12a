//! Files of base64 tokens and ranks: byte pair encoding in which any pair that joins to a token may merge.

use super::config::Config;
use crate::tokenizer::added::{Added, AddedTokens, Overlap};
use crate::tokenizer::base64;
use crate::tokenizer::bpe::{Bpe, BpeParts, Start, WholeWords};
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::pre;
use crate::tokenizer::vocab::{Blob, BytesIndex, TokenKind, Vocab};
use crate::tokenizer::{Model, Tokenizer, Trim};

/// The splitting rules, which such a file does not hold, follow from how many ranks it has.
const RULES: &[(usize, &str)] = &[
    (50_256, "gpt-2"),
    (100_256, "dbrx"),
    (128_000, "dbrx"),
    (151_643, "qwen2"),
    (163_584, "kimi-k2"),
    (163_840, "kimi-k2"),
    (199_998, "gpt-4o"),
    (200_000, "llama4"),
];

/// Whether `bytes` begin like such a file.
pub(super) fn looks_like(bytes: &[u8]) -> bool {
    let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    parse_line(line).is_some()
}

fn parse_line(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let mut parts = line.split(|&b| b == b' ');
    let token = base64::decode(parts.next()?)?;
    let rank = std::str::from_utf8(parts.next()?)
        .ok()?
        .trim_end()
        .parse()
        .ok()?;
    Some((token, rank))
}

/// Builds the tokenizer; special tokens are those of `tokenizer_config.json`.
pub(super) fn load(bytes: &[u8], config: &Config) -> Result<Tokenizer, TokenizerError> {
    let mut ranks = Vec::new();
    for (i, line) in bytes
        .split(|&b| b == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
    {
        let bad = || {
            TokenizerError::malformed("ranks", format!("line {} is not a token and a rank", i + 1))
        };
        ranks.push(parse_line(line).ok_or_else(bad)?);
    }
    ranks.sort_by_key(|&(_, rank)| rank);
    let n = ranks.len();
    if ranks.iter().zip(0..).any(|(&(_, rank), i)| rank != i) {
        return Err(TokenizerError::malformed(
            "ranks",
            "the ranks are not 0, 1, 2 …",
        ));
    }
    let name = RULES
        .iter()
        .find(|(count, _)| *count == n)
        .map(|(_, name)| *name);
    let name = name.ok_or_else(|| {
        TokenizerError::unsupported(
            "ranks",
            format!("a vocabulary of {n} ranks, whose splitting rules it does not hold,"),
        )
    })?;
    let pre = pre::find(name).ok_or_else(|| TokenizerError::UnknownPre { pre: name.into() })?;
    let added = config.added_tokens();
    let vocab = vocabulary(&ranks, &added);
    build(vocab, pre.steps, n, config)
}

fn vocabulary(ranks: &[(Vec<u8>, u32)], added: &[(u32, &str, bool)]) -> Vocab {
    let most = ranks.len() + 65_536;
    let n = added
        .iter()
        .map(|a| a.0 as usize + 1)
        .filter(|&n| n <= most)
        .max()
        .unwrap_or(0)
        .max(ranks.len());
    let mut table: Vec<(&[u8], TokenKind)> = vec![(b"", TokenKind::Unused); n];
    for (slot, (token, _)) in table.iter_mut().zip(ranks) {
        *slot = (token, TokenKind::Normal);
    }
    for (id, text, special) in added {
        let kind = if *special {
            TokenKind::Control
        } else {
            TokenKind::UserDefined
        };
        if let Some(slot) = table.get_mut(*id as usize) {
            *slot = (text.as_bytes(), kind);
        }
    }
    let mut texts = Blob::default();
    table.iter().for_each(|(text, _)| texts.push(text));
    let kinds = table.iter().map(|(_, kind)| *kind).collect();
    Vocab::new(texts, kinds, vec![0.0; n])
}

fn build(
    mut vocab: Vocab,
    steps: Vec<crate::tokenizer::split::Step>,
    n_ranks: usize,
    config: &Config,
) -> Result<Tokenizer, TokenizerError> {
    let mut special = config.roles(&vocab);
    special.detect(&mut vocab);
    let ends_generation = config.ends_generation(&special, &mut vocab);
    vocab.pieces = vocab.texts.clone();
    let ends = config.ends(&special);
    let cut_out = |id: &u32| matches!(vocab.kind(*id), TokenKind::Control | TokenKind::UserDefined);
    let added = (0..vocab.len() as u32)
        .filter(cut_out)
        .map(|id| Added::plain(id, vocab.text(id), vocab.kind(id) == TokenKind::Control));
    let added = AddedTokens::new(added.collect(), Overlap::Leftmost, char::is_whitespace);
    let is_rank = |id: u32| (id as usize) < n_ranks && vocab.kind(id) == TokenKind::Normal;
    let parts = BpeParts {
        tokens: vocab.texts.clone(),
        reachable: &is_rank,
        merges: merges(&vocab, &is_rank),
        prefix_len: 0,
    };
    let mut bpe = Bpe::new(parts, |find| {
        Start::Bytes(Box::new(std::array::from_fn(|b| {
            find(&[b as u8]).unwrap_or(Bpe::NONE)
        })))
    });
    bpe.whole = WholeWords::Kept;
    let (normalizers, second, trim) = (Vec::new(), None, Trim::default());
    let model = Model::Bpe(bpe);
    Ok(Tokenizer {
        vocab,
        added,
        second,
        trim,
        special,
        ends_generation,
        normalizers,
        steps,
        model,
        ends,
    })
}

/// Every way to cut a token into two, in order of the token's rank.
fn merges(vocab: &Vocab, is_rank: &dyn Fn(u32) -> bool) -> Blob {
    let index = BytesIndex::build(&vocab.texts, is_rank);
    let known = |text: &[u8]| index.find(&vocab.texts, text).is_some();
    let mut merges = Blob::default();
    for (_, text) in vocab.texts.iter().filter(|&(id, _)| is_rank(id)) {
        for at in 1..text.len() {
            let (left, right) = text.split_at(at);
            if known(left) && known(right) {
                merges.push(left);
                merges.push(right);
            }
        }
    }
    merges
}
