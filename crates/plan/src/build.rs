//! From a specification to a program.
//!
//! `Builder` appends ops to one plan; the modules below it append what one kind of block means. Equal ops on
//! equal inputs inside a layer become one, so that branches that share a norm share its op.

mod attention;
mod connected;
mod cross;
mod draft;
mod ffn;
mod indexer;
mod mixers;
mod rwkv;
mod stack;
mod streams;
mod summary;

use tokkata_core::DType;
use tokkata_ir::spec::{NormSpec, Proj, TapSpec};
use tokkata_ir::{
    Act, BinaryKind, CacheGroup, CacheKind, DeviceId, Limits, ModelSpec, Node, Op, Plan, PlanRole,
    Port, Program, Shape, Site, SlotDef, ValType, ValueDef, ValueId, WeightId,
};

use crate::error::PlanError;
use crate::passes;

use indexer::Chosen;

/// What a caller wants from a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Positions per cache block.
    pub block_size: u32,
    /// Outputs of the main plan by name; empty takes the model's usual ones.
    pub outputs: Vec<String>,
    /// Outputs of the encoder's plan beside its rows: the keys that a decoder's layer reads, `cross_k.N`.
    pub encoder_outputs: Vec<String>,
    /// Multi-token-prediction heads to build, as far as the model has them. What the first one reads is a usual output then.
    pub drafts: usize,
    /// Tokens, from the first on, that each of these is built once more for, in plans behind theirs: such a head tells only
    /// these apart, and costs less. 0 for none.
    pub short: u32,
    /// Rows of prompts may be given as embeddings, to the port `embeds` of the main plan.
    pub embeds: bool,
    /// Output of a plan for vectors ([`PlanRole::Embed`]) over the same weights, if one is wanted.
    pub vectors: Option<String>,
    /// Also keep what goes into every product of the main plan, for all rows.
    pub product_inputs: bool,
    /// Layers, ascending, at which the next device begins.
    pub cuts: Vec<u32>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions {
            block_size: 32,
            outputs: Vec::new(),
            encoder_outputs: Vec::new(),
            drafts: 0,
            short: 0,
            embeds: false,
            vectors: None,
            product_inputs: false,
            cuts: Vec::new(),
        }
    }
}

/// Builds the program of a model with its usual outputs.
///
/// # Errors
/// [`PlanError`] for limits that make no sense.
pub fn build(spec: &ModelSpec, limits: &Limits) -> Result<Program, PlanError> {
    build_with(spec, limits, &BuildOptions::default())
}

/// Builds the program of a model.
///
/// # Errors
/// [`PlanError`] for outputs the model does not have and limits that make no sense.
pub fn build_with(
    spec: &ModelSpec,
    limits: &Limits,
    options: &BuildOptions,
) -> Result<Program, PlanError> {
    check(limits)?;
    let mut plans = vec![main(spec, options)];
    if let Some(encoder) = &spec.encoder {
        let mut plan = cross::encoder(spec, encoder);
        let asked = |name: &String| options.encoder_outputs.contains(name);
        plan.outputs
            .retain(|o| o.name == "hidden" || asked(&o.name));
        plans.push(plan);
    }
    let short = draft::short(spec, options);
    plans.extend(draft::plans(spec, (options.drafts, 0)));
    plans.extend(short.iter().flat_map(|short| {
        let before = spec.drafts.len().min(options.drafts);
        draft::plans(short, (options.drafts, before as u32))
    }));
    let spec = short.as_ref().unwrap_or(spec);
    if limits.adapters > 0 {
        plans.iter_mut().for_each(passes::adapt);
    }
    let outputs = usual_outputs(&plans[0], options);
    passes::prune(&mut plans[0], &outputs)?;
    if options.product_inputs {
        passes::expose(&mut plans[0]);
    } else {
        passes::narrow(&mut plans[0]);
    }
    if let Some(output) = &options.vectors {
        let mut vectors = vectors(spec);
        if limits.adapters > 0 {
            passes::adapt(&mut vectors);
        }
        passes::prune(&mut vectors, std::slice::from_ref(output))?;
        plans.push(vectors);
    }
    for plan in &mut plans {
        passes::renumber(plan);
    }
    let groups = draft::groups(spec, options.drafts);
    let caches = groups
        .iter()
        .map(|g| size_group(g, limits, options.block_size))
        .collect();
    let mut program = Program {
        plans,
        weights: spec.weights.clone(),
        caches,
        consts: spec.consts.clone(),
        limits: *limits,
        n_vocab: spec.n_vocab,
        n_embd: spec.n_embd,
    };
    passes::uses(&mut program);
    passes::shard(&mut program);
    passes::partition(&mut program, &options.cuts);
    Ok(program)
}

fn check(limits: &Limits) -> Result<(), PlanError> {
    let all = [
        ("rows", limits.rows),
        ("seqs", limits.seqs),
        ("logit_rows", limits.logit_rows),
        ("ctx", limits.ctx),
    ];
    match all.iter().find(|l| l.1 == 0) {
        Some((name, _)) => Err(PlanError::ZeroLimit(name)),
        None => Ok(()),
    }
}

fn usual_outputs(plan: &Plan, options: &BuildOptions) -> Vec<String> {
    if !options.outputs.is_empty() {
        return options.outputs.clone();
    }
    let names = |wanted: &[&str]| {
        wanted
            .iter()
            .filter(|n| plan.output(n).is_some())
            .map(|n| (*n).to_owned())
            .collect()
    };
    let mut logits: Vec<String> = names(&["logits", "tokens"]);
    if logits.is_empty() {
        names(&["pooled", "scores", "hidden"])
    } else {
        if options.drafts > 0 {
            logits.extend(names(&["draft_input"]));
        }
        logits
    }
}

/// A group with its block size and element type.
fn size_group(group: &tokkata_ir::spec::GroupSpec, limits: &Limits, block_size: u32) -> CacheGroup {
    let recurrent = group.kind == CacheKind::Recurrent;
    CacheGroup {
        kind: group.kind,
        slots: group.slots.clone(),
        dtype: if recurrent {
            DType::F32
        } else {
            kv_dtype(group, limits)
        },
        block_size: match group.kind {
            CacheKind::Recurrent => 1,
            CacheKind::Entries(n) => block_size.next_multiple_of(n),
            _ => block_size,
        },
    }
}

/// Block formats need rows they divide; other widths keep half floats.
fn kv_dtype(group: &tokkata_ir::spec::GroupSpec, limits: &Limits) -> DType {
    let fits = |width: u32| (width as usize).is_multiple_of(limits.kv_dtype.block_elems());
    let all = group.slots.iter().all(|s| match *s {
        SlotDef::Kv { dim_k, dim_v, .. } => fits(dim_k) && fits(dim_v.unwrap_or(0)),
        SlotDef::State { .. } => true,
    });
    if all { limits.kv_dtype } else { DType::F16 }
}

/// The main plan, with what a drafter reads of it where one is built.
fn main(spec: &ModelSpec, options: &BuildOptions) -> Plan {
    let mut builder = Builder::new(spec, PlanRole::Main);
    builder.tapped = spec.taps.as_ref().filter(|_| options.drafts > 0);
    builder.push(Op::Prepare, &[], &[]);
    if options.embeds {
        builder.input("embeds", spec.n_embd);
    }
    builder.stack(&spec.main);
    builder.plan
}

fn vectors(spec: &ModelSpec) -> Plan {
    let mut builder = Builder::new(spec, PlanRole::Embed);
    builder.push(Op::Prepare, &[], &[]);
    builder.stack(&spec.main);
    builder.plan
}

/// Appends ops to one plan.
pub(crate) struct Builder<'a> {
    spec: &'a ModelSpec,
    plan: Plan,
    layer: Option<u32>,
    role: String,
    layer_start: usize,
    /// Value of the first layer, for mixers that mix it in.
    pub(crate) first_value: Option<ValueId>,
    /// What the last indexer chose.
    pub(crate) chosen: Option<Chosen>,
    /// What a drafter has beside its stream.
    pub(crate) beside: Option<ValueId>,
    /// What a drafter of another file reads, where one is built.
    pub(crate) tapped: Option<&'a TapSpec>,
}

impl<'a> Builder<'a> {
    fn new(spec: &'a ModelSpec, role: PlanRole) -> Self {
        let plan = Plan {
            role,
            inputs: vec![],
            outputs: vec![],
            values: vec![],
            nodes: vec![],
        };
        Builder {
            spec,
            plan,
            layer: None,
            role: String::new(),
            layer_start: 0,
            first_value: None,
            chosen: None,
            beside: None,
            tapped: None,
        }
    }

    pub(crate) fn enter(&mut self, layer: Option<u32>) {
        self.layer = layer;
        self.layer_start = self.plan.nodes.len();
    }

    /// Names the part of the layer that the next ops belong to.
    pub(crate) fn at(&mut self, role: &str) -> &mut Self {
        role.clone_into(&mut self.role);
        self
    }

    pub(crate) fn width(&self, v: ValueId) -> u32 {
        self.plan.value(v).shape.width() as u32
    }

    fn def(&self, like: ValueId, width: u32) -> ValueDef {
        let lead = self.plan.value(like).shape.lead;
        ValueDef {
            shape: Shape {
                lead,
                dims: vec![width],
            },
            dtype: ValType::F32,
        }
    }

    /// Appends an op; equal ops of the same layer are shared.
    pub(crate) fn push(&mut self, op: Op, ins: &[ValueId], outs: &[ValueDef]) -> Vec<ValueId> {
        let shared = !op.writes_state() && !outs.is_empty();
        if shared
            && let Some(node) = self.plan.nodes[self.layer_start..]
                .iter()
                .find(|n| n.op == op && n.ins == ins)
        {
            return node.outs.clone();
        }
        let first = self.plan.values.len() as u32;
        self.plan.values.extend_from_slice(outs);
        let ids: Vec<ValueId> = (0..outs.len() as u32).map(|i| ValueId(first + i)).collect();
        let site = Site {
            layer: self.layer,
            role: self.role.clone(),
        };
        let node = Node {
            op,
            site,
            ins: ins.to_vec(),
            outs: ids.clone(),
            device: DeviceId(0),
        };
        self.plan.nodes.push(node);
        ids
    }

    /// Appends an op with one float output of `width` columns.
    pub(crate) fn one(&mut self, op: Op, ins: &[ValueId], width: u32) -> ValueId {
        let def = self.def(ins[0], width);
        self.push(op, ins, &[def])[0]
    }

    pub(crate) fn norm(&mut self, x: ValueId, n: &NormSpec) -> ValueId {
        let op = Op::Norm {
            kind: n.kind,
            eps: n.eps,
            width: n.width,
            weight: n.weight,
            bias: n.bias,
        };
        let width = self.width(x);
        self.one(op, &[x], width)
    }

    pub(crate) fn norm_opt(&mut self, x: ValueId, n: Option<&NormSpec>) -> ValueId {
        n.map_or(x, |n| self.norm(x, n))
    }

    pub(crate) fn matmul(&mut self, x: ValueId, p: &Proj) -> ValueId {
        let n = self.spec.weights[p.weight.index()].rows() as u32;
        self.one(
            Op::Matmul {
                weight: p.weight,
                scale: p.scale,
                bias: p.bias,
            },
            &[x],
            n,
        )
    }

    pub(crate) fn slice(&mut self, x: ValueId, group: u32, start: u32, len: u32) -> ValueId {
        let width = self.width(x);
        if start == 0 && len == group {
            return x;
        }
        self.one(Op::Slice { group, start, len }, &[x], width / group * len)
    }

    pub(crate) fn unary(&mut self, x: ValueId, act: Act) -> ValueId {
        let width = self.width(x);
        if act == Act::Identity {
            x
        } else {
            self.one(Op::Unary(act), &[x], width)
        }
    }

    pub(crate) fn affine(&mut self, x: ValueId, scale: f32, offset: f32) -> ValueId {
        let width = self.width(x);
        if scale == 1.0 && offset == 0.0 {
            x
        } else {
            self.one(Op::Affine { scale, offset }, &[x], width)
        }
    }

    pub(crate) fn binary(&mut self, kind: BinaryKind, a: ValueId, b: ValueId) -> ValueId {
        let width = self.width(a);
        self.one(
            Op::Binary {
                kind,
                a_scale: 1.0,
                b_scale: 1.0,
            },
            &[a, b],
            width,
        )
    }

    pub(crate) fn weighted(&mut self, kind: BinaryKind, x: ValueId, weight: WeightId) -> ValueId {
        let width = self.width(x);
        self.one(Op::Weighted { kind, weight }, &[x], width)
    }

    /// An output of the current layer, such as `cross_q.3`: what an alignment is made of.
    pub(crate) fn layer_output(&mut self, name: &str, value: ValueId) {
        let layer = self.layer.unwrap_or(0);
        self.output(&format!("{name}.{layer}"), value);
    }

    pub(crate) fn output(&mut self, name: &str, value: ValueId) {
        self.plan.outputs.push(Port {
            name: name.to_owned(),
            value,
        });
    }
}
