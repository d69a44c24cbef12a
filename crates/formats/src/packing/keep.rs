//! The type that a packed weight is kept in: the narrowest of those that computations know in which every element has
//! exactly the value that its packing says (but that -0 may become 0).

use tokkata_core::DType;

use super::ints::Ints;
use super::pieces::{Pieces, Stored, e4m3, e8m0};
use super::{PackedWeight, Scheme};
use crate::tensor::Storage;

/// Columns of the blocks that integers fit.
const BLOCK: usize = 32;

/// The type for a weight.
pub(crate) fn kept(weight: &PackedWeight, pieces: &Pieces<'_>) -> DType {
    if weight.shape.len() < 2 || weight.rows() == 0 {
        return DType::F32;
    }
    let found = match Ints::of(weight, pieces) {
        Some(ints) => integers(&ints, pieces),
        None => small_floats(weight, pieces),
    };
    found.unwrap_or(DType::F32)
}

fn integers(ints: &Ints<'_>, pieces: &Pieces<'_>) -> Option<DType> {
    let (low, high) = ints.range();
    let blocks = match (pieces.biases.is_some(), low, high) {
        (true, 0.., ..=15) => Some(DType::Q4_1),
        (true, 0.., ..=31) => Some(DType::Q5_1),
        (true, ..) => return None,
        (false, -8.., ..=7) => Some(DType::Q4_0),
        (false, -16.., ..=15) => Some(DType::Q5_0),
        (false, -128.., ..=127) => Some(DType::Q8_0),
        (false, ..) => None,
    };
    let blocks = blocks.filter(|_| ints.runs_hold(BLOCK) && halves_hold(ints, pieces));
    let bits = 32 - low.unsigned_abs().max(high.unsigned_abs()).leading_zeros();
    let codes = Span {
        bits,
        low: 0,
        high: bits as i32 - 1,
    };
    blocks.or_else(|| codes.times(pieces.scales.floats()))
}

/// Whether every block's factor and offset are halves.
fn halves_hold(ints: &Ints<'_>, pieces: &Pieces<'_>) -> bool {
    let all = |s: Stored<'_>| s.storage == Storage::F16 || s.floats().all(|x| half(x).is_some());
    if !pieces.biases.is_none_or(all) {
        return false;
    }
    all(pieces.scales) || (0..ints.rows).all(|row| row_holds(ints, row))
}

/// A factor that multiplies zeros only needs not be a half: libraries give rows of padding the least factor they know.
fn row_holds(ints: &Ints<'_>, row: usize) -> bool {
    let starts = (0..ints.cols).step_by(BLOCK);
    let odd: Vec<_> = starts
        .filter(|&k| half(ints.factor(row, k)).is_none())
        .collect();
    if odd.is_empty() {
        return true;
    }
    let mut codes = vec![0; ints.cols];
    ints.codes(row, &mut codes);
    let idle = |k: usize| {
        ints.factor(row, k).is_finite() && codes[k..k + BLOCK].iter().all(|&code| code == 0)
    };
    odd.into_iter().all(idle)
}

/// The half that is exactly this number.
pub(super) fn half(value: f32) -> Option<u16> {
    let half = half::f16::from_f32(value);
    (half.to_f32().to_bits() == value.to_bits()).then(|| half.to_bits())
}

const E4M3: Span = Span {
    bits: 4,
    low: -9,
    high: 8,
};
const E2M1: Span = Span {
    bits: 2,
    low: -1,
    high: 2,
};

fn small_floats(weight: &PackedWeight, pieces: &Pieces<'_>) -> Option<DType> {
    let scales = pieces.scales;
    let bytes = scales.bytes.iter().copied();
    match weight.scheme {
        Scheme::Mxfp4 | Scheme::Mxfp4Bytes | Scheme::Mxfp4Experts => {
            // Readers of the blocks know no NaN.
            bytes.max().is_some_and(|b| b < 255).then_some(DType::MXFP4)
        }
        Scheme::Nvfp4 if weight.cols().is_multiple_of(64) && bytes.clone().all(|b| b < 0x7F) => {
            Some(DType::NVFP4)
        }
        Scheme::Nvfp4 => E2M1.times(bytes.map(e4m3)),
        Scheme::Nvfp4Global => {
            let global = pieces.outer?.float(0);
            E2M1.times(bytes.map(|b| e4m3(b) / global))
        }
        Scheme::Mxfp8 => E4M3.times(bytes.map(e8m0)),
        Scheme::Fp8 { .. } => E4M3.times(scales.floats()),
        _ => None,
    }
}

/// Numbers of so many significant bits, which stand for powers of two from `low` to `high`.
#[derive(Clone, Copy)]
struct Span {
    bits: u32,
    low: i32,
    high: i32,
}

impl Span {
    /// The bits of one number; none of zero, of infinities and of what is no number.
    fn of(value: f32) -> Option<Self> {
        let (bits, exponent) = (value.to_bits(), (value.to_bits() >> 23 & 255) as i32);
        let fraction = match exponent {
            0 => bits & 0x007F_FFFF,
            255 => return None,
            _ => bits & 0x007F_FFFF | 0x0080_0000,
        };
        let low = exponent.max(1) - 150 + fraction.trailing_zeros() as i32;
        let high = exponent.max(1) - 150 + 31 - fraction.leading_zeros() as i32;
        (fraction != 0).then(|| Span {
            bits: (high - low + 1) as u32,
            low,
            high,
        })
    }

    /// A 16-bit type for each of these numbers times each of `factors`.
    fn times(self, factors: impl Iterator<Item = f32>) -> Option<DType> {
        let (mut half, mut brain) = (true, true);
        for factor in factors {
            let Some(factor) = Span::of(factor) else {
                match factor == 0.0 {
                    true => continue,
                    false => return None,
                }
            };
            let bits = self.bits + factor.bits;
            let (low, high) = (self.low + factor.low, self.high + factor.high + 1);
            half &= bits <= 11 && low >= -24 && high <= 15;
            brain &= bits <= 8 && low >= -133 && high <= 127;
            if !half && !brain {
                return None;
            }
        }
        Some(if half { DType::F16 } else { DType::BF16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_that_of_the_number() {
        let of = |x: f32| Span::of(x).map(|s| (s.bits, s.low, s.high));
        assert_eq!(of(1.0), Some((1, 0, 0)));
        assert_eq!(of(-0.75), Some((2, -2, -1)));
        assert_eq!(of(f32::from_bits(1)), Some((1, -149, -149)));
        assert_eq!(of(1.0 + f32::EPSILON), Some((24, -23, 0)));
        assert_eq!(
            (of(0.0), of(f32::NAN), of(f32::INFINITY)),
            (None, None, None)
        );
    }

    /// Every code times every factor of few bits, against the type that is said to hold them.
    #[test]
    fn products_fit_the_type_that_is_named() {
        let codes: Vec<f32> = (0..0x7F).map(e4m3).collect();
        let mut named = [0; 3];
        for bits in 0..1u32 << 16 {
            let factor = f32::from_bits(bits << 16);
            let fits =
                |round: fn(f32) -> f32| codes.iter().all(|c| round(c * factor) == c * factor);
            match E4M3.times([factor].into_iter()) {
                Some(DType::F16) => {
                    assert!(fits(|x| half::f16::from_f32(x).to_f32()), "{factor}");
                    named[0] += 1;
                }
                Some(_) => {
                    assert!(fits(|x| half::bf16::from_f32(x).to_f32()), "{factor}");
                    named[1] += 1;
                }
                None => named[2] += 1,
            }
        }
        assert!(named.iter().all(|&n| n > 1000), "{named:?}");
    }
}
