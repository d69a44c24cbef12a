//! The interface from C: the header alone, every program of `tests/c`, memory checkers, the committed symbols.
//!
//! What a machine lacks (a compiler, a checker) is skipped by name.

use std::path::{Path, PathBuf};
use std::process::Command;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where the library lies that was built for this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a program");
    exe.parent().expect("it lies in a folder").to_owned()
}

fn there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {program} is not there");
    }
    found
}

fn run(command: &mut Command) -> String {
    let out = command.output().expect("it can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&out.stdout) + &text(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{said}", out.status);
    said
}

/// Builds a program of `tests`; gives where it lies.
fn built(compiler: &str, source: &str, flags: &[&str], folder: &Path) -> PathBuf {
    let name = source.replace(['/', '.'], "-");
    let program = folder.join(format!("{name}{}", flags.len()));
    let library = library();
    let mut command = Command::new(compiler);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-g"])
        .args(flags);
    command
        .arg("-I")
        .arg(here("include"))
        .arg(here("tests").join(source));
    command.arg("-o").arg(&program).arg("-L").arg(&library);
    command.arg(format!("-Wl,-rpath,{}", library.display()));
    run(command.args(["-ltokkata_capi", "-lm", "-lpthread"]));
    program
}

fn model() -> PathBuf {
    here("../../demo/demo.gguf")
}

/// A model for speech and a recording.
fn speech(folder: &Path) -> (PathBuf, PathBuf) {
    let (model, wav) = (folder.join("speech.bin"), folder.join("tone.wav"));
    std::fs::write(&model, tokkata_conformance::speech::file()).expect("it can be written");
    let tone: Vec<f32> = (0..32_000).map(|i| (i as f32 * 0.3).sin() / 3.0).collect();
    let bytes = tokkata::audio::wav::encode(&tone, 16_000, 1);
    std::fs::write(&wav, bytes).expect("it can be written");
    (model, wav)
}

#[test]
fn the_header_stands_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for (compiler, language, standard) in [
        ("gcc", "c", "c99"),
        ("gcc", "c", "c11"),
        ("g++", "c++", "c++17"),
        ("clang", "c", "c99"),
        ("clang", "c", "c11"),
        ("clang++", "c++", "c++17"),
    ] {
        if !there(compiler) {
            continue;
        }
        let headers: &[&str] = match language {
            "c" => &["tokkata.h"],
            _ => &["tokkata.h", "tokkata.hpp"],
        };
        for header in headers {
            let source = folder.path().join("alone");
            let text = format!("#include \"{header}\"\nint main(void) {{ return 0; }}\n");
            std::fs::write(&source, text).expect("it can be written");
            let mut command = Command::new(compiler);
            command.args(["-x", language, &format!("-std={standard}")]);
            command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]);
            run(command.arg("-I").arg(here("include")).arg(&source));
        }
    }
}

#[test]
fn examples_compile() {
    if !there("gcc") {
        return;
    }
    for example in std::fs::read_dir(here("examples")).expect("there are examples") {
        let mut command = Command::new("gcc");
        command.args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-I",
        ]);
        let source = example.expect("it can be read").path();
        run(command.arg(here("include")).arg(source));
    }
}

#[test]
fn programs_do_what_they_say() {
    if !there("gcc") || !there("g++") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let session = folder.path().join("session");
    let (hears, wav) = speech(folder.path());
    for (compiler, source, standard) in [
        ("gcc", "c/chat.c", "-std=gnu11"),
        ("clang", "c/sessions.c", "-std=gnu11"),
        ("gcc", "c/misuse.c", "-std=gnu11"),
        ("gcc", "first_design.c", "-std=gnu11"),
        ("g++", "c/owners.cpp", "-std=c++17"),
    ] {
        if !there(compiler) {
            continue;
        }
        let program = built(compiler, source, &[standard], folder.path());
        let mut command = Command::new(program);
        command.arg(model());
        if source.contains("sessions") {
            command.arg(&session);
        }
        if source.contains("first") {
            command.arg(&hears).arg(&wav);
        }
        assert!(run(&mut command).contains(": ok"));
    }
    let program = built("gcc", "c/values.c", &["-std=gnu11"], folder.path());
    let words = folder.path().join("words.gguf");
    std::fs::write(&words, tokkata_conformance::words::file()).expect("it can be written");
    assert!(run(Command::new(program).arg(&words)).contains(": ok"));
    let program = built("gcc", "c/speech.c", &["-std=gnu11"], folder.path());
    let mut command = Command::new(program);
    assert!(run(command.arg(&hears).arg(model()).arg(&wav)).contains(": ok"));
    let cycles = built("gcc", "c/cycles.c", &["-std=gnu11"], folder.path());
    run(Command::new(cycles).arg(model()).arg("100"));
}

#[test]
fn callers_under_sanitizers_are_clean() {
    let folder = tempfile::tempdir().expect("a folder");
    let session = folder.path().join("session");
    let flags = [
        "-std=gnu11",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    if !there("gcc") {
        return;
    }
    for source in ["c/chat.c", "c/misuse.c", "c/sessions.c"] {
        let program = built("gcc", source, &flags, folder.path());
        let mut command = Command::new(program);
        command.arg(model());
        if source.contains("sessions") {
            command.arg(&session);
        }
        // The library's own threads live until the process ends.
        run(command.env("ASAN_OPTIONS", "detect_leaks=0"));
    }
}

#[test]
#[ignore = "minutes; `cargo xtask capi` runs it"]
fn memory_is_used_as_it_should() {
    if !there("gcc") || !there("valgrind") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let session = folder.path().join("session");
    let program = built("gcc", "c/sessions.c", &["-std=gnu11"], folder.path());
    let mut command = Command::new("valgrind");
    command.args([
        "--error-exitcode=9",
        "--errors-for-leak-kinds=definite",
        "--leak-check=full",
        "-q",
    ]);
    command.env("TOKKATA_TEST_FEATURES", "portable");
    run(command.arg(program).arg(model()).arg(&session));
}

#[test]
#[ignore = "minutes; `cargo xtask capi` runs it"]
fn a_thousand_cycles_leave_nothing() {
    if !there("gcc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let cycles = built("gcc", "c/cycles.c", &["-std=gnu11"], folder.path());
    eprintln!("{}", run(Command::new(cycles).arg(model()).arg("1000")));
}

#[test]
fn symbols_are_those_that_were_committed() {
    if !there("nm") {
        return;
    }
    let library = library().join("libtokkata_capi.so");
    let said = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library));
    let own = said
        .lines()
        .filter_map(|line| line.split_whitespace().last());
    let mut own: Vec<&str> = own.filter(|name| name.starts_with("tokkata_")).collect();
    own.sort_unstable();
    let committed = std::fs::read_to_string(here("symbols.txt")).expect("it is there");
    let committed: Vec<&str> = committed.lines().collect();
    assert_eq!(
        own, committed,
        "symbols.txt says what callers may rely on: only add to it"
    );
}
