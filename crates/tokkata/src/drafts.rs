//! How a model guesses several tokens at once. No choice here changes a text: see
//! [`speculate`](tokkata_engine::speculate).

use std::num::NonZeroU32;

use tokkata_engine::Engine;
use tokkata_engine::speculate::ngram::Ngram;
use tokkata_engine::speculate::{Drafter, Guess, Speculation, Wanted};
use tokkata_ir::{CacheKind, Limits, ModelSpec};

/// Tokens of a draft at most, unless somebody says otherwise.
const MOST: u32 = 8;
/// The same for models with states, of which each token of a draft keeps one.
const MOST_STATES: u32 = 4;

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// What stood behind the same tokens before.
    Ngram,
}

/// Choices of speculation. The default is whatever needs no other file, as far as it pays.
#[derive(Clone, Debug, PartialEq)]
pub struct Drafts {
    /// Who guesses, in order; nobody turns speculation off.
    pub kinds: Vec<DraftKind>,
    /// Tokens of a draft at most.
    pub most: Option<NonZeroU32>,
    /// For measurements: the share of guesses at each place that is taken for right. The text is none then.
    pub pretended: Option<Vec<f64>>,
}

impl Default for Drafts {
    fn default() -> Self {
        Drafts {
            kinds: vec![DraftKind::Ngram],
            most: None,
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

    fn is_off(&self) -> bool {
        self.kinds.is_empty() && self.pretended.is_none()
    }

    /// Tokens of a draft for a model.
    fn most(&self, spec: &ModelSpec) -> u32 {
        let usual = match has_states(spec) {
            true => MOST_STATES,
            false => MOST,
        };
        self.most.map_or(usual, NonZeroU32::get)
    }

    /// Makes room for drafts in the limits of a model that writes.
    pub(crate) fn widen(&self, limits: &mut Limits, spec: &ModelSpec) -> Started<'_> {
        if self.is_off() {
            return Started(None);
        }
        let most = self.most(spec);
        let together = most.max(2 * limits.seqs).min(most * limits.seqs);
        let rows = (limits.seqs + together).min(limits.rows.max(limits.seqs));
        limits.logit_rows = limits.logit_rows.max(rows);
        if has_states(spec) {
            limits.draft = limits.draft.max(1 + most);
        }
        Started(Some((self, most)))
    }
}

/// Speculation for which there is room, and how many tokens a draft has at most.
pub(crate) struct Started<'a>(Option<(&'a Drafts, u32)>);

impl Started<'_> {
    /// For models that do not write.
    pub(crate) const NONE: Started<'static> = Started(None);

    /// Lets an engine speculate.
    pub(crate) fn start(&self, engine: &mut Engine) {
        let Some((drafts, most)) = self.0 else {
            return;
        };
        let drafter = |kind: &DraftKind| -> Box<dyn Drafter> {
            match kind {
                DraftKind::Ngram => Box::new(Ngram::new()),
            }
        };
        let pretends = drafts.pretended.is_some();
        let again = pretends.then(|| Box::new(Again) as Box<dyn Drafter>);
        engine.speculate(Speculation {
            drafters: drafts.kinds.iter().map(drafter).chain(again).collect(),
            most: most as usize,
            adaptive: drafts.pretended.is_none(),
            pretended: drafts.pretended.clone(),
        });
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
