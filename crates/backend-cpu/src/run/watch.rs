//! Watching a replay, where assertions are on: the proof of its tape, workers that sleep at random, and a record of
//! what each worker touches.
//!
//! The record answers two questions after a replay. Did every kernel stay inside what its instruction declares? And
//! were there ever two workers that held the same memory at once, one of them to write? *Held* means the whole slice
//! that a kernel was given, whatever it read of it.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokkata_ir::Lead;
use tokkata_ir::tape::{Event, Portion, Region, ResourceId, Setting, Share, Spot, Tape, verify};

use super::chain::Round;
use super::walk::{Hand, Lowered, Step, walk};

/// One step of so many is slept before.
const ONE_IN: u64 = 64;
/// Long beside a small model's step.
const PAUSE: Duration = Duration::from_micros(100);

/// What the watcher of an instance does.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    /// The state of the dice, shared by all workers.
    jitter: Option<AtomicU64>,
    /// One per worker.
    logs: Vec<Mutex<Log>>,
}

impl Watcher {
    /// Lets workers sleep at random from now on.
    pub(super) fn jitter(&mut self, seed: u64) {
        self.jitter = Some(AtomicU64::new(seed));
    }

    /// Writes down from now on what workers touch.
    pub(super) fn record(&mut self, workers: usize) {
        self.logs = (0..workers).map(|_| Mutex::default()).collect();
    }

    /// What a worker needs of it.
    pub(super) fn of(&self, worker: usize) -> Watch<'_> {
        Watch {
            jitter: self.jitter.as_ref(),
            log: self.logs.get(worker),
        }
    }

    /// Proves a plan free of races for few rows, many, and those between.
    ///
    /// # Panics
    /// When it is not.
    pub(super) fn prove(&self, plan: &Lowered, workers: usize, limits: [usize; 3]) {
        let spots = spots(plan);
        let [rows, logit_rows, seqs] = limits;
        let few = [[1; 3], [2; 3], [3, 1, 1]];
        for counts in few
            .into_iter()
            .chain([[rows, 1, 1], [rows, logit_rows, seqs]])
        {
            let setting = Setting {
                workers,
                counts: std::array::from_fn(|i| counts[i].min(limits[i])),
                spots: &spots,
            };
            let mut scribe = Scribe {
                setting: &setting,
                events: Vec::new(),
            };
            walk(plan, &mut scribe);
            if let Err(clash) = verify(&plan.tape, &setting, &scribe.events) {
                panic!("a plan with a race at {counts:?} rows: {clash}");
            }
        }
    }

    /// Looks at what the last replay touched, and forgets it.
    ///
    /// # Panics
    /// When a kernel touched what its instruction does not declare, or workers held the same memory at once.
    pub(super) fn check(&mut self, plan: &Lowered, workers: usize, counts: [usize; 3]) {
        let spots = spots(plan);
        let setting = Setting {
            workers,
            counts,
            spots: &spots,
        };
        let mut all = Vec::new();
        for (worker, log) in self.logs.iter_mut().enumerate() {
            let log = log.get_mut().unwrap_or_else(PoisonError::into_inner);
            let Log { doing, touches, .. } = std::mem::take(log);
            for touch in &touches {
                let (step, portion) = &doing[touch.during];
                let share = portion
                    .as_ref()
                    .map_or(Share::Worker(worker), Share::Portion);
                let declared = is_declared(&plan.tape, (*step, share), touch, &setting);
                assert!(
                    declared,
                    "step {step} touches {touch}, which it does not declare"
                );
            }
            all.extend(touches.into_iter().map(|touch| (worker, touch)));
        }
        if let Some((a, b)) = shared(&mut all) {
            panic!(
                "workers {} and {} held {} and {} at once",
                a.0, b.0, a.1, b.1
            );
        }
    }
}

/// Where resources lie: values in the arena, anything else by itself.
fn spots(plan: &Lowered) -> Vec<Spot> {
    let resources = plan.tape.resources().iter().enumerate();
    let spot = |(i, resource): (usize, &tokkata_ir::tape::Resource)| match plan.places.get(i) {
        Some(place) => Spot {
            memory: 0,
            at: place.at,
            stride: place.stride,
        },
        None => Spot {
            memory: i as u32,
            at: 0,
            stride: resource.width,
        },
    };
    resources.map(spot).collect()
}

/// Writes down what a replay does.
struct Scribe<'a> {
    setting: &'a Setting<'a>,
    events: Vec<Event>,
}

impl Hand for Scribe<'_> {
    fn count(&self, lead: Lead) -> usize {
        self.setting.count(lead)
    }

    fn meet(&mut self, _: usize, needed: bool) {
        self.events.extend(needed.then_some(Event::Meet));
    }

    fn share(&mut self, step: usize) {
        self.events.push(Event::Share(step));
    }

    fn round(&mut self, round: &Round) {
        self.events.push(Event::Round(round.portions()));
    }
}

/// What a worker has touched.
#[derive(Debug, Default)]
struct Log {
    /// Meetings so far.
    epoch: usize,
    /// Steps so far, and the part of each where it was done part by part.
    doing: Vec<(usize, Option<Portion>)>,
    touches: Vec<Touch>,
}

/// A slice that a kernel was given.
#[derive(Debug)]
struct Touch {
    epoch: usize,
    during: usize,
    resource: ResourceId,
    region: Region,
    /// Addresses, where a slice was taken.
    held: Range<usize>,
    writes: bool,
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = if self.writes { "to write" } else { "to read" };
        let Region { rows, columns } = &self.region;
        write!(
            f,
            "columns {columns:?} of rows {rows:?} of resource {} {to}",
            self.resource.0
        )
    }
}

fn is_declared(
    tape: &Tape<Step>,
    (step, share): (usize, Share<'_>),
    touch: &Touch,
    setting: &Setting<'_>,
) -> bool {
    let resource = &tape.resources()[touch.resource.index()];
    let mut accesses = tape.instrs()[step].accesses();
    accesses.any(|(access, writes)| {
        access.resource == touch.resource
            && (writes || !touch.writes)
            && Region::of(share, access.reach, resource, setting).holds(&touch.region)
    })
}

/// What a worker touched.
type Held = (usize, Touch);

/// Two workers' slices of one epoch that overlap, one of them to write.
fn shared(all: &mut [Held]) -> Option<(&Held, &Held)> {
    all.sort_by_key(|(_, touch)| (touch.epoch, touch.held.start));
    let longest = all.iter().map(|(_, touch)| touch.held.len()).max()?;
    let near = |a: &Touch| {
        let least = (a.epoch, (a.held.start + 1).saturating_sub(longest));
        all.partition_point(|(_, b)| (b.epoch, b.held.start) < least)
    };
    let clash = |a: &&Held| {
        let mut others = all[near(&a.1)..].iter();
        let after = |b: &Touch| b.epoch > a.1.epoch || b.held.start >= a.1.held.end;
        let meets = |b: &Touch| b.held.start < a.1.held.end && a.1.held.start < b.held.end;
        others
            .by_ref()
            .take_while(|(_, b)| !after(b))
            .find(|(other, b)| *other != a.0 && meets(b))
    };
    let mut writers = all.iter().filter(|(_, touch)| touch.writes);
    writers.find_map(|a| clash(&a).map(|b| (a, b)))
}

/// The watcher of one worker.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    jitter: Option<&'a AtomicU64>,
    log: Option<&'a Mutex<Log>>,
}

impl Watch<'_> {
    fn log(self, f: impl FnOnce(&mut Log)) {
        if let Some(log) = self.log {
            f(&mut log.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Sleeps, or not.
    pub(super) fn pause(self) {
        let Some(dice) = self.jitter else { return };
        let state = dice.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 31)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 33;
        if mixed.is_multiple_of(ONE_IN) {
            std::thread::sleep(PAUSE);
        }
    }

    /// Workers have met.
    pub(super) fn met(self) {
        self.log(|log| log.epoch += 1);
    }

    /// The worker does its share of a step from now on.
    pub(super) fn share(self, step: usize) {
        self.log(|log| log.doing.push((step, None)));
    }

    /// The worker does some parts of a step from now on, of so many columns where they are not the step's own.
    pub(super) fn part(self, step: usize, (parts, columns): (&Range<usize>, Option<usize>)) {
        self.log(|log| {
            let portion = Portion {
                instrs: vec![step],
                parts: parts.clone(),
                columns,
            };
            log.doing.push((step, Some(portion)));
        });
    }

    /// A kernel has been given columns of a row, as a slice where `start` says.
    pub(crate) fn note(
        self,
        resource: ResourceId,
        (row, columns): (usize, Range<usize>),
        start: Option<*const f32>,
        writes: bool,
    ) {
        self.log(|log| {
            let held = start.map_or(0..0, |start| {
                let first = start as usize;
                first..first + columns.len() * size_of::<f32>()
            });
            log.touches.push(Touch {
                epoch: log.epoch,
                during: log.doing.len() - 1,
                resource,
                region: Region {
                    rows: row..row + 1,
                    columns,
                },
                held,
                writes,
            });
        });
    }
}
