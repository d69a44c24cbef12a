//! Drafters in files of their own beside a model: which file is taken for what, and what is said where one cannot guess.

use std::path::PathBuf;

use crate::common::{golden, options};
use tokkata::{Drafts, EventKind, Model, OpenOptions, Sampling, Value};
use tokkata_conformance::generate::apart;
use tokkata_conformance::golden::Golden;

/// A model and its drafter as files.
fn files(name: &str, golden: &Golden) -> [PathBuf; 2] {
    let (model, drafter) = apart(golden).expect("two files");
    let drafter = drafter.expect("a drafter");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    [("model", model), ("drafter", drafter)].map(|(what, bytes)| {
        let path = folder.join(format!("{name}-{what}.gguf"));
        std::fs::write(&path, bytes).expect("a file");
        path
    })
}

fn open(model: &PathBuf, kind: &str, drafter: Option<&PathBuf>) -> Model {
    let options = OpenOptions {
        drafts: Drafts::named(kind, drafter.cloned(), None).expect("a kind"),
        ctx: std::num::NonZeroU32::new(96),
        ..options()
    };
    Model::open(model, &options).expect("a model")
}

fn text(model: &mut Model) -> Vec<u32> {
    let mut request = model.prompted(vec![3, 8, 1, 9, 3, 8]);
    request.sampling = Sampling {
        seed: 11,
        ..Sampling::default()
    };
    request.stop.max_tokens = Some(40);
    let events = model.generate(request, None).expect("an answer");
    let token = |event| match event {
        Ok(EventKind::Token { id, .. }) => Some(id),
        _ => None,
    };
    events.filter_map(token).collect()
}

/// Who may guess for a model.
fn names(model: &mut Model) -> Vec<&'static str> {
    let counts = model.engine().draft_counts();
    counts.into_iter().map(|count| count.0).collect()
}

#[test]
fn a_file_is_taken_for_what_it_is() {
    for (name, kind) in [
        ("eagle3+own+heads", "eagle3"),
        ("dflash+own+heads", "dflash"),
    ] {
        let [model, drafter] = files(name, &golden(name));
        let plain = text(&mut open(&model, "none", None));
        assert_eq!(plain.len(), 40);
        for (said, want) in [
            ("auto", vec!["ngram", kind]),
            ("draft", vec![kind]),
            (kind, vec![kind]),
        ] {
            let mut beside = open(&model, said, Some(&drafter));
            assert_eq!(beside.notes(), [""; 0]);
            assert_eq!(names(&mut beside), want);
            assert_eq!(text(&mut beside), plain);
        }
        let alone = Model::open(&drafter, &options()).err().expect("no model");
        let why = "it guesses for another model: give that one, and this with -md";
        assert!(alone.to_string().ends_with(why), "{alone}");
    }
}

#[test]
fn what_cannot_guess_is_said_and_answers_come() {
    let mut wide = golden("eagle3+heads");
    wide.metadata
        .insert("draft.eagle3.target_hidden_size", Value::U32(128));
    let [model, other] = files("wide", &wide);
    let plain = text(&mut open(&model, "none", None));
    let mut beside = open(&model, "auto", Some(&other));
    let said = beside.notes().join(" ");
    let why = "found 128 columns, expected the 64 of the model's stream";
    assert!(
        said.starts_with("no model guesses: ") && said.ends_with(why),
        "{said}"
    );
    assert_eq!(names(&mut beside), ["ngram"]);
    assert_eq!(text(&mut beside), plain);
    let mut beside = open(&model, "dflash", Some(&model));
    let said = beside.notes().join(" ");
    assert!(
        said.ends_with("it reads no states of another model; use --spec-type draft"),
        "{said}"
    );
    assert_eq!(text(&mut beside), plain);
    let missing = PathBuf::from("nothing.gguf");
    let mut beside = open(&model, "eagle3", Some(&missing));
    assert!(beside.notes().join(" ").starts_with("no model guesses: "));
    assert_eq!(text(&mut beside), plain);
}
