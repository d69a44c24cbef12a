//! Multi-token-prediction heads as plans of their own.
//!
//! A head reads tokens and, from outside, the hidden state of the position before each (the main plan's output
//! `draft_input`, or `hidden` of the head before it), and gives `logits` and the next `hidden`. Where the trunk has
//! several streams, all of them are the state.

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
    let streams = d.connected.as_ref().map_or(1, |c| c.n);
    let hidden = builder.input("hidden", streams * spec.n_embd);
    builder.enter(Some(d.index));
    let embed = builder.at("embed").gather(d.table, GatherIndex::Token);
    let embed = builder.affine(embed, d.embed_scale, 0.0);
    let e = builder.at("draft_input").norm(embed, &d.enorm);
    let h = builder.norm(hidden, &d.hnorm);
    let (state, x) = match &d.connected {
        Some(c) => builder.connected_draft(d, c, (e, h)),
        None => {
            let both = builder.one(Op::Concat { groups: 1 }, &[e, h], 2 * spec.n_embd);
            let x = builder.matmul(both, &d.proj);
            let carry = Carry {
                embed,
                per_layer: None,
            };
            let x = builder.layer(&d.layer, d.index, x, carry);
            (x, x)
        }
    };
    builder.enter(None);
    builder.head(&d.head, x);
    if !d.post_norm {
        builder.plan.outputs.retain(|p| p.name != "hidden");
        builder.output("hidden", state);
    }
    builder.plan
}

impl Builder<'_> {
    /// A value `[Rows, width]` set before a replay.
    pub(super) fn input(&mut self, name: &str, width: u32) -> ValueId {
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

#[cfg(test)]
mod tests {
    use tokkata_ir::spec::{HeadSpec, LayerSpec, NormSpec, Proj};
    use tokkata_ir::{Axis, CacheKind, NormKind, Recipe, Site, SlotDef, Uses, WeightDef, WeightId};

    use super::*;

    fn weight(name: &str, shape: [u32; 2]) -> WeightDef {
        WeightDef {
            name: name.to_owned(),
            shape: shape.to_vec(),
            axes: vec![Axis::Other; 2],
            recipe: Recipe::Source(name.to_owned()),
            uses: Uses::default(),
            site: Site::global(name),
        }
    }

    fn norm() -> NormSpec {
        NormSpec {
            kind: NormKind::Rms,
            eps: 1e-6,
            width: 4,
            weight: None,
            bias: None,
        }
    }

    fn spec() -> ModelSpec {
        let slot = SlotDef::State { len: 1 };
        let group = |kind, slots: usize| GroupSpec {
            kind,
            slots: vec![slot.clone(); slots],
        };
        let head = DraftSpec {
            enorm: norm(),
            hnorm: norm(),
            proj: Proj {
                weight: WeightId(1),
                scale: None,
                bias: None,
            },
            table: WeightId(0),
            embed_scale: 1.0,
            layer: LayerSpec::default(),
            index: 7,
            head: HeadSpec {
                norm: Some(norm()),
                ..HeadSpec::default()
            },
            post_norm: false,
            connected: None,
        };
        ModelSpec {
            n_embd: 4,
            weights: vec![weight("table", [6, 4]), weight("proj", [4, 8])],
            groups: vec![group(CacheKind::Full, 3), group(CacheKind::Window(8), 1)],
            drafts: vec![head],
            trunk_slots: vec![2],
            ..ModelSpec::default()
        }
    }

    #[test]
    fn slots_of_drafts_exist_where_drafts_are_built() {
        let spec = spec();
        let kept: Vec<usize> = groups(&spec, 0).iter().map(|g| g.slots.len()).collect();
        assert_eq!(kept, [2]);
        assert_eq!(groups(&spec, 1), spec.groups);
    }

    #[test]
    fn a_head_gives_what_the_next_one_reads() {
        let spec = spec();
        let plan = plans(&spec, 3).next().expect("one head");
        assert_eq!(plans(&spec, 3).count(), 1);
        let names: Vec<&str> = plan.nodes.iter().map(|n| n.op.name()).collect();
        let want = [
            "prepare", "gather", "norm", "norm", "concat", "matmul", "norm",
        ];
        assert_eq!(names, want);
        assert_eq!(plan.inputs[0].name, "hidden");
        // Taken before the final norm, as the specification says.
        assert_eq!(plan.output("hidden"), Some(plan.nodes[5].outs[0]));
    }
}
