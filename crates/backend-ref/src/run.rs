//! The replay loop.

use std::sync::Arc;

use tokkata_ir::adapter::Places;
use tokkata_ir::{
    Adapter, ArenaLayout, BackendError, GroupId, Machine, Plan, Program, StepInputs, StepState,
    ValType, ValueId, WeightSource,
};

use crate::RefInstance;
use crate::args::{Args, Value, count};
use crate::cache::Caches;
use crate::layout::load_weights;
use crate::real::Real;
use crate::select::run_node;

/// A loaded program that computes in `R`.
pub(crate) struct Interpreter<R> {
    program: Arc<Program>,
    weights: Vec<Vec<f32>>,
    adapters: Places<Arc<Adapter>>,
    caches: Caches<R>,
    /// Per plan and value: the node after which no one reads it, `None` where it stays.
    last_reads: Vec<Vec<Option<usize>>>,
    values: Vec<Value<R>>,
    /// `values` as `f32`, for readers outside.
    floats: Vec<Vec<f32>>,
    keep_all: bool,
    stop_after: Option<usize>,
}

impl<R: Real> Interpreter<R> {
    pub(crate) fn new(
        program: Arc<Program>,
        source: &dyn WeightSource,
    ) -> Result<Self, BackendError> {
        Ok(Interpreter {
            weights: load_weights(&program, source)?,
            adapters: Places::new(program.limits.adapters),
            caches: Caches::check(&program)?,
            last_reads: program.plans.iter().map(last_reads).collect(),
            values: Vec::new(),
            floats: Vec::new(),
            keep_all: false,
            stop_after: None,
            program,
        })
    }

    /// Makes the caches.
    pub(crate) fn open(&mut self, arena: &ArenaLayout) {
        self.caches = Caches::new(&self.program, arena);
    }

    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn set_inputs(&mut self, plan: &Plan, step: &StepState, inputs: &StepInputs<'_>) {
        self.values.clear();
        self.values.resize_with(plan.values.len(), Value::default);
        for port in plan.inputs.iter().filter(|p| p.name == "embeds") {
            let shape = &plan.value(port.value).shape;
            let absent = || vec![0.0; count(step, shape.lead) * shape.width()];
            let data = inputs.embeds.map_or_else(absent, <[f32]>::to_vec);
            self.values[port.value.index()] = input_value(ValType::F32, &data);
        }
        for (id, data) in &inputs.values {
            self.values[id.index()] = input_value(plan.value(*id).dtype, data);
        }
    }

    fn run(
        &mut self,
        plan_index: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        let program = Arc::clone(&self.program);
        let plan = &program.plans[plan_index];
        self.set_inputs(plan, step, inputs);
        let nodes = self.stop_after.map_or(plan.nodes.len(), |last| last + 1);
        for (index, node) in plan.nodes.iter().enumerate().take(nodes) {
            let args = Args {
                program: &program,
                plan,
                node,
                weights: &self.weights,
                adapters: &self.adapters,
                values: &self.values,
                step,
                inputs,
            };
            let outs = run_node(&args, &mut self.caches)?;
            assert_eq!(
                outs.len(),
                node.outs.len(),
                "outputs of {} at {}",
                node.op.name(),
                node.site
            );
            for (&id, out) in node.outs.iter().zip(outs) {
                self.values[id.index()] = out;
            }
            self.release(plan_index, index);
        }
        self.publish();
        Ok(())
    }

    /// Forgets what the node read last.
    fn release(&mut self, plan_index: usize, node: usize) {
        if self.keep_all {
            return;
        }
        let plan = &self.program.plans[plan_index];
        let last_reads = &self.last_reads[plan_index];
        for id in plan.nodes[node].ins.iter().chain(&plan.nodes[node].outs) {
            if last_reads[id.index()] == Some(node) {
                self.values[id.index()] = Value::Empty;
            }
        }
    }

    fn publish(&mut self) {
        let narrow = |value: &Value<R>| match value {
            Value::Floats(x) => x.iter().map(|x| x.narrow()).collect(),
            _ => Vec::new(),
        };
        self.floats = self.values.iter().map(narrow).collect();
    }
}

fn input_value<R: Real>(dtype: ValType, data: &[f32]) -> Value<R> {
    match dtype {
        ValType::F32 => Value::Floats(data.iter().map(|&x| R::from(x)).collect()),
        ValType::I32 => Value::Ints(data.iter().map(|&x| x as i32).collect()),
    }
}

/// The last node that reads or writes each value; `None` for outputs.
fn last_reads(plan: &Plan) -> Vec<Option<usize>> {
    let mut last = vec![None; plan.values.len()];
    for (index, node) in plan.nodes.iter().enumerate() {
        for id in node.ins.iter().chain(&node.outs) {
            last[id.index()] = Some(index);
        }
    }
    for port in &plan.outputs {
        last[port.value.index()] = None;
    }
    last
}

impl<R: Real> Machine for Interpreter<R> {
    fn replay(
        &mut self,
        plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        self.run(plan, step, inputs)
    }

    fn floats(&self, value: ValueId) -> &[f32] {
        &self.floats[value.index()]
    }

    fn ints(&self, value: ValueId) -> &[i32] {
        match &self.values[value.index()] {
            Value::Ints(x) => x,
            _ => &[],
        }
    }

    fn copy_block(&mut self, group: GroupId, from: u32, to: u32) {
        self.caches.copy_block(group, from, to);
    }

    fn export_block(&self, group: GroupId, block: u32) -> Vec<f32> {
        self.caches.export_block(group, block)
    }

    fn import_block(&mut self, group: GroupId, block: u32, data: &[f32]) {
        self.caches.import_block(group, block, data);
    }

    fn set_adapter(
        &mut self,
        number: u32,
        adapter: Option<&Arc<Adapter>>,
    ) -> Result<(), BackendError> {
        self.adapters.set(number, adapter.cloned());
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        let weights = self
            .weights
            .iter()
            .map(|w| size_of_val(w.as_slice()) as u64);
        weights.sum::<u64>() + self.caches.bytes()
    }
}

impl<R: Real> RefInstance for Interpreter<R> {
    fn keep_all(&mut self, keep: bool) {
        self.keep_all = keep;
    }

    fn stop_after(&mut self, node: Option<usize>) {
        self.stop_after = node;
    }

    fn value(&self, value: ValueId) -> Option<Vec<f64>> {
        match &self.values[value.index()] {
            Value::Empty => None,
            Value::Floats(x) => Some(x.iter().map(|x| x.wide()).collect()),
            Value::Ints(x) => Some(x.iter().map(|&x| f64::from(x)).collect()),
        }
    }
}
