//! Lark grammars of texts that stand inside a JSON string: the same texts, with JSON's escapes.
//!
//! Rules stay as they are, since escapes are made character by character; every terminal is rewritten. What has to be
//! escaped is written in one way only: `\"`, `\\`, the short escapes, and `\u00XX` for other control characters.
//!
//! A terminal takes as much as it can, and never gives a backslash back. One that ends in any number of characters, as
//! `/.*/` before the end of a line does, would take the backslash of `\n`: inside rules it becomes a sequence of
//! terminals, each a run of plain characters or one escape.

use std::fmt::{self, Write as _};

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

use super::GrammarError;

/// Terminals of Lark's `common` that grammars import.
const COMMON: [(&str, &str); 22] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[a-fA-F0-9]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("_EXP", "[eE][+-]?[0-9]+"),
    (
        "FLOAT",
        r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    ),
    (
        "SIGNED_FLOAT",
        r"[+-]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)",
    ),
    (
        "NUMBER",
        r"[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    ),
    (
        "SIGNED_NUMBER",
        r"[+-]?([0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)",
    ),
    ("ESCAPED_STRING", r#""([^"\\]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
];

fn refused(what: impl Into<String>) -> GrammarError {
    GrammarError::Refused(what.into())
}

/// The grammar of the escaped texts of `source`.
///
/// # Errors
/// Parts of Lark that say nothing about a text's characters: other grammars inside it, special tokens, templates of
/// other files; regular expressions that look around.
pub(crate) fn json_quoted(source: &str) -> Result<String, GrammarError> {
    let mut out = String::new();
    let (mut rest, mut place) = (source, Place::Rule);
    while let Some(c) = rest.chars().next() {
        if c == ':' {
            place = Place::of(&out);
        }
        if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            rest = &rest[end..];
        } else if c == '"' {
            rest = literal(rest, &mut out)?;
        } else if c == '/' {
            rest = regex(rest, place, &mut out)?;
        } else if rest.starts_with("%import") {
            rest = import(rest, &mut out)?;
        } else if rest.starts_with("%ignore") {
            out.push_str("%ignore");
            rest = &rest["%ignore".len()..];
        } else if matches!(c, '%' | '@' | '<' | '&') {
            let line = rest.lines().next().unwrap_or_default();
            return Err(refused(format!(
                "a tool's grammar cannot use '{}'",
                line.trim()
            )));
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    Ok(out)
}

/// What a part of a grammar defines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Rule,
    Terminal,
}

impl Place {
    /// What is defined by the name that a text ends with, perhaps with a priority.
    fn of(text: &str) -> Self {
        let part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        let name = text.trim_end().rsplit(|c| !part(c)).next();
        let name = name.unwrap_or_default().trim_start_matches('_');
        match name.chars().next().is_some_and(char::is_uppercase) {
            true => Place::Terminal,
            false => Place::Rule,
        }
    }
}

/// The end of what begins with a mark and ends with the same mark, the first without a backslash.
fn closing(text: &str, mark: char) -> Result<usize, GrammarError> {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            c if c == mark => return Ok(at),
            '\n' => break,
            _ => {}
        }
    }
    let line = text.lines().next().unwrap_or_default();
    Err(refused(format!("the grammar ends within {line}")))
}

fn unescaped(text: &str) -> Result<String, GrammarError> {
    serde_json::from_str(text).map_err(|_| refused(format!("{text} is no string")))
}

/// A string, perhaps in any case, or a range between two characters.
fn literal<'a>(rest: &'a str, out: &mut String) -> Result<&'a str, GrammarError> {
    let end = closing(rest, '"')? + 1;
    let text = unescaped(&rest[..end])?;
    let after = &rest[end..];
    if let Some(second) = after.strip_prefix("..") {
        let end = closing(second, '"')? + 1;
        let last = unescaped(&second[..end])?;
        let one = |text: &str| {
            let mut chars = text.chars();
            chars.next().filter(|_| chars.next().is_none())
        };
        let (Some(from), Some(to)) = (one(&text), one(&last)) else {
            return Err(refused("a range goes from one character to another"));
        };
        let range = ClassUnicode::new([ClassUnicodeRange::new(from, to)]);
        let _ = write!(out, "/{}/", class(&range));
        return Ok(&second[end..]);
    }
    let any_case = after.strip_prefix('i').filter(|rest| {
        let next = rest.chars().next();
        !next.is_some_and(|c| c.is_alphanumeric() || c == '_')
    });
    match any_case {
        Some(after) => {
            out.push_str(&rewritten(
                &regex_syntax::escape(&text),
                "i",
                Place::Terminal,
            )?);
            Ok(after)
        }
        None => {
            let inner: String = text.chars().map(escape).collect();
            let _ = write!(out, "{}", serde_json::Value::from(inner));
            Ok(after)
        }
    }
}

fn regex<'a>(rest: &'a str, place: Place, out: &mut String) -> Result<&'a str, GrammarError> {
    let end = closing(rest, '/')?;
    let (body, after) = (&rest[1..end], &rest[end + 1..]);
    let flags = after
        .find(|c: char| !"imslux".contains(c))
        .unwrap_or(after.len());
    out.push_str(&rewritten(body, &after[..flags], place)?);
    Ok(&after[flags..])
}

/// `%import common.A -> B`, `%import common (A, B)`: terminals with these names.
fn import<'a>(rest: &'a str, out: &mut String) -> Result<&'a str, GrammarError> {
    let end = rest.find('\n').unwrap_or(rest.len());
    let line = rest["%import".len()..end]
        .split("//")
        .next()
        .unwrap_or_default()
        .trim();
    let unknown = || refused(format!("a tool's grammar cannot import '{line}'"));
    let what = line.strip_prefix("common").ok_or_else(unknown)?.trim();
    let pairs: Vec<(&str, &str)> = match what.strip_prefix('.') {
        Some(one) => {
            let (name, alias) = one.split_once("->").unwrap_or((one, one));
            vec![(name.trim(), alias.trim())]
        }
        None => {
            let list = what.strip_prefix('(').and_then(|w| w.strip_suffix(')'));
            let names = list.ok_or_else(unknown)?.split(',').map(str::trim);
            names.map(|name| (name, name)).collect()
        }
    };
    for (name, alias) in pairs {
        let known = COMMON
            .iter()
            .find(|(n, _)| *n == name)
            .ok_or_else(unknown)?;
        let _ = writeln!(out, "{alias}: {}", rewritten(known.1, "", Place::Terminal)?);
    }
    Ok(&rest[end..])
}

/// A regular expression of the escaped texts; in a rule, terminals that follow each other.
fn rewritten(pattern: &str, flags: &str, place: Place) -> Result<String, GrammarError> {
    let has = |flag| flags.contains(flag);
    let parsed = ParserBuilder::new()
        .case_insensitive(has('i'))
        .multi_line(has('m'))
        .dot_matches_new_line(has('s'))
        .ignore_whitespace(has('x'))
        .build()
        .parse(&pattern.replace("\\/", "/"));
    let hir = parsed.map_err(|_| {
        refused(format!(
            "/{pattern}/ is no regular expression that is known here"
        ))
    })?;
    if let Some(tail) = Tail::of(&hir).filter(|_| place == Place::Rule) {
        return Ok(tail.to_string());
    }
    let mut out = String::new();
    write_hir(&hir, &mut out)
        .ok_or_else(|| refused(format!("/{pattern}/ looks around, which a grammar cannot")))?;
    Ok(format!("/{out}/"))
}

/// A text followed by any number of characters of which some are escaped.
struct Tail {
    /// The text, as a regular expression.
    text: String,
    /// Whether there is at least one of the characters.
    any: bool,
    plain: String,
    escapes: Vec<String>,
}

impl Tail {
    fn of(hir: &Hir) -> Option<Self> {
        match hir.kind() {
            HirKind::Capture(group) => Tail::of(&group.sub),
            HirKind::Repetition(many) if many.min <= 1 && many.max.is_none() => {
                let mut one = &*many.sub;
                while let HirKind::Capture(group) = one.kind() {
                    one = &*group.sub;
                }
                let HirKind::Class(Class::Unicode(set)) = one.kind() else {
                    return None;
                };
                let (plain, escapes) = parts(set);
                let tail = Tail {
                    text: String::new(),
                    any: many.min == 1,
                    plain: plain?,
                    escapes,
                };
                Some(tail).filter(|tail| !tail.escapes.is_empty())
            }
            HirKind::Concat(all) => {
                let (last, before) = all.split_last()?;
                let mut text = String::new();
                for one in before {
                    let HirKind::Literal(_) = one.kind() else {
                        return None;
                    };
                    write_hir(one, &mut text)?;
                }
                let tail = Tail::of(last)?;
                let text = text + &tail.text;
                Some(Tail { text, ..tail })
            }
            _ => None,
        }
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        if !self.text.is_empty() {
            write!(f, "/{}/ ", self.text)?;
        }
        let count = if self.any { '+' } else { '*' };
        let (plain, escapes) = (&self.plain, self.escapes.join("|"));
        write!(f, "(/{plain}+/ | /(?:{escapes})/){count})")
    }
}

fn write_hir(hir: &Hir, out: &mut String) -> Option<()> {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            let escaped: String = text.chars().map(escape).collect();
            out.push_str(&plain(&escaped));
        }
        HirKind::Class(Class::Unicode(set)) => out.push_str(&class(set)),
        HirKind::Class(Class::Bytes(_)) | HirKind::Look(_) => return None,
        HirKind::Repetition(many) => {
            out.push_str("(?:");
            write_hir(&many.sub, out)?;
            let most = many.max.map_or_else(String::new, |n| n.to_string());
            let _ = write!(out, "){{{},{most}}}", many.min);
        }
        HirKind::Capture(group) => {
            out.push_str("(?:");
            write_hir(&group.sub, out)?;
            out.push(')');
        }
        HirKind::Concat(all) => all.iter().try_for_each(|one| write_hir(one, out))?,
        HirKind::Alternation(all) => {
            out.push_str("(?:");
            for (i, one) in all.iter().enumerate() {
                out.push_str(if i > 0 { "|" } else { "" });
                write_hir(one, out)?;
            }
            out.push(')');
        }
    }
    Some(())
}

/// A text as a regular expression between slashes.
fn plain(text: &str) -> String {
    regex_syntax::escape(text).replace('/', "\\/")
}

/// Any of these characters, escaped.
fn class(set: &ClassUnicode) -> String {
    let (plain, escapes) = parts(set);
    let all: Vec<String> = plain.into_iter().chain(escapes).collect();
    match all.len() {
        // Nothing fits.
        0 => "[^\\x{0}-\\x{10ffff}]".to_owned(),
        _ => format!("(?:{})", all.join("|")),
    }
}

/// Those of the characters that stand as they are, if there are any, and the escapes of the others.
fn parts(set: &ClassUnicode) -> (Option<String>, Vec<String>) {
    let special = ClassUnicode::new([
        ClassUnicodeRange::new('\0', '\u{1f}'),
        ClassUnicodeRange::new('"', '"'),
        ClassUnicodeRange::new('\\', '\\'),
    ]);
    let mut as_they_are = set.clone();
    as_they_are.difference(&special);
    let mut escaped = set.clone();
    escaped.intersect(&special);
    let one = |r: &ClassUnicodeRange| {
        format!(
            "\\x{{{:x}}}-\\x{{{:x}}}",
            u32::from(r.start()),
            u32::from(r.end())
        )
    };
    let ranges: String = as_they_are.ranges().iter().map(one).collect();
    let escapes = escaped.ranges().iter().flat_map(|r| r.start()..=r.end());
    let escapes = escapes.map(|c| plain(&escape(c))).collect();
    (
        Some(format!("[{ranges}]")).filter(|_| !ranges.is_empty()),
        escapes,
    )
}

/// A character inside a JSON string.
fn escape(c: char) -> String {
    match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        c if c < ' ' => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_escaped_and_rules_stay() {
        let lark = "start: \"a\\\"b\" LF? x // \"no\"\nx: \"q\"i | \"a\"..\"c\" | /[^x\\n]+\\/\"/s\n%import common.LF\n%ignore \"\\t\"";
        let quoted = json_quoted(lark).expect("a grammar");
        assert!(quoted.starts_with(r#"start: "a\\\"b" LF? x "#), "{quoted}");
        assert!(
            quoted.contains(
                "x: /(?:[\\x{51}-\\x{51}\\x{71}-\\x{71}])/ | /(?:[\\x{61}-\\x{63}])/ | /"
            ),
            "{quoted}"
        );
        assert!(quoted.contains("LF: /\\\\n/\n"), "{quoted}");
        assert!(quoted.ends_with("%ignore \"\\\\t\""), "{quoted}");
        assert!(!quoted.contains("\"no"), "{quoted}");
    }

    #[test]
    fn what_a_tool_s_grammar_cannot_say_is_refused() {
        for lark in [
            "start: %json {\"type\": \"string\"}",
            "start: <|end|>",
            "start: @other",
            "%import other.X\nstart: X",
            "%import common.NOTHING\nstart: NOTHING",
            "start: /\\bx/",
            "start: /(?=x)/",
            "start: \"a",
            "start: /a",
            "start: \"ab\"..\"c\"",
        ] {
            assert!(json_quoted(lark).is_err(), "{lark}");
        }
    }

    /// Whether a grammar takes a text, byte by byte.
    fn takes(lark: &str, text: &str) -> bool {
        use crate::grammar::{Grammar, GrammarSource, TokenTrie, Vocabulary};
        let tokens = (0..=255)
            .map(|b| vec![b])
            .chain([b"<end>".to_vec()])
            .collect();
        let vocabulary = Vocabulary {
            tokens,
            special: vec![256],
            eos: vec![256],
        };
        let trie = TokenTrie::new(vocabulary).expect("a vocabulary");
        let grammar = Grammar::compile(GrammarSource::Lark(lark.to_owned()), &trie);
        let mut state = grammar.expect("a grammar").start();
        let all = text.bytes().all(|b| state.accept(u32::from(b)).is_ok());
        all && state.is_accepting()
    }

    #[test]
    fn a_text_fits_inside_a_string_as_it_fits_alone() {
        let patch = "start: begin hunk+ end\nbegin: \"*** Begin Patch\" LF\nend: \"*** End Patch\" LF?\n\
            hunk: \"*** Add File: \" name LF line+\nname: /(.+)/\nline: \"+\" /(.*)/ LF\n%import common.LF\n";
        let quoted = json_quoted(patch).expect("a grammar");
        let within =
            format!("start: \"<\" \"\\\"\" inner \"\\\"\" \">\"\ninner: %lark {{\n{quoted}\n}}");
        for (text, fits) in [
            (
                "*** Begin Patch\n*** Add File: a \"b\"\\c.rs\n+fn x() {}\n+\t\"\\n\"\n*** End Patch\n",
                true,
            ),
            (
                "*** Begin Patch\n*** Add File: é\n+\u{1}\n*** End Patch",
                true,
            ),
            ("*** Begin Patch\n*** Add File: \n+x\n*** End Patch", false),
            ("*** Begin Patch\n+x\n*** End Patch", false),
            ("*** Begin Patch\n*** Add File: a\nx\n*** End Patch", false),
        ] {
            assert_eq!(takes(patch, text), fits, "{text}");
            let string = format!("<{}>", serde_json::Value::from(text));
            assert_eq!(takes(&within, &string), fits, "{string}\n{within}");
        }
    }
}
