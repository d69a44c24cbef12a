//! Whole models on a device: logits of a token sequence, fed whole, in chunks or beside other sequences.

use std::sync::Arc;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_core::DType;
use tokkata_formats::ModelFile;
use tokkata_ir::spec::DraftForm;
use tokkata_ir::step::NO_BLOCK;
use tokkata_ir::{
    Adapter, ArenaLayout, BlockCopy, CacheGroup, CacheKind, Delta, Device, Executor, GroupId,
    Limits, LoadOptions, LogitRow, Node, Op, Plan, PlanRole, Port, Program, SelectOp, SeqRows,
    SeqSlot, Site, Ticket, ValType, ValueId, Work,
};
use tokkata_plan::BuildOptions;

use crate::fixture::finish;

pub(crate) mod heads;

/// How tokens are fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feeding {
    /// Tokens per step and sequence; one is an answer's, several are a prompt's.
    pub chunk: usize,
    /// Copies of the sequence that run side by side.
    pub sequences: usize,
    /// Positions per cache block.
    pub block_size: u32,
    /// Several are a draft's instead.
    pub tries: bool,
}

impl Feeding {
    /// All at once, alone.
    pub const WHOLE: Feeding = Feeding {
        chunk: usize::MAX,
        sequences: 1,
        block_size: 16,
        tries: false,
    };

    /// As an answer, alone.
    pub const TOKEN_BY_TOKEN: Feeding = Feeding {
        chunk: 1,
        ..Feeding::WHOLE
    };
}

/// A value of a run and the op that made it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The op.
    pub op: Op,
    /// Where it stands.
    pub site: Site,
    /// What it gave.
    pub floats: Vec<f32>,
}

/// What one layer's indexer chose.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The layer.
    pub layer: u32,
    /// The indexer.
    pub op: SelectOp,
    /// Numbers of units, as many for each choice of each row.
    pub ids: Vec<i32>,
}

/// Anything that can go wrong, as text.
pub type Failure = String;

/// A loaded model with everything that steps need.
pub struct Loaded {
    program: Arc<Program>,
    executor: Box<dyn Executor>,
    blocks: Vec<Vec<u32>>,
    limits: Limits,
    rows: ValueId,
    keep: Vec<ValueId>,
    bidirectional: bool,
    /// How its drafter is run.
    form: DraftForm,
    encoded: usize,
    /// Per sequence: the blocks of its states, by place of the table.
    states: Vec<Vec<usize>>,
}

/// What one of several sequences is fed in a step.
#[derive(Clone, Debug, Default)]
struct Part {
    /// Its length before.
    past: usize,
    ids: Vec<u32>,
    keeps_states: bool,
    adapter: u32,
}

/// Where and how a model is run.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// Positions of a sequence.
    pub ctx: usize,
    /// How tokens are fed.
    pub feeding: Feeding,
    /// The output that is read; logits, or hidden rows where there are none, by default.
    pub output: Option<&'a str>,
    /// What an encoder is fed before the decoder runs; empty where there is none.
    pub encoder: &'a [u32],
    /// Rows of a sequence whose states are kept, at most.
    pub draft: u32,
    /// Adapters at once, at most.
    pub adapters: u32,
    /// What caches hold.
    pub kv_dtype: DType,
}

impl<'a> Target<'a> {
    /// A device whose caches lose nothing, to read logits or, where there are none, hidden rows.
    #[must_use]
    pub fn new(device: &'a dyn Device, ctx: usize, feeding: Feeding) -> Self {
        Target {
            device,
            ctx,
            feeding,
            output: None,
            encoder: &[],
            draft: 0,
            adapters: 0,
            kv_dtype: DType::F32,
        }
    }
}

/// Loads a model for sequences of up to `ctx` positions, to read its logits or, where it has none, its hidden rows.
///
/// # Errors
/// The text of whatever failed.
pub fn load(
    file: &ModelFile,
    registry: &Registry,
    device: &dyn Device,
    ctx: usize,
    feeding: Feeding,
) -> Result<Loaded, Failure> {
    load_for(file, registry, &Target::new(device, ctx, feeding))
}

/// Loads a model on a target.
///
/// # Errors
/// The text of whatever failed.
pub fn load_for(
    file: &ModelFile,
    registry: &Registry,
    target: &Target<'_>,
) -> Result<Loaded, Failure> {
    let compiled = compile(file, registry, target)?;
    load_program(file, compiled, target)
}

/// Every float value of the first plan, and of the heads behind it where these are built, when `ids` are fed whole, in the
/// order of the ops.
///
/// # Errors
/// The text of whatever failed.
pub fn trace(
    file: &ModelFile,
    registry: &Registry,
    target: &Target<'_>,
    ids: &[u32],
) -> Result<Vec<Seen>, Failure> {
    let mut compiled = compile(file, registry, target)?;
    let of_heads = |plan: &&mut Plan| matches!(plan.role, PlanRole::Draft(_));
    let plans = &mut compiled.program.plans;
    expose(&mut plans[0]);
    plans.iter_mut().filter(of_heads).for_each(expose);
    let mut loaded = load_program(file, compiled, target)?;
    let made = loaded.floats_of(0);
    loaded.keep = made.iter().map(|(value, ..)| *value).collect();
    let (hidden, last) = loaded.feed(ids, 0, Feeding::WHOLE)?;
    let mut seen = loaded.seen(0, made, &last)?;
    seen.extend(loaded.trace_heads(ids, hidden)?);
    Ok(seen)
}

/// Every float value becomes an output.
fn expose(plan: &mut Plan) {
    let ports = plan.nodes.iter().flat_map(|n| &n.outs);
    let floats = ports.filter(|v| plan.values[v.index()].dtype == ValType::F32);
    let ports = floats.map(|&value| Port {
        name: value.to_string(),
        value,
    });
    plan.outputs = plan.outputs.iter().cloned().chain(ports).collect();
}

/// What every indexer of the first plan chooses when `ids` are fed whole.
///
/// # Errors
/// The text of whatever failed.
pub fn choices(
    file: &ModelFile,
    registry: &Registry,
    target: &Target<'_>,
    ids: &[u32],
) -> Result<Vec<Chosen>, Failure> {
    let mut compiled = compile(file, registry, target)?;
    let plan = &mut compiled.program.plans[0];
    let select = |node: &Node| match &node.op {
        Op::Select(op) => Some((node.site.layer.unwrap_or(0), op.clone(), node.outs[0])),
        _ => None,
    };
    let indexers: Vec<_> = plan.nodes.iter().filter_map(select).collect();
    plan.outputs
        .extend(indexers.iter().map(|(_, _, value)| Port {
            name: value.to_string(),
            value: *value,
        }));
    let mut loaded = load_program(file, compiled, target)?;
    loaded.keep.extend(indexers.iter().map(|i| i.2));
    let (_, last) = loaded.feed(ids, 0, Feeding::WHOLE)?;
    let chosen = |(layer, op, value): (u32, SelectOp, ValueId)| {
        let ids = loaded.read_ints(&last, value)?;
        Ok(Chosen { layer, op, ids })
    };
    indexers.into_iter().map(chosen).collect()
}

/// A program, and what it is to be known of its model.
struct Compiled {
    program: Program,
    bidirectional: bool,
    form: Option<DraftForm>,
    /// The output of the main plan that is read.
    output: Option<String>,
}

fn compile(
    file: &ModelFile,
    registry: &Registry,
    target: &Target<'_>,
) -> Result<Compiled, Failure> {
    let ctx = target.ctx as u32;
    let spec = registry
        .resolve(file, &ResolveOptions { ctx })
        .map_err(|e| e.to_string())?;
    let heads = target.output == Some(heads::DRAFT_INPUT);
    // A drafter that the trunk's own plan keeps something for is fed no state.
    let kept = spec.taps.as_ref().is_some_and(|taps| taps.kept);
    let output = match heads && kept {
        true => Some("hidden"),
        false => target.output,
    };
    let options = BuildOptions {
        block_size: target.feeding.block_size,
        outputs: output.map(str::to_owned).into_iter().collect(),
        drafts: if heads { usize::MAX } else { 0 },
        ..BuildOptions::default()
    };
    let program = tokkata_plan::build_with(&spec, &limits(target), &options);
    Ok(Compiled {
        program: program.map_err(|e| e.to_string())?,
        bidirectional: spec.bidirectional,
        form: spec.drafts.first().map(|draft| draft.form.clone()),
        output: output.map(str::to_owned),
    })
}

fn load_program(
    file: &ModelFile,
    compiled: Compiled,
    target: &Target<'_>,
) -> Result<Loaded, Failure> {
    let program = Arc::new(compiled.program);
    let wanted = match &compiled.output {
        Some(output) => vec![output.as_str()],
        None => vec!["logits", "hidden"],
    };
    let rows = wanted.iter().find_map(|name| program.plans[0].output(name));
    let rows = rows.ok_or("the model has no such output")?;
    let (weights, options) = (FileWeights(file), LoadOptions::default());
    let loaded = target.device.load(program.clone(), &weights, &options);
    let loaded = loaded.map_err(|e| e.to_string())?;
    let limits = limits(target);
    let counts = program.caches.iter();
    let counts: Vec<u64> = counts
        .map(|g| g.table_len(&limits) as u64 * u64::from(limits.seqs))
        .collect();
    let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &counts);
    let blocks = arena.deal(&counts);
    let mut loaded = Loaded {
        program,
        executor: loaded.open(arena).map_err(|e| e.to_string())?,
        blocks,
        limits,
        rows,
        keep: vec![rows],
        bidirectional: compiled.bidirectional,
        form: compiled.form.unwrap_or_default(),
        encoded: target.encoder.len(),
        states: vec![(0..=target.draft as usize).collect(); limits.seqs as usize],
    };
    loaded.encode(target.encoder, target.feeding.sequences)?;
    Ok(loaded)
}

fn limits(target: &Target<'_>) -> Limits {
    // One more than run, whose blocks keep snapshots.
    let seqs = target.feeding.sequences as u32 + 1;
    let ctx = target.ctx as u32;
    Limits {
        rows: ctx * seqs,
        seqs,
        logit_rows: ctx * seqs,
        ctx,
        enc_rows: target.encoder.len() as u32,
        draft: target.draft,
        adapters: target.adapters,
        kv_dtype: target.kv_dtype,
        ..Limits::default()
    }
}

impl Loaded {
    /// Whether rows see each other in both directions, so that a sequence is fed whole or not at all.
    #[must_use]
    pub fn bidirectional(&self) -> bool {
        self.bidirectional
    }

    /// Rows `[T, width]` of `ids` from an empty cache; every copy must agree bit for bit.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn logits(&mut self, ids: &[u32], feeding: Feeding) -> Result<Vec<f32>, Failure> {
        Ok(self.feed(ids, 0, feeding)?.0)
    }

    /// Rows of `ids` when a wrong ending after `kept` positions was fed and taken back: caches of positions are cut, a
    /// recurrent state is set back to the snapshot taken there.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn truncated(
        &mut self,
        ids: &[u32],
        kept: usize,
        feeding: Feeding,
    ) -> Result<Vec<f32>, Failure> {
        let (beginning, ending) = ids.split_at(kept);
        let mut wrong = ending.to_vec();
        wrong.rotate_left(1);
        let (before, _) = self.feed(beginning, 0, feeding)?;
        self.snapshot(|own, spare| (own, spare))?;
        self.feed(&wrong, kept, feeding)?;
        self.snapshot(|own, spare| (spare, own))?;
        let (after, _) = self.feed(ending, kept, feeding)?;
        Ok([before, after].concat())
    }

    /// Whether some cache is more than keys and values of positions: states, or entries and summaries of several positions.
    #[must_use]
    pub fn carries_states(&self) -> bool {
        let carries =
            |g: &CacheGroup| matches!(g.kind, CacheKind::Recurrent | CacheKind::Entries(_));
        self.program.caches.iter().any(carries)
    }

    /// Rows `[T, width]` of `ids` for several sequences side by side, as if all were fed `ids` alone. After `past` positions
    /// each is fed a draft of as many rows as its target allows, wrong behind the first so many, and goes on behind those
    /// from the state that was kept; then again, from place to place. A sequence of `None` is fed the same positions without
    /// keeping states.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn drafted(
        &mut self,
        ids: &[u32],
        past: usize,
        accepted: &[Option<usize>],
    ) -> Result<Vec<Vec<f32>>, Failure> {
        self.states
            .iter_mut()
            .for_each(|places| places.sort_unstable());
        let width = self.program.plans[0].value(self.rows).shape.width();
        let draft = self.limits.draft as usize;
        let mut rows = vec![Vec::new(); accepted.len()];
        let mut lens = vec![0; accepted.len()];
        let plain = |from: usize, to: usize| Part {
            past: from,
            ids: ids[from..to].to_vec(),
            ..Part::default()
        };
        self.side_by_side(&vec![plain(0, past); lens.len()], &mut rows)?;
        lens.fill(past);
        for round in 0..2 {
            // Of a draft that keeps no states all is right.
            let right = |n: &Option<usize>| n.map_or(draft, |n| (n + round) % (draft + 1));
            let parts = lens.iter().zip(accepted).map(|(&from, accepted)| {
                let mut part = plain(from, from + draft);
                let wrong = part.ids.iter_mut().skip(right(accepted));
                wrong.for_each(|id| *id = id.checked_sub(1).unwrap_or(1));
                part.keeps_states = accepted.is_some();
                part
            });
            self.side_by_side(&parts.collect::<Vec<_>>(), &mut rows)?;
            for (seq, accepted) in accepted.iter().enumerate() {
                let n = right(accepted);
                if accepted.is_some() {
                    self.states[seq].swap(0, n);
                }
                lens[seq] += n;
                rows[seq].truncate(lens[seq] * width);
            }
        }
        let rest = lens.iter().map(|&from| plain(from, ids.len()));
        self.side_by_side(&rest.collect::<Vec<_>>(), &mut rows)?;
        Ok(rows)
    }

    /// Attaches an adapter.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn attach(&mut self, adapter: Adapter) -> Result<u32, Failure> {
        let attached = self.executor.attach(&Arc::new(adapter));
        attached.map_err(|e| e.to_string())
    }

    /// Lets an adapter go.
    pub fn detach(&mut self, adapter: u32) {
        self.executor.detach(adapter);
    }

    /// Every float value of a plan with the op that makes it and its place, in order.
    fn floats_of(&self, plan: usize) -> Vec<(ValueId, Op, Site)> {
        let plan = &self.program.plans[plan];
        let made = plan.nodes.iter();
        let made = made.flat_map(|n| {
            n.outs
                .iter()
                .map(move |&v| (v, n.op.clone(), n.site.clone()))
        });
        made.filter(|(v, ..)| plan.value(*v).dtype == ValType::F32)
            .collect()
    }

    /// What was made of values that a ticket keeps.
    fn seen(
        &mut self,
        plan: usize,
        made: Vec<(ValueId, Op, Site)>,
        ticket: &Ticket,
    ) -> Result<Vec<Seen>, Failure> {
        let seen = made.into_iter().map(|(value, op, site)| {
            Ok(Seen {
                op,
                site,
                floats: self.read_of(ticket, (plan, value))?,
            })
        });
        seen.collect()
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Rows `[T, width]` of `ids` for several sequences side by side, each through an adapter; the last few one by one,
    /// unless there is no cache to go on from.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn adapted(&mut self, ids: &[u32], adapters: &[u32]) -> Result<Vec<Vec<f32>>, Failure> {
        let mut rows = vec![Vec::new(); adapters.len()];
        let apart = if self.program.caches.is_empty() { 0 } else { 3 };
        let prompt = ids.len() - ids.len().min(apart);
        let ends = [prompt].into_iter().chain(prompt + 1..=ids.len());
        let mut past = 0;
        for end in ends {
            let part = |&adapter: &u32| Part {
                past,
                ids: ids[past..end].to_vec(),
                adapter,
                ..Part::default()
            };
            let parts: Vec<Part> = adapters.iter().map(part).collect();
            self.side_by_side(&parts, &mut rows)?;
            past = end;
        }
        Ok(rows)
    }

    /// Rows of several sequences in one step.
    fn side_by_side(&mut self, parts: &[Part], out: &mut [Vec<f32>]) -> Result<(), Failure> {
        if parts.iter().all(|part| part.ids.is_empty()) {
            return Ok(());
        }
        let mut work = Work {
            keep: self.keep.clone(),
            ..Work::default()
        };
        let fed = parts.iter().enumerate().filter(|p| !p.1.ids.is_empty());
        for (seq, part) in fed {
            let slot = SeqSlot(seq as u32);
            let end = part.past + part.ids.len();
            work.deltas.extend(self.deltas(seq, (part.past, end)));
            work.rows.push(SeqRows {
                logits: every_row(part.ids.len()),
                keeps_states: part.keeps_states,
                prompt: part.ids.len() > 1 && !part.keeps_states,
                adapter: part.adapter,
                ..SeqRows::tokens(slot, &part.ids)
            });
        }
        let ticket = self.finish(work)?;
        let width = self.program.plans[0].value(self.rows).shape.width();
        let floats = self.read(&ticket, self.rows)?;
        let mut floats = &floats[..];
        for (part, out) in parts.iter().zip(out) {
            let (own, rest) = floats.split_at(part.ids.len() * width);
            out.extend_from_slice(own);
            floats = rest;
        }
        Ok(())
    }

    /// Copies the first sequence's states between their own block and the one of the sequence that nothing runs.
    fn snapshot(&mut self, way: fn(u32, u32) -> (u32, u32)) -> Result<(), Failure> {
        let spare = self.limits.seqs as usize - 1;
        let copy = |(g, group): (u32, &CacheGroup)| {
            let group = (group.kind == CacheKind::Recurrent).then_some(GroupId(g))?;
            let block = |seq| self.block(group, seq, 0);
            let (from, to) = way(block(0), block(spare));
            Some(BlockCopy { group, from, to })
        };
        let work = Work {
            copies: (0..).zip(&self.program.caches).filter_map(copy).collect(),
            ..Work::default()
        };
        self.finish(work).map(|_| ())
    }

    fn finish(&mut self, work: Work) -> Result<Ticket, Failure> {
        let done = finish(self.executor.as_mut(), work);
        done.map(|(ticket, _)| ticket).map_err(|e| e.to_string())
    }

    /// Runs the encoder, which leaves its rows' keys and values in the caches.
    fn encode(&mut self, ids: &[u32], sequences: usize) -> Result<(), Failure> {
        if ids.is_empty() {
            return Ok(());
        }
        let (plan, _) = self
            .program
            .plan(PlanRole::Encoder)
            .ok_or("the model has no encoder")?;
        let work = Work {
            plan,
            deltas: (0..sequences)
                .flat_map(|s| self.deltas(s, (0, 0)))
                .collect(),
            rows: slots(sequences)
                .map(|slot| SeqRows::tokens(slot, ids))
                .collect(),
            ..Work::default()
        };
        self.finish(work).map(|_| ())
    }

    /// Rows of `ids` after `past` cached positions, and the last work.
    fn feed(
        &mut self,
        ids: &[u32],
        past: usize,
        feeding: Feeding,
    ) -> Result<(Vec<f32>, Ticket), Failure> {
        let (mut all, mut last, mut done) = (Vec::new(), None, past);
        let end = past + ids.len();
        for chunk in ids.chunks(feeding.chunk.min(ids.len())) {
            let rows = |slot| SeqRows {
                logits: every_row(chunk.len()),
                prompt: chunk.len() > 1 && !feeding.tries,
                ..SeqRows::tokens(slot, chunk)
            };
            let deltas = (0..feeding.sequences).flat_map(|s| self.deltas(s, (done, end)));
            let work = Work {
                deltas: deltas.collect(),
                rows: slots(feeding.sequences).map(rows).collect(),
                keep: self.keep.clone(),
                ..Work::default()
            };
            let ticket = self.finish(work)?;
            all.extend(self.common(&ticket, feeding.sequences, done)?);
            last = Some(ticket);
            done += chunk.len();
        }
        Ok((all, last.ok_or("nothing was fed")?))
    }

    /// All rows of a value of the main plan that was kept.
    fn read(&mut self, ticket: &Ticket, value: ValueId) -> Result<Vec<f32>, Failure> {
        self.read_of(ticket, (0, value))
    }

    /// All rows of a plan's value that was kept.
    fn read_of(
        &mut self,
        ticket: &Ticket,
        (plan, value): (usize, ValueId),
    ) -> Result<Vec<f32>, Failure> {
        let rows = self
            .executor
            .rows(ticket, value)
            .map_err(|e| e.to_string())?;
        let width = self.program.plans[plan].value(value).shape.width();
        let mut out = vec![0.0; rows * width];
        let read = self.executor.read(ticket, value, 0..rows, &mut out);
        read.map(|()| out).map_err(|e| e.to_string())
    }

    fn read_ints(&mut self, ticket: &Ticket, value: ValueId) -> Result<Vec<i32>, Failure> {
        let rows = self
            .executor
            .rows(ticket, value)
            .map_err(|e| e.to_string())?;
        let width = self.program.plans[0].value(value).shape.width();
        let mut out = vec![0; rows * width];
        let read = self.executor.read_ints(ticket, value, 0..rows, &mut out);
        read.map(|()| out).map_err(|e| e.to_string())
    }

    /// The rows of the first copy, once all copies are seen to have the same bits.
    fn common(
        &mut self,
        ticket: &Ticket,
        copies: usize,
        position: usize,
    ) -> Result<Vec<f32>, Failure> {
        self.copies_of(ticket, (0, self.rows), copies)?
            .ok_or_else(|| format!("copies differ at position {position}"))
    }

    /// The rows of the first copy of a plan's value; `None` where copies differ in a bit.
    fn copies_of(
        &mut self,
        ticket: &Ticket,
        value: (usize, ValueId),
        copies: usize,
    ) -> Result<Option<Vec<f32>>, Failure> {
        let mut floats = self.read_of(ticket, value)?;
        let (first, _) = floats.split_at(floats.len() / copies);
        let differs = |c: &[f32]| (c.iter().zip(first)).any(|(a, b)| a.to_bits() != b.to_bits());
        if floats.chunks(first.len().max(1)).any(differs) {
            return Ok(None);
        }
        floats.truncate(floats.len() / copies);
        Ok(Some(floats))
    }

    /// What sets one copy right for rows from `past` on, of `end` positions in all.
    fn deltas(&self, seq: usize, (past, end): (usize, usize)) -> Vec<(SeqSlot, Delta)> {
        let table = |(g, group): (u32, &CacheGroup)| Delta::Table {
            group: GroupId(g),
            first: 0,
            blocks: self.table(GroupId(g), group, (seq, end)),
        };
        let tables = (0..).zip(&self.program.caches).map(table);
        let state = [
            Delta::Length(past as u32),
            Delta::Encoded(self.encoded as u32),
        ];
        let slot = SeqSlot(seq as u32);
        tables.chain(state).map(|delta| (slot, delta)).collect()
    }

    /// The table of one copy that has so many positions.
    fn table(&self, id: GroupId, group: &CacheGroup, (seq, len): (usize, usize)) -> Vec<u32> {
        let size = group.block_size as usize;
        let need = match group.kind {
            CacheKind::Recurrent => self.states[seq].len(),
            CacheKind::Cross => self.encoded.div_ceil(size),
            _ => len.div_ceil(size),
        };
        let block = |place| match (group.kind, place < need) {
            (CacheKind::Recurrent, true) => self.block(id, seq, self.states[seq][place]),
            (_, true) => self.block(id, seq, place),
            (_, false) => NO_BLOCK,
        };
        let places = group.table_len(&self.limits);
        (0..places).map(block).collect()
    }

    /// Block of a copy: in descending order, to catch devices that expect ascending ones.
    fn block(&self, group: GroupId, seq: usize, place: usize) -> u32 {
        let table = self.program.group(group).table_len(&self.limits);
        self.blocks[group.index()][(seq + 1) * table - 1 - place]
    }
}

fn every_row(count: usize) -> Vec<LogitRow> {
    let logit = |row| LogitRow {
        row,
        ..LogitRow::default()
    };
    (0..count as u32).map(logit).collect()
}

fn slots(count: usize) -> impl Iterator<Item = SeqSlot> {
    (0..count as u32).map(SeqSlot)
}

/// Normalised mean square error of `got` against `want`; what one suppresses the other must suppress too.
#[must_use]
pub fn nmse(got: &[f32], want: &[f32]) -> f64 {
    let (mut err, mut sum) = (0.0, 0.0);
    for (&g, &w) in got.iter().zip(want) {
        let suppressed = |x: f32| x <= f32::MIN / 2.0 || !x.is_finite();
        match (suppressed(g), suppressed(w)) {
            (true, true) => continue,
            (false, false) => {}
            _ => return f64::INFINITY,
        }
        let (g, w) = (f64::from(g), f64::from(w));
        err += (g - w) * (g - w);
        sum += w * w;
    }
    if got.len() == want.len() {
        err / sum
    } else {
        f64::INFINITY
    }
}
