//! What indexers choose: recorded from the oracle's scores, and compared with a backend's choices.

use tokkata_archs::Registry;
use tokkata_ir::{Device, SelectOp};

use super::Golden;
use super::bisect::Named;
use crate::generate;
use crate::models::{Chosen, Failure, Feeding, Target, choices};

/// Names of the oracle's scores, the layer behind a dash.
const SCORES: [&str; 3] = ["indexer_score", "lid_score_masked", "msa_bsf"];
/// Scores of units that are chosen in any case are larger, those of units that are not seen as far below zero.
const FORCED: f32 = 1e29;

/// The choices of one layer's indexer by the oracle's scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// The layer.
    pub layer: u32,
    /// Smallest lead of the last chosen score over the next one, over the largest magnitude of their row.
    pub margin: f32,
    /// For each row, and each choice of it, a bit per unit.
    pub units: Vec<u64>,
}

/// What the oracle's scores choose on every layer of a golden that has an indexer.
///
/// # Errors
/// A model that does not load, an indexer whose scores the oracle does not name.
pub fn recorded(
    golden: &Golden,
    registry: &Registry,
    nodes: &[Named],
) -> Result<Vec<Selected>, Failure> {
    let found = found(
        golden,
        registry,
        &tokkata_backend_ref::RefBackend::default(),
    )?;
    let of = |chosen: &Chosen| {
        let named = |n: &&Named| {
            SCORES
                .iter()
                .any(|s| n.name == format!("{s}-{}", chosen.layer))
        };
        let node = nodes.iter().rfind(named);
        let node = node.ok_or(format!(
            "the oracle names no scores of layer {}",
            chosen.layer
        ))?;
        Ok(by_scores(
            chosen.layer,
            &chosen.op,
            golden.positions,
            &node.floats,
        ))
    };
    found.iter().map(of).collect()
}

/// Every choice of a golden's run on a backend.
///
/// # Errors
/// The text of whatever failed.
pub fn found(
    golden: &Golden,
    registry: &Registry,
    device: &dyn Device,
) -> Result<Vec<Chosen>, Failure> {
    let target = Target::new(device, golden.positions, Feeding::WHOLE);
    choices(&generate::model(golden)?, registry, &target, &golden.ids())
}

/// A bit per chosen unit of each row's choices.
#[must_use]
pub fn units(chosen: &Chosen) -> Vec<u64> {
    let rows = chosen.ids.chunks(chosen.op.top_k as usize);
    let bits = |ids: &[i32]| {
        ids.iter()
            .filter(|&&id| id >= 0)
            .fold(0, |bits, id| bits | 1 << id)
    };
    rows.map(bits).collect()
}

fn by_scores(layer: u32, op: &SelectOp, rows: usize, scores: &[f32]) -> Selected {
    let per_choice = scores.len() / (rows * op.choices() as usize);
    let (mut units, mut margin) = (Vec::new(), f32::INFINITY);
    for row in scores.chunks(per_choice.max(1)) {
        let mut order: Vec<usize> = (0..row.len()).filter(|&i| row[i] > -FORCED).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        let (chosen, left) = order.split_at(order.len().min(op.top_k as usize));
        units.push(chosen.iter().fold(0, |bits, unit| bits | 1 << unit));
        let own = |&&i: &&usize| row[i] < FORCED;
        if let (Some(&last), Some(&next)) = (chosen.iter().rfind(own), left.first()) {
            let largest = order.iter().filter(own).map(|&i| row[i].abs());
            margin =
                margin.min((row[last] - row[next]) / largest.fold(f32::MIN_POSITIVE, f32::max));
        }
    }
    Selected {
        layer,
        margin,
        units,
    }
}

#[cfg(test)]
mod tests {
    use tokkata_ir::{GroupId, SlotId};

    use super::*;

    #[test]
    fn margins_lie_between_the_last_chosen_and_the_next() {
        let op = SelectOp {
            slot: SlotId {
                group: GroupId(0),
                slot: 0,
            },
            n_heads: 1,
            dim: 1,
            scale: 1.0,
            summed: true,
            top_k: 2,
            unit: 1,
            local: 0,
        };
        let masked = f32::NEG_INFINITY;
        let scores = [1.0, masked, masked, 4.0, 1.0, 2.0, 0.0, 1e30, -2.0];
        let found = by_scores(3, &op, 3, &scores);
        assert_eq!(found.units, [0b001, 0b101, 0b011]);
        // 2 over 1 in a row up to 4; 0 over −2 in a row up to 2, beside what is chosen anyway.
        assert_eq!((found.layer, found.margin), (3, 0.25));
    }
}
