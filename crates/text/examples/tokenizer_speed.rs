//! Encodes a text with the tokenizer of a GGUF file and prints the speed and the token count.
//!
//! `cargo run --release -p tokkata-text --example tokenizer_speed -- model.gguf text.txt [rounds]`

use std::time::Instant;

use tokkata_formats::ModelFile;
use tokkata_text::tokenizer::{EncodeOptions, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(text)) = (args.next(), args.next()) else {
        return Err("usage: tokenizer_speed MODEL TEXT [ROUNDS]".into());
    };
    let rounds = args.next().map_or(Ok(10), |n| n.parse())?;
    let text = std::fs::read_to_string(text)?;
    let started = Instant::now();
    let tokenizer = Tokenizer::from_metadata(ModelFile::open(model)?.metadata())?;
    println!("loaded in {:?}", started.elapsed());
    let mut best = f64::INFINITY;
    let mut count = 0;
    for _ in 0..rounds {
        let started = Instant::now();
        count = tokenizer.encode(&text, EncodeOptions::default()).len();
        best = best.min(started.elapsed().as_secs_f64());
    }
    println!(
        "{count} tokens, {:.1} ms, {:.1} MB/s",
        best * 1e3,
        text.len() as f64 / best / 1e6
    );
    Ok(())
}
