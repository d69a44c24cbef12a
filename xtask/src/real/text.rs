//! Models of text beside llama.cpp: ids, what tokens surprise, and ways of computing that change nothing.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Place, Table, golden};

/// How much larger our own deviation from exact weights may be than llama.cpp's with the same file.
const BESIDE_THEIRS: f64 = 1.25;
/// How far single floats may be from llama.cpp's, whose GELU is a table of halves.
const FLOATS: f64 = 0.01;
/// A best token by exact weights that leads by so much is ours too.
const CLEAR: f64 = 0.5;

/// Flags that change no bit. AMX, which does, is left out of both sides.
const WAYS: [&[&str]; 5] = [
    &["--chunk", "7"],
    &["-t", "1"],
    &["--no-repack"],
    &["--no-fuse"],
    &["--cpu-features", "avx2"],
];

const PROMPTS: [&str; 3] = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a small village by the sea,",
];

/// A question whose answer every one of these models knows.
const QUESTION: (&str, &str) = ("What is the capital of Japan?", "Tokyo");

pub(super) fn check(place: &Place, table: &mut Table) -> Result<()> {
    let texts = golden("texts.json")?;
    for (name, known) in golden("text.json")?.as_object().context("text.json")? {
        let path = place.folder.join(name);
        if !path.is_file() {
            eprintln!("skipped: {name} is not there");
            continue;
        }
        let model = Model {
            place,
            short: name.split('-').next().unwrap_or(name),
            path: path.display().to_string(),
        };
        model.ids(&texts["texts"], &known["texts"], table)?;
        let floats = model.floats()?;
        for (passage, known) in known["passages"].as_object().context("passages")? {
            let passage = Passage::read(passage, known)?;
            model.beside_exact(&passage, table)?;
            floats.floats_beside_theirs(&passage, table)?;
            model.ways(&passage, table)?;
        }
        fs::remove_file(&floats.path)?;
        model.guesses(table)?;
        let answer = place.ask(&[
            "run",
            "-m",
            &model.path,
            "-p",
            QUESTION.0,
            "--temp",
            "0",
            "-n",
            "60",
        ])?;
        let good = answer.contains(QUESTION.1);
        table.row(
            &format!("{}: {}", model.short, QUESTION.0),
            answer.trim().lines().next().unwrap_or_default(),
            QUESTION.1,
            good,
        );
    }
    Ok(())
}

/// A passage and what llama.cpp made of it.
struct Passage {
    name: String,
    ids: Vec<u32>,
    best: Vec<u32>,
    lead: Vec<f64>,
    exact: Vec<f64>,
    theirs: Vec<f64>,
}

impl Passage {
    fn read(name: &str, known: &Value) -> Result<Self> {
        let list = |key: &str| {
            known[key]
                .as_array()
                .with_context(|| format!("{name}: {key}"))
        };
        let floats = |key| list(key).map(|l| l.iter().filter_map(Value::as_f64).collect());
        let ids = |key| {
            list(key).map(|l| {
                l.iter()
                    .filter_map(Value::as_u64)
                    .map(|i| i as u32)
                    .collect()
            })
        };
        Ok(Self {
            name: name.to_owned(),
            ids: ids("ids")?,
            best: ids("best")?,
            lead: floats("lead")?,
            exact: floats("exact")?,
            theirs: floats("theirs")?,
        })
    }

    fn list(&self) -> String {
        let texts: Vec<String> = self.ids.iter().map(ToString::to_string).collect();
        texts.join(",")
    }
}

/// What a run made of a passage.
struct Found {
    best: Vec<u32>,
    surprise: Vec<f64>,
}

impl Found {
    /// From the bytes of a safetensors file of one tensor.
    fn read(bytes: &[u8], ids: &[u32]) -> Result<Self> {
        let size = bytes.first_chunk().context("no header")?;
        let size = usize::try_from(u64::from_le_bytes(*size))?;
        let values = bytes.get(8 + size..).context("no tensor")?.chunks_exact(4);
        let values: Vec<f32> = values
            .filter_map(|b| b.try_into().ok().map(f32::from_le_bytes))
            .collect();
        let rows = values.chunks_exact(values.len() / ids.len());
        Ok(Self {
            best: rows.clone().map(best).collect(),
            surprise: rows
                .zip(&ids[1..])
                .map(|(row, id)| surprise(row, *id))
                .collect(),
        })
    }
}

fn best(row: &[f32]) -> u32 {
    let at = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    at.unwrap_or_default() as u32
}

fn surprise(row: &[f32], id: u32) -> f64 {
    let top = f64::from(row[best(row) as usize]);
    let sum: f64 = row.iter().map(|x| (f64::from(*x) - top).exp()).sum();
    top + sum.ln() - f64::from(row[id as usize])
}

fn apart<'a>(a: &'a [f64], b: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    a.iter().zip(b).map(|(a, b)| (a - b).abs())
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0), |(sum, n), x| (sum + x, n + 1));
    sum / f64::from(n.max(1))
}

struct Model<'a> {
    place: &'a Place,
    short: &'a str,
    path: String,
}

impl Model<'_> {
    /// Every text as llama-tokenize cuts it, special tokens read.
    fn ids(&self, texts: &Value, known: &Value, table: &mut Table) -> Result<()> {
        let (mut good, mut all) = (0, 0);
        let file = self.place.made("text.txt");
        for (name, text) in texts.as_object().context("texts.json")? {
            fs::write(&file, text.as_str().context("texts.json")?)?;
            let found = self
                .place
                .ask(&["tokenize", "-m", &self.path, "--ids", "-f", &file])?;
            let same = serde_json::from_str::<Value>(&found)? == known[name];
            if !same {
                eprintln!(
                    "{}: {name}: found {} expected {}",
                    self.short,
                    found.trim(),
                    known[name]
                );
            }
            all += 1;
            good += usize::from(same);
        }
        table.count(
            &format!("{}: texts with the ids of llama.cpp", self.short),
            good,
            all,
        );
        Ok(())
    }

    /// The same model with its weights as single floats.
    fn floats(&self) -> Result<Self> {
        let path = self.place.made("floats.gguf");
        self.place
            .ask(&["quantize", "--allow-requantize", &self.path, &path, "f32"])?;
        Ok(Self { path, ..*self })
    }

    fn logits(&self, passage: &Passage, flags: &[&str]) -> Result<Vec<u8>> {
        let file = self.place.made("logits.safetensors");
        let ids = passage.list();
        let args = [
            &["logits", "-m", &self.path, "--ids", &ids, "-o", &file],
            flags,
        ]
        .concat();
        self.place.ask(&args)?;
        Ok(fs::read(file)?)
    }

    fn found(&self, passage: &Passage, flags: &[&str]) -> Result<Found> {
        Found::read(&self.logits(passage, flags)?, &passage.ids)
    }

    /// How far the file's own arithmetic is from exact weights, beside llama.cpp's; with small caches too.
    fn beside_exact(&self, passage: &Passage, table: &mut Table) -> Result<()> {
        let theirs = mean(apart(&passage.theirs, &passage.exact));
        let bound = format!("{BESIDE_THEIRS} × llama.cpp's {theirs:.4}");
        for kv in ["f32", "q8_0"] {
            let found = self.found(passage, &["-ctk", kv, "-ctv", kv])?;
            let ours = mean(apart(&found.surprise, &passage.exact));
            let what = format!(
                "{}: {}: nats off exact weights, caches {kv}",
                self.short, passage.name
            );
            table.row(
                &what,
                &format!("{ours:.4}"),
                &bound,
                ours <= BESIDE_THEIRS * theirs,
            );
            if kv == "f32" {
                let clear = |i: &usize| passage.lead[*i] > CLEAR;
                let clear: Vec<usize> = (0..passage.best.len()).filter(clear).collect();
                let good = clear
                    .iter()
                    .filter(|i| found.best[**i] == passage.best[**i]);
                let what = format!(
                    "{}: {}: best tokens that lead by {CLEAR}",
                    self.short, passage.name
                );
                table.count(&what, good.count(), clear.len());
            }
        }
        Ok(())
    }

    fn floats_beside_theirs(&self, passage: &Passage, table: &mut Table) -> Result<()> {
        let found = self.found(passage, &["-ctk", "f32", "-ctv", "f32"])?;
        let most = apart(&found.surprise, &passage.exact).fold(0.0, f64::max);
        let what = format!(
            "{}: {}: most nats off llama.cpp with single floats",
            self.short, passage.name
        );
        table.row(
            &what,
            &format!("{most:.1e}"),
            &format!("{FLOATS}"),
            most <= FLOATS,
        );
        Ok(())
    }

    /// Logits bit for bit in every way of computing them.
    fn ways(&self, passage: &Passage, table: &mut Table) -> Result<()> {
        let base = ["--cpu-features", "avx512"];
        let plain = self.logits(passage, &base)?;
        let mut good = 0;
        for way in WAYS {
            let names_set = way[0] == base[0];
            let flags = if names_set {
                way.to_vec()
            } else {
                [&base, way].concat()
            };
            let same = self.logits(passage, &flags)? == plain;
            if !same {
                eprintln!(
                    "{}: {}: {} changes logits",
                    self.short,
                    passage.name,
                    way.join(" ")
                );
            }
            good += usize::from(same);
        }
        let what = format!("{}: {}: ways with the same bits", self.short, passage.name);
        table.count(&what, good, WAYS.len());
        Ok(())
    }

    /// Guesses change no text.
    fn guesses(&self, table: &mut Table) -> Result<()> {
        let mut good = 0;
        for prompt in PROMPTS {
            let text = |kind| {
                let args = [
                    "complete", "-m", &self.path, "-p", prompt, "-n", "64", "--temp", "0",
                ];
                self.place
                    .ask(&[&args, &["--spec-type", kind][..]].concat())
            };
            good += usize::from(text("none")? == text("ngram")?);
        }
        let what = format!("{}: continuations that guesses leave alone", self.short);
        table.count(&what, good, PROMPTS.len());
        Ok(())
    }
}
