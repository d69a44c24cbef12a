//! Summaries of runs of positions.

use tokkata_ir::CompressOp;

use crate::args::Args;
use crate::cache::Caches;
use crate::kernels::attention::cache_write;
use crate::kernels::norm::softmax_run;
use crate::real::Real;

/// One position of a run, or of the run before it: its place in the caches and where its columns start.
struct Part {
    place: usize,
    first: usize,
    slot: usize,
}

/// A summary in every row that ends a run, zeros in the others.
pub(crate) fn compress<R: Real>(
    args: &Args<'_, R>,
    op: &CompressOp,
    caches: &mut Caches<R>,
) -> Vec<R> {
    cache_write(args, op.slot, caches);
    let width = args.out_width(0);
    let mut out = Vec::with_capacity(args.step.n_rows() * width);
    for (seq, rows) in args.sequences() {
        let past = args.step.past_len(seq);
        for pos in (past..).take(rows.len()) {
            if (pos + 1).is_multiple_of(op.ratio as usize) {
                let parts = parts(args, op, caches, (seq, pos));
                out.extend((0..width).map(|column| summary(args, op, caches, &parts, column)));
            } else {
                out.extend(std::iter::repeat_n(R::ZERO, width));
            }
        }
    }
    out
}

/// The positions that the run ending at `pos` is made of.
fn parts<R: Real>(
    args: &Args<'_, R>,
    op: &CompressOp,
    caches: &Caches<R>,
    (seq, pos): (usize, usize),
) -> Vec<Part> {
    let (ratio, width) = (op.ratio as usize, args.out_width(0));
    let runs = if op.overlap { 2 } else { 1 };
    let part = |q: usize| Part {
        place: (caches.place(args.step, op.slot.group, seq, q)).expect("a run lies in its window"),
        first: if op.overlap && q + ratio > pos {
            width
        } else {
            0
        },
        slot: q % ratio,
    };
    let first = (pos + 1).saturating_sub(runs * ratio);
    (first..=pos).map(part).collect()
}

fn summary<R: Real>(
    args: &Args<'_, R>,
    op: &CompressOp,
    caches: &Caches<R>,
    parts: &[Part],
    column: usize,
) -> R {
    let (ape, wide) = (args.weight(op.ape), args.width(0));
    let score = |p: &Part| {
        let at = p.first + column;
        caches.values(op.slot, p.place)[at] + R::from(ape[p.slot * wide + at])
    };
    let mut weights: Vec<R> = parts.iter().map(score).collect();
    softmax_run(&mut weights);
    let values = parts
        .iter()
        .map(|p| caches.keys(op.slot, p.place)[p.first + column]);
    values.zip(weights).fold(R::ZERO, |sum, (x, w)| sum + w * x)
}
