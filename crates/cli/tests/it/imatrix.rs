//! `imatrix` on the shared test model, beside what llama-imatrix measured.

use std::path::Path;

use crate::common::{run, stderr, stdout, testdata};
use tokkata::importance::Importance;

/// Chunks of 64 tokens of this, three of them, with `--process-output`.
const TOLD: &str = "Once upon a time, there was a little girl who lived in a big house. ";
const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/golden/dreams.imatrix.gguf"
);

fn read(path: &str) -> Importance {
    Importance::read(Path::new(path)).unwrap()
}

/// The largest relative error of any weight's means; names and counts must be the same.
fn error(found: &Importance, expected: &Importance) -> f64 {
    let names = |i: &Importance| i.entries.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected));
    let one = |(a, b): (&[f32], &[f32])| {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let wrong: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
        (wrong / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
    };
    let pairs = found.entries.values().zip(expected.entries.values());
    pairs
        .map(|(a, b)| one((&a.means(), &b.means())))
        .fold(0.0, f64::max)
}

#[test]
fn sums_are_those_of_llama_imatrix() {
    let test = "sums_are_those_of_llama_imatrix";
    let Some(model) = testdata(test, "models/dreams-260k.gguf") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("told.txt"), TOLD.repeat(30)).unwrap();
    let (text, out) = (path("told.txt"), path("i.gguf"));
    let flags = ["--chunks", "3", "--process-output", "-o", &out, "-f", &text];
    let base = ["imatrix", "-m", model.to_str().unwrap(), "-c", "64"];
    let golden = read(GOLDEN);
    for device in ["cpu", "ref"] {
        let shown = stdout(&[&base[..], &flags, &["--device", device]].concat());
        assert!(shown.contains("Final estimate: PPL = "), "{shown}");
        let found = read(&out);
        let error = error(&found, &golden);
        assert!(error < 1e-4, "{device}: {error}");
        for (name, inputs) in &found.entries {
            assert_eq!(inputs.counts, golden.entries[name].counts, "{name}");
        }
        assert_eq!((found.chunks, found.chunk_tokens), (3, Some(64)));
        assert_eq!(found.datasets, std::slice::from_ref(&text));
    }

    // The older format, copies on the way, no numbers.
    let old = path("i.dat");
    let flags = [
        "--output-format",
        "dat",
        "-o",
        &old,
        "--save-frequency",
        "2",
    ];
    let flags = [&flags[..], &["--chunks", "3", "-f", &text, "--no-ppl"]].concat();
    assert_eq!(stdout(&[&base[..], &flags].concat()), "");
    let mut layers = golden.clone();
    layers.entries.remove("output.weight");
    assert!(error(&read(&old), &layers) < 1e-4);
    assert_eq!(read(&path("i.dat.at_2")).chunks, 2);

    // Two runs are as good as one that is twice as long, whatever their formats.
    let both = path("both.gguf");
    let files = format!("{GOLDEN},{old}");
    stdout(&["imatrix", "--in-file", &files, "-c", "64", "-o", &both]);
    let both = read(&both);
    assert_eq!(both.chunks, 6);
    assert!(error(&both, &golden) < 1e-4);
    let shown = stdout(&["imatrix", "--in-file", GOLDEN, "--show-statistics"]);
    assert_eq!(shown.lines().filter(|l| l.contains("attn_q ")).count(), 4);
}

#[test]
fn importance_changes_what_is_written() {
    let test = "importance_changes_what_is_written";
    let Some(model) = testdata(test, "models/dreams-260k.gguf") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let write = |name: &str, flags: &[&str]| {
        let out = path(name);
        let places = [model.to_str().unwrap(), &out, "q4_0"];
        let output = run(&[&["quantize"], flags, &places].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read(out).unwrap()
    };
    let plain = write("plain.gguf", &[]);
    let weighed = write("weighed.gguf", &["--imatrix", GOLDEN]);
    let excluded = ["--imatrix", GOLDEN, "--exclude-weights", "ffn_"];
    let excluded = write("excluded.gguf", &excluded);
    let included = ["--imatrix", GOLDEN, "--include-weights", "ffn_"];
    let included = write("included.gguf", &included);
    let all = [plain, weighed, excluded, included];
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a != b), "{i}");
    }
}

#[test]
fn mistakes_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let junk = dir.path().join("junk.dat");
    std::fs::write(&junk, b"no importance").unwrap();
    let junk = junk.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["imatrix"], 2, "give a text with -f, or --in-file"),
        (&["imatrix", "--show-statistics"], 2, "--in-file"),
        (&["imatrix", "--in-file", junk], 1, "junk.dat: found "),
        (&["imatrix", "-p", "x"], 2, "no model was named"),
    ];
    for (args, code, text) in cases {
        let output = run(args);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    }
}
