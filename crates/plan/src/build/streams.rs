//! Frames of more than one stream: AltUp, and looped stacks of two states.
//!
//! The streams of AltUp travel side by side in one value `[T, n·D]`. Around a layer they are predicted from each
//! other, the layer works on one of them, and what it learned corrects all.

use tokkata_ir::spec::{AltUpLayer, AltUpSpec, LaurelSpec, PerLayerInject, Proj, StackSpec, State};
use tokkata_ir::{Act, BinaryKind, GatherIndex, NormKind, Op, ValueId};

use super::Builder;
use super::stack::Carry;

/// Keeps a stream of zeros from dividing by zero.
const TINY: f32 = 1e-30;

/// The two states of a looped stack.
#[derive(Clone, Copy)]
pub(crate) struct States {
    first: ValueId,
    second: ValueId,
}

impl Builder<'_> {
    /// All layers between the streams' expansion and their collapse.
    pub(crate) fn altup(&mut self, stack: &StackSpec, a: &AltUpSpec, carry: Carry) -> ValueId {
        let mut all = self.expand(a, carry.embed);
        for (i, (layer, frame)) in stack.layers.iter().zip(&a.layers).enumerate() {
            self.enter(Some(i as u32));
            let predicted = self.predict(a, frame, all);
            let active = self.stream(a, predicted, a.active);
            let mut x = active;
            for step in &layer.steps {
                x = self.step(step, x, active);
            }
            all = self.correct(a, frame, predicted, active, x);
            if let Some(inject) = &layer.per_layer {
                all = self.inject_streams(a, frame, inject, i as u32, all, carry);
            }
        }
        self.enter(None);
        self.collapse(a, all)
    }

    /// One stream of the row.
    fn stream(&mut self, a: &AltUpSpec, all: ValueId, i: u32) -> ValueId {
        let d = self.width(all) / a.n;
        self.slice(all, a.n * d, i * d, d)
    }

    pub(crate) fn join(&mut self, parts: &[ValueId]) -> ValueId {
        let width = parts.iter().map(|&p| self.width(p)).sum();
        self.one(Op::Concat { groups: 1 }, parts, width)
    }

    /// Maps of `x`, each scaled to the magnitude of `like`.
    fn matched(&mut self, x: ValueId, map: &Proj, like: ValueId) -> ValueId {
        let y = self.matmul(x, map);
        let width = self.width(y);
        let unit = Op::Norm {
            kind: NormKind::Rms,
            eps: TINY,
            width,
            weight: None,
            bias: None,
        };
        let y = self.one(unit, &[y], width);
        let size = self.one(Op::RmsRuns { width, eps: 0.0 }, &[like], 1);
        let times = Op::PerRun {
            kind: BinaryKind::Mul,
            width,
        };
        self.one(times, &[y, size], width)
    }

    fn expand(&mut self, a: &AltUpSpec, x: ValueId) -> ValueId {
        self.at("altup_expand");
        let mut parts = vec![x];
        for map in &a.expand {
            parts.push(self.matched(x, map, x));
        }
        self.join(&parts)
    }

    fn collapse(&mut self, a: &AltUpSpec, all: ValueId) -> ValueId {
        self.at("altup_collapse");
        let like = self.stream(a, all, a.active);
        let mut sum = self.stream(a, all, 0);
        for (i, map) in a.collapse.iter().enumerate() {
            let x = self.stream(a, all, i as u32 + 1);
            let y = self.matched(x, map, like);
            sum = self.binary(BinaryKind::Add, sum, y);
        }
        self.affine(sum, 1.0 / a.n as f32, 0.0)
    }

    /// `tanh(router · (norm(x) · scale))`, one value per stream.
    fn modalities(&mut self, frame: &AltUpLayer, x: ValueId) -> ValueId {
        let x = self.norm(x, &frame.router_norm);
        let x = self.affine(x, frame.router_scale, 0.0);
        let x = self.matmul(x, &frame.router);
        self.unary(x, Act::Tanh)
    }

    /// Every stream plus a mix of all, its weights from the active one.
    fn predict(&mut self, a: &AltUpSpec, frame: &AltUpLayer, all: ValueId) -> ValueId {
        self.at("altup_predict");
        let (n, wide) = (a.n, self.width(all));
        let active = self.stream(a, all, a.active);
        let mods = self.modalities(frame, active);
        let mixes = self.matmul(mods, &frame.predict);
        let mut parts = Vec::with_capacity(n as usize);
        for i in 0..n {
            let mix = self.slice(mixes, n * n, i * n, n);
            parts.push(self.one(Op::Combine, &[all, mix], wide / n));
        }
        let mixed = self.join(&parts);
        self.binary(BinaryKind::Add, mixed, all)
    }

    /// Every stream moves by what the layer changed, times its weight.
    fn correct(
        &mut self,
        a: &AltUpSpec,
        frame: &AltUpLayer,
        predicted: ValueId,
        active: ValueId,
        out: ValueId,
    ) -> ValueId {
        self.at("altup_correct");
        let (width, wide) = (self.width(out), self.width(predicted));
        let mods = self.modalities(frame, out);
        let weights = self.matmul(mods, &frame.correct);
        let weights = self.affine(weights, 1.0, 1.0);
        let change = self.binary(BinaryKind::Sub, out, active);
        let copies = self.copies(change, a.n);
        let times = Op::PerRun {
            kind: BinaryKind::Mul,
            width,
        };
        let moved = self.one(times, &[copies, weights], wide);
        self.binary(BinaryKind::Add, moved, predicted)
    }

    pub(crate) fn copies(&mut self, x: ValueId, times: u32) -> ValueId {
        let width = self.width(x);
        let op = Op::Repeat {
            width,
            times,
            tiled: true,
        };
        self.one(op, &[x], width * times)
    }

    /// The per-layer embedding, gated by the active stream, goes into all streams but the first.
    fn inject_streams(
        &mut self,
        a: &AltUpSpec,
        frame: &AltUpLayer,
        inject: &PerLayerInject,
        layer: u32,
        all: ValueId,
        carry: Carry,
    ) -> ValueId {
        let active = self.at("per_layer").stream(a, all, a.active);
        let scaled = self.weighted(BinaryKind::Mul, active, frame.correct_scale);
        let embeds = carry.per_layer.expect("per-layer embeddings were built");
        let y = self.per_layer_value(inject, layer, scaled, embeds);
        let (d, wide) = (self.width(y), self.width(all));
        let first = self.stream(a, all, 0);
        let rest = self.slice(all, wide, d, wide - d);
        let copies = self.copies(y, a.n - 1);
        let rest = self.binary(BinaryKind::Add, rest, copies);
        self.join(&[first, rest])
    }

    pub(crate) fn laurel(&mut self, l: &LaurelSpec, x: ValueId) -> ValueId {
        let y = self.matmul(x, &l.down);
        let y = self.matmul(y, &l.up);
        let y = self.norm_opt(y, l.norm.as_ref());
        self.binary(BinaryKind::Add, y, x)
    }

    /// The states of a looped stack at its start.
    pub(crate) fn states(&mut self, stack: &StackSpec, embed: ValueId) -> Option<States> {
        let start = stack.second_state?;
        let second = self.at("state").gather(start, GatherIndex::Fixed(0));
        Some(States {
            first: embed,
            second,
        })
    }

    /// The sum of both states.
    pub(crate) fn joined(&mut self, states: States) -> ValueId {
        self.at("state")
            .binary(BinaryKind::Add, states.first, states.second)
    }
}

impl States {
    /// Replaces one.
    pub(crate) fn store(&mut self, which: State, x: ValueId) {
        match which {
            State::First => self.first = x,
            State::Second => self.second = x,
        }
    }
}
