//! The executor over a machine of a few lines.

use std::collections::BTreeMap;

use tokkata_core::DType;

use super::*;
use crate::device::{BlockCopy, Delta, LogitRow, RowInput, RowStatus};
use crate::program::{
    CacheGroup, CacheKind, Limits, Plan, PlanRole, Port, Shape, SlotDef, ValueDef,
};
use crate::sample::{BadLogits, Fixed, Mask, Parameters, Sampler, Scratch, sample};
use crate::step::{NO_BLOCK, ROW_EMBEDS};

const VOCAB: u32 = 16;
/// A token whose row has no numbers for logits.
const POISON: u32 = 15;
/// A token that fails the step.
const BROKEN: u32 = 14;
/// A token that loses the device.
const FATAL: u32 = 13;
/// Positions of a block.
const BLOCK: usize = 2;

const X: ValueId = ValueId(0);
const EMBEDS: ValueId = ValueId(1);
const HIDDEN: ValueId = ValueId(2);
const LOGITS: ValueId = ValueId(3);
const TOKENS: ValueId = ValueId(4);

/// Sums the tokens of a sequence through its cache; the sum modulo the vocabulary is the likeliest next token.
struct Adder {
    blocks: BTreeMap<u32, [f32; BLOCK]>,
    replays: usize,
    floats: BTreeMap<ValueId, Vec<f32>>,
    tokens: Vec<i32>,
}

impl Adder {
    fn row(&mut self, step: &StepState, inputs: &StepInputs<'_>, row: usize) -> Vec<f32> {
        let (seq, place) = (step.seqs()[row] as usize, step.index_in_sequence(row));
        let table = step.table(GroupId(0), seq).to_vec();
        assert_ne!(table[place / BLOCK], NO_BLOCK, "a row without a block");
        let own = match step.flags(row) & ROW_EMBEDS {
            0 => step.tokens()[row] as f32,
            _ => inputs.embeds.expect("embeddings")[row],
        };
        self.blocks.entry(table[place / BLOCK]).or_default()[place % BLOCK] = own;
        let sum = (0..=place).map(|p| self.blocks[&table[p / BLOCK]][p % BLOCK]);
        let fed = inputs.values.iter().find(|v| v.0 == X);
        let fed = fed.map_or(0.0, |(_, x)| x[row * 2]);
        vec![sum.sum::<f32>() + fed, step.pos(row) as f32]
    }

    fn draw(&mut self, step: &StepState, inputs: &StepInputs<'_>, i: usize, hidden: &[f32]) {
        let row = step.logit_rows()[i] as usize;
        let next = hidden[row * 2] as u32 % VOCAB;
        let poison = step.tokens()[row] == POISON;
        let logit = |v| match v == next {
            _ if poison => f32::NAN,
            true => 4.0,
            false => v as f32 / 64.0,
        };
        let logits: Vec<f32> = (0..VOCAB).map(logit).collect();
        let record = step.sampler(step.seqs()[row] as usize);
        let position = step.index_in_sequence(row) as u32;
        let drawn = inputs.sample[i].row(&logits, position);
        let token = sample(&record, &drawn, &mut Scratch::default());
        self.tokens
            .push(token.map_or_else(BadLogits::code, |t| t as i32));
        self.floats.entry(LOGITS).or_default().extend(logits);
    }
}

impl Machine for Adder {
    fn replay(
        &mut self,
        _plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        self.replays += 1;
        self.floats.clear();
        self.tokens.clear();
        if step.tokens().contains(&FATAL) {
            return Err(BackendError::Lost("it is gone".to_owned()));
        }
        if step.tokens().contains(&BROKEN) {
            let op = "this token".to_owned();
            return Err(BackendError::Unsupported {
                backend: "adder",
                op,
            });
        }
        let rows = (0..step.n_rows()).flat_map(|row| self.row(step, inputs, row));
        let hidden: Vec<f32> = rows.collect();
        (0..step.logit_rows().len()).for_each(|i| self.draw(step, inputs, i, &hidden));
        self.floats.insert(HIDDEN, hidden);
        Ok(())
    }

    fn floats(&self, value: ValueId) -> &[f32] {
        self.floats.get(&value).map_or(&[], |x| x)
    }

    fn ints(&self, _value: ValueId) -> &[i32] {
        &self.tokens
    }

    fn copy_block(&mut self, _group: GroupId, from: u32, to: u32) {
        self.blocks.insert(to, self.blocks[&from]);
    }

    fn export_block(&self, _group: GroupId, block: u32) -> Vec<f32> {
        self.blocks[&block].to_vec()
    }

    fn import_block(&mut self, _group: GroupId, block: u32, data: &[f32]) {
        self.blocks.insert(block, data.try_into().expect("a block"));
    }

    fn memory_bytes(&self) -> u64 {
        0
    }
}

fn program() -> Program {
    let port = |name: &str, value| Port {
        name: name.to_owned(),
        value,
    };
    let value = |shape, dtype| ValueDef { shape, dtype };
    let logit_rows = |dim| Shape {
        lead: crate::program::Lead::LogitRows,
        dims: vec![dim],
    };
    let plan = Plan {
        role: PlanRole::Main,
        inputs: vec![port("x", X), port("embeds", EMBEDS)],
        outputs: vec![
            port("hidden", HIDDEN),
            port("logits", LOGITS),
            port("tokens", TOKENS),
        ],
        values: vec![
            value(Shape::rows(&[2]), ValType::F32),
            value(Shape::rows(&[1]), ValType::F32),
            value(Shape::rows(&[2]), ValType::F32),
            value(logit_rows(VOCAB), ValType::F32),
            value(logit_rows(1), ValType::I32),
        ],
        nodes: Vec::new(),
    };
    let group = CacheGroup {
        kind: CacheKind::Full,
        slots: vec![SlotDef::Kv {
            n_kv_heads: 1,
            dim_k: 1,
            dim_v: None,
        }],
        dtype: DType::F32,
        block_size: BLOCK as u32,
    };
    Program {
        plans: vec![plan],
        weights: Vec::new(),
        caches: vec![group],
        consts: Vec::new(),
        limits: Limits {
            rows: 16,
            seqs: 4,
            logit_rows: 8,
            ctx: 16,
            ..Limits::default()
        },
        n_vocab: VOCAB,
        n_embd: 1,
    }
}

type Adding = HostExecutor<Adder>;

const A: SeqSlot = SeqSlot(0);
const B: SeqSlot = SeqSlot(1);
const C: SeqSlot = SeqSlot(2);

/// An executor whose slots have blocks of their own.
fn executor() -> Adding {
    let adder = Adder {
        blocks: BTreeMap::new(),
        replays: 0,
        floats: BTreeMap::new(),
        tokens: Vec::new(),
    };
    let arena = ArenaLayout::for_counts(&[8], &[64]);
    let mut executor = HostExecutor::new(adder, Arc::new(program()), arena);
    let table = |slot: u32| Delta::Table {
        group: GroupId(0),
        first: 0,
        blocks: (slot * 8..slot * 8 + 8).collect(),
    };
    let deltas = (0..4).map(|slot| (SeqSlot(slot), table(slot)));
    let work = Work {
        deltas: deltas.collect(),
        ..Work::default()
    };
    all(&mut executor, [work]);
    executor
}

/// The last of the rows is drawn from.
fn drawn(rows: SeqRows) -> SeqRows {
    let row = rows.len() as u32 - 1;
    SeqRows {
        logits: vec![LogitRow {
            row,
            ..LogitRow::default()
        }],
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

fn rows(rows: impl IntoIterator<Item = SeqRows>) -> Work {
    Work {
        rows: rows.into_iter().collect(),
        ..Work::default()
    }
}

fn with(slot: SeqSlot, delta: Delta, work: Work) -> Work {
    Work {
        deltas: vec![(slot, delta)],
        ..work
    }
}

fn limit(ids: &[u32], remaining: u32) -> Delta {
    Delta::Stop {
        ids: ids.into(),
        remaining,
    }
}

/// All news until nothing is left to do.
fn drain(executor: &mut Adding) -> Vec<Progress> {
    std::iter::from_fn(|| executor.poll().expect("no lost device")).collect()
}

/// Does works to their end; news of failures are not looked at.
fn all<const N: usize>(executor: &mut Adding, works: [Work; N]) -> Vec<RowResult> {
    for work in works {
        executor.submit(work).expect("room");
    }
    drain(executor).into_iter().flat_map(|p| p.rows).collect()
}

/// Slot, position, status, whether it ends the answer.
fn told(results: &[RowResult]) -> Vec<(SeqSlot, u32, RowStatus, bool)> {
    let told = |r: &RowResult| (r.slot, r.position, r.status, r.ends);
    results.iter().map(told).collect()
}

fn statuses(results: &[RowResult]) -> Vec<RowStatus> {
    results.iter().map(|r| r.status).collect()
}

use RowStatus::{Drawn, NotANumber, Stopped};

#[test]
fn submitting_runs_nothing() {
    let mut e = executor();
    e.submit(rows([tokens(A, &[1])])).unwrap();
    e.submit(rows([next(A)])).unwrap();
    assert_eq!(e.machine().replays, 0);
    assert_eq!(e.poll().unwrap().unwrap().ticket, 2, "works count from one");
    assert_eq!(e.machine().replays, 1);
    assert_eq!(e.wait().unwrap().unwrap().ticket, 3);
    assert!(e.poll().unwrap().is_none() && e.wait().unwrap().is_none());
}

#[test]
fn a_work_that_finds_no_room_comes_back() {
    let mut e = executor();
    let work = |token| rows([tokens(A, &[token])]);
    for _ in 0..e.depth() {
        e.submit(work(1)).unwrap();
    }
    let Err(Refusal::Busy(back)) = e.submit(work(7)) else {
        panic!("there is no room")
    };
    assert_eq!(back.rows, [tokens(A, &[7])]);
    e.poll().unwrap();
    e.submit(*back).unwrap();
    let last = drain(&mut e).pop().unwrap();
    assert_eq!(statuses(&last.rows), [Drawn(11)], "four ones and a seven");
}

#[test]
fn works_are_done_in_order_with_their_deltas() {
    let mut e = executor();
    let again = with(A, Delta::Length(0), rows([tokens(A, &[5])]));
    let results = all(&mut e, [rows([tokens(A, &[1, 2])]), again, rows([next(A)])]);
    let want = [(A, 1, Drawn(3), false), (A, 0, Drawn(5), false)];
    assert_eq!(told(&results)[..2], want);
    assert_eq!(results[2].status, Drawn(10));
}

#[test]
fn what_was_drawn_is_fed_before_the_host_knows_it() {
    let mut e = executor();
    let first = rows([tokens(A, &[1, 2]), tokens(B, &[4])]);
    let results = all(&mut e, [first, rows([next(B), next(A)]), rows([next(A)])]);
    let want = [Drawn(3), Drawn(4), Drawn(8), Drawn(6), Drawn(12)];
    assert_eq!(statuses(&results), want);
    let places: Vec<u32> = results.iter().map(|r| r.position).collect();
    assert_eq!(places, [1, 0, 1, 2, 3]);
}

/// Rows that read what a slot holds, each drawn from.
fn held(slot: SeqSlot, count: u32) -> SeqRows {
    let logits = (0..count).map(|row| LogitRow {
        row,
        ..LogitRow::default()
    });
    SeqRows {
        input: RowInput::Held(count),
        logits: logits.collect(),
        prompt: false,
        ..SeqRows::tokens(slot, &[])
    }
}

#[test]
fn rows_read_what_their_slot_holds() {
    let mut e = executor();
    let again = |from, count| with(A, Delta::Length(from), rows([held(A, count)]));
    let works = [rows([tokens(A, &[1, 2])]), rows([next(A)]), again(1, 3)];
    let results = all(&mut e, works);
    assert_eq!(statuses(&results[2..]), [Drawn(3), Drawn(6), Drawn(12)]);
    let results = all(&mut e, [again(3, 4)]);
    let want = [Drawn(12), Drawn(8), Drawn(8), Drawn(8)];
    assert_eq!(statuses(&results), want, "two rows beyond read any token");
}

/// A chain of `chained` steps beyond the first from a token 1: 1, 2, 4, 8, 0, 0…
fn chain(chained: u32) -> Work {
    Work {
        chained,
        ..rows([tokens(A, &[1])])
    }
}

#[test]
fn chains_end_at_their_length() {
    let mut e = executor();
    let results = all(&mut e, [chain(2), rows([next(A)])]);
    assert_eq!(statuses(&results), [Drawn(1), Drawn(2), Drawn(4), Drawn(8)]);
}

#[test]
fn chains_end_at_a_stop_token() {
    let mut e = executor();
    let work = with(A, limit(&[9, 4], 99), chain(9));
    let results = all(&mut e, [work, rows([next(A)])]);
    let want = [
        (A, 0, Drawn(1), false),
        (A, 1, Drawn(2), false),
        (A, 2, Drawn(4), true),
        (A, 3, Stopped, false),
    ];
    assert_eq!(told(&results), want);
    assert_eq!(e.machine().replays, 3);
}

#[test]
fn chains_end_when_nothing_remains() {
    let mut e = executor();
    let work = with(A, limit(&[], 2), chain(9));
    let results = all(&mut e, [work]);
    let ends: Vec<bool> = results.iter().map(|r| r.ends).collect();
    assert_eq!(ends, [false, true]);
    let more = with(A, limit(&[], 1), rows([next(A)]));
    let results = all(&mut e, [more]);
    assert_eq!(
        told(&results),
        [(A, 2, Drawn(4), true)],
        "a new limit goes on"
    );
}

#[test]
fn chains_end_where_they_are_told_to() {
    let mut e = executor();
    let two = Work {
        chained: 9,
        ..rows([tokens(A, &[1]), tokens(B, &[2])])
    };
    e.submit(two).unwrap();
    let mut results = e.poll().unwrap().unwrap().rows;
    e.stop(A);
    results.extend(e.poll().unwrap().unwrap().rows);
    e.stop(B);
    let last = e.poll().unwrap().unwrap();
    assert!(last.done && last.rows.is_empty() && e.poll().unwrap().is_none());
    let want = [
        (A, 0, Drawn(1), false),
        (B, 0, Drawn(2), false),
        (B, 1, Drawn(4), false),
    ];
    assert_eq!(told(&results), want);
}

#[test]
fn rows_of_stopped_slots_say_so_and_keep_their_places() {
    let mut e = executor();
    e.stop(B);
    let x = [1.0, 0.0, 2.0, 0.0, 30.0, 0.0, 40.0, 0.0, 5.0, 0.0].to_vec();
    let work = Work {
        feeds: vec![(X, Source::Host(x))],
        keep: vec![HIDDEN, TOKENS],
        ..rows([tokens(A, &[1, 1]), tokens(B, &[7, 7]), tokens(C, &[1])])
    };
    let ticket = e.submit(work).unwrap();
    let results: Vec<RowResult> = drain(&mut e).pop().unwrap().rows;
    let want = [
        (A, 1, Drawn(4), false),
        (B, 1, Stopped, false),
        (C, 0, Drawn(6), false),
    ];
    assert_eq!(told(&results), want);
    let mut hidden = [9.0; 10];
    e.read(&ticket, HIDDEN, 0..5, &mut hidden).unwrap();
    assert_eq!(hidden, [2.0, 0.0, 4.0, 1.0, 0.0, 0.0, 0.0, 0.0, 6.0, 0.0]);
    let mut ids = [9; 3];
    e.read_ints(&ticket, TOKENS, 0..3, &mut ids).unwrap();
    assert_eq!(ids, [4, 0, 6]);
}

#[test]
fn a_step_of_stopped_slots_runs_nothing_and_keeps_zeros() {
    let mut e = executor();
    e.stop(A);
    let work = Work {
        keep: vec![HIDDEN],
        ..rows([SeqRows::tokens(A, &[1, 2])])
    };
    let ticket = e.submit(work).unwrap();
    let results = drain(&mut e).pop().unwrap().rows;
    assert_eq!(
        told(&results),
        [(A, 0, Stopped, false)],
        "one for all its rows"
    );
    assert_eq!(e.machine().replays, 0);
    assert_eq!(e.rows(&ticket, HIDDEN).unwrap(), 2);
}

#[test]
fn a_row_without_numbers_fails_alone() {
    let mut e = executor();
    let work = Work {
        chained: 1,
        ..rows([tokens(A, &[1]), tokens(B, &[POISON]), tokens(C, &[2])])
    };
    e.submit(work).unwrap();
    let news = drain(&mut e);
    assert!(news.iter().all(|p| p.failure.is_none()));
    let results: Vec<RowResult> = news.into_iter().flat_map(|p| p.rows).collect();
    let want = [Drawn(1), NotANumber, Drawn(2), Drawn(2), Drawn(4)];
    assert_eq!(statuses(&results), want, "it is not drawn from again");
    let again = with(B, Delta::Length(0), rows([tokens(B, &[3])]));
    assert_eq!(statuses(&all(&mut e, [again])), [Drawn(3)]);
}

#[test]
fn slots_of_a_failed_work_stop_until_they_are_set_right() {
    for (heal, sum) in [(Delta::Length(1), 8), (Delta::Length(0), 7)] {
        let mut e = executor();
        all(&mut e, [rows([tokens(A, &[1]), tokens(C, &[2])])]);
        e.submit(rows([tokens(A, &[BROKEN]), tokens(B, &[1])]))
            .unwrap();
        let failed = e.poll().unwrap().unwrap();
        let text = failed.failure.unwrap().to_string();
        assert!(failed.done && text.contains("this token"), "{text}");
        let after = rows([tokens(A, &[5]), next(C)]);
        let healed = with(A, heal, rows([tokens(A, &[7]), tokens(B, &[5])]));
        let results = all(&mut e, [after, healed]);
        let want = [
            (A, 1, Stopped, false),
            (C, 1, Drawn(4), false),
            (A, (sum == 8).into(), Drawn(sum), false),
            (B, 0, Stopped, false),
        ];
        assert_eq!(told(&results), want);
        let mut fresh = with(B, Delta::Clear, rows([tokens(B, &[5])]));
        let blocks = vec![40];
        let table = Delta::Table {
            group: GroupId(0),
            first: 0,
            blocks,
        };
        fresh.deltas.push((B, table));
        assert_eq!(statuses(&all(&mut e, [fresh])), [Drawn(5)]);
    }
}

#[test]
#[should_panic(expected = "a row without a block")]
fn a_cleared_slot_has_no_blocks() {
    let mut e = executor();
    all(&mut e, [with(A, Delta::Clear, rows([tokens(A, &[1])]))]);
}

#[test]
fn a_lost_device_answers_nothing_else() {
    let mut e = executor();
    let work = Work {
        keep: vec![HIDDEN],
        ..rows([tokens(A, &[1])])
    };
    let ticket = e.submit(work).unwrap();
    e.submit(rows([tokens(A, &[FATAL])])).unwrap();
    e.submit(rows([next(A)])).unwrap();
    e.poll().unwrap();
    let lost =
        |error: BackendError| matches!(error, BackendError::Lost(why) if why == "it is gone");
    assert!(lost(e.poll().unwrap_err()) && lost(e.wait().unwrap_err()));
    let Err(Refusal::Backend(error)) = e.submit(rows([next(A)])) else {
        panic!("the device is lost")
    };
    assert!(lost(error));
    assert!(lost(
        e.read(&ticket, HIDDEN, 0..1, &mut [0.0; 2]).unwrap_err()
    ));
    assert!(lost(e.exported(&ticket, 0).unwrap_err()));
}

#[test]
fn ports_take_values_of_works_here_and_elsewhere() {
    let (mut e, mut other) = (executor(), executor());
    let work = Work {
        keep: vec![HIDDEN],
        ..rows([tokens(A, &[1, 2])])
    };
    let ticket = e.submit(work).unwrap();
    let fed = |rows| {
        let (ticket, value) = (ticket.clone(), HIDDEN);
        let source = Source::Kept {
            ticket,
            value,
            rows,
        };
        Work {
            feeds: vec![(X, source)],
            chained: 1,
            ..self::rows([tokens(B, &[4])])
        }
    };
    let want = [Drawn(7), Drawn(11)];
    let results = all(&mut e, [fed(1..2)]);
    assert_eq!(statuses(&results)[1..], want, "a port is set for one step");
    assert_eq!(statuses(&all(&mut other, [fed(1..2)])), want);
    other.submit(fed(2..3)).unwrap();
    let failure = other.poll().unwrap().unwrap().failure;
    assert!(matches!(
        failure,
        Some(BackendError::NotKept { value: HIDDEN })
    ));
}

#[test]
fn embeddings_are_counted_over_the_rows_that_read_them() {
    let mut e = executor();
    e.stop(B);
    let image = |slot, n| {
        drawn(SeqRows {
            input: RowInput::Embeds(n),
            ..SeqRows::tokens(slot, &[])
        })
    };
    let embeds = vec![100.0, 100.0, 3.0, 4.0];
    let work = Work {
        feeds: vec![(EMBEDS, Source::Host(embeds))],
        ..rows([tokens(A, &[1, 1]), image(B, 2), image(C, 2)])
    };
    let results = all(&mut e, [work, rows([next(C)])]);
    assert_eq!(statuses(&results), [Drawn(2), Stopped, Drawn(7), Drawn(14)]);
}

#[test]
fn only_what_was_kept_is_read_however_late() {
    let mut e = executor();
    let work = |token| Work {
        keep: vec![HIDDEN],
        ..rows([tokens(A, &[token])])
    };
    let (first, second) = (e.submit(work(3)).unwrap(), e.submit(work(4)).unwrap());
    let not_kept = |e: Result<(), BackendError>| matches!(e, Err(BackendError::NotKept { .. }));
    let mut out = [0.0; 2];
    assert!(not_kept(e.read(&first, HIDDEN, 0..1, &mut out)), "not yet");
    assert!(not_kept(e.rows(&first, HIDDEN).map(|_| ())));
    drain(&mut e);
    assert!(not_kept(e.read(&first, LOGITS, 0..1, &mut [0.0; 16])));
    assert!(not_kept(e.read(&first, HIDDEN, 0..2, &mut [0.0; 4])));
    assert!(not_kept(e.read(&first, HIDDEN, 0..1, &mut [0.0; 3])));
    assert!(not_kept(e.read_ints(&first, HIDDEN, 0..1, &mut [0; 2])));
    assert!(not_kept(e.exported(&first, 0).map(|_| ())));
    let mut sums = Vec::new();
    for ticket in [&first.clone(), &second] {
        e.read(ticket, HIDDEN, 0..1, &mut out).unwrap();
        sums.push(out[0]);
    }
    assert_eq!(sums, [3.0, 7.0]);
}

#[test]
fn blocks_are_copied_then_set_then_given_out() {
    let mut e = executor();
    all(&mut e, [rows([tokens(A, &[1, 2, 3])])]);
    let group = GroupId(0);
    let copy = |from, to| BlockCopy { group, from, to };
    let work = Work {
        copies: vec![copy(0, 8), copy(8, 20)],
        imports: vec![(group, 20, vec![5.0, 0.0])],
        exports: vec![(group, 8), (group, 20), (group, 9)],
        ..with(B, Delta::Length(2), rows([tokens(B, &[4])]))
    };
    let ticket = e.submit(work).unwrap();
    let results = drain(&mut e).pop().unwrap().rows;
    assert_eq!(told(&results), [(B, 2, Drawn(7), false)]);
    let blocks: Vec<Vec<f32>> = (0..3).map(|i| e.exported(&ticket, i).unwrap()).collect();
    assert_eq!(blocks, [[1.0, 2.0], [5.0, 0.0], [4.0, 0.0]]);
}

#[test]
fn a_shorter_length_takes_back_what_came_after() {
    let mut e = executor();
    all(&mut e, [chain(3)]);
    let back = with(A, Delta::Length(2), rows([tokens(A, &[6])]));
    let results = all(&mut e, [back, rows([next(A)])]);
    let want = [(A, 2, Drawn(8), false), (A, 3, Drawn(0), false)];
    assert_eq!(told(&results), want);
}

fn fixed(x: f32) -> Fixed {
    Fixed::new(x).expect("a number")
}

#[test]
fn draws_follow_the_sampler_of_the_slot_and_the_mask_of_the_row() {
    let mut e = executor();
    let sampler = Sampler {
        bias: vec![(9, fixed(50.0))],
        record: Parameters {
            presence: 99.0,
            ..Parameters::default()
        }
        .record(),
    };
    let mut masked = tokens(B, &[3]);
    masked.logits[0].mask = Some(Mask::new(vec![0b100]));
    let mut lowered = tokens(C, &[3]);
    lowered.logits[0].dry = vec![(3, fixed(5.0))];
    let work = Work {
        chained: 1,
        ..rows([tokens(A, &[1]), masked, lowered])
    };
    let work = with(A, Delta::Sampler(Box::new(sampler)), work);
    let results = all(&mut e, [work]);
    let first = [Drawn(9), Drawn(2), Drawn(15)];
    assert_eq!(statuses(&results)[..3], first);
    // Nine was seen, ten are in the cache; the mask held for one row.
    assert_eq!(statuses(&results)[3..5], [Drawn(10), Drawn(5)]);
}

#[test]
fn probabilities_are_reported_on_request() {
    let mut e = executor();
    let mut asked = tokens(A, &[3]);
    asked.logits[0].best = Some(2);
    let work = Work {
        chained: 1,
        ..rows([asked, tokens(B, &[1])])
    };
    let results = all(&mut e, [work]);
    let of = |r: &RowResult| r.logprobs.as_ref().map(|l| (l.picked.token, l.top.len()));
    let told: Vec<_> = results.iter().map(of).collect();
    assert_eq!(told, [Some((3, 2)), None, Some((6, 2)), None]);
    let best = results[0].logprobs.as_ref().unwrap();
    assert_eq!((best.top[0].token, best.top[1].token), (3, 15));
    assert!(best.top[0].logprob > best.top[1].logprob && best.top[0] == best.picked);
}
