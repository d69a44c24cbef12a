//! Rules that no lint knows: file sizes, where `unsafe` may stand, no architecture names outside the descriptors,
//! no paths of somebody's machine, no test that nothing compiles.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::shell::root;

/// Longest source file that is not a table.
const MAX_LINES: usize = 800;

/// Files that are tables of data, or may be longer for that reason.
const TABLES: &[&str] = &[
    "tables",
    "grids",
    "unicode",
    "schema.rs",
    "op.rs",
    "spec.rs",
];

/// Longest descriptor.
const DESCRIPTOR_LINES: usize = 60;
/// Descriptors that only change another one a little.
const SMALL: &[(&str, usize)] = &[("/smollm3.toml", 15)];
/// Largest file of a golden.
const GOLDEN_BYTES: u64 = 50_000;

/// Folders and files in which `unsafe` is allowed.
const UNSAFE: &[&str] = &[
    "crates/backend-cpu/",
    "crates/backend-cuda/src/driver.rs",
    // Kernels without the checks that wgpu adds.
    "crates/backend-wgpu/src/gpu.rs",
    // Vulkan's own calls.
    "crates/backend-wgpu/src/replay/vulkan.rs",
    "crates/capi/src/",
    "crates/formats/src/source.rs",
    "crates/python/src/floats.rs",
    "crates/python/src/interpreter.rs",
    "crates/quant/src/quantize/lanes/avx2.rs",
];

/// Architecture names that are names of mixers too.
const ORDINARY: &[&str] = &["mamba", "rwkv6", "rwkv7"];

/// Non-test code that may name architectures: data tables.
const NAMES: &[&str] = &[
    "crates/archs/",
    // A container that holds one family.
    "crates/formats/src/ggml/",
    "crates/cli/src/commands/run/named.rs",
    "crates/hub/src/known.rs",
    // The words of a choice, some of which drafters are called by.
    "crates/tokkata/src/drafts.rs",
    // The word of a request for what reasoning is called.
    "crates/requests/src/chat.rs",
    "crates/quant/src/mix",
    "crates/text/src/tokenizer/",
    "crates/tokkata/src/synthetic",
    "crates/tokkata/src/vocabulary",
    "crates/conformance/",
    "xtask/",
];

pub(crate) fn check() -> Result<()> {
    let root = root();
    let mut files = Vec::new();
    for dir in ["crates", "xtask", "fuzz"] {
        collect(&root.join(dir), &mut files);
    }
    let names = architectures(&root)?;
    let mut faults = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file)?;
        let path = file
            .strip_prefix(&root)
            .unwrap_or(file)
            .display()
            .to_string();
        faults.extend(faults_of(&path, &text, &names));
        if path.ends_with("/tests/it/main.rs") {
            let beside = std::fs::read_dir(file.with_file_name(""))?;
            let beside = beside.map(|entry| Ok(entry?.path()));
            faults.extend(left_out(&path, &text, &beside.collect::<Result<Vec<_>>>()?));
        }
    }
    faults.extend(data_faults(&root)?);
    if !faults.is_empty() {
        bail!("{} rules broken:\n{}", faults.len(), faults.join("\n"));
    }
    Ok(())
}

/// Files beside the root of a crate's tests that are no modules of it.
fn left_out(path: &str, text: &str, beside: &[PathBuf]) -> Vec<String> {
    let module = |file: &PathBuf| {
        let stem = file.file_stem()?.to_string_lossy().into_owned();
        let source = file.extension().is_some_and(|e| e == "rs") && stem != "main";
        (source || file.join("mod.rs").exists()).then_some(stem)
    };
    let declared = |stem: &String| text.lines().any(|l| l.trim() == format!("mod {stem};"));
    let fault = |stem| format!("{path}: `mod {stem};` is missing: nothing compiles that file");
    let missing = beside.iter().filter_map(module).filter(|s| !declared(s));
    missing.map(fault).collect()
}

/// Descriptors and goldens that outgrew what they are for.
fn data_faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for entry in std::fs::read_dir(root.join("crates/archs/archs"))? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        faults.extend(descriptor_fault(&path.display().to_string(), &text));
    }
    for entry in std::fs::read_dir(root.join("crates/conformance/goldens"))? {
        let entry = entry?;
        let bytes = entry.metadata()?.len();
        if bytes > GOLDEN_BYTES {
            let path = entry.path();
            faults.push(format!(
                "{}: {bytes} bytes; a golden has at most {GOLDEN_BYTES}",
                path.display()
            ));
        }
    }
    Ok(faults)
}

/// What is wrong with a descriptor's length; its table of names in another container does not count.
fn descriptor_fault(path: &str, text: &str) -> Option<String> {
    let mut counts = true;
    let lines = text.lines().filter(|line| {
        if line.starts_with('[') {
            counts = !line.trim_start_matches('[').starts_with("hf");
        }
        counts
    });
    let lines = lines.count();
    let small = SMALL.iter().find(|s| path.ends_with(s.0));
    let most = small.map_or(DESCRIPTOR_LINES, |s| s.1);
    (lines > most).then(|| format!("{path}: {lines} lines; at most {most}"))
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for path in entries.flatten().map(|e| e.path()) {
        let name = path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

fn faults_of(path: &str, text: &str, names: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    let test =
        path.contains("/tests/") || path.ends_with("tests.rs") || path.contains("/examples/");
    let lines = text.lines().count();
    if lines > MAX_LINES && !test && !TABLES.iter().any(|t| path.contains(t)) {
        faults.push(format!(
            "{path}: {lines} lines; split it (at most {MAX_LINES})"
        ));
    }
    let unsafe_ok = test || UNSAFE.iter().any(|u| path.starts_with(u));
    if !unsafe_ok && text.contains(concat!("allow(unsafe", "_code)")) {
        faults.push(format!("{path}: unsafe code is not allowed here"));
    }
    for place in [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ] {
        if text.contains(place) {
            faults.push(format!("{path}: names the path {place} of a machine"));
        }
    }
    if !test && !NAMES.iter().any(|n| path.starts_with(n)) {
        let code = text.split("#[cfg(test)]").next().unwrap_or(text);
        let code: String = code
            .lines()
            .filter(|l| !l.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n");
        faults.extend(
            names
                .iter()
                .filter(|n| code.contains(&format!("\"{n}\"")))
                .map(|n| {
                    format!("{path}: names the architecture \"{n}\"; it belongs into a descriptor")
                }),
        );
    }
    faults
}

/// Architecture strings of the descriptors.
fn architectures(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("crates/archs/archs"))? {
        let table: toml::Table = std::fs::read_to_string(entry?.path())?.parse()?;
        let list = table
            .get("names")
            .and_then(|n| n.as_array())
            .cloned()
            .unwrap_or_default();
        names.extend(list.iter().filter_map(|n| n.as_str().map(str::to_owned)));
    }
    names.retain(|n| !ORDINARY.contains(&n.as_str()));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{descriptor_fault, faults_of, left_out};

    #[test]
    fn no_test_is_left_out() {
        let beside = ["it/main.rs", "it/a.rs", "it/b.rs", "it/c.txt"].map(PathBuf::from);
        assert_eq!(left_out("it/main.rs", "mod a;\nmod b;", &beside).len(), 0);
        assert_eq!(
            left_out("it/main.rs", "mod a;\n// mod b;", &beside).len(),
            1
        );
    }

    #[test]
    fn descriptors_stay_short() {
        let long = "x = 1\n".repeat(61);
        assert!(descriptor_fault("a.toml", &long).is_some());
        assert!(descriptor_fault("a.toml", &long[..300]).is_none());
        let named = format!("{}[hf]\n{long}", &long[..300]);
        assert!(descriptor_fault("a.toml", &named).is_none());
        assert!(descriptor_fault("archs/smollm3.toml", &long[..96]).is_some());
    }

    #[test]
    fn rules_see_what_they_are_for() {
        let names = ["qwen9".to_owned()];
        let long = "\n".repeat(900);
        let unsafe_code = concat!("#![allow(unsafe", "_code)]");
        assert_eq!(faults_of("crates/a/src/b.rs", &long, &names).len(), 1);
        assert_eq!(faults_of("crates/a/src/tables.rs", &long, &names).len(), 0);
        assert_eq!(faults_of("crates/a/src/b.rs", unsafe_code, &names).len(), 1);
        assert_eq!(
            faults_of("crates/a/src/b.rs", "if arch == \"qwen9\" {}", &names).len(),
            1
        );
        assert_eq!(
            faults_of("crates/a/src/b.rs", "// \"qwen9\"", &names).len(),
            0
        );
        assert_eq!(
            faults_of("crates/a/src/b.rs", "#[cfg(test)]\n\"qwen9\"", &names).len(),
            0
        );
    }
}
