//! Steps that deal out columns, one part at a time.
//!
//! With many rows a value is larger than a cache, so that a norm, a rotation or a gate over all of it waits for
//! memory. A *chain* is a run of steps without barriers that all deal out columns. Its steps fall into *lanes*, the
//! steps that values flow between; some parts of a lane's columns go through all its steps before the next ones, and
//! workers take them one by one, so that none waits for a slower neighbour. A vast product, such as that of the head,
//! is a chain of its own.
//!
//! With few heads and many workers a lane's parts are too large to be dealt out evenly. Then products come first, panel
//! by panel, and the other steps after a barrier.

use std::ops::Range;

use tokkata_ir::{Lead, Plan, ValueId};

use super::cx::{Cx, Parts};
use super::{Moment, Step};
use crate::kernels::MAX_STREAM_ROWS;
use crate::pool::Worker;
use crate::select::{Planned, Sync};

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
struct Round {
    lanes: Vec<Lane>,
    /// Those of the lanes with the largest first.
    portions: Vec<Portion>,
    /// Parts are the smallest that the steps have.
    fine: bool,
    /// Which counter deals out the portions.
    tickets: usize,
}

impl Round {
    fn run(
        &self,
        steps: &[Step],
        (cx, worker): (&Cx<'_>, &Worker<'_>),
        at: &mut impl FnMut(usize, Moment),
    ) {
        while let Some(Portion { lane, parts }) = self.portions.get(cx.ticket(self.tickets)) {
            for &step in &self.lanes[*lane].steps {
                let (kernel, parts) = (&steps[step].kernel, parts.clone());
                if self.fine {
                    kernel.run_fine(cx, worker, parts);
                } else {
                    kernel.run_parts(cx, worker, parts);
                }
                at(step, Moment::Done);
            }
        }
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
    lead: Lead,
    whole: Round,
    halves: Option<Halves>,
    /// However few rows: some lane has no part for some worker, or there is much work.
    always: bool,
}

impl Chain {
    /// Whether the steps of a replay are better done part by part.
    pub(super) fn pays(&self, cx: &Cx<'_>) -> bool {
        self.always || cx.count(self.lead) >= MANY_ROWS
    }

    /// Does this worker's parts of the steps and says what it has done.
    pub(super) fn run(
        &self,
        steps: &[Step],
        (cx, worker): (&Cx<'_>, &Worker<'_>),
        mut at: impl FnMut(usize, Moment),
    ) {
        let rows = cx.count(self.lead);
        let spared = |halves: &&Halves| rows >= MANY_ROWS && rows * halves.gain >= BARRIER;
        let Some(halves) = self.halves.as_ref().filter(spared) else {
            return self.whole.run(steps, (cx, worker), &mut at);
        };
        halves.products.run(steps, (cx, worker), &mut at);
        worker.barrier();
        at(halves.rest.lanes[0].steps[0], Moment::Met);
        halves.rest.run(steps, (cx, worker), &mut at);
    }
}

/// Finds the chains of a plan.
pub(super) struct Finder<'a> {
    pub(super) plan: &'a Plan,
    pub(super) planned: &'a [Planned],
    pub(super) steps: &'a [Step],
    pub(super) workers: usize,
    pub(super) tickets: &'a mut usize,
}

impl Finder<'_> {
    pub(super) fn find(mut self) -> Vec<Chain> {
        let (mut chains, mut at) = (Vec::new(), 0);
        while at < self.steps.len() {
            let end = self.end_of_run(at);
            if end > at + 1 || self.is_vast(at) {
                chains.extend(self.chain(at..end));
            }
            at = end.max(at + 1);
        }
        chains
    }

    fn end_of_run(&self, start: usize) -> usize {
        let mut end = start;
        while end < self.steps.len()
            && self.steps[end].kernel.parts().is_some()
            && (end == start || self.planned[end].sync == Sync::None)
        {
            end += 1;
        }
        end
    }

    fn is_vast(&self, step: usize) -> bool {
        let parts = self.steps[step].kernel.parts();
        self.workers > 1 && parts.is_some_and(|p| p.count * p.work >= VAST)
    }

    fn reads(&self, step: usize) -> &[ValueId] {
        self.planned[step].what.reads(self.plan)
    }

    fn writes(&self, step: usize) -> &[ValueId] {
        self.planned[step].what.writes(self.plan)
    }

    fn written(&self, steps: Range<usize>, value: &ValueId) -> bool {
        steps.into_iter().any(|s| self.writes(s).contains(value))
    }

    /// Other steps between the same barriers neither write what the run reads nor read what it writes: they deal out
    /// columns in another way.
    fn is_apart(&self, run: &Range<usize>) -> bool {
        let always = |s: &usize| self.planned[*s].sync == Sync::Always;
        let first = (0..=run.start).rev().find(always).unwrap_or(0);
        let last = (run.end..self.steps.len())
            .find(always)
            .unwrap_or(self.steps.len());
        let before = run.clone().flat_map(|s| self.reads(s));
        let mut after = (run.end..last).flat_map(|s| self.reads(s));
        !before
            .into_iter()
            .any(|v| self.written(first..run.start, v))
            && !after.any(|v| self.written(run.clone(), v))
    }

    fn chain(&mut self, run: Range<usize>) -> Option<Chain> {
        let lead = |s: usize| {
            let values = self.writes(s).first().or(self.reads(s).first());
            values.map(|v| self.plan.value(*v).shape.lead)
        };
        let lead_of_all = lead(run.start)?;
        if !self.is_apart(&run) || run.clone().any(|s| lead(s) != Some(lead_of_all)) {
            return None;
        }
        let lanes = self.lanes(run.clone())?;
        let vast = run.clone().any(|s| self.is_vast(s));
        let most = if run.len() == 1 { usize::MAX } else { COLUMNS };
        let bytes: usize = lanes.iter().map(|(_, p)| p.count * p.bytes).sum();
        let much = self.workers >= MANY_WORKERS && bytes >= MUCH * self.workers;
        let whole = self.round(lanes, most);
        let lanes = &whole.lanes;
        let uneven = lanes.len() > 1 && lanes.iter().any(|lane| lane.parts < self.workers);
        Some(Chain {
            lead: lead_of_all,
            always: vast || much || uneven,
            halves: self.halves(&run, &whole),
            whole,
            steps: run,
        })
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
        let fine = |s: usize| self.steps[s].kernel.fine_parts();
        let (products, rest): (Vec<usize>, Vec<usize>) =
            run.clone().partition(|&s| fine(s).is_some());
        let after = |s: &usize| {
            let mut read = self.reads(*s).iter();
            read.any(|v| rest.iter().any(|&r| self.writes(r).contains(v)))
        };
        if products.is_empty() || rest.is_empty() || products.iter().any(after) {
            return None;
        }
        let products = products.into_iter().map(|s| Some((vec![s], fine(s)?)));
        let products = products.collect::<Option<_>>()?;
        let rest = self.lanes(rest.into_iter())?;
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

    /// Steps joined by the values that flow between them; `None` when the steps of one lane have different parts.
    fn lanes(&self, run: impl Iterator<Item = usize>) -> Option<Vec<(Vec<usize>, Parts)>> {
        let mut lanes: Vec<(Vec<usize>, Parts)> = Vec::new();
        for step in run {
            let feeds = |lane: &(Vec<usize>, Parts)| {
                let mut writes = lane.0.iter().flat_map(|&s| self.writes(s));
                writes.any(|v| self.reads(step).contains(v))
            };
            let mut steps = Vec::new();
            let mut parts = self.steps[step].kernel.parts()?;
            while let Some(i) = lanes.iter().position(feeds) {
                let (theirs, p) = lanes.remove(i);
                if p.count != parts.count {
                    return None;
                }
                parts.columns = parts.columns.max(p.columns);
                parts.work += p.work;
                parts.bytes += p.bytes;
                steps.extend(theirs);
            }
            steps.push(step);
            steps.sort_unstable();
            lanes.push((steps, parts));
        }
        Some(lanes)
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
