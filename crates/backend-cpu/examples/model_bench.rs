//! Prefill and decode speed of a model file, and where the time goes.
//!
//! `cargo run --release -p tokkata-backend-cpu --example model_bench -- FILE [threads] [prompt] [generated] [depth]
//! [kv type] [set]`
//!
//! Texts are not looked at. Times are the best of three; with one thread they are processor time, so that other
//! programs disturb them less; `least` is what an op would take if every layer were as fast as the fastest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_backend_cpu::{CpuBackend, CpuInstance};
use tokkata_core::DType;
use tokkata_formats::ModelFile;
use tokkata_ir::step::{ROW_PROMPT, SeqStep};
use tokkata_ir::{
    ArenaLayout, GroupId, Limits, LoadOptions, Loaded, Machine, Program, StepInputs, StepState,
};

struct Bench {
    instance: CpuInstance,
    state: StepState,
    alone: bool,
    start: Instant,
}

impl Bench {
    fn step(&mut self, past: usize, rows: usize, prompt: bool) -> f64 {
        let tokens: Vec<u32> = (0..rows).map(|i| 100 + (past + i) as u32 % 300).collect();
        self.state.begin();
        self.state.push(&SeqStep {
            tokens: &tokens,
            past_len: past,
            logits: &[rows - 1],
            flags: if prompt { ROW_PROMPT } else { 0 },
            ..SeqStep::default()
        });
        let start = self.now();
        let inputs = StepInputs::default();
        let done = self.instance.replay(0, &self.state, &inputs);
        done.expect("a step");
        self.now() - start
    }

    /// Seconds of this thread's processor time when it works alone, of the clock otherwise.
    fn now(&self) -> f64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let busy = text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
        match busy {
            Some(ns) if self.alone => ns / 1e9,
            _ => self.start.elapsed().as_secs_f64(),
        }
    }

    fn prefill(&mut self, from: usize, to: usize, chunk: usize) -> f64 {
        let starts = (from..to).step_by(chunk);
        starts
            .map(|at| self.step(at, chunk.min(to - at), true))
            .sum()
    }

    fn profile(&self) {
        let mut sums: BTreeMap<(&str, String), (u64, u64, u64, u64)> = BTreeMap::new();
        for time in self.instance.times() {
            let sum = sums
                .entry((time.kernel, time.site.role.clone()))
                .or_insert((0, 0, 0, u64::MAX));
            *sum = (
                sum.0 + time.wait_ns,
                sum.1 + time.run_ns,
                sum.2 + 1,
                sum.3.min(time.run_ns),
            );
        }
        let mut rows: Vec<_> = sums.into_iter().collect();
        rows.sort_by_key(|r| std::cmp::Reverse(r.1.0 + r.1.1));
        for ((kernel, role), (wait, run, count, least)) in rows.into_iter().take(24) {
            println!(
                "    {kernel:<14} {role:<16} x{count:<4} run {:>9.1} us  least {:>9.1} us  wait {:>8.1} us",
                run as f64 / 1e3,
                (least * count) as f64 / 1e3,
                wait as f64 / 1e3
            );
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |i: usize, default: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (threads, prompt, generated, depth) =
        (number(1, 2), number(2, 256), number(3, 24), number(4, 0));
    let kv = args
        .get(5)
        .and_then(|a| DType::from_name(a))
        .unwrap_or(DType::F16);
    let file = ModelFile::open(std::path::Path::new(&args[0])).expect("a model file");
    let ctx = (depth + prompt.max(generated) + 64) as u32;
    let spec = Registry::builtin()
        .resolve(&file, &ResolveOptions { ctx })
        .expect("a known model");
    let limits = Limits {
        rows: 512,
        seqs: 1,
        logit_rows: 1,
        ctx,
        kv_dtype: kv,
        ..Limits::default()
    };
    let program = Arc::new(tokkata_plan::build(&spec, &limits).expect("a program"));
    let options = LoadOptions {
        threads,
        cpu_features: args.get(6).cloned(),
        ..LoadOptions::default()
    };
    let start = Instant::now();
    let (instance, state) = open(&program, &file, &options);
    println!(
        "load {:.2} s, {} MiB held",
        start.elapsed().as_secs_f64(),
        Machine::memory_bytes(&instance) >> 20
    );
    let mut bench = Bench {
        instance,
        state,
        alone: threads == 1,
        start,
    };
    bench.prefill(0, depth, 512);
    let best = (0..3)
        .map(|_| bench.prefill(depth, depth + prompt, 512))
        .fold(f64::MAX, f64::min);
    println!("prefill {prompt}: {:.1} tok/s", prompt as f64 / best);
    bench.instance.measure(true);
    bench.step(depth, prompt.min(512), true);
    bench.profile();
    bench.instance.measure(false);
    let decode = |bench: &mut Bench| {
        (0..generated)
            .map(|i| bench.step(depth + i, 1, false))
            .fold(f64::MAX, f64::min)
    };
    let best = (0..3).map(|_| decode(&mut bench)).fold(f64::MAX, f64::min);
    println!("decode: {:.1} tok/s (best token)", 1.0 / best);
    bench.instance.measure(true);
    bench.step(depth + generated, 1, false);
    bench.profile();
    println!("peak memory {} MiB", peak_mib());
}

/// The program with blocks for one sequence, and a state whose first slot holds them.
fn open(
    program: &Arc<Program>,
    file: &ModelFile,
    options: &LoadOptions,
) -> (CpuInstance, StepState) {
    let instance = CpuBackend.prepare(Arc::clone(program), &FileWeights(file), options);
    let mut instance = instance.expect("a load");
    let tables = program.caches.iter();
    let counts: Vec<u64> = tables
        .map(|g| g.table_len(&program.limits) as u64)
        .collect();
    let arena = ArenaLayout::for_counts(&instance.block_bytes(), &counts);
    instance.make_caches(&arena).expect("caches");
    let mut state = StepState::new(&program.limits, &program.caches);
    for (g, blocks) in (0..).zip(arena.deal(&counts)) {
        state.set_table(0, GroupId(g), 0, &blocks);
    }
    (instance, state)
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix("kB"))
        .and_then(|k| k.trim().parse::<u64>().ok())
        .unwrap_or(0)
        >> 10
}
