//! Draws that every backend makes: `data/draws.json`, logits, records, positions and what the host adds → tokens.
//!
//! A row is the hexadecimal bits of its `f32` logits, or another row so many times, each time lower by a step: long rows, where
//! backends divide the work, with equals far apart where the step is zero. A case is one record over one row at every position of the file;
//! bias, DRY, mask and record are words as a device reads them. Where nothing can be drawn, the token is
//! [`NOT_A_NUMBER`](tokkata_ir::sample::NOT_A_NUMBER) or [`NO_CANDIDATE`](tokkata_ir::sample::NO_CANDIDATE).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokkata_ir::sample::{
    BadLogits, Fixed, Mask, Parameters, SampleSide, Sampler, SamplerRecord, Scratch, sample,
};
use tokkata_ir::{Delta, Lead, Limits, LogitRow, Op, SeqRows, SeqSlot, Source, ValType, Work};

use crate::fixture::{Fixture, noise, small_limits};
use crate::ops::Subject;

/// The committed file.
pub const COMMITTED: &str = include_str!("../data/draws.json");

/// Positions of the rows that each case draws from.
const POSITIONS: [u32; 8] = [0, 1, 2, 3, 17, 511, 4096, 70_000];

/// A record over a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    name: String,
    row: String,
    record: SamplerRecord,
    side: SampleSide,
    /// By position.
    tokens: Vec<i32>,
}

/// Logits as the file says them.
#[derive(Clone, Debug, PartialEq)]
enum Logits {
    Listed(Vec<f32>),
    /// Another row, so many times, each time lower by a step.
    Tiled {
        of: String,
        times: usize,
        step: f32,
    },
}

/// Rows of logits by name, and cases over them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draws {
    rows: BTreeMap<String, Logits>,
    cases: Vec<Case>,
}

/// What the reference semantics say of the cases below, as the file.
#[must_use]
pub fn made() -> String {
    let mut draws = Draws::default();
    for (name, logits) in rows() {
        draws.rows.insert(name.to_owned(), logits);
    }
    for row in draws.rows.keys() {
        let logits = draws.logits(row);
        for (name, parameters) in parameters() {
            // Longer than what backends divide.
            if row == "vast" && !VAST.contains(&name) {
                continue;
            }
            let plain = !name.starts_with("touched");
            let side = if plain {
                SampleSide::default()
            } else {
                touches(logits.len() as u32)
            };
            let mut case = Case {
                name: name.to_owned(),
                row: row.clone(),
                record: parameters.record(),
                side,
                tokens: Vec::new(),
            };
            case.tokens = POSITIONS.map(|at| expected(&case, &logits, at)).to_vec();
            draws.cases.push(case);
        }
    }
    draws.to_text()
}

fn expected(case: &Case, logits: &[f32], position: u32) -> i32 {
    let row = case.side.row(logits, position);
    let token = sample(&case.record, &row, &mut Scratch::default());
    token.map_or_else(BadLogits::code, |t| t as i32)
}

/// Cases over the longest row.
const VAST: [&str; 4] = ["greedy", "warm", "usual", "all"];

fn rows() -> Vec<(&'static str, Logits)> {
    let many = |name: &str, n: usize, of: &dyn Fn(f32) -> f32| -> Vec<f32> {
        (0..n).map(|i| of(noise(name, i))).collect()
    };
    let none = f32::NEG_INFINITY;
    let mut huge = many("huge", 33, &|x| 1e9 * x * x * x);
    (huge[3], huge[4], huge[5]) = (f32::INFINITY, f32::MAX, f32::MIN);
    let mut one = vec![none; 50];
    one[37] = -3.5;
    let mut broken = many("broken", 45, &|x| x);
    broken[40] = f32::NAN;
    let listed = [
        ("flat", vec![0.5; 40]),
        ("peaked", many("peaked", 97, &|x| 9.0 * x)),
        ("usual", many("usual", 1000, &|x| 14.0 * x * x * x)),
        ("ties", many("ties", 70, &|x| (6.0 * x).round() / 2.0)),
        ("wide", many("wide", 64, &|x| 300.0 * x)),
        (
            "holes",
            many("holes", 67, &|x| if x < 0.0 { none } else { 4.0 * x }),
        ),
        ("negative", many("negative", 31, &|x| 5.0 * x - 40.0)),
        ("huge", huge),
        ("one", one),
        ("broken", broken),
        ("none", vec![none; 34]),
    ];
    let tiled = [
        ("long", "usual", 20, 0.25),
        // The best stand side by side.
        ("long flat", "flat", 500, 0.0009765625),
        ("long ties", "ties", 300, 0.0),
        ("long holes", "holes", 250, 0.0625),
        ("long peaked", "peaked", 177, -0.0078125),
        ("long broken", "broken", 400, 0.5),
        ("long none", "none", 500, 1.0),
        ("vast", "usual", 400, 0.125),
    ];
    let listed = listed
        .into_iter()
        .map(|(name, row)| (name, Logits::Listed(row)));
    let tiled = tiled.into_iter().map(|(name, of, times, step)| {
        let of = of.to_owned();
        (name, Logits::Tiled { of, times, step })
    });
    listed.chain(tiled).collect()
}

fn parameters() -> Vec<(&'static str, Parameters)> {
    let warm = Parameters {
        temperature: 0.9,
        seed: 0x0123_4567_89AB_CDEF,
        ..Parameters::default()
    };
    let usual = Parameters {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        seed: 42,
        ..Parameters::default()
    };
    let touched = Parameters {
        repeat: 1.3,
        frequency: 0.5,
        presence: -0.25,
        recent: 6,
        ..warm
    };
    let xtc = Parameters {
        xtc_probability: 0.5,
        xtc_threshold: 0.05,
        ..warm
    };
    let temperature = |temperature| Parameters {
        temperature,
        ..warm
    };
    vec![
        ("greedy", Parameters::default()),
        ("warm", warm),
        ("cold", temperature(0.05)),
        ("frozen", temperature(1e-12)),
        ("hot", temperature(7.5)),
        ("boiling", temperature(1e20)),
        ("best", Parameters { top_k: 1, ..warm }),
        ("top-k", Parameters { top_k: 5, ..warm }),
        (
            "top-k of 128",
            Parameters {
                top_k: 128,
                temperature: 7.5,
                ..warm
            },
        ),
        (
            "top-k of 129",
            Parameters {
                top_k: 129,
                temperature: 7.5,
                ..warm
            },
        ),
        ("top-p", Parameters { top_p: 0.6, ..warm }),
        ("min-p", Parameters { min_p: 0.3, ..warm }),
        (
            "typical",
            Parameters {
                typical_p: 0.4,
                ..warm
            },
        ),
        (
            "sigma",
            Parameters {
                top_n_sigma: 1.2,
                ..warm
            },
        ),
        ("xtc", xtc),
        (
            "xtc always",
            Parameters {
                xtc_probability: 1.0,
                ..xtc
            },
        ),
        ("usual", usual),
        ("usual again", Parameters { seed: 43, ..usual }),
        ("touched", touched),
        (
            "touched usual",
            Parameters {
                temperature: 0.8,
                top_k: 40,
                top_p: 0.95,
                min_p: 0.05,
                ..touched
            },
        ),
        (
            "touched greedy",
            Parameters {
                temperature: 0.0,
                ..touched
            },
        ),
        (
            "all",
            Parameters {
                top_k: 30,
                top_p: 0.9,
                min_p: 0.01,
                typical_p: 0.95,
                top_n_sigma: 2.5,
                ..xtc
            },
        ),
    ]
}

/// Bias, mask, recent tokens and DRY over a vocabulary.
fn touches(n: u32) -> SampleSide {
    let fixed = |x: f32| Fixed::new(x).unwrap_or(Fixed::ZERO);
    let mask = (0..n.div_ceil(32)).map(|w| {
        if w % 3 == 1 {
            0xF0F3_CC7F
        } else {
            u32::MAX - 8
        }
    });
    SampleSide {
        bias: vec![
            (5, fixed(2.5)),
            (n - 1, fixed(1.25)),
            (5, fixed(-0.5)),
            (7, Fixed::EXCLUDED),
            (n + 9, fixed(100.0)),
        ],
        mask: Some(Mask::new(mask.collect())),
        recent: vec![1, 2, 9, 11, 9, n - 1, 9, u32::MAX, 0],
        dry: vec![(2, fixed(3.0)), (11, fixed(1e9))],
    }
}

impl Draws {
    /// Parses the file.
    ///
    /// # Panics
    /// When it is not such a file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let file: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(file["positions"], json!(POSITIONS));
        let rows = file["rows"].as_object().expect("rows by name").iter();
        Draws {
            rows: rows
                .map(|(name, row)| (name.clone(), logits(row)))
                .collect(),
            cases: list(&file["cases"], case),
        }
    }

    /// The logits of a row.
    fn logits(&self, name: &str) -> Vec<f32> {
        match &self.rows[name] {
            Logits::Listed(row) => row.clone(),
            Logits::Tiled { of, times, step } => {
                let tile = self.logits(of);
                let lower = |i: usize| tile.iter().map(move |x| x - i as f32 * step);
                (0..*times).flat_map(lower).collect()
            }
        }
    }

    fn to_text(&self) -> String {
        let row = |(name, row): (&String, &Logits)| {
            let row = match row {
                Logits::Listed(row) => {
                    let bits = row.iter().map(|x| format!("{:08x}", x.to_bits()));
                    json!(bits.collect::<String>())
                }
                Logits::Tiled { of, times, step } => {
                    json!({"of": of, "times": times, "step": step})
                }
            };
            format!("{}: {row}", json!(name))
        };
        let rows: Vec<String> = self.rows.iter().map(row).collect();
        let cases: Vec<String> = self.cases.iter().map(|c| c.to_json().to_string()).collect();
        format!(
            "{{\n\"positions\": {},\n\"rows\": {{\n{}\n}},\n\"cases\": [\n{}\n]\n}}\n",
            json!(POSITIONS),
            rows.join(",\n"),
            cases.join(",\n")
        )
    }
}

impl Case {
    fn to_json(&self) -> Value {
        let pairs = |pairs: &[(u32, Fixed)]| -> Value {
            pairs
                .iter()
                .map(|&(id, x)| json!([id, x.to_bits()]))
                .collect()
        };
        json!({
            "name": self.name,
            "row": self.row,
            "record": self.record.to_words(),
            "bias": pairs(&self.side.bias),
            "mask": self.side.mask.as_ref().map(Mask::words),
            "recent": self.side.recent,
            "dry": pairs(&self.side.dry),
            "tokens": self.tokens,
        })
    }
}

fn case(value: &Value) -> Case {
    let pair = |pair: &Value| {
        (
            integer(&pair[0]) as u32,
            Fixed::from_bits(integer(&pair[1]) as i32),
        )
    };
    let word = |x: &Value| integer(x) as u32;
    let text = |name: &str| value[name].as_str().expect("a text").to_owned();
    let mask = &value["mask"];
    Case {
        name: text("name"),
        row: text("row"),
        record: SamplerRecord::from_words(&list(&value["record"], word)),
        side: SampleSide {
            bias: list(&value["bias"], pair),
            mask: (!mask.is_null()).then(|| Mask::new(list(mask, word))),
            recent: list(&value["recent"], word),
            dry: list(&value["dry"], pair),
        },
        tokens: list(&value["tokens"], |x| integer(x) as i32),
    }
}

fn integer(value: &Value) -> i64 {
    value.as_i64().expect("an integer")
}

fn list<T>(value: &Value, item: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().expect("a list").iter().map(item).collect()
}

fn logits(row: &Value) -> Logits {
    match row["of"].as_str() {
        None => Logits::Listed(floats(row)),
        Some(of) => Logits::Tiled {
            of: of.to_owned(),
            times: integer(&row["times"]) as usize,
            step: row["step"].as_f64().expect("a number") as f32,
        },
    }
}

fn floats(bits: &Value) -> Vec<f32> {
    let bits = bits.as_str().expect("bits").as_bytes().as_chunks::<8>().0;
    let float = |digits: &[u8; 8]| {
        let digits = str::from_utf8(digits).expect("hexadecimal digits");
        f32::from_bits(u32::from_str_radix(digits, 16).expect("hexadecimal digits"))
    };
    bits.iter().map(float).collect()
}

/// Runs every committed draw through a backend's `Sample`.
///
/// # Panics
/// When a token is another one.
pub fn check(subject: &Subject) {
    let draws = Draws::parse(COMMITTED);
    assert!(draws.cases.len() > 350, "the file has its cases");
    let faults: Vec<String> = draws
        .cases
        .iter()
        .filter_map(|case| {
            let found = drawn(subject, case, &draws.logits(&case.row));
            let what = || {
                format!(
                    "{} of {}: {found:?}, not {:?}",
                    case.name, case.row, case.tokens
                )
            };
            (found != case.tokens).then(what)
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The tokens of a case, its positions as sequences of one step; those that a sequence cannot have so many tokens at
/// are taken as they should be.
fn drawn(subject: &Subject, case: &Case, logits: &[f32]) -> Vec<i32> {
    let seen = case.side.recent.len().max(1);
    let (early, late): (Vec<u32>, Vec<u32>) = POSITIONS
        .into_iter()
        .partition(|&at| (at as usize) + 1 < seen);
    let mut fixture = Fixture::new(Limits {
        ctx: POSITIONS[POSITIONS.len() - 1] + 1,
        ..small_limits()
    });
    let width = logits.len() as u32;
    let x = fixture.input_of(Lead::LogitRows, &[width], ValType::F32);
    let out = fixture.value(Lead::LogitRows, &[1], ValType::I32);
    fixture.node(Op::Sample, &[x], &[out]);
    let mut run = fixture
        .load(subject.device.as_ref(), &subject.options)
        .expect("a program of one op");
    let sequences = || (0..).map(SeqSlot).zip(&late);
    let work = Work {
        deltas: sequences()
            .flat_map(|(slot, &at)| deltas(case, slot, at))
            .collect(),
        rows: sequences().map(|(slot, _)| rows_of(case, slot)).collect(),
        feeds: vec![(x, Source::Host(logits.repeat(late.len())))],
        keep: vec![out],
        ..Work::default()
    };
    run.work(work).expect("a step of draws");
    let early = case.tokens[..early.len()].iter().copied();
    early.chain(run.ints(out)).collect()
}

/// A slot before its row at a position.
fn deltas(case: &Case, slot: SeqSlot, at: u32) -> Vec<(SeqSlot, Delta)> {
    let before = case.side.recent.split_last().map_or(&[][..], |(_, t)| t);
    let sampler = Sampler {
        record: case.record,
        bias: case.side.bias.clone(),
    };
    let deltas = [
        Delta::Clear,
        Delta::Sampler(Box::new(sampler)),
        Delta::Tokens {
            first: at - before.len() as u32,
            tokens: before.to_vec(),
        },
        Delta::Length(at),
    ];
    deltas.map(|delta| (slot, delta)).into()
}

fn rows_of(case: &Case, slot: SeqSlot) -> SeqRows {
    let token = case.side.recent.last().copied().unwrap_or(0);
    let logit = LogitRow {
        row: 0,
        mask: case.side.mask.clone(),
        dry: case.side.dry.clone(),
        best: None,
    };
    SeqRows {
        logits: vec![logit],
        ..SeqRows::tokens(slot, &[token])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_draws_are_those_of_the_reference_semantics() {
        assert!(
            made() == COMMITTED,
            "run `cargo xtask draws` where draws may change"
        );
        assert_eq!(Draws::parse(COMMITTED).to_text(), COMMITTED);
        assert!(COMMITTED.len() < 250_000);
    }
}
