//! Where values lie: one buffer, reused as soon as no one reads a value any more.
//!
//! Lifetimes are counted in *epochs*, the stretches of a plan between two barriers: inside an epoch workers run
//! apart, so memory read in an epoch is written again in a later one at the earliest.

use std::ops::RangeInclusive;

use tokkata_ir::{Lead, Limits, Plan};

/// Floats (or integers) of a value start at multiples of this.
const ALIGN: usize = 16;
/// Lines of a row from which rows are spread.
const SPREAD_LINES: usize = 8;

/// A value in the arena: rows of `width` elements, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
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
    let lives = joined(lives, over);
    let mut places: Vec<Place> = plan
        .values
        .iter()
        .map(|v| unplaced(v.shape.lead, v.shape.width()))
        .collect();
    for place in inner(plan, &mut places) {
        place.stride = spread(place.width);
    }
    let sizes: Vec<usize> = places
        .iter()
        .map(|p| (p.stride * most(limits, p.lead)).next_multiple_of(ALIGN))
        .collect();
    let mut order: Vec<usize> = (0..places.len()).filter(|&i| lives[i].is_some()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(sizes[i]));
    let (mut placed, mut total) = (Vec::new(), 0);
    for &i in &order {
        let life = lives[i].clone().expect("only living values are placed");
        let at = first_gap(&placed, &life, sizes[i]);
        places[i].at = at;
        total = total.max(at + sizes[i]);
        let spot = placed.partition_point(|&(start, ..): &(usize, usize, _)| start < at);
        placed.insert(spot, (at, sizes[i], life));
    }
    for i in 0..places.len() {
        places[i].at = places[first(over, i)].at;
    }
    (places, total)
}

/// The value in whose place another ends up.
fn first(over: &[Option<usize>], mut i: usize) -> usize {
    while let Some(Some(before)) = over.get(i) {
        i = *before;
    }
    i
}

/// Lives of places: each from its first value's to its last one's, `None` for values without a place of their own.
fn joined(
    lives: &[Option<RangeInclusive<usize>>],
    over: &[Option<usize>],
) -> Vec<Option<RangeInclusive<usize>>> {
    let mut all: Vec<Option<RangeInclusive<usize>>> = vec![None; lives.len()];
    for (i, life) in lives.iter().enumerate() {
        let (Some(life), place) = (life, &mut all[first(over, i)]) else {
            continue;
        };
        *place = Some(match place {
            None => life.clone(),
            Some(p) => *p.start().min(life.start())..=*p.end().max(life.end()),
        });
    }
    all
}

fn unplaced(lead: Lead, width: usize) -> Place {
    Place {
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

/// The lowest start at which `size` elements meet no value that lives at the same time.
fn first_gap(
    placed: &[(usize, usize, RangeInclusive<usize>)],
    life: &RangeInclusive<usize>,
    size: usize,
) -> usize {
    let mut at = 0;
    for (start, len, other) in placed {
        let meets = other.start() <= life.end() && life.start() <= other.end();
        if meets && start + len > at {
            if at + size <= *start {
                break;
            }
            at = start + len;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use tokkata_ir::{PlanRole, Shape, ValType, ValueDef};

    use super::*;

    #[test]
    fn values_share_memory_only_when_they_do_not_meet() {
        let value = |width| ValueDef {
            shape: Shape::rows(&[width]),
            dtype: ValType::F32,
        };
        let plan = Plan {
            role: PlanRole::Main,
            inputs: vec![],
            outputs: vec![],
            values: vec![value(32), value(16), value(32), value(8)],
            nodes: vec![],
        };
        let limits = Limits {
            rows: 2,
            ..Limits::default()
        };
        let lives = [Some(0..=1), Some(1..=2), Some(2..=3), None];
        let (places, total) = assign(&plan, &limits, &lives, &[]);
        assert_eq!(places[0].at, places[2].at);
        assert_eq!(places[1].at, 64);
        assert_eq!(total, 96);
        // The first and the third in one place: it lives all the time.
        let over = [None, None, Some(0), None];
        let (places, total) = assign(&plan, &limits, &lives, &over);
        assert_eq!(places[0].at, places[2].at);
        assert_eq!((places[1].at, total), (64, 96));
    }
}
