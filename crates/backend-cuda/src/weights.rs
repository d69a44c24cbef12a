//! Weights on the device: the blocks of the file for products and look-ups, floats for everything else.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokkata_core::DType;
use tokkata_ir::weight::{LARGE_HALF, power_of_halves, read_f32};
use tokkata_ir::{BackendError, Op, Program, RawRows, Recipe, WeightDef, WeightId, WeightSource};

use crate::driver::{Buffer, Context, Event, Function, Pinned, Stream};
use crate::error::{lost, out_of_memory};
use crate::params::Params;
use crate::select::is_fast;

/// Bytes of each of the two pieces of host memory that weights pass through.
const STAGING: usize = 16 << 20;

/// Threads that read a piece of it, and least bytes of one of them.
const READERS: usize = 4;
const LEAST_READ: usize = 1 << 20;

/// Everything starts at a multiple of this.
const ALIGN: u64 = 256;

/// Rows of one format.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) dtype: DType,
    pub(crate) rows: u32,
    pub(crate) row_bytes: u64,
    pub(crate) data: u64,
    /// Where its scales lie, apart from the rest of its blocks, and their bytes of a row; 0 where they do not.
    pub(crate) scales: u64,
    pub(crate) scale_bytes: u64,
    /// Whether kernels of few formats may read it.
    fast: bool,
}

/// Blocks whose scales would misalign the rest of them: bytes in front of the scale, and of the scale.
fn scale_place(dtype: DType) -> Option<(usize, usize)> {
    match dtype {
        DType::Q4_0 | DType::Q8_0 | DType::IQ4_NL => Some((0, 2)),
        DType::Q6_K => Some((208, 2)),
        DType::MXFP4 => Some((0, 1)),
        _ => None,
    }
}

/// Kernels that make of weights what others read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Makers {
    /// Takes blocks apart.
    pub(crate) split: Option<Function>,
    /// Makes halves of floats.
    pub(crate) to_halves: Option<Function>,
    /// Bounds a weight's numbers.
    pub(crate) most: Option<Function>,
}

/// Where a weight lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) segments: Vec<Segment>,
    /// What no number of it is larger than; 0 where nobody asks.
    most: f32,
    /// Segments as the kernel of look-ups reads them.
    pub(crate) table: u64,
    /// Its elements as floats.
    pub(crate) floats: Option<u64>,
    /// The same as halves, row by row.
    halves: Option<u64>,
}

/// Smaller bfloats would mostly be halves of few bits.
const SMALL_BFLOAT: f32 = 1.0 / 256.0;

impl Place {
    /// What numbers of its blocks are multiplied by when they are made halves, a power of two.
    pub(crate) fn scale_of_halves(&self) -> f32 {
        match self.segments[0].dtype {
            DType::F16 | DType::BF16 => 1.0,
            _ => power_of_halves(self.most),
        }
    }

    /// Whether its bfloats keep their bits as halves.
    pub(crate) fn fits_halves(&self) -> bool {
        self.most == 0.0 || (SMALL_BFLOAT..=LARGE_HALF).contains(&self.most)
    }
}

/// All weights of a program.
#[derive(Debug)]
pub(crate) struct Weights {
    buffer: Buffer,
    _tables: Vec<Buffer>,
    places: Vec<Place>,
}

impl Weights {
    pub(crate) fn place(&self, id: WeightId) -> &Place {
        &self.places[id.index()]
    }

    /// Address of a weight that is used elementwise.
    pub(crate) fn floats(&self, id: WeightId) -> u64 {
        self.places[id.index()]
            .floats
            .expect("elementwise weights are floats")
    }

    /// Address of a convolution's weight in halves, where the file has halves and products are made of it.
    pub(crate) fn halves(&self, id: WeightId) -> Option<u64> {
        self.places[id.index()].halves
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// The format of a weight whose products have a kernel of their own.
    pub(crate) fn fast(&self, id: WeightId, columns: usize) -> Option<DType> {
        match &self.places[id.index()].segments[..] {
            [one] if one.fast && is_fast(one.dtype, columns) => Some(one.dtype),
            _ => None,
        }
    }

    pub(crate) fn load(
        context: &Arc<Context>,
        program: &Program,
        source: &dyn WeightSource,
        makers: Makers,
    ) -> Result<Self, BackendError> {
        let Makers {
            split, to_halves, ..
        } = makers;
        let (blocks, floats, slow) = roles(program);
        let convs = if to_halves.is_some() {
            convolutions(program)
        } else {
            BTreeSet::new()
        };
        let mut bytes = 0;
        let mut take = |n: u64| {
            let at = bytes;
            bytes += n.next_multiple_of(ALIGN);
            at
        };
        let mut places = Vec::new();
        for (i, def) in program.weights.iter().enumerate() {
            let mut place = Place::default();
            if blocks.contains(&i) {
                let mut segments = segments(def, source)?;
                let alone = segments.len() == 1 && split.is_some() && !slow.contains(&i);
                for mut segment in segments.drain(..) {
                    segment.fast = alone;
                    let rows = u64::from(segment.rows);
                    if let Some((_, len)) = scale_place(segment.dtype).filter(|_| alone) {
                        let blocks = segment.row_bytes / segment.dtype.block_bytes() as u64;
                        segment.scale_bytes = blocks * len as u64;
                        segment.row_bytes -= segment.scale_bytes;
                        segment.scales = take(segment.scale_bytes * rows);
                    }
                    segment.data = take(segment.row_bytes * rows);
                    place.segments.push(segment);
                }
            }
            if floats.contains(&i) {
                place.floats = Some(take((def.rows() * def.cols()) as u64 * 4));
            }
            if convs.contains(&i) && is_halves(&def.recipe, source) {
                place.halves = Some(take((def.rows() * def.cols()) as u64 * 2));
            }
            places.push(place);
        }
        let buffer = context
            .alloc(bytes)
            .map_err(|e| out_of_memory(context, "weights", bytes, &e))?;
        let mut tables = Vec::new();
        for place in &mut places {
            for segment in &mut place.segments {
                segment.data += buffer.at();
                if segment.scale_bytes > 0 {
                    segment.scales += buffer.at();
                }
            }
            place.floats = place.floats.map(|at| at + buffer.at());
            place.halves = place.halves.map(|at| at + buffer.at());
            if !place.segments.is_empty() {
                let table = context
                    .upload(&segment_table(&place.segments))
                    .map_err(lost)?;
                place.table = table.at();
                tables.push(table);
            }
        }
        let mut upload = Upload::new(context, program, split)?;
        for (def, place) in program.weights.iter().zip(&places) {
            upload.weight(def, place, source)?;
            if let (Some(from), Some(to), Some(kernel)) = (place.floats, place.halves, to_halves) {
                let n = (def.rows() * def.cols()) as u64;
                let params = Params::new().u64s(&[n, from, to]);
                let launched = upload
                    .stream
                    .launch(kernel, [1024, 1, 1], (256, 0), params.bytes());
                launched.map_err(lost)?;
            }
        }
        if let Some(kernel) = makers.most {
            bound(context, &upload.stream, kernel, &mut places)?;
        }
        upload.stream.synchronize().map_err(lost)?;
        Ok(Weights {
            buffer,
            _tables: tables,
            places,
        })
    }
}

/// How many blocks the numbers of a weight are bounded by; `None` where nobody asks.
fn bounded_blocks(segment: &Segment) -> Option<u64> {
    let bytes = match segment.dtype {
        DType::BF16 => 16,
        DType::Q4_0 | DType::Q8_0 | DType::IQ4_NL | DType::Q4_K | DType::Q5_K | DType::Q6_K => {
            let scale = scale_place(segment.dtype).map_or(0, |place| place.1);
            segment.dtype.block_bytes() - scale
        }
        _ => return None,
    };
    let all = segment.row_bytes * u64::from(segment.rows);
    (segment.fast && all.is_multiple_of(bytes as u64)).then_some(all / bytes as u64)
}

/// Finds what no number of each weight is larger than.
fn bound(
    context: &Arc<Context>,
    stream: &Stream,
    kernel: Function,
    places: &mut [Place],
) -> Result<(), BackendError> {
    let mut most = vec![0u32; places.len()];
    let found = context.upload(&most).map_err(lost)?;
    for (i, place) in places.iter().enumerate() {
        let [segment] = &place.segments[..] else {
            continue;
        };
        let Some(blocks) = bounded_blocks(segment) else {
            continue;
        };
        let params = Params::new().u64(blocks).u32(segment.dtype.ggml());
        let to = found.at() + 4 * i as u64;
        let params = params.u64s(&[segment.data, segment.scales, to]);
        let launched = stream.launch(kernel, [1024, 1, 1], (256, 0), params.bytes());
        launched.map_err(lost)?;
    }
    stream.synchronize().map_err(lost)?;
    let bytes = bytemuck::cast_slice_mut(&mut most);
    found.read(0, bytes).map_err(lost)?;
    for (place, most) in places.iter_mut().zip(most) {
        place.most = f32::from_bits(most);
    }
    Ok(())
}

/// Weights that are used as blocks, those that are used as floats, and those of products that have one kernel only.
fn roles(program: &Program) -> (BTreeSet<usize>, BTreeSet<usize>, BTreeSet<usize>) {
    let (mut blocks, mut floats) = (BTreeSet::new(), BTreeSet::new());
    let mut slow = BTreeSet::new();
    for node in program.plans.iter().flat_map(|p| &p.nodes) {
        let matrix = match &node.op {
            Op::Gather { table, .. } => Some(*table),
            Op::Matmul { weight, .. }
            | Op::HeadMatmul { weight, .. }
            | Op::Experts { weight, .. } => Some(*weight),
            _ => None,
        };
        blocks.extend(matrix.map(WeightId::index));
        if let Op::HeadMatmul { weight, .. } = node.op {
            slow.insert(weight.index());
        }
        let others = node.op.weights().into_iter().filter(|&w| Some(w) != matrix);
        floats.extend(others.map(WeightId::index));
    }
    (blocks, floats, slow)
}

/// Weights of convolutions of several channels.
fn convolutions(program: &Program) -> BTreeSet<usize> {
    let nodes = program.plans.iter().flat_map(|p| &p.nodes);
    let weight = |op: &Op| match op {
        Op::Conv1d(conv) => Some(conv.weight.index()),
        _ => None,
    };
    nodes.filter_map(|n| weight(&n.op)).collect()
}

/// Whether a weight is what a tensor of halves holds, in whatever order.
fn is_halves(recipe: &Recipe, source: &dyn WeightSource) -> bool {
    match recipe {
        Recipe::Source(name) => source.tensor(name).is_some_and(|t| t.0 == DType::F16),
        Recipe::Transpose { of, .. } | Recipe::Reshape { of, .. } => is_halves(of, source),
        _ => false,
    }
}

/// The format that rows are kept in: floats where there is no kernel for the file's.
fn kept_as(dtype: DType) -> DType {
    use DType::{F64, I8, I16, I32, I64};
    match dtype {
        F64 | I8 | I16 | I32 | I64 => DType::F32,
        other => other,
    }
}

fn segments(def: &WeightDef, source: &dyn WeightSource) -> Result<Vec<Segment>, BackendError> {
    let rows = RawRows::new(source, &def.recipe)?;
    let elems: usize = rows.segments().iter().map(|s| s.rows * s.cols).sum();
    let expected = def.rows() * def.cols();
    if elems != expected {
        return Err(BackendError::Weight(format!(
            "{} has {elems} elements where the plan expects {expected}",
            def.name
        )));
    }
    let segment = |s: &tokkata_ir::SourceInfo| {
        let dtype = kept_as(s.dtype);
        let bytes = dtype.row_bytes(def.cols()).ok_or_else(|| {
            let what = format!(
                "{}: rows of {} are not whole {dtype} blocks",
                def.name,
                def.cols()
            );
            BackendError::Weight(what)
        })?;
        Ok(Segment {
            dtype,
            rows: (s.rows * s.cols / def.cols().max(1)) as u32,
            row_bytes: bytes as u64,
            data: 0,
            scales: 0,
            scale_bytes: 0,
            fast: false,
        })
    };
    let mut merged: Vec<Segment> = Vec::new();
    for next in rows.segments().iter().map(segment) {
        let next: Segment = next?;
        match merged.last_mut() {
            Some(last) if last.dtype == next.dtype => last.rows += next.rows,
            _ => merged.push(next),
        }
    }
    Ok(merged)
}

fn segment_table(segments: &[Segment]) -> Vec<u8> {
    let params = segments.iter().fold(Params::new(), |params, s| {
        params
            .u64(s.data)
            .u64(s.row_bytes)
            .u64(s.scales)
            .u64(s.scale_bytes)
            .u32(s.rows)
            .u32(s.dtype.ggml())
    });
    params.bytes().to_vec()
}

/// Reads rows of blocks by several threads: one alone reads what is cached of a file more slowly than it crosses to the device.
fn read_apart(
    rows: &RawRows<'_>,
    (first, take): (usize, usize),
    out: &mut [u8],
) -> Result<(), BackendError> {
    let row = out.len() / take.max(1);
    let each = take.div_ceil(READERS).max(LEAST_READ.div_ceil(row.max(1)));
    if each >= take {
        return rows.read(first, take, out);
    }
    std::thread::scope(|scope| {
        let parts = out.chunks_mut(each * row).enumerate().map(|(i, part)| {
            scope.spawn(move || rows.read(first + i * each, part.len() / row, part))
        });
        let parts: Vec<_> = parts.collect();
        let done = parts.into_iter().map(|part| match part.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.collect()
    })
}

/// Two pieces of pinned memory: one is read into while the other is copied from.
struct Upload {
    stream: Stream,
    pieces: Vec<(Pinned, Event)>,
    /// Blocks before they are taken apart, and the kernel that does it.
    whole: Option<(Buffer, Function)>,
    next: usize,
}

impl Upload {
    fn new(
        context: &Arc<Context>,
        program: &Program,
        split: Option<Function>,
    ) -> Result<Self, BackendError> {
        let widest = program.weights.iter().map(|w| w.cols() * 8 + 512).max();
        let all: usize = program
            .weights
            .iter()
            .map(|w| w.rows() * w.cols() * 8 + 512)
            .sum();
        let words = STAGING.min(all).max(widest.unwrap_or(0)).div_ceil(4);
        let piece = |_| Ok((Pinned::new(context, words)?, Event::new(context)?));
        Ok(Upload {
            stream: Stream::new(context).map_err(lost)?,
            pieces: (0..2).map(piece).collect::<Result<_, _>>().map_err(lost)?,
            whole: match split {
                Some(kernel) => Some((context.alloc(words as u64 * 4).map_err(lost)?, kernel)),
                None => None,
            },
            next: 0,
        })
    }

    /// Fills `bytes` on the device.
    fn put(
        &mut self,
        to: u64,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let (piece, event) = &mut self.pieces[self.next];
        self.next = (self.next + 1) % 2;
        event.wait().map_err(lost)?;
        fill(&mut piece.bytes_mut()[..bytes])?;
        self.stream.upload(piece, bytes, to).map_err(lost)?;
        self.stream.record(event).map_err(lost)
    }

    /// As [`Upload::put`], for rows of blocks whose scales go elsewhere, so many bytes of the file from the first.
    fn split(
        &mut self,
        (segment, before): (&Segment, usize),
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let (whole, kernel) = self
            .whole
            .as_ref()
            .expect("blocks are taken apart by a kernel");
        let (from, kernel) = (whole.at(), *kernel);
        let (at, len) = scale_place(segment.dtype).expect("its scales lie apart");
        self.put(from, bytes, fill)?;
        let block = segment.dtype.block_bytes();
        let params = Params::new().u64((bytes / block) as u64);
        let params = params.u32s(&[block as u32, at as u32, len as u32]);
        let params = params.u64(from);
        let blocks = before / block;
        let params = params.u64(segment.data + (blocks * (block - len)) as u64);
        let params = params.u64(segment.scales + (blocks * len) as u64);
        let launched = self
            .stream
            .launch(kernel, [1024, 1, 1], (256, 0), params.bytes());
        launched.map_err(lost)
    }

    fn portion(&mut self, row_bytes: usize) -> usize {
        (self.pieces[0].0.bytes_mut().len() / row_bytes.max(1)).max(1)
    }

    fn weight(
        &mut self,
        def: &WeightDef,
        place: &Place,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        let rows = RawRows::new(source, &def.recipe)?;
        let (mut first, mut at, mut done) = (0, 0, 0);
        for info in rows.segments() {
            let Some(mut segment) = place.segments.get(at) else {
                break;
            };
            if segment.dtype != kept_as(info.dtype) {
                (at, done) = (at + 1, 0);
                segment = &place.segments[at];
            }
            let raw = info.dtype == segment.dtype;
            let row_bytes = segment.dtype.row_bytes(info.cols).unwrap_or(info.cols * 4);
            let portion = self.portion(row_bytes);
            for start in (0..info.rows).step_by(portion) {
                let take = portion.min(info.rows - start);
                let bytes = take * row_bytes;
                if segment.scale_bytes > 0 {
                    let read = |out: &mut [u8]| read_apart(&rows, (first + start, take), out);
                    self.split((segment, done), bytes, read)?;
                } else {
                    self.put(segment.data + done as u64, bytes, |out| {
                        if raw {
                            return read_apart(&rows, (first + start, take), out);
                        }
                        let floats = read_f32(source, &def.recipe, first + start, take)?;
                        out.copy_from_slice(bytemuck::cast_slice(&floats));
                        Ok(())
                    })?;
                }
                done += bytes;
            }
            first += info.rows;
        }
        self.floats(def, place, source)
    }

    fn floats(
        &mut self,
        def: &WeightDef,
        place: &Place,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        let Some(to) = place.floats else {
            return Ok(());
        };
        let rows = RawRows::new(source, &def.recipe)?;
        let (mut first, mut done) = (0, 0);
        for info in rows.segments() {
            let portion = self.portion(info.cols * 4);
            for start in (0..info.rows).step_by(portion) {
                let take = portion.min(info.rows - start);
                let floats = read_f32(source, &def.recipe, first + start, take)?;
                self.put(to + done, floats.len() * 4, |out| {
                    out.copy_from_slice(bytemuck::cast_slice(&floats));
                    Ok(())
                })?;
                done += floats.len() as u64 * 4;
            }
            first += info.rows;
        }
        Ok(())
    }
}
