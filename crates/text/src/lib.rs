//! Tokenizers, detokeniser, chat templates, grammars and output parsers.
