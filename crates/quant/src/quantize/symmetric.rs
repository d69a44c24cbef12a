//! The search for a scale alone: codes `-steps` to `steps - 1`, value `scale * code`.

use super::lanes::{LANES, Lanes, nearest};

/// Sub-blocks whose largest magnitude is below this count as zero.
pub(super) const TINY: f32 = 1e-15;

/// The best scale per sub-block, and how its codes were made.
pub(super) struct Fit {
    pub(super) scale: [f32; LANES],
    inverse: [f32; LANES],
    /// Largest magnitude.
    peak: [f32; LANES],
    steps: i32,
}

impl Fit {
    /// The code that the search gave `x` in sub-block `s`, plus `steps`; 0 in zero sub-blocks.
    #[inline(always)]
    pub(super) fn code(&self, s: usize, x: f32) -> u8 {
        if self.peak[s] < TINY {
            return 0;
        }
        (nearest(self.inverse[s] * x).clamp(-self.steps, self.steps - 1) + self.steps) as u8
    }
}

/// The largest magnitude, and the first element that has it.
#[inline(always)]
pub(super) fn peak<L: Lanes, const E: usize>(x: &[L; E]) -> (L, L) {
    let (mut peak, mut value) = (L::splat(0.0), L::splat(0.0));
    for &v in x {
        let higher = peak.lt(v.abs());
        value = L::pick(higher, v, value);
        peak = L::pick(higher, v.abs(), peak);
    }
    (peak, value)
}

/// Weighted sums of `x * code` and `code * code`.
#[inline(always)]
fn sums<L: Lanes, const E: usize>(x: &[L; E], w: &[L; E], inverse: L, steps: f32) -> (L, L) {
    let (mut xl, mut l2) = (L::splat(0.0), L::splat(0.0));
    for i in 0..E {
        let l = (inverse * x[i]).code(-steps, steps - 1.0);
        xl = xl + w[i] * x[i] * l;
        l2 = l2 + w[i] * l * l;
    }
    (xl, l2)
}

/// Searches all sub-blocks: `x[i]` and `w[i]` hold element `i` and its weight.
#[inline(always)]
pub(super) fn fit<L: Lanes, const E: usize>(x: &[L; E], w: &[L; E], steps: f32) -> Fit {
    let zero = L::splat(0.0);
    let (peak, value) = peak(x);
    let mut inverse = L::splat(-steps) / value;
    let (xl, l2) = sums(x, w, inverse, steps);
    // Sums of squares: not zero means positive.
    let mut scale = L::pick(zero.lt(l2), xl / l2, zero);
    let mut best = scale * xl;
    for step in (-9i8..=9).filter(|&step| step != 0) {
        let trial = L::splat(-(steps + 0.1 * f32::from(step))) / value;
        let (xl, l2) = sums(x, w, trial, steps);
        let better = L::both(zero.lt(l2), (best * l2).lt(xl * xl));
        if L::any(better) {
            scale = L::pick(better, xl / l2, scale);
            best = L::pick(better, scale * xl, best);
            inverse = L::pick(better, trial, inverse);
        }
    }
    let scale = L::pick(peak.lt(L::splat(TINY)), zero, scale);
    Fit {
        scale: scale.to_array(),
        inverse: inverse.to_array(),
        peak: peak.to_array(),
        steps: steps as i32,
    }
}

/// Scale and codes found by changing one code at a time.
pub(super) struct Refined<const E: usize> {
    pub(super) scale: [f32; LANES],
    codes: [[f32; LANES]; E],
    steps: f32,
    peak: [f32; LANES],
}

impl<const E: usize> Refined<E> {
    /// The code of element `i` of sub-block `s`, plus `steps`; 0 in zero sub-blocks.
    #[inline(always)]
    pub(super) fn code(&self, s: usize, i: usize) -> u8 {
        if self.peak[s] < TINY {
            return 0;
        }
        (self.codes[i][s] + self.steps) as u8
    }
}

/// Greedy descent with weights `x * x`: at most five rounds over the elements.
#[inline(always)]
pub(super) fn refine<L: Lanes, const E: usize>(x: &[L; E], steps: f32) -> Refined<E> {
    let zero = L::splat(0.0);
    let (peak, value) = peak(x);
    let inverse = L::splat(-steps) / value;
    let mut codes = [zero; E];
    let (mut xl, mut l2) = (zero, zero);
    for (&v, code) in x.iter().zip(&mut codes) {
        let l = (inverse * v).code(-steps, steps - 1.0);
        *code = l;
        let w = v * v;
        xl = xl + w * v * l;
        l2 = l2 + w * l * l;
    }
    for _round in 0..5 {
        let mut changed = false;
        for (&v, code) in x.iter().zip(&mut codes) {
            changed |= improve(v, code, (&mut xl, &mut l2), steps);
        }
        if !changed {
            break;
        }
    }
    let scale = L::pick(zero.lt(l2), xl / l2, zero);
    let scale = L::pick(peak.lt(L::splat(TINY)), zero, scale);
    let mut stored = [[0.0; LANES]; E];
    for (stored, code) in stored.iter_mut().zip(&codes) {
        *stored = code.to_array();
    }
    Refined {
        scale: scale.to_array(),
        codes: stored,
        steps,
        peak: peak.to_array(),
    }
}

/// Gives one element its best code with all others fixed, where that lowers the error.
#[inline(always)]
fn improve<L: Lanes>(x: L, code: &mut L, (xl, l2): (&mut L, &mut L), steps: f32) -> bool {
    let zero = L::splat(0.0);
    let w = x * x;
    let others_xl = *xl - w * x * *code;
    let others_l2 = *l2 - w * *code * *code;
    let new = wrapping_code(x * others_l2 / others_xl, steps);
    let new_xl = others_xl + w * x * new;
    let new_l2 = others_l2 + w * new * new;
    let moved = (zero).lt((new - *code).abs());
    let better = (*xl * *xl * new_l2).lt(new_xl * new_xl * *l2);
    let accept = L::both(
        L::both(zero.lt(others_xl), moved),
        L::both(zero.lt(new_l2), better),
    );
    *xl = L::pick(accept, new_xl, *xl);
    *l2 = L::pick(accept, new_l2, *l2);
    *code = L::pick(accept, new, *code);
    L::any(accept)
}

/// Quotients here have no bound, so rounding must wrap as [`nearest`] does.
#[inline(always)]
fn wrapping_code<L: Lanes>(value: L, steps: f32) -> L {
    let wild = L::splat(4_000_000.0).lt(value.abs());
    let code = value.code(-steps, steps - 1.0);
    if !L::any(wild) {
        return code;
    }
    let (low, high) = (-steps as i32, steps as i32 - 1);
    let wrapped = value.to_array().map(|v| nearest(v).clamp(low, high) as f32);
    L::pick(wild, L::load(&wrapped), code)
}
