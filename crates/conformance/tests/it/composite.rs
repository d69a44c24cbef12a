//! One program on two devices: halves that know nothing of each other give what one device gives.

use std::sync::Arc;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::golden::{Expectations, Golden, Rows, verify};
use tokkata_conformance::models::{Feeding, Target, load_for};
use tokkata_conformance::{adapters, generate};
use tokkata_ir::sample::{Fixed, Parameters, Sampler};
use tokkata_ir::{
    ArenaLayout, BackendError, BlockCopy, Composite, Delta, Device, DeviceId, Executor, GroupId,
    Limits, LoadOptions, Loaded, LogitRow, Program, RowInput, RowResult, RowStatus, SeqRows,
    SeqSlot, Ticket, WeightDef, WeightSource, Work,
};
use tokkata_plan::{BuildOptions, passes, place};

/// Two devices and what divides programs among them.
struct Divided {
    whole: Composite,
    divide: Box<dyn Fn(&mut Program) + Send + Sync>,
}

impl Device for Divided {
    fn name(&self) -> &'static str {
        self.whole.name()
    }

    fn available_bytes(&self) -> Option<u64> {
        self.whole.available_bytes()
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        let mut program = (*program).clone();
        (self.divide)(&mut program);
        self.whole.load(Arc::new(program), weights, options)
    }
}

fn reference() -> Box<dyn Device> {
    Box::new(RefBackend::default())
}

fn cpu() -> Box<dyn Device> {
    Box::new(CpuBackend)
}

/// The second device begins at a layer.
fn halves(devices: [Box<dyn Device>; 2], layer: u32) -> Divided {
    Divided {
        whole: Composite::new(devices.into()),
        divide: Box::new(move |program| passes::partition(program, &[layer])),
    }
}

/// Devices take turns, so many ops at a time.
fn turns(devices: [Box<dyn Device>; 2], ops: usize) -> Divided {
    let divide = move |program: &mut Program| {
        for plan in &mut program.plans {
            for (i, node) in plan.nodes.iter_mut().enumerate() {
                node.device = DeviceId((i / ops % 2) as u32);
            }
        }
        passes::together(program);
    };
    Divided {
        whole: Composite::new(devices.into()),
        divide: Box::new(divide),
    }
}

#[test]
fn halves_agree_with_every_golden() {
    let mut names = Golden::list(&Golden::folder()).expect("goldens");
    let expected = Expectations::read(&Golden::folder()).expect("expectations");
    // What one half cannot run, a device of halves cannot.
    names.retain(|name| !name.contains('+') && expected.failing(name, "cpu").is_none());
    let cuts = [
        halves([reference(), cpu()], 1),
        halves([cpu(), reference()], 2),
        halves([reference(), cpu()], 3),
        turns([cpu(), reference()], 7),
    ];
    for (i, cut) in cuts.iter().enumerate() {
        let own: Vec<String> = names.iter().skip(i).step_by(cuts.len()).cloned().collect();
        verify(cut, &own);
    }
}

/// The processor beside a device that runs the last two layers, but for the experts of the third.
fn placed(device: Box<dyn Device>) -> Divided {
    let keeps = |w: &WeightDef| w.site.layer == Some(2) && w.name.contains("_exps.");
    Divided {
        whole: Composite::new(vec![device, cpu()]),
        divide: Box::new(move |program| place::place(program, 2, keeps)),
    }
}

/// Experts, experts beside a dense part, rows for several experts at once, recurrent layers, an encoder.
const PLACED: [&str; 6] = [
    "llama",
    "qwen3moe",
    "deepseek2",
    "gpt-oss",
    "qwen3next",
    "t5",
];

#[test]
fn experts_stay_with_the_processor() {
    let names = PLACED.map(str::to_owned);
    verify(&placed(reference()), &names);
    match tokkata_conformance::cuda() {
        Ok(cuda) => verify(&placed(Box::new(cuda)), &names),
        Err(why) => eprintln!("skipped: cuda: {why}"),
    }
    match tokkata_conformance::wgpu() {
        Ok(wgpu) => verify(&placed(Box::new(wgpu)), &names),
        Err(why) => eprintln!("skipped: wgpu: {why}"),
    }
}

#[test]
fn adapters_reach_what_the_processor_keeps() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["qwen3moe", "deepseek2"];
    adapters::verify(&placed(reference()), &names, folder.path(), names.len());
}

#[test]
fn activations_and_sums_go_with_their_experts() {
    let golden = Golden::read(&Golden::folder(), "qwen3moe").expect("golden");
    let file = generate::model(&golden).expect("model");
    let ctx = golden.positions as u32;
    let spec = Registry::builtin().resolve(&file, &ResolveOptions { ctx });
    let limits = Limits {
        ctx,
        ..Limits::default()
    };
    let mut program = tokkata_plan::build(&spec.expect("a spec"), &limits).expect("a program");
    place::place(&mut program, 1, |w| w.name.contains("_exps."));
    let of = |layer: Option<u32>, device: DeviceId| -> Vec<&'static str> {
        let nodes = program.plans[0].nodes.iter();
        let own = nodes.filter(|n| n.site.layer == layer && n.device == device);
        own.map(|n| n.op.name()).collect()
    };
    assert_eq!(of(Some(0), place::DEVICE), [""; 0]);
    let experts = of(Some(2), place::PROCESSOR);
    assert!(experts.starts_with(&["experts"]), "{experts:?}");
    assert!(
        experts.ends_with(&["gate", "experts", "combine"]),
        "{experts:?}"
    );
    assert!(of(Some(2), place::DEVICE).contains(&"route"));
    // What comes before the first layer and behind the last is with them.
    assert!(of(None, place::PROCESSOR).starts_with(&["prepare"]));
    assert!(of(None, place::DEVICE).contains(&"sample"));
    place::place(&mut program, 0, |_| false);
    let nodes = program.plans.iter().flat_map(|p| &p.nodes);
    assert!(nodes.clone().all(|n| n.device == place::DEVICE));
}

/// Rows of a golden in pieces beside a copy.
fn rows(name: &str, device: &dyn Device) -> Vec<u32> {
    let golden = Golden::read(&Golden::folder(), name).expect("golden");
    let file = generate::model(&golden).expect("model");
    let (ids, encoder) = match golden.rows {
        Rows::Decoder => (golden.decoder_ids(), golden.ids()),
        _ => (golden.ids(), Vec::new()),
    };
    let pieces = Feeding {
        chunk: 5,
        sequences: 2,
        block_size: 4,
        ..Feeding::WHOLE
    };
    let target = Target {
        output: (golden.rows == Rows::Vectors).then_some("hidden"),
        encoder: &encoder,
        ..Target::new(device, golden.positions, pieces)
    };
    let mut loaded = load_for(&file, &Registry::builtin(), &target).expect("a load");
    let feeding = match loaded.bidirectional() {
        true => Feeding::WHOLE,
        false => pieces,
    };
    let rows = loaded.logits(&ids, feeding).expect("rows");
    rows.iter().map(|x| x.to_bits()).collect()
}

/// Full, windowed, recurrent and cross caches, caches that layers share, experts, vectors.
const KINDS: [&str; 8] = [
    "llama",
    "gemma3n",
    "qwen3next",
    "falcon-h1",
    "rwkv7",
    "qwen3moe",
    "t5",
    "bert",
];

#[test]
fn cuts_between_devices_of_a_kind_change_no_bit() {
    for name in KINDS {
        let want = rows(name, &RefBackend::default());
        assert_eq!(
            rows(name, &turns([reference(), reference()], 1)),
            want,
            "{name}"
        );
        let want = rows(name, &CpuBackend);
        assert_eq!(rows(name, &turns([cpu(), cpu()], 3)), want, "{name}");
        assert_eq!(rows(name, &halves([cpu(), cpu()], 1)), want, "{name}");
    }
}

const A: SeqSlot = SeqSlot(0);
const B: SeqSlot = SeqSlot(1);
const C: SeqSlot = SeqSlot(2);

/// Rows of a work, and why it failed.
type Told = (Vec<RowResult>, Option<String>);

/// An executor under a script, and what it told.
struct Scripted {
    executor: Box<dyn Executor>,
    program: Arc<Program>,
    blocks: Vec<Vec<u32>>,
    told: Vec<Told>,
}

impl Scripted {
    fn open(name: &str, device: &dyn Device) -> Self {
        let golden = Golden::read(&Golden::folder(), name).expect("golden");
        let file = generate::model(&golden).expect("model");
        let ctx = 32;
        let spec = Registry::builtin().resolve(&file, &ResolveOptions { ctx });
        let limits = Limits {
            rows: 16,
            seqs: 3,
            logit_rows: 8,
            ctx,
            ..Limits::default()
        };
        let options = BuildOptions {
            block_size: 4,
            ..BuildOptions::default()
        };
        let spec = spec.expect("it resolves");
        let program = tokkata_plan::build_with(&spec, &limits, &options).expect("it builds");
        let program = Arc::new(program);
        let (weights, options) = (FileWeights(&file), LoadOptions::default());
        let loaded = device.load(Arc::clone(&program), &weights, &options);
        let loaded = loaded.expect("it loads");
        let groups = program.caches.iter();
        let counts: Vec<u64> = groups.map(|g| 4 * g.table_len(&limits) as u64).collect();
        let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &counts);
        Scripted {
            blocks: arena.deal(&counts),
            executor: loaded.open(arena).expect("caches"),
            program,
            told: Vec::new(),
        }
    }

    /// Blocks of a slot in a group.
    fn table(&self, group: GroupId, slot: SeqSlot) -> &[u32] {
        let len = self.program.group(group).table_len(&self.program.limits);
        &self.blocks[group.index()][slot.index() * len..][..len]
    }

    fn groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.program.caches.len() as u32).map(GroupId)
    }

    fn tables(&self, slot: SeqSlot) -> Vec<(SeqSlot, Delta)> {
        let table = |group| Delta::Table {
            group,
            first: 0,
            blocks: self.table(group, slot).to_vec(),
        };
        self.groups().map(|g| (slot, table(g))).collect()
    }

    fn submit(&mut self, work: Work) -> Ticket {
        let logits = self.program.plans[0].output("logits").expect("logits");
        let work = Work {
            keep: vec![logits],
            ..work
        };
        self.executor.submit(work).expect("room")
    }

    /// Waits until a work is done; its logits where it has any.
    fn done(&mut self, ticket: &Ticket) -> Vec<f32> {
        let (mut rows, mut failure) = (Vec::new(), None);
        loop {
            let news = self.executor.wait().expect("a device").expect("news");
            assert_eq!(news.ticket, ticket.id());
            rows.extend(news.rows);
            failure = news.failure.or(failure);
            if news.done {
                break;
            }
        }
        self.told.push((rows, failure.map(|f| f.to_string())));
        let plan = &self.program.plans[0];
        let logits = plan.output("logits").expect("logits");
        let rows = self.executor.rows(ticket, logits).unwrap_or(0);
        let mut out = vec![0.0; rows * plan.value(logits).shape.width()];
        let read = self.executor.read(ticket, logits, 0..rows, &mut out);
        read.map_or(Vec::new(), |()| out)
    }

    fn run(&mut self, work: Work) -> Vec<f32> {
        let ticket = self.submit(work);
        self.done(&ticket)
    }
}

fn drawn(rows: SeqRows) -> SeqRows {
    let logit = LogitRow {
        row: rows.len() as u32 - 1,
        best: Some(3),
        ..LogitRow::default()
    };
    SeqRows {
        logits: vec![logit],
        ..rows
    }
}

fn tokens(slot: SeqSlot, tokens: &[u32]) -> SeqRows {
    drawn(SeqRows::tokens(slot, tokens))
}

fn next(slot: SeqSlot) -> SeqRows {
    drawn(SeqRows {
        input: RowInput::Drawn,
        prompt: false,
        ..SeqRows::tokens(slot, &[])
    })
}

fn rows_of<const N: usize>(rows: [SeqRows; N]) -> Work {
    Work {
        rows: rows.into(),
        ..Work::default()
    }
}

fn sampler(seed: u64) -> Delta {
    let parameters = Parameters {
        temperature: 1.5,
        seed,
        repeat: 1.5,
        presence: 0.5,
        ..Parameters::default()
    };
    Delta::Sampler(Box::new(Sampler {
        record: parameters.record(),
        bias: vec![(3, Fixed::new(0.5).expect("a number"))],
    }))
}

/// Everything that an executor does, in one sequence of works; all that it told and gave.
fn script(name: &str, device: &dyn Device) -> (Vec<Told>, Vec<f32>) {
    let mut s = Scripted::open(name, device);
    let mut given = Vec::new();
    let mut deltas: Vec<_> = [A, B, C].iter().flat_map(|&slot| s.tables(slot)).collect();
    deltas.extend([(A, sampler(1)), (B, sampler(2))]);
    // A prompt, and a chain behind it.
    let prompt = rows_of([tokens(A, &[1, 2, 3, 4, 5]), tokens(B, &[6, 7, 8])]);
    given.extend(s.run(Work {
        deltas,
        chained: 3,
        ..prompt
    }));
    // Two works in flight, one of them over what the other draws.
    let (first, second) = (
        s.submit(rows_of([next(B), next(A)])),
        s.submit(rows_of([next(A)])),
    );
    given.extend(s.done(&first));
    given.extend(s.done(&second));
    // The beginning of one sequence for another, through copies; blocks given out.
    let copies = s.groups().map(|group| BlockCopy {
        group,
        from: s.table(group, A)[0],
        to: s.table(group, C)[0],
    });
    let copies = copies.collect();
    let exports: Vec<_> = s.groups().map(|g| (g, s.table(g, C)[0])).collect();
    let ticket = s.submit(Work {
        copies,
        deltas: vec![(C, Delta::Length(4)), (A, Delta::Length(6))],
        exports: exports.clone(),
        ..rows_of([tokens(C, &[9]), tokens(A, &[5, 1])])
    });
    given.extend(s.done(&ticket));
    let blocks: Vec<Vec<f32>> = (0..exports.len())
        .map(|i| s.executor.exported(&ticket, i).expect("a block"))
        .collect();
    given.extend(blocks.iter().flatten());
    // The same block set from what was given out, and gone on from.
    let imports = exports.iter().zip(blocks);
    let imports = imports.map(|(&(g, _), data)| (g, s.table(g, B)[0], data));
    given.extend(s.run(Work {
        imports: imports.collect(),
        deltas: vec![(B, Delta::Length(4))],
        ..rows_of([tokens(B, &[9])])
    }));
    // A limit, a stop from outside, a failure, and what sets slots right.
    let limit = Delta::Stop {
        ids: Arc::new([]),
        remaining: 2,
    };
    given.extend(s.run(Work {
        deltas: vec![(A, limit)],
        chained: 5,
        ..rows_of([next(A), next(C)])
    }));
    s.executor.stop(C);
    given.extend(s.run(rows_of([next(A), next(C), next(B)])));
    given.extend(s.run(rows_of([tokens(B, &[1_000_000])])));
    given.extend(s.run(Work {
        deltas: vec![(C, Delta::Length(3)), (A, Delta::Clear)],
        ..rows_of([tokens(C, &[2]), next(B)])
    }));
    (s.told, given)
}

fn bits(given: &[f32]) -> Vec<u32> {
    given.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn an_executor_of_parts_does_all_that_one_does() {
    for name in ["llama", "gemma3", "falcon-h1", "qwen3moe"] {
        let (told, given) = script(name, &CpuBackend);
        let statuses: Vec<RowStatus> = told.iter().flat_map(|t| &t.0).map(|r| r.status).collect();
        assert!(statuses.contains(&RowStatus::Stopped), "{statuses:?}");
        assert_eq!(told.iter().filter(|t| t.1.is_some()).count(), 1);
        assert!(told.iter().flat_map(|t| &t.0).any(|r| r.ends));
        for divided in [halves([cpu(), cpu()], 1), turns([cpu(), cpu()], 2)] {
            let (parts_told, parts_given) = script(name, &divided);
            assert_eq!(parts_told, told, "{name}");
            assert_eq!(bits(&parts_given), bits(&given), "{name}");
        }
        // Another kind rounds otherwise, but draws the same tokens from rows that are far enough apart.
        let (other, _) = script(name, &halves([cpu(), reference()], 1));
        let drawn = |told: &[Told]| -> Vec<_> {
            let rows = told.iter().flat_map(|t| &t.0);
            rows.map(|r| (r.slot, r.position, r.status, r.ends))
                .collect()
        };
        assert_eq!(drawn(&other), drawn(&told), "{name}");
    }
}

/// What a composite says of a program with a fault in its division.
fn refusal(divide: impl Fn(&mut Program) + Send + Sync + 'static) -> String {
    let golden = Golden::read(&Golden::folder(), "llama").expect("golden");
    let file = generate::model(&golden).expect("model");
    let device = Divided {
        whole: Composite::new(vec![reference(), cpu()]),
        divide: Box::new(divide),
    };
    let target = Target::new(&device, golden.positions, Feeding::WHOLE);
    let loaded = load_for(&file, &Registry::builtin(), &target);
    loaded.err().expect("a program divided so is refused")
}

#[test]
fn what_cannot_be_divided_is_refused_by_name() {
    let third = refusal(|p| p.plans[0].nodes[0].device = DeviceId(2));
    assert!(third.contains("dev2 of 2"), "{third}");
    let draw = refusal(|p| {
        let last = p.plans[0].nodes.last_mut().expect("nodes");
        last.device = DeviceId(1);
    });
    assert!(draw.contains("a draw away from its logits"), "{draw}");
    let cache = refusal(|p| {
        let writes = |n: &&mut tokkata_ir::Node| n.op.writes_state();
        let write = p.plans[0].nodes.iter_mut().find(writes);
        write.expect("a cache").device = DeviceId(1);
    });
    assert!(cache.contains("away from its cache"), "{cache}");
}
