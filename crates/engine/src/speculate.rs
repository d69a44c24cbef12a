//! Guesses at what comes next, so that a step may give several tokens.
//!
//! A [`Drafter`] proposes tokens that may follow those of a request. The engine runs them as rows behind the newest
//! token, each with a draw of its own, and takes draws for as long as the next row was fed what was drawn. A draw depends
//! on (seed, position, id, logits) and a row's bits on that row alone, so every token that is taken is the one that would
//! have been drawn without drafts: drafts change how fast a text comes, and never a byte of it.
//!
//! Drafts are chains. What a grammar refuses is cut off before it runs, rejected rows are written over by the next ones,
//! and states of recurrent layers are kept row by row ([`SeqRows::keeps_states`](tokkata_ir::SeqRows::keeps_states)).

pub mod model;
pub mod ngram;
mod own;
mod pace;
mod plan;
mod rates;

use tokkata_ir::spec::DraftForm;

use crate::request::RequestId;
use crate::sampling::Sampling;
pub(crate) use own::{Draft, Own};
pub(crate) use pace::{Pace, Running};
pub(crate) use plan::{Chance, allot};
pub(crate) use rates::Rates;

/// What a guess is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The request.
    pub request: RequestId,
    /// Only requests of one family may profit from each other's texts.
    pub family: u64,
    /// Prompt and answer so far.
    pub tokens: &'a [u32],
    /// How its tokens are drawn.
    pub sampling: &'a Sampling,
    /// Tokens at most.
    pub most: usize,
}

/// A guess.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guess {
    /// What may come next, in order; none where nothing is known.
    pub tokens: Vec<u32>,
    /// How sure the drafter is, below [`CLASSES`]: acceptance is counted for each of these by itself.
    pub class: usize,
}

/// Degrees of sureness that are told apart.
pub const CLASSES: usize = 6;

/// Proposes tokens.
pub trait Drafter: Send {
    /// Its name, as `--spec-type` has it.
    fn name(&self) -> &'static str;

    /// Whether its guesses cost nothing beside a step, so that it may be asked whenever a token has come.
    fn is_free(&self) -> bool {
        true
    }

    /// How the drafter of the engine's own program is run that it stands for, where it does: the engine runs that itself.
    fn own_form(&self) -> Option<&DraftForm> {
        None
    }

    /// A guess for each request, in order.
    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess>;

    /// A request has ended with these tokens, of which no more will be heard.
    fn ended(&mut self, request: RequestId, family: u64, tokens: &[u32]) {
        let _ = (request, family, tokens);
    }

    /// The share of a class's tokens at this place that will be right where those before them are, before any was
    /// tried: 0 to 1.
    fn prior(&self, class: usize, place: usize) -> f64 {
        let _ = class;
        if place == 0 { 0.6 } else { 0.8 }
    }
}

/// The drafter of the engine's own program: its multi-token-prediction heads, or one of another file that reads its states.
#[derive(Clone, Debug)]
pub struct OwnHead {
    /// What it is called.
    pub name: &'static str,
    /// How it is run.
    pub form: DraftForm,
}

impl Default for OwnHead {
    fn default() -> Self {
        OwnHead {
            name: "mtp",
            form: DraftForm::default(),
        }
    }
}

impl Drafter for OwnHead {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_free(&self) -> bool {
        false
    }

    fn own_form(&self) -> Option<&DraftForm> {
        Some(&self.form)
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        vec![Guess::default(); wanted.len()]
    }
}

/// How an engine speculates.
pub struct Speculation {
    /// Who is asked, in order: the first that has a guess.
    pub drafters: Vec<Box<dyn Drafter>>,
    /// Tokens of a draft at most.
    pub most: usize,
    /// Whether drafts are as long as they pay, and none where none do; otherwise as long as they can be.
    pub adaptive: bool,
    /// For measurements: the share of guesses at each place that is taken for right, whatever is drawn. The text is none
    /// then.
    pub pretended: Option<Vec<f64>>,
}

/// What drafts have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Drafts that were tried.
    pub drafts: u64,
    /// Tokens that were tried.
    pub tried: u64,
    /// Those of them that were drawn.
    pub accepted: u64,
}

/// The drafters of an engine and what is known of them.
pub(crate) struct Speculator {
    pub(crate) speculation: Speculation,
    /// By drafter.
    pub(crate) rates: Vec<Rates>,
    /// By drafter: nanoseconds of a drafted token.
    pub(crate) draft_ns: Vec<f64>,
    pub(crate) counts: Vec<DraftCounts>,
    pub(crate) pace: Pace,
}

impl Speculator {
    /// Which drafter stands for the program's own.
    pub(crate) fn own_head(&self) -> Option<usize> {
        let mut drafters = self.speculation.drafters.iter();
        drafters.position(|d| d.own_form().is_some())
    }

    pub(crate) fn new(speculation: Speculation) -> Self {
        let drafters = speculation.drafters.iter();
        Speculator {
            rates: drafters
                .map(|d| Rates::new(|class, place| d.prior(class, place)))
                .collect(),
            draft_ns: vec![0.0; speculation.drafters.len()],
            counts: vec![DraftCounts::default(); speculation.drafters.len()],
            pace: Pace::default(),
            speculation,
        }
    }
}
