//! Every architecture's golden on workers that sleep at random, bit for bit against one worker: what differs lacks a barrier.
#![cfg(debug_assertions)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokkata_archs::Registry;
use tokkata_backend_cpu::CpuBackend;
use tokkata_conformance::generate;
use tokkata_conformance::golden::{Golden, Rows};
use tokkata_conformance::models::{Failure, Feeding, Seen, Target, load_for, trace};
use tokkata_ir::{BackendError, Device, LoadOptions, Loaded, Program, WeightSource};

const WORKERS: usize = 3;
/// Steps of few rows of two sequences.
const PIECES: Feeding = Feeding {
    chunk: 5,
    sequences: 2,
    block_size: 16,
};

/// The CPU backend on several workers that sleep.
#[derive(Default)]
struct Jittery {
    seed: AtomicU64,
}

impl Device for Jittery {
    fn name(&self) -> &'static str {
        CpuBackend.name()
    }

    fn available_bytes(&self) -> Option<u64> {
        CpuBackend.available_bytes()
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        let options = LoadOptions {
            threads: WORKERS,
            ..options.clone()
        };
        let mut instance = CpuBackend.prepare(program, weights, &options)?;
        instance.jitter(self.seed.fetch_add(1, Ordering::Relaxed));
        instance.record();
        Ok(Box::new(instance))
    }
}

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
fn fault(name: &str, registry: &Registry) -> Result<Option<String>, Failure> {
    let golden = Golden::read(&Golden::folder(), name)?;
    let file = generate::model(&golden)?;
    let (ids, encoder) = match golden.rows {
        Rows::Decoder => (golden.decoder_ids(), golden.ids()),
        _ => (golden.ids(), Vec::new()),
    };
    let jittery = Jittery::default();
    let on = |device| Target {
        device,
        ctx: golden.positions,
        feeding: PIECES,
        output: (golden.rows == Rows::Vectors).then_some("hidden"),
        encoder: &encoder,
    };
    let (alone, beside) = (on(&CpuBackend as &dyn Device), on(&jittery));
    let mut loaded = load_for(&file, registry, &alone)?;
    let feeding = match loaded.bidirectional() {
        true => Feeding::WHOLE,
        false => PIECES,
    };
    let want = trace(&file, registry, &alone, &ids)?;
    let rows = loaded.logits(&ids, feeding)?;
    let again = load_for(&file, registry, &beside)?.logits(&ids, feeding)?;
    let found = difference(&want, &trace(&file, registry, &beside, &ids)?);
    let differ = || (!same(&rows, &again)).then(|| "rows differ".to_owned());
    Ok(found.or_else(differ))
}

#[test]
fn workers_that_sleep_change_no_bit() {
    let mut names = Golden::list(&Golden::folder()).expect("goldens");
    // Variants take the same steps with other numbers, mostly.
    names.retain(|name| !name.contains('+'));
    let registry = Registry::builtin();
    let (mut faults, mut ran) = (Vec::new(), 0);
    for name in &names {
        // What does not load is the goldens' own test's.
        match fault(name, &registry) {
            Ok(None) => ran += 1,
            Ok(Some(found)) => faults.push(format!("{name}: {found}")),
            Err(error) => println!("{name}: {error}"),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(ran * 10 > names.len() * 8, "most goldens run");
}
