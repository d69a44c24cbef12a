//! Attention: masks, sources, cache types, block sizes and score extras.

use std::ops::Range;

use tokkata_core::DType;
use tokkata_ir::op::BucketBias;
use tokkata_ir::{AttentionOp, CacheKind, ConstData, KvSource, Limits, Mask, Op, SlotDef, SlotId};

use super::case::{Case, ROWS, Rounds};
use crate::fixture::{Fixture, Rows, noises, small_limits};

const MASKS: [Mask; 5] = [
    Mask::Causal,
    Mask::Full,
    Mask::Window(6),
    Mask::Chunk(5),
    Mask::Symmetric(6),
];

/// Heads and widths of an attention.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: u32,
    kv_heads: u32,
    dim_k: u32,
    dim_v: u32,
}

const GROUPED: Sizes = sizes(6, 2, 16, 16);

const fn sizes(heads: u32, kv_heads: u32, dim_k: u32, dim_v: u32) -> Sizes {
    Sizes {
        heads,
        kv_heads,
        dim_k,
        dim_v,
    }
}

fn plain(sizes: Sizes, mask: Mask, source: KvSource) -> AttentionOp {
    AttentionOp {
        n_heads: sizes.heads,
        n_kv_heads: sizes.kv_heads,
        dim_k: sizes.dim_k,
        dim_v: sizes.dim_v,
        scale: 2.0 / (sizes.dim_k as f32).sqrt(),
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask,
        source,
        entries: None,
        selection: None,
    }
}

/// Rounding of scores, of the softmax and of the sum of values.
const ULPS: f64 = 8.0;

/// [`ULPS`] with a sum of so many values one after another: an addition rounds by 0.42 units of the partial sum (rms), and
/// squares of partial sums grow evenly up to the last.
fn ulps_of_sum(values: usize) -> f64 {
    (ULPS * ULPS + 0.42 * 0.42 * values as f64 / 2.0).sqrt()
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mask in MASKS {
        cases.push(over_rows(GROUPED, mask));
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            for block in [1, 16, small_limits().ctx] {
                cases.push(cached((dtype, block), GROUPED, mask));
            }
        }
    }
    for sizes in [
        sizes(1, 1, 1, 1),
        sizes(5, 1, 7, 3),
        sizes(3, 3, 80, 80),
        sizes(8, 2, 192, 128),
        sizes(4, 1, 64, 64),
    ] {
        cases.push(over_rows(sizes, Mask::Full));
        for dtype in [DType::F32, DType::F16] {
            cases.push(cached((dtype, 16), sizes, Mask::Causal));
        }
    }
    cases.push(cached((DType::Q8_0, 16), sizes(4, 2, 64, 32), Mask::Causal));
    for sizes in [
        sizes(4, 2, 64, 64),
        sizes(3, 3, 32, 32),
        sizes(2, 1, 128, 128),
        sizes(2, 1, 48, 40),
    ] {
        for mask in [Mask::Full, Mask::Symmetric(21), Mask::Symmetric(150)] {
            cases.push(over_many_rows(sizes, mask));
        }
    }
    for sizes in [
        sizes(8, 1, 64, 64),
        sizes(6, 3, 128, 128),
        sizes(3, 3, 64, 64),
    ] {
        for mask in [Mask::Causal, Mask::Window(150)] {
            cases.push(long(sizes, mask, false));
            cases.push(long(sizes, mask, true));
        }
    }
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        cases.push(keys_only(dtype));
        cases.push(cross(dtype));
    }
    cases.push(over_encoder(sizes(6, 3, 64, 64)));
    cases.push(over_encoder(sizes(2, 2, 128, 128)));
    cases.extend(extras());
    cases
}

fn fixture(kv_dtype: DType) -> Fixture {
    Fixture::new(Limits {
        kv_dtype,
        ..small_limits()
    })
}

fn over_rows(sizes: Sizes, mask: Mask) -> Case {
    let case = of_rows(fixture(DType::F32), "rows", sizes, mask);
    let case = ROWS
        .iter()
        .fold(case, |case, &n| case.step(vec![Rows::first(n)]));
    case.step(vec![
        Rows::of(3, 0..9),
        Rows::of(1, 0..1),
        Rows::of(2, 0..17),
    ])
}

/// Of more rows than a backend takes at a time, so that sequences end within a tile and at its border.
fn over_many_rows(sizes: Sizes, mask: Mask) -> Case {
    let f = Fixture::new(Limits {
        rows: 256,
        ctx: 256,
        kv_dtype: DType::F32,
        ..small_limits()
    });
    let case = of_rows(f, "many-rows", sizes, mask);
    case.step(vec![Rows::first(150)]).step(vec![
        Rows::of(3, 0..128),
        Rows::of(1, 0..3),
        Rows::of(2, 0..65),
    ])
}

fn of_rows(mut f: Fixture, name: &str, sizes: Sizes, mask: Mask) -> Case {
    let op = plain(sizes, mask, KvSource::Rows);
    let q = f.input(&[sizes.heads * sizes.dim_k]);
    let k = f.input(&[sizes.kv_heads * sizes.dim_k]);
    let v = f.input(&[sizes.kv_heads * sizes.dim_v]);
    let width = sizes.heads * sizes.dim_v;
    let out = f.op(Op::Attention(op), &[q, k, v], &[width]);
    let name = format!("attention/{name}/{mask:?}/{sizes:?}");
    let case = Case::new(name, f, vec![out]).ulps(ULPS);
    case.rounds(Rounds::Attention(DType::F32))
}

fn kind(mask: Mask) -> CacheKind {
    match mask {
        Mask::Window(w) | Mask::Chunk(w) => CacheKind::Window(w),
        _ => CacheKind::Full,
    }
}

/// Attention over what the same plan writes, over prompt and decode steps.
fn cached((dtype, block): (DType, u32), sizes: Sizes, mask: Mask) -> Case {
    let mut f = fixture(dtype);
    let group = cache(&mut f, kind(mask), block, (sizes, Some(sizes.dim_v)));
    let slot = SlotId { group, slot: 1 };
    let op = plain(sizes, mask, KvSource::Cache(slot));
    let name = format!("attention/{dtype}/block{block}/{mask:?}/{sizes:?}");
    write_and_attend(name, f, slot, op)
        .rounds(Rounds::Attention(dtype))
        .mixed_steps()
}

/// Rows over some hundred positions in halves, beside each other and alone.
fn long(sizes: Sizes, mask: Mask, sinks: bool) -> Case {
    let mut f = Fixture::new(Limits {
        kv_dtype: DType::F16,
        ctx: 448,
        ..small_limits()
    });
    let group = cache(&mut f, kind(mask), 32, (sizes, Some(sizes.dim_v)));
    let slot = SlotId { group, slot: 1 };
    let op = AttentionOp {
        sinks: sinks.then(|| f.vector(&[sizes.heads], &noises("sinks", sizes.heads as usize))),
        ..plain(sizes, mask, KvSource::Cache(slot))
    };
    let name = format!("attention/long/{mask:?}/{sizes:?}/sinks={sinks}");
    // Rows of few keys are several times as large as those of many, which the rms of the output is mostly made of.
    let case = write_and_attend(name, f, slot, op).ulps(2.0 * ULPS);
    let case = case.rounds(Rounds::Attention(DType::F16));
    let chunk = |case: Case, start: usize| {
        case.step(vec![
            Rows::of(0, start..start + 50),
            Rows::of(3, start..start + 7),
        ])
    };
    let case = (0..8).map(|i| i * 50).fold(case, chunk);
    case.step(vec![Rows::of(0, 400..401)])
}

fn cache(
    f: &mut Fixture,
    kind: CacheKind,
    block: u32,
    (sizes, dim_v): (Sizes, Option<u32>),
) -> tokkata_ir::GroupId {
    let slot = SlotDef::Kv {
        n_kv_heads: sizes.kv_heads,
        dim_k: sizes.dim_k,
        dim_v,
    };
    f.cache(kind, block, vec![slot.clone(), slot])
}

fn write_and_attend(name: String, mut f: Fixture, slot: SlotId, op: AttentionOp) -> Case {
    let q = f.input(&[op.n_heads * op.dim_k]);
    let k = f.input(&[op.n_kv_heads * op.dim_k]);
    let v = f.input(&[op.n_kv_heads * op.dim_v]);
    f.node(Op::CacheWrite { slot }, &[k, v], &[]);
    let width = op.n_heads * op.dim_v;
    let out = f.op(Op::Attention(op), &[q], &[width]);
    Case::new(name, f, vec![out]).ulps(ULPS)
}

/// Values are the first columns of the keys, as in a latent cache.
fn keys_only(dtype: DType) -> Case {
    let sizes = sizes(4, 1, 96, 64);
    let mut f = fixture(dtype);
    let group = cache(&mut f, CacheKind::Full, 16, (sizes, None));
    let slot = SlotId { group, slot: 1 };
    let q = f.input(&[sizes.heads * sizes.dim_k]);
    let k = f.input(&[sizes.dim_k]);
    f.node(Op::CacheWrite { slot }, &[k], &[]);
    let op = plain(sizes, Mask::Causal, KvSource::Cache(slot));
    let out = f.op(Op::Attention(op), &[q], &[sizes.heads * sizes.dim_v]);
    Case::new(format!("attention/keys_only/{dtype}"), f, vec![out])
        .ulps(ULPS)
        .rounds(Rounds::Attention(dtype))
        .mixed_steps()
}

fn cross(dtype: DType) -> Case {
    let mut f = fixture(dtype);
    let group = cache(&mut f, CacheKind::Cross, 4, (GROUPED, Some(GROUPED.dim_v)));
    let slot = SlotId { group, slot: 0 };
    let op = plain(GROUPED, Mask::Full, KvSource::Cross(slot));
    let rows = |seq, n| Rows {
        enc_len: n,
        ..Rows::of(seq, 0..n)
    };
    write_and_attend(format!("attention/cross/{dtype}"), f, slot, op)
        .rounds(Rounds::Attention(dtype))
        .step(vec![rows(0, 1)])
        .step(vec![rows(1, 13), rows(2, 5)])
}

/// Rows over some hundred rows of an encoder in halves: as many as those, and few.
fn over_encoder(sizes: Sizes) -> Case {
    let mut f = Fixture::new(Limits {
        rows: 512,
        ctx: 512,
        enc_rows: 512,
        kv_dtype: DType::F16,
        ..small_limits()
    });
    let group = cache(&mut f, CacheKind::Cross, 32, (sizes, Some(sizes.dim_v)));
    let slot = SlotId { group, slot: 0 };
    let op = plain(sizes, Mask::Full, KvSource::Cross(slot));
    let many = 300;
    let rows = |seq, range: Range<usize>, enc_len| Rows {
        enc_len,
        ..Rows::of(seq, range)
    };
    // Values of a few rows average to more than those of many: weights err relative to themselves, so a row does to its size.
    write_and_attend(format!("attention/encoder/{sizes:?}"), f, slot, op)
        .by_rows()
        .ulps(ulps_of_sum(many))
        .rounds(Rounds::Attention(DType::F16))
        .step(vec![rows(1, 0..many, many), rows(0, 0..20, 20)])
        .step(vec![rows(1, many..many + 3, many), rows(0, 20..21, 20)])
}

/// Caps, sinks, slopes and learned biases.
fn extras() -> Vec<Case> {
    let heads = GROUPED.heads;
    let bucket = |bidirectional| {
        move |f: &mut Fixture, op: AttentionOp| {
            let bias = BucketBias {
                table: f.vector(&[8, heads], &noises("buckets", 8 * heads as usize)),
                buckets: 8,
                max_distance: 16,
                bidirectional,
            };
            AttentionOp {
                bucket: Some(bias),
                ..op
            }
        }
    };
    vec![
        extra("cap", Mask::Causal, |_, op| AttentionOp {
            cap: Some(1.5),
            ..op
        }),
        extra("sinks", Mask::Window(6), |f, op| AttentionOp {
            sinks: Some(f.vector(&[heads], &noises("sinks", heads as usize))),
            ..op
        }),
        extra("alibi", Mask::Causal, |f, op| AttentionOp {
            alibi: Some(f.constant(ConstData::F32(noises("slopes", heads as usize)))),
            ..op
        }),
        extra("bucket", Mask::Causal, bucket(false)),
        extra("bucket/both", Mask::Full, bucket(true)),
    ]
}

fn extra(
    name: &str,
    mask: Mask,
    change: impl FnOnce(&mut Fixture, AttentionOp) -> AttentionOp,
) -> Case {
    let mut f = fixture(DType::F32);
    let group = cache(&mut f, kind(mask), 16, (GROUPED, Some(GROUPED.dim_v)));
    let slot = SlotId { group, slot: 0 };
    let op = change(&mut f, plain(GROUPED, mask, KvSource::Cache(slot)));
    write_and_attend(format!("attention/{name}"), f, slot, op)
        .rounds(Rounds::Attention(DType::F32))
        .mixed_steps()
}
