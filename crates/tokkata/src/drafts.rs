//! How a model guesses several tokens at once. No choice here changes a text: see
//! [`speculate`](tokkata_engine::speculate).

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use tokkata_engine::Engine;
use tokkata_engine::speculate::model::{DraftModel, TokenMap};
use tokkata_engine::speculate::ngram::Ngram;
use tokkata_engine::speculate::{Drafter, Guess, OwnHead, Speculation, Wanted};
use tokkata_formats::ModelFile;
use tokkata_ir::{CacheKind, Limits, ModelSpec};
use tokkata_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::{OpenOptions, Purpose};
use crate::placement::Placement;

/// Tokens of a draft at most, unless somebody says otherwise.
const MOST: u32 = 8;
/// The same for models with states, of which each token of a draft keeps one.
const MOST_STATES: u32 = 4;

/// Tokens of a vocabulary that is worth making shorter for guesses.
const MUCH: u32 = 32_768;

/// What drafters that read the model's states are called: as the architecture of their files.
pub const STATES: [&str; 2] = ["eagle3", "dflash"];

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// What stood behind the same tokens before.
    Ngram,
    /// The multi-token-prediction heads in the model's file.
    Head,
    /// A smaller model, see [`Drafts::model`]; where that file is a drafter that reads the model's states, as the next.
    Model,
    /// A drafter that reads the model's states: EAGLE-3 or DFlash, see [`Drafts::model`].
    States,
}

/// Choices of speculation. The default is whatever needs no other file, as far as it pays.
#[derive(Clone, Debug, PartialEq)]
pub struct Drafts {
    /// Who guesses, in order; nobody turns speculation off.
    pub kinds: Vec<DraftKind>,
    /// Tokens of a draft at most.
    pub most: Option<NonZeroU32>,
    /// The smaller model's file, or the drafter's.
    pub model: Option<PathBuf>,
    /// For measurements: the share of guesses at each place that is taken for right. The text is none then.
    pub pretended: Option<Vec<f64>>,
}

impl Default for Drafts {
    fn default() -> Self {
        Drafts {
            kinds: vec![DraftKind::Ngram, DraftKind::Head],
            most: None,
            model: None,
            pretended: None,
        }
    }
}

impl Drafts {
    /// No speculation.
    #[must_use]
    pub fn none() -> Self {
        Drafts {
            kinds: Vec::new(),
            ..Drafts::default()
        }
    }

    /// The choice that is called so: `auto`, `none`, `ngram`, `mtp`, `draft`, `eagle3` or `dflash`, with the smaller model's
    /// file where one guesses.
    ///
    /// # Errors
    /// Another name; `draft`, `eagle3` and `dflash` without a file.
    pub fn named(name: &str, model: Option<PathBuf>, most: Option<NonZeroU32>) -> Result<Self> {
        let kinds = match (name, &model) {
            ("auto", Some(_)) => vec![DraftKind::Ngram, DraftKind::Model],
            ("auto", None) => Drafts::default().kinds,
            ("ngram", _) => vec![DraftKind::Ngram],
            ("mtp", _) => vec![DraftKind::Head],
            ("none", _) => Vec::new(),
            ("draft", Some(_)) => vec![DraftKind::Model],
            (name, Some(_)) if STATES.contains(&name) => vec![DraftKind::States],
            (name, None) if name == "draft" || STATES.contains(&name) => {
                return Err(Error::NoDraft);
            }
            (found, _) => {
                let found = found.to_owned();
                return Err(Error::DraftKind { found });
            }
        };
        Ok(Drafts {
            kinds,
            most,
            model,
            pretended: None,
        })
    }

    fn is_off(&self) -> bool {
        self.kinds.is_empty() && self.pretended.is_none()
    }

    /// Heads of a model that guess: they must be built with the rest, as far as it has them.
    pub(crate) fn heads(&self) -> usize {
        let builds = [DraftKind::Head, DraftKind::States];
        match self.kinds.iter().any(|kind| builds.contains(kind)) {
            true => usize::MAX,
            false => 0,
        }
    }

    /// Tokens that heads also tell apart alone, for texts that hardly have others: a quarter of a vocabulary of which one
    /// row is a great part of what a guess reads. The first ones are the common ones wherever merges give them their order.
    pub(crate) fn short(&self, spec: &ModelSpec) -> u32 {
        match self.kinds.contains(&DraftKind::Head) && spec.n_vocab >= MUCH {
            true => (spec.n_vocab / 4).next_multiple_of(256),
            false => 0,
        }
    }

    /// The drafter's file, where it reads the model's states; an error where it was said to and does not.
    pub(crate) fn states(&self, target: &Checkpoint) -> Option<Result<ModelFile>> {
        let asked = self.kinds.contains(&DraftKind::States);
        let path = self
            .model
            .as_deref()
            .filter(|_| asked || self.kinds.contains(&DraftKind::Model))?;
        let file = match ModelFile::open(path) {
            Ok(file) => file,
            Err(error) => return asked.then(|| Err(error.into())),
        };
        let arch = file
            .architecture()
            .and_then(|arch| target.registry().get(arch));
        let reads = file.directory().is_none() && arch.is_some_and(|arch| arch.guest.is_some());
        let refused = |why: &'static str| {
            let file = path.display().to_string();
            Some(Err(Error::Draft { file, why }))
        };
        let endian = |file: &ModelFile| file.layout().map(|layout| layout.endian);
        let same = target.file().directory().is_some() || endian(&file) == endian(target.file());
        match (reads, same, asked) {
            (true, true, _) => Some(Ok(file)),
            (true, false, _) => refused("its byte order is not the model's"),
            (false, _, true) => {
                refused("it reads no states of another model; use --spec-type draft")
            }
            (false, _, false) => None,
        }
    }

    /// The same choices, where the drafter's file turned out to read states: it takes the place of the model's own heads.
    pub(crate) fn by_states(&self) -> Drafts {
        let mut drafts = self.clone();
        drafts.kinds.retain(|kind| *kind != DraftKind::Head);
        for kind in &mut drafts.kinds {
            if *kind == DraftKind::Model {
                *kind = DraftKind::States;
            }
        }
        drafts.kinds.dedup();
        drafts
    }

    /// The same choices without it.
    pub(crate) fn without_states(&self) -> Drafts {
        let mut drafts = self.clone();
        let reads = [DraftKind::Model, DraftKind::States];
        drafts.kinds.retain(|kind| !reads.contains(kind));
        drafts
    }

    /// Tokens of a draft for a model.
    fn most(&self, spec: &ModelSpec) -> u32 {
        let block = spec.drafts.first().and_then(|d| d.form.block);
        let usual = match (has_states(spec), block) {
            (true, _) => MOST_STATES,
            (false, Some(block)) if self.heads() > 0 => block.size - 1,
            (false, _) => MOST,
        };
        self.most.map_or(usual, NonZeroU32::get)
    }

    /// Makes room for drafts in the limits of a model that writes.
    pub(crate) fn widen(&self, limits: &mut Limits, spec: &ModelSpec) -> Started<'_> {
        if self.is_off() {
            return Started::NONE;
        }
        let most = self.most(spec);
        let together = most.max(2 * limits.seqs).min(most * limits.seqs);
        let rows = (limits.seqs + together).min(limits.rows.max(limits.seqs));
        limits.logit_rows = limits.logit_rows.max(rows);
        if has_states(spec) {
            limits.draft = limits.draft.max(1 + most);
        }
        Started(Some((self, most, own_head(spec))))
    }
}

/// Speculation for which there is room, and how many tokens a draft has at most.
pub(crate) struct Started<'a>(Option<(&'a Drafts, u32, OwnHead)>);

/// The drafter that is built into a model's program.
fn own_head(spec: &ModelSpec) -> OwnHead {
    let form = spec.drafts.first().map(|d| d.form.clone());
    let form = form.unwrap_or_default();
    let name = match (&spec.taps, &form.block) {
        (None, _) => OwnHead::default().name,
        (Some(_), None) => STATES[0],
        (Some(_), Some(_)) => STATES[1],
    };
    OwnHead { name, form }
}

impl Started<'_> {
    /// For models that do not write.
    pub(crate) const NONE: Started<'static> = Started(None);

    /// Lets an engine speculate. Says what cannot guess, and why: the model writes without it.
    pub(crate) fn start(
        &self,
        engine: &mut Engine,
        checkpoint: &Checkpoint,
        options: &OpenOptions,
    ) -> Vec<String> {
        let (mut notes, mut drafters) = (Vec::new(), Vec::<Box<dyn Drafter>>::new());
        let Some((drafts, most, own)) = &self.0 else {
            return notes;
        };
        for kind in &drafts.kinds {
            match kind {
                DraftKind::Ngram => drafters.push(Box::new(Ngram::new())),
                DraftKind::Head | DraftKind::States if engine.has_head(&own.form) => {
                    drafters.push(Box::new(own.clone()));
                }
                DraftKind::Head if *drafts.kinds == [DraftKind::Head] => {
                    notes.push("no head guesses: the file has none that runs".to_owned());
                }
                DraftKind::Head | DraftKind::States => {}
                DraftKind::Model => match model(drafts, engine.limits(), checkpoint, options) {
                    Ok(drafter) => drafters.push(Box::new(drafter)),
                    Err(error) => notes.push(format!("no model guesses: {error}")),
                },
            }
        }
        let dear = drafters.iter().any(|d| !d.is_free());
        if drafts.pretended.is_some() && !dear {
            drafters.push(Box::new(Again));
        }
        engine.speculate(Speculation {
            drafters,
            most: *most as usize,
            adaptive: drafts.pretended.is_none(),
            pretended: drafts.pretended.clone(),
        });
        notes
    }
}

/// The smaller model, loaded for as many sequences of as many tokens as the one that it guesses for.
fn model(
    drafts: &Drafts,
    limits: &Limits,
    target: &Checkpoint,
    options: &OpenOptions,
) -> Result<DraftModel> {
    let path = drafts.model.as_deref().ok_or(Error::NoDraft)?;
    let refused = |why: &'static str| Error::Draft {
        file: path.display().to_string(),
        why,
    };
    let small = OpenOptions {
        purpose: Purpose::Text,
        ctx: NonZeroU32::new(limits.ctx),
        seqs: limits.seqs,
        logit_rows: limits.seqs,
        kv_memory: None,
        adapters: Vec::new(),
        adapter_places: 0,
        no_prefix_cache: true,
        embeds: false,
        product_inputs: false,
        quantize: None,
        drafts: Drafts::none(),
        placement: Placement::default(),
        ..options.clone()
    };
    let checkpoint = Checkpoint::open(path, &options.arch_files)?;
    checkpoint.must_write()?;
    let spec = checkpoint.spec(limits.ctx)?;
    if has_states(&spec) || spec.encoder.is_some() {
        return Err(refused(
            "it has states or an encoder, expected attention alone",
        ));
    }
    let map = token_map(target.tokenizer()?, checkpoint.tokenizer()?);
    let map = map.map_err(|()| refused(OTHER_WORDS))?;
    let model = Model::load(checkpoint, &small, None)?;
    Ok(DraftModel::new(model.into_engine(), map.map(Arc::new)))
}

const OTHER_WORDS: &str =
    "its vocabulary shares too little with the model's, expected one of the same family";
/// The share of the target's tokens, one in so many, that the draft model must have.
const SHARED: usize = 2;

/// How the tokens of one model are written for another; nothing where they are the same.
fn token_map(target: &Tokenizer, draft: &Tokenizer) -> std::result::Result<Option<TokenMap>, ()> {
    let ids = |t: &Tokenizer| 0..t.vocab_size() as u32;
    let both = target.vocab_size().min(draft.vocab_size()) as u32;
    if (0..both).all(|id| target.token_text(id) == draft.token_text(id)) {
        return Ok(None);
    }
    let known = |t: &Tokenizer| -> HashMap<Vec<u8>, u32> {
        ids(t).rev().map(|id| (name(t, id), id)).collect()
    };
    let (ours, theirs) = (known(target), known(draft));
    let mut shared = 0;
    let there = ids(target).map(|id| match theirs.get(&name(target, id)) {
        Some(&id) => {
            shared += 1;
            vec![id].into()
        }
        None => {
            let text = String::from_utf8_lossy(target.token_bytes(id));
            draft.encode(&text, EncodeOptions::default()).into()
        }
    });
    let there: Vec<Box<[u32]>> = there.collect();
    let back = ids(draft).map(|id| ours.get(&name(draft, id)).copied());
    let back = back.collect();
    match shared * SHARED >= there.len() {
        true => Ok(Some(TokenMap { there, back })),
        false => Err(()),
    }
}

/// What a token stands for: its bytes, or the text of one that has none.
fn name(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = match tokenizer.is_special(id) {
        true => &[],
        false => tokenizer.token_bytes(id),
    };
    match bytes {
        [] => [b"\0", tokenizer.token_text(id)].concat(),
        bytes => bytes.to_vec(),
    }
}

/// Guesses the newest token again, where it does not matter what is guessed.
struct Again;

impl Drafter for Again {
    fn name(&self) -> &'static str {
        "again"
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        let again = |w: &Wanted<'_>| Guess {
            tokens: vec![w.tokens.last().copied().unwrap_or(0); w.most],
            class: 0,
        };
        wanted.iter().map(again).collect()
    }
}

fn has_states(spec: &ModelSpec) -> bool {
    spec.groups.iter().any(|g| g.kind == CacheKind::Recurrent)
}
