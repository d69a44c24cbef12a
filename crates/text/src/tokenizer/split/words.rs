//! The word, number, symbol and space expressions that most byte-level vocabularies use.
//!
//! They share one shape, as alternatives tried in order:
//! contraction; one optional lead character and letters; digits; one optional space and symbols with a
//! tail of line ends; white space up to a line end; white space but the last character; white space.

use super::super::unicode::{
    CASELESS, LETTER, LOWER, MARK, NUMBER, PUNCT, SPACE, SYMBOL, Set, UPPER, is_han,
};
use super::runs::{char_at, char_len, last_char, run};

/// Which contraction (`'s 't 're 've 'm 'll 'd`, either case) stands where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Contraction {
    /// None.
    Absent,
    /// A word of its own.
    Alone,
    /// Belongs to the word before it.
    Suffix,
}

/// What a word is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Letters {
    /// `\p{L}+`
    Plain,
    /// `[\p{L}\p{M}]+`
    Marked,
    /// Upper-case run, then lower-case run: `[Lu Lt Lm Lo M]*[Ll Lm Lo M]+`, or the same with `+` and `*`.
    Cased,
    /// As [`Letters::Cased`], Han characters being words of their own.
    CasedWithoutHan,
    /// `(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`: single spaces join words.
    Phrase,
}

/// What may follow symbols.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Tail {
    /// Nothing.
    Nothing,
    /// `[\r\n]*`
    LineEnds,
    /// `[\r\n/]*`
    LineEndsAndSlashes,
    /// `[\r\n/]?`
    OneLineEndOrSlash,
}

/// How line ends split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum LineEnds {
    /// `\s*[\r\n]+`
    AfterSpaceMany,
    /// `\s*[\r\n]`
    AfterSpaceOne,
    /// `[\r\n]`
    AloneOne,
}

/// How other white space splits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Spaces {
    /// `\s+(?!\S)|\s+`
    AllButLast,
    /// The same in runs of 512, 256 … 4, 2, 1.
    PowersOfTwo,
}

/// One expression of the family.
#[derive(Clone, Debug)]
pub(in super::super) struct Words {
    pub(in super::super) contraction: Contraction,
    /// ASCII punctuation that an ASCII word may start with: ``[!"#…~][A-Za-z]+``.
    pub(in super::super) ascii_lead: bool,
    /// Classes that cannot lead a word.
    pub(in super::super) no_lead: Set,
    pub(in super::super) letters: Letters,
    /// Longest run of digits, 0 where digits are no word here.
    pub(in super::super) max_digits: usize,
    pub(in super::super) symbols: Set,
    /// Whether a line end counts as a symbol when its class does.
    pub(in super::super) tail: Tail,
    pub(in super::super) line_ends: LineEnds,
    pub(in super::super) spaces: Spaces,
}

const LETTER_OR_NUMBER: Set = LETTER.or(NUMBER);

/// The expression of Llama 3; the others are told by how they differ.
pub(in super::super) const LLAMA3: Words = Words {
    contraction: Contraction::Alone,
    ascii_lead: false,
    no_lead: LETTER_OR_NUMBER,
    letters: Letters::Plain,
    max_digits: 3,
    symbols: SPACE.or(LETTER).or(NUMBER).not(),
    tail: Tail::LineEnds,
    line_ends: LineEnds::AfterSpaceMany,
    spaces: Spaces::AllButLast,
};

pub(in super::super) static LLAMA3_WORDS: Words = LLAMA3;
pub(in super::super) static JAIS2: Words = Words {
    spaces: Spaces::PowersOfTwo,
    ..LLAMA3
};
pub(in super::super) static QWEN2: Words = Words {
    max_digits: 1,
    ..LLAMA3
};
pub(in super::super) static QWEN35: Words = Words {
    letters: Letters::Marked,
    symbols: SPACE.or(LETTER).or(MARK).or(NUMBER).not(),
    ..QWEN2_CONST
};
const QWEN2_CONST: Words = Words {
    max_digits: 1,
    ..LLAMA3
};
pub(in super::super) static MINICPM5: Words = Words {
    max_digits: usize::MAX,
    ..LLAMA3
};
pub(in super::super) static UFAKZEKA: Words = Words {
    contraction: Contraction::Absent,
    ..QWEN2_CONST
};
pub(in super::super) static SEED_CODER: Words = Words {
    tail: Tail::Nothing,
    ..QWEN2_CONST
};
pub(in super::super) static BAILING: Words = Words {
    line_ends: LineEnds::AfterSpaceOne,
    ..QWEN2_CONST
};
pub(in super::super) static EXAONE_MOE: Words = Words {
    letters: Letters::Phrase,
    tail: Tail::OneLineEndOrSlash,
    line_ends: LineEnds::AfterSpaceOne,
    ..QWEN2_CONST
};
const CASED: Words = Words {
    contraction: Contraction::Suffix,
    letters: Letters::Cased,
    tail: Tail::LineEndsAndSlashes,
    ..LLAMA3
};
pub(in super::super) static GPT4O: Words = CASED;
pub(in super::super) static TEKKEN: Words = Words {
    contraction: Contraction::Absent,
    max_digits: 1,
    ..CASED
};
pub(in super::super) static YOUTU: Words = Words {
    max_digits: 1,
    ..CASED
};
pub(in super::super) static KIMI_K2: Words = Words {
    letters: Letters::CasedWithoutHan,
    tail: Tail::LineEnds,
    ..CASED
};
const DEEPSEEK3_CONST: Words = Words {
    contraction: Contraction::Absent,
    ascii_lead: true,
    no_lead: LETTER.or(PUNCT).or(SYMBOL),
    letters: Letters::Marked,
    max_digits: 0,
    symbols: PUNCT.or(SYMBOL),
    ..LLAMA3
};
pub(in super::super) static DEEPSEEK3: Words = DEEPSEEK3_CONST;
pub(in super::super) static SPARK: Words = Words {
    tail: Tail::Nothing,
    line_ends: LineEnds::AloneOne,
    ..DEEPSEEK3_CONST
};

impl Words {
    /// The end of the match that starts at `at`.
    pub(super) fn end(&self, text: &str, at: usize) -> Option<usize> {
        let c = char_at(text, at)?;
        if c == '\''
            && self.contraction == Contraction::Alone
            && let Some(end) = contraction_end(text, at, fold)
        {
            return Some(end);
        }
        if self.letters == Letters::CasedWithoutHan && is_han(c) {
            return Some(at + text[at..].find(|c| !is_han(c)).unwrap_or(text.len() - at));
        }
        self.word_end(text, at, c)
            .or_else(|| self.digits_end(text, at))
            .or_else(|| self.symbols_end(text, at, c))
            .or_else(|| self.spaces_end(text, at))
    }

    fn word_end(&self, text: &str, at: usize, c: char) -> Option<usize> {
        let after = at + c.len_utf8();
        if self.ascii_lead && c.is_ascii_punctuation() {
            let letters = text.as_bytes()[after..]
                .iter()
                .take_while(|b| b.is_ascii_alphabetic())
                .count();
            if letters > 0 {
                return Some(after + letters);
            }
        }
        let may_lead = c != '\r' && c != '\n' && !self.no_lead.has(c);
        let starts = [may_lead.then_some(after), Some(at)];
        match self.letters {
            Letters::Plain => first(starts, |start| some_run(text, start, LETTER)),
            Letters::Marked => first(starts, |start| some_run(text, start, LETTER.or(MARK))),
            Letters::Phrase => first(starts, |start| phrase_end(text, start)),
            Letters::Cased | Letters::CasedWithoutHan => first(starts, |s| self.lower_end(text, s))
                .or_else(|| first(starts, |s| self.upper_end(text, s)))
                .map(|end| self.with_suffix(text, end)),
        }
    }

    fn with_suffix(&self, text: &str, end: usize) -> usize {
        match self.contraction {
            Contraction::Suffix => contraction_end(text, end, fold).unwrap_or(end),
            _ => end,
        }
    }

    fn cased_run(&self, text: &str, at: usize, set: Set) -> usize {
        if self.letters == Letters::Cased {
            return run(text, at, set);
        }
        at + text[at..]
            .find(|c| !set.has(c) || is_han(c))
            .unwrap_or(text.len() - at)
    }

    /// `[Lu Lt Lm Lo M]*[Ll Lm Lo M]+`
    fn lower_end(&self, text: &str, at: usize) -> Option<usize> {
        let upper_end = self.cased_run(text, at, UPPER.or(CASELESS).or(MARK));
        let end = self.cased_run(text, upper_end, LOWER_OR_CASELESS);
        if end > upper_end {
            return Some(end);
        }
        // The upper-case run gives back up to its last character without case.
        let (start, c) = text[at..upper_end]
            .char_indices()
            .rfind(|&(_, c)| LOWER_OR_CASELESS.has(c))?;
        Some(at + start + c.len_utf8())
    }

    /// `[Lu Lt Lm Lo M]+[Ll Lm Lo M]*`
    fn upper_end(&self, text: &str, at: usize) -> Option<usize> {
        let upper_end = self.cased_run(text, at, UPPER.or(CASELESS).or(MARK));
        (upper_end > at).then(|| self.cased_run(text, upper_end, LOWER_OR_CASELESS))
    }

    fn digits_end(&self, text: &str, at: usize) -> Option<usize> {
        let mut end = at;
        for _ in 0..self.max_digits {
            match char_at(text, end) {
                Some(c) if NUMBER.has(c) => end += c.len_utf8(),
                _ => break,
            }
        }
        (end > at).then_some(end)
    }

    fn is_symbol(&self, c: char) -> bool {
        self.symbols.has(c)
    }

    fn symbols_end(&self, text: &str, at: usize, c: char) -> Option<usize> {
        let start = if c == ' ' { at + 1 } else { at };
        if !char_at(text, start).is_some_and(|c| self.is_symbol(c)) {
            return None;
        }
        let end = run(text, start, self.symbols);
        let tail: &[u8] = match self.tail {
            Tail::Nothing => return Some(end),
            Tail::LineEnds => b"\r\n",
            Tail::LineEndsAndSlashes | Tail::OneLineEndOrSlash => b"\r\n/",
        };
        let most = if self.tail == Tail::OneLineEndOrSlash {
            1
        } else {
            usize::MAX
        };
        Some(
            end + text.as_bytes()[end..]
                .iter()
                .take(most)
                .take_while(|b| tail.contains(b))
                .count(),
        )
    }

    fn spaces_end(&self, text: &str, at: usize) -> Option<usize> {
        let end = run(text, at, SPACE);
        if end == at {
            return None;
        }
        if let Some(line_end) = self.line_end(text, at, end) {
            return Some(line_end);
        }
        match self.spaces {
            Spaces::AllButLast => Some(all_but_last(text, at, end)),
            Spaces::PowersOfTwo => Some(power_of_two(text, at, end)),
        }
    }

    fn line_end(&self, text: &str, at: usize, end: usize) -> Option<usize> {
        if self.line_ends == LineEnds::AloneOne {
            return matches!(text.as_bytes()[at], b'\r' | b'\n').then_some(at + 1);
        }
        let last = text.as_bytes()[at..end]
            .iter()
            .rposition(|b| matches!(b, b'\r' | b'\n'))?;
        Some(at + last + 1)
    }
}

const LOWER_OR_CASELESS: Set = LOWER.or(CASELESS).or(MARK);

fn first(starts: [Option<usize>; 2], end: impl Fn(usize) -> Option<usize>) -> Option<usize> {
    starts.into_iter().flatten().find_map(end)
}

fn some_run(text: &str, at: usize, set: Set) -> Option<usize> {
    Some(run(text, at, set)).filter(|&end| end > at)
}

/// `(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`
fn phrase_end(text: &str, at: usize) -> Option<usize> {
    let mut end = None;
    let mut next = at;
    while char_at(text, next).is_some_and(|c| LETTER.has(c)) {
        let stop = run(text, next + char_len(text, next), MARK);
        end = Some(stop);
        let joins =
            text[stop..].starts_with(' ') && char_at(text, stop + 1).is_some_and(|c| LETTER.has(c));
        next = if joins { stop + 1 } else { stop };
    }
    end
}

/// `\s+(?!\S)|\s+` over the white space in `at..end`.
fn all_but_last(text: &str, at: usize, end: usize) -> usize {
    if end == text.len() {
        return end;
    }
    let last = end - last_char(text, end).len_utf8();
    if last > at { last } else { end }
}

/// `\s{512}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}` over the white space in `at..end`.
fn power_of_two(text: &str, at: usize, end: usize) -> usize {
    // One character must stay when something else follows.
    let free_end = if end == text.len() {
        end
    } else {
        end - last_char(text, end).len_utf8()
    };
    let widths: Vec<usize> = text[at..free_end]
        .chars()
        .take(512)
        .map(char::len_utf8)
        .collect();
    let n = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1]
        .into_iter()
        .find(|&n| n <= widths.len());
    at + n.map_or_else(|| char_len(text, at), |n| widths[..n].iter().sum())
}

/// Whether `c` is the ASCII letter `lower` in either case; the long s is a case of `s`.
fn fold(c: char, lower: u8) -> bool {
    c.eq_ignore_ascii_case(&(lower as char)) || (c == 'ſ' && lower == b's')
}

fn exact(c: char, lower: u8) -> bool {
    c == lower as char
}

/// The end of `'s 't 're 've 'm 'll 'd` at `at`.
fn contraction_end(text: &str, at: usize, same: fn(char, u8) -> bool) -> Option<usize> {
    const ENDINGS: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];
    let rest = text[at..].strip_prefix('\'')?;
    ENDINGS.iter().find_map(|ending| {
        let mut chars = rest.chars();
        let fits = ending
            .iter()
            .all(|&l| chars.next().is_some_and(|c| same(c, l)));
        fits.then(|| text.len() - chars.as_str().len())
    })
}

/// The end of the match of GPT-2's expression at `at`.
pub(super) fn gpt2_end(text: &str, at: usize) -> Option<usize> {
    let c = char_at(text, at)?;
    if c == '\''
        && let Some(end) = contraction_end(text, at, exact)
    {
        return Some(end);
    }
    let start = if c == ' ' { at + 1 } else { at };
    if let Some(c) = char_at(text, start) {
        for set in [LETTER, NUMBER, SPACE.or(LETTER).or(NUMBER).not()] {
            if set.has(c) {
                return Some(run(text, start, set));
            }
        }
    }
    let end = run(text, at, SPACE);
    Some(all_but_last(text, at, end))
}
