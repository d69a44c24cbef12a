//! `perplexity` on the shared test model.

use crate::common::{run, stderr, stdout, testdata};

/// Numbers of a line, in order.
fn numbers(line: &str) -> Vec<f64> {
    let words = line.split([' ', '%']);
    words.filter_map(|w| w.parse().ok()).collect()
}

#[test]
fn a_base_run_agrees_with_itself_and_rounding_shows() {
    let test = "a_base_run_agrees_with_itself_and_rounding_shows";
    let Some(model) = testdata(test, "models/dreams-260k.gguf") else {
        return;
    };
    let model = model.to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (text, base, small) = (path("text"), path("base"), path("small.gguf"));
    let told = "Once upon a time, there was a little girl who lived in a big house. ";
    std::fs::write(&text, told.repeat(30)).unwrap();
    let saved = ["perplexity", "-m", model, "-f", &text, "-c", "64"];
    let plain = stdout(&saved);
    let line = plain.lines().last().unwrap().to_owned();
    assert!(line.starts_with("Final estimate: PPL = "), "{line}");
    let ppl = numbers(&line)[0];
    // What llama-perplexity prints for this text, which is unlike what the model was trained on.
    assert!((ppl / 193.7969 - 1.0).abs() < 1e-4, "{line}");

    let again = stdout(&[&saved[..], &["--kl-divergence-base", &base]].concat());
    assert_eq!(again, plain);
    assert!(run(&["quantize", model, &small, "q4_0"]).status.success());
    let mean = |model: &str| {
        let flags = ["--kl-divergence", "--kl-divergence-base", &base];
        let text = stdout(&[&["perplexity", "-m", model], &flags[..]].concat());
        let line = text.lines().find(|l| l.starts_with("Mean    KLD:"));
        numbers(line.unwrap())[0]
    };
    let (own, rounded) = (mean(model), mean(&small));
    assert!(own.abs() < 1e-5 && rounded > 1e-3, "{own} {rounded}");

    let output = run(&[
        "perplexity",
        "-m",
        model,
        "--kl-divergence",
        "--kl-divergence-base",
        &text,
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("found no predictions"),
        "{}",
        stderr(&output)
    );
}
