//! A look at every plan of a model: logits of an encoder–decoder's decoder, and of multi-token-prediction heads.
//!
//! A [`Probe`] takes one sequence whole, in one step; it is for looking, not for serving.

use std::sync::Arc;

use tokkata_engine::EngineError;
use tokkata_ir::step::{ROW_PROMPT, SeqStep};
use tokkata_ir::{
    CacheKind, Instance, Limits, PlanRole, Program, StepBuilder, StepInputs, ValueId,
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
    instance: Box<dyn Instance>,
    tables: Vec<Vec<u32>>,
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
        let instance = backend.load(program.clone(), &weights, &options.load_options());
        let instance = instance.map_err(Error::backend(checkpoint.path()))?;
        let tables = program.caches.iter().map(|g| {
            let places = match g.kind {
                CacheKind::Recurrent => 1,
                CacheKind::Cross => input.encoder_ids.len().div_ceil(g.block_size as usize),
                _ => input.ids.len().div_ceil(g.block_size as usize),
            };
            (0..places as u32).collect()
        });
        Ok(Probe {
            tables: tables.collect(),
            input,
            program,
            instance,
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
        let main = self.replay(PlanRole::Main, self.input.ids, None)?;
        let logits = self.floats(main, "logits")?;
        let mut drafts = Vec::new();
        let mut plan = main;
        let mut state = "draft_input";
        for number in 0..self.input.drafts as u32 {
            if self.program.plan(PlanRole::Draft(number)).is_none() {
                break;
            }
            let hidden = self.shifted(plan, state)?;
            plan = self.replay(PlanRole::Draft(number), self.input.ids, Some(hidden))?;
            state = "hidden";
            drafts.push(self.floats(plan, "logits")?);
        }
        Ok(Probed { logits, drafts })
    }

    /// The rows of an output, each one place later.
    fn shifted(&self, plan: usize, output: &'static str) -> Result<Vec<f32>> {
        let mut rows = self.floats(plan, output)?;
        let width = self.program.n_embd as usize;
        rows.truncate(rows.len().saturating_sub(width));
        rows.splice(0..0, vec![0.0; width]);
        Ok(rows)
    }

    fn floats(&self, plan: usize, output: &'static str) -> Result<Vec<f32>> {
        let value = self.program.plans[plan].output(output);
        let value = value.ok_or(EngineError::MissingOutput(output))?;
        Ok(self.instance.floats(value).to_vec())
    }

    /// Runs a plan over tokens; `hidden` is what its input holds.
    fn replay(&mut self, role: PlanRole, ids: &[u32], hidden: Option<Vec<f32>>) -> Result<usize> {
        let found = self.program.plan(role);
        let (number, plan) = found.ok_or(EngineError::MissingOutput("encoder"))?;
        let input: Option<ValueId> = plan.inputs.first().map(|port| port.value);
        let logits: Vec<usize> = if role == PlanRole::Encoder {
            Vec::new()
        } else {
            (0..ids.len()).collect()
        };
        let mut builder = StepBuilder::new(&self.program.limits, &self.program.caches);
        builder.push(&SeqStep {
            tokens: ids,
            enc_len: self.input.encoder_ids.len(),
            tables: &self.tables,
            logits: &logits,
            flags: ROW_PROMPT,
            ..SeqStep::default()
        });
        let inputs = StepInputs {
            values: input.into_iter().zip(hidden).collect(),
            ..StepInputs::default()
        };
        let replayed = self.instance.replay(number, builder.finish(), &inputs);
        replayed.map_err(EngineError::from)?;
        Ok(number)
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
