//! Convolutions over time, and the previous row.

use tokkata_ir::{Conv1dOp, SlotId};

use crate::args::Args;
use crate::cache::Caches;
use crate::kernels::matmul::Linear;
use crate::real::Real;

/// Taps of every channel, oldest first.
pub(crate) struct Taps<'a> {
    /// `[C, kernel]`.
    pub(crate) weight: &'a [f32],
    /// `[C]`.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) kernel: usize,
}

/// Convolves each sequence. The state is the last `kernel − 1` rows, oldest first: `[kernel − 1, C]`.
/// Without a slot the taps are centred and rows outside the sequence's are zeros.
pub(crate) fn conv<R: Real>(
    args: &Args<'_, R>,
    taps: &Taps<'_>,
    slot: Option<SlotId>,
    caches: &mut Caches<R>,
) -> Vec<R> {
    let x = args.mat(0);
    let mut out = Vec::with_capacity(x.data.len());
    let tail = (taps.kernel - 1) * x.width;
    if let Some(slot) = slot {
        caches.carry(args.step, slot, |rows, line| {
            line.extend(&x.data[rows.start * x.width..rows.end * x.width]);
            convolve(taps, x.width, line, &mut out);
            line.drain(..line.len() - tail);
        });
        return out;
    }
    for (_, rows) in args.sequences() {
        let own = &x.data[rows.start * x.width..rows.end * x.width];
        let mut line = vec![R::ZERO; (taps.kernel - 1) / 2 * x.width];
        line.extend(own);
        line.resize(own.len() + tail, R::ZERO);
        convolve(taps, x.width, &line, &mut out);
    }
    out
}

/// Every window of `kernel` rows of `line` gives a row.
fn convolve<R: Real>(taps: &Taps<'_>, width: usize, line: &[R], out: &mut Vec<R>) {
    let rows = line.len() / width + 1 - taps.kernel;
    for row in 0..rows {
        for c in 0..width {
            let mut sum = taps.bias.map_or(R::ZERO, |b| R::from(b[c]));
            for tap in 0..taps.kernel {
                let w = R::from(taps.weight[c * taps.kernel + tap]);
                sum += w * line[(row + tap) * width + c];
            }
            out.push(sum);
        }
    }
}

/// Dense convolution of the frames of each sequence, zeros around them.
pub(crate) fn conv1d<R: Real>(args: &Args<'_, R>, op: &Conv1dOp) -> Vec<R> {
    let x = args.mat(0);
    let channels = x.width / op.frames as usize;
    let linear = Linear {
        weight: args.weight(op.weight),
        scale: None,
        bias: args.maybe(op.bias),
    };
    let mut out = Vec::new();
    for (_, rows) in args.sequences() {
        let (window, stride) = (op.kernel as usize * channels, op.stride as usize * channels);
        let own = &x.data[rows.start * x.width..rows.end * x.width];
        let before = vec![R::ZERO; op.padding as usize * channels];
        let line = [&before, own, &vec![R::ZERO; window]].concat();
        for first in (0..own.len()).step_by(stride) {
            linear.apply(&line[first..][..window], &mut out);
        }
    }
    out
}

/// The previous row of the sequence; the state is the last row.
pub(crate) fn shift<R: Real>(args: &Args<'_, R>, slot: SlotId, caches: &mut Caches<R>) -> Vec<R> {
    let x = args.mat(0);
    let mut out = Vec::with_capacity(x.data.len());
    caches.carry(args.step, slot, |rows, line| {
        line.extend(&x.data[rows.start * x.width..rows.end * x.width]);
        let last = line.split_off(line.len() - x.width);
        out.extend(&*line);
        *line = last;
    });
    out
}
