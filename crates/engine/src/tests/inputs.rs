//! What is read beside tokens: an encoder's input, and media.

use super::*;
use crate::fake::N_VOCAB;

const CROSS: CacheKind = CacheKind::Cross;
const CROSSED: [&[CacheKind]; 3] = [&[FULL, CROSS], &[CROSS, FULL, WINDOW], &[STATE, CROSS]];

everywhere! {
    an_answer_follows_from_what_its_encoder_read
    encoders_of_many_share_steps_and_blocks
    what_an_encoder_wrote_is_made_again_after_preemption
    media_stand_in_the_place_of_tokens
    prefixes_are_shared_where_media_are_equal
    a_span_runs_in_one_step
    a_failing_neighbour_leaves_encoders_and_media_alone
}

fn encoding(prompt: &[u32], n: usize, encoder: &[u32]) -> Request {
    Request {
        encoder: Some(EncoderInput::Tokens(encoder.to_vec())),
        ..request(prompt, n)
    }
}

fn crossed(kinds: &[CacheKind], positions: u32) -> (Engine, Model) {
    let limits = Limits {
        enc_rows: 20,
        ..limits()
    };
    engine_and_model(kinds, 4, positions, limits)
}

fn an_answer_follows_from_what_its_encoder_read() {
    for kinds in CROSSED {
        let (mut engine, _) = crossed(kinds, 200);
        let answers: Vec<Vec<u32>> = [3, 20, 1]
            .map(|n| {
                let (own, encoder) = (prompt(30, 1), prompt(n, n as u64));
                let id = engine.submit(encoding(&own, 12, &encoder)).unwrap();
                let given = run(&mut engine).remove(&id).unwrap();
                let reads = Reads {
                    tokens: &own,
                    encoded: &encoder,
                    ..Reads::default()
                };
                assert_eq!(given.tokens, greedy_over(reads, 12, kinds), "{n} rows");
                given.tokens
            })
            .into();
        assert_ne!(answers[0], answers[1]);
        assert_no_leak(&mut engine);
    }
    let (mut plain, _) = engine_and_model(&[FULL], 4, 200, limits());
    let refused = plain.submit(encoding(&[1], 1, &[2])).unwrap_err();
    assert!(matches!(refused, EngineError::NoEncoder), "{refused}");
    let (mut engine, _) = crossed(&[FULL, CROSS], 200);
    let refused = engine.submit(request(&[1], 1)).unwrap_err();
    assert!(matches!(refused, EngineError::NothingEncoded), "{refused}");
    let refused = engine.submit(encoding(&[1], 1, &[])).unwrap_err();
    assert!(matches!(refused, EngineError::NothingEncoded), "{refused}");
    let refused = engine.submit(encoding(&[1], 1, &[0; 21])).unwrap_err();
    let text = "a text of 21 tokens must fit into one step of 20";
    assert!(refused.to_string().starts_with(text), "{refused}");
    let refused = engine.submit(encoding(&[1], 1, &[N_VOCAB])).unwrap_err();
    assert!(
        matches!(refused, EngineError::UnknownToken { .. }),
        "{refused}"
    );
}

fn encoders_of_many_share_steps_and_blocks() {
    for kinds in CROSSED {
        let (mut engine, _) = crossed(kinds, 100);
        let asked: Vec<_> = (0..9)
            .map(|i| {
                let own = prompt(5 + 3 * i, i as u64);
                let encoder = prompt(1 + 2 * i, 50 + i as u64);
                let id = engine.submit(encoding(&own, 8, &encoder)).unwrap();
                (id, own, encoder)
            })
            .collect();
        let answers = run(&mut engine);
        for (id, own, encoder) in asked {
            let reads = Reads {
                tokens: &own,
                encoded: &encoder,
                ..Reads::default()
            };
            assert_eq!(answers[&id].tokens, greedy_over(reads, 8, kinds));
        }
        assert_no_leak(&mut engine);
    }
}

fn what_an_encoder_wrote_is_made_again_after_preemption() {
    let kinds: &[CacheKind] = &[FULL, CROSS];
    let (mut engine, model) = crossed(kinds, 60);
    let mut asked = Vec::new();
    for i in 0..4 {
        let (own, encoder) = (prompt(4, i), prompt(10, 90 + i));
        let id = engine.submit(encoding(&own, 40, &encoder)).unwrap();
        asked.push((id, own, encoder));
    }
    let answers = run(&mut engine);
    for (id, own, encoder) in &asked {
        let reads = Reads {
            tokens: own,
            encoded: encoder,
            ..Reads::default()
        };
        assert_eq!(answers[id].tokens, greedy_over(reads, 40, kinds));
    }
    let least = asked.len() * (10 + 4 + 39);
    let rows = model.rows.load(std::sync::atomic::Ordering::Relaxed);
    assert!(rows >= least + 10, "nobody was preempted: {rows} rows");
    assert_no_leak(&mut engine);
}

/// Media of these values at a place.
fn media(at: usize, values: &[f32], span: bool) -> Media {
    Media {
        at,
        rows: values.into(),
        hash: values.iter().fold(7, |h, v| {
            h.wrapping_mul(31).wrapping_add(v.to_bits().into())
        }),
        span,
    }
}

fn embeds(media: &[Media]) -> Vec<(usize, f32)> {
    let one = |m: &Media| -> Vec<(usize, f32)> { (m.at..).zip(m.rows.to_vec()).collect() };
    media.iter().flat_map(one).collect()
}

/// Submits, and gives the answer that it should get.
fn ask(
    engine: &mut Engine,
    own: &[u32],
    media: &[Media],
    kinds: &[CacheKind],
) -> (RequestId, Vec<u32>) {
    let asked = engine.submit(Request {
        media: media.to_vec(),
        ..request(own, 10)
    });
    let reads = Reads {
        tokens: own,
        embeds: &embeds(media),
        ..Reads::default()
    };
    (asked.unwrap(), greedy_over(reads, 10, kinds))
}

fn media_stand_in_the_place_of_tokens() {
    for kinds in KINDS {
        let mut engine = engine(kinds, 4, 400, limits());
        let own = prompt(60, 3);
        let values: Vec<f32> = (0..37).map(|i| i as f32).collect();
        let cases: [Vec<Media>; 4] = [
            vec![],
            vec![media(10, &values, false)],
            vec![media(0, &[1.0], false), media(1, &[2.0], false)],
            vec![media(5, &[4.0, 5.0], true), media(59, &[9.0], false)],
        ];
        let asked = cases.map(|media| ask(&mut engine, &own, &media, kinds));
        let answers = run(&mut engine);
        for (id, expected) in asked {
            assert_eq!(answers[&id].tokens, expected, "{kinds:?}");
        }
        assert_no_leak(&mut engine);
    }
}

fn prefixes_are_shared_where_media_are_equal() {
    for kinds in [KINDS[0], KINDS[1]] {
        let mut engine = engine(kinds, 4, 400, limits());
        let own = prompt(100, 3);
        let values: Vec<f32> = (0..40).map(|i| i as f32).collect();
        let reused = |engine: &mut Engine, media: &[Media]| {
            let (id, expected) = ask(engine, &own, media, kinds);
            let given = run(engine).remove(&id).unwrap();
            assert_eq!(given.tokens, expected);
            given.stats.reused_tokens
        };
        let shown = media(50, &values, false);
        assert_eq!(reused(&mut engine, std::slice::from_ref(&shown)), 0);
        let again = reused(&mut engine, std::slice::from_ref(&shown));
        assert!(again > 60, "past the media's beginning: {again}");
        let other = media(50, &[&values[..39], &[99.0]].concat(), false);
        let apart = reused(&mut engine, &[other]);
        assert!(apart <= 50, "up to the other media: {apart}");
        let none = reused(&mut engine, &[]);
        assert!(none <= 50, "up to the media: {none}");
    }
}

fn a_span_runs_in_one_step() {
    let mut engine = engine(&[FULL], 4, 400, limits());
    let own = prompt(60, 3);
    let asked: Vec<_> = (0..3)
        .map(|i| {
            let values = vec![i as f32; 24];
            ask(&mut engine, &own, &[media(7, &values, true)], &[FULL])
        })
        .collect();
    let mut cached: Vec<Vec<usize>> = vec![vec![]; 3];
    let mut answers = HashMap::new();
    while !engine.is_idle() {
        let events = engine.step();
        for event in &events {
            let which = asked.iter().position(|a| a.0 == event.request).unwrap();
            if let EventKind::Prompt { cached: n, .. } = event.kind {
                cached[which].push(n);
            }
        }
        collect(&mut answers, events);
    }
    for ((id, expected), cached) in asked.iter().zip(cached) {
        assert_eq!(&answers[id].tokens, expected);
        assert!(cached.contains(&7) && cached.contains(&31), "{cached:?}");
        assert!(!cached.iter().any(|n| (8..31).contains(n)), "{cached:?}");
    }
    let long = Request {
        media: vec![media(0, &[0.0; 25], true)],
        ..request(&own, 1)
    };
    let refused = engine.submit(long).unwrap_err().to_string();
    let text = "a text of 25 tokens must fit into one step of 24";
    assert!(refused.starts_with(text), "{refused}");
}

fn a_failing_neighbour_leaves_encoders_and_media_alone() {
    let kinds: &[CacheKind] = &[FULL, CROSS];
    let (mut engine, _) = crossed(kinds, 400);
    let (own, encoder) = (prompt(12, 1), prompt(9, 2));
    let shown = [media(3, &[1.0, 2.0], false)];
    let good = engine.submit(Request {
        media: shown.to_vec(),
        ..encoding(&own, 10, &encoder)
    });
    let bad = engine.submit(encoding(&[1], 5, &[POISON_TOKEN])).unwrap();
    let good = good.unwrap();
    let answers = run(&mut engine);
    assert!(answers[&bad].failed.is_some());
    let reads = Reads {
        tokens: &own,
        embeds: &embeds(&shown),
        encoded: &encoder,
        ..Reads::default()
    };
    assert_eq!(answers[&good].tokens, greedy_over(reads, 10, kinds));
    assert_no_leak(&mut engine);
}
