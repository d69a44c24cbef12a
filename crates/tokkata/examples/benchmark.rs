//! First token and tokens per second: `cargo run --release -p tokkata --example benchmark MODEL.gguf SEQUENCES TOKENS`.

use std::time::Instant;

use tokkata::{EncodeOptions, EventKind, Model, OpenOptions, Sampling};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give a model")?;
    let n: u32 = args.next().map_or(Ok(1), |n| n.parse())?;
    let tokens: usize = args.next().map_or(Ok(128), |n| n.parse())?;
    let options = OpenOptions {
        seqs: n,
        ..OpenOptions::default()
    };
    let service = Model::open(path, &options)?.serve()?;
    let ids = (service.tokenizer()?).encode("Once upon a time", EncodeOptions::default());
    for _ in 0..5 {
        let began = Instant::now();
        let mut answers = Vec::new();
        for _ in 0..n {
            let mut request = service.request(ids.clone())?;
            request.sampling = Sampling::greedy();
            request.stop.stop_ids.clear();
            request.stop.max_tokens = Some(tokens);
            answers.push(service.generate(request));
        }
        let (mut first, mut made) = (None, 0);
        while !answers.is_empty() {
            answers.retain_mut(|answer| match answer.next_blocking() {
                Some(EventKind::Token { .. }) => {
                    first.get_or_insert_with(|| began.elapsed());
                    made += 1;
                    true
                }
                event => event.is_some(),
            });
        }
        let rate = f64::from(made) / began.elapsed().as_secs_f64();
        let first = first.unwrap_or_default().as_secs_f64() * 1e3;
        println!("first token {first:.2} ms, {rate:.1} tokens/s");
    }
    Ok(())
}
