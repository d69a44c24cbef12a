//! What adapters add: rows of two of them, of different ranks, and of none beside each other.

use tokkata_core::DType;
use tokkata_ir::{AdaptForm, BinaryKind, Lead, LowRank, NormKind, Op, ValType, ValueId, WeightId};

use super::case::{Case, Rounds};
use super::linear::{matrix, sum_ulps};
use crate::fixture::{Feed, Fixture, Rows, noises};

/// Ranks of the two adapters.
const RANKS: [u32; 2] = [3, 16];

/// Formats of products that devices do with what stands around them: of the two of a gate, and of the one behind it.
const FORMATS: [[DType; 3]; 6] = [
    [DType::F32, DType::F32, DType::F32],
    [DType::F16, DType::F16, DType::F16],
    [DType::BF16, DType::BF16, DType::BF16],
    [DType::Q4_K, DType::Q4_K, DType::Q6_K],
    [DType::Q8_0, DType::Q8_0, DType::Q8_0],
    [DType::Q4_0, DType::Q8_0, DType::Q4_0],
];

const SILU: Op = Op::Gate {
    act: tokkata_ir::Act::Silu,
    clamp: tokkata_ir::op::GateClamp::None,
};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (k, n) in [(1, 1), (7, 5), (64, 33), (100, 96)] {
        cases.push(product((k, n), false));
        cases.push(product((k, n), true));
    }
    cases.extend([heads(1, (5, 3)), heads(3, (16, 24))]);
    for shared in [false, true] {
        cases.push(experts(shared));
    }
    cases.extend([normed(), tokens(), head()]);
    cases.extend(FORMATS.map(feed_forward));
    cases
}

/// Pairs for a weight of so many matrices.
fn pairs(weight: WeightId, (count, n, k): (u32, u32, u32)) -> impl Iterator<Item = LowRank> {
    RANKS.into_iter().map(move |rank| {
        let of = |name: &str, len: u32, scale: f32| -> Vec<f32> {
            let noise = noises(&format!("{name}{weight}.{rank}"), (count * len) as usize);
            noise.iter().map(|x| x * scale).collect()
        };
        LowRank {
            weight,
            rank,
            a: of("a", rank * k, (3.0 / k as f32).sqrt()),
            b: of("b", n * rank, (3.0 / rank as f32).sqrt()),
        }
    })
}

/// The second adapter has a pair for every weight, the first for all but the last.
fn attach(f: &mut Fixture, weights: &[(WeightId, (u32, u32, u32))]) {
    let all: Vec<Vec<LowRank>> = weights
        .iter()
        .map(|&(w, dims)| pairs(w, dims).collect())
        .collect();
    for (i, _) in RANKS.iter().enumerate() {
        let kept = if i == 0 {
            all.len().div_ceil(2)
        } else {
            all.len()
        };
        f.adapter(all[..kept].iter().map(|of| of[i].clone()).collect());
    }
}

fn matmul(f: &mut Fixture, x: ValueId, (k, n): (u32, u32)) -> (ValueId, WeightId) {
    let weight = matrix(f, DType::F32, &[n, k]);
    let op = Op::Matmul {
        weight,
        scale: None,
        bias: None,
    };
    (f.op(op, &[x], &[n]), weight)
}

fn product_of(f: &mut Fixture, x: ValueId, dims: (u32, u32)) -> (ValueId, WeightId) {
    let (y, weight) = matmul(f, x, dims);
    let form = AdaptForm::Product;
    (f.op(Op::Adapt { weight, form }, &[x, y], &[dims.1]), weight)
}

/// Prompts and answers of both adapters and of none, and a step of which no row has one.
fn steps(case: Case) -> Case {
    let rows = |seq, at, adapter| Rows {
        adapter,
        ..Rows::of(seq, at)
    };
    case.step(vec![rows(0, 0..3, 1), rows(1, 0..2, 0), rows(2, 0..17, 2)])
        .step(vec![rows(0, 3..4, 0), rows(1, 2..3, 0)])
        .step(vec![rows(2, 17..18, 2), rows(0, 4..5, 1), rows(1, 3..4, 0)])
        .step(vec![rows(1, 4..5, 1)])
}

fn product((k, n): (u32, u32), shown: bool) -> Case {
    let mut f = Fixture::default();
    let x = f.input(&[k]);
    let (y, weight) = product_of(&mut f, x, (k, n));
    attach(&mut f, &[(weight, (1, n, k))]);
    if !shown {
        // Then it may be made in the place of the product.
        f.show(&[y]);
    }
    let name = format!("adapt/product/{n}x{k}/shown={shown}");
    steps(Case::new(name, f, vec![y]).ulps(3.0 + 3.0 * sum_ulps(k)))
}

fn heads(count: u32, (k, n): (u32, u32)) -> Case {
    let mut f = Fixture::default();
    let x = f.input(&[count * k]);
    let weight = matrix(&mut f, DType::F32, &[count, n, k]);
    let y = f.op(
        Op::HeadMatmul {
            weight,
            heads: count,
        },
        &[x],
        &[count * n],
    );
    let form = AdaptForm::Heads;
    let y = f.op(Op::Adapt { weight, form }, &[x, y], &[count * n]);
    attach(&mut f, &[(weight, (count, n, k))]);
    let name = format!("adapt/heads/{count}x{n}x{k}");
    steps(Case::new(name, f, vec![y]).ulps(3.0 + 3.0 * sum_ulps(k)))
}

/// Experts that are chosen by the row; the input is shared or one for each.
fn experts(shared: bool) -> Case {
    let (count, top_k, n, k) = (4, 2, 24, 16);
    let mut f = Fixture::default();
    let width = if shared { k } else { top_k * k };
    let x = f.input(&[width]);
    let ids = f.input_of(Lead::Rows, &[top_k], ValType::I32);
    let weight = matrix(&mut f, DType::F32, &[count, n, k]);
    let op = Op::Experts {
        weight,
        scale: None,
        bias: None,
        top_k,
    };
    let y = f.op(op, &[x, ids], &[top_k * n]);
    let form = AdaptForm::Experts;
    let y = f.op(Op::Adapt { weight, form }, &[x, y, ids], &[top_k * n]);
    attach(&mut f, &[(weight, (count, n, k))]);
    f.show(&[y]);
    let name = format!("adapt/experts/shared={shared}");
    let mut case = Case::new(name, f, vec![y]).ulps(3.0 + 3.0 * sum_ulps(k));
    for (adapter, rows) in [(1, 5), (2, 3), (0, 2)] {
        let noise = noises(&format!("{shared}{rows}"), rows * width as usize);
        let chosen = |i: usize| (i * 3 % count as usize) as f32;
        let chosen = (0..rows * top_k as usize).map(chosen).collect();
        let feed = Feed {
            values: vec![(x, noise), (ids, chosen)],
            ..Feed::default()
        };
        let rows = Rows {
            adapter,
            ..Rows::first(rows)
        };
        case.steps.push((vec![rows], feed));
    }
    case
}

fn norm(f: &mut Fixture, x: ValueId, width: u32) -> ValueId {
    let norm = Op::Norm {
        kind: NormKind::Rms,
        eps: 1e-5,
        width,
        weight: Some(f.vector(&[width], &noises("norm", width as usize))),
        bias: None,
    };
    f.op(norm, &[x], &[width])
}

/// Two products of one norm, of which one adapter adds to the first alone, and a sum.
fn normed() -> Case {
    let (k, n) = (96, 80);
    let mut f = Fixture::default();
    let x = f.input(&[k]);
    let h = norm(&mut f, x, k);
    let (a, first) = product_of(&mut f, h, (k, n));
    let (b, second) = product_of(&mut f, h, (k, n));
    let y = f.op(SILU, &[a, b], &[n]);
    attach(&mut f, &[(first, (1, n, k)), (second, (1, n, k))]);
    f.show(&[y]);
    steps(Case::new("adapt/normed", f, vec![y]).ulps(16.0 + 4.0 * sum_ulps(k)))
}

/// Products behind a norm, before a gate and before a sum: what would be done with them at once where nothing was added.
fn feed_forward(dtypes: [DType; 3]) -> Case {
    let (d, n) = (256, 512);
    let mut f = Fixture::default();
    let x = f.input(&[d]);
    let h = norm(&mut f, x, d);
    let mut all = Vec::new();
    let mut product = |f: &mut Fixture, dtype, x, (k, n): (u32, u32)| {
        let scale = (3.0 / k as f32).sqrt();
        let noise = noises(&format!("product{}", all.len()), (n * k) as usize);
        let values: Vec<f32> = noise.iter().map(|x| x * scale).collect();
        let weight = f.matrix(dtype, &[n, k], &values);
        let op = Op::Matmul {
            weight,
            scale: None,
            bias: None,
        };
        all.push((weight, (1, n, k)));
        let y = f.op(op, &[x], &[n]);
        let form = AdaptForm::Product;
        f.op(Op::Adapt { weight, form }, &[x, y], &[n])
    };
    let a = product(&mut f, dtypes[0], h, (d, n));
    let b = product(&mut f, dtypes[1], h, (d, n));
    let h = f.op(SILU, &[a, b], &[n]);
    let y = product(&mut f, dtypes[2], h, (n, d));
    let add = Op::Binary {
        kind: BinaryKind::Add,
        a_scale: 1.0,
        b_scale: 1.0,
    };
    let y = f.op(add, &[x, y], &[d]);
    attach(&mut f, &all);
    f.show(&[y]);
    let name = format!("adapt/feed_forward/{}/{}", dtypes[0], dtypes[1]);
    let case = Case::new(name, f, vec![y]).ulps(24.0 + 4.0 * sum_ulps(n));
    steps(case.rounds(Rounds::Within(dtypes[0])))
}

fn tokens() -> Case {
    let (k, n) = (40, 11);
    let mut f = Fixture::default();
    let table = matrix(&mut f, DType::F32, &[n, k]);
    let index = tokkata_ir::GatherIndex::Token;
    let y = f.op(Op::Gather { table, index }, &[], &[k]);
    let form = AdaptForm::Tokens;
    let weight = table;
    let y = f.op(Op::Adapt { weight, form }, &[y], &[k]);
    attach(&mut f, &[(table, (1, n, k))]);
    let rows = |seq, at: std::ops::Range<usize>, adapter| Rows {
        adapter,
        tokens: at.clone().map(|p| (p * 7 + seq) as u32 % n).collect(),
        ..Rows::of(seq, at)
    };
    Case::new("adapt/tokens", f, vec![y])
        .ulps(4.0)
        .step(vec![rows(0, 0..5, 1), rows(1, 0..3, 2), rows(2, 0..2, 0)])
        .step(vec![rows(1, 3..4, 0)])
}

/// Rows that were chosen keep their adapters.
fn head() -> Case {
    let (k, n) = (48, 40);
    let mut f = Fixture::default();
    let x = f.input(&[k]);
    let of = |f: &mut Fixture, op, from: &[ValueId], width| {
        let out = f.value(Lead::LogitRows, &[width], ValType::F32);
        f.node(op, from, &[out]);
        out
    };
    let picked = of(&mut f, Op::SelectRows, &[x], k);
    let weight = matrix(&mut f, DType::F32, &[n, k]);
    let op = Op::Matmul {
        weight,
        scale: None,
        bias: None,
    };
    let y = of(&mut f, op, &[picked], n);
    let form = AdaptForm::Product;
    let y = of(&mut f, Op::Adapt { weight, form }, &[picked, y], n);
    attach(&mut f, &[(weight, (1, n, k))]);
    let rows = |seq, at, logits: &[usize], adapter| Rows {
        logits: logits.to_vec(),
        adapter,
        ..Rows::of(seq, at)
    };
    Case::new("adapt/head", f, vec![y])
        .ulps(3.0 + 3.0 * sum_ulps(k))
        .step(vec![
            rows(0, 0..9, &[2, 8], 2),
            rows(1, 0..4, &[], 1),
            rows(2, 0..2, &[1], 1),
            rows(3, 0..2, &[0], 0),
        ])
}
