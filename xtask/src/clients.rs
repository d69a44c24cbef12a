//! `clients`: what others wrote for servers like ours, run against `tokkata serve`.
//!
//! Suites are fetched outside the repository by Python's own tools, into `$TOKKATA_CLIENTS` or `~/.cache/tokkata-clients`,
//! and run unedited. What is absent is skipped by name. `clients/known.toml` lists the tests that cannot hold here, each
//! with its reason; any other failure fails the command.

mod known;
mod suites;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{cargo, root, run as run_command};
use known::Known;
use suites::SUITES;
use table::Row;

const USAGE: &str = "usage: cargo xtask clients [--program FILE] [--docs] [SUITE…]

  --program  the program to test (default: this workspace's, built without optimising what is its own)
  --docs     write the table into docs/serving.md
  SUITE      sdks, comply, llama, vllm, page, load, schema (default all)";

/// Packages of Python that the suites need.
const PACKAGES: [&str; 25] = [
    "openai==3.54.0",
    "anthropic==2.12.0",
    "ollama==0.6.3",
    "cohere==7.3.1",
    "llm-comply==0.5.0",
    "schemathesis==4.32.5",
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "pytest-timeout==2.4.0",
    "gguf",
    "numpy",
    "requests",
    "aiohttp",
    "httpx",
    "filelock",
    "wget",
    "jinja2",
    "jsonschema",
    "prometheus_client",
    "pybase64",
    "regex",
    "fastapi",
    "tblib",
    "pillow",
    "unearth",
];

/// Where everything lies that the suites need.
pub(crate) struct Place {
    folder: PathBuf,
    program: PathBuf,
}

impl Place {
    fn python(&self) -> PathBuf {
        self.folder.join("venv/bin/python")
    }

    fn tool(&self, name: &str) -> PathBuf {
        self.folder.join("venv/bin").join(name)
    }

    fn models(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// A file of ours that goes with the suites.
    fn ours(name: &str) -> PathBuf {
        root().join("xtask/src/clients").join(name)
    }

    /// Makes the environment and the models, where they are not there yet.
    fn prepare(&self) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        if !self.python().exists() {
            let venv = self.folder.join("venv");
            run_command(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
        }
        let mut pip = Command::new(self.python());
        run_command(pip.args(["-m", "pip", "install", "-q"]).args(PACKAGES))?;
        let testdata = std::env::var_os("TOKKATA_TESTDATA").map(PathBuf::from);
        let testdata = testdata.unwrap_or_else(|| root().join("../shared"));
        let mut models = Command::new(self.python());
        models.arg(Self::ours("models.py")).arg(testdata);
        run_command(models.arg(self.models()))
    }

    /// The folder of a source package, fetched and unpacked when it is first asked for: only what `wanted` matches.
    fn source(&self, package: &str, strip: usize, wanted: &[&str]) -> Result<PathBuf> {
        let name = package.split("==").next().unwrap_or(package);
        let out = self.folder.join(name);
        if out.exists() {
            return Ok(out);
        }
        let sdists = self.folder.join("sdists");
        let mut fetch = Command::new(self.tool("unearth"));
        fetch.args(["--no-binary", package, "-d"]).arg(&sdists);
        run_command(&mut fetch).with_context(|| format!("{package} cannot be fetched"))?;
        let stem = package.replace("==", "-").replace('-', "_");
        let is_it = |path: &PathBuf| {
            let name = path
                .file_name()
                .map(|n| n.to_string_lossy().replace('-', "_"));
            name.is_some_and(|n| n.starts_with(&stem))
        };
        let all = std::fs::read_dir(&sdists)?.flatten().map(|e| e.path());
        let archive = all.filter(|p| p.is_file()).find(is_it);
        let archive = archive.with_context(|| format!("{package} has no source package"))?;
        let fresh = self.folder.join(format!("{name}.part"));
        std::fs::create_dir_all(&fresh)?;
        let mut tar = Command::new("tar");
        tar.arg("xzf").arg(archive).arg("-C").arg(&fresh);
        tar.arg(format!("--strip-components={strip}"))
            .arg("--wildcards");
        run_command(tar.args(wanted))?;
        std::fs::rename(fresh, &out)?;
        Ok(out)
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut program, mut docs, mut names) = (None, false, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--program" => program = Some(PathBuf::from(args.next().context(USAGE)?)),
            "--docs" => docs = true,
            name if SUITES.iter().any(|s| s.name == name) => names.push(name),
            _ => bail!(USAGE),
        }
    }
    let program = match program {
        Some(program) => program.canonicalize()?,
        None => built()?,
    };
    let place = Place {
        folder: folder()?,
        program,
    };
    place.prepare()?;
    let known = Known::read(&Place::ours("known.toml"))?;
    let mut rows: Vec<Row> = Vec::new();
    for suite in SUITES {
        if !names.is_empty() && !names.contains(&suite.name) {
            continue;
        }
        eprintln!("\n{}", suite.title);
        match (suite.run)(&place) {
            Ok(outcomes) => rows.extend(table::rows(suite, &outcomes, &known)),
            Err(error) => {
                eprintln!("skipped: {error:#}");
                rows.push(Row::skipped(suite, &format!("{error:#}")));
            }
        }
    }
    println!("{}", table::written(&rows));
    for fault in rows.iter().flat_map(|r| &r.faults) {
        println!("failed: {fault}");
    }
    if docs {
        ensure!(names.is_empty(), "the table is of all suites");
        table::put(&root().join("docs/serving.md"), &rows)?;
    }
    let faults: usize = rows.iter().map(|r| r.faults.len()).sum();
    ensure!(faults == 0, "{faults} tests failed that are not known to");
    Ok(())
}

fn folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("TOKKATA_CLIENTS") {
        return Ok(folder.into());
    }
    let home = std::env::var_os("HOME").context("there is no home; set TOKKATA_CLIENTS")?;
    Ok(Path::new(&home).join(".cache/tokkata-clients"))
}

fn built() -> Result<PathBuf> {
    run_command(&mut cargo(&["build", "-p", "tokkata-cli"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(root().join(target).join("debug/tokkata"))
}
