//! Answers what it is given: `cargo run --release -p tokkata --example chat MODEL.gguf "a question"`.

use std::io::Write;

use tokkata::{EventKind, Message, Model, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give a model")?;
    let question = args.next().ok_or("give a question")?;
    let service = Model::open(path, &OpenOptions::default())?.serve()?;
    let messages = [Message::new("user", question)];
    let chat = tokkata::chat::chat_request(&messages, service.tokenizer()?);
    let prompt = service.prompt(&chat)?;
    let mut answer = service.generate(service.request(prompt.ids)?);
    while let Some(event) = answer.next_blocking() {
        match event {
            EventKind::Token { text, .. } | EventKind::Finished { text, .. } => {
                std::io::stdout().write_all(&text)?;
                std::io::stdout().flush()?;
            }
            EventKind::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    println!();
    Ok(())
}
