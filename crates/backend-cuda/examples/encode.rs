//! How fast an encoder of sound is on the first GPU, without an engine: windows of made-up frames, one after the other.
//!
//! `cargo run --release -p tokkata-backend-cuda --example encode -- MODEL [WINDOWS [ROWS [FILE]]]`
//!
//! A window has ROWS rows (1,500). The sum over the bits of what the encoder gives says whether two programs give the same; FILE
//! gets the numbers themselves, `[ROWS, D]` in F32.

use std::sync::Arc;
use std::time::Instant;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_formats::ModelFile;
use tokkata_ir::{
    ArenaLayout, Delta, Device, Executor, GroupId, Limits, LoadOptions, PlanRole, Program, Refusal,
    RowInput, SeqRows, SeqSlot, Source, Ticket, ValueId, Work,
};

type Any = Box<dyn std::error::Error>;

fn main() -> Result<(), Any> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("which model?")?;
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (windows, rows) = (number(1, 20)?, number(2, 1500)?);
    let mut run = Run::open(path, rows)?;
    run.encode()?;
    let mut times = Vec::new();
    for _ in 0..windows.max(1) {
        times.push(run.encode()?);
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let (least, most) = (times[0], times[times.len() - 1]);
    println!("{rows} rows: {median:.2} ms a window ({least:.2} to {most:.2})");
    let out = run.read()?;
    let mix = |sum: u64, x: &f32| (sum ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01b3);
    let bits = out.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    println!("bits of what it gives: {bits:016x}");
    if let Some(file) = args.get(3) {
        let bytes: Vec<u8> = out.iter().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(file, bytes)?;
    }
    Ok(())
}

/// A loaded model and a window of frames.
struct Run {
    executor: Box<dyn Executor>,
    program: Arc<Program>,
    tables: Vec<Delta>,
    plan: usize,
    hidden: ValueId,
    rows: usize,
    frames: Vec<f32>,
    last: Option<Ticket>,
}

impl Run {
    fn open(path: &str, rows: usize) -> Result<Self, Any> {
        let device = tokkata_conformance::cuda()?;
        println!("{:?}", device.describe()?);
        let file = ModelFile::open(path)?;
        let limits = Limits {
            rows: rows as u32,
            seqs: 1,
            logit_rows: 1,
            ctx: 448,
            enc_rows: rows as u32,
            ..Limits::default()
        };
        let spec = Registry::builtin().resolve(&file, &ResolveOptions { ctx: limits.ctx })?;
        let program = Arc::new(tokkata_plan::build(&spec, &limits)?);
        let options = LoadOptions::default();
        let loaded = device.load(Arc::clone(&program), &FileWeights(&file), &options)?;
        let lens = program.caches.iter().map(|g| g.table_len(&limits) as u64);
        let counts: Vec<u64> = lens.collect();
        let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &counts);
        let table = |(g, blocks): (usize, Vec<u32>)| Delta::Table {
            group: GroupId(g as u32),
            first: 0,
            blocks,
        };
        let tables = arena.deal(&counts).into_iter().enumerate().map(table);
        let tables = tables.collect();
        let found = program.plan(PlanRole::Encoder);
        let (plan, encoder) = found.ok_or("it has no encoder")?;
        let port = encoder.inputs.first().ok_or("it reads no frames")?.value;
        let n = rows * encoder.value(port).shape.width();
        let hidden = encoder.output("hidden").ok_or("it gives nothing")?;
        Ok(Run {
            executor: loaded.open(arena)?,
            tables,
            plan,
            hidden,
            rows,
            frames: (0..n).map(|i| frame(i as u64)).collect(),
            last: None,
            program,
        })
    }

    /// Encodes the window once; milliseconds from when its frames are there until the device is done.
    fn encode(&mut self) -> Result<f64, Any> {
        let slot = SeqSlot(0);
        let changes = [Delta::Clear].into_iter().chain(self.tables.clone());
        let port = self.program.plans[self.plan].inputs[0].value;
        let work = Work {
            plan: self.plan,
            deltas: changes.map(|d| (slot, d)).collect(),
            rows: vec![SeqRows {
                input: RowInput::Embeds(self.rows as u32),
                prompt: true,
                ..SeqRows::tokens(slot, &[])
            }],
            feeds: vec![(port, Source::Host(self.frames.clone()))],
            keep: vec![self.hidden],
            ..Work::default()
        };
        let start = Instant::now();
        let ticket = self
            .executor
            .submit(work)
            .map_err(|refusal| match refusal {
                Refusal::Backend(error) => error.to_string(),
                Refusal::Busy(_) => "busy".to_owned(),
            })?;
        while let Some(news) = self.executor.wait()? {
            if let Some(error) = news.failure {
                return Err(error.into());
            }
            if news.done {
                break;
            }
        }
        self.last = Some(ticket);
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// What the last window became, `[ROWS, D]`.
    fn read(&mut self) -> Result<Vec<f32>, Any> {
        let ticket = self.last.as_ref().ok_or("nothing was encoded")?;
        let width = self.program.plans[self.plan]
            .value(self.hidden)
            .shape
            .width();
        let mut out = vec![0.0; self.rows * width];
        self.executor
            .read(ticket, self.hidden, 0..self.rows, &mut out)?;
        Ok(out)
    }
}

/// A number of a frame, between −1 and 1.
fn frame(i: u64) -> f32 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 as f32 / (1u64 << 31) as f32 - 1.0
}
