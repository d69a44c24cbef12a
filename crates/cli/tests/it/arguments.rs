//! Command lines that are changed argument by argument: each is understood or refused in words.

mod exercise;
#[path = "../../../text/tests/it/fuzzed/pieces.rs"]
#[allow(dead_code)]
mod pieces;

/// Mutants of each seed.
const MUTANTS: u64 = 60;

#[test]
fn changed_arguments_are_understood_or_refused() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/arguments");
    let (mut seeds, mut understood, mut refused) = (0, 0, 0);
    for entry in std::fs::read_dir(folder).expect("seeds") {
        let text = std::fs::read_to_string(entry.expect("a seed").path()).expect("text");
        let text = text.trim_end();
        assert!(exercise::arguments(text.as_bytes()), "{text}");
        seeds += 1;
        for seed in 0..MUTANTS {
            match exercise::arguments(pieces::mutate(text, &exercise::WORDS, seed).as_bytes()) {
                true => understood += 1,
                false => refused += 1,
            }
        }
    }
    assert!(
        seeds >= 5 && understood > 20 && refused > 20,
        "{seeds} {understood} {refused}"
    );
}
