//! Workers that sleep at random change no bit.
#![cfg(debug_assertions)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::golden::Golden;
use tokkata_conformance::{adapters, jitter, kept, wide};
use tokkata_ir::{BackendError, Device, LoadOptions, Loaded, Program, WeightSource};

const WORKERS: usize = 3;

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

/// Variants take the same steps with other numbers, mostly.
fn names() -> Vec<String> {
    let mut names = Golden::list(&Golden::folder()).expect("goldens");
    names.retain(|name| !name.contains('+'));
    names
}

#[test]
fn workers_that_sleep_change_no_bit() {
    jitter::verify(&CpuBackend, &Jittery::default(), &names());
}

/// Steps that are replayed as graphs beside steps whose kernels are launched one by one.
#[test]
fn graphs_change_no_bit() {
    use tokkata_conformance::cuda;
    match (cuda(), cuda()) {
        (Ok(steady), Ok(plain)) => jitter::verify(&steady, &plain.without_graphs(), &names()),
        (Err(why), _) | (_, Err(why)) => eprintln!("skipped: cuda: {why}"),
    }
}

/// Steps of one row in one launch beside those of a launch for each op.
#[test]
fn tapes_change_no_bit() {
    use tokkata_conformance::cuda;
    match (cuda(), cuda()) {
        (Ok(taped), Ok(plain)) => jitter::verify(&taped, &plain.without_tapes(), &names()),
        (Err(why), _) | (_, Err(why)) => eprintln!("skipped: cuda: {why}"),
    }
}

/// Attention has one order of sums, whatever does a step and whatever is cached.
#[test]
fn heads_of_real_widths_have_the_same_bits_on_tapes() {
    if let Err(why) = wide::verify_cuda() {
        eprintln!("skipped: cuda: {why}");
    }
}

#[test]
fn heads_of_real_widths_agree_with_the_reference() {
    let cpu: [(&str, &dyn Device); 1] = [("workers that sleep", &Jittery::default())];
    wide::verify(&RefBackend::default(), &cpu);
}

#[test]
fn kernels_that_keep_states_touch_what_they_declare() {
    let names = [
        "mamba",
        "mamba2",
        "rwkv6",
        "rwkv7",
        "lfm2",
        "minimax-01",
        "qwen3next",
    ];
    let names: Vec<String> = names.map(str::to_owned).into();
    kept::verify(&Jittery::default(), &names, names.len());
}

#[test]
fn kernels_that_adapt_touch_what_they_declare() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["llama", "qwen3moe", "deepseek2"];
    adapters::verify(&Jittery::default(), &names, folder.path(), names.len());
}
