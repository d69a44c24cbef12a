//! Where resources lie that share one buffer.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

/// Places resources of `sizes` elements by the epochs in which they live: gives where each starts and the elements
/// needed. One that is made in the place of another, which must be as large, has that one's number in `over`. Inside an
/// epoch workers run apart, so memory used in one serves something else in a later one at the earliest.
#[must_use]
pub fn place(
    sizes: &[usize],
    lives: &[Option<RangeInclusive<usize>>],
    over: &[Option<usize>],
) -> (Vec<usize>, usize) {
    let lives = joined(&lives[..sizes.len()], over);
    let mut starts = vec![0; sizes.len()];
    let living = lives.iter().enumerate();
    let mut order: Vec<(usize, &RangeInclusive<usize>)> = living
        .filter_map(|(i, life)| Some((i, life.as_ref()?)))
        .collect();
    order.sort_by_key(|&(i, _)| Reverse(sizes[i]));
    let (mut placed, mut total) = (Vec::new(), 0);
    for (i, life) in order {
        let at = first_gap(&placed, life, sizes[i]);
        starts[i] = at;
        total = total.max(at + sizes[i]);
        let spot = placed.partition_point(|&(start, ..): &(usize, usize, _)| start < at);
        placed.insert(spot, (at, sizes[i], life.clone()));
    }
    let starts = (0..sizes.len()).map(|i| starts[first(over, i)]).collect();
    (starts, total)
}

/// The resource in whose place another ends up.
fn first(over: &[Option<usize>], mut i: usize) -> usize {
    while let Some(Some(before)) = over.get(i) {
        i = *before;
    }
    i
}

/// Lives of places: each from its first resource's to its last one's, `None` for those without a place of their own.
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

/// The lowest start at which `size` elements meet nothing that lives at the same time.
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
    use super::place;

    #[test]
    fn memory_is_shared_only_by_what_does_not_meet() {
        let lives = [Some(0..=1), Some(1..=2), Some(2..=3), None];
        let sizes = [64, 32, 64, 16];
        let (starts, total) = place(&sizes, &lives, &[]);
        assert_eq!((starts[0], starts[1], starts[2]), (0, 64, 0));
        assert_eq!(total, 96);
        // The first and the third in one place: it lives all the time.
        let (starts, total) = place(&sizes, &lives, &[None, None, Some(0), None]);
        assert_eq!((starts[0], starts[1], starts[2]), (0, 64, 0));
        assert_eq!(total, 96);
    }
}
