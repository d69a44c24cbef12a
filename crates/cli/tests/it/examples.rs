//! What `--help` and the README say about the command is true: each example runs, and each flag exists.
#![cfg(all(unix, feature = "demo"))]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{made_up, stderr, stdout};
use tokkata_conformance::hf::HfGolden;

/// Examples that measure the machine for long.
const LONG: [&str; 4] = [
    "tokkata tune",
    "tokkata tune --device wgpu:0",
    "tokkata tune --device wgpu:0 -m MODEL.gguf --dry-run",
    "tokkata doctor -o REPORT.md",
];
/// What only some machines have: a hub, and models of another kind.
const ELSEWHERE: [&str; 4] = ["USER/NAME", "llama3.2", "RANKER", "CLASSIFIER"];

fn commands() -> Vec<String> {
    let help = stdout(&["--help"]);
    let (_, list) = help.split_once("Commands:\n").expect("a list of commands");
    let lines = list.lines().take_while(|l| !l.is_empty());
    // Descriptions go on further to the right.
    let names = lines.filter(|l| !l.starts_with("   "));
    let names = names.filter_map(|l| l.split_whitespace().next());
    let names = names.filter(|n| *n != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn the_version_comes_with_what_was_built() {
    let short = format!("tokkata {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&["-V"]), short);
    let long = stdout(&["--version"]);
    assert!(long.starts_with(&short), "{long}");
    let fact = |name: &str| {
        let line = long.lines().find_map(|l| l.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    let target = [std::env::consts::ARCH, std::env::consts::OS];
    assert!(target.iter().all(|t| fact("target ").contains(t)), "{long}");
    assert!(fact("compiler ").starts_with("rustc 1."), "{long}");
    let features = fact("features ");
    let features: Vec<&str> = features.split(", ").collect();
    for (name, is_on) in [
        ("cuda", cfg!(feature = "cuda")),
        ("demo", cfg!(feature = "demo")),
        ("hub", cfg!(feature = "hub")),
        ("server", cfg!(feature = "server")),
        ("wgpu", cfg!(feature = "wgpu")),
    ] {
        assert_eq!(features.contains(&name), is_on, "{name}: {long}");
    }
    assert!(!fact("commit ").is_empty(), "{long}");
}

/// A folder with what the examples name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.gguf");
    std::fs::copy(demo, at("MODEL.gguf")).expect("the built-in model");
    let (_made, path) = made_up("f16");
    std::fs::copy(path, at("BIG.gguf")).expect("a model");
    std::fs::write(at("SPEECH.bin"), tokkata_conformance::speech::file()).expect("a model");
    let tone: Vec<f32> = (0..16_000).map(|i| (i as f32 * 0.1).sin() / 4.0).collect();
    let wav = tokkata::audio::wav::encode(&tone, 16_000, 1);
    std::fs::write(at("AUDIO.wav"), wav).expect("a recording");
    let text = "Once upon a time a fox had a lantern. ".repeat(40);
    std::fs::write(at("TEXT.txt"), text).expect("a text");
    let request =
        r#"{"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": true}"#;
    std::fs::write(at("REQUEST.json"), request).expect("a request");
    std::fs::write(at("MINE.toml"), "names = ['mine']\n").expect("a descriptor");
    std::fs::create_dir(at("FOLDER")).expect("a folder");
    let golden = HfGolden::read(&HfGolden::folder(), "llama").expect("a golden");
    golden.write_directory(&at("FOLDER")).expect("a directory");
    folder
}

/// Runs a line as a shell would, away from the network.
fn shell(line: &str, folder: &Path) -> Command {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_tokkata"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", program.parent().expect("a folder").display());
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder);
    command.env("PATH", path).env("HF_HUB_OFFLINE", "1");
    command
        .env("HF_HOME", folder.join("hub"))
        .env("XDG_CACHE_HOME", folder.join("cache"));
    command.stdin(Stdio::null());
    command
}

/// A line that serves until it is told to end: it says where it listens, and ends well.
fn serves(line: &str, folder: &Path) {
    let line = line.replace("--port 8000", "");
    let mut command = shell(&format!("exec {line} --port 0"), folder);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("a shell");
    let told = BufReader::new(child.stderr.take().expect("its errors"));
    let (mut lines, mut said) = (told.lines().map_while(Result::ok), Vec::new());
    let listens = lines.by_ref().any(|l| {
        let listens = l.contains("listening on http://");
        said.push(l);
        listens
    });
    assert!(listens, "{line}: {said:?}");
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status();
    assert!(sent.expect("kill").success());
    lines.for_each(drop);
    assert!(child.wait().expect("an end").success(), "{line}");
}

fn examples(command: &str) -> Vec<String> {
    let help = stdout(&[command, "--help"]);
    let (_, list) = help
        .split_once("Examples:\n")
        .unwrap_or_else(|| panic!("{command}: no examples"));
    let lines = list.lines().map(str::trim).filter(|l| !l.is_empty());
    lines.map(str::to_owned).collect()
}

#[test]
fn every_example_runs() {
    let folder = folder();
    for command in commands() {
        let examples = examples(&command);
        assert!(!examples.is_empty(), "{command}");
        for line in examples.iter().filter(|l| !LONG.contains(&l.as_str())) {
            assert!(line.contains(&format!("tokkata {command}")), "{line}");
            if line.contains("tokkata serve") {
                serves(line, folder.path());
                continue;
            }
            let output = shell(line, folder.path()).output().expect("a shell");
            let told = stderr(&output);
            let elsewhere = ELSEWHERE.iter().any(|word| line.contains(word));
            let code = output.status.code();
            assert!(
                code == Some(0) || elsewhere && code == Some(1),
                "{line}: {told}"
            );
        }
    }
}

#[test]
fn help_is_short_and_long() {
    for command in commands() {
        let (short, long) = (stdout(&[&command, "-h"]), stdout(&[&command, "--help"]));
        assert!(short.len() < long.len(), "{command}");
    }
    let short = stdout(&["run", "-h"]);
    assert!(short.lines().count() < 60, "{short}");
    assert!(!short.contains("--dry-base") && stdout(&["run", "--help"]).contains("--dry-base"));
}

/// What stands between backquotes and begins with the program's name.
fn quoted(text: &str) -> Vec<&str> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.filter(|p| p.starts_with("tokkata ")).collect()
}

#[test]
fn the_readme_names_commands_and_flags_that_exist() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).expect("the README");
    let known: BTreeSet<String> = commands().into_iter().collect();
    let mut told = BTreeSet::new();
    for line in readme.lines().filter(|l| l.starts_with("| `tokkata ")) {
        let command = quoted(line)[0]
            .split_whitespace()
            .nth(1)
            .expect("a command");
        assert!(known.contains(command), "{line}");
        told.extend(
            quoted(line)
                .iter()
                .filter_map(|q| q.split_whitespace().nth(1))
                .map(str::to_owned),
        );
        let named = line.split(|c: char| !c.is_ascii_alphanumeric());
        let named: BTreeSet<&str> = named.filter(|w| known.contains(*w)).collect();
        let helps = named.iter().map(|command| stdout(&[command, "--help"]));
        let help: String = helps.collect();
        let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        for flag in words.filter(|w| w.starts_with("--") && w.len() > 2) {
            assert!(help.contains(flag), "{flag} of {command}");
        }
    }
    let short = ["ls", "rm"].map(str::to_owned);
    let missing: Vec<&String> = known
        .iter()
        .filter(|c| !told.contains(*c) && !short.contains(c))
        .collect();
    assert!(
        missing.is_empty(),
        "the README does not tell of {missing:?}"
    );
}
