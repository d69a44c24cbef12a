//! What a server is given to serve.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokkata::Service;
use tokkata::speech::Listener;

use crate::served::Named;

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It writes text, or gives vectors of texts.
    Text,
    /// It hears speech.
    Speech,
}

/// A model that a server may load, or has been given loaded.
pub struct Offer {
    /// What answers call it.
    pub id: String,
    /// Other names that callers may use.
    pub aliases: Vec<String>,
    /// Words that describe it, for lists of models.
    pub tags: Vec<String>,
    /// Its file.
    pub path: PathBuf,
    /// What it does.
    pub kind: Kind,
    /// What loads it; a model without one stays in memory.
    pub opener: Option<Arc<dyn Open>>,
    /// The model, where it is loaded already.
    pub opened: Option<Opened>,
}

/// How a model comes into memory. Each call may take long, and blocks.
pub trait Open: Send + Sync {
    /// Bytes that it takes, where all models together may have `budget`.
    ///
    /// # Errors
    /// A line that says why it cannot be loaded.
    fn need(&self, budget: u64) -> Result<u64, String>;

    /// Loads it, to take no more than what [`Open::need`] said.
    ///
    /// # Errors
    /// A line that says why it cannot be loaded.
    fn open(&self, budget: u64) -> Result<Opened, String>;
}

/// A model in memory.
pub enum Opened {
    /// One for texts.
    Text {
        /// The model.
        service: Box<Service>,
        /// Its chat template is a common one, since its file has none.
        borrowed_template: bool,
    },
    /// One that hears.
    Speech(Box<Listener>),
}

/// Where models are found while a server runs, and where callers may put others.
pub trait Library: Send + Sync {
    /// What there is now.
    fn scan(&self) -> Vec<Offer>;

    /// Fetches a model by its name; `tell` hears the file, its bytes so far, and all of them.
    ///
    /// # Errors
    /// A line that says why it cannot be had.
    fn pull(&self, name: &str, tell: &mut dyn FnMut(&str, u64, u64)) -> Result<Offer, String>;

    /// Gives a file that is here another name, under which the next [`Library::scan`] finds it.
    ///
    /// # Errors
    /// A line that says why not.
    fn link(&self, file: &Path, name: &str) -> Result<(), String>;

    /// Deletes the file of a model that [`Library::scan`] or [`Library::pull`] gave.
    ///
    /// # Errors
    /// A line that says why not.
    fn remove(&self, file: &Path) -> Result<(), String>;

    /// A folder for files that callers send, until a model is made of them; `None` where they may send none.
    fn uploads(&self) -> Option<PathBuf>;
}

/// All that a server is given.
#[derive(Default)]
pub struct Stock {
    /// Models by name. The first one answers where none is named.
    pub offers: Vec<Offer>,
    /// Where others are found.
    pub library: Option<Arc<dyn Library>>,
}

impl From<Named> for Offer {
    fn from(named: Named) -> Self {
        Offer {
            id: named.id,
            aliases: named.aliases,
            tags: named.tags,
            path: named.service.checkpoint().path().to_owned(),
            kind: Kind::Text,
            opener: None,
            opened: Some(Opened::Text {
                service: Box::new(named.service),
                borrowed_template: named.borrowed_template,
            }),
        }
    }
}

impl From<Vec<Named>> for Stock {
    fn from(models: Vec<Named>) -> Self {
        Stock {
            offers: models.into_iter().map(Offer::from).collect(),
            library: None,
        }
    }
}
