//! Rotary positions and position scales. Angles are computed in f64, so that far positions keep their digits.

use tokkata_ir::{Pairing, RopeOp};

use crate::args::Args;
use crate::real::Real;

/// Rotates the pairs of every head of every row.
pub(crate) fn rope<R: Real>(args: &Args<'_, R>, op: &RopeOp) -> Vec<R> {
    let x = args.mat(0);
    let mut out = x.data.to_vec();
    let turns = |row: usize| turns(args, op, row);
    for (row, step_row) in out.chunks_exact_mut(x.width).zip(args.step_rows()) {
        let turns: Vec<(R, R)> = turns(step_row);
        for head in row.chunks_exact_mut(op.head_dim as usize) {
            rotate(
                &mut head[op.offset as usize..][..2 * turns.len()],
                op.pairing,
                &turns,
            );
        }
    }
    out
}

/// Cosine and sine of each pair at a row's position.
fn turns<R: Real>(args: &Args<'_, R>, op: &RopeOp, row: usize) -> Vec<(R, R)> {
    let positions = args.step.pos4(row).map(|p| p.saturating_sub(op.back));
    let channels = op.channels.map(|c| args.program.constant(c).u32s());
    let magnitude = f64::from(op.magnitude);
    let sign = if op.inverse { -1.0 } else { 1.0 };
    let turn = |(i, &freq): (usize, &f32)| {
        let channel = channels.map_or(0, |c| c[i] as usize);
        let angle = sign * f64::from(positions[channel]) * f64::from(freq);
        (
            R::of(angle.cos() * magnitude),
            R::of(angle.sin() * magnitude),
        )
    };
    args.floats(op.freqs).iter().enumerate().map(turn).collect()
}

fn rotate<R: Real>(x: &mut [R], pairing: Pairing, turns: &[(R, R)]) {
    for (i, &(cos, sin)) in turns.iter().enumerate() {
        let (a, b) = match pairing {
            Pairing::Adjacent => (2 * i, 2 * i + 1),
            Pairing::Halves => (i, i + turns.len()),
        };
        (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
    }
}

/// `x · (1 + coef · ln(floor((pos + offset) / length) + 1))`.
pub(crate) fn pos_scale<R: Real>(
    args: &Args<'_, R>,
    coef: f32,
    length: f32,
    offset: f32,
) -> Vec<R> {
    let x = args.mat(0);
    let factor = |row: usize| {
        let steps = (f64::from(args.step.pos(row)) + f64::from(offset)) / f64::from(length);
        R::of(1.0 + f64::from(coef) * (steps.floor() + 1.0).ln())
    };
    let rows = x.rows().zip(args.step_rows());
    rows.flat_map(|(x, row)| {
        let factor = factor(row);
        x.iter().map(move |&x| x * factor)
    })
    .collect()
}
