//! Changes to texts by their pieces: words, numbers, quoted texts, brackets and what is inside them. The fuzz targets use
//! this file too.

/// Splitmix: numbers that follow from a seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Chance(seed)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// Numbers at which programs turn.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "2",
    "255",
    "256",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "18446744073709551615",
    "1e999",
    "nan",
    "0.5",
];
/// Pieces of a mutant at most.
const MOST: usize = 4096;

/// Cuts a text into words, numbers, quoted texts, spaces and single signs.
pub(crate) fn pieces(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let mut piece = c.to_string();
        let kind = |c: char| (c.is_alphanumeric() || c == '_', c.is_whitespace());
        if c == '"' {
            while let Some(c) = rest.next() {
                piece.push(c);
                match c {
                    '"' => break,
                    '\\' => piece.extend(rest.next()),
                    _ => {}
                }
            }
        } else if kind(c) != (false, false) {
            while let Some(next) = rest.next_if(|&n| kind(n) == kind(c)) {
                piece.push(next);
            }
        }
        found.push(piece);
    }
    found
}

/// The piece that closes what the piece at `open` opens.
fn closing(pieces: &[String], open: usize) -> Option<usize> {
    let close = match pieces[open].as_str() {
        "(" => ")",
        "[" => "]",
        "{" => "}",
        _ => return None,
    };
    let mut depth = 0;
    for (i, piece) in pieces.iter().enumerate().skip(open) {
        depth += usize::from(*piece == pieces[open]);
        depth -= usize::from(piece == close && depth > 0);
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// Some pieces in a row that belong together: a bracket with what is inside, a statement, or a few neighbours.
fn stretch(pieces: &[String], chance: &mut Chance) -> std::ops::Range<usize> {
    let at = chance.below(pieces.len());
    let open = (at..pieces.len()).find(|&i| closing(pieces, i).is_some());
    match open.and_then(|i| Some(i..closing(pieces, i)? + 1)) {
        Some(range) if chance.below(2) == 0 => range,
        _ => at..(at + 1 + chance.below(6)).min(pieces.len()),
    }
}

/// Another text: one to three changes of meaning, with words of `donor`.
pub(crate) fn mutate(text: &str, donor: &[&str], seed: u64) -> String {
    let mut chance = Chance::new(seed);
    let mut all = pieces(text);
    for _ in 0..=chance.below(3) {
        if all.is_empty() {
            all.push(donor[chance.below(donor.len())].to_owned());
        }
        change(&mut all, donor, &mut chance);
        all.truncate(MOST);
    }
    all.concat()
}

fn change(all: &mut Vec<String>, donor: &[&str], chance: &mut Chance) {
    let range = stretch(all, chance);
    let at = range.start;
    let word = donor[chance.below(donor.len())].to_owned();
    match chance.below(9) {
        0 => drop(all.drain(range)),
        1 => {
            let copy = all[range.clone()].to_vec();
            all.splice(range.end..range.end, copy);
        }
        2 => {
            // Many times in a row: what nests, repeats or grows.
            let copy = all[range.clone()].to_vec();
            let times = 1 << chance.below(9);
            let many = std::iter::repeat_n(copy, times).flatten().take(MOST);
            let many: Vec<String> = many.collect();
            all.splice(range.end..range.end, many);
        }
        3 => {
            // Inside itself.
            let copy = all[range.clone()].to_vec();
            let middle = at + range.len() / 2;
            all.splice(middle..middle, copy);
        }
        4 => all[at] = word,
        5 => all.insert(at, word),
        6 => all[at] = NUMBERS[chance.below(NUMBERS.len())].to_owned(),
        7 => {
            let other = stretch(all, chance);
            let copy = all[other].to_vec();
            all.splice(range, copy);
        }
        _ => {
            let other = chance.below(all.len());
            all.swap(at, other);
        }
    }
}

/// Words of grammars.
pub(crate) const GRAMMARS: [&str; 36] = [
    "root",
    "start",
    "::=",
    ": ",
    "|",
    "*",
    "+",
    "?",
    "{1000000}",
    "{0,}",
    "{2,1}",
    "(",
    ")",
    "[^\\s\\S]",
    "[a-z]",
    "[^]",
    ".",
    "\"\"",
    "\"a\"",
    "root root",
    "| root",
    "<[1]>",
    "!<[1]>",
    "\n",
    "\\x00",
    "\\uD800",
    "\\p{L}",
    "(?i)",
    "(?=a)",
    "^",
    "$",
    "a{1,2000}",
    "%json {\"$ref\": \"#\"}",
    "%ignore /x/",
    "NAME: /a/\n",
    "#",
];
/// Words of templates.
pub(crate) const TEMPLATES: [&str; 40] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{%-",
    "-%}",
    "{% for x in range(99999) %}",
    "{% endfor %}",
    "{% if true %}",
    "{% endif %}",
    "{% set x = x ~ x %}",
    "{% macro f() %}",
    "{{ f() }}",
    "{% endmacro %}",
    "messages",
    "[0]",
    ".content",
    "| tojson",
    "| replace('a', 'aaaaaaaa')",
    "| join",
    "| length",
    "| upper",
    "* 99999999",
    "** 9999",
    "not ",
    "- ",
    "(",
    ")",
    "[",
    "]",
    "namespace(x=1)",
    "raise_exception('x')",
    "strftime_now('%Y')",
    "loop.index0",
    "cycler('a')",
    "is defined",
    "~",
    ":-1",
    "{{ '\\ud800' }}",
    "{# ",
];
