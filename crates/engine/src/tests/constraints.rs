//! Answers that a constraint restricts.

use std::sync::atomic::Ordering;

use tokkata_ir::sample::Mask;

use super::*;
use crate::fake::N_VOCAB;

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
        Ok(Some(Mask::new(only(self.next))))
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
        Ok(Some(Mask::new(only(50))))
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

/// Begins when the other end of its channel is dropped.
pub(super) struct Gated(pub(super) std::sync::mpsc::Receiver<()>);

impl Constraint for Gated {
    fn begin(&mut self, _: &mut Vec<u32>) -> Result<(), String> {
        let _ = self.0.recv();
        Ok(())
    }

    fn accept(&mut self, _: u32, _: &mut Vec<u32>) -> Result<(), String> {
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        Ok(None)
    }
}

fn a_mask_that_comes_after_preemption_is_not_lost() {
    let (mut engine, _) = engine_and_model(&[FULL], 4, 64, limits());
    let first = engine.submit(request(&prompt(20, 1), 40)).unwrap();
    let (open, gate) = std::sync::mpsc::channel();
    let second = engine
        .submit(Request {
            constraint: Some(Box::new(Gated(gate))),
            ..request(&prompt(20, 2), 5)
        })
        .unwrap();
    let mut answers = HashMap::new();
    let mut preempted = false;
    for _ in 0..400 {
        collect(&mut answers, engine.step());
        preempted = engine.load() == (1, 1);
        if preempted {
            break;
        }
    }
    assert!(preempted, "the second gave way: {:?}", engine.load());
    drop(open);
    // The constraint answers while its task waits.
    std::thread::sleep(std::time::Duration::from_millis(100));
    while !engine.is_idle() {
        collect(&mut answers, engine.step());
        assert!(answers[&first].tokens.len() <= 40);
    }
    assert_eq!(answers[&first].tokens, greedy(&prompt(20, 1), 40, &[FULL]));
    assert_eq!(answers[&second].tokens, greedy(&prompt(20, 2), 5, &[FULL]));
    assert_no_leak(&mut engine);
}

/// Lets no two neighbours come whose sum is a multiple of a number; free or asked before each draw.
pub(super) struct NoSums {
    multiple: u32,
    free: bool,
    taken: Vec<u32>,
}

impl NoSums {
    pub(super) fn new(multiple: u32, free: bool) -> Box<Self> {
        Box::new(NoSums {
            multiple,
            free,
            taken: Vec::new(),
        })
    }
}

fn may_follow(multiple: u32, before: Option<&u32>, token: u32) -> bool {
    before.is_none_or(|b| !(b + token).is_multiple_of(multiple))
}

impl Constraint for NoSums {
    fn accept(&mut self, token: u32, _: &mut Vec<u32>) -> Result<(), String> {
        if self.refuses(token) {
            return Err(format!("{token} was refused"));
        }
        self.taken.push(token);
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        let mut words = vec![0; N_VOCAB.div_ceil(32) as usize];
        for id in (0..N_VOCAB).filter(|&id| may_follow(self.multiple, self.taken.last(), id)) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        Ok(Some(Mask::new(words)))
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), String> {
        self.taken.truncate(self.taken.len() - tokens);
        Ok(())
    }

    fn goes_back(&self) -> bool {
        true
    }

    fn free(&self) -> bool {
        self.free
    }

    fn refuses(&mut self, token: u32) -> bool {
        !may_follow(self.multiple, self.taken.last(), token)
    }
}

/// The greedy answer of which no two neighbours have such a sum.
fn without_sums(prompt: &[u32], n: usize, (multiple, kinds): (u32, &[CacheKind])) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        let mut logits = expected(given(&tokens), kinds);
        let before = (tokens.len() > prompt.len()).then(|| &tokens[tokens.len() - 1]);
        for (id, logit) in logits.iter_mut().enumerate() {
            if !may_follow(multiple, before, id as u32) {
                *logit = f32::MIN;
            }
        }
        tokens.push(tokkata_ir::sample::argmax(&logits).unwrap());
    }
    tokens.split_off(prompt.len())
}

fn what_a_free_constraint_refuses_is_drawn_again() {
    for kinds in KINDS {
        for multiple in [2, 7, 31] {
            let mut engine = engine(kinds, 16, 1000, limits());
            let sums = |seed, free| Request {
                constraint: Some(NoSums::new(multiple, free)),
                ..request(&prompt(9 + seed as usize, seed), 20)
            };
            let free: Vec<RequestId> = (0..3)
                .map(|seed| engine.submit(sums(seed, true)).unwrap())
                .collect();
            let asked = engine.submit(sums(0, false)).unwrap();
            let other = engine.submit(request(&prompt(9, 7), 20)).unwrap();
            let answers = run(&mut engine);
            for (seed, id) in free.iter().enumerate() {
                let prompt = prompt(9 + seed, seed as u64);
                let want = without_sums(&prompt, 20, (multiple, kinds));
                assert_eq!(answers[id].failed, None);
                assert_eq!(answers[id].tokens, want, "{kinds:?} {multiple} {seed}");
                assert_eq!(answers[id].stats.computed_tokens, prompt.len());
                assert_eq!(answers[id].stats.generated_tokens, 20);
            }
            assert_eq!(answers[&asked].tokens, answers[&free[0]].tokens);
            assert_eq!(answers[&other].tokens, greedy(&prompt(9, 7), 20, kinds));
            assert_no_leak(&mut engine);
        }
    }
}

fn a_free_constraint_that_refuses_nothing_costs_nothing() {
    for kinds in KINDS {
        let cost = |constraint: fn() -> Option<Box<dyn Constraint>>| {
            let (mut engine, model) = engine_and_model(kinds, 16, 1000, limits());
            for seed in 0..3 {
                let request = Request {
                    constraint: constraint(),
                    ..request(&prompt(9, seed), 30)
                };
                engine.submit(request).unwrap();
            }
            let mut turns = 0;
            while !engine.is_idle() {
                engine.step();
                turns += 1;
            }
            (turns, engine.steps(), model.rows.load(Ordering::Relaxed))
        };
        let none = cost(|| None);
        assert_eq!(cost(|| Some(NoSums::new(1000, true))), none, "{kinds:?}");
    }
}

/// However far an answer has come when it is ended, its session holds what it says.
fn a_session_is_right_whenever_an_answer_with_refusals_ends() {
    for kinds in KINDS {
        for turns in 1..14 {
            let mut engine = engine(kinds, 16, 1000, limits());
            let session = engine.open_session(0);
            let sums = Request {
                constraint: Some(NoSums::new(2, true)),
                ..request(&prompt(9, 4), 20)
            };
            let id = engine.submit_to(session, sums).unwrap();
            let mut answers = HashMap::new();
            for _ in 0..turns {
                collect(&mut answers, engine.step());
            }
            engine.cancel(id);
            while !engine.is_idle() {
                collect(&mut answers, engine.step());
            }
            let mut told = prompt(9, 4);
            told.extend(answers.remove(&id).map_or(Vec::new(), |a| a.tokens));
            let id = engine.submit_to(session, request(&told, 6)).unwrap();
            let answer = run(&mut engine).remove(&id).unwrap();
            assert_eq!(answer.tokens, greedy(&told, 6, kinds), "{kinds:?} {turns}");
            assert_no_leak(&mut engine);
        }
    }
}

everywhere! {
    a_free_constraint_that_refuses_nothing_costs_nothing
    a_session_is_right_whenever_an_answer_with_refusals_ends
    what_a_free_constraint_refuses_is_drawn_again
    a_constraint_masks_tokens_and_skips_ahead
    forced_tokens_are_fed_like_any_other
    a_mask_that_comes_after_preemption_is_not_lost
    the_model_runs_while_a_mask_is_late_and_answers_begin_with_what_is_forced
}
