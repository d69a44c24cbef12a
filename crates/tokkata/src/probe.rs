//! A look at every plan of a model: logits of an encoder–decoder's decoder, and of multi-token-prediction heads.
//!
//! A [`Probe`] takes one sequence whole, in one step; it is for looking, not for serving.

use std::sync::Arc;

use tokkata_engine::EngineError;
use tokkata_ir::{
    ArenaLayout, CacheKind, Delta, Executor, GroupId, Limits, LogitRow, PlanRole, Program, Refusal,
    SeqRows, SeqSlot, Source, Ticket, ValueId, Work,
};
use tokkata_plan::BuildOptions;

use crate::checkpoint::Checkpoint;
use crate::device::device;
use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::weights::{FileWeights, Progress};

/// The sequence that is looked at.
#[derive(Clone, Copy, Debug)]
pub struct ProbeInput<'a> {
    /// Tokens of the main plan.
    pub ids: &'a [u32],
    /// Tokens of the encoder, which runs first; empty for models without one.
    pub encoder_ids: &'a [u32],
    /// Multi-token-prediction heads to run after the main plan, as far as the model has them.
    pub drafts: usize,
}

/// What came out, `[tokens, vocabulary]` each.
#[derive(Clone, Debug, PartialEq)]
pub struct Probed {
    /// Logits of the main plan.
    pub logits: Vec<f32>,
    /// Logits of each head. Row i reads token i and the state that the main plan, or the head before, has after token
    /// i − 1; the first row reads zeros in its place.
    pub drafts: Vec<Vec<f32>>,
}

/// A loaded model and the sequence that it was loaded for.
pub struct Probe<'a> {
    input: ProbeInput<'a>,
    program: Arc<Program>,
    executor: Box<dyn Executor>,
    tables: Vec<Vec<u32>>,
}

/// A plan that ran, and what it kept.
struct Ran {
    plan: usize,
    ticket: Ticket,
}

impl<'a> Probe<'a> {
    /// Loads the weights of an opened file for one sequence.
    ///
    /// # Errors
    /// A model that cannot be run; an encoder without tokens or the other way round; unknown tokens.
    pub fn load(
        checkpoint: &Checkpoint,
        options: &OpenOptions,
        input: ProbeInput<'a>,
        progress: Option<Progress<'_>>,
    ) -> Result<Self> {
        let program = Arc::new(program(checkpoint, options, &input)?);
        let n_vocab = program.n_vocab;
        let mut ids = input.ids.iter().chain(input.encoder_ids);
        if let Some(&token) = ids.find(|&&t| t >= n_vocab) {
            return Err(EngineError::UnknownToken { token, n_vocab }.into());
        }
        let weights = FileWeights::new(checkpoint.file(), progress);
        let backend = device(options.device.as_deref())?;
        let loaded = backend.load(program.clone(), &weights, &options.load_options());
        let loaded = loaded.map_err(Error::backend(checkpoint.path()))?;
        let counts = program.caches.iter().map(|g| match g.kind {
            CacheKind::Recurrent => 1,
            CacheKind::Cross => input.encoder_ids.len().div_ceil(g.block_size as usize) as u64,
            _ => input.ids.len().div_ceil(g.block_size as usize) as u64,
        });
        let counts: Vec<u64> = counts.collect();
        let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &counts);
        let tables = arena.deal(&counts);
        let executor = loaded.open(arena);
        Ok(Probe {
            executor: executor.map_err(Error::backend(checkpoint.path()))?,
            tables,
            input,
            program,
        })
    }

    /// Runs every plan.
    ///
    /// # Errors
    /// The backend's.
    pub fn run(mut self) -> Result<Probed> {
        if !self.input.encoder_ids.is_empty() {
            self.replay(PlanRole::Encoder, self.input.encoder_ids, None)?;
        }
        let mut ran = self.replay(PlanRole::Main, self.input.ids, None)?;
        let logits = self.floats(&ran, "logits")?;
        let mut drafts = Vec::new();
        let mut state = "draft_input";
        for number in 0..self.input.drafts as u32 {
            if self.program.plan(PlanRole::Draft(number)).is_none() {
                break;
            }
            let hidden = self.shifted(&ran, state)?;
            ran = self.replay(PlanRole::Draft(number), self.input.ids, Some(hidden))?;
            state = "hidden";
            drafts.push(self.floats(&ran, "logits")?);
        }
        Ok(Probed { logits, drafts })
    }

    /// The rows of an output, each one place later.
    fn shifted(&mut self, ran: &Ran, output: &'static str) -> Result<Vec<f32>> {
        let mut rows = self.floats(ran, output)?;
        let width = self.program.n_embd as usize;
        rows.truncate(rows.len().saturating_sub(width));
        rows.splice(0..0, vec![0.0; width]);
        Ok(rows)
    }

    fn floats(&mut self, ran: &Ran, output: &'static str) -> Result<Vec<f32>> {
        let plan = &self.program.plans[ran.plan];
        let value = plan.output(output);
        let value = value.ok_or(EngineError::MissingOutput(output))?;
        let width = plan.value(value).shape.width();
        let rows = self.executor.rows(&ran.ticket, value);
        let rows = rows.map_err(EngineError::from)?;
        let mut out = vec![0.0; rows * width];
        let read = self.executor.read(&ran.ticket, value, 0..rows, &mut out);
        read.map_err(EngineError::from)?;
        Ok(out)
    }

    /// Runs a plan over tokens; `hidden` is what its input holds.
    fn replay(&mut self, role: PlanRole, ids: &[u32], hidden: Option<Vec<f32>>) -> Result<Ran> {
        let found = self.program.plan(role);
        let (number, plan) = found.ok_or(EngineError::MissingOutput("encoder"))?;
        let input: Option<ValueId> = plan.inputs.first().map(|port| port.value);
        let wanted = if role == PlanRole::Encoder {
            0
        } else {
            ids.len()
        };
        let slot = SeqSlot(0);
        let logit = |row| LogitRow {
            row: row as u32,
            ..LogitRow::default()
        };
        let work = Work {
            plan: number,
            deltas: self.deltas().into_iter().map(|d| (slot, d)).collect(),
            rows: vec![SeqRows {
                logits: (0..wanted).map(logit).collect(),
                ..SeqRows::tokens(slot, ids)
            }],
            feeds: input.into_iter().zip(hidden.map(Source::Host)).collect(),
            keep: plan.outputs.iter().map(|port| port.value).collect(),
            ..Work::default()
        };
        let ticket = self.finish(work).map_err(EngineError::from)?;
        Ok(Ran {
            plan: number,
            ticket,
        })
    }

    /// A sequence from its beginning, over all its blocks.
    fn deltas(&self) -> Vec<Delta> {
        let table = |(g, blocks): (u32, &Vec<u32>)| Delta::Table {
            group: GroupId(g),
            first: 0,
            blocks: blocks.clone(),
        };
        let tables = (0..).zip(&self.tables).map(table);
        let encoded = Delta::Encoded(self.input.encoder_ids.len() as u32);
        [Delta::Clear, encoded].into_iter().chain(tables).collect()
    }

    fn finish(&mut self, work: Work) -> std::result::Result<Ticket, tokkata_ir::BackendError> {
        let ticket = match self.executor.submit(work) {
            Ok(ticket) => ticket,
            Err(Refusal::Backend(error)) => return Err(error),
            Err(Refusal::Busy(_)) => unreachable!("nothing is under way"),
        };
        while let Some(news) = self.executor.wait()? {
            match news.failure {
                Some(error) => return Err(error),
                None if news.done => break,
                None => {}
            }
        }
        Ok(ticket)
    }
}

fn program(
    checkpoint: &Checkpoint,
    options: &OpenOptions,
    input: &ProbeInput<'_>,
) -> Result<Program> {
    let ctx = input.ids.len().max(1) as u32;
    let spec = checkpoint.spec(ctx)?;
    let file = || checkpoint.path().display().to_string();
    let why = match (&spec.encoder, input.encoder_ids.is_empty()) {
        (Some(_), true) => Some("it has an encoder, whose tokens are missing"),
        (None, false) => Some("it has no encoder"),
        _ => None,
    };
    if let Some(why) = why {
        return Err(Error::Probe { file: file(), why });
    }
    if input.drafts > spec.drafts.len() {
        let why = "it has fewer multi-token-prediction heads, or none that are supported";
        return Err(Error::Probe { file: file(), why });
    }
    let limits = Limits {
        rows: ctx.max(input.encoder_ids.len() as u32),
        logit_rows: ctx,
        seqs: 1,
        enc_rows: input.encoder_ids.len() as u32,
        ..options.limits(Some(ctx))
    };
    let mut build = BuildOptions {
        drafts: input.drafts,
        ..BuildOptions::default()
    };
    build.outputs = vec!["logits".to_owned()];
    if input.drafts > 0 {
        build.outputs.push("draft_input".to_owned());
    }
    let limits = Limits { ctx, ..limits };
    let program = tokkata_plan::build_with(&spec, &limits, &build);
    program.map_err(Error::plan(checkpoint.path()))
}
