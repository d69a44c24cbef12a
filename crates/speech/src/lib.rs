//! From a decoder's logits to a transcript.
//!
//! What openai's code does around its model, without the model: which tokens may come next ([`rules`]), which
//! hypotheses go on ([`search`]), which window is heard next and what of it counts ([`transcript`]), when words were
//! said ([`words`]), and how all this is written ([`mod@format`]). Whoever holds a model feeds what these ask for.
//!
//! Invariants: nothing here waits, reads a file or draws from a clock; equal logits give equal transcripts.
//!
//! Reading order: [`tokens`], [`rules`], [`search`], [`transcript`], [`align`], [`words`], [`mod@format`].
//!
//! ```
//! use tokkata_speech::language;
//! assert_eq!(language::code("German"), Some("de"));
//! assert_eq!(language::name("yue"), Some("cantonese"));
//! ```

pub mod align;
pub mod format;
pub mod language;
pub mod ratio;
pub mod rules;
pub mod search;
mod sums;
pub mod tokens;
pub mod transcript;
pub mod words;

pub use rules::Rules;
pub use search::{Decoded, Search, SearchOptions, Step};
pub use tokens::Tokens;
pub use transcript::{Ask, Options, Segment, Transcript, Word};

/// Frames of a window: thirty seconds of hundredths.
pub const WINDOW: usize = 3000;
