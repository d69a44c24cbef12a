//! Whether tapes and launches have the same bits on the first GPU: every golden, in steps, chunks and places of all kinds, and
//! heads of real widths over long caches.
//!
//! `cargo run --release -p tokkata-backend-cuda --example jitter`

use tokkata_conformance::golden::Golden;
use tokkata_conformance::{cuda, jitter, wide};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut names = Golden::list(&Golden::folder())?;
    names.retain(|name| !name.contains('+'));
    jitter::verify(&cuda()?, &cuda()?.without_tapes(), &names);
    println!("jitter: {} names agree", names.len());
    wide::verify_cuda()?;
    println!("jitter: heads of real widths agree");
    Ok(())
}
