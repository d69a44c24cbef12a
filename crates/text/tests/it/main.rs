//! Tests of tokenizers, templates, grammars and parsers.

mod families;
mod fuzzed;
mod grammar;
mod grammar_cost;
mod opens;
mod parse;
mod shown;
mod template;
mod tokenizer;
