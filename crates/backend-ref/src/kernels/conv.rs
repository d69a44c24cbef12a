//! Depthwise convolution over time, and the previous row.

use tokkata_ir::SlotId;

use crate::args::Args;
use crate::cache::Caches;
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
    for (seq, rows) in args.sequences() {
        let own = &x.data[rows.start * x.width..rows.end * x.width];
        let tail = (taps.kernel - 1) * x.width;
        let before = (taps.kernel - 1) / 2 * x.width;
        let mut line = match slot {
            Some(slot) => caches.state(args.step, slot, seq),
            None => vec![R::ZERO; before],
        };
        line.extend(own);
        match slot {
            Some(slot) => {
                caches.set_state(args.step, slot, seq, &line[line.len() - tail..]);
            }
            None => line.resize(own.len() + tail, R::ZERO),
        }
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

/// The previous row of the sequence; the state is the last row.
pub(crate) fn shift<R: Real>(args: &Args<'_, R>, slot: SlotId, caches: &mut Caches<R>) -> Vec<R> {
    let x = args.mat(0);
    let mut out = Vec::with_capacity(x.data.len());
    for (seq, rows) in args.sequences() {
        let mut line = caches.state(args.step, slot, seq);
        line.extend(&x.data[rows.start * x.width..rows.end * x.width]);
        let (previous, last) = line.split_at(line.len() - x.width);
        out.extend(previous);
        caches.set_state(args.step, slot, seq, last);
    }
    out
}
