//! The models of a server, loaded.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::Result;
use tokkata::memory::{MemoryNeed, available};
use tokkata::weights::FileWeights;
use tokkata::{BuildOptions, Checkpoint, OpenOptions, Pooling, Purpose};
use tokkata_server::Named;

use super::ServeArgs;
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

/// Loads every model that was named; without a name, the one inside the program.
pub(super) fn load(args: &ServeArgs) -> Result<Vec<Named>> {
    let (first, rest) = args.model.split_optional()?;
    let mut paths: Vec<PathBuf> = first.map(Path::to_owned).into_iter().collect();
    paths.extend(rest.iter().map(PathBuf::from));
    if paths.is_empty() && demo::BYTES.is_some() {
        say(demo::NOTE);
        paths.push(PathBuf::from(demo::NAME));
    }
    let one = |(i, path): (usize, &PathBuf)| open(args, path, args.alias.get(i));
    paths.iter().enumerate().map(one).collect()
}

fn open(args: &ServeArgs, path: &Path, alias: Option<&String>) -> Result<Named> {
    let (checkpoint, mut options) = load::open_at(path, &args.model, &args.device, &args.sizes)?;
    args.drafts.apply(&args.model, &mut options)?;
    let parallel = u32::try_from(args.limits.parallel).ok().filter(|&n| n > 0);
    let writes = checkpoint.must_write().is_ok();
    if args.embeddings || args.reranking || !writes {
        for_vectors(args, &checkpoint, &mut options)?;
    } else {
        options.seqs = parallel.unwrap_or(PARALLEL);
        let trained = checkpoint.trained_ctx().filter(|&n| n > 0);
        let own = trained.unwrap_or(CTX).min(CTX);
        options.ctx = options.ctx.or(NonZeroU32::new(own));
        let ctx = options.ctx.map_or(own, NonZeroU32::get);
        if checkpoint.spec(ctx)?.encoder.is_none() {
            options.purpose = Purpose::Both(args.pooling);
        }
        options.kv_memory = options.kv_memory.or(kv_memory(&checkpoint, &options)?);
    }
    let names = names(path, alias);
    let mut service = load::load(checkpoint, &options)?.serve()?;
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
        names[0], limits.ctx, limits.seqs
    ));
    let tags = args.tags.as_deref().unwrap_or_default().split(',');
    Ok(Named {
        id: names[0].clone(),
        aliases: names[1..].to_vec(),
        tags: tags.filter(|t| !t.is_empty()).map(str::to_owned).collect(),
        service,
        borrowed_template,
    })
}

/// What a model is called: its aliases, or else its file.
fn names(path: &Path, alias: Option<&String>) -> Vec<String> {
    let given = alias.map(String::as_str).unwrap_or_default().split(',');
    let given = given.map(str::trim).filter(|n| !n.is_empty());
    let mut names: Vec<String> = given.map(str::to_owned).collect();
    if names.is_empty() {
        let stem = match path.extension().is_some_and(|e| e == "gguf") {
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

/// Memory for the caches: whole contexts of all answers, or a third of what is free, though never less than a context.
fn kv_memory(checkpoint: &Checkpoint, options: &OpenOptions) -> Result<Option<u64>> {
    let limits = options.limits(checkpoint.trained_ctx());
    let program = checkpoint.program(&limits, &BuildOptions::default())?;
    let need = MemoryNeed::of(&program, &FileWeights::new(checkpoint.file(), None));
    let free = available().unwrap_or(u64::MAX).saturating_sub(need.weights);
    let most = (free / 3).max(need.least_caches + need.least_caches / 8);
    Ok((need.caches > most).then_some(most))
}
