//! The header of one GGUF file, every number of it checked against the file's length.

use std::collections::HashSet;

use tokkata_core::{DType, Metadata};

use super::cursor::{Cursor, Endian};
use super::magic::wrong_magic;
use crate::error::{Fault, Quoted};
use crate::tensor::TensorInfo;

/// Most dimensions of a tensor.
pub(super) const MAX_DIMS: u32 = 4;
/// Bytes of the shortest possible tensor record and key–value pair.
const MIN_TENSOR_BYTES: u64 = 25;
const MIN_PAIR_BYTES: u64 = 14;
/// Most key–value pairs and tensors, far beyond any model: each costs some 200 bytes of memory.
const MAX_PAIRS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;

/// What one GGUF file says about itself. Tensor offsets are from the start of the file.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) endian: Endian,
    pub(crate) alignment: u64,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8], size: u64, part: usize) -> Result<Self, Fault> {
        let (version, endian) = version(bytes)?;
        let mut cursor = Cursor::new(bytes, 8, endian);
        let n_tensors = cursor.u64("the tensor count")?;
        let n_pairs = cursor.u64("the metadata count")?;
        cursor.room_for(n_pairs, MIN_PAIR_BYTES, "the metadata")?;
        cursor.room_for(n_tensors, MIN_TENSOR_BYTES, "the tensor list")?;
        at_most("metadata keys", n_pairs, MAX_PAIRS)?;
        at_most("tensors", n_tensors, MAX_TENSORS)?;
        let metadata = read_pairs(&mut cursor, n_pairs)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = read_tensors(&mut cursor, n_tensors, part)?;
        place(
            &mut tensors,
            &Extent {
                data: cursor.pos(),
                alignment,
                size,
            },
        )?;
        Ok(Self {
            version,
            endian,
            alignment,
            metadata,
            tensors,
        })
    }
}

fn at_most(what: &'static str, found: u64, limit: u64) -> Result<(), Fault> {
    if found > limit {
        Err(Fault::Count { what, found, limit })
    } else {
        Ok(())
    }
}

/// Checks magic and version. A version whose low half is zero was written in the other byte order.
fn version(bytes: &[u8]) -> Result<(u32, Endian), Fault> {
    if bytes.is_empty() {
        return Err(Fault::Empty);
    }
    if !bytes.starts_with(b"GGUF") {
        return Err(wrong_magic(bytes));
    }
    let little = Cursor::new(bytes, 4, Endian::Little).u32("the version")?;
    let (found, endian) = match little & 0xffff {
        0 if little != 0 => (little.swap_bytes(), Endian::Big),
        _ => (little, Endian::Little),
    };
    if !matches!(found, 2 | 3) {
        return Err(Fault::Version { found });
    }
    Ok((found, endian))
}

fn read_pairs(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, Fault> {
    let mut metadata = Metadata::default();
    for _ in 0..count {
        let key = cursor.name("metadata key")?;
        let value = cursor.value(key)?;
        if metadata.insert(key, value).is_some() {
            return Err(Fault::DuplicateKey {
                key: Quoted::new(key),
            });
        }
    }
    Ok(metadata)
}

pub(super) fn alignment(metadata: &Metadata) -> Result<u64, Fault> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(32);
    };
    match value.as_uint() {
        Some(n) if n.is_power_of_two() && n <= u32::MAX.into() => Ok(n),
        _ => Err(Fault::KeyValue {
            key: "general.alignment",
            found: value
                .as_int()
                .map_or("no whole number".to_owned(), |n| n.to_string()),
            expected: "a power of two",
        }),
    }
}

fn read_tensors(
    cursor: &mut Cursor<'_>,
    count: u64,
    part: usize,
) -> Result<Vec<TensorInfo>, Fault> {
    let mut seen = HashSet::new();
    let mut tensors = Vec::new();
    for _ in 0..count {
        let tensor = read_tensor(cursor, part)?;
        if !seen.insert(tensor.name.clone()) {
            return Err(Fault::DuplicateTensor {
                tensor: Quoted::new(&tensor.name),
            });
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

fn read_tensor(cursor: &mut Cursor<'_>, part: usize) -> Result<TensorInfo, Fault> {
    let name = cursor.name("tensor name")?;
    let n_dims = cursor.u32("a tensor's dimensions")?;
    if n_dims > MAX_DIMS {
        let (found, limit) = (n_dims.into(), MAX_DIMS.into());
        return Err(Fault::Dims {
            tensor: Quoted::new(name),
            found,
            limit,
        });
    }
    let mut dims = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        dims.push(cursor.u64("a tensor's dimensions")?);
    }
    dims.reverse();
    let dtype = tensor_type(name, cursor.u32("a tensor's type")?)?;
    let (shape, bytes) = sized(name, dtype, &dims)?;
    let offset = cursor.u64("a tensor's offset")?;
    Ok(TensorInfo {
        name: name.to_owned(),
        dtype,
        shape,
        part,
        offset,
        bytes,
    })
}

pub(crate) fn tensor_type(name: &str, code: u32) -> Result<DType, Fault> {
    DType::from_ggml(code).ok_or_else(|| {
        let (why, advice) = match code {
            4 | 5 => ("was removed from GGUF", "quantise the model again"),
            31..=33 | 36..=38 => (
                "is a repacked layout that was removed from GGUF",
                "quantise the model again as Q4_0 or IQ4_NL",
            ),
            _ => (
                "is not known",
                "use a newer release, or copy the file again if it is damaged",
            ),
        };
        Fault::TensorType {
            tensor: Quoted::new(name),
            code,
            why,
            advice,
        }
    })
}

/// The shape as sizes in memory, and the bytes it takes.
pub(crate) fn sized(name: &str, dtype: DType, dims: &[u64]) -> Result<(Vec<usize>, u64), Fault> {
    let shape_fault = || Fault::Shape {
        tensor: Quoted::new(name),
        shape: dims.to_vec(),
    };
    let row = dims.last().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.block_elems() as u64) {
        let block = dtype.block_elems();
        return Err(Fault::RowBlocks {
            tensor: Quoted::new(name),
            dtype,
            row,
            block,
        });
    }
    let shape: Option<Vec<usize>> = dims
        .iter()
        .map(|&d| usize::try_from(d).ok().filter(|&d| d > 0))
        .collect();
    let shape = shape.ok_or_else(shape_fault)?;
    let elems = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let bytes = elems
        .filter(|&n| i64::try_from(n).is_ok())
        .and_then(|n| dtype.row_bytes(n));
    Ok((shape, bytes.ok_or_else(shape_fault)? as u64))
}

/// The bytes that tensors may take.
struct Extent {
    data: u64,
    alignment: u64,
    size: u64,
}

/// Turns offsets from the data section into offsets from the start, refusing what does not fit.
fn place(tensors: &mut [TensorInfo], extent: &Extent) -> Result<(), Fault> {
    let &Extent {
        data,
        alignment,
        size,
    } = extent;
    let base = u128::from(data).next_multiple_of(alignment.into());
    for t in tensors.iter_mut() {
        if !t.offset.is_multiple_of(alignment) {
            let (tensor, offset) = (Quoted::new(&t.name), t.offset);
            return Err(Fault::Misaligned {
                tensor,
                offset,
                alignment,
            });
        }
        let start = base + u128::from(t.offset);
        let end = start + u128::from(t.bytes);
        if end > size.into() {
            let start = u64::try_from(start).unwrap_or(u64::MAX);
            return Err(Fault::OutOfRange {
                tensor: Quoted::new(&t.name),
                start,
                end,
                size,
            });
        }
        t.offset = start as u64;
    }
    refuse_overlap(tensors)?;
    refuse_gaps(tensors, alignment)
}

/// Refuses a tensor of a type that takes fewer bytes than there are, where those are just what another type takes.
fn refuse_gaps(tensors: &[TensorInfo], alignment: u64) -> Result<(), Fault> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    let spare =
        |w: &&[&TensorInfo]| w[0].bytes.next_multiple_of(alignment) < w[1].offset - w[0].offset;
    for w in order.windows(2).filter(spare) {
        let (tensor, found) = (w[0], w[1].offset - w[0].offset);
        let rows = tensor.rows() as u64;
        let bytes = |d: DType| (d.row_bytes(tensor.row_elems())? as u64).checked_mul(rows);
        let fits = |d: &&DType| bytes(**d).is_some_and(|n| n.next_multiple_of(alignment) == found);
        if let Some(likely) = DType::ALL.iter().find(fits) {
            return Err(Fault::Gap {
                tensor: Quoted::new(&tensor.name),
                dtype: tensor.dtype,
                expected: tensor.bytes,
                found,
                likely: *likely,
            });
        }
    }
    Ok(())
}

fn refuse_overlap(tensors: &[TensorInfo]) -> Result<(), Fault> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    match order
        .windows(2)
        .find(|w| w[0].offset + w[0].bytes > w[1].offset)
    {
        None => Ok(()),
        Some(w) => {
            let (first, second) = (Quoted::new(&w[0].name), Quoted::new(&w[1].name));
            Err(Fault::Overlap { first, second })
        }
    }
}
