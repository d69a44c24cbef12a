//! Tokenizers, detokeniser, chat templates, grammars and output parsers.

pub mod detokenize;
pub mod grammar;
pub mod parse;
pub mod template;
pub mod tokenizer;
