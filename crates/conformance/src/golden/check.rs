//! Goldens against devices, in every way a sequence can be fed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokkata_archs::Registry;
use tokkata_formats::ModelFile;
use tokkata_ir::Device;

use super::{Expectations, Golden, Rows, sample};
use crate::models::{Failure, Feeding, Loaded, Target, load_for, nmse};

/// A way of feeding a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// What reports call it.
    pub name: &'static str,
    /// Chunks and copies.
    pub feeding: Feeding,
    /// A wrong ending is fed after the first half and taken back.
    pub truncate: bool,
    /// The rows of the second oracle are compared.
    pub second: bool,
}

const fn way(name: &'static str, chunk: usize, sequences: usize, block_size: u32) -> Way {
    Way {
        name,
        feeding: Feeding {
            chunk,
            sequences,
            block_size,
            ..Feeding::WHOLE
        },
        truncate: false,
        second: false,
    }
}

/// Whole, one by one, in sevens beside a copy, with a wrong ending taken back, and whole against a second oracle.
#[must_use]
pub fn ways() -> [Way; 5] {
    [
        way("whole", usize::MAX, 1, 16),
        way("by 1", 1, 1, 1),
        way("by 7 ×2", 7, 2, 16),
        Way {
            truncate: true,
            ..way("truncated", 9, 1, 4)
        },
        Way {
            second: true,
            ..way("second", usize::MAX, 1, 16)
        },
    ]
}

/// What a way of feeding gave: an error against the oracle, `None` where the model excludes the way.
pub type Outcome = (&'static str, Result<Option<f64>, Failure>);

/// The first so many ways of feeding a golden on a device.
///
/// # Errors
/// A golden that cannot be made into a file.
pub fn outcomes(
    golden: &Golden,
    registry: &Registry,
    device: &dyn Device,
    count: usize,
) -> Result<Vec<Outcome>, Failure> {
    let file = crate::generate::model(golden)?;
    let one = |way: Way| (way.name, guarded(golden, &file, registry, device, way));
    Ok(ways().into_iter().take(count).map(one).collect())
}

/// Checks goldens on a device, two at a time.
///
/// # Panics
/// When one does not agree, or agrees though it is listed as failing.
pub fn verify(device: &dyn Device, names: &[String]) {
    let folder = Golden::folder();
    let registry = Registry::builtin();
    let expected = Expectations::read(&folder).expect("expectations");
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let golden = Golden::read(&folder, name).expect("golden");
            let found = outcomes(&golden, &registry, device, usize::MAX);
            if let Some(fault) = expected.judge(name, device.name(), &found) {
                faults.lock().expect("no panic").insert(name.clone(), fault);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    let faults = faults.into_inner().expect("no panic");
    let lines: Vec<String> = faults
        .iter()
        .map(|(name, f)| format!("{name}: {f}"))
        .collect();
    assert!(
        lines.is_empty(),
        "{} goldens on {}:\n{}",
        lines.len(),
        device.name(),
        lines.join("\n")
    );
}

/// A panic is an outcome like any other: the next golden still has to run.
pub(super) fn guarded(
    golden: &Golden,
    file: &ModelFile,
    registry: &Registry,
    device: &dyn Device,
    way: Way,
) -> Result<Option<f64>, Failure> {
    let run = std::panic::AssertUnwindSafe(|| error(golden, file, registry, device, way));
    std::panic::catch_unwind(run).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn error(
    golden: &Golden,
    file: &ModelFile,
    registry: &Registry,
    device: &dyn Device,
    way: Way,
) -> Result<Option<f64>, Failure> {
    if way.second && golden.second.is_none() {
        return Ok(None);
    }
    let encoder = match golden.rows {
        Rows::Decoder => golden.ids(),
        _ => Vec::new(),
    };
    let ctx = golden.positions + golden.block();
    let target = Target {
        output: golden.rows.output(),
        encoder: &encoder,
        ..Target::new(device, ctx, way.feeding)
    };
    let mut loaded = load_for(file, registry, &target)?;
    let got = rows(golden, &mut loaded, way)?;
    let width = |got: &[f32]| got.len() / fed(golden).len();
    let sampled = got.map(|got| sample(&got, width(&got), golden.stride));
    let want = if way.second {
        &golden.also
    } else {
        &golden.want
    };
    Ok(sampled.map(|got| nmse(&got, want)))
}

/// The ids whose rows are read.
fn fed(golden: &Golden) -> Vec<u32> {
    match golden.rows {
        Rows::Decoder => golden.decoder_ids(),
        _ => golden.ids(),
    }
}

fn rows(golden: &Golden, loaded: &mut Loaded, way: Way) -> Result<Option<Vec<f32>>, Failure> {
    let ids = fed(golden);
    let mut feeding = way.feeding;
    if loaded.bidirectional() {
        // Rows that see the whole sequence can only be fed with it.
        if way.truncate || feeding.chunk == 1 {
            return Ok(None);
        }
        feeding.chunk = usize::MAX;
    }
    if golden.rows == Rows::Heads {
        let kept = way.truncate.then_some(ids.len() / 2);
        return loaded.heads(&ids, kept, feeding).map(Some);
    }
    if !way.truncate {
        return loaded.logits(&ids, feeding).map(Some);
    }
    loaded.truncated(&ids, ids.len() / 2, feeding).map(Some)
}
