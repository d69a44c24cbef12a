//! How a model is opened.

use std::num::NonZeroU32;
use std::path::PathBuf;

use tokkata_core::DType;
use tokkata_ir::{Limits, LoadOptions};

use crate::adapters::AdapterSource;
use crate::checkpoint::Checkpoint;
use crate::diffusion::Diffusion;
use crate::drafts::Drafts;
use crate::error::Result;
use crate::placement::Placement;
use crate::vectors::Pooling;

/// Context when none is asked for, if the model was trained for as much.
pub const DEFAULT_CTX: u32 = 4096;

/// What a model is loaded for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// To write text.
    #[default]
    Text,
    /// To give vectors of texts, pooled in this way or else as the file says.
    Vectors(Option<Pooling>),
    /// To write text and to give vectors of texts, over one copy of the weights.
    Both(Option<Pooling>),
}

/// Choices of a load. The default runs on the CPU with as many threads as it has cores.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Text, vectors, or both.
    pub purpose: Purpose,
    /// Device by name; `None` for the default one.
    pub device: Option<String>,
    /// What of the model the device takes, and what stays with the processor beside it.
    pub placement: Placement,
    /// Worker threads; `None` for one per physical core.
    pub threads: Option<usize>,
    /// Positions of a sequence; `None` for the model's own, at most [`DEFAULT_CTX`].
    pub ctx: Option<NonZeroU32>,
    /// Element type of the cache.
    pub kv: DType,
    /// Bytes for all caches; `None` for whole contexts of all sequences, as far as the memory allows.
    pub kv_memory: Option<u64>,
    /// Rows of a step; an encoder takes so many at most.
    pub rows: u32,
    /// Sequences of a step.
    pub seqs: u32,
    /// Rows of a step whose logits can be asked for.
    pub logit_rows: u32,
    /// Positions per cache block; `None` for the default.
    pub block_size: Option<NonZeroU32>,
    /// Descriptors to know beside the built-in ones.
    pub arch_files: Vec<PathBuf>,
    /// Adapters that requests go through, all together, unless they say otherwise.
    pub adapters: Vec<AdapterSource>,
    /// Adapters that may be attached besides.
    pub adapter_places: u32,
    /// Run ops one by one.
    pub no_fuse: bool,
    /// Keep each worker thread on a core of its own.
    pub pin_threads: bool,
    /// Run from the mapped file where the backend can.
    pub no_repack: bool,
    /// Forces a lower instruction set, by name.
    pub cpu_features: Option<String>,
    /// What measurements of this machine chose, as [`LoadOptions::tuning`].
    pub tuning: Option<String>,
    /// Quantise weights to this mix while they are loaded.
    pub quantize: Option<&'static tokkata_quant::mix::Preset>,
    /// Forget a sequence's cache as soon as it ends.
    pub no_prefix_cache: bool,
    /// How several tokens are guessed at once.
    pub drafts: Drafts,
    /// Prompts may hold stretches of embeddings ([`Media`](crate::Media)).
    pub embeds: bool,
    /// Layers of a speech model's decoder whose attention to sound can be read, which is how words are timed.
    pub aligned: Vec<u32>,
    /// Keep what goes into every product, for [`Collector`](crate::importance::Collector).
    pub product_inputs: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            purpose: Purpose::Text,
            device: None,
            placement: Placement::default(),
            threads: None,
            ctx: None,
            kv: DType::F16,
            kv_memory: None,
            rows: 512,
            seqs: 1,
            logit_rows: 1,
            block_size: None,
            arch_files: Vec::new(),
            adapters: Vec::new(),
            adapter_places: 0,
            no_fuse: false,
            pin_threads: false,
            no_repack: false,
            cpu_features: None,
            tuning: None,
            quantize: None,
            no_prefix_cache: false,
            drafts: Drafts::default(),
            embeds: false,
            aligned: Vec::new(),
            product_inputs: false,
        }
    }
}

impl OpenOptions {
    /// Limits for a model trained for `trained` positions.
    #[must_use]
    pub fn limits(&self, trained: Option<u32>) -> Limits {
        let own = trained
            .filter(|&n| n > 0)
            .unwrap_or(DEFAULT_CTX)
            .min(DEFAULT_CTX);
        let ctx = self.ctx.map_or(own, NonZeroU32::get);
        Limits {
            rows: self.rows.max(1),
            seqs: self.seqs.max(1),
            logit_rows: self.logit_rows.max(self.seqs).max(1),
            ctx,
            adapters: self.places(),
            kv_dtype: self.kv,
            ..Limits::default()
        }
    }

    /// Limits for a model as [`Model::load`](crate::Model::load) has them: where it writes, with room for drafts, which
    /// have logits, and states, of their own.
    ///
    /// # Errors
    /// A model that cannot be run.
    pub fn limits_of(&self, checkpoint: &Checkpoint) -> Result<Limits> {
        let mut limits = self.limits(checkpoint.trained_ctx());
        let writes = !matches!(self.purpose, Purpose::Vectors(_));
        let spec = checkpoint.spec(limits.ctx)?;
        if writes && Diffusion::of(spec.generation).is_none() {
            self.drafts.widen(&mut limits, &spec);
        }
        Ok(limits)
    }

    /// What a backend is told.
    #[must_use]
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            threads: self.threads.unwrap_or_else(default_threads).max(1),
            pin_threads: self.pin_threads,
            no_fuse: self.no_fuse,
            no_repack: self.no_repack,
            cpu_features: self.cpu_features.clone(),
            tuning: self.tuning.clone(),
        }
    }
}

/// One thread per physical core, as far as the system tells; otherwise one per logical core.
#[must_use]
pub fn default_threads() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(logical, |cores| cores.clamp(1, logical))
}

/// Distinct (package, core) pairs of `/proc/cpuinfo`.
fn physical_cores() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut cores = std::collections::BTreeSet::new();
    let mut package = "";
    for line in text.lines() {
        match line.split_once(':').map(|(k, v)| (k.trim(), v.trim())) {
            Some(("physical id", id)) => package = id,
            Some(("core id", id)) => {
                cores.insert((package, id));
            }
            _ => {}
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_the_models_own_but_not_huge_unless_asked_for() {
        let options = OpenOptions::default();
        assert_eq!(options.limits(Some(2048)).ctx, 2048);
        assert_eq!(options.limits(Some(131_072)).ctx, DEFAULT_CTX);
        assert_eq!(options.limits(None).ctx, DEFAULT_CTX);
        let asked = OpenOptions {
            ctx: NonZeroU32::new(100_000),
            ..options
        };
        assert_eq!(asked.limits(Some(2048)).ctx, 100_000);
        assert!(default_threads() > 0);
    }
}
