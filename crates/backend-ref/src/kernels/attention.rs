//! Cache writes and softmax attention. Keys are visited in the order of their positions, whatever their blocks.

use tokkata_ir::op::BucketBias;
use tokkata_ir::{AttentionOp, KvSource, Mask, SlotId};

use crate::args::Args;
use crate::cache::Caches;
use crate::real::{Real, dot};

/// Stores k (and v) of every row at its place: of rows that share an entry the last one's stay. A row whose block is gone
/// is not stored.
pub(crate) fn cache_write<R: Real>(args: &Args<'_, R>, slot: SlotId, caches: &mut Caches<R>) {
    for (seq, rows) in args.sequences() {
        let past = args.step.past_len(seq);
        for (i, row) in rows.enumerate() {
            let Some(place) = caches.place(args.step, slot.group, seq, past + i) else {
                continue;
            };
            for plane in 0..args.node.ins.len() {
                caches.store(slot, plane, place, args.mat(plane).row(row));
            }
        }
    }
}

/// Where the keys and values of one sequence are found.
struct Keys<'a, R> {
    args: &'a Args<'a, R>,
    caches: &'a Caches<R>,
    op: &'a AttentionOp,
    seq: usize,
    first_row: usize,
}

/// A key that is seen.
#[derive(Clone, Copy)]
enum Seen {
    /// That of a position.
    Position(usize),
    /// That of an entry, by its first position.
    Entry(usize),
}

impl<R: Real> Keys<'_, R> {
    /// Positions that exist.
    fn range(&self) -> std::ops::Range<usize> {
        let step = self.args.step;
        let past = step.past_len(self.seq);
        match self.op.source {
            KvSource::Cache(_) => 0..past + step.row_count(self.seq),
            KvSource::Rows => past..past + step.row_count(self.seq),
            KvSource::Cross(_) => 0..step.enc_len(self.seq),
        }
    }

    /// The visible keys that each choice of a row reads.
    fn read(&self, row: usize, pos: usize) -> Vec<Vec<Seen>> {
        let positions: Vec<usize> = self
            .range()
            .filter(|&k| sees(self.op.mask, pos, k))
            .collect();
        let entry = self
            .op
            .entries
            .map(|slot| self.caches.entry_positions(slot.group));
        let whole = entry.map_or(0, |n| (pos + 1) / n);
        let entries: Vec<usize> = (0..whole).collect();
        let choose = |reads: &dyn Fn(usize) -> bool| {
            let (of_positions, of_entries) = (entry.is_none(), entry.is_some());
            let positions = positions.iter().filter(|&&k| !of_positions || reads(k));
            let entries = entries.iter().filter(|&&e| !of_entries || reads(e));
            let places = entries.map(|&e| Seen::Entry(e * entry.unwrap_or(1)));
            positions
                .map(|&k| Seen::Position(k))
                .chain(places)
                .collect()
        };
        let Some(selection) = self.op.selection else {
            return vec![choose(&|_| true)];
        };
        let ids = self.args.node.ins.len() - 1;
        let width = self.args.width(ids);
        let chosen = &self.args.ints(ids)[row * width..][..width];
        let unit = selection.unit as usize;
        let tail = if selection.tail {
            (pos + 1) / unit * unit
        } else {
            usize::MAX
        };
        let choices = chosen.chunks_exact(width / selection.choices as usize);
        choices
            .map(|ids| {
                let ids = &ids[..ids.iter().take_while(|&&id| id >= 0).count()];
                choose(&|k| k >= tail || ids.binary_search(&((k / unit) as i32)).is_ok())
            })
            .collect()
    }

    /// Key row and value row.
    fn at(&self, seen: Seen) -> (&[R], &[R]) {
        let pos = match (seen, self.op.entries) {
            (Seen::Entry(pos), Some(slot)) => {
                let place = self.caches.place(self.args.step, slot.group, self.seq, pos);
                let key = self
                    .caches
                    .keys(slot, place.expect("a whole entry has a block"));
                return (key, key);
            }
            (Seen::Position(pos) | Seen::Entry(pos), _) => pos,
        };
        match self.op.source {
            KvSource::Cache(slot) | KvSource::Cross(slot) => {
                let place = self.caches.place(self.args.step, slot.group, self.seq, pos);
                let place = place.expect("a visible position has a block");
                (
                    self.caches.keys(slot, place),
                    self.caches.values(slot, place),
                )
            }
            KvSource::Rows => {
                let row = self.first_row + pos - self.args.step.past_len(self.seq);
                let values = self.rows_of_keys();
                (self.args.mat(1).row(row), self.args.mat(values).row(row))
            }
        }
    }
}

/// Attention of every row over the visible positions of its sequence.
pub(crate) fn attention<R: Real>(
    args: &Args<'_, R>,
    op: &AttentionOp,
    caches: &Caches<R>,
) -> Vec<R> {
    let q = args.mat(0);
    let mut out = Vec::with_capacity(q.rows().len() * args.out_width(0));
    for (seq, rows) in args.sequences() {
        let past = args.step.past_len(seq);
        let keys = Keys {
            args,
            caches,
            op,
            seq,
            first_row: rows.start,
        };
        for (i, row) in rows.enumerate() {
            let pos = past + i;
            let read = keys.read(row, pos);
            let per_choice = op.n_heads as usize / read.len();
            for (head, query) in q.row(row).chunks_exact(op.dim_k as usize).enumerate() {
                attend(
                    &Query {
                        op,
                        keys: &keys,
                        head,
                        pos,
                        query,
                    },
                    &read[head / per_choice],
                    &mut out,
                );
            }
        }
    }
    out
}

/// Whether a row at position `row` sees the key at position `key`.
fn sees(mask: Mask, row: usize, key: usize) -> bool {
    match mask {
        Mask::Full => true,
        Mask::Causal => key <= row,
        Mask::Window(w) => key <= row && row - key < w as usize,
        Mask::Chunk(c) => key <= row && key >= row / c as usize * c as usize,
        Mask::Symmetric(w) => row.abs_diff(key) <= w as usize / 2,
    }
}

/// One head of one row.
struct Query<'a, R> {
    op: &'a AttentionOp,
    keys: &'a Keys<'a, R>,
    head: usize,
    pos: usize,
    query: &'a [R],
}

/// Appends `Σ softmax(score) · value` over the visible positions.
fn attend<R: Real>(q: &Query<'_, R>, visible: &[Seen], out: &mut Vec<R>) {
    let (dim_k, dim_v) = (q.op.dim_k as usize, q.op.dim_v as usize);
    let kv_head = q.head / (q.op.n_heads / q.op.n_kv_heads) as usize;
    // With keys only, a value head lies where its key head does.
    let stride_v = q.keys.value_stride(dim_k, dim_v);
    let scores: Vec<R> = visible.iter().map(|&pos| q.score(pos, kv_head)).collect();
    let sink = q.op.sinks.map(|w| R::from(q.keys.args.weight(w)[q.head]));
    let largest = scores
        .iter()
        .fold(sink.unwrap_or(-R::INFINITY), |m, &s| m.max(s));
    let mut sum = sink.map_or(R::ZERO, |s| (s - largest).exp());
    let mut mix = vec![R::ZERO; dim_v];
    for (&pos, &score) in visible.iter().zip(&scores) {
        let weight = (score - largest).exp();
        sum += weight;
        let value = &q.keys.at(pos).1[kv_head * stride_v..][..dim_v];
        mix.iter_mut()
            .zip(value)
            .for_each(|(m, &v)| *m += weight * v);
    }
    // A row that sees nothing attends to nothing.
    let inverse = if sum == R::ZERO {
        R::ZERO
    } else {
        R::ONE / sum
    };
    out.extend(mix.iter().map(|&m| m * inverse));
}

impl<R: Real> Keys<'_, R> {
    /// The input that holds the values of the step's own rows: the keys where there are no others.
    fn rows_of_keys(&self) -> usize {
        self.args.node.ins.len() - 1 - usize::from(self.op.selection.is_some())
    }

    fn value_stride(&self, dim_k: usize, dim_v: usize) -> usize {
        let keys_only = match self.op.source {
            KvSource::Cache(slot) | KvSource::Cross(slot) => self.caches.keys_only(slot),
            KvSource::Rows => self.rows_of_keys() == 1,
        };
        if keys_only { dim_k } else { dim_v }
    }
}

impl<R: Real> Query<'_, R> {
    fn score(&self, seen: Seen, kv_head: usize) -> R {
        let dim_k = self.op.dim_k as usize;
        let (Seen::Position(pos) | Seen::Entry(pos)) = seen;
        let key = &self.keys.at(seen).0[kv_head * dim_k..][..dim_k];
        let mut score = dot(self.query, key) * R::from(self.op.scale);
        if let Some(cap) = self.op.cap.map(R::from) {
            score = cap * (score / cap).tanh();
        }
        if let Some(slopes) = self.op.alibi {
            let distance = R::of(self.pos.abs_diff(pos) as f64);
            score = score - R::from(self.keys.args.floats(slopes)[self.head]) * distance;
        }
        if let Some(bias) = self.op.bucket {
            let bucket = bucket(&bias, self.pos, pos);
            let at = bucket * self.op.n_heads as usize + self.head;
            score += R::from(self.keys.args.weight(bias.table)[at]);
        }
        score
    }
}

/// T5's bucket of a distance: exact for near keys, then logarithmic up to the farthest (Raffel et al., 2019).
/// In f32, as every implementation has it: bucket borders depend on the rounding.
fn bucket(bias: &BucketBias, row: usize, key: usize) -> usize {
    let ahead = bias.bidirectional && key > row;
    let buckets = if bias.bidirectional {
        bias.buckets as usize / 2
    } else {
        bias.buckets as usize
    };
    let distance = if bias.bidirectional {
        row.abs_diff(key)
    } else {
        row.saturating_sub(key)
    };
    let exact = buckets / 2;
    let near = if distance < exact {
        distance
    } else {
        let ratio = (distance as f32 / exact as f32).ln();
        let range = (f64::from(bias.max_distance) / exact as f64).ln();
        let far = f64::from(ratio * (buckets - exact) as f32) / range;
        (exact as f64 + far).floor().min((buckets - 1) as f64) as usize
    };
    near + if ahead { buckets } else { 0 }
}
