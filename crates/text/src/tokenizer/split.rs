//! Cutting text into the words that a model encodes one by one.
//!
//! Every splitting expression in use is a [`Rule`] scanned by hand in linear time; a rule finds
//! non-overlapping matches from left to right and everything between two matches is a piece too.

pub(super) mod pattern;
pub(super) mod runs;
pub(super) mod words;

use pattern::Pattern;
use runs::Runs;
use words::Words;

/// One splitting expression.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    /// The expression of GPT-2.
    Gpt2,
    /// A word, number, symbol and space expression.
    Words(&'static Words),
    /// Runs of one kind of character.
    Runs(Runs),
    /// Any other expression.
    Pattern(Pattern),
}

impl Rule {
    /// The end of the match that starts at `at`, if one does.
    fn match_at(&self, text: &str, at: usize) -> Option<usize> {
        let end = match self {
            Rule::Gpt2 => words::gpt2_end(text, at),
            Rule::Words(words) => words.end(text, at),
            Rule::Runs(runs) => runs.end(text, at),
            Rule::Pattern(_) => None,
        };
        end.filter(|&end| end > at)
    }

    /// Calls `emit` with every piece of `text` and whether it is a match.
    pub(super) fn pieces<'a>(&self, text: &'a str, emit: &mut impl FnMut(&'a str, bool)) {
        if let Rule::Pattern(pattern) = self {
            return pattern.pieces(text, emit);
        }
        if let Rule::Runs(Runs::DigitGroups(groups)) = self {
            return groups.pieces(text, emit);
        }
        let (mut gap, mut at) = (0, 0);
        while at < text.len() {
            if let Some(end) = self.match_at(text, at) {
                emit_if_any(&text[gap..at], emit);
                emit(&text[at..end], true);
                (gap, at) = (end, end);
            } else {
                at += runs::char_len(text, at);
            }
        }
        emit_if_any(&text[gap..], emit);
    }
}

fn emit_if_any<'a>(gap: &'a str, emit: &mut impl FnMut(&'a str, bool)) {
    if !gap.is_empty() {
        emit(gap, false);
    }
}

/// Cuts `text` by each rule in turn.
pub(super) fn split<'a>(rules: &[Rule], text: &'a str, emit: &mut dyn FnMut(&'a str)) {
    match rules {
        [] => emit(text),
        [rule] => rule.pieces(text, &mut |piece, _| emit(piece)),
        [rule, rest @ ..] => rule.pieces(text, &mut |piece, _| split(rest, piece, emit)),
    }
}
