//! Multi-token-prediction heads as plans of their own.
//!
//! A head reads tokens and, from outside, the hidden state of the position before each (the main plan's output
//! `draft_input`, or `hidden` of the head before it), and gives `logits` and the next `hidden`. Where the trunk has
//! several streams, all of them are the state. A drafter of another file reads states that the main plan makes of what
//! goes into its layers, or keys and values that it keeps of them, and has a plan of the same kind.

use tokkata_ir::spec::{BlockSpec, DraftForm, DraftInput, DraftSpec, GroupSpec, NormSpec, TapSpec};
use tokkata_ir::{
    GatherIndex, ModelSpec, Op, Plan, PlanRole, Port, Recipe, Shape, ValType, ValueDef, ValueId,
    WeightDef, WeightId,
};

use super::stack::Carry;
use super::{BuildOptions, Builder};

/// The plans of the first `count` heads, numbered from `first` on.
pub(crate) fn plans(spec: &ModelSpec, (count, first): (usize, u32)) -> impl Iterator<Item = Plan> {
    let heads = spec.drafts.iter().take(count);
    heads.zip(first..).map(|(d, number)| plan(spec, d, number))
}

/// The specification with heads that tell only the first tokens of the vocabulary apart, where all of them can.
pub(crate) fn short(spec: &ModelSpec, options: &BuildOptions) -> Option<ModelSpec> {
    let count = options.short;
    if count == 0 || count >= spec.n_vocab || options.drafts == 0 || spec.drafts.is_empty() {
        return None;
    }
    let mut short = spec.clone();
    for d in &mut short.drafts {
        let output = d.head.output.as_mut()?;
        let whole = &spec.weights[output.weight.index()];
        let one = |id: WeightId| spec.weights[id.index()].shape.iter().product::<u32>() == 1;
        let per_row = output.bias.is_some() || !output.scale.is_none_or(one);
        if d.form != DraftForm::default() || per_row || whole.shape.len() != 2 {
            return None;
        }
        let name = format!("{} (rows 0..{count})", whole.name);
        let known = short.weights.iter().position(|w| w.name == name);
        output.weight = WeightId(known.unwrap_or(short.weights.len()) as u32);
        if known.is_none() {
            short.weights.push(WeightDef {
                name,
                shape: vec![count, whole.shape[1]],
                recipe: Recipe::Rows {
                    of: Box::new(whole.recipe.clone()),
                    start: 0,
                    len: count,
                },
                ..whole.clone()
            });
        }
    }
    Some(short)
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
    let hidden = match d.input {
        DraftInput::Tokens => None,
        _ => Some(builder.input("hidden", streams * d.n_embd)),
    };
    builder.enter(Some(d.index));
    let embed = builder.at("embed").gather(d.table, GatherIndex::Token);
    let embed = builder.affine(embed, d.embed_scale, 0.0);
    let (state, x) = match (&d.input, hidden) {
        (DraftInput::Joined { enorm, hnorm, proj }, Some(hidden)) => {
            let both = builder.normed_pair((embed, enorm), (hidden, hnorm));
            match &d.connected {
                Some(c) => builder.connected_draft(d, c, (both, proj)),
                None => {
                    let x = builder.side_by_side(both);
                    let x = builder.matmul(x, proj);
                    builder.draft_layers(d, embed, x)
                }
            }
        }
        (
            DraftInput::Beside {
                enorm,
                hnorm,
                normed,
            },
            Some(hidden),
        ) => {
            let both = builder.normed_pair((embed, enorm), (hidden, hnorm));
            builder.beside = Some(builder.side_by_side(both));
            builder.draft_layers(d, embed, if *normed { both.1 } else { hidden })
        }
        _ => builder.draft_layers(d, embed, embed),
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
    /// What goes into some of the trunk's layers, as the state that a drafter of another file reads: an output, or kept by
    /// that drafter's layers as keys and values.
    pub(super) fn taps(&mut self, taps: &TapSpec, inputs: &[ValueId]) {
        let seen: Vec<ValueId> = taps.layers.iter().map(|&l| inputs[l as usize]).collect();
        let width = seen.iter().map(|&v| self.width(v)).sum();
        self.at("taps");
        let all = match seen[..] {
            [one] => one,
            _ => self.one(Op::Concat { groups: 1 }, &seen, width),
        };
        let all = self.norm_opt(all, taps.before.as_ref());
        let state = self.matmul(all, &taps.proj);
        let state = self.norm_opt(state, taps.after.as_ref());
        if !taps.kept {
            return self.output("draft_input", state);
        }
        let layers = self.spec.drafts.iter().flat_map(|d| &d.layers);
        let branches = layers.flat_map(|l| &l.steps).flat_map(|s| &s.branches);
        for branch in branches {
            if let BlockSpec::Attention(a) = &branch.block {
                self.keep(a, state);
            }
        }
    }

    fn normed_pair(
        &mut self,
        (embed, enorm): (ValueId, &NormSpec),
        (hidden, hnorm): (ValueId, &NormSpec),
    ) -> (ValueId, ValueId) {
        let e = self.at("draft_input").norm(embed, enorm);
        (e, self.norm(hidden, hnorm))
    }

    fn side_by_side(&mut self, (a, b): (ValueId, ValueId)) -> ValueId {
        let width = self.width(a) + self.width(b);
        self.one(Op::Concat { groups: 1 }, &[a, b], width)
    }

    /// What the layers make of a stream, as the state and as what the head reads.
    fn draft_layers(
        &mut self,
        d: &DraftSpec,
        embed: ValueId,
        mut x: ValueId,
    ) -> (ValueId, ValueId) {
        let carry = Carry {
            embed,
            per_layer: None,
        };
        for (i, layer) in (d.index..).zip(&d.layers) {
            if i > d.index {
                self.enter(Some(i));
            }
            x = self.layer(layer, i, x, carry);
        }
        (x, x)
    }

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
    use tokkata_ir::spec::{HeadSpec, LayerSpec, Proj};
    use tokkata_ir::{Axis, CacheKind, NormKind, Site, SlotDef, Uses};

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
            n_embd: 4,
            input: DraftInput::Joined {
                enorm: norm(),
                hnorm: norm(),
                proj: Proj {
                    weight: WeightId(1),
                    scale: None,
                    bias: None,
                },
            },
            table: WeightId(0),
            embed_scale: 1.0,
            layers: vec![LayerSpec::default()],
            index: 7,
            head: HeadSpec {
                norm: Some(norm()),
                ..HeadSpec::default()
            },
            post_norm: false,
            connected: None,
            form: DraftForm::default(),
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
        let plan = plans(&spec, (3, 0)).next().expect("one head");
        assert_eq!(plans(&spec, (3, 0)).count(), 1);
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
