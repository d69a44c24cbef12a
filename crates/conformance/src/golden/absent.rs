//! Which tensors and keys a model may lack, and in which other forms it may come: the oracle says it per golden, and our
//! loader has to say the same.

use std::collections::BTreeSet;

use tokkata_archs::{ArchError, Found, GgufView, Registry, ResolveOptions, View};
use tokkata_core::{Metadata, Value};
use tokkata_formats::ModelFile;

use super::Golden;
use crate::generate;
use crate::models::Failure;

/// Names of a golden's tensors with `*` for the layer; sidecars of one value are left out.
#[must_use]
pub fn classes(golden: &Golden) -> Vec<String> {
    let names = golden.tensors.iter().map(|t| class(&t.0));
    let all: BTreeSet<String> = names.collect();
    let weighty = |name: &String| !name.ends_with("scale");
    all.into_iter().filter(weighty).collect()
}

/// `blk.*.attn_q.weight` of `blk.3.attn_q.weight`.
fn class(name: &str) -> String {
    let Some(at) = name.find("blk.").map(|i| i + 4) else {
        return name.to_owned();
    };
    let digits = name[at..].bytes().take_while(u8::is_ascii_digit).count();
    format!("{}*{}", &name[..at], &name[at + digits..])
}

/// Whether a tensor goes when a class is left out: with a weight goes its bias.
fn goes(name: &str, absent: &str) -> bool {
    let class = class(name);
    let weight = absent.strip_suffix("weight");
    class == absent || weight.is_some_and(|stem| class == format!("{stem}bias"))
}

/// The golden without a class of tensors.
#[must_use]
pub fn without(golden: &Golden, absent: &str) -> Golden {
    let mut golden = golden.clone();
    golden.tensors.retain(|t| !goes(&t.0, absent));
    golden
}

/// Keys that files may lack.
const KEYS: &[&str] = &[
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "rope.dimension_count",
];

/// Keys that some files have and others ignore.
const SETS: &[(&str, u32)] = &[
    ("expert_feed_forward_length", 24),
    ("expert_shared_feed_forward_length", 24),
    ("leading_dense_block_count", 2),
];

/// Other forms of a golden, with what was done to it.
#[must_use]
pub fn forms(golden: &Golden) -> Vec<(String, Golden)> {
    type Form = (&'static str, fn(&Golden) -> Tensors);
    let tensors: [Form; 7] = [
        ("with factors of frequencies", with_factors),
        ("with an output matrix", with_output),
        ("with queries, keys and values apart", with_split),
        ("with gates", with_gates),
        ("with halves of fused tensors", with_halves),
        ("with queries, keys and values in one", with_fused),
        ("with biases of queries, keys and values", with_biases),
    ];
    let mut all = Vec::new();
    for (title, make) in tensors {
        let form = Golden {
            tensors: make(golden),
            ..golden.clone()
        };
        all.push((title.to_owned(), form));
    }
    for key in KEYS {
        let mut form = golden.clone();
        form.unset(&format!("{}.{key}", golden.arch()));
        all.push((format!("without the key {key}"), form));
    }
    for (key, value) in SETS {
        let key = format!("{}.{key}", golden.arch());
        let mut form = golden.clone();
        form.metadata.insert(key.clone(), Value::U32(*value));
        all.push((format!("with {key} = {value}"), form));
    }
    all.retain(|(_, form)| form != golden);
    all
}

type Tensors = Vec<(String, Vec<usize>)>;

/// A gate beside every input projection that has none.
fn with_gates(golden: &Golden) -> Tensors {
    let mut tensors = golden.tensors.clone();
    for (name, shape) in &golden.tensors {
        let gate = name.replace(".ffn_up.weight", ".ffn_gate.weight");
        if tensors.iter().all(|t| t.0 != gate) {
            tensors.push((gate, shape.clone()));
        }
    }
    tensors
}

/// A gate and an input projection in place of each tensor of both.
fn with_halves(golden: &Golden) -> Tensors {
    let mut tensors = golden.tensors.clone();
    for (name, shape) in &golden.tensors {
        let Some(layer) = name.strip_suffix(".ffn_up.weight") else {
            continue;
        };
        let down = format!("{layer}.ffn_down.weight");
        let down = golden.tensors.iter().find(|t| t.0 == down);
        if down.is_some_and(|d| 2 * d.1[1] == shape[0]) {
            let half = vec![shape[0] / 2, shape[1]];
            tensors.retain(|t| t.0 != *name);
            tensors.push((name.clone(), half.clone()));
            tensors.push((format!("{layer}.ffn_gate.weight"), half));
        }
    }
    tensors
}

/// An output matrix where the token table serves as one.
fn with_output(golden: &Golden) -> Tensors {
    let mut tensors = golden.tensors.clone();
    let table = tensors.iter().find(|t| t.0 == "token_embd.weight").cloned();
    if let (Some((_, shape)), false) = (table, tensors.iter().any(|t| t.0 == "output.weight")) {
        tensors.push(("output.weight".to_owned(), shape));
    }
    tensors
}

/// Divisors of the rotation's angles where there are none.
fn with_factors(golden: &Golden) -> Tensors {
    let mut tensors = golden.tensors.clone();
    let key = format!("{}.rope.dimension_count", golden.arch());
    let absent = tensors.iter().all(|t| !t.0.starts_with("rope_f"));
    let columns = golden.metadata.uint(&key).filter(|&columns| columns > 0);
    if let (Some(columns), true) = (columns, absent) {
        tensors.push(("rope_freqs.weight".to_owned(), vec![columns as usize / 2]));
    }
    tensors
}

/// Queries, keys and values in place of one tensor.
fn with_split(golden: &Golden) -> Tensors {
    let size = |key: &str| golden.metadata.uint(&format!("{}.{key}", golden.arch()));
    let heads = size("attention.head_count").unwrap_or(0) as usize;
    let kv = size("attention.head_count_kv").map_or(heads, |kv| kv as usize);
    let mut tensors = Tensors::new();
    for (name, shape) in &golden.tensors {
        match name.split_once(".attn_qkv.") {
            Some((layer, end)) if heads > 0 && shape[0] % (heads + 2 * kv) == 0 => {
                let columns = shape[0] / (heads + 2 * kv);
                for (part, count) in [("q", heads), ("k", kv), ("v", kv)] {
                    let mut part_shape = shape.clone();
                    part_shape[0] = count * columns;
                    tensors.push((format!("{layer}.attn_{part}.{end}"), part_shape));
                }
            }
            Some((_, end)) if end.ends_with("scale") => {}
            _ => tensors.push((name.clone(), shape.clone())),
        }
    }
    tensors
}

/// One tensor in place of queries, keys and values, biases too.
fn with_fused(golden: &Golden) -> Tensors {
    let mut tensors = golden.tensors.clone();
    for (name, shape) in &golden.tensors {
        let Some((layer, end)) = name.split_once(".attn_q.") else {
            continue;
        };
        let others = ["k", "v"].map(|part| format!("{layer}.attn_{part}.{end}"));
        let rows = |name: &String| golden.tensors.iter().find(|t| t.0 == *name).map(|t| t.1[0]);
        if let [Some(k), Some(v)] = [rows(&others[0]), rows(&others[1])] {
            let mut fused = shape.clone();
            fused[0] += if end.ends_with("scale") { 0 } else { k + v };
            tensors.retain(|t| t.0 != *name && !others.contains(&t.0));
            tensors.push((format!("{layer}.attn_qkv.{end}"), fused));
        }
    }
    tensors
}

/// A bias for every projection of queries, keys and values that has none.
fn with_biases(golden: &Golden) -> Tensors {
    let mut tensors = golden.tensors.clone();
    for (name, shape) in &golden.tensors {
        let projections = ["attn_q", "attn_k", "attn_v", "attn_qkv"];
        let bias = name
            .strip_suffix("weight")
            .map(|stem| format!("{stem}bias"));
        let plain = projections.map(|p| format!(".{p}.weight"));
        let Some(bias) = bias.filter(|_| plain.iter().any(|p| name.ends_with(p))) else {
            continue;
        };
        if tensors.iter().all(|t| t.0 != bias) {
            tensors.push((bias, vec![shape[0]]));
        }
    }
    tensors
}

/// Everything that a loader is asked about a golden.
pub struct Questions<'a> {
    golden: &'a Golden,
    file: ModelFile,
    forms: Vec<(String, ModelFile)>,
}

impl<'a> Questions<'a> {
    /// Prepares the files.
    ///
    /// # Errors
    /// A golden that cannot be made into a file.
    pub fn new(golden: &'a Golden) -> Result<Self, Failure> {
        let model = |(title, form): (String, Golden)| Ok((title, generate::model(&form)?));
        let forms = forms(golden).into_iter().map(model);
        Ok(Questions {
            golden,
            file: generate::model(golden)?,
            forms: forms.collect::<Result<_, Failure>>()?,
        })
    }

    /// The classes of tensors without which the model still loads, and the forms in which it loads.
    #[must_use]
    pub fn optional(&self, registry: &Registry) -> Vec<String> {
        let ctx = self.golden.positions as u32;
        let resolves = |view: &dyn View| {
            let options = ResolveOptions { ctx };
            registry.resolve_view(view, &options).is_ok()
        };
        let without = |absent: &String| {
            let view = GgufView(&self.file);
            resolves(&Without { view, absent })
        };
        let mut all = classes(self.golden);
        all.retain(without);
        let forms = self.forms.iter().filter(|f| resolves(&GgufView(&f.1)));
        all.extend(forms.map(|f| f.0.clone()));
        all
    }

    /// Every question, as `optional` names it.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        let forms = self.forms.iter().map(|f| f.0.clone());
        classes(self.golden).into_iter().chain(forms).collect()
    }
}

/// A file that lacks a class of tensors.
struct Without<'a> {
    view: GgufView<'a>,
    absent: &'a str,
}

impl View for Without<'_> {
    fn metadata(&self) -> &Metadata {
        self.view.metadata()
    }

    fn tensor(&self, name: &str) -> Option<Found> {
        (!goes(name, self.absent))
            .then(|| self.view.tensor(name))
            .flatten()
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.view.names();
        names.retain(|name| !goes(name, self.absent));
        names
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, ArchError> {
        self.view.floats(name)
    }
}

#[cfg(test)]
mod tests {
    use super::{class, goes};

    #[test]
    fn a_class_is_one_tensor_of_every_layer() {
        assert_eq!(class("blk.12.attn_q.weight"), "blk.*.attn_q.weight");
        assert_eq!(class("enc.blk.0.ffn_up.weight"), "enc.blk.*.ffn_up.weight");
        assert_eq!(class("output.weight"), "output.weight");
        assert!(goes("blk.0.attn_q.bias", "blk.*.attn_q.weight"));
        assert!(!goes("blk.0.attn_q.weight", "blk.*.attn_q.bias"));
    }
}
