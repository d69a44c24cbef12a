//! Times beside costs: as a table, as JSON, and as the rows that the page draws.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use serde_json::{Value as Json, json};
use tokkata::cost::{Bound, Cost, Costs};
use tokkata::measure::Rates;
use tokkata::weights::FileWeights;
use tokkata::{Model, Program};

use super::Group;
use super::collect::Phase;
use crate::load;

/// A kernel of a node, over all steps of a phase.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) layer: Option<u32>,
    pub(super) role: String,
    pub(super) kernel: &'static str,
    pub(super) wait_ns: u64,
    pub(super) run_ns: u64,
    pub(super) cost: Cost,
    /// The least time that the machine's rates allow.
    pub(super) least_ns: f64,
    /// Of that, what each roof says.
    pub(super) roofs: Vec<(Bound, f64)>,
}

/// A phase with costs.
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) tokens: u64,
    pub(super) wall_ns: u64,
    pub(super) rows: Vec<Row>,
}

/// Everything that is shown.
pub(super) struct Report {
    pub(super) model: String,
    /// Where it ran.
    pub(super) device: &'static str,
    /// Those of the processor, where that is what it ran on.
    pub(super) rates: Option<Rates>,
    pub(super) sections: Vec<Section>,
}

impl Report {
    pub(super) fn new(model: &Model, phases: &[Phase], threads: usize) -> Self {
        let program = model.program();
        let weights = FileWeights::new(model.checkpoint().file(), None);
        let costs = Costs::new(program, &weights);
        let own = model.device() == "cpu";
        let rates = own.then(|| Rates::measure(threads, &costs.formats()));
        let section = |phase: &Phase| Section {
            name: phase.name,
            tokens: phase.tokens,
            wall_ns: phase.wall_ns,
            rows: rows(program, &costs, phase, rates.as_ref()),
        };
        let sections = phases.iter().map(section).collect();
        Report {
            model: load::name_of(model.checkpoint().path()),
            device: model.device(),
            rates,
            sections,
        }
    }

    /// Columns of text; what took longest comes first, layers in order.
    pub(super) fn table(&self, by: Group, out: &mut impl Write) -> Result<()> {
        writeln!(out, "{} on {}", self.model, self.machine())?;
        for section in &self.sections {
            section.table(by, out)?;
        }
        Ok(())
    }

    /// Where it ran, and how fast that is as far as it was measured.
    pub(super) fn machine(&self) -> String {
        let timed = self.sections.iter().any(|s| !s.rows.is_empty());
        match &self.rates {
            Some(rates) => format!("a machine of {rates}"),
            None if timed => format!("{}, whose own rates are not measured", self.device),
            None => format!("{}, which does not tell the time of an op", self.device),
        }
    }

    /// The same, with every node.
    pub(super) fn json(&self) -> Json {
        let row = |r: &Row| {
            json!({
                "layer": r.layer, "role": r.role, "kernel": r.kernel, "run_ns": r.run_ns, "wait_ns": r.wait_ns,
                "weight_bytes": r.cost.weight_bytes, "cache_bytes": r.cost.cache_bytes, "flops": r.cost.flops,
                "roofline_ns": r.least_ns, "bound": bound_of(&r.roofs).map(|b| b.to_string()),
            })
        };
        let phase = |s: &Section| {
            json!({
                "name": s.name, "tokens": s.tokens, "wall_ns": s.wall_ns,
                "steps": s.rows.iter().map(row).collect::<Vec<_>>(),
            })
        };
        let mut report = json!({
            "model": self.model,
            "device": self.device,
            "phases": self.sections.iter().map(phase).collect::<Vec<_>>(),
        });
        if let Some(rates) = &self.rates {
            let reads = rates.reads.iter();
            let reads = reads.map(|(bytes, rate)| json!({"set_bytes": bytes, "bytes_per_s": rate}));
            let products = rates.products.iter();
            let products = products.map(|(d, rate)| (d.name().to_owned(), json!(rate)));
            report["bytes_per_s"] = json!(rates.memory());
            report["reads"] = reads.collect();
            report["flops_per_s"] = json!(rates.flops_per_s);
            report["products_per_s"] = Json::Object(products.collect());
        }
        report
    }
}

fn rows(program: &Program, costs: &Costs<'_>, phase: &Phase, rates: Option<&Rates>) -> Vec<Row> {
    let main = &program.plans[0];
    let sets = phase.classes.iter().map(|&c| (c, costs.set_bytes(main, c)));
    let sets: Vec<_> = sets.collect();
    let row = |(&(plan, node, kernel), spent): (&(usize, usize, &'static str), _)| {
        let spent: &super::collect::Spent = spent;
        let plan = &program.plans[plan];
        let node = &plan.nodes[node];
        let (mut cost, mut roofs) = (Cost::default(), Vec::new());
        // Preparation belongs to an op that is counted itself.
        if kernel == node.op.name() {
            for &(class, set) in &sets {
                let step = costs.node(plan, node, class);
                cost += &step;
                if let Some(least) = rates.map(|rates| step.least(rates, set)) {
                    add(&mut roofs, least.bound, 1e9 * least.seconds);
                }
            }
        }
        Row {
            layer: spent.layer,
            role: spent.role.clone(),
            kernel,
            wait_ns: spent.wait_ns,
            run_ns: spent.run_ns,
            cost,
            least_ns: roofs.iter().map(|r| r.1).sum(),
            roofs,
        }
    };
    phase.times.iter().map(row).collect()
}

/// Adds a time to what a roof says.
fn add(roofs: &mut Vec<(Bound, f64)>, bound: Bound, ns: f64) {
    match roofs.iter_mut().find(|r| r.0 == bound) {
        Some(roof) => roof.1 += ns,
        None => roofs.push((bound, ns)),
    }
}

/// The roof that binds most.
fn bound_of(roofs: &[(Bound, f64)]) -> Option<Bound> {
    let most = roofs.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    most.filter(|r| r.1 > 0.0).map(|r| r.0)
}

/// Sums of rows.
#[derive(Clone, Debug, Default)]
struct Sum {
    steps: u64,
    wait_ns: u64,
    run_ns: u64,
    bytes: u64,
    flops: u64,
    roofs: Vec<(Bound, f64)>,
}

impl Sum {
    fn add(&mut self, row: &Row) {
        self.steps += 1;
        self.wait_ns += row.wait_ns;
        self.run_ns += row.run_ns;
        self.bytes += row.cost.weight_bytes + row.cost.cache_bytes;
        self.flops += row.cost.flops;
        for &(bound, ns) in &row.roofs {
            add(&mut self.roofs, bound, ns);
        }
    }

    fn line(&self, name: &str, all_ns: u64) -> String {
        let spent = (self.run_ns + self.wait_ns).max(1) as f64;
        let rate = |units: u64| units as f64 / self.run_ns.max(1) as f64;
        let least: f64 = self.roofs.iter().map(|r| r.1).sum();
        let share = match self.roofs.is_empty() {
            true => "-".to_owned(),
            false => format!("{:.1}", 100.0 * least / spent),
        };
        format!(
            "  {name:<30} {:>5} {:>10.2} {:>9.2} {:>6.1} {:>8.1} {:>9.1} {share:>9}  {}",
            self.steps,
            self.run_ns as f64 / 1e6,
            self.wait_ns as f64 / 1e6,
            100.0 * spent / all_ns.max(1) as f64,
            rate(self.bytes),
            rate(self.flops),
            bound_of(&self.roofs).map_or("-".to_owned(), |b| b.to_string()),
        )
    }
}

impl Section {
    fn table(&self, by: Group, out: &mut impl Write) -> Result<()> {
        let seconds = self.wall_ns as f64 / 1e9;
        writeln!(
            out,
            "{}: {} tokens in {seconds:.3} s, {:.1} tokens/s",
            self.name,
            self.tokens,
            self.tokens as f64 / seconds
        )?;
        if self.rows.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "  {:<30} {:>5} {:>10} {:>9} {:>6} {:>8} {:>9} {:>9}  bound by",
            "", "steps", "run ms", "wait ms", "%", "GB/s", "GFLOP/s", "roofline%"
        )?;
        let mut all = Sum::default();
        self.rows.iter().for_each(|row| all.add(row));
        let total = all.run_ns + all.wait_ns;
        for (name, sum) in self.groups(by) {
            writeln!(out, "{}", sum.line(&name, total))?;
        }
        writeln!(out, "{}", all.line("together", total))?;
        Ok(())
    }

    fn groups(&self, by: Group) -> Vec<(String, Sum)> {
        let mut sums: BTreeMap<(Option<u32>, String), Sum> = BTreeMap::new();
        for row in &self.rows {
            let key = match by {
                Group::Op => (None, row.kernel.to_owned()),
                Group::Role => (None, format!("{} {}", row.kernel, row.role)),
                Group::Layer => (row.layer, String::new()),
            };
            sums.entry(key).or_default().add(row);
        }
        let name = |(layer, text): (Option<u32>, String)| match (by, layer) {
            (Group::Layer, Some(layer)) => format!("layer {layer}"),
            (Group::Layer, None) => "outside the layers".to_owned(),
            _ => text,
        };
        let mut groups: Vec<_> = sums.into_iter().map(|(k, s)| (name(k), s)).collect();
        if by != Group::Layer {
            groups.sort_by_key(|(_, s)| std::cmp::Reverse(s.run_ns + s.wait_ns));
        }
        groups
    }
}
