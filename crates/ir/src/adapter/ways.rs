//! A plan as rows without adapters need it, beside the plan itself.
//!
//! A device that does more than an op at once would do less at once with an [`Op::Adapt`] between any two of them. So it may
//! lower a plan twice, and run steps in which no row goes through an adapter as if there were none.

use std::collections::BTreeMap;

use crate::ids::ValueId;
use crate::op::Op;
use crate::program::{Node, Plan};

/// Something for steps of which no row goes through an adapter, and the same for other ones where a plan has them.
#[derive(Clone, Copy, Debug)]
pub struct Ways<T> {
    /// Without adapters.
    pub bare: T,
    /// Through adapters.
    pub adapted: Option<T>,
}

impl<T> Ways<T> {
    /// That of a step, by whether a row of it goes through an adapter.
    #[must_use]
    pub fn of(&self, adapts: bool) -> &T {
        let adapted = self.adapted.as_ref().filter(|_| adapts);
        adapted.unwrap_or(&self.bare)
    }

    /// All there are.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.bare).chain(&self.adapted)
    }

    /// All there are, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        std::iter::once(&mut self.bare).chain(&mut self.adapted)
    }

    /// References to all there are.
    #[must_use]
    pub fn each_ref(&self) -> Ways<&T> {
        Ways {
            bare: &self.bare,
            adapted: self.adapted.as_ref(),
        }
    }

    /// What becomes of each, whether it is for rows through adapters.
    ///
    /// # Errors
    /// The first of those of `f`.
    pub fn try_map<U, E>(self, mut f: impl FnMut(T, bool) -> Result<U, E>) -> Result<Ways<U>, E> {
        Ok(Ways {
            bare: f(self.bare, false)?,
            adapted: self.adapted.map(|x| f(x, true)).transpose()?,
        })
    }
}

impl Ways<Plan> {
    /// A plan without what adapters add, and the plan. Nodes keep their places: those that add are [`Op::Prepare`] in the first,
    /// and who reads what they make reads what they add to.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let names = additions(plan);
        let mut bare = plan.clone();
        let name = |value: &mut ValueId| *value = names.get(value).copied().unwrap_or(*value);
        for node in &mut bare.nodes {
            match node.op {
                Op::Adapt { .. } => {
                    (node.op, node.ins, node.outs) = (Op::Prepare, Vec::new(), Vec::new());
                }
                _ => node.ins.iter_mut().for_each(name),
            }
        }
        bare.outputs
            .iter_mut()
            .for_each(|port| name(&mut port.value));
        Ways {
            bare,
            adapted: (!names.is_empty()).then(|| plan.clone()),
        }
    }
}

/// What comes out of an [`Op::Adapt`], and what it adds to.
#[must_use]
pub fn addition(node: &Node) -> (ValueId, ValueId) {
    (node.outs[0], node.ins[node.ins.len().min(2) - 1])
}

/// What adapters add to, by what comes out.
#[must_use]
pub fn additions(plan: &Plan) -> BTreeMap<ValueId, ValueId> {
    let adapts = |node: &&Node| matches!(node.op, Op::Adapt { .. });
    plan.nodes.iter().filter(adapts).map(addition).collect()
}

/// The additions of a plan, by what they add to.
#[derive(Debug)]
pub struct Addends<'a> {
    plan: &'a Plan,
    nodes: BTreeMap<ValueId, usize>,
}

impl<'a> Addends<'a> {
    /// Those of a plan.
    #[must_use]
    pub fn new(plan: &'a Plan) -> Self {
        let nodes = plan.nodes.iter().enumerate();
        let adapts = nodes.filter(|(_, node)| matches!(node.op, Op::Adapt { .. }));
        Addends {
            plan,
            nodes: adapts.map(|(n, node)| (addition(node).1, n)).collect(),
        }
    }

    /// What becomes of a value once something is added to it; the value where nothing is.
    #[must_use]
    pub fn name(&self, value: ValueId) -> ValueId {
        let node = self.nodes.get(&value);
        node.map_or(value, |&n| self.plan.nodes[n].outs[0])
    }

    /// The nodes that add to what these nodes make.
    #[must_use]
    pub fn behind(&self, nodes: &[usize]) -> Vec<usize> {
        let outs = nodes.iter().flat_map(|&n| &self.plan.nodes[n].outs);
        outs.filter_map(|out| self.nodes.get(out).copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DeviceId, Site, WeightId};
    use crate::op::{Act, AdaptForm};
    use crate::program::{PlanRole, Port};

    #[test]
    fn a_plan_without_what_adapters_add_keeps_the_places_of_its_nodes() {
        let node = |op: Op, ins: &[u32], out: u32| Node {
            site: Site::global(op.name()),
            op,
            ins: ins.iter().map(|&v| ValueId(v)).collect(),
            outs: vec![ValueId(out)],
            device: DeviceId(0),
        };
        let weight = WeightId(0);
        let product = Op::Matmul {
            weight,
            scale: None,
            bias: None,
        };
        let form = AdaptForm::Product;
        let port = |name: &str, value| Port {
            name: name.to_owned(),
            value: ValueId(value),
        };
        let plan = Plan {
            role: PlanRole::Main,
            inputs: vec![port("x", 0)],
            outputs: vec![port("y", 4)],
            values: Vec::new(),
            nodes: vec![
                node(product.clone(), &[0], 1),
                node(Op::Adapt { weight, form }, &[0, 1], 2),
                node(product, &[2], 3),
                node(Op::Adapt { weight, form }, &[2, 3], 4),
                node(Op::Unary(Act::Relu), &[4], 5),
            ],
        };
        let ways = Ways::new(&plan);
        let bare = ways.of(false);
        let reads = |n: usize| bare.nodes[n].ins.clone();
        assert_eq!(bare.nodes[1].op, Op::Prepare);
        assert_eq!((reads(2), reads(4)), (vec![ValueId(1)], vec![ValueId(3)]));
        assert_eq!(bare.outputs[0].value, ValueId(3));
        assert!(bare.nodes[3].ins.is_empty() && bare.nodes[3].outs.is_empty());
        assert_eq!(ways.of(true).nodes, plan.nodes);
        assert!(Ways::new(bare).adapted.is_none());
        let addends = Addends::new(&plan);
        let names = [1, 3, 4].map(|v| addends.name(ValueId(v)));
        assert_eq!(names, [2, 4, 4].map(ValueId));
        assert_eq!(
            (addends.behind(&[0, 2]), addends.behind(&[4])),
            (vec![1, 3], vec![])
        );
        assert_eq!(Ways::new(bare).of(true).nodes, bare.nodes);
    }
}
