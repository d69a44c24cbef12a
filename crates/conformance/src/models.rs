//! Whole models on a backend: logits of a token sequence, fed whole, in chunks or beside other sequences.

use std::sync::Arc;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_core::DType;
use tokkata_formats::ModelFile;
use tokkata_ir::step::{ROW_PROMPT, SeqStep};
use tokkata_ir::{
    Backend, CacheKind, GroupId, Instance, Limits, LoadOptions, Op, PlanRole, Port, Program, Site,
    StepBuilder, StepInputs, ValType,
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

/// A value of a run and the op that made it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The op.
    pub op: Op,
    /// Where it stands.
    pub site: Site,
    /// What it gave.
    pub floats: Vec<f32>,
}

/// Anything that can go wrong, as text.
pub type Failure = String;

/// A loaded model with everything that steps need.
pub struct Loaded {
    program: Arc<Program>,
    instance: Box<dyn Instance>,
    limits: Limits,
    rows: tokkata_ir::ValueId,
    bidirectional: bool,
    encoded: usize,
}

/// Where and how a model is run.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The backend.
    pub backend: &'a dyn Backend,
    /// Positions of a sequence.
    pub ctx: usize,
    /// How tokens are fed.
    pub feeding: Feeding,
    /// The output that is read; logits, or hidden rows where there are none, by default.
    pub output: Option<&'a str>,
    /// What an encoder is fed before the decoder runs; empty where there is none.
    pub encoder: &'a [u32],
}

/// Loads a model for sequences of up to `ctx` positions, to read its logits or, where it has none, its hidden rows.
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
    let target = Target {
        backend,
        ctx,
        feeding,
        output: None,
        encoder: &[],
    };
    load_for(file, registry, &target)
}

/// Loads a model on a target.
///
/// # Errors
/// The text of whatever failed.
pub fn load_for(
    file: &ModelFile,
    registry: &Registry,
    target: &Target<'_>,
) -> Result<Loaded, Failure> {
    let (program, bidirectional) = compile(file, registry, target)?;
    load_program(file, program, bidirectional, target)
}

/// Every float value of the first plan when `ids` are fed whole, in the order of the ops.
///
/// # Errors
/// The text of whatever failed.
pub fn trace(
    file: &ModelFile,
    registry: &Registry,
    target: &Target<'_>,
    ids: &[u32],
) -> Result<Vec<Seen>, Failure> {
    let (mut program, bidirectional) = compile(file, registry, target)?;
    let plan = &mut program.plans[0];
    let ports = plan.nodes.iter().flat_map(|n| &n.outs);
    let floats = ports.filter(|v| plan.values[v.index()].dtype == ValType::F32);
    let ports = floats.map(|&value| Port {
        name: value.to_string(),
        value,
    });
    plan.outputs = plan.outputs.iter().cloned().chain(ports).collect();
    let mut loaded = load_program(file, program, bidirectional, target)?;
    loaded.logits(ids, Feeding::WHOLE)?;
    let mut seen = Vec::new();
    for node in &loaded.program.plans[0].nodes {
        for &value in &node.outs {
            if loaded.program.plans[0].value(value).dtype == ValType::F32 {
                seen.push(Seen {
                    op: node.op.clone(),
                    site: node.site.clone(),
                    floats: loaded.instance.floats(value).to_vec(),
                });
            }
        }
    }
    Ok(seen)
}

fn compile(
    file: &ModelFile,
    registry: &Registry,
    target: &Target<'_>,
) -> Result<(Program, bool), Failure> {
    let ctx = target.ctx as u32;
    let spec = registry
        .resolve(file, &ResolveOptions { ctx })
        .map_err(|e| e.to_string())?;
    let options = BuildOptions {
        block_size: target.feeding.block_size,
        outputs: target.output.map(str::to_owned).into_iter().collect(),
        ..BuildOptions::default()
    };
    let program = tokkata_plan::build_with(&spec, &limits(target), &options);
    Ok((program.map_err(|e| e.to_string())?, spec.bidirectional))
}

fn load_program(
    file: &ModelFile,
    program: Program,
    bidirectional: bool,
    target: &Target<'_>,
) -> Result<Loaded, Failure> {
    let program = Arc::new(program);
    let wanted = target.output.map_or(vec!["logits", "hidden"], |o| vec![o]);
    let rows = wanted.iter().find_map(|name| program.plans[0].output(name));
    let rows = rows.ok_or("the model has no such output")?;
    let loaded = target
        .backend
        .load(program.clone(), &FileWeights(file), &LoadOptions::default());
    let mut loaded = Loaded {
        program,
        instance: loaded.map_err(|e| e.to_string())?,
        limits: limits(target),
        rows,
        bidirectional,
        encoded: target.encoder.len(),
    };
    loaded.encode(target.encoder, target.feeding.sequences)?;
    Ok(loaded)
}

fn limits(target: &Target<'_>) -> Limits {
    // One more than run, whose blocks keep snapshots.
    let seqs = target.feeding.sequences as u32 + 1;
    let ctx = target.ctx as u32;
    Limits {
        rows: ctx * seqs,
        seqs,
        logit_rows: ctx * seqs,
        ctx,
        enc_rows: target.encoder.len() as u32,
        kv_dtype: DType::F32,
        ..Limits::default()
    }
}

impl Loaded {
    /// Whether rows see each other in both directions, so that a sequence is fed whole or not at all.
    #[must_use]
    pub fn bidirectional(&self) -> bool {
        self.bidirectional
    }

    /// Rows `[T, width]` of `ids` from an empty cache; every copy must agree bit for bit.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn logits(&mut self, ids: &[u32], feeding: Feeding) -> Result<Vec<f32>, Failure> {
        self.feed(ids, 0, feeding)
    }

    /// Rows of `ids` when a wrong ending after `kept` positions was fed and taken back: caches of positions are cut, a
    /// recurrent state is set back to the snapshot taken there.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn truncated(
        &mut self,
        ids: &[u32],
        kept: usize,
        feeding: Feeding,
    ) -> Result<Vec<f32>, Failure> {
        let (beginning, ending) = ids.split_at(kept);
        let mut wrong = ending.to_vec();
        wrong.rotate_left(1);
        let before = self.feed(beginning, 0, feeding)?;
        self.snapshot(|own, spare| (own, spare));
        self.feed(&wrong, kept, feeding)?;
        self.snapshot(|own, spare| (spare, own));
        let after = self.feed(ending, kept, feeding)?;
        Ok([before, after].concat())
    }

    /// Copies the first sequence's states between their own block and the one of the sequence that nothing runs.
    fn snapshot(&mut self, way: fn(u32, u32) -> (u32, u32)) {
        let tables = [
            self.tables(0, 1),
            self.tables(self.limits.seqs as usize - 1, 1),
        ];
        for (g, group) in self.program.caches.iter().enumerate() {
            if group.kind == CacheKind::Recurrent {
                let (from, to) = way(tables[0][g][0], tables[1][g][0]);
                self.instance.copy_block(GroupId(g as u32), from, to);
            }
        }
    }

    /// Runs the encoder, which leaves its rows' keys and values in the caches.
    fn encode(&mut self, ids: &[u32], sequences: usize) -> Result<(), Failure> {
        if ids.is_empty() {
            return Ok(());
        }
        let (plan, _) = self
            .program
            .plan(PlanRole::Encoder)
            .ok_or("the model has no encoder")?;
        let tables: Vec<Vec<Vec<u32>>> =
            (0..sequences).map(|s| self.tables(s, ids.len())).collect();
        let mut builder = StepBuilder::new(&self.limits, &self.program.caches);
        for tables in &tables {
            builder.push(&SeqStep {
                tokens: ids,
                enc_len: ids.len(),
                tables,
                flags: ROW_PROMPT,
                ..SeqStep::default()
            });
        }
        let inputs = StepInputs::default();
        let done = self.instance.replay(plan, builder.finish(), &inputs);
        done.map_err(|e| e.to_string())
    }

    /// Rows of `ids` after `past` cached positions.
    fn feed(&mut self, ids: &[u32], past: usize, feeding: Feeding) -> Result<Vec<f32>, Failure> {
        let tables: Vec<Vec<Vec<u32>>> = (0..feeding.sequences)
            .map(|s| self.tables(s, past + ids.len()))
            .collect();
        let mut builder = StepBuilder::new(&self.limits, &self.program.caches);
        let mut all = Vec::new();
        let mut past_len = past;
        for chunk in ids.chunks(feeding.chunk.min(ids.len())) {
            builder.clear();
            let logits: Vec<usize> = (0..chunk.len()).collect();
            for tables in &tables {
                builder.push(&SeqStep {
                    tokens: chunk,
                    past_len,
                    enc_len: self.encoded,
                    tables,
                    logits: &logits,
                    flags: ROW_PROMPT,
                    ..SeqStep::default()
                });
            }
            self.instance
                .replay(0, builder.finish(), &StepInputs::default())
                .map_err(|e| e.to_string())?;
            all.extend_from_slice(self.common(feeding.sequences, past_len)?);
            past_len += chunk.len();
        }
        Ok(all)
    }

    /// The rows of the first copy, once all copies are seen to have the same bits.
    fn common(&self, copies: usize, position: usize) -> Result<&[f32], Failure> {
        let floats = self.instance.floats(self.rows);
        let (first, _) = floats.split_at(floats.len() / copies);
        let differs = |c: &[f32]| (c.iter().zip(first)).any(|(a, b)| a.to_bits() != b.to_bits());
        if floats.chunks(first.len().max(1)).any(differs) {
            return Err(format!("copies differ at position {position}"));
        }
        Ok(first)
    }

    /// Block tables of one copy: blocks in descending order, to catch backends that expect ascending ones.
    fn tables(&self, seq: usize, len: usize) -> Vec<Vec<u32>> {
        let copies = self.limits.seqs;
        let table = |g: &tokkata_ir::CacheGroup| {
            let per_seq = g.n_blocks / copies;
            let first = seq as u32 * per_seq;
            let need = match g.kind {
                CacheKind::Recurrent => 1,
                CacheKind::Cross => (self.encoded as u32).div_ceil(g.block_size),
                _ => (len as u32).div_ceil(g.block_size),
            };
            (0..need).map(|b| first + per_seq - 1 - b).collect()
        };
        self.program.caches.iter().map(table).collect()
    }
}

/// Normalised mean square error of `got` against `want`; what one suppresses the other must suppress too.
#[must_use]
pub fn nmse(got: &[f32], want: &[f32]) -> f64 {
    let (mut err, mut sum) = (0.0, 0.0);
    for (&g, &w) in got.iter().zip(want) {
        let suppressed = |x: f32| x <= f32::MIN / 2.0 || !x.is_finite();
        match (suppressed(g), suppressed(w)) {
            (true, true) => continue,
            (false, false) => {}
            _ => return f64::INFINITY,
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
