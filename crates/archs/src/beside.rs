//! Two files as one: a model, and beside it the drafter that guesses for it, whose keys and tensors have a prefix.

use tokkata_core::Metadata;

use crate::error::ArchError;
use crate::view::{Found, View};

/// What stands before the drafter's keys and tensors.
pub const PREFIX: &str = "draft.";

/// Whether a name is the drafter's.
pub(crate) fn is_guest(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The drafter's architecture, where there is one.
#[must_use]
pub fn guest_of(metadata: &Metadata) -> Option<&str> {
    metadata.str(&format!("{PREFIX}general.architecture"))
}

/// A view without the drafter.
pub(crate) struct Trunk<'a>(pub(crate) &'a dyn View);

impl View for Trunk<'_> {
    fn metadata(&self) -> &Metadata {
        self.0.metadata()
    }

    fn tensor(&self, name: &str) -> Option<Found> {
        self.0.tensor(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.0.names();
        names.retain(|name| !is_guest(name));
        names
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, ArchError> {
        self.0.floats(name)
    }
}

/// The drafter of a view, under its own names.
pub(crate) struct Guest<'a> {
    view: &'a dyn View,
    metadata: Metadata,
}

impl<'a> Guest<'a> {
    pub(crate) fn new(view: &'a dyn View) -> Self {
        let mut metadata = Metadata::default();
        for (key, value) in view.metadata().iter() {
            if let Some(key) = key.strip_prefix(PREFIX) {
                metadata.insert(key, value.clone());
            }
        }
        Guest { view, metadata }
    }
}

impl View for Guest<'_> {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensor(&self, name: &str) -> Option<Found> {
        self.view.tensor(&format!("{PREFIX}{name}"))
    }

    fn names(&self) -> Vec<String> {
        let names = self.view.names().into_iter();
        let own = names.filter_map(|name| name.strip_prefix(PREFIX).map(str::to_owned));
        own.collect()
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, ArchError> {
        self.view.floats(&format!("{PREFIX}{name}"))
    }
}
