//! Multi-token-prediction heads as plans of their own.
//!
//! A head reads tokens and, from outside, the hidden state of the position before each (the main plan's output
//! `draft_input`, or `hidden` of the head before it), and gives `logits` and the next `hidden`.

use tokkata_ir::spec::{DraftSpec, GroupSpec};
use tokkata_ir::{
    GatherIndex, ModelSpec, Op, Plan, PlanRole, Port, Shape, ValType, ValueDef, ValueId,
};

use super::Builder;
use super::stack::Carry;

/// The plans of the first `count` heads.
pub(crate) fn plans(spec: &ModelSpec, count: usize) -> impl Iterator<Item = Plan> {
    let heads = spec.drafts.iter().take(count).enumerate();
    heads.map(|(i, d)| plan(spec, d, i as u32))
}

/// The cache groups that the plans need: none of the drafts' slots when no draft is built.
pub(crate) fn groups(spec: &ModelSpec, count: usize) -> Vec<GroupSpec> {
    if count > 0 || spec.drafts.is_empty() {
        return spec.groups.clone();
    }
    let kept = spec.groups.iter().zip(&spec.trunk_slots);
    kept.map(|(group, &slots)| GroupSpec {
        kind: group.kind,
        slots: group.slots[..slots as usize].to_vec(),
    })
    .collect()
}

fn plan(spec: &ModelSpec, d: &DraftSpec, number: u32) -> Plan {
    let mut builder = Builder::new(spec, PlanRole::Draft(number));
    builder.push(Op::Prepare, &[], &[]);
    let hidden = builder.input("hidden", spec.n_embd);
    builder.enter(Some(d.index));
    let embed = builder.at("embed").gather(d.table, GatherIndex::Token);
    let embed = builder.affine(embed, d.embed_scale, 0.0);
    let e = builder.at("draft_input").norm(embed, &d.enorm);
    let h = builder.norm(hidden, &d.hnorm);
    let both = builder.one(Op::Concat { groups: 1 }, &[e, h], 2 * spec.n_embd);
    let x = builder.matmul(both, &d.proj);
    let carry = Carry {
        embed,
        per_layer: None,
    };
    let x = builder.layer(&d.layer, d.index, x, carry);
    builder.enter(None);
    builder.head(&d.head, x);
    if !d.post_norm {
        builder.plan.outputs.retain(|p| p.name != "hidden");
        builder.output("hidden", x);
    }
    builder.plan
}

impl Builder<'_> {
    /// A value `[Rows, width]` set before a replay.
    fn input(&mut self, name: &str, width: u32) -> ValueId {
        let value = ValueId(self.plan.values.len() as u32);
        self.plan.values.push(ValueDef {
            shape: Shape::rows(&[width]),
            dtype: ValType::F32,
        });
        self.plan.inputs.push(Port {
            name: name.to_owned(),
            value,
        });
        value
    }
}
