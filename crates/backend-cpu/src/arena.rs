//! Where values lie: one buffer, reused as soon as no one reads a value any more.

use std::ops::RangeInclusive;

use tokkata_ir::tape::{ResourceId, place};
use tokkata_ir::{Lead, Limits, Plan};

/// Floats (or integers) of a value start at multiples of this.
const ALIGN: usize = 16;
/// Lines of a row from which rows are spread.
const SPREAD_LINES: usize = 8;

/// A value in the arena: rows of `width` elements, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The value on its tape.
    pub(crate) id: ResourceId,
    /// Element of the arena at which row 0 starts.
    pub(crate) at: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
    pub(crate) lead: Lead,
}

/// Rows that a leading dimension has at most.
pub(crate) fn most(limits: &Limits, lead: Lead) -> usize {
    let most = match lead {
        Lead::Rows => limits.rows,
        Lead::LogitRows => limits.logit_rows,
        Lead::Seqs => limits.seqs,
    };
    most.max(1) as usize
}

/// Places every value by the epochs in which it lives; gives the places and the elements needed. A value that is made
/// in the place of another, which must be as wide, has that one's number in `over`.
pub(crate) fn assign(
    plan: &Plan,
    limits: &Limits,
    lives: &[Option<RangeInclusive<usize>>],
    over: &[Option<usize>],
) -> (Vec<Place>, usize) {
    let mut places: Vec<Place> = plan
        .values
        .iter()
        .zip(0..)
        .map(|(v, id)| unplaced(id, v.shape.lead, v.shape.width()))
        .collect();
    for place in inner(plan, &mut places) {
        place.stride = spread(place.width);
    }
    let sizes: Vec<usize> = places
        .iter()
        .map(|p| (p.stride * most(limits, p.lead)).next_multiple_of(ALIGN))
        .collect();
    let (starts, total) = place(&sizes, lives, over);
    for (place, at) in places.iter_mut().zip(starts) {
        place.at = at;
    }
    (places, total)
}

fn unplaced(id: u32, lead: Lead, width: usize) -> Place {
    Place {
        id: ResourceId(id),
        at: 0,
        width,
        stride: width,
        lead,
    }
}

/// Places of values that no one outside looks at: those may have gaps between rows.
fn inner<'a>(plan: &Plan, places: &'a mut [Place]) -> impl Iterator<Item = &'a mut Place> {
    let ports = plan.inputs.iter().chain(&plan.outputs);
    let outer: Vec<usize> = ports.map(|port| port.value.index()).collect();
    let places = places.iter_mut().enumerate();
    places.filter_map(move |(i, place)| (!outer.contains(&i)).then_some(place))
}

/// A stride of an odd number of cache lines: some columns of many rows then fall into all sets of a cache, where those
/// of a power of two would fall into few.
fn spread(width: usize) -> usize {
    let lines = width.div_ceil(ALIGN);
    if lines < SPREAD_LINES {
        return width;
    }
    (lines | 1) * ALIGN
}
