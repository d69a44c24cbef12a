//! Conversations become tokens in one piece, and special tokens in a user's text stay text.

use tokkata::chat::{chat_prompt, encode_rendered};
use tokkata::{Array, ChatTemplate, EncodeOptions, Message, Metadata, Tokenizer, Value};

const END: u32 = 9;

/// A byte-level vocabulary in which "a" and "b" join, and `<|x|>` is a control token.
fn tokenizer() -> Tokenizer {
    let strings =
        |texts: &[&str]| Value::Array(Array::Str(texts.iter().map(|&t| t.into()).collect()));
    let mut kinds = vec![1; 10];
    kinds[END as usize] = 3;
    let mut meta = Metadata::default();
    meta.insert("tokenizer.ggml.model", "gpt2".into());
    meta.insert("tokenizer.ggml.pre", "gpt-2".into());
    meta.insert(
        "tokenizer.ggml.tokens",
        strings(&["a", "b", "ab", "<", "|", "x", ">", "Ġ", "u", "<|x|>"]),
    );
    meta.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    meta.insert("tokenizer.ggml.merges", strings(&["a b"]));
    meta.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    Tokenizer::from_metadata(&meta).expect("a vocabulary")
}

fn template() -> ChatTemplate {
    let source = "{% for m in messages %}a{{ m.content }}<|x|>{% endfor %}";
    ChatTemplate::parse(source).expect("a template")
}

#[test]
fn special_tokens_in_a_users_text_stay_text() {
    let tokenizer = tokenizer();
    let ids = chat_prompt(&template(), &[Message::new("user", "b<|x|>")], &tokenizer);
    let text: [u32; 5] = [3, 4, 5, 4, 6];
    let want: Vec<u32> = [2].into_iter().chain(text).chain([END]).collect();
    assert_eq!(ids.expect("it renders"), want);
}

#[test]
fn a_special_token_that_a_user_completes_stays_text() {
    let template = ChatTemplate::parse("{% for m in messages %}<|{{ m.content }}{% endfor %}");
    let messages = [Message::new("user", "x|><|x|>")];
    let ids = chat_prompt(&template.expect("a template"), &messages, &tokenizer());
    assert!(!ids.expect("it renders").contains(&END));
}

#[test]
fn without_special_tokens_in_it_a_conversation_is_encoded_as_its_text() {
    let (tokenizer, template) = (tokenizer(), template());
    for text in ["b", "u", "bb<|x", "", "x|>"] {
        let messages = [Message::new("user", text), Message::new("assistant", "ab")];
        let request = tokkata::chat::chat_request(&messages, &tokenizer);
        let rendered = template.render(&request).expect("it renders");
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        let whole = tokenizer.encode(rendered.text(), options);
        assert_eq!(encode_rendered(&rendered, &tokenizer), whole, "{text}");
    }
}
