//! What steps cost, as far as they have been seen: how many prompt rows a step may take.

use std::time::Duration;

/// Weight of the newest step.
const NEWEST: f64 = 0.25;
/// Prompt rows that a step takes at least, so that prompts get on however slow the machine is.
const LEAST_ROWS: usize = 8;

/// Running means over the steps that were seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    /// A step of answers alone.
    answers_ns: Option<f64>,
    /// What a prompt row adds to a step.
    row_ns: Option<f64>,
}

fn mean(old: &mut Option<f64>, new: f64) {
    *old = Some(old.map_or(new, |old| old + NEWEST * (new - old)));
}

impl Costs {
    /// A step took so long.
    pub(crate) fn saw(&mut self, answers: usize, prompt_rows: usize, took: Duration) {
        let ns = took.as_nanos() as f64;
        if prompt_rows == 0 {
            mean(&mut self.answers_ns, ns);
        } else {
            let base = if answers > 0 {
                self.answers_ns.unwrap_or(0.0)
            } else {
                0.0
            };
            mean(
                &mut self.row_ns,
                (ns - base).max(ns / 8.0) / prompt_rows as f64,
            );
        }
    }

    /// Prompt rows for a step beside `answers` answers: as many as double its time; beside none, as many as take
    /// `patience`.
    pub(crate) fn prompt_rows(&self, answers: usize, patience: Option<Duration>) -> usize {
        let Some(row_ns) = self.row_ns else {
            return if answers > 0 || patience.is_some() {
                4 * LEAST_ROWS
            } else {
                usize::MAX
            };
        };
        let share = match (answers, self.answers_ns) {
            (1.., Some(ns)) => Some(ns),
            _ => patience.map(|p| p.as_nanos() as f64),
        };
        let Some(share) = share else {
            return usize::MAX;
        };
        let rows = (share / row_ns.max(1.0)) as usize;
        (rows / LEAST_ROWS * LEAST_ROWS).max(LEAST_ROWS)
    }

    /// How long so many prompt rows take, about.
    pub(crate) fn prompt(&self, rows: usize) -> Duration {
        Duration::from_nanos((self.row_ns.unwrap_or(0.0) * rows as f64) as u64)
    }

    /// How long a step of answers takes, about.
    pub(crate) fn answer_step(&self) -> Option<Duration> {
        self.answers_ns.map(|ns| Duration::from_nanos(ns as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_takes_as_long_as_the_answers_beside_it() {
        let mut costs = Costs::default();
        let ms = Duration::from_millis;
        assert_eq!(costs.prompt_rows(0, None), usize::MAX);
        costs.saw(1, 0, ms(20));
        costs.saw(1, 32, ms(52));
        assert_eq!(
            costs.prompt_rows(1, None),
            16,
            "20 ms at 1 ms a row, in eights"
        );
        assert_eq!(costs.prompt_rows(0, None), usize::MAX);
        assert_eq!(costs.prompt_rows(0, Some(ms(100))), 96);
        assert_eq!(costs.prompt(50), ms(50));
        for _ in 0..20 {
            costs.saw(0, 8, ms(8000));
        }
        assert_eq!(costs.prompt_rows(3, None), LEAST_ROWS, "never none");
    }
}
