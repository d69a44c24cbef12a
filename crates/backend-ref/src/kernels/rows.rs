//! Ops that choose or join rows, and the draw of a token.

use tokkata_ir::PoolKind;
use tokkata_ir::sample::{BadLogits, SampleSide, Scratch, sample as draw};

use crate::args::Args;
use crate::real::Real;

/// The rows whose logits the step wants.
pub(crate) fn select_rows<R: Real>(args: &Args<'_, R>) -> Vec<R> {
    let x = args.mat(0);
    let rows = args.step.logit_rows().iter();
    rows.flat_map(|&row| x.row(row as usize)).copied().collect()
}

/// One vector per sequence; zeros for a sequence without rows.
pub(crate) fn pool<R: Real>(args: &Args<'_, R>, kind: PoolKind) -> Vec<R> {
    let x = args.mat(0);
    let mut out = Vec::new();
    for (_, rows) in args.sequences() {
        let picked = match kind {
            _ if rows.is_empty() => vec![R::ZERO; x.width],
            PoolKind::First => x.row(rows.start).to_vec(),
            PoolKind::Last => x.row(rows.end - 1).to_vec(),
            PoolKind::Mean => {
                let count = R::of(rows.len() as f64);
                let sum = |column| rows.clone().fold(R::ZERO, |s, r| s + x.row(r)[column]);
                (0..x.width).map(|column| sum(column) / count).collect()
            }
        };
        out.extend(picked);
    }
    out
}

/// A token per logit row, drawn from the logits as `f32`, or why there is none.
pub(crate) fn sample<R: Real>(args: &Args<'_, R>) -> Vec<i32> {
    let (none, mut scratch) = (SampleSide::default(), Scratch::default());
    let rows = args.mat(0).rows().zip(args.step.logit_rows()).enumerate();
    rows.map(|(i, (x, &row))| {
        let seq = args.step.seqs()[row as usize] as usize;
        let side = args.inputs.sample.get(i).unwrap_or(&none);
        let logits: Vec<f32> = x.iter().map(|x| x.narrow()).collect();
        let row = side.row(&logits, args.step.index_in_sequence(row as usize) as u32);
        let token = draw(&args.step.sampler(seq), &row, &mut scratch);
        token.map_or_else(BadLogits::code, |t| t as i32)
    })
    .collect()
}
