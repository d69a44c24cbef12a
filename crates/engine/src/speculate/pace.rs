//! Whether many answers together come faster with drafts than without, by the clock.
//!
//! What a step costs by its rows does not tell what it costs the others that a step with a draft is one the host waits for, where steps
//! without any follow each other on the device. So it is timed what a token takes without drafts; then drafts are tried for a turn, or
//! until they are clearly the slower way, and pause if they are: some turns, then twice as many each time, or more until little of the time was lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Answers from which they are timed: what a few lose is known from their steps.
const LEAST: usize = 4;
/// Tokens of each answer in a turn.
const TURN: f64 = 16.0;
/// Tokens of each answer that say something.
const EARLY: f64 = 4.0;
/// By which share drafts are clearly slower after few tokens and after [`EARLY`] of each answer, times these: after more of them less will do.
const CLEARLY: [f64; 2] = [1.2, 0.4];
/// Turns of the first pause, and of the longest.
const PAUSES: [u32; 2] = [8, 64];
/// Part of a pause's time that was lost before it, where that asks for a longer one and drafts were the slower way the time before, too.
const LOST: f64 = 0.005;
/// After which time a pause is over whose answers are gone.
const STALE: Duration = Duration::from_secs(10);
/// Turns with drafts after which one without shows anew what a token takes so.
const AGAIN: usize = 64;
/// Turns after which it is tried again to time answers whose number did not last.
const UNTIMED: u32 = 8;
/// Part of their number by which answers may be more or fewer than those that were timed.
const NEAR: usize = 8;

/// What runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Running {
    /// Answers, if nothing else runs.
    pub(crate) answers: usize,
    /// Tokens of all answers so far.
    pub(crate) tokens: u64,
    /// Drafts that were tried so far.
    pub(crate) drafts: u64,
    /// Whether somebody waits for its newest token, to try something, or tries it.
    pub(crate) waits: bool,
    /// Whether steps without drafts do not follow each other as they do where none are ever tried.
    pub(crate) held: bool,
    /// Nanoseconds of such a step by itself, as far as they are known.
    pub(crate) step_ns: Option<f64>,
}

/// What a token takes without drafts.
#[derive(Clone, Copy, Debug, Default)]
struct Plain {
    ns: f64,
    /// Tokens of each answer that were timed, the newest only.
    tokens: f64,
}

/// Tokens that were drawn while drafts were tried.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// Of each answer.
    tokens: f64,
    /// Nanoseconds that they took, and would have taken without drafts.
    took: f64,
    plain: f64,
}

/// Nanoseconds of a token by the number of answers, and what follows from them.
#[derive(Debug)]
pub(crate) struct Pace {
    plain: BTreeMap<usize, Plain>,
    /// When something was new last, what ran then, and whether drafts had been tried just before.
    last: Option<(Instant, Running, bool)>,
    /// Tokens of each answer that came while it was not known what one takes without drafts.
    unknown: f64,
    trial: Trial,
    /// Tokens of each answer that are left of a pause, whether it is of more than a turn, when it was seen last, and turns of the next one.
    left: f64,
    long: bool,
    seen: Option<Instant>,
    next: u32,
    /// Turns with drafts since the last pause.
    since: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            plain: BTreeMap::new(),
            last: None,
            unknown: 0.0,
            trial: Trial::default(),
            left: 0.0,
            long: false,
            seen: None,
            next: PAUSES[0],
            since: 0,
        }
    }
}

impl Pace {
    /// Whether drafts may be tried now.
    pub(crate) fn allows(&mut self, now: Instant, running: Running) -> bool {
        let answers = running.answers;
        if answers < LEAST {
            self.last = None;
            return true;
        }
        if self.is_stale(now) {
            self.left = 0.0;
        }
        self.seen = Some(now);
        let (began, before, tried) = *self.last.get_or_insert((now, running, true));
        let drafts = running.drafts > before.drafts || running.waits;
        let came = (running.tokens - before.tokens) as f64;
        if before.answers != answers {
            self.last = Some((now, running, drafts));
        } else if came > 0.0 {
            let took = (now - began).as_nanos() as f64;
            let plain = !before.held && !drafts && !tried;
            self.took(running, (came, took), plain);
            self.last = Some((now, running, drafts));
        }
        let known = self.token(running).is_some();
        let unknown = self.unknown + came / answers as f64;
        let again = known || unknown > TURN * f64::from(UNTIMED);
        self.unknown = if again { 0.0 } else { unknown };
        // Where the number of answers never lasts, nothing can be timed.
        self.left <= 0.0 && (known || unknown > TURN)
    }

    /// Whether drafts pause for more than a turn, which is not only to see what tokens take without them. Who keeps a head up to its end
    /// holds back everybody for nothing.
    pub(crate) fn pauses_long(&self) -> bool {
        self.long && self.left > 0.0
    }

    /// Whether so many answers, some of which begin now, find such a pause.
    pub(crate) fn rests(&self, now: Instant, answers: usize) -> bool {
        answers >= LEAST && self.pauses_long() && !self.is_stale(now)
    }

    fn is_stale(&self, now: Instant) -> bool {
        self.seen.is_some_and(|seen| now > seen + STALE)
    }

    /// What a token takes without drafts.
    fn token(&self, running: Running) -> Option<f64> {
        let answers = running.answers;
        let near = answers - answers / NEAR..=answers + answers / NEAR;
        let known = self
            .plain
            .range(near)
            .filter(|(_, plain)| plain.tokens >= EARLY);
        let nearest = known.min_by_key(|(n, _)| n.abs_diff(answers));
        match nearest {
            Some((&n, plain)) => Some(plain.ns * n as f64 / answers as f64),
            None => {
                let held = running.step_ns.filter(|_| running.held);
                held.map(|ns| ns / answers as f64)
            }
        }
    }

    /// So many tokens came in so many nanoseconds; `plain` if no draft has anything to do with it.
    fn took(&mut self, running: Running, (came, took): (f64, f64), plain: bool) {
        let each = came / running.answers as f64;
        if plain {
            let known = self.plain.entry(running.answers).or_default();
            known.tokens = (known.tokens + each).min(TURN);
            let newest = (each / known.tokens).min(1.0);
            known.ns += newest * (took / came - known.ns);
        }
        if self.left > 0.0 {
            self.left -= each;
            return;
        }
        if plain && self.trial.tokens == 0.0 {
            return;
        }
        let Some(token) = self.token(running) else {
            return;
        };
        let trial = &mut self.trial;
        trial.tokens += each;
        trial.took += took;
        trial.plain += came * token;
        let clearly = CLEARLY[usize::from(trial.tokens >= EARLY)];
        let clearly = clearly * (1.0 / trial.tokens - 1.0 / TURN).max(0.0);
        let slower = trial.took > trial.plain * (1.0 + clearly);
        if trial.tokens < 1.0 || !(slower || trial.tokens >= TURN) {
            return;
        }
        let Trial {
            tokens,
            took,
            plain,
        } = std::mem::take(&mut self.trial);
        self.since += 1;
        let turns = match slower {
            true => {
                let turns = self.next;
                self.next = (2 * turns).min(PAUSES[1]);
                turns
            }
            false => {
                self.next = 1;
                u32::from(self.since >= AGAIN)
            }
        };
        if turns > 0 {
            // Tokens of each answer that could have been had besides. Once may be chance.
            let lost = (took / plain - 1.0).max(0.0) * tokens;
            let enough = match turns > PAUSES[0] {
                true => (lost / LOST / TURN).min(f64::from(PAUSES[1])),
                false => 0.0,
            };
            let turns = f64::from(turns).max(enough);
            (self.left, self.since) = (turns * TURN, 0);
            self.long = turns > 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of so many answers, with drafts where they are allowed, and what a token takes either way: how many had drafts.
    fn with(
        steps: usize,
        answers: impl Fn(usize) -> usize,
        [without, with]: [u64; 2],
    ) -> (usize, Pace) {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let (mut running, mut count) = (Running::default(), 0);
        for step in 0..steps {
            running.answers = answers(step);
            let on = pace.allows(now, running);
            count += usize::from(on);
            running.drafts += u64::from(on);
            running.tokens += running.answers as u64;
            let token = if on { with } else { without };
            now += Duration::from_nanos(running.answers as u64 * token);
        }
        (count, pace)
    }

    #[test]
    fn drafts_pause_where_they_are_the_slower_way() {
        // Four tokens each of a few dozen times at most: pauses grow to 64 turns, or to what was lost.
        let (clearly, _) = with(6400, |_| 8, [100, 130]);
        assert!((16..=60).contains(&clearly), "{clearly}");
        let (first, pace) = with(128, |_| 8, [100, 130]);
        assert!(first <= 5, "{first}");
        assert!(pace.pauses_long());
        let (at_once, _) = with(128, |_| 8, [100, 220]);
        assert_eq!(at_once, 1);
        // The slower, the longer the second pause.
        let (dear, _) = with(640, |_| 8, [100, 600]);
        assert_eq!(dear, 2);
        let (hardly, _) = with(6400, |_| 8, [100, 101]);
        assert!((64..=200).contains(&hardly), "{hardly}");
        let (faster, _) = with(6400, |_| 8, [100, 60]);
        assert!(faster > 6200, "{faster}");
    }

    #[test]
    fn a_pause_is_long_up_to_its_end_and_one_that_looks_never() {
        for (token, long) in [(130, true), (60, false)] {
            let mut pauses = 0;
            for steps in 30..1200 {
                let (_, pace) = with(steps, |_| 8, [100, token]);
                if pace.left > 0.0 {
                    pauses += 1;
                    assert_eq!(pace.pauses_long(), long, "{steps}: {pace:?}");
                }
            }
            assert!(pauses >= 15, "{pauses}");
        }
    }

    #[test]
    fn answers_that_come_and_go_are_timed_too() {
        for lasts in [2, 3] {
            let answers = |step: usize| 30 + (step / lasts) % 4;
            let (slower, _) = with(6400, answers, [100, 130]);
            assert!((4..=200).contains(&slower), "{slower} {lasts}");
            let (faster, _) = with(6400, answers, [100, 60]);
            assert!(faster > 5600, "{faster} {lasts}");
        }
        // Nothing can be timed, and nothing is forbidden for long.
        let (tried, _) = with(6400, |step| 30 + step % 4, [100, 130]);
        assert!((5500..=5700).contains(&tried), "{tried}");
        let (later, _) = with(
            6400,
            |step| 30 + (step % 4).min(3200 - step.min(3200)),
            [100, 130],
        );
        assert!(later < tried / 2 + 200, "{later}");
    }

    #[test]
    fn few_answers_and_others_beside_them_are_not_timed() {
        let mut pace = Pace {
            left: 5.0,
            ..Pace::default()
        };
        let now = Instant::now();
        let running = |answers| Running {
            answers,
            held: true,
            step_ns: Some(9.0),
            ..Running::default()
        };
        assert!(pace.allows(now, running(3)) && pace.allows(now, running(0)));
        assert!(!pace.allows(now, running(8)), "the pause goes on");
    }

    #[test]
    fn a_pause_ends_with_its_load() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        (pace.left, pace.long, pace.seen) = (1000.0, true, Some(now));
        let (soon, late) = (now + STALE / 2, now + 2 * STALE);
        assert!(pace.rests(soon, 8) && !pace.rests(soon, 3) && !pace.rests(late, 8));
        let running = Running {
            answers: 8,
            held: true,
            step_ns: Some(9.0),
            ..Running::default()
        };
        assert!(!pace.allows(soon, running));
        assert!(pace.allows(late, running));
    }

    #[test]
    fn what_a_step_takes_is_held_against_drafts_until_some_ran_without() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let mut running = Running {
            answers: 10,
            held: true,
            step_ns: Some(1000.0),
            ..Running::default()
        };
        assert!(pace.allows(now, running));
        for _ in 0..5 {
            running.tokens += 10;
            running.drafts += 1;
            now += Duration::from_nanos(1500);
            pace.allows(now, running);
        }
        assert!(pace.pauses_long() && pace.plain.is_empty(), "{pace:?}");
    }

    #[test]
    fn tokens_behind_a_draft_are_no_measure() {
        let (_, pace) = with(200, |_| 8, [100, 130]);
        let plain = pace.plain[&8].ns;
        assert!((plain - 100.0).abs() < 0.5, "{plain}");
        let mut bent = Pace::default();
        let now = Instant::now();
        let running = Running {
            answers: 8,
            ..Running::default()
        };
        bent.allows(now, running);
        let mut more = running;
        for waits in [false, true, false] {
            // Right after others, while somebody waits, and right after that.
            more = Running {
                tokens: more.tokens + 800,
                waits,
                ..running
            };
            bent.allows(now, more);
        }
        assert!(bent.plain.is_empty(), "something else was kept: {bent:?}");
    }
}
