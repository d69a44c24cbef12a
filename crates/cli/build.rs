//! Lists which architectures have a golden, and of which oracles, so that `archs` can say so.

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
        .flat_map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path).unwrap_or_default();
            let found = ["oracle", "second"].map(|key| program(&text, key));
            let named = found.into_iter().flatten().map(|p| (name.to_string(), p));
            named.collect::<Vec<_>>()
        })
        .collect()
}

/// What the line `"oracle": "…",` of a golden names, without how it was set up.
fn program(text: &str, key: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("\"{key}\": \""))?;
    let title = rest.split_once('"')?.0;
    let end = [", ", " in "]
        .iter()
        .filter_map(|end| title.find(end))
        .min();
    Some(title[..end.unwrap_or(title.len())].to_owned())
}
