//! Which rows the next step computes.
//!
//! Tasks are served in the order they came. Answers under way come first, one row each; the rows that are left go to
//! prompts, in chunks. When blocks run short the youngest task gives its own back and waits.

use tokkata_ir::Limits;

use crate::task::Task;

/// Rows of one task in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Place of the task among the running ones.
    pub(crate) task: usize,
    /// Rows.
    pub(crate) rows: usize,
    /// Whether the last row's logits are wanted.
    pub(crate) wants_logits: bool,
}

/// What is left of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    rows: usize,
    seqs: usize,
    logit_rows: usize,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Budget {
            rows: limits.rows as usize,
            seqs: limits.seqs as usize,
            logit_rows: limits.logit_rows as usize,
        }
    }

    /// The part that a task can have, `rows` at most.
    pub(crate) fn part(&self, index: usize, task: &Task, rows: usize) -> Option<Part> {
        let pending = task.pending().len();
        let mut rows = pending.min(self.rows).min(rows);
        if self.seqs == 0 || rows == 0 {
            return None;
        }
        let mut wants_logits = rows == pending && task.wants_token();
        if wants_logits && self.logit_rows == 0 {
            rows -= 1;
            wants_logits = false;
        }
        (rows > 0).then_some(Part {
            task: index,
            rows,
            wants_logits,
        })
    }

    pub(crate) fn spend(&mut self, part: &Part) {
        self.rows -= part.rows;
        self.seqs -= 1;
        self.logit_rows -= usize::from(part.wants_logits);
    }
}

/// Places of the running tasks in the order they are served.
pub(crate) fn order(running: &[Task]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..running.len()).collect();
    order.sort_by_key(|&i| !running[i].is_decoding());
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Request, RequestId};
    use crate::sequence::Sequence;

    fn task(prompt: usize) -> Task {
        let request = Request {
            prompt: vec![1; prompt],
            ..Request::default()
        };
        Task::new(RequestId(0), Sequence::new(0, 0), None, request)
    }

    fn limits(rows: u32, seqs: u32, logit_rows: u32) -> Limits {
        Limits {
            rows,
            seqs,
            logit_rows,
            ..Limits::default()
        }
    }

    #[test]
    fn a_prompt_takes_the_rows_that_are_left() {
        let mut budget = Budget::new(&limits(8, 3, 1));
        let first = budget.part(0, &task(5), 99).unwrap();
        assert_eq!((first.rows, first.wants_logits), (5, true));
        budget.spend(&first);
        let second = budget.part(1, &task(3), 99).unwrap();
        assert_eq!(
            (second.rows, second.wants_logits),
            (2, false),
            "no logit row is left"
        );
        budget.spend(&second);
        assert_eq!(budget.part(2, &task(4), 99).unwrap().rows, 1);
    }

    #[test]
    fn answers_come_before_prompts() {
        let mut answering = task(1);
        answering.stats.generated_tokens = 1;
        assert_eq!(order(&[task(4), answering, task(2)]), [1, 0, 2]);
    }
}
