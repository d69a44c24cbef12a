//! Ops that move columns of a row: slice, join, repeat.

use crate::args::Args;
use crate::real::Real;

/// `start..start + len` of each run of `group` columns.
pub(crate) fn slice<R: Real>(data: &[R], group: u32, start: u32, len: u32) -> Vec<R> {
    let runs = data.chunks_exact(group as usize);
    runs.flat_map(|run| &run[start as usize..][..len as usize])
        .copied()
        .collect()
}

/// Copies of each run, neighbours together; a tiled repeat is one whose run is the row.
pub(crate) fn repeat<R: Real>(data: &[R], width: usize, times: u32) -> Vec<R> {
    let mut out = Vec::with_capacity(data.len() * times as usize);
    for run in data.chunks_exact(width) {
        (0..times).for_each(|_| out.extend(run));
    }
    out
}

/// Joins inputs run by run.
pub(crate) fn concat<R: Real>(args: &Args<'_, R>, groups: u32) -> Vec<R> {
    let mats: Vec<_> = (0..args.node.ins.len()).map(|i| args.mat(i)).collect();
    let shapes: Vec<&[u32]> = args
        .node
        .ins
        .iter()
        .map(|&v| &*args.plan.value(v).shape.dims)
        .collect();
    let split =
        split_inputs(&shapes, groups, args.out_width(0)).expect("joined widths fit the output");
    let groups = groups as usize;
    let rows = mats.first().map_or(0, |m| m.rows().len());
    let mut out = Vec::with_capacity(rows * args.out_width(0));
    for row in 0..rows {
        for g in 0..groups {
            for (mat, &split) in mats.iter().zip(&split) {
                let x = mat.row(row);
                let run = mat.width / groups;
                out.extend(if split { &x[g * run..][..run] } else { x });
            }
        }
    }
    out
}

/// Which inputs have a run per group (the others repeat). Widths decide; where they fit more than one way, an
/// input whose first dimension is the number of groups is split, and the first input rather than the later.
/// `None` where they do not fit.
pub(crate) fn split_inputs(shapes: &[&[u32]], groups: u32, out_width: usize) -> Option<Vec<bool>> {
    let widths: Vec<usize> = shapes
        .iter()
        .map(|s| s.iter().map(|&d| d as usize).product())
        .collect();
    let per_group = out_width / groups as usize;
    let fits = |mask: &u32| {
        let run = |(i, &w): (usize, &usize)| match mask >> i & 1 {
            1 if w.is_multiple_of(groups as usize) => Some(w / groups as usize),
            1 => None,
            _ => Some(w),
        };
        widths.iter().enumerate().map(run).sum::<Option<usize>>() == Some(per_group)
    };
    let named: u32 = (0..shapes.len())
        .filter(|&i| shapes[i].len() > 1 && shapes[i][0] == groups)
        .map(|i| 1 << i)
        .sum();
    let candidates = (0..1u32 << shapes.len()).filter(fits);
    let rank = |mask: &u32| ((mask ^ named).count_ones(), mask.trailing_zeros());
    let mask = candidates.min_by_key(rank)?;
    Some((0..shapes.len()).map(|i| mask >> i & 1 == 1).collect())
}
