//! How the attention of a step is cut among workers.
//!
//! An item is a tile of rows and the query heads of one key head, with all keys that these see. Where there are too few
//! items, or they cannot be dealt out evenly, pieces of their keys are: spans first, then single chunks, so that no
//! worker is left with much when the others are done. Chunks are merged in order within a span, and spans in order,
//! whatever the pieces are.

use std::ops::Range;

use tokkata_ir::Mask;

use super::super::cx::Cx;
use super::{Attention, CHUNK, Item, MAX_ROWS};

/// Keys that are merged before they meet others: chunks of one span.
pub(super) const SPAN: usize = 8 * CHUNK;
/// Chunks of a span.
const SPAN_CHUNKS: usize = SPAN / CHUNK;
/// Bytes of a head's keys and values that a worker keeps at most: about what lies near to it.
const HELD: usize = 2 << 20;
/// Whole items that each worker should have: with fewer, it is seen when one worker has one more than others.
const MANY: usize = 4;
/// Share of the time of all workers that whole items must use.
const EVEN: f64 = 0.9;
/// Single chunks that each worker should have at the end.
const LAST: usize = 6;

/// How the work of a step is cut.
pub(super) struct Cut {
    /// Query heads of an item, and how often they fit into those of a key head.
    heads: usize,
    subs: usize,
    /// Most rows of an item.
    pub(super) rows: usize,
    pub(super) items: usize,
    /// Most queries of an item.
    pub(super) queries: usize,
    /// If pieces of keys are items of their own.
    pub(super) pieces: Option<Pieces>,
}

/// Pieces of an item's keys, of positions and of entries: spans, and chunks behind them.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    spans: [usize; 2],
    /// Chunks in all, those of the spans among them.
    chunks: [usize; 2],
}

/// A piece of an item's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Of positions, or of entries.
    pub(super) which: usize,
    pub(super) keys: Stretch,
}

/// A span or a chunk, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    Span(usize),
    Chunk(usize),
}

impl Stretch {
    /// What is seen of it.
    pub(super) fn of(self, seen: &Range<usize>) -> Range<usize> {
        match self {
            Stretch::Span(n) => within(seen, SPAN, n),
            Stretch::Chunk(n) => within(seen, CHUNK, n),
        }
    }
}

/// Which of the pieces, each of so many keys, have some that are seen.
pub(super) fn pieces(seen: &Range<usize>, keys: usize) -> Range<usize> {
    if seen.is_empty() {
        0..0
    } else {
        seen.start / keys..seen.end.div_ceil(keys)
    }
}

/// What of a piece is seen; empty where nothing is.
pub(super) fn within(seen: &Range<usize>, keys: usize, piece: usize) -> Range<usize> {
    let end = seen.end.min((piece + 1) * keys);
    seen.start.max(piece * keys).min(end)..end
}

/// Whether so many equal items keep so many workers busy.
fn is_even(items: usize, workers: usize) -> bool {
    let turns = items.div_ceil(workers) * workers;
    items >= 2 * workers && items as f64 >= EVEN * turns as f64
}

/// The pieces of each of so many items that have so many chunks of positions and of entries; `None` for whole items.
fn dealt(items: usize, workers: usize, chunks: [usize; 2]) -> Option<Pieces> {
    let all: usize = chunks.iter().sum();
    let last = (LAST * workers).div_ceil(items.max(1));
    let even = is_even(items, workers);
    if workers == 1 || all < 2 || even && (items >= MANY * workers || all <= last) {
        return None;
    }
    // Positions come first: what is left for the end is taken from the entries before.
    let entries = chunks[1].saturating_sub(last) / SPAN_CHUNKS;
    let rest = last.saturating_sub(chunks[1]);
    let positions = chunks[0].saturating_sub(rest) / SPAN_CHUNKS;
    Some(Pieces {
        spans: [positions, entries],
        chunks,
    })
}

impl Attention {
    pub(super) fn cut(&self, cx: &Cx<'_>, workers: usize) -> Cut {
        let group = self.heads / self.kv_heads;
        let heads = group.min(MAX_ROWS);
        let most = (MAX_ROWS / heads).max(1);
        // Rows that choose share nothing; a piece of keys that is an item of its own belongs to one of them.
        let alone = self.chosen.map(|_| self.cut_by(cx, workers, (heads, 1)));
        let cut = alone.filter(|cut| cut.pieces.is_some());
        cut.unwrap_or_else(|| {
            let cut = self.cut_by(cx, workers, (heads, most));
            let pieces = cut
                .pieces
                .filter(|_| self.chosen.is_none() || cut.rows == 1);
            Cut { pieces, ..cut }
        })
    }

    fn cut_by(&self, cx: &Cx<'_>, workers: usize, (heads, rows): (usize, usize)) -> Cut {
        let subs = (self.heads / self.kv_heads).div_ceil(heads);
        let counts = (0..cx.step.n_seqs()).map(|s| cx.step.row_count(s));
        let tiles: usize = counts.clone().map(|n| n.div_ceil(rows)).sum();
        let items = tiles * self.kv_heads * subs;
        let queries = counts.max().unwrap_or(0).min(rows) * heads;
        let cut = Cut {
            heads,
            subs,
            rows,
            items,
            queries,
            pieces: None,
        };
        let room = |p: &Pieces| items * p.all() * queries * (self.form.dim_v + 2);
        let pieces = dealt(items, workers, self.most_chunks(cx));
        Cut {
            pieces: pieces.filter(|p| room(p) <= cx.partials.len()),
            ..cut
        }
    }

    pub(super) fn item(&self, cx: &Cx<'_>, cut: &Cut, index: usize) -> Item {
        let heads = self.kv_heads * cut.subs;
        let group = self.heads / self.kv_heads;
        let mut left = index;
        for seq in 0..cx.step.n_seqs() {
            let (start, count) = (cx.step.first_row(seq), cx.step.row_count(seq));
            let tiles = count.div_ceil(cut.rows);
            let Some(behind) = left.checked_sub(tiles * heads) else {
                // What is held of a head serves all rows.
                let (tile, head) = match self.own {
                    Some(_) => (left % tiles, left / tiles),
                    None => (left / heads, left % heads),
                };
                let (kv_head, sub) = (head / cut.subs, head % cut.subs);
                let first = kv_head * group + sub * cut.heads;
                // Last rows first: they see most.
                let most = count.div_ceil(tiles);
                let at = (tiles - 1 - tile) * most;
                return Item {
                    seq,
                    rows: start + at..start + (at + most).min(count),
                    kv_head,
                    heads: first..(first + cut.heads).min((kv_head + 1) * group),
                };
            };
            left = behind;
        }
        unreachable!("items are counted over the same sequences")
    }

    /// Whether a worker copies all that a head's rows may read of the step's own rows, and not what each item reads.
    pub(super) fn holds(&self, cx: &Cx<'_>, cut: &Cut) -> bool {
        let wide = matches!(self.mask, Mask::Full | Mask::Causal);
        let longest = (0..cx.step.n_seqs()).map(|s| cx.step.row_count(s)).max();
        let floats = longest.unwrap_or(0) * (self.form.dim_k + self.form.dim_v);
        let few = floats * size_of::<f32>() <= HELD;
        self.own.is_some() && self.chosen.is_none() && cut.pieces.is_none() && wide && few
    }
}

impl Cut {
    /// Parts of an item that are items of their own.
    pub(super) fn parts(&self) -> usize {
        self.pieces.map_or(1, |pieces| pieces.all())
    }

    /// Where a query of a part of an item is kept.
    pub(super) fn part(&self, (index, part): (usize, usize), i: usize, dim_v: usize) -> usize {
        ((index * self.parts() + part) * self.queries + i) * (dim_v + 2)
    }
}

impl Pieces {
    /// Pieces of an item.
    fn all(&self) -> usize {
        let spans: usize = self.spans.iter().sum();
        let chunks: usize = self.chunks.iter().sum();
        spans + chunks - spans * SPAN_CHUNKS
    }

    /// Chunks behind the spans.
    fn behind(&self, which: usize) -> usize {
        self.chunks[which] - self.spans[which] * SPAN_CHUNKS
    }

    /// The item and the piece with a number: all spans of all of so many items come before all chunks.
    pub(super) fn dealt(&self, ticket: usize, items: usize) -> (usize, usize) {
        let spans: usize = self.spans.iter().sum();
        match ticket.checked_sub(items * spans) {
            None => (ticket / spans, ticket % spans),
            Some(ticket) => {
                let chunks = self.all() - spans;
                (ticket / chunks, spans + ticket % chunks)
            }
        }
    }

    /// The piece with a number.
    pub(super) fn piece(&self, number: usize) -> Piece {
        let [positions, entries] = self.spans;
        let (which, keys) = match number.checked_sub(positions + entries) {
            None if number < positions => (0, Stretch::Span(number)),
            None => (1, Stretch::Span(number - positions)),
            Some(chunk) if chunk < self.behind(0) => {
                (0, Stretch::Chunk(positions * SPAN_CHUNKS + chunk))
            }
            Some(chunk) => (
                1,
                Stretch::Chunk(entries * SPAN_CHUNKS + chunk - self.behind(0)),
            ),
        };
        Piece { which, keys }
    }

    /// The numbers of the pieces that what is seen of a span is in, in order.
    pub(super) fn numbers(&self, which: usize, span: usize, seen: &Range<usize>) -> Range<usize> {
        let [positions, entries] = self.spans;
        if span < self.spans[which] {
            let number = which * positions + span;
            return number..number + 1;
        }
        let first = positions + entries + which * self.behind(0);
        let chunks = pieces(seen, CHUNK);
        let at = |chunk: usize| first + chunk - self.spans[which] * SPAN_CHUNKS;
        at(chunks.start)..at(chunks.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_even_where_few_workers_wait() {
        assert!(!is_even(16, 14), "twelve would wait for half of the time");
        assert!(!is_even(32, 14), "two thirds of the last turn are idle");
        assert!(is_even(40, 14));
        assert!(!is_even(14, 14), "one late worker keeps all waiting");
        assert!(is_even(232, 14) && is_even(4, 2));
    }

    #[test]
    fn few_items_are_dealt_out_in_pieces() {
        assert!(dealt(8, 1, [40, 0]).is_none(), "one worker");
        assert!(dealt(232, 14, [40, 0]).is_none(), "enough items");
        assert!(dealt(40, 14, [2, 0]).is_none(), "even, and few keys");
        assert!(dealt(16, 14, [1, 0]).is_none(), "nothing to cut");
        let pieces = dealt(16, 14, [33, 0]).unwrap();
        assert_eq!((pieces.spans, pieces.all()), ([3, 0], 3 + 9));
        let pieces = dealt(16, 14, [33, 20]).unwrap();
        assert_eq!((pieces.spans, pieces.all()), ([4, 1], 5 + 1 + 12));
    }

    #[test]
    fn every_chunk_of_every_item_is_dealt_out_once() {
        for (items, chunks) in [(16, [33, 0]), (5, [40, 9]), (3, [8, 70]), (7, [1, 1])] {
            let pieces = dealt(items, 14, chunks).unwrap();
            let mut seen = std::collections::BTreeSet::new();
            for ticket in 0..items * pieces.all() {
                let (item, number) = pieces.dealt(ticket, items);
                let Piece { which, keys } = pieces.piece(number);
                let all = keys.of(&(0..chunks[which] * CHUNK));
                let span = all.start / SPAN;
                assert!(pieces.numbers(which, span, &all).contains(&number));
                for chunk in super::pieces(&all, CHUNK) {
                    assert!(seen.insert((item, which, chunk)));
                }
            }
            assert_eq!(seen.len(), items * (chunks[0] + chunks[1]));
        }
    }

    #[test]
    fn pieces_are_cut_at_absolute_places() {
        assert_eq!(pieces(&(0..0), CHUNK), 0..0);
        assert_eq!(pieces(&(300..2049), CHUNK), 1..9);
        assert_eq!(pieces(&(300..2049), SPAN), 0..2);
        assert_eq!(within(&(300..2049), SPAN, 0), 300..2048);
        assert_eq!(within(&(300..2049), SPAN, 1), 2048..2049);
        assert!(within(&(300..600), CHUNK, 0).is_empty());
        assert!(within(&(300..600), CHUNK, 3).is_empty());
    }
}
