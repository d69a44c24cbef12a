//! The suites, one by one.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Place;
use super::table::{End, Outcome};
use crate::shell::root;

/// A suite of somebody else's.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) run: fn(&Place) -> Result<Vec<Outcome>>,
}

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "sdks",
        title: "openai 3.54.0, anthropic 2.12.0, cohere 7.3.1, ollama 0.6.3 (Python)",
        run: sdks,
    },
    Suite {
        name: "comply",
        title: "llm-comply 0.5.0: OpenAI chat, Open Responses, Anthropic",
        run: comply,
    },
    Suite {
        name: "llama",
        title: "llama.cpp's server tests (of llama-cpp-python 0.3.36)",
        run: llama,
    },
    Suite {
        name: "vllm",
        title: "vLLM 0.33.0's server tests, those listed in `vllm_tests.txt`",
        run: vllm,
    },
    Suite {
        name: "page",
        title: "The page in Chromium (`page.py`)",
        run: page,
    },
    Suite {
        name: "load",
        title: "Many clients, some of whom leave or mean ill (`load.py`)",
        run: load,
    },
    Suite {
        name: "schema",
        title: "schemathesis 4.32.5 on `/openapi.json`",
        run: schema,
    },
];

/// A server with the model in the box, until it is dropped.
struct Running {
    child: Child,
    url: String,
}

impl Running {
    fn start(place: &Place, more: &[&str]) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(&place.program);
        command
            .args(["serve", "-m", "demo", "--port"])
            .arg(port.to_string());
        command.args(more).stderr(Stdio::piped());
        let mut child = command.spawn().context("the program cannot be started")?;
        let stderr = child.stderr.take().context("the program has no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        let ready = lines
            .by_ref()
            .any(|l| l.is_ok_and(|l| l.starts_with("listening on")));
        // Whatever it says later must go somewhere.
        std::thread::spawn(move || lines.for_each(drop));
        let running = Running {
            child,
            url: format!("http://127.0.0.1:{port}"),
        };
        ensure!(ready, "the server did not start");
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn outcome(name: &str, passed: bool, why: &str) -> Outcome {
    Outcome {
        name: name.to_owned(),
        end: if passed { End::Passed } else { End::Failed },
        why: why.to_owned(),
    }
}

fn sdks(place: &Place) -> Result<Vec<Outcome>> {
    // A small model that hears.
    let speech = root().join("demo/speech/small-speech.bin");
    let server = Running::start(place, &[&speech.display().to_string()])?;
    lines(place, "sdks.py", &server.url)
}

fn page(place: &Place) -> Result<Vec<Outcome>> {
    let server = Running::start(place, &[])?;
    lines(place, "page.py", &server.url)
}

fn load(place: &Place) -> Result<Vec<Outcome>> {
    lines(place, "load.py", &place.program.display().to_string())
}

/// Runs checks of ours that print a line each; they are told whom to ask.
fn lines(place: &Place, script: &str, argument: &str) -> Result<Vec<Outcome>> {
    let mut command = Command::new(place.python());
    command.arg(Place::ours(script)).arg(argument);
    let out = String::from_utf8_lossy(&command.output()?.stdout).into_owned();
    let line = |line: &str| {
        let (how, rest) = line.split_once("  ")?;
        let (name, why) = rest.trim().split_once(": ").unwrap_or((rest.trim(), ""));
        ["ok", "failed"]
            .contains(&how)
            .then(|| outcome(name, how == "ok", why))
    };
    let all: Vec<Outcome> = out.lines().filter_map(line).collect();
    ensure!(!all.is_empty(), "the checks did not run");
    Ok(all)
}

fn comply(place: &Place) -> Result<Vec<Outcome>> {
    let server = Running::start(place, &[])?;
    let mut all = Vec::new();
    for format in ["openai-chat", "open-responses", "anthropic"] {
        let mut command = Command::new(place.tool("llm-comply"));
        command.args(["-k", "none", "-m", "demo", "--json", "--format", format]);
        command.args(["-u", &format!("{}/v1", server.url)]);
        let out = command.output()?.stdout;
        let read: Value = serde_json::from_slice(&out).context("llm-comply wrote no JSON")?;
        for one in read["results"].as_array().into_iter().flatten() {
            let errors = one["errors"].as_array().into_iter().flatten();
            let why: Vec<&str> = errors.filter_map(Value::as_str).collect();
            let name = format!("{format}::{}", one["id"].as_str().unwrap_or_default());
            let mut found = outcome(&name, one["status"] == "passed", &why.join("; "));
            if one["status"] == "skipped" {
                found.end = End::Skipped;
            }
            all.push(found);
        }
    }
    Ok(all)
}

/// Runs pytest in a folder and reads what became of each test.
fn pytest(place: &Place, folder: &Path, plugin: &str, args: &[&str]) -> Result<Vec<Outcome>> {
    let outcomes = place.folder.join("outcomes.jsonl");
    // There may be none yet.
    let _ = std::fs::remove_file(&outcomes);
    let serve = place.folder.join("serve");
    let text = format!(
        "#!/bin/sh\nexec '{}' serve \"$@\"\n",
        place.program.display()
    );
    std::fs::write(&serve, text)?;
    let mut runnable = Command::new("chmod");
    ensure!(
        runnable.arg("+x").arg(&serve).status()?.success(),
        "chmod failed"
    );
    let ours = Place::ours("");
    let mut command = Command::new(place.python());
    command
        .current_dir(folder)
        .args(["-m", "pytest", "-q", "-p", plugin, "-p", "outcomes"]);
    command
        .args(["-p", "no:cacheprovider", "--timeout", "120"])
        .args(args);
    command.env("PYTHONPATH", format!("{}:.", ours.display()));
    command
        .env("OUTCOMES", &outcomes)
        .env("CLIENTS_MODELS", place.models());
    command
        .env("LLAMA_SERVER_BIN_PATH", &serve)
        .env("CLIENTS_SERVE", &serve);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // Tests that fail are no failure of the run.
    command.status().context("pytest cannot be started")?;
    let text = std::fs::read_to_string(&outcomes).context("pytest ran no test")?;
    text.lines().map(read_outcome).collect()
}

fn read_outcome(line: &str) -> Result<Outcome> {
    let read: Value = serde_json::from_str(line)?;
    let text = |name: &str| read[name].as_str().unwrap_or_default().to_owned();
    Ok(Outcome {
        name: text("name"),
        end: match text("end").as_str() {
            "passed" => End::Passed,
            "skipped" => End::Skipped,
            _ => End::Failed,
        },
        why: text("why"),
    })
}

fn llama(place: &Place) -> Result<Vec<Outcome>> {
    let wanted = [
        "*/vendor/llama.cpp/tools/server/tests/*",
        "*/vendor/llama.cpp/models/templates/*",
    ];
    let source = place.source("llama-cpp-python==0.3.36", 3, &wanted)?;
    pytest(
        place,
        &source.join("tools/server/tests"),
        "llama_presets",
        &["-m", "not slow"],
    )
}

fn vllm(place: &Place) -> Result<Vec<Outcome>> {
    let source = place.source("vllm==0.33.0", 1, &["*/tests/*"])?;
    let listed = std::fs::read_to_string(Place::ours("vllm_tests.txt"))?;
    let files = listed
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    let mut all = Vec::new();
    for file in files.filter_map(|l| l.split_whitespace().next()) {
        let within = Path::new(file).parent().unwrap_or(Path::new("tests"));
        // What lies above needs vLLM.
        let shared = Path::new("tests/entrypoints");
        let within = if within.starts_with(shared) {
            shared
        } else {
            within
        };
        let cut = format!("--confcutdir={}", within.display());
        match pytest(
            place,
            &source,
            "vllm_standin",
            &[&cut, "-c", "/dev/null", "--rootdir", ".", file],
        ) {
            Ok(more) => all.extend(more),
            Err(error) => all.push(outcome(file, false, &format!("{error:#}"))),
        }
    }
    Ok(all)
}

fn schema(place: &Place) -> Result<Vec<Outcome>> {
    let server = Running::start(place, &["--strict-model"])?;
    let report = place.folder.join("schema.xml");
    // There may be none yet.
    let _ = std::fs::remove_file(&report);
    let mut command = Command::new(place.tool("schemathesis"));
    command
        .arg("run")
        .arg(format!("{}/openapi.json", server.url));
    command.args([
        "--phases",
        "examples,coverage,fuzzing",
        "-n",
        "40",
        "--workers",
        "2",
    ]);
    command.args([
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance",
    ]);
    command.args([
        "--suppress-health-check",
        "all",
        "--no-color",
        "--seed",
        "1",
    ]);
    command.args(["--continue-on-failure", "--request-timeout", "60"]);
    command.arg("--report-junit-path").arg(&report);
    command
        .current_dir(&place.folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Faults are in the report.
    command.status().context("schemathesis cannot be started")?;
    let text = std::fs::read_to_string(&report).context("schemathesis wrote no report")?;
    Ok(super::table::junit(&text))
}
