//! Every way to divide a small program between two devices, against one device.

use std::collections::BTreeMap;

use tokkata_core::DType;

use super::*;
use crate::device::{
    BlockCopy, Delta, LogitRow, Progress, RowInput, RowResult, RowStatus, SeqRows, SeqSlot, Source,
    Work,
};
use crate::host::{HostExecutor, Machine, StepInputs};
use crate::ids::{DeviceId, GroupId, Site, SlotId, ValueId, WeightId};
use crate::op::{Act, AttentionOp, BinaryKind, GatherIndex, KvSource, Mask, Op, RouteOp, Score};
use crate::program::{
    CacheGroup, CacheKind, Lead, Limits, Node, Plan, PlanRole, Port, Shape, SlotDef, ValType,
    ValueDef,
};
use crate::sample::{BadLogits, Scratch, sample};
use crate::step::StepState;
use crate::weight::{Axis, Recipe, Uses, WeightDef};

const VOCAB: usize = 16;
const BLOCK: usize = 2;
/// A token that fails the step.
const BROKEN: u32 = 77;

/// Runs nodes one by one, with meanings of its own: attention sums what a slot holds up to the row.
struct Toy {
    program: Arc<Program>,
    slots: BTreeMap<(SlotId, u32), [f32; BLOCK]>,
    floats: BTreeMap<ValueId, Vec<f32>>,
    ints: BTreeMap<ValueId, Vec<i32>>,
}

impl Toy {
    fn node(&mut self, node: &Node, step: &StepState, inputs: &StepInputs<'_>) {
        let x = node.ins.first().and_then(|v| self.floats.get(v).cloned());
        let x = x.unwrap_or_default();
        let rows = 0..step.n_rows();
        let place = |row: usize, slot: SlotId, p: usize| {
            let table = step.table(slot.group, step.seqs()[row] as usize);
            ((slot, table[p / BLOCK]), p % BLOCK)
        };
        let out: Vec<f32> = match &node.op {
            Op::Gather { .. } => step.tokens().iter().map(|&t| t as f32).collect(),
            Op::CacheWrite { slot } => {
                for row in rows {
                    let (block, at) = place(row, *slot, step.index_in_sequence(row));
                    self.slots.entry(block).or_default()[at] = x[row];
                }
                return;
            }
            Op::Attention(op) => {
                let KvSource::Cache(slot) = op.source else {
                    unreachable!()
                };
                let held = |row, p| {
                    let (block, at) = place(row, slot, p);
                    self.slots[&block][at]
                };
                let sum = |row| {
                    (0..=step.index_in_sequence(row))
                        .map(|p| held(row, p))
                        .sum()
                };
                rows.map(sum).collect()
            }
            Op::Affine { scale, offset } => x.iter().map(|x| x * scale + offset).collect(),
            Op::Binary { .. } => {
                let y = &self.floats[&node.ins[1]];
                x.iter().zip(y).map(|(x, y)| x + y).collect()
            }
            Op::Route(_) => {
                let ints = x.iter().map(|&x| x as i32 % 1000).collect();
                self.ints.insert(node.outs[0], ints);
                return;
            }
            Op::Combine => self.ints[&node.ins[0]].iter().map(|&x| x as f32).collect(),
            Op::SelectRows => step.logit_rows().iter().map(|&r| x[r as usize]).collect(),
            Op::Unary(_) => {
                let logit = |x: f32, v| match x as usize % VOCAB == v {
                    true => 4.0,
                    false => v as f32 / 64.0,
                };
                let row = |&x: &f32| (0..VOCAB).map(move |v| logit(x, v));
                x.iter().flat_map(row).collect()
            }
            Op::Sample => {
                let draw = |(i, x): (usize, &[f32])| {
                    let row = step.logit_rows()[i] as usize;
                    let record = step.sampler(step.seqs()[row] as usize);
                    let row = inputs.sample[i].row(x, step.index_in_sequence(row) as u32);
                    let token = sample(&record, &row, &mut Scratch::default());
                    token.map_or_else(BadLogits::code, |t| t as i32)
                };
                let ints = x.chunks(VOCAB).enumerate().map(draw).collect();
                self.ints.insert(node.outs[0], ints);
                return;
            }
            other => unreachable!("{}", other.name()),
        };
        self.floats.insert(node.outs[0], out);
    }
}

impl Machine for Toy {
    fn replay(
        &mut self,
        plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        let program = Arc::clone(&self.program);
        let plan = &program.plans[plan];
        (self.floats, self.ints) = (BTreeMap::new(), BTreeMap::new());
        for (value, data) in &inputs.values {
            match plan.value(*value).dtype {
                ValType::F32 => drop(self.floats.insert(*value, data.clone())),
                ValType::I32 => {
                    let ints = data.iter().map(|&x| x as i32).collect();
                    self.ints.insert(*value, ints);
                }
            }
        }
        // Some devices notice early, others late.
        let half = plan.nodes.len() / 2;
        for (i, node) in plan.nodes.iter().enumerate() {
            if i == half && step.tokens().contains(&BROKEN) {
                let op = "this token".to_owned();
                return Err(BackendError::Unsupported { backend: "toy", op });
            }
            self.node(node, step, inputs);
        }
        Ok(())
    }

    fn floats(&self, value: ValueId) -> &[f32] {
        self.floats.get(&value).map_or(&[], |x| x)
    }

    fn ints(&self, value: ValueId) -> &[i32] {
        self.ints.get(&value).map_or(&[], |x| x)
    }

    fn copy_block(&mut self, group: GroupId, from: u32, to: u32) {
        let data = self.export_block(group, from);
        self.import_block(group, to, &data);
    }

    fn export_block(&self, group: GroupId, block: u32) -> Vec<f32> {
        let slots = 0..self.program.group(group).slots.len() as u32;
        let block = |slot| self.slots.get(&(SlotId { group, slot }, block));
        slots
            .flat_map(|slot| block(slot).copied().unwrap_or_default())
            .collect()
    }

    fn import_block(&mut self, group: GroupId, block: u32, data: &[f32]) {
        for (slot, data) in (0..).zip(data.chunks(BLOCK)) {
            let held = data.try_into().expect("a block");
            self.slots.insert((SlotId { group, slot }, block), held);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.program.weights.len() as u64
    }
}

struct ToyDevice;

impl Device for ToyDevice {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn available_bytes(&self) -> Option<u64> {
        Some(1 << 20)
    }

    fn load(
        &self,
        program: Arc<Program>,
        _: &dyn WeightSource,
        _: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        Ok(Box::new(Toy {
            program,
            slots: BTreeMap::new(),
            floats: BTreeMap::new(),
            ints: BTreeMap::new(),
        }))
    }
}

impl Loaded for Toy {
    fn block_bytes(&self) -> Vec<u64> {
        self.program
            .caches
            .iter()
            .map(CacheGroup::block_bytes)
            .collect()
    }

    fn memory_bytes(&self) -> u64 {
        Machine::memory_bytes(self)
    }

    fn available_bytes(&self) -> Option<u64> {
        Some(1 << 20)
    }

    fn open(self: Box<Self>, arena: ArenaLayout) -> Result<Box<dyn Executor>, BackendError> {
        let program = Arc::clone(&self.program);
        Ok(Box::new(HostExecutor::new(*self, program, arena)))
    }
}

struct NoWeights;

impl WeightSource for NoWeights {
    fn tensor(&self, _: &str) -> Option<(DType, Vec<usize>)> {
        None
    }

    fn read(&self, name: &str, _: u64, _: &mut [u8]) -> Result<(), BackendError> {
        Err(BackendError::Weight(name.to_owned()))
    }

    fn decode(&self, _: DType, _: &[u8], _: &mut [f32]) -> Result<(), BackendError> {
        Ok(())
    }
}

const GROUP: GroupId = GroupId(0);
/// Set from outside.
const FED: ValueId = ValueId(10);
const HIDDEN: ValueId = ValueId(6);
const LOGITS: ValueId = ValueId(8);

fn slot(slot: u32) -> SlotId {
    SlotId { group: GROUP, slot }
}

fn attention(of: u32) -> Op {
    Op::Attention(AttentionOp {
        entries: None,
        selection: None,
        n_heads: 1,
        n_kv_heads: 1,
        dim_k: 1,
        dim_v: 1,
        scale: 1.0,
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask: Mask::Causal,
        source: KvSource::Cache(slot(of)),
    })
}

fn route() -> Op {
    Op::Route(RouteOp {
        table: None,
        n_experts: 1,
        top_k: 1,
        score: Score::Softmax,
        select: None,
        bias: Some(WeightId(1)),
        groups: None,
        softmax_chosen: false,
        sigmoid_chosen: false,
        near_ties: 0.0,
        renormalise: false,
        scale: 1.0,
        id_divisor: 1,
    })
}

/// Ops with the values that they read and make.
fn ops() -> Vec<(Op, Vec<u32>, Vec<u32>)> {
    let gather = Op::Gather {
        table: WeightId(0),
        index: GatherIndex::Token,
    };
    let add = Op::Binary {
        kind: BinaryKind::Add,
        a_scale: 1.0,
        b_scale: 1.0,
    };
    let affine = Op::Affine {
        scale: 2.0,
        offset: 1.0,
    };
    vec![
        (gather, vec![], vec![0]),
        (Op::CacheWrite { slot: slot(0) }, vec![0], vec![]),
        (attention(0), vec![], vec![1]),
        (affine, vec![1], vec![2]),
        (Op::CacheWrite { slot: slot(1) }, vec![2], vec![]),
        (attention(1), vec![], vec![3]),
        (route(), vec![3], vec![4]),
        (Op::Combine, vec![4], vec![5]),
        (add.clone(), vec![5, 1], vec![6]),
        (add, vec![6, FED.0], vec![11]),
        (Op::SelectRows, vec![11], vec![7]),
        (Op::Unary(Act::Relu), vec![7], vec![8]),
        (Op::Sample, vec![8], vec![9]),
    ]
}

fn program(devices: impl Fn(usize) -> u32) -> Program {
    let node = |(i, (op, ins, outs)): (usize, (Op, Vec<u32>, Vec<u32>))| Node {
        op,
        site: Site::layer(i as u32, "toy"),
        ins: ins.into_iter().map(ValueId).collect(),
        outs: outs.into_iter().map(ValueId).collect(),
        device: DeviceId(devices(i)),
    };
    let value = |i: u32| {
        let lead = if (7..10).contains(&i) {
            Lead::LogitRows
        } else {
            Lead::Rows
        };
        let dims = vec![if i == LOGITS.0 { VOCAB as u32 } else { 1 }];
        let dtype = if i == 4 || i == 9 {
            ValType::I32
        } else {
            ValType::F32
        };
        let shape = Shape { lead, dims };
        ValueDef { shape, dtype }
    };
    let port = |(name, value): (&str, ValueId)| Port {
        name: name.to_owned(),
        value,
    };
    let weight = |name: &str| WeightDef {
        name: name.to_owned(),
        recipe: Recipe::Source(name.to_owned()),
        site: Site::global(name),
        shape: vec![1],
        axes: vec![Axis::Other],
        uses: Uses::default(),
    };
    let kv = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: 1,
        dim_v: None,
    };
    let outputs = [
        ("hidden", HIDDEN),
        ("logits", LOGITS),
        ("tokens", ValueId(9)),
    ];
    Program {
        plans: vec![Plan {
            role: PlanRole::Main,
            inputs: vec![port(("fed", FED))],
            outputs: outputs.map(port).into(),
            values: (0..12).map(value).collect(),
            nodes: ops().into_iter().enumerate().map(node).collect(),
        }],
        weights: vec![weight("table"), weight("bias")],
        caches: vec![CacheGroup {
            kind: CacheKind::Full,
            slots: vec![kv.clone(), kv],
            dtype: DType::F32,
            block_size: BLOCK as u32,
        }],
        consts: Vec::new(),
        limits: Limits {
            rows: 16,
            seqs: 3,
            logit_rows: 8,
            ctx: 16,
            ..Limits::default()
        },
        n_vocab: VOCAB as u32,
        n_embd: 1,
    }
}

fn open(
    device: &dyn Device,
    program: Program,
) -> Result<(Box<dyn Executor>, Vec<u32>), BackendError> {
    let loaded = device.load(Arc::new(program), &NoWeights, &LoadOptions::default())?;
    let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &[32]);
    let blocks = arena.deal(&[32]).remove(0);
    Ok((loaded.open(arena)?, blocks))
}

const A: SeqSlot = SeqSlot(0);
const B: SeqSlot = SeqSlot(1);
const C: SeqSlot = SeqSlot(2);

fn drawn(rows: SeqRows) -> SeqRows {
    let logit = LogitRow {
        row: rows.len() as u32 - 1,
        best: Some(2),
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
    let input = RowInput::Drawn;
    drawn(SeqRows {
        input,
        ..SeqRows::tokens(slot, &[])
    })
}

/// What works told and what they kept.
#[derive(Debug, Default, PartialEq)]
struct Log {
    rows: Vec<(u64, Vec<RowResult>)>,
    failures: Vec<String>,
    hidden: Vec<Vec<f32>>,
    blocks: Vec<Vec<f32>>,
}

fn wait(executor: &mut dyn Executor, log: &mut Log) {
    while let Some(news) = executor.wait().expect("no lost device") {
        let Progress {
            ticket,
            rows,
            failure,
            ..
        } = news;
        log.rows.push((ticket, rows));
        log.failures.extend(failure.map(|f| f.to_string()));
    }
}

/// Works with rows of all slots, a chain, a limit, copies, blocks out and in, values fed on, a failure, stops.
fn script((mut executor, blocks): (Box<dyn Executor>, Vec<u32>)) -> Log {
    let (e, mut log) = (executor.as_mut(), Log::default());
    let table = |slot: SeqSlot| {
        let blocks = blocks[slot.index() * 8..][..8].to_vec();
        let (group, first) = (GROUP, 0);
        (
            slot,
            Delta::Table {
                group,
                first,
                blocks,
            },
        )
    };
    let fed = |n: usize| vec![(FED, Source::Host(vec![1.0; n]))];
    let one = |rows: Vec<SeqRows>| Work {
        feeds: fed(rows.iter().map(SeqRows::len).sum()),
        rows,
        keep: vec![HIDDEN, LOGITS],
        ..Work::default()
    };
    let (group, of) = (GROUP, |slot: SeqSlot, i: usize| {
        blocks[slot.index() * 8 + i]
    });
    let copy = |from, to| BlockCopy { group, from, to };
    let stop = Delta::Stop {
        ids: Arc::new([]),
        remaining: 1,
    };
    let length = |slot, n| (slot, Delta::Length(n));
    let works = [
        Work {
            deltas: [A, B, C].map(table).into(),
            ..one(vec![tokens(A, &[1, 2, 3]), tokens(B, &[4])])
        },
        one(vec![next(B), next(A)]),
        Work {
            copies: vec![copy(of(A, 0), of(C, 0)), copy(of(C, 0), of(C, 5))],
            deltas: vec![length(C, 2)],
            exports: vec![(group, of(C, 5)), (group, of(A, 1))],
            ..one(vec![tokens(C, &[3, 1]), next(A)])
        },
        Work {
            imports: vec![(group, of(B, 0), vec![5.0, 6.0, 7.0, 8.0])],
            deltas: vec![length(B, 2), (A, stop)],
            ..one(vec![tokens(B, &[1]), next(A)])
        },
        one(vec![tokens(C, &[BROKEN]), next(B)]),
        one(vec![next(C), next(A), next(B)]),
        Work {
            deltas: vec![length(C, 3), (A, Delta::Clear), table(A)],
            ..one(vec![tokens(C, &[2]), tokens(A, &[9])])
        },
    ];
    for work in works {
        let exports = work.exports.len();
        let ticket = e.submit(work).expect("room");
        wait(e, &mut log);
        if let Ok(rows) = e.rows(&ticket, HIDDEN) {
            let mut hidden = vec![0.0; rows];
            e.read(&ticket, HIDDEN, 0..rows, &mut hidden).expect("kept");
            log.hidden.push(hidden);
        }
        log.blocks
            .extend((0..exports).map(|i| e.exported(&ticket, i).expect("a block")));
    }
    e.stop(B);
    let late = e.submit(one(vec![next(A), next(B)])).expect("room");
    let value = HIDDEN;
    let (ticket, rows) = (late, 0..1);
    let source = Source::Kept {
        ticket,
        value,
        rows,
    };
    let kept = Work {
        feeds: vec![(FED, source)],
        ..one(vec![next(C)])
    };
    e.submit(kept).expect("room");
    wait(e, &mut log);
    log
}

/// Whether a composite takes a program divided so.
fn allowed(mask: usize) -> bool {
    let bit = |i: usize| mask >> i & 1;
    bit(1) == bit(2) && bit(4) == bit(5) && bit(11) == bit(12)
}

#[test]
fn every_division_gives_what_one_device_gives() {
    let whole = script(open(&ToyDevice, program(|_| 0)).expect("a load"));
    let statuses = whole.rows.iter().flat_map(|r| &r.1).map(|r| r.status);
    let statuses: Vec<RowStatus> = statuses.collect();
    assert!(statuses.contains(&RowStatus::Stopped) && whole.failures.len() == 1);
    assert!(whole.rows.iter().flat_map(|r| &r.1).any(|r| r.ends));
    let mut divided = 0;
    for mask in (0..1 << 13).step_by(5).chain([0b1010, 0x1fff]) {
        let device = Composite::new(vec![Box::new(ToyDevice), Box::new(ToyDevice)]);
        let program = program(|i| (mask >> i & 1) as u32);
        match open(&device, program) {
            Ok(opened) if allowed(mask) => assert_eq!(script(opened), whole, "{mask:b}"),
            Err(BackendError::Unsupported { .. }) if !allowed(mask) => continue,
            _ => panic!("{mask:b} is allowed: {}", allowed(mask)),
        }
        divided += 1;
    }
    assert!(divided > 150, "{divided}");
}

#[test]
fn chains_and_limits_run_through_parts() {
    let chain = |device: &dyn Device, program| {
        let (mut e, blocks) = open(device, program).expect("a load");
        let stop = Delta::Stop {
            ids: Arc::new([]),
            remaining: 4,
        };
        let table = Delta::Table {
            group: GROUP,
            first: 0,
            blocks: blocks[..8].to_vec(),
        };
        let work = Work {
            deltas: vec![(A, table), (A, stop)],
            feeds: vec![(FED, Source::Host(vec![1.0; 2]))],
            rows: vec![tokens(A, &[1, 2])],
            chained: 6,
            ..Work::default()
        };
        e.submit(work).expect("room");
        let mut log = Log::default();
        wait(e.as_mut(), &mut log);
        log
    };
    // Without the port, which is set for one step alone.
    let short = |devices: fn(usize) -> u32| {
        let mut program = program(devices);
        program.plans[0].nodes[9].ins[1] = ValueId(5);
        program
    };
    let whole = chain(&ToyDevice, short(|_| 0));
    assert_eq!(whole.rows.len(), 4);
    let device = Composite::new(vec![Box::new(ToyDevice), Box::new(ToyDevice)]);
    assert_eq!(chain(&device, short(|i| u32::from(i > 3))), whole);
    assert_eq!(
        chain(&device, short(|i| u32::from((3..7).contains(&i)))),
        whole
    );
}

#[test]
fn each_part_holds_its_own_and_says_so() {
    let device = Composite::new(vec![Box::new(ToyDevice), Box::new(ToyDevice)]);
    assert_eq!(device.available_bytes(), Some(2 << 20));
    let load = |devices: fn(usize) -> u32| {
        let program = Arc::new(program(devices));
        device
            .load(program, &NoWeights, &LoadOptions::default())
            .expect("a load")
    };
    // One weight on each; blocks are rounded up on each.
    let halves = load(|i| u32::from(i > 3));
    assert_eq!(
        (halves.memory_bytes(), halves.block_bytes()),
        (2, vec![512])
    );
    assert_eq!(halves.available_bytes(), Some(2 << 20));
}
