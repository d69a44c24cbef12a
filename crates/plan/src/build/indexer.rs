//! Indexers: what attention reads of the keys that its mask shows.

use tokkata_ir::spec::{IndexerSpec, NormPlace, Reads};
use tokkata_ir::{Op, SelectOp, Selection, Shape, ValType, ValueDef, ValueId};

use super::Builder;

/// Numbers of units and what they mean.
#[derive(Clone, Copy)]
pub(crate) struct Chosen {
    pub(crate) ids: ValueId,
    pub(crate) selection: Selection,
}

impl Builder<'_> {
    /// What an attention over input `x` reads; `low` is the low rank of its queries.
    pub(crate) fn reads(
        &mut self,
        reads: &Reads,
        x: ValueId,
        low: Option<ValueId>,
    ) -> Option<Chosen> {
        match reads {
            Reads::All => None,
            Reads::Last => Some(self.chosen.expect("an indexer comes before")),
            Reads::Own(indexer) => {
                let chosen = self.indexer(indexer, x, low);
                self.chosen = Some(chosen);
                Some(chosen)
            }
        }
    }

    fn indexer(&mut self, i: &IndexerSpec, x: ValueId, low: Option<ValueId>) -> Chosen {
        let from = if i.from_rank {
            low.expect("queries through a low rank")
        } else {
            x
        };
        let q = self.at("indexer_q").matmul(from, &i.q);
        let q = self.norm_opt(q, i.q_norm.as_ref());
        let q = self.rope(q, i.rope.as_ref(), i.dim);
        let k = self.indexer_key(i, x);
        self.push(Op::CacheWrite { slot: i.slot }, &[k], &[]);
        let weights = i.weights.as_ref();
        let weights = weights.map(|p| self.at("indexer_weights").matmul(x, p));
        let op = SelectOp {
            slot: i.slot,
            n_heads: i.n_heads,
            dim: i.dim,
            scale: i.scale,
            summed: weights.is_some(),
            top_k: i.top_k,
            unit: i.unit,
            local: i.local,
        };
        let positions = i.compress.as_ref().map_or(1, |(c, _)| c.ratio);
        let selection = Selection {
            unit: i.unit * positions,
            choices: op.choices(),
            tail: i.tail,
        };
        let ins: Vec<ValueId> = [Some(q), weights].into_iter().flatten().collect();
        let ids = ValueDef {
            shape: Shape {
                lead: self.plan.value(x).shape.lead,
                dims: vec![op.choices(), op.top_k],
            },
            dtype: ValType::I32,
        };
        let ids = self.at("indexer").push(Op::Select(op), &ins, &[ids])[0];
        Chosen { ids, selection }
    }

    fn indexer_key(&mut self, i: &IndexerSpec, x: ValueId) -> ValueId {
        let mut k = self.at("indexer_k").matmul(x, &i.k);
        let Some((compress, place)) = &i.compress else {
            k = self.norm_opt(k, i.k_norm.as_ref());
            return self.rope(k, i.rope.as_ref(), i.dim);
        };
        if *place == NormPlace::Before {
            k = self.norm_opt(k, i.k_norm.as_ref());
        }
        k = self.compress(compress, k, x);
        if *place == NormPlace::After {
            k = self.norm_opt(k, i.k_norm.as_ref());
        }
        self.rope_summary(k, i.rope.as_ref(), i.dim, compress.ratio)
    }
}
