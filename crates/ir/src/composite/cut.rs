//! A program cut into one program per device.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::BackendError;
use crate::ids::{DeviceId, SlotId, ValueId, WeightId};
use crate::op::Op;
use crate::program::{CacheGroup, Node, Plan, Port, Program, SlotDef};
use crate::weight::WeightDef;

/// Ops of a plan that follow each other on one device: a plan of that device's program. Values keep their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) device: usize,
    /// The plan of the device's program.
    pub(super) plan: usize,
    /// Its first node in the whole plan.
    pub(super) first: usize,
    /// Ports of the whole plan that it reads.
    pub(super) ports: Vec<ValueId>,
    /// Values of earlier segments that it reads.
    pub(super) takes: Vec<ValueId>,
    /// Values that it makes for later segments, or for readers outside.
    pub(super) gives: Vec<ValueId>,
    /// Whether tokens are drawn in it.
    pub(super) draws: bool,
}

/// What a program is cut into.
pub(super) struct Cut {
    /// Per device.
    pub(super) programs: Vec<Program>,
    /// Per plan, in their order.
    pub(super) segments: Vec<Vec<Segment>>,
    /// Per device: what lies there.
    pub(super) homes: Vec<Home>,
}

impl Cut {
    /// Cuts a program whose nodes name their devices.
    pub(super) fn new(program: &Program, devices: usize) -> Result<Self, BackendError> {
        check(program, devices)?;
        let homes: Vec<Home> = (0..devices).map(|d| Home::of(program, d)).collect();
        let bare = |home: &Home| Program {
            plans: Vec::new(),
            weights: home.weights(program),
            caches: home.caches(program),
            ..program.clone()
        };
        let mut programs: Vec<Program> = homes.iter().map(bare).collect();
        let mut segments = Vec::new();
        for plan in &program.plans {
            let mut first = 0;
            let runs = plan.nodes.chunk_by(|a, b| a.device == b.device);
            let own = runs.map(|nodes| {
                let device = nodes[0].device.index();
                let at = (first, programs[device].plans.len());
                first += nodes.len();
                let segment = Segment::of(plan, nodes.len(), at);
                let own = segment.plan(plan, nodes, &homes[device]);
                programs[device].plans.push(own);
                segment
            });
            segments.push(own.collect());
        }
        Ok(Cut {
            programs,
            segments,
            homes,
        })
    }
}

fn unsupported(op: String) -> BackendError {
    BackendError::Unsupported {
        backend: "composite",
        op,
    }
}

/// Every node has a device; a cache slot belongs to one; tokens are drawn where their logits are made.
fn check(program: &Program, devices: usize) -> Result<(), BackendError> {
    let mut homes = BTreeMap::new();
    for plan in &program.plans {
        for node in &plan.nodes {
            if node.device.index() >= devices {
                let text = format!("{} on {} of {devices}", node.site, node.device);
                return Err(unsupported(text));
            }
            let mut slots = node.op.slots().into_iter();
            if slots.any(|slot| *homes.entry(slot).or_insert(node.device) != node.device) {
                return Err(unsupported(format!("{} away from its cache", node.site)));
            }
            let made_by = |v: &ValueId| plan.nodes.iter().find(|n| n.outs.contains(v));
            let apart = |v| made_by(v).is_some_and(|n: &Node| n.device != node.device);
            if node.op == Op::Sample && node.ins.iter().any(apart) {
                return Err(unsupported("a draw away from its logits".to_owned()));
            }
        }
    }
    Ok(())
}

/// What a device holds of a program.
pub(super) struct Home {
    /// Its weights, and what it calls them.
    pub(super) weights: BTreeMap<WeightId, WeightId>,
    /// Per group: its slots that lie there.
    pub(super) slots: Vec<Vec<u32>>,
}

impl Home {
    fn of(program: &Program, device: usize) -> Self {
        let nodes = program.plans.iter().flat_map(|p| &p.nodes);
        let own = nodes.filter(|n| n.device.index() == device);
        let used: BTreeSet<WeightId> = own.clone().flat_map(|n| n.op.weights()).collect();
        let slots: BTreeSet<SlotId> = own.flat_map(|n| n.op.slots()).collect();
        let of_group = |g: usize| {
            let own = slots.iter().filter(|s| s.group.index() == g);
            own.map(|s| s.slot).collect()
        };
        Home {
            weights: used.into_iter().zip((0..).map(WeightId)).collect(),
            slots: (0..program.caches.len()).map(of_group).collect(),
        }
    }

    fn weights(&self, program: &Program) -> Vec<WeightDef> {
        let used = self.weights.keys();
        used.map(|id| program.weights[id.index()].clone()).collect()
    }

    fn caches(&self, program: &Program) -> Vec<CacheGroup> {
        let mut groups = program.caches.clone();
        for (group, slots) in groups.iter_mut().zip(&self.slots) {
            let kept = slots.iter().map(|&s| group.slots[s as usize].clone());
            group.slots = kept.collect();
        }
        groups
    }

    fn place(&self, slot: SlotId) -> u32 {
        let slots = &self.slots[slot.group.index()];
        let place = slots.iter().position(|&s| s == slot.slot);
        place.expect("the device holds its nodes' slots") as u32
    }

    /// A node in this device's numbers.
    fn node(&self, node: &Node) -> Node {
        let mut op = node.op.clone();
        for id in op.weights_mut() {
            *id = self.weights[id];
        }
        for slot in op.slots_mut() {
            slot.slot = self.place(*slot);
        }
        Node {
            op,
            device: DeviceId(0),
            ..node.clone()
        }
    }
}

impl Segment {
    fn of(plan: &Plan, count: usize, (first, own): (usize, usize)) -> Self {
        let (before, rest) = plan.nodes.split_at(first);
        let (nodes, later) = rest.split_at(count);
        let made: BTreeSet<ValueId> = outs(nodes).collect();
        let read: BTreeSet<ValueId> = ins(nodes).filter(|v| !made.contains(v)).collect();
        let earlier: BTreeSet<ValueId> = outs(before).collect();
        let outside = plan.outputs.iter().map(|p| p.value);
        let wanted: BTreeSet<ValueId> = ins(later).chain(outside).collect();
        let takes = read.iter().filter(|v| earlier.contains(v));
        let ports = read.iter().filter(|v| !earlier.contains(v));
        Segment {
            device: nodes[0].device.index(),
            plan: own,
            first,
            ports: ports.copied().collect(),
            takes: takes.copied().collect(),
            gives: made.intersection(&wanted).copied().collect(),
            draws: nodes.iter().any(|n| n.op == Op::Sample),
        }
    }

    /// The plan of the device's program.
    fn plan(&self, plan: &Plan, nodes: &[Node], home: &Home) -> Plan {
        let cut = |&value: &ValueId| Port {
            name: format!("cut{}", value.0),
            value,
        };
        let named = |ports: &[Port], values: &[ValueId]| {
            let own = ports.iter().filter(|p| values.contains(&p.value));
            own.cloned().collect::<Vec<Port>>()
        };
        let mut inputs = named(&plan.inputs, &self.ports);
        inputs.extend(self.takes.iter().map(cut));
        let mut outputs = named(&plan.outputs, &self.gives);
        let known: BTreeSet<ValueId> = outputs.iter().map(|p| p.value).collect();
        outputs.extend(self.gives.iter().filter(|v| !known.contains(v)).map(cut));
        Plan {
            role: plan.role,
            inputs,
            outputs,
            values: plan.values.clone(),
            nodes: nodes.iter().map(|n| home.node(n)).collect(),
        }
    }
}

fn ins(nodes: &[Node]) -> impl Iterator<Item = ValueId> {
    nodes.iter().flat_map(|n| n.ins.iter().copied())
}

fn outs(nodes: &[Node]) -> impl Iterator<Item = ValueId> {
    nodes.iter().flat_map(|n| n.outs.iter().copied())
}

/// Floats of a block's slot in canonical form.
pub(super) fn slot_len(group: &CacheGroup, slot: &SlotDef) -> usize {
    match *slot {
        SlotDef::Kv {
            n_kv_heads,
            dim_k,
            dim_v,
        } => (group.block_entries() * n_kv_heads * (dim_k + dim_v.unwrap_or(0))) as usize,
        SlotDef::State { len } => len as usize,
    }
}
