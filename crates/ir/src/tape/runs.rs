//! Runs of instructions that can be done part by part.

use std::ops::Range;

use super::{Instr, ResourceId, Sync, Tape, Tiles};
use crate::Lead;

/// Instructions without a meeting between them that all deal out columns. A worker may take some runs of columns of a
/// lane through all of the lane's instructions before it takes the next ones, whichever those are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The instructions.
    pub instrs: Range<usize>,
    /// Their rows.
    pub lead: Lead,
    /// Instructions that resources flow between, in order; of all lanes together each once.
    pub lanes: Vec<Vec<usize>>,
}

impl<K> Tape<K> {
    /// Every run, of one instruction too.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        let (mut runs, mut at) = (Vec::new(), 0);
        while at < self.instrs.len() {
            let end = self.end_of_run(at);
            runs.extend(self.run(at..end));
            at = end.max(at + 1);
        }
        runs
    }

    /// Lanes of some instructions of a run; `None` when those of one lane have different numbers of parts.
    #[must_use]
    pub fn lanes(&self, instrs: impl Iterator<Item = usize>) -> Option<Vec<Vec<usize>>> {
        let mut lanes: Vec<Vec<usize>> = Vec::new();
        for at in instrs {
            let mut lane = Vec::new();
            while let Some(i) = lanes.iter().position(|l| self.feeds(l, at)) {
                let before = lanes.remove(i);
                if self.instrs[before[0]].tiles != self.instrs[at].tiles {
                    return None;
                }
                lane.extend(before);
            }
            lane.push(at);
            lane.sort_unstable();
            lanes.push(lane);
        }
        Some(lanes)
    }

    fn feeds(&self, lane: &[usize], at: usize) -> bool {
        let written = lane.iter().flat_map(|&i| written(&self.instrs[i]));
        let reads = &self.instrs[at].reads;
        written
            .into_iter()
            .any(|w| reads.iter().any(|r| r.resource == w))
    }

    fn end_of_run(&self, start: usize) -> usize {
        let mut end = start;
        while end < self.instrs.len()
            && matches!(self.instrs[end].tiles, Tiles::Columns(_))
            && (end == start || self.syncs[end] == Sync::None)
        {
            end += 1;
        }
        end
    }

    fn run(&self, instrs: Range<usize>) -> Option<Run> {
        let lead = |at: usize| {
            let instr = &self.instrs[at];
            let access = instr.writes.first().or(instr.reads.first());
            access.map(|a| self.resources[a.resource.index()].lead)
        };
        let of_all = lead(instrs.start).filter(|_| !instrs.is_empty())?;
        let alike = instrs.clone().all(|at| lead(at) == Some(of_all));
        let lanes = self.lanes(instrs.clone())?;
        (alike && self.is_apart(&instrs)).then_some(Run {
            instrs,
            lead: of_all,
            lanes,
        })
    }

    /// Other instructions of the same epoch share nothing with the run that either writes: their work is dealt out in
    /// another way. What workers have copies of, they meet over where they have not.
    fn is_apart(&self, run: &Range<usize>) -> bool {
        let always = |s: &usize| self.syncs[*s] == Sync::Always;
        let first = (0..=run.start).rev().find(always).unwrap_or(0);
        let last = (run.end..self.instrs.len()).find(always);
        let others = (first..run.start).chain(run.end..last.unwrap_or(self.instrs.len()));
        let clash = |other: usize, own: usize| {
            let mut accesses = self.instrs[other].accesses();
            accesses.any(|(a, a_writes)| {
                let shared = self.resources[a.resource.index()].copies.is_none();
                let mut own = self.instrs[own].accesses();
                shared
                    && own.any(|(b, b_writes)| a.resource == b.resource && (a_writes || b_writes))
            })
        };
        others
            .into_iter()
            .all(|other| !run.clone().any(|own| clash(other, own)))
    }
}

fn written<K>(instr: &Instr<K>) -> impl Iterator<Item = ResourceId> + '_ {
    instr.writes.iter().map(|w| w.resource)
}
