//! A full context that goes on: what stands behind the kept beginning is forgotten by halves, and the rest moves up.
//!
//! Whole blocks are forgotten. Keys that moved are turned to their new positions on the host, a few blocks at a time:
//! a work gives out blocks, and the next one takes them back turned, into blocks that only this sequence holds.

use tokkata_ir::sample::uniform;
use tokkata_ir::{GroupId, Work};

use super::{Engine, EngineError};
use crate::flight::{Flight, Turning};
use crate::request::{FinishReason, RequestId};
use crate::task::place_of;
use crate::turn::Turns;

/// Blocks that a work gives out.
const TOGETHER: usize = 8;

impl Engine {
    /// How the model's keys are turned.
    pub(super) fn turns(&self) -> Result<&Turns, EngineError> {
        let turns = self.turns.get_or_init(|| Turns::of(&self.program));
        turns.as_ref().map_err(|why| EngineError::FixedContext(why))
    }

    /// Moves the contexts that are full, of tasks that go on.
    pub(super) fn shift(&mut self) {
        let ctx = self.limits().ctx as usize;
        while let Some(i) = self.running.iter().position(|t| t.must_shift(ctx)) {
            if !self.shift_one(i) {
                let task = self.running.remove(i);
                self.leave(task, Ok(FinishReason::ContextFull));
            }
        }
    }

    /// Says whether there was anything to forget.
    fn shift_one(&mut self, i: usize) -> bool {
        let step = self.cache.block_step();
        let task = &mut self.running[i];
        let keep = task.shift.unwrap_or(0).next_multiple_of(step);
        let count = task.seq.len().saturating_sub(keep) / 2 / step * step;
        if count == 0 {
            return false;
        }
        self.cache.forget_between(&mut task.seq, keep, count);
        task.forget_between(keep, count);
        task.seq.forget_synced();
        if let Some(answer) = task.answer_mut() {
            // Positions come again, and their noise must not.
            answer.sampling.seed = uniform(answer.sampling.seed, count as u64);
        }
        // What the head left does not move with the rest.
        task.head.give_up();
        let id = task.id;
        let todo = self.to_be_turned(i, keep);
        if !todo.is_empty() {
            let task = &mut self.running[i];
            task.turning = true;
            task.flights += 1;
            self.turning.push(Turning {
                task: id,
                back: count,
                keep,
                todo,
                given: Vec::new(),
                imports: Vec::new(),
            });
        }
        true
    }

    /// Group and place of every block that holds moved positions.
    fn to_be_turned(&self, i: usize, keep: usize) -> Vec<(usize, usize)> {
        let turns = self.turns().expect("it was checked");
        let groups = (0..self.program.caches.len()).filter(|&g| turns.touches(g));
        let places = |g: usize| {
            let first = keep / self.program.caches[g].block_size as usize;
            let places = self.cache.held_from(&self.running[i].seq, g, first);
            places.into_iter().map(move |place| (g, place))
        };
        groups.flat_map(places).collect()
    }

    /// The next work that turns keys.
    pub(super) fn next_turning(&mut self) -> Option<(Work, Flight)> {
        let mut turning = self.turning.pop()?;
        let rest = turning.todo.len().saturating_sub(TOGETHER);
        turning.given = turning.todo.split_off(rest);
        let mut work = Work {
            plan: self.ports.plan,
            imports: std::mem::take(&mut turning.imports),
            ..Work::default()
        };
        let task = self.running.iter().find(|t| t.id == turning.task);
        match task {
            Some(task) => {
                let block =
                    |&(g, place): &(usize, usize)| (GroupId(g as u32), task.seq.tables()[g][place]);
                work.exports = turning.given.iter().map(block).collect();
            }
            None => turning.given.clear(),
        }
        let mut flight = Flight::new(Vec::new(), (self.clock)());
        flight.turning = Some(turning);
        Some((work, flight))
    }

    /// A work that turns keys is done.
    pub(super) fn turned(&mut self, flight: &mut Flight) {
        let Some(mut turning) = flight.turning.take() else {
            return;
        };
        let id = turning.task;
        if turning.given.is_empty() {
            return self.end_turning(id, None);
        }
        if let Err(error) = self.turn_blocks(flight, &mut turning) {
            return self.end_turning(id, Some((turning.keep, error)));
        }
        self.turning.push(turning);
    }

    fn turn_blocks(&mut self, flight: &Flight, turning: &mut Turning) -> Result<(), EngineError> {
        let ticket = flight.ticket.as_ref().expect("the work was submitted");
        let given = std::mem::take(&mut turning.given);
        let Some(i) = place_of(&self.running, turning.task) else {
            turning.todo.clear();
            return Ok(());
        };
        for (n, (g, place)) in given.into_iter().enumerate() {
            let mut data = self.executor.exported(ticket, n)?;
            self.turns()?.turn(g, &mut data, turning.back);
            let seq = &mut self.running[i].seq;
            let block = self.cache.own_place(seq, g, place)?;
            turning.imports.push((GroupId(g as u32), block, data));
        }
        Ok(())
    }

    /// A task's keys are turned, or cannot be.
    fn end_turning(&mut self, id: RequestId, failed: Option<(usize, EngineError)>) {
        if let Some(i) = place_of(&self.running, id) {
            let task = &mut self.running[i];
            (task.turning, task.flights) = (false, task.flights - 1);
            task.fresh = true;
            task.seq.forget_synced();
            if let Some((keep, error)) = failed {
                self.cache.cut(&mut task.seq, keep);
                self.end(i, Some(Err(error)));
            }
        } else if let Some(i) = place_of(&self.leaving, id) {
            let mut task = self.leaving.remove(i);
            self.cache.clear(&mut task.seq);
            self.park(task);
        }
    }

    /// A work that turns keys did not run.
    pub(super) fn turning_failed(&mut self, turning: &Turning, error: EngineError) {
        self.end_turning(turning.task, Some((turning.keep, error)));
    }
}
