//! What works leave on the device for readers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokkata_ir::{BackendError, StepTime, ValType, ValueId};

use crate::driver::{Buffer, Context, Event, Result};

/// Device memory that is used again: what is freed is kept for the next who asks for about as much.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Buffer>>);

impl Pool {
    pub(crate) fn take(&self, context: &Arc<Context>, bytes: u64) -> Result<Buffer> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |b: &&Buffer| b.bytes() >= bytes && b.bytes() / 4 <= bytes.max(1024);
        let best = free.iter().filter(fits).map(Buffer::bytes).min();
        match best.and_then(|n| free.iter().position(|b| b.bytes() == n)) {
            Some(i) => Ok(free.swap_remove(i)),
            None => context.alloc(bytes.next_power_of_two()),
        }
    }

    fn give(&self, buffer: Buffer) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(buffer);
    }
}

/// Rows of one value.
#[derive(Debug)]
pub(crate) struct KeptValue {
    buffer: Buffer,
    pub(crate) dtype: ValType,
    pub(crate) width: usize,
    /// Rows that are there.
    pub(crate) rows: usize,
}

impl KeptValue {
    pub(crate) fn at(&self) -> u64 {
        self.buffer.at()
    }
}

/// Values and blocks of one work.
#[derive(Debug)]
pub(crate) struct Kept {
    pool: Arc<Pool>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    values: BTreeMap<ValueId, KeptValue>,
    blocks: Vec<(Buffer, usize)>,
    /// Passed when the device has written everything; there once all of it was asked for.
    written: Option<Arc<Event>>,
    done: bool,
    /// Times of its last step, where they were taken.
    times: Vec<StepTime>,
}

impl Kept {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Kept {
            pool: Arc::clone(pool),
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for rows of a value and says where.
    pub(crate) fn put(
        &self,
        context: &Arc<Context>,
        value: ValueId,
        dtype: ValType,
        (rows, width): (usize, usize),
    ) -> Result<u64> {
        let buffer = self.pool.take(context, (rows * width * 4) as u64)?;
        let at = buffer.at();
        let kept = KeptValue {
            buffer,
            dtype,
            width,
            rows,
        };
        self.inner().values.insert(value, kept);
        Ok(at)
    }

    pub(crate) fn put_block(&self, context: &Arc<Context>, floats: usize) -> Result<u64> {
        let buffer = self.pool.take(context, floats as u64 * 4)?;
        let at = buffer.at();
        self.inner().blocks.push((buffer, floats));
        Ok(at)
    }

    /// Addresses of kept values.
    pub(crate) fn places(&self) -> Vec<(ValueId, u64)> {
        let inner = self.inner();
        inner.values.iter().map(|(&id, v)| (id, v.at())).collect()
    }

    /// Every value has so many rows.
    pub(crate) fn set_rows(&self, rows: usize) {
        for value in self.inner().values.values_mut() {
            value.rows = rows;
        }
    }

    pub(crate) fn launched(&self, written: Event) {
        self.inner().written = Some(Arc::new(written));
    }

    pub(crate) fn measured(&self, times: Vec<StepTime>) {
        self.inner().times = times;
    }

    pub(crate) fn times(&self) -> Vec<StepTime> {
        self.inner().times.clone()
    }

    pub(crate) fn done(&self) {
        self.inner().done = true;
    }

    /// Address of rows of a value, its type and width, and the event after which it is written.
    pub(crate) fn source(
        &self,
        value: ValueId,
        rows: &Range<usize>,
    ) -> std::result::Result<(u64, ValType, usize, Arc<Event>), BackendError> {
        let inner = self.inner();
        let absent = BackendError::NotKept { value };
        let (Some(kept), Some(written)) = (inner.values.get(&value), &inner.written) else {
            return Err(absent);
        };
        if rows.start > rows.end || rows.end > kept.rows {
            return Err(absent);
        }
        let at = kept.at() + (rows.start * kept.width * 4) as u64;
        Ok((at, kept.dtype, kept.width, Arc::clone(written)))
    }

    pub(crate) fn rows(&self, value: ValueId) -> std::result::Result<usize, BackendError> {
        let inner = self.inner();
        let found = inner.values.get(&value).filter(|_| inner.done);
        found.map(|v| v.rows).ok_or(BackendError::NotKept { value })
    }

    /// Copies rows of a value of this type.
    pub(crate) fn read(
        &self,
        (value, dtype): (ValueId, ValType),
        rows: &Range<usize>,
        out: &mut [u8],
    ) -> std::result::Result<(), BackendError> {
        let inner = self.inner();
        let found = inner.values.get(&value);
        let fits = |v: &&KeptValue| {
            inner.done
                && v.dtype == dtype
                && rows.start <= rows.end
                && rows.end <= v.rows
                && out.len() == rows.len() * v.width * 4
        };
        let Some(kept) = found.filter(fits) else {
            return Err(BackendError::NotKept { value });
        };
        let offset = (rows.start * kept.width * 4) as u64;
        kept.buffer.read(offset, out).map_err(crate::error::lost)
    }

    /// A block that was given out; the device must be done with it.
    pub(crate) fn block(&self, i: usize) -> std::result::Result<Vec<f32>, BackendError> {
        let inner = self.inner();
        let absent = BackendError::NotKept { value: ValueId(0) };
        let (buffer, floats) = inner.blocks.get(i).filter(|_| inner.done).ok_or(absent)?;
        let mut out = vec![0f32; *floats];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        buffer.read(0, bytes).map_err(crate::error::lost)?;
        Ok(out)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let inner = std::mem::take(&mut *self.inner());
        for value in inner.values.into_values() {
            self.pool.give(value.buffer);
        }
        for (buffer, _) in inner.blocks {
            self.pool.give(buffer);
        }
    }
}
