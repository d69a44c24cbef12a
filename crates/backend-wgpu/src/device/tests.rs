//! What a device is asked for by a step, counted on one that computes nothing.

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_conformance::generate;
use tokkata_conformance::golden::Golden;
use tokkata_core::{DType, Value};
use tokkata_formats::ModelFile;
use tokkata_ir::{Delta, GroupId, Limits, LogitRow, RowInput, SeqRows, SeqSlot, WeightId, Work};

use super::*;
use crate::select::{self, Item};

/// Positions of a context.
const CTX: u32 = 512;

/// A dense model like those that people run: so many layers, four heads of 64 columns that share two keys.
fn dense(arch: &str, layers: u32) -> ModelFile {
    let mut golden = Golden::read(&Golden::folder(), arch).expect("golden");
    let mut set = |key: &str, value: u32| {
        let key = format!("{arch}.{key}");
        golden.metadata.insert(key, Value::U32(value));
    };
    set("block_count", layers);
    set("context_length", CTX);
    for key in ["key_length", "value_length"] {
        set(&format!("attention.{key}"), 64);
    }
    set("rope.dimension_count", 64);
    let mut tensors = Vec::new();
    for (name, shape) in &golden.tensors {
        let kept = name.ends_with(".weight") && !name.starts_with("rope_freqs");
        let Some(of_layer) = name.strip_prefix("blk.0.") else {
            if kept && !name.starts_with("blk.") {
                tensors.push((name.clone(), shape.clone()));
            }
            continue;
        };
        let shape = match of_layer.strip_suffix(".weight") {
            Some("attn_q") => vec![256, 64],
            Some("attn_k" | "attn_v") => vec![128, 64],
            Some("attn_output") => vec![64, 256],
            Some("attn_q_norm" | "attn_k_norm") => vec![64],
            _ => shape.clone(),
        };
        let names = (0..layers).map(|l| format!("blk.{l}.{of_layer}"));
        tensors.extend(names.filter(|_| kept).map(|name| (name, shape.clone())));
    }
    golden.tensors = tensors;
    let file = generate::gguf(&golden).expect("a file");
    ModelFile::from_bytes(file).expect("a file")
}

fn load(file: &ModelFile, fuse: bool) -> Resident {
    load_for(file, fuse, 0)
}

/// A model for so many adapters.
fn load_for(file: &ModelFile, fuse: bool, adapters: u32) -> Resident {
    let options = ResolveOptions { ctx: CTX };
    let spec = Registry::builtin().resolve(file, &options).expect("a spec");
    let limits = Limits {
        rows: 16,
        ctx: CTX,
        adapters,
        ..Limits::default()
    };
    let program = Arc::new(tokkata_plan::build(&spec, &limits).expect("a program"));
    let device = WgpuDevice::noop();
    Resident::new(
        (&device.gpu, device.abilities, device.choices),
        &program,
        &FileWeights(file),
        fuse,
    )
    .expect("a load")
}

/// A sequence on a device that computes nothing.
struct Alone {
    executor: Box<dyn Executor>,
    gpu: Arc<Gpu>,
    /// What tells the device of the sequence.
    deltas: Vec<(SeqSlot, Delta)>,
    /// What its rows go through.
    adapter: u32,
}

impl Alone {
    fn behind(resident: Resident, positions: u32) -> Self {
        let gpu = Arc::clone(&resident.gpu);
        let program = Arc::clone(&resident.program);
        let groups = &program.caches;
        let lens: Vec<usize> = groups
            .iter()
            .map(|g| g.table_len(&program.limits))
            .collect();
        let counts: Vec<u64> = lens.iter().map(|&l| l as u64).collect();
        let arena = ArenaLayout::for_counts(&resident.block_bytes(), &counts);
        let executor = Box::new(resident).open(arena).expect("an executor");
        let slot = SeqSlot(0);
        let mut deltas = vec![(slot, Delta::Clear), (slot, Delta::Length(positions))];
        let tables = (0..).zip(&lens).map(|(g, &len)| Delta::Table {
            group: GroupId(g),
            first: 0,
            blocks: (0..len as u32).collect(),
        });
        deltas.extend(tables.map(|t| (slot, t)));
        Alone {
            executor,
            gpu,
            deltas,
            adapter: 0,
        }
    }

    /// Submits a step.
    fn submit(&mut self) {
        let rows = SeqRows {
            input: RowInput::Drawn,
            logits: vec![LogitRow::default()],
            prompt: false,
            adapter: self.adapter,
            ..SeqRows::tokens(SeqSlot(0), &[])
        };
        let work = Work {
            deltas: std::mem::take(&mut self.deltas),
            rows: vec![rows],
            ..Work::default()
        };
        assert!(self.executor.submit(work).is_ok());
    }

    /// Whether the work goes on.
    fn goes_on(&mut self) -> bool {
        let news = self.executor.wait().expect("news");
        news.is_some_and(|n| !n.done)
    }

    /// Dispatches, buffers and groups so far.
    fn asked(&self) -> [u64; 3] {
        let a = &self.gpu.asked;
        [&a.dispatches, &a.buffers, &a.groups].map(|n| n.load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// What a step of one sequence is dispatched as, behind so many positions, and what else steps ask for: dispatches, buffers, groups.
fn steps(resident: Resident, behind: u32) -> [u64; 3] {
    steps_of(Alone::behind(resident, behind))
}

fn steps_of(mut alone: Alone) -> [u64; 3] {
    let mut run = || {
        let before = alone.asked();
        alone.submit();
        while alone.goes_on() {}
        let after = alone.asked();
        [0, 1, 2].map(|i| after[i] - before[i])
    };
    // Where nothing is computed, sequences have no positions afterwards.
    let [dispatches, ..] = run();
    run();
    let [_, buffers, groups] = run();
    [dispatches, buffers, groups]
}

/// Two submissions are under way; when results of one are here, the next is submitted before they are looked at.
#[test]
fn a_submission_is_under_way_while_another_is_read() {
    let mut alone = Alone::behind(load(&dense("llama", 2), true), 16);
    let mut dispatched = Vec::new();
    for _ in 0..3 {
        alone.submit();
        dispatched.push(alone.asked()[0]);
    }
    assert_eq!(dispatched[1], dispatched[2], "a third submission");
    for _ in 0..3 {
        let news = alone.executor.poll().expect("news");
        assert!(news.is_some_and(|n| n.done));
        dispatched.push(alone.asked()[0]);
    }
    assert_eq!(dispatched[3], dispatched[2], "the first news");
    assert!(dispatched[4] > dispatched[3], "the second news");
    assert_eq!(dispatched[5], dispatched[4], "the third news");
}

#[test]
fn a_step_takes_few_dispatches_and_no_memory() {
    for arch in ["llama", "qwen3"] {
        let file = dense(arch, 28);
        let [fused, buffers, groups] = steps(load(&file, true), 16);
        // Norm and products, attention with its heads, product and sum, norm and gate, product and sum.
        assert!(fused <= 5 * 28 + 14, "{arch}: {fused} dispatches of a step");
        assert_eq!((buffers, groups), (0, 0), "{arch}: memory of steps");
        // A dispatch more that joins what workgroups left among which keys are divided.
        let [far, ..] = steps(load(&file, true), 300);
        assert_eq!(far, fused + 28, "{arch}: behind 300 positions");
        let [plain, ..] = steps(load(&file, false), 16);
        assert!(plain > 12 * 28, "{arch}: {plain} one by one");
    }
}

/// Whoever goes through no adapter does not pay for those who might.
#[test]
fn a_step_through_no_adapter_is_dispatched_as_if_there_were_none() {
    let file = dense("llama", 4);
    let of = |adapters| Alone::behind(load_for(&file, true, adapters), 16);
    assert_eq!(steps_of(of(2)), steps_of(of(0)));
    let mut through = of(2);
    through.adapter = through.executor.attach(&Arc::default()).expect("a number");
    let [dispatches, buffers, groups] = steps_of(through);
    // A norm, its products and additions, attention, and twice a product, additions and a sum; norm, products, additions, gate.
    let most = (4 + 1 + 2 * 4 + 5) * 4 + 20;
    assert!(dispatches <= most, "{dispatches} dispatches, of {most}");
    assert_eq!((buffers, groups), (0, 0), "memory of steps");
}

/// Weights of several formats read one norm: each dispatch of products makes it for replies, the first for prompts.
#[test]
fn products_of_several_formats_share_a_norm() {
    let file = dense("llama", 1);
    let spec = Registry::builtin().resolve(&file, &ResolveOptions { ctx: CTX });
    let program = tokkata_plan::build(&spec.expect("a spec"), &Limits::default());
    let program = program.expect("a program");
    let plan = &program.plans[0];
    let form = |weight: WeightId| {
        let is_value = program.weights[weight.index()].name.contains("attn_v");
        Some((if is_value { DType::Q6_K } else { DType::Q4_K }, 0))
    };
    let items = select::items(plan, Some(true), &form);
    let is_norm = |i: &Item| matches!(i, Item::Node(n) if plan.nodes[*n].op.name() == "norm");
    assert!(!items.iter().any(is_norm), "{items:?}");
    let normed: Vec<_> = items
        .iter()
        .filter_map(|item| match item {
            Item::Products(p) if p.norm.is_some() => Some((p.nodes.len(), p.again)),
            _ => None,
        })
        .collect();
    // Queries and keys, values, gate and up, the head.
    assert_eq!(normed, [(2, false), (1, true), (2, false), (1, false)]);
    let traffic: Vec<_> = items.iter().map(|i| i.traffic(plan)).collect();
    let of = |again| {
        let found = |i: &Item| matches!(i, Item::Products(p) if p.again == again);
        &traffic[items.iter().position(found).expect("products")]
    };
    let norm = of(false).outs[0];
    assert!(of(true).ins.contains(&norm) && !of(true).outs.contains(&norm));
}

/// Modules that lowering asks for are among those that naga and others read.
#[test]
fn lowering_asks_for_known_variants() {
    let known = crate::kernels::variants();
    let names = Golden::list(&Golden::folder()).expect("goldens");
    let mut unknown = std::collections::BTreeSet::new();
    for name in names.iter().filter(|n| !n.contains('+')) {
        let golden = Golden::read(&Golden::folder(), name).expect("golden");
        let Ok(file) = generate::model(&golden) else {
            continue;
        };
        let options = ResolveOptions { ctx: 64 };
        let Ok(spec) = Registry::builtin().resolve(&file, &options) else {
            continue;
        };
        let limits = Limits {
            rows: 16,
            ctx: 64,
            ..Limits::default()
        };
        let Ok(program) = tokkata_plan::build(&spec, &limits) else {
            continue;
        };
        let device = WgpuDevice::noop();
        for fuse in [false, true] {
            let weights = FileWeights(&file);
            let resident = Resident::new(
                (&device.gpu, device.abilities, device.choices),
                &Arc::new(program.clone()),
                &weights,
                fuse,
            );
            let Ok(resident) = resident else { continue };
            let launches = resident.plans.iter().flat_map(Ways::iter);
            let launches = launches.flat_map(|p| &p.0.launches);
            for pipeline in launches.flat_map(|l| l.kernel.pipelines()) {
                let found = known.iter().any(|v| pipeline.is_like(v));
                if !found {
                    unknown.insert(pipeline.said());
                }
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}
