//! What a work asks of the device: its words and inputs, its steps, what it leaves.

use std::sync::Arc;

use tokkata_ir::{ArenaLayout, BackendError, Delta, GroupId, Lead, RowInput, ValType, ValueId};

use super::batch::{Extra, Staging};
use super::{Feed, From, Way, WgpuExecutor};
use crate::launch::Size;
use crate::layout::{Plane, lead_code};
use crate::params::{NONE, Params};
use crate::replay::Prepared;

/// Workgroups of 256 threads for so many elements.
fn groups_for(elements: u64) -> u32 {
    elements.div_ceil(256).clamp(1, 1024) as u32
}

/// The word of the cache at which a block starts.
fn block_at(block: u32) -> u32 {
    (ArenaLayout::offset(block) / 4) as u32
}

impl WgpuExecutor {
    pub(super) fn add_beginning(&mut self, i: usize, feeds: Vec<Feed>) -> Result<(), BackendError> {
        for (slot, delta) in &self.queue[i].work.deltas {
            match delta {
                Delta::Clear => self.lengths[slot.index()] = 0,
                Delta::Length(n) => self.lengths[slot.index()] = *n,
                _ => {}
            }
        }
        let blocks = std::mem::take(&mut self.queue[i].work.imports);
        let mut imports = Vec::new();
        for (group, block, data) in blocks {
            imports.push((group, block, self.queue[i].words.floats(&data)));
        }
        let words = std::mem::take(&mut self.queue[i].words.words);
        let staging = self.stage(&words)?;
        for copy in std::mem::take(&mut self.queue[i].work.copies) {
            self.copy_block(&staging, copy.group, (copy.from, copy.to))?;
        }
        for (group, block, first) in imports {
            self.import_block(&staging, group, (block, first as u32))?;
        }
        let (first, count) = self.queue[i].words.deltas;
        if count > 0 {
            let groups = &self.resident.step.groups;
            let params = Params::new().u32s(&[first as u32, count, groups.len() as u32]);
            let params = groups.iter().fold(params, |p, g| p.u32s(g));
            let kernel = self.kernels.apply.clone();
            self.add(&kernel, &one(&staging), &params)?;
        }
        self.queue[i].staging = Some(Arc::clone(&staging));
        if self.queue[i].failure.is_some() {
            return Ok(());
        }
        for feed in feeds {
            self.feed(i, &feed, &staging)?;
        }
        self.keep_places(i)
    }

    /// Makes room for what is kept.
    fn keep_places(&mut self, i: usize) -> Result<(), BackendError> {
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
            job.kept.put(value, def.dtype, (lead, def.shape.width()))?;
        }
        Ok(())
    }

    /// Writes an input of the plan.
    fn feed(&mut self, i: usize, feed: &Feed, staging: &Arc<Staging>) -> Result<(), BackendError> {
        let job = &self.queue[i];
        let way = (job.work.plan, job.first.adapts());
        let to = self.resident.value_at(way, feed.value);
        let (mut from, dtype, len, other) = match &feed.from {
            From::Words(first, len, dtype) => (*first as u32, *dtype, *len as u32, None),
            From::Device(found, len) => (
                found.at as u32,
                found.dtype,
                *len as u32,
                Some(&found.buffer),
            ),
        };
        let conversion = match (dtype, feed.dtype) {
            (ValType::I32, ValType::F32) => 1,
            (ValType::F32, ValType::I32) => 2,
            _ => 0,
        };
        // A row for each row that reads one; of other ports all rows.
        let mut pieces = Vec::new();
        if feed.embeds {
            let mut row = 0;
            for part in &job.first.parts {
                let words = (part.len() * feed.width) as u32;
                if matches!(part.input, RowInput::Embeds(_)) {
                    pieces.push((words, from, to + row * feed.width as u32));
                    from += words;
                }
                row += part.len() as u32;
            }
        } else {
            pieces.push((len, from, to));
        }
        let kernel = self.kernels.feed.clone();
        for (words, from, to) in pieces {
            let params = Params::new().u32s(&[words, from, to, conversion]);
            let params = params.u32(other.is_some().into());
            let extra = Extra {
                staging,
                other,
                groups: groups_for(words.into()),
            };
            self.add(&kernel, &extra, &params)?;
        }
        Ok(())
    }

    /// Adds the next step of a work.
    pub(super) fn add_step(&mut self, i: usize) -> Result<(), BackendError> {
        let job = &self.queue[i];
        if job.failure.is_some() {
            self.queue[i].launched = self.queue[i].steps();
            return Ok(());
        }
        let staging = Arc::clone(job.staging.as_ref().expect("a work begins with its words"));
        let (id, index) = (job.id, job.launched);
        let step = job.step(index);
        let way = (job.work.plan, step.adapts());
        let [rows, seqs, logits] = step.counts();
        let words = step.record_words();
        let mut positions = 0;
        for part in &step.parts {
            let length = &mut self.lengths[part.slot.index()];
            *length = (*length + part.len() as u32).min(self.resident.program.limits.ctx);
            positions = positions.max(*length);
        }
        let size = Size {
            rows: rows as u32,
            seqs: seqs as u32,
            logits: logits as u32,
            prompts: step.parts.iter().any(|p| p.prompt),
            replies: step.replies().map(|n| n as u32),
            singles: rows == seqs && step.parts.iter().all(|p| !p.prompt),
            positions,
            told: self.resident.gpu.told(),
        };
        let plan_at = match index {
            0 => job.words.first,
            _ => job.words.chain,
        } as u32;
        let recorded = self.recorded(way, size, &staging)?;
        let replays = self.replays.as_ref().filter(|_| recorded.is_some());
        let around = replays.map(|r| [r.prepare, r.finish]);
        let prepare = Params::new().u32(plan_at);
        self.around(
            around.map(|a| a[0]),
            &self.kernels.prepare.clone(),
            &staging,
            &prepare,
        )?;
        match recorded {
            Some(recorded) => self.add_recorded(recorded),
            None => self.add_plan(way, size, &staging)?,
        }
        for (value, to) in self.queue[i].kept.places() {
            self.keep(way, (value, &to), (plan_at, &staging), (index, size))?;
        }
        self.room_for(1)?;
        let program = &self.resident.program;
        let drawn = program.plans[way.0].output("tokens");
        let drawn = drawn.map_or(NONE, |v| self.resident.value_at(way, v));
        let reports = self.resident.plans[way.0].of(way.1).0.reports;
        let plain = 4 + 2 * seqs + 2 * logits;
        let params = Params::new().u32s(&[plan_at, drawn, reports.unwrap_or(0)]);
        let params = params.u32s(&[self.next_record() as u32, id as u32]);
        let params = params.u32((reports.is_some() && words > plain).into());
        self.around(
            around.map(|a| a[1]),
            &self.kernels.finish.clone(),
            &staging,
            &params,
        )?;
        self.add_flight(id, words);
        self.queue[i].launched += 1;
        Ok(())
    }

    /// A kernel before or behind those of a plan, replayed as they are.
    fn around(
        &mut self,
        replayed: Option<Prepared>,
        kernel: &wgpu::ComputePipeline,
        staging: &Arc<Staging>,
        params: &Params,
    ) -> Result<(), BackendError> {
        match replayed {
            Some(kernel) => self.add_call(kernel, staging, params),
            None => self.add(kernel, &one(staging), params),
        }
    }

    fn keep(
        &mut self,
        way: Way,
        (value, to): (ValueId, &wgpu::Buffer),
        (plan_at, staging): (u32, &Arc<Staging>),
        (index, size): (u32, Size),
    ) -> Result<(), BackendError> {
        let shape = &self.resident.program.plans[way.0].value(value).shape;
        let count = size.of(shape.lead);
        if count == 0 {
            return Ok(());
        }
        let params = Params::new().u32s(&[plan_at, lead_code(shape.lead), shape.width() as u32]);
        let from = self.resident.value_at(way, value);
        let params = params.u32s(&[u32::from(index > 0), from]);
        let kernel = self.kernels.keep.clone();
        let extra = Extra {
            staging,
            other: Some(to),
            groups: count,
        };
        self.add(&kernel, &extra, &params)
    }

    pub(super) fn add_end(&mut self, i: usize) -> Result<(), BackendError> {
        let exports = std::mem::take(&mut self.queue[i].work.exports);
        let kept = Arc::clone(&self.queue[i].kept);
        let staging = self.queue[i].staging.clone();
        for (group, block) in exports {
            let staging = staging.as_ref().expect("a work begins with its words");
            let layout = &self.resident.groups[group.index()];
            let planes = layout.slots.iter().flatten();
            let floats: u32 = planes.map(|p| p.width * layout.entries).sum();
            let to = kept.put_block(floats as usize)?;
            self.export_block(staging, (group, block), &to)?;
        }
        Ok(())
    }

    fn copy_block(
        &mut self,
        staging: &Arc<Staging>,
        group: GroupId,
        (from, to): (u32, u32),
    ) -> Result<(), BackendError> {
        let words = self.resident.groups[group.index()].block_words;
        let params = Params::new().u32s(&[block_at(from), block_at(to), words as u32]);
        let kernel = self.kernels.copy.clone();
        let extra = Extra {
            staging,
            other: None,
            groups: groups_for(words),
        };
        self.add(&kernel, &extra, &params)
    }

    /// Each plane of a group, its entries, and the floats before it.
    fn planes(&self, group: GroupId) -> Vec<(Plane, u32, u32)> {
        let layout = &self.resident.groups[group.index()];
        let mut before = 0;
        let mut planes = Vec::new();
        for &plane in layout.slots.iter().flatten() {
            planes.push((plane, layout.entries, before));
            before += plane.width * layout.entries;
        }
        planes
    }

    fn export_block(
        &mut self,
        staging: &Arc<Staging>,
        (group, block): (GroupId, u32),
        to: &wgpu::Buffer,
    ) -> Result<(), BackendError> {
        let kernel = self.kernels.export.clone();
        for (plane, entries, before) in self.planes(group) {
            let params = Params::new().u32s(&[block_at(block), entries, before, 0]);
            let extra = Extra {
                staging,
                other: Some(to),
                groups: groups_for(u64::from(plane.width) * u64::from(entries)),
            };
            self.add(&kernel, &extra, &params.u32s(&plane.words()))?;
        }
        Ok(())
    }

    fn import_block(
        &mut self,
        staging: &Arc<Staging>,
        group: GroupId,
        (block, from): (u32, u32),
    ) -> Result<(), BackendError> {
        let kernel = self.kernels.import.clone();
        for (plane, entries, before) in self.planes(group) {
            let params = Params::new().u32s(&[block_at(block), entries, from + before, 0]);
            let runs = u64::from(plane.width.div_ceil(32)) * u64::from(entries);
            let extra = Extra {
                staging,
                other: None,
                groups: groups_for(runs),
            };
            self.add(&kernel, &extra, &params.u32s(&plane.words()))?;
        }
        Ok(())
    }
}

/// One workgroup.
fn one(staging: &Arc<Staging>) -> Extra<'_> {
    Extra {
        staging,
        other: None,
        groups: 1,
    }
}
