//! What works leave for readers, in the host's memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{BackendError, StepTime};
use crate::ids::ValueId;

/// Values, blocks and times of one work.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    floats: BTreeMap<ValueId, (usize, Vec<f32>)>,
    ints: BTreeMap<ValueId, (usize, Vec<i32>)>,
    blocks: Vec<Vec<f32>>,
    times: Vec<StepTime>,
}

fn put<T: Copy>(
    map: &mut BTreeMap<ValueId, (usize, Vec<T>)>,
    value: ValueId,
    width: usize,
    data: &[T],
) {
    let entry = map.entry(value).or_default();
    entry.0 = width;
    entry.1.clear();
    entry.1.extend_from_slice(data);
}

fn rows_of<T>(
    map: &BTreeMap<ValueId, (usize, Vec<T>)>,
    value: ValueId,
    rows: Range<usize>,
) -> Result<&[T], BackendError> {
    let found = map.get(&value);
    found
        .and_then(|(width, data)| data.get(rows.start * width..rows.end * width))
        .ok_or(BackendError::NotKept { value })
}

impl Kept {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put_floats(&self, value: ValueId, width: usize, data: &[f32]) {
        put(&mut self.inner().floats, value, width, data);
    }

    pub(crate) fn put_ints(&self, value: ValueId, width: usize, data: &[i32]) {
        put(&mut self.inner().ints, value, width, data);
    }

    pub(crate) fn put_block(&self, data: Vec<f32>) {
        self.inner().blocks.push(data);
    }

    pub(crate) fn put_times(&self, times: Vec<StepTime>) {
        self.inner().times = times;
    }

    pub(crate) fn rows(&self, value: ValueId) -> Result<usize, BackendError> {
        let inner = self.inner();
        let floats = inner.floats.get(&value).map(|(w, x)| x.len() / (*w).max(1));
        let ints = inner.ints.get(&value).map(|(w, x)| x.len() / (*w).max(1));
        floats.or(ints).ok_or(BackendError::NotKept { value })
    }

    /// What a port takes: integers as floats.
    pub(crate) fn floats(
        &self,
        value: ValueId,
        rows: &Range<usize>,
    ) -> Result<Vec<f32>, BackendError> {
        let inner = self.inner();
        if inner.ints.contains_key(&value) {
            let ints = rows_of(&inner.ints, value, rows.clone())?;
            return Ok(ints.iter().map(|&x| x as f32).collect());
        }
        Ok(rows_of(&inner.floats, value, rows.clone())?.to_vec())
    }

    pub(crate) fn read(
        &self,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        copy(rows_of(&self.inner().floats, value, rows)?, value, out)
    }

    pub(crate) fn read_ints(
        &self,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [i32],
    ) -> Result<(), BackendError> {
        copy(rows_of(&self.inner().ints, value, rows)?, value, out)
    }

    pub(crate) fn block(&self, i: usize) -> Option<Vec<f32>> {
        self.inner().blocks.get(i).cloned()
    }

    pub(crate) fn times(&self) -> Vec<StepTime> {
        self.inner().times.clone()
    }
}

fn copy<T: Copy>(from: &[T], value: ValueId, out: &mut [T]) -> Result<(), BackendError> {
    if from.len() != out.len() {
        return Err(BackendError::NotKept { value });
    }
    out.copy_from_slice(from);
    Ok(())
}
