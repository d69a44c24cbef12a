//! Steps by hand that cannot be: each is refused, and the session goes on as if nothing had been asked.

use std::path::PathBuf;

use tokkata::{EngineError, Feed, FeedLogits, Model, OpenOptions, RowKind, SessionId};

fn model() -> Model {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.gguf");
    let options = OpenOptions {
        device: Some("cpu".to_owned()),
        threads: Some(2),
        ctx: std::num::NonZeroU32::new(64),
        ..OpenOptions::default()
    };
    Model::open(path, &options).expect("it loads")
}

fn feed(session: SessionId, tokens: &[u32]) -> Feed<'_> {
    Feed {
        session,
        tokens,
        rows: RowKind::Prompt,
        logits: FeedLogits::Last,
    }
}

#[test]
fn feeds_that_cannot_be_are_refused_and_change_nothing() {
    let mut model = model();
    let (rows, vocabulary) = (model.limits().rows as usize, model.n_vocab());
    let session = model.open_session();
    let port = model.engine().logits_port().expect("logits");
    let rest = |model: &mut Model, session| {
        let fed = model.engine().feed(&[feed(session, &[7])], &[port]);
        let logits = model.engine().read(&fed.expect("a step"), port, None);
        logits.expect("a row")
    };
    let engine = model.engine();
    engine.feed(&[feed(session, &[5, 6])], &[]).expect("a step");
    let many = vec![1; rows + 1];
    let mut refused = |parts: &[Feed<'_>]| model.engine().feed(parts, &[]).expect_err("refused");
    let error = refused(&[feed(session, &many)]);
    assert!(
        matches!(
            error,
            EngineError::StepTooLarge { .. } | EngineError::PromptTooLong { .. }
        ),
        "{error}"
    );
    for parts in [
        &[feed(session, &[])][..],
        &[feed(session, &[1]), feed(session, &[2])],
        &[feed(session, &[vocabulary])],
        &[feed(SessionId(u64::MAX), &[1])],
    ] {
        let error = refused(parts);
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let after = rest(&mut model, session);
    let other = model.open_session();
    model
        .engine()
        .feed(&[feed(other, &[5, 6])], &[])
        .expect("a step");
    assert_eq!(after, rest(&mut model, other));
}
