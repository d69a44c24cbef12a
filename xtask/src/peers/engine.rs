//! An engine to measure: a command with llama-bench's flags.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value as Json;

use super::suite::Case;
use crate::shell;

/// Flags that choose among an engine's code paths.
pub(super) type Setting = Vec<&'static str>;

/// Tokens per second of one run; `None` where a case does not ask for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    pub(super) prefill: Option<f64>,
    pub(super) decode: Option<f64>,
}

pub(super) struct Engine {
    pub(super) name: String,
    program: PathBuf,
    /// Ours has a subcommand.
    head: &'static [&'static str],
    settings: Vec<Setting>,
    /// It has `-d`; otherwise `-gp` generates after a prompt.
    depth: bool,
}

impl Engine {
    pub(super) fn ours(program: &Path) -> Self {
        Engine {
            name: "tokkata".to_owned(),
            program: program.to_owned(),
            head: &["bench"],
            settings: vec![vec![]],
            depth: true,
        }
    }

    /// A peer with every combination of flash attention, always on if `quick`, and repacking that its help names.
    pub(super) fn peer(name: &str, program: &Path, quick: bool) -> Result<Self> {
        let help = Command::new(program).arg("--help").output();
        let help = help.with_context(|| program.display().to_string())?;
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        let attention: [Setting; 2] = if help.contains("on|off") {
            [vec!["-fa", "off"], vec!["-fa", "on"]]
        } else {
            [vec!["-fa", "0"], vec!["-fa", "1"]]
        };
        let repacking: Vec<Setting> = if help.contains("--repack") {
            vec![vec!["--repack", "0"], vec!["--repack", "1"]]
        } else if help.contains("-rtr") {
            vec![vec!["-rtr", "0"], vec!["-rtr", "1"]]
        } else {
            vec![vec![]]
        };
        let settings = attention[usize::from(quick)..]
            .iter()
            .flat_map(|a| repacking.iter().map(|r| [a.clone(), r.clone()].concat()))
            .collect();
        Ok(Engine {
            name: name.to_owned(),
            program: program.to_owned(),
            head: &[],
            settings,
            depth: help.contains("--n-depth"),
        })
    }

    /// The settings tried in a case: deep caches are slow to fill, so there only those that repack.
    pub(super) fn settings(&self, case: &Case) -> Vec<Setting> {
        let mut settings = self.settings.clone();
        if (case.depth > 0 || case.device.is_some()) && settings.len() > 1 {
            settings.retain(|s| s.last() == Some(&"1"));
        }
        settings
    }

    fn is_ours(&self) -> bool {
        !self.head.is_empty()
    }

    /// What says where a case is computed.
    fn place(&self, case: &Case) -> Vec<String> {
        match &case.device {
            Some(device) if self.is_ours() => vec!["--device".to_owned(), device.clone()],
            Some(_) => vec!["-ngl".to_owned(), "99".to_owned()],
            None => Vec::new(),
        }
    }

    /// Tokens per second of all sequences together, by the peer's program for it, which lies beside llama-bench; unknown where it does not.
    fn batched(&self, file: &Path, case: &Case, setting: &Setting) -> Result<Speed> {
        const PROMPT: usize = 16;
        let program = self.program.with_file_name("llama-batched-bench");
        let has_folder = program.components().count() > 1;
        if has_folder && !program.is_file() {
            return Ok(Speed::default());
        }
        let number = |n: usize| n.to_string();
        let context = case.sequences * (PROMPT + case.generated);
        let mut command = Command::new(program);
        command.arg("-m").arg(file).args(self.place(case));
        // Flash attention: repacking is the processor's.
        command.args(&setting[..2]).args(["-c", &number(context)]);
        command.args(["-npp", &number(PROMPT), "-ntg", &number(case.generated)]);
        command.args(["-npl", &number(case.sequences), "--output-format", "jsonl"]);
        if case.device.is_none() {
            command.args(["-t", &number(case.threads)]);
        }
        let text = shell::output(&mut command).with_context(|| self.name.clone())?;
        let line = text.lines().rfind(|l| l.starts_with('{'));
        let line = line.with_context(|| format!("{}: no figures", self.name))?;
        let figures: Json = serde_json::from_str(line).with_context(|| self.name.clone())?;
        Ok(Speed {
            prefill: None,
            decode: figures["speed_tg"].as_f64(),
        })
    }

    /// One run of a case.
    pub(super) fn run(&self, file: &Path, case: &Case, setting: &Setting) -> Result<Speed> {
        let number = |n: usize| n.to_string();
        if case.sequences > 1 && !self.is_ours() {
            return self.batched(file, case, setting);
        }
        let mut command = Command::new(&self.program);
        command.args(self.head).arg("-m").arg(file).args(setting);
        command.args(self.place(case));
        if case.sequences > 1 {
            command.args(["--npl", &number(case.sequences)]);
        }
        command.args(["-r", "1", "-o", "json"]);
        command.args(["-t", &number(case.threads)]);
        if self.depth || case.depth == 0 {
            command.args(["-p", &number(case.prompt), "-n", &number(case.generated)]);
        } else {
            let after = format!("{},{}", case.depth, case.generated);
            command.args(["-p", "0", "-n", "0", "-gp", &after]);
        }
        if self.depth && case.depth > 0 {
            command.args(["-d", &number(case.depth)]);
        }
        let text = shell::output(&mut command).with_context(|| self.name.clone())?;
        let tests: Vec<Json> = serde_json::from_str(&text).with_context(|| self.name.clone())?;
        let mut speed = Speed::default();
        for test in &tests {
            let rate = test["avg_ts"].as_f64();
            if test["n_gen"].as_u64() > Some(0) {
                speed.decode = rate;
            } else {
                speed.prefill = rate;
            }
        }
        Ok(speed)
    }
}

/// What a token costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Bytes of weights that a decoded token reads.
    pub(super) bytes: f64,
    /// Products of weights per token of a prompt, without the head.
    pub(super) macs: f64,
}

/// Sums over the tensors that `inspect` lists.
pub(super) fn facts(ours: &Path, file: &Path) -> Result<Facts> {
    let mut command = Command::new(ours);
    command.arg("inspect").arg(file).args(["-o", "json"]);
    let model: Json = serde_json::from_str(&shell::output(&mut command)?)?;
    let Some(tensors) = model["tensors"].as_array() else {
        bail!("`inspect -o json` lists no tensors");
    };
    let name = |t: &Json| t["name"].as_str().unwrap_or_default().to_owned();
    let untied = tensors.iter().any(|t| name(t) == "output.weight");
    let mut facts = Facts {
        bytes: 0.0,
        macs: 0.0,
    };
    let used = routed(&model["metadata"]);
    for tensor in tensors {
        let share = if name(tensor).contains("_exps.") {
            used
        } else {
            1.0
        };
        let dims = tensor["shape"].as_array().map_or(&[][..], Vec::as_slice);
        let elements: f64 = dims.iter().filter_map(Json::as_f64).product();
        if !(untied && name(tensor) == "token_embd.weight") {
            facts.bytes += share * tensor["bytes"].as_f64().unwrap_or(0.0);
        }
        if name(tensor).starts_with("blk.") && dims.len() > 1 {
            facts.macs += share * elements;
        }
    }
    Ok(facts)
}

/// The share of experts that a token goes through.
fn routed(metadata: &Json) -> f64 {
    let find = |key: &str| {
        let mut entries = metadata.as_object().into_iter().flatten();
        let entry = entries.find(|(k, _)| k.ends_with(key));
        entry.and_then(|(_, v)| v.as_f64()).filter(|&n| n > 0.0)
    };
    match (find(".expert_used_count"), find(".expert_count")) {
        (Some(used), Some(all)) => used / all,
        _ => 1.0,
    }
}
