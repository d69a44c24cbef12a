//! Which units of positions attention reads: scores of an indexer's keys and the largest of them.

use tokkata_ir::SelectOp;

use crate::args::Args;
use crate::cache::Caches;
use crate::real::{Real, dot};

/// Numbers of the chosen units of every row, ascending in each choice, −1 behind the last.
pub(crate) fn select<R: Real>(args: &Args<'_, R>, op: &SelectOp, caches: &Caches<R>) -> Vec<i32> {
    let mut out = Vec::with_capacity(args.step.n_rows() * args.out_width(0));
    let per_entry = caches.entry_positions(op.slot.group);
    for (seq, rows) in args.sequences() {
        let past = args.step.past_len(seq);
        for (i, row) in rows.enumerate() {
            let seen = (past + i + 1) / per_entry;
            let key = |entry: usize| {
                let place = caches.place(args.step, op.slot.group, seq, entry * per_entry);
                caches.keys(op.slot, place.expect("a visible entry has a block"))
            };
            for choice in 0..op.choices() as usize {
                let scores: Vec<R> = (0..seen)
                    .map(|e| score(args, op, row, choice, key(e)))
                    .collect();
                choose(op, &scores, &mut out);
            }
        }
    }
    out
}

/// Score of one key for one choice of a row.
fn score<R: Real>(args: &Args<'_, R>, op: &SelectOp, row: usize, choice: usize, key: &[R]) -> R {
    let q = args.mat(0).row(row);
    let scale = R::from(op.scale);
    let head = |h: usize| dot(&q[h * key.len()..][..key.len()], key) * scale;
    if !op.summed {
        return head(choice);
    }
    let weights = args.mat(1).row(row).iter().enumerate();
    weights.fold(R::ZERO, |sum, (h, &w)| sum + w * head(h).max(R::ZERO))
}

/// Appends the chosen units of one choice, by the scores of the visible entries.
fn choose<R: Real>(op: &SelectOp, scores: &[R], out: &mut Vec<i32>) {
    let largest = |unit: &[R]| unit.iter().fold(-R::INFINITY, |m, &s| m.max(s));
    let units: Vec<R> = scores.chunks(op.unit as usize).map(largest).collect();
    let local = units.len().saturating_sub(op.local as usize);
    let rank = |u: usize| if u >= local { R::INFINITY } else { units[u] };
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by(|&a, &b| {
        let (x, y) = (rank(a).wide(), rank(b).wide());
        y.total_cmp(&x).then(a.cmp(&b))
    });
    order.truncate(op.top_k as usize);
    order.sort_unstable();
    let none = op.top_k as usize - order.len();
    out.extend(order.iter().map(|&u| u as i32));
    out.extend(std::iter::repeat_n(-1, none));
}
