//! What a work asks of the device: its words and inputs, its steps, what it leaves.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use tokkata_ir::{ArenaLayout, GroupId, Lead, Source, ValType, ValueId};

use super::laps::Laps;
use super::{CAPTURED, CAPTURED_DRAFTS, CudaExecutor, Feed, Flight, From, RECORDS, Replay, Way};
use crate::driver::{Event, Fault};
use crate::launch::{Bucket, Kinds};
use crate::layout::Plane;
use crate::params::Params;
use crate::work::record_words;

/// Columns of a kept row that a block copies, where there are not too many.
const KEPT: usize = 256;

impl CudaExecutor {
    pub(super) fn begin_on_device(&mut self, i: usize, feeds: &[Feed]) -> Result<(), Fault> {
        self.resident.context.bind()?;
        let blocks = std::mem::take(&mut self.queue[i].work.imports);
        let mut imports = Vec::new();
        for (group, block, data) in blocks {
            imports.push((group, block, self.queue[i].words.floats(&data)));
        }
        let words = std::mem::take(&mut self.queue[i].words.words);
        let behind = words.len().next_multiple_of(4);
        let ends = feeds.iter().map(|feed| match feed.from {
            From::Host(first, len) => behind + first + len,
            From::Device(..) => 0,
        });
        let len = ends.fold(words.len(), usize::max);
        let staging = self.stage(len)?;
        staging.host.write(0, &words);
        for (feed, (_, source)) in feeds.iter().zip(&self.queue[i].work.feeds) {
            if let (From::Host(first, _), Source::Host(data)) = (&feed.from, source) {
                staging
                    .host
                    .write(behind + first, bytemuck::cast_slice(data));
            }
        }
        let at = staging.device.at();
        self.stream.upload(&staging.host, len * 4, at)?;
        for copy in &self.queue[i].work.copies {
            self.copy_block(copy.group, copy.from, copy.to)?;
        }
        for (group, block, first) in imports {
            self.import_block(group, block, at + first as u64 * 4)?;
        }
        let (first, count) = self.queue[i].words.deltas;
        if count > 0 {
            let resident = &self.resident;
            let params = Params::new().u64s(&[
                resident.step_at() + resident.step.slots(),
                resident.step_at() + resident.step.tables,
                self.groups.at(),
            ]);
            let params = params.u32(resident.step.groups.len() as u32);
            let params = params.u64s(&[self.requests_at, at + first as u64 * 4]);
            self.launch(self.kernels.apply, [1; 3], 256, &params.u32(count))?;
        }
        self.queue[i].staging = Some(Arc::clone(&staging));
        if self.queue[i].failure.is_some() {
            return Ok(());
        }
        for feed in feeds {
            self.feed(i, feed, at + behind as u64 * 4)?;
        }
        self.keep_places(i)
    }

    /// Makes room for what is kept.
    fn keep_places(&mut self, i: usize) -> Result<(), Fault> {
        let job = &self.queue[i];
        let plan = &self.resident.program.plans[job.work.plan];
        let [rows, seqs, logits] = job.first.counts();
        for &value in &job.work.keep {
            let def = plan.value(value);
            let lead = match def.shape.lead {
                Lead::Rows => rows,
                Lead::Seqs => seqs,
                Lead::LogitRows => logits,
            };
            let shape = (lead, def.shape.width());
            job.kept
                .put(&self.resident.context, value, def.dtype, shape)?;
        }
        Ok(())
    }

    /// Writes an input of the plan; the host's floats begin at `floats_at`.
    fn feed(&self, i: usize, feed: &Feed, floats_at: u64) -> Result<(), Fault> {
        let job = &self.queue[i];
        let way = (job.work.plan, job.first.adapts());
        let to = self.resident.value_at(way, feed.value);
        let (from, dtype, len) = match &feed.from {
            From::Host(first, len) => (floats_at + *first as u64 * 4, ValType::F32, *len),
            From::Device(at, dtype, len, written) => {
                self.stream.wait_for(written)?;
                (*at, *dtype, *len)
            }
        };
        if feed.embeds {
            // A row for each row that reads one.
            let (mut from, mut row) = (from, 0u64);
            let row_bytes = feed.width as u64 * 4;
            for part in &job.first.parts {
                let bytes = part.len() as u64 * row_bytes;
                if matches!(part.input, tokkata_ir::RowInput::Embeds(_)) {
                    self.stream.copy(from, to + row * row_bytes, bytes)?;
                    from += bytes;
                }
                row += part.len() as u64;
            }
            return Ok(());
        }
        let kernel = match (dtype, feed.dtype) {
            (ValType::F32, ValType::I32) => self.kernels.to_ints,
            (ValType::I32, ValType::F32) => self.kernels.to_floats,
            _ => return self.stream.copy(from, to, len as u64 * 4),
        };
        let params = Params::new().u64s(&[len as u64, from, to]);
        let blocks = len.div_ceil(256).clamp(1, 1024) as u32;
        self.launch(kernel, [blocks, 1, 1], 256, &params)
    }

    /// Launches the next step of a work.
    pub(super) fn launch_step(&mut self, i: usize) -> Result<(), Fault> {
        self.resident.context.bind()?;
        let job = &self.queue[i];
        if job.failure.is_some() {
            self.queue[i].launched = self.queue[i].steps();
            return Ok(());
        }
        let staging = Arc::clone(job.staging.as_ref().expect("a work begins with its words"));
        let index = job.launched;
        let step = job.step(index);
        let way = (job.work.plan, step.adapts());
        let [rows, seqs, logits] = step.counts();
        let kinds = Kinds {
            prompts: step.parts.iter().any(|p| p.prompt),
            replies: step.parts.iter().any(|p| !p.prompt),
        };
        let first = if index == 0 {
            job.words.first
        } else {
            job.words.chain
        };
        let words_at = staging.device.at();
        let plan_at = words_at + first as u64 * 4;
        let params = self
            .step_params()
            .u64s(&[self.requests_at, words_at, plan_at]);
        let threads = (seqs * 32).clamp(64, 1024) as u32;
        self.launch(self.kernels.prepare, [1; 3], threads, &params)?;
        let behind = step.parts.iter().map(|p| self.lengths[p.slot.index()]);
        let behind = behind.max().unwrap_or(0);
        let told = step.tells();
        let laps = self.replay(way, [rows, seqs, logits], (kinds, told, behind))?;
        self.queue[i].laps = laps.map(|laps| (way, laps));
        for (value, to) in self.queue[i].kept.places() {
            self.keep(way, (value, to), plan_at, (index, [rows, seqs, logits]))?;
        }
        self.next_number = self.next_number.wrapping_add(1).max(1);
        let number = self.next_number;
        self.finish(way, plan_at, number)?;
        for part in &self.queue[i].step(index).parts {
            self.lengths[part.slot.index()] += part.len() as u32;
        }
        self.flights.push_back(Flight {
            number,
            job: self.queue[i].id,
            _staging: staging,
        });
        self.queue[i].launched += 1;
        Ok(())
    }

    fn keep(
        &self,
        way: Way,
        (value, to): (ValueId, u64),
        plan_at: u64,
        (index, counts): (u32, [usize; 3]),
    ) -> Result<(), Fault> {
        let def = self.resident.program.plans[way.0].value(value);
        let count = match def.shape.lead {
            Lead::Rows => counts[0],
            Lead::Seqs => counts[1],
            Lead::LogitRows => counts[2],
        };
        if count == 0 {
            return Ok(());
        }
        let lead = crate::layout::lead_code(def.shape.lead);
        let params = self.step_params().u64(plan_at);
        let params = params.u32s(&[lead, def.shape.width() as u32, u32::from(index > 0)]);
        let params = params.u64s(&[self.resident.value_at(way, value), to]);
        let blocks = def.shape.width().div_ceil(KEPT).clamp(1, 64) as u32;
        self.launch(self.kernels.keep, [count as u32, blocks, 1], 128, &params)
    }

    fn finish(&self, way: Way, plan_at: u64, number: u32) -> Result<(), Fault> {
        let program = &self.resident.program;
        let drawn = program.plans[way.0].output("tokens");
        let drawn = drawn.map_or(0, |v| self.resident.value_at(way, v));
        let (seqs, logits) = (program.limits.seqs, program.limits.logit_rows);
        let words = record_words(seqs as usize, logits as usize) as u64;
        let record = self.records_at + u64::from(number) % RECORDS * words * 4;
        let params = self.step_params().u64s(&[plan_at, drawn]);
        let params = params.u64s(&[self.plans[way.0].of(way.1).reports, record]);
        let params = params.u32s(&[number, seqs, logits]);
        self.launch(self.kernels.finish, [1; 3], 256, &params)
    }

    /// Runs the launches of a plan: those of decode steps as a graph. `told`: whether log-probabilities are; `behind`: the
    /// most that a sequence has cached. Gives the events between items, where works are measured.
    fn replay(
        &mut self,
        way: Way,
        [rows, seqs, logits]: [usize; 3],
        (kinds, told, behind): (Kinds, bool, u32),
    ) -> Result<Option<Arc<Laps>>, Fault> {
        let limits = &self.resident.program.limits;
        let up = |n: usize, most: u32| (n.next_power_of_two() as u32).min(most.max(1));
        let mut bucket = Bucket {
            rows: up(rows, limits.rows),
            seqs: up(seqs, limits.seqs),
            logits: up(logits, limits.logit_rows),
            kinds,
            singles: rows == seqs && !kinds.prompts,
            deep: false,
            told,
            measured: self.measured,
        };
        let lowered = self.plans[way.0].of(way.1);
        bucket.deep = bucket.is_taped() && behind >= lowered.near;
        let launches = &lowered.launches;
        let stream = &self.stream;
        let context = &self.resident.context;
        let laps = || Laps::new(context, launches, bucket).map(Arc::new);
        let laps = || bucket.measured.then(laps).transpose();
        let run = |laps: Option<&Arc<Laps>>, captured: bool| match laps {
            Some(laps) => laps.run(launches, (stream, captured)),
            None => launches.iter().try_for_each(|l| l.run(stream, bucket)),
        };
        let most = match rows == seqs {
            true => CAPTURED,
            false if kinds.prompts => 0,
            false => CAPTURED_DRAFTS,
        };
        if rows > most || !self.resident.captures {
            let laps = laps()?;
            run(laps.as_ref(), false)?;
            return Ok(laps);
        }
        let replay = match self.graphs.entry((way, bucket)) {
            Entry::Occupied(replay) => replay.into_mut(),
            Entry::Vacant(place) => {
                let laps = laps()?;
                let graph = stream.capture(|| run(laps.as_ref(), true))?;
                place.insert(Replay { graph, laps })
            }
        };
        stream.replay(&replay.graph)?;
        Ok(replay.laps.clone())
    }

    pub(super) fn end_on_device(&mut self, i: usize) -> Result<(), Fault> {
        let job = &self.queue[i];
        self.resident.context.bind()?;
        for &(group, block) in &job.work.exports {
            let layout = &self.resident.groups[group.index()];
            let planes = layout.slots.iter().flatten();
            let floats: u32 = planes.map(|p| p.width * layout.entries).sum();
            let to = job
                .kept
                .put_block(&self.resident.context, floats as usize)?;
            self.export_block(group, block, to)?;
        }
        if let Some(staging) = &job.staging {
            self.stream.record(&staging.used)?;
        }
        if !job.work.keep.is_empty() {
            let written = Event::new(&self.resident.context)?;
            self.stream.record(&written)?;
            job.kept.launched(written);
        }
        Ok(())
    }

    fn block_at(&self, block: u32) -> u64 {
        self.cache.at() + ArenaLayout::offset(block)
    }

    fn copy_block(&self, group: GroupId, from: u32, to: u32) -> Result<(), Fault> {
        let bytes = self.resident.groups[group.index()].block_bytes;
        let offsets = [from, to].map(ArenaLayout::offset);
        let params = Params::new().u64(self.cache.at()).u64s(&offsets).u64(bytes);
        let blocks = bytes.div_ceil(16 * 256).clamp(1, 1024) as u32;
        self.launch(self.kernels.copy, [blocks, 1, 1], 256, &params)
    }

    /// Calls with each plane of a group and the floats before it.
    fn planes(&self, group: GroupId) -> Vec<(Plane, u32, u64)> {
        let layout = &self.resident.groups[group.index()];
        let mut before = 0;
        let mut planes = Vec::new();
        for &plane in layout.slots.iter().flatten() {
            planes.push((plane, layout.entries, before));
            before += u64::from(plane.width * layout.entries);
        }
        planes
    }

    fn export_block(&self, group: GroupId, block: u32, to: u64) -> Result<(), Fault> {
        for (plane, entries, before) in self.planes(group) {
            let params = plane.params(Params::new().u64(self.block_at(block)));
            let params = params.u32(entries).u64(to + before * 4);
            let blocks = (plane.width * entries).div_ceil(256).clamp(1, 1024);
            self.launch(self.kernels.export, [blocks, 1, 1], 256, &params)?;
        }
        Ok(())
    }

    fn import_block(&self, group: GroupId, block: u32, from: u64) -> Result<(), Fault> {
        for (plane, entries, before) in self.planes(group) {
            let params = plane.params(Params::new().u64(self.block_at(block)));
            let params = params.u32(entries).u64(from + before * 4);
            let runs = plane.width.div_ceil(32) * entries;
            self.launch(
                self.kernels.import,
                [runs.div_ceil(8).clamp(1, 1024), 1, 1],
                256,
                &params,
            )?;
        }
        Ok(())
    }
}
