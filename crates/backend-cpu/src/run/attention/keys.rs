//! What rows of an item read, by number: positions and entries, all that is seen or what was chosen.

use std::ops::Range;

use tokkata_ir::{KvSource, Mask, Selection, SlotId};

use super::super::cx::Cx;
use super::{Attention, CHUNK, Item};

/// Keys that rows read, numbered from 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    pub(super) from: From,
    /// What numbers stand for where they are not positions or entries themselves.
    pub(super) list: Option<List<'a>>,
}

/// Where keys are.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    /// In the step's own rows.
    Rows,
    /// At positions of a slot.
    Positions(SlotId),
    /// In entries of a slot, each of so many positions.
    Entries(SlotId, usize),
}

/// Chosen keys of a row: units in ascending order, then what lies behind them.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<'a> {
    units: &'a [i32],
    unit: usize,
    /// Numbers that are read.
    seen: (usize, usize),
    /// The number from which on keys follow each other, and the first of them.
    tail: (usize, usize),
}

impl List<'_> {
    fn at(&self, number: usize) -> usize {
        match number.checked_sub(self.tail.0) {
            Some(behind) => self.tail.1 + behind,
            None => self.units[number / self.unit] as usize * self.unit + number % self.unit,
        }
    }
}

impl Keys<'_> {
    /// The position or entry with a number.
    pub(super) fn at(&self, number: usize) -> usize {
        self.list.map_or(number, |list| list.at(number))
    }

    /// The first position of the key with a number.
    pub(super) fn position(&self, number: usize) -> usize {
        let at = self.at(number);
        match self.from {
            From::Entries(_, positions) => at * positions,
            From::Rows | From::Positions(_) => at,
        }
    }
}

impl Attention {
    /// Positions that exist for a sequence.
    fn len(&self, cx: &Cx<'_>, seq: usize) -> usize {
        match self.source {
            KvSource::Cross(_) => cx.step.enc_len(seq),
            KvSource::Cache(_) | KvSource::Rows => cx.step.past_len(seq) + cx.step.row_count(seq),
        }
    }

    /// Positions that the mask shows to a row: first and one past the last.
    fn shown(&self, cx: &Cx<'_>, seq: usize, row: usize) -> (usize, usize) {
        let (p, len) = (cx.step.index_in_sequence(row), self.len(cx, seq));
        let (lo, hi) = match self.mask {
            Mask::Full => (0, len),
            Mask::Causal => (0, p + 1),
            Mask::Window(w) => ((p + 1).saturating_sub(w as usize), p + 1),
            Mask::Chunk(c) => (p / c as usize * c as usize, p + 1),
            Mask::Symmetric(w) => (p.saturating_sub(w as usize / 2), p + w as usize / 2 + 1),
        };
        let least = match self.source {
            KvSource::Rows => cx.step.past_len(seq),
            KvSource::Cache(_) | KvSource::Cross(_) => 0,
        };
        (lo.max(least), hi.min(len))
    }

    /// Entries that end at a row or before.
    fn whole(cx: &Cx<'_>, row: usize, positions: usize) -> usize {
        (cx.step.index_in_sequence(row) + 1) / positions
    }

    /// What the rows of an item read; where rows choose, it holds such as read [alike](Self::alike).
    pub(super) fn keys<'a>(&self, cx: &'a Cx<'_>, item: &Item) -> [Option<Keys<'a>>; 2] {
        let from = match self.source {
            KvSource::Rows => From::Rows,
            KvSource::Cache(slot) | KvSource::Cross(slot) => From::Positions(slot),
        };
        let entries =
            (self.entries).map(|slot| From::Entries(slot, cx.caches.entry_positions(slot.group)));
        let list = self
            .list(cx, item, item.rows.start)
            .filter(|_| item.rows.len() == 1);
        let of = |from| Keys { from, list: None };
        match entries {
            None => [Some(Keys { from, list }), None],
            Some(entries) => [
                Some(of(from)),
                Some(Keys {
                    from: entries,
                    list,
                }),
            ],
        }
    }

    /// What a row chose; `None` where it reads all that it sees.
    fn list<'a>(&self, cx: &'a Cx<'_>, item: &Item, row: usize) -> Option<List<'a>> {
        let (place, selection) = self.chosen?;
        let seen = match self.entries {
            None => self.shown(cx, item.seq, row),
            Some(slot) => (
                0,
                Self::whole(cx, row, cx.caches.entry_positions(slot.group)),
            ),
        };
        let choices = selection.choices as usize;
        let choice = item.kv_head * choices / self.kv_heads;
        let width = place.width / choices;
        let units = &cx.ints(place, row)[choice * width..][..width];
        listed(units, selection, seen, cx.step.index_in_sequence(row))
    }

    /// One past the last row from `first` on that reads alike: one that chose alone, or those that read all they see.
    pub(super) fn alike(&self, cx: &Cx<'_>, item: &Item, first: usize) -> usize {
        let chooses = |&row: &usize| self.list(cx, item, row).is_some();
        match self.chosen {
            None => item.rows.end,
            Some(_) if chooses(&first) => first + 1,
            Some(_) => {
                let mut rest = first + 1..item.rows.end;
                rest.find(chooses).unwrap_or(item.rows.end)
            }
        }
    }

    /// Numbers that a row sees of keys: first and one past the last.
    pub(super) fn sees(
        &self,
        cx: &Cx<'_>,
        item: &Item,
        keys: &Keys<'_>,
        row: usize,
    ) -> (usize, usize) {
        match (keys.list, keys.from) {
            (Some(list), _) => list.seen,
            (None, From::Entries(_, positions)) => (0, Self::whole(cx, row, positions)),
            (None, From::Rows | From::Positions(_)) => self.shown(cx, item.seq, row),
        }
    }

    /// Numbers that any row of an item sees.
    pub(super) fn seen(&self, cx: &Cx<'_>, item: &Item, keys: &Keys<'_>) -> Range<usize> {
        let (mut lo, mut hi) = (usize::MAX, 0);
        for row in item.rows.clone() {
            let sees = self.sees(cx, item, keys, row);
            if sees.0 < sees.1 {
                (lo, hi) = (lo.min(sees.0), hi.max(sees.1));
            }
        }
        lo.min(hi)..hi
    }

    /// Whether a row of an item that is not more than a row sees nothing at all.
    pub(super) fn is_blind(&self, cx: &Cx<'_>, item: &Item, row: usize) -> bool {
        let item = Item {
            rows: row..row + 1,
            ..item.clone()
        };
        let all = self.keys(cx, &item);
        let mut keys = all.iter().flatten();
        keys.all(|keys| self.seen(cx, &item, keys).is_empty())
    }

    /// Chunks of positions and of entries that an item of the step has at most.
    pub(super) fn most_chunks(&self, cx: &Cx<'_>) -> [usize; 2] {
        let longest = (0..cx.step.n_seqs()).map(|s| self.len(cx, s)).max();
        let positions = longest.unwrap_or(0);
        let entries = self
            .entries
            .map_or(0, |slot| positions / cx.caches.entry_positions(slot.group));
        // Units that are not chosen leave gaps that no number stands for.
        let numbers = |all: usize| match self.chosen {
            Some((place, s)) => {
                let units = place.width / s.choices as usize + 1;
                all.min(units * s.unit as usize)
            }
            None => all,
        };
        let [positions, entries] = match self.entries {
            None => [numbers(positions), 0],
            Some(_) => [positions, numbers(entries)],
        };
        [positions.div_ceil(CHUNK).max(1), entries.div_ceil(CHUNK)]
    }
}

/// What a row at position `p` reads of the keys `lo..hi` that it sees; `None` where that is all of them.
fn listed(
    units: &[i32],
    selection: Selection,
    (lo, hi): (usize, usize),
    p: usize,
) -> Option<List<'_>> {
    let unit = selection.unit as usize;
    let tail = match selection.tail {
        true => hi.min((p + 1) / unit * unit),
        false => hi,
    };
    let first_of = |id: i32| id as usize * unit;
    let count = units.partition_point(|&id| id >= 0 && first_of(id) < tail);
    let units = &units[..count];
    let whole = match units.last() {
        // Ascending numbers of which the last is their count less one leave none out.
        Some(&last) => last as usize + 1 == count && count * unit >= tail,
        None => tail == 0,
    };
    if whole || lo >= hi {
        return None;
    }
    let end = match units.last() {
        Some(&last) => (count - 1) * unit + unit.min(tail - first_of(last)),
        None => 0,
    };
    let before = units.partition_point(|&id| first_of(id) + unit <= lo);
    let start = units
        .get(before)
        .map_or(end, |&id| before * unit + lo.saturating_sub(first_of(id)));
    let behind = tail.max(lo);
    Some(List {
        units,
        unit,
        seen: (start, end + (hi - behind)),
        tail: (end, behind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys that a list stands for, or all that are seen.
    fn read(
        units: &[i32],
        (unit, tail): (u32, bool),
        seen: (usize, usize),
        p: usize,
    ) -> Vec<usize> {
        let selection = Selection {
            unit,
            choices: 1,
            tail,
        };
        match listed(units, selection, seen, p) {
            None => (seen.0..seen.1).collect(),
            Some(list) => (list.seen.0..list.seen.1).map(|n| list.at(n)).collect(),
        }
    }

    /// As the reference reads: every key that is seen, and whose unit is chosen or that lies behind whole units.
    fn wanted(
        units: &[i32],
        (unit, tail): (u32, bool),
        seen: (usize, usize),
        p: usize,
    ) -> Vec<usize> {
        let unit = unit as usize;
        let behind = |k: usize| tail && k >= (p + 1) / unit * unit;
        let chosen = |k: usize| units.contains(&((k / unit) as i32)) || behind(k);
        (seen.0..seen.1).filter(|&k| chosen(k)).collect()
    }

    #[test]
    fn lists_hold_what_is_chosen_and_seen() {
        for p in 0..40_usize {
            for unit in [1, 3, 4] {
                let last = (p + 1).div_ceil(unit) as i32;
                for stride in [1, 2, 5] {
                    let mut units: Vec<i32> = (0..last).rev().step_by(stride).collect();
                    units.truncate(4);
                    units.reverse();
                    units.resize(5, -1);
                    for tail in [false, true] {
                        for window in [40, 7, 1] {
                            let seen = ((p + 1usize).saturating_sub(window), p + 1);
                            let of = (unit as u32, tail);
                            let found = read(&units, of, seen, p);
                            assert_eq!(
                                found,
                                wanted(&units, of, seen, p),
                                "{units:?} {of:?} {seen:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}
