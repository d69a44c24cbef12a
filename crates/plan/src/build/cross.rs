//! The encoder of an encoder–decoder: besides its rows it writes the keys and values that the decoder's cross
//! attentions read, so that decoding never touches the encoder again.

use tokkata_ir::spec::{AttentionSpec, BlockSpec, KvPlace, Qkv, StackSpec};
use tokkata_ir::{ModelSpec, Op, Plan, PlanRole, SlotId, ValueId};

use super::Builder;

/// The encoder's plan.
pub(crate) fn encoder(spec: &ModelSpec, stack: &StackSpec) -> Plan {
    let mut builder = Builder::new(spec, PlanRole::Encoder);
    builder.push(Op::Prepare, &[], &[]);
    builder.stack(stack);
    let hidden = builder.plan.output("hidden");
    let hidden = hidden.expect("an encoder gives its rows");
    for (i, layer) in spec.main.layers.iter().enumerate() {
        builder.enter(Some(i as u32));
        let branches = layer.steps.iter().flat_map(|s| &s.branches);
        for (a, slot) in branches.filter_map(|b| crossing(&b.block)) {
            builder.write_cross(a, slot, hidden);
        }
    }
    builder.enter(None);
    builder.plan
}

/// The attention and its slot, when it looks at the encoder.
fn crossing(block: &BlockSpec) -> Option<(&AttentionSpec, SlotId)> {
    match block {
        BlockSpec::Attention(a) => match a.kv {
            KvPlace::Cross(slot) => Some((a, slot)),
            _ => None,
        },
        _ => None,
    }
}

impl Builder<'_> {
    fn write_cross(&mut self, a: &AttentionSpec, slot: SlotId, hidden: ValueId) {
        let Qkv::Split { k, v, .. } = &a.qkv else {
            unreachable!("queries and keys of a cross attention have different inputs")
        };
        let k = k.as_ref().map(|p| self.at("cross_k").matmul(hidden, p));
        let k = k.map(|k| self.positioned(k, a.k_norm.as_ref(), None, a.dim_k));
        if let Some(k) = k {
            self.layer_output("cross_k", k);
        }
        let v = v.as_ref().map(|p| self.at("cross_v").matmul(hidden, p));
        let v = v.map(|v| self.positioned(v, a.v_norm.as_ref(), None, a.dim_v));
        let ins: Vec<ValueId> = [k, v].into_iter().flatten().collect();
        self.at("cross_kv").push(Op::CacheWrite { slot }, &ins, &[]);
    }
}
