//! Drafts change how fast an answer comes, and nothing else: every answer is compared with the one without.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use tokkata_ir::sample::{Mask, uniform};
use tokkata_ir::spec::DraftForm;

use super::*;
use crate::fake::{N_VOCAB, NAN_TOKEN};
use crate::speculate::model::{DraftModel, TokenMap};
use crate::speculate::ngram::Ngram;
use crate::speculate::{Drafter, Guess, OwnHead, Running, Speculation, Wanted};

/// Drafters that are as right as they are told to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Right,
    Wrong,
    /// Every other token is right.
    Half,
    /// Any token, one whose logits are no numbers among them.
    Random,
    Ngram,
}

const MADE: [Made; 5] = [
    Made::Right,
    Made::Wrong,
    Made::Half,
    Made::Random,
    Made::Ngram,
];

/// Knows the answers beforehand.
struct Scripted {
    made: Made,
    /// Prompts with their answers.
    texts: Vec<Vec<u32>>,
    /// Costs time, as if it had a model.
    dear: bool,
}

impl Scripted {
    fn token(&self, tokens: &[u32], j: usize) -> u32 {
        let text = self.texts.iter().find(|t| t.starts_with(tokens));
        let next = text.and_then(|t| t.get(tokens.len() + j)).copied();
        let at = uniform(tokens.len() as u64 + 9, j as u64);
        let any = match (at % u64::from(N_VOCAB)) as u32 {
            POISON_TOKEN => NAN_TOKEN,
            token => token,
        };
        match (self.made, next) {
            (Made::Right, Some(next)) => next,
            (Made::Wrong, Some(next)) => (next + 1) % POISON_TOKEN,
            (Made::Half, Some(next)) if at.is_multiple_of(2) => next,
            _ => any,
        }
    }
}

impl Drafter for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn is_free(&self) -> bool {
        !self.dear
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        let one = |w: &Wanted<'_>| Guess {
            tokens: (0..w.most).map(|j| self.token(w.tokens, j)).collect(),
            class: 0,
        };
        wanted.iter().map(one).collect()
    }
}

fn drafter(made: Made, texts: &[Vec<u32>]) -> Box<dyn Drafter> {
    match made {
        Made::Ngram => Box::new(Ngram::new()),
        _ => Box::new(Scripted {
            made,
            texts: texts.to_vec(),
            dear: made == Made::Half,
        }),
    }
}

fn always(drafter: Box<dyn Drafter>, most: usize) -> Speculation {
    Speculation {
        drafters: vec![drafter],
        most,
        adaptive: false,
        pretended: None,
    }
}

/// Steps of up to so many rows were seen, of which each takes so many microseconds beside 900.
fn see_costs(engine: &mut Engine, most: usize, row: u64) {
    for rows in 1..=most {
        let step = std::time::Duration::from_micros(900 + row * rows as u64);
        (0..9).for_each(|_| engine.costs.saw(rows, &[], step));
    }
}

fn wide() -> Limits {
    Limits {
        rows: 48,
        seqs: 8,
        logit_rows: 40,
        draft: 5,
        ..limits()
    }
}

/// Allows every third token, in turn; multiples of ten are followed by two tokens that are forced.
#[derive(Default)]
struct Thirds {
    taken: Vec<u32>,
}

impl Constraint for Thirds {
    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String> {
        let third = self.taken.len() as u32 % 3;
        if token % 3 != third {
            return Err(format!("{token} is refused"));
        }
        self.taken.push(token);
        if token.is_multiple_of(10) {
            let next = [1, 2].map(|i| (third + i) % 3);
            self.taken.extend(next);
            forced.extend(next);
        }
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        let mut words = vec![0; N_VOCAB.div_ceil(32) as usize];
        for id in (0..NAN_TOKEN - 1).filter(|id| id % 3 == self.taken.len() as u32 % 3) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        Ok(Some(Mask::new(words)))
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), String> {
        let kept = self.taken.len().checked_sub(tokens);
        self.taken.truncate(kept.ok_or("fewer were taken")?);
        Ok(())
    }

    fn goes_back(&self) -> bool {
        true
    }
}

/// A token as two letters.
struct Letters;

impl Decoder for Letters {
    fn push(&mut self, token: u32, out: &mut Vec<u8>) {
        out.extend([b'a' + (token / 8) as u8, b'a' + (token % 8) as u8]);
    }

    fn finish(&mut self, _: &mut Vec<u8>) {}
}

/// What a request asks beside its prompt and length.
type Asks = (&'static str, fn(&mut Request));

/// Every filter, penalties, DRY, a grammar, and every way to end.
const ASKS: &[Asks] = &[
    ("greedy", |_| {}),
    ("warm", |r| r.sampling = warm()),
    ("top-k", |r| {
        r.sampling = warm();
        r.sampling.top_k = 5;
    }),
    ("top-p", |r| {
        r.sampling = warm();
        r.sampling.top_p = 0.7;
    }),
    ("min-p", |r| {
        r.sampling = warm();
        r.sampling.min_p = 0.2;
    }),
    ("typical", |r| {
        r.sampling = warm();
        r.sampling.typical_p = 0.6;
    }),
    ("n-sigma", |r| {
        r.sampling = warm();
        r.sampling.top_n_sigma = 1.0;
    }),
    ("xtc", |r| {
        r.sampling = warm();
        (r.sampling.xtc_probability, r.sampling.xtc_threshold) = (0.5, 0.02);
    }),
    ("penalties", |r| {
        r.sampling.repeat_penalty = 1.3;
        r.sampling.frequency_penalty = 0.4;
        r.sampling.presence_penalty = 0.2;
        r.sampling.repeat_last_n = Some(6);
    }),
    ("dry", |r| {
        r.sampling.dry = Some(Dry {
            multiplier: 2.0,
            base: 1.5,
            allowed_length: 1,
            last_n: None,
            breakers: HashSet::new(),
        });
    }),
    ("bias", |r| r.sampling.bias = vec![(3, 2.0), (4, -1.5)]),
    ("grammar", |r| r.constraint = Some(Box::<Thirds>::default())),
    ("warm grammar", |r| {
        r.sampling = warm();
        r.constraint = Some(Box::<Thirds>::default());
    }),
    ("a free rule", |r| {
        r.constraint = Some(constraints::NoSums::new(2, true));
    }),
    ("warm free rule", |r| {
        r.sampling = warm();
        r.sampling.top_k = 9;
        r.constraint = Some(constraints::NoSums::new(3, true));
    }),
    ("likelihoods", |r| r.logprobs = Some(2)),
    ("likelihoods of all tokens", |r| {
        r.logprobs = Some(N_VOCAB as usize);
    }),
    ("likelihoods of chosen tokens", |r| {
        r.sampling = warm();
        (r.logprobs, r.told) = (Some(0), vec![5, 1]);
    }),
    ("end tokens", |r| {
        r.sampling = warm();
        r.stop.stop_ids = (0..9).collect();
    }),
    ("a stop string", |r| {
        r.sampling = warm();
        r.decoder = Some(Box::new(Letters));
        r.stop.stop_strings = vec![b"cb".to_vec(), b"hh".to_vec(), b"f".to_vec()];
    }),
    ("one token", |r| r.stop.max_tokens = Some(1)),
    ("two tokens", |r| r.stop.max_tokens = Some(2)),
];

fn warm() -> Sampling {
    Sampling {
        seed: 7,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..Sampling::default()
    }
}

/// Prompts of a loop that n-grams know how to go on from, and of noise.
fn prompts() -> Vec<Vec<u32>> {
    let looped = |n: usize| (0..n).map(|i| [5, 9, 12, 30, 31][i % 5]).collect();
    let noise = [3, 20, 33, 40, 65].map(|n| prompt(n, n as u64));
    noise.into_iter().chain([17, 40, 64].map(looped)).collect()
}

fn asked(ask: &Asks, prompt: &[u32]) -> Request {
    let mut request = request(prompt, 21);
    ask.1(&mut request);
    request
}

/// Everything that a caller sees of an answer, apart from what it cost.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    tokens: Vec<(u32, Option<Logprobs>)>,
    text: Vec<u8>,
    reason: Option<FinishReason>,
    failed: Option<String>,
    generated: usize,
    cached: Vec<u32>,
}

/// Answers of requests in sessions of their own, as many at once as `together` says.
fn answers(engine: &mut Engine, requests: Vec<Request>, together: bool) -> (Vec<Seen>, Stats) {
    let (mut seen, mut all) = (Vec::new(), Stats::default());
    let mut requests = requests.into_iter();
    loop {
        let count = if together { usize::MAX } else { 1 };
        let some: Vec<_> = requests.by_ref().take(count).collect();
        if some.is_empty() {
            return (seen, all);
        }
        let submit = |request| {
            let session = engine.open_session(0);
            (session, engine.submit_to(session, request).unwrap())
        };
        let ids: Vec<_> = some.into_iter().map(submit).collect();
        let mut own: HashMap<RequestId, Seen> = HashMap::new();
        while !engine.is_idle() {
            for event in engine.step() {
                note(own.entry(event.request).or_default(), event.kind, &mut all);
            }
        }
        for (session, id) in ids {
            let mut one = own.remove(&id).unwrap();
            one.cached = engine.session_tokens(session).to_vec();
            seen.push(one);
            engine.close_session(session);
        }
    }
}

fn note(seen: &mut Seen, kind: EventKind, all: &mut Stats) {
    match kind {
        EventKind::Token { id, text, logprobs } => {
            seen.tokens.push((id, logprobs));
            seen.text.extend(text);
        }
        EventKind::Finished {
            text,
            reason,
            stats,
        } => {
            seen.text.extend(text);
            (seen.reason, seen.generated) = (Some(reason), stats.generated_tokens);
            all.drafted_tokens += stats.drafted_tokens;
            all.accepted_tokens += stats.accepted_tokens;
        }
        EventKind::Failed(error) => seen.failed = Some(error.to_string()),
        EventKind::Prompt { .. } | EventKind::Values { .. } => {}
    }
}

fn texts(prompts: &[Vec<u32>], seen: &[Seen]) -> Vec<Vec<u32>> {
    let text = |(prompt, seen): (&Vec<u32>, &Seen)| {
        let answer = seen.tokens.iter().map(|t| t.0);
        prompt.iter().copied().chain(answer).collect()
    };
    prompts.iter().zip(seen).map(text).collect()
}

fn answers_are_those_without_drafts() {
    let prompts = prompts();
    for (k, kinds) in KINDS.into_iter().enumerate() {
        for (a, ask) in ASKS.iter().enumerate() {
            let requests = || prompts.iter().map(|p| asked(ask, p)).collect::<Vec<_>>();
            let block_size = [1, 16, 48][(a + k) % 3];
            let mut plain = engine(kinds, block_size, 2000, wide());
            let (want, _) = answers(&mut plain, requests(), true);
            for (m, made) in MADE.into_iter().enumerate() {
                let mut engine = engine(kinds, block_size, 2000, wide());
                let texts = texts(&prompts, &want);
                engine.speculate(always(drafter(made, &texts), 4 - (a + k) % 3));
                let together = (a + m + k) % 2 == 0;
                let what = format!("{kinds:?} {} {made:?} {together}", ask.0);
                for again in [false, true] {
                    // The second time prompts are stored already.
                    let (got, stats) = answers(&mut engine, requests(), together);
                    let first = got.iter().zip(&want).find(|(got, want)| got != want);
                    assert!(first.is_none(), "{what} {again}: {first:?}");
                    let [tried, right] = [stats.drafted_tokens, stats.accepted_tokens];
                    let free = ["greedy", "warm", "penalties", "dry"].contains(&ask.0);
                    match made {
                        Made::Right if free => {
                            assert!(right == tried && right > 20, "{what} {right}");
                        }
                        Made::Wrong => assert!(right == 0, "{what} {right} of {tried}"),
                        _ => {}
                    }
                }
                assert_no_leak(&mut engine);
            }
        }
    }
}

fn right_drafts_save_steps_and_wrong_ones_are_cut_by_a_grammar() {
    let prompt = prompt(9, 4);
    let steps = |made: Option<Made>, ask: &Asks| {
        let (mut plain, _) = engine_and_model(&[STATE, FULL], 16, 2000, wide());
        let (want, _) = answers(&mut plain, vec![asked(ask, &prompt)], true);
        let texts = texts(std::slice::from_ref(&prompt), &want);
        let (mut engine, model) = engine_and_model(&[STATE, FULL], 16, 2000, wide());
        if let Some(made) = made {
            engine.speculate(always(drafter(made, &texts), 4));
        }
        let (got, stats) = answers(&mut engine, vec![asked(ask, &prompt)], true);
        assert_eq!(got, want);
        (model.rows.load(Ordering::Relaxed), stats)
    };
    let (plain, _) = steps(None, &ASKS[0]);
    let (right, stats) = steps(Some(Made::Right), &ASKS[0]);
    assert!(right <= plain, "every row counted: {right} of {plain}");
    assert_eq!((stats.drafted_tokens, stats.accepted_tokens), (16, 16));
    let (_, stats) = steps(Some(Made::Wrong), &ASKS[11]);
    // Wrong tokens are off by one, and only every third is allowed: all are cut off before they run.
    assert_eq!((ASKS[11].0, stats.drafted_tokens), ("grammar", 0));
    let (_, stats) = steps(Some(Made::Right), &ASKS[11]);
    assert!(stats.accepted_tokens == stats.drafted_tokens && stats.accepted_tokens > 4);
}

fn guesses_behind_an_answers_end_do_not_count() {
    let prompt = prompt(9, 4);
    let (mut plain, _) = engine_and_model(&[STATE, FULL], 16, 2000, wide());
    let (want, _) = answers(&mut plain, vec![asked(&ASKS[0], &prompt)], true);
    let texts = texts(std::slice::from_ref(&prompt), &want);
    let ids: Vec<u32> = want[0].tokens.iter().map(|t| t.0).collect();
    let end = (1..5).find(|&i| !ids[..i].contains(&ids[i]));
    let end = end.expect("a token that is new");
    let (mut engine, _) = engine_and_model(&[STATE, FULL], 16, 2000, wide());
    engine.speculate(always(drafter(Made::Right, &texts), 4));
    let mut request = asked(&ASKS[0], &prompt);
    request.stop.stop_ids = vec![ids[end]];
    let (_, stats) = answers(&mut engine, vec![request], true);
    assert_eq!((stats.drafted_tokens, stats.accepted_tokens), (4, end));
}

fn a_draft_that_fails_its_step_fails_nobody() {
    struct Poison;
    impl Drafter for Poison {
        fn name(&self) -> &'static str {
            "poison"
        }
        fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
            let guess = Guess {
                tokens: vec![5, POISON_TOKEN],
                class: 0,
            };
            vec![guess; wanted.len()]
        }
    }
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, wide());
        engine.speculate(always(Box::new(Poison), 3));
        let prompts = [prompt(9, 1), prompt(30, 2)];
        let ids = prompts
            .clone()
            .map(|p| engine.submit(request(&p, 8)).unwrap());
        let answers = run(&mut engine);
        for (id, prompt) in ids.iter().zip(&prompts) {
            assert_eq!(answers[id].tokens, greedy(prompt, 8, kinds), "{kinds:?}");
        }
        assert_no_leak(&mut engine);
    }
}

fn a_short_pool_preempts_and_a_full_context_ends_as_without_drafts() {
    for kinds in [KINDS[0], KINDS[1]] {
        for made in MADE {
            let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(20, i)).collect();
            let want: Vec<_> = prompts.iter().map(|p| greedy(p, 30, kinds)).collect();
            let texts: Vec<_> = prompts
                .iter()
                .zip(&want)
                .map(|(p, a)| [&p[..], a].concat())
                .collect();
            let mut short = engine(kinds, 4, 104, wide());
            short.speculate(always(drafter(made, &texts), 3));
            let ids: Vec<_> = prompts
                .iter()
                .map(|p| short.submit(request(p, 30)).unwrap())
                .collect();
            let answers = run(&mut short);
            for (id, want) in ids.iter().zip(&want) {
                assert_eq!(&answers[id].tokens, want, "{kinds:?} {made:?}");
            }
            assert_no_leak(&mut short);
        }
    }
    for made in MADE {
        let small = Limits { ctx: 50, ..wide() };
        let tokens = prompt(44, 1);
        let want = greedy(&tokens, 7, KINDS[1]);
        let mut full = engine(KINDS[1], 16, 1000, small);
        full.speculate(always(drafter(made, &[[&tokens[..], &want].concat()]), 4));
        let id = full.submit(request(&tokens, 500)).unwrap();
        let got = run(&mut full).remove(&id).unwrap();
        assert_eq!(
            (got.reason, got.tokens),
            (Some(FinishReason::ContextFull), want)
        );
    }
}

fn a_cancelled_answer_is_the_beginning_of_one_and_its_session_goes_on() {
    for kinds in KINDS {
        let tokens = prompt(20, 3);
        let want = greedy(&tokens, 40, kinds);
        for after in 0..6 {
            let mut engine = engine(kinds, 16, 1000, wide());
            let text = [&tokens[..], &want].concat();
            engine.speculate(always(drafter(Made::Half, &[text]), 4));
            let session = engine.open_session(0);
            let id = engine.submit_to(session, request(&tokens, 40)).unwrap();
            let mut answers = until(&mut engine, id, after + 1);
            engine.turn();
            engine.cancel(id);
            while !engine.is_idle() {
                collect(&mut answers, engine.step());
            }
            let got = answers.remove(&id).unwrap();
            assert_eq!(got.reason, Some(FinishReason::Cancelled));
            assert_eq!(got.tokens, want[..got.tokens.len()]);
            let more = [&tokens[..], &got.tokens, &[8, 9]].concat();
            let id = engine.submit_to(session, request(&more, 6)).unwrap();
            assert_eq!(run(&mut engine)[&id].tokens, greedy(&more, 6, kinds));
            assert_no_leak(&mut engine);
        }
    }
}

fn a_context_that_moves_moves_as_without_drafts() {
    let small = Limits { ctx: 64, ..wide() };
    let tokens = prompt(30, 3);
    let moving = || Request {
        shift: Some(4),
        sampling: warm(),
        ..request(&tokens, 150)
    };
    let (want, _) = answers(&mut engine(&[FULL], 4, 1000, small), vec![moving()], true);
    assert_eq!(want[0].tokens.len(), 150);
    for made in MADE {
        let mut engine = engine(&[FULL], 4, 1000, small);
        engine.speculate(always(
            drafter(made, &texts(std::slice::from_ref(&tokens), &want)),
            4,
        ));
        let (got, _) = answers(&mut engine, vec![moving()], true);
        assert_eq!(got, want, "{made:?}");
    }
}

/// A second model of the same kind, which sees less: it is right where only the nearest tokens count.
fn model(kinds: &[CacheKind], map: Option<TokenMap>) -> Box<dyn Drafter> {
    let small = Limits { seqs: 8, ..wide() };
    Box::new(DraftModel::new(
        engine(kinds, 16, 2000, small),
        map.map(Arc::new),
    ))
}

fn another_model_guesses_and_shares_the_noise() {
    let prompts = prompts();
    for ask in &ASKS[..15] {
        let requests = || prompts.iter().map(|p| asked(ask, p)).collect::<Vec<_>>();
        let (want, _) = answers(&mut engine(KINDS[1], 16, 2000, wide()), requests(), true);
        for together in [false, true] {
            let mut engine = engine(KINDS[1], 16, 2000, wide());
            engine.speculate(always(model(KINDS[1], None), 3));
            let (got, stats) = answers(&mut engine, requests(), together);
            assert!(got == want, "{}", ask.0);
            // What only this engine knows of the other model cannot guess.
            let apart = ["grammar", "rule", "dry"]
                .iter()
                .any(|own| ask.0.contains(own));
            let free = !apart && stats.drafted_tokens > 0;
            let [tried, right] = [stats.drafted_tokens, stats.accepted_tokens];
            assert!(!free || right == tried, "{} {right} of {tried}", ask.0);
            let other = engine_with(model(&[FULL], None), KINDS[1]);
            let (got, _) = answers(&mut { other }, requests(), together);
            assert!(got == want, "{}", ask.0);
        }
    }
}

fn engine_with(drafter: Box<dyn Drafter>, kinds: &[CacheKind]) -> Engine {
    let mut engine = engine(kinds, 16, 2000, wide());
    engine.speculate(always(drafter, 3));
    engine
}

fn a_model_of_another_vocabulary_guesses_what_both_know() {
    let tokens = prompt(20, 3);
    let want = greedy(&tokens, 20, &[FULL]);
    // Everything is called by another number there, and some tokens take two.
    let there = |t: u32| match t {
        7 => vec![3, 4].into(),
        t => vec![(t + 1) % NAN_TOKEN].into(),
    };
    let map = TokenMap {
        there: (0..N_VOCAB).map(there).collect(),
        back: (0..N_VOCAB)
            .map(|t| (t % 5 != 0).then(|| t.wrapping_sub(1) % NAN_TOKEN))
            .collect(),
    };
    let mut engine = engine_with(model(&[FULL], Some(map)), &[FULL]);
    let id = engine.submit(request(&tokens, 20)).unwrap();
    assert_eq!(run(&mut engine)[&id].tokens, want);
}

fn what_does_not_pay_is_hardly_tried_and_what_pays_is() {
    let tokens = prompt(9, 4);
    let limits = Limits {
        ctx: 1200,
        ..wide()
    };
    let want = greedy(&tokens, 1000, &[FULL]);
    let text = [&tokens[..], &want].concat();
    let tried = |made: Made, dear: bool| {
        let mut engine = engine(&[FULL], 16, 3000, limits);
        engine.speculate(Speculation {
            adaptive: true,
            ..always(
                Box::new(Scripted {
                    made,
                    texts: vec![text.clone()],
                    dear,
                }),
                4,
            )
        });
        let id = engine.submit(request(&tokens, 1000)).unwrap();
        let mut answers = HashMap::new();
        while !engine.is_idle() {
            // A row costs a tenth of a step.
            see_costs(&mut engine, 8, 100);
            collect(&mut answers, engine.step());
        }
        let answer = answers.remove(&id).unwrap();
        assert_eq!(answer.tokens, want);
        answer.stats.drafted_tokens
    };
    for dear in [false, true] {
        let wrong = tried(Made::Wrong, dear);
        assert!(wrong < 40, "{wrong} of 1000, {dear}");
        let right = tried(Made::Right, dear);
        assert!(right > 400, "{right} of 1000, {dear}");
    }
}

everywhere! {
    answers_are_those_without_drafts
    right_drafts_save_steps_and_wrong_ones_are_cut_by_a_grammar
    guesses_behind_an_answers_end_do_not_count
    a_draft_that_fails_its_step_fails_nobody
    a_short_pool_preempts_and_a_full_context_ends_as_without_drafts
    a_cancelled_answer_is_the_beginning_of_one_and_its_session_goes_on
    a_context_that_moves_moves_as_without_drafts
    another_model_guesses_and_shares_the_noise
    a_model_of_another_vocabulary_guesses_what_both_know
    what_does_not_pay_is_hardly_tried_and_what_pays_is
}

/// Costs say that drafts pay; the clock, which an answer's step with drafts takes eight times as far, that they do not.
#[test]
fn drafts_that_hold_back_all_answers_together_pause() {
    let limits = Limits { ctx: 600, ..wide() };
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(9, 40 + i)).collect();
    let wants: Vec<Vec<u32>> = prompts.iter().map(|p| greedy(p, 500, &[FULL])).collect();
    let texts: Vec<Vec<u32>> = prompts
        .iter()
        .zip(&wants)
        .map(|(p, w)| [&p[..], w].concat())
        .collect();
    let tried = |slower: u64| {
        let mut engine = engine(&[FULL], 16, 3000, limits);
        engine.speculate(Speculation {
            adaptive: true,
            ..always(drafter(Made::Right, &texts), 4)
        });
        let (now, begun) = (Arc::new(AtomicU64::new(0)), std::time::Instant::now());
        let clock = Arc::clone(&now);
        engine.clock = Box::new(move || {
            begun + std::time::Duration::from_micros(clock.load(Ordering::Relaxed))
        });
        let ids: Vec<RequestId> = prompts
            .iter()
            .map(|p| engine.submit(request(p, 500)).unwrap())
            .collect();
        let (mut answers, mut before) = (HashMap::new(), 0);
        while !engine.is_idle() {
            see_costs(&mut engine, 20, 10);
            collect(&mut answers, engine.step());
            let drafts = engine.draft_counts()[0].1.drafts;
            let took = if drafts > before { 1000 * slower } else { 1000 };
            before = drafts;
            now.fetch_add(took, Ordering::Relaxed);
        }
        let all = ids.iter().map(|id| answers.remove(id).unwrap());
        let (found, drafted): (Vec<_>, Vec<_>) =
            all.map(|a| (a.tokens, a.stats.drafted_tokens)).unzip();
        assert_eq!(found, wants);
        drafted.iter().sum::<usize>()
    };
    let (faster, slower) = (tried(1), tried(8));
    assert!(faster > 1200, "{faster} of 2000");
    assert!(slower < 500, "{slower} of 2000");
}

/// A head that is sure of itself.
struct SureHead(OwnHead);

impl Drafter for SureHead {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn is_free(&self) -> bool {
        false
    }

    fn own_form(&self) -> Option<&DraftForm> {
        self.0.own_form()
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        self.0.guess(wanted)
    }

    fn prior(&self, _: usize, _: usize) -> f64 {
        0.99
    }
}

/// What others guess is not left for a head that an answer has no more.
#[test]
fn an_answer_without_heads_has_the_drafts_of_others() {
    let prompt = prompt(9, 70);
    let want = greedy(&prompt, 60, &[FULL]);
    let texts = [[&prompt[..], &want].concat()];
    let drafted = |off: bool| {
        let mut engine = engine(&[FULL], 16, 3000, wide());
        engine.speculate(Speculation {
            drafters: vec![
                drafter(Made::Right, &texts),
                Box::new(SureHead(OwnHead::default())),
            ],
            adaptive: true,
            ..always(drafter(Made::Right, &texts), 4)
        });
        let id = engine.submit(request(&prompt, 60)).unwrap();
        let mut answers = HashMap::new();
        while !engine.is_idle() {
            see_costs(&mut engine, 20, 10);
            if off {
                engine.running.iter_mut().for_each(|t| t.head.give_up());
            }
            collect(&mut answers, engine.step());
        }
        let answer = answers.remove(&id).unwrap();
        assert_eq!(answer.tokens, want);
        answer.stats.drafted_tokens
    };
    assert_eq!(drafted(false), 0, "the head was asked, and has no guess");
    let without = drafted(true);
    assert!(without > 30, "{without} of 60");
}

/// Whoever begins beside others while drafts pause for long has no head, and needs none.
#[test]
fn answers_that_begin_in_a_pause_have_no_heads() {
    let begun = |others: usize, slower: u64| {
        let mut engine = engine(&[FULL], 64, 3000, wide());
        engine.speculate(Speculation {
            adaptive: true,
            ..always(Box::new(OwnHead::default()), 4)
        });
        let speculator = engine.speculator.as_mut().unwrap();
        let (mut now, mut tokens) = (std::time::Instant::now(), 0);
        for drafts in [0, 0, 0, 0, 0, 0, 1, 2] {
            let running = Running {
                answers: 8,
                tokens,
                drafts,
                ..Running::default()
            };
            speculator.pace.allows(now, running);
            tokens += 8;
            let took = if drafts > 0 { slower } else { 1 };
            now += std::time::Duration::from_micros(took);
        }
        for i in 0..=others {
            engine.submit(request(&prompt(30, i as u64), 8)).unwrap();
        }
        engine.step();
        engine.running.iter().filter(|t| t.head.is_off()).count()
    };
    assert_eq!(begun(7, 9), 8, "drafts pause");
    assert_eq!(begun(7, 1), 0, "drafts do not pause");
    assert_eq!(begun(1, 9), 0, "two answers are not timed");
}
