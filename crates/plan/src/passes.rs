//! Passes over programs, in the order they run: adapt → prune → narrow → renumber → uses → shard → partition.

use std::collections::{HashMap, HashSet};

use tokkata_ir::{
    AdaptForm, Conv1dOp, DeviceId, GatherIndex, Lead, Node, Op, Plan, Port, Program, SlotId,
    ValueDef, ValueId,
};

use crate::error::PlanError;

/// Lets adapters add to what every product and every look-up of tokens gives.
pub fn adapt(plan: &mut Plan) {
    let mut adapted: HashMap<ValueId, ValueId> = HashMap::new();
    for mut node in std::mem::take(&mut plan.nodes) {
        for v in &mut node.ins {
            *v = adapted.get(v).copied().unwrap_or(*v);
        }
        let addition = addition(plan, &node);
        plan.nodes.push(node);
        if let Some(addition) = addition {
            adapted.insert(
                addition.ins[addition.ins.len().min(2) - 1],
                addition.outs[0],
            );
            plan.nodes.push(addition);
        }
    }
    for port in &mut plan.outputs {
        port.value = adapted.get(&port.value).copied().unwrap_or(port.value);
    }
}

/// The op that adds to what a node makes, with a value for it.
fn addition(plan: &mut Plan, node: &Node) -> Option<Node> {
    let y = node.outs.first().copied();
    let (weight, form) = match node.op {
        Op::Matmul { weight, .. } => (weight, AdaptForm::Product),
        Op::HeadMatmul { weight, .. } => (weight, AdaptForm::Heads),
        Op::Experts { weight, .. } => (weight, AdaptForm::Experts),
        Op::Gather {
            table,
            index: GatherIndex::Token,
        } => (table, AdaptForm::Tokens),
        _ => return None,
    };
    let y = y.expect("a product makes a value");
    let ins = match (form, &node.ins[..]) {
        (AdaptForm::Tokens, _) => vec![y],
        (_, [x, rest @ ..]) => [&[*x, y][..], rest].concat(),
        (_, []) => unreachable!("a product reads a value"),
    };
    let def = plan.value(y).clone();
    plan.values.push(def);
    Some(Node {
        op: Op::Adapt { weight, form },
        site: node.site.clone(),
        ins,
        outs: vec![ValueId(plan.values.len() as u32 - 1)],
        device: node.device,
    })
}

/// Keeps the named outputs and whatever they or the caches need.
///
/// # Errors
/// [`PlanError::NoOutput`] for a name the plan does not have.
pub fn prune(plan: &mut Plan, outputs: &[String]) -> Result<(), PlanError> {
    for name in outputs {
        plan.output(name)
            .ok_or_else(|| PlanError::NoOutput(name.clone()))?;
    }
    plan.outputs.retain(|p| outputs.contains(&p.name));
    let mut needed: HashSet<ValueId> = plan.outputs.iter().map(|p| p.value).collect();
    let mut keep = vec![false; plan.nodes.len()];
    for (i, node) in plan.nodes.iter().enumerate().rev() {
        keep[i] = node.op.writes_state()
            || node.op == Op::Prepare
            || node.outs.iter().any(|v| needed.contains(v));
        if keep[i] {
            needed.extend(&node.ins);
        }
    }
    let mut flags = keep.into_iter();
    plan.nodes
        .retain(|_| flags.next().expect("one flag per node"));
    Ok(())
}

/// Makes outputs `product_input.N` of everything that goes into products, expert numbers included.
pub fn expose(plan: &mut Plan) {
    let products = plan.nodes.iter().filter(|node| {
        matches!(
            node.op,
            Op::Matmul { .. } | Op::HeadMatmul { .. } | Op::Experts { .. }
        )
    });
    let mut inputs: Vec<ValueId> = products.flat_map(|node| node.ins.clone()).collect();
    inputs.sort_unstable();
    inputs.dedup();
    let port = |value: ValueId| Port {
        name: format!("product_input.{}", value.0),
        value,
    };
    plan.outputs.extend(inputs.into_iter().map(port));
}

/// Moves row selection up through row-local ops, so that the last layer computes only rows whose logits are wanted.
pub fn narrow(plan: &mut Plan) {
    let full = needed_in_full(plan);
    let mut narrowed: HashMap<ValueId, ValueId> = HashMap::new();
    let old = std::mem::take(&mut plan.nodes);
    let mut late: Vec<Node> = Vec::new();
    for mut node in old {
        if node.op == Op::SelectRows {
            let from = node.ins[0];
            let to = node.outs[0];
            let source = narrow_value(plan, &mut late, &mut narrowed, &full, &node, from);
            plan.nodes.append(&mut late);
            narrowed.insert(to, source);
            continue;
        }
        let movable = node.op.is_row_local()
            && !node.outs.is_empty()
            && node.outs.iter().all(|v| !full.contains(v));
        if movable
            && node
                .outs
                .iter()
                .all(|v| plan.value(*v).shape.lead == Lead::Rows)
        {
            let ins: Vec<ValueId> = node
                .ins
                .clone()
                .iter()
                .map(|&v| narrow_value(plan, &mut late, &mut narrowed, &full, &node, v))
                .collect();
            plan.nodes.append(&mut late);
            for v in &node.outs {
                plan.values[v.index()].shape.lead = Lead::LogitRows;
                narrowed.insert(*v, *v);
            }
            node.ins = ins;
        } else {
            node.ins = node
                .ins
                .iter()
                .map(|v| resolve(plan, &narrowed, *v))
                .collect();
        }
        plan.nodes.push(node);
    }
    // What is asked of all rows stays so, though a selection of it is read elsewhere.
    let mut outputs = std::mem::take(&mut plan.outputs);
    for port in &mut outputs {
        port.value = resolve(plan, &narrowed, port.value);
    }
    plan.outputs = outputs;
}

/// A value already over logit rows stays; the output of a removed selection becomes its source.
fn resolve(plan: &Plan, narrowed: &HashMap<ValueId, ValueId>, v: ValueId) -> ValueId {
    if plan.value(v).shape.lead == Lead::LogitRows {
        narrowed.get(&v).copied().unwrap_or(v)
    } else {
        v
    }
}

/// Values that something other than a selection reads in full.
fn needed_in_full(plan: &Plan) -> HashSet<ValueId> {
    let ports = plan.outputs.iter().chain(&plan.inputs);
    let mut full: HashSet<ValueId> = ports.map(|p| p.value).collect();
    for node in plan.nodes.iter().rev() {
        if !node.op.is_row_local() {
            // Computed in full whoever reads it.
            full.extend(&node.outs);
        }
        let lead = node.outs.first().map(|v| plan.value(*v).shape.lead);
        let local = node.op.is_row_local() && lead == Some(Lead::Rows);
        let reads_full = if local {
            node.outs.iter().any(|v| full.contains(v))
        } else {
            node.op != Op::SelectRows
        };
        if reads_full {
            full.extend(&node.ins);
        }
    }
    full
}

/// The narrowed form of `v`: itself when computed so, a selection of it when it is needed in full.
fn narrow_value(
    plan: &mut Plan,
    late: &mut Vec<Node>,
    narrowed: &mut HashMap<ValueId, ValueId>,
    full: &HashSet<ValueId>,
    near: &Node,
    v: ValueId,
) -> ValueId {
    if let Some(done) = narrowed.get(&v) {
        return *done;
    }
    debug_assert!(
        full.contains(&v),
        "a value that no one needs in full is narrowed where it is made"
    );
    let mut def: ValueDef = plan.value(v).clone();
    def.shape.lead = Lead::LogitRows;
    plan.values.push(def);
    let out = ValueId(plan.values.len() as u32 - 1);
    let node = Node {
        op: Op::SelectRows,
        site: near.site.clone(),
        ins: vec![v],
        outs: vec![out],
        device: near.device,
    };
    late.push(node);
    narrowed.insert(v, out);
    out
}

/// Drops values that no op mentions.
pub fn renumber(plan: &mut Plan) {
    let mut map: HashMap<ValueId, ValueId> = HashMap::new();
    let mut values = Vec::new();
    let old = std::mem::take(&mut plan.values);
    let mut take = |v: &mut ValueId| {
        let next = ValueId(map.len() as u32);
        let id = *map.entry(*v).or_insert_with(|| {
            values.push(old[v.index()].clone());
            next
        });
        *v = id;
    };
    plan.inputs.iter_mut().for_each(|p| take(&mut p.value));
    for node in &mut plan.nodes {
        node.ins
            .iter_mut()
            .chain(&mut node.outs)
            .for_each(&mut take);
    }
    plan.outputs.iter_mut().for_each(|p| take(&mut p.value));
    plan.values = values;
}

/// Notes how plans use each weight.
pub fn uses(program: &mut Program) {
    for plan in &program.plans {
        for node in &plan.nodes {
            for id in node.op.weights() {
                let uses = &mut program.weights[id.index()].uses;
                match &node.op {
                    Op::Gather { .. } => uses.gather = true,
                    Op::Matmul { weight, .. }
                    | Op::HeadMatmul { weight, .. }
                    | Op::Conv1d(Conv1dOp { weight, .. })
                    | Op::Experts { weight, .. }
                        if *weight == id =>
                    {
                        uses.matmul = true;
                    }
                    _ => uses.vector = true,
                }
            }
        }
    }
}

/// Splits layers over devices and inserts collectives. With one device it changes nothing.
pub fn shard(program: &mut Program) {
    assert_eq!(
        program.limits.world, 1,
        "layers are not split over devices yet"
    );
}

/// Gives every op a device: device `d` begins at layer `cuts[d - 1]`. An op outside the layers goes with the op before
/// it. With no cuts there is one device.
pub fn partition(program: &mut Program, cuts: &[u32]) {
    let of = |layer: u32| DeviceId(cuts.iter().filter(|&&cut| cut <= layer).count() as u32);
    for plan in &mut program.plans {
        by_layer(plan, DeviceId(0), of);
    }
    together(program);
}

/// Gives every op the device of its layer. An op outside the layers goes with the op before it, or to `begin`.
pub(crate) fn by_layer(plan: &mut Plan, begin: DeviceId, of: impl Fn(u32) -> DeviceId) {
    let mut device = begin;
    for node in &mut plan.nodes {
        device = node.site.layer.map_or(device, &of);
        node.device = device;
    }
}

/// Moves ops to where they have to be: those of a cache slot to the device that writes it, a draw to its logits. Slots
/// that one op reads are on one device.
pub fn together(program: &mut Program) {
    let homes = homes(program);
    for plan in &mut program.plans {
        let mut made = HashMap::new();
        for node in &mut plan.nodes {
            let mut slots = node.op.slots().into_iter();
            let home = slots.find_map(|slot| homes.get(&slot).copied());
            let logits = node.ins.first().filter(|_| node.op == Op::Sample);
            let logits = logits.and_then(|v| made.get(v).copied());
            node.device = home.or(logits).unwrap_or(node.device);
            made.extend(node.outs.iter().map(|&v| (v, node.device)));
        }
    }
}

/// The device of each slot that is written.
fn homes(program: &Program) -> HashMap<SlotId, DeviceId> {
    let nodes = || program.plans.iter().flat_map(|p| &p.nodes);
    let mut homes = HashMap::new();
    for node in nodes().filter(|n| n.op.writes_state()) {
        for slot in node.op.slots() {
            homes.entry(slot).or_insert(node.device);
        }
    }
    let mut moved = true;
    while std::mem::take(&mut moved) {
        for node in nodes() {
            let slots = node.op.slots();
            let Some(least) = slots.iter().filter_map(|s| homes.get(s).copied()).min() else {
                continue;
            };
            for slot in slots {
                moved |= homes.insert(slot, least) != Some(least);
            }
        }
    }
    homes
}
