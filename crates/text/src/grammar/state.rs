//! One sequence's walk through a grammar.

use llguidance::Matcher;

use super::trigger::{Progress, Watch};
use super::{Grammar, GrammarError, first_line};

/// Where a sequence is in its grammar.
#[derive(Clone)]
pub struct GrammarState {
    grammar: Grammar,
    phase: Phase,
    /// What was before each accepted token, for rolling back.
    history: Vec<Before>,
}

#[derive(Clone)]
enum Phase {
    /// The text before the trigger has not appeared; so many of its bytes have.
    Early(usize),
    /// The trigger has not appeared; so many of its bytes have.
    Waiting(usize),
    Active(Box<Matcher>),
    /// The reply has ended.
    Ended,
}

#[derive(Clone)]
enum Before {
    Early(usize),
    Waiting(usize),
    /// The matcher took one token more.
    Active,
    /// The matcher was dropped or ended by this token; this is the one from before it.
    Replaced(Box<Matcher>),
}

impl std::fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = match &self.phase {
            Phase::Early(matched) | Phase::Waiting(matched) => {
                format!("waiting, {matched} bytes matched")
            }
            Phase::Active(_) => "active".to_owned(),
            Phase::Ended => "ended".to_owned(),
        };
        f.debug_struct("GrammarState")
            .field("phase", &phase)
            .field("accepted", &self.history.len())
            .finish()
    }
}

impl GrammarState {
    pub(super) fn new(grammar: Grammar) -> Self {
        let phase = match (&grammar.first, &grammar.watch) {
            (Some(_), _) => Phase::Early(0),
            (None, Some(_)) => Phase::Waiting(0),
            (None, None) => Phase::Active(Box::new(grammar.fresh.clone())),
        };
        GrammarState {
            grammar,
            phase,
            history: Vec::new(),
        }
    }

    /// Writes one bit per token: set if the token may come next. `mask` has
    /// [`TokenTrie::mask_len`](super::TokenTrie::mask_len) words.
    ///
    /// # Errors
    /// [`GrammarError::Parser`] if the grammar is too ambiguous to go on.
    pub fn mask(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        match &mut self.phase {
            Phase::Early(_) => self.fill_free(mask),
            Phase::Waiting(matched) => {
                let matched = *matched;
                self.fill_free(mask);
                if let Some(watch) = &self.grammar.watch {
                    watch.mask(matched, mask);
                }
            }
            Phase::Active(matcher) => {
                let allowed = matcher.compute_mask_or_eos().map_err(|e| stuck(&e))?;
                let words = allowed.as_slice();
                let shared = words.len().min(mask.len());
                mask[..shared].copy_from_slice(&words[..shared]);
                mask[shared..].fill(0);
            }
            Phase::Ended => mask.fill(0),
        }
        Ok(())
    }

    fn fill_free(&self, mask: &mut [u32]) {
        mask.fill(u32::MAX);
        let spare = mask.len() * 32 - self.grammar.trie.tokens().len();
        if let (Some(last), 1..=31) = (mask.last_mut(), spare) {
            *last >>= spare;
        }
    }

    /// Whether `token` may come next, without a whole mask.
    pub fn allows(&mut self, token: u32) -> bool {
        let trie = &self.grammar.trie;
        match &mut self.phase {
            // A matcher that is asked for a token which does not exist gives up for good.
            _ if token as usize >= trie.tokens().len() => false,
            Phase::Early(_) => true,
            Phase::Waiting(matched) => {
                let watch = self.grammar.watch.as_ref();
                let progress = watch.map(|watch| watch.advance(*matched, trie.bytes(token)));
                !matches!(progress, Some(Progress::Complete { left_over: 1.. }))
            }
            Phase::Active(_) if trie.is_eos(token) => self.is_accepting(),
            Phase::Active(matcher) => matcher
                .validate_tokens(&[token])
                .is_ok_and(|valid| valid == 1),
            Phase::Ended => false,
        }
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// [`GrammarError::Token`] if the grammar does not allow it; the state is unchanged.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if !self.allows(token) {
            return Err(GrammarError::Token(token));
        }
        let ends = self.grammar.trie.is_eos(token);
        let before = match (&mut self.phase, ends) {
            (Phase::Early(matched), _) => Before::Early(*matched),
            (Phase::Waiting(matched), _) => Before::Waiting(*matched),
            (Phase::Active(matcher), true) => Before::Replaced(matcher.clone()),
            (Phase::Active(matcher), false) => {
                let kept = self
                    .grammar
                    .watch
                    .as_ref()
                    .is_some_and(|watch| watch.again)
                    .then(|| matcher.clone());
                matcher.consume_token(token).map_err(|e| stuck(&e))?;
                let finished = kept.filter(|_| matcher.is_stopped());
                finished.map_or(Before::Active, Before::Replaced)
            }
            (Phase::Ended, _) => return Err(GrammarError::Token(token)),
        };
        self.phase = self.after(&before, token, ends);
        self.history.push(before);
        Ok(())
    }

    fn after(&mut self, before: &Before, token: u32, ends: bool) -> Phase {
        if ends {
            return Phase::Ended;
        }
        let bytes = self.grammar.trie.bytes(token);
        match (before, &self.grammar.watch) {
            (Before::Early(matched), Some(watch)) => self.early(watch, *matched, bytes),
            (Before::Waiting(matched), Some(watch)) => self.watched(watch, *matched, bytes),
            (Before::Replaced(_), _) => Phase::Waiting(0),
            _ => std::mem::replace(&mut self.phase, Phase::Ended),
        }
    }

    fn early(&self, watch: &Watch, matched: usize, bytes: &[u8]) -> Phase {
        let first = self.grammar.first.as_ref();
        match first.map(|first| first.advance(matched, bytes)) {
            Some(Progress::Matched(matched)) => Phase::Early(matched),
            Some(Progress::Complete { left_over }) => {
                self.watched(watch, 0, &bytes[bytes.len() - left_over..])
            }
            None => Phase::Waiting(0),
        }
    }

    fn watched(&self, watch: &Watch, matched: usize, bytes: &[u8]) -> Phase {
        match watch.advance(matched, bytes) {
            Progress::Matched(matched) => Phase::Waiting(matched),
            // One token held the text before the trigger, the trigger and more, which nothing could forbid.
            Progress::Complete { left_over: 1.. } => Phase::Waiting(0),
            Progress::Complete { .. } => Phase::Active(Box::new(self.grammar.fresh.clone())),
        }
    }

    /// The tokens that must come next, as the tokenizer would write them; they are not accepted yet.
    pub fn forced(&mut self) -> Vec<u32> {
        match &mut self.phase {
            Phase::Active(matcher) => matcher.compute_ff_tokens(),
            Phase::Early(_) | Phase::Waiting(_) | Phase::Ended => Vec::new(),
        }
    }

    /// Whether the reply may end here.
    pub fn is_accepting(&mut self) -> bool {
        match &mut self.phase {
            Phase::Early(_) | Phase::Waiting(_) | Phase::Ended => true,
            Phase::Active(matcher) => {
                matcher.is_stopped() || matcher.is_accepting().unwrap_or(false)
            }
        }
    }

    /// Whether the reply must end here: it is finished and nothing may follow but an end token.
    pub fn is_complete(&self) -> bool {
        match &self.phase {
            Phase::Early(_) | Phase::Waiting(_) => false,
            Phase::Active(matcher) => matcher.is_stopped() && !matcher.is_error(),
            Phase::Ended => true,
        }
    }

    /// Whether the grammar applies now, rather than waiting for its trigger.
    pub fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Active(_))
    }

    /// Takes back the last `count` tokens.
    ///
    /// # Errors
    /// [`GrammarError::Rollback`] if fewer were accepted.
    pub fn rollback(&mut self, count: usize) -> Result<(), GrammarError> {
        let accepted = self.history.len();
        let Some(keep) = accepted.checked_sub(count) else {
            return Err(GrammarError::Rollback {
                asked: count,
                accepted,
            });
        };
        let mut pending = 0;
        while self.history.len() > keep {
            let Some(before) = self.history.pop() else {
                break;
            };
            match before {
                Before::Active => pending += 1,
                Before::Early(matched) => {
                    self.phase = Phase::Early(matched);
                    pending = 0;
                }
                Before::Waiting(matched) => {
                    self.phase = Phase::Waiting(matched);
                    pending = 0;
                }
                Before::Replaced(matcher) => {
                    self.phase = Phase::Active(matcher);
                    pending = 0;
                }
            }
        }
        match &mut self.phase {
            Phase::Active(matcher) if pending > 0 => {
                matcher.rollback(pending).map_err(|e| stuck(&e))
            }
            _ => Ok(()),
        }
    }
}

/// Why the parser does not go on.
fn stuck(error: &impl std::fmt::Display) -> GrammarError {
    GrammarError::Parser(match first_line(error).as_str() {
        // The parser's name for a mask of no token at all.
        "NoExtensionBias" => "it allows nothing here, not even an end".to_owned(),
        other => other.to_owned(),
    })
}
