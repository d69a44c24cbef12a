//! Adapters: which there are, and which a sequence goes through.

use std::sync::Arc;

use tokkata_ir::Adapter;
use tokkata_ir::sample::uniform;

use super::Engine;
use crate::error::EngineError;
use crate::sequence::Sequence;

/// Names an adapter of one engine, for good: what was stored under it is no other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u64);

/// What a request goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Through {
    /// What the engine was told to use where nothing else is said.
    #[default]
    Usual,
    /// The weights as they were loaded.
    Bare,
    /// An adapter.
    Adapter(AdapterId),
}

/// An adapter, and the executor's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) id: AdapterId,
    pub(crate) number: u32,
}

/// Sequences share blocks only within one salt and one adapter.
pub(crate) fn family(salt: u64, adapter: Option<Attached>) -> u64 {
    adapter.map_or(salt, |a| uniform(salt, a.id.0))
}

impl Engine {
    /// Takes an adapter that requests may name.
    ///
    /// # Errors
    /// One that does not fit the program, or one more than it was built for; memory.
    pub fn attach(&mut self, adapter: &Arc<Adapter>) -> Result<AdapterId, EngineError> {
        let number = self.executor.attach(adapter)?;
        let id = AdapterId(self.next_id());
        self.adapters.push(Attached { id, number });
        Ok(id)
    }

    /// Lets an adapter go. It is no longer what is used where nothing is said.
    ///
    /// # Errors
    /// One that is not there; one that a request goes through.
    pub fn detach(&mut self, id: AdapterId) -> Result<(), EngineError> {
        let adapter = self.attached(Through::Adapter(id))?;
        let mut tasks = self
            .waiting
            .iter()
            .chain(&self.running)
            .chain(&self.leaving);
        if tasks.any(|task| task.seq.adapter == adapter) {
            return Err(EngineError::AdapterBusy(id.0));
        }
        self.adapters.retain(|a| a.id != id);
        self.usual = self.usual.filter(|a| a.id != id);
        self.executor.detach(adapter.map_or(0, |a| a.number));
        Ok(())
    }

    /// What requests go through that say nothing, and rows that are no request's.
    ///
    /// # Errors
    /// An adapter that is not there.
    pub fn use_adapter(&mut self, id: Option<AdapterId>) -> Result<(), EngineError> {
        self.usual = self.attached(id.map_or(Through::Bare, Through::Adapter))?;
        Ok(())
    }

    pub(crate) fn attached(&self, through: Through) -> Result<Option<Attached>, EngineError> {
        let id = match through {
            Through::Usual => return Ok(self.usual),
            Through::Bare => return Ok(None),
            Through::Adapter(id) => id,
        };
        let found = self.adapters.iter().find(|a| a.id == id).copied();
        found.map(Some).ok_or(EngineError::UnknownAdapter(id.0))
    }

    /// An empty sequence through an adapter.
    pub(crate) fn sequence(&self, salt: u64, adapter: Option<Attached>) -> Sequence {
        let mut seq = self.cache.sequence(salt);
        seq.adapter = adapter;
        seq
    }

    /// Leads a sequence through another adapter: what it holds does not count there.
    pub(crate) fn lead_through(&mut self, seq: &mut Sequence, adapter: Option<Attached>) {
        if seq.adapter != adapter {
            self.cache.snapshot(seq);
            self.cache.clear(seq);
            seq.adapter = adapter;
        }
    }
}
