//! `licences`: the licences of everything that the program is made of.

use std::io::Write;

use anyhow::Result;

const OWN: &str = "Tokkata is licensed under MIT or Apache 2.0, as you like.\n\n";
/// Written by `cargo xtask notices`.
const NOTICES: &str = include_str!("../../THIRD-PARTY-NOTICES");

pub(crate) fn run() -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(OWN.as_bytes())?;
    out.write_all(NOTICES.as_bytes())?;
    Ok(())
}
