//! Rules that an answer follows beside its grammar: how long it may think, how long it must be, what it may not say.
//!
//! Each is a [`Constraint`] around another one, so that all of them hold together.

mod calls;

use std::collections::VecDeque;

use tokkata_engine::Constraint;
use tokkata_ir::sample::Mask;

pub use calls::{CallRule, NoCalls};

/// Whatever a constraint around another one asks.
type Inner = Option<Box<dyn Constraint>>;

fn accept(inner: &mut Inner, token: u32, forced: &mut Vec<u32>) -> Result<(), String> {
    match inner {
        Some(inner) => inner.accept(token, forced),
        None => Ok(()),
    }
}

fn rollback(inner: &mut Inner, tokens: usize) -> Result<(), String> {
    match inner {
        Some(inner) => inner.rollback(tokens),
        None => Ok(()),
    }
}

fn goes_back(inner: &Inner) -> bool {
    inner.as_ref().is_none_or(|inner| inner.goes_back())
}

fn mask(inner: &mut Inner) -> Result<Option<Mask>, String> {
    match inner {
        Some(inner) => inner.mask(),
        None => Ok(None),
    }
}

/// Ends the reasoning of an answer once it has as many tokens as it may.
pub struct ThinkingBudget {
    inner: Inner,
    open: Vec<u32>,
    close: Vec<u32>,
    ending: Vec<u32>,
    seen: Vec<u32>,
    inside: bool,
    left: usize,
    /// What was known before the newest calls, the newest last.
    before: VecDeque<Before>,
}

/// Calls that can be taken back.
const CALLS: usize = 64;

/// What a budget knew before a call, and the tokens that were taken with it.
struct Before {
    taken: usize,
    seen: Vec<u32>,
    inside: bool,
    left: usize,
}

/// The tokens that tell reasoning from the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThinkingTokens {
    /// What opens it.
    pub open: Vec<u32>,
    /// What closes it.
    pub close: Vec<u32>,
    /// What is written when its budget is spent; it holds `close`.
    pub ending: Vec<u32>,
    /// Whether the prompt has opened it.
    pub opened: bool,
}

impl ThinkingBudget {
    /// At most `budget` tokens between the markers, around another constraint.
    #[must_use]
    pub fn new(tokens: ThinkingTokens, budget: usize, inner: Inner) -> Self {
        ThinkingBudget {
            inner,
            open: tokens.open,
            close: tokens.close,
            ending: tokens.ending,
            seen: Vec::new(),
            inside: tokens.opened,
            left: budget,
            before: VecDeque::new(),
        }
    }

    fn ends_with(&self, marker: &[u32]) -> bool {
        !marker.is_empty() && self.seen.ends_with(marker)
    }

    /// Counts a token; says whether the budget is spent with it.
    fn spent(&mut self, token: u32) -> bool {
        self.seen.push(token);
        let longest = self.open.len().max(self.close.len());
        if self.seen.len() > 2 * longest + 16 {
            self.seen.drain(..self.seen.len() - longest);
        }
        if self.inside {
            self.left = self.left.saturating_sub(1);
            self.inside = !self.ends_with(&self.close);
        } else {
            self.inside = self.ends_with(&self.open);
        }
        self.inside && self.left == 0
    }

    fn end(&mut self, forced: &mut Vec<u32>) -> Result<(), String> {
        self.inside = false;
        for token in self.ending.clone() {
            forced.push(token);
            accept(&mut self.inner, token, forced)?;
        }
        Ok(())
    }
}

impl Constraint for ThinkingBudget {
    fn begin(&mut self, forced: &mut Vec<u32>) -> Result<(), String> {
        if self.inside && self.left == 0 {
            return self.end(forced);
        }
        match &mut self.inner {
            Some(inner) => inner.begin(forced),
            None => Ok(()),
        }
    }

    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String> {
        let already = forced.len();
        let before = Before {
            taken: 1,
            seen: self.seen.clone(),
            inside: self.inside,
            left: self.left,
        };
        accept(&mut self.inner, token, forced)?;
        if self.spent(token) {
            self.end(forced)?;
        }
        if self.before.len() == CALLS {
            self.before.pop_front();
        }
        self.before.push_back(Before {
            taken: 1 + forced.len() - already,
            ..before
        });
        Ok(())
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), String> {
        let mut left = tokens;
        while left > 0 {
            let before = self.before.pop_back().filter(|b| b.taken <= left);
            let before = before.ok_or("fewer tokens were taken")?;
            left -= before.taken;
            (self.seen, self.inside, self.left) = (before.seen, before.inside, before.left);
        }
        rollback(&mut self.inner, tokens)
    }

    fn goes_back(&self) -> bool {
        goes_back(&self.inner)
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        mask(&mut self.inner)
    }
}

/// Keeps tokens out of an answer: some always, some until it has so many tokens, all but some.
pub struct Excluded {
    inner: Inner,
    /// Bits of the ids that may come, once the answer is long enough.
    always: Vec<u32>,
    /// The same before.
    early: Vec<u32>,
    least: usize,
    taken: usize,
}

impl Excluded {
    /// For a vocabulary of `n_vocab` ids: only `allowed`, where they are given, and none of `ends` among the first
    /// `least` tokens.
    #[must_use]
    pub fn new(
        n_vocab: u32,
        allowed: Option<&[u32]>,
        (ends, least): (&[u32], usize),
        inner: Inner,
    ) -> Self {
        let words = n_vocab.div_ceil(32) as usize;
        let mut always = vec![if allowed.is_some() { 0 } else { u32::MAX }; words];
        for &id in allowed.unwrap_or(&[]) {
            set(&mut always, id, true);
        }
        let mut early = always.clone();
        ends.iter().for_each(|&id| set(&mut early, id, false));
        Excluded {
            inner,
            always,
            early,
            least,
            taken: 0,
        }
    }
}

fn set(words: &mut [u32], id: u32, on: bool) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        let bit = 1 << (id % 32);
        *word = if on { *word | bit } else { *word & !bit };
    }
}

impl Constraint for Excluded {
    fn begin(&mut self, forced: &mut Vec<u32>) -> Result<(), String> {
        match &mut self.inner {
            Some(inner) => inner.begin(forced)?,
            None => return Ok(()),
        }
        self.taken += forced.len();
        Ok(())
    }

    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String> {
        let before = forced.len();
        accept(&mut self.inner, token, forced)?;
        self.taken += 1 + forced.len() - before;
        Ok(())
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), String> {
        self.taken = self
            .taken
            .checked_sub(tokens)
            .ok_or("fewer tokens were taken")?;
        rollback(&mut self.inner, tokens)
    }

    fn goes_back(&self) -> bool {
        goes_back(&self.inner)
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        let own = if self.taken < self.least {
            &self.early
        } else {
            &self.always
        };
        let Some(theirs) = mask(&mut self.inner)? else {
            let all = own.iter().all(|&word| word == u32::MAX);
            return Ok((!all).then(|| Mask::new(own.clone())));
        };
        let both = own.iter().zip(theirs.words()).map(|(a, b)| a & b);
        Ok(Some(Mask::new(both.collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(opened: bool) -> ThinkingTokens {
        ThinkingTokens {
            open: vec![1],
            close: vec![2, 3],
            ending: vec![9, 2, 3],
            opened,
        }
    }

    /// The tokens forced after each of `given`.
    fn run(budget: usize, opened: bool, given: &[u32]) -> Vec<Vec<u32>> {
        let mut rule = ThinkingBudget::new(tokens(opened), budget, None);
        let mut all = Vec::new();
        for &token in given {
            let mut forced = Vec::new();
            rule.accept(token, &mut forced).expect("no inner rule");
            all.push(forced);
        }
        all
    }

    #[test]
    fn reasoning_is_ended_when_its_budget_is_spent() {
        let none: Vec<u32> = Vec::new();
        assert_eq!(
            run(2, true, &[7, 7, 7]),
            [none.clone(), vec![9, 2, 3], none.clone()]
        );
        assert_eq!(run(2, false, &[7, 1, 7, 7])[3], [9, 2, 3]);
        assert!(run(3, true, &[7, 2, 3, 7, 7, 7]).iter().all(Vec::is_empty));
        let mut forced = Vec::new();
        let mut rule = ThinkingBudget::new(tokens(true), 0, None);
        rule.begin(&mut forced).expect("no inner rule");
        assert_eq!(forced, [9, 2, 3]);
    }

    #[test]
    fn what_is_taken_back_was_never_counted() {
        let given = [7, 1, 7, 7, 2, 3, 8];
        for (at, count) in [(2, 2), (3, 1), (5, 4)] {
            let mut rule = ThinkingBudget::new(tokens(false), 3, None);
            let mut least = Excluded::new(40, None, (&[33], 6), None);
            let mut step = |token, rule: &mut ThinkingBudget| {
                let mut forced = Vec::new();
                rule.accept(token, &mut forced).expect("no inner rule");
                least.accept(token, &mut Vec::new()).expect("no inner rule");
                forced
            };
            let first: Vec<_> = given.iter().map(|&t| step(t, &mut rule)).collect();
            let mut again = ThinkingBudget::new(tokens(false), 3, None);
            given[..at].iter().for_each(|&t| drop(step(t, &mut again)));
            let tried: Vec<_> = (0..count).map(|_| step(7, &mut again)).collect();
            let taken = tried.iter().map(|forced| 1 + forced.len()).sum();
            again.rollback(taken).expect("it was taken");
            let rest: Vec<_> = given[at..].iter().map(|&t| step(t, &mut again)).collect();
            assert_eq!(rest, first[at..], "{at} {count}");
            assert!(again.goes_back() && least.goes_back());
            assert!(least.rollback(1000).is_err() && again.rollback(1000).is_err());
        }
    }

    #[test]
    fn ends_are_kept_out_until_the_answer_is_long_enough() {
        let mut rule = Excluded::new(40, None, (&[33], 2), None);
        let may = |rule: &mut Excluded, id: u32| {
            let mask = rule.mask().expect("no inner rule");
            mask.is_none_or(|m| m.words()[id as usize / 32] >> (id % 32) & 1 == 1)
        };
        assert!(!may(&mut rule, 33) && may(&mut rule, 32));
        for _ in 0..2 {
            rule.accept(5, &mut Vec::new()).expect("no inner rule");
        }
        assert!(may(&mut rule, 33));
        let mut only = Excluded::new(40, Some(&[7]), (&[], 0), None);
        assert!(may(&mut only, 7) && !may(&mut only, 8));
    }
}
