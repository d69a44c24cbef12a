//! Sessions taken out of the engine whole, and put back: tokens and the contents of their cache blocks.

use tokkata_ir::step::NO_BLOCK;
use tokkata_ir::{GroupId, Work};

use super::Engine;
use crate::error::EngineError;
use crate::request::SessionId;

/// What a session holds, apart from any device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptSession {
    /// Tokens whose cache is held.
    pub tokens: Vec<u32>,
    /// By token: whether its row was an answer's.
    pub answers: Vec<bool>,
    /// Cache group, place in its table, and the block in canonical form.
    pub blocks: Vec<(u32, u32, Vec<f32>)>,
}

impl Engine {
    /// The tokens whose cache a session holds.
    ///
    /// # Errors
    /// An unknown or busy session.
    pub fn held_by(&mut self, id: SessionId) -> Result<&[u32], EngineError> {
        Ok(self.session(id)?.tokens())
    }

    /// Takes a copy of what a session holds, while no request is under way.
    ///
    /// # Errors
    /// An unknown or busy session; one whose context has moved, or that reads an encoder; the device's.
    pub fn copy_session(&mut self, id: SessionId) -> Result<KeptSession, EngineError> {
        if !self.is_idle() {
            return Err(EngineError::SessionBusy(id.0));
        }
        self.session(id)?;
        let seq = self.sessions.get(&id).and_then(|s| s.seq());
        let seq = seq.expect("it was found");
        if seq.moved.is_some() || seq.encoded > 0 {
            return Err(EngineError::FixedContext(
                "its session has moved, or reads an encoder",
            ));
        }
        let mut kept = KeptSession {
            tokens: seq.tokens.clone(),
            answers: seq.answers.clone(),
            blocks: Vec::new(),
        };
        let mut exports = Vec::new();
        for g in 0..self.program.caches.len() {
            for place in self.cache.held_from(seq, g, 0) {
                exports.push((GroupId(g as u32), seq.tables[g][place]));
                kept.blocks.push((g as u32, place as u32, Vec::new()));
            }
        }
        let data = self.exported(exports)?;
        for (block, data) in kept.blocks.iter_mut().zip(data) {
            block.2 = data;
        }
        Ok(kept)
    }

    /// A session that holds what [`Engine::copy_session`] took, while no request is under way.
    ///
    /// # Errors
    /// Tokens or blocks that do not fit the program; a full cache; the device's.
    pub fn paste_session(&mut self, kept: KeptSession) -> Result<SessionId, EngineError> {
        let id = self.open_session(0);
        let done = match self.is_idle() {
            true => self.fill_session(id, kept),
            false => Err(EngineError::SessionBusy(id.0)),
        };
        if done.is_err() {
            self.close_session(id);
        }
        done.map(|()| id)
    }

    fn fill_session(&mut self, id: SessionId, kept: KeptSession) -> Result<(), EngineError> {
        const UNFIT: EngineError =
            EngineError::FixedContext("the kept session is of another model or cache");
        if kept.tokens.is_empty() {
            return Ok(());
        }
        self.check_tokens(&kept.tokens)?;
        if kept.answers.len() != kept.tokens.len() {
            return Err(UNFIT);
        }
        let session = self.sessions.get_mut(&id).and_then(|s| s.seq_mut());
        let seq = session.expect("it was opened");
        let mut work = Work {
            plan: self.ports.plan,
            copies: self.cache.reserve(seq, kept.tokens.len())?,
            ..Work::default()
        };
        for (g, place, data) in kept.blocks {
            let table = seq.tables.get(g as usize).ok_or(UNFIT)?;
            let block = table.get(place as usize).filter(|&&b| b != NO_BLOCK);
            work.imports.push((GroupId(g), *block.ok_or(UNFIT)?, data));
        }
        let targets: Vec<(GroupId, u32)> = work.imports.iter().map(|i| (i.0, i.1)).collect();
        let there = self.exported(targets)?;
        let fits = |(a, b): (&Vec<f32>, &(GroupId, u32, Vec<f32>))| a.len() == b.2.len();
        if !there.iter().zip(&work.imports).all(fits) {
            return Err(UNFIT);
        }
        self.run(work)?;
        let session = self.sessions.get_mut(&id).and_then(|s| s.seq_mut());
        let seq = session.expect("it was opened");
        let mut at = 0;
        for run in kept.answers.chunk_by(|a, b| a == b) {
            let tokens = &kept.tokens[at..at + run.len()];
            self.cache.commit(seq, tokens, run[0]);
            at += run.len();
        }
        Ok(())
    }

    /// The contents of blocks in canonical form.
    fn exported(&mut self, exports: Vec<(GroupId, u32)>) -> Result<Vec<Vec<f32>>, EngineError> {
        let count = exports.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let work = Work {
            plan: self.ports.plan,
            exports,
            ..Work::default()
        };
        let ticket = self.run(work)?;
        let one = |i| Ok(self.executor.exported(&ticket, i)?);
        (0..count).map(one).collect()
    }
}
