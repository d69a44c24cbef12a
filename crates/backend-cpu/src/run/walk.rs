//! The walk over a tape: who meets where, and what is done between.
//!
//! A worker of a replay and the proof that replays are free of races take the same walk, each with a [`Hand`] of its own.

use std::sync::Mutex;
use std::time::Instant;

use tokkata_ir::tape::Tape;
use tokkata_ir::{Lead, ValueId};

use super::chain::{Chain, Round};
use super::cx::Cx;
use super::lower::Prepared;
use crate::arena::Place;
use crate::pool::Worker;

/// A step in its final form.
pub(super) struct Step {
    pub(super) kernel: Prepared,
    /// The node that it does, or that it prepares or ends.
    pub(super) node: usize,
}

/// A plan that can be replayed.
pub(super) struct Lowered {
    pub(super) tape: Tape<Step>,
    /// In the order of their steps.
    pub(super) chains: Vec<Chain>,
    pub(super) places: Vec<Place>,
    /// Inputs that a replay must find set.
    pub(super) embeds: Vec<ValueId>,
}

/// What is done with a tape.
pub(super) trait Hand {
    /// Rows of a lead in this step.
    fn count(&self, lead: Lead) -> usize;

    /// Before a step: meets the others if that is needed.
    fn meet(&mut self, step: usize, needed: bool);

    /// Does its share of a step.
    fn share(&mut self, step: usize);

    /// Takes part in a round.
    fn round(&mut self, round: &Round);
}

/// Goes through the steps of a plan, those of a chain part by part where it pays.
pub(super) fn walk(plan: &Lowered, hand: &mut impl Hand) {
    let (mut next, mut chains) = (0, plan.chains.iter().peekable());
    while let Some(sync) = plan.tape.syncs().get(next) {
        let needed = sync.holds(|lead| hand.count(lead));
        hand.meet(next, needed);
        let chain = chains.next_if(|chain| chain.steps.start == next);
        if let Some(chain) = chain.filter(|chain| chain.pays(hand.count(chain.lead))) {
            for (i, round) in chain.rounds(hand.count(chain.lead)).enumerate() {
                if i > 0 {
                    hand.meet(round.start(), true);
                }
                hand.round(round);
            }
            next = chain.steps.end;
        } else {
            hand.share(next);
            next += 1;
        }
    }
}

/// What has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Met,
    Done,
}

/// A worker of a replay.
struct AtWork<'a, F> {
    tape: &'a Tape<Step>,
    cx: &'a Cx<'a>,
    worker: &'a Worker<'a>,
    /// Is told of every step.
    at: F,
}

impl<F: FnMut(usize, Moment)> Hand for AtWork<'_, F> {
    fn count(&self, lead: Lead) -> usize {
        self.cx.count(lead)
    }

    fn meet(&mut self, step: usize, needed: bool) {
        if needed {
            self.cx.meet(self.worker);
        }
        (self.at)(step, Moment::Met);
    }

    fn share(&mut self, step: usize) {
        self.cx.watch.share(step);
        let kernel = &self.tape.instrs()[step].kernel.kernel;
        kernel.run(self.cx, self.worker);
        (self.at)(step, Moment::Done);
    }

    fn round(&mut self, round: &Round) {
        let at = &mut self.at;
        round.run(self.tape, (self.cx, self.worker), &mut |step| {
            at(step, Moment::Done);
        });
    }
}

/// Replays a plan as one of its workers. Says when it has waited before a step and when it has done some of it.
pub(super) fn work(
    plan: &Lowered,
    (cx, worker): (&Cx<'_>, &Worker<'_>),
    at: impl FnMut(usize, Moment),
) {
    let tape = &plan.tape;
    let mut hand = AtWork {
        tape,
        cx,
        worker,
        at,
    };
    walk(plan, &mut hand);
}

/// As [`work`], and the first worker takes the time: waiting and running of each step.
pub(super) fn work_timed(
    plan: &Lowered,
    (cx, worker): (&Cx<'_>, &Worker<'_>),
    times: &Mutex<Vec<(u64, u64)>>,
) {
    if worker.index() > 0 {
        return work(plan, (cx, worker), |_, _| {});
    }
    let mut each = vec![(0, 0); plan.tape.instrs().len()];
    let mut last = Instant::now();
    work(plan, (cx, worker), |step, moment| {
        let now = Instant::now();
        let ns = now.duration_since(last).as_nanos() as u64;
        last = now;
        match moment {
            Moment::Met => each[step].0 += ns,
            Moment::Done => each[step].1 += ns,
        }
    });
    *times
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = each;
}
