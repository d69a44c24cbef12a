//! From source to syntax tree.

use minijinja::machinery::{ast::Stmt, parse as parse_syntax};
use minijinja::syntax::SyntaxConfig;

use super::error::{Result, TemplateError};

pub(crate) fn parse(source: &str) -> Result<Stmt<'_>> {
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
