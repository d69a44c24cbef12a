//! Contexts that are full and go on.

use super::*;
use crate::fake::expected_entries;

everywhere! {
    a_full_context_forgets_its_middle_and_goes_on
    a_shifted_context_is_no_stored_prefix
    a_shifted_answer_can_be_cancelled_and_preempted
    without_a_choice_a_full_context_ends_the_answer
}

const SMALL: u32 = 48;

fn small() -> Limits {
    Limits {
        ctx: SMALL,
        ..limits()
    }
}

fn shifting(prompt: &[u32], n: usize, keep: usize) -> Request {
    Request {
        shift: Some(keep),
        ..request(prompt, n)
    }
}

/// The greedy answer of a context that moves: entries keep what they were written with.
fn moved(prompt: &[u32], n: usize, keep: usize, kinds: &[CacheKind]) -> Vec<u32> {
    let mut held: Vec<(u32, usize)> = (0..).zip(prompt).map(|(q, &t)| (t, q)).collect();
    let mut answer = Vec::new();
    // A state has seen everything.
    let mut seen: Vec<(u32, usize)> = Vec::new();
    let mut fresh = 0;
    for _ in 0..n {
        seen.extend(&held[fresh..]);
        let logits = expected_entries(&held, &seen, kinds);
        let token = tokkata_ir::sample::argmax(&logits).unwrap();
        answer.push(token);
        if held.len() == SMALL as usize {
            // Whole blocks of what has any.
            let step = if kinds == [STATE] { 1 } else { 4 };
            let keep = keep.next_multiple_of(step);
            let count = (held.len() - keep) / 2 / step * step;
            held.drain(keep..keep + count);
        }
        fresh = held.len();
        held.push((token, held.len()));
    }
    answer
}

fn a_full_context_forgets_its_middle_and_goes_on() {
    for kinds in KINDS {
        for (len, keep) in [(10, 0), (40, 8), (47, 5), (20, 30), (48, 0)] {
            let mut engine = engine(kinds, 4, 400, small());
            let own = prompt(len, len as u64);
            let other = prompt(12, 99);
            let id = engine.submit(shifting(&own, 120, keep)).unwrap();
            let beside = engine.submit(shifting(&other, 90, 4)).unwrap();
            let answers = run(&mut engine);
            let name = format!("{kinds:?}, {len} tokens, {keep} kept");
            assert_eq!(answers[&id].tokens, moved(&own, 120, keep, kinds), "{name}");
            assert_eq!(
                answers[&beside].tokens,
                moved(&other, 90, 4, kinds),
                "{name}"
            );
            assert_no_leak(&mut engine);
        }
    }
}

fn a_shifted_context_is_no_stored_prefix() {
    let mut engine = engine(&[FULL], 4, 400, small());
    let own = prompt(40, 1);
    let session = engine.open_session(0);
    let id = engine.submit_to(session, shifting(&own, 30, 8)).unwrap();
    run(&mut engine).remove(&id).unwrap();
    let held = engine.session_tokens(session).to_vec();
    assert_eq!(held[..8], own[..8]);
    assert_ne!(held[8..16], own[8..16]);
    // The same tokens again: only what did not move is used.
    let longer = [&held[..], &[1, 2]].concat();
    let again = engine.submit_to(session, request(&longer, 5)).unwrap();
    let fresh = engine.submit(request(&longer, 5)).unwrap();
    let answers = run(&mut engine);
    for id in [again, fresh] {
        assert_eq!(answers[&id].tokens, greedy(&longer, 5, &[FULL]));
        assert!(answers[&id].stats.reused_tokens <= 8);
    }
    assert_no_leak(&mut engine);
}

fn a_shifted_answer_can_be_cancelled_and_preempted() {
    for kinds in KINDS {
        // Three contexts do not fit.
        let mut engine = engine(kinds, 4, 110, small());
        let asked: Vec<RequestId> = (0..3)
            .map(|i| engine.submit(shifting(&prompt(30, i), 100, 4)).unwrap())
            .collect();
        let mut answers = HashMap::new();
        for _ in 0..40 {
            collect(&mut answers, engine.step());
        }
        engine.cancel(asked[1]);
        for (id, answer) in run(&mut engine) {
            let all: &mut Given = answers.entry(id).or_default();
            all.tokens.extend(answer.tokens);
            all.reason = answer.reason;
        }
        assert_eq!(answers[&asked[1]].reason, Some(FinishReason::Cancelled));
        for id in [asked[0], asked[2]] {
            assert_eq!(answers[&id].reason, Some(FinishReason::MaxTokens));
            assert_eq!(answers[&id].tokens.len(), 100);
        }
        assert_no_leak(&mut engine);
    }
}

fn without_a_choice_a_full_context_ends_the_answer() {
    for shift in [None, Some(48), Some(46)] {
        let mut engine = engine(&[FULL, WINDOW], 4, 400, small());
        let own = prompt(40, 1);
        let id = engine
            .submit(Request {
                shift,
                ..request(&own, 30)
            })
            .unwrap();
        let given = run(&mut engine).remove(&id).unwrap();
        assert_eq!(given.reason, Some(FinishReason::ContextFull), "{shift:?}");
        assert_eq!(given.tokens, greedy(&own, 9, &[FULL, WINDOW]), "{shift:?}");
    }
}
