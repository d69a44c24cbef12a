//! naga's SPIR-V.
//!
//! Cooperative matrices go with Vulkan's memory model, in which what a thread reads and writes is its own unless it says otherwise.
//! naga 30 does not say so, and a driver may then move accesses to shared memory across barriers. So it is said here, as compilers
//! of GLSL say it.

use std::collections::{BTreeMap, BTreeSet};

use naga::back::spv;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// WGSL as SPIR-V, as wgpu makes it.
pub(crate) fn translated(text: &str, entry: &str) -> Result<Vec<u32>, String> {
    written(text, entry, (1, 3))
}

/// WGSL with cooperative matrices as SPIR-V, whose threads see what others write to shared memory before a barrier.
pub(crate) fn cooperative(text: &str, entry: &str) -> Result<Vec<u32>, String> {
    sharing(&written(text, entry, (1, 6))?)
}

fn written(text: &str, entry: &str, version: (u8, u8)) -> Result<Vec<u32>, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator
        .validate(&module)
        .map_err(|e| e.emit_to_string(text))?;
    let options = spv::Options {
        lang_version: version,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        use_storage_input_output_16: false,
        ..spv::Options::default()
    };
    let entry = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: entry.to_owned(),
    };
    spv::write_vec(&module, &info, &options, Some(&entry)).map_err(|e| e.to_string())
}

/// Words before the first instruction.
const HEADER: usize = 5;

/// Numbers of SPIR-V's own.
mod is {
    pub(super) const TYPE_INT: u32 = 21;
    pub(super) const TYPE_POINTER: u32 = 32;
    pub(super) const CONSTANT: u32 = 43;
    pub(super) const FUNCTION_PARAMETER: u32 = 55;
    pub(super) const VARIABLE: u32 = 59;
    pub(super) const LOAD: u32 = 61;
    pub(super) const STORE: u32 = 62;
    pub(super) const ACCESS_CHAIN: u32 = 65;
    pub(super) const IN_BOUNDS_ACCESS_CHAIN: u32 = 66;
    pub(super) const MATRIX_LOAD: u32 = 4457;
    pub(super) const MATRIX_STORE: u32 = 4458;
    /// The storage class of shared memory, and the scope of those who share it.
    pub(super) const WORKGROUP: u32 = 4;
    pub(super) const WORKGROUP_SCOPE: u32 = 2;
    /// An access that others see: `NonPrivatePointer` with `MakePointerVisible` or `MakePointerAvailable`.
    pub(super) const SEEING: u32 = 0x20 | 0x10;
    pub(super) const SEEN: u32 = 0x20 | 0x08;
}

/// The instructions of a module, each with its number.
fn instructions(words: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut rest = words.get(HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let head = *rest.first()?;
        let length = (head >> 16).max(1) as usize;
        let (one, others) = rest.split_at_checked(length)?;
        rest = others;
        Some((head & 0xffff, one))
    })
}

/// The module with every access to shared memory seen by the workgroup.
fn sharing(words: &[u32]) -> Result<Vec<u32>, String> {
    let (mut integers, mut types, mut shared) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut constants = BTreeMap::new();
    let mut out = words[..HEADER.min(words.len())].to_vec();
    for (op, one) in instructions(words) {
        // The place of the pointer, and what is said of the access.
        let access = match op {
            is::LOAD => Some((3, 4, is::SEEING)),
            is::STORE => Some((1, 3, is::SEEN)),
            is::MATRIX_LOAD => Some((3, 6, is::SEEING)),
            is::MATRIX_STORE => Some((1, 5, is::SEEN)),
            _ => None,
        };
        match (op, one) {
            (is::TYPE_POINTER, &[_, id, is::WORKGROUP, _]) => {
                types.insert(id);
            }
            (is::TYPE_INT, &[_, id, 32, _]) => {
                integers.insert(id);
            }
            (is::CONSTANT, &[_, ty, id, value]) if integers.contains(&ty) => {
                constants.entry(value).or_insert(id);
            }
            (
                is::VARIABLE
                | is::ACCESS_CHAIN
                | is::IN_BOUNDS_ACCESS_CHAIN
                | is::FUNCTION_PARAMETER,
                &[_, ty, id, ..],
            ) if types.contains(&ty) => {
                shared.insert(id);
            }
            _ => {}
        }
        match access.filter(|a| shared.contains(&one[a.0])) {
            Some((_, length, said)) => {
                let scope = constants.get(&is::WORKGROUP_SCOPE);
                let &scope = scope.ok_or("shared memory without a barrier")?;
                if one.len() != length {
                    return Err("an access to shared memory that says more".to_owned());
                }
                out.push(((length as u32 + 2) << 16) | op);
                out.extend(&one[1..]);
                out.extend([said, scope]);
            }
            None => out.extend(one),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything but what was said of accesses to shared memory is naga's.
    #[test]
    fn shared_memory_is_seen_by_the_workgroup() {
        let modules = crate::kernels::modules().into_iter();
        let mut said = 0;
        for module in modules.filter(|m| m.cooperative) {
            let plain = written(&module.text, "tiles_coop", (1, 6)).expect("naga reads it");
            let made = sharing(&plain).expect("its threads meet");
            assert_eq!(plain[..HEADER], made[..HEADER]);
            for ((op, one), (other, more)) in instructions(&plain).zip(instructions(&made)) {
                assert_eq!(
                    (op, &one[1..]),
                    (other, &more[1..one.len()]),
                    "{}",
                    module.name
                );
                said += more.len() - one.len();
            }
            let of = |op: u32| instructions(&made).filter(move |i| i.0 == op);
            assert!(of(is::MATRIX_LOAD).all(|i| i.1[6] == is::SEEING));
            assert!(of(is::MATRIX_STORE).all(|i| i.1[5] == is::SEEN));
            // Two of rows, two or four of weights, and as many sums as their products.
            let counts = [is::MATRIX_LOAD, is::MATRIX_STORE].map(|op| of(op).count());
            assert!(matches!(counts, [4, 4] | [6, 8]), "{counts:?}");
        }
        assert!(said > 0);
    }
}
