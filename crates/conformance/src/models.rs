//! Whole models on a backend: logits of a token sequence, fed whole, in chunks or beside other sequences.

use std::sync::Arc;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_core::DType;
use tokkata_formats::ModelFile;
use tokkata_ir::step::{ROW_PROMPT, SeqStep};
use tokkata_ir::{
    Backend, CacheKind, Instance, Limits, LoadOptions, Program, StepBuilder, StepInputs,
};
use tokkata_plan::BuildOptions;

/// How tokens are fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feeding {
    /// Tokens per step and sequence.
    pub chunk: usize,
    /// Copies of the sequence that run side by side.
    pub sequences: usize,
    /// Positions per cache block.
    pub block_size: u32,
}

impl Feeding {
    /// All at once, alone.
    pub const WHOLE: Feeding = Feeding {
        chunk: usize::MAX,
        sequences: 1,
        block_size: 16,
    };
}

/// Anything that can go wrong, as text.
pub type Failure = String;

/// A loaded model with everything that steps need.
pub struct Loaded {
    program: Arc<Program>,
    instance: Box<dyn Instance>,
    limits: Limits,
    logits: tokkata_ir::ValueId,
}

/// Loads a model for sequences of up to `ctx` positions.
///
/// # Errors
/// The text of whatever failed.
pub fn load(
    file: &ModelFile,
    registry: &Registry,
    backend: &dyn Backend,
    ctx: usize,
    feeding: Feeding,
) -> Result<Loaded, Failure> {
    let ctx = ctx as u32;
    let spec = registry
        .resolve(file, &ResolveOptions { ctx })
        .map_err(|e| e.to_string())?;
    let rows = ctx * feeding.sequences as u32;
    let seqs = feeding.sequences as u32;
    let limits = Limits {
        rows,
        seqs,
        logit_rows: rows,
        ctx,
        kv_dtype: DType::F32,
        ..Limits::default()
    };
    let options = BuildOptions {
        block_size: feeding.block_size,
        ..BuildOptions::default()
    };
    let program =
        Arc::new(tokkata_plan::build_with(&spec, &limits, &options).map_err(|e| e.to_string())?);
    let logits = program.plans[0]
        .output("logits")
        .ok_or("the model has no logits")?;
    let loaded = backend.load(program.clone(), &FileWeights(file), &LoadOptions::default());
    Ok(Loaded {
        program,
        instance: loaded.map_err(|e| e.to_string())?,
        limits,
        logits,
    })
}

impl Loaded {
    /// Logits `[T, V]` of `ids` from an empty cache; every copy must agree bit for bit.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn logits(&mut self, ids: &[u32], feeding: Feeding) -> Result<Vec<f32>, Failure> {
        let tables: Vec<Vec<Vec<u32>>> = (0..feeding.sequences)
            .map(|s| self.tables(s, ids.len()))
            .collect();
        let mut builder = StepBuilder::new(&self.limits, &self.program.caches);
        let mut all = Vec::new();
        let mut past = 0;
        for chunk in ids.chunks(feeding.chunk.min(ids.len())) {
            builder.clear();
            let wanted: Vec<usize> = (0..chunk.len()).collect();
            for tables in &tables {
                let flags = ROW_PROMPT;
                let seq = SeqStep {
                    tokens: chunk,
                    past_len: past,
                    tables,
                    logits: &wanted,
                    flags,
                    ..SeqStep::default()
                };
                builder.push(&seq);
            }
            let inputs = StepInputs::default();
            self.instance
                .replay(0, builder.finish(), &inputs)
                .map_err(|e| e.to_string())?;
            let floats = self.instance.floats(self.logits);
            let one = floats.len() / feeding.sequences;
            if floats.chunks(one).any(|c| {
                c.iter()
                    .zip(&floats[..one])
                    .any(|(a, b)| a.to_bits() != b.to_bits())
            }) {
                return Err(format!("copies differ at position {past}"));
            }
            all.extend_from_slice(&floats[..one]);
            past += chunk.len();
        }
        Ok(all)
    }

    /// Block tables of one copy: blocks in descending order, to catch backends that expect ascending ones.
    fn tables(&self, seq: usize, len: usize) -> Vec<Vec<u32>> {
        let copies = self.limits.seqs;
        let table = |g: &tokkata_ir::CacheGroup| {
            let per_seq = g.n_blocks / copies;
            let first = seq as u32 * per_seq;
            let need = if g.kind == CacheKind::Recurrent {
                1
            } else {
                (len as u32).div_ceil(g.block_size)
            };
            (0..need).map(|b| first + per_seq - 1 - b).collect()
        };
        self.program.caches.iter().map(table).collect()
    }
}

/// Normalised mean square error of `got` against `want`.
#[must_use]
pub fn nmse(got: &[f32], want: &[f32]) -> f64 {
    let (mut err, mut sum) = (0.0, 0.0);
    for (&g, &w) in got.iter().zip(want) {
        if w <= f32::MIN / 2.0 || !w.is_finite() {
            continue;
        }
        let (g, w) = (f64::from(g), f64::from(w));
        err += (g - w) * (g - w);
        sum += w * w;
    }
    if got.len() == want.len() {
        err / sum
    } else {
        f64::INFINITY
    }
}
