//! Committed inputs of the fuzz targets that parse text: seeds, and what earlier runs found.

mod exercise;
mod pieces;

use std::path::{Path, PathBuf};

fn files(dir: PathBuf) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

/// Every file runs through, and every seed is read.
fn replay(target: &str, run: impl Fn(&[u8]) -> bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let seeds = files(root.join("../../fuzz/seeds").join(target));
    assert!(!seeds.is_empty());
    for (path, bytes) in seeds {
        assert!(run(&bytes), "{} is not read", path.display());
    }
    for (_, bytes) in files(root.join("tests/corpus").join(target)) {
        run(&bytes);
    }
}

#[test]
fn grammars_replay() {
    replay("grammar", exercise::grammar);
}

#[test]
fn templates_replay() {
    replay("template", exercise::template);
}

#[test]
fn answers_replay() {
    replay("answer", exercise::answer);
}

#[test]
fn tokenizers_replay() {
    replay("tokenizer", exercise::tokenizer);
}

/// Mutants of each seed.
const MUTANTS: u64 = 150;

/// Mutants of the seeds of a target whose first `head` bytes stay, of whatever can be changed piece by piece.
fn mutants(target: &str, head: usize, words: &[&str]) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let mut files: Vec<_> = std::fs::read_dir(folder.join(target))
        .expect("seeds")
        .map(|entry| entry.expect("a seed").path())
        .collect();
    files.sort();
    let text = |path: &PathBuf| String::from_utf8(std::fs::read(path).ok()?).ok();
    let texts: Vec<String> = files.iter().filter_map(text).collect();
    assert!(!texts.is_empty());
    let mutant = |text: &String, seed| {
        let (head, text) = text.split_at(head);
        head.to_owned() + &pieces::mutate(text, words, seed)
    };
    let all = texts
        .iter()
        .flat_map(|text| (0..MUTANTS).map(move |seed| mutant(text, seed)));
    all.collect()
}

#[test]
fn grammars_that_are_changed_piece_by_piece_are_refused_or_followed() {
    let mut compiled = 0;
    for mutant in mutants("grammar", 2, &pieces::GRAMMARS) {
        compiled += usize::from(exercise::grammar(mutant.as_bytes()));
    }
    assert!(compiled > 100, "{compiled}");
}

#[test]
fn templates_that_are_changed_piece_by_piece_keep_their_limits() {
    let (mut rendered, begin) = (0, std::time::Instant::now());
    let all = mutants("template", 0, &pieces::TEMPLATES);
    for mutant in &all {
        rendered += usize::from(exercise::template(mutant.as_bytes()));
    }
    assert!(rendered > 20, "{rendered}");
    let each = begin.elapsed() / all.len() as u32;
    assert!(each.as_secs() < 2, "{each:?} each");
}

#[test]
fn pieces_are_whole() {
    let text = "root ::= \"a\\\"b\" [0-9]{2,}  (x | yy)*";
    let found = pieces::pieces(text);
    assert_eq!(found.concat(), text);
    assert!(found.iter().any(|p| p == "\"a\\\"b\""), "{found:?}");
    let changed = (0..50).map(|seed| pieces::mutate(text, &pieces::GRAMMARS, seed));
    let changed: std::collections::HashSet<String> = changed.collect();
    assert!(changed.len() > 40, "{}", changed.len());
}
