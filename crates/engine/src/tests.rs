//! The engine over a model whose logits betray any wrong cache entry.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tokkata_ir::sample::Mask;
use tokkata_ir::{CacheKind, Limits};

use super::*;
use crate::fake::{Fake, N_VOCAB, NAN_TOKEN, expected, group, program};

const FULL: CacheKind = CacheKind::Full;
const WINDOW: CacheKind = CacheKind::Window(7);
const STATE: CacheKind = CacheKind::Recurrent;

fn limits() -> Limits {
    Limits {
        rows: 24,
        seqs: 4,
        logit_rows: 4,
        ctx: 200,
        ..Limits::default()
    }
}

/// An engine whose pools hold `positions` of every group.
fn engine(kinds: &[CacheKind], block_size: u32, positions: u32, limits: Limits) -> Engine {
    engine_and_rows(kinds, block_size, positions, limits).0
}

/// The same, and how many rows its model has computed.
fn engine_and_rows(
    kinds: &[CacheKind],
    block_size: u32,
    positions: u32,
    limits: Limits,
) -> (Engine, Arc<AtomicUsize>) {
    let caches = kinds.iter().map(|&kind| match kind {
        CacheKind::Recurrent => group(kind, 1, 16),
        _ => group(kind, block_size, positions.div_ceil(block_size)),
    });
    let program = program(caches.collect(), limits);
    let instance = Box::new(Fake::new(&program));
    let rows = instance.rows.clone();
    let options = CacheOptions {
        shuffle_blocks: Some(5),
        ..CacheOptions::default()
    };
    let engine = Engine::new(program, instance, &options).unwrap();
    (engine, rows)
}

fn request(prompt: &[u32], n: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: Sampling::greedy(),
        stop: StopRules {
            max_tokens: Some(n),
            ..StopRules::default()
        },
        ..Request::default()
    }
}

fn prompt(n: usize, seed: u64) -> Vec<u32> {
    let token = |i| (tokkata_ir::sample::uniform(seed, i) % u64::from(NAN_TOKEN)) as u32;
    (0..n as u64).map(token).collect()
}

#[derive(Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    reason: Option<FinishReason>,
    stats: Stats,
    failed: Option<String>,
}

/// Answers of every request, until the engine is idle.
fn run(engine: &mut Engine) -> HashMap<RequestId, Answer> {
    let mut answers: HashMap<RequestId, Answer> = HashMap::new();
    for _ in 0..10_000 {
        if engine.is_idle() {
            return answers;
        }
        for event in engine.step().unwrap() {
            let answer = answers.entry(event.request).or_default();
            match event.kind {
                EventKind::Prompt { .. } => {}
                EventKind::Token { id, .. } => answer.tokens.push(id),
                EventKind::Finished { reason, stats, .. } => {
                    (answer.reason, answer.stats) = (Some(reason), stats);
                }
                EventKind::Failed(error) => answer.failed = Some(error.to_string()),
            }
        }
    }
    panic!("the engine makes no progress");
}

/// The greedy answer without any cache.
fn greedy(prompt: &[u32], n: usize, kinds: &[CacheKind]) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        let logits = expected(&tokens, kinds);
        tokens.push(tokkata_ir::sample::argmax(&logits).unwrap());
    }
    tokens.split_off(prompt.len())
}

const KINDS: [&[CacheKind]; 4] = [&[FULL], &[FULL, WINDOW], &[STATE], &[STATE, FULL, WINDOW]];

#[test]
fn answers_are_those_of_a_model_without_caches() {
    for kinds in KINDS {
        for block_size in [1, 16, 48, 64, 200] {
            let mut engine = engine(kinds, block_size, 1000, limits());
            let prompts: Vec<Vec<u32>> = (0..6).map(|i| prompt(5 + 17 * i, i as u64)).collect();
            let ids: Vec<RequestId> = prompts
                .iter()
                .map(|p| engine.submit(request(p, 12)).unwrap())
                .collect();
            let answers = run(&mut engine);
            for (id, prompt) in ids.iter().zip(&prompts) {
                let want = greedy(prompt, 12, kinds);
                let got = &answers[id];
                assert_eq!(got.tokens, want, "{kinds:?} {block_size}");
            }
        }
    }
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let session = engine.open_session(0);
        let mut tokens = prompt(40, 1);
        let id = engine.submit_to(session, request(&tokens, 9)).unwrap();
        let first = run(&mut engine).remove(&id).unwrap();
        assert_eq!(
            (first.stats.reused_tokens, first.stats.computed_tokens),
            (0, 40)
        );
        tokens.extend(&first.tokens);
        assert_eq!(
            engine.session_tokens(session),
            &tokens[..48],
            "all but the newest"
        );
        tokens.extend(prompt(5, 2));
        let id = engine.submit_to(session, request(&tokens, 9)).unwrap();
        let second = run(&mut engine).remove(&id).unwrap();
        assert_eq!(
            (second.stats.reused_tokens, second.stats.computed_tokens),
            (48, 6)
        );
        assert_eq!(second.tokens, greedy(&tokens, 9, kinds));
    }
}

#[test]
fn a_stored_prefix_is_found_by_other_requests() {
    for (kinds, reused) in [
        (KINDS[0], 64),
        (KINDS[1], 64),
        (KINDS[2], 64),
        (KINDS[3], 64),
    ] {
        for block_size in [1, 16, 64, 200] {
            let mut engine = engine(kinds, block_size, 1000, limits());
            let shared = prompt(64, 1);
            engine.submit(request(&shared, 5)).unwrap();
            run(&mut engine);
            let tokens = [shared.clone(), prompt(20, 2)].concat();
            let id = engine.submit(request(&tokens, 8)).unwrap();
            let got = run(&mut engine).remove(&id).unwrap();
            assert_eq!(got.stats.reused_tokens, reused, "{kinds:?} {block_size}");
            assert_eq!(
                got.tokens,
                greedy(&tokens, 8, kinds),
                "{kinds:?} {block_size}"
            );
        }
    }
}

#[test]
fn the_same_prompt_again_computes_one_token() {
    let mut engine = engine(KINDS[1], 16, 1000, limits());
    let tokens = prompt(64, 1);
    for computed in [64, 1] {
        let id = engine.submit(request(&tokens, 5)).unwrap();
        let got = run(&mut engine).remove(&id).unwrap();
        assert_eq!(got.stats.computed_tokens, computed);
        assert_eq!(got.tokens, greedy(&tokens, 5, KINDS[1]));
    }
}

#[test]
fn salts_keep_prefixes_apart() {
    let mut engine = engine(KINDS[0], 16, 1000, limits());
    let tokens = prompt(64, 1);
    for (salt, reused) in [(1, 0), (2, 0), (1, 63)] {
        let id = engine
            .submit(Request {
                salt,
                ..request(&tokens, 2)
            })
            .unwrap();
        assert_eq!(run(&mut engine)[&id].stats.reused_tokens, reused);
    }
}

#[test]
fn forks_go_separate_ways() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let session = engine.open_session(0);
        let tokens = prompt(40, 1);
        engine.submit_to(session, request(&tokens, 1)).unwrap();
        run(&mut engine);
        let other = engine.fork_session(session).unwrap();
        let both = [session, other].map(|s| {
            let tokens = [tokens.clone(), prompt(9, s.0)].concat();
            (engine.submit_to(s, request(&tokens, 8)).unwrap(), tokens)
        });
        let answers = run(&mut engine);
        for (id, tokens) in both {
            assert_eq!(answers[&id].stats.computed_tokens, 9);
            assert_eq!(answers[&id].tokens, greedy(&tokens, 8, kinds));
        }
    }
}

#[test]
fn going_back_is_exact_or_refused() {
    let mut full = engine(&[FULL, WINDOW], 4, 400, limits());
    let session = full.open_session(0);
    let tokens = prompt(60, 1);
    full.submit_to(session, request(&tokens, 1)).unwrap();
    run(&mut full);
    let error = full.truncate_session(session, 20).unwrap_err();
    assert!(error.to_string().contains("holds 60 tokens"), "{error}");
    full.truncate_session(session, 59).unwrap();
    let other = [&tokens[..59], &[3, 4, 5]].concat();
    let id = full.submit_to(session, request(&other, 6)).unwrap();
    let got = run(&mut full).remove(&id).unwrap();
    assert_eq!(
        (got.stats.computed_tokens, got.tokens),
        (3, greedy(&other, 6, &[FULL, WINDOW]))
    );
    let edited = [&tokens[..20], &[9, 9]].concat();
    let id = full.submit_to(session, request(&edited, 6)).unwrap();
    let got = run(&mut full).remove(&id).unwrap();
    assert_eq!(got.tokens, greedy(&edited, 6, &[FULL, WINDOW]));
}

#[test]
fn running_out_of_context_ends_by_name() {
    let mut engine = engine(
        KINDS[1],
        16,
        1000,
        Limits {
            ctx: 50,
            ..limits()
        },
    );
    let long = engine.submit(request(&prompt(51, 1), 5)).unwrap_err();
    assert!(matches!(
        long,
        EngineError::PromptTooLong {
            tokens: 51,
            ctx: 50
        }
    ));
    assert!(matches!(
        engine.submit(request(&[], 5)),
        Err(EngineError::EmptyPrompt)
    ));
    let unknown = engine.submit(request(&[N_VOCAB], 5)).unwrap_err();
    assert!(matches!(unknown, EngineError::UnknownToken { .. }));
    for n in [44, 50] {
        let id = engine.submit(request(&prompt(n, 1), 500)).unwrap();
        let got = run(&mut engine).remove(&id).unwrap();
        assert_eq!(got.reason, Some(FinishReason::ContextFull));
        assert_eq!(got.tokens.len(), 51 - n);
    }
}

#[test]
fn a_request_may_only_fill_the_cache() {
    let mut engine = engine(KINDS[1], 16, 1000, limits());
    let session = engine.open_session(0);
    let id = engine
        .submit_to(session, request(&prompt(30, 1), 0))
        .unwrap();
    let got = run(&mut engine).remove(&id).unwrap();
    assert_eq!(
        (got.tokens.len(), got.reason),
        (0, Some(FinishReason::MaxTokens))
    );
    assert_eq!(engine.session_tokens(session).len(), 30);
}

#[test]
fn logits_that_are_not_numbers_fail_their_request_alone() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let good = prompt(9, 1);
        let ok = engine.submit(request(&good, 6)).unwrap();
        let bad = engine.submit(request(&[4, NAN_TOKEN], 6)).unwrap();
        let answers = run(&mut engine);
        assert!(
            answers[&bad]
                .failed
                .as_ref()
                .unwrap()
                .contains("not numbers")
        );
        assert_eq!(answers[&ok].tokens, greedy(&good, 6, kinds));
    }
}

#[test]
fn a_short_pool_preempts_the_youngest_and_loses_nothing() {
    for kinds in [KINDS[0], KINDS[1]] {
        let mut engine = engine(kinds, 4, 104, limits());
        let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(20, i)).collect();
        let ids: Vec<RequestId> = prompts
            .iter()
            .map(|p| engine.submit(request(p, 30)).unwrap())
            .collect();
        let answers = run(&mut engine);
        for (id, prompt) in ids.iter().zip(&prompts) {
            assert_eq!(answers[id].tokens, greedy(prompt, 30, kinds), "{kinds:?}");
        }
    }
}

#[test]
fn a_pool_too_small_for_one_request_is_an_error() {
    let mut engine = engine(KINDS[0], 4, 24, limits());
    let id = engine.submit(request(&prompt(20, 1), 30)).unwrap();
    let failed = run(&mut engine).remove(&id).unwrap().failed.unwrap();
    assert!(failed.contains("cache is full"), "{failed}");
    let id = engine.submit(request(&prompt(20, 1), 3)).unwrap();
    assert_eq!(run(&mut engine)[&id].tokens.len(), 3, "the engine goes on");
}

#[test]
fn an_idle_session_makes_room() {
    let mut engine = engine(KINDS[0], 4, 60, limits());
    let session = engine.open_session(0);
    engine
        .submit_to(session, request(&prompt(30, 1), 5))
        .unwrap();
    run(&mut engine);
    let tokens = prompt(40, 2);
    let id = engine.submit(request(&tokens, 5)).unwrap();
    assert_eq!(run(&mut engine)[&id].tokens, greedy(&tokens, 5, KINDS[0]));
    assert!(engine.session_tokens(session).is_empty());
}

#[test]
fn cancelling_and_stop_ids_end_an_answer() {
    let mut engine = engine(KINDS[0], 16, 1000, limits());
    let tokens = prompt(9, 1);
    let full = greedy(&tokens, 6, KINDS[0]);
    let mut stopping = request(&tokens, 6);
    stopping.stop.stop_ids = vec![full[3]];
    let stop = engine.submit(stopping).unwrap();
    let cancel = engine.submit(request(&tokens, 100)).unwrap();
    engine.step().unwrap();
    engine.cancel(cancel);
    let answers = run(&mut engine);
    assert_eq!(answers[&stop].reason, Some(FinishReason::EndOfText));
    assert_eq!(
        answers[&stop].tokens,
        full[1..3],
        "the first came with the first step"
    );
    assert_eq!(answers[&cancel].reason, Some(FinishReason::Cancelled));
}

#[test]
fn the_same_seed_gives_the_same_answer_in_company() {
    let kinds = KINDS[3];
    let sampled = |seed| Request {
        sampling: Sampling {
            seed,
            temperature: 1.0,
            ..Sampling::default()
        },
        ..request(&prompt(20, 1), 40)
    };
    let mut alone = engine(kinds, 16, 1000, limits());
    let id = alone.submit(sampled(7)).unwrap();
    let want = run(&mut alone).remove(&id).unwrap().tokens;
    let mut company = engine(kinds, 16, 1000, limits());
    for i in 0..6 {
        company.submit(request(&prompt(3 + i, 9), 30)).unwrap();
    }
    let id = company.submit(sampled(7)).unwrap();
    assert_eq!(run(&mut company).remove(&id).unwrap().tokens, want);
    let mut other = engine(kinds, 16, 1000, limits());
    let id = other.submit(sampled(8)).unwrap();
    assert_ne!(run(&mut other).remove(&id).unwrap().tokens, want);
}

#[test]
fn logits_of_every_position_whatever_the_chunks() {
    let kinds = KINDS[3];
    let ids = prompt(30, 3);
    for (chunk, copies) in [(1, 1), (4, 1), (3, 3), (2, 5)] {
        let mut engine = engine(kinds, 16, 1000, limits());
        let mut seen = 0;
        let check = |_, position: usize, logits: &[f32]| {
            assert_eq!(logits, expected(&ids[..=position], kinds));
            seen += 1;
        };
        engine
            .logits(&ids, ScorePlan { chunk, copies }, check)
            .unwrap();
        assert_eq!(seen, 30 * copies);
    }
}

struct Letters;

impl Decoder for Letters {
    fn push(&mut self, token: u32, out: &mut Vec<u8>) {
        out.push(b'a' + (token % 26) as u8);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        out.push(b'.');
    }
}

#[test]
fn stop_strings_end_the_text_before_them() {
    let tokens = prompt(9, 1);
    let text: Vec<u8> = greedy(&tokens, 6, KINDS[0])
        .iter()
        .map(|t| b'a' + (t % 26) as u8)
        .collect();
    for (stop, want) in [
        (text[2..4].to_vec(), text[..2].to_vec()),
        (b"#".to_vec(), [&text[..], b"."].concat()),
    ] {
        let mut engine = engine(KINDS[0], 16, 1000, limits());
        let mut r = request(&tokens, 6);
        r.stop.stop_strings = vec![stop];
        r.decoder = Some(Box::new(Letters));
        engine.submit(r).unwrap();
        let mut got = Vec::new();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let EventKind::Token { text, .. } | EventKind::Finished { text, .. } = event.kind
                {
                    got.extend(text);
                }
            }
        }
        assert_eq!(got, want);
    }
}

/// Forgets everything: then every block must be free.
fn assert_no_leak(engine: &mut Engine) {
    let sessions: Vec<SessionId> = engine.sessions.keys().copied().collect();
    sessions.into_iter().for_each(|id| engine.close_session(id));
    engine.cache.forget();
    for pool in engine.cache.pools() {
        assert_eq!((pool.free(), pool.idle()), (pool.len(), 0));
    }
}

#[derive(Clone, Debug)]
enum Act {
    Ask { family: u64, len: usize, n: usize },
    Turn { len: usize, n: usize },
    Cut { len: usize },
    Fork,
    Steps(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..3u64, 1..120usize, 0..12usize).prop_map(|(family, len, n)| Act::Ask { family, len, n }),
        (1..30usize, 0..12usize).prop_map(|(len, n)| Act::Turn { len, n }),
        (0..60usize).prop_map(|len| Act::Cut { len }),
        Just(Act::Fork),
        (1..6usize).prop_map(Act::Steps),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_answers_are_exact_and_no_block_is_lost(
        acts in prop::collection::vec(act(), 1..25),
        which in 0..4usize,
        block_size in prop::sample::select(vec![1u32, 5, 16, 32, 64, 200]),
        positions in 220..700u32,
    ) {
        let kinds = KINDS[which];
        let mut engine = engine(kinds, block_size, positions.next_multiple_of(block_size) + block_size, limits());
        let mut session = engine.open_session(0);
        let mut asked: HashMap<RequestId, (Vec<u32>, usize)> = HashMap::new();
        let mut answers: HashMap<RequestId, Answer> = HashMap::new();
        for act in acts {
            match act {
                Act::Ask { family, len, n } => {
                    let tokens = prompt(len, family);
                    let id = engine.submit(request(&tokens, n)).unwrap();
                    asked.insert(id, (tokens, n));
                }
                Act::Turn { len, n } => {
                    let mut tokens = engine.session_tokens(session).to_vec();
                    tokens.extend(prompt(len, 77));
                    tokens.truncate(150);
                    if let Ok(id) = engine.submit_to(session, request(&tokens, n)) {
                        asked.insert(id, (tokens, n));
                    }
                }
                Act::Cut { len } => drop(engine.truncate_session(session, len)),
                Act::Fork => {
                    if let Ok(new) = engine.fork_session(session) {
                        engine.close_session(session);
                        session = new;
                    }
                }
                Act::Steps(n) => {
                    for _ in 0..n {
                        collect(&mut answers, engine.step().unwrap());
                    }
                }
            }
        }
        while !engine.is_idle() {
            collect(&mut answers, engine.step().unwrap());
        }
        for (id, (tokens, n)) in asked {
            if answers[&id].failed.is_none() {
                prop_assert_eq!(&answers[&id].tokens, &greedy(&tokens, n, kinds));
            }
        }
        assert_no_leak(&mut engine);
    }
}

fn collect(answers: &mut HashMap<RequestId, Answer>, events: Vec<Event>) {
    for event in events {
        let answer = answers.entry(event.request).or_default();
        match event.kind {
            EventKind::Token { id, .. } => answer.tokens.push(id),
            EventKind::Failed(error) => answer.failed = Some(error.to_string()),
            _ => {}
        }
    }
}

/// The words of a mask that allows one token.
fn only(token: u32) -> Vec<u32> {
    let mut mask = vec![0; N_VOCAB.div_ceil(32) as usize];
    mask[token as usize / 32] |= 1 << (token % 32);
    mask
}

/// Allows one token at a time: each that is picked is followed by the same token twice.
struct Triple {
    next: u32,
    fails_at: Option<u32>,
}

impl Constraint for Triple {
    fn mask(&mut self) -> Option<Mask> {
        Some(Mask::ready(only(self.next)))
    }

    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String> {
        assert_eq!(token, self.next, "only the mask's tokens are picked");
        if self.fails_at == Some(token) {
            return Err("no way on".to_owned());
        }
        forced.extend([token, token]);
        self.next += 1;
        Ok(())
    }
}

#[test]
fn a_constraint_masks_tokens_and_skips_ahead() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let free = engine.submit(request(&prompt(9, 1), 10)).unwrap();
        let constrained = |fails_at| Request {
            constraint: Some(Box::new(Triple { next: 40, fails_at })),
            ..request(&prompt(9, 2), 10)
        };
        let id = engine.submit(constrained(None)).unwrap();
        let failing = engine.submit(constrained(Some(41))).unwrap();
        let answers = run(&mut engine);
        let want = [40, 40, 40, 41, 41, 41, 42, 42, 42, 43];
        assert_eq!(answers[&id].tokens, want);
        assert_eq!(answers[&id].reason, Some(FinishReason::MaxTokens));
        assert_eq!(answers[&id].stats.generated_tokens, 10);
        assert_eq!(answers[&failing].failed.as_deref(), Some("no way on"));
        assert_eq!(answers[&free].tokens, greedy(&prompt(9, 1), 10, kinds));
    }
}

#[test]
fn forced_tokens_are_fed_like_any_other() {
    let session_tokens = |engine: &mut Engine| {
        let session = engine.open_session(0);
        let request = Request {
            constraint: Some(Box::new(Triple {
                next: 7,
                fails_at: None,
            })),
            ..request(&prompt(5, 3), 5)
        };
        engine.submit_to(session, request).unwrap();
        run(engine);
        session
    };
    let mut engine = engine(&[FULL], 16, 1000, limits());
    let session = session_tokens(&mut engine);
    let mut told = prompt(5, 3);
    told.extend([7, 7, 7, 8, 8]);
    let id = engine.submit_to(session, request(&told, 6)).unwrap();
    let answer = run(&mut engine).remove(&id).unwrap();
    assert_eq!(answer.tokens, greedy(&told, 6, &[FULL]));
    assert!(answer.stats.reused_tokens >= 8, "{:?}", answer.stats);
}

/// Begins with tokens that it forces; its masks are not settled before the model has begun to run.
struct Late {
    begin: Vec<u32>,
    rows: Arc<AtomicUsize>,
}

impl Constraint for Late {
    fn begin(&mut self, forced: &mut Vec<u32>) -> Result<(), String> {
        forced.append(&mut self.begin);
        Ok(())
    }

    fn mask(&mut self) -> Option<Mask> {
        let (setter, mask) = Mask::pending();
        let (rows, before) = (self.rows.clone(), self.rows.load(Ordering::Relaxed));
        std::thread::spawn(move || {
            for _ in 0..5000 {
                if rows.load(Ordering::Relaxed) > before {
                    return setter.set(only(50));
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        Some(mask)
    }

    fn accept(&mut self, token: u32, _: &mut Vec<u32>) -> Result<(), String> {
        (token == 50).then_some(()).ok_or(format!("picked {token}"))
    }
}

#[test]
fn a_mask_is_computed_while_the_model_runs_and_answers_begin_with_what_is_forced() {
    let (mut engine, rows) = engine_and_rows(&[FULL], 16, 1000, limits());
    let late = |begin: &[u32], n| Request {
        constraint: Some(Box::new(Late {
            begin: begin.to_vec(),
            rows: rows.clone(),
        })),
        ..request(&prompt(9, 2), n)
    };
    let id = engine.submit(late(&[3, 4, 5], 5)).unwrap();
    let answer = run(&mut engine).remove(&id).unwrap();
    assert_eq!(
        (answer.failed, answer.tokens),
        (None, vec![3, 4, 5, 50, 50])
    );
    let stats = answer.stats;
    assert_eq!((stats.prompt_tokens, stats.computed_tokens), (9, 9));
    assert_eq!(stats.generated_tokens, 5);
    // The prompt with what is forced, then one row for each further token but the last.
    assert_eq!(rows.load(Ordering::Relaxed), 12 + 1);

    let id = engine.submit(late(&[3, 4, 5], 2)).unwrap();
    let answer = run(&mut engine).remove(&id).unwrap();
    assert_eq!(answer.tokens, [3, 4]);
    assert_eq!(answer.reason, Some(FinishReason::MaxTokens));
    assert_eq!(rows.load(Ordering::Relaxed), 12 + 1);
}
