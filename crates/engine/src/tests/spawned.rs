//! An engine on a thread of its own.

use super::*;
use crate::handle::{Answer, Turned};

fn tokens(answer: &mut Answer) -> (Vec<u32>, Option<EventKind>) {
    let (mut tokens, mut last) = (Vec::new(), None);
    while let Some(event) = answer.next_blocking() {
        if let EventKind::Token { id, .. } = event {
            tokens.push(id);
        }
        last = Some(event);
    }
    (tokens, last)
}

#[test]
fn any_thread_asks_and_listens() {
    let kinds: &[CacheKind] = &[STATE, FULL];
    let (handle, thread) = engine(kinds, 16, 2000, limits()).spawn().unwrap();
    let ask = |i: u64| {
        let handle = handle.clone();
        std::thread::spawn(move || {
            let prompt = prompt(5 + i as usize, i);
            let got = tokens(&mut handle.generate(request(&prompt, 9))).0;
            assert_eq!(got, greedy(&prompt, 9, kinds));
        })
    };
    let threads: Vec<_> = (0..8).map(ask).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let bad = tokens(&mut handle.generate(request(&[], 9))).1;
    assert!(matches!(
        bad,
        Some(EventKind::Failed(EngineError::EmptyPrompt))
    ));
    let session = handle.with(|engine| engine.open_session(0)).unwrap();
    let first = tokens(&mut handle.generate_in(session, request(&prompt(9, 1), 4)));
    assert_eq!(first.0.len(), 4);
    let held = handle.with(move |engine| engine.session_tokens(session).len());
    assert_eq!(held.unwrap(), 12);
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn turns_may_be_the_caller_s() {
    let kinds: &[CacheKind] = &[STATE, FULL];
    let (handle, mut driver) = engine(kinds, 16, 2000, limits()).drive();
    assert_eq!(driver.turn(), Turned::Idle);
    let prompts: Vec<_> = (0..3).map(|i| prompt(5 + i as usize, i)).collect();
    let ask = |prompt: &Vec<u32>| handle.generate(request(prompt, 9));
    let mut answers: Vec<Answer> = prompts.iter().map(ask).collect();
    let mut got = vec![Vec::new(); answers.len()];
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while !answers.iter().all(Answer::is_over) {
        assert_ne!(driver.turn(), Turned::Over);
        for (answer, got) in answers.iter_mut().zip(&mut got) {
            while let std::task::Poll::Ready(Some(event)) = answer.poll_next(&mut context) {
                if let EventKind::Token { id, .. } = event {
                    got.push(id);
                }
            }
        }
    }
    for (prompt, got) in prompts.iter().zip(got) {
        assert_eq!(got, greedy(prompt, 9, kinds));
    }
    drop(answers);
    drop(handle);
    assert_eq!(driver.turn(), Turned::Over);
}

#[test]
fn a_dropped_answer_is_cancelled_and_others_go_on() {
    let (handle, thread) = engine(&[FULL], 16, 2000, limits()).spawn().unwrap();
    let mut dropped = handle.generate(request(&prompt(9, 1), 150));
    assert!(dropped.next_blocking().is_some());
    let mut stays = handle.generate(request(&prompt(9, 2), 20));
    drop(dropped);
    assert_eq!(tokens(&mut stays).0, greedy(&prompt(9, 2), 20, &[FULL]));
    let (open, gate) = std::sync::mpsc::channel();
    let mut cancelled = handle.generate(Request {
        constraint: Some(Box::new(constraints::Gated(gate))),
        ..request(&prompt(9, 3), 150)
    });
    cancelled.cancel();
    drop(open);
    let last = tokens(&mut cancelled).1;
    let reason = FinishReason::Cancelled;
    assert!(
        matches!(last, Some(EventKind::Finished { reason: r, .. }) if r == reason),
        "{last:?}"
    );
    drop((handle, stays, cancelled));
    thread.join().unwrap();
}

/// A waker that wakes nobody: the test polls again by itself.
struct Noop;

impl std::task::Wake for Noop {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn an_answer_can_be_awaited_without_any_runtime() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    let (handle, _thread) = engine(&[FULL], 16, 2000, limits()).spawn().unwrap();
    let mut answer = handle.generate(request(&prompt(9, 1), 5));
    let mut future = Box::pin(async move {
        let mut tokens = Vec::new();
        while let Some(event) = answer.next().await {
            if let EventKind::Token { id, .. } = event {
                tokens.push(id);
            }
        }
        tokens
    });
    let waker = Waker::from(Arc::new(Noop));
    let mut cx = Context::from_waker(&waker);
    let tokens = loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(tokens) => break tokens,
            Poll::Pending => std::thread::yield_now(),
        }
    };
    assert_eq!(tokens, greedy(&prompt(9, 1), 5, &[FULL]));
}

/// Takes its time to begin.
struct Slow;

impl Constraint for Slow {
    fn begin(&mut self, _: &mut Vec<u32>) -> Result<(), String> {
        std::thread::sleep(std::time::Duration::from_millis(200));
        Ok(())
    }

    fn accept(&mut self, _: u32, _: &mut Vec<u32>) -> Result<(), String> {
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<tokkata_ir::sample::Mask>, String> {
        Ok(None)
    }
}

#[test]
fn an_engine_that_panics_ends_its_requests_by_name() {
    let (handle, thread) = engine(&[FULL], 16, 2000, limits()).spawn().unwrap();
    let mut answer = handle.generate(Request {
        constraint: Some(Box::new(Slow)),
        ..request(&prompt(9, 1), 150)
    });
    let asked = handle.with(|_| -> () { panic!("a bug") });
    assert!(matches!(asked, Err(EngineError::Gone(_))));
    let last = tokens(&mut answer).1;
    assert!(
        matches!(&last, Some(EventKind::Failed(error)) if error.to_string().contains("panicked")),
        "{last:?}"
    );
    thread.join().unwrap();
    let after = tokens(&mut handle.generate(request(&prompt(9, 1), 5))).1;
    assert!(matches!(
        after,
        Some(EventKind::Failed(EngineError::Gone(_)))
    ));
}

/// Takes its time, and forces what the answer ends with.
struct SlowEnd;

impl Constraint for SlowEnd {
    fn accept(&mut self, _: u32, forced: &mut Vec<u32>) -> Result<(), String> {
        std::thread::sleep(std::time::Duration::from_millis(20));
        forced.extend([7, 8]);
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<tokkata_ir::sample::Mask>, String> {
        Ok(None)
    }
}

#[test]
fn an_answer_that_a_mask_ends_is_heard_of_though_nobody_asks_more() {
    let (handle, _) = engine(&[FULL], 16, 2000, limits()).spawn().unwrap();
    let mut answer = handle.generate(Request {
        constraint: Some(Box::new(SlowEnd)),
        ..request(&prompt(9, 4), 3)
    });
    let mut seen = Vec::new();
    while let Some(event) = answer.next_within(std::time::Duration::from_secs(5)) {
        seen.push(event);
    }
    assert!(answer.is_over(), "it ended: {seen:?}");
    assert!(matches!(seen.last(), Some(EventKind::Finished { .. })));
}

#[test]
fn no_patience_is_too_long() {
    let (handle, _) = engine(&[FULL], 16, 2000, limits()).spawn().unwrap();
    let mut answer = handle.generate(request(&prompt(9, 4), 3));
    let mut last = None;
    while let Some(event) = answer.next_within(std::time::Duration::MAX) {
        last = Some(event);
    }
    assert!(matches!(last, Some(EventKind::Finished { .. })));
}
