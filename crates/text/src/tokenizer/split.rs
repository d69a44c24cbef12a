//! Cutting text into the words that a model encodes one by one.
//!
//! Every splitting expression in use is a [`Rule`] scanned by hand in linear time; a rule finds
//! non-overlapping matches from left to right and everything between two matches is a piece too.

pub(super) mod known;
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
    /// A fixed text.
    Literal(String),
    /// So many characters.
    Fixed(usize),
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
            Rule::Literal(literal) => text[at..]
                .starts_with(literal.as_str())
                .then(|| at + literal.len()),
            Rule::Fixed(n) => Some(
                text[at..]
                    .char_indices()
                    .nth(*n)
                    .map_or(text.len(), |(i, _)| at + i),
            ),
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

/// What becomes of the matches of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    /// They are words.
    Isolated,
    /// They are dropped.
    Removed,
    /// They end the word before them.
    MergedWithPrevious,
    /// They begin the word after them.
    MergedWithNext,
    /// Matches in a row are one word.
    Contiguous,
}

/// Where a space is put before a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepend {
    /// Nowhere.
    Never,
    /// Where the text begins.
    First,
    /// Before every word.
    Always,
}

/// One stage of cutting.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Cuts at the matches of a rule, or with `invert` at what lies between them.
    Split {
        /// Finds the matches.
        rule: Rule,
        /// What becomes of them.
        behavior: Behavior,
        /// Swaps matches and the text between them.
        invert: bool,
    },
    /// Puts a space before a word that does not begin with one.
    PrefixSpace,
    /// Writes spaces as `replacement` and may put one before a word.
    Metaspace {
        /// The character that stands for a space.
        replacement: char,
        /// Where one is put.
        prepend: Prepend,
    },
}

impl Step {
    /// Cuts at the matches of `rule`, which are words.
    pub(super) fn isolated(rule: Rule) -> Self {
        Step::Split {
            rule,
            behavior: Behavior::Isolated,
            invert: false,
        }
    }

    /// Keeps the matches of `rule` and drops the text between them.
    pub(super) fn kept(rule: Rule) -> Self {
        Step::Split {
            rule,
            behavior: Behavior::Removed,
            invert: true,
        }
    }

    /// Cuts at the matches of `rule` and drops them.
    pub(super) fn removed(rule: Rule) -> Self {
        Step::Split {
            rule,
            behavior: Behavior::Removed,
            invert: false,
        }
    }
}

/// Cuts `text` by each step in turn; `first` says that the whole text begins here.
pub(super) fn split(steps: &[Step], text: &str, first: bool, emit: &mut dyn FnMut(&str)) {
    let Some((step, rest)) = steps.split_first() else {
        return emit(text);
    };
    let start = text.as_ptr() as usize;
    let mut next = |piece: &str| {
        let first = first && piece.as_ptr() as usize == start;
        match rest {
            [] => emit(piece),
            _ => split(rest, piece, first, emit),
        }
    };
    match step {
        Step::Split {
            rule,
            behavior: Behavior::Isolated,
            ..
        } => rule.pieces(text, &mut |piece, _| next(piece)),
        Step::Split {
            rule,
            behavior,
            invert,
        } => {
            let mut pieces = Vec::new();
            rule.pieces(text, &mut |piece, found| {
                pieces.push((piece.len(), found != *invert));
            });
            behavior.join(text, &pieces, &mut next);
        }
        Step::PrefixSpace if text.starts_with(' ') => next(text),
        Step::PrefixSpace => split(rest, &format!(" {text}"), first, emit),
        Step::Metaspace {
            replacement,
            prepend,
        } => {
            let mut spaced = text.replace(' ', replacement.encode_utf8(&mut [0; 4]));
            let wanted = *prepend == Prepend::Always || (*prepend == Prepend::First && first);
            if wanted && !spaced.starts_with(*replacement) {
                spaced.insert(0, *replacement);
            }
            split(rest, &spaced, first, emit);
        }
    }
}

impl Behavior {
    /// Joins pieces, given as (length, whether it is a match), and emits the words.
    fn join<'a>(self, text: &'a str, pieces: &[(usize, bool)], emit: &mut dyn FnMut(&'a str)) {
        let mut start = 0;
        let mut end = 0;
        for (i, &(length, found)) in pieces.iter().enumerate() {
            end += length;
            let next = pieces.get(i + 1).map(|&(_, next)| next);
            let goes_on = match self {
                Behavior::Isolated | Behavior::Removed => false,
                Behavior::MergedWithPrevious => !found && next == Some(true),
                Behavior::MergedWithNext => found && next == Some(false),
                Behavior::Contiguous => next == Some(found),
            };
            if goes_on {
                continue;
            }
            if self != Behavior::Removed || !found {
                emit(&text[start..end]);
            }
            start = end;
        }
    }
}
