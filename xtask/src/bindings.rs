//! The C library: its header held against the code, and the tests that need more than Cargo.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, output, root, run};

/// Examples in C, and what they are given behind the model.
const EXAMPLES: [(&str, &[&str]); 4] = [
    ("chat", &["Count from one to five."]),
    ("embeddings", &["a cat", "a dog"]),
    ("batch", &["Once upon a time", "The cat"]),
    ("benchmark", &["32", "64"]),
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

/// The text without the tags of structs that have members: the names that follow these are what a caller writes.
fn untagged(text: &str) -> String {
    let mut parts = text.split("typedef struct ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("typedef struct ");
        let body = part.find('{').filter(|&at| !part[..at].contains(';'));
        out.push_str(&part[body.unwrap_or(0)..]);
    }
    out
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
    let code = untagged(&code.replace("extern \"C\" {", ""));
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
    run(&mut cargo(&tests))?;
    installed()
}

/// Installs the library as packagers do, and builds and runs the examples as their readers would.
fn installed() -> Result<()> {
    let prefix = root().join("target/capi");
    let there = cargo(&["cinstall", "--version"]).output();
    if !there.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: cargo-c is not there (cargo install cargo-c)");
        return Ok(());
    }
    let install = ["cinstall", "--release", "--locked", "-p", "tokkata-capi"];
    run(cargo(&install)
        .arg("--prefix")
        .arg(&prefix)
        .args(["--libdir", "lib"]))?;
    let config = |what: &str| -> Result<Vec<String>> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let said = output(command.args([what, "tokkata"]))?;
        Ok(said.split_whitespace().map(str::to_owned).collect())
    };
    let (before, behind) = (config("--cflags")?, config("--libs")?);
    let model = root().join("demo/demo.gguf");
    for (example, args) in EXAMPLES {
        let program = prefix.join(example);
        let source = root().join(format!("crates/capi/examples/{example}.c"));
        let mut cc = Command::new("cc");
        cc.arg(source).args(&before).args(&behind);
        run(cc.arg("-o").arg(&program))?;
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", prefix.join("lib"));
        println!("{}", output(command.arg(&model).args(args))?.trim_end());
    }
    swift(&prefix, &model)
}

/// Builds the Swift package over the installed library, and runs its example, where the compiler is.
fn swift(prefix: &Path, model: &Path) -> Result<()> {
    let there = Command::new("swift").arg("--version").output();
    if !there.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: swift is not there");
        return Ok(());
    }
    let mut command = Command::new("swift");
    command.current_dir(root().join("crates/capi/swift"));
    command.args(["run", "--scratch-path"]);
    command.arg(root().join("target/swift")).arg("Chat");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    command.env("LD_LIBRARY_PATH", prefix.join("lib"));
    run(command.arg(model).arg(EXAMPLES[0].1[0]))
}

#[cfg(test)]
mod tests {
    use super::declarations;

    #[test]
    fn headers_are_compared_by_what_they_declare() {
        let one = "/* a */\n#define X \\\n 1\nint32_t f(const  char *a,\n  size_t n);\ntypedef struct s { int a; } s;";
        let same = "int32_t f(const char *a, size_t n);\ntypedef struct {\n  int a;\n} s;\n";
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
