//! The tape: what a plan became on a device, instruction by instruction, with all that each one touches.
//!
//! An [`Instr`] says which [`Resource`]s it reads and writes and which part of them one share of its work reaches.
//! Everything that a replay must know about order follows from that, and from nothing else: where workers meet
//! ([`Tape::push`]), from when to when a resource lives ([`Tape::lives`]), which is made in the place of another
//! ([`Tape::over`]), where each lies ([`place`]), and which instructions may be done part by part ([`Tape::runs`]).
//! [`verify`] takes the result, with every address and every share, and proves that no two workers touch the same
//! element without a meeting between them where one of them writes.
//!
//! Any backend that replays a list of instructions can use it. Where work items have no order at all, each share is
//! [`Reach::Apart`] and each dependence a meeting; where workers take fixed shares, those that fit need none.
//!
//! ```
//! use tokkata_ir::Lead;
//! use tokkata_ir::tape::{Access, Instr, Reach, Resource, Sync, Tape, Tiles};
//! let value = Resource { lead: Lead::Rows, width: 64, copies: None };
//! let mut tape = Tape::new(vec![value; 3]);
//! let step = |from: u32, to: u32, reach| Instr {
//!     kernel: (),
//!     reads: vec![Access::new(from, reach)],
//!     writes: vec![Access::new(to, Reach::Columns(16))],
//!     tiles: Tiles::Columns(4),
//!     over: vec![],
//! };
//! tape.push(step(0, 1, Reach::All));
//! // The second reads what the same worker wrote, the third what any did.
//! tape.push(step(1, 2, Reach::Columns(16)));
//! tape.push(step(2, 0, Reach::All));
//! assert_eq!(tape.syncs(), [Sync::None, Sync::None, Sync::Always]);
//! ```

mod place;
mod runs;
mod verify;

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

pub use place::place;
pub use runs::Run;
pub use verify::{Clash, Event, Portion, Region, Setting, Share, Spot, share, verify};

use crate::Lead;

/// A resource of one tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub u32);

impl ResourceId {
    /// The id as an index into the tape's resources.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Something that instructions touch: a value, prepared activations, a slot of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The dimension that sizes its rows.
    pub lead: Lead,
    /// Columns of a row.
    pub width: usize,
    /// Each worker has one of its own in a step with at most this many rows.
    pub copies: Option<usize>,
}

/// What one share of an instruction's work touches of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// All rows, all columns.
    All,
    /// Its rows, all columns. Rows are dealt out in the order of workers.
    Rows,
    /// All rows, its columns. Runs of this many columns are dealt out in the order of workers, or to whoever comes
    /// where an instruction is done part by part.
    Columns(usize),
    /// Elements that no other share touches; which ones is the kernel's affair.
    Apart,
}

/// A resource and what is touched of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The resource.
    pub resource: ResourceId,
    /// Rows and columns of a share.
    pub reach: Reach,
}

impl Access {
    /// An access to resource number `resource`.
    #[must_use]
    pub const fn new(resource: u32, reach: Reach) -> Self {
        Access {
            resource: ResourceId(resource),
            reach,
        }
    }
}

/// How the work of an instruction is dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// By rows.
    Rows,
    /// By columns: so many runs, each of which may be done by itself.
    Columns(usize),
    /// As the kernel sees fit, with meetings of its own where it needs them.
    Own,
}

/// A step of a tape.
#[derive(Clone, Debug)]
pub struct Instr<K> {
    /// What to do.
    pub kernel: K,
    /// What it reads.
    pub reads: Vec<Access>,
    /// What it writes.
    pub writes: Vec<Access>,
    /// How its work is dealt out.
    pub tiles: Tiles,
    /// Resources that it reads and in whose place it could make the one that it writes, the best first.
    pub over: Vec<ResourceId>,
}

impl<K> Instr<K> {
    /// Every access, and whether it writes.
    pub fn accesses(&self) -> impl Iterator<Item = (Access, bool)> + '_ {
        let reads = self.reads.iter().map(|&access| (access, false));
        reads.chain(self.writes.iter().map(|&access| (access, true)))
    }
}

/// When workers meet before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// They do not.
    None,
    /// In a step with more than so many rows of a lead.
    Above(Lead, usize),
    /// Always.
    Always,
}

impl Sync {
    /// Whether they meet in a step.
    pub fn holds(self, count: impl Fn(Lead) -> usize) -> bool {
        match self {
            Sync::None => false,
            Sync::Above(lead, rows) => count(lead) > rows,
            Sync::Always => true,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Sync::None, sync) | (sync, Sync::None) => sync,
            (a, b) if a == b => a,
            _ => Sync::Always,
        }
    }
}

/// Whether two shares with the same number, one of each access, are all that could touch the same elements.
fn same_worker(a: Reach, b: Reach) -> bool {
    a == b && matches!(a, Reach::Rows | Reach::Columns(_))
}

/// Instructions in order, and where workers meet before them.
#[derive(Clone, Debug)]
pub struct Tape<K> {
    resources: Vec<Resource>,
    instrs: Vec<Instr<K>>,
    syncs: Vec<Sync>,
    /// Per resource: what was done to it since the last meeting that concerns it.
    pending: Vec<Vec<(Reach, bool)>>,
}

impl<K> Tape<K> {
    /// A tape without instructions.
    #[must_use]
    pub fn new(resources: Vec<Resource>) -> Self {
        Tape {
            pending: vec![vec![]; resources.len()],
            resources,
            instrs: Vec::new(),
            syncs: Vec::new(),
        }
    }

    /// One more resource.
    pub fn add(&mut self, resource: Resource) -> ResourceId {
        self.resources.push(resource);
        self.pending.push(vec![]);
        ResourceId(self.resources.len() as u32 - 1)
    }

    /// What instructions touch.
    #[must_use]
    pub fn resources(&self) -> &[Resource] {
        &self.resources
    }

    /// The instructions.
    #[must_use]
    pub fn instrs(&self) -> &[Instr<K>] {
        &self.instrs
    }

    /// When workers meet before each instruction.
    #[must_use]
    pub fn syncs(&self) -> &[Sync] {
        &self.syncs
    }

    /// The meeting that an instruction would need at the end of the tape.
    #[must_use]
    pub fn needs(&self, instr: &Instr<K>) -> Sync {
        let each = instr.accesses().map(|(access, writes)| {
            let pending = &self.pending[access.resource.index()];
            let clashes =
                |&(reach, wrote): &(_, _)| (writes || wrote) && !same_worker(reach, access.reach);
            let resource = &self.resources[access.resource.index()];
            match resource.copies {
                _ if !pending.iter().any(clashes) => Sync::None,
                Some(rows) => Sync::Above(resource.lead, rows),
                None => Sync::Always,
            }
        });
        each.fold(Sync::None, Sync::and)
    }

    /// Adds an instruction after the meeting that it needs.
    pub fn push(&mut self, instr: Instr<K>) {
        let sync = self.needs(&instr);
        self.push_after(sync, instr);
    }

    /// Adds the first of some ways to do an instruction that needs no meeting, or else the first of all.
    ///
    /// # Panics
    /// Without any way.
    pub fn push_any(&mut self, ways: impl IntoIterator<Item = Instr<K>>) {
        let mut first = None;
        for way in ways {
            if self.needs(&way) == Sync::None {
                return self.push(way);
            }
            first.get_or_insert(way);
        }
        self.push(first.expect("an instruction is done in one way at least"));
    }

    /// Adds an instruction after a meeting, which must be no less than it needs.
    pub fn push_after(&mut self, sync: Sync, instr: Instr<K>) {
        self.forget(sync);
        for (access, writes) in instr.accesses() {
            let pending = &mut self.pending[access.resource.index()];
            if !pending.contains(&(access.reach, writes)) {
                pending.push((access.reach, writes));
            }
        }
        self.instrs.push(instr);
        self.syncs.push(sync);
    }

    /// What is settled once workers have met.
    fn forget(&mut self, sync: Sync) {
        let resources = self.resources.iter().zip(&mut self.pending);
        for (resource, pending) in resources {
            let settled = match sync {
                Sync::None => false,
                Sync::Above(lead, rows) => (resource.lead, resource.copies) == (lead, Some(rows)),
                Sync::Always => true,
            };
            if settled {
                pending.clear();
            }
        }
    }

    /// Meetings that always happen up to each instruction, its own included.
    pub fn epochs(&self) -> impl Iterator<Item = usize> + '_ {
        self.syncs.iter().scan(0, |epoch, &sync| {
            *epoch += usize::from(sync == Sync::Always);
            Some(*epoch)
        })
    }

    /// The epochs in which each resource lives, `None` for one that nobody touches. Those of `inputs` live from the
    /// start, those of `outputs` to the end.
    #[must_use]
    pub fn lives(
        &self,
        inputs: &[ResourceId],
        outputs: &[ResourceId],
    ) -> Vec<Option<RangeInclusive<usize>>> {
        let mut lives: Vec<Option<RangeInclusive<usize>>> = vec![None; self.resources.len()];
        inputs.iter().for_each(|r| lives[r.index()] = Some(0..=0));
        let mut last = 0;
        for (instr, epoch) in self.instrs.iter().zip(self.epochs()) {
            last = epoch;
            for (access, _) in instr.accesses() {
                let life = &mut lives[access.resource.index()];
                let start = life.as_ref().map_or(epoch, |l| *l.start());
                *life = Some(start..=epoch);
            }
        }
        for output in outputs {
            if let Some(life) = &mut lives[output.index()] {
                *life = *life.start()..=last;
            }
        }
        lives
    }

    /// For each resource the one in whose place it is made, by number: one that its instruction offers, reads share by
    /// share as it writes, and that no other reads in the same epoch or later. Both are written once.
    #[must_use]
    pub fn over(&self) -> Vec<Option<usize>> {
        let mut reads: Vec<Vec<(usize, usize)>> = vec![vec![]; self.resources.len()];
        for ((at, instr), epoch) in self.instrs.iter().enumerate().zip(self.epochs()) {
            for access in &instr.reads {
                reads[access.resource.index()].push((epoch, at));
            }
        }
        let mut over = vec![None; self.resources.len()];
        for ((at, instr), epoch) in self.instrs.iter().enumerate().zip(self.epochs()) {
            let [made] = instr.writes[..] else { continue };
            let own = |x: &ResourceId| {
                let mut reads = instr.reads.iter().filter(|r| r.resource == *x);
                reads.all(|r| same_worker(r.reach, made.reach))
            };
            let ends = |x: &&ResourceId| {
                let mut reads = reads[x.index()].iter();
                own(x) && reads.all(|&(e, reader)| reader == at || e < epoch)
            };
            over[made.resource.index()] = instr.over.iter().find(ends).map(|x| x.index());
        }
        over
    }

    /// The same tape with other kernels, made in order.
    ///
    /// # Errors
    /// The first that `f` gives.
    pub fn try_map<L, E>(self, mut f: impl FnMut(&Instr<K>) -> Result<L, E>) -> Result<Tape<L>, E> {
        let mut instrs = Vec::with_capacity(self.instrs.len());
        for instr in self.instrs {
            instrs.push(Instr {
                kernel: f(&instr)?,
                reads: instr.reads,
                writes: instr.writes,
                tiles: instr.tiles,
                over: instr.over,
            });
        }
        Ok(Tape {
            resources: self.resources,
            instrs,
            syncs: self.syncs,
            pending: self.pending,
        })
    }
}
