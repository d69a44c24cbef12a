//! Plans as text: stable enough to be snapshots, readable enough to debug with.

use std::fmt::Write as _;

use tokkata_ir::{CacheGroup, Lead, Plan, Program, Shape, ValType, WeightDef};

/// The whole program: caches, then every plan.
#[must_use]
pub fn program(program: &Program) -> String {
    let mut text = String::new();
    for (i, group) in program.caches.iter().enumerate() {
        let _ = writeln!(text, "cache g{i}: {}", cache(group));
    }
    for p in &program.plans {
        let _ = writeln!(text, "plan {:?}", p.role);
        text += &plan(p, program);
    }
    text
}

fn cache(group: &CacheGroup) -> String {
    let slots = group.slots.len();
    format!(
        "{:?} {} × {slots} slots, blocks of {}",
        group.kind, group.dtype, group.block_size
    )
}

/// One plan, an op per line.
#[must_use]
pub fn plan(plan: &Plan, program: &Program) -> String {
    let mut text = String::new();
    for node in &plan.nodes {
        let outs: Vec<String> = node
            .outs
            .iter()
            .map(|v| format!("{v}:{}", value(plan, *v)))
            .collect();
        let ins: Vec<String> = node.ins.iter().map(ToString::to_string).collect();
        let weights: Vec<String> = node
            .op
            .weights()
            .iter()
            .map(|w| weight(&program.weights[w.index()]))
            .collect();
        let mut line = format!(
            "  {:<22} {}({})",
            node.site.to_string(),
            node.op.name(),
            ins.join(", ")
        );
        if !outs.is_empty() {
            let _ = write!(line, " -> {}", outs.join(", "));
        }
        if !weights.is_empty() {
            let _ = write!(line, "  [{}]", weights.join(", "));
        }
        let _ = writeln!(text, "{line}{}", detail(node));
    }
    for port in &plan.outputs {
        let _ = writeln!(text, "  output {} = {}", port.name, port.value);
    }
    text
}

/// Parameters of an op that its weights and shapes do not tell.
fn detail(node: &tokkata_ir::Node) -> String {
    let text = format!("{:?}", node.op);
    let kept: Vec<&str> = fields(fields(&text))
        .split(", ")
        .filter(|f| !["WeightId", "None"].iter().any(|hide| f.contains(hide)))
        .collect();
    match kept.join(", ") {
        kept if kept.is_empty() || kept == text => String::new(),
        kept => format!("  {{{kept}}}"),
    }
}

/// What stands inside the outermost `Name { … }` or `Name(…)`.
fn fields(text: &str) -> &str {
    let name = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(0);
    let (head, rest) = text.split_at(name);
    let inner = |open, close| rest.strip_prefix(open)?.strip_suffix(close);
    let inside = inner(" { ", " }").or_else(|| inner("(", ")"));
    inside.filter(|_| !head.is_empty()).unwrap_or(text)
}

fn value(plan: &Plan, id: tokkata_ir::ValueId) -> String {
    let def = plan.value(id);
    let kind = if def.dtype == ValType::I32 { "i32" } else { "" };
    format!("{kind}{}", shape(&def.shape))
}

/// `[T, D]`, with T rows, L logit rows or S sequences.
#[must_use]
pub fn shape(shape: &Shape) -> String {
    let lead = match shape.lead {
        Lead::Rows => "T",
        Lead::LogitRows => "L",
        Lead::Seqs => "S",
    };
    let dims: Vec<String> = shape.dims.iter().map(ToString::to_string).collect();
    format!("[{lead}, {}]", dims.join(", "))
}

fn weight(def: &WeightDef) -> String {
    format!("{} {:?}", def.name, def.shape)
}
