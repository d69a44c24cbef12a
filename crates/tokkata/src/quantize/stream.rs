//! Chunks of rows through many threads and in order into one file.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokkata_formats::GgufOutput;
use tokkata_quant::{QuantError, dequantize, quantize};

use super::{Quantization, QuantizeError, Target};

/// Elements that a thread works on at a time: they fit its cache, and make a long read.
const CHUNK_ELEMS: usize = 1 << 18;
/// Finished chunks per thread that may wait to be written.
const AHEAD: usize = 4;

/// Rows of one tensor, none of them of different experts.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    tensor: usize,
    row: usize,
    rows: usize,
}

type Done = Result<Vec<u8>, QuantizeError>;

/// What the threads share.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    ahead: usize,
    count: usize,
}

#[derive(Default)]
struct State {
    next: usize,
    written: usize,
    done: BTreeMap<usize, Done>,
    over: bool,
}

pub(super) fn write(
    job: &Quantization<'_>,
    out: &mut GgufOutput,
    on_bytes: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), QuantizeError> {
    let chunks = chunks(&job.tensors);
    let threads = job.options.threads.max(1);
    let queue = Queue {
        state: Mutex::default(),
        changed: Condvar::new(),
        ahead: threads * AHEAD,
        count: chunks.len(),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(chunks.len()) {
            scope.spawn(|| work(job, &chunks, &queue));
        }
        let result = collect(job, &chunks, &queue, out, on_bytes);
        queue.lock().over = true;
        queue.changed.notify_all();
        result
    })
}

fn chunks(tensors: &[Target<'_>]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (tensor, target) in tensors.iter().enumerate() {
        let per_expert = target.source.dims_ggml()[1].max(1);
        let most = (CHUNK_ELEMS / target.source.row_elems().max(1)).clamp(1, per_expert);
        let mut row = 0;
        while row < target.source.rows() {
            let left = per_expert - row % per_expert;
            let rows = left.min(most);
            chunks.push(Chunk { tensor, row, rows });
            row += rows;
        }
    }
    chunks
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The next chunk to work on, once the file is not too far behind.
    fn take(&self) -> Option<usize> {
        let mut state = self.lock();
        while !state.over && state.next < self.count && state.next >= state.written + self.ahead {
            state = self.wait(state);
        }
        if state.over || state.next >= self.count {
            return None;
        }
        state.next += 1;
        Some(state.next - 1)
    }

    fn put(&self, number: usize, done: Done) {
        self.lock().done.insert(number, done);
        self.changed.notify_all();
    }

    /// The bytes of chunk `number`, once they are made.
    fn get(&self, number: usize) -> Done {
        let mut state = self.lock();
        loop {
            if let Some(done) = state.done.remove(&number) {
                state.written = number + 1;
                drop(state);
                self.changed.notify_all();
                return done;
            }
            state = self.wait(state);
        }
    }
}

fn work(job: &Quantization<'_>, chunks: &[Chunk], queue: &Queue) {
    let (mut raw, mut values) = (Vec::new(), Vec::new());
    while let Some(number) = queue.take() {
        let done = convert(job, chunks[number], &mut raw, &mut values);
        queue.put(number, done);
    }
}

fn convert(job: &Quantization<'_>, chunk: Chunk, raw: &mut Vec<u8>, values: &mut Vec<f32>) -> Done {
    let target = &job.tensors[chunk.tensor];
    let source = target.source;
    let row_bytes = source.row_bytes();
    raw.resize(chunk.rows * row_bytes, 0);
    let at = chunk.row as u64 * row_bytes as u64;
    job.file.read_at(source, at, raw)?;
    if !target.changes() {
        return Ok(std::mem::take(raw));
    }
    values.resize(chunk.rows * source.row_elems(), 0.0);
    let converted =
        dequantize(source.dtype, raw, values).and_then(|()| narrow(target, chunk, values));
    converted.map_err(|error| QuantizeError::Tensor {
        file: job.file.path().display().to_string(),
        tensor: source.name.clone(),
        row: chunk.row,
        source: error,
    })
}

fn narrow(target: &Target<'_>, chunk: Chunk, values: &[f32]) -> Result<Vec<u8>, QuantError> {
    let width = target.source.row_elems();
    let expert = chunk.row / target.source.dims_ggml()[1].max(1);
    let importance = target.importance.as_deref();
    let importance = importance.map(|all| &all[expert * width..][..width]);
    // A width that blocks do not divide gives no size; quantising tells.
    let row_bytes = target.dtype.row_bytes(width).unwrap_or(0);
    let mut bytes = vec![0; chunk.rows * row_bytes];
    quantize(target.dtype, values, width, importance, &mut bytes)?;
    Ok(bytes)
}

fn collect(
    job: &Quantization<'_>,
    chunks: &[Chunk],
    queue: &Queue,
    out: &mut GgufOutput,
    mut on_bytes: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), QuantizeError> {
    let total = job.tensors.iter().map(|t| t.source.bytes).sum();
    let mut read = 0;
    for (number, chunk) in chunks.iter().enumerate() {
        out.write(&queue.get(number)?)?;
        let source = job.tensors[chunk.tensor].source;
        read += (chunk.rows * source.row_bytes()) as u64;
        if on_bytes(read, total).is_break() {
            let file = out.path().display().to_string();
            return Err(QuantizeError::Stopped { file });
        }
    }
    Ok(())
}
