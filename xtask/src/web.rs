//! `cargo xtask web [--test] [--rust-src DIRECTORY]`: the page that needs no server, in `target/web`.
//!
//! The engine is built for wasm32 and bound to JavaScript by wasm-bindgen; page and styles are the server's own. With
//! `--test` it is tried in a headless Chromium, whose GPU computes in software. Any server of files can serve the folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::python::{environment, python};
use crate::shell::{build_std, cargo, output, root, run};

const TARGET: &str = "wasm32-unknown-unknown";
/// Only the page's own files, and the program among them.
const POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'";
/// Bytes of the stack.
const STACK: &str = "-Clink-arg=-zstack-size=4194304";

pub(crate) fn make(args: &[String]) -> Result<()> {
    let mut sources = None;
    let mut test = false;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--test" => test = true,
            "--rust-src" => sources = Some(rest.next().context("--rust-src names a folder")?),
            _ => bail!("found {arg}, expected --test or --rust-src DIRECTORY"),
        }
    }
    let installed =
        output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]));
    if sources.is_none() && !installed.is_ok_and(|folder| Path::new(folder.trim()).is_dir()) {
        eprintln!(
            "skipped: no standard library for {TARGET}; `rustup target add {TARGET}`, or --rust-src"
        );
        return Ok(());
    }
    let folder = built(sources)?;
    if test {
        tried(&folder)?;
    }
    Ok(())
}

/// Builds program and page.
fn built(sources: Option<&String>) -> Result<PathBuf> {
    let build = [
        "build",
        "--release",
        "--locked",
        "-p",
        "tokkata-web",
        "--target",
        TARGET,
    ];
    let mut command = cargo(&build);
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", STACK);
    build_std(&mut command, sources);
    run(&mut command)?;
    let folder = root().join("target/web");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(folder.join("page"))?;
    let program = root().join(format!("target/{TARGET}/release/tokkata_web.wasm"));
    let mut bind = Command::new(binder()?);
    bind.args(["--target", "web", "--no-typescript", "--out-dir"]);
    run(bind.arg(folder.join("engine")).arg(program))?;
    for name in ["page.js", "markdown.js", "style.css", "icon.svg"] {
        let from = root().join("crates/server/page").join(name);
        std::fs::copy(from, folder.join("page").join(name))?;
    }
    let own = root().join("crates/web/page");
    std::fs::copy(own.join("worker.js"), folder.join("worker.js"))?;
    for name in ["local.js", "local.css"] {
        std::fs::copy(own.join(name), folder.join("page").join(name))?;
    }
    let index = std::fs::read_to_string(root().join("crates/server/page/index.html"))?;
    std::fs::write(folder.join("index.html"), with_engine(&index)?)?;
    std::fs::copy(root().join("demo/demo.gguf"), folder.join("demo.gguf"))?;
    let bytes = std::fs::metadata(folder.join("engine/tokkata_web_bg.wasm"))?.len();
    println!(
        "{}: a page, with a program of {bytes} bytes",
        folder.display()
    );
    Ok(folder)
}

/// The server's page with what answers it.
fn with_engine(index: &str) -> Result<String> {
    let (title, style) = (
        "<title>",
        "<script src=\"page/markdown.js\" defer></script>",
    );
    ensure!(
        index.contains(title) && index.contains(style),
        "the server's page has another head than is known"
    );
    let policy =
        format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n{title}");
    let local = format!(
        "<link rel=\"stylesheet\" href=\"page/local.css\">\n<script src=\"page/local.js\" defer></script>\n{style}"
    );
    Ok(index.replacen(title, &policy, 1).replacen(style, &local, 1))
}

/// The program that binds, of the version of the library that is bound.
fn binder() -> Result<PathBuf> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock"))?;
    let version = version_in(&lock).context("Cargo.lock names wasm-bindgen")?;
    let wanted = format!("wasm-bindgen {version}");
    let tools = root().join("target/tools");
    let own = tools.join("bin/wasm-bindgen");
    for program in [PathBuf::from("wasm-bindgen"), own.clone()] {
        let said = output(Command::new(&program).arg("--version"));
        if said.is_ok_and(|said| said.trim() == wanted) {
            return Ok(program);
        }
    }
    let install = [
        "install",
        "--quiet",
        "wasm-bindgen-cli",
        "--version",
        version,
        "--root",
    ];
    run(cargo(&install).arg(&tools))?;
    Ok(own)
}

fn version_in(lock: &str) -> Option<&str> {
    let rest = lock.split_once("name = \"wasm-bindgen\"\nversion = \"")?.1;
    Some(rest.split_once('"')?.0)
}

/// Runs the page in a browser.
fn tried(folder: &Path) -> Result<()> {
    if !environment(&["aiohttp"])? {
        return Ok(());
    }
    let script = root().join("xtask/src/web/browser.py");
    let mut command = python(&[]);
    command
        .arg(script)
        .arg(folder)
        .arg(root().join("demo/demo.gguf"));
    if let Some(shots) = std::env::var_os("TOKKATA_SHOTS") {
        command.arg(shots);
    }
    run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::{root, version_in, with_engine};

    #[test]
    fn the_server_s_page_takes_the_engine() {
        let index = std::fs::read_to_string(root().join("crates/server/page/index.html"));
        let page = with_engine(&index.expect("the page")).expect("it has a head");
        let place = |text: &str| page.find(text).expect("it is there");
        assert!(place("page/local.js") < place("page/page.js"));
        assert!(place("Content-Security-Policy") < place("<script"));
        assert!(with_engine("<html>").is_err());
    }

    #[test]
    fn the_lock_names_the_version_that_binds() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("a lock");
        assert!(version_in(&lock).is_some_and(|v| v.starts_with("0.2.")));
    }
}
