//! Mixtures of experts: routing, grouping, segmented products and their sum.

use tokkata_ir::op::ExpertGroups;
use tokkata_ir::{BackendError, RouteOp, Score};

use crate::args::{Args, Mat};
use crate::kernels::gather::row_of;
use crate::kernels::matmul::Linear;
use crate::kernels::norm::softmax_run;
use crate::real::{Real, sigmoid, softplus, total};

/// Chosen ids and their weights, best first.
pub(crate) fn route<R: Real>(
    args: &Args<'_, R>,
    op: &RouteOp,
) -> Result<(Vec<i32>, Vec<R>), BackendError> {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    let (bias, table) = (args.maybe(op.bias), args.maybe(op.table));
    for (row, step_row) in args.mat(0).rows().zip(args.step_rows()) {
        let scores = score(op.score, row);
        let chosen = match table {
            Some(table) => listed(table, op, args.step.tokens()[step_row])?,
            None => choose(op, &selection(op, row, &scores, bias)),
        };
        let mut chosen_weights = match op.near_ties > 0.0 {
            true => near_ties(&scores, &chosen, R::from(op.near_ties)),
            false => chosen.iter().map(|&e| scores[e]).collect(),
        };
        weigh(op, &mut chosen_weights);
        ids.extend(chosen.iter().map(|&e| e as i32 / op.id_divisor as i32));
        weights.extend(chosen_weights);
    }
    Ok((ids, weights))
}

fn score<R: Real>(score: Score, logits: &[R]) -> Vec<R> {
    let mut out = logits.to_vec();
    match score {
        Score::Softmax => softmax_run(&mut out),
        Score::Sigmoid => out.iter_mut().for_each(|x| *x = sigmoid(*x)),
        Score::Logits => {}
        Score::SqrtSoftplus => out.iter_mut().for_each(|x| *x = softplus(*x).sqrt()),
    }
    out
}

/// Scores that select: biased, and −∞ outside the kept groups.
fn selection<R: Real>(op: &RouteOp, logits: &[R], scores: &[R], bias: Option<&[f32]>) -> Vec<R> {
    let mut out = match op.select {
        Some(select) => score(select, logits),
        None => scores.to_vec(),
    };
    for (x, &b) in out.iter_mut().zip(bias.unwrap_or_default()) {
        *x += R::from(b);
    }
    if let Some(groups) = op.groups {
        mask_groups(groups, &mut out);
    }
    out
}

/// Keeps the groups whose best two scores sum highest.
fn mask_groups<R: Real>(groups: ExpertGroups, scores: &mut [R]) {
    let per_group = scores.len() / groups.count as usize;
    let strength = |group: &[R]| {
        let best = best(group, 2);
        best.iter().fold(R::ZERO, |sum, &i| sum + group[i])
    };
    let strengths: Vec<R> = scores.chunks_exact(per_group).map(strength).collect();
    let kept = best(&strengths, groups.used as usize);
    for (g, group) in scores.chunks_exact_mut(per_group).enumerate() {
        if !kept.contains(&g) {
            group.fill(-R::INFINITY);
        }
    }
}

/// The experts that a table lists for a token.
fn listed(table: &[f32], op: &RouteOp, token: u32) -> Result<Vec<usize>, BackendError> {
    let row = row_of(table, op.top_k as usize, token)?;
    Ok(row.iter().map(|&e| e as usize).collect())
}

fn choose<R: Real>(op: &RouteOp, selection: &[R]) -> Vec<usize> {
    best(selection, op.top_k as usize)
}

/// Indices of the `n` largest, best first, the lowest index among equals.
fn best<R: Real>(x: &[R], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].wide().total_cmp(&x[a].wide()).then(a.cmp(&b)));
    order.truncate(n);
    order
}

/// The share of each choice among the experts that are left and come near it.
fn near_ties<R: Real>(scores: &[R], chosen: &[usize], margin: R) -> Vec<R> {
    let share = |(j, &choice): (usize, &usize)| {
        let peak = scores[choice];
        let far = |s: R| (peak - s) / s.abs().max(peak) > margin;
        let left = (0..scores.len()).filter(|e| !chosen[..j].contains(e));
        let near = left.map(|e| scores[e]).filter(|&s| !far(s));
        let sum = near.fold(R::ZERO, |sum, s| sum + (s - peak).exp());
        R::ONE / sum
    };
    chosen.iter().enumerate().map(share).collect()
}

/// Final weights of the chosen scores.
fn weigh<R: Real>(op: &RouteOp, weights: &mut [R]) {
    if op.softmax_chosen {
        softmax_run(weights);
    }
    if op.sigmoid_chosen {
        weights.iter_mut().for_each(|w| *w = sigmoid(*w));
    }
    if op.renormalise {
        let least = R::of(2f64.powi(-14));
        let sum = total(weights).max(least);
        weights.iter_mut().for_each(|w| *w = *w / sum);
    }
    let scale = R::from(op.scale);
    weights.iter_mut().for_each(|w| *w = *w * scale);
}

/// Routed rows (`row · k + j`) ordered by expert, and for each the place where its expert's run starts.
pub(crate) fn group(ids: &[i32]) -> (Vec<i32>, Vec<i32>) {
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|&i| (ids[i], i));
    let mut starts = Vec::with_capacity(ids.len());
    for (place, &i) in order.iter().enumerate() {
        let start = match starts.last() {
            Some(&start) if ids[order[place - 1]] == ids[i] => start,
            _ => place as i32,
        };
        starts.push(start);
    }
    (order.iter().map(|&i| i as i32).collect(), starts)
}

/// The weights of every expert.
pub(crate) struct Experts<'a> {
    /// `[E, N, K]`.
    pub(crate) weight: &'a [f32],
    /// `[E]`.
    pub(crate) scale: Option<&'a [f32]>,
    /// `[E, N]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// Outputs and inputs of one expert.
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// Each row times the matrices of its experts; the row is shared or has a part per expert.
pub(crate) fn experts<R: Real>(args: &Args<'_, R>, top_k: usize, experts: &Experts<'_>) -> Vec<R> {
    let x = args.mat(0);
    let k = experts.k;
    let per_expert = experts.n * k;
    let mut out = Vec::new();
    for (i, &id) in args.ints(1).iter().enumerate() {
        let (row, j, e) = (x.row(i / top_k), i % top_k, id as usize);
        let part = if x.width == k {
            row
        } else {
            &row[j * k..][..k]
        };
        let linear = Linear {
            weight: &experts.weight[e * per_expert..][..per_expert],
            scale: experts.scale.map(|s| &s[e..=e]),
            bias: experts.bias.map(|b| &b[e * experts.n..][..experts.n]),
        };
        linear.apply(part, &mut out);
    }
    out
}

/// `Σ_j weights[j] · x[j]`.
pub(crate) fn combine<R: Real>(x: Mat<'_, R>, weights: Mat<'_, R>) -> Vec<R> {
    let n = x.width / weights.width;
    let mut out = Vec::new();
    for (row, weights) in x.rows().zip(weights.rows()) {
        let mut sum = vec![R::ZERO; n];
        for (part, &w) in row.chunks_exact(n).zip(weights) {
            sum.iter_mut().zip(part).for_each(|(s, &x)| *s += w * x);
        }
        out.extend(sum);
    }
    out
}
