//! Every architecture's golden on a device that stumbles, bit for bit against one that does not: what differs lacks a
//! barrier.

use tokkata_archs::Registry;
use tokkata_core::DType;
use tokkata_ir::Device;

use crate::generate;
use crate::golden::{Golden, Rows};
use crate::models::{Failure, Feeding, Seen, Target, load_for, trace};

/// Steps of few rows of two sequences.
const PIECES: Feeding = Feeding {
    chunk: 5,
    sequences: 2,
    block_size: 16,
    ..Feeding::WHOLE
};

/// What matrices are kept in, one golden after the other: kernels differ.
const FORMATS: [DType; 4] = [DType::F16, DType::Q8_0, DType::F32, DType::Q4_0];

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The first value that differs.
fn difference(want: &[Seen], got: &[Seen]) -> Option<String> {
    let (want, got) = want
        .iter()
        .zip(got)
        .find(|(w, g)| !same(&w.floats, &g.floats))?;
    let pairs = want.floats.iter().zip(&got.floats);
    let many = pairs.filter(|(w, g)| w.to_bits() != g.to_bits()).count();
    let of = want.floats.len();
    Some(format!(
        "{} {}: {many} of {of} differ",
        want.op.name(),
        want.site
    ))
}

/// What differs in a golden, if something does: a value where each has memory of its own, or rows where memory and
/// steps are shared as usual.
fn fault(
    (name, matrices): (&str, DType),
    registry: &Registry,
    (steady, stumbling): (&dyn Device, &dyn Device),
) -> Result<Option<String>, Failure> {
    let golden = Golden::read(&Golden::folder(), name)?;
    let file = generate::kept_as(&golden, matrices)?;
    let (ids, encoder) = match golden.rows {
        Rows::Decoder => (golden.decoder_ids(), golden.ids()),
        _ => (golden.ids(), Vec::new()),
    };
    let ctx = golden.positions + golden.block();
    let on = |device| Target {
        output: golden.rows.output(),
        encoder: &encoder,
        ..Target::new(device, ctx, PIECES)
    };
    let (alone, beside) = (on(steady), on(stumbling));
    let want = trace(&file, registry, &alone, &ids)?;
    let found = difference(&want, &trace(&file, registry, &beside, &ids)?);
    let mut alone = load_for(&file, registry, &alone)?;
    let mut beside = load_for(&file, registry, &beside)?;
    let feedings = match alone.bidirectional() {
        true => &[Feeding::WHOLE][..],
        false => &[PIECES, Feeding::TOKEN_BY_TOKEN],
    };
    let mut rows = Vec::new();
    for &feeding in feedings {
        if !same(
            &alone.logits(&ids, feeding)?,
            &beside.logits(&ids, feeding)?,
        ) {
            rows.push(format!("rows of {} differ", feeding.chunk));
        }
    }
    let rows = (!rows.is_empty()).then(|| rows.join(", "));
    Ok(found.or(rows))
}

/// Compares a device that sleeps at random steps with the same one that does not, bit for bit, over these goldens.
///
/// # Panics
/// When a bit differs, or when fewer than four goldens of five run.
pub fn verify(steady: &dyn Device, stumbling: &dyn Device, names: &[String]) {
    let registry = Registry::builtin();
    let (mut faults, mut ran) = (Vec::new(), 0);
    for (name, &matrices) in names.iter().zip(FORMATS.iter().cycle()) {
        // What does not load is the goldens' own test's.
        match fault((name, matrices), &registry, (steady, stumbling)) {
            Ok(None) => ran += 1,
            Ok(Some(found)) => faults.push(format!("{name}, {matrices}: {found}")),
            Err(error) => println!("{name}: {error}"),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(ran * 10 > names.len() * 8, "most goldens run");
}
