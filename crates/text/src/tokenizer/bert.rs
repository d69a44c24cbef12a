//! BERT's clean-up of a text.

use unicode_normalization::UnicodeNormalization;

use super::unicode::{MARK_NONSPACING, OTHER};

/// What BERT's clean-up does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub(super) struct Clean {
    /// Drops control characters and makes every white space a space.
    pub(super) controls: bool,
    /// Puts spaces around ideographs.
    pub(super) ideographs: bool,
    /// Drops accents.
    pub(super) accents: bool,
    /// Makes letters small.
    pub(super) lowercase: bool,
}

impl Clean {
    /// Cleans `text` up.
    pub(super) fn apply(self, text: &str) -> String {
        let mut out: String = text
            .chars()
            .filter(|&c| !self.controls || is_kept(c))
            .collect();
        if self.controls {
            out = out
                .chars()
                .map(|c| if c.is_whitespace() { ' ' } else { c })
                .collect();
        }
        if self.ideographs {
            out = spread_ideographs(&out);
        }
        if self.accents {
            out = out.nfd().filter(|&c| !MARK_NONSPACING.has(c)).collect();
        }
        if self.lowercase {
            out = out.chars().flat_map(char::to_lowercase).collect();
        }
        out
    }
}

fn is_kept(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r') || (c != '\u{fffd}' && !OTHER.has(c))
}

fn spread_ideographs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_ideograph(c) {
            out.extend([' ', c, ' ']);
        } else {
            out.push(c);
        }
    }
    out
}

/// The blocks that BERT counts as Chinese; the first code points of extension E are not among them.
fn is_ideograph(c: char) -> bool {
    matches!(c as u32,
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F
        | 0x2B740..=0x2B81F | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}
