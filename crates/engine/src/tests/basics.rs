//! One request after another, and several beside each other.

use proptest::prelude::*;

use super::*;
use crate::fake::{N_VOCAB, NAN_TOKEN};
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

fn a_session_forgets_a_state_in_which_something_is_no_number() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let session = engine.open_session(0);
        let told = prompt(5, 1);
        let fed = |engine: &mut Engine, tokens: &[u32]| {
            let feed = Feed {
                session,
                tokens,
                rows: RowKind::Prompt,
                logits: FeedLogits::Last,
            };
            engine.feed(&[feed], &[]).map(|_| ())
        };
        fed(&mut engine, &told).unwrap();
        let failed = fed(&mut engine, &[6, NAN_TOKEN]);
        assert!(matches!(failed, Err(EngineError::NotANumber)), "{failed:?}");
        // Entries are taken back; a state cannot be.
        let kept = if kinds.contains(&STATE) {
            &[]
        } else {
            &told[..]
        };
        assert_eq!(engine.session_tokens(session), kept, "{kinds:?}");
        let next = [kept, &prompt(4, 2)].concat();
        fed(&mut engine, &next[kept.len()..]).unwrap();
        let answer_to = |engine: &mut Engine, tokens: &[u32]| {
            let id = engine.submit_to(session, request(tokens, 6)).unwrap();
            run(engine).remove(&id).unwrap()
        };
        let whole = [&next[..], &prompt(3, 3)].concat();
        assert_eq!(
            answer_to(&mut engine, &whole).tokens,
            greedy(&whole, 6, kinds)
        );
        let bad = [&whole[..], &[NAN_TOKEN]].concat();
        assert!(answer_to(&mut engine, &bad).failed.is_some());
        let again = [&whole[..], &prompt(2, 4)].concat();
        assert_eq!(
            answer_to(&mut engine, &again).tokens,
            greedy(&again, 6, kinds),
            "{kinds:?}"
        );
        assert_no_leak(&mut engine);
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

fn rows_are_computed_again_as_what_they_were() {
    let (mut engine, model) = engine_and_model(KINDS[0], 4, 120, limits());
    let session = engine.open_session(0);
    let mut tokens = prompt(20, 1);
    let first = engine.submit_to(session, request(&tokens, 12)).unwrap();
    tokens.extend(&run(&mut engine)[&first].tokens);
    let reply: Vec<(u32, usize)> = (20..31).map(|pos| (tokens[pos], pos)).collect();
    let large = engine.submit(request(&[1; 40], 60)).unwrap();
    tokens.extend(prompt(10, 2));
    let second = engine.submit_to(session, request(&tokens, 40)).unwrap();
    let answers = run(&mut engine);
    assert_eq!(answers[&large].tokens, greedy(&[1; 40], 60, KINDS[0]));
    assert_eq!(answers[&second].tokens, greedy(&tokens, 40, KINDS[0]));
    let seen = model.seen.lock().unwrap();
    let of_reply = |row: &&(u32, usize, bool)| row.0 != 1 && reply.contains(&(row.0, row.1));
    let of_reply: Vec<_> = seen.iter().filter(of_reply).collect();
    assert!(of_reply.len() > reply.len() + 3, "rows were computed again");
    let of_prompt = of_reply.iter().find(|row| row.2);
    assert_eq!(of_prompt, None, "they are a reply's, in whatever prompt");
}

fn what_was_an_answer_is_not_taken_from_a_prompt() {
    let (mut engine, model) = engine_and_model(KINDS[0], 4, 208, limits());
    let mut tokens = prompt(32, 1);
    tokens.extend(greedy(&tokens, 80, KINDS[0]));
    let long = engine.submit(request(&tokens[..96], 100)).unwrap();
    let mut answers = HashMap::new();
    while answers.is_empty() {
        collect(&mut answers, engine.step());
    }
    // It gives its blocks back, which are taken; those of the longer prompt stay.
    let short = engine.submit(request(&tokens[..32], 80)).unwrap();
    while !engine.is_idle() {
        collect(&mut answers, engine.step());
    }
    assert_eq!(answers[&short].tokens, tokens[32..]);
    assert_eq!(answers[&long].tokens, greedy(&tokens[..96], 100, KINDS[0]));
    let seen = model.seen.lock().unwrap();
    let computed = |pos: usize| seen.iter().filter(|row| row.1 == pos && !row.2).count();
    for pos in 32..64 {
        assert!(computed(pos) > 1, "row {pos} was a reply's, and is again");
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
    let mut answers = until(&mut engine, cancel, 1);
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
            assert_eq!(logits, expected(given(&ids[..=position]), kinds));
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
        let mut answers: HashMap<RequestId, Given> = HashMap::new();
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
    a_session_forgets_a_state_in_which_something_is_no_number
    a_short_pool_preempts_the_youngest_and_loses_nothing
    rows_are_computed_again_as_what_they_were
    what_was_an_answer_is_not_taken_from_a_prompt
    a_pool_too_small_for_one_request_is_an_error
    an_idle_session_makes_room
    cancelling_and_stop_ids_end_an_answer
    the_same_seed_gives_the_same_answer_in_company
    logits_of_every_position_whatever_the_chunks
    stop_strings_end_the_text_before_them
}
