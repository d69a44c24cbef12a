//! Frames whose steps read and write several streams, or a stream and a bank of what it was.
//!
//! Streams travel side by side in one value `[T, n·D]`.

use tokkata_ir::spec::{
    BankedSpec, ConnectedSpec, Connection, DraftSpec, LayerSpec, Proj, StackSpec,
};
use tokkata_ir::{Act, BinaryKind, Op, ValueId, WeightId};

use super::Builder;

/// Weights of a step: what it adds to each stream, and how streams mix.
struct Write {
    gates: ValueId,
    mix: Option<ValueId>,
}

impl Builder<'_> {
    /// All layers between the streams' expansion and their collapse.
    pub(crate) fn connected(
        &mut self,
        stack: &StackSpec,
        c: &ConnectedSpec,
        embed: ValueId,
    ) -> ValueId {
        let mut all = self.at("streams").copies(embed, c.n);
        for (i, (layer, connections)) in stack.layers.iter().zip(&c.layers).enumerate() {
            self.enter(Some(i as u32));
            all = self.connected_layer(c, layer, connections, all);
        }
        self.enter(None);
        self.draft_input(all);
        self.collapse_streams(c, all)
    }

    /// All streams after a layer.
    fn connected_layer(
        &mut self,
        c: &ConnectedSpec,
        layer: &LayerSpec,
        connections: &[Connection],
        mut all: ValueId,
    ) -> ValueId {
        for (step, connection) in layer.steps.iter().zip(connections) {
            let (x, write) = self.read_streams(c, connection, all);
            let (y, _) = self.step_sum(step, x, x);
            all = self.write_streams(c, &write, all, y);
        }
        all
    }

    /// The layer of a multi-token-prediction head over streams: `embed` `[T, D]` and `hidden` `[T, n·D]` are normed, and
    /// each stream begins as the product of the embedding and its own part. All streams after it, and their collapse.
    pub(crate) fn connected_draft(
        &mut self,
        d: &DraftSpec,
        c: &ConnectedSpec,
        ((embed, hidden), proj): ((ValueId, ValueId), &Proj),
    ) -> (ValueId, ValueId) {
        let width = self.width(embed);
        let streams: Vec<ValueId> = (0..c.n)
            .map(|i| {
                let own = self.slice(hidden, c.n * width, i * width, width);
                let both = self.one(Op::Concat { groups: 1 }, &[embed, own], 2 * width);
                self.matmul(both, proj)
            })
            .collect();
        let all = self.join(&streams);
        let connections = c.layers.first().map_or(&[][..], Vec::as_slice);
        let all = self.connected_layer(c, &d.layers[0], connections, all);
        (all, self.collapse_streams(c, all))
    }

    /// The rows of a connection's map over all streams.
    fn connection(&mut self, c: &ConnectedSpec, connection: &Connection, all: ValueId) -> ValueId {
        let normed = self.at("streams").norm(all, &c.norm);
        self.matmul(normed, &connection.map)
    }

    fn read_by(&mut self, c: &ConnectedSpec, weights: ValueId, all: ValueId) -> ValueId {
        let weights = self.unary(weights, Act::Sigmoid);
        let weights = self.affine(weights, 1.0, c.read_eps);
        let width = self.width(all) / c.n;
        self.one(Op::Combine, &[all, weights], width)
    }

    fn read_streams(
        &mut self,
        c: &ConnectedSpec,
        connection: &Connection,
        all: ValueId,
    ) -> (ValueId, Write) {
        let rows = self.connection(c, connection, all);
        let (n, total) = (c.n, self.width(rows));
        let weights = self.slice(rows, total, 0, n);
        let x = self.read_by(c, weights, all);
        let gates = self.slice(rows, total, n, n);
        let gates = self.unary(gates, Act::Sigmoid);
        let gates = self.affine(gates, c.write_scale, c.write_eps);
        let mix = c.mix.map(|mix| {
            let m = self.slice(rows, total, 2 * n, n * n);
            let op = Op::Sinkhorn {
                n,
                iterations: mix.iterations,
                eps: mix.eps,
            };
            self.one(op, &[m], n * n)
        });
        (x, Write { gates, mix })
    }

    fn write_streams(
        &mut self,
        c: &ConnectedSpec,
        write: &Write,
        all: ValueId,
        y: ValueId,
    ) -> ValueId {
        let (width, wide) = (self.at("streams").width(y), self.width(all));
        let copies = self.copies(y, c.n);
        let times = Op::PerRun {
            kind: BinaryKind::Mul,
            width,
        };
        let added = self.one(times, &[copies, write.gates], wide);
        let kept = write.mix.map_or(all, |mix| self.mixed_streams(c, mix, all));
        self.binary(BinaryKind::Add, added, kept)
    }

    /// Every stream as a sum of all, by the columns of a matrix.
    fn mixed_streams(&mut self, c: &ConnectedSpec, mix: ValueId, all: ValueId) -> ValueId {
        let width = self.width(all) / c.n;
        let parts: Vec<ValueId> = (0..c.n)
            .map(|to| {
                let column = self.slice(mix, c.n, to, 1);
                self.one(Op::Combine, &[all, column], width)
            })
            .collect();
        self.join(&parts)
    }

    fn collapse_streams(&mut self, c: &ConnectedSpec, all: ValueId) -> ValueId {
        if let Some(connection) = &c.collapse {
            let rows = self.connection(c, connection, all);
            return self.read_by(c, rows, all);
        }
        let wide = self.at("streams").width(all);
        let width = wide / c.n;
        let streams: Vec<ValueId> = (0..c.n)
            .map(|i| self.slice(all, wide, i * width, width))
            .collect();
        let sum = streams
            .into_iter()
            .reduce(|sum, x| self.binary(BinaryKind::Add, sum, x));
        self.affine(sum.expect("there are streams"), 1.0 / c.n as f32, 0.0)
    }

    /// All layers over a stream and the bank of what it was.
    pub(crate) fn banked(&mut self, stack: &StackSpec, b: &BankedSpec, embed: ValueId) -> ValueId {
        let (mut x, mut bank) = (embed, Vec::new());
        for (i, (layer, scores)) in stack.layers.iter().zip(&b.layers).enumerate() {
            self.enter(Some(i as u32));
            for (s, (step, &score)) in layer.steps.iter().zip(scores).enumerate() {
                let input = self.weigh_bank(b, &bank, x, score);
                let restart = s == 0 && (i as u32).is_multiple_of(b.every);
                if restart {
                    bank.push(x);
                }
                let (y, _) = self.step_sum(step, input, input);
                x = match restart {
                    true => y,
                    false => self.binary(BinaryKind::Add, x, y),
                };
            }
        }
        self.enter(None);
        self.weigh_bank(b, &bank, x, b.head)
    }

    /// The bank and the stream, weighed by a softmax of their scores.
    fn weigh_bank(
        &mut self,
        b: &BankedSpec,
        bank: &[ValueId],
        x: ValueId,
        score: WeightId,
    ) -> ValueId {
        if bank.is_empty() {
            return x;
        }
        let width = self.at("bank").width(x);
        let all: Vec<ValueId> = bank.iter().copied().chain([x]).collect();
        let count = all.len() as u32;
        let all = self.join(&all);
        let normed = self.norm(all, &b.norm);
        let scored = self.weighted(BinaryKind::Mul, normed, score);
        let scores = self.one(Op::SumRuns { width }, &[scored], count);
        let weights = self.one(Op::Softmax { width: count }, &[scores], count);
        self.one(Op::Combine, &[all, weights], width)
    }
}
