//! Rows of prompts in parts of sixteen bits, as the kernels of `gemm16.cu` take them, or in halves for those of `gemm90.cu`, and who
//! makes them.
//!
//! On 9.0 every 64 columns of a row have a power of two of their own. So what comes right before a product and is read by it alone
//! cuts its outputs itself: a norm, attention, or a product with the function behind it.

use tokkata_core::DType;
use tokkata_ir::{BackendError, Conv1dOp, Lead, Node, Op, ValueId};

use super::Lowering;
use super::products::NormOf;
use super::tiles::is_sixteen;
use crate::launch::{Extent, RowKind};
use crate::layout::{halves_bytes, units_at};
use crate::params::Params;
use crate::select::Item;

/// Rows and columns of which parts are filled up to multiples on 9.0.
const ROWS: u64 = 128;
const COLUMNS: u64 = 64;

/// Most threads of a row that is cut, four columns each; of one that is normalised first, eight each.
const THREADS: u32 = 512;
const NORM_THREADS: u32 = 1024;

/// Rows in parts of sixteen bits: `Cut` of `cut.cuh`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) parts: u64,
    pub(super) units: u64,
    /// Numbers from one part to the next.
    pub(super) apart: u64,
    /// Whether they are halves alone, for `gemm90.cu`.
    pub(super) halved: bool,
    width: u32,
    format: DType,
    /// In which of two work spaces they lie.
    second: bool,
}

impl Cut {
    pub(super) fn width(&self) -> u32 {
        self.width
    }

    /// Threads and blocks that cut a row on 9.0.
    fn threads(&self) -> (u32, u32) {
        let all = self.width.div_ceil(64) * 16;
        let threads = all.next_multiple_of(32).min(THREADS);
        (threads, all.div_ceil(threads))
    }

    /// As kernels see it, which cut `x`.
    pub(super) fn params(&self, x: u64, params: Params) -> Params {
        let params = params.u64s(&[x, self.parts, self.units, self.apart]);
        params.u32s(&[self.width, self.format.ggml()])
    }
}

/// What happens to a product's outputs of prompts' rows in its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ending {
    /// A function of each, as `activate.cuh` numbers them.
    function: u32,
    /// Where they go: parts, units and how far it is to the next ones; as floats without one.
    places: Option<[u64; 3]>,
    /// Whether they are heads for attention.
    heads: bool,
}

impl Ending {
    /// `Ending` of `gemm16.cu`.
    pub(super) fn params(&self, params: Params) -> Params {
        let params = params.u64s(&self.places.unwrap_or_default());
        params.u32s(&[self.function, self.heads.into()])
    }
}

/// Heads of queries, keys and values in halves, as attention on 9.0 takes them: parts, units, and rows that there is room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadSpace {
    pub(super) parts: u64,
    pub(super) units: u64,
    rows: u64,
}

impl Lowering<'_, '_> {
    /// Space for the rows of a value in parts; whoever reads other rows in parts meanwhile takes the space that those are not in.
    fn space_of_cut(
        &mut self,
        x: ValueId,
        format: DType,
        second: bool,
    ) -> Result<Cut, BackendError> {
        self.cut_space((self.lead(x), self.width(x)), format, second)
    }

    /// Space for rows of a lead of so many columns in parts.
    fn cut_space(
        &mut self,
        (lead, width): (Lead, u32),
        format: DType,
        second: bool,
    ) -> Result<Cut, BackendError> {
        let parts = if format == DType::F16 { 2 } else { 3 };
        let rows = u64::from(self.most(lead));
        let columns = u64::from(width).next_multiple_of(COLUMNS);
        let whole_rows = rows.next_multiple_of(ROWS);
        let (apart, units) = (whole_rows * columns, whole_rows * columns / COLUMNS);
        let at = self.space((second, parts * apart * 2 + units * 4))?;
        Ok(Cut {
            parts: at,
            units: at + parts * apart * 2,
            apart,
            halved: false,
            width,
            format,
            second,
        })
    }

    /// Space for rows of a value in halves.
    fn space_of_halves(&mut self, x: ValueId, format: DType) -> Result<Cut, BackendError> {
        let (rows, width) = (self.most(self.lead(x)), self.width(x));
        let parts = self.space((false, halves_bytes(rows.into(), width.into())))?;
        Ok(Cut {
            parts,
            units: parts + units_at(rows.into(), width.into()),
            apart: 0,
            halved: true,
            width,
            format,
            second: false,
        })
    }

    /// Prompts' rows of a value for a product: as whoever made it left them, or by a launch of their own.
    pub(super) fn cut_rows(&mut self, x: ValueId, format: DType) -> Result<Cut, BackendError> {
        if let Some(cut) = self.cuts.remove(&x) {
            return Ok(cut);
        }
        if self.is_halved(format, self.width(x)) {
            let cut = self.space_of_halves(x, format)?;
            let own = self.norm_of(None, x);
            self.halve_rows((x, [cut.parts, cut.units]), (&own, 0))?;
            return Ok(cut);
        }
        let cut = self.space_of_cut(x, format, false)?;
        let (threads, blocks) = match self.ground.kernels.has_words() {
            true => cut.threads(),
            false => (256, 1),
        };
        let params = cut.params(self.at(x), self.step());
        let grid = [Extent::rows(Lead::Rows), Extent::fixed(blocks), Extent::ONE];
        self.kind = Some(RowKind::Prompt);
        self.launch_early(("gemm16", "cut_rows"), grid, (threads, 0), &params)?;
        self.kind = None;
        Ok(cut)
    }

    /// What a convolution makes one of the frames of prompts' rows of, cut for a product.
    pub(super) fn cut_frames(
        &mut self,
        x: ValueId,
        op: &Conv1dOp,
        own: u32,
    ) -> Result<Cut, BackendError> {
        let channels = self.width(x) / op.frames;
        let cut = self.cut_space((Lead::Rows, op.kernel * channels), DType::F16, false)?;
        let params = cut.params(self.at(x), self.step());
        let params = params.u32s(&[channels, op.frames, op.stride, op.padding, own]);
        let (threads, blocks) = cut.threads();
        let grid = [Extent::rows(Lead::Rows), Extent::fixed(blocks), Extent::ONE];
        self.launch_early(("gemm16", "cut_frames"), grid, (threads, 0), &params)?;
        Ok(cut)
    }

    /// The value that an item ahead multiplies by weights of sixteen bits, and their format, where it takes prompts' rows in parts
    /// or in halves from whoever makes them.
    fn taken(&self, ahead: usize) -> Option<(ValueId, DType)> {
        let (x, formats) = self.prompt_formats(self.ahead.get(ahead)?)?;
        let format = *formats.first()?;
        (self.ground.kernels.has_words() && is_sixteen(format)).then_some((x, format))
    }

    /// The same, in parts.
    fn taken_in_parts(&self, ahead: usize) -> Option<(ValueId, DType)> {
        let taken = self.taken(ahead);
        taken.filter(|&(x, format)| !self.is_halved(format, self.width(x)))
    }

    /// Whether an item ahead is all that reads a value.
    fn only_for(&self, x: ValueId, ahead: usize) -> bool {
        let Some(Item::Products { nodes, .. }) = self.ahead.get(ahead) else {
            return false;
        };
        let reads = |n: &usize| self.plan.nodes[*n].ins.contains(&x);
        let others = (0..self.plan.nodes.len()).filter(|n| !nodes.contains(n));
        !others.into_iter().any(|n| reads(&n)) && !self.is_output(x)
    }

    fn is_output(&self, x: ValueId) -> bool {
        self.plan.outputs.iter().any(|p| p.value == x)
    }

    /// Where the next item alone reads this value, and prompts' rows in parts of this format: space for those.
    pub(super) fn cut_for_next(
        &mut self,
        x: ValueId,
        format: DType,
    ) -> Result<Option<Cut>, BackendError> {
        match self.taken_in_parts(0) {
            Some(taken) if taken == (x, format) && self.only_for(x, 0) => {
                let cut = self.space_of_cut(x, format, false)?;
                self.cuts.insert(x, cut);
                Ok(Some(cut))
            }
            _ => Ok(None),
        }
    }

    /// Normalises prompts' rows for the products that come next, where these take parts or halves. Rows of others are left to another
    /// launch.
    pub(super) fn norm_in_parts(
        &mut self,
        out: ValueId,
        own: &NormOf,
    ) -> Result<bool, BackendError> {
        let threads = (self.width(out).div_ceil(128) * 16).next_multiple_of(32);
        let taken = self.taken(0).filter(|taken| taken.0 == out);
        let Some((_, format)) = taken else {
            return Ok(false);
        };
        let y = if self.only_for(out, 0) {
            0
        } else {
            self.at(out)
        };
        if self.is_halved(format, self.width(out)) {
            let cut = self.space_of_halves(out, format)?;
            self.halve_rows((out, [cut.parts, cut.units]), (own, y))?;
            self.cuts.insert(out, cut);
            return Ok(true);
        }
        if threads > NORM_THREADS {
            return Ok(false);
        }
        let cut = self.space_of_cut(out, format, false)?;
        let params = cut.params(0, self.step()).u32(own.kind).f32(own.eps);
        let params = params.u64s(&[self.maybe(own.weight), self.maybe(own.bias)]);
        let params = params.u64s(&[self.at(own.from), y]);
        let grid = [Extent::rows(Lead::Rows), Extent::ONE, Extent::ONE];
        self.kind = Some(RowKind::Prompt);
        self.launch_early(("gemm16", "cut_norm"), grid, (threads, 0), &params)?;
        self.kind = None;
        self.cuts.insert(out, cut);
        Ok(true)
    }

    /// Space for the heads of queries, keys and values that have so many columns together.
    pub(super) fn space_of_heads(
        &mut self,
        columns: u64,
        second: bool,
    ) -> Result<HeadSpace, BackendError> {
        let rows = u64::from(self.most(Lead::Rows)).next_multiple_of(ROWS);
        let parts = self.space((second, rows * (columns * 4 + columns / COLUMNS * 4)))?;
        Ok(HeadSpace {
            parts,
            units: parts + rows * columns * 4,
            rows,
        })
    }

    /// What a product of these outputs does in its end, whose own rows are `cut`: a function and then a product that alone read its
    /// output leave the function and the cutting to it, attention the cutting of heads.
    pub(super) fn ending(&mut self, outs: &[ValueId], cut: &Cut) -> Result<Ending, BackendError> {
        if cut.halved {
            return Ok(Ending::default());
        }
        match (self.ahead.first(), outs) {
            (Some(&Item::Node(n)), &[out]) => self.ending_in_function(n, out, cut),
            (Some(&Item::Node(n)), &[q, k, v]) => self.ending_in_heads(n, [q, k, v], cut),
            _ => Ok(Ending::default()),
        }
    }

    fn ending_in_heads(
        &mut self,
        n: usize,
        outs: [ValueId; 3],
        cut: &Cut,
    ) -> Result<Ending, BackendError> {
        let node = &self.plan.nodes[n];
        let reads = |node: &Node| node.ins.iter().any(|x| outs.contains(x));
        let others = self.plan.nodes.iter().enumerate();
        let alone = others.filter(|(i, _)| *i != n).all(|(_, n)| !reads(n));
        let inner = outs.iter().all(|&x| !self.is_output(x));
        let wide = match &node.op {
            Op::Attention(op) => self.whole_shape(node, op).is_some_and(|s| s.wide),
            _ => false,
        };
        if !(wide && alone && inner && node.ins[..] == outs) {
            return Ok(Ending::default());
        }
        let columns = outs.iter().map(|&x| u64::from(self.width(x))).sum();
        let space = self.space_of_heads(columns, !cut.second)?;
        self.heads_left.insert(outs[0], space);
        Ok(Ending {
            places: Some([space.parts, space.units, space.rows]),
            heads: true,
            ..Ending::default()
        })
    }

    fn ending_in_function(
        &mut self,
        n: usize,
        out: ValueId,
        cut: &Cut,
    ) -> Result<Ending, BackendError> {
        let (node, taken) = (&self.plan.nodes[n], self.taken_in_parts(1));
        let read = self.plan.nodes.iter().filter(|n| n.ins.contains(&out));
        let function = match node.op {
            Op::Unary(act) if node.ins[0] == out => super::rows::ending(act),
            _ => None,
        };
        let alone = read.count() == 1 && !self.is_output(out);
        match (function, taken) {
            (Some(function), Some((y, format)))
                if alone && y == node.outs[0] && format == cut.format && self.only_for(y, 1) =>
            {
                let own = self.space_of_cut(y, format, !cut.second)?;
                self.cuts.insert(y, own);
                self.ended.insert(out);
                Ok(Ending {
                    function,
                    places: Some([own.parts, own.units, own.apart]),
                    heads: false,
                })
            }
            _ => Ok(Ending::default()),
        }
    }
}
