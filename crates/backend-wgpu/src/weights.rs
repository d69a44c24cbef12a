//! Weights on the device: packed blocks in arenas for products and look-ups, floats for everything else.

use std::collections::{BTreeMap, BTreeSet};

use tokkata_core::DType;
use tokkata_ir::weight::{power_of_halves, read_f32};
use tokkata_ir::{
    BackendError, Op, Program, RawRows, SourceInfo, WeightDef, WeightId, WeightSource,
};

use crate::error::{lost, unsupported};
use crate::formats::{bound, pack, packed};
use crate::gpu::Gpu;

/// Everything starts at a multiple of so many words.
const ALIGN: u64 = 64;

/// Bytes that are read at once.
const PORTION: usize = 4 << 20;

/// Bytes that may be on their way to the device.
const STAGED: usize = 64 << 20;

/// Rows of one format in one arena.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) dtype: DType,
    /// Its first row among those of the weight.
    pub(crate) first: u32,
    pub(crate) rows: u32,
    pub(crate) row_words: u32,
    pub(crate) arena: usize,
    /// Its first word there.
    pub(crate) at: u64,
    /// What no weight of it is larger than, where that is known.
    most: Option<f32>,
}

impl Segment {
    /// What its weights are multiplied by when they are made halves, a power of two.
    pub(crate) fn scale_of_halves(&self) -> f32 {
        self.most.map_or(16.0, power_of_halves)
    }
}

/// Where a weight lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) segments: Vec<Segment>,
    /// Its elements as floats, among the vectors.
    pub(crate) floats: Option<u32>,
}

/// All weights of a program.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) arenas: Vec<wgpu::Buffer>,
    /// Vectors, and what kernels look up; uploaded once everything is in it.
    pub(crate) vectors: Vec<u32>,
    places: Vec<Place>,
}

/// Arenas on their way: words in use.
struct Arenas {
    used: Vec<u64>,
    most: u64,
}

impl Arenas {
    /// Words left in the last one.
    fn left(&self) -> u64 {
        self.used.last().map_or(0, |used| self.most - used)
    }

    fn take(&mut self, words: u64) -> (usize, u64) {
        let words = words.next_multiple_of(ALIGN);
        if self.left() < words {
            self.used.push(0);
        }
        let arena = self.used.len() - 1;
        let at = self.used[arena];
        self.used[arena] += words;
        (arena, at)
    }

    /// Places of rows that belong together by so many; cut where an arena ends, if they are more than one holds.
    fn place(
        &mut self,
        (dtype, row_words): (DType, u64),
        mut rows: std::ops::Range<u64>,
        unit: u64,
    ) -> Option<Vec<Segment>> {
        let mut segments = Vec::new();
        while !rows.is_empty() {
            let all = rows.end - rows.start;
            let fit = |words: u64| words / row_words.max(1) / unit * unit;
            let whole = all <= fit(self.most);
            let take = if whole { all } else { fit(self.most) };
            if take == 0 {
                return None;
            }
            let (arena, at) = self.take(take * row_words);
            segments.push(Segment {
                dtype,
                first: rows.start as u32,
                rows: take as u32,
                row_words: row_words as u32,
                arena,
                at,
                most: None,
            });
            rows.start += take;
        }
        Some(segments)
    }
}

impl Weights {
    pub(crate) fn place(&self, id: WeightId) -> &Place {
        &self.places[id.index()]
    }

    /// First word of a weight that is used elementwise.
    pub(crate) fn floats(&self, id: WeightId) -> u32 {
        self.places[id.index()]
            .floats
            .expect("elementwise weights are floats")
    }

    /// Loads what plans read; `vectors` come before the floats.
    pub(crate) fn load(
        gpu: &Gpu,
        program: &Program,
        source: &dyn WeightSource,
        mut vectors: Vec<u32>,
    ) -> Result<Self, BackendError> {
        let (blocks, floats) = roles(program);
        let mut arenas = Arenas {
            used: Vec::new(),
            most: gpu.arena_bytes() / 4,
        };
        let mut places = Vec::new();
        for (i, def) in program.weights.iter().enumerate() {
            let mut place = Place::default();
            if let Some(&unit) = blocks.get(&i) {
                let mut first = 0;
                for (dtype, rows) in formats(def, source)? {
                    let row_words = row_words(dtype, def)?;
                    let placed = arenas.place((dtype, row_words), first..first + rows, unit);
                    let wide = || {
                        unsupported(format!(
                            "{}: a matrix of {unit} rows is wider than a binding",
                            def.name
                        ))
                    };
                    place.segments.extend(placed.ok_or_else(wide)?);
                    first += rows;
                }
            }
            if floats.contains(&i) {
                vectors.resize(vectors.len().next_multiple_of(ALIGN as usize), 0);
                place.floats = Some(vectors.len() as u32);
                let rows: usize = RawRows::new(source, &def.recipe)?
                    .segments()
                    .iter()
                    .map(|s| s.rows)
                    .sum();
                let x = read_f32(source, &def.recipe, 0, rows)?;
                vectors.extend(x.iter().map(|x| x.to_bits()));
            }
            places.push(place);
        }
        let buffers = arenas.used.iter();
        let buffers: Result<Vec<_>, _> = buffers.map(|&words| gpu.arena(words * 4)).collect();
        let mut arenas = buffers?;
        if arenas.is_empty() {
            arenas.push(gpu.arena(256)?);
        }
        let mut upload = Upload {
            gpu,
            arenas: &arenas,
            staged: 0,
        };
        for (def, place) in program.weights.iter().zip(&mut places) {
            upload.weight(def, place, source)?;
        }
        upload.flush()?;
        if gpu.abilities.mapped {
            arenas.iter().for_each(wgpu::Buffer::unmap);
        }
        Ok(Weights {
            arenas,
            vectors,
            places,
        })
    }
}

/// Weights that are used as blocks with the rows that belong together, and those that are used as floats.
fn roles(program: &Program) -> (BTreeMap<usize, u64>, BTreeSet<usize>) {
    let (mut blocks, mut floats) = (BTreeMap::new(), BTreeSet::new());
    for node in program.plans.iter().flat_map(|p| &p.nodes) {
        let matrix = match &node.op {
            Op::Gather { table, .. } => Some((*table, false)),
            Op::Matmul { weight, .. } => Some((*weight, false)),
            Op::HeadMatmul { weight, .. } | Op::Experts { weight, .. } => Some((*weight, true)),
            _ => None,
        };
        if let Some((id, several)) = matrix {
            let shape = &program.weights[id.index()].shape;
            let unit = match several {
                true => u64::from(shape[shape.len() - 2]),
                false => 1,
            };
            let own = blocks.entry(id.index()).or_insert(1);
            *own = unit.max(*own);
        }
        let others = node.op.weights().into_iter();
        let others = others.filter(|&w| matrix.is_none_or(|m| m.0 != w));
        floats.extend(others.map(WeightId::index));
    }
    (blocks, floats)
}

/// The format that rows are kept in: floats where there is no kernel for the file's.
fn kept_as(dtype: DType) -> DType {
    match packed(dtype) {
        Some(_) => dtype,
        None => DType::F32,
    }
}

/// Rows of a weight by the formats they are kept in.
fn formats(def: &WeightDef, source: &dyn WeightSource) -> Result<Vec<(DType, u64)>, BackendError> {
    let rows = RawRows::new(source, &def.recipe)?;
    let elems: usize = rows.segments().iter().map(|s| s.rows * s.cols).sum();
    let expected = def.rows() * def.cols();
    if elems != expected {
        return Err(BackendError::Weight(format!(
            "{} has {elems} elements where the plan expects {expected}",
            def.name
        )));
    }
    let mut merged: Vec<(DType, u64)> = Vec::new();
    for info in rows.segments() {
        let dtype = kept_as(info.dtype);
        let rows = (info.rows * info.cols / def.cols().max(1)) as u64;
        match merged.last_mut() {
            Some(last) if last.0 == dtype => last.1 += rows,
            _ => merged.push((dtype, rows)),
        }
    }
    Ok(merged)
}

/// Bytes of a row as it is read.
fn row_bytes(dtype: DType, cols: usize, name: &str) -> Result<usize, BackendError> {
    let what = || format!("{name}: rows of {cols} are not whole {dtype} blocks");
    let bytes = dtype.row_bytes(cols);
    bytes.ok_or_else(|| BackendError::Weight(what()))
}

/// Words of a row as it is kept.
fn row_words(dtype: DType, def: &WeightDef) -> Result<u64, BackendError> {
    row_bytes(dtype, def.cols(), &def.name)?;
    let packed = packed(dtype).ok_or_else(|| unsupported(format!("weights of {dtype}")))?;
    Ok((def.cols().div_ceil(packed.elems) * packed.words) as u64)
}

struct Upload<'a> {
    gpu: &'a Gpu,
    arenas: &'a [wgpu::Buffer],
    staged: usize,
}

impl Upload<'_> {
    fn flush(&mut self) -> Result<(), BackendError> {
        self.gpu.queue.submit([]);
        let waited = self.gpu.device.poll(wgpu::PollType::wait_indefinitely());
        waited.map_err(|e| lost(e.to_string()))?;
        self.staged = 0;
        self.gpu.healthy()
    }

    /// Rows from one of the weight on, packed into their places.
    fn rows(
        &mut self,
        place: &mut Place,
        first: usize,
        row_bytes: usize,
        raw: &[u8],
    ) -> Result<(), BackendError> {
        let count = raw.len() / row_bytes.max(1);
        for segment in &mut place.segments {
            let (from, to) = (
                segment.first as usize,
                (segment.first + segment.rows) as usize,
            );
            let (a, b) = (first.max(from), (first + count).min(to));
            if a >= b {
                continue;
            }
            let words = segment.row_words as usize;
            let mut out = vec![0u32; (b - a) * words];
            let rows =
                raw[(a - first) * row_bytes..(b - first) * row_bytes].chunks_exact(row_bytes);
            for (row, out) in rows.zip(out.chunks_exact_mut(words)) {
                pack(segment.dtype, row, out);
                // Cooperative matrices alone have weights as halves.
                let halved = self.gpu.matrices.is_some();
                if let Some(most) = halved.then(|| bound(segment.dtype, row)).flatten() {
                    segment.most = Some(segment.most.map_or(most, |m| m.max(most)));
                }
            }
            let at = (segment.at + ((a - from) * words) as u64) * 4;
            let bytes: &[u8] = bytemuck::cast_slice(&out);
            let arena = &self.arenas[segment.arena];
            if self.gpu.abilities.mapped {
                let view = arena.get_mapped_range_mut(at..at + bytes.len() as u64);
                let mut view = view.map_err(|e| lost(e.to_string()))?;
                view.copy_from_slice(bytes);
                continue;
            }
            self.gpu.queue.write_buffer(arena, at, bytes);
            self.staged += bytes.len();
            if self.staged > STAGED {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn weight(
        &mut self,
        def: &WeightDef,
        place: &mut Place,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        if place.segments.is_empty() {
            return Ok(());
        }
        let rows = RawRows::new(source, &def.recipe)?;
        let (mut first, mut done) = (0, 0);
        for info in rows.segments() {
            let dtype = kept_as(info.dtype);
            let own = row_bytes(dtype, info.cols, &def.name)?;
            // Rows of another width are those of the weight, cut elsewhere.
            let bytes = row_bytes(dtype, def.cols(), &def.name)?;
            let portion = match info.cols == def.cols() {
                true => (PORTION / own.max(1)).max(1),
                false => info.rows,
            };
            for start in (0..info.rows).step_by(portion.max(1)) {
                let take = portion.min(info.rows - start);
                let mut raw = vec![0u8; take * own];
                match dtype == info.dtype {
                    true => rows.read(first + start, take, &mut raw)?,
                    false => floats(source, def, first + start, info, &mut raw)?,
                }
                self.rows(place, done, bytes, &raw)?;
                done += raw.len() / bytes.max(1);
            }
            first += info.rows;
        }
        Ok(())
    }
}

/// Rows of a format without kernels, as the bytes of floats.
fn floats(
    source: &dyn WeightSource,
    def: &WeightDef,
    start: usize,
    info: &SourceInfo,
    out: &mut [u8],
) -> Result<(), BackendError> {
    let rows = out.len() / 4 / info.cols.max(1);
    let x = read_f32(source, &def.recipe, start, rows)?;
    out.copy_from_slice(bytemuck::cast_slice(&x));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_any_size_are_halves() {
        let mut arenas = Arenas {
            used: Vec::new(),
            most: 1024,
        };
        let placed = arenas.place((DType::Q4_0, 36), 0..1, 1);
        let mut one = placed.expect("there is room").remove(0);
        let mut scale = |most: Option<f32>| {
            one.most = most;
            one.scale_of_halves()
        };
        let bounds = [None, Some(0.0), Some(1.1), Some(40_000.0)];
        assert_eq!(bounds.map(&mut scale), [16.0, 1.0, 16_384.0, 0.5]);
    }

    #[test]
    fn rows_are_cut_where_arenas_end() {
        let mut arenas = Arenas {
            used: Vec::new(),
            most: 1024,
        };
        let place = |arenas: &mut Arenas, rows: u64, unit| {
            let found = arenas.place((DType::F32, 64), 0..rows, unit)?;
            let of = |s: &Segment| (s.first, s.rows, s.arena, s.at);
            Some(found.iter().map(of).collect::<Vec<_>>())
        };
        assert_eq!(place(&mut arenas, 10, 1), Some(vec![(0, 10, 0, 0)]));
        assert_eq!(place(&mut arenas, 8, 1), Some(vec![(0, 8, 1, 0)]));
        assert_eq!(
            place(&mut arenas, 30, 5),
            Some(vec![(0, 15, 2, 0), (15, 15, 3, 0)])
        );
        assert_eq!(place(&mut arenas, 34, 17), None);
    }
}
