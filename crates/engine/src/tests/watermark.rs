//! Answers with a watermark.

use super::*;

/// Draws over the whole vocabulary.
fn drawn(prompt: &[u32], n: usize, watermark: Option<Watermark>) -> Request {
    Request {
        sampling: Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 7,
            watermark,
            ..Sampling::default()
        },
        ..request(prompt, n)
    }
}

fn found(key: u64, answer: &Given) -> Detection {
    Watermark::new(key).detect(&answer.tokens)
}

fn a_watermark_is_found_by_its_key_alone() {
    let mark = Some(Watermark::new(11));
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let told = [prompt(9, 1), prompt(9, 2)];
        let marked = engine.submit(drawn(&told[0], 60, mark)).unwrap();
        let plain = engine.submit(drawn(&told[1], 60, None)).unwrap();
        let together = run(&mut engine);
        assert!(found(11, &together[&marked]).p_value < 1e-9);
        assert!(found(12, &together[&marked]).p_value > 1e-3);
        assert!(found(11, &together[&plain]).p_value > 1e-3);
        assert_eq!(together[&marked].tokens.len(), 60);
        let alone = engine.submit(drawn(&told[0], 60, mark)).unwrap();
        let answer = run(&mut engine).remove(&alone).unwrap();
        assert_eq!(answer.tokens, together[&marked].tokens);
        let alone = engine.submit(drawn(&told[1], 60, None)).unwrap();
        let answer = run(&mut engine).remove(&alone).unwrap();
        assert_eq!(answer.tokens, together[&plain].tokens);
        assert_no_leak(&mut engine);
    }
}

/// The device draws too, by the seed, and ends its slot at what it drew.
fn what_the_device_draws_beside_it_ends_nothing() {
    let mark = Some(Watermark::new(11));
    for kinds in KINDS {
        let mut engine = engine(kinds, 16, 1000, limits());
        let id = engine.submit(drawn(&prompt(9, 1), 30, mark)).unwrap();
        let want = run(&mut engine).remove(&id).unwrap();
        let ending = Request {
            stop: StopRules {
                max_tokens: Some(30),
                stop_ids: (0..64).filter(|t| !want.tokens.contains(t)).collect(),
                ..StopRules::default()
            },
            ..drawn(&prompt(9, 1), 30, mark)
        };
        let id = engine.submit(ending).unwrap();
        let answer = run(&mut engine).remove(&id).unwrap();
        assert_eq!(answer.tokens, want.tokens);
        assert_eq!(answer.reason, Some(FinishReason::MaxTokens));
    }
}

fn greedy_answers_have_no_watermark() {
    let mut engine = engine(&[FULL], 16, 1000, limits());
    let mut asked = drawn(&prompt(9, 1), 20, Some(Watermark::new(11)));
    asked.sampling.temperature = 0.0;
    let id = engine.submit(asked).unwrap();
    let answer = run(&mut engine).remove(&id).unwrap();
    assert_eq!(answer.tokens, greedy(&prompt(9, 1), 20, &[FULL]));
}

fn what_is_told_is_the_token_that_was_drawn() {
    let mut engine = engine(&[FULL], 16, 1000, limits());
    let asked = Request {
        logprobs: Some(2),
        ..drawn(&prompt(9, 1), 20, Some(Watermark::new(11)))
    };
    engine.submit(asked).unwrap();
    let (mut tokens, mut seen) = (prompt(9, 1), 0);
    while !engine.is_idle() {
        for event in engine.step() {
            let EventKind::Token { id, logprobs, .. } = event.kind else {
                continue;
            };
            let logits = expected(given(&tokens), &[FULL]);
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            let want = f64::from(logits[id as usize]) - sum.ln();
            let told = logprobs.expect("it was asked for");
            assert_eq!((told.picked.token, told.top.len()), (id, 2));
            assert!((f64::from(told.picked.logprob) - want).abs() < 1e-3);
            tokens.push(id);
            seen += 1;
        }
    }
    assert_eq!(seen, 20);
}

#[test]
fn contexts_have_a_width() {
    let mut engine = engine(&[FULL], 16, 1000, limits());
    let mark = Watermark {
        width: 0,
        ..Watermark::new(11)
    };
    let error = engine
        .submit(drawn(&prompt(9, 1), 5, Some(mark)))
        .unwrap_err();
    let text = "found a context of 0 tokens for the watermark, expected 1 to 64";
    assert!(error.to_string().contains(text), "{error}");
}

everywhere! {
    a_watermark_is_found_by_its_key_alone
    what_the_device_draws_beside_it_ends_nothing
    greedy_answers_have_no_watermark
    what_is_told_is_the_token_that_was_drawn
}
