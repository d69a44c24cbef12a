//! Fusion: which ops disappear into the kernels of the ops that read them.
//!
//! Plans stay unfused; a backend declares [`Rule`]s and [`groups`] cuts a plan by them. A group is a producer and all
//! of its readers, which run the producer on their way in, so that its output is never written to memory. Without
//! rules every op runs by itself.

use std::collections::BTreeMap;

use crate::{Node, Plan, ValueId};

/// An op that is done while its readers' first input is prepared.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name of the group.
    pub name: &'static str,
    /// The op that disappears.
    pub producer: &'static str,
    /// The ops that may read it, as their first input.
    pub readers: &'static [&'static str],
    /// Further condition on the producer.
    pub when: fn(&Node, &Plan) -> bool,
}

impl Rule {
    /// The readers that node `index` disappears into, when it may.
    fn readers(&self, plan: &Plan, index: usize) -> Option<Vec<usize>> {
        let node = &plan.nodes[index];
        let [out] = node.outs[..] else { return None };
        if node.op.name() != self.producer || is_output(plan, out) || !(self.when)(node, plan) {
            return None;
        }
        let readers: Vec<usize> = (0..plan.nodes.len())
            .filter(|&n| plan.nodes[n].ins.contains(&out))
            .collect();
        let takes = |&n: &usize| {
            let reader = &plan.nodes[n];
            let others = reader.ins.iter().skip(1);
            self.readers.contains(&reader.op.name())
                && reader.ins[0] == out
                && others.clone().all(|&v| v != out)
        };
        (!readers.is_empty() && readers.iter().all(takes)).then_some(readers)
    }
}

fn is_output(plan: &Plan, value: ValueId) -> bool {
    plan.outputs.iter().any(|p| p.value == value)
}

/// A producer's group: the rule that made it and the nodes that read the producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The rule's name.
    pub name: &'static str,
    /// Nodes, in plan order, into which the producer disappears.
    pub readers: Vec<usize>,
}

/// The groups of a plan by the node that disappears; the first rule that matches a node wins.
#[must_use]
pub fn groups(plan: &Plan, rules: &[Rule]) -> BTreeMap<usize, Group> {
    let group = |index| {
        rules.iter().find_map(|rule| {
            let readers = rule.readers(plan, index)?;
            Some((
                index,
                Group {
                    name: rule.name,
                    readers,
                },
            ))
        })
    };
    (0..plan.nodes.len()).filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Act, Op};
    use crate::{DeviceId, PlanRole, Port, Shape, Site, ValType, ValueDef};

    const RULES: &[Rule] = &[Rule {
        name: "copy_silu",
        producer: "copy",
        readers: &["unary"],
        when: |_, _| true,
    }];

    fn node(op: Op, ins: &[u32], out: u32) -> Node {
        Node {
            op,
            ins: ins.iter().map(|&i| ValueId(i)).collect(),
            outs: vec![ValueId(out)],
            site: Site::global("test"),
            device: DeviceId(0),
        }
    }

    fn plan(nodes: Vec<Node>, output: u32) -> Plan {
        let value = ValueDef {
            shape: Shape::rows(&[4]),
            dtype: ValType::F32,
        };
        Plan {
            role: PlanRole::Main,
            inputs: vec![],
            outputs: vec![Port {
                name: "out".to_owned(),
                value: ValueId(output),
            }],
            values: vec![value; 4],
            nodes,
        }
    }

    #[test]
    fn a_producer_disappears_only_into_readers_that_all_allow_it() {
        let both = || {
            vec![
                node(Op::Copy, &[0], 1),
                node(Op::Unary(Act::Silu), &[1], 2),
                node(Op::Unary(Act::Silu), &[1], 3),
            ]
        };
        let found = groups(&plan(both(), 3), RULES);
        assert_eq!(found.len(), 1);
        assert_eq!(found[&0].readers, [1, 2]);
        let mut mixed = both();
        mixed[2] = node(Op::Copy, &[1], 3);
        assert!(groups(&plan(mixed, 3), RULES).is_empty());
        assert!(
            groups(&plan(both(), 1), RULES).is_empty(),
            "outputs are kept"
        );
        assert!(
            groups(&plan(both(), 3), &[]).is_empty(),
            "no rules, no groups"
        );
    }
}
