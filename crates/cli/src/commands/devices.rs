//! `devices`: what can compute on this machine.

use std::io::Write;

use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    let found = tokkata::present();
    let width = found.iter().map(|d| d.0.len()).max().unwrap_or(0);
    let mut out = std::io::stdout().lock();
    for (name, what) in found {
        writeln!(out, "{name:width$}  {what}")?;
    }
    Ok(())
}
