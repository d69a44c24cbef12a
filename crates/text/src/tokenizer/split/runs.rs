//! Splitting rules that look at one kind of character at a time, and the scanning helpers.

use super::super::unicode::{MARK, NUMBER, PUNCT, SPACE, Set};

/// The character at byte `at`.
pub(super) fn char_at(text: &str, at: usize) -> Option<char> {
    match text.as_bytes().get(at) {
        None => None,
        Some(&b) if b < 0x80 => Some(b as char),
        Some(_) => text[at..].chars().next(),
    }
}

/// Bytes of the character at `at`, 1 at the end of the text.
pub(super) fn char_len(text: &str, at: usize) -> usize {
    char_at(text, at).map_or(1, char::len_utf8)
}

/// The character before byte `end`; the caller knows there is one.
pub(super) fn last_char(text: &str, end: usize) -> char {
    text[..end].chars().next_back().unwrap_or('\0')
}

/// The end of the characters of `set` from `at` on.
pub(super) fn run(text: &str, at: usize, set: Set) -> usize {
    let mut end = at;
    while let Some(c) = char_at(text, end) {
        if !set.has(c) {
            break;
        }
        end += c.len_utf8();
    }
    end
}

/// Inclusive ranges of code points.
pub(in super::super) type Ranges = &'static [(char, char)];

fn in_ranges(ranges: Ranges, c: char) -> bool {
    ranges
        .iter()
        .any(|&(first, last)| (first..=last).contains(&c))
}

/// A rule about runs of characters.
#[derive(Clone, Debug)]
pub(in super::super) enum Runs {
    /// Up to so many characters of a class: `\p{N}{1,3}`.
    Class(Set, usize),
    /// A run of punctuation, or of these further characters.
    PunctOr(&'static str),
    /// One punctuation or ASCII symbol character.
    OnePunctOrAscii,
    /// An optional white space character and a run of a class: `\s?\p{L}+`.
    SpaceClass(Set),
    /// An optional white space character and a run of these ranges.
    SpaceRanges(Ranges),
    /// A run of the first of these alternatives that fits.
    AnyOf(&'static [Ranges]),
    /// White space at the end: `\s+$`.
    TrailingSpace,
    /// One `\r` or `\n`.
    LineEnd,
    /// Exactly three ASCII digits.
    ThreeDigits,
    /// An optional space and characters that are neither white space nor one of these.
    SpaceNot(&'static str),
    /// Lines and runs of line feeds: `[^\n]+|[\n]+`.
    Lines,
    /// `\S+`
    NonSpace,
    /// `[\t\n]|    |  `
    TabsAndPairs,
    /// Digits in groups of three.
    DigitGroups(DigitGroups),
    /// `<sentinel:[0-9]+>`
    Sentinel,
    /// `(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z`
    ImageTokens,
}

impl Runs {
    /// The end of the match that starts at `at`.
    pub(super) fn end(&self, text: &str, at: usize) -> Option<usize> {
        let c = char_at(text, at)?;
        let bytes = &text.as_bytes()[at..];
        match self {
            Runs::Class(set, most) => Some(at + bounded_run(&text[at..], *set, *most)),
            Runs::PunctOr(more) => Some(run_where(text, at, |c| PUNCT.has(c) || more.contains(c))),
            Runs::OnePunctOrAscii => {
                (PUNCT.has(c) || c.is_ascii_punctuation()).then(|| at + c.len_utf8())
            }
            Runs::SpaceClass(set) => after_space(text, at, c, |c| set.has(c)),
            Runs::SpaceRanges(ranges) => after_space(text, at, c, |c| in_ranges(ranges, c)),
            Runs::AnyOf(sets) => {
                let set = sets.iter().find(|set| in_ranges(set, c))?;
                Some(run_where(text, at, |c| in_ranges(set, c)))
            }
            Runs::TrailingSpace => Some(run(text, at, SPACE)).filter(|&end| end == text.len()),
            Runs::LineEnd => matches!(c, '\r' | '\n').then_some(at + 1),
            Runs::ThreeDigits => bytes
                .get(..3)
                .filter(|d| d.iter().all(u8::is_ascii_digit))
                .map(|_| at + 3),
            Runs::SpaceNot(stops) => {
                let start = if c == ' ' { at + 1 } else { at };
                let end = run_where(text, start, |c| !SPACE.has(c) && !stops.contains(c));
                (end > start).then_some(end)
            }
            Runs::Lines => Some(run_where(text, at, |d| (d == '\n') == (c == '\n'))),
            Runs::NonSpace => Some(run(text, at, SPACE.not())),
            Runs::TabsAndPairs => tabs_and_pairs(bytes).map(|n| at + n),
            Runs::DigitGroups(_) => None,
            Runs::Sentinel => sentinel(bytes).map(|n| at + n),
            Runs::ImageTokens => image_tokens(bytes).map(|n| at + n),
        }
    }
}

fn bounded_run(text: &str, set: Set, most: usize) -> usize {
    text.chars()
        .take(most)
        .take_while(|&c| set.has(c))
        .map(char::len_utf8)
        .sum()
}

fn run_where(text: &str, at: usize, wanted: impl Fn(char) -> bool) -> usize {
    at + text[at..].find(|c| !wanted(c)).unwrap_or(text.len() - at)
}

/// `\s?[…]+`, the white space being given back when it is in the class itself.
fn after_space(text: &str, at: usize, c: char, wanted: impl Fn(char) -> bool) -> Option<usize> {
    let start = if SPACE.has(c) { at + c.len_utf8() } else { at };
    let end = run_where(text, start, &wanted);
    if end > start {
        return Some(end);
    }
    Some(run_where(text, at, wanted)).filter(|&end| end > at)
}

fn tabs_and_pairs(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\t' | b'\n', ..] => Some(1),
        [b' ', b' ', b' ', b' ', ..] => Some(4),
        [b' ', b' ', ..] => Some(2),
        _ => None,
    }
}

fn sentinel(bytes: &[u8]) -> Option<usize> {
    const START: &[u8] = b"<sentinel:";
    let digits = bytes
        .strip_prefix(START)?
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .count();
    let end = START.len() + digits;
    (digits > 0 && bytes.get(end) == Some(&b'>')).then_some(end + 1)
}

fn image_tokens(bytes: &[u8]) -> Option<usize> {
    const START: &[u8] = b"IMGIMG";
    let rest = bytes.strip_prefix(START)?;
    let letters = rest
        .iter()
        .take_while(|b| (b'A'..=b'I').contains(b))
        .count();
    ((1..=4).contains(&letters) && rest.get(letters) == Some(&b'Z'))
        .then_some(START.len() + letters + 1)
}

/// How a run of digits is cut into groups of three from its right end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum DigitGroups {
    /// Every run; text between runs stays whole.
    Always,
    /// Decimal digits before a word boundary: `\d{1,3}(?=(?:\d{3})*\b)`.
    AtBoundary,
    /// Cuts without a match of their own: `(?=(\d{3})+(?!\d))`.
    Between,
}

impl DigitGroups {
    /// Calls `emit` with every piece of `text` and whether it is a match.
    pub(super) fn pieces<'a>(self, text: &'a str, emit: &mut impl FnMut(&'a str, bool)) {
        let (mut gap, mut at) = (0, 0);
        while at < text.len() {
            let end = run_where(text, at, |c| self.is_digit(c));
            if end == at {
                at += char_len(text, at);
                continue;
            }
            let whole = self == DigitGroups::AtBoundary && char_at(text, end).is_some_and(is_word);
            if !whole {
                gap = self.groups(text, (gap, at, end), emit);
            }
            at = end;
        }
        super::emit_if_any(&text[gap..], emit);
    }

    fn is_digit(self, c: char) -> bool {
        match self {
            DigitGroups::Always => NUMBER.has(c),

            _ => c.is_ascii_digit() || is_decimal(c),
        }
    }

    /// Emits the groups of the digits in `at..end` after the `gap` before them; returns the new gap.
    fn groups<'a>(
        self,
        text: &'a str,
        (gap, at, end): (usize, usize, usize),
        emit: &mut impl FnMut(&'a str, bool),
    ) -> usize {
        let cuts: Vec<usize> = text[at..end].char_indices().map(|(i, _)| at + i).collect();
        let n = cuts.len();
        let mut start = gap;
        let matched = self != DigitGroups::Between;
        if matched && at > gap {
            emit(&text[gap..at], false);
            start = at;
        }
        for (i, &cut) in cuts.iter().enumerate() {
            if (n - i).is_multiple_of(3) && cut > start {
                emit(&text[start..cut], matched);
                start = cut;
            }
        }
        if matched {
            emit(&text[start..end], true);
            start = end;
        }
        start
    }
}

/// Whether `c` is a decimal digit outside ASCII (`\d`).
fn is_decimal(c: char) -> bool {
    /// Zeros of the blocks of ten digits.
    const ZEROS: &[u32] = &[
        0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6,
        0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0,
        0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0,
        0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0,
        0x11450, 0x114D0, 0x11650, 0x116C0, 0x11730, 0x118E0, 0x11950, 0x11C50, 0x11D50, 0x11DA0,
        0x11F50, 0x16A60, 0x16AC0, 0x16B50, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140,
        0x1E2F0, 0x1E4F0, 0x1E950, 0x1FBF0,
    ];
    let c = c as u32;
    c >= 0x0660 && ZEROS.iter().any(|&zero| (zero..zero + 10).contains(&c))
}

/// Whether `c` is a word character (`\w`): alphabetic, a mark, a number or connecting punctuation.
fn is_word(c: char) -> bool {
    const CONNECTORS: &str = "_‿⁀⁔︳︴﹍﹎﹏＿";
    c.is_alphanumeric() || MARK.or(NUMBER).has(c) || CONNECTORS.contains(c)
}
