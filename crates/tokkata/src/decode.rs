//! Tokens of an answer as text or as bytes.

use std::sync::Arc;

use tokkata_engine::Decoder;
use tokkata_text::detokenize::Detokenizer;
use tokkata_text::tokenizer::{DecodeOptions, Tokenizer};

/// Whole characters: half ones are held back, and bytes that are no text become U+FFFD.
pub struct TextDecoder {
    tokenizer: Arc<Tokenizer>,
    stream: Detokenizer,
}

impl TextDecoder {
    /// A stream that goes on with a text, so that its first space stays.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let options = DecodeOptions {
            continues: true,
            special: false,
        };
        TextDecoder {
            tokenizer,
            stream: Detokenizer::new(options),
        }
    }

    /// The same with special tokens spelled out, as parsing an answer needs.
    #[must_use]
    pub fn with_special(tokenizer: Arc<Tokenizer>) -> Self {
        let options = DecodeOptions {
            continues: true,
            special: true,
        };
        TextDecoder {
            tokenizer,
            stream: Detokenizer::new(options),
        }
    }
}

impl Decoder for TextDecoder {
    fn push(&mut self, token: u32, out: &mut Vec<u8>) {
        let mut text = String::new();
        self.stream.push(&self.tokenizer, token, &mut text);
        out.extend_from_slice(text.as_bytes());
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        let mut text = String::new();
        self.stream.finish(&mut text);
        out.extend_from_slice(text.as_bytes());
    }
}

/// The bytes that tokens stand for, just as they are.
pub struct ByteDecoder {
    tokenizer: Arc<Tokenizer>,
    special: bool,
}

impl ByteDecoder {
    /// `special` spells special tokens out.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, options: DecodeOptions) -> Self {
        ByteDecoder {
            tokenizer,
            special: options.special,
        }
    }
}

impl Decoder for ByteDecoder {
    fn push(&mut self, token: u32, out: &mut Vec<u8>) {
        if self.special || !self.tokenizer.is_special(token) {
            out.extend_from_slice(self.tokenizer.token_bytes(token));
        }
    }

    fn finish(&mut self, _: &mut Vec<u8>) {}
}
