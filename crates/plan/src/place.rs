//! Which ops of a program a processor takes from another device, where that does not have room for all of them.

use std::collections::HashSet;

use tokkata_ir::{DeviceId, Node, Op, Plan, Program, ValueId, WeightDef};

use crate::passes;

/// The device that runs what is not named.
pub const DEVICE: DeviceId = DeviceId(0);
/// The processor beside it.
pub const PROCESSOR: DeviceId = DeviceId(1);

/// Layers of the main plan.
#[must_use]
pub fn layers(program: &Program) -> u32 {
    let layers = program.plans[0].nodes.iter().filter_map(|n| n.site.layer);
    layers.max().map_or(0, |last| last + 1)
}

/// Gives the processor what comes before layer `first` of every plan, and the products with weights that it keeps, with what
/// lies between them: activations of feed-forward parts, and sums over experts. Everything else is the device's.
pub fn place(program: &mut Program, first: u32, keeps: impl Fn(&WeightDef) -> bool) {
    let of = |layer: u32| if layer < first { PROCESSOR } else { DEVICE };
    for plan in &mut program.plans {
        // What comes before the layers goes with the first of them.
        let begin = plan.nodes.iter().find_map(|n| n.site.layer);
        passes::by_layer(plan, begin.map_or(DEVICE, of), of);
    }
    let kept: HashSet<usize> = (0..program.weights.len())
        .filter(|&i| keeps(&program.weights[i]))
        .collect();
    if !kept.is_empty() {
        let is_kept = |node: &Node| match node.op {
            Op::Adapt { weight, .. } => kept.contains(&weight.index()),
            _ => node.op.weights().iter().any(|w| kept.contains(&w.index())),
        };
        program.plans.iter_mut().for_each(|p| pull(p, is_kept));
    }
    passes::together(program);
}

/// Gives the processor what is kept, and what lies between.
fn pull(plan: &mut Plan, is_kept: impl Fn(&Node) -> bool) {
    let mut made: HashSet<ValueId> = HashSet::new();
    for node in &mut plan.nodes {
        let own = |v: &ValueId| made.contains(v);
        let between = match node.op {
            Op::Combine => node.ins.first().is_some_and(own),
            Op::Sample | Op::Adapt { .. } => false,
            _ => !node.ins.is_empty() && node.ins.iter().all(own),
        };
        let bare = node.op.weights().is_empty() && node.op.slots().is_empty();
        if is_kept(node) || bare && between {
            node.device = PROCESSOR;
            made.extend(&node.outs);
        }
    }
}
