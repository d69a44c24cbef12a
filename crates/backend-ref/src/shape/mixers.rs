//! Rules of ops that look along a sequence.

use tokkata_ir::{
    AttentionOp, CompressOp, Conv1dOp, KvSource, Lead, Op, Scan, SelectOp, Selection, SlotDef,
    SlotId, ValType, WeightId,
};

use super::{Checked, Checker, Fault, at_most, divide, size};

impl Checker<'_> {
    pub(super) fn mixer(&self) -> Checked {
        match &self.node.op {
            Op::CacheWrite { slot } => self.cache_write(*slot),
            Op::Attention(op) => self.attention(op),
            Op::Select(op) => self.select(op),
            Op::Compress(op) => self.compress(op),
            Op::Conv {
                weight,
                bias,
                kernel,
                slot,
            } => self.conv((*weight, *bias), *kernel as usize, *slot),
            Op::Conv1d(op) => self.conv1d(op),
            Op::Scan { scan, slot } => self.scan(scan, *slot),
            Op::Shift { slot } => {
                let width = self.one_to_one()?;
                self.state(*slot, width)
            }
            _ => Ok(()),
        }
    }

    /// One value over all rows to another of the same width.
    fn one_to_one(&self) -> Checked<usize> {
        self.counts(1, 1)?;
        let width = self.width(0);
        self.input(0, Lead::Rows, width)?;
        self.output(0, Lead::Rows, width)?;
        Ok(width)
    }

    /// Columns of keys and of values (`None` for keys only) of a slot.
    fn kv(&self, slot: SlotId) -> Checked<(usize, Option<usize>)> {
        match self.slot_def(slot) {
            Some(&SlotDef::Kv {
                n_kv_heads,
                dim_k,
                dim_v,
            }) => Ok((
                (n_kv_heads * dim_k) as usize,
                dim_v.filter(|&d| d > 0).map(|d| (n_kv_heads * d) as usize),
            )),
            found => Err(Fault::Slot {
                slot,
                expected: "keys and values".to_owned(),
                found: found.cloned(),
            }),
        }
    }

    fn cache_write(&self, slot: SlotId) -> Checked {
        let (keys, values) = self.kv(slot)?;
        self.counts(1 + usize::from(values.is_some()), 0)?;
        self.input(0, Lead::Rows, keys)?;
        match values {
            Some(values) => self.input(1, Lead::Rows, values),
            None => Ok(()),
        }
    }

    fn attention(&self, op: &AttentionOp) -> Checked {
        let heads = op.n_heads as usize;
        let (keys, values) = (op.n_kv_heads * op.dim_k, op.n_kv_heads * op.dim_v);
        let (keys, values) = (keys as usize, values as usize);
        divide("key heads", op.n_kv_heads, heads)?;
        let chosen = usize::from(op.selection.is_some());
        let others = self.node.ins.len().saturating_sub(chosen);
        match op.source {
            KvSource::Cache(slot) | KvSource::Cross(slot) => {
                self.counts(1 + chosen, 1)?;
                let (slot_keys, slot_values) = self.kv(slot)?;
                size("columns of the keys", keys, slot_keys)?;
                match slot_values {
                    Some(slot_values) => size("columns of the values", values, slot_values)?,
                    None => at_most("columns of a value", op.dim_v as usize, op.dim_k as usize)?,
                }
            }
            KvSource::Rows => {
                self.counts(others.clamp(2, 3) + chosen, 1)?;
                self.input(1, Lead::Rows, keys)?;
                match others {
                    3 => self.input(2, Lead::Rows, values)?,
                    _ => at_most("columns of a value", op.dim_v as usize, op.dim_k as usize)?,
                }
            }
        }
        self.input(0, Lead::Rows, heads * op.dim_k as usize)?;
        self.attention_extras(op, heads)?;
        if let Some(slot) = op.entries {
            let (keys, values) = self.kv(slot)?;
            size("columns of the entries", keys, op.dim_k as usize)?;
            size("columns of the values", values.unwrap_or(0), 0)?;
            size("key heads", op.n_kv_heads as usize, 1)?;
            at_most("columns of a value", op.dim_v as usize, op.dim_k as usize)?;
        }
        if let Some(selection) = &op.selection {
            self.selection(op, selection)?;
        }
        self.output(0, Lead::Rows, heads * op.dim_v as usize)
    }

    /// The last input numbers units, as many for each choice.
    fn selection(&self, op: &AttentionOp, selection: &Selection) -> Checked {
        let last = self.node.ins.len() - 1;
        let width = self.width(last);
        at_most("least positions of a unit", 1, selection.unit as usize)?;
        divide("choices", selection.choices, width)?;
        divide("choices", selection.choices, op.n_kv_heads as usize)?;
        let shape = (Lead::Rows, width, ValType::I32);
        self.value(self.node.ins[last], shape)
    }

    fn select(&self, op: &SelectOp) -> Checked {
        self.counts(if op.summed { 2 } else { 1 }, 1)?;
        let (keys, values) = self.kv(op.slot)?;
        size("columns of the keys", op.dim as usize, keys)?;
        size("columns of the values", values.unwrap_or(0), 0)?;
        at_most("least units chosen", 1, op.top_k as usize)?;
        at_most("least entries of a unit", 1, op.unit as usize)?;
        at_most("units chosen always", op.local as usize, op.top_k as usize)?;
        self.input(0, Lead::Rows, (op.n_heads * op.dim) as usize)?;
        if op.summed {
            self.input(1, Lead::Rows, op.n_heads as usize)?;
        }
        let width = (op.choices() * op.top_k) as usize;
        self.value(self.node.outs[0], (Lead::Rows, width, ValType::I32))
    }

    fn attention_extras(&self, op: &AttentionOp, heads: usize) -> Checked {
        self.weight(op.sinks, heads)?;
        if let Some(slopes) = op.alibi {
            size("slopes", self.floats(slopes), heads)?;
        }
        match op.bucket {
            Some(bias) => self.weight(bias.table, bias.buckets as usize * heads),
            None => Ok(()),
        }
    }

    fn compress(&self, op: &CompressOp) -> Checked {
        self.counts(2, 1)?;
        let (keys, values) = self.kv(op.slot)?;
        size("columns of the scores", values.unwrap_or(0), keys)?;
        at_most("least positions of a run", 1, op.ratio as usize)?;
        self.input(0, Lead::Rows, keys)?;
        self.input(1, Lead::Rows, keys)?;
        self.weight(op.ape, op.ratio as usize * keys)?;
        let halves: u32 = if op.overlap { 2 } else { 1 };
        self.output(0, Lead::Rows, divide("columns of a run", halves, keys)?)
    }

    fn conv(
        &self,
        (weight, bias): (WeightId, Option<WeightId>),
        kernel: usize,
        slot: Option<SlotId>,
    ) -> Checked {
        let width = self.one_to_one()?;
        at_most("least taps", 1, kernel)?;
        self.weight(weight, width * kernel)?;
        self.weight(bias, width)?;
        match slot {
            Some(slot) => self.state(slot, (kernel - 1) * width),
            None => Ok(()),
        }
    }

    fn conv1d(&self, op: &Conv1dOp) -> Checked {
        self.counts(1, 1)?;
        let width = self.width(0);
        let channels = divide("frames of a row", op.frames, width)?;
        let frames = divide("frames of a stride", op.stride, op.frames as usize)?;
        at_most("least taps", 1, op.kernel as usize)?;
        at_most(
            "least taps of the padding",
            2 * op.padding as usize + 1,
            op.kernel as usize,
        )?;
        let padded = (2 * op.padding + op.stride) as usize;
        at_most("taps", op.kernel as usize, padded)?;
        let columns = op.kernel as usize * channels;
        let n = divide(
            "columns of the weight",
            columns as u64,
            self.elements(op.weight),
        )?;
        self.weight(op.bias, n)?;
        self.input(0, Lead::Rows, width)?;
        self.output(0, Lead::Rows, frames * n)
    }

    fn scan(&self, scan: &Scan, slot: SlotId) -> Checked {
        let Some(&first) = self.node.ins.first() else {
            return self.counts(1, 1);
        };
        let width = self.def(first).shape.width();
        match *scan {
            Scan::Mamba1 { state, a, d } => {
                let n = state as usize;
                self.weight(a, width * n)?;
                self.weight(d, width)?;
                self.recurrence(&[width, width, n, n], width, (slot, width * n))
            }
            Scan::Mamba2 {
                heads,
                state,
                groups,
                a,
                d,
                dt_bias,
            } => {
                let (h, n) = (heads as usize, state as usize);
                divide("heads", heads, width)?;
                divide("groups", groups, h)?;
                self.weight(a, h)?;
                self.weight(d, h)?;
                self.weight(dt_bias, h)?;
                let bc = groups as usize * n;
                self.recurrence(&[width, h, bc, bc], width, (slot, width * n))
            }
            Scan::Wkv6 { head_dim, first } => {
                self.weight(first, width)?;
                self.square(4, width, head_dim, slot)
            }
            Scan::Gla { head_dim, .. } => self.square(4, width, head_dim, slot),
            Scan::Wkv7 { head_dim } => self.square(6, width, head_dim, slot),
            Scan::GatedDelta { .. } => self.gated_delta(scan, slot),
            Scan::Decay { heads, slopes } => {
                size("slopes", self.floats(slopes), heads as usize)?;
                let head_dim = divide("heads", heads, width)?;
                self.square(3, width, head_dim as u32, slot)
            }
        }
    }

    /// Inputs all as wide as the output, one square state per head.
    fn square(&self, inputs: usize, width: usize, head_dim: u32, slot: SlotId) -> Checked {
        divide("columns of a head", head_dim, width)?;
        let state = width * head_dim as usize;
        self.recurrence(&vec![width; inputs], width, (slot, state))
    }

    fn recurrence(&self, inputs: &[usize], out: usize, state: (SlotId, usize)) -> Checked {
        self.counts(inputs.len(), 1)?;
        for (i, &width) in inputs.iter().enumerate() {
            self.input(i, Lead::Rows, width)?;
        }
        self.state(state.0, state.1)?;
        self.output(0, Lead::Rows, out)
    }

    fn gated_delta(&self, scan: &Scan, slot: SlotId) -> Checked {
        let Scan::GatedDelta {
            k_heads,
            v_heads,
            dim_k,
            dim_v,
            ..
        } = *scan
        else {
            unreachable!("called for the gated delta rule only")
        };
        self.counts(5, 1)?;
        divide("key heads", k_heads, v_heads as usize)?;
        let heads = v_heads as usize;
        let (keys, values) = ((k_heads * dim_k) as usize, heads * dim_v as usize);
        let decay = match self.width(3) {
            one if one == heads => heads,
            _ => heads * dim_k as usize,
        };
        let state = values * dim_k as usize;
        self.recurrence(&[keys, keys, values, decay, heads], values, (slot, state))
    }
}
