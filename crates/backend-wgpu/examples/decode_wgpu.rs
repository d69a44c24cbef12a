//! How fast a model is on the first adapter, without an engine: a prompt in steps of 512 rows, then chains of steps in which
//! every sequence goes on with what was drawn; of several sequences, also steps in which the last one begins while the others go on.
//!
//! `cargo run --release -p tokkata-backend-wgpu --example decode_wgpu -- MODEL.gguf [TOKENS [SEQUENCES [DEPTH]]]`
//!
//! `TOKKATA_WGPU` takes another adapter, by its number. The sum over the bits of the last logits says whether two ways of running
//! agree.

use tokkata_conformance::decode::{CHAIN, Run};

type Any = Box<dyn std::error::Error>;

fn main() -> Result<(), Any> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("which model?")?;
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (tokens, sequences, depth) = (number(1, 128)?, number(2, 1)?, number(3, 512)?);
    let device = tokkata_conformance::wgpu()?;
    let mut run = Run::open(path, (sequences, depth + tokens + CHAIN), &device)?;
    println!("{}", run.time_prompts(depth)?);
    // The first time compiles.
    for again in [false, true, true] {
        if again {
            run.prompt(depth)?;
        }
        println!("{}", run.time_chains(tokens)?);
    }
    println!("bits of the last logits: {:016x}", run.last_bits()?);
    if sequences > 1 {
        run.prompt(depth)?;
        println!("{}", run.time_beside(depth)?);
    }
    Ok(())
}
