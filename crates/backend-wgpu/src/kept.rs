//! What works leave on the device for readers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokkata_ir::{BackendError, ValType, ValueId};

use crate::gpu::Gpu;

/// Device memory that is used again: what is freed is kept for the next who asks for about as much.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) gpu: Arc<Gpu>,
    free: Mutex<Vec<wgpu::Buffer>>,
}

impl Pool {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Self {
        Pool {
            gpu: Arc::clone(gpu),
            free: Mutex::default(),
        }
    }

    pub(crate) fn take(&self, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |b: &&wgpu::Buffer| b.size() >= bytes && b.size() / 4 <= bytes.max(1024);
        let best = free.iter().filter(fits).map(wgpu::Buffer::size).min();
        match best.and_then(|n| free.iter().position(|b| b.size() == n)) {
            Some(i) => Ok(free.swap_remove(i)),
            None => self.gpu.alloc("kept values", bytes.next_power_of_two()),
        }
    }

    fn give(&self, buffer: wgpu::Buffer) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(buffer);
    }
}

/// Rows of one value.
#[derive(Debug)]
struct KeptValue {
    buffer: wgpu::Buffer,
    dtype: ValType,
    width: usize,
    /// Rows that are there.
    rows: usize,
}

/// Rows of a kept value that another work reads.
pub(crate) struct Found {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) buffer: wgpu::Buffer,
    /// The first word.
    pub(crate) at: u64,
    pub(crate) dtype: ValType,
    pub(crate) width: usize,
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
    blocks: Vec<(wgpu::Buffer, usize)>,
    /// Everything that writes them was submitted.
    written: bool,
    done: bool,
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

    /// Makes room for rows of a value.
    pub(crate) fn put(
        &self,
        value: ValueId,
        dtype: ValType,
        (rows, width): (usize, usize),
    ) -> Result<(), BackendError> {
        let buffer = self.pool.take((rows * width * 4).max(4) as u64)?;
        let kept = KeptValue {
            buffer,
            dtype,
            width,
            rows,
        };
        self.inner().values.insert(value, kept);
        Ok(())
    }

    pub(crate) fn put_block(&self, floats: usize) -> Result<wgpu::Buffer, BackendError> {
        let buffer = self.pool.take(floats.max(1) as u64 * 4)?;
        self.inner().blocks.push((buffer.clone(), floats));
        Ok(buffer)
    }

    /// Where kept values go.
    pub(crate) fn places(&self) -> Vec<(ValueId, wgpu::Buffer)> {
        let inner = self.inner();
        let values = inner.values.iter();
        values.map(|(&id, v)| (id, v.buffer.clone())).collect()
    }

    /// Every value has so many rows.
    pub(crate) fn set_rows(&self, rows: usize) {
        for value in self.inner().values.values_mut() {
            value.rows = rows;
        }
    }

    pub(crate) fn submitted(&self) {
        self.inner().written = true;
    }

    pub(crate) fn done(&self) {
        self.inner().done = true;
    }

    /// Rows of a value, for works that are submitted later.
    pub(crate) fn source(&self, value: ValueId, rows: &Range<usize>) -> Option<Found> {
        let inner = self.inner();
        let kept = inner.values.get(&value).filter(|_| inner.written)?;
        (rows.start <= rows.end && rows.end <= kept.rows).then(|| Found {
            gpu: Arc::clone(&self.pool.gpu),
            buffer: kept.buffer.clone(),
            at: (rows.start * kept.width) as u64,
            dtype: kept.dtype,
            width: kept.width,
        })
    }

    pub(crate) fn rows(&self, value: ValueId) -> Result<usize, BackendError> {
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
    ) -> Result<(), BackendError> {
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
        self.pool.gpu.read(&kept.buffer, offset, out)
    }

    /// A block that was given out.
    pub(crate) fn block(&self, i: usize) -> Result<Vec<f32>, BackendError> {
        let inner = self.inner();
        let absent = BackendError::NotKept { value: ValueId(0) };
        let (buffer, floats) = inner.blocks.get(i).filter(|_| inner.done).ok_or(absent)?;
        let mut out = vec![0f32; *floats];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        self.pool.gpu.read(buffer, 0, bytes)?;
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
