//! The same seed gives the same text alone and beside other requests, on a real little model.

use std::path::PathBuf;

use tokkata::{EncodeOptions, EventKind, Model, OpenOptions, Request, RequestId, Sampling};

const SEEDS: u64 = 50;
const TOKENS: usize = 200;
const PROMPTS: [&str; 4] = [
    "Once upon a time",
    "The little dog",
    "Tom and",
    "One day, a girl",
];

/// The model, or `None` where the test data is absent; under `CI` it must be there.
fn model() -> Option<Model> {
    let root = std::env::var_os("TOKKATA_TESTDATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let path = root.join("models/dreams-260k.gguf");
    if !path.exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "{} is missing",
            path.display()
        );
        println!("skipped: batch ({} is missing)", path.display());
        return None;
    }
    let options = OpenOptions {
        device: Some("cpu".to_owned()),
        threads: Some(2),
        ctx: std::num::NonZeroU32::new(256),
        seqs: 8,
        logit_rows: 8,
        ..OpenOptions::default()
    };
    Some(Model::open(path, &options).expect("it loads"))
}

fn request(model: &Model, seed: u64) -> Request {
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let prompt = PROMPTS[seed as usize % PROMPTS.len()];
    let ids = model.tokenize(prompt, options).expect("a tokenizer");
    let mut request = model.request(ids).expect("a request");
    request.sampling = Sampling {
        temperature: 1.0,
        seed,
        ..Sampling::greedy()
    };
    request.stop.max_tokens = Some(TOKENS);
    // A story's end must not cut the comparison short.
    request.stop.stop_ids.clear();
    request
}

/// Tokens of every request, run side by side.
fn run(model: &mut Model, seeds: &[u64]) -> Vec<Vec<u32>> {
    let requests: Vec<Request> = seeds.iter().map(|&s| request(model, s)).collect();
    let engine = model.engine();
    let ids: Vec<RequestId> = requests
        .into_iter()
        .map(|r| engine.submit(r).expect("there is room"))
        .collect();
    let mut tokens = vec![Vec::new(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step() {
            let place = ids
                .iter()
                .position(|&i| i == event.request)
                .expect("a known request");
            if let EventKind::Token { id, .. } = event.kind {
                tokens[place].push(id);
            }
        }
    }
    tokens
}

#[test]
fn sampled_text_is_the_same_alone_and_beside_seven_others() {
    let Some(mut model) = model() else { return };
    let alone: Vec<Vec<u32>> = (0..SEEDS)
        .map(|s| run(&mut model, &[s]).remove(0))
        .collect();
    assert!(
        alone.iter().all(|t| t.len() == TOKENS),
        "answers fill their limit"
    );
    assert_ne!(alone[0], alone[4], "seeds matter");
    // Every seed stands in a batch of eight, and again in another place beside others.
    for first in (0..SEEDS).step_by(8) {
        for seeds in [
            Vec::from_iter((first..first + 8).map(|s| s % SEEDS)),
            Vec::from_iter((0..8).map(|i| (SEEDS - 1 + 7 * i - first % SEEDS) % SEEDS)),
        ] {
            let beside = run(&mut model, &seeds);
            for (s, tokens) in seeds.iter().zip(&beside) {
                assert_eq!(tokens, &alone[*s as usize], "seed {s} beside {seeds:?}");
            }
        }
    }
}
