//! A model on a device without an engine, for measurements: prompts in steps of 512 rows, then chains of steps in which every
//! sequence goes on with what was drawn.

use std::sync::Arc;
use std::time::Instant;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_formats::ModelFile;
use tokkata_ir::{
    ArenaLayout, CacheGroup, Delta, Device, Executor, GroupId, Limits, LoadOptions, LogitRow,
    Program, Refusal, SeqRows, SeqSlot, Work,
};

type Any = Box<dyn std::error::Error>;

/// Steps of a chain.
pub const CHAIN: usize = 32;
/// Rows of a step.
const ROWS: usize = 512;

/// A loaded model and its sequences.
pub struct Run {
    executor: Box<dyn Executor>,
    program: Arc<Program>,
    blocks: Vec<Vec<u32>>,
    sequences: usize,
}

impl Run {
    /// Loads a model for so many sequences of so many positions.
    ///
    /// # Errors
    /// Where the file or the device has none of it.
    pub fn open(
        path: &str,
        (sequences, ctx): (usize, usize),
        device: &dyn Device,
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

    /// What makes a sequence one that begins.
    fn begun(&self, slot: SeqSlot) -> Vec<(SeqSlot, Delta)> {
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
        deltas
    }

    /// Rows of a prompt from a position on.
    fn rows(&self, slot: SeqSlot, at: usize, n: usize) -> SeqRows {
        let most = self.program.n_vocab.min(30_000) as usize;
        let tokens: Vec<u32> = (at..at + n).map(|i| (i * 7919 % most) as u32).collect();
        SeqRows::tokens(slot, &tokens)
    }

    /// Feeds every sequence a prompt from its beginning.
    ///
    /// # Errors
    /// The device's.
    pub fn prompt(&mut self, depth: usize) -> Result<(), Any> {
        for slot in self.slots() {
            let mut deltas = self.begun(slot);
            let mut at = 0;
            while at < depth {
                let n = (depth - at).min(ROWS);
                let mut rows = self.rows(slot, at, n);
                at += n;
                if at == depth {
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
    ///
    /// # Errors
    /// The device's.
    pub fn last_bits(&mut self) -> Result<u64, Any> {
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
    ///
    /// # Errors
    /// The device's.
    pub fn chains(&mut self, tokens: usize) -> Result<usize, Any> {
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

    /// Prompts of so many tokens twice, as a line: the first one compiles.
    ///
    /// # Errors
    /// The device's.
    pub fn time_prompts(&mut self, depth: usize) -> Result<String, Any> {
        let start = Instant::now();
        self.prompt(depth)?;
        let first = start.elapsed().as_secs_f64();
        let start = Instant::now();
        self.prompt(depth)?;
        let second = start.elapsed().as_secs_f64();
        let all = (depth * self.sequences) as f64;
        Ok(format!(
            "prompt {depth} x{}: {:.0} tok/s first, {:.0} then",
            self.sequences,
            all / first,
            all / second
        ))
    }

    /// So many tokens behind a chain to warm up, as a line.
    ///
    /// # Errors
    /// The device's.
    pub fn time_chains(&mut self, tokens: usize) -> Result<String, Any> {
        self.chains(CHAIN)?;
        let start = Instant::now();
        let made = self.chains(tokens)?;
        let seconds = start.elapsed().as_secs_f64();
        let all = made * self.sequences;
        let rate = all as f64 / seconds;
        Ok(format!(
            "decode {made} x{}: {rate:.1} tok/s",
            self.sequences
        ))
    }

    /// Steps in which the last sequence has rows of a prompt and each other one goes on, as a line.
    ///
    /// # Errors
    /// The device's, and one where there is but one sequence.
    pub fn time_beside(&mut self, depth: usize) -> Result<String, Any> {
        const STEPS: u32 = 4;
        let answers = self.sequences - 1;
        if answers == 0 {
            return Err("a prompt beside no answers".into());
        }
        let last = SeqSlot(answers as u32);
        let n = depth.min(ROWS.saturating_sub(answers)).max(1);
        let mut start = Instant::now();
        // The first one warms up.
        for i in 0..=STEPS {
            let others = self.slots().take(answers).map(goes_on);
            let rows = others.chain([self.rows(last, 0, n)]).collect();
            self.work(Work {
                deltas: self.begun(last),
                rows,
                ..Work::default()
            })?;
            if i == 0 {
                start = Instant::now();
            }
        }
        let each = start.elapsed().as_secs_f64() * 1e3 / f64::from(STEPS);
        Ok(format!(
            "a step of {answers} answers and {n} rows of a prompt: {each:.2} ms"
        ))
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
