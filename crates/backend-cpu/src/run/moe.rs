//! Mixtures of experts, and products with a matrix per head: rows are sorted by the matrix they need, and each
//! matrix runs through the same panels as any other product.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use tokkata_ir::{BackendError, RouteOp, Score};

use super::cx::{Cx, Kernel};
use crate::arena::Place;
use crate::kernels::act::softplus;
use crate::kernels::norm::softmax_run;
use crate::kernels::{Activations, Epilogue, Forms, Scratch as MatmulScratch};
use crate::layout::{Matrix, PANEL_ROWS};
use crate::pool::Worker;

/// Rows of one matrix that are prepared at a time.
pub(crate) const PORTION: usize = 256;

/// Working memory of one worker.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) acts: Activations,
    /// Routed rows, by expert.
    order: Vec<u32>,
    /// First place in `order` of each expert, and one past the last.
    starts: Vec<u32>,
    /// Experts with rows, most rows first.
    active: Vec<u32>,
    /// Scores that give weights, then scores that select.
    scores: Vec<f32>,
    picks: Vec<usize>,
}

/// What the scratch must hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    pub(crate) routed: usize,
    pub(crate) experts: usize,
    pub(crate) k: usize,
    pub(crate) forms: Forms,
}

impl Scratch {
    pub(crate) fn new(sizes: &Sizes) -> Self {
        Scratch {
            acts: Activations::new(sizes.rows.min(PORTION), sizes.k, sizes.forms),
            order: Vec::with_capacity(sizes.routed),
            starts: Vec::with_capacity(sizes.experts + 1),
            active: Vec::with_capacity(sizes.experts),
            scores: Vec::with_capacity(2 * sizes.experts),
            picks: Vec::with_capacity(2 * sizes.experts),
        }
    }

    /// Sorts routed rows by expert.
    fn sort(&mut self, experts: usize, ids: impl Iterator<Item = usize> + Clone) {
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        ids.clone().for_each(|e| self.starts[e + 1] += 1);
        (0..experts).for_each(|e| self.starts[e + 1] += self.starts[e]);
        self.order.clear();
        self.order.resize(self.starts[experts] as usize, 0);
        for (i, e) in ids.enumerate() {
            self.order[self.starts[e] as usize] = i as u32;
            self.starts[e] += 1;
        }
        // Each start has moved to its end, which is where the next one began.
        self.starts.copy_within(0..experts, 1);
        self.starts[0] = 0;
        self.active.clear();
        let starts = &self.starts;
        let rows = |e: u32| starts[e as usize + 1] - starts[e as usize];
        self.active
            .extend((0..experts as u32).filter(|&e| rows(e) > 0));
        self.active
            .sort_unstable_by_key(|&e| (std::cmp::Reverse(rows(e)), e));
    }
}

/// Chooses experts.
pub(crate) struct Route {
    pub(crate) logits: Place,
    pub(crate) ids: Place,
    pub(crate) weights: Place,
    pub(crate) op: RouteOp,
    pub(crate) bias: Option<Vec<f32>>,
    /// Experts of each token, in place of those with the largest scores.
    pub(crate) table: Option<Vec<u32>>,
}

impl Route {
    fn score(cx: &Cx<'_>, score: Score, logits: &[f32], out: &mut [f32]) {
        match score {
            Score::Softmax => softmax_run(cx.kernel, logits, out),
            Score::Logits => out.copy_from_slice(logits),
            Score::Sigmoid => out
                .iter_mut()
                .zip(logits)
                .for_each(|(o, &x)| *o = sigmoid(x)),
            Score::SqrtSoftplus => out
                .iter_mut()
                .zip(logits)
                .for_each(|(o, &x)| *o = softplus(x).sqrt()),
        }
    }

    fn row(&self, cx: &Cx<'_>, row: usize, scratch: &mut Scratch) {
        let (n, op) = (self.logits.width, &self.op);
        scratch.scores.resize(2 * n, 0.0);
        let (scores, select) = scratch.scores.split_at_mut(n);
        let logits = cx.row(self.logits, row);
        Self::score(cx, op.score, logits, scores);
        match op.select {
            Some(score) => Self::score(cx, score, logits, select),
            None => select.copy_from_slice(scores),
        }
        if let Some(bias) = &self.bias {
            select.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
        }
        if let Some(groups) = op.groups {
            mask_groups(
                groups.count as usize,
                groups.used as usize,
                select,
                &mut scratch.picks,
            );
        }
        match &self.table {
            Some(table) => self.listed(cx, table, row, &mut scratch.picks),
            None => best(select, op.top_k as usize, &mut scratch.picks),
        }
        // SAFETY: rows are dealt out to workers.
        let (ids, weights) = unsafe {
            (
                cx.ints_mut(self.ids, row),
                cx.cols_mut(self.weights, row, 0..self.weights.width),
            )
        };
        for (j, &expert) in scratch.picks.iter().enumerate() {
            ids[j] = (expert / op.id_divisor as usize) as i32;
            weights[j] = match op.near_ties > 0.0 {
                true => near_ties(scores, &scratch.picks[..=j], op.near_ties),
                false => scores[expert],
            };
        }
        self.weigh(cx, weights, &mut select[..op.top_k as usize]);
    }

    /// The experts that the table lists for a row's token.
    fn listed(&self, cx: &Cx<'_>, table: &[u32], row: usize, picks: &mut Vec<usize>) {
        let k = self.op.top_k as usize;
        let token = cx.step.tokens()[cx.step_row(self.logits.lead, row)];
        picks.clear();
        match table.chunks_exact(k).nth(token as usize) {
            Some(experts) => picks.extend(experts.iter().map(|&e| e as usize)),
            None => {
                picks.resize(k, 0);
                cx.fail(BackendError::no_row("cpu", token, table.len() / k));
            }
        }
    }

    /// Final weights of the chosen scores.
    fn weigh(&self, cx: &Cx<'_>, weights: &mut [f32], copy: &mut [f32]) {
        if self.op.softmax_chosen {
            copy.copy_from_slice(weights);
            softmax_run(cx.kernel, copy, weights);
        }
        if self.op.sigmoid_chosen {
            weights.iter_mut().for_each(|w| *w = sigmoid(*w));
        }
        if self.op.renormalise {
            let sum = weights.iter().sum::<f32>().max(1.0 / 16384.0);
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= self.op.scale);
    }
}

/// The share of the last pick among the experts that the others left and that come near it.
fn near_ties(scores: &[f32], picks: &[usize], margin: f32) -> f32 {
    let Some((&pick, before)) = picks.split_last() else {
        return 0.0;
    };
    let peak = scores[pick];
    let far = |s: f32| (peak - s) / s.abs().max(peak) > margin;
    let left = scores
        .iter()
        .enumerate()
        .filter(|(e, _)| !before.contains(e));
    let near = left.map(|(_, &s)| s).filter(|&s| !far(s));
    1.0 / near.map(|s| (s - peak).exp()).sum::<f32>()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Indices of the `n` largest, best first, the lowest index among equals.
fn best(x: &[f32], n: usize, picks: &mut Vec<usize>) {
    picks.clear();
    for _ in 0..n.min(x.len()) {
        let better = |best: Option<usize>, i: usize| match best {
            _ if picks.contains(&i) => best,
            Some(b) if x[i].total_cmp(&x[b]).is_le() => best,
            _ => Some(i),
        };
        let next = (0..x.len()).fold(None, better);
        picks.extend(next);
    }
}

/// Keeps the groups whose best two scores sum highest.
fn mask_groups(count: usize, used: usize, scores: &mut [f32], picks: &mut Vec<usize>) {
    let per_group = scores.len() / count;
    let strength = |group: &[f32]| {
        let pair = group
            .iter()
            .fold((f32::NEG_INFINITY, f32::NEG_INFINITY), |(a, b), &x| {
                if x > a { (x, a) } else { (a, b.max(x)) }
            });
        if group.len() > 1 {
            pair.0 + pair.1
        } else {
            pair.0
        }
    };
    let strengths: Vec<f32> = scores.chunks_exact(per_group).map(strength).collect();
    best(&strengths, used, picks);
    for (g, group) in scores.chunks_exact_mut(per_group).enumerate() {
        if !picks.contains(&g) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

impl Kernel for Route {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).moe };
        for row in worker.share(cx.count(self.logits.lead)) {
            self.row(cx, row, scratch);
        }
    }
}

/// Orders routed rows by expert.
pub(crate) struct Group {
    pub(crate) ids: Place,
    pub(crate) order: Place,
    pub(crate) starts: Place,
    pub(crate) experts: usize,
}

impl Kernel for Group {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        if worker.index() > 0 {
            return;
        }
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).moe };
        let rows = cx.count(self.ids.lead);
        let ids = (0..rows)
            .flat_map(|row| cx.ints(self.ids, row))
            .map(|&e| e as usize);
        scratch.sort(self.experts, ids);
        let k = self.ids.width;
        for e in 0..self.experts {
            let start = scratch.starts[e];
            for place in start..scratch.starts[e + 1] {
                let (row, col) = (place as usize / k, place as usize % k);
                // SAFETY: only this worker writes.
                unsafe {
                    cx.ints_mut(self.order, row)[col] = scratch.order[place as usize] as i32;
                    cx.ints_mut(self.starts, row)[col] = start as i32;
                }
            }
        }
    }
}

/// Which matrix each part of a row goes through.
pub(crate) enum Choice {
    /// The expert in this column of the ids.
    Ids(Place),
    /// Part h goes through matrix h.
    Heads,
}

/// Products with one of several stacked matrices `[E, N, K]`.
pub(crate) struct Stacked {
    pub(crate) matrix: Arc<Matrix>,
    pub(crate) choice: Choice,
    /// `[T, K]`, shared by all parts of a row, or `[T, parts · K]`.
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) n: usize,
    pub(crate) count: usize,
    /// Parts of a row.
    pub(crate) parts: usize,
    /// `[E]`.
    pub(crate) scale: Option<Vec<f32>>,
    /// `[E, N]`.
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) tickets: usize,
}

/// Stores tiles of a routed product.
struct PutRouted<'a, 'b> {
    cx: &'a Cx<'b>,
    of: &'a Stacked,
    expert: usize,
    routed: &'a [u32],
}

impl Epilogue for PutRouted<'_, '_> {
    fn tile(&mut self, rows: Range<usize>, cols: Range<usize>, values: &[[f32; PANEL_ROWS]]) {
        let (of, first) = (self.of, self.expert * self.of.n);
        let cols = cols.start - first..cols.end - first;
        for (&routed, values) in self.routed[rows].iter().zip(values) {
            let (row, part) = (routed as usize / of.parts, routed as usize % of.parts);
            let to = part * of.n + cols.start..part * of.n + cols.end;
            // SAFETY: the panels of an expert belong to one worker.
            let to = unsafe { self.cx.cols_mut(of.out, row, to) };
            let scale = of.scale.as_ref().map_or(1.0, |s| s[self.expert]);
            for (i, (to, &value)) in to.iter_mut().zip(values).enumerate() {
                let bias = of.bias.as_ref().map_or(0.0, |b| b[first + cols.start + i]);
                *to = value * scale + bias;
            }
        }
    }
}

impl Stacked {
    fn sort(&self, cx: &Cx<'_>, scratch: &mut Scratch) {
        let rows = cx.count(self.x.lead);
        match self.choice {
            Choice::Ids(ids) => {
                let ids = (0..rows)
                    .flat_map(|row| cx.ints(ids, row))
                    .map(|&e| e as usize);
                scratch.sort(self.count, ids);
            }
            Choice::Heads => {
                scratch.sort(self.count, (0..rows * self.parts).map(|i| i % self.parts));
            }
        }
    }

    fn input<'a>(&self, cx: &'a Cx<'_>, routed: u32) -> &'a [f32] {
        let (row, part) = (routed as usize / self.parts, routed as usize % self.parts);
        let (x, k) = (cx.row(self.x, row), self.matrix.k());
        if x.len() == k { x } else { &x[part * k..][..k] }
    }

    /// All rows of one expert through some of its panels.
    fn expert(
        &self,
        cx: &Cx<'_>,
        expert: usize,
        share: (usize, usize),
        scratch: (&mut Scratch, &mut MatmulScratch),
    ) {
        let per_expert = self.n.div_ceil(PANEL_ROWS);
        let panels = crate::pool::share(per_expert, share.0, share.1);
        if panels.is_empty() {
            return;
        }
        let panels = expert * per_expert + panels.start..expert * per_expert + panels.end;
        let (
            Scratch {
                acts,
                order,
                starts,
                ..
            },
            matmul,
        ) = scratch;
        let routed = &order[starts[expert] as usize..starts[expert + 1] as usize];
        for routed in routed.chunks(PORTION) {
            let writer = acts.begin(routed.len(), self.matrix.k(), cx.kernel.forms(&self.matrix));
            for (i, &r) in routed.iter().enumerate() {
                // SAFETY: the activations belong to this worker.
                unsafe { writer.write(&cx.kernel, i, self.input(cx, r)) };
            }
            let mut put = PutRouted {
                cx,
                of: self,
                expert,
                routed,
            };
            cx.kernel
                .matmul(&self.matrix, acts, panels.clone(), matmul, &mut put);
        }
    }
}

impl Kernel for Stacked {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { cx.scratch(worker) };
        self.sort(cx, &mut scratch.moe);
        let active = scratch.moe.active.len();
        let shares = if active >= 4 * worker.count() {
            1
        } else {
            worker.count()
        };
        loop {
            let ticket = cx.ticket(self.tickets);
            if ticket >= active * shares {
                break;
            }
            let expert = scratch.moe.active[ticket / shares] as usize;
            self.expert(
                cx,
                expert,
                (ticket % shares, shares),
                (&mut scratch.moe, &mut scratch.matmul),
            );
        }
    }
}
