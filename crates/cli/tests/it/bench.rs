//! `bench` on a made-up model.

use std::path::Path;

use crate::common::{made_up, run, stderr, stdout};
use serde_json::Value;

#[test]
fn json_has_llama_benchs_names() {
    let (_dir, model) = made_up("q4_0");
    let model = model.to_str().unwrap();
    let args = [
        "bench", "-m", model, "-p", "16", "-n", "4", "-r", "2", "-t", "1", "-d", "0,8",
    ];
    let text = stdout(&[&args[..], &["-o", "json"]].concat());
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let of = |row: &Value, name: &str| {
        row[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {row}"))
    };
    let tests: Vec<_> = rows
        .iter()
        .map(|r| (of(r, "n_prompt"), of(r, "n_gen"), of(r, "n_depth")))
        .collect();
    assert_eq!(tests, [(16, 0, 0), (0, 4, 0), (16, 0, 8), (0, 4, 8)]);
    for row in &rows {
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0 && row["stddev_ts"].is_f64());
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 2);
        assert_eq!((of(row, "n_threads"), of(row, "n_batch")), (1, 2048));
    }
    let lines = stdout(&[&args[..], &["-o", "jsonl"]].concat());
    assert_eq!(lines.lines().count(), 4);
    let csv = stdout(&[&args[..], &["-o", "csv"]].concat());
    assert!(
        csv.starts_with("build_commit,build_number,cpu_info") && csv.lines().count() == 5,
        "{csv}"
    );
    let table = stdout(&args);
    assert!(
        table.contains("|            pp16 |") && table.contains("tg4 @ d8"),
        "{table}"
    );
}

/// The shortest measurement of both kinds.
fn shortest(model: &Path) -> [&str; 9] {
    let model = model.to_str().unwrap();
    ["bench", "-m", model, "-p", "3", "-n", "1", "-r", "1"]
}

#[test]
fn every_mix_can_be_made_up_and_run() {
    for mix in [
        "f32", "f16", "bf16", "q4_0", "q8_0", "q4_k_m", "q5_k_m", "q6_k",
    ] {
        let (_dir, model) = made_up(mix);
        let args = [&shortest(&model)[..], &["-o", "json", "-t", "1"]].concat();
        let text = stdout(&args);
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        let kind = rows[0]["model_type"].as_str().unwrap().to_lowercase();
        assert!(kind.ends_with(mix), "{kind} {mix}");
    }
}

#[test]
fn mistakes_are_told_in_a_line_and_exit_with_2() {
    for args in [
        &["bench", "--synthetic", "gpt-9:q4_0"][..],
        &["bench"],
        &["bench", "m.gguf", "-p", "x"],
        &["bench", "m.gguf", "-r", "0"],
        &["bench", "m.gguf", "--synthetic", "tiny:q4_0"],
        &["complete", "m.gguf", "--temp", "-1"],
        &["complete", "m.gguf", "-p", "a", "--no-such-flag"],
        &["tokenize"],
    ] {
        let output = run(args);
        let text = stderr(&output);
        assert_eq!(
            (output.status.code(), text.lines().count()),
            (Some(2), 1),
            "{args:?}: {text}"
        );
        assert!(text.starts_with("tokkata: "), "{text}");
    }
}

/// The program, with a cache of its own.
fn run_in(cache: &Path, args: &[&str]) -> std::process::Output {
    let mut command = crate::common::tokkata();
    command.args(args).env("XDG_CACHE_HOME", cache);
    command.output().unwrap()
}

#[test]
fn a_tuning_is_kept_for_later_runs() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| run_in(dir.path(), args);
    let kept = || std::fs::read_dir(dir.path().join("tokkata")).map_or(0, Iterator::count);
    // Beside other tests the machine may be too busy, which is said and keeps nothing.
    let measured = |more: &[&str]| {
        let output = run(&[&["tune", "-t", "1"], more].concat());
        let (text, said) = (String::from_utf8_lossy(&output.stdout), stderr(&output));
        if output.status.success() {
            assert!(text.lines().last().unwrap().starts_with("set="), "{text}");
        } else {
            let busy = ["this machine is busy", "does not come again"];
            assert!(busy.iter().any(|words| said.contains(words)), "{said}");
            assert!(said.contains("run `tokkata tune` again"), "{said}");
        }
        output.status.success()
    };
    measured(&["--dry-run"]);
    assert_eq!(kept(), 0);
    let found = measured(&[]);
    assert_eq!(kept(), usize::from(found));
    let (_dir, model) = made_up("q4_0");
    let bench = shortest(&model);
    assert!(run(&bench).status.success());
    assert_eq!(kept(), usize::from(found), "a small model measures nothing");
    let forget = || stderr(&run(&["tune", "--forget"]));
    let said = forget();
    let file = said.split(": ").next().unwrap();
    assert_eq!(said.ends_with(": forgotten\n"), found, "{said}");
    assert_eq!(kept(), 0);
    std::fs::create_dir_all(dir.path().join("tokkata")).unwrap();
    std::fs::write(file, "set=mmx").unwrap();
    let refused = run(&bench);
    assert!(!refused.status.success() && stderr(&refused).contains("run `tokkata tune` again"));
    assert_eq!(forget(), format!("{file}: forgotten\n"));
    assert_eq!(kept(), 0);
    assert_eq!(forget(), format!("{file}: nothing was kept\n"));
}

/// Where there is no GPU, and where there is one, in software at least.
#[test]
fn a_gpu_is_tuned_where_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| run_in(dir.path(), args);
    for other in ["cpu", "cuda:0"] {
        let refused = run(&["tune", "--device", other]);
        let said = stderr(&refused);
        assert!(
            said.contains(&format!("found device '{other}', expected one of wgpu:0")),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1);
    }
    let refused = run(&["tune", "-m", "MODEL.gguf"]);
    assert_eq!(refused.status.code(), Some(2));
    let (_dir, model) = made_up("q4_k_m");
    let tune = ["tune", "--device", "wgpu:0", "-m", model.to_str().unwrap()];
    let tuned = run(&tune);
    let said = stderr(&tuned);
    if said.contains("wgpu:0 cannot be used: ") {
        assert_eq!(
            (tuned.status.code(), said.lines().count()),
            (Some(1), 1),
            "{said}"
        );
        return eprintln!("skipped: {said}");
    }
    let text = String::from_utf8_lossy(&tuned.stdout).into_owned();
    assert!(
        tuned.status.success() && text.contains("columns=1024"),
        "{said}{text}"
    );
    let path = said
        .lines()
        .find_map(|l| l.strip_prefix("kept in "))
        .expect("a file");
    let kept = std::fs::read_to_string(path).unwrap();
    assert!(kept.starts_with("checked\n"), "{kept}");
    std::fs::write(path, "checked\ntuned\nkeys=64\nwithout tiles\n").unwrap();
    let bench = shortest(&model);
    let on_gpu = [&bench[..], &["--device", "wgpu:0"]].concat();
    let output = run(&on_gpu);
    assert!(output.status.success(), "{}", stderr(&output));
    std::fs::write(path, "checked\ntuned\nkeys=65\n").unwrap();
    assert!(
        run(&on_gpu).status.success(),
        "what is not known is left alone"
    );
    let forgotten = run(&["tune", "--device", "wgpu:0", "--forget"]);
    assert!(stderr(&forgotten).ends_with(": nothing is chosen any more\n"));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "checked\n");
}

#[test]
fn a_model_runs_from_the_map_with_the_same_logits() {
    let (dir, model) = made_up("q4_k_m");
    let logits = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        let args = [
            "logits",
            "-m",
            model.to_str().unwrap(),
            "--ids",
            "1,2,3,4,5",
            "-o",
        ];
        stdout(&[&args[..], &[out.to_str().unwrap()], more].concat());
        std::fs::read(out).unwrap()
    };
    let usual = logits("a.safetensors", &[]);
    assert_eq!(usual, logits("b.safetensors", &["--no-repack"]));
    let pinned = ["--pin-threads", "-t", "2"];
    assert_eq!(usual, logits("c.safetensors", &pinned));
}
