//! Rules of row-local ops.

use tokkata_ir::adapter::matrices;
use tokkata_ir::{AdaptForm, Lead, Op, RopeOp, RouteOp, ValType, WeightId};

use super::{Checked, Checker, at_most, divide, size};
use crate::kernels::columns::split_inputs;

impl Checker<'_> {
    /// The rule of this node's op.
    pub(super) fn node(&self) -> Checked {
        match &self.node.op {
            Op::Prepare => self.counts(0, 0),
            Op::Gather { table, .. } => self.gather(*table),
            Op::CacheWrite { .. }
            | Op::Attention(_)
            | Op::Select(_)
            | Op::Compress(_)
            | Op::Conv { .. }
            | Op::Conv1d(_)
            | Op::Shift { .. }
            | Op::Scan { .. } => self.mixer(),
            Op::Concat { groups } => self.concat(*groups),
            Op::Gate { .. }
            | Op::Binary { .. }
            | Op::PerRun { .. }
            | Op::Experts { .. }
            | Op::Combine => self.several_inputs(),
            Op::Adapt { weight, form } => self.adapt(*weight, *form),
            Op::Route(op) => self.route(op),
            Op::Group { .. } => self.group(),
            Op::SelectRows => self.moves(Lead::LogitRows),
            Op::Pool(_) => self.moves(Lead::Seqs),
            Op::Sample => self.sample(),
            Op::Copy => {
                self.counts(1, 1)?;
                let def = self.def(self.node.ins[0]);
                let shape = (def.shape.lead, def.shape.width(), def.dtype);
                self.value(self.node.outs[0], shape)
            }
            op => {
                self.counts(1, 1)?;
                let (lead, width) = self.x()?;
                self.output(0, lead, self.mapped_width(op, width)?)
            }
        }
    }

    /// The output is like what is added to, whose columns are the weight's.
    fn adapt(&self, weight: WeightId, form: AdaptForm) -> Checked {
        let (count, rows, cols) = matrices(form, &self.program.weights[weight.index()].shape);
        let y = match form {
            AdaptForm::Tokens => 0,
            AdaptForm::Product | AdaptForm::Heads | AdaptForm::Experts => 1,
        };
        self.counts(y + 1 + usize::from(form == AdaptForm::Experts), 1)?;
        let (lead, width) = (self.lead(y), self.width(y));
        self.input(y, lead, width)?;
        self.output(0, lead, width)?;
        let parts = match form {
            AdaptForm::Tokens => return size("columns of the table", width, cols),
            AdaptForm::Product => 1,
            AdaptForm::Heads => count,
            AdaptForm::Experts => self.width(2),
        };
        if form == AdaptForm::Experts {
            self.value(self.node.ins[2], (lead, parts, ValType::I32))?;
        }
        size("columns of the product", width, parts * rows)?;
        let x = self.width(0);
        let shared = form == AdaptForm::Experts && x == cols;
        self.input(0, lead, if shared { cols } else { parts * cols })
    }

    /// Output columns of an op from one value to one value of the same lead.
    fn mapped_width(&self, op: &Op, width: usize) -> Checked<usize> {
        match *op {
            Op::Matmul {
                weight,
                scale,
                bias,
            } => {
                let n = self.program.weights[weight.index()].rows();
                self.weight(weight, n * width)?;
                self.weight_of(scale, [1, n])?;
                self.weight(bias, n)?;
                Ok(n)
            }
            Op::HeadMatmul { weight, heads } => {
                let k = divide("heads of the input", heads, width)?;
                divide("columns of the weight", width as u64, self.elements(weight))?;
                Ok(self.elements(weight) / k)
            }
            Op::Slice { group, start, len } => {
                at_most("end of the slice", (start + len) as usize, group as usize)?;
                Ok(divide("columns of a run", group, width)? * len as usize)
            }
            Op::Repeat {
                width: run,
                times,
                tiled,
            } => {
                if !tiled {
                    divide("columns of a run", run, width)?;
                }
                Ok(width * times as usize)
            }
            Op::Sinkhorn { n, iterations, .. } => {
                size("elements of the matrix", (n * n) as usize, width)?;
                at_most("least divisions", 1, iterations as usize)?;
                Ok(width)
            }
            Op::SumRuns { width: run } | Op::RmsRuns { width: run, .. } => {
                divide("columns of a run", run, width)
            }
            _ => self.same_width(op, width).map(|()| width),
        }
    }

    /// Ops whose output is shaped as their input.
    fn same_width(&self, op: &Op, width: usize) -> Checked {
        match op {
            Op::Norm {
                width: run,
                weight,
                bias,
                ..
            } => {
                divide("columns of a run", *run, width)?;
                self.weight_of(*weight, [*run as usize, width])?;
                self.weight_of(*bias, [*run as usize, width])
            }
            Op::Rope(op) => self.rope(op, width),
            Op::Weighted { weight, .. } => divide(
                "elements of the weight",
                self.elements(*weight) as u64,
                width,
            )
            .map(drop),
            Op::Softmax { width: run } => divide("columns of a run", *run, width).map(drop),
            Op::Suppress { first, last } => {
                at_most("first column", *first as usize, *last as usize)?;
                at_most("end of the columns", *last as usize, width)
            }
            _ => Ok(()),
        }
    }

    fn rope(&self, op: &RopeOp, width: usize) -> Checked {
        divide("columns of a head", op.head_dim, width)?;
        let pairs = self.floats(op.freqs);
        let end = op.offset as usize + 2 * pairs;
        at_most("rotated columns", end, op.head_dim as usize)?;
        let Some(channels) = op.channels else {
            return Ok(());
        };
        let channels = self.program.constant(channels).u32s();
        size("channels of the pairs", channels.len(), pairs)?;
        let largest = channels.iter().max().map_or(0, |&c| c as usize);
        at_most("position channel", largest, 3)
    }

    fn gather(&self, table: WeightId) -> Checked {
        self.counts(self.node.ins.len().min(1), 1)?;
        let out = self.def(self.node.outs[0]);
        let width = self.program.weights[table.index()].cols();
        self.output(0, out.shape.lead, width)?;
        match self.node.ins.len() {
            0 => Ok(()),
            _ => self.input(0, out.shape.lead, width),
        }
    }

    fn concat(&self, groups: u32) -> Checked {
        self.counts(self.node.ins.len().max(1), 1)?;
        let (lead, _) = self.x()?;
        for i in 1..self.node.ins.len() {
            self.input(i, lead, self.width(i))?;
        }
        let out = self.def(self.node.outs[0]).shape.width();
        self.output(0, lead, out)?;
        divide("runs of the output", groups, out)?;
        let shapes = self.node.ins.iter().map(|&v| &*self.def(v).shape.dims);
        let shapes: Vec<&[u32]> = shapes.collect();
        let sum = (0..shapes.len()).map(|i| self.width(i)).sum();
        match split_inputs(&shapes, groups, out) {
            Some(_) => Ok(()),
            None => size("columns joined", sum, out),
        }
    }

    fn several_inputs(&self) -> Checked {
        self.counts(2, 1)?;
        let (lead, width) = self.x()?;
        match self.node.op {
            Op::Gate { .. } => self.input(1, lead, width)?,
            Op::Binary { .. } => {
                divide("columns of b", self.width(1) as u64, width)?;
                self.input(1, lead, self.width(1))?;
            }
            Op::PerRun { width: run, .. } => {
                self.input(1, lead, divide("columns of a run", run, width)?)?;
            }
            Op::Combine => {
                self.input(1, lead, self.width(1))?;
                let out = divide("weights of a row", self.width(1) as u64, width)?;
                return self.output(0, lead, out);
            }
            _ => return self.experts(lead, width),
        }
        self.output(0, lead, width)
    }

    fn experts(&self, lead: Lead, width: usize) -> Checked {
        let Op::Experts {
            weight,
            scale,
            bias,
            top_k,
        } = self.node.op
        else {
            unreachable!("called for experts only")
        };
        let shape = &self.program.weights[weight.index()].shape;
        size("dimensions of the weight", shape.len(), 3)?;
        let (e, n, k) = (shape[0] as usize, shape[1] as usize, shape[2] as usize);
        let top_k = top_k as usize;
        let columns = if width == k { k } else { top_k * k };
        size("columns of the input", width, columns)?;
        self.weight(scale, e)?;
        self.weight(bias, e * n)?;
        self.value(self.node.ins[1], (lead, top_k, ValType::I32))?;
        self.output(0, lead, top_k * n)
    }

    fn route(&self, op: &RouteOp) -> Checked {
        self.counts(1, 2)?;
        let (lead, width) = self.x()?;
        size("logits of the experts", width, op.n_experts as usize)?;
        self.weight(op.bias, width)?;
        if let Some(table) = op.table {
            let listed = self.program.weights[table.index()].cols();
            size("experts of a token", listed, op.top_k as usize)?;
        }
        let mut open = width;
        if let Some(groups) = op.groups {
            at_most("groups kept", groups.used as usize, groups.count as usize)?;
            open = divide("groups", groups.count, width)? * groups.used as usize;
        }
        let top_k = op.top_k as usize;
        at_most("experts chosen", top_k, open)?;
        at_most("least divisor of ids", 1, op.id_divisor as usize)?;
        self.value(self.node.outs[0], (lead, top_k, ValType::I32))?;
        self.output(1, lead, top_k)
    }

    fn group(&self) -> Checked {
        self.counts(1, 2)?;
        let shape = (self.lead(0), self.width(0), ValType::I32);
        self.value(self.node.ins[0], shape)?;
        self.value(self.node.outs[0], shape)?;
        self.value(self.node.outs[1], shape)
    }

    /// From every row to another lead.
    fn moves(&self, to: Lead) -> Checked {
        self.counts(1, 1)?;
        self.input(0, Lead::Rows, self.width(0))?;
        self.output(0, to, self.width(0))
    }

    fn sample(&self) -> Checked {
        self.counts(1, 1)?;
        self.input(0, Lead::LogitRows, self.width(0))?;
        let out = (Lead::LogitRows, 1, ValType::I32);
        self.value(self.node.outs[0], out)
    }
}
