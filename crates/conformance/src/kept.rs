//! States that rows keep: whichever of them a sequence goes on from, it goes on as if it had been fed no other rows.

use tokkata_archs::Registry;
use tokkata_ir::Device;

use crate::generate;
use crate::golden::{Golden, Rows};
use crate::models::{Failure, Feeding, Loaded, Target, load_for};

/// Rows of a sequence that keep states.
const DRAFT: usize = 3;

/// Three sequences whose drafts are accepted in different parts, the second of which keeps nothing.
const SEQUENCES: usize = 3;

fn target<'a>(device: &'a dyn Device, golden: &Golden, sequences: usize) -> Target<'a> {
    let feeding = Feeding {
        chunk: usize::MAX,
        sequences,
        block_size: 4,
        ..Feeding::WHOLE
    };
    Target {
        output: (golden.rows == Rows::Vectors).then_some("hidden"),
        draft: DRAFT as u32,
        ..Target::new(device, golden.positions + golden.block(), feeding)
    }
}

/// What differs, if something does; `None` for a golden without states.
fn faults(
    golden: &Golden,
    registry: &Registry,
    device: &dyn Device,
) -> Result<Option<Vec<String>>, Failure> {
    let file = generate::model(golden)?;
    let target = target(device, golden, SEQUENCES);
    let mut loaded = load_for(&file, registry, &target)?;
    if loaded.bidirectional() || !loaded.carries_states() {
        return Ok(None);
    }
    let ids = golden.ids();
    let want = loaded.logits(&ids, target.feeding)?;
    let mut faults = Vec::new();
    for past in [0, ids.len() / 2 - DRAFT / 2] {
        for n in 0..=DRAFT {
            faults.extend(fault(&mut loaded, &ids, (past, n), &want)?);
        }
    }
    Ok(Some(faults))
}

fn fault(
    loaded: &mut Loaded,
    ids: &[u32],
    (past, n): (usize, usize),
    want: &[f32],
) -> Result<Option<String>, Failure> {
    let rows = loaded.drafted(ids, past, &[Some(n), None, Some(DRAFT - n)])?;
    let same = |got: &Vec<f32>| {
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        bits(got) == bits(want)
    };
    let wrong = rows.iter().position(|got| !same(got));
    Ok(wrong.map(|seq| format!("{n} of {DRAFT} after {past}: sequence {seq} differs")))
}

/// Drafts over every golden with states among `names`, each beginning accepted in turn, bit for bit against the same
/// tokens fed plainly. Caches of positions beside them go back by length.
///
/// # Panics
/// When a bit differs, or fewer than `least` goldens have states.
pub fn verify(device: &dyn Device, names: &[String], least: usize) {
    let registry = Registry::builtin();
    Golden::hold(names, (least, 1), |_, golden| {
        faults(golden, &registry, device)
    });
}
