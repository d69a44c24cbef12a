//! The engine over a model whose logits betray any wrong cache entry.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tokkata_ir::sample::Mask;
use tokkata_ir::{CacheKind, Executor, HostExecutor, Limits, PlanRole};

use super::*;
use crate::fake::{Fake, N_VOCAB, NAN_TOKEN, POISON_TOKEN, Slow, arena, expected, group, program};

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

/// What an engine runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// An executor that computes when it is asked, one work at a time.
    Prompt,
    /// One that answers late, with several works under way.
    Late { ahead: usize, chain: u32 },
}

thread_local! {
    static HOW: Cell<How> = const { Cell::new(How::Prompt) };
}

/// Every one of these tests on every kind of executor.
macro_rules! everywhere {
    ($($name:ident)*) => {
        mod prompt_executor {
            $(#[test] fn $name() {
                super::HOW.set(super::How::Prompt);
                super::$name();
            })*
        }
        mod late_executor {
            $(#[test] fn $name() {
                super::HOW.set(super::How::Late { ahead: 3, chain: 0 });
                super::$name();
            })*
        }
        mod chaining_executor {
            $(#[test] fn $name() {
                super::HOW.set(super::How::Late { ahead: 2, chain: 4 });
                super::$name();
            })*
        }
    };
}

/// An engine whose arena holds `positions` of every group.
fn engine(kinds: &[CacheKind], block_size: u32, positions: u32, limits: Limits) -> Engine {
    engine_and_model(kinds, block_size, positions, limits).0
}

/// The model's own counters.
struct Model {
    /// Rows that it has computed.
    rows: Arc<AtomicUsize>,
    /// Steps until it is lost.
    lost_after: Arc<AtomicUsize>,
}

fn engine_and_model(
    kinds: &[CacheKind],
    block_size: u32,
    positions: u32,
    limits: Limits,
) -> (Engine, Model) {
    let blocks = kinds.iter().map(|&kind| match kind {
        CacheKind::Recurrent => 16,
        _ => u64::from(positions.div_ceil(block_size)),
    });
    let arena = arena(kinds.len(), blocks.sum());
    let caches = kinds.iter().map(|&kind| match kind {
        CacheKind::Recurrent => group(kind, 1),
        _ => group(kind, block_size),
    });
    let program = program(caches.collect(), limits);
    let fake = Fake::new(&program);
    let model = Model {
        rows: fake.rows.clone(),
        lost_after: fake.lost_after.clone(),
    };
    let executor = HostExecutor::new(fake, program.clone(), arena);
    let cache = CacheOptions {
        shuffle_blocks: Some(5),
        ..CacheOptions::default()
    };
    let options = EngineOptions {
        cache,
        ..EngineOptions::default()
    };
    let (executor, options): (Box<dyn Executor>, _) = match HOW.get() {
        How::Prompt => (Box::new(executor), options),
        How::Late { ahead, chain } => {
            let options = EngineOptions {
                ahead,
                chain,
                ..options
            };
            (Box::new(Slow::new(executor)), options)
        }
    };
    (Engine::new(program, executor, options).unwrap(), model)
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
    let token = |i| (tokkata_ir::sample::uniform(seed, i) % u64::from(POISON_TOKEN)) as u32;
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
        collect(&mut answers, engine.step());
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

fn a_pool_too_small_for_one_request_is_an_error() {
    let mut engine = engine(KINDS[0], 4, 24, limits());
    let id = engine.submit(request(&prompt(20, 1), 30)).unwrap();
    let failed = run(&mut engine).remove(&id).unwrap().failed.unwrap();
    assert!(failed.contains("cache is full"), "{failed}");
    let id = engine.submit(request(&prompt(20, 1), 3)).unwrap();
    assert_eq!(run(&mut engine)[&id].tokens.len(), 3, "the engine goes on");
}

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

fn cancelling_and_stop_ids_end_an_answer() {
    let mut engine = engine(KINDS[0], 16, 1000, limits());
    let tokens = prompt(9, 1);
    let full = greedy(&tokens, 6, KINDS[0]);
    let mut stopping = request(&tokens, 6);
    stopping.stop.stop_ids = vec![full[3]];
    let stop = engine.submit(stopping).unwrap();
    let cancel = engine.submit(request(&tokens, 100)).unwrap();
    let mut answers = HashMap::new();
    while answers
        .get(&cancel)
        .is_none_or(|a: &Answer| a.tokens.is_empty())
    {
        collect(&mut answers, engine.step());
    }
    engine.cancel(cancel);
    while !engine.is_idle() {
        collect(&mut answers, engine.step());
    }
    assert_eq!(answers[&stop].reason, Some(FinishReason::EndOfText));
    assert_eq!(answers[&stop].tokens, full[..3]);
    assert_eq!(answers[&cancel].reason, Some(FinishReason::Cancelled));
    assert!(answers[&cancel].tokens.len() < 20, "within one work");
}

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
            for event in engine.step() {
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
    assert!(
        engine.cache.pools().is_unused(),
        "{:?}",
        engine.cache.pools()
    );
    let prefixes = engine.cache.prefixes().unwrap();
    assert_eq!((prefixes.len(), prefixes.salts()), (0, 0));
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
        how in prop::sample::select(vec![
            How::Prompt,
            How::Late { ahead: 2, chain: 0 },
            How::Late { ahead: 3, chain: 3 },
        ]),
    ) {
        let kinds = KINDS[which];
        HOW.set(how);
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
                        collect(&mut answers, engine.step());
                    }
                }
            }
        }
        while !engine.is_idle() {
            collect(&mut answers, engine.step());
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
            EventKind::Finished { reason, stats, .. } => {
                (answer.reason, answer.stats) = (Some(reason), stats);
            }
            EventKind::Prompt { .. } | EventKind::Values { .. } => {}
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
    fn mask(&mut self) -> Result<Option<Mask>, String> {
        Ok(Some(Mask::ready(only(self.next))))
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

/// Begins with tokens that it forces; its first mask is not known before the model has begun to run.
struct Late {
    begin: Vec<u32>,
    rows: Arc<AtomicUsize>,
}

impl Constraint for Late {
    fn begin(&mut self, forced: &mut Vec<u32>) -> Result<(), String> {
        for _ in 0..5000 {
            if self.rows.load(Ordering::Relaxed) > 0 {
                forced.append(&mut self.begin);
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Err("nothing ran while a mask was late".to_owned())
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        Ok(Some(Mask::ready(only(50))))
    }

    fn accept(&mut self, token: u32, _: &mut Vec<u32>) -> Result<(), String> {
        (token == 50).then_some(()).ok_or(format!("picked {token}"))
    }
}

fn the_model_runs_while_a_mask_is_late_and_answers_begin_with_what_is_forced() {
    let (mut engine, model) = engine_and_model(&[FULL], 16, 1000, limits());
    let late = |begin: &[u32], n| Request {
        constraint: Some(Box::new(Late {
            begin: begin.to_vec(),
            rows: model.rows.clone(),
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
    assert_eq!(model.rows.load(Ordering::Relaxed), 12 + 1);

    let id = engine.submit(late(&[3, 4, 5], 2)).unwrap();
    let answer = run(&mut engine).remove(&id).unwrap();
    assert_eq!(answer.tokens, [3, 4]);
    assert_eq!(answer.reason, Some(FinishReason::MaxTokens));
    let rows = model.rows.load(Ordering::Relaxed);
    assert!(
        rows <= 12 + 1 + 8,
        "{rows}: the last row waits for its mask"
    );
}

/// The worst of a prompt beside an answer: how many rows run in one step.
fn a_long_prompt_leaves_answers_their_pace() {
    let limits = Limits {
        rows: 512,
        ctx: 4096,
        ..limits()
    };
    let (mut engine, model) = engine_and_model(&[FULL], 16, 8000, limits);
    let answering = engine.submit(request(&prompt(4, 1), 60)).unwrap();
    let mut answers = HashMap::new();
    while answers
        .get(&answering)
        .is_none_or(|a: &Answer| a.tokens.len() < 4)
    {
        collect(&mut answers, engine.step());
    }
    let long = engine.submit(request(&prompt(3000, 2), 1)).unwrap();
    let (before, rows) = (
        answers[&answering].tokens.len(),
        model.rows.load(Ordering::Relaxed),
    );
    while answers[&answering].tokens.len() < before + 5 {
        collect(&mut answers, engine.step());
    }
    let rows = model.rows.load(Ordering::Relaxed) - rows;
    assert!(
        rows < 2500,
        "{rows} rows ran while five tokens were written"
    );
    while !engine.is_idle() {
        collect(&mut answers, engine.step());
    }
    assert_eq!(answers[&long].tokens, greedy(&prompt(3000, 2), 1, &[FULL]));
}

fn a_short_prompt_behind_a_long_one_starts_at_once() {
    let limits = Limits {
        rows: 64,
        ctx: 4096,
        ..limits()
    };
    let mut engine = engine(&[FULL], 16, 8000, limits);
    let long = engine.submit(request(&prompt(3000, 2), 1)).unwrap();
    let mut events = engine.step();
    let short = engine.submit(request(&prompt(20, 1), 1)).unwrap();
    while !events
        .iter()
        .any(|e| e.request == short && matches!(e.kind, EventKind::Token { .. }))
    {
        let seen = events.len();
        events.extend(engine.step());
        assert!(seen < 40, "its first token took too many steps");
    }
    let prompted = |e: &&Event| e.request == long && matches!(e.kind, EventKind::Prompt { .. });
    assert!(events.iter().filter(prompted).count() < 30);
    run(&mut engine);
}

fn a_failing_step_fails_only_the_request_that_made_it_fail() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let good = [prompt(9, 1), prompt(30, 2)];
        let ids = good.clone().map(|p| engine.submit(request(&p, 6)).unwrap());
        let bad = engine.submit(request(&[4, POISON_TOKEN], 6)).unwrap();
        let answers = run(&mut engine);
        let failed = answers[&bad].failed.as_ref().unwrap();
        assert!(failed.contains("a row of poison"), "{failed}");
        for (id, prompt) in ids.iter().zip(&good) {
            assert_eq!(answers[id].tokens, greedy(prompt, 6, kinds), "{kinds:?}");
        }
        assert_no_leak(&mut engine);
    }
}

fn a_lost_device_fails_its_requests_by_name() {
    let (mut engine, model) = engine_and_model(&[STATE, FULL], 16, 1000, limits());
    let session = engine.open_session(0);
    let ids = [
        engine
            .submit_to(session, request(&prompt(9, 1), 50))
            .unwrap(),
        engine.submit(request(&prompt(50, 2), 50)).unwrap(),
    ];
    model.lost_after.store(7, Ordering::Relaxed);
    let answers = run(&mut engine);
    for id in ids {
        assert_eq!(
            answers[&id].failed.as_deref(),
            Some("device lost: unplugged")
        );
    }
    let refused = engine.submit(request(&prompt(3, 1), 5)).unwrap_err();
    assert_eq!(refused.to_string(), "device lost: unplugged");
    assert_no_leak(&mut engine);
}

fn a_bias_that_is_no_number_is_refused_and_an_empty_mask_fails_alone() {
    let mut engine = engine(&[STATE, FULL], 16, 1000, limits());
    let biased = |bias| {
        let mut request = request(&prompt(9, 1), 3);
        request.sampling.bias = bias;
        request
    };
    let refused = engine.submit(biased(vec![(5, f32::NAN)])).unwrap_err();
    assert!(
        refused.to_string().starts_with("logit_bias is NaN"),
        "{refused}"
    );
    let none = (0..N_VOCAB).map(|id| (id, f32::NEG_INFINITY)).collect();
    let empty = engine.submit(biased(none)).unwrap();
    let good = engine.submit(request(&prompt(9, 2), 6)).unwrap();
    let answers = run(&mut engine);
    let failed = answers[&empty].failed.as_ref().unwrap();
    assert!(failed.starts_with("no token may come next"), "{failed}");
    assert_eq!(
        answers[&good].tokens,
        greedy(&prompt(9, 2), 6, &[STATE, FULL])
    );
}

fn the_queue_is_bounded_deadlines_hold_and_the_urgent_go_first() {
    let one = Limits {
        seqs: 1,
        ..limits()
    };
    let mut engine = engine(&[FULL], 16, 1000, one);
    engine.limit_queue(3);
    let urgent = |priority, deadline| Request {
        urgency: Urgency { priority, deadline },
        ..request(&prompt(9, 1), 2)
    };
    let past = std::time::Instant::now();
    let first = engine.submit(urgent(0, None)).unwrap();
    let late = engine.submit(urgent(0, Some(past))).unwrap();
    let before = engine.submit(urgent(1, None)).unwrap();
    let full = engine.submit(urgent(9, None)).unwrap_err();
    assert_eq!(full.to_string(), "3 requests are waiting; try again in 1 s");
    let mut ended = Vec::new();
    while !engine.is_idle() {
        for event in engine.step() {
            match event.kind {
                EventKind::Finished { .. } => ended.push(event.request),
                EventKind::Failed(error) => {
                    assert_eq!(error.to_string(), "the deadline of the request has passed");
                    ended.push(event.request);
                }
                _ => {}
            }
        }
    }
    assert_eq!(ended, [late, before, first]);
}

fn a_request_that_does_not_fit_yet_lets_smaller_ones_pass_but_not_for_ever() {
    let mut engine = engine(&[FULL], 4, 120, limits());
    let running = engine.submit(request(&prompt(60, 1), 30)).unwrap();
    engine.step();
    let large = engine.submit(request(&prompt(100, 2), 1)).unwrap();
    let small = engine.submit(request(&prompt(4, 3), 1)).unwrap();
    let mut order = Vec::new();
    while !engine.is_idle() {
        for event in engine.step() {
            if matches!(event.kind, EventKind::Finished { .. }) {
                order.push(event.request);
            }
        }
    }
    assert_eq!(order, [small, running, large]);
}

fn a_preempted_request_finds_its_prefix_again() {
    let mut engine = engine(&[FULL], 4, 160, limits());
    let ids: Vec<RequestId> = (0..2)
        .map(|i| engine.submit(request(&prompt(64, i), 40)).unwrap())
        .collect();
    let rows = run(&mut engine);
    for id in ids {
        assert!(rows[&id].failed.is_none());
    }
    assert_no_leak(&mut engine);
}

fn outputs_are_read_beside_answers() {
    let kinds = &[FULL, WINDOW];
    let mut engine = engine(kinds, 16, 1000, limits());
    let answer = engine.submit(request(&prompt(9, 1), 12)).unwrap();
    let text = prompt(50, 2);
    let read = engine
        .submit_read(ReadRequest {
            tokens: text.clone(),
            output: "logits".to_owned(),
            role: PlanRole::Main,
            whole: false,
            salt: 0,
            urgency: Urgency::default(),
        })
        .unwrap();
    let (mut values, mut answers) = (Vec::new(), HashMap::new());
    while !engine.is_idle() {
        let (own, others): (Vec<Event>, _) =
            engine.step().into_iter().partition(|e| e.request == read);
        collect(&mut answers, others);
        for event in own {
            if let EventKind::Values {
                values: more,
                width,
            } = event.kind
            {
                assert_eq!(width, N_VOCAB as usize);
                values.extend(more);
            }
        }
    }
    assert_eq!(values.len(), 50 * N_VOCAB as usize);
    for (i, row) in values.chunks(N_VOCAB as usize).enumerate() {
        assert_eq!(row, expected(&text[..=i], kinds));
    }
    assert_eq!(answers[&answer].tokens, greedy(&prompt(9, 1), 12, kinds));
}

fn nobody_hears_of_an_abandoned_request_and_others_lose_nothing() {
    let mut engine = engine(&[STATE, FULL], 16, 1000, limits());
    let gone = engine.submit(request(&prompt(9, 1), 100)).unwrap();
    let stays = engine.submit(request(&prompt(9, 2), 12)).unwrap();
    for _ in 0..3 {
        engine.wait();
    }
    engine.abandon(gone);
    let mut tokens = Vec::new();
    loop {
        match engine.next_event(stays) {
            Some(EventKind::Token { id, .. }) => tokens.push(id),
            Some(EventKind::Finished { .. }) => break,
            Some(_) => {}
            None => engine.wait(),
        }
    }
    assert_eq!(tokens, greedy(&prompt(9, 2), 12, &[STATE, FULL]));
    while !engine.is_idle() {
        engine.wait();
    }
    assert!(engine.events().iter().all(|e| e.request != gone));
    assert_no_leak(&mut engine);
}

everywhere! {
    answers_are_those_of_a_model_without_caches
    a_second_turn_computes_only_what_is_new
    a_stored_prefix_is_found_by_other_requests
    the_same_prompt_again_computes_one_token
    salts_keep_prefixes_apart
    forks_go_separate_ways
    going_back_is_exact_or_refused
    running_out_of_context_ends_by_name
    a_request_may_only_fill_the_cache
    logits_that_are_not_numbers_fail_their_request_alone
    a_short_pool_preempts_the_youngest_and_loses_nothing
    a_pool_too_small_for_one_request_is_an_error
    an_idle_session_makes_room
    cancelling_and_stop_ids_end_an_answer
    the_same_seed_gives_the_same_answer_in_company
    logits_of_every_position_whatever_the_chunks
    stop_strings_end_the_text_before_them
    a_constraint_masks_tokens_and_skips_ahead
    forced_tokens_are_fed_like_any_other
    the_model_runs_while_a_mask_is_late_and_answers_begin_with_what_is_forced
    a_long_prompt_leaves_answers_their_pace
    a_short_prompt_behind_a_long_one_starts_at_once
    a_failing_step_fails_only_the_request_that_made_it_fail
    a_lost_device_fails_its_requests_by_name
    a_bias_that_is_no_number_is_refused_and_an_empty_mask_fails_alone
    the_queue_is_bounded_deadlines_hold_and_the_urgent_go_first
    a_request_that_does_not_fit_yet_lets_smaller_ones_pass_but_not_for_ever
    a_preempted_request_finds_its_prefix_again
    outputs_are_read_beside_answers
    nobody_hears_of_an_abandoned_request_and_others_lose_nothing
}
