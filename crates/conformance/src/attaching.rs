//! Adapters that come and go while works are under way.

use std::sync::Arc;

use tokkata_backend_ref::RefBackend;
use tokkata_core::DType;
use tokkata_ir::{
    AdaptForm, Adapter, Delta, Device, LoadOptions, LowRank, Op, Progress, SeqRows, SeqSlot,
    Source, Ticket, ValueId, Work,
};

use crate::fixture::{Fixture, Run, noises};
use crate::models::{Failure, nmse};

const ROWS: usize = 3;
const K: u32 = 64;
const N: u32 = 33;

/// A product and what adapters add to it.
fn fixture() -> (Fixture, ValueId) {
    let mut f = Fixture::default();
    let x = f.input(&[K]);
    let weight = f.matrix(DType::F32, &[N, K], &noises("weight", (N * K) as usize));
    let product = Op::Matmul {
        weight,
        scale: None,
        bias: None,
    };
    let y = f.op(product, &[x], &[N]);
    let form = AdaptForm::Product;
    let y = f.op(Op::Adapt { weight, form }, &[x, y], &[N]);
    f.show(&[y]);
    (f, y)
}

/// A program on a device, and the value that its works keep.
struct Bench {
    run: Run,
    y: ValueId,
}

impl Bench {
    fn new(device: &dyn Device) -> Result<Self, Failure> {
        let (fixture, y) = fixture();
        let run = fixture.load(device, &LoadOptions::default());
        run.map(|run| Bench { run, y }).map_err(|e| e.to_string())
    }

    fn attach(&mut self, rank: u32) -> Result<u32, Failure> {
        let noise = |name: &str, len: u32| noises(&format!("{name}{rank}"), len as usize);
        let pair = LowRank {
            weight: tokkata_ir::WeightId(0),
            rank,
            a: noise("a", rank * K),
            b: noise("b", N * rank),
        };
        let adapter = Adapter::new(vec![pair], &self.run.program);
        let adapter = adapter.map_err(|e| e.to_string())?;
        let number = self.run.executor.attach(&Arc::new(adapter));
        number.map_err(|e| e.to_string())
    }

    /// Rows of a slot through an adapter.
    fn submit(&mut self, slot: u32, adapter: u32) -> Result<Ticket, Failure> {
        let slot = SeqSlot(slot);
        let work = Work {
            deltas: vec![(slot, Delta::Clear), (slot, Delta::Length(0))],
            rows: vec![SeqRows {
                adapter,
                ..SeqRows::tokens(slot, &[0; ROWS])
            }],
            feeds: vec![(ValueId(0), Source::Host(noises("x", ROWS * K as usize)))],
            keep: vec![self.y],
            ..Work::default()
        };
        self.run.executor.submit(work).map_err(|e| e.to_string())
    }

    /// News of everything under way.
    fn finish(&mut self) -> Result<Vec<Progress>, Failure> {
        let mut all = Vec::new();
        while let Some(news) = self.run.executor.wait().map_err(|e| e.to_string())? {
            all.push(news);
        }
        Ok(all)
    }

    fn read(&mut self, ticket: &Ticket) -> Result<Vec<f32>, Failure> {
        let mut out = vec![0.0; ROWS * N as usize];
        let read = self.run.executor.read(ticket, self.y, 0..ROWS, &mut out);
        read.map(|()| out).map_err(|e| e.to_string())
    }

    /// The rows through an adapter, with nothing else under way.
    fn alone(&mut self, adapter: u32) -> Result<Vec<f32>, Failure> {
        let ticket = self.submit(0, adapter)?;
        self.finish()?;
        self.read(&ticket)
    }
}

/// What should be so and is not.
fn so(is: bool, what: &str) -> Result<(), Failure> {
    if is { Ok(()) } else { Err(what.to_owned()) }
}

/// One of a low rank is used while one of a high rank comes; it goes while it is used, and another one takes its number.
fn story(device: &dyn Device) -> Result<[Vec<f32>; 3], Failure> {
    let mut bench = Bench::new(device)?;
    let low = bench.attach(3)?;
    let want = bench.alone(low)?;
    let first = bench.submit(0, low)?;
    let high = bench.attach(70)?;
    let second = bench.submit(1, high)?;
    bench.run.executor.detach(low);
    let third = bench.submit(2, low)?;
    so(
        bench.attach(5).is_err(),
        "a number is given again that a work names",
    )?;
    let news = bench.finish()?;
    let of = |ticket: &Ticket| {
        let own = news.iter().find(|n| n.ticket == ticket.id());
        own.and_then(|n| n.failure.as_ref())
            .map(ToString::to_string)
    };
    so(
        (of(&first), of(&second)) == (None, None),
        "a work fails whose adapter was there",
    )?;
    so(
        of(&third).is_some_and(|t| t.contains("number 1 is not attached")),
        "a work runs whose adapter was let go before",
    )?;
    let [got, through_high] = [bench.read(&first)?, bench.read(&second)?];
    so(got == want, "other bits where another adapter comes")?;
    so(
        bench.attach(5)? == low,
        "the number of one that is gone is not free",
    )?;
    let again = bench.alone(low)?;
    so(
        bench.alone(high)? == through_high,
        "other bits where another adapter goes",
    )?;
    Ok([got, through_high, again])
}

/// Adapters come and go as the contract says, and rows go through those that they name.
///
/// # Errors
/// What is not so.
pub fn verify(device: &dyn Device) -> Result<(), Failure> {
    let want = story(&RefBackend::default())?;
    let got = story(device)?;
    for (want, got) in want.iter().zip(&got) {
        let error = nmse(got, want);
        so(error < 1e-11, &format!("{error:e} off the reference"))?;
    }
    Ok(())
}
