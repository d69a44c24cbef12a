//! A loaded model.

use std::path::Path;
use std::sync::Arc;

use tokkata_engine::{
    CacheOptions, EncoderInput, Engine, EngineOptions, Event, EventKind, Request, RequestId,
    ScorePlan, SessionId,
};
use tokkata_ir::spec::Generation as Way;
use tokkata_ir::{Adapter, ArenaLayout, Limits, Loaded, PlanRole, Program, WeightSource};
use tokkata_plan::BuildOptions;
use tokkata_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::adapters::merged;
use crate::checkpoint::Checkpoint;
use crate::decode::TextDecoder;
use crate::diffusion::Diffusion;
use crate::drafts::Started;
use crate::error::{Bytes, Error, Result};
use crate::memory::{MemoryNeed, available};
use crate::options::{OpenOptions, Purpose};
use crate::placement::Placed;
use crate::recast::Target;
use crate::vectors::VectorShape;
use crate::weights::{FileWeights, Progress};

/// A model whose weights are loaded, with the engine that runs it.
pub struct Model {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) engine: Engine,
    device: &'static str,
    threads: usize,
    pub(crate) vectors: Option<VectorShape>,
    pub(crate) diffusion: Option<Diffusion>,
    way: Way,
    notes: Vec<String>,
}

/// A model but for its file.
struct Parts {
    engine: Engine,
    device: &'static str,
    threads: usize,
    vectors: Option<VectorShape>,
    diffusion: Option<Diffusion>,
    way: Way,
    notes: Vec<String>,
}

impl Parts {
    fn model(self, checkpoint: Checkpoint, mut notes: Vec<String>) -> Model {
        notes.extend(self.notes);
        Model {
            checkpoint,
            engine: self.engine,
            device: self.device,
            threads: self.threads,
            vectors: self.vectors,
            diffusion: self.diffusion,
            way: self.way,
            notes,
        }
    }
}

impl Model {
    /// Opens and loads the model at `path`.
    ///
    /// # Errors
    /// A file that cannot be read or run, or memory that does not suffice.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let checkpoint = Checkpoint::open(path.as_ref(), &options.arch_files)?;
        Self::load(checkpoint, options, None)
    }

    /// Loads the weights of an opened file.
    ///
    /// # Errors
    /// A model that cannot be run, or memory that does not suffice.
    pub fn load(
        checkpoint: Checkpoint,
        options: &OpenOptions,
        progress: Option<Progress<'_>>,
    ) -> Result<Self> {
        let mut options = options.clone();
        let mut notes = Vec::new();
        let found = options.drafts.states(&checkpoint);
        let Some(found) = found else {
            let parts = Self::parts(&checkpoint, &options, progress)?;
            return Ok(parts.model(checkpoint, notes));
        };
        let without = options.drafts.without_states();
        let mut checkpoint = checkpoint;
        match found {
            Ok(drafter) => {
                checkpoint = checkpoint.beside(drafter)?;
                options.drafts = options.drafts.by_states();
                match Self::parts(&checkpoint, &options, progress) {
                    Ok(parts) => return Ok(parts.model(checkpoint, notes)),
                    // Whether it was the drafter's fault shows without it.
                    Err(error) => notes.push(format!("no model guesses: {error}")),
                }
                checkpoint = checkpoint.alone()?;
            }
            Err(error) => notes.push(format!("no model guesses: {error}")),
        }
        options.drafts = without;
        let parts = Self::parts(&checkpoint, &options, progress)?;
        Ok(parts.model(checkpoint, notes))
    }

    fn parts(
        checkpoint: &Checkpoint,
        options: &OpenOptions,
        progress: Option<Progress<'_>>,
    ) -> Result<Parts> {
        let way = checkpoint.generation()?;
        let writes = !matches!(options.purpose, Purpose::Vectors(_));
        let diffusion = Diffusion::of(way).filter(|_| writes);
        let mut limits = match &diffusion {
            Some(_) => options.diffusion_limits(checkpoint.trained_ctx()),
            None => options.limits(checkpoint.trained_ctx()),
        };
        let mut build = BuildOptions {
            product_inputs: options.product_inputs,
            embeds: options.embeds,
            ..BuildOptions::default()
        };
        if let Some(size) = options.block_size {
            build.block_size = size.get();
        }
        if diffusion.is_some() {
            build.outputs = vec!["logits".to_owned()];
        }
        let recast = options
            .quantize
            .map(|p| checkpoint.recast(Target::Preset(p)))
            .transpose()?;
        let spec = match &recast {
            Some(recast) => checkpoint.spec_of(recast, limits.ctx)?,
            None => checkpoint.spec(limits.ctx)?,
        };
        if let Some(encoder) = &spec.encoder {
            let least = encoder.frames.as_ref().map_or(0, |f| f.rows);
            limits.rows = limits.rows.max(least);
            limits.enc_rows = limits.rows;
            if encoder.frames.is_some() {
                hear(&mut build, &options.aligned);
            }
        }
        let drafts = match writes && diffusion.is_none() {
            true => {
                build.drafts = options.drafts.heads();
                build.short = options.drafts.short(&spec);
                options.drafts.widen(&mut limits, &spec)
            }
            false => Started::NONE,
        };
        let (program, vectors) = match options.purpose {
            Purpose::Text => (checkpoint.program_of(&spec, &limits, &build)?, None),
            Purpose::Vectors(pooling) | Purpose::Both(pooling) => {
                let (program, shape) =
                    checkpoint.vector_program(spec, &limits, &build, (pooling, writes))?;
                (program, Some(shape))
            }
        };
        let mut program = program;
        let plain = FileWeights::new(checkpoint.file(), progress);
        let weights: &dyn WeightSource = match &recast {
            Some(recast) => recast,
            None => &plain,
        };
        let placed = Placed::new(&mut program, weights, options)?;
        let (program, backend) = (Arc::new(program), &placed.device);
        let adapter = merged(checkpoint, &options.adapters, (&*program, weights))?;
        if let Some(need) = placed.host_need(&program, weights) {
            check_memory(checkpoint, need.with(adapter.as_ref()), &limits)?;
        }
        let later = adapter.as_ref().map_or(0, Adapter::bytes);
        let load = options.load_options();
        let loaded = backend.load(program.clone(), weights, &load);
        let loaded = loaded.map_err(Error::backend(checkpoint.path()))?;
        drop(recast);
        let bytes = options.kv_memory;
        let arena = arena(&program, loaded.as_ref(), (bytes, later));
        let executor = loaded.open(arena);
        let executor = executor.map_err(Error::backend(checkpoint.path()))?;
        let cache = CacheOptions {
            no_prefix_cache: options.no_prefix_cache || diffusion.is_some(),
            shuffle_blocks: None,
        };
        let all = options;
        let options = EngineOptions {
            cache,
            // A device that works by itself is given the next step before it is done with the last.
            ahead: if matches!(placed.name, "cuda" | "wgpu") {
                3
            } else {
                1
            },
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(program, executor, options)?;
        let mut notes = placed.notes;
        notes.extend(drafts.start(&mut engine, checkpoint, all));
        if let Some(adapter) = adapter {
            let id = engine.attach(&Arc::new(adapter))?;
            engine.use_adapter(Some(id))?;
        }
        Ok(Parts {
            engine,
            device: placed.name,
            threads: load.threads,
            vectors,
            diffusion,
            way,
            notes,
        })
    }

    /// The file.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The engine, for callers that run many requests at once.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The engine alone, for whoever runs it in another way.
    #[must_use]
    pub fn into_engine(self) -> Engine {
        self.engine
    }

    /// What it goes without, and why: draft models that could not be used. One line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What it computes.
    #[must_use]
    pub fn program(&self) -> &Program {
        self.engine.program()
    }

    /// The sizes it was loaded for.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.engine.limits()
    }

    /// Width of its logits.
    #[must_use]
    pub fn n_vocab(&self) -> u32 {
        self.engine.program().n_vocab
    }

    /// Name of its device.
    #[must_use]
    pub fn device(&self) -> &'static str {
        self.device
    }

    /// Worker threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Bytes held for weights, caches and scratch.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.engine.executor().memory_bytes()
    }

    /// The tokenizer, built when it is first asked for.
    ///
    /// # Errors
    /// A file without a tokenizer, or with one that is not known.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.checkpoint.tokenizer()
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// As [`Model::tokenizer`].
    pub fn tokenize(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        Ok(self.tokenizer()?.encode(text, options))
    }

    /// A request whose answer comes as text and ends where the model ends it. The prompt of an encoder–decoder is what
    /// its encoder reads.
    ///
    /// # Errors
    /// As [`Model::tokenizer`]; a model that gives vectors alone.
    pub fn request(&self, prompt: Vec<u32>) -> Result<Request> {
        self.writes()?;
        let tokenizer = self.tokenizer()?;
        let mut request = self.prompted(prompt);
        request.stop.stop_ids = tokenizer.eog().to_vec();
        request.decoder = Some(Box::new(TextDecoder::new(tokenizer.clone())));
        Ok(request)
    }

    /// A request for what follows a prompt. The prompt of an encoder–decoder is what its encoder reads; its answer comes
    /// as ids, until it is as long as the context allows.
    #[must_use]
    pub fn prompted(&self, prompt: Vec<u32>) -> Request {
        prompted(&self.checkpoint, self.encodes(), prompt)
    }

    /// Prompts are what an encoder reads.
    pub(crate) fn encodes(&self) -> bool {
        self.program().plan(PlanRole::Encoder).is_some()
    }

    fn writes(&self) -> Result<()> {
        if crate::speech::program_hears(self.program()) {
            let file = self.checkpoint.path().display().to_string();
            return Err(Error::Speech { file });
        }
        if self.way == Way::None {
            let file = self.checkpoint.path().display().to_string();
            return Err(Error::NoText { file });
        }
        Ok(())
    }

    /// A sequence whose cache stays from one request to the next.
    pub fn open_session(&mut self) -> SessionId {
        self.engine.open_session(0)
    }

    /// Answers one request; with a session, what its prompt shares with what the session holds is not computed
    /// again. A diffusion model gives its answer whole, see [`diffusion`](crate::diffusion).
    ///
    /// # Errors
    /// A prompt that is empty or longer than the context; a model that gives vectors alone.
    pub fn generate(
        &mut self,
        request: Request,
        session: Option<SessionId>,
    ) -> Result<Generation<'_>> {
        self.writes()?;
        if self.is_diffusion() {
            let id = RequestId(0);
            let given = self.denoised(request, id)?;
            return Ok(Generation {
                engine: &mut self.engine,
                id,
                given,
                ended: false,
            });
        }
        let id = match session {
            Some(session) => self.engine.submit_to(session, request)?,
            None => self.engine.submit(request)?,
        };
        Ok(Generation {
            engine: &mut self.engine,
            id,
            given: Vec::new(),
            ended: false,
        })
    }

    /// Logits of every token, as `sink(copy, position, logits)`.
    ///
    /// # Errors
    /// Tokens that do not fit the context or the vocabulary; the backend's.
    pub fn logits(
        &mut self,
        ids: &[u32],
        plan: ScorePlan,
        sink: impl FnMut(usize, usize, &[f32]),
    ) -> Result<()> {
        Ok(self.engine.logits(ids, plan, sink)?)
    }
}

/// A request for what follows a prompt, or for what a decoder makes of it.
pub(crate) fn prompted(checkpoint: &Checkpoint, encodes: bool, prompt: Vec<u32>) -> Request {
    let (prompt, encoder) = match encodes {
        true => (
            vec![checkpoint.decoder_start()],
            Some(EncoderInput::Tokens(prompt)),
        ),
        false => (prompt, None),
    };
    Request {
        prompt,
        encoder,
        ..Request::default()
    }
}

/// What is read of a model of speech: logits, and the attention of some layers.
fn hear(build: &mut BuildOptions, layers: &[u32]) {
    build.outputs = vec!["logits".to_owned()];
    build
        .outputs
        .extend(layers.iter().map(|l| format!("cross_q.{l}")));
    build.encoder_outputs = layers.iter().map(|l| format!("cross_k.{l}")).collect();
}

fn check_memory(checkpoint: &Checkpoint, need: MemoryNeed, limits: &Limits) -> Result<()> {
    match available() {
        Some(available) if need.least() > available => Err(Error::Memory {
            file: checkpoint.path().display().to_string(),
            ctx: limits.ctx,
            needed: Bytes(need.least()),
            available: Bytes(available),
        }),
        _ => Ok(()),
    }
}

/// An arena of so many bytes; without a number, for whole contexts of all sequences, or of as many as the memory left
/// allows, one at least. Some bytes stay free for what comes after it.
pub(crate) fn arena(
    program: &Program,
    loaded: &dyn Loaded,
    (bytes, later): (Option<u64>, u64),
) -> ArenaLayout {
    let block_bytes = loaded.block_bytes();
    if let Some(bytes) = bytes {
        return ArenaLayout::new(&block_bytes, bytes);
    }
    let counts = |seqs: u64| {
        let of = |group: &tokkata_ir::CacheGroup| group.blocks_of_sequence(&program.limits) * seqs;
        program.caches.iter().map(of).collect::<Vec<u64>>()
    };
    let all = ArenaLayout::for_counts(&block_bytes, &counts(program.limits.seqs.into()));
    let available = loaded.available_bytes();
    match available.map(|bytes| bytes.saturating_sub(later)) {
        Some(available) if all.bytes() > available / 16 * 15 => {
            let one = ArenaLayout::for_counts(&block_bytes, &counts(1));
            let most = ArenaLayout::new(&block_bytes, available / 16 * 15);
            if most.bytes() > one.bytes() {
                most
            } else {
                one
            }
        }
        _ => all,
    }
}

/// The events of one answer, in order. Dropping it cancels the answer; other requests of the engine go on.
pub struct Generation<'a> {
    engine: &'a mut Engine,
    id: RequestId,
    /// Events of an answer that was given at once, newest first.
    given: Vec<Event>,
    ended: bool,
}

impl Generation<'_> {
    fn next_kind(&mut self) -> Option<EventKind> {
        if let Some(event) = self.given.pop() {
            return Some(event.kind);
        }
        loop {
            if let Some(kind) = self.engine.next_event(self.id) {
                return Some(kind);
            }
            if self.engine.is_idle() {
                return None;
            }
            self.engine.wait();
        }
    }

    /// Ends the answer; what it computed stays in its session.
    pub fn cancel(&mut self) {
        self.engine.cancel(self.id);
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<EventKind>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let kind = self.next_kind()?;
        self.ended = matches!(kind, EventKind::Finished { .. } | EventKind::Failed(_));
        Some(match kind {
            EventKind::Failed(error) => Err(error.into()),
            kind => Ok(kind),
        })
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.engine.abandon(self.id);
            // What was under way is done with, so that the session can be used at once.
            while !self.engine.is_settled(self.id) {
                self.engine.wait();
            }
        }
    }
}
