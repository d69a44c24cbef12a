//! A model without weights: logits are a hash of exactly the cache entries that a row may see.
//!
//! Every entry is written through write slots and read through block tables, so a wrong table, a shared block that
//! was overwritten or a state that was not copied changes the answer.

use std::sync::Arc;

use tokkata_core::DType;
use tokkata_ir::sample::{sample, uniform};
use tokkata_ir::step::NO_BLOCK;
use tokkata_ir::{
    BackendError, CacheGroup, CacheKind, GroupId, Instance, Lead, Limits, Plan, PlanRole, Port,
    Program, Shape, SlotDef, StepInputs, StepState, ValType, ValueDef, ValueId,
};

use crate::kind::CacheTraits;

pub(crate) const N_VOCAB: u32 = 64;
/// Its row's logits are not numbers.
pub(crate) const NAN_TOKEN: u32 = 63;

pub(crate) struct Fake {
    groups: Vec<CacheGroup>,
    cells: Vec<Vec<u64>>,
    logits: Vec<f32>,
    picked: Vec<i32>,
    pub(crate) rows: Arc<std::sync::atomic::AtomicUsize>,
}

fn mix(a: u64, b: u64) -> u64 {
    uniform(a, b)
}

fn entry(token: u32, pos: usize) -> u64 {
    mix(u64::from(token), pos as u64)
}

fn logits_of(hash: u64) -> Vec<f32> {
    let logit = |v| (mix(hash, v) >> 44) as f32 / (1 << 18) as f32;
    let mut logits: Vec<f32> = (0..u64::from(N_VOCAB)).map(logit).collect();
    logits[NAN_TOKEN as usize] = f32::MIN;
    logits
}

/// The logits after `tokens`, computed without any cache.
pub(crate) fn expected(tokens: &[u32], kinds: &[CacheKind]) -> Vec<f32> {
    let p = tokens.len() - 1;
    let mut hash = 1;
    for kind in kinds {
        let first = kind.first_needed(p);
        for (q, &token) in tokens.iter().enumerate().skip(first) {
            hash = mix(hash, entry(token, q));
        }
    }
    logits_of(hash)
}

pub(crate) fn group(kind: CacheKind, block_size: u32, n_blocks: u32) -> CacheGroup {
    let slots = vec![SlotDef::State { len: 1 }];
    CacheGroup {
        kind,
        slots,
        dtype: DType::F32,
        block_size,
        n_blocks,
    }
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
    let plan = Plan {
        role: PlanRole::Main,
        inputs: vec![],
        outputs: vec![port("logits", 0), port("tokens", 1)],
        values: vec![value(N_VOCAB, ValType::F32), value(1, ValType::I32)],
        nodes: vec![],
    };
    Arc::new(Program {
        plans: vec![plan],
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
        let cells = |g: &CacheGroup| vec![0; (g.n_blocks * g.block_size) as usize];
        Fake {
            groups: program.caches.clone(),
            cells: program.caches.iter().map(cells).collect(),
            logits: vec![],
            picked: vec![],
            rows: Arc::default(),
        }
    }

    fn write(&mut self, step: &StepState) {
        for row in 0..step.n_rows() {
            let value = entry(step.tokens()[row], step.pos(row) as usize);
            for (g, group) in self.groups.iter().enumerate() {
                if group.kind != CacheKind::Recurrent {
                    let id = GroupId(g as u32);
                    let pos = step.pos(row) as usize / group.block_size as usize;
                    assert_ne!(step.table(id, step.seqs()[row] as usize)[pos], NO_BLOCK);
                    self.cells[g][step.write_slot(id, row)] = value;
                }
            }
        }
    }

    /// Folds what a row sees of a group into a hash; a state is a list of entries folded from hash 1.
    fn see(&self, g: usize, step: &StepState, row: usize, mut hash: u64) -> u64 {
        let (group, seq) = (&self.groups[g], step.seqs()[row] as usize);
        let (pos, table) = (step.pos(row) as usize, step.table(GroupId(g as u32), seq));
        let size = group.block_size as usize;
        for q in group.kind.first_needed(pos)..=pos {
            assert_ne!(table[q / size], NO_BLOCK, "position {q} is needed at {pos}");
            hash = mix(
                hash,
                self.cells[g][table[q / size] as usize * size + q % size],
            );
        }
        hash
    }

    /// A recurrent state must come first among the groups, so that its fold starts every hash.
    fn states(&mut self, step: &StepState) -> Vec<u64> {
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
            let block = step.table(GroupId(0), seq)[0] as usize;
            let mut state = if step.past_len(seq) == 0 {
                1
            } else {
                self.cells[0][block]
            };
            let first = step.first_row(seq);
            let rows = hashes.iter_mut().enumerate().skip(first);
            for (row, hash) in rows.take(step.row_count(seq)) {
                state = mix(state, entry(step.tokens()[row], step.pos(row) as usize));
                *hash = state;
            }
            self.cells[0][block] = state;
        }
        hashes
    }
}

impl Instance for Fake {
    fn replay(
        &mut self,
        _: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        self.rows
            .fetch_add(step.n_rows(), std::sync::atomic::Ordering::Relaxed);
        self.write(step);
        let hashes = self.states(step);
        self.logits.clear();
        self.picked.clear();
        for (i, &row) in step.logit_rows().iter().enumerate() {
            let row = row as usize;
            let seq = step.seqs()[row] as usize;
            if step.tokens()[row] == NAN_TOKEN {
                return Err(BackendError::NotANumber { seq });
            }
            let mut hash = hashes[row];
            for g in 0..self.groups.len() {
                if self.groups[g].kind != CacheKind::Recurrent {
                    hash = self.see(g, step, row, hash);
                }
            }
            let mut logits = logits_of(hash);
            self.logits.extend(&logits);
            let picked = sample(&mut logits, &step.sampler(seq), &inputs.sample[i]);
            self.picked
                .push(picked.map_err(|_| BackendError::NotANumber { seq })? as i32);
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
        let size = self.groups[group.index()].block_size as usize;
        let from = from as usize * size;
        self.cells[group.index()].copy_within(from..from + size, to as usize * size);
    }

    fn export_block(&self, _: GroupId, _: u32) -> Vec<f32> {
        vec![]
    }

    fn import_block(&mut self, _: GroupId, _: u32, _: &[f32]) {}

    fn memory_bytes(&self) -> u64 {
        0
    }
}
