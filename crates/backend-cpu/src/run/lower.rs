//! From scheduled steps to prepared ones: places, weights and constants are looked up here, once.

use tokkata_ir::adapter::matrices;
use tokkata_ir::tape::{Access, Reach};
use tokkata_ir::{
    AdaptForm, AttentionOp, BackendError, CompressOp, ConstId, KvSource, Node, Op, Plan, Program,
    RopeOp, RouteOp, Scan, SelectOp, SlotDef, SlotId, ValueId, WeightId,
};

use super::adapt::{Adapt, Input};
use super::attention::{Attention, Bucket};
use super::conv1d::Conv1d;
use super::cx::Kernel;
use super::indexer::Select;
use super::linear::{Finish, Prepare, Product};
use super::moe::{Choice, Group, Route, Stacked};
use super::recurrent::{Conv, Recurrence, Scan as ScanStep, Shift, State};
use super::rope::{Rotation, TurnSpec};
use super::rowops::{
    Binary, Combine, Concat, Gate, GaussianTopK, Map, Mapped, Norm, Operand, PerRun, Pool,
    PosScale, Repeat, Rope, Runs, SelectRows, Sinkhorn, Slice, Statistic,
};
use super::rows::{CacheWrite, Gather, Sample, Written};
use super::summary::Compress;
use super::sweep::{Deal, RowOp, Sweep};
use super::weights::Weights;
use crate::arena::Place;
use crate::kernels::attention::Form;
use crate::kernels::lanes::N;
use crate::kernels::norm::NormSpec;
use crate::select::{Planned, What, head_dims};

/// A kernel ready to run.
pub(crate) type Prepared = Box<dyn Kernel>;

/// Makes kernels of one plan.
pub(crate) struct Lower<'a> {
    pub(crate) program: &'a Program,
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a Weights,
    pub(crate) places: &'a [Place],
    /// Tables of turns over all plans.
    pub(crate) turns: &'a mut Vec<TurnSpec>,
    /// Counters handed out over all plans.
    pub(crate) tickets: &'a mut usize,
}

fn unsupported(node: &Node, what: &str) -> BackendError {
    BackendError::Unsupported {
        backend: "cpu",
        op: format!("{} at {}: {what}", node.op.name(), node.site),
    }
}

impl Lower<'_> {
    fn place(&self, value: ValueId) -> Place {
        self.places[value.index()]
    }

    fn vector(&self, id: Option<WeightId>) -> Option<Vec<f32>> {
        id.map(|id| self.weights.vector(id))
    }

    fn floats(&self, id: ConstId) -> Vec<f32> {
        self.program.constant(id).f32s().to_vec()
    }

    /// The kernel of a step.
    pub(crate) fn step(&mut self, planned: &Planned) -> Result<Prepared, BackendError> {
        Ok(match &planned.kernel {
            What::Prepare {
                value, norm, set, ..
            } => {
                let norm = norm.map(|n| self.norm(&self.plan.nodes[n])).transpose()?;
                Box::new(Prepare {
                    x: self.place(*value),
                    norm,
                    set: *set,
                })
            }
            What::Product { node, set } => {
                let node = &self.plan.nodes[*node];
                let Op::Matmul {
                    weight,
                    scale,
                    bias,
                } = node.op
                else {
                    unreachable!("products are matmuls");
                };
                Box::new(Product {
                    matrix: self.weights.matrix(weight),
                    set: *set,
                    out: self.place(node.outs[0]),
                    finish: Finish {
                        scale: self.vector(scale),
                        bias: self.vector(bias),
                    },
                    part: match planned.writes[0].reach {
                        Reach::Columns(part) => Some(part),
                        _ => None,
                    },
                })
            }
            What::Adapt { node, norm } => {
                let norm = self.norm(&self.plan.nodes[*norm])?;
                self.adapt(&self.plan.nodes[*node], Input::Normed(norm), planned)
            }
            What::Node(node) => self.node(&self.plan.nodes[*node], planned)?,
        })
    }

    /// What adapters add to the product of an input.
    fn adapt(&self, node: &Node, x: Input, planned: &Planned) -> Prepared {
        let Op::Adapt { weight, form } = node.op else {
            unreachable!("called for additions only");
        };
        let shape = &self.program.weights[weight.index()].shape;
        let (_, rows, cols) = matrices(form, shape);
        let y = self.place(node.ins[node.ins.len().min(2) - 1]);
        let out = self.place(node.outs[0]);
        Box::new(Adapt {
            weight,
            form,
            x: (form != AdaptForm::Tokens).then_some(x),
            y,
            ids: node.ins.get(2).map(|&v| self.place(v)),
            out,
            deal: Deal {
                reach: planned.writes[0].reach,
                over: y.at == out.at,
            },
            rows,
            cols,
        })
    }

    fn norm(&self, node: &Node) -> Result<Norm, BackendError> {
        let Op::Norm {
            kind,
            eps,
            width,
            weight,
            bias,
        } = node.op
        else {
            unreachable!("called for norms only");
        };
        let (weight, bias) = (self.vector(weight), self.vector(bias));
        let fits = |v: &Option<Vec<f32>>| {
            v.as_ref()
                .is_none_or(|v| v.len().is_multiple_of(width as usize))
        };
        if !fits(&weight) || !fits(&bias) {
            return Err(unsupported(node, "a weight shorter than a run"));
        }
        let spec = NormSpec { kind, eps };
        Ok(Norm {
            x: self.place(node.ins[0]),
            spec,
            width: width as usize,
            weight,
            bias,
        })
    }

    fn node(&mut self, node: &Node, planned: &Planned) -> Result<Prepared, BackendError> {
        match &node.op {
            Op::Attention(op) => self.attention(node, op, planned),
            Op::Select(op) => Ok(self.select(node, op, planned)),
            Op::Compress(op) => Ok(self.compress(node, op, planned)),
            Op::CacheWrite { slot } => {
                let dims = head_dims(self.program, *slot);
                let planes = node.ins.iter().zip(dims).zip(&planned.writes);
                let written = |((&v, dim), write): ((&ValueId, usize), &Access)| Written {
                    x: self.place(v),
                    dim,
                    reach: write.reach,
                    to: write.resource,
                };
                let planes = planes.map(written).collect();
                Ok(Box::new(CacheWrite {
                    slot: *slot,
                    planes,
                }))
            }
            Op::Gather { table, index } => Ok(Box::new(Gather {
                table: self.weights.matrix(*table),
                index: *index,
                embeds: node.ins.first().map(|&v| self.place(v)),
                out: self.place(node.outs[0]),
            })),
            Op::Adapt { .. } => {
                Ok(self.adapt(node, Input::Value(self.place(node.ins[0])), planned))
            }
            Op::Sample => {
                let (logits, out) = (self.place(node.ins[0]), self.place(node.outs[0]));
                Ok(Box::new(Sample { logits, out }))
            }
            Op::Route(op) => Ok(Box::new(Route {
                table: self.experts_by_token(op)?,
                logits: self.place(node.ins[0]),
                ids: self.place(node.outs[0]),
                weights: self.place(node.outs[1]),
                bias: self.vector(op.bias),
                op: op.clone(),
            })),
            Op::Group { n_experts } => Ok(Box::new(Group {
                ids: self.place(node.ins[0]),
                order: self.place(node.outs[0]),
                starts: self.place(node.outs[1]),
                experts: *n_experts as usize,
            })),
            Op::Experts { .. } | Op::HeadMatmul { .. } => self.stacked(node),
            Op::Conv1d(op) => {
                *self.tickets += 1;
                Ok(Box::new(Conv1d {
                    op: op.clone(),
                    matrix: self.weights.matrix(op.weight),
                    bias: self.vector(op.bias),
                    x: self.place(node.ins[0]),
                    out: self.place(node.outs[0]),
                    tickets: *self.tickets - 1,
                }))
            }
            Op::Conv { .. } | Op::Shift { .. } | Op::Scan { .. } => self.recurrent(node, planned),
            _ => self.sweep(node, planned.writes[0].reach),
        }
    }

    /// Experts of each token.
    fn experts_by_token(&self, op: &RouteOp) -> Result<Option<Vec<u32>>, BackendError> {
        let Some(id) = op.table else { return Ok(None) };
        let ids: Vec<u32> = self.weights.vector(id).iter().map(|&e| e as u32).collect();
        match ids.iter().find(|&&e| e >= op.n_experts) {
            None => Ok(Some(ids)),
            Some(found) => {
                let name = &self.program.weights[id.index()].name;
                let text = format!("{name} lists expert {found} of {}", op.n_experts);
                Err(BackendError::Weight(text))
            }
        }
    }

    fn select(&mut self, node: &Node, op: &SelectOp, planned: &Planned) -> Prepared {
        *self.tickets += 1;
        Box::new(Select {
            op: op.clone(),
            q: self.place(node.ins[0]),
            weights: op.summed.then(|| self.place(node.ins[1])),
            ids: self.place(node.outs[0]),
            keys: planned.reads[node.ins.len()].resource,
            partials: planned.writes[1].resource,
            tickets: *self.tickets - 1,
        })
    }

    fn compress(&self, node: &Node, op: &CompressOp, planned: &Planned) -> Prepared {
        let (out, values) = (self.place(node.outs[0]), self.place(node.ins[0]));
        let block = self.program.group(op.slot.group).dtype.block_elems();
        Box::new(Compress {
            op: op.clone(),
            values,
            scores: self.place(node.ins[1]),
            out,
            ape: self.weights.vector(op.ape),
            // Whole blocks of a quantised cache, in both halves of the inputs.
            part: match out.width.is_multiple_of(block) || block == 1 {
                true => block.next_multiple_of(N),
                false => out.width,
            },
            kept: planned.writes[1..].iter().map(|w| w.resource).collect(),
        })
    }

    fn stacked(&mut self, node: &Node) -> Result<Prepared, BackendError> {
        let (weight, scale, bias) = match node.op {
            Op::Experts {
                weight,
                scale,
                bias,
                ..
            } => (weight, scale, bias),
            Op::HeadMatmul { weight, .. } => (weight, None, None),
            _ => unreachable!("called for stacked products only"),
        };
        let shape = &self.program.weights[weight.index()].shape;
        let [count, n, _] = shape[..] else {
            return Err(unsupported(node, "a weight that is not stacked"));
        };
        let (choice, parts) = match node.op {
            Op::Experts { top_k, .. } => (Choice::Ids(self.place(node.ins[1])), top_k),
            _ => (Choice::Heads, count),
        };
        *self.tickets += 1;
        Ok(Box::new(Stacked {
            matrix: self.weights.matrix(weight),
            choice,
            x: self.place(node.ins[0]),
            out: self.place(node.outs[0]),
            n: n as usize,
            count: count as usize,
            parts: parts as usize,
            scale: self.vector(scale),
            bias: self.vector(bias),
            tickets: *self.tickets - 1,
        }))
    }

    fn recurrent(&self, node: &Node, planned: &Planned) -> Result<Prepared, BackendError> {
        let (x, out) = (self.place(node.ins[0]), self.place(node.outs[0]));
        let state = |slot: SlotId| State {
            slot,
            id: planned.writes[1].resource,
        };
        Ok(match &node.op {
            Op::Conv {
                weight,
                bias,
                kernel,
                slot,
            } => {
                let (weight, kernel) = (self.weights.vector(*weight), *kernel as usize);
                let tap = |t: usize| weight.iter().skip(t).step_by(kernel).copied().collect();
                let taps = (0..kernel).map(tap).collect();
                Box::new(Conv {
                    x,
                    out,
                    taps,
                    bias: self.vector(*bias),
                    state: slot.map(state),
                })
            }
            Op::Shift { slot } => Box::new(Shift {
                x,
                out,
                state: state(*slot),
            }),
            Op::Scan { scan, slot } => {
                let ins = node.ins.iter().map(|&v| self.place(v)).collect();
                Box::new(ScanStep {
                    recurrence: self.recurrence(scan),
                    ins,
                    out,
                    state: state(*slot),
                })
            }
            _ => return Err(unsupported(node, "no kernel")),
        })
    }

    fn recurrence(&self, scan: &Scan) -> Recurrence {
        let weight = |id: WeightId| self.weights.vector(id);
        match *scan {
            Scan::Mamba1 { a, d, .. } => Recurrence::Mamba1 {
                a: weight(a),
                d: weight(d),
            },
            Scan::Mamba2 {
                heads,
                groups,
                a,
                d,
                dt_bias,
                ..
            } => Recurrence::Mamba2 {
                heads: heads as usize,
                groups: groups as usize,
                a: weight(a),
                d: weight(d),
                dt_bias: self.vector(dt_bias),
            },
            Scan::Wkv6 { head_dim, first } => Recurrence::Wkv6 {
                head_dim: head_dim as usize,
                first: weight(first),
            },
            Scan::Gla { head_dim, scale } => Recurrence::Gla {
                head_dim: head_dim as usize,
                scale,
            },
            Scan::Wkv7 { head_dim } => Recurrence::Wkv7 {
                head_dim: head_dim as usize,
            },
            Scan::GatedDelta {
                k_heads,
                v_heads,
                dim_k,
                dim_v,
                tiled,
                scale,
            } => Recurrence::Delta {
                k_heads: k_heads as usize,
                v_heads: v_heads as usize,
                dim_k: dim_k as usize,
                dim_v: dim_v as usize,
                tiled,
                scale,
            },
            Scan::Decay { slopes, .. } => Recurrence::Decay {
                keep: self.floats(slopes).iter().map(|s| (-s).exp()).collect(),
            },
        }
    }

    fn sweep(&mut self, node: &Node, reach: Reach) -> Result<Prepared, BackendError> {
        let out = self.place(node.outs[0]);
        fn boxed<O: RowOp + 'static>(op: O, out: Place, deal: Deal) -> Prepared {
            Box::new(Sweep { op, out, deal })
        }
        let deal = Deal {
            reach,
            over: node.ins.iter().any(|&v| self.place(v).at == out.at),
        };
        let x = self.place(
            *node
                .ins
                .first()
                .ok_or_else(|| unsupported(node, "no input"))?,
        );
        let mapped = |map| boxed(Mapped { x, map }, out, deal);
        let runs = |width: u32, statistic| {
            boxed(
                Runs {
                    x,
                    width: width as usize,
                    statistic,
                },
                out,
                deal,
            )
        };
        let second = || self.place(node.ins[1]);
        Ok(match node.op {
            Op::Norm { .. } => boxed(self.norm(node)?, out, deal),
            Op::Unary(act) => mapped(Map::Unary(act)),
            Op::Affine { scale, offset } => mapped(Map::Affine { scale, offset }),
            Op::Softcap { cap } => mapped(Map::Softcap(cap)),
            Op::Clamp { lo, hi } => mapped(Map::Clamp { lo, hi }),
            Op::Suppress { first, last } => mapped(Map::Suppress(first as usize..last as usize)),
            Op::Copy => mapped(Map::Copy),
            Op::Gate { act, clamp } => boxed(
                Gate {
                    gate: x,
                    up: second(),
                    act,
                    clamp,
                },
                out,
                deal,
            ),
            Op::Binary {
                kind,
                a_scale,
                b_scale,
            } => {
                let b = Operand::Value(second());
                boxed(
                    Binary {
                        kind,
                        scales: (a_scale, b_scale),
                        a: x,
                        b,
                    },
                    out,
                    deal,
                )
            }
            Op::Weighted { kind, weight } => {
                let b = Operand::Weight(self.weights.vector(weight));
                boxed(
                    Binary {
                        kind,
                        scales: (1.0, 1.0),
                        a: x,
                        b,
                    },
                    out,
                    deal,
                )
            }
            Op::PerRun { kind, width } => boxed(
                PerRun {
                    kind,
                    width: width as usize,
                    x,
                    y: second(),
                },
                out,
                deal,
            ),
            Op::Softmax { width } => runs(width, Statistic::Softmax),
            Op::SumRuns { width } => runs(width, Statistic::Sum),
            Op::RmsRuns { width, eps } => runs(width, Statistic::Rms { eps }),
            Op::GaussianTopK { z } => boxed(GaussianTopK { x, z }, out, deal),
            Op::Sinkhorn { n, iterations, eps } => {
                let (n, iterations) = (n as usize, iterations as usize);
                let sinkhorn = Sinkhorn {
                    x,
                    n,
                    iterations,
                    eps,
                };
                boxed(sinkhorn, out, deal)
            }
            Op::Rope(ref op) => {
                let rotation = self.rotation(op);
                boxed(Rope { x, rotation }, out, deal)
            }
            Op::PosScale {
                coef,
                length,
                offset,
            } => boxed(
                PosScale {
                    x,
                    coef,
                    length,
                    offset,
                },
                out,
                deal,
            ),
            Op::Slice { group, start, len } => {
                let (group, start, len) = (group as usize, start as usize, len as usize);
                boxed(
                    Slice {
                        x,
                        group,
                        start,
                        len,
                    },
                    out,
                    deal,
                )
            }
            Op::Concat { groups } => boxed(self.concat(node, groups as usize)?, out, deal),
            Op::Repeat {
                width,
                times,
                tiled,
            } => {
                let width = if tiled { x.width } else { width as usize };
                boxed(
                    Repeat {
                        x,
                        width,
                        times: times as usize,
                    },
                    out,
                    deal,
                )
            }
            Op::SelectRows => boxed(SelectRows { x }, out, deal),
            Op::Pool(kind) => boxed(Pool { x, kind }, out, deal),
            Op::Combine => boxed(
                Combine {
                    x,
                    weights: second(),
                },
                out,
                deal,
            ),
            _ => return Err(unsupported(node, "no kernel")),
        })
    }

    fn rotation(&mut self, op: &RopeOp) -> Rotation {
        let spec = TurnSpec {
            freqs: self.floats(op.freqs),
            channels: op
                .channels
                .map(|c| self.program.constant(c).u32s().to_vec()),
            magnitude: op.magnitude,
            inverse: op.inverse,
            back: op.back,
        };
        let table = self
            .turns
            .iter()
            .position(|t| *t == spec)
            .unwrap_or_else(|| {
                self.turns.push(spec);
                self.turns.len() - 1
            });
        let (head_dim, offset) = (op.head_dim as usize, op.offset as usize);
        Rotation {
            pairing: op.pairing,
            head_dim,
            offset,
            table,
        }
    }

    /// Which inputs have a run per group (the others repeat). Widths decide; where they fit more than one way, an
    /// input whose first dimension is the number of groups is split, and the first input rather than the later.
    fn concat(&self, node: &Node, groups: usize) -> Result<Concat, BackendError> {
        let places: Vec<Place> = node.ins.iter().map(|&v| self.place(v)).collect();
        let per_group = self.place(node.outs[0]).width / groups;
        let splits = |mask: u32, i: usize| mask >> i & 1 == 1;
        let fits = |&mask: &u32| {
            let run = |(i, p): (usize, &Place)| match splits(mask, i) {
                true if p.width.is_multiple_of(groups) => Some(p.width / groups),
                true => None,
                false => Some(p.width),
            };
            places.iter().enumerate().map(run).sum::<Option<usize>>() == Some(per_group)
        };
        let named = |v: &ValueId| {
            let dims = &self.plan.value(*v).shape.dims;
            dims.len() > 1 && dims[0] as usize == groups
        };
        let named: u32 = node
            .ins
            .iter()
            .enumerate()
            .filter(|(_, v)| named(v))
            .map(|(i, _)| 1 << i)
            .sum();
        let best = (0..1_u32 << places.len())
            .filter(fits)
            .min_by_key(|m| ((m ^ named).count_ones(), m.trailing_zeros()));
        let mask = best.ok_or_else(|| unsupported(node, "widths that do not add up"))?;
        let inputs = places
            .into_iter()
            .enumerate()
            .map(|(i, p)| (p, splits(mask, i)))
            .collect();
        Ok(Concat { inputs, groups })
    }

    fn attention(
        &mut self,
        node: &Node,
        op: &AttentionOp,
        planned: &Planned,
    ) -> Result<Prepared, BackendError> {
        let inputs = node.ins.len() - usize::from(op.selection.is_some());
        let value = |i: usize| node.ins[..inputs].get(i).map(|&v| self.place(v));
        let chosen = op.selection.map(|s| (self.place(node.ins[inputs]), s));
        let own = (op.source == KvSource::Rows)
            .then(|| value(1).map(|k| (k, value(2))))
            .flatten();
        if let KvSource::Cache(slot) | KvSource::Cross(slot) = op.source {
            self.check_slot(node, op, slot)?;
        } else if own.is_none() {
            return Err(unsupported(node, "own rows without keys"));
        }
        if let Some(slot) = op.entries {
            self.check_entries(node, op, slot)?;
        }
        *self.tickets += 1;
        let dim_v = op.dim_v as usize;
        let form = Form {
            dim_k: op.dim_k as usize,
            dim_v: dim_v.next_multiple_of(N),
            scale: op.scale,
            cap: op.cap,
        };
        let bucket = op.bucket.map(|b| Bucket {
            table: self.weights.vector(b.table),
            buckets: b.buckets as usize,
            max_distance: b.max_distance as usize,
            bidirectional: b.bidirectional,
        });
        Ok(Box::new(Attention {
            q: self.place(node.ins[0]),
            own,
            out: self.place(node.outs[0]),
            partials: planned.writes[1].resource,
            cached: planned.reads[node.ins.len()..]
                .iter()
                .map(|r| r.resource)
                .collect(),
            source: op.source,
            entries: op.entries,
            chosen,
            mask: op.mask,
            form,
            heads: op.n_heads as usize,
            kv_heads: op.n_kv_heads as usize,
            dim_v,
            sinks: self.vector(op.sinks),
            slopes: op.alibi.map(|c| self.floats(c)),
            bucket,
            tickets: *self.tickets - 1,
        }))
    }

    fn check_entries(
        &self,
        node: &Node,
        op: &AttentionOp,
        slot: SlotId,
    ) -> Result<(), BackendError> {
        let fits = match self.program.group(slot.group).slots[slot.slot as usize] {
            SlotDef::Kv {
                n_kv_heads, dim_k, ..
            } => (n_kv_heads, dim_k) == (1, op.dim_k) && op.n_kv_heads == 1,
            SlotDef::State { .. } => false,
        };
        let tail = op.selection.is_some_and(|s| s.tail && s.unit > 1);
        match fits && !tail {
            true => Ok(()),
            false => Err(unsupported(node, "entries of another shape")),
        }
    }

    fn check_slot(&self, node: &Node, op: &AttentionOp, slot: SlotId) -> Result<(), BackendError> {
        let SlotDef::Kv {
            n_kv_heads,
            dim_k,
            dim_v,
        } = self.program.group(slot.group).slots[slot.slot as usize]
        else {
            return Err(unsupported(node, "a slot that holds a state"));
        };
        let values = dim_v
            .filter(|&d| d > 0)
            .map_or(op.dim_v <= dim_k, |d| d == op.dim_v);
        if n_kv_heads != op.n_kv_heads || dim_k != op.dim_k || !values {
            return Err(unsupported(node, "a slot of another shape"));
        }
        Ok(())
    }
}
