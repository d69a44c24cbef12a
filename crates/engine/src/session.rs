//! Sequences that are kept between requests.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::request::SessionId;
use crate::sequence::Sequence;

/// A sequence that is kept, unless a request is using it.
#[derive(Debug, Default)]
pub(crate) struct Session {
    seq: Option<Sequence>,
    /// Larger the later it was used.
    used: u64,
}

impl Session {
    pub(crate) fn put(&mut self, seq: Sequence) {
        self.seq = Some(seq);
    }

    pub(crate) fn take(&mut self) -> Option<Sequence> {
        self.seq.take()
    }

    pub(crate) fn seq(&self) -> Option<&Sequence> {
        self.seq.as_ref()
    }

    pub(crate) fn seq_mut(&mut self) -> Option<&mut Sequence> {
        self.seq.as_mut()
    }
}

impl Engine {
    /// An empty sequence that stays until it is closed.
    pub fn open_session(&mut self, salt: u64) -> SessionId {
        let seq = self.sequence(salt, self.usual);
        self.keep_session(seq)
    }

    fn keep_session(&mut self, seq: Sequence) -> SessionId {
        let id = SessionId(self.next_id());
        let session = Session {
            seq: Some(seq),
            used: id.0,
        };
        self.sessions.insert(id, session);
        id
    }

    /// Gives a session's blocks back. One that is still answering ends with its answer.
    pub fn close_session(&mut self, id: SessionId) {
        if let Some(seq) = self.sessions.remove(&id).and_then(|s| s.seq) {
            self.cache.release(seq);
        }
    }

    /// The tokens whose cache a session holds; empty while it is answering.
    #[must_use]
    pub fn session_tokens(&self, id: SessionId) -> &[u32] {
        let seq = self.sessions.get(&id).and_then(Session::seq);
        seq.map_or(&[], |seq| seq.tokens())
    }

    pub(crate) fn session(&mut self, id: SessionId) -> Result<&mut Sequence, EngineError> {
        let used = self.next_id();
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or(EngineError::UnknownSession(id.0))?;
        session.used = used;
        session.seq_mut().ok_or(EngineError::SessionBusy(id.0))
    }

    /// Forgets a session's tokens from `len` on, exactly.
    ///
    /// # Errors
    /// An unknown or busy session; a window or state that cannot go back that far.
    pub fn truncate_session(&mut self, id: SessionId, len: usize) -> Result<(), EngineError> {
        self.session(id)?;
        let session = self.sessions.get_mut(&id).and_then(Session::seq_mut);
        let seq = session.expect("it was found");
        self.cache.truncate(seq, len)
    }

    /// A session that continues from where another one is, sharing its blocks until one of them writes.
    ///
    /// # Errors
    /// An unknown or busy session.
    pub fn fork_session(&mut self, id: SessionId) -> Result<SessionId, EngineError> {
        self.session(id)?;
        let session = self.sessions.get(&id).and_then(Session::seq);
        let copy = self.cache.fork(session.expect("it was found"));
        Ok(self.keep_session(copy))
    }

    /// Forgets every stored prefix.
    pub fn forget_prefixes(&mut self) {
        self.cache.forget();
    }

    /// Lets go of the blocks of the session that was used longest ago, of those that are not answering. What is stored
    /// of it stays until its blocks are needed.
    pub(crate) fn yield_session(&mut self) -> bool {
        let parked = |(_, s): &(&SessionId, &Session)| s.seq().is_some_and(|q| !q.is_empty());
        let oldest = self.sessions.iter().filter(parked);
        let Some(id) = oldest.min_by_key(|(_, s)| s.used).map(|(&id, _)| id) else {
            return false;
        };
        let session = self.sessions.get_mut(&id).and_then(Session::seq_mut);
        let seq = session.expect("it is parked");
        self.cache.snapshot(seq);
        self.cache.clear(seq);
        true
    }
}
