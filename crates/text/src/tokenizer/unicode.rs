//! Character classes: the part of Unicode's general categories that tokenizers split on.

use std::sync::LazyLock;

use super::unicode_runs::RUNS;

/// A set of character classes, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Set(u16);

/// Upper and title case letters.
pub(super) const UPPER: Set = Set(1);
/// Lower case letters.
pub(super) const LOWER: Set = Set(1 << 1);
/// Letters without case, and modifier letters.
pub(super) const CASELESS: Set = Set(1 << 2);
/// Marks that take no room of their own.
pub(super) const MARK_NONSPACING: Set = Set(1 << 3);
/// The other marks.
const MARK_OTHER: Set = Set(1 << 4);
/// Numbers: `\p{N}`.
pub(super) const NUMBER: Set = Set(1 << 5);
/// Punctuation: `\p{P}`.
pub(super) const PUNCT: Set = Set(1 << 6);
/// Symbols: `\p{S}`.
pub(super) const SYMBOL: Set = Set(1 << 7);
const SPACE_SEPARATOR: Set = Set(1 << 8);
const SPACE_CONTROL: Set = Set(1 << 9);
const CONTROL: Set = Set(1 << 10);

/// White space: `\s`.
pub(super) const SPACE: Set = SPACE_SEPARATOR.or(SPACE_CONTROL);
/// Letters: `\p{L}`.
pub(super) const LETTER: Set = UPPER.or(LOWER).or(CASELESS);
/// Marks: `\p{M}`.
pub(super) const MARK: Set = MARK_NONSPACING.or(MARK_OTHER);
/// Control, format and private use code points; unassigned ones are not among them.
pub(super) const OTHER: Set = CONTROL.or(SPACE_CONTROL);

impl Set {
    /// The classes of either set.
    pub(super) const fn or(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    /// The classes outside the set.
    pub(super) const fn not(self) -> Set {
        Set(!self.0)
    }

    /// Whether the class of `c` is in the set.
    pub(super) fn has(self, c: char) -> bool {
        self.0 >> CLASSES[c as usize] & 1 != 0
    }
}

/// The bit number of every code point's class.
static CLASSES: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut table = Vec::with_capacity(0x11_0000);
    for &(length, letter) in RUNS {
        table.resize(table.len() + length as usize, bit(letter));
    }
    table.into_boxed_slice()
});

fn bit(letter: u8) -> u8 {
    const LETTERS: &[u8] = b"UlonmNPSWwc-";
    LETTERS
        .iter()
        .position(|&l| l == letter)
        .unwrap_or(LETTERS.len() - 1) as u8
}

/// Whether `c` belongs to the Han script (`\p{Han}`).
pub(super) fn is_han(c: char) -> bool {
    const HAN: &[(u32, u32)] = &[
        (0x2E80, 0x2E99),
        (0x2E9B, 0x2EF3),
        (0x2F00, 0x2FD5),
        (0x3005, 0x3005),
        (0x3007, 0x3007),
        (0x3021, 0x3029),
        (0x3038, 0x303B),
        (0x3400, 0x4DBF),
        (0x4E00, 0x9FFF),
        (0xF900, 0xFA6D),
        (0xFA70, 0xFAD9),
        (0x16FE2, 0x16FE3),
        (0x16FF0, 0x16FF1),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2B739),
        (0x2B740, 0x2B81D),
        (0x2B820, 0x2CEA1),
        (0x2CEB0, 0x2EBE0),
        (0x2EBF0, 0x2EE5D),
        (0x2F800, 0x2FA1D),
        (0x30000, 0x3134A),
        (0x31350, 0x323AF),
    ];
    let c = c as u32;
    c >= 0x2E80 && HAN.iter().any(|&(first, last)| (first..=last).contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_unicode_once() {
        assert_eq!(RUNS.iter().map(|&(n, _)| n).sum::<u32>(), 0x11_0000);
    }

    #[test]
    fn known_classes() {
        for (c, set) in [
            ('A', UPPER),
            ('ǅ', UPPER),
            ('z', LOWER),
            ('ª', CASELESS),
            ('中', LETTER),
            ('\u{301}', MARK_NONSPACING),
            ('\u{903}', MARK),
            ('٣', NUMBER),
            ('Ⅷ', NUMBER),
            ('_', PUNCT),
            ('$', SYMBOL),
            ('😀', SYMBOL),
            ('\u{a0}', SPACE),
            ('\u{85}', SPACE),
            ('\u{85}', OTHER),
            ('\u{0}', OTHER),
            ('\u{e000}', OTHER),
        ] {
            assert!(set.has(c), "{c:?}");
        }
        assert!(
            !OTHER.has('\u{378}')
                && !SPACE.has('\u{1c}')
                && !SPACE.has('\u{200b}')
                && !OTHER.has('\u{a0}')
        );
        assert!(is_han('々') && is_han('中') && !is_han('あ') && !is_han('、'));
    }
}
