//! The shape-only mode: checks that inputs, outputs, weights, constants and slots of every node fit its op.

mod mixers;
mod rules;

use tokkata_ir::{
    ConstId, Lead, Node, Plan, Program, SlotDef, SlotId, ValType, ValueDef, ValueId, WeightId,
};

/// A node and what does not fit. Texts name values as dumps do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} ({op} at {site}): {fault}")]
pub struct ShapeError {
    /// Index of the node.
    pub node: usize,
    /// Name of its op.
    pub op: &'static str,
    /// Its site.
    pub site: String,
    /// What does not fit.
    pub fault: Fault,
}

/// What does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Too few or many inputs or outputs.
    #[error("{found} {what}, expected {expected}")]
    Count {
        /// `inputs` or `outputs`.
        what: &'static str,
        /// How many the op takes.
        expected: usize,
        /// How many the node has.
        found: usize,
    },
    /// A value that the plan does not have.
    #[error("{0} is not a value of the plan")]
    Absent(ValueId),
    /// A value read before it is written.
    #[error("{0} is read before it is written")]
    Unwritten(ValueId),
    /// A value written twice.
    #[error("{0} is written twice")]
    Rewritten(ValueId),
    /// A value of another shape or type.
    #[error("{value} is {found}, expected {expected}")]
    Value {
        /// The value.
        value: ValueId,
        /// Shape that the op needs.
        expected: String,
        /// Shape that it has.
        found: String,
    },
    /// A weight of another size.
    #[error("weight {name} has {found} elements, expected {expected}")]
    Weight {
        /// The weight.
        name: String,
        /// Elements that the op needs.
        expected: usize,
        /// Elements that it has.
        found: usize,
    },
    /// A relation between sizes that does not hold.
    #[error("{what}: {found} does not fit {expected}")]
    Size {
        /// What the sizes are.
        what: &'static str,
        /// The size asked for.
        found: usize,
        /// What it must fit.
        expected: usize,
    },
    /// A slot that keeps something else.
    #[error("slot {slot} is {found:?}, expected {expected}")]
    Slot {
        /// The slot.
        slot: SlotId,
        /// What the op keeps there.
        expected: String,
        /// What the group says, if it has the slot.
        found: Option<SlotDef>,
    },
}

type Checked<T = ()> = Result<T, Fault>;

/// Checks every node of a plan.
///
/// # Errors
/// The first node that does not fit.
pub fn check(plan: &Plan, program: &Program) -> Result<(), ShapeError> {
    let mut written = vec![false; plan.values.len()];
    for port in &plan.inputs {
        if let Some(w) = written.get_mut(port.value.index()) {
            *w = true;
        }
    }
    for (index, node) in plan.nodes.iter().enumerate() {
        let checker = Checker {
            plan,
            program,
            node,
        };
        let checked = order(node, &mut written).and_then(|()| checker.node());
        checked.map_err(|fault| ShapeError {
            node: index,
            op: node.op.name(),
            site: node.site.to_string(),
            fault,
        })?;
    }
    Ok(())
}

/// Values are written once, and before they are read.
fn order(node: &Node, written: &mut [bool]) -> Checked {
    for &id in &node.ins {
        match written.get(id.index()) {
            Some(true) => {}
            Some(false) => return Err(Fault::Unwritten(id)),
            None => return Err(Fault::Absent(id)),
        }
    }
    for &id in &node.outs {
        match written.get_mut(id.index()) {
            Some(w @ false) => *w = true,
            Some(true) => return Err(Fault::Rewritten(id)),
            None => return Err(Fault::Absent(id)),
        }
    }
    Ok(())
}

/// One node under check.
struct Checker<'a> {
    plan: &'a Plan,
    program: &'a Program,
    node: &'a Node,
}

fn describe(lead: Lead, width: usize, dtype: ValType) -> String {
    format!("{dtype:?} [{lead:?}, {width}]")
}

impl<'a> Checker<'a> {
    fn counts(&self, ins: usize, outs: usize) -> Checked {
        let sides = [
            ("inputs", ins, self.node.ins.len()),
            ("outputs", outs, self.node.outs.len()),
        ];
        for (what, expected, found) in sides {
            if expected != found {
                return Err(Fault::Count {
                    what,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    fn def(&self, id: ValueId) -> &'a ValueDef {
        self.plan.value(id)
    }

    fn lead(&self, input: usize) -> Lead {
        self.def(self.node.ins[input]).shape.lead
    }

    fn width(&self, input: usize) -> usize {
        self.def(self.node.ins[input]).shape.width()
    }

    fn value(&self, id: ValueId, (lead, width, dtype): (Lead, usize, ValType)) -> Checked {
        let def = self.def(id);
        let (found, width_found) = (def.shape.lead, def.shape.width());
        if (found, width_found, def.dtype) == (lead, width, dtype) {
            return Ok(());
        }
        Err(Fault::Value {
            value: id,
            expected: describe(lead, width, dtype),
            found: describe(found, width_found, def.dtype),
        })
    }

    /// Input `i` is floats `[lead, width]`.
    fn input(&self, i: usize, lead: Lead, width: usize) -> Checked {
        self.value(self.node.ins[i], (lead, width, ValType::F32))
    }

    /// Output `i` is floats `[lead, width]`.
    fn output(&self, i: usize, lead: Lead, width: usize) -> Checked {
        self.value(self.node.outs[i], (lead, width, ValType::F32))
    }

    /// The first input is floats, and its lead and width.
    fn x(&self) -> Checked<(Lead, usize)> {
        let (lead, width) = (self.lead(0), self.width(0));
        self.input(0, lead, width)?;
        size("columns of the input", width.min(1), 1)?;
        Ok((lead, width))
    }

    fn elements(&self, id: WeightId) -> usize {
        let shape = &self.program.weights[id.index()].shape;
        shape.iter().map(|&d| d as usize).product()
    }

    fn weight(&self, id: impl Into<Option<WeightId>>, expected: usize) -> Checked {
        let Some(id) = id.into() else { return Ok(()) };
        match self.elements(id) {
            found if found == expected => Ok(()),
            found => Err(Fault::Weight {
                name: self.program.weights[id.index()].name.clone(),
                expected,
                found,
            }),
        }
    }

    /// A weight of either size.
    fn weight_of(&self, id: Option<WeightId>, sizes: [usize; 2]) -> Checked {
        self.weight(id, sizes[0])
            .or_else(|_| self.weight(id, sizes[1]))
    }

    fn floats(&self, id: ConstId) -> usize {
        self.program.constant(id).f32s().len()
    }

    fn slot(&self, slot: SlotId, expected: &SlotDef) -> Checked {
        let found = self.slot_def(slot);
        if found == Some(expected) {
            return Ok(());
        }
        Err(Fault::Slot {
            slot,
            expected: format!("{expected:?}"),
            found: found.cloned(),
        })
    }

    fn slot_def(&self, slot: SlotId) -> Option<&'a SlotDef> {
        let group = self.program.caches.get(slot.group.index())?;
        group.slots.get(slot.slot as usize)
    }

    fn state(&self, slot: SlotId, len: usize) -> Checked {
        let len = u32::try_from(len).map_err(|_| Fault::Size {
            what: "values of a state",
            found: len,
            expected: u32::MAX as usize,
        })?;
        self.slot(slot, &SlotDef::State { len })
    }
}

/// `found` must be `expected`.
fn size(what: &'static str, found: usize, expected: usize) -> Checked {
    fits(found == expected, what, found, expected)
}

/// `found` must be at most `expected`.
fn at_most(what: &'static str, found: usize, expected: usize) -> Checked {
    fits(found <= expected, what, found, expected)
}

/// `part` must divide `whole`; gives the quotient.
fn divide(what: &'static str, part: impl Into<u64>, whole: usize) -> Checked<usize> {
    let part = part.into() as usize;
    fits(part > 0 && whole.is_multiple_of(part), what, part, whole)?;
    Ok(whole / part)
}

fn fits(ok: bool, what: &'static str, found: usize, expected: usize) -> Checked {
    if ok {
        return Ok(());
    }
    Err(Fault::Size {
        what,
        found,
        expected,
    })
}
