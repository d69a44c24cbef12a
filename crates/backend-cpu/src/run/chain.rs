//! Steps that deal out columns, one part at a time.
//!
//! With many rows a value is larger than a cache, so that a norm, a rotation or a gate over all of it waits for
//! memory. A *chain* is a run of steps without meetings that all deal out columns, as the tape finds them. Its steps
//! fall into *lanes*, the steps that values flow between; some parts of a lane's columns go through all its steps before
//! the next ones, and workers take them one by one, so that none waits for a slower neighbour. A vast product, such as
//! that of the head, is a chain of its own.
//!
//! With few heads and many workers a lane's parts are too large to be dealt out evenly. Then products come first, panel
//! by panel, and the other steps after a barrier.

use std::ops::Range;

use tokkata_ir::Lead;
use tokkata_ir::tape::{Run, Tape};

use super::cx::{Cx, Parts};
use super::lower::Prepared;
use super::walk::Step;
use crate::kernels::MAX_STREAM_ROWS;
use crate::layout::PANEL_ROWS;
use crate::pool::Worker;

/// Rows from which values are worked on part by part.
const MANY_ROWS: usize = MAX_STREAM_ROWS + 1;
/// Columns that go through a lane together, unless one part has more.
const COLUMNS: usize = 128;
/// Portions per worker that the work is cut into, if there are as many parts.
const PORTIONS: usize = 4;
/// Portions get smaller towards the end, as long as each worker could take this many: none waits long for the last.
const LEFT: usize = 2;
/// The last portions are this much smaller than the first, at most: each reads all of the input again.
const SMALLER: usize = 4;
/// Multiply–adds per row of a product that is dealt out in portions alone, even for one row: each portion of such a
/// product is still a long run of memory.
const VAST: usize = 32 << 20;

/// Workers from which one is often slower than the others: then even one row's work is dealt out in portions, if each
/// worker has as many bytes of weights to read as [`MUCH`].
const MANY_WORKERS: usize = 8;
/// Bytes that take far longer to read than portions take to deal out.
const MUCH: usize = 320 << 10;
/// Multiply–adds that take as long as a barrier, roughly. One where assertions are checked: tests have small models.
const BARRIER: usize = if cfg!(debug_assertions) { 1 } else { 4 << 20 };

/// A lane: steps and how many parts they have.
#[derive(Debug)]
struct Lane {
    steps: Vec<usize>,
    parts: usize,
    /// Parts that are taken at once.
    portion: usize,
    /// Multiply–adds of a part and a row.
    work: usize,
}

/// Parts of a lane that one worker takes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Portion {
    lane: usize,
    parts: Range<usize>,
}

/// Cuts lanes into portions, in the order in which they are taken.
fn deal(lanes: &[Lane], workers: usize) -> Vec<Portion> {
    let mut left: usize = lanes.iter().map(|lane| lane.parts * lane.work).sum();
    let mut portions = Vec::new();
    for (index, lane) in lanes.iter().enumerate() {
        let mut at = 0;
        while at < lane.parts {
            let fair = (left / (LEFT * workers)).checked_div(lane.work);
            let least = lane.portion.div_ceil(SMALLER);
            let count = fair.unwrap_or(lane.portion).clamp(least, lane.portion);
            let end = (at + count).min(lane.parts);
            portions.push(Portion {
                lane: index,
                parts: at..end,
            });
            left -= (end - at) * lane.work;
            at = end;
        }
    }
    portions
}

/// Work of the worker that has most when each takes the next portion as soon as it has done its last.
fn longest(lanes: &[Lane], portions: &[Portion], workers: usize) -> usize {
    let mut loads = vec![0; workers];
    for Portion { lane, parts } in portions {
        if let Some(least) = loads.iter_mut().min() {
            *least += parts.len() * lanes[*lane].work;
        }
    }
    loads.into_iter().max().unwrap_or(0)
}

/// Lanes that are dealt out together.
#[derive(Debug)]
pub(super) struct Round {
    lanes: Vec<Lane>,
    /// Those of the lanes with the largest first.
    portions: Vec<Portion>,
    /// Parts are the smallest that the steps have.
    fine: bool,
    /// Which counter deals out the portions.
    tickets: usize,
}

impl Round {
    /// Takes portions until none is left, and says what it has done.
    pub(super) fn run(
        &self,
        tape: &Tape<Step>,
        (cx, worker): (&Cx<'_>, &Worker<'_>),
        done: &mut impl FnMut(usize),
    ) {
        while let Some(Portion { lane, parts }) = self.portions.get(cx.ticket(self.tickets)) {
            for &step in &self.lanes[*lane].steps {
                let (kernel, parts) = (&tape.instrs()[step].kernel.kernel, parts.clone());
                cx.watch.part(step, (&parts, self.columns()));
                if self.fine {
                    kernel.run_fine(cx, worker, parts);
                } else {
                    kernel.run_parts(cx, worker, parts);
                }
                done(step);
            }
        }
    }

    /// Columns of a part where they are not those of the steps.
    fn columns(&self) -> Option<usize> {
        self.fine.then_some(PANEL_ROWS)
    }

    /// The first step that it takes.
    pub(super) fn start(&self) -> usize {
        self.lanes[0].steps[0]
    }

    /// The portions as the proof of a tape sees them.
    #[cfg(debug_assertions)]
    pub(super) fn portions(&self) -> Vec<tokkata_ir::tape::Portion> {
        let portion = |portion: &Portion| tokkata_ir::tape::Portion {
            instrs: self.lanes[portion.lane].steps.clone(),
            parts: portion.parts.clone(),
            columns: self.columns(),
        };
        self.portions.iter().map(portion).collect()
    }
}

/// The products of a chain, and what comes after a barrier.
#[derive(Debug)]
struct Halves {
    products: Round,
    rest: Round,
    /// Multiply–adds per row that the slowest worker is spared.
    gain: usize,
}

/// A run of steps that is done part by part.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) steps: Range<usize>,
    pub(super) lead: Lead,
    whole: Round,
    halves: Option<Halves>,
    /// However few rows: some lane has no part for some worker, or there is much work.
    always: bool,
}

impl Chain {
    /// Whether the steps of a replay with so many rows are better done part by part.
    pub(super) fn pays(&self, rows: usize) -> bool {
        self.always || rows >= MANY_ROWS
    }

    /// The rounds that so many rows are done in; workers meet between them.
    pub(super) fn rounds(&self, rows: usize) -> impl Iterator<Item = &Round> {
        let spared = |halves: &&Halves| rows >= MANY_ROWS && rows * halves.gain >= BARRIER;
        let (first, second) = match self.halves.as_ref().filter(spared) {
            Some(halves) => (&halves.products, Some(&halves.rest)),
            None => (&self.whole, None),
        };
        [first].into_iter().chain(second)
    }
}

/// Finds the chains of a plan.
pub(super) struct Finder<'a> {
    pub(super) tape: &'a Tape<Step>,
    pub(super) workers: usize,
    pub(super) tickets: &'a mut usize,
}

impl Finder<'_> {
    pub(super) fn find(mut self) -> Vec<Chain> {
        let runs = self.tape.runs().into_iter();
        runs.filter_map(|run| self.chain(run)).collect()
    }

    fn kernel(&self, step: usize) -> &Prepared {
        &self.tape.instrs()[step].kernel.kernel
    }

    fn is_vast(&self, step: usize) -> bool {
        let parts = self.kernel(step).parts();
        self.workers > 1 && parts.is_some_and(|p| p.count * p.work >= VAST)
    }

    fn chain(&mut self, run: Run) -> Option<Chain> {
        let steps = run.instrs.clone();
        let vast = steps.clone().any(|s| self.is_vast(s));
        if steps.len() == 1 && !vast {
            return None;
        }
        let lanes = self.measured(run.lanes)?;
        let most = if steps.len() == 1 {
            usize::MAX
        } else {
            COLUMNS
        };
        let bytes: usize = lanes.iter().map(|(_, p)| p.count * p.bytes).sum();
        let much = self.workers >= MANY_WORKERS && bytes >= MUCH * self.workers;
        let whole = self.round(lanes, most);
        let lanes = &whole.lanes;
        let uneven = lanes.len() > 1 && lanes.iter().any(|lane| lane.parts < self.workers);
        Some(Chain {
            lead: run.lead,
            always: vast || much || uneven,
            halves: self.halves(&steps, &whole),
            whole,
            steps,
        })
    }

    /// Lanes with the parts of all their steps together.
    fn measured(&self, lanes: Vec<Vec<usize>>) -> Option<Vec<(Vec<usize>, Parts)>> {
        let together = |a: Parts, b: Parts| Parts {
            columns: a.columns.max(b.columns),
            work: a.work + b.work,
            bytes: a.bytes + b.bytes,
            ..a
        };
        let parts = |steps: Vec<usize>| {
            let each = steps.iter().map(|&s| self.kernel(s).parts());
            let all: Option<Vec<Parts>> = each.collect();
            let sum = all?.into_iter().reduce(together)?;
            Some((steps, sum))
        };
        lanes.into_iter().map(parts).collect()
    }

    /// Deals out lanes, so many columns of each at once.
    fn round(&mut self, lanes: Vec<(Vec<usize>, Parts)>, columns: usize) -> Round {
        let all: usize = lanes.iter().map(|(_, p)| p.count * p.work).sum();
        let target = all / (PORTIONS * self.workers);
        let cut = |(steps, p): (Vec<usize>, Parts)| {
            let most = (columns / p.columns).max(1);
            let portion = target.checked_div(p.work).unwrap_or(1).clamp(1, most);
            Lane {
                steps,
                parts: p.count,
                portion,
                work: p.work,
            }
        };
        let mut lanes: Vec<Lane> = lanes.into_iter().map(cut).collect();
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.portion * lane.work));
        *self.tickets += 1;
        Round {
            portions: deal(&lanes, self.workers),
            lanes,
            fine: false,
            tickets: *self.tickets - 1,
        }
    }

    /// Products apart from the rest, where that spares the slowest worker some of them.
    fn halves(&mut self, run: &Range<usize>, whole: &Round) -> Option<Halves> {
        let fine = |s: usize| self.kernel(s).fine_parts();
        let (products, rest): (Vec<usize>, Vec<usize>) =
            run.clone().partition(|&s| fine(s).is_some());
        let instrs = self.tape.instrs();
        let after = |s: &usize| {
            let made = rest.iter().flat_map(|&r| &instrs[r].writes);
            let mut read = instrs[*s].reads.iter();
            read.any(|r| made.clone().any(|w| w.resource == r.resource))
        };
        if products.is_empty() || rest.is_empty() || products.iter().any(after) {
            return None;
        }
        let products = products.into_iter().map(|s| Some((vec![s], fine(s)?)));
        let products = products.collect::<Option<_>>()?;
        let rest = self.measured(self.tape.lanes(rest.into_iter())?)?;
        let products = Round {
            fine: true,
            ..self.round(products, COLUMNS)
        };
        let slowest = |r: &Round| longest(&r.lanes, &r.portions, self.workers);
        let gain = slowest(whole).saturating_sub(slowest(&products));
        (gain > 0).then(|| Halves {
            rest: self.round(rest, COLUMNS),
            products,
            gain,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(parts: usize, portion: usize, work: usize) -> Lane {
        Lane {
            steps: vec![],
            parts,
            portion,
            work,
        }
    }

    #[test]
    fn portions_cover_every_part_of_every_lane_once() {
        for work in [0, 1, 7] {
            let lanes = [
                lane(5, 2, work),
                lane(8, 8, work),
                lane(1, 1, 1),
                lane(7, 3, work),
            ];
            for workers in 1..5 {
                let portions = deal(&lanes, workers);
                for (index, lane) in lanes.iter().enumerate() {
                    let taken = portions.iter().filter(|p| p.lane == index);
                    let parts: Vec<usize> = taken.flat_map(|p| p.parts.clone()).collect();
                    assert_eq!(parts, (0..lane.parts).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn the_slowest_worker_has_a_lane_that_cannot_be_cut() {
        // Two heads of keys and values, and twelve of queries.
        let lanes = [lane(2, 1, 200), lane(12, 1, 100)];
        let slowest = |lanes: &[Lane]| longest(lanes, &deal(lanes, 16), 16);
        assert_eq!(slowest(&lanes), 200);
        // Panels of all three.
        assert_eq!(slowest(&[lane(48, 1, 25), lane(16, 1, 25)]), 100);
    }

    #[test]
    fn the_last_portions_are_smaller() {
        let portions = deal(&[lane(60, 8, 100)], 2);
        let sizes: Vec<usize> = portions.iter().map(|p| p.parts.len()).collect();
        assert_eq!(sizes, [8, 8, 8, 8, 7, 5, 4, 3, 2, 2, 2, 2, 1]);
    }
}
