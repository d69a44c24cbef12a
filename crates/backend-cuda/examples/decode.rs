//! How fast a model is on the first GPU, without an engine: a prompt in steps of 512 rows, then chains of steps in which
//! every sequence goes on with what was drawn; of several sequences, also steps in which the last one begins while the others go on.
//!
//! `cargo run --release -p tokkata-backend-cuda --example decode -- MODEL.gguf [TOKENS [SEQUENCES [DEPTH [WAY]]]]`
//!
//! WAY: `launches` leaves tapes out; `meetings` has the blocks of a tape meet behind each instruction, as before 9.0; `deep`
//! has tapes attend as behind long caches; `watch` says where the last step of a tape went, in cycles; `check` runs these ways
//! and, where there are many sequences, one alone, and fails unless the last logits have the same bits in all. The sum over the
//! bits of one sequence's logits says it of two runs; all sequences have the same.

use std::collections::BTreeMap;

use tokkata_backend_cuda::Timeline;
use tokkata_conformance::decode::{CHAIN, Run};

type Any = Box<dyn std::error::Error>;

fn main() -> Result<(), Any> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("which model?")?;
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let counts = [number(1, 128)?, number(2, 1)?, number(3, 512)?];
    let way = args.get(4).map_or("", String::as_str);
    if way != "check" {
        measure(path, counts, way)?;
        return Ok(());
    }
    let want = measure(path, counts, "launches")?;
    for way in ["", "meetings", "deep"] {
        if measure(path, counts, way)? != want {
            return Err(format!("{path}: other bits than by launches: {way:?}").into());
        }
    }
    println!("the same bits in four ways");
    let [tokens, sequences, depth] = counts;
    if sequences > 1 && measure(path, [tokens, 1, depth], "")? != want {
        return Err(format!("{path}: other bits than of one sequence").into());
    }
    Ok(())
}

/// Prints how fast a model is in one way; the bits of the last logits.
fn measure(path: &str, [tokens, sequences, depth]: [usize; 3], way: &str) -> Result<u64, Any> {
    let device = tokkata_conformance::cuda()?;
    let device = match way {
        "launches" => device.without_tapes(),
        "meetings" => device.without_words(),
        "deep" => device.with_deep_tapes(),
        "watch" => device.with_watch(),
        _ => device,
    };
    // Chains to warm up, those that are timed, and the step whose logits are read.
    println!("{:?}", device.describe()?);
    let mut run = Run::open(path, (sequences, depth + CHAIN + tokens + 1), &device)?;
    println!("{}", run.time_prompts(depth)?);
    println!("{}", run.time_chains(tokens)?);
    let bits = run.last_bits()?;
    println!("bits of the last logits: {bits:016x}");
    if sequences > 1 {
        run.prompt(depth)?;
        println!("{}", run.time_beside(depth)?);
    }
    for timeline in device.timelines()? {
        print_times(&timeline);
    }
    Ok(bits)
}

/// Of instructions of one name, means over the blocks that take part: what they wait for, prepare and sum. The block that waits
/// least came last: its wait is what numbers take on their way.
fn print_times(timeline: &Timeline) {
    let mut kinds: BTreeMap<&str, Vec<Vec<[u64; 3]>>> = BTreeMap::new();
    for (i, name) in timeline.names.iter().enumerate() {
        let times = |block: usize| timeline.times[block * timeline.names.len() + i];
        let rows = (0..timeline.blocks).map(times).filter(|t| t.is_sorted());
        let parts =
            rows.map(|[begins, there, ready, ends]| [there - begins, ready - there, ends - ready]);
        kinds.entry(name).or_default().push(parts.collect());
    }
    println!("instructions, blocks of each, cycles of one: waits (least) + prepares + sums (most)");
    for (name, each) in kinds {
        let all: Vec<&[u64; 3]> = each.iter().flatten().collect();
        let mean = |n: usize| all.iter().map(|p| p[n]).sum::<u64>() / all.len().max(1) as u64;
        let of =
            |end: fn(&Vec<[u64; 3]>) -> u64| each.iter().map(end).sum::<u64>() / each.len() as u64;
        let least = of(|e| e.iter().map(|p| p[0]).min().unwrap_or(0));
        let most = of(|e| e.iter().map(|p| p[2]).max().unwrap_or(0));
        let (count, blocks) = (each.len(), all.len() / each.len());
        let (waits, prepares, sums) = (mean(0), mean(1), mean(2));
        println!("{name}: {count}, {blocks}, {waits} ({least}) + {prepares} + {sums} ({most})");
    }
    let row = &timeline.times[..timeline.names.len()];
    if let [first, .., last] = row {
        println!("the tape: {} cycles", last[3] - first[0]);
    }
}
