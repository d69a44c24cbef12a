//! Whole models on the first adapter of this machine, where it has one: goldens beside those of all devices, and runs that repeat.

use tokkata_conformance::golden::{Golden, verify};
use tokkata_conformance::{jitter, wgpu};

/// The names of the goldens that the environment asks for, or all.
fn names() -> Vec<String> {
    let mut names = Golden::list(&Golden::folder()).expect("goldens");
    if let Ok(wanted) = std::env::var("TOKKATA_GOLDENS") {
        let wanted: Vec<&str> = wanted.split(',').collect();
        names.retain(|name| wanted.contains(&name.as_str()));
    }
    names
}

#[test]
fn goldens() {
    match wgpu() {
        Ok(device) => verify(&device, &names()),
        Err(why) => eprintln!("skipped: wgpu: {why}"),
    }
}

/// What workgroups do at the same time changes no bit.
#[test]
fn runs_repeat() {
    match (wgpu(), wgpu()) {
        (Ok(one), Ok(other)) => jitter::verify(&one, &other, &names()),
        (Err(why), _) | (_, Err(why)) => eprintln!("skipped: wgpu: {why}"),
    }
}
