//! Sequences that are kept between requests.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::request::SessionId;

impl Engine {
    /// An empty sequence that stays until it is closed.
    pub fn open_session(&mut self, salt: u64) -> SessionId {
        let id = SessionId(self.next_id());
        let seq = self.cache.sequence(salt);
        self.sessions.insert(id, Some(seq));
        id
    }

    /// Gives a session's blocks back. One that is still answering ends with its answer.
    pub fn close_session(&mut self, id: SessionId) {
        if let Some(Some(seq)) = self.sessions.remove(&id) {
            self.cache.release(seq);
        }
    }

    /// The tokens whose cache a session holds; empty while it is answering.
    #[must_use]
    pub fn session_tokens(&self, id: SessionId) -> &[u32] {
        let seq = self.sessions.get(&id).and_then(Option::as_ref);
        seq.map_or(&[], |seq| seq.tokens())
    }

    /// Forgets a session's tokens from `len` on, exactly.
    ///
    /// # Errors
    /// An unknown or busy session; a window or state that cannot go back that far.
    pub fn truncate_session(&mut self, id: SessionId, len: usize) -> Result<(), EngineError> {
        let slot = self
            .sessions
            .get_mut(&id)
            .ok_or(EngineError::UnknownSession(id.0))?;
        let seq = slot.as_mut().ok_or(EngineError::SessionBusy(id.0))?;
        self.cache.truncate(seq, len)
    }

    /// A session that continues from where another one is, sharing its blocks until one of them writes.
    ///
    /// # Errors
    /// An unknown or busy session.
    pub fn fork_session(&mut self, id: SessionId) -> Result<SessionId, EngineError> {
        let slot = self
            .sessions
            .get(&id)
            .ok_or(EngineError::UnknownSession(id.0))?;
        let seq = slot.as_ref().ok_or(EngineError::SessionBusy(id.0))?;
        let copy = self.cache.fork(seq);
        let id = SessionId(self.next_id());
        self.sessions.insert(id, Some(copy));
        Ok(id)
    }
}
