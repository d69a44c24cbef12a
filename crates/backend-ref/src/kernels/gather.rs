//! Table look-ups.

use tokkata_ir::step::ROW_EMBEDS;
use tokkata_ir::{BackendError, GatherIndex, WeightId};

use crate::args::Args;
use crate::real::Real;

/// One table row per row; rows flagged as embeddings copy the input instead.
pub(crate) fn gather<R: Real>(
    args: &Args<'_, R>,
    table: WeightId,
    index: GatherIndex,
) -> Result<Vec<R>, BackendError> {
    let (table, width) = (args.weight(table), args.out_width(0));
    let embeds = (!args.node.ins.is_empty()).then(|| args.mat(0));
    let mut out = Vec::new();
    for (i, row) in args.step_rows().into_iter().enumerate() {
        match embeds {
            Some(x) if args.step.flags(row) & ROW_EMBEDS != 0 => out.extend(x.row(i)),
            _ => {
                let found = row_of(table, width, entry(args, index, row))?;
                out.extend(found.iter().map(|&w| R::from(w)));
            }
        }
    }
    Ok(out)
}

/// A row of a table of so many columns.
pub(crate) fn row_of(table: &[f32], width: usize, entry: u32) -> Result<&[f32], BackendError> {
    let row = table.chunks_exact(width).nth(entry as usize);
    row.ok_or_else(|| BackendError::no_row("ref", entry, table.len() / width))
}

fn entry<R>(args: &Args<'_, R>, index: GatherIndex, row: usize) -> u32 {
    match index {
        GatherIndex::Token => args.step.tokens()[row],
        GatherIndex::Position { offset } => args.step.pos(row) + offset,
        GatherIndex::Fixed(entry) => entry,
    }
}
