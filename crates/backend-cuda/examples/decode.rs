//! How fast a model is on the first GPU, without an engine: a prompt in steps of 512 rows, then chains of steps in which
//! every sequence goes on with what was drawn.
//!
//! `cargo run --release -p tokkata-backend-cuda --example decode -- MODEL.gguf [TOKENS [SEQUENCES [DEPTH [WAY]]]]`
//!
//! WAY: `launches` leaves tapes out; `meetings` has the blocks of a tape meet behind each instruction, as before 9.0; `deep`
//! has tapes attend as behind long caches; `watch` says where the last step of a tape went, in cycles; `check` runs these ways
//! and, where there are many sequences, one alone, and fails unless the last logits have the same bits in all. The sum over the
//! bits of one sequence's logits says it of two runs; all sequences have the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_backend_cuda::{CudaDevice, Timeline};
use tokkata_formats::ModelFile;
use tokkata_ir::{
    ArenaLayout, CacheGroup, Delta, Device, Executor, GroupId, Limits, LoadOptions, LogitRow,
    Program, Refusal, SeqRows, SeqSlot, Work,
};

type Any = Box<dyn std::error::Error>;

/// Steps of a chain.
const CHAIN: usize = 32;
/// Rows of a step.
const ROWS: usize = 512;

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
    let mut run = Run::open(path, (sequences, depth + CHAIN + tokens + 1), &device)?;
    let start = Instant::now();
    run.prompt(depth, true)?;
    let first = start.elapsed().as_secs_f64();
    let start = Instant::now();
    run.prompt(depth, true)?;
    let second = start.elapsed().as_secs_f64();
    let all = (depth * sequences) as f64;
    println!(
        "prompt {depth} x{sequences}: {:.0} tok/s first, {:.0} then",
        all / first,
        all / second
    );
    run.chains(CHAIN)?;
    let start = Instant::now();
    let made = run.chains(tokens)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "decode {made} x{sequences}: {:.1} tok/s",
        (made * sequences) as f64 / seconds
    );
    let bits = run.last_bits()?;
    println!("bits of the last logits: {bits:016x}");
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

/// A loaded model and its sequences.
struct Run {
    executor: Box<dyn Executor>,
    program: Arc<Program>,
    blocks: Vec<Vec<u32>>,
    sequences: usize,
}

impl Run {
    fn open(
        path: &str,
        (sequences, ctx): (usize, usize),
        device: &CudaDevice,
    ) -> Result<Self, Any> {
        let file = ModelFile::open(path)?;
        let limits = Limits {
            rows: ROWS as u32,
            seqs: sequences as u32,
            logit_rows: sequences as u32,
            ctx: ctx as u32,
            ..Limits::default()
        };
        let spec = Registry::builtin().resolve(&file, &ResolveOptions { ctx: ctx as u32 })?;
        let program = Arc::new(tokkata_plan::build(&spec, &limits)?);
        println!("{:?}", device.describe()?);
        let start = Instant::now();
        let weights = FileWeights(&file);
        let loaded = device.load(Arc::clone(&program), &weights, &LoadOptions::default())?;
        let table = |g: &CacheGroup| g.table_len(&limits) as u64 * sequences as u64;
        let counts: Vec<u64> = program.caches.iter().map(table).collect();
        let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &counts);
        let blocks = arena.deal(&counts);
        let executor = loaded.open(arena)?;
        println!(
            "loaded {:.2} GB in {:.2} s",
            executor.memory_bytes() as f64 / 1e9,
            start.elapsed().as_secs_f64()
        );
        Ok(Run {
            executor,
            program,
            blocks,
            sequences,
        })
    }

    fn slots(&self) -> impl Iterator<Item = SeqSlot> + use<> {
        (0..self.sequences as u32).map(SeqSlot)
    }

    /// Does a work to its end; how many rows were drawn from.
    fn work(&mut self, work: Work) -> Result<usize, Any> {
        self.executor
            .submit(work)
            .map_err(|refusal| match refusal {
                Refusal::Backend(error) => error.to_string(),
                Refusal::Busy(_) => "busy".to_owned(),
            })?;
        let mut drawn = 0;
        while let Some(news) = self.executor.wait()? {
            drawn += news.rows.len();
            if let Some(error) = news.failure {
                return Err(error.into());
            }
            if news.done {
                break;
            }
        }
        Ok(drawn)
    }

    /// Feeds every sequence a prompt from its beginning.
    fn prompt(&mut self, depth: usize, logits: bool) -> Result<(), Any> {
        for slot in self.slots() {
            let mut deltas = vec![(slot, Delta::Clear)];
            for (g, group) in self.program.caches.iter().enumerate() {
                let len = group.table_len(&self.program.limits);
                let own = &self.blocks[g][slot.index() * len..][..len];
                let table = Delta::Table {
                    group: GroupId(g as u32),
                    first: 0,
                    blocks: own.to_vec(),
                };
                deltas.push((slot, table));
            }
            let mut at = 0;
            while at < depth {
                let n = (depth - at).min(ROWS);
                let most = self.program.n_vocab.min(30_000) as usize;
                let tokens: Vec<u32> = (at..at + n).map(|i| (i * 7919 % most) as u32).collect();
                let mut rows = SeqRows::tokens(slot, &tokens);
                at += n;
                if at == depth && logits {
                    rows.logits.push(LogitRow {
                        row: n as u32 - 1,
                        ..LogitRow::default()
                    });
                }
                let deltas = std::mem::take(&mut deltas);
                self.work(Work {
                    deltas,
                    rows: vec![rows],
                    ..Work::default()
                })?;
            }
        }
        Ok(())
    }

    /// One step more: what the logits of each sequence come to, bit by bit.
    fn last_bits(&mut self) -> Result<u64, Any> {
        let plan = &self.program.plans[0];
        let logits = plan.output("logits").ok_or("no logits")?;
        let mut out = vec![0.0f32; self.sequences * plan.value(logits).shape.width()];
        let rows = self.slots().map(goes_on).collect();
        let work = Work {
            rows,
            keep: vec![logits],
            ..Work::default()
        };
        let submitted = self.executor.submit(work);
        let ticket = submitted.map_err(|_| "the work was refused")?;
        while self.executor.wait()?.is_some_and(|news| !news.done) {}
        let rows = 0..self.sequences;
        self.executor.read(&ticket, logits, rows, &mut out)?;
        let mix = |sum: u64, x: &f32| (sum ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01b3);
        let of = |row: &[f32]| row.iter().fold(0xcbf2_9ce4_8422_2325, mix);
        let each: Vec<u64> = out.chunks(out.len() / self.sequences).map(of).collect();
        if let Some(other) = each.iter().position(|&bits| bits != each[0]) {
            return Err(format!("sequence {other} has other bits than the first").into());
        }
        Ok(each[0])
    }

    /// Draws so many tokens in every sequence, a chain at a time; how many of each were.
    fn chains(&mut self, tokens: usize) -> Result<usize, Any> {
        let mut drawn = 0;
        while drawn < tokens * self.sequences {
            let rows = self.slots().map(goes_on);
            let left = tokens - drawn / self.sequences;
            drawn += self.work(Work {
                rows: rows.collect(),
                chained: left.min(CHAIN) as u32 - 1,
                ..Work::default()
            })?;
        }
        Ok(drawn / self.sequences)
    }
}

/// A row that goes on with what was drawn.
fn goes_on(slot: SeqSlot) -> SeqRows {
    SeqRows {
        input: tokkata_ir::RowInput::Drawn,
        logits: vec![LogitRow::default()],
        prompt: false,
        ..SeqRows::tokens(slot, &[])
    }
}
