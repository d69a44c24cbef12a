//! Lists which architectures have a golden, and of which oracle, so that `archs` can say so.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let dir = root.join("../conformance/goldens");
    println!("cargo:rerun-if-changed={}", dir.display());
    let mut found: Vec<(String, String)> = goldens(&dir);
    found.sort();
    let mut code = String::from("const VERIFIED: &[(&str, &str)] = &[\n");
    for (name, oracle) in found {
        writeln!(code, "    ({name:?}, {oracle:?}),").expect("text grows");
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("verified.rs"), code).expect("the build folder is writable");
}

/// Names and oracles; without the folder there are none.
fn goldens(dir: &Path) -> Vec<(String, String)> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let jsons = files.map(|file| file.path());
    let jsons = jsons.filter(|path| path.extension().is_some_and(|e| e == "json"));
    jsons
        .filter_map(|path| {
            let name = path.file_stem()?.to_str()?.to_owned();
            Some((name, oracle(&fs::read_to_string(&path).ok()?)?))
        })
        .collect()
}

/// The line `"oracle": "…",` of a golden.
fn oracle(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("\"oracle\": \"")?;
    Some(rest.split_once('"')?.0.to_owned())
}
