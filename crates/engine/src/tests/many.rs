//! Many callers: what one does never costs another.

use std::sync::atomic::Ordering;

use tokkata_ir::PlanRole;

use super::*;
use crate::fake::N_VOCAB;

/// The worst of a prompt beside an answer: how many rows run in one step.
fn a_long_prompt_leaves_answers_their_pace() {
    let limits = Limits {
        rows: 512,
        ctx: 4096,
        ..limits()
    };
    let (mut engine, model) = engine_and_model(&[FULL], 16, 8000, limits);
    let answering = engine.submit(request(&prompt(4, 1), 60)).unwrap();
    let mut answers = until(&mut engine, answering, 4);
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

#[test]
fn an_answer_whose_logits_cannot_be_read_fails_and_no_other() {
    HOW.set(How::Late { ahead: 3, chain: 4 });
    let (mut engine, model) = engine_and_model(&[FULL], 16, 1000, limits());
    let mut told = request(&prompt(9, 1), 50);
    (told.logprobs, told.told) = (Some(0), vec![5]);
    let told = engine.submit(told).unwrap();
    let other = engine.submit(request(&prompt(9, 2), 50)).unwrap();
    let mut answers = until(&mut engine, told, 3);
    model.hides.store(true, Ordering::Relaxed);
    while !engine.is_idle() {
        collect(&mut answers, engine.step());
    }
    let failed = answers[&told].failed.as_deref();
    assert!(failed.is_some_and(|why| why.contains("kept")), "{failed:?}");
    assert_eq!(answers[&other].tokens, greedy(&prompt(9, 2), 50, &[FULL]));
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
        refused.to_string() == "the bias of token 5 is not a number",
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
        .submit_read(ReadRequest::new(text.clone(), PlanRole::Main, "logits"))
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
        assert_eq!(row, expected(given(&text[..=i]), kinds));
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

fn costs_are_known_before_the_first_request() {
    let mut engine = engine(&[FULL], 16, 1000, limits());
    assert_eq!(engine.costs.answer_step(), None);
    engine.measure_costs().unwrap();
    assert!(engine.costs.answer_step().is_some());
    assert!(engine.costs.prompt(1000) > std::time::Duration::ZERO);
    assert!(engine.is_idle());
    assert_no_leak(&mut engine);
}

everywhere! {
    costs_are_known_before_the_first_request
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
