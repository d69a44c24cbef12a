//! Models with states that cannot be cut back go on from snapshots: what a turn shares with an earlier one is not
//! computed again, and the answer is that of a model which starts from nothing.

use crate::common::{checkpoint, golden, options};
use tokkata::{EventKind, Model, OpenOptions, Request, Sampling, SessionId, Stats, StopRules};

/// States of every kind, alone and beside keys and values of whole contexts and of windows.
const MODELS: &[&str] = &[
    "mamba",
    "mamba2",
    "rwkv6",
    "rwkv7",
    "arwkv7",
    "lfm2",
    "qwen3next",
    "qwen35",
    "kimi-linear",
    "falcon-h1",
    "jamba",
    "plamo2",
    "granitehybrid",
    "nemotron_h",
    "minimax-01",
];

fn load(name: &str, no_prefix_cache: bool) -> Model {
    let options = OpenOptions {
        ctx: std::num::NonZeroU32::new(128),
        rows: 16,
        no_prefix_cache,
        ..options()
    };
    Model::load(checkpoint(name, &golden(name)), &options, None).expect(name)
}

/// Tokens with their probabilities, and what they cost.
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    stats: Stats,
}

fn answer(model: &mut Model, session: Option<SessionId>, prompt: &[u32]) -> Answer {
    let request = Request {
        prompt: prompt.to_vec(),
        sampling: Sampling::greedy(),
        stop: StopRules {
            max_tokens: Some(6),
            ..StopRules::default()
        },
        logprobs: Some(0),
        ..Request::default()
    };
    let mut answer = Answer {
        tokens: Vec::new(),
        logprobs: Vec::new(),
        stats: Stats::default(),
    };
    for event in model.generate(request, session).expect("it fits") {
        match event.expect("it answers") {
            EventKind::Token { id, logprobs, .. } => {
                answer.tokens.push(id);
                answer.logprobs.extend(logprobs.map(|l| l.picked.logprob));
            }
            EventKind::Finished { stats, .. } => answer.stats = stats,
            _ => {}
        }
    }
    answer
}

/// The same prompt answered by a model that has seen nothing yet.
fn check(name: &str, what: &str, got: &Answer, prompt: &[u32]) {
    let want = answer(&mut load(name, true), None, prompt);
    assert_eq!(want.stats.reused_tokens, 0);
    assert_eq!(got.tokens, want.tokens, "{name}: {what}");
    for (a, b) in got.logprobs.iter().zip(&want.logprobs) {
        assert!((a - b).abs() < 1e-4, "{name}: {what}: {a} instead of {b}");
    }
    let stats = got.stats;
    let sum = stats.reused_tokens + stats.computed_tokens;
    assert_eq!(sum, prompt.len(), "{name}: {what}: {stats:?}");
}

fn turns(name: &str) {
    let ids = golden(name).ids();
    let mut model = load(name, false);
    let session = Some(model.open_session());
    let first = answer(&mut model, session, &ids[..20]);
    check(name, "the first turn", &first, &ids[..20]);

    let next = [&ids[..20], &first.tokens, &ids[20..27]].concat();
    let second = answer(&mut model, session, &next);
    check(name, "the next turn", &second, &next);
    assert_eq!(
        second.stats.reused_tokens, 25,
        "{name}: all but the newest token"
    );

    let other = [&ids[..20], &ids[27..32]].concat();
    let back = answer(&mut model, session, &other);
    check(name, "another end of the first turn", &back, &other);
    assert_eq!(
        back.stats.reused_tokens, 20,
        "{name}: up to the end of the prompt"
    );

    let again = answer(&mut model, None, &next);
    check(name, "the second turn in another sequence", &again, &next);
    assert!(again.stats.reused_tokens >= 20, "{name}: {:?}", again.stats);
}

#[test]
fn turns_go_on_from_snapshots_and_from_nothing_alike() {
    for name in MODELS {
        turns(name);
    }
}
