//! Lists the descriptors of `archs/` so that they travel inside the binary.

use std::fmt::Write as _;
use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=archs");
    let dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("archs");
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .expect("archs/ exists")
        .map(|e| e.expect("readable").path())
        .collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "toml"));
    files.sort();
    let mut code = String::from("pub(crate) const BUILTIN: &[(&str, &str)] = &[\n");
    for file in files {
        let stem = file.file_stem().expect("a file name").to_string_lossy();
        writeln!(
            code,
            "    ({stem:?}, include_str!({:?})),",
            file.display().to_string()
        )
        .expect("text grows");
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("builtin.rs");
    fs::write(out, code).expect("the build folder is writable");
}
