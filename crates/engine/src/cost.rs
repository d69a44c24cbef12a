//! What steps cost, as far as they have been seen: how many prompt rows a step may take, and when.
//!
//! Beside answers a prompt runs in slices, each long enough to be worth a step of its own, and after a slice answers run
//! alone until they have kept half of the speed that they have alone. Where more prompts than answers wait, answers keep
//! their part of all callers instead, and slices last longer: what many wait for comes sooner, and later steps have more
//! rows to share weights. What a step costs whatever its rows are counts as time without answers, but makes no slice
//! shorter.

mod cold;

use std::time::Duration;

use cold::Cold;

/// Weight of the newest step.
const NEWEST: f64 = 0.25;
/// Prompt rows that a slice has at least: with fewer, what rows share (weights, keys that lie far back) is read too
/// often.
const LEAST_ROWS: usize = 64;
/// The same where several prompts wait.
const LEAST_OF_MANY: usize = 48;
/// Rows come in multiples of this, as kernels take them.
const EVEN_ROWS: usize = 8;
/// Steps of answers that a slice lasts.
const SLICE: f64 = 8.0;
/// What a slice that is longer than that may last, in nanoseconds: a reader sees it as a gap.
const LONGEST: f64 = 40e6;
/// Speed that answers keep beside no more prompts than themselves, as a share of what they have alone.
const KEPT: f64 = 0.525;
/// The least part of that which they keep beside any number of prompts.
const LEAST_KEPT: f64 = 1.0 / 8.0;
/// A prompt is short if it takes no longer than so many steps of answers.
const SHORT: f64 = 128.0;
/// Steps of answers that may be owed before even prompts that are short, or have not begun, wait.
const MOST_OWED: f64 = 256.0;
/// Rows of answers up to which steps are told apart.
const MOST_ROWS: usize = 128;
/// What a row more is thought to cost of a step, before any was seen.
const ROW_SHARE: f64 = 0.05;
/// Positions from which what a row costs beyond the usual is laid to those before it.
const DEEP: usize = 512;

/// Running means over the steps that were seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// A step of answers alone.
    answers_ns: Option<f64>,
    /// The same by its rows, less one.
    by_rows: Vec<Option<f64>>,
    /// What a step with prompt rows costs whatever their number.
    step_ns: f64,
    /// What a prompt row adds to a step.
    row_ns: Option<f64>,
    /// What each position before it adds to that.
    position_ns: f64,
    /// Steps of answers since the last with prompt rows.
    cold: Cold,
    /// Answers, and prompts that are not read yet.
    callers: (usize, usize),
    /// What answers would have written by now at the speed that they keep, less what they have, in the time that it
    /// takes them alone.
    owed_ns: f64,
}

/// Prompt rows, and positions before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PromptRows {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
}

fn mean(old: &mut Option<f64>, new: f64) {
    *old = Some(old.map_or(new, |old| old + NEWEST * (new - old)));
}

impl Costs {
    /// A step took so long.
    pub(crate) fn saw(&mut self, answers: usize, prompts: &[PromptRows], took: Duration) {
        let ns = took.as_nanos() as f64;
        let rows: usize = prompts.iter().map(|p| p.rows).sum();
        if rows == 0 {
            self.cold.step(answers, ns);
            if self.cold.is_over() || self.seen(answers).is_none_or(|alone| ns < alone) {
                self.saw_rows(answers, ns);
            }
            return mean(&mut self.answers_ns, ns);
        }
        self.cold.slice();
        let base = self.answers_ns.filter(|_| answers > 0).unwrap_or(0.0);
        let of_prompts = (ns - base).max(ns / 8.0);
        if answers > 0 {
            // What it was thought to take is noted already.
            self.owed_ns += self.kept() * (of_prompts - self.all(prompts, true));
        }
        let of_rows = (of_prompts - self.besides(answers > 0)).max(of_prompts / 4.0);
        let depths = prompts.iter().map(|p| p.rows * p.depth).sum::<usize>();
        let depth = depths as f64 / rows as f64;
        let deep = self.row_ns.filter(|_| depth >= DEEP as f64);
        match deep {
            Some(row_ns) => {
                let more = (of_rows / rows as f64 - row_ns).max(0.0) / depth;
                self.position_ns += NEWEST * (more - self.position_ns);
            }
            None => mean(&mut self.row_ns, of_rows / rows as f64),
        }
    }

    /// Steps of few and of many prompt rows, and nothing else, took so long.
    pub(crate) fn compared(&mut self, few: (usize, Duration), many: (usize, Duration)) {
        let ns = |(_, took): (usize, Duration)| took.as_nanos() as f64;
        let (most, more) = (ns(many) / many.0 as f64, many.0.saturating_sub(few.0));
        let row_ns = match more {
            0 => most,
            more => ((ns(many) - ns(few)) / more as f64).clamp(most / 4.0, most),
        };
        self.step_ns = ns(many) - row_ns * many.0 as f64;
        self.row_ns = Some(row_ns);
    }

    /// What prompt rows add to a step, with or without answers, whatever their number.
    fn besides(&self, answers: bool) -> f64 {
        let base = self.answers_ns.filter(|_| answers).unwrap_or(0.0);
        (self.step_ns - base).max(0.0)
    }

    /// A step of so many rows of answers alone took so many nanoseconds.
    pub(crate) fn saw_rows(&mut self, rows: usize, ns: f64) {
        if let Some(place) = rows.checked_sub(1).filter(|&place| place < MOST_ROWS) {
            if self.by_rows.len() <= place {
                self.by_rows.resize(place + 1, None);
            }
            // One step that took long says little.
            let old = self.by_rows[place];
            mean(
                &mut self.by_rows[place],
                old.map_or(ns, |old| ns.min(4.0 * old)),
            );
        }
    }

    /// Nanoseconds of a step of so many rows of answers alone, if one was seen; of more rows than are told apart, about.
    pub(crate) fn seen(&self, rows: usize) -> Option<f64> {
        if rows > MOST_ROWS {
            return self.answers_ns.map(|_| self.answers(rows));
        }
        *self.by_rows.get(rows.checked_sub(1)?)?
    }

    /// Nanoseconds of a step of so many rows of answers alone: as seen, else between those of fewer and of more rows.
    pub(crate) fn answers(&self, rows: usize) -> f64 {
        let seen = self.by_rows.iter().enumerate();
        let seen = seen.filter_map(|(place, ns)| Some((place + 1, (*ns)?)));
        let (mut lower, mut below, mut above) = (None, None, None);
        for (n, ns) in seen {
            if n <= rows {
                (lower, below) = (below, Some((n, ns)));
            } else if above.is_none() {
                above = Some((n, ns));
            }
        }
        let line = |(n, a): (usize, f64), (m, b): (usize, f64)| {
            a + (b - a) * (rows as f64 - n as f64) / (m as f64 - n as f64)
        };
        match (below, above) {
            (Some((n, ns)), _) if n == rows => ns,
            (Some(below), Some(above)) => line(below, above),
            (Some((n, ns)), None) => {
                let slope = |(m, less): (usize, f64)| (ns - less) / (n - m) as f64;
                let slope = lower.map_or(ns * ROW_SHARE, slope);
                ns + (rows - n) as f64 * slope.max(0.0)
            }
            (None, Some((_, ns))) => ns,
            (None, None) => rows as f64,
        }
    }

    /// What a row behind so many positions adds to a step.
    fn row(&self, depth: usize) -> Option<f64> {
        Some((self.row_ns? + self.position_ns * depth as f64).max(1.0))
    }

    /// So many answers run from now on, and so many prompts are not read yet.
    pub(crate) fn shared(&mut self, answers: usize, prompts: usize) {
        self.callers = (answers, prompts);
    }

    /// Speed that answers keep now, as a share of what they have alone.
    fn kept(&self) -> f64 {
        let (answers, prompts) = self.callers;
        if answers == 0 {
            return KEPT;
        }
        let part = 2.0 * answers as f64 / (answers + prompts) as f64;
        KEPT * part.clamp(LEAST_KEPT, 1.0)
    }

    /// How long prompts may run in a step, if that is limited: beside answers a slice, beside none `patience`.
    pub(crate) fn slice(&self, beside: bool, patience: Option<Duration>) -> Option<Slice> {
        let patience = patience.map(|p| p.as_nanos() as f64);
        let ns = match (beside, self.answers_ns) {
            (true, Some(ns)) => {
                let usual = SLICE * ns;
                let longer = usual * KEPT / self.kept();
                Some(longer.min(LONGEST).max(usual))
            }
            (true, None) => patience.or(Some(0.0)),
            (false, _) => patience.map(|ns| (ns - self.step_ns).max(0.0)),
        };
        ns.map(|ns| Slice { ns })
    }

    /// What these rows add to a step with or without answers.
    fn all(&self, prompts: &[PromptRows], answers: bool) -> f64 {
        let any = prompts.iter().any(|p| p.rows > 0);
        let step = if any { self.besides(answers) } else { 0.0 };
        step + prompts.iter().map(|p| self.rows(*p)).sum::<f64>()
    }

    /// What these rows add to a step that has others.
    fn rows(&self, p: PromptRows) -> f64 {
        self.row(p.depth).unwrap_or(0.0) * p.rows as f64
    }

    /// Whether prompts have had their time until answers have had theirs.
    pub(crate) fn owes(&self) -> bool {
        self.owed_ns > 0.0 || self.cold.looks()
    }

    /// Whether they have had so much that no prompt may go before.
    pub(crate) fn owes_much(&self) -> bool {
        self.owed_ns > MOST_OWED * self.answers_ns.unwrap_or(0.0)
    }

    /// Whether a prompt of so many rows is one that others are let wait for.
    pub(crate) fn is_short(&self, rows: usize) -> bool {
        let rows = PromptRows { rows, depth: 0 };
        self.rows(rows) <= SHORT * self.answers_ns.unwrap_or(0.0)
    }

    /// A work was formed with so many steps of answers, if any, and these prompt rows; whether there are answers at all.
    pub(crate) fn formed(&mut self, steps: usize, prompts: &[PromptRows], beside: bool) {
        let prompts = self.all(prompts, steps > 0);
        let Some(now) = self.answers_ns.filter(|_| beside) else {
            self.owed_ns = if beside { self.kept() * prompts } else { 0.0 };
            return;
        };
        let alone = now * self.cold.share().unwrap_or(1.0);
        let owed =
            self.owed_ns + self.kept() * (prompts + now * steps as f64) - alone * steps as f64;
        // Of what nobody asked for a step is kept; what answers have while they are looked at is taken back later.
        self.owed_ns = match self.cold.looks() {
            true => owed,
            false => owed.max(self.owed_ns.min(-alone)),
        };
    }

    /// How long so many prompt rows take, about.
    pub(crate) fn prompt(&self, rows: usize) -> Duration {
        let rows = PromptRows { rows, depth: 0 };
        Duration::from_nanos(self.all(&[rows], false) as u64)
    }

    /// How long a step of answers takes, about.
    pub(crate) fn answer_step(&self) -> Option<Duration> {
        self.answers_ns.map(|ns| Duration::from_nanos(ns as u64))
    }
}

/// Time of a step that prompts may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    ns: f64,
}

impl Slice {
    /// Rows behind so many positions that fit into a share of it.
    pub(crate) fn rows(&self, costs: &Costs, depth: usize, among: usize) -> usize {
        let share = self.ns / among as f64;
        let fit = costs.row(depth).map_or(0.0, |row| share / row);
        let least = match costs.callers.1 {
            0 | 1 => LEAST_ROWS,
            _ => LEAST_OF_MANY,
        };
        (fit as usize / EVEN_ROWS * EVEN_ROWS).max(least)
    }

    /// Whether something of it is left.
    pub(crate) fn is_left(&self) -> bool {
        self.ns > 0.0
    }

    /// Rows of it are given away.
    pub(crate) fn take(&mut self, costs: &Costs, rows: PromptRows) {
        self.ns = (self.ns - costs.rows(rows)).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(depth: usize, rows: usize) -> PromptRows {
        PromptRows { rows, depth }
    }

    #[test]
    fn a_slice_lasts_a_few_steps_of_answers() {
        let mut costs = Costs::default();
        let ms = Duration::from_millis;
        assert!(costs.slice(false, None).is_none());
        let first = costs.slice(true, None).unwrap();
        assert_eq!(first.rows(&costs, 0, 1), LEAST_ROWS);
        costs.saw(1, &[], ms(20));
        costs.saw(1, &[at(0, 32)], ms(52));
        let slice = costs.slice(true, None).unwrap();
        assert_eq!(slice.rows(&costs, 0, 1), 160, "160 ms at 1 ms a row");
        assert_eq!(slice.rows(&costs, 0, 2), 80, "80 ms");
        assert!(costs.slice(false, None).is_none());
        let patience = costs.slice(false, Some(ms(100))).unwrap();
        assert_eq!(patience.rows(&costs, 0, 1), 96);
        assert_eq!(costs.prompt(50), ms(50));
        for _ in 0..20 {
            costs.saw(0, &[at(0, 8)], ms(8000));
        }
        assert_eq!(slice.rows(&costs, 0, 1), LEAST_ROWS, "never none");
        costs.shared(1, 2);
        assert_eq!(slice.rows(&costs, 0, 2), LEAST_OF_MANY, "nor of many");
    }

    #[test]
    fn what_a_step_costs_anyway_makes_no_slice_shorter() {
        let ms = Duration::from_millis;
        let mut costs = Costs::default();
        costs.saw(1, &[], ms(20));
        costs.compared((16, ms(46)), (80, ms(110)));
        assert_eq!(costs.prompt(50), ms(80), "30 and one for each row");
        let slice = costs.slice(true, None).unwrap();
        assert_eq!(slice.rows(&costs, 0, 1), 160, "160 ms at 1 ms a row");
        for _ in 0..20 {
            costs.saw(1, &[at(0, 120)], ms(150));
        }
        let row = costs.row(0).unwrap();
        assert!((row / 1e6 - 1.0).abs() < 1e-6, "as it was thought to be");
        let mut costs = costs.clone();
        costs.formed(0, &[], false);
        costs.formed(1, &[at(0, 120)], true);
        let owed = KEPT * 150.0 - 20.0;
        assert!(
            (costs.owed_ns / 1e6 - owed).abs() < 1.0,
            "one token of 150 ms"
        );
        let patience = costs.slice(false, Some(ms(100))).unwrap();
        assert_eq!(patience.rows(&costs, 0, 1), 64, "70 ms are left for rows");
        costs.compared((8, ms(10)), (8, ms(16)));
        assert_eq!(costs.prompt(50), ms(100), "one number tells of rows only");
    }

    #[test]
    fn slices_last_longer_where_many_wait() {
        let mut costs = Costs::default();
        let slice = |costs: &mut Costs, answers, prompts| {
            costs.shared(answers, prompts);
            costs.slice(true, None).unwrap().ns / 1e6
        };
        costs.saw(1, &[], Duration::from_micros(500));
        assert_eq!(slice(&mut costs, 1, 1), 4.0, "eight steps");
        assert_eq!(slice(&mut costs, 9, 1), 4.0);
        assert_eq!(slice(&mut costs, 1, 7), 16.0, "a quarter of the half");
        assert_eq!(
            slice(&mut costs, 1, 100),
            32.0,
            "and no less than an eighth"
        );
        costs.saw(1, &[], Duration::from_millis(7));
        assert_eq!(slice(&mut costs, 1, 1), 17.0, "eight steps");
        assert_eq!(slice(&mut costs, 1, 7), 40.0, "what nobody minds");
    }

    #[test]
    fn steps_of_more_rows_are_told_apart() {
        let mut costs = Costs::default();
        let ms = |ms: f64| Duration::from_nanos((ms * 1e6) as u64);
        assert!(costs.answers(4) > costs.answers(1), "nothing was seen");
        costs.saw(1, &[], ms(10.0));
        assert!(
            (costs.answers(3) / 1e6 - 11.0).abs() < 0.01,
            "a little more"
        );
        costs.saw(4, &[], ms(16.0));
        assert!((costs.answers(2) / 1e6 - 12.0).abs() < 0.01, "in between");
        assert!((costs.answers(6) / 1e6 - 20.0).abs() < 0.01, "and beyond");
        costs.saw(1, &[], ms(1000.0));
        assert!(costs.answers(1) / 1e6 < 20.0, "one step says little");
    }

    #[test]
    fn rows_cost_more_behind_many_positions() {
        let mut costs = Costs::default();
        let ms = Duration::from_millis;
        costs.saw(1, &[], ms(20));
        costs.saw(0, &[at(0, 32)], ms(32));
        for _ in 0..40 {
            costs.saw(0, &[at(1000, 10)], ms(25));
        }
        let mut slice = costs.slice(true, None).unwrap();
        assert_eq!(
            slice.rows(&costs, 0, 1),
            160,
            "depth says nothing of others"
        );
        assert_eq!(slice.rows(&costs, 1000, 1), 64, "160 ms at 2.5 ms a row");
        slice.take(&costs, at(0, 80));
        assert_eq!(slice.rows(&costs, 0, 1), 80, "80 ms are left");
        slice.take(&costs, at(0, 100));
        assert!(!slice.is_left());
    }

    /// Slices of so many milliseconds, each with a step of answers, and answers alone until they have had their part: the
    /// share of their speed that they keep, if the first steps behind a slice take so much longer, and each step a little
    /// more than the one before.
    fn kept(slice: usize, cold: f64, deeper: f64) -> f64 {
        let mut costs = Costs::default();
        let ms = |ms: f64| Duration::from_nanos((ms * 1e6) as u64);
        costs.saw(1, &[], ms(10.0));
        costs.saw(0, &[at(0, 10)], ms(10.0));
        let (mut alone, mut all, mut time) = (10.0, 0.0, 0.0);
        for _ in 0..200 {
            let took = slice as f64 + alone;
            costs.formed(1, &[at(0, slice)], true);
            costs.saw(1, &[at(0, slice)], ms(took));
            (all, time) = (all + alone, time + took);
            let mut steps = 0;
            while costs.owes() {
                alone *= 1.0 + deeper;
                let took = if steps < cold::COLD {
                    alone * cold
                } else {
                    alone
                };
                costs.formed(1, &[], true);
                costs.saw(1, &[], ms(took));
                (all, time, steps) = (all + alone, time + took, steps + 1);
            }
        }
        all / time
    }

    #[test]
    fn after_a_slice_answers_catch_up_to_half_of_their_speed() {
        for slice in [30, 80, 100, 640] {
            for cold in [1.0, 1.05, 1.1, 1.25] {
                for deeper in [0.0, 0.0005] {
                    let kept = kept(slice, cold, deeper);
                    assert!(
                        (kept - KEPT).abs() < 0.01,
                        "{kept} with {slice}, {cold}, {deeper}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_a_slice_took_beyond_what_was_thought_counts() {
        let mut costs = Costs::default();
        let ms = Duration::from_millis;
        costs.saw(1, &[], ms(10));
        costs.saw(0, &[at(0, 10)], ms(10));
        costs.formed(1, &[at(0, 40)], true);
        let thought = costs.owed_ns;
        costs.saw(1, &[at(0, 40)], ms(90));
        let more = (costs.owed_ns - thought) / 1e6;
        assert!((more - KEPT * 40.0).abs() < 1.0, "it took 40 ms more");
        assert!(!costs.owes_much());
        costs.formed(0, &[at(0, 5000)], true);
        assert!(costs.owes_much());
        costs.formed(0, &[at(0, 40)], false);
        assert!(!costs.owes(), "nothing is owed to nobody");
    }
}
