//! Guesses of a smaller model.
//!
//! It is run by an engine of its own, a session for each request: what the request has grown by is a prompt there, and the
//! guess an answer. Rows have the places that the target's will have and draws the same seed, so both models' draws share
//! their noise, and agree far more often than two draws that know nothing of each other.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Drafter, Guess, Wanted};
use crate::engine::Engine;
use crate::request::{EventKind, Request, RequestId, SessionId, StopRules};

/// How tokens of one vocabulary are written in another.
#[derive(Clone, Debug)]
pub struct TokenMap {
    /// By the target's id: the draft model's.
    pub there: Vec<Box<[u32]>>,
    /// By the draft model's id: the target's, where one says the same.
    pub back: Vec<Option<u32>>,
}

/// A model that guesses for another one.
pub struct DraftModel {
    engine: Engine,
    /// `None` where both have one vocabulary.
    map: Option<Arc<TokenMap>>,
    sessions: HashMap<RequestId, SessionId>,
}

impl DraftModel {
    /// A drafter out of an engine that nobody else uses.
    #[must_use]
    pub fn new(engine: Engine, map: Option<Arc<TokenMap>>) -> Self {
        DraftModel {
            engine,
            map,
            sessions: HashMap::new(),
        }
    }

    /// Asks for a guess; `None` where the model has no room for the text.
    fn ask(&mut self, wanted: &Wanted<'_>) -> Option<RequestId> {
        let mut sampling = wanted.sampling.clone();
        let prompt = match &self.map {
            None => wanted.tokens.to_vec(),
            Some(map) => {
                sampling.bias.clear();
                let there = |&t: &u32| map.there.get(t as usize).map_or(&[][..], |ids| ids);
                wanted.tokens.iter().flat_map(there).copied().collect()
            }
        };
        let engine = &mut self.engine;
        let session = self.sessions.entry(wanted.request);
        let session = *session.or_insert_with(|| engine.open_session(0));
        let stop = StopRules {
            max_tokens: Some(wanted.most),
            ..StopRules::default()
        };
        let request = Request {
            prompt,
            sampling,
            stop,
            ..Request::default()
        };
        engine.submit_to(session, request).ok()
    }

    fn known(&self, tokens: Vec<u32>) -> Vec<u32> {
        let Some(map) = &self.map else { return tokens };
        let back = |&t: &u32| map.back.get(t as usize).copied().flatten();
        tokens.iter().map_while(back).collect()
    }
}

impl Drafter for DraftModel {
    fn name(&self) -> &'static str {
        "draft"
    }

    fn is_free(&self) -> bool {
        false
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        let ids: Vec<Option<RequestId>> = wanted.iter().map(|w| self.ask(w)).collect();
        let mut tokens: HashMap<RequestId, Vec<u32>> = HashMap::new();
        while !self.engine.is_idle() {
            for event in self.engine.step() {
                if let EventKind::Token { id, .. } = event.kind {
                    tokens.entry(event.request).or_default().push(id);
                }
            }
        }
        let guess = |id: Option<RequestId>| {
            let own = id.and_then(|id| tokens.remove(&id));
            Guess {
                tokens: self.known(own.unwrap_or_default()),
                class: 0,
            }
        };
        ids.into_iter().map(guess).collect()
    }

    fn ended(&mut self, request: RequestId, _: u64, _: &[u32]) {
        if let Some(session) = self.sessions.remove(&request) {
            self.engine.close_session(session);
        }
    }
}
