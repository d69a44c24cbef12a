//! Whether many answers together come faster with drafts than without, by the clock.
//!
//! What a step costs by its rows does not tell what it costs the others that a step with a draft is one the host waits for, where steps
//! without any follow each other on the device. So tokens of all answers are timed in turns, with drafts and without, and drafts pause
//! while they are the slower way: some turns, then twice as many each time.

use std::collections::BTreeMap;
use std::time::Instant;

/// Answers from which they are timed: what a few lose is known from their steps.
const LEAST: usize = 4;
/// Tokens of each answer in a turn.
const TURN: u64 = 16;
/// Turns of the first pause, and of the longest.
const PAUSES: [usize; 2] = [4, 64];
/// Turns with drafts after which one without shows whether it is still the slower way.
const AGAIN: usize = 64;
/// Weight of the newest turn.
const NEWEST: f64 = 0.5;

/// Tokens of a number of answers that are being timed.
#[derive(Clone, Copy, Debug)]
struct Turn {
    answers: usize,
    began: Instant,
    tokens: u64,
    drafts: u64,
}

/// Nanoseconds of a token by the number of answers, and what follows from them.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Without drafts, and with them.
    known: BTreeMap<usize, [Option<f64>; 2]>,
    turn: Option<Turn>,
    /// Turns left of a pause, and turns of the next one.
    left: usize,
    next: usize,
    /// Turns with drafts since the last pause.
    since: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            known: BTreeMap::new(),
            turn: None,
            left: 0,
            next: PAUSES[0],
            since: 0,
        }
    }
}

impl Pace {
    /// Whether drafts may be tried now: `answers` are all that run (0 where others do, too), which have come to so many tokens and
    /// drafts.
    pub(crate) fn allows(
        &mut self,
        now: Instant,
        answers: usize,
        (tokens, drafts): (u64, u64),
    ) -> bool {
        if answers < LEAST {
            self.turn = None;
            return true;
        }
        let new = Turn {
            answers,
            began: now,
            tokens,
            drafts,
        };
        let turn = *self.turn.get_or_insert(new);
        let came = tokens - turn.tokens;
        if turn.answers != answers {
            self.turn = Some(new);
        } else if came >= TURN * answers as u64 {
            let took = (now - turn.began).as_nanos() as f64 / came as f64;
            self.ended(answers, took, drafts > turn.drafts);
            self.turn = Some(new);
        }
        self.left == 0
    }

    /// A turn ended in which a token took so many nanoseconds.
    fn ended(&mut self, answers: usize, took: f64, with: bool) {
        let known = self.known.entry(answers).or_default();
        let mean = &mut known[usize::from(with)];
        *mean = Some(mean.map_or(took, |old| old + NEWEST * (took - old)));
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        if !with {
            return;
        }
        self.since += 1;
        let pause = match known[0] {
            Some(without) if took > without => {
                let turns = self.next;
                self.next = (2 * turns).min(PAUSES[1]);
                turns
            }
            Some(_) if self.since < AGAIN => {
                self.next = 1;
                0
            }
            _ => 1,
        };
        if pause > 0 {
            (self.left, self.since) = (pause, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Turns of eight answers, with drafts where they are allowed, and what a token takes either way: how many had drafts.
    fn with(turns: usize, [without, with]: [u64; 2]) -> usize {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let (mut tokens, mut drafts, mut count) = (0, 0, 0);
        for _ in 0..turns {
            let mut tried = false;
            for _ in 0..TURN {
                let on = pace.allows(now, 8, (tokens, drafts));
                tried |= on;
                drafts += u64::from(on);
                tokens += 8;
                now += Duration::from_nanos(8 * if on { with } else { without });
            }
            count += usize::from(tried);
        }
        count
    }

    #[test]
    fn drafts_pause_where_they_are_the_slower_way() {
        // One of two, then of five, nine, …, at last one of 65.
        let slower = with(400, [100, 120]);
        assert!((6..=11).contains(&slower), "{slower}");
        let faster = with(400, [100, 60]);
        assert!(faster > 385, "{faster}");
    }

    #[test]
    fn few_answers_and_others_beside_them_are_not_timed() {
        let mut pace = Pace {
            left: 5,
            ..Pace::default()
        };
        let now = Instant::now();
        assert!(pace.allows(now, 3, (0, 0)) && pace.allows(now, 0, (10_000, 9)));
        assert!(!pace.allows(now, 8, (10_000, 9)), "the pause goes on");
    }

    #[test]
    fn a_turn_without_drafts_is_one_without() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert!(pace.allows(now, 4, (0, 7)));
        assert!(pace.allows(now + Duration::from_micros(1), 4, (64, 7)));
        assert!(matches!(pace.known[&4], [Some(_), None]), "{pace:?}");
    }
}
