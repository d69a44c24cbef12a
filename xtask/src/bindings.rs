//! The C library and the Python package: the header held against the code, and the tests that need more than Cargo.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, output, root, run};

/// What the package's tests need beside it; adapters are tested with what is there.
const NEEDED: [&str; 6] = [
    "maturin",
    "pytest",
    "pytest-asyncio",
    "numpy",
    "pydantic",
    "mypy",
];
/// Packages of adapters and checkers, for `--all`.
const OTHERS: [&str; 5] = [
    "pyright",
    "typing_extensions",
    "outlines",
    "guidance",
    "lm_eval",
];

/// Holds `tokkata.h` against what cbindgen reads in the code: every declaration, type and member, in both directions.
pub(crate) fn header() -> Result<()> {
    let folder = root().join("crates/capi");
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Type,
        usize_is_size_t: true,
        ..cbindgen::Config::default()
    };
    config.function.sort_by = Some(cbindgen::SortKey::Name);
    let mut builder = cbindgen::Builder::new().with_config(config);
    for entry in std::fs::read_dir(folder.join("src"))? {
        builder = builder.with_src(entry?.path());
    }
    let mut generated = Vec::new();
    let bindings = builder
        .generate()
        .context("cbindgen cannot read the code")?;
    bindings.write(&mut generated);
    let generated = declarations(&String::from_utf8(generated)?);
    let written = declarations(&std::fs::read_to_string(folder.join("include/tokkata.h"))?);
    // Handles are nothing but names.
    let is_name = |d: &&String| {
        let words: Vec<&str> = d.split(' ').collect();
        matches!(words[..], ["typedef", "struct", a, b] if a == b)
    };
    let missing: Vec<&String> = generated.difference(&written).collect();
    let unknown: Vec<&String> = written
        .difference(&generated)
        .filter(|d| !is_name(d))
        .collect();
    if !missing.is_empty() || !unknown.is_empty() {
        bail!(
            "tokkata.h differs from the code\nonly in the code: {missing:#?}\nonly in the header: {unknown:#?}"
        );
    }
    Ok(())
}

/// The declarations of a header, each with single spaces; members in order.
fn declarations(text: &str) -> BTreeSet<String> {
    let mut code = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, rest)| rest);
    }
    code.push_str(rest);
    let mut goes_on = false;
    let lines = code.lines().filter(|line| {
        let is_macro = goes_on || line.trim_start().starts_with('#');
        goes_on = is_macro && line.ends_with('\\');
        !is_macro && !line.trim_start().starts_with("//")
    });
    let code: String = lines.collect::<Vec<_>>().join(" ");
    let code = code.replace("extern \"C\" {", "");
    let (mut depth, mut one, mut all) = (0, String::new(), BTreeSet::new());
    for c in code.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == ';' && depth == 0 {
            let spaced = one.replace(['*', '(', ')', ',', '{', '}', ';', '['], " ");
            let marks: String = one.chars().filter(|c| "*(){},;[".contains(*c)).collect();
            let words: Vec<&str> = spaced.split_whitespace().collect();
            let plain = marks.is_empty();
            all.insert(match plain {
                true => words.join(" "),
                false => format!("{} {marks}", words.join(" ")),
            });
            one.clear();
        } else {
            one.push(c);
        }
    }
    all
}

/// The tests of the C library, those that take minutes too.
pub(crate) fn capi() -> Result<()> {
    header()?;
    let tests = [
        "test",
        "-p",
        "tokkata-capi",
        "--locked",
        "--",
        "--include-ignored",
    ];
    run(&mut cargo(&tests))
}

/// Builds the wheel into an environment of its own, and runs its tests. Without pip's network, and with nothing
/// installed before, it is skipped by name.
pub(crate) fn python(args: &[String]) -> Result<()> {
    let all = args.iter().any(|a| a == "--all");
    let folder = root().join("target/python");
    let tool = |name: &str| folder.join("bin").join(name);
    if !tool("python").exists() {
        let made = Command::new("python3")
            .args(["-m", "venv"])
            .arg(&folder)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("skipped: python3 with venv is not there");
            return Ok(());
        }
    }
    let mut pip = Command::new(tool("python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    pip.args(NEEDED).args(if all { &OTHERS[..] } else { &[] });
    if !pip.status()?.success() {
        eprintln!("skipped: pip has no network, or a package cannot be had");
        return Ok(());
    }
    let package = root().join("crates/python");
    let wheels = folder.join("wheels");
    let python = |args: &[&str]| {
        let mut command = Command::new(tool("python"));
        command.current_dir(&package).args(args);
        command
    };
    run(python(&["-m", "maturin", "build", "--out"]).arg(&wheels))?;
    run(python(&[
        "-m",
        "pip",
        "install",
        "--quiet",
        "--force-reinstall",
        "--no-deps",
    ])
    .arg(newest(&wheels)?))?;
    run(&mut python(&["-m", "mypy"]))?;
    if all {
        run(&mut python(&["-m", "pyright", "python/tokkata"]))?;
    }
    // From elsewhere, so that what is installed is what is tested.
    let tests = package.join("tests");
    let mut pytest = Command::new(tool("python"));
    pytest
        .current_dir(&folder)
        .args(["-m", "pytest", "-q", "-c"]);
    run(pytest.arg(package.join("pyproject.toml")).arg(&tests))?;
    println!(
        "{}",
        output(Command::new(tool("tokkata")).arg("--version"))?.trim()
    );
    Ok(())
}

/// The newest wheel of a folder.
fn newest(folder: &std::path::Path) -> Result<PathBuf> {
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
    use super::declarations;

    #[test]
    fn headers_are_compared_by_what_they_declare() {
        let one = "/* a */\n#define X \\\n 1\nint32_t f(const  char *a,\n  size_t n);\ntypedef struct s { int a; } s;";
        let same = "int32_t f(const char *a, size_t n);\ntypedef struct s {\n  int a;\n} s;\n";
        assert_eq!(declarations(one), declarations(same));
        for other in [
            "int32_t f(const char *a, size_t m);",
            "int32_t f(char *a, size_t n);",
            "typedef struct s { int a; int b; } s;",
        ] {
            assert!(
                !declarations(same).is_superset(&declarations(other)),
                "{other}"
            );
        }
    }
}
