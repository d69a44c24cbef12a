//! `cargo xtask wgpu [--write] [--webgpu FOLDER] [--rust-src DIRECTORY]`: what others make of `crates/backend-wgpu`.
//!
//! naga makes MSL, HLSL and SPIR-V of every variant; hashes of them are committed, so that a change is seen, of kernels or of naga.
//! Tint, which browsers have, reads them where FOLDER holds the npm package `webgpu` and a driver for Vulkan is there. The crate is
//! checked for macOS with Metal and Windows with DirectX 12 where the standard library's sources are there.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use sha2::{Digest, Sha256};
use tokkata_backend_wgpu::Module;

use crate::shell::{self, root};
use crate::threads;

const SNAPSHOT: &str = "crates/backend-wgpu/kernels/translations.txt";

/// What Tint is not asked to read at once, since command lines end somewhere.
const AT_ONCE: usize = 200;

pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut write, mut webgpu, mut sources) = (false, None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--write" => write = true,
            "--webgpu" => webgpu = Some(args.next().context("--webgpu FOLDER")?),
            "--rust-src" => sources = Some(args.next().context("--rust-src DIRECTORY")?),
            _ => {
                bail!("usage: cargo xtask wgpu [--write] [--webgpu FOLDER] [--rust-src DIRECTORY]")
            }
        }
    }
    let modules = tokkata_backend_wgpu::modules();
    let made = translations(&modules)?;
    eprintln!("{} modules as MSL, HLSL and SPIR-V", modules.len());
    let path = root().join(SNAPSHOT);
    if write {
        std::fs::write(&path, &made)?;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    compare(&known, &made)?;
    tint(&modules, webgpu.map_or(".", String::as_str))?;
    targets(sources.map(String::as_str))
}

/// Systems whose drivers are not those of this one.
const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-msvc"];

/// Checks the types of what other systems build.
fn targets(sources: Option<&str>) -> Result<()> {
    let sources = match threads::sources(sources.map(Path::new)) {
        Ok(sources) => sources,
        Err(why) => {
            eprintln!("skipped: {}: {why}", TARGETS.join(", "));
            return Ok(());
        }
    };
    for target in TARGETS {
        let mut command = shell::cargo(&[
            "check",
            "--locked",
            "--target",
            target,
            "-p",
            "tokkata-backend-wgpu",
        ]);
        shell::build_std(&mut command, Some(&sources));
        command.env("CARGO_TARGET_DIR", root().join("target/targets"));
        shell::run(&mut command)?;
    }
    Ok(())
}

/// A line for each file and format: hashes over what naga makes of its variants.
fn translations(modules: &[Module]) -> Result<String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let hashed: Result<Vec<Vec<[Vec<u8>; 3]>>> = std::thread::scope(|scope| {
        let parts = modules.chunks(modules.len().div_ceil(threads));
        let spawned: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(translate).collect()))
            .collect();
        let joined = spawned.into_iter().map(|t| t.join().expect("naga goes on"));
        joined.collect()
    });
    let mut lines: BTreeMap<&str, [Sha256; 3]> = BTreeMap::new();
    for (module, texts) in modules.iter().zip(hashed?.iter().flatten()) {
        let hashes = lines.entry(&module.name).or_default();
        for (hash, text) in hashes.iter_mut().zip(texts) {
            hash.update(module.variant.as_bytes());
            hash.update(text);
        }
    }
    let mut made = String::from(
        "# Hashes of MSL, HLSL and SPIR-V by naga, over the variants of a file: `cargo xtask wgpu --write`.\n",
    );
    for (name, hashes) in lines {
        let hex = hashes.map(|h| {
            let bytes = h.finalize();
            let hex: String = bytes.iter().take(6).map(|b| format!("{b:02x}")).collect();
            hex
        });
        made += &format!("{name}: {}\n", hex.join(" "));
    }
    Ok(made)
}

/// A module in the three languages; HLSL knows no cooperative matrices.
fn translate(module: &Module) -> Result<[Vec<u8>; 3]> {
    let said = || format!("{} {}", module.name, module.variant);
    let (parsed, info) = valid(module).with_context(said)?;
    let options = msl::Options {
        lang_version: if module.cooperative { (3, 1) } else { (2, 4) },
        fake_missing_bindings: true,
        ..msl::Options::default()
    };
    let (metal, _) = msl::write_string(&parsed, &info, &options, &msl::PipelineOptions::default())
        .with_context(said)?;
    let mut direct = String::new();
    if !module.cooperative {
        let options = hlsl::Options {
            shader_model: hlsl::ShaderModel::V6_0,
            fake_missing_bindings: true,
            ..hlsl::Options::default()
        };
        let pipeline = hlsl::PipelineOptions::default();
        hlsl::Writer::new(&mut direct, &options, &pipeline)
            .write(&parsed, &info, None)
            .with_context(said)?;
    }
    let options = spv::Options {
        lang_version: if module.cooperative { (1, 6) } else { (1, 3) },
        ..spv::Options::default()
    };
    let vulkan = spv::write_vec(&parsed, &info, &options, None).with_context(said)?;
    let vulkan = vulkan.iter().flat_map(|w| w.to_le_bytes()).collect();
    Ok([metal.into_bytes(), direct.into_bytes(), vulkan])
}

fn valid(module: &Module) -> Result<(naga::Module, ModuleInfo)> {
    let parsed = naga::front::wgsl::parse_str(&module.text)
        .map_err(|e| anyhow::anyhow!(e.emit_to_string(&module.text)))?;
    let mut capabilities = Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if module.cooperative {
        capabilities |= Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16;
    }
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator
        .validate(&parsed)
        .map_err(|e| anyhow::anyhow!(e.emit_to_string(&module.text)))?;
    Ok((parsed, info))
}

fn compare(known: &str, made: &str) -> Result<()> {
    let names = |text: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|l| l.split_once(": "));
        let lines = lines.filter(|l| !l.0.starts_with('#'));
        lines.map(|l| (l.0.to_owned(), l.1.to_owned())).collect()
    };
    let (known, made) = (names(known), names(made));
    let mut changed: Vec<&String> = made
        .keys()
        .filter(|k| known.get(*k) != made.get(*k))
        .collect();
    changed.extend(known.keys().filter(|k| !made.contains_key(*k)));
    if changed.is_empty() {
        return Ok(());
    }
    for name in &changed {
        eprintln!("changed: {name}");
    }
    let n = changed.len();
    bail!(
        "{n} lines of {SNAPSHOT} are not what naga makes; where that is meant: cargo xtask wgpu --write"
    )
}

/// Lets Tint read what browsers may get.
fn tint(modules: &[Module], folder: &str) -> Result<()> {
    let script = root().join("xtask/src/wgpu/tint.mjs");
    let texts = root().join("target/wgsl");
    std::fs::create_dir_all(&texts)?;
    let mut files = Vec::new();
    for (i, module) in modules.iter().filter(|m| !m.cooperative).enumerate() {
        let said = format!("{i}-{} {}", module.name, module.variant);
        let path = texts.join(said.replace([' ', '='], "_") + ".wgsl");
        let head = if module.subgroups {
            "enable subgroups;\n"
        } else {
            ""
        };
        std::fs::write(&path, format!("{head}{}", module.text))?;
        files.push(path);
    }
    for part in files.chunks(AT_ONCE) {
        if !read_by_tint(&script, folder, part)? {
            return Ok(());
        }
    }
    eprintln!("{} modules by Tint", files.len());
    Ok(())
}

/// Whether Tint is there and takes these; it prints what it does not take.
fn read_by_tint(script: &Path, folder: &str, files: &[std::path::PathBuf]) -> Result<bool> {
    let Ok(output) = Command::new("node")
        .arg(script)
        .arg(folder)
        .args(files)
        .output()
    else {
        eprintln!("skipped: Tint: there is no node");
        return Ok(false);
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().filter(|l| !l.starts_with("Warning")).collect();
    match lines.split_last() {
        Some((last, [])) if *last == format!("read {}", files.len()) => Ok(true),
        Some((last, [])) if last.starts_with("skipped: ") => {
            eprintln!("skipped: Tint: {}", &last["skipped: ".len()..]);
            Ok(false)
        }
        _ => bail!(
            "Tint refuses kernels, or falls:\n{}\n{}",
            lines.join("\n"),
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn changes_are_seen() {
        assert!(compare("# x: y\na: 1\nb: 2\n", "a: 1\nb: 2\n").is_ok());
        for made in ["a: 1\n", "a: 1\nb: 3\n", "a: 1\nb: 2\nc: 3\n"] {
            assert!(compare("a: 1\nb: 2\n", made).is_err(), "{made}");
        }
    }
}
