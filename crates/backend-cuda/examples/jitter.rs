//! Whether tapes and launches have the same bits on the first GPU: every golden, in steps, chunks and places of all kinds, with
//! little cached and as behind long caches.
//!
//! `cargo run --release -p tokkata-backend-cuda --example jitter`

use tokkata_conformance::golden::Golden;
use tokkata_conformance::{cuda, jitter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut names = Golden::list(&Golden::folder())?;
    names.retain(|name| !name.contains('+'));
    let launches = cuda()?.without_tapes();
    jitter::verify(&cuda()?, &launches, &names);
    jitter::verify(&cuda()?.with_deep_tapes(), &launches, &names);
    println!("jitter: {} names agree", names.len());
    Ok(())
}
