//! Every golden on the reference and on the CPU backend, in every way of feeding.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokkata_archs::Registry;
use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::golden::{Expectations, Golden, outcomes};
use tokkata_ir::Device;

/// Faults of every golden on a device, two goldens at a time.
fn faults(device: &dyn Device) -> BTreeMap<String, String> {
    let folder = Golden::folder();
    let names = Golden::list(&folder).expect("goldens");
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
    faults.into_inner().expect("no panic")
}

fn check(device: &dyn Device) {
    let faults: Vec<String> = faults(device)
        .into_iter()
        .map(|(name, fault)| format!("{name}: {fault}"))
        .collect();
    assert!(
        faults.is_empty(),
        "{} goldens on {}:\n{}",
        faults.len(),
        device.name(),
        faults.join("\n")
    );
}

#[test]
fn the_reference_agrees_with_every_golden() {
    check(&RefBackend::default());
}

#[test]
fn the_cpu_agrees_with_every_golden() {
    check(&CpuBackend);
}

#[test]
fn goldens_are_small() {
    for entry in std::fs::read_dir(Golden::folder()).expect("goldens") {
        let entry = entry.expect("entry");
        let bytes = entry.metadata().expect("metadata").len();
        assert!(bytes < 50_000, "{:?} has {bytes} bytes", entry.file_name());
    }
}
