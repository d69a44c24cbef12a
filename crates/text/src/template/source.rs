//! From source to syntax tree.

use minijinja::machinery::{ast::Stmt, parse as parse_syntax};
use minijinja::syntax::SyntaxConfig;

use super::error::{Result, TemplateError};

/// Operators of one tag that may lie inside each other.
const MAX_NESTED: u32 = 400;

pub(crate) fn parse(source: &str) -> Result<Stmt<'_>> {
    refuse_nesting(source)?;
    let syntax = |error: minijinja::Error| {
        let line = error
            .line()
            .map_or(String::new(), |line| format!("line {line}: "));
        TemplateError::Syntax(format!(
            "{line}{}",
            error.detail().unwrap_or("unexpected text")
        ))
    };
    let config = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(syntax)?;
    parse_syntax(source, "chat template", config).map_err(syntax)
}

/// Counts what the parser would nest without end: a run of operators makes a tree as deep as it is long, and so does a
/// run of `elif`.
fn refuse_nesting(source: &str) -> Result<()> {
    let (mut rest, mut branches) = (source, Vec::new());
    while let Some(at) = rest.find('{') {
        let open = rest.as_bytes().get(at + 1).copied();
        let Some(inside) = rest
            .get(at + 2..)
            .filter(|_| matches!(open, Some(b'{' | b'%' | b'#')))
        else {
            rest = &rest[at + 1..];
            continue;
        };
        let len = match open {
            Some(b'{') => nesting(inside, "}}")?,
            Some(b'%') => nesting(inside, "%}")?,
            _ => inside.find("#}").unwrap_or(inside.len()),
        };
        if open == Some(b'%') {
            count_branches(&inside[..len], &mut branches)?;
        }
        rest = &inside[len..];
    }
    Ok(())
}

/// Counts the branches of each condition that is open.
fn count_branches(tag: &str, branches: &mut Vec<u32>) -> Result<()> {
    let word = tag.trim_start_matches(['-', '+']).split_whitespace().next();
    match word {
        Some("if") => branches.push(0),
        Some("endif") => {
            branches.pop();
        }
        Some("elif") => {
            let count = branches.last_mut().map_or(0, |count| {
                *count += 1;
                *count
            });
            if count > MAX_NESTED {
                return Err(TemplateError::Limit("branches of a condition"));
            }
        }
        _ => {}
    }
    Ok(())
}

/// The length of a tag's inside, unless its operators nest too deeply.
fn nesting(inside: &str, close: &str) -> Result<usize> {
    let (mut levels, mut total, mut word) = (vec![0_u32], 0_u32, String::new());
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        if levels.len() == 1 && inside[at..].starts_with(close) {
            return Ok(at);
        }
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        let named = matches!(
            word.as_str(),
            "not" | "and" | "or" | "is" | "in" | "if" | "else"
        );
        word.clear();
        let mut more = u32::from(named);
        match c {
            '\'' | '"' => skip_text(&mut chars, c),
            '(' | '[' | '{' => levels.push(0),
            ')' | ']' | '}' if levels.len() > 1 => {
                // The bracket itself is one more operator of what is around it.
                total -= levels.pop().unwrap_or(0);
                more += 1;
            }
            ',' => {
                let level = levels.last_mut().map_or(0, std::mem::take);
                total -= level;
            }
            '+' | '-' | '*' | '/' | '~' | '|' | '.' | '<' | '>' | '=' | '!' | '%' => more += 1,
            _ => {}
        }
        if let Some(level) = levels.last_mut() {
            *level += more;
        }
        total += more;
        if total > MAX_NESTED {
            return Err(TemplateError::Limit("operators in one tag"));
        }
    }
    Ok(inside.len())
}

fn skip_text(chars: &mut std::str::CharIndices<'_>, quote: char) {
    while let Some((_, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            _ if c == quote => return,
            _ => {}
        }
    }
}

/// Transformers' `{% generation %}` marks what the assistant says and renders its body as it is. The parser does
/// not know the tag; a condition that always holds treats white space the same way.
pub(crate) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let name = tag.trim_matches(|c: char| "{%}-+".contains(c) || c.is_whitespace());
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
