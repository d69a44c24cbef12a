//! The model's side: windows in, logits and attention out.

use tokkata_engine::{Engine, Feed, FeedLogits, RowKind, SessionId};
use tokkata_ir::{PlanRole, ValueId};
use tokkata_speech::tokens::Vocabulary;
use tokkata_speech::tokens::softmax;
use tokkata_speech::words::{Heard, Timed, align};

use crate::error::Result;
use crate::model::Model;

/// A sequence and the tokens that are fed to it.
pub(super) type Part = (SessionId, Vec<u32>);

/// A model with its engine, driven by hand.
pub(super) struct Ear {
    model: Model,
    logits: ValueId,
    /// Layers whose attention can be read: the queries' value and the keys'.
    layers: Vec<(u32, ValueId, ValueId)>,
    heads: Vec<(u32, u32)>,
    n_heads: usize,
}

/// A window that was encoded: a sequence that reads it and holds no tokens.
pub(super) struct Encoded {
    pub(super) session: SessionId,
    /// Keys of each layer that can be read, `[positions, D]`; none where no words are timed.
    keys: Vec<Vec<f32>>,
}

impl Ear {
    pub(super) fn new(mut model: Model, heads: Vec<(u32, u32)>, n_heads: u32) -> Result<Self> {
        let program = model.program();
        let encoder = program.plan(PlanRole::Encoder).map(|p| p.1);
        let main = program.plan(PlanRole::Main).map(|p| p.1);
        let mut layers: Vec<u32> = heads.iter().map(|h| h.0).collect();
        layers.dedup();
        let value = |layer: &u32| {
            let q = main?.output(&format!("cross_q.{layer}"))?;
            let k = encoder?.output(&format!("cross_k.{layer}"))?;
            Some((*layer, q, k))
        };
        let layers = layers.iter().filter_map(value).collect();
        let logits = model.engine().logits_port()?;
        Ok(Ear {
            model,
            logits,
            layers,
            heads,
            n_heads: n_heads as usize,
        })
    }

    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    fn engine(&mut self) -> &mut Engine {
        &mut self.model.engine
    }

    pub(super) fn ctx(&self) -> usize {
        self.model.limits().ctx as usize
    }

    pub(super) fn rows(&self) -> usize {
        self.model.limits().rows as usize
    }

    /// Encodes a window of frames, in which `words` can be timed then.
    pub(super) fn encode(&mut self, window: &[f32], words: bool) -> Result<Encoded> {
        let layers = self.layers.iter().filter(|_| words);
        let keep: Vec<ValueId> = layers.map(|l| l.2).collect();
        let engine = self.engine();
        let session = engine.open_session(0);
        let fed = engine.encode(session, window, &keep);
        let fed = match fed {
            Ok(fed) => fed,
            Err(error) => {
                engine.close_session(session);
                return Err(error.into());
            }
        };
        let mut keys = Vec::new();
        for value in keep {
            keys.push(engine.read(&fed, value, None)?);
        }
        Ok(Encoded { session, keys })
    }

    pub(super) fn fork(&mut self, session: SessionId) -> Result<SessionId> {
        Ok(self.engine().fork_session(session)?)
    }

    pub(super) fn close(&mut self, session: SessionId) {
        self.engine().close_session(session);
    }

    /// Feeds tokens to sequences in one step; writes the logits after the last of each one behind the other, and says how
    /// many a row has.
    pub(super) fn feed(&mut self, parts: &[Part], out: &mut Vec<f32>) -> Result<usize> {
        if parts.is_empty() {
            out.clear();
            return Ok(1);
        }
        let feeds: Vec<Feed<'_>> = parts
            .iter()
            .map(|(session, tokens)| Feed {
                session: *session,
                tokens,
                rows: RowKind::Answer,
                logits: FeedLogits::Last,
            })
            .collect();
        let logits = self.logits;
        let engine = self.engine();
        let fed = engine.feed(&feeds, &[logits])?;
        Ok(engine.read_into(&fed, logits, Some(0..parts.len()), out)?)
    }

    /// Times the words of a text in an encoded window, of which so many frames are heard.
    pub(super) fn align(
        &mut self,
        window: &Encoded,
        (vocabulary, code): (&Vocabulary, &str),
        (start, text): (&[u32], &[u32]),
        frames: usize,
    ) -> Result<Vec<Timed>> {
        let width = self.model.program().n_embd as usize;
        let heard = window.keys.first().map_or(0, |k| k.len() / width);
        let positions = (frames / 2).min(heard);
        if text.is_empty() || positions == 0 || self.layers.is_empty() {
            return Ok(Vec::new());
        }
        let t = &vocabulary.tokens;
        let tokens = [start, &[t.no_timestamps], text, &[t.eot]].concat();
        let session = self.fork(window.session)?;
        let read = self.attend(session, &tokens, t.eot as usize);
        self.close(session);
        let (queries, texts) = read?;
        let heads = self.weights(window, &queries, (tokens.len(), positions));
        let own = texts.iter().skip(start.len()).zip(text);
        let probabilities: Vec<f32> = own.map(|(row, &id)| row[id as usize]).collect();
        let heard = Heard {
            heads: &heads,
            rows: tokens.len(),
            positions,
            start: start.len(),
            probabilities: &probabilities,
        };
        Ok(align(vocabulary, code, text, &heard))
    }

    /// Queries of the layers that can be read, `[tokens, D]` each, and probabilities of text after each token.
    #[allow(clippy::type_complexity, reason = "two lists of rows")]
    fn attend(
        &mut self,
        session: SessionId,
        tokens: &[u32],
        text: usize,
    ) -> Result<(Vec<Vec<f32>>, Vec<Vec<f32>>)> {
        let (logits, layers) = (self.logits, self.layers.clone());
        let most = self.model.limits().logit_rows.min(self.model.limits().rows) as usize;
        let mut queries = vec![Vec::new(); layers.len()];
        let mut texts = Vec::new();
        let keep: Vec<ValueId> = layers.iter().map(|l| l.1).chain([logits]).collect();
        for chunk in tokens.chunks(most.max(1)) {
            let engine = self.engine();
            let feed = Feed {
                session,
                tokens: chunk,
                rows: RowKind::Answer,
                logits: FeedLogits::All,
            };
            let fed = engine.feed(&[feed], &keep)?;
            for (all, layer) in queries.iter_mut().zip(&layers) {
                all.extend(engine.read(&fed, layer.1, None)?);
            }
            for i in 0..chunk.len() {
                let row = engine.read(&fed, logits, Some(i..i + 1))?;
                texts.push(softmax(&row[..text]));
            }
        }
        Ok((queries, texts))
    }

    /// Attention of the chosen heads, each `[tokens, positions]`.
    fn weights(
        &self,
        window: &Encoded,
        queries: &[Vec<f32>],
        (tokens, positions): (usize, usize),
    ) -> Vec<Vec<f32>> {
        let width = self.model.program().n_embd as usize;
        let dim = width / self.n_heads;
        let scale = 1.0 / (dim as f32).sqrt();
        let head = |&(layer, head): &(u32, u32)| {
            let place = self.layers.iter().position(|l| l.0 == layer)?;
            let (q, k) = (&queries[place], &window.keys[place]);
            let at = head as usize * dim;
            let mut out = Vec::with_capacity(tokens * positions);
            for row in q.chunks_exact(width).take(tokens) {
                let q = &row[at..at + dim];
                let dot = |k: &[f32]| {
                    let products = q.iter().zip(&k[at..at + dim]);
                    products.map(|(a, b)| a * b).sum::<f32>() * scale
                };
                let keys = k.chunks_exact(width).take(positions);
                let scores: Vec<f32> = keys.map(dot).collect();
                out.extend(softmax(&scores));
            }
            Some(out)
        };
        self.heads.iter().filter_map(head).collect()
    }
}
