//! What recipes make of pairs, against the same recipes over what pairs stand for; and files that are refused.

use std::path::PathBuf;

use tokkata_core::{DType, Metadata, Value};
use tokkata_formats::GgufWriter;
use tokkata_ir::{Fold, Recipe, read_f32};

use super::*;

/// Tensors of `[2, 6, 4]` (`experts`) and `[6, 4]` (`a`, `b`).
struct Base(BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl WeightSource for Base {
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        let (shape, _) = self.0.get(name)?;
        Some((DType::F32, shape.clone()))
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let bytes: Vec<u8> = self.0[name]
            .1
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    }

    fn decode(&self, _: DType, raw: &[u8], out: &mut [f32]) -> Result<(), BackendError> {
        for (out, raw) in out.iter_mut().zip(raw.as_chunks::<4>().0) {
            *out = f32::from_le_bytes(*raw);
        }
        Ok(())
    }
}

fn number(name: &str, i: usize) -> f32 {
    let seed = name.bytes().map(usize::from).sum::<usize>();
    ((seed * 31 + i * 17) % 23) as f32 - 11.0
}

fn stored(name: &str, matrices: &[usize], (n, k, r): (usize, usize, usize)) -> Stored {
    let part = |letter: &str, dims: [usize; 2]| {
        let shape = [matrices, &dims].concat();
        let len = shape.iter().product();
        let name = format!("{name}{letter}");
        (shape, (0..len).map(|i| number(&name, i)).collect())
    };
    Stored {
        name: name.to_owned(),
        a: part("a", [r, k]),
        b: part("b", [n, r]),
    }
}

/// `b · a` of every matrix.
fn dense(stored: &Stored) -> (Vec<usize>, Vec<f32>) {
    let (a, b) = (&stored.a, &stored.b);
    let (r, k) = (a.0[a.0.len() - 2], a.0[a.0.len() - 1]);
    let n = b.0[b.0.len() - 2];
    let rows = b.1.len() / r;
    let at = |row: usize, col: usize| -> f32 {
        let e = row / n;
        (0..r)
            .map(|j| b.1[row * r + j] * a.1[(e * r + j) * k + col])
            .sum()
    };
    let shape = [&b.0[..b.0.len() - 1], &[k]].concat();
    let all = (0..rows).flat_map(|row| (0..k).map(move |col| (row, col)));
    (shape, all.map(|(row, col)| at(row, col)).collect())
}

fn source(name: &str) -> Box<Recipe> {
    Box::new(Recipe::Source(name.to_owned()))
}

fn recipes() -> Vec<(usize, Recipe)> {
    let rows = |of, start, len| Recipe::Rows { of, start, len };
    let turned = |of, n, k| Recipe::Transpose { of, n, k };
    let joined = || {
        Recipe::Concat(vec![
            *source("a"),
            rows(source("plain"), 1, 2),
            *source("b"),
        ])
    };
    vec![
        (6, *source("a")),
        (12, *source("experts")),
        (3, rows(source("a"), 2, 3)),
        (7, rows(source("experts"), 3, 7)),
        (14, joined()),
        (5, rows(Box::new(joined()), 4, 5)),
        (
            4,
            Recipe::Permute {
                of: Box::new(joined()),
                map: vec![13, 2, 8, 6],
            },
        ),
        (4, turned(source("a"), 6, 4)),
        (8, turned(source("experts"), 6, 4)),
        (3, rows(Box::new(turned(source("experts"), 6, 4)), 3, 3)),
        (
            6,
            Recipe::Map {
                of: source("a"),
                fold: Fold::MulConst(0.5),
            },
        ),
        (
            6,
            Recipe::Reshape {
                of: source("a"),
                cols: 4,
            },
        ),
    ]
}

#[test]
fn recipes_make_of_pairs_what_they_make_of_tensors() {
    let of = |name: &str, matrices: &[usize]| (name.to_owned(), stored(name, matrices, (6, 4, 3)));
    let pairs = BTreeMap::from([of("a", &[]), of("b", &[]), of("experts", &[2])]);
    let mut base = Base(
        pairs
            .iter()
            .map(|(name, s)| (name.clone(), dense(s)))
            .collect(),
    );
    base.0
        .insert("plain".to_owned(), (vec![6, 4], vec![0.0; 24]));
    for (count, recipe) in recipes() {
        for (start, len) in [(0, count), (count / 2, count - count / 2), (1, 1)] {
            let want = read_f32(&base, &recipe, start, len).unwrap();
            let mut maker = Maker::new(&pairs, &base);
            let low = maker.rows(&recipe, start, len).unwrap().expect("a pair");
            let cols = low.cols;
            let at = |i: usize| -> f32 {
                let (row, col) = (i / cols, i % cols);
                let term = |j: usize| low.b[row * low.rank + j] * low.a[j * cols + col];
                (0..low.rank).map(term).sum()
            };
            let got: Vec<f32> = (0..len * cols).map(at).collect();
            assert_eq!(got, want, "{start}, {len} of {recipe:?}");
        }
    }
}

#[test]
fn what_is_no_linear_map_of_a_pair_is_refused_by_name() {
    let pairs = BTreeMap::from([("a".to_owned(), stored("pair", &[], (6, 4, 3)))]);
    let base = Base(BTreeMap::from([(
        "a".to_owned(),
        (vec![6, 4], vec![0.0; 24]),
    )]));
    let refused = |recipe: Recipe| {
        let error = Maker::new(&pairs, &base).rows(&recipe, 0, 2);
        error.unwrap_err().to_string()
    };
    let folded = Recipe::Map {
        of: source("a"),
        fold: Fold::Exp,
    };
    let text = "tensor pair is for a weight that is no linear map";
    assert_eq!(refused(folded), text);
    let of = source("a");
    let text = "tensor pair is for a weight of other rows than its tensor's";
    assert_eq!(refused(Recipe::Reshape { of, cols: 8 }), text);
}

/// A file in a folder of the test's own.
fn written(name: &str, bytes: &[u8]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("adapters-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn gguf(name: &str, settings: &[(&str, &str)], tensors: &[(&str, &[usize])]) -> PathBuf {
    let mut metadata = Metadata::default();
    for &(key, value) in settings {
        metadata.insert(key, Value::from(value));
    }
    let mut writer = GgufWriter::new("adapter.gguf", metadata).unwrap();
    let mut data = Vec::new();
    for (name, shape) in tensors {
        writer.declare(name, DType::F32, shape).unwrap();
        data.push(vec![0; shape.iter().product::<usize>() * 4]);
    }
    let bytes = writer.to_bytes(data.iter().map(Vec::as_slice)).unwrap();
    written(name, &bytes)
}

const LORA: [(&str, &str); 3] = [
    ("general.type", "adapter"),
    ("adapter.type", "lora"),
    ("general.architecture", "llama"),
];

#[test]
fn files_that_are_no_such_adapter_are_refused_by_setting_or_tensor() {
    let open = |path: PathBuf| AdapterFile::open(&path, "llama").unwrap_err().to_string();
    let model = [("general.type", "model"), LORA[1], LORA[2]];
    assert_eq!(
        open(gguf("model.gguf", &model, &[])),
        "found general.type = model, expected adapter"
    );
    let other = [LORA[0], LORA[1], ("general.architecture", "qwen3")];
    assert_eq!(
        open(gguf("other.gguf", &other, &[])),
        "found general.architecture = qwen3, expected llama"
    );
    let half: [(&str, &[usize]); 1] = [("x.weight.lora_b", &[6, 2])];
    assert_eq!(
        open(gguf("half.gguf", &LORA, &half)),
        "tensor x.weight has its second part alone, expected both"
    );
    let norm: [(&str, &[usize]); 1] = [("attn_norm.weight", &[6])];
    assert_eq!(
        open(gguf("norm.gguf", &LORA, &norm)),
        "tensor attn_norm.weight is neither NAME.lora_a nor NAME.lora_b"
    );
}

#[test]
fn pairs_of_another_shape_are_refused_by_tensor() {
    let base = Base(BTreeMap::from([(
        "x.weight".to_owned(),
        (vec![6, 4], vec![]),
    )]));
    let check = |name: &str, a: &[usize], b: &[usize]| {
        let [a, b] = [a, b].map(|shape| (shape.to_vec(), Vec::new()));
        let name_a = format!("{name}.lora_a");
        let stored = Stored { name: name_a, a, b };
        stored.check(name, &base).map_err(|e| e.to_string())
    };
    assert_eq!(check("x.weight", &[2, 4], &[6, 2]), Ok(()));
    let text = "tensor x.weight.lora_a has parts of [4, 2] and [6, 2], expected [4, 4] and [6, 4] for x.weight of [6, 4]";
    assert_eq!(check("x.weight", &[4, 2], &[6, 2]), Err(text.to_owned()));
    let text = "tensor y.weight.lora_a is for y.weight, which the model does not have";
    assert_eq!(check("y.weight", &[2, 4], &[6, 2]), Err(text.to_owned()));
}

#[test]
fn peft_scales_by_its_configuration() {
    let config = |more: &str| {
        let text = format!(r#"{{"peft_type": "LORA", "lora_alpha": 16, "bias": "none"{more}}}"#);
        let path = written("adapter_config.json", text.as_bytes());

        stored::peft(path.parent().unwrap())
            .unwrap_err()
            .to_string()
    };
    let dora = config(r#", "use_dora": true"#);
    assert_eq!(
        dora,
        "found use_dora = true, expected nothing: only pairs of low rank are known"
    );
    let bias = config(r#", "modules_to_save": ["lm_head"]"#);
    assert!(
        bias.starts_with("found modules_to_save = [\"lm_head\"]"),
        "{bias}"
    );
}
