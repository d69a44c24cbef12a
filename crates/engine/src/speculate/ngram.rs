//! Guesses from what was there before: the request's own text, and texts of earlier requests of its family.
//!
//! The newest tokens are looked for at earlier places; the place where most of them stand is the guess, the later one of
//! equal ones. Places are found by their last `GRAM` tokens, and followed back from there as a suffix tree would be, so
//! that one drafter does what lookups of any fixed length do.
//!
//! A text that is written again with changes departs from the first and comes back to it a little further on. So behind a
//! run that was followed one token is clue enough, and tokens that agree there count twice.

use std::collections::{HashMap, VecDeque};

use super::{CLASSES, Drafter, Guess, Wanted};
use crate::request::RequestId;

/// Tokens by which places are found: fewer are no clue.
const GRAM: usize = 3;
/// Earlier places that are looked at.
const PLACES: usize = 24;
/// Tokens before a place that are compared.
const LONGEST: usize = 48;
/// Tokens that must agree for a run to be followed over what departs from it.
const FOLLOWED: usize = 8;
/// Places before and behind where a followed run leads that are looked at.
const NEAR: (usize, usize) = (4, 16);
/// Tokens without one that agrees after which a run is followed no longer.
const LOST: usize = 24;
/// Tokens of ended requests that a family keeps.
const HISTORY: usize = 1 << 16;
/// Families whose texts are kept.
const FAMILIES: usize = 16;

/// Where runs of tokens stand in a text that grows.
#[derive(Debug, Default)]
struct Index {
    tokens: Vec<u32>,
    /// By a run's hash: the place behind its newest occurrence, plus one.
    newest: HashMap<u64, u32>,
    /// By place: the place behind an earlier occurrence of the run that ends here, plus one; 0 for none.
    earlier: Vec<u32>,
}

fn hash(gram: &[u32]) -> u64 {
    gram.iter().fold(0, |h: u64, &t| {
        (h.rotate_left(21) ^ u64::from(t)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

/// A place behind an earlier run, and the run's length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    length: usize,
    place: usize,
}

/// A run that is followed: a place, and how many tokens there were when it was the one to go on from.
#[derive(Clone, Copy, Debug)]
struct Run {
    place: usize,
    tokens: usize,
}

impl Index {
    /// Takes the tokens behind those that it has.
    fn extend(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.tokens.push(token);
            let end = self.tokens.len();
            let before = match end.checked_sub(GRAM) {
                Some(start) => {
                    let key = hash(&self.tokens[start..]);
                    self.newest.insert(key, end as u32 + 1).unwrap_or(0)
                }
                None => 0,
            };
            self.earlier.push(before);
        }
    }

    /// The best place for what follows `tail`, with something behind it; the end of this text itself does not count.
    fn find(&self, tail: &[u32]) -> Option<Found> {
        let start = tail.len().checked_sub(GRAM)?;
        let mut next = *self.newest.get(&hash(&tail[start..]))?;
        let mut best = Found::default();
        for _ in 0..PLACES {
            let Some(place) = next.checked_sub(1).map(|p| p as usize) else {
                break;
            };
            if place < self.tokens.len() {
                let length = self.common(place, tail);
                if length > best.length {
                    best = Found { length, place };
                }
            }
            next = self.earlier[place - 1];
        }
        (best.length >= GRAM).then_some(best)
    }

    /// The place around where a followed run leads before which most tokens stand.
    fn near(&self, run: Run, tail: &[u32]) -> Option<Found> {
        let came = tail.len().checked_sub(run.tokens).filter(|&n| n <= LOST)?;
        let leads = run.place + came;
        let places = leads.saturating_sub(NEAR.0)..(leads + NEAR.1).min(self.tokens.len());
        let all = places.map(|place| Found {
            length: self.common(place, tail),
            place,
        });
        // The first of equal ones.
        all.rev()
            .max_by_key(|found| found.length)
            .filter(|found| found.length > 0)
    }

    /// Tokens before a place that are those at the end of `tail`.
    fn common(&self, place: usize, tail: &[u32]) -> usize {
        let own = self.tokens[..place].iter().rev();
        let same = own.zip(tail.iter().rev()).take(LONGEST);
        same.take_while(|(a, b)| a == b).count()
    }

    /// What stands behind a place; what a run repeats to the end of the text goes on in turn.
    fn follow(&self, place: usize, most: usize) -> Vec<u32> {
        let period = self.tokens.len() - place;
        let at = |i: usize| self.tokens[place + i % period];
        (0..most).map(at).collect()
    }

    /// Forgets everything but the newest tokens.
    fn shorten(&mut self, keep: usize) {
        let from = self.tokens.len() - keep.min(self.tokens.len());
        let kept = self.tokens.split_off(from);
        *self = Index::default();
        self.extend(&kept);
    }
}

/// A request's own text.
#[derive(Debug, Default)]
struct Own {
    index: Index,
    run: Option<Run>,
}

impl Own {
    /// Takes a request's text; one that has moved is another text.
    fn read(&mut self, tokens: &[u32]) {
        let seen = self.index.tokens.len();
        if seen > 0 && tokens.get(seen - 1) != self.index.tokens.last() {
            *self = Own::default();
        }
        self.index.extend(&tokens[self.index.tokens.len()..]);
    }

    /// The best place for what follows `tail`, and how sure it is.
    fn find(&mut self, tail: &[u32]) -> Option<(Found, usize)> {
        let far = self.index.find(tail);
        let near = self.run.and_then(|run| self.index.near(run, tail));
        let near = near.filter(|n| 2 * n.length >= far.map_or(0, |far| far.length));
        let found = near.or(far)?;
        if near.is_some() || found.length >= FOLLOWED {
            self.run = Some(Run {
                place: found.place,
                tokens: tail.len(),
            });
        }
        let class = near.map_or_else(|| class(found.length), |near| class_near(near.length));
        Some((found, class))
    }
}

/// The n-gram drafter.
#[derive(Debug, Default)]
pub struct Ngram {
    own: HashMap<RequestId, Own>,
    /// Texts of ended requests by family, the newest family last.
    shared: VecDeque<(u64, Index)>,
}

impl Ngram {
    /// A drafter that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Ngram::default()
    }

    fn one(&mut self, wanted: &Wanted<'_>) -> Guess {
        let own = self.own.entry(wanted.request).or_default();
        own.read(wanted.tokens);
        let shared = self.shared.iter().find(|s| s.0 == wanted.family);
        let near = own.find(wanted.tokens);
        let far = shared.and_then(|s| s.1.find(wanted.tokens));
        let length = near.map_or(0, |(near, _)| near.length);
        let (index, place, class) = match (near, far, shared) {
            (_, Some(far), Some((_, index))) if far.length > length => {
                (index, far.place, class(far.length))
            }
            (Some((near, class)), ..) => (&own.index, near.place, class),
            _ => return Guess::default(),
        };
        Guess {
            tokens: index.follow(place, wanted.most),
            class,
        }
    }
}

/// Sureness by how many tokens agree.
fn class(length: usize) -> usize {
    match length {
        ..=3 => 0,
        4 => 1,
        5..=6 => 2,
        7..=10 => 3,
        11..=20 => 4,
        _ => CLASSES - 1,
    }
}

/// The same near where a followed run leads.
fn class_near(length: usize) -> usize {
    match length {
        ..=1 => 0,
        2..=3 => 1,
        4..=7 => 3,
        _ => CLASSES - 1,
    }
}

impl Drafter for Ngram {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        wanted.iter().map(|w| self.one(w)).collect()
    }

    fn ended(&mut self, request: RequestId, family: u64, tokens: &[u32]) {
        self.own.remove(&request);
        let at = self.shared.iter().position(|s| s.0 == family);
        let mut index = at
            .and_then(|at| self.shared.remove(at))
            .map_or_else(Index::default, |s| s.1);
        let tokens = &tokens[tokens.len() - tokens.len().min(HISTORY / 2)..];
        if index.tokens.len() + tokens.len() > HISTORY {
            index.shorten(HISTORY / 2);
        }
        index.extend(tokens);
        self.shared.push_back((family, index));
        if self.shared.len() > FAMILIES {
            self.shared.pop_front();
        }
    }

    /// As seen in edits of this repository and in texts that repeat (`cargo xtask replay`); free text has less of the lower classes.
    fn prior(&self, class: usize, place: usize) -> f64 {
        match (class, place) {
            (5, _) => 0.98,
            (_, 0) => [0.5, 0.65, 0.7, 0.75, 0.8][class],
            _ => 0.8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Sampling;

    fn guess(drafter: &mut Ngram, (request, family): (u64, u64), tokens: &[u32]) -> Guess {
        let wanted = Wanted {
            request: RequestId(request),
            family,
            tokens,
            sampling: &Sampling::greedy(),
            most: 4,
        };
        drafter.guess(&[wanted]).remove(0)
    }

    #[test]
    fn the_longest_run_that_was_there_before_goes_on() {
        let mut drafter = Ngram::new();
        let mut text = vec![1, 2, 3, 4, 50, 51, 9, 2, 3, 4, 60, 61, 62, 63];
        text.extend([7, 1, 2, 3, 4]);
        assert_eq!(guess(&mut drafter, (1, 0), &text).tokens, [50, 51, 9, 2]);
        text.extend([50, 51]);
        let longer = guess(&mut drafter, (1, 0), &text);
        assert_eq!((longer.tokens, longer.class), (vec![9, 2, 3, 4], 2));
        text.extend([9, 9]);
        assert_eq!(guess(&mut drafter, (1, 0), &text), Guess::default());
    }

    #[test]
    fn the_later_of_equal_places_wins_and_loops_go_on() {
        let mut drafter = Ngram::new();
        let text = [1, 2, 3, 8, 0, 1, 2, 3, 9, 0, 0, 1, 2, 3];
        assert_eq!(guess(&mut drafter, (1, 0), &text).tokens[..2], [9, 0]);
        let looped = [5, 6, 5, 6, 5, 6];
        assert_eq!(guess(&mut drafter, (2, 0), &looped).tokens, [5, 6, 5, 6]);
    }

    #[test]
    fn a_run_is_followed_over_what_departs_from_it() {
        let written: Vec<u32> = (0..30).collect();
        let elsewhere = [99, 51, 10, 60, 99, 50, 10, 11, 61, 99];
        let again = |then: &[u32]| {
            let text = [&written[..], &elsewhere, &written[..FOLLOWED]].concat();
            let mut drafter = Ngram::new();
            assert_eq!(guess(&mut drafter, (1, 0), &text).tokens[..2], [8, 9]);
            // As an engine asks, token by token.
            let all = [&text[..], then].concat();
            let each = (text.len() + 1..=all.len()).map(|n| guess(&mut drafter, (1, 0), &all[..n]));
            each.last().unwrap_or_default()
        };
        let none = again(&[70, 71]);
        assert_eq!(none, Guess::default(), "nothing agrees");
        let one = again(&[70, 71, 10]);
        assert_eq!((one.tokens, one.class), (vec![11, 12, 13, 14], 0));
        assert_eq!(
            again(&[99, 51, 10]).tokens[..1],
            [60],
            "three elsewhere are more than one"
        );
        let two = again(&[99, 50, 10, 11]);
        assert_eq!(
            (two.tokens, two.class),
            (vec![12, 13, 14, 15], 1),
            "two are as many as four"
        );
        let late = |n: u32| again(&(200..200 + n).chain([29]).collect::<Vec<_>>());
        let most = LOST as u32 - 1;
        assert_eq!(late(most).tokens[..2], [99, 51]);
        assert_eq!(late(most + 1), Guess::default(), "it is followed no longer");
    }

    #[test]
    fn ended_requests_help_their_own_family_alone() {
        let mut drafter = Ngram::new();
        drafter.ended(RequestId(1), 7, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let tokens = [9, 9, 3, 4, 5];
        assert_eq!(guess(&mut drafter, (2, 7), &tokens).tokens[..3], [6, 7, 8]);
        assert_eq!(guess(&mut drafter, (3, 8), &tokens), Guess::default());
        for family in 10..10 + FAMILIES as u64 {
            drafter.ended(RequestId(1), family, &[1, 2]);
        }
        assert_eq!(guess(&mut drafter, (2, 7), &tokens), Guess::default());
    }

    #[test]
    fn histories_are_bounded_and_texts_that_moved_are_read_anew() {
        let mut drafter = Ngram::new();
        let text: Vec<u32> = (0..HISTORY as u32).collect();
        for _ in 0..3 {
            drafter.ended(RequestId(1), 0, &text);
        }
        assert!(drafter.shared[0].1.tokens.len() <= HISTORY);
        let long = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3];
        assert_eq!(guess(&mut drafter, (2, 1), &long).tokens[..2], [4, 5]);
        let moved = [5, 6, 7, 8, 1, 2, 3, 30, 31, 32, 5, 6, 7];
        assert_eq!(guess(&mut drafter, (2, 1), &moved).tokens[..2], [8, 1]);
    }
}
