//! Keys chosen by an indexer and attention over them, over prompt and decode steps.

use tokkata_core::DType;
use tokkata_ir::{
    AttentionOp, CacheKind, KvSource, Lead, Limits, Mask, Op, SelectOp, Selection, SlotDef, SlotId,
    ValType,
};

use super::case::{Case, Rounds};
use crate::fixture::{Fixture, small_limits};

/// Rounding of scores, of the softmax and of the sum of values.
const ULPS: f64 = 8.0;

/// An indexer before an attention of six heads over two key heads.
#[derive(Clone, Copy, Debug)]
struct Indexer {
    heads: u32,
    dim: u32,
    summed: bool,
    top_k: u32,
    /// Positions of an entry and entries of a unit.
    entry: u32,
    unit: u32,
    local: u32,
}

const PLAIN: Indexer = Indexer {
    heads: 5,
    dim: 16,
    summed: true,
    top_k: 4,
    entry: 1,
    unit: 1,
    local: 0,
};

pub(crate) fn cases() -> Vec<Case> {
    let each = Indexer {
        heads: 2,
        summed: false,
        ..PLAIN
    };
    let all = [
        PLAIN,
        Indexer {
            dim: 7,
            top_k: 1,
            ..PLAIN
        },
        Indexer { top_k: 40, ..PLAIN },
        Indexer {
            entry: 4,
            top_k: 2,
            ..PLAIN
        },
        each,
        Indexer {
            unit: 4,
            top_k: 3,
            local: 2,
            ..each
        },
    ];
    let mut cases = Vec::new();
    for indexer in all {
        for dtype in [DType::F32, DType::F16] {
            cases.push(selected(indexer, (dtype, 16), false));
        }
        cases.push(selected(indexer, (DType::F32, indexer.entry), true));
    }
    cases
}

fn slot(f: &mut Fixture, kind: CacheKind, block: u32, def: SlotDef) -> SlotId {
    let group = f.cache(kind, block, vec![def.clone(), def]);
    SlotId { group, slot: 1 }
}

fn selected(i: Indexer, (dtype, block): (DType, u32), with_ids: bool) -> Case {
    let mut f = Fixture::new(Limits {
        kv_dtype: dtype,
        ..small_limits()
    });
    let kv = SlotDef::Kv {
        n_kv_heads: 2,
        dim_k: 16,
        dim_v: Some(16),
    };
    let key = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: i.dim,
        dim_v: Some(0),
    };
    let cache = slot(&mut f, CacheKind::Full, block, kv);
    let index = slot(&mut f, CacheKind::Entries(i.entry), block, key);
    let [q, k, v] = [96, 32, 32].map(|width| f.input(&[width]));
    let [iq, ik] = [i.heads * i.dim, i.dim].map(|width| f.input(&[width]));
    f.node(Op::CacheWrite { slot: cache }, &[k, v], &[]);
    f.node(Op::CacheWrite { slot: index }, &[ik], &[]);
    let op = SelectOp {
        slot: index,
        n_heads: i.heads,
        dim: i.dim,
        scale: 0.5,
        summed: i.summed,
        top_k: i.top_k,
        unit: i.unit,
        local: i.local,
    };
    let choices = op.choices();
    let ids = f.value(Lead::Rows, &[choices, i.top_k], ValType::I32);
    let mut ins = vec![iq];
    if i.summed {
        ins.push(f.input(&[i.heads]));
    }
    f.node(Op::Select(op), &ins, &[ids]);
    let attention = Op::Attention(attention(cache, i, choices));
    let out = f.op(attention, &[q, ids], &[96]);
    let outputs = if with_ids { vec![ids, out] } else { vec![out] };
    Case::new(format!("select/{dtype}/block{block}/{i:?}"), f, outputs)
        .ulps(ULPS)
        .rounds(Rounds::Attention(dtype))
        .mixed_steps()
}

fn attention(cache: SlotId, i: Indexer, choices: u32) -> AttentionOp {
    AttentionOp {
        n_heads: 6,
        n_kv_heads: 2,
        dim_k: 16,
        dim_v: 16,
        scale: 0.5,
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask: Mask::Causal,
        source: KvSource::Cache(cache),
        selection: Some(Selection {
            unit: i.entry * i.unit,
            choices,
            tail: i.entry > 1,
        }),
    }
}
