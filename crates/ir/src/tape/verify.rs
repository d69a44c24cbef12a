//! Proof that a replay keeps workers apart: every address that each share touches, between meetings.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Access, Reach, Resource, ResourceId, Tape, Tiles};
use crate::Lead;

/// Part `index` of `count` of `0..items`: contiguous, and sizes differ by at most one.
#[must_use]
pub fn share(items: usize, index: usize, count: usize) -> Range<usize> {
    let (each, extra) = (items / count, items % count);
    let first = index * each + index.min(extra);
    first..first + each + usize::from(index < extra)
}

/// Where a resource lies: element `at + row · stride + column` of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Which memory; resources of different memories have nothing in common.
    pub memory: u32,
    /// The first element.
    pub at: usize,
    /// From row to row.
    pub stride: usize,
}

/// A replay in numbers.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// How many workers there are.
    pub workers: usize,
    /// Rows of each [`Lead`], in the order of its variants.
    pub counts: [usize; 3],
    /// Where each resource lies.
    pub spots: &'a [Spot],
}

impl Setting<'_> {
    /// Rows of a lead.
    #[must_use]
    pub fn count(&self, lead: Lead) -> usize {
        self.counts[lead as usize]
    }
}

/// Runs of columns that one worker takes through some instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// The instructions, in order.
    pub instrs: Vec<usize>,
    /// Which runs of columns.
    pub parts: Range<usize>,
    /// Columns of a run where they are not those that the accesses say.
    pub columns: Option<usize>,
}

/// What happens next in a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Workers meet.
    Meet,
    /// Every worker does its share of an instruction.
    Share(usize),
    /// Workers take portions one after another until none is left.
    Round(Vec<Portion>),
}

/// Part of an instruction's work.
#[derive(Clone, Copy, Debug)]
pub enum Share<'a> {
    /// What this worker has of it.
    Worker(usize),
    /// What a portion has of it.
    Portion(&'a Portion),
}

/// Rows and columns of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The rows.
    pub rows: Range<usize>,
    /// The columns of each.
    pub columns: Range<usize>,
}

impl Region {
    /// What a share may touch of a resource through an access.
    #[must_use]
    pub fn of(
        share_of: Share<'_>,
        reach: Reach,
        resource: &Resource,
        setting: &Setting<'_>,
    ) -> Self {
        let (rows, width) = (setting.count(resource.lead), resource.width);
        let all = Region {
            rows: 0..rows,
            columns: 0..width,
        };
        match (reach, share_of) {
            (Reach::Rows, Share::Worker(worker)) => Region {
                rows: share(rows, worker, setting.workers),
                ..all
            },
            (Reach::Columns(run), Share::Worker(worker)) => {
                let runs = share(width.div_ceil(run), worker, setting.workers);
                all.cut(run, runs)
            }
            (Reach::Columns(run), Share::Portion(portion)) => {
                all.cut(portion.columns.unwrap_or(run), portion.parts.clone())
            }
            (Reach::All | Reach::Apart, _) | (Reach::Rows, Share::Portion(_)) => all,
        }
    }

    /// Some of its columns, by runs of `run`.
    fn cut(self, run: usize, runs: Range<usize>) -> Self {
        let width = self.columns.end;
        Region {
            rows: self.rows,
            columns: (runs.start * run).min(width)..(runs.end * run).min(width),
        }
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.columns.is_empty()
    }

    /// Whether `other` lies in it.
    #[must_use]
    pub fn holds(&self, other: &Region) -> bool {
        let inside = |a: &Range<usize>, b: &Range<usize>| a.start <= b.start && b.end <= a.end;
        other.is_empty()
            || (inside(&self.rows, &other.rows) && inside(&self.columns, &other.columns))
    }

    /// First element and one past the last.
    fn span(&self, spot: Spot) -> Range<usize> {
        let start = spot.at + self.rows.start * spot.stride + self.columns.start;
        start..spot.at + (self.rows.end - 1) * spot.stride + self.columns.end
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Whether two regions have an element in common, or might where their rows are not the same distance apart.
fn overlap((a, at_a): (&Region, Spot), (b, at_b): (&Region, Spot)) -> bool {
    if a.is_empty() || b.is_empty() {
        return false;
    }
    if at_a == at_b {
        return meet(&a.rows, &b.rows) && meet(&a.columns, &b.columns);
    }
    meet(&a.span(at_a), &b.span(at_b))
}

/// What is wrong with a replay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Clash {
    /// Two shares touch the same elements, one of them to write, and nothing keeps them apart.
    #[error(
        "instructions {first} and {second} touch the same elements ({one:?}, {other:?}) without a meeting between"
    )]
    Race {
        /// The instruction that comes first.
        first: usize,
        /// The other.
        second: usize,
        /// What the first touches.
        one: ResourceId,
        /// What the other touches.
        other: ResourceId,
    },
    /// An instruction comes before one whose result it needs, or spoils.
    #[error("instruction {late} comes after {early}, which touches the same resource")]
    Order {
        /// The instruction that comes too late.
        late: usize,
        /// The one that comes too early.
        early: usize,
    },
    /// Some work is not done, or done twice.
    #[error("of instruction {instr}, {done} of {parts} parts are done")]
    Coverage {
        /// The instruction.
        instr: usize,
        /// Parts that are done.
        done: usize,
        /// Parts there are.
        parts: usize,
    },
}

/// Who touches something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    Worker(usize),
    /// Whoever takes this portion of this event.
    Portion(usize, usize),
    /// Somebody, of this instruction.
    Any(usize),
}

/// One access of an event.
#[derive(Clone)]
struct Touch<'a> {
    instr: usize,
    access: Access,
    writes: bool,
    /// `None` for shares of all workers.
    portion: Option<(usize, usize, &'a Portion)>,
}

struct Verifier<'a, K> {
    tape: &'a Tape<K>,
    setting: &'a Setting<'a>,
    /// Since the last meeting.
    touches: Vec<Touch<'a>>,
    /// Per resource: the last instruction so far that touched it, and that wrote it.
    last: Vec<(usize, usize)>,
    done: Vec<usize>,
}

/// Checks a replay: no two workers touch the same element between two meetings where one of them writes, accesses to a
/// resource come in the order of the tape, and every part of every instruction is done once.
///
/// # Errors
/// The first [`Clash`].
pub fn verify<K>(tape: &Tape<K>, setting: &Setting<'_>, events: &[Event]) -> Result<(), Clash> {
    let mut verifier = Verifier {
        tape,
        setting,
        touches: Vec::new(),
        last: vec![(0, 0); tape.resources().len()],
        done: vec![0; tape.instrs().len()],
    };
    for (index, event) in events.iter().enumerate() {
        match event {
            Event::Meet => verifier.touches.clear(),
            Event::Share(instr) => verifier.share(*instr)?,
            Event::Round(portions) => verifier.round(index, portions)?,
        }
    }
    verifier.covered(events)
}

impl<'a, K> Verifier<'a, K> {
    fn share(&mut self, instr: usize) -> Result<(), Clash> {
        self.done[instr] += self.parts(instr, None);
        self.in_order(instr)?;
        self.touch_all(instr, None)
    }

    fn round(&mut self, event: usize, portions: &'a [Portion]) -> Result<(), Clash> {
        let instrs: BTreeSet<usize> = portions.iter().flat_map(|p| p.instrs.clone()).collect();
        instrs.into_iter().try_for_each(|i| self.in_order(i))?;
        for (index, portion) in portions.iter().enumerate() {
            if let Some(pair) = portion.instrs.windows(2).find(|pair| pair[0] >= pair[1]) {
                let (early, late) = (pair[0], pair[1]);
                return Err(Clash::Order { late, early });
            }
            for &instr in &portion.instrs {
                self.done[instr] += portion.parts.len();
                self.touch_all(instr, Some((event, index, portion)))?;
            }
        }
        Ok(())
    }

    fn touch_all(
        &mut self,
        instr: usize,
        portion: Option<(usize, usize, &'a Portion)>,
    ) -> Result<(), Clash> {
        let tape = self.tape;
        for (access, writes) in tape.instrs()[instr].accesses() {
            self.touches.push(Touch {
                instr,
                access,
                writes,
                portion,
            });
            let new = self.touches.last().expect("just pushed");
            for old in &self.touches {
                self.apart(old, new)?;
            }
        }
        Ok(())
    }

    fn in_order(&mut self, instr: usize) -> Result<(), Clash> {
        for (access, writes) in self.tape.instrs()[instr].accesses() {
            let (touched, wrote) = &mut self.last[access.resource.index()];
            let early = if writes { *touched } else { *wrote };
            if early > instr {
                return Err(Clash::Order { late: instr, early });
            }
            *touched = instr.max(*touched);
            if writes {
                *wrote = instr;
            }
        }
        Ok(())
    }

    fn resource(&self, touch: &Touch<'_>) -> (&Resource, Spot) {
        let index = touch.access.resource.index();
        (&self.tape.resources()[index], self.setting.spots[index])
    }

    /// Whether each worker touches a copy of its own.
    fn is_copied(&self, touch: &Touch<'_>) -> bool {
        let (resource, _) = self.resource(touch);
        let rows = self.setting.count(resource.lead);
        resource.copies.is_some_and(|most| rows <= most)
    }

    fn shares(&self, touch: &Touch<'_>) -> Vec<(Agent, Region)> {
        let (resource, _) = self.resource(touch);
        let reach = touch.access.reach;
        let region = |share| Region::of(share, reach, resource, self.setting);
        match touch.portion {
            _ if reach == Reach::Apart => vec![(Agent::Any(touch.instr), region(Share::Worker(0)))],
            Some((event, index, portion)) => {
                vec![(
                    Agent::Portion(event, index),
                    region(Share::Portion(portion)),
                )]
            }
            None => (0..self.setting.workers)
                .map(|w| (Agent::Worker(w), region(Share::Worker(w))))
                .collect(),
        }
    }

    fn apart(&self, old: &Touch<'_>, new: &Touch<'_>) -> Result<(), Clash> {
        let (spot_old, spot_new) = (self.resource(old).1, self.resource(new).1);
        let harmless = !(old.writes || new.writes)
            || spot_old.memory != spot_new.memory
            || self.is_copied(old)
            || self.is_copied(new)
            || !self.bounds_meet(old, new);
        if harmless {
            return Ok(());
        }
        let theirs = self.shares(old);
        for (agent, region) in self.shares(new) {
            for (other, before) in &theirs {
                if *other != agent && overlap((before, spot_old), (&region, spot_new)) {
                    return Err(Clash::Race {
                        first: old.instr,
                        second: new.instr,
                        one: old.access.resource,
                        other: new.access.resource,
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether the resources of two accesses have elements in common at all.
    fn bounds_meet(&self, old: &Touch<'_>, new: &Touch<'_>) -> bool {
        let whole = |touch: &Touch<'_>| {
            let (resource, spot) = self.resource(touch);
            let region = Region::of(Share::Worker(0), Reach::All, resource, self.setting);
            (!region.is_empty()).then(|| region.span(spot))
        };
        matches!((whole(old), whole(new)), (Some(a), Some(b)) if meet(&a, &b))
    }

    /// Parts of an instruction, of `columns` each where that is given.
    fn parts(&self, instr: usize, columns: Option<usize>) -> usize {
        let instr = &self.tape.instrs()[instr];
        match (instr.tiles, columns, instr.writes.first()) {
            (Tiles::Columns(_), Some(columns), Some(made)) => {
                let width = self.tape.resources()[made.resource.index()].width;
                width.div_ceil(columns)
            }
            (Tiles::Columns(parts), ..) => parts,
            _ => 1,
        }
    }

    fn covered(&self, events: &[Event]) -> Result<(), Clash> {
        let portions = events.iter().flat_map(|event| match event {
            Event::Round(portions) => &portions[..],
            Event::Meet | Event::Share(_) => &[],
        });
        let mut parts: Vec<usize> = (0..self.done.len()).map(|i| self.parts(i, None)).collect();
        for portion in portions.filter(|p| p.columns.is_some()) {
            for &instr in &portion.instrs {
                parts[instr] = self.parts(instr, portion.columns);
            }
        }
        let missed = (0..parts.len()).find(|&i| self.done[i] != parts[i]);
        missed.map_or(Ok(()), |instr| {
            Err(Clash::Coverage {
                instr,
                done: self.done[instr],
                parts: parts[instr],
            })
        })
    }
}
