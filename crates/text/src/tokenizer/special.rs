//! The roles of special tokens, and which tokens end a generation.

use std::collections::BTreeSet;

use super::vocab::{TokenKind, Vocab};

/// Which token has which role, and what is added around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message that goes on with a tool's answer.
    pub eom: Option<u32>,
    /// Stands for text the vocabulary cannot express.
    pub unk: Option<u32>,
    /// Separates two texts.
    pub sep: Option<u32>,
    /// Fills up a batch.
    pub pad: Option<u32>,
    /// Hides a token that is to be predicted.
    pub mask: Option<u32>,
    /// Holds the meaning of a text.
    pub cls: Option<u32>,
    /// Fill in the middle: before the prefix.
    pub fim_prefix: Option<u32>,
    /// Fill in the middle: before the suffix.
    pub fim_suffix: Option<u32>,
    /// Fill in the middle: where the answer begins.
    pub fim_middle: Option<u32>,
    /// Fill in the middle: ends a file.
    pub fim_pad: Option<u32>,
    /// Fill in the middle: names a repository.
    pub fim_repo: Option<u32>,
    /// Fill in the middle: separates files.
    pub fim_separator: Option<u32>,
    /// Whether a text begins with [`SpecialTokens::bos`].
    pub add_bos: bool,
    /// Whether a text ends with [`SpecialTokens::eos`].
    pub add_eos: bool,
    /// Whether [`SpecialTokens::sep`] stands between two texts.
    pub add_sep: bool,
    /// Whether a space is put before a text that does not begin with one.
    pub add_space_prefix: bool,
}

/// A role, as a place in [`SpecialTokens`].
type Role = fn(&mut SpecialTokens) -> &mut Option<u32>;

/// Metadata keys after `tokenizer.ggml.`; later ones win.
pub(super) const KEYS: &[(&str, Role)] = &[
    ("bos_token_id", |s| &mut s.bos),
    ("eos_token_id", |s| &mut s.eos),
    ("eot_token_id", |s| &mut s.eot),
    ("eom_token_id", |s| &mut s.eom),
    ("unknown_token_id", |s| &mut s.unk),
    ("seperator_token_id", |s| &mut s.sep),
    ("padding_token_id", |s| &mut s.pad),
    ("mask_token_id", |s| &mut s.mask),
    ("cls_token_id", |s| &mut s.cls),
    ("prefix_token_id", |s| &mut s.fim_prefix),
    ("suffix_token_id", |s| &mut s.fim_suffix),
    ("middle_token_id", |s| &mut s.fim_middle),
    ("fim_pre_token_id", |s| &mut s.fim_prefix),
    ("fim_suf_token_id", |s| &mut s.fim_suffix),
    ("fim_mid_token_id", |s| &mut s.fim_middle),
    ("fim_pad_token_id", |s| &mut s.fim_pad),
    ("fim_rep_token_id", |s| &mut s.fim_repo),
    ("fim_sep_token_id", |s| &mut s.fim_separator),
];

/// Texts that give a role away where the file names none.
const TEXTS: &[(Role, &[&str])] = &[
    (
        |s| &mut s.eot,
        &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
    ),
    (|s| &mut s.eom, &["<|eom_id|>"]),
    (
        |s| &mut s.fim_prefix,
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        |s| &mut s.fim_suffix,
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        |s| &mut s.fim_middle,
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (
        |s| &mut s.fim_pad,
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        |s| &mut s.fim_repo,
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    (|s| &mut s.fim_separator, &["<|file_sep|>"]),
];

/// Texts of tokens that end a generation.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Markers that are part of an answer and always shown.
const SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl SpecialTokens {
    /// Fills roles that the file does not name from the texts of tokens, which then are control tokens.
    pub(super) fn detect(&mut self, vocab: &mut Vocab) {
        for (role, texts) in TEXTS {
            if role(self).is_none() {
                let found = texts.iter().find_map(|text| vocab.find(text.as_bytes()));
                *role(self) = found;
                if let Some(id) = found {
                    make_control(vocab, id);
                }
            }
        }
    }

    /// The tokens that end a generation, in order of id.
    pub(super) fn ends(&self, vocab: &mut Vocab) -> Vec<u32> {
        let mut ends: BTreeSet<u32> = [self.fim_pad, self.fim_repo, self.fim_separator]
            .into_iter()
            .flatten()
            .collect();
        for id in found(vocab, ENDS) {
            ends.insert(id);
            make_control(vocab, id);
        }
        for id in found(vocab, SHOWN) {
            vocab.kinds[id as usize] = TokenKind::UserDefined;
        }
        ends.extend([self.eos, self.eot, self.eom].into_iter().flatten());
        drop_inner_ends(vocab, &mut ends);
        ends.into_iter().collect()
    }
}

/// Some formats use a text of [`ENDS`] for something that does not end an answer.
fn drop_inner_ends(vocab: &mut Vocab, ends: &mut BTreeSet<u32>) {
    let has = |text: &str| vocab.find(text.as_bytes()).filter(|id| ends.contains(id));
    let channels = (has("<|return|>").is_some() && has("<|call|>").or(has("<|calls|>")).is_some())
        || (has("<|flush|>").is_some() && has("<|call|>").or(has("<|calls|>")).is_some());
    let end = has("<|end|>").filter(|_| channels);
    let plain = has("<|tool_response>")
        .or(has("<|plamo:eos|>"))
        .and(has("</s>"));
    for (id, kind) in [(end, TokenKind::UserDefined), (plain, TokenKind::Normal)] {
        if let Some(id) = id {
            ends.remove(&id);
            vocab.kinds[id as usize] = kind;
        }
    }
}

fn make_control(vocab: &mut Vocab, id: u32) {
    vocab.kinds[id as usize] = TokenKind::Control;
}

fn found(vocab: &Vocab, texts: &[&str]) -> Vec<u32> {
    texts
        .iter()
        .filter_map(|text| vocab.find(text.as_bytes()))
        .collect()
}
