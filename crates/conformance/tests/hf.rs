//! Every golden of a Hugging Face checkpoint, from its directory, on the reference and on the CPU backend.

use std::path::Path;

use tokkata_archs::Registry;
use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::golden::Golden;
use tokkata_conformance::hf::{AGREES, HfGolden};
use tokkata_formats::ModelFile;
use tokkata_ir::Backend;

fn fault(name: &str, registry: &Registry, backend: &dyn Backend) -> Result<(), String> {
    let golden = HfGolden::read(&HfGolden::folder(), name)?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    golden.write_directory(folder.path())?;
    let file = ModelFile::open(folder.path()).map_err(|e| e.to_string())?;
    match golden.error(&file, registry, backend)? {
        error if error <= AGREES => Ok(()),
        error => Err(format!("NMSE {error:.1e}")),
    }
}

/// The built-in descriptors, or those of a folder, so that one can be worked on without a compiler.
fn registry() -> Registry {
    let mut registry = Registry::builtin();
    let Ok(folder) = std::env::var("TOKKATA_ARCHS") else {
        return registry;
    };
    let entries = std::fs::read_dir(folder).expect("a folder of descriptors");
    let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        registry.add_file(&path).unwrap_or_else(|e| panic!("{e}"));
    }
    registry
}

fn check(backend: &dyn Backend) {
    let registry = registry();
    let names = Golden::list(&HfGolden::folder()).expect("goldens");
    assert!(names.len() >= 55, "found {} goldens", names.len());
    let only = std::env::var("TOKKATA_GOLDEN").ok();
    let names = names
        .iter()
        .filter(|n| only.as_ref().is_none_or(|o| o == *n));
    let faults: Vec<String> = names
        .filter_map(|name| {
            Some(format!(
                "{name}: {}",
                fault(name, &registry, backend).err()?
            ))
        })
        .collect();
    let device = backend.name();
    assert!(
        faults.is_empty(),
        "{} on {device}:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn the_reference_agrees_with_transformers() {
    check(&RefBackend::default());
}

#[test]
fn the_cpu_agrees_with_transformers() {
    check(&CpuBackend);
}

#[test]
fn goldens_are_small() {
    let names = Golden::list(&HfGolden::folder()).expect("goldens");
    let size = |path: &Path| path.metadata().map_or(0, |m| m.len());
    for name in names {
        let path = HfGolden::folder().join(format!("{name}.json"));
        assert!(size(&path) < 50_000, "{name} has {} bytes", size(&path));
    }
}
