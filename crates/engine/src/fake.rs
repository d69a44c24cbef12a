//! A model without weights: logits are a hash of exactly the cache entries that a row may see.
//!
//! Every entry is written and read through block tables, so a wrong table, a shared block that was overwritten or a
//! state that was not copied changes the answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokkata_core::DType;
use tokkata_ir::adapter::Places;
use tokkata_ir::sample::{BadLogits, Scratch, sample, uniform};
use tokkata_ir::step::{NO_BLOCK, ROW_EMBEDS, ROW_PROMPT};
use tokkata_ir::{
    Adapter, ArenaLayout, BackendError, CacheGroup, CacheKind, GroupId, Lead, Limits, Machine,
    Plan, PlanRole, Port, Program, Shape, SlotDef, StepInputs, StepState, ValType, ValueDef,
    ValueId,
};

use crate::kind::CacheTraits;

pub(crate) const N_VOCAB: u32 = 64;
/// What a step takes on its clock, as weights are read whatever the rows.
const STEP: Duration = Duration::from_millis(20);
/// What each row beyond the first adds.
const ROW: Duration = Duration::from_millis(1);
/// What each position before a row adds.
const POSITION: Duration = Duration::from_nanos(250);
/// Its row's logits are not numbers.
pub(crate) const NAN_TOKEN: u32 = 63;
/// A step with its row fails as a whole.
pub(crate) const POISON_TOKEN: u32 = 62;

pub(crate) struct Fake {
    groups: Vec<CacheGroup>,
    /// By group and block: its positions.
    cells: HashMap<(usize, u32), Vec<u64>>,
    logits: Vec<f32>,
    picked: Vec<i32>,
    pub(crate) rows: Arc<AtomicUsize>,
    /// Nanoseconds that its steps took on its clock.
    pub(crate) spent: Arc<AtomicU64>,
    /// Rows that it computed, by token and position, and whether they were a prompt's.
    pub(crate) seen: Arc<Mutex<Vec<(u32, usize, bool)>>>,
    /// Steps until the device is lost.
    pub(crate) lost_after: Arc<AtomicUsize>,
    /// By number: the how-manieth it is of all that were attached.
    adapters: Places<u64>,
    attached: u64,
}

fn mix(a: u64, b: u64) -> u64 {
    uniform(a, b)
}

fn entry(token: u32, pos: usize) -> u64 {
    mix(u64::from(token), pos as u64)
}

/// What a row leaves that goes through an adapter.
fn through(left: u64, adapter: u64) -> u64 {
    match adapter {
        0 => left,
        _ => mix(left, adapter),
    }
}

/// What a row of embeddings leaves.
fn embedded(value: f32, pos: usize) -> u64 {
    mix(u64::from(value.to_bits()) << 8 | 1, pos as u64)
}

fn logits_of(hash: u64) -> Vec<f32> {
    let logit = |v| (mix(hash, v) >> 44) as f32 / (1 << 18) as f32;
    let mut logits: Vec<f32> = (0..u64::from(N_VOCAB)).map(logit).collect();
    logits[NAN_TOKEN as usize] = f32::MIN;
    logits[POISON_TOKEN as usize] = f32::MIN;
    logits
}

/// What a sequence reads, for [`expected`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Reads<'a> {
    pub(crate) tokens: &'a [u32],
    /// By position: embeddings in the place of tokens.
    pub(crate) embeds: &'a [(usize, f32)],
    pub(crate) encoded: &'a [u32],
    /// The how-manieth adapter that was attached; 0 for none.
    pub(crate) adapter: u64,
}

/// The logits after `tokens`, computed without any cache.
pub(crate) fn expected(reads: Reads<'_>, kinds: &[CacheKind]) -> Vec<f32> {
    let p = reads.tokens.len() - 1;
    let mut hash = 1;
    for kind in kinds {
        if *kind == CacheKind::Cross {
            let all = reads.encoded.iter().enumerate();
            hash = all.fold(hash, |hash, (q, &token)| mix(hash, entry(token, q)));
            continue;
        }
        let first = kind.first_needed(p);
        for (q, &token) in reads.tokens.iter().enumerate().skip(first) {
            let embed = reads.embeds.iter().find(|e| e.0 == q);
            let left = embed.map_or_else(|| entry(token, q), |e| embedded(e.1, q));
            hash = mix(hash, through(left, reads.adapter));
        }
    }
    logits_of(hash)
}

/// The logits after entries of tokens and the positions they were written at, of which a state has `seen` others.
pub(crate) fn expected_entries(
    held: &[(u32, usize)],
    seen: &[(u32, usize)],
    kinds: &[CacheKind],
) -> Vec<f32> {
    let mut hash = 1;
    for kind in kinds {
        let (entries, first) = match kind {
            CacheKind::Recurrent => (seen, 0),
            _ => (held, kind.first_needed(held.len() - 1)),
        };
        for &(token, pos) in &entries[first..] {
            hash = mix(hash, entry(token, pos));
        }
    }
    logits_of(hash)
}

pub(crate) fn group(kind: CacheKind, block_size: u32) -> CacheGroup {
    let slots = vec![SlotDef::State { len: 1 }];
    CacheGroup {
        kind,
        slots,
        dtype: DType::F32,
        block_size,
    }
}

/// An arena of so many blocks, which any group may have.
pub(crate) fn arena(groups: usize, blocks: u64) -> ArenaLayout {
    ArenaLayout::new(&vec![256; groups], 256 * blocks)
}

pub(crate) fn program(caches: Vec<CacheGroup>, limits: Limits) -> Arc<Program> {
    let value = |width, dtype| ValueDef {
        shape: Shape {
            lead: Lead::LogitRows,
            dims: vec![width],
        },
        dtype,
    };
    let port = |name: &str, id| Port {
        name: name.to_owned(),
        value: ValueId(id),
    };
    let embeds = ValueDef {
        shape: Shape::rows(&[1]),
        dtype: ValType::F32,
    };
    let plan = Plan {
        role: PlanRole::Main,
        inputs: vec![port("embeds", 2)],
        outputs: vec![port("logits", 0), port("tokens", 1)],
        values: vec![value(N_VOCAB, ValType::F32), value(1, ValType::I32), embeds],
        nodes: vec![],
    };
    let encoder = Plan {
        role: PlanRole::Encoder,
        inputs: vec![],
        outputs: vec![],
        values: vec![],
        nodes: vec![],
    };
    let crosses = caches.iter().any(|g| g.kind == CacheKind::Cross);
    Arc::new(Program {
        plans: [plan]
            .into_iter()
            .chain(crosses.then_some(encoder))
            .collect(),
        weights: vec![],
        caches,
        consts: vec![],
        limits,
        n_vocab: N_VOCAB,
        n_embd: 1,
    })
}

impl Fake {
    pub(crate) fn new(program: &Program) -> Self {
        Fake {
            groups: program.caches.clone(),
            cells: HashMap::new(),
            logits: vec![],
            picked: vec![],
            rows: Arc::default(),
            spent: Arc::default(),
            seen: Arc::default(),
            lost_after: Arc::new(AtomicUsize::new(usize::MAX)),
            adapters: Places::new(program.limits.adapters),
            attached: 0,
        }
    }

    fn cell(&mut self, g: usize, block: u32, offset: usize) -> &mut u64 {
        let size = self.groups[g].block_size as usize;
        let cells = self.cells.entry((g, block));
        &mut cells.or_insert_with(|| vec![0; size])[offset]
    }

    /// Writes the entries of one kind of group.
    fn write(&mut self, step: &StepState, left: &[u64], writes: fn(CacheKind) -> bool) {
        for (row, &value) in left.iter().enumerate() {
            for g in 0..self.groups.len() {
                if writes(self.groups[g].kind) {
                    let size = self.groups[g].block_size as usize;
                    let pos = step.pos(row) as usize;
                    let table = step.table(GroupId(g as u32), step.seqs()[row] as usize);
                    assert_ne!(table[pos / size], NO_BLOCK);
                    *self.cell(g, table[pos / size], pos % size) = value;
                }
            }
        }
    }

    /// Folds what a row sees of a group into a hash; a state is a list of entries folded from hash 1.
    fn see(&mut self, g: usize, step: &StepState, row: usize, mut hash: u64) -> u64 {
        let (kind, seq) = (self.groups[g].kind, step.seqs()[row] as usize);
        let (pos, table) = (step.pos(row) as usize, step.table(GroupId(g as u32), seq));
        let size = self.groups[g].block_size as usize;
        let seen = match kind {
            CacheKind::Cross => 0..step.enc_len(seq),
            _ => kind.first_needed(pos)..pos + 1,
        };
        for q in seen {
            assert_ne!(table[q / size], NO_BLOCK, "position {q} is needed at {pos}");
            hash = mix(hash, *self.cell(g, table[q / size], q % size));
        }
        hash
    }

    /// A recurrent state must come first among the groups, so that its fold starts every hash.
    fn states(&mut self, step: &StepState, left: &[u64]) -> Vec<u64> {
        let Some(g) = self
            .groups
            .iter()
            .position(|g| g.kind == CacheKind::Recurrent)
        else {
            return vec![1; step.n_rows()];
        };
        assert_eq!(g, 0);
        let mut hashes = vec![0; step.n_rows()];
        for seq in 0..step.n_seqs() {
            let block = |place: usize| step.table(GroupId(0), seq)[place];
            for stretch in step.stretches(seq) {
                let from = stretch.from.map(|place| *self.cell(0, block(place), 0));
                let mut state = from.unwrap_or(1);
                for row in stretch.rows {
                    state = mix(state, left[row]);
                    hashes[row] = state;
                }
                assert_ne!(block(stretch.to), NO_BLOCK);
                *self.cell(0, block(stretch.to), 0) = state;
            }
        }
        hashes
    }
}

/// What each row leaves in caches.
fn entries(step: &StepState, embeds: Option<&[f32]>, adapters: &Places<u64>) -> Vec<u64> {
    let of = |row: usize| {
        let pos = step.pos(row) as usize;
        let left = match step.flags(row) & ROW_EMBEDS {
            0 => entry(step.tokens()[row], pos),
            _ => embedded(embeds.expect("embeddings are fed")[row], pos),
        };
        through(left, adapters.get(step.adapter(row)).copied().unwrap_or(0))
    };
    (0..step.n_rows()).map(of).collect()
}

/// What a step takes on the clock of the fake.
fn cost(step: &StepState) -> Duration {
    let before: u32 = (0..step.n_rows()).map(|row| step.pos(row)).sum();
    STEP + ROW * (step.n_rows() as u32 - 1) + POSITION * before
}

impl Machine for Fake {
    fn replay(
        &mut self,
        plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        if step.tokens().contains(&POISON_TOKEN) {
            let op = "a row of poison".to_owned();
            return Err(BackendError::Unsupported {
                backend: "fake",
                op,
            });
        }
        let left = self.lost_after.load(Ordering::Relaxed);
        if left == 0 {
            return Err(BackendError::Lost("unplugged".to_owned()));
        }
        self.lost_after
            .store(left.saturating_sub(1), Ordering::Relaxed);
        self.rows.fetch_add(step.n_rows(), Ordering::Relaxed);
        let spent = cost(step).as_nanos() as u64;
        self.spent.fetch_add(spent, Ordering::Relaxed);
        self.seen
            .lock()
            .unwrap()
            .extend((0..step.n_rows()).map(|row| {
                let prompt = step.flags(row) & ROW_PROMPT != 0;
                (step.tokens()[row], step.pos(row) as usize, prompt)
            }));
        let left = entries(step, inputs.embeds, &self.adapters);
        if plan == 1 {
            self.write(step, &left, |kind| kind == CacheKind::Cross);
            return Ok(());
        }
        self.write(step, &left, |kind| {
            !matches!(kind, CacheKind::Recurrent | CacheKind::Cross)
        });
        let hashes = self.states(step, &left);
        self.logits.clear();
        self.picked.clear();
        for (i, &row) in step.logit_rows().iter().enumerate() {
            let row = row as usize;
            let seq = step.seqs()[row] as usize;
            let mut hash = hashes[row];
            for g in 0..self.groups.len() {
                if self.groups[g].kind != CacheKind::Recurrent {
                    hash = self.see(g, step, row, hash);
                }
            }
            let mut logits = logits_of(hash);
            if step.tokens()[row] == NAN_TOKEN {
                logits[0] = f32::NAN;
            }
            self.logits.extend(&logits);
            let position = step.index_in_sequence(row) as u32;
            let drawn = inputs.sample[i].row(&logits, position);
            let picked = sample(&step.sampler(seq), &drawn, &mut Scratch::default());
            self.picked
                .push(picked.map_or_else(BadLogits::code, |t| t as i32));
        }
        Ok(())
    }

    fn floats(&self, _: ValueId) -> &[f32] {
        &self.logits
    }

    fn ints(&self, _: ValueId) -> &[i32] {
        &self.picked
    }

    fn copy_block(&mut self, group: GroupId, from: u32, to: u32) {
        let g = group.index();
        let cells = self.cells.get(&(g, from)).cloned();
        let size = self.groups[g].block_size as usize;
        self.cells
            .insert((g, to), cells.unwrap_or_else(|| vec![0; size]));
    }

    fn export_block(&self, _: GroupId, _: u32) -> Vec<f32> {
        vec![]
    }

    fn import_block(&mut self, _: GroupId, _: u32, _: &[f32]) {}

    fn set_adapter(
        &mut self,
        number: u32,
        adapter: Option<&Arc<Adapter>>,
    ) -> Result<(), BackendError> {
        self.attached += u64::from(adapter.is_some());
        self.adapters.set(number, adapter.map(|_| self.attached));
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        0
    }
}
