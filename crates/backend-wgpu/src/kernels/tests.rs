//! What naga makes of every kernel, without a GPU.

use naga::ShaderStage::Compute;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

use super::*;

/// A module, parsed and validated.
fn valid(module: &Module) -> (naga::Module, ModuleInfo) {
    let said = format!("{} {}", module.name, module.variant);
    let text = &module.text;
    let parsed = naga::front::wgsl::parse_str(text)
        .unwrap_or_else(|e| panic!("{said}: {}", e.emit_to_string(text)));
    let mut capabilities = Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if module.cooperative {
        capabilities |= Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16;
    }
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator
        .validate(&parsed)
        .unwrap_or_else(|e| panic!("{said}: {}", e.emit_to_string(text)));
    (parsed, info)
}

/// Kernels stay within what WebGPU promises: seven buffers, 256 threads, 16 KiB of shared memory; products of four rows
/// within 32 KiB, those for cooperative matrices within 48.
fn asks_for_little(module: &Module, parsed: &naga::Module, info: &ModuleInfo) {
    for (i, entry) in parsed.entry_points.iter().enumerate() {
        let (mut buffers, mut shared) = (0, 0);
        for (handle, global) in parsed.global_variables.iter() {
            if info.get_entry_point(i)[handle].is_empty() {
                continue;
            }
            match global.space {
                naga::AddressSpace::Storage { .. } => buffers += 1,
                naga::AddressSpace::WorkGroup => {
                    shared += parsed.types[global.ty].inner.size(parsed.to_ctx());
                }
                _ => {}
            }
        }
        let threads: u32 = entry.workgroup_size.iter().product();
        let name = format!("{} of {} {}", entry.name, module.name, module.variant);
        assert!(
            entry.stage == Compute && buffers <= 7 && threads <= 256,
            "{name}"
        );
        let is =
            |file: &str, rows: &str| module.name.starts_with(file) && module.variant.contains(rows);
        let more = is("products", "ROWS=4") || is("several", "ROWS=8");
        let most = match (module.cooperative, more) {
            (true, _) => 49_152,
            (false, true) => 32_768,
            (false, false) => 16_384,
        };
        assert!(shared <= most, "{name}: {shared} bytes");
    }
}

/// Every variant; what other languages make of them is `cargo xtask wgpu`'s.
#[test]
fn every_variant_is_valid_and_asks_for_little() {
    let modules = modules();
    std::thread::scope(|scope| {
        for half in modules.chunks(modules.len().div_ceil(2)) {
            scope.spawn(move || {
                for module in half {
                    let (parsed, info) = valid(module);
                    assert!(!parsed.entry_points.is_empty(), "{}", module.name);
                    asks_for_little(module, &parsed, &info);
                }
            });
        }
    });
}

/// Every source in the folder is one that modules may be made of, and none is left over.
#[test]
fn sources_are_those_of_the_folder() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    let files = std::fs::read_dir(folder).expect("kernels");
    let names = files.map(|f| f.expect("a file").file_name());
    let mut found: Vec<String> = names.map(|n| n.to_string_lossy().into_owned()).collect();
    found.retain(|name| name.ends_with(".wgsl"));
    found.sort_unstable();
    assert_eq!(found, SOURCES);
}
