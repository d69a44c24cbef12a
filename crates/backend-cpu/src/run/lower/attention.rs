//! Attention, and what it reads: choices and summaries.

use tokkata_ir::{
    AttentionOp, BackendError, CompressOp, KvSource, Node, SelectOp, SlotDef, SlotId,
};

use super::super::attention::{Attention, Bucket};
use super::super::indexer::Select;
use super::super::summary::Compress;
use super::{Lower, Prepared, unsupported};
use crate::kernels::attention::Form;
use crate::kernels::lanes::N;
use crate::select::Planned;

impl Lower<'_> {
    pub(super) fn select(&mut self, node: &Node, op: &SelectOp, planned: &Planned) -> Prepared {
        *self.tickets += 1;
        Box::new(Select {
            op: op.clone(),
            q: self.place(node.ins[0]),
            weights: op.summed.then(|| self.place(node.ins[1])),
            ids: self.place(node.outs[0]),
            keys: planned.reads[node.ins.len()].resource,
            partials: planned.writes[1].resource,
            tickets: *self.tickets - 1,
        })
    }

    pub(super) fn compress(&self, node: &Node, op: &CompressOp, planned: &Planned) -> Prepared {
        let (out, values) = (self.place(node.outs[0]), self.place(node.ins[0]));
        let block = self.program.group(op.slot.group).dtype.block_elems();
        Box::new(Compress {
            op: op.clone(),
            values,
            scores: self.place(node.ins[1]),
            out,
            ape: self.weights.vector(op.ape),
            // Whole blocks of a quantised cache, in both halves of the inputs.
            part: match out.width.is_multiple_of(block) || block == 1 {
                true => block.next_multiple_of(N),
                false => out.width,
            },
            kept: planned.writes[1..].iter().map(|w| w.resource).collect(),
        })
    }

    pub(super) fn attention(
        &mut self,
        node: &Node,
        op: &AttentionOp,
        planned: &Planned,
    ) -> Result<Prepared, BackendError> {
        let inputs = node.ins.len() - usize::from(op.selection.is_some());
        let value = |i: usize| node.ins[..inputs].get(i).map(|&v| self.place(v));
        let chosen = op.selection.map(|s| (self.place(node.ins[inputs]), s));
        let own = (op.source == KvSource::Rows)
            .then(|| value(1).map(|k| (k, value(2))))
            .flatten();
        if let KvSource::Cache(slot) | KvSource::Cross(slot) = op.source {
            self.check_slot(node, op, slot)?;
        } else if own.is_none() {
            return Err(unsupported(node, "own rows without keys"));
        }
        if let Some(slot) = op.entries {
            self.check_entries(node, op, slot)?;
        }
        *self.tickets += 1;
        let dim_v = op.dim_v as usize;
        let form = Form {
            dim_k: op.dim_k as usize,
            dim_v: dim_v.next_multiple_of(N),
            scale: op.scale,
            cap: op.cap,
        };
        let bucket = op.bucket.map(|b| Bucket {
            table: self.weights.vector(b.table),
            buckets: b.buckets as usize,
            max_distance: b.max_distance as usize,
            bidirectional: b.bidirectional,
        });
        Ok(Box::new(Attention {
            q: self.place(node.ins[0]),
            own,
            out: self.place(node.outs[0]),
            partials: planned.writes[1].resource,
            cached: planned.reads[node.ins.len()..]
                .iter()
                .map(|r| r.resource)
                .collect(),
            source: op.source,
            entries: op.entries,
            chosen,
            mask: op.mask,
            form,
            heads: op.n_heads as usize,
            kv_heads: op.n_kv_heads as usize,
            dim_v,
            sinks: self.vector(op.sinks),
            slopes: op.alibi.map(|c| self.floats(c)),
            bucket,
            tickets: *self.tickets - 1,
        }))
    }

    fn check_entries(
        &self,
        node: &Node,
        op: &AttentionOp,
        slot: SlotId,
    ) -> Result<(), BackendError> {
        let fits = match self.program.group(slot.group).slots[slot.slot as usize] {
            SlotDef::Kv {
                n_kv_heads, dim_k, ..
            } => (n_kv_heads, dim_k) == (1, op.dim_k) && op.n_kv_heads == 1,
            SlotDef::State { .. } => false,
        };
        let tail = op.selection.is_some_and(|s| s.tail && s.unit > 1);
        match fits && !tail {
            true => Ok(()),
            false => Err(unsupported(node, "entries of another shape")),
        }
    }

    fn check_slot(&self, node: &Node, op: &AttentionOp, slot: SlotId) -> Result<(), BackendError> {
        let SlotDef::Kv {
            n_kv_heads,
            dim_k,
            dim_v,
        } = self.program.group(slot.group).slots[slot.slot as usize]
        else {
            return Err(unsupported(node, "a slot that holds a state"));
        };
        let values = dim_v
            .filter(|&d| d > 0)
            .map_or(op.dim_v <= dim_k, |d| d == op.dim_v);
        if n_kv_heads != op.n_kv_heads || dim_k != op.dim_k || !values {
            return Err(unsupported(node, "a slot of another shape"));
        }
        Ok(())
    }
}
