//! What adapters add.

use tokkata_ir::adapter::matrices;
use tokkata_ir::step::ROW_EMBEDS;
use tokkata_ir::{AdaptForm, LowRank, WeightId};

use crate::args::Args;
use crate::real::{Real, dot};

/// Rows of a value, with what the adapter of each adds to it.
pub(crate) fn adapt<R: Real>(args: &Args<'_, R>, weight: WeightId, form: AdaptForm) -> Vec<R> {
    let y = args.mat(args.node.ins.len().min(2) - 1);
    let mut out = y.data.to_vec();
    let rows = args.step_rows().into_iter().zip(out.chunks_mut(y.width));
    for (i, (row, out)) in rows.enumerate() {
        let adapter = args.adapters.get(args.step.adapter(row));
        if let Some(pair) = adapter.and_then(|a| a.pair(weight)) {
            match form {
                AdaptForm::Tokens => token(args, pair, row, out),
                _ => products(args, pair, (form, i), out),
            }
        }
    }
    out
}

/// Row `row` of the table's addition.
fn token<R: Real>(args: &Args<'_, R>, pair: &LowRank, row: usize, out: &mut [R]) {
    if args.step.flags(row) & ROW_EMBEDS != 0 {
        return;
    }
    let (rank, cols) = (pair.rank as usize, out.len());
    let b = &pair.b[args.step.tokens()[row] as usize * rank..][..rank];
    for (&b, a) in b.iter().zip(pair.a.chunks_exact(cols)) {
        for (out, &a) in out.iter_mut().zip(a) {
            *out += R::from(b) * R::from(a);
        }
    }
}

/// `b · (a · x)` of every part of row `i`, each with its matrices.
fn products<R: Real>(
    args: &Args<'_, R>,
    pair: &LowRank,
    (form, i): (AdaptForm, usize),
    out: &mut [R],
) {
    let (_, rows, cols) = matrices(form, &args.program.weights[pair.weight.index()].shape);
    let rank = pair.rank as usize;
    let x = args.mat(0).row(i);
    let parts = out.len() / rows;
    for (part, out) in out.chunks_exact_mut(rows).enumerate() {
        let matrix = match form {
            AdaptForm::Heads => part,
            AdaptForm::Experts => args.ints(2)[i * parts + part] as usize,
            AdaptForm::Product | AdaptForm::Tokens => 0,
        };
        let x = if x.len() == cols {
            x
        } else {
            &x[part * cols..][..cols]
        };
        let a = &pair.a[matrix * rank * cols..][..rank * cols];
        let b = &pair.b[matrix * rows * rank..][..rows * rank];
        let low: Vec<R> = a.chunks_exact(cols).map(|a| dot(x, a)).collect();
        for (out, b) in out.iter_mut().zip(b.chunks_exact(rank)) {
            *out += dot(&low, b);
        }
    }
}
