//! A look at every plan of a model: logits of an encoder–decoder's decoder, and of multi-token-prediction heads.
//!
//! A [`Probe`] takes one sequence whole, in one step; it is for looking, not for serving.

use std::sync::Arc;

use tokkata_engine::{EncoderInput, Engine, EngineError, EngineOptions, EventKind, ReadRequest};
use tokkata_ir::{ArenaLayout, Limits, PlanRole, Program};
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
    engine: Engine,
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
        let counts = program.caches.iter();
        let counts: Vec<u64> = counts
            .map(|g| g.blocks_of_sequence(&program.limits))
            .collect();
        let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &counts);
        let executor = loaded.open(arena);
        let executor = executor.map_err(Error::backend(checkpoint.path()))?;
        let engine = Engine::new(program, executor, EngineOptions::default())?;
        Ok(Probe { input, engine })
    }

    /// Runs every plan.
    ///
    /// # Errors
    /// The backend's.
    pub fn run(mut self) -> Result<Probed> {
        let logits = self.read(PlanRole::Main, "logits", None)?;
        let mut drafts = Vec::new();
        let mut hidden = Vec::new();
        for number in 0..self.input.drafts as u32 {
            let role = PlanRole::Draft(number);
            if self.engine.program().plan(role).is_none() {
                break;
            }
            hidden = match number.checked_sub(1) {
                None => self.read(PlanRole::Main, "draft_input", None)?,
                Some(before) => self.read(PlanRole::Draft(before), "hidden", Some(hidden))?,
            };
            self.shift(&mut hidden);
            drafts.push(self.read(role, "logits", Some(hidden.clone()))?);
        }
        Ok(Probed { logits, drafts })
    }

    /// Each row one place later.
    fn shift(&self, rows: &mut Vec<f32>) {
        let width = rows.len() / self.input.ids.len().max(1);
        rows.truncate(rows.len().saturating_sub(width));
        rows.splice(0..0, vec![0.0; width]);
    }

    /// An output for all tokens; `hidden` is what the plan's input holds.
    fn read(
        &mut self,
        role: PlanRole,
        output: &'static str,
        hidden: Option<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let encoder = self.input.encoder_ids;
        let inputs = hidden.map(|rows| ("hidden".to_owned(), rows.into()));
        let id = self.engine.submit_read(ReadRequest {
            encoder: (!encoder.is_empty()).then(|| EncoderInput::Tokens(encoder.to_vec())),
            inputs: inputs.into_iter().collect(),
            ..ReadRequest::new(self.input.ids.to_vec(), role, output)
        })?;
        let mut rows = Vec::new();
        while !self.engine.is_idle() {
            self.engine.wait();
            while let Some(kind) = self.engine.next_event(id) {
                match kind {
                    EventKind::Values { values, .. } => rows.extend(values),
                    EventKind::Failed(error) => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(rows)
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
