//! Sequences that stay, and steps by hand, beside the requests of a [`Service`].
//!
//! ```no_run
//! # fn main() -> tokkata::Result<()> {
//! let service = tokkata::Model::open("model.gguf", &tokkata::OpenOptions::default())?.serve()?;
//! let session = service.open_session()?;
//! session.append(&service.tokenizer()?.encode("Once upon", tokkata::EncodeOptions::default()))?;
//! let other = session.fork()?;
//! other.rollback(1)?;
//! session.save("story.session".as_ref())?;
//! # Ok(())
//! # }
//! ```

use std::fs;
use std::path::Path;

use tokkata_engine::{
    Answer, Engine, EngineError, EngineHandle, EventKind, Feed, FeedLogits, KeptSession, Request,
    RowKind, SessionId, StopRules,
};
use tokkata_ir::StepTime;

use crate::error::{Error, Result};
use crate::importance::product_values;
use crate::service::Service;

/// First bytes of a saved session.
const MAGIC: &[u8; 8] = b"TOKKSES1";

/// A sequence of a [`Service`] whose cache stays until it is dropped.
pub struct Session {
    handle: EngineHandle,
    id: SessionId,
    rows: usize,
    /// What saved sessions of this model and cache have in common.
    kind: u64,
}

/// Tokens of a session in a step by hand.
#[derive(Clone, Copy)]
pub struct Feeding<'a> {
    /// Whose.
    pub session: &'a Session,
    /// At least one.
    pub tokens: &'a [u32],
    /// What the rows count as.
    pub rows: RowKind,
    /// Which rows' logits are wanted.
    pub logits: FeedLogits,
}

/// Rows of a value: its name, the rows and their width.
#[derive(Clone, Debug, PartialEq)]
pub struct Tapped {
    /// The weight of the product that it goes into.
    pub name: String,
    /// `[rows, width]`.
    pub values: Vec<f32>,
    /// Columns.
    pub width: usize,
}

impl Service {
    /// Opens an empty sequence.
    ///
    /// # Errors
    /// The engine's thread has ended.
    pub fn open_session(&self) -> Result<Session> {
        let id = self.handle().with(|engine| engine.open_session(0))?;
        Ok(self.session(id))
    }

    fn session(&self, id: SessionId) -> Session {
        Session {
            handle: self.handle().clone(),
            id,
            rows: self.limits().rows.max(1) as usize,
            kind: self.kind_of_sessions(),
        }
    }

    /// What saved sessions of this model and cache have in common.
    fn kind_of_sessions(&self) -> u64 {
        let (program, file) = (self.program(), self.checkpoint().file());
        let kind = format!(
            "{:?} {} {} {} {}",
            program.caches,
            program.n_vocab,
            program.n_embd,
            file.size_bytes(),
            file.tensors().len()
        );
        let step = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        kind.bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// Reads a session that [`Session::save`] wrote.
    ///
    /// # Errors
    /// A file that cannot be read, or that is of another model or kind of cache; a full cache.
    pub fn load_session(&self, path: &Path) -> Result<Session> {
        let name = || path.display().to_string();
        let bytes = fs::read(path).map_err(|source| Error::Side {
            file: name(),
            source,
        })?;
        let kept = read(&bytes, self.kind_of_sessions());
        let kept = kept.ok_or_else(|| Error::Kept { file: name() })?;
        let id = self
            .handle()
            .with_idle(move |engine| engine.paste_session(kept))??;
        Ok(self.session(id))
    }

    /// One step of many sequences: feeds each its tokens, and gives the rows of logits that were asked for, in order,
    /// `[rows, n_vocab]`. It waits until no request is under way; requests that come meanwhile wait for it.
    ///
    /// # Errors
    /// As [`Engine::feed`]; the engine's thread has ended.
    pub fn step(&self, feeds: &[Feeding<'_>]) -> Result<Vec<f32>> {
        step(self.handle(), feeds)
    }

    /// Computes tokens from the beginning, and gives what went into every product, by the name of its weight. The model
    /// was opened with [`product_inputs`](crate::OpenOptions::product_inputs).
    ///
    /// # Errors
    /// As [`Engine::feed`]; a model that was opened without them.
    pub fn taps(&self, tokens: &[u32]) -> Result<Vec<Tapped>> {
        let tokens = tokens.to_vec();
        let tapped = self.handle().with_idle(move |engine| {
            let session = engine.open_session(u64::MAX);
            let tapped = taps(engine, session, &tokens);
            engine.close_session(session);
            tapped
        })?;
        Ok(tapped?)
    }

    /// The times of one decoding step after so many tokens, in the order in which it runs.
    ///
    /// # Errors
    /// As [`Engine::feed`].
    pub fn profile(&self, past: usize) -> Result<Vec<StepTime>> {
        let rows = self.limits().rows.max(1) as usize;
        let times = self.handle().with_idle(move |engine| {
            let session = engine.open_session(u64::MAX);
            let times = profile(engine, session, (past, rows));
            engine.measure(false);
            engine.close_session(session);
            times
        })?;
        Ok(times?)
    }
}

fn taps(
    engine: &mut Engine,
    session: SessionId,
    tokens: &[u32],
) -> std::result::Result<Vec<Tapped>, EngineError> {
    let values = product_values(engine.program());
    let keep: Vec<_> = values.iter().map(|v| v.1).collect();
    let feed = Feed {
        session,
        tokens,
        rows: RowKind::Prompt,
        logits: FeedLogits::Last,
    };
    let fed = engine.feed(&[feed], &keep)?;
    let tapped = values.into_iter().map(|(name, value, width)| {
        let values = engine.read(&fed, value, None)?;
        Ok(Tapped {
            name,
            values,
            width,
        })
    });
    tapped.collect()
}

fn profile(
    engine: &mut Engine,
    session: SessionId,
    (past, rows): (usize, usize),
) -> std::result::Result<Vec<StepTime>, EngineError> {
    let tokens = vec![0; past];
    let feed = |tokens, rows| Feed {
        session,
        tokens,
        rows,
        logits: FeedLogits::Last,
    };
    for chunk in tokens.chunks(rows) {
        engine.feed(&[feed(chunk, RowKind::Prompt)], &[])?;
    }
    engine.measure(true);
    let fed = engine.feed(&[feed(&[0], RowKind::Answer)], &[])?;
    Ok(engine.times(&fed))
}

fn step(handle: &EngineHandle, feeds: &[Feeding<'_>]) -> Result<Vec<f32>> {
    let parts: Vec<(SessionId, Vec<u32>, RowKind, FeedLogits)> = feeds
        .iter()
        .map(|f| (f.session.id, f.tokens.to_vec(), f.rows, f.logits))
        .collect();
    let logits = handle.with_idle(move |engine| {
        let feeds: Vec<Feed<'_>> = parts
            .iter()
            .map(|(session, tokens, rows, logits)| Feed {
                session: *session,
                tokens,
                rows: *rows,
                logits: *logits,
            })
            .collect();
        let port = engine.logits_port()?;
        let wanted = feeds.iter().any(|f| f.logits != FeedLogits::None);
        let keep = [port];
        let fed = engine.feed(&feeds, if wanted { &keep } else { &[] })?;
        match wanted {
            true => engine.read(&fed, port, None),
            false => Ok(Vec::new()),
        }
    })?;
    Ok(logits?)
}

impl Session {
    /// What the engine calls it.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Engine, SessionId) -> std::result::Result<T, EngineError>
        + Send
        + 'static,
    ) -> Result<T> {
        let id = self.id;
        Ok(self.handle.with(move |engine| call(engine, id))??)
    }

    /// Tokens whose cache it holds.
    ///
    /// # Errors
    /// A session that is answering.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        self.with(|engine, id| engine.held_by(id).map(<[u32]>::to_vec))
    }

    /// How many they are.
    ///
    /// # Errors
    /// A session that is answering.
    pub fn position(&self) -> Result<usize> {
        self.with(|engine, id| engine.held_by(id).map(<[u32]>::len))
    }

    /// Asks for an answer to a prompt, of which what this session holds is not computed again.
    #[must_use]
    pub fn generate(&self, request: Request) -> Answer {
        self.handle.generate_in(self.id, request)
    }

    /// Computes the cache of further tokens, among the requests that are under way.
    ///
    /// # Errors
    /// As [`Engine::submit_to`].
    pub fn append(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let mut prompt = self.tokens()?;
        prompt.extend(tokens);
        let stop = StopRules {
            max_tokens: Some(0),
            ..StopRules::default()
        };
        let mut answer = self.generate(Request {
            prompt,
            stop,
            ..Request::default()
        });
        while let Some(event) = answer.next_blocking() {
            if let EventKind::Failed(error) = event {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Feeds any number of tokens by hand, and gives the logits of the last one, `[n_vocab]`.
    ///
    /// # Errors
    /// As [`Service::step`]; no tokens.
    pub fn prefill(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        let chunks = tokens.len().div_ceil(self.rows);
        for (i, tokens) in tokens.chunks(self.rows).enumerate() {
            let last = i + 1 == chunks;
            logits = step(
                &self.handle,
                &[Feeding {
                    session: self,
                    tokens,
                    rows: RowKind::Prompt,
                    logits: if last {
                        FeedLogits::Last
                    } else {
                        FeedLogits::None
                    },
                }],
            )?;
        }
        match tokens.is_empty() {
            true => Err(EngineError::EmptyPrompt.into()),
            false => Ok(logits),
        }
    }

    /// Forgets its tokens from `len` on, exactly.
    ///
    /// # Errors
    /// A session that is answering; a window or state that cannot go back so far.
    pub fn rollback(&self, len: usize) -> Result<()> {
        self.with(move |engine, id| {
            let held = engine.held_by(id)?.len();
            match len <= held {
                true => engine.truncate_session(id, len),
                false => Err(EngineError::CannotTruncate { held, wanted: len }),
            }
        })
    }

    /// A session that goes on from where this one is; they share blocks until one of them writes.
    ///
    /// # Errors
    /// A session that is answering.
    pub fn fork(&self) -> Result<Session> {
        let id = self.with(Engine::fork_session)?;
        Ok(Session {
            handle: self.handle.clone(),
            id,
            ..*self
        })
    }

    /// Writes its tokens and their cache to a file, once no request is under way.
    ///
    /// # Errors
    /// A session that is answering or has moved; a file that cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let id = self.id;
        let kept = self
            .handle
            .with_idle(move |engine| engine.copy_session(id))??;
        fs::write(path, written(&kept, self.kind)).map_err(|source| Error::Side {
            file: path.display().to_string(),
            source,
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let id = self.id;
        // An engine that is gone has given everything back.
        let _ = self.handle.with(move |engine| engine.close_session(id));
    }
}

fn written(kept: &KeptSession, kind: u64) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(kind.to_le_bytes());
    out.extend((kept.tokens.len() as u64).to_le_bytes());
    for (token, &answer) in kept.tokens.iter().zip(&kept.answers) {
        out.extend(token.to_le_bytes());
        out.push(answer.into());
    }
    out.extend((kept.blocks.len() as u64).to_le_bytes());
    for (group, place, data) in &kept.blocks {
        out.extend(group.to_le_bytes());
        out.extend(place.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.iter().for_each(|x| out.extend(x.to_le_bytes()));
    }
    out
}

fn read(bytes: &[u8], kind: u64) -> Option<KeptSession> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let mut take = |n: usize| {
        let (taken, left) = rest.split_at_checked(n)?;
        rest = left;
        Some(taken)
    };
    let long = |b: &[u8]| Some(u64::from_le_bytes(b.try_into().ok()?));
    let short = |b: &[u8]| Some(u32::from_le_bytes(b.try_into().ok()?));
    if long(take(8)?)? != kind {
        return None;
    }
    let tokens = usize::try_from(long(take(8)?)?).ok()?;
    let mut kept = KeptSession::default();
    for row in take(tokens.checked_mul(5)?)?.chunks_exact(5) {
        kept.tokens.push(short(&row[..4])?);
        kept.answers.push(row[4] != 0);
    }
    for _ in 0..long(take(8)?)? {
        let (group, place) = (short(take(4)?)?, short(take(4)?)?);
        let len = usize::try_from(long(take(8)?)?).ok()?;
        let data = take(len.checked_mul(4)?)?.chunks_exact(4);
        let data = data.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        kept.blocks.push((group, place, data.collect()));
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let kept = KeptSession {
            tokens: vec![3, 70_000],
            answers: vec![false, true],
            blocks: vec![(0, 1, vec![0.5, -1.0]), (1, 0, vec![])],
        };
        let bytes = written(&kept, 7);
        assert_eq!(read(&bytes, 7), Some(kept));
        assert_eq!(read(&bytes, 8), None);
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut], 7), None);
        }
        let mut huge = bytes[..16].to_vec();
        huge.extend(u64::MAX.to_le_bytes());
        assert_eq!(read(&huge, 7), None);
    }
}
