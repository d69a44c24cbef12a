//! What a device runs of a model, and what the processor beside it does.

use std::collections::BTreeSet;
use std::str::FromStr;

use fancy_regex::Regex;
use tokkata_ir::{Composite, Device, DeviceId, Program, Recipe, WeightDef, WeightSource};
use tokkata_plan::place::{DEVICE, PROCESSOR, layers, place};

use crate::error::{Bytes, Error, Result};
use crate::memory::MemoryNeed;
use crate::options::OpenOptions;

/// How many layers of a model its device takes: the last ones, with what follows them. The processor has the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as its memory holds, where it tells how much there is.
    #[default]
    Auto,
    /// All of them.
    All,
    /// So many.
    Count(u32),
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" | "-1" => Ok(GpuLayers::Auto),
            "all" | "-2" => Ok(GpuLayers::All),
            _ => text
                .parse()
                .map(GpuLayers::Count)
                .map_err(|_| format!("found '{text}', expected a number of layers, auto or all")),
        }
    }
}

/// Tensors that the processor keeps: a regular expression of their names in GGUF.
#[derive(Clone, Debug)]
pub struct Tensors(Regex);

impl Tensors {
    /// Tensors whose names have such a part.
    ///
    /// # Errors
    /// [`Error::Tensors`] for what is no regular expression.
    pub fn new(pattern: &str) -> Result<Self> {
        let regex = Regex::new(pattern).map(Tensors);
        regex.map_err(|error| Error::Tensors {
            found: pattern.to_owned(),
            why: error.to_string(),
        })
    }

    fn holds(&self, name: &str) -> bool {
        // An expression that takes too long holds nothing.
        self.0.is_match(name).unwrap_or(false)
    }
}

/// What stays with the processor of a model whose device is another.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Layers of the device.
    pub layers: GpuLayers,
    /// First layers whose experts the processor keeps.
    pub cpu_experts: u32,
    /// First layers whose dense feed-forward weights it keeps.
    pub cpu_ffn: u32,
    /// Tensors that it keeps.
    pub cpu_tensors: Vec<Tensors>,
}

impl Placement {
    /// Divides a program for a device with so much memory; the first layer that this takes.
    fn divide(
        &self,
        program: &mut Program,
        weights: &dyn WeightSource,
        available: Option<u64>,
    ) -> u32 {
        let keeps = |weight: &WeightDef| self.keeps(weight);
        let all = layers(program);
        let first = match (self.layers, available) {
            (GpuLayers::All, _) | (GpuLayers::Auto, None) => 0,
            (GpuLayers::Count(0), _) => u32::MAX,
            (GpuLayers::Count(n), _) => all.saturating_sub(n),
            (GpuLayers::Auto, Some(bytes)) => {
                // Some of it is for work space.
                let room = bytes / 16 * 15;
                let mut fits = |first: u32| {
                    place(program, first, keeps);
                    MemoryNeed::on(program, weights, DEVICE).least() <= room
                };
                (0..all).find(|&first| fits(first)).unwrap_or(u32::MAX)
            }
        };
        place(program, first, keeps);
        first
    }

    /// Whether anything is to stay with the processor.
    fn keeps_any(&self) -> bool {
        self.cpu_experts > 0 || self.cpu_ffn > 0 || !self.cpu_tensors.is_empty()
    }

    fn keeps(&self, weight: &WeightDef) -> bool {
        let below = |most: u32| weight.site.layer.is_some_and(|layer| layer < most);
        let ffn = weight.name.contains(".ffn_");
        let experts = ffn && (weight.name.contains("_exps.") || weight.name.contains("_chexps."));
        let dense = ["up", "down", "gate", "gate_up"]
            .iter()
            .any(|part| weight.name.ends_with(&format!(".ffn_{part}.weight")));
        let named = |tensors: &Tensors| {
            tensors.holds(&weight.name) || sources(&weight.recipe).iter().any(|s| tensors.holds(s))
        };
        experts && below(self.cpu_experts)
            || dense && below(self.cpu_ffn)
            || self.cpu_tensors.iter().any(named)
    }
}

/// Tensors of the file that a weight is made of.
fn sources(recipe: &Recipe) -> Vec<&str> {
    match recipe {
        Recipe::Source(name) => vec![name],
        Recipe::Concat(parts) => parts.iter().flat_map(sources).collect(),
        Recipe::Rows { of, .. }
        | Recipe::Permute { of, .. }
        | Recipe::Reshape { of, .. }
        | Recipe::Map { of, .. }
        | Recipe::Transpose { of, .. } => sources(of),
        Recipe::Zeros { .. } => Vec::new(),
    }
}

/// Says in a program what runs where, as options ask for; gives the device's name and notes.
///
/// # Errors
/// A device that is not known or cannot be used.
pub fn places(
    program: &mut Program,
    weights: &dyn WeightSource,
    options: &OpenOptions,
) -> Result<(&'static str, Vec<String>)> {
    let placed = Placed::new(program, weights, options)?;
    Ok((placed.name, placed.notes))
}

/// A device for a program that says what runs where.
pub(crate) struct Placed {
    pub(crate) device: Box<dyn Device>,
    /// The device, and the processor where both work.
    pub(crate) name: &'static str,
    /// What they have each, where both work.
    pub(crate) notes: Vec<String>,
}

impl Placed {
    /// Says in a program what runs where, as options ask for.
    ///
    /// # Errors
    /// A device that is not known or cannot be used.
    pub(crate) fn new(
        program: &mut Program,
        weights: &dyn WeightSource,
        options: &OpenOptions,
    ) -> Result<Self> {
        let placement = &options.placement;
        let wanted = match &options.device {
            // Layers for a device want one.
            None if matches!(placement.layers, GpuLayers::All | GpuLayers::Count(1..)) => {
                Some("auto")
            }
            named => named.as_deref(),
        };
        let device = crate::device::device(wanted)?;
        if device.name() == "cpu" {
            let mut placed = Placed::alone(device);
            if placement.keeps_any() {
                let note =
                    "there is no other device: what was to stay with the processor changes nothing";
                placed.notes.push(note.to_owned());
            }
            return Ok(placed);
        }
        placement.divide(program, weights, device.available_bytes());
        let nodes = program.plans.iter().flat_map(|p| &p.nodes);
        let used: BTreeSet<DeviceId> = nodes.map(|n| n.device).collect();
        if !used.contains(&PROCESSOR) {
            return Ok(Placed::alone(device));
        }
        let processor = crate::device::device(Some("cpu"))?;
        if !used.contains(&DEVICE) {
            place(program, 0, |_| false);
            let mut placed = Placed::alone(processor);
            if placement.layers == GpuLayers::Auto {
                let name = device.name();
                placed.notes.push(format!(
                    "the model is on the processor: {name} has no room for a layer of it"
                ));
            }
            return Ok(placed);
        }
        let line = split(device.name(), program, weights);
        let name = beside(device.name());
        let device = Composite::new(vec![device, processor]);
        Ok(Placed {
            name,
            notes: [vec![line], device.notes()].concat(),
            device: Box::new(device),
        })
    }

    /// What the host's memory has to hold, where it does.
    pub(crate) fn host_need(
        &self,
        program: &Program,
        weights: &dyn WeightSource,
    ) -> Option<MemoryNeed> {
        match self.name {
            "cpu" | "ref" => Some(MemoryNeed::of(program, weights)),
            "cuda" | "wgpu" => None,
            _ => Some(MemoryNeed::on(program, weights, PROCESSOR)),
        }
    }

    fn alone(device: Box<dyn Device>) -> Self {
        Placed {
            name: device.name(),
            notes: device.notes(),
            device,
        }
    }
}

/// What a device is called that works beside the processor.
fn beside(name: &str) -> &'static str {
    match name {
        "cuda" => "cuda+cpu",
        "wgpu" => "wgpu+cpu",
        _ => "composite",
    }
}

/// One line about what a device has and what the processor has.
fn split(name: &str, program: &Program, weights: &dyn WeightSource) -> String {
    let all = layers(program);
    let layers_of = |device: DeviceId| -> BTreeSet<u32> {
        let nodes = program.plans[0].nodes.iter();
        let own = nodes.filter(|n| n.device == device && !n.op.weights().is_empty());
        own.filter_map(|n| n.site.layer).collect()
    };
    let [own, others] = [DEVICE, PROCESSOR].map(layers_of);
    let both = own.intersection(&others).count();
    let shared = match both {
        0 => String::new(),
        n => format!(", and parts of {n}"),
    };
    let bytes = |device| Bytes(MemoryNeed::on(program, weights, device).weights);
    format!(
        "{name} has {} of {all} layers{shared}, with {} of weights; the processor has {}{shared}, with {}",
        own.len() - both,
        bytes(DEVICE),
        others.len() - both,
        bytes(PROCESSOR)
    )
}

#[cfg(test)]
mod tests {
    use tokkata_conformance::generate;
    use tokkata_conformance::golden::Golden;

    use super::*;
    use crate::weights::FileWeights;
    use crate::{BuildOptions, Checkpoint};

    /// A golden's program in the hands of `test`.
    fn with(name: &str, test: impl FnOnce(Program, &dyn WeightSource)) {
        let golden = Golden::read(&Golden::folder(), name).expect("golden");
        let checkpoint = Checkpoint::new(generate::model(&golden).expect("a file"), &[]);
        let checkpoint = checkpoint.expect("a model");
        let limits = OpenOptions::default().limits(checkpoint.trained_ctx());
        let program = checkpoint.program(&limits, &BuildOptions::default());
        let weights = FileWeights::new(checkpoint.file(), None);
        test(program.expect("a program"), &weights);
    }

    #[test]
    fn a_device_takes_the_last_layers_that_fit() {
        with("llama", |program, weights| {
            let placement = Placement::default();
            let first = |available| placement.divide(&mut program.clone(), weights, available);
            assert_eq!((first(None), first(Some(1 << 40))), (0, 0));
            assert_eq!(first(Some(0)), u32::MAX);
            let mut whole = program.clone();
            place(&mut whole, 0, |_| false);
            let all = MemoryNeed::on(&whole, weights, DEVICE).least();
            let counts: Vec<u32> = (1..=10).map(|n| first(Some(all * n / 8))).collect();
            assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
            assert!(counts.contains(&2) && counts.ends_with(&[0]), "{counts:?}");
            // Both parts are what the whole is.
            place(&mut whole, 2, |_| false);
            let of = |device| MemoryNeed::on(&whole, weights, device);
            let need = MemoryNeed::of(&program, weights);
            let caches = of(DEVICE).caches + of(PROCESSOR).caches;
            assert_eq!(caches, need.caches);
            assert_eq!(of(DEVICE).weights + of(PROCESSOR).weights, need.weights);
        });
    }

    #[test]
    fn layers_are_counted_from_the_last() {
        with("llama", |program, weights| {
            let first = |text: &str| {
                let layers = text.parse().expect("layers");
                let placement = Placement {
                    layers,
                    ..Placement::default()
                };
                placement.divide(&mut program.clone(), weights, Some(0))
            };
            assert_eq!((first("all"), first("99"), first("4")), (0, 0, 0));
            assert_eq!((first("1"), first("0")), (3, u32::MAX));
            assert_eq!(first("auto"), u32::MAX);
        });
        let error = "half".parse::<GpuLayers>().unwrap_err();
        assert_eq!(
            error,
            "found 'half', expected a number of layers, auto or all"
        );
    }

    #[test]
    fn weights_are_kept_by_layer_and_by_name() {
        with("qwen3moe", |program, _| {
            let kept = |placement: &Placement| -> Vec<&str> {
                let kept = program.weights.iter().filter(|w| placement.keeps(w));
                kept.map(|w| w.name.as_str()).collect()
            };
            let experts = kept(&Placement {
                cpu_experts: 1,
                ..Placement::default()
            });
            assert!(
                experts.iter().all(|n| n.starts_with("blk.0.ffn_")),
                "{experts:?}"
            );
            assert!(
                experts.iter().any(|n| n.contains("down_exps.")),
                "{experts:?}"
            );
            let ups = kept(&Placement {
                cpu_tensors: vec![
                    Tensors::new(r"blk\.[12]\.ffn_up_exps\.weight").expect("an expression"),
                ],
                ..Placement::default()
            });
            assert_eq!(ups.len(), 2, "{ups:?}");
        });
        with("llama", |program, _| {
            let placement = Placement {
                cpu_ffn: 2,
                ..Placement::default()
            };
            let kept = program.weights.iter().filter(|w| placement.keeps(w));
            let layers: BTreeSet<_> = kept.map(|w| w.site.layer).collect();
            assert_eq!(layers, BTreeSet::from([Some(0), Some(1)]));
        });
        let error = Tensors::new("(").expect_err("an error").to_string();
        assert!(error.starts_with("found tensors '(', expected a regular expression"));
    }
}
