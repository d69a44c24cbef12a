//! Requests through adapters beside others, and what is stored of them.

use std::sync::Arc;

use super::*;
use crate::fake::Reads;

everywhere! {
    requests_go_through_their_own_adapters
    what_is_stored_belongs_to_one_adapter
    a_session_may_change_its_adapter
    an_adapter_that_is_used_stays
    what_is_let_go_is_no_longer_usual
    values_are_read_through_adapters
}

fn through(prompt: &[u32], n: usize, adapter: Through) -> Request {
    Request {
        adapter,
        ..request(prompt, n)
    }
}

/// The answer through the how-manieth adapter that was attached.
fn adapted(prompt: &[u32], n: usize, kinds: &[CacheKind], adapter: u64) -> Vec<u32> {
    let reads = Reads {
        adapter,
        ..given(prompt)
    };
    greedy_over(reads, n, kinds)
}

fn requests_go_through_their_own_adapters() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let one = engine.attach(&Arc::default()).unwrap();
        let two = engine.attach(&Arc::default()).unwrap();
        engine.use_adapter(Some(two)).unwrap();
        let ways = [
            (Through::Usual, 2),
            (Through::Adapter(one), 1),
            (Through::Bare, 0),
        ];
        let prompt = prompt(50, 3);
        let submitted = ways.map(|(way, number)| {
            let id = engine.submit(through(&prompt, 9, way)).unwrap();
            (id, adapted(&prompt, 9, kinds, number))
        });
        let answers = run(&mut engine);
        for (id, want) in submitted {
            assert_eq!(answers[&id].tokens, want, "{kinds:?}");
        }
        assert_no_leak(&mut engine);
    }
}

fn what_is_stored_belongs_to_one_adapter() {
    // A state after the whole prompt is of no use to the same prompt.
    for kinds in [KINDS[0], KINDS[1]] {
        let mut engine = engine(kinds, 16, 1000, limits());
        let prompt = prompt(70, 4);
        let ask = |engine: &mut Engine, way, number| {
            let id = engine.submit(through(&prompt, 5, way)).unwrap();
            let answer = run(engine).remove(&id).unwrap();
            assert_eq!(
                answer.tokens,
                adapted(&prompt, 5, kinds, number),
                "{kinds:?}"
            );
            answer.stats.reused_tokens
        };
        assert_eq!(ask(&mut engine, Through::Bare, 0), 0);
        let one = engine.attach(&Arc::default()).unwrap();
        assert_eq!(ask(&mut engine, Through::Adapter(one), 1), 0);
        assert!(ask(&mut engine, Through::Adapter(one), 1) > 0);
        engine.detach(one).unwrap();
        // It has the number of the one before it, and nothing else of it.
        let two = engine.attach(&Arc::default()).unwrap();
        assert_eq!(ask(&mut engine, Through::Adapter(two), 2), 0);
        assert!(ask(&mut engine, Through::Bare, 0) > 0);
    }
}

fn a_session_may_change_its_adapter() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let one = engine.attach(&Arc::default()).unwrap();
        let session = engine.open_session(0);
        let mut tokens = prompt(40, 5);
        for (way, number) in [
            (Through::Adapter(one), 1),
            (Through::Bare, 0),
            (Through::Adapter(one), 1),
        ] {
            let request = through(&tokens, 6, way);
            let id = engine.submit_to(session, request).unwrap();
            let answer = run(&mut engine).remove(&id).unwrap();
            assert_eq!(
                answer.tokens,
                adapted(&tokens, 6, kinds, number),
                "{kinds:?}"
            );
            tokens.extend(&answer.tokens);
        }
        assert_no_leak(&mut engine);
    }
}

fn an_adapter_that_is_used_stays() {
    let mut engine = engine(&[FULL], 16, 1000, limits());
    let one = engine.attach(&Arc::default()).unwrap();
    let request = || through(&prompt(20, 6), 8, Through::Adapter(one));
    let id = engine.submit(request()).unwrap();
    let text = |error: EngineError| error.to_string();
    let busy = format!("adapter {} is in use by a request", one.0);
    assert_eq!(engine.detach(one).map_err(text), Err(busy));
    assert_eq!(
        run(&mut engine)[&id].tokens,
        adapted(&prompt(20, 6), 8, &[FULL], 1)
    );
    engine.detach(one).unwrap();
    let gone = format!("no adapter {}", one.0);
    assert_eq!(engine.submit(request()).map_err(text), Err(gone));
    engine.attach(&Arc::default()).unwrap();
    engine.attach(&Arc::default()).unwrap();
    let most = "adapters: no more than 2 can be attached at once".to_owned();
    assert_eq!(engine.attach(&Arc::default()).map_err(text), Err(most));
}

fn what_is_let_go_is_no_longer_usual() {
    let mut engine = engine(&[FULL], 16, 1000, limits());
    let one = engine.attach(&Arc::default()).unwrap();
    engine.use_adapter(Some(one)).unwrap();
    engine.detach(one).unwrap();
    let prompt = prompt(20, 7);
    let id = engine.submit(through(&prompt, 8, Through::Usual)).unwrap();
    assert_eq!(
        run(&mut engine)[&id].tokens,
        adapted(&prompt, 8, &[FULL], 0)
    );
}

fn values_are_read_through_adapters() {
    let mut engine = engine(&[FULL], 16, 1000, limits());
    let one = engine.attach(&Arc::default()).unwrap();
    engine.use_adapter(Some(one)).unwrap();
    let text = prompt(20, 8);
    for (way, adapter) in [
        (Through::Usual, 1),
        (Through::Bare, 0),
        (Through::Adapter(one), 1),
    ] {
        let read = ReadRequest {
            adapter: way,
            ..ReadRequest::new(text.clone(), tokkata_ir::PlanRole::Main, "logits")
        };
        engine.submit_read(read).unwrap();
        let mut last = Vec::new();
        while !engine.is_idle() {
            for event in engine.step() {
                if let EventKind::Values { values, width } = event.kind {
                    last = values[values.len() - width..].to_vec();
                }
            }
        }
        let reads = Reads {
            adapter,
            ..given(&text)
        };
        assert_eq!(last, expected(reads, &[FULL]), "{way:?}");
    }
}
