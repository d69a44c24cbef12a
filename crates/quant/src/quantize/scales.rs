//! Integer codes for the scales and minima of one super-block.

use super::lanes::nearest;
use super::symmetric::TINY;
use crate::num::{f16_to_f32, f32_to_f16};

/// Scales of a super-block: a half factor and one code per sub-block.
pub(super) struct Scales<T> {
    pub(super) d: u16,
    pub(super) codes: [T; 16],
}

impl<T: Copy + Into<f32>> Scales<T> {
    /// The scale of sub-block `s` as a reader will see it.
    #[inline(always)]
    pub(super) fn scale(&self, s: usize) -> f32 {
        f16_to_f32(self.d) * self.codes[s].into()
    }
}

/// The factor that gives the largest value the highest code.
pub(super) fn by_largest(values: &[f32], top: u8) -> Scales<u8> {
    let largest = values
        .iter()
        .fold(0.0, |a: f32, &v| if v > a { v } else { a });
    let top_value = f32::from(top);
    let inverse = if largest > 0.0 {
        top_value / largest
    } else {
        0.0
    };
    let mut codes = [0; 16];
    for (code, &v) in codes.iter_mut().zip(values) {
        *code = (nearest(inverse * v) as u8).min(top);
    }
    Scales {
        d: f32_to_f16(largest / top_value),
        codes,
    }
}

/// The factor of least weighted error, for values that are not negative.
pub(super) fn by_search(values: &[f32], weights: &[f32], top: u8) -> Scales<u8> {
    let mut codes = [0; 16];
    let d = fit_positive(values, weights, i32::from(top), &mut codes[..values.len()]);
    Scales {
        d: f32_to_f16(d),
        codes,
    }
}

/// Codes 0 to `top` for values that are not negative; returns the value of a step.
pub(super) fn fit_positive(x: &[f32], w: &[f32], top: i32, codes: &mut [u8]) -> f32 {
    let largest = x.iter().fold(0.0, |a: f32, &v| if a > v { a } else { v });
    if largest < TINY {
        codes.fill(0);
        return 0.0;
    }
    let inverse = best_inverse(x, w, top, largest);
    let (mut xl, mut l2) = (0.0, 0.0);
    for ((code, &x), &w) in codes.iter_mut().zip(x).zip(w) {
        let l = nearest(inverse * x).min(top);
        // A negative value's code wraps; the sums take it as it is.
        *code = l as u8;
        let l = l as f32;
        xl += w * x * l;
        l2 += w * l * l;
    }
    for _round in 0..5 {
        let mut changed = false;
        for ((code, &x), &w) in codes.iter_mut().zip(x).zip(w) {
            changed |= improve((x, w), code, (&mut xl, &mut l2), top);
        }
        if !changed {
            break;
        }
    }
    if l2 > 0.0 { xl / l2 } else { 0.0 }
}

/// The best of nine divisions of the range.
fn best_inverse(x: &[f32], w: &[f32], top: i32, largest: f32) -> f32 {
    let top_value = top as f32;
    let error = |inverse: f32, code: &dyn Fn(i32) -> i32| {
        let scale = 1.0 / inverse;
        x.iter().zip(w).fold(0.0, |sum, (&x, &w)| {
            let diff = x - scale * code(nearest(inverse * x)) as f32;
            sum + w * diff * diff
        })
    };
    let mut best = top_value / largest;
    let mut least = error(best, &|l| i32::from(l as u8));
    for step in (-4i8..=4).filter(|&step| step != 0) {
        let inverse = (0.1 * f32::from(step) + top_value) / largest;
        let this = error(inverse, &|l| l.min(top));
        if this < least {
            (least, best) = (this, inverse);
        }
    }
    best
}

/// Gives one value its best code with all others fixed, where that lowers the error.
fn improve((x, w): (f32, f32), code: &mut u8, (xl, l2): (&mut f32, &mut f32), top: i32) -> bool {
    let old = f32::from(*code);
    let mut new_xl = *xl - w * x * old;
    let mut new_l2 = *l2 - w * old * old;
    if !(new_xl > 0.0 && new_l2 > 0.0) {
        return false;
    }
    let new = nearest(x * new_l2 / new_xl).min(top);
    let value = new as f32;
    new_xl += w * x * value;
    new_l2 += w * value * value;
    if value == old || new_xl * new_xl * *l2 <= *xl * *xl * new_l2 {
        return false;
    }
    (*code, *xl, *l2) = (new as u8, new_xl, new_l2);
    true
}

/// The factor that gives the value of largest magnitude the code `-steps`.
pub(super) fn by_signed_largest(values: &[f32; 16], steps: f32, top: i32) -> Scales<i8> {
    let value = signed_peak(values);
    if value == 0.0 {
        return Scales {
            d: 0,
            codes: [-steps as i8; 16],
        };
    }
    let inverse = -steps / value;
    let low = -steps as i32;
    let codes = values.map(|v| nearest(inverse * v).clamp(low, top) as i8);
    Scales {
        d: f32_to_f16(1.0 / inverse),
        codes,
    }
}

/// The first value of largest magnitude.
pub(super) fn signed_peak(values: &[f32]) -> f32 {
    values
        .iter()
        .fold(0.0, |a: f32, &v| if v.abs() > a.abs() { v } else { a })
}

/// The factor of least weighted error for 6-bit signed codes.
pub(super) fn by_signed_search(values: &[f32; 16], weights: &[f32; 16]) -> Scales<i8> {
    const STEPS: f32 = 32.0;
    let value = signed_peak(values);
    if value.abs() < TINY {
        return Scales {
            d: 0,
            codes: [-32; 16],
        };
    }
    let codes = |inverse: f32| values.map(|v| nearest(inverse * v).clamp(-32, 31) as i8);
    let sums = |codes: &[i8; 16]| {
        let terms = values.iter().zip(weights).zip(codes);
        terms.fold((0.0, 0.0), |(xl, l2), ((&x, &w), &l)| {
            let l = f32::from(l);
            (xl + w * x * l, l2 + w * l * l)
        })
    };
    let mut best_codes = codes(-STEPS / value);
    let (xl, l2) = sums(&best_codes);
    let mut scale = if l2 == 0.0 { 0.0 } else { xl / l2 };
    let mut best = scale * xl;
    for step in (-9i8..=9).filter(|&step| step != 0) {
        let trial = codes(-(STEPS + 0.1 * f32::from(step)) / value);
        let (xl, l2) = sums(&trial);
        if l2 > 0.0 && xl * xl > best * l2 {
            (scale, best_codes) = (xl / l2, trial);
            best = scale * xl;
        }
    }
    Scales {
        d: f32_to_f16(scale),
        codes: best_codes,
    }
}
