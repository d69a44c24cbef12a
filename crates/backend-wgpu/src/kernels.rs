//! Kernel sources, and the text of their variants.

use crate::preprocess::{Constants, expand};

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        /// Every source that a module may be made of.
        #[cfg(test)]
        pub(crate) const SOURCES: &[&str] = &[$($name),*];

        fn source(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("../kernels/", $name))),)*
                _ => None,
            }
        }
    };
}

sources![
    "activations.wgsl",
    "attention.wgsl",
    "cache.wgsl",
    "common.wgsl",
    "experts.wgsl",
    "formats.wgsl",
    "formats_iq.wgsl",
    "formats_k.wgsl",
    "formats_k_scales.wgsl",
    "formats_plain.wgsl",
    "formats_simple.wgsl",
    "formats_tables.wgsl",
    "formats_ternary.wgsl",
    "heads.wgsl",
    "matmul.wgsl",
    "num.wgsl",
    "products.wgsl",
    "recurrent.wgsl",
    "reduce.wgsl",
    "row_known.wgsl",
    "rows.wgsl",
    "sample.wgsl",
    "step.wgsl",
    "tile_rows.wgsl",
    "tiles.wgsl",
    "tiles_coop.wgsl",
    "tiles_routed.wgsl",
    "touch.wgsl",
    "wide.wgsl",
    "wide_reduce.wgsl",
];

/// The module of a source with these constants.
pub(crate) fn text(file: &str, constants: &Constants) -> String {
    let text = expand(file, constants, &source);
    assert!(!text.is_empty(), "{file} has no text");
    text
}

#[cfg(test)]
mod tests {
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    use super::*;

    /// A module of a source, parsed and validated.
    fn module(file: &str, constants: &[(&str, u32)]) -> (naga::Module, naga::valid::ModuleInfo) {
        let mut all: Constants = [
            "HEAD",
            "TOKEN",
            "POS",
            "SEQ",
            "FLAGS",
            "SPAN_END",
            "LOGIT_ROW",
            "LOGIT",
            "SLOT",
            "FIRST_ROW",
            "ROW_COUNT",
            "PAST_LEN",
            "SLOTS",
            "TOKENS",
            "TABLES",
            "REQUESTS",
            "RECORDS",
            "TOKENS_OF_SLOT",
        ]
        .iter()
        .map(|name| (format!("S_{name}"), 64))
        .collect();
        all.extend(
            crate::formats::tables()
                .1
                .iter()
                .map(|t| (t.0.to_owned(), t.1)),
        );
        all.extend(constants.iter().map(|c| (c.0.to_owned(), c.1)));
        let text = text(file, &all);
        let module = naga::front::wgsl::parse_str(&text)
            .unwrap_or_else(|e| panic!("{file} {constants:?}: {}", e.emit_to_string(&text)));
        let capabilities = Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let mut validator = Validator::new(ValidationFlags::all(), capabilities);
        validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
        validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
        let info = validator
            .validate(&module)
            .unwrap_or_else(|e| panic!("{file} {constants:?}: {}", e.emit_to_string(&text)));
        (module, info)
    }

    /// Every source with entry points, in its variants.
    fn variants() -> Vec<(&'static str, Vec<(&'static str, u32)>)> {
        let mut all = Vec::new();
        for subgroups in [0, 1] {
            let base = ("SUBGROUPS", subgroups);
            all.push(("step.wgsl", vec![base]));
            for threads in [32, 256] {
                all.push(("rows.wgsl", vec![base, ("THREADS", threads)]));
            }
            for fours in [0, 1] {
                let own = [("THREADS", 128), ("DIM_K", 64), ("FOURS", fours)];
                all.push(("attention.wgsl", [&[base][..], &own].concat()));
            }
            for format in 0..64 {
                let known = tokkata_core::DType::from_ggml(format)
                    .is_some_and(|d| crate::formats::packed(d).is_some());
                for gated in [0, 1].into_iter().filter(|_| known) {
                    let own = [
                        ("THREADS", 256),
                        ("WORK_VEC4", 1),
                        ("VECS_VEC4", 1),
                        ("GATED", gated),
                        ("NORMED", 1 - gated),
                        ("ROWS", 2),
                        ("FORMAT", format),
                    ];
                    all.push(("products.wgsl", [&[base][..], &own].concat()));
                }
                for (rows, aligned) in [(1, 1), (8, 1), (4, 0)] {
                    let own = [
                        ("THREADS", 256),
                        ("WORK_VEC4", 1),
                        ("ALIGNED", aligned),
                        ("ROWS", rows),
                        ("FORMAT", format),
                    ];
                    if known {
                        let tiles = [
                            ("WORK_VEC4", 1),
                            ("ALIGNED", aligned),
                            ("KIND", 1),
                            ("FORMAT", format),
                        ];
                        all.push(("tiles.wgsl", [&[base][..], &tiles].concat()));
                        all.push(("matmul.wgsl", [&[base][..], &own].concat()));
                    }
                }
            }
            for file in ["sample.wgsl", "experts.wgsl", "recurrent.wgsl"] {
                all.push((file, vec![base]));
            }
            all.push(("heads.wgsl", vec![base, ("THREADS", 64)]));
            all.push(("touch.wgsl", vec![base, ("ATOMIC_WORK", 1)]));
        }
        all
    }

    /// What Metal, DirectX and Vulkan get is made of every variant.
    fn translate(module: &naga::Module, info: &naga::valid::ModuleInfo) -> [usize; 3] {
        use naga::back::{hlsl, msl, spv};
        let options = msl::Options {
            lang_version: (2, 4),
            fake_missing_bindings: true,
            ..msl::Options::default()
        };
        let pipeline = msl::PipelineOptions::default();
        let (metal, _) = msl::write_string(module, info, &options, &pipeline).expect("MSL");
        let options = hlsl::Options {
            shader_model: hlsl::ShaderModel::V6_0,
            fake_missing_bindings: true,
            ..hlsl::Options::default()
        };
        let pipeline = hlsl::PipelineOptions::default();
        let mut direct = String::new();
        hlsl::Writer::new(&mut direct, &options, &pipeline)
            .write(module, info, None)
            .expect("HLSL");
        let options = spv::Options {
            lang_version: (1, 3),
            ..spv::Options::default()
        };
        let vulkan = spv::write_vec(module, info, &options, None).expect("SPIR-V");
        [metal.len(), direct.len(), vulkan.len()]
    }

    #[test]
    fn every_variant_is_valid_and_translates() {
        for (file, constants) in variants() {
            let (module, info) = module(file, &constants);
            assert!(!module.entry_points.is_empty(), "{file}");
            assert!(translate(&module, &info).iter().all(|&n| n > 1000));
        }
    }

    /// Kernels stay within what WebGPU promises: seven buffers, 256 threads, 16 KiB of shared memory.
    #[test]
    fn kernels_ask_for_little() {
        for (file, constants) in variants() {
            let (module, info) = module(file, &constants);
            for (i, entry) in module.entry_points.iter().enumerate() {
                let (mut buffers, mut shared) = (0, 0);
                for (handle, global) in module.global_variables.iter() {
                    if info.get_entry_point(i)[handle].is_empty() {
                        continue;
                    }
                    match global.space {
                        naga::AddressSpace::Storage { .. } => buffers += 1,
                        naga::AddressSpace::WorkGroup => {
                            shared += module.types[global.ty].inner.size(module.to_ctx());
                        }
                        _ => {}
                    }
                }
                let threads: u32 = entry.workgroup_size.iter().product();
                let name = format!("{} of {file} {constants:?}", entry.name);
                assert!(buffers <= 7 && threads <= 256, "{name}");
                assert!(shared <= 16384, "{name}: {shared} bytes");
            }
        }
    }

    /// Every source in the folder is one that modules may be made of, and none is left over.
    #[test]
    fn sources_are_those_of_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let files = std::fs::read_dir(folder).expect("kernels");
        let mut found: Vec<String> = files
            .map(|f| {
                f.expect("a file")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .filter(|name| name.ends_with(".wgsl"))
            .collect();
        found.sort_unstable();
        assert_eq!(found, SOURCES);
    }
}
