//! Attention over a window and summaries of what lies before.

use tokkata_ir::spec::{CompressSpec, HistorySpec, RopeSpec, SummarySpec};
use tokkata_ir::{AttentionOp, CompressOp, KvSource, Op, RopeOp, Selection, ValueId};

use super::Builder;
use super::attention::rotation;
use super::indexer::Chosen;

impl Builder<'_> {
    pub(crate) fn summary(&mut self, s: &SummarySpec, x: ValueId) -> ValueId {
        let (q, low) = self.mla_query(&s.q, x);
        let q = self.at("attn_q").norm(q, &s.q_norm);
        let q = self.rope(q, Some(&s.rope), s.dim);
        let kv = self.at("attn_kv").matmul(x, &s.kv);
        let kv = self.norm(kv, &s.kv_norm);
        let kv = self.rope(kv, Some(&s.rope), s.dim);
        self.push(Op::CacheWrite { slot: s.slot }, &[kv], &[]);
        let chosen = s.history.as_ref().and_then(|h| self.history(s, h, x, low));
        let op = AttentionOp {
            n_heads: s.n_heads,
            n_kv_heads: 1,
            dim_k: s.dim,
            dim_v: s.dim,
            scale: s.scale,
            cap: None,
            sinks: Some(s.sinks),
            alibi: None,
            bucket: None,
            mask: s.mask,
            source: KvSource::Cache(s.slot),
            entries: s.history.as_ref().map(|h| h.slot),
            selection: chosen.map(|c| Selection {
                unit: 1,
                ..c.selection
            }),
        };
        let ins: Vec<ValueId> = [Some(q), chosen.map(|c| c.ids)]
            .into_iter()
            .flatten()
            .collect();
        let y = self
            .at("attn")
            .one(Op::Attention(op), &ins, s.n_heads * s.dim);
        let back = RopeOp {
            inverse: true,
            ..rotation(&s.rope, s.dim)
        };
        let y = self.rotated(y, back);
        self.grouped_output(s, y)
    }

    /// Writes the summaries; which of them are read, unless all.
    fn history(
        &mut self,
        s: &SummarySpec,
        h: &HistorySpec,
        x: ValueId,
        low: Option<ValueId>,
    ) -> Option<Chosen> {
        let kv = self.at("summary_kv").matmul(x, &h.kv);
        let kv = self.compress(&h.compress, kv, x);
        let kv = self.norm(kv, &h.norm);
        let kv = self.rope_summary(kv, Some(&s.rope), s.dim, h.compress.ratio);
        self.push(Op::CacheWrite { slot: h.slot }, &[kv], &[]);
        self.reads(&h.reads, x, low)
    }

    /// Summaries of `values` by scores of the block's input, at the rows that end a run.
    pub(crate) fn compress(&mut self, c: &CompressSpec, values: ValueId, x: ValueId) -> ValueId {
        let scores = self.matmul(x, &c.scores);
        let width = self.width(values) / if c.overlap { 2 } else { 1 };
        let op = CompressOp {
            slot: c.slot,
            ratio: c.ratio,
            overlap: c.overlap,
            ape: c.ape,
        };
        self.one(Op::Compress(op), &[values, scores], width)
    }

    /// The rotation of a summary is that of the run's first position.
    pub(crate) fn rope_summary(
        &mut self,
        x: ValueId,
        rope: Option<&RopeSpec>,
        dim: u32,
        ratio: u32,
    ) -> ValueId {
        let Some(rope) = rope else { return x };
        let op = RopeOp {
            back: ratio - 1,
            ..rotation(rope, dim)
        };
        self.rotated(x, op)
    }

    /// Each group of heads through its own matrix, then all through one.
    fn grouped_output(&mut self, s: &SummarySpec, y: ValueId) -> ValueId {
        let rank = self.spec.weights[s.out_a.index()].shape[1];
        let op = Op::HeadMatmul {
            weight: s.out_a,
            heads: s.groups,
        };
        let y = self.at("attn_output_a").one(op, &[y], s.groups * rank);
        self.at("attn_output_b").matmul(y, &s.out_b)
    }
}
