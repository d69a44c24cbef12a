//! Sets of characters.

use std::fmt::Write as _;

/// Code points as sorted, disjoint, non-adjacent inclusive ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chars {
    ranges: Vec<(u32, u32)>,
}

const LAST: u32 = char::MAX as u32;

impl Chars {
    pub(super) fn any() -> Self {
        Chars::default().negated()
    }

    pub(super) fn of(c: char) -> Self {
        Chars::from_ranges(vec![(c as u32, c as u32)])
    }

    pub(super) fn from_ranges(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Chars { ranges: merged }
    }

    pub(super) fn negated(&self) -> Self {
        let (mut ranges, mut next) = (Vec::new(), 0);
        for &(low, high) in &self.ranges {
            if next < low {
                ranges.push((next, low - 1));
            }
            next = high + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        // Surrogates are not characters.
        let parts = ranges
            .into_iter()
            .flat_map(|(low, high)| [(low, high.min(0xd7ff)), (low.max(0xe000), high)]);
        Chars::from_ranges(parts.filter(|(low, high)| low <= high).collect())
    }

    pub(super) fn union(&self, other: &Chars) -> Self {
        Chars::from_ranges([&self.ranges[..], &other.ranges].concat())
    }

    pub(super) fn meets(&self, other: &Chars) -> bool {
        self.ranges
            .iter()
            .any(|a| other.ranges.iter().any(|b| a.0 <= b.1 && b.0 <= a.1))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// As a class of a regular expression.
    pub(super) fn regex(&self) -> String {
        let mut out = String::new();
        let alone = self.ranges.len() == 1 && self.ranges[0].0 == self.ranges[0].1;
        if !alone {
            out.push('[');
        }
        for &(low, high) in &self.ranges {
            write_char(&mut out, low);
            if high > low {
                out.push('-');
                write_char(&mut out, high);
            }
        }
        if !alone {
            out.push(']');
        }
        out
    }
}

fn write_char(out: &mut String, code: u32) {
    match char::from_u32(code) {
        Some(c) if c.is_ascii_alphanumeric() || c == ' ' || c == '_' => out.push(c),
        _ => {
            let _ = write!(out, "\\x{{{code:x}}}");
        }
    }
}
