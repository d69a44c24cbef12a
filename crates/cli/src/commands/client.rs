//! What asks a server rather than a model: `bench serve`, `launch`, and `--server` of other commands.

mod ask;
mod bench;
mod figures;
mod launch;
mod plot;

pub(crate) use ask::{Asked, continued, conversed};
pub(crate) use bench::{BenchServeArgs, run as bench};
pub(crate) use launch::{LaunchArgs, run as launch};
