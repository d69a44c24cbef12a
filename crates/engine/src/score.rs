//! Logits of every position of given tokens.

use crate::engine::{Engine, Feed, FeedLogits, RowKind};
use crate::error::EngineError;
use crate::request::SessionId;

/// How [`Engine::logits`] feeds its tokens.
#[derive(Clone, Copy, Debug)]
pub struct ScorePlan {
    /// Tokens of a sequence per step.
    pub chunk: usize,
    /// Copies that share every step.
    pub copies: usize,
}

impl Engine {
    /// Logits of every token, as `sink(copy, position, logits)`.
    ///
    /// # Errors
    /// Tokens that do not fit the context or the vocabulary; the backend's.
    pub fn logits(
        &mut self,
        ids: &[u32],
        plan: ScorePlan,
        mut sink: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), EngineError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.check_tokens(ids)?;
        let sessions: Vec<SessionId> = (0..plan.copies).map(|_| self.open_session(0)).collect();
        let result = self.score(ids, plan, &sessions, &mut sink);
        for id in sessions {
            self.close_session(id);
        }
        result
    }

    fn score(
        &mut self,
        ids: &[u32],
        plan: ScorePlan,
        sessions: &[SessionId],
        sink: &mut impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), EngineError> {
        let port = self.logits_port()?;
        let limits = *self.limits();
        let rows = limits.rows.min(limits.logit_rows) as usize;
        let chunk = plan.chunk.clamp(1, rows.max(1));
        let together = (rows / chunk).clamp(1, limits.seqs.max(1) as usize);
        for (at, tokens) in ids.chunks(chunk).enumerate() {
            for (group, sessions) in sessions.chunks(together).enumerate() {
                let (rows, logits) = (RowKind::Prompt, FeedLogits::All);
                let one = |&session| Feed {
                    session,
                    tokens,
                    rows,
                    logits,
                };
                let feeds: Vec<Feed<'_>> = sessions.iter().map(one).collect();
                let fed = self.feed(&feeds, &[port])?;
                for (i, &first) in fed.firsts.iter().enumerate() {
                    for j in 0..tokens.len() {
                        let row = first + j;
                        let row = self.read(&fed, port, Some(row..row + 1))?;
                        sink(group * together + i, at * chunk + j, &row);
                    }
                }
            }
        }
        Ok(())
    }
}
