//! Table look-ups.

use tokkata_ir::step::ROW_EMBEDS;
use tokkata_ir::{GatherIndex, WeightId};

use crate::args::Args;
use crate::real::Real;

/// One table row per row; rows flagged as embeddings copy the input instead.
pub(crate) fn gather<R: Real>(args: &Args<'_, R>, table: WeightId, index: GatherIndex) -> Vec<R> {
    let (table, width) = (args.weight(table), args.out_width(0));
    let embeds = (!args.node.ins.is_empty()).then(|| args.mat(0));
    let mut out = Vec::new();
    for (i, row) in args.step_rows().into_iter().enumerate() {
        match embeds {
            Some(x) if args.step.flags(row) & ROW_EMBEDS != 0 => out.extend(x.row(i)),
            _ => {
                let entry = entry(args, index, row);
                out.extend(table[entry * width..][..width].iter().map(|&w| R::from(w)));
            }
        }
    }
    out
}

fn entry<R>(args: &Args<'_, R>, index: GatherIndex, row: usize) -> usize {
    let entry = match index {
        GatherIndex::Token => args.step.tokens()[row],
        GatherIndex::Position { offset } => args.step.pos(row) + offset,
        GatherIndex::Fixed(entry) => entry,
    };
    entry as usize
}
