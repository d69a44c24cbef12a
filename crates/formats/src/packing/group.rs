//! Finding the pieces of packed weights among a model's tensors.

use std::collections::HashMap;

use tokkata_core::DType;

use super::{PackedWeight, Piece, Quantisation, Scheme};
use crate::error::{Fault, Quoted};
use crate::tensor::{Storage, StoredTensor};

/// How a scheme names its tensors: `<module><suffix>`.
struct Naming {
    /// The packed values, and the type that shows that they are packed.
    values: (&'static str, Storage),
    /// The others, with whether each must be there.
    others: &'static [(Piece, &'static str, Need)],
    /// The end of the name that the weight would have as one tensor.
    whole: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Need {
    Must,
    /// One of the tensors for the same piece.
    Either,
    May,
}

fn naming(scheme: Scheme) -> Naming {
    use Need::{Either, May, Must};
    use Piece::{
        Biases, GroupIndex, InputScale, OuterScales, OuterTable, Scales, State, Table, Zeros,
    };
    let (values, others, whole): (_, &'static [_], _) = match scheme {
        Scheme::Affine { .. } => (
            (".weight", Storage::U32),
            &[(Scales, ".scales", Must), (Biases, ".biases", Must)],
            ".weight",
        ),
        Scheme::Mxfp4 | Scheme::Mxfp8 | Scheme::Nvfp4 => (
            (".weight", Storage::U32),
            &[(Scales, ".scales", Must)],
            ".weight",
        ),
        Scheme::Gptq { .. } => (
            (".qweight", Storage::I32),
            &[
                (Scales, ".scales", Must),
                (Zeros, ".qzeros", Must),
                (GroupIndex, ".g_idx", May),
            ],
            ".weight",
        ),
        Scheme::Awq { .. } => (
            (".qweight", Storage::I32),
            &[(Scales, ".scales", Must), (Zeros, ".qzeros", Must)],
            ".weight",
        ),
        Scheme::Fp8 { .. } => (
            (".weight", Storage::F8E4M3),
            &[
                (Scales, ".weight_scale_inv", Either),
                (Scales, ".weight_scale", Either),
                (Scales, ".scale", Either),
                (InputScale, ".input_scale", May),
            ],
            ".weight",
        ),
        Scheme::Mxfp4Bytes => (
            (".weight", Storage::I8),
            &[(Scales, ".scale", Must)],
            ".weight",
        ),
        Scheme::Mxfp4Experts => (("_blocks", Storage::U8), &[(Scales, "_scales", Must)], ""),
        Scheme::Nvfp4Global => (
            (".weight_packed", Storage::U8),
            &[
                (Scales, ".weight_scale", Must),
                (OuterScales, ".weight_global_scale", Must),
                (InputScale, ".input_global_scale", May),
            ],
            ".weight",
        ),
        Scheme::Packed { .. } => (
            (".weight_packed", Storage::I32),
            &[
                (Scales, ".weight_scale", Must),
                (Zeros, ".weight_zero_point", May),
                (GroupIndex, ".weight_g_idx", May),
                (State, ".weight_shape", May),
            ],
            ".weight",
        ),
        Scheme::Int8Scaled { .. } => (
            (".weight", Storage::I8),
            &[
                (Scales, ".weight_scale", Must),
                (InputScale, ".input_scale", May),
            ],
            ".weight",
        ),
        Scheme::Int8 => (
            (".weight", Storage::I8),
            &[(Scales, ".SCB", Must), (State, ".weight_format", May)],
            ".weight",
        ),
        Scheme::Table4 { .. } => (
            (".weight", Storage::U8),
            &[
                (Scales, ".weight.absmax", Must),
                (Table, ".weight.quant_map", Must),
                (OuterScales, ".weight.nested_absmax", May),
                (OuterTable, ".weight.nested_quant_map", May),
                (State, ".weight.quant_state.bitsandbytes__nf4", Either),
                (State, ".weight.quant_state.bitsandbytes__fp4", Either),
            ],
            ".weight",
        ),
    };
    Naming {
        values,
        others,
        whole,
    }
}

/// Takes the pieces of packed weights out of `stored`, and returns the weights and the rest.
pub(crate) fn group(
    quantisation: &Quantisation,
    stored: Vec<StoredTensor>,
    read: &Read<'_>,
) -> Result<(Vec<PackedWeight>, Vec<StoredTensor>), Fault> {
    let suffix = naming(quantisation.base()).values.0;
    let mut index = HashMap::with_capacity(stored.len());
    for (i, tensor) in stored.iter().enumerate() {
        if index.insert(tensor.name.clone(), i).is_some() {
            return Err(Fault::DuplicateTensor {
                tensor: Quoted::new(&tensor.name),
            });
        }
    }
    let mut packed = Vec::new();
    let mut taken = vec![false; stored.len()];
    for tensor in &stored {
        let Some(module) = tensor.name.strip_suffix(suffix) else {
            continue;
        };
        let Some(scheme) = quantisation.of(module) else {
            continue;
        };
        let scheme = narrower(scheme, tensor.storage);
        if tensor.storage != naming(scheme).values.1 {
            continue;
        }
        let pieces = pieces(module, scheme, |name| index.get(name).copied())?;
        pieces.iter().for_each(|&(_, i)| taken[i] = true);
        let pieces = pieces
            .into_iter()
            .map(|(piece, i)| (piece, stored[i].clone()))
            .collect();
        let name = format!("{module}{}", naming(scheme).whole);
        packed.push(finish(
            PackedWeight {
                name,
                shape: Vec::new(),
                kept: DType::F32,
                scheme,
                pieces,
            },
            read,
        )?);
    }
    let mut taken = taken.into_iter();
    let rest = stored
        .into_iter()
        .filter(|_| !taken.next().unwrap_or_default());
    Ok((packed, rest.collect()))
}

/// Beside 8-bit floats, bytes that are no floats are two smaller ones each.
fn narrower(scheme: Scheme, values: Storage) -> Scheme {
    match (scheme, values) {
        (Scheme::Fp8 { .. }, Storage::I8) => Scheme::Mxfp4Bytes,
        _ => scheme,
    }
}

/// Places of a module's pieces.
fn pieces(
    module: &str,
    scheme: Scheme,
    find: impl Fn(&str) -> Option<usize>,
) -> Result<Vec<(Piece, usize)>, Fault> {
    let naming = naming(scheme);
    let named = |suffix: &str| find(&format!("{module}{suffix}"));
    let mut found: Vec<_> = named(naming.values.0)
        .map(|i| (Piece::Values, i))
        .into_iter()
        .collect();
    for &(piece, suffix, need) in naming.others {
        match named(suffix) {
            Some(i) if found.iter().all(|&(p, _)| p != piece) => found.push((piece, i)),
            None if need == Need::Must => return Err(missing(module, naming.values.0, suffix)),
            _ => {}
        }
    }
    let either = naming.others.iter().find(|o| o.2 == Need::Either);
    match either.filter(|o| found.iter().all(|&(p, _)| p != o.0)) {
        Some(&(_, suffix, _)) => Err(missing(module, naming.values.0, suffix)),
        None => Ok(found),
    }
}

fn missing(module: &str, values: &str, suffix: &str) -> Fault {
    let tensor = Quoted::new(format!("{module}{values}"));
    Fault::Packed {
        tensor,
        found: format!("no {suffix} beside it"),
        expected: "all pieces of a packed weight",
    }
}

/// Checks that the pieces fit and fills in the logical shape.
fn finish(mut weight: PackedWeight, read: &Read<'_>) -> Result<PackedWeight, Fault> {
    match shape(&mut weight, read) {
        Some(shape) => {
            weight.shape = shape;
            Ok(weight)
        }
        None => {
            let sizes = |(piece, t): &(Piece, StoredTensor)| {
                format!("{piece:?} {} {:?}", t.storage, t.shape)
            };
            let found: Vec<_> = weight.pieces.iter().map(sizes).collect();
            let (tensor, found) = (Quoted::new(&weight.name), found.join(", "));
            Err(Fault::Packed {
                tensor,
                found,
                expected: "shapes and types that fit the configuration",
            })
        }
    }
}

/// The logical shape that all pieces agree on.
fn shape(weight: &mut PackedWeight, read: &Read<'_>) -> Option<Vec<usize>> {
    if let Scheme::Table4 { .. } = weight.scheme {
        return table4(weight, read);
    }
    let (values, scales) = (weight.piece(Piece::Values)?, weight.piece(Piece::Scales)?);
    match weight.scheme {
        Scheme::Affine { bits, group } => {
            let biases = weight.piece(Piece::Biases)?;
            let same = biases.shape == scales.shape && biases.storage == scales.storage;
            (same && is_float(scales)).then_some(())?;
            words(values, scales, (bits.into(), group))
        }
        Scheme::Mxfp4 => byte_scales(scales).and_then(|()| words(values, scales, (4, 32))),
        Scheme::Mxfp8 => byte_scales(scales).and_then(|()| words(values, scales, (8, 32))),
        Scheme::Nvfp4 => byte_scales(scales).and_then(|()| words(values, scales, (4, 16))),
        Scheme::Gptq { bits, group, .. } => gptq(weight, (bits.into(), group)),
        Scheme::Awq { group } => awq(weight, group),
        Scheme::Fp8 { block } => fp8(values, scales, block),
        Scheme::Mxfp4Experts => experts(values, scales),
        Scheme::Mxfp4Bytes => bytes(values, scales),
        Scheme::Nvfp4Global => nvfp4(weight),
        Scheme::Packed { bits, group } => packed(weight, (bits.into(), group), read),
        Scheme::Int8Scaled { block } => fp8(values, scales, block),
        Scheme::Int8 => {
            let [n, k] = pair(values)?;
            (scales.storage == Storage::F32 && scales.shape == [n]).then(|| vec![n, k])
        }
        Scheme::Table4 { .. } => None,
    }
}

/// Bytes of a small tensor.
pub(crate) type Read<'a> = dyn Fn(&StoredTensor) -> Option<Vec<u8>> + 'a;

fn nvfp4(weight: &PackedWeight) -> Option<Vec<usize>> {
    let [n, half] = pair(weight.piece(Piece::Values)?)?;
    let scales = weight.piece(Piece::Scales)?;
    let global = weight.piece(Piece::OuterScales)?;
    let k = half.checked_mul(2)?;
    let fits = scales.storage == Storage::F8E4M3
        && pair(scales)? == [n, k / 16]
        && k.is_multiple_of(16)
        && global.storage == Storage::F32
        && global.shape.iter().product::<usize>() == 1;
    fits.then(|| vec![n, k])
}

fn packed(
    weight: &PackedWeight,
    (bits, group): (usize, Option<usize>),
    read: &Read<'_>,
) -> Option<Vec<usize>> {
    let [n, words] = pair(weight.piece(Piece::Values)?)?;
    let scales = weight.piece(Piece::Scales)?;
    let whole = words.checked_mul(32 / bits)?;
    // The last word of a row may hold fewer values than fit.
    let k = match weight.piece(Piece::State).and_then(read) {
        Some(bytes) => {
            let sizes: Vec<_> = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|w| i64::from_le_bytes(*w))
                .collect();
            let [rows, cols] = *sizes.as_slice() else {
                return None;
            };
            let cols = usize::try_from(cols).ok()?;
            (usize::try_from(rows).ok()? == n && cols <= whole && cols + 32 / bits > whole)
                .then_some(cols)?
        }
        None => whole,
    };
    let groups = k.div_ceil(group.unwrap_or(k).max(1));
    let zeros = weight.piece(Piece::Zeros);
    let zero_rows = n.div_ceil(32 / bits);
    let fits = is_float(scales)
        && pair(scales)? == [n, groups]
        && zeros.is_none_or(|z| z.storage == Storage::I32 && z.shape == [zero_rows, groups])
        && weight.piece(Piece::GroupIndex).is_none();
    fits.then(|| vec![n, k])
}

/// What bitsandbytes writes about a weight.
#[derive(serde::Deserialize)]
struct State4 {
    blocksize: usize,
    shape: Vec<usize>,
    #[serde(default)]
    nested_blocksize: Option<usize>,
    #[serde(default)]
    nested_offset: Option<f32>,
}

fn table4(weight: &mut PackedWeight, read: &Read<'_>) -> Option<Vec<usize>> {
    let state: State4 = serde_json::from_slice(&read(weight.piece(Piece::State)?)?).ok()?;
    let elements = state
        .shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let (values, scales) = (weight.piece(Piece::Values)?, weight.piece(Piece::Scales)?);
    let blocks = elements.div_ceil(state.blocksize.max(1));
    let floats = |piece: Piece, len: usize| {
        let tensor = weight.piece(piece);
        tensor
            .is_some_and(|t| t.storage == Storage::F32 && t.shape.iter().product::<usize>() == len)
    };
    let nested = weight.piece(Piece::OuterScales).is_some();
    let scales_fit = match nested {
        false => scales.storage == Storage::F32,
        true => {
            let outer = blocks.div_ceil(256);
            scales.storage == Storage::U8
                && state.nested_blocksize == Some(256)
                && floats(Piece::OuterScales, outer)
                && floats(Piece::OuterTable, 256)
        }
    };
    let fits = state.blocksize > 0
        && values.shape.iter().product::<usize>() == elements.div_ceil(2)
        && scales.shape.iter().product::<usize>() == blocks
        && floats(Piece::Table, 16)
        && scales_fit
        && !state.shape.is_empty();
    fits.then_some(())?;
    weight.scheme = Scheme::Table4 {
        block: state.blocksize,
        offset: state.nested_offset.unwrap_or(0.0).to_bits(),
    };
    Some(state.shape)
}

fn is_float(tensor: &StoredTensor) -> bool {
    matches!(tensor.storage, Storage::F16 | Storage::BF16 | Storage::F32)
}

fn byte_scales(scales: &StoredTensor) -> Option<()> {
    matches!(
        scales.storage,
        Storage::U8 | Storage::F8E8M0 | Storage::F8E4M3
    )
    .then_some(())
}

/// Rows of 32-bit words, with a scale for each group of values.
fn words(
    values: &StoredTensor,
    scales: &StoredTensor,
    (bits, group): (usize, usize),
) -> Option<Vec<usize>> {
    let (&words, rows) = values.shape.split_last()?;
    let (&groups, scale_rows) = scales.shape.split_last()?;
    let k = groups.checked_mul(group)?;
    let fits = rows == scale_rows && words.checked_mul(32)? == k.checked_mul(bits)?;
    fits.then(|| [rows, &[k]].concat())
}

fn pair(tensor: &StoredTensor) -> Option<[usize; 2]> {
    tensor.shape.as_slice().try_into().ok()
}

fn gptq(weight: &PackedWeight, (bits, group): (usize, Option<usize>)) -> Option<Vec<usize>> {
    let [words, n] = pair(weight.piece(Piece::Values)?)?;
    let scales = weight.piece(Piece::Scales)?;
    let zeros = weight.piece(Piece::Zeros)?;
    let k = words.checked_mul(32)? / bits;
    let groups = k.div_ceil(group.unwrap_or(k).max(1));
    let zero_words = n.checked_mul(bits)? / 32;
    let index = weight.piece(Piece::GroupIndex);
    let fits = k * bits == words * 32
        && zero_words * 32 == n * bits
        && is_float(scales)
        && pair(scales)? == [groups, n]
        && zeros.storage == Storage::I32
        && pair(zeros)? == [groups, zero_words]
        && index.is_none_or(|t| t.storage == Storage::I32 && t.shape == [k]);
    fits.then(|| vec![n, k])
}

fn awq(weight: &PackedWeight, group: usize) -> Option<Vec<usize>> {
    let [k, words] = pair(weight.piece(Piece::Values)?)?;
    let scales = weight.piece(Piece::Scales)?;
    let zeros = weight.piece(Piece::Zeros)?;
    let (n, groups) = (words.checked_mul(8)?, k / group);
    let fits = groups * group == k
        && is_float(scales)
        && pair(scales)? == [groups, n]
        && zeros.storage == Storage::I32
        && pair(zeros)? == [groups, words];
    fits.then(|| vec![n, k])
}

fn fp8(
    values: &StoredTensor,
    scales: &StoredTensor,
    block: Option<[usize; 2]>,
) -> Option<Vec<usize>> {
    (is_float(scales) || scales.storage == Storage::F8E8M0).then_some(())?;
    let fits = match block {
        Some([rows, cols]) => {
            let [n, k] = pair(values)?;
            scales.shape == [n.div_ceil(rows), k.div_ceil(cols)]
        }
        None => {
            let rows = values.shape.first().copied();
            let one = scales.shape.iter().all(|&d| d == 1);
            one || scales.shape.first().copied() == rows
                && scales.shape[1..].iter().all(|&d| d == 1)
        }
    };
    fits.then(|| values.shape.clone())
}

/// Two values a byte, with a scale for each 32 of a row.
fn bytes(values: &StoredTensor, scales: &StoredTensor) -> Option<Vec<usize>> {
    let [n, half] = pair(values)?;
    let fits = matches!(scales.storage, Storage::U8 | Storage::F8E8M0)
        && half.is_multiple_of(16)
        && pair(scales)? == [n, half / 16];
    fits.then_some(())?;
    Some(vec![n, half.checked_mul(2)?])
}

fn experts(values: &StoredTensor, scales: &StoredTensor) -> Option<Vec<usize>> {
    let [experts, n, groups, 16] = *values.shape.as_slice() else {
        return None;
    };
    let fits = scales.storage == Storage::U8 && scales.shape == [experts, n, groups];
    fits.then_some(())?;
    Some(vec![experts, n, groups.checked_mul(32)?])
}
