//! The reference with values rounded on their way into products.

use std::collections::BTreeMap;

use tokkata_backend_ref::{Precision, RefBackend, RefInstance};
use tokkata_ir::{BackendError, HostExecutor, Machine, Op, Port, ValueId};

use super::case::Case;
use super::measure::{Outputs, Rounding};
use crate::fixture::{Feed, Fixture, Rows, Run};

/// A value that products read, and the port that they read instead.
struct Rounded {
    value: ValueId,
    port: ValueId,
    /// The node that makes the value; `None` where it is fed.
    node: Option<usize>,
}

/// Puts a port in the place of every value that a product reads.
fn split(fixture: &mut Fixture) -> Vec<Rounded> {
    let plan = &mut fixture.program_mut().plans[0];
    let mut ports: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for node in &mut plan.nodes {
        if let Op::Matmul { .. } | Op::Conv1d(_) = node.op {
            let value = node.ins[0];
            let def = plan.values[value.index()].clone();
            let port = *ports.entry(value).or_insert_with(|| {
                plan.values.push(def);
                ValueId(plan.values.len() as u32 - 1)
            });
            node.ins[0] = port;
        }
    }
    let port = |&value: &ValueId| Port {
        name: format!("rounded{}", value.0),
        value,
    };
    plan.inputs.extend(ports.values().map(port));
    let maker = |value| plan.nodes.iter().position(|n| n.outs.contains(&value));
    let mut rounded: Vec<Rounded> = ports
        .iter()
        .map(|(&value, &port)| Rounded {
            value,
            port,
            node: maker(value),
        })
        .collect();
    rounded.sort_by_key(|r| r.node);
    rounded
}

/// Values of every output of a case. A step runs up to each value in turn, which goes on rounded: states of a sequence
/// must not change by that, so that recurrences are not for this.
pub(super) fn outputs(case: &Case, rounding: Rounding) -> Result<Outputs, BackendError> {
    let mut fixture = case.fixture.clone();
    let rounded = split(&mut fixture);
    let precision = Precision::F64;
    let mut run = fixture.mount(|p, w, a| RefBackend { precision }.open(p, w, a))?;
    run.executor.machine().keep_all(true);
    let mut outputs = vec![Vec::new(); case.outputs.len()];
    for (rows, feed) in &case.steps {
        step(&mut run, &rounded, (rows, feed), rounding)?;
        for (output, &id) in outputs.iter_mut().zip(&case.outputs) {
            let value = run.executor.machine().value(id);
            output.extend(value.expect("everything is kept"));
        }
    }
    Ok(outputs)
}

fn step(
    run: &mut Run<HostExecutor<Box<dyn RefInstance>>>,
    rounded: &[Rounded],
    (rows, feed): (&[Rows], &Feed),
    rounding: Rounding,
) -> Result<(), BackendError> {
    let mut feed = feed.clone();
    for r in rounded {
        let mut x = match r.node {
            None => {
                let fed = feed.values.iter().find(|v| v.0 == r.value);
                fed.map(|v| v.1.clone()).unwrap_or_default()
            }
            Some(node) => {
                run.executor.machine().stop_after(Some(node));
                run.step(rows, &feed)?;
                run.executor.machine().floats(r.value).to_vec()
            }
        };
        let width = run.program.plans[0].value(r.value).shape.width();
        x.chunks_mut(width).for_each(|row| rounding.apply(row));
        feed.values.push((r.port, x));
    }
    run.executor.machine().stop_after(None);
    run.step(rows, &feed)?;
    Ok(())
}
