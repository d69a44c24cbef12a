//! How fast a model is on the first adapter, without an engine: a prompt in steps of 512 rows, then chains of steps in which
//! every sequence goes on with what was drawn.
//!
//! `cargo run --release -p tokkata-backend-wgpu --example decode_wgpu -- MODEL.gguf [TOKENS [SEQUENCES [DEPTH]]]`
//!
//! `TOKKATA_WGPU` takes another adapter, by its number. The sum over the bits of the last logits says whether two ways of running
//! agree.

use std::sync::Arc;
use std::time::Instant;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_backend_wgpu::WgpuDevice;
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
    let (tokens, sequences, depth) = (number(1, 128)?, number(2, 1)?, number(3, 512)?);
    let device = tokkata_conformance::wgpu()?;
    let mut run = Run::open(path, (sequences, depth + tokens + CHAIN), &device)?;
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
    // The first time compiles.
    for again in [false, true, true] {
        if again {
            run.prompt(depth, true)?;
        }
        run.chains(CHAIN)?;
        let start = Instant::now();
        let made = run.chains(tokens)?;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "decode {made} x{sequences}: {:.1} tok/s",
            (made * sequences) as f64 / seconds
        );
    }
    println!("bits of the last logits: {:016x}", run.last_bits()?);
    Ok(())
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
        device: &WgpuDevice,
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
                let tokens: Vec<u32> = (at..at + n).map(|i| (i * 7919 % 30_000) as u32).collect();
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

    /// One step more: what its logits come to, bit by bit.
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
        Ok(out.iter().fold(0xcbf2_9ce4_8422_2325, mix))
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
