//! The fusion matcher: cuts a plan into groups by rules that a backend declares.
//!
//! A rule is a chain of op names; it matches where each op after the first reads the output of the one before and
//! nothing else reads that output. Groups keep plan order; ops that no rule takes are groups of one.

use tokkata_ir::{Node, Plan};

/// A fusion rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name of the kernel that runs the group.
    pub name: &'static str,
    /// Op names in order.
    pub pattern: &'static [&'static str],
    /// Further condition on the matched nodes.
    pub when: fn(&[&Node], &Plan) -> bool,
}

/// Consecutive-in-dataflow ops that one kernel runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The rule's name, or the op's when it stands alone.
    pub name: &'static str,
    /// Node indices in plan order.
    pub nodes: Vec<usize>,
}

/// Cuts groups; the first rule that matches at a node wins. `rules` empty runs 1:1.
#[must_use]
pub fn cut(plan: &Plan, rules: &[Rule]) -> Vec<Group> {
    let readers = count_readers(plan);
    let mut taken = vec![false; plan.nodes.len()];
    let mut groups = Vec::new();
    for start in 0..plan.nodes.len() {
        if taken[start] {
            continue;
        }
        let found = rules
            .iter()
            .find_map(|r| chain(plan, &readers, &taken, start, r).map(|nodes| (r.name, nodes)));
        let (name, nodes) = found.unwrap_or((plan.nodes[start].op.name(), vec![start]));
        nodes.iter().for_each(|&n| taken[n] = true);
        groups.push(Group { name, nodes });
    }
    groups
}

fn count_readers(plan: &Plan) -> Vec<u32> {
    let mut readers = vec![0; plan.values.len()];
    for v in plan.nodes.iter().flat_map(|n| &n.ins) {
        readers[v.index()] += 1;
    }
    for port in &plan.outputs {
        readers[port.value.index()] += 1;
    }
    readers
}

/// A match must be consecutive in the plan, so that moving its ops together cannot pass a reader or writer.
fn chain(
    plan: &Plan,
    readers: &[u32],
    taken: &[bool],
    start: usize,
    rule: &Rule,
) -> Option<Vec<usize>> {
    let end = start + rule.pattern.len();
    let nodes = plan.nodes.get(start..end)?;
    let names = nodes
        .iter()
        .map(|n| n.op.name())
        .eq(rule.pattern.iter().copied());
    if !names || taken[start..end].iter().any(|t| *t) {
        return None;
    }
    for pair in nodes.windows(2) {
        let [out] = pair[0].outs[..] else { return None };
        if !pair[1].ins.contains(&out) || readers[out.index()] != 1 {
            return None;
        }
    }
    let refs: Vec<&Node> = nodes.iter().collect();
    (rule.when)(&refs, plan).then(|| (start..end).collect())
}
