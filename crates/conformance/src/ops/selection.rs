//! Keys chosen by an indexer, summaries of positions and attention over them, over prompt and decode steps.

use tokkata_core::DType;
use tokkata_ir::{
    AttentionOp, CacheKind, CompressOp, KvSource, Lead, Limits, Mask, Op, SelectOp, Selection,
    SlotDef, SlotId, ValType,
};

use super::case::{Case, Rounds};
use crate::fixture::{Fixture, noises, small_limits};

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
    for (ratio, overlap) in [(1, false), (4, false), (4, true), (7, true)] {
        for chosen in [false, true] {
            cases.push(summarised((ratio, overlap), chosen));
        }
    }
    cases
}

/// A window and summaries, all of them or those that an indexer chooses.
fn summarised((ratio, overlap): (u32, bool), chosen: bool) -> Case {
    const DIM: u32 = 16;
    let mut f = Fixture::new(Limits {
        kv_dtype: DType::F32,
        ..small_limits()
    });
    let runs = if overlap { 2 } else { 1 };
    let wide = runs * DIM;
    let key = |dim_v| SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: DIM,
        dim_v,
    };
    let parts = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: wide,
        dim_v: Some(wide),
    };
    let window = slot(&mut f, CacheKind::Window(6), 4, key(None));
    let rolling = slot(&mut f, CacheKind::Window(runs * ratio), 4, parts);
    let block = ratio * 4;
    let whole = slot(&mut f, CacheKind::Entries(ratio), block, key(Some(0)));
    let [q, k, x, s] = [4 * DIM, DIM, wide, wide].map(|width| f.input(&[width]));
    f.node(Op::CacheWrite { slot: window }, &[k], &[]);
    let ape = noises("ape", (ratio * wide) as usize);
    let compress = CompressOp {
        slot: rolling,
        ratio,
        overlap,
        ape: f.vector(&[ratio, wide], &ape),
    };
    let summary = f.op(Op::Compress(compress), &[x, s], &[DIM]);
    f.node(Op::CacheWrite { slot: whole }, &[summary], &[]);
    let mut ins = vec![q];
    if chosen {
        let [iq, weights] = [3 * DIM, 3].map(|width| f.input(&[width]));
        let op = SelectOp {
            slot: whole,
            n_heads: 3,
            dim: DIM,
            scale: 0.5,
            summed: true,
            top_k: 2,
            unit: 1,
            local: 0,
        };
        let ids = f.value(Lead::Rows, &[1, 2], ValType::I32);
        f.node(Op::Select(op), &[iq, weights], &[ids]);
        ins.push(ids);
    }
    let op = AttentionOp {
        n_heads: 4,
        n_kv_heads: 1,
        dim_v: DIM,
        mask: Mask::Window(6),
        entries: Some(whole),
        selection: chosen.then_some(Selection {
            unit: 1,
            choices: 1,
            tail: false,
        }),
        ..attention(window, PLAIN, 1)
    };
    let out = f.op(Op::Attention(op), &ins, &[4 * DIM]);
    let name = format!("select/summaries/{ratio}/overlap={overlap}/chosen={chosen}");
    Case::new(name, f, vec![summary, out])
        .ulps(ULPS)
        .mixed_steps()
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
        entries: None,
        selection: Some(Selection {
            unit: i.entry * i.unit,
            choices,
            tail: i.entry > 1,
        }),
    }
}
