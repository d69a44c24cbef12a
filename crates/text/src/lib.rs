//! Text in and out of a model: tokenizers, detokeniser, chat templates, grammars and answer parsing.
//!
//! Everything here is derived from what a file carries (its tokenizer, its template), never from the model's name. The
//! crate knows no weights and runs no model.
//!
//! Invariants: special tokens are recognised only in text that comes from a template or from a caller who asks for it;
//! a detokeniser never splits a character; parsing an answer never loses a byte of it.
//!
//! Reading order: [`tokenizer`], [`detokenize`], [`template`], [`parse`], [`grammar`].
//!
//! ```
//! use tokkata_text::template::{ChatRequest, ChatTemplate};
//! let template = ChatTemplate::parse("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")?;
//! let request: ChatRequest = serde_json::from_str(r#"{"messages": [{"role": "user", "content": "hi"}]}"#)?;
//! assert_eq!(template.render(&request)?.text(), "<user>hi");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod detokenize;
pub mod grammar;
pub mod parse;
pub mod template;
pub mod tokenizer;
