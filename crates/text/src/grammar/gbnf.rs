//! GBNF, llama.cpp's grammar notation, translated to Lark.
//!
//! GBNF has no lexer: any character may match any way. llguidance has one, and it prefers the longest lexeme among those
//! allowed. The translation therefore uses a terminal longer than one character only where that cannot matter: no text
//! of it is a proper prefix of another of it (`prefix_free`), and no other terminal starts with the same
//! character. Everything else is spelled out character by character. A grammar without recursion becomes one regular
//! expression.

mod chars;
mod emit;
mod ends;
mod parse;

use chars::Chars;

use super::GrammarError;

/// An expression of GBNF.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// One character of a set.
    One(Chars),
    Rule(usize),
    /// A token named as `<[id]>` or `<name>`.
    Token(String),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    Repeat {
        node: Box<Node>,
        min: usize,
        max: Option<usize>,
    },
}

/// Rules by index, with the names for messages.
#[derive(Debug)]
struct Rules {
    names: Vec<String>,
    bodies: Vec<Node>,
    root: usize,
}

/// The same language in llguidance's Lark.
pub(super) fn to_lark(source: &str) -> Result<String, GrammarError> {
    Ok(emit::lark(&parse::rules(source)?))
}
