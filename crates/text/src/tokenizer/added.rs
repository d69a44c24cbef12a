//! Tokens that are cut out of a text before anything else is split.

use std::ops::Range;

use super::trie::Trie;

/// A token matched in raw text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) text: Vec<u8>,
    /// Found only when special tokens are parsed.
    pub(super) special: bool,
    /// Swallows the white space before it.
    pub(super) lstrip: bool,
    /// Swallows the white space after it.
    pub(super) rstrip: bool,
    /// Found only where no letter, digit or `_` touches it.
    pub(super) single_word: bool,
}

impl Added {
    /// A token without rules of its own.
    pub(super) fn plain(id: u32, text: &[u8], special: bool) -> Self {
        let text = text.to_vec();
        Added {
            id,
            text,
            special,
            lstrip: false,
            rstrip: false,
            single_word: false,
        }
    }
}

/// Which of two overlapping matches counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// The one that starts first, then the longer.
    Leftmost,
    /// The longer, then the one that starts first.
    Longest,
}

/// Where the spellings of special tokens are these tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Specials<'a> {
    Nowhere,
    /// Where no byte lies in these ranges, which are sorted and disjoint.
    Outside(&'a [Range<usize>]),
}

impl Specials<'_> {
    fn allow(self, start: usize, end: usize) -> bool {
        let Specials::Outside(ranges) = self else {
            return false;
        };
        let next = ranges.partition_point(|range| range.end <= start);
        ranges.get(next).is_none_or(|range| end <= range.start)
    }
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    /// Text to encode.
    Text(&'a str),
    /// A token that was found.
    Token(u32),
}

/// The matcher.
#[derive(Clone, Debug)]
pub(super) struct AddedTokens {
    tokens: Vec<Added>,
    /// Every token, and those found without parsing special ones; values index `tokens`.
    all: Trie,
    ordinary: Trie,
    overlap: Overlap,
    white_space: fn(char) -> bool,
}

#[derive(Clone, Copy, Debug)]
struct Match {
    start: usize,
    end: usize,
    index: u32,
}

impl AddedTokens {
    /// A matcher for `tokens`, whose strip rules count `white_space`.
    pub(super) fn new(tokens: Vec<Added>, overlap: Overlap, white_space: fn(char) -> bool) -> Self {
        let keys = |wanted: &dyn Fn(&Added) -> bool| {
            let wanted = (0..).zip(&tokens).filter(|(_, t)| wanted(t));
            Trie::build(wanted.map(|(i, t)| (&t.text[..], i)))
        };
        let (all, ordinary) = (keys(&|_| true), keys(&|t| !t.special));
        AddedTokens {
            tokens,
            all,
            ordinary,
            overlap,
            white_space,
        }
    }

    /// Calls `emit` with the parts of `text` in order.
    pub(super) fn split<'a>(
        &self,
        text: &'a str,
        specials: Specials<'_>,
        emit: &mut dyn FnMut(Segment<'a>),
    ) {
        let mut done = 0;
        let mut at = 0;
        while let Some(found) = self.next(specials, text, at) {
            let token = &self.tokens[found.index as usize];
            let mut before = &text[done..found.start];
            if token.lstrip {
                before = before.trim_end_matches(self.white_space);
            }
            if !before.is_empty() {
                emit(Segment::Text(before));
            }
            emit(Segment::Token(token.id));
            at = found.end;
            if token.rstrip {
                at = text.len() - text[at..].trim_start_matches(self.white_space).len();
            }
            done = at;
        }
        if done < text.len() {
            emit(Segment::Text(&text[done..]));
        }
    }

    /// The first match from `from` on that counts.
    fn next(&self, specials: Specials<'_>, text: &str, from: usize) -> Option<Match> {
        let found = self.first(specials, text, from, text.len())?;
        match self.overlap {
            Overlap::Leftmost => Some(found),
            Overlap::Longest => Some(self.give_way(specials, text, found)),
        }
    }

    /// The leftmost match, longest first, that starts in `from..to`.
    fn first(&self, specials: Specials<'_>, text: &str, from: usize, to: usize) -> Option<Match> {
        let trie = match specials {
            Specials::Nowhere => &self.ordinary,
            Specials::Outside(_) => &self.all,
        };
        let bytes = text.as_bytes();
        (from..to)
            .filter(|&at| trie.starts_with(bytes[at]))
            .find_map(|start| {
                let ends = trie.prefixes(&bytes[start..]);
                let fits = ends.filter(|&(length, index)| {
                    let end = start + length;
                    let special = self.tokens[index as usize].special;
                    (!special || specials.allow(start, end)) && self.fits(text, (start, end), index)
                });
                fits.last().map(|(length, index)| Match {
                    start,
                    end: start + length,
                    index,
                })
            })
    }

    fn fits(&self, text: &str, (start, end): (usize, usize), index: u32) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        !self.tokens[index as usize].single_word
            || !(text[..start].chars().next_back().is_some_and(is_word)
                || text[end..].chars().next().is_some_and(is_word))
    }

    /// Steps aside for a longer match that starts inside `found`: what is left of `found` is searched again.
    fn give_way(&self, specials: Specials<'_>, text: &str, found: Match) -> Match {
        let mut longest = found;
        let mut at = found.start + 1;
        // Chains of ever longer matches, each starting inside the last.
        while let Some(next) = self.first(specials, text, at, longest.end) {
            if next.end - next.start > longest.end - longest.start {
                longest = next;
            }
            at = next.start + 1;
        }
        if longest.start == found.start {
            return found;
        }
        let before = &text[..longest.start];
        self.first(specials, before, found.start, before.len())
            .map_or(longest, |m| self.give_way(specials, before, m))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(texts: &[&str]) -> Vec<Added> {
        (0..)
            .zip(texts)
            .map(|(id, t)| Added::plain(id, t.as_bytes(), t.starts_with('<')))
            .collect()
    }

    fn split(added: &AddedTokens, text: &str, parse: bool) -> Vec<String> {
        let mut out = Vec::new();
        let specials = if parse {
            Specials::Outside(&[])
        } else {
            Specials::Nowhere
        };
        added.split(text, specials, &mut |segment| {
            out.push(match segment {
                Segment::Text(text) => text.to_owned(),
                Segment::Token(id) => format!("#{id}"),
            });
        });
        out
    }

    #[test]
    fn special_tokens_in_plain_text_stay_text() {
        let added = AddedTokens::new(tokens(&["<s>", "é"]), Overlap::Longest, char::is_whitespace);
        assert_eq!(split(&added, "a<s>é<s", false), ["a<s>", "#1", "<s"]);
        assert_eq!(split(&added, "a<s>é<s", true), ["a", "#0", "#1", "<s"]);
        assert!(split(&added, "", true).is_empty());
    }

    #[test]
    fn special_tokens_are_found_outside_of_ranges() {
        let specials = Specials::Outside(&[2..5, 9..11]);
        for (range, allowed) in [
            ((0, 2), true),
            ((0, 3), false),
            ((3, 4), false),
            ((5, 9), true),
            ((4, 6), false),
            ((8, 10), false),
            ((10, 12), false),
            ((11, 20), true),
        ] {
            assert_eq!(specials.allow(range.0, range.1), allowed, "{range:?}");
        }
    }

    #[test]
    fn overlaps() {
        let texts = ["abc", "cdefg", "gh", "  ", "   "];
        let longest = AddedTokens::new(tokens(&texts), Overlap::Longest, char::is_whitespace);
        let leftmost = AddedTokens::new(tokens(&texts), Overlap::Leftmost, char::is_whitespace);
        assert_eq!(split(&longest, "abcdefgh", false), ["ab", "#1", "h"]);
        assert_eq!(split(&leftmost, "abcdefgh", false), ["#0", "def", "#2"]);
        assert_eq!(
            split(&longest, "x        y", false),
            ["x", "#4", "#4", "#3", "y"]
        );
    }

    #[test]
    fn strips_and_single_words() {
        let mut list = tokens(&["<m>", "<w>"]);
        list[0].lstrip = true;
        list[0].rstrip = true;
        list[1].single_word = true;
        let added = AddedTokens::new(list, Overlap::Leftmost, char::is_whitespace);
        assert_eq!(
            split(&added, "a \n<m> \tb <w> c<w>", true),
            ["a", "#0", "b ", "#1", " c<w>"]
        );
    }
}
