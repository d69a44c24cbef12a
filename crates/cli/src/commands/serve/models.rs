//! The models of a server, loaded.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use tokkata::memory::{MemoryNeed, available};
use tokkata::speech::{HYPOTHESES, Room, Transcriber};
use tokkata::weights::FileWeights;
use tokkata::{BuildOptions, Checkpoint, OpenOptions, Pooling, Purpose};
use tokkata_server::{Kind, Library, Offer, Open, Opened, Stock};

use super::{ServeArgs, folder};
use crate::console::say;
use crate::{demo, load};

/// Answers under way at once, unless it is said otherwise.
const PARALLEL: u32 = 8;
/// Context of a model that writes, unless it is said otherwise or the model has less.
const CTX: u32 = 16_384;
/// The longest text that gets a vector, unless it is said otherwise or the model has less.
const TEXT: u32 = 8192;
/// Texts of a step.
const TEXTS: u32 = 16;
/// Recordings that are heard side by side, unless it is said otherwise.
const RECORDINGS: u32 = 4;
/// Caches and work space of a model of speech, beside what grows with its weights.
const SPEECH_CACHES: u64 = 256 << 20;

/// Every model that was named, loaded as far as there is room; without a name, the one inside the program.
pub(super) fn stock(args: &Arc<ServeArgs>, budget: Option<u64>) -> Result<Stock> {
    let (first, rest) = args.model.split_optional()?;
    let mut paths: Vec<PathBuf> = first.map(Path::to_owned).into_iter().collect();
    paths.extend(rest.iter().map(PathBuf::from));
    let mut folder = args.several.models_dir.clone();
    // The model in the box is meant where a folder has its name.
    let in_the_box = |path: &Path| demo::BYTES.is_some() && path == Path::new(demo::NAME);
    let is_folder = |path: &PathBuf| folder::is_folder(path) && !in_the_box(path);
    if let Some(i) = paths.iter().position(is_folder) {
        folder = folder.or_else(|| Some(paths.remove(i)));
    }
    if paths.is_empty() && folder.is_none() && demo::BYTES.is_some() {
        say(demo::NOTE);
        paths.push(PathBuf::from(demo::NAME));
    }
    let shelf = folder::Shelf::new(args, folder)?;
    let budget = budget.unwrap_or(u64::MAX);
    let most = args.several.models_max.map_or(usize::MAX, |n| n as usize);
    let (mut offers, mut taken, mut count) = (Vec::new(), 0_u64, 0);
    for (i, path) in paths.iter().enumerate() {
        let opener = Opener::new(args, path, args.alias.get(i))?;
        let need = opener.measure(budget)?;
        let mut offer = opener.offer();
        if count == 0 || (count < most && taken.saturating_add(need) <= budget) {
            let opened = opener.load(budget)?;
            offer.opened = Some(opened);
            taken = taken.saturating_add(need);
            count += 1;
        } else {
            say(&format!("{}: loaded when somebody asks for it", offer.id));
        }
        offers.push(offer);
    }
    Ok(Stock {
        offers,
        library: shelf.map(|shelf| Arc::new(shelf) as Arc<dyn Library>),
    })
}

/// What loads a model of a path, whenever it is asked for.
#[derive(Clone)]
pub(super) struct Opener {
    args: Arc<ServeArgs>,
    path: PathBuf,
    names: Vec<String>,
    kind: Kind,
}

impl Open for Opener {
    fn need(&self, budget: u64) -> std::result::Result<u64, String> {
        self.measure(budget).map_err(|e| format!("{e:#}"))
    }

    fn open(&self, budget: u64) -> std::result::Result<Opened, String> {
        self.load(budget).map_err(|e| format!("{e:#}"))
    }
}

impl Opener {
    fn new(args: &Arc<ServeArgs>, path: &Path, alias: Option<&String>) -> Result<Self> {
        let checkpoint = load::checkpoint(path, args.model.arch_files())?;
        Ok(Opener {
            args: Arc::clone(args),
            path: path.to_owned(),
            names: names(path, alias),
            kind: kind_of(&checkpoint),
        })
    }

    /// One of a folder, of which no weights are read before it is asked for.
    pub(super) fn unread(args: &Arc<ServeArgs>, path: &Path, name: String, kind: Kind) -> Self {
        Opener {
            args: Arc::clone(args),
            path: path.to_owned(),
            names: vec![name],
            kind,
        }
    }

    /// The model as a server lists it.
    pub(super) fn offer(&self) -> Offer {
        let tags = self.args.tags.as_deref().unwrap_or_default().split(',');
        Offer {
            id: self.names[0].clone(),
            aliases: self.names[1..].to_vec(),
            tags: tags.filter(|t| !t.is_empty()).map(str::to_owned).collect(),
            path: self.path.clone(),
            kind: self.kind,
            opener: Some(Arc::new(self.clone())),
            opened: None,
        }
    }

    /// The file, and the options to load it with where all models together may have `budget`.
    fn prepared(&self, budget: u64) -> Result<(Checkpoint, OpenOptions)> {
        let args = &self.args;
        let (checkpoint, mut options) =
            load::open_at(&self.path, &args.model, &args.device, &args.sizes)?;
        if self.kind == Kind::Speech {
            return Ok((checkpoint, options));
        }
        args.drafts.apply(&args.model, &mut options)?;
        let writes = checkpoint.must_write().is_ok();
        if args.embeddings || args.reranking || !writes {
            for_vectors(args, &checkpoint, &mut options)?;
            return Ok((checkpoint, options));
        }
        options.seqs = args.parallel().unwrap_or(PARALLEL);
        let trained = checkpoint.trained_ctx().filter(|&n| n > 0);
        let own = trained.unwrap_or(CTX).min(CTX);
        options.ctx = options.ctx.or(NonZeroU32::new(own));
        let ctx = options.ctx.map_or(own, NonZeroU32::get);
        if checkpoint.spec(ctx)?.encoder.is_none() {
            options.purpose = Purpose::Both(args.pooling);
        }
        options.kv_memory = options
            .kv_memory
            .or(kv_memory(&checkpoint, &options, budget)?);
        Ok((checkpoint, options))
    }

    /// Bytes that it takes.
    fn measure(&self, budget: u64) -> Result<u64> {
        let (checkpoint, options) = self.prepared(budget)?;
        if self.kind == Kind::Speech {
            let bytes = checkpoint
                .file()
                .tensors()
                .iter()
                .map(|t| t.bytes)
                .sum::<u64>();
            return Ok(bytes + bytes / 4 + SPEECH_CACHES);
        }
        let need = need(&checkpoint, &options)?;
        let caches = options.kv_memory.unwrap_or(need.caches);
        let drafts = options.drafts.model.as_ref();
        let draft = drafts.and_then(|path| std::fs::metadata(path).ok());
        Ok(need.weights + need.logits + caches + draft.map_or(0, |f| f.len()))
    }

    fn load(&self, budget: u64) -> Result<Opened> {
        let (checkpoint, options) = self.prepared(budget)?;
        match self.kind {
            Kind::Speech => self.load_speech(checkpoint, &options),
            Kind::Text => self.load_text(checkpoint, &options),
        }
    }

    fn load_speech(&self, checkpoint: Checkpoint, options: &OpenOptions) -> Result<Opened> {
        let room = Room {
            windows: self.args.parallel().unwrap_or(RECORDINGS),
            hypotheses: HYPOTHESES,
            words: true,
        };
        let transcriber = Transcriber::load(checkpoint, options, room, None)?;
        say(&format!(
            "{}: speech, {} recordings at once",
            self.names[0], room.windows
        ));
        Ok(Opened::Speech(Box::new(transcriber.serve()?)))
    }

    fn load_text(&self, checkpoint: Checkpoint, options: &OpenOptions) -> Result<Opened> {
        let args = &self.args;
        let mut service = load::load(checkpoint, options)?.serve()?;
        let template = match (&args.chat_template, &args.chat_template_file) {
            (Some(template), _) => Some(template.clone()),
            (None, Some(path)) => Some(crate::commands::template::read_template(path)?),
            (None, None) => None,
        };
        let mut borrowed_template = false;
        if template.is_some() {
            service.set_template(template);
        } else if service.writes() && service.template().is_none() {
            say(
                "the file has no chat template, and chatml stands in for it; --chat-template names another",
            );
            service.set_template(crate::commands::run::named::template("chatml").ok());
            borrowed_template = true;
        }
        let limits = service.limits();
        say(&format!(
            "{}: context of {} tokens, {} at once",
            self.names[0], limits.ctx, limits.seqs
        ));
        Ok(Opened::Text {
            service: Box::new(service),
            borrowed_template,
        })
    }
}

/// What a model is asked for.
pub(super) fn kind_of(checkpoint: &Checkpoint) -> Kind {
    match tokkata::speech::hears(checkpoint) {
        true => Kind::Speech,
        false => Kind::Text,
    }
}

/// What a model is called: its aliases, or else its file.
fn names(path: &Path, alias: Option<&String>) -> Vec<String> {
    let given = alias.map(String::as_str).unwrap_or_default().split(',');
    let given = given.map(str::trim).filter(|n| !n.is_empty());
    let mut names: Vec<String> = given.map(str::to_owned).collect();
    if names.is_empty() {
        let stem = match path.extension().is_some_and(|e| e == "gguf" || e == "bin") {
            true => path.file_stem(),
            false => path.file_name(),
        };
        let stem = stem.unwrap_or(path.as_os_str());
        names.push(stem.to_string_lossy().into_owned());
    }
    names
}

/// Texts run in one step where their rows see each other, so a step holds the longest.
fn for_vectors(args: &ServeArgs, checkpoint: &Checkpoint, options: &mut OpenOptions) -> Result<()> {
    let pooling = if args.reranking {
        Some(Pooling::Rank)
    } else {
        args.pooling
    };
    options.purpose = Purpose::Vectors(pooling);
    let trained = checkpoint.trained_ctx().filter(|&n| n > 0);
    let own = trained.unwrap_or(TEXT).min(TEXT);
    let ctx = options.ctx.map_or(own, NonZeroU32::get);
    options.ctx = NonZeroU32::new(ctx);
    options.rows = options.rows.max(ctx);
    options.seqs = match checkpoint.spec(ctx)?.bidirectional {
        true => TEXTS,
        false => 1,
    };
    options.logit_rows = options.seqs;
    options.no_prefix_cache = true;
    Ok(())
}

/// What a model takes, with room for its drafts.
fn need(checkpoint: &Checkpoint, options: &OpenOptions) -> Result<MemoryNeed> {
    let limits = options.limits_of(checkpoint)?;
    let program = checkpoint.program(&limits, &BuildOptions::default())?;
    Ok(MemoryNeed::of(
        &program,
        &FileWeights::new(checkpoint.file(), None),
    ))
}

/// Memory for the caches: whole contexts of all answers, or a third of what is left of the budget or of the machine's
/// memory, though never less than a context.
fn kv_memory(checkpoint: &Checkpoint, options: &OpenOptions, budget: u64) -> Result<Option<u64>> {
    let need = need(checkpoint, options)?;
    let all = available().unwrap_or(u64::MAX).min(budget);
    let free = all.saturating_sub(need.weights + need.logits);
    let most = (free / 3).max(need.least_caches + need.least_caches / 8);
    Ok((need.caches > most).then_some(most))
}
