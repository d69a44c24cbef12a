//! The search for a scale and a minimum: codes 0 to `top`, value `scale * code + min`.

use super::lanes::{LANES, Lanes, nearest};

/// What a search tries.
#[derive(Clone, Copy)]
pub(super) struct Search {
    /// Highest code.
    pub(super) top: f32,
    /// First and step of what is added to `top` when the range is divided.
    pub(super) first: f32,
    pub(super) step: f32,
    /// Number of the last step.
    pub(super) last: u16,
    /// What a deviation costs.
    pub(super) cost: Cost,
}

/// Cost of a deviation before weighting.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Cost {
    Square,
    Absolute,
}

impl Search {
    /// The finer search that importance weights ask for.
    pub(super) const fn weighted(top: f32) -> Self {
        Self {
            top,
            first: -0.9,
            step: 0.05,
            last: 36,
            cost: Cost::Square,
        }
    }
}

/// The best scale and minimum per sub-block, and how its codes were made.
pub(super) struct Fit {
    pub(super) scale: [f32; LANES],
    /// What is subtracted: the minimum with its sign turned, never negative.
    pub(super) min: [f32; LANES],
    /// Sum of the weights.
    pub(super) weight: [f32; LANES],
    inverse: [f32; LANES],
    base: [f32; LANES],
    pub(super) top: i32,
}

impl Fit {
    /// The code that the search gave `x` in sub-block `s`.
    #[inline(always)]
    pub(super) fn code(&self, s: usize, x: f32) -> u8 {
        nearest(self.inverse[s] * (x - self.base[s])).clamp(0, self.top) as u8
    }
}

/// State of a search: the best so far.
struct Best<L> {
    error: L,
    scale: L,
    min: L,
    inverse: L,
    base: L,
}

/// Searches all sub-blocks: `x[i]` and `w[i]` hold element `i` and its weight.
#[inline(always)]
pub(super) fn fit<L: Lanes, const E: usize>(x: &[L; E], w: &[L; E], search: &Search) -> Fit {
    let (low, high) = range(x);
    let mut sum_w = w[0];
    let mut sum_x = sum_w * x[0];
    for i in 1..E {
        sum_w = sum_w + w[i];
        sum_x = sum_x + w[i] * x[i];
    }
    let mut best = start(x, w, low, high, search);
    for step in 0..=search.last {
        let aim = L::splat(search.first + search.step * f32::from(step) + search.top);
        try_step(
            x,
            w,
            (sum_w, sum_x),
            aim / (high - best.min),
            &mut best,
            search,
        );
    }
    finish(low, high, sum_w, &best, search)
}

/// The least element or zero, and the greatest.
#[inline(always)]
fn range<L: Lanes, const E: usize>(x: &[L; E]) -> (L, L) {
    let (mut low, mut high) = (x[0], x[0]);
    for &v in &x[1..] {
        low = v.min(low);
        high = v.max(high);
    }
    let zero = L::splat(0.0);
    (L::pick(zero.lt(low), zero, low), high)
}

#[inline(always)]
fn start<L: Lanes, const E: usize>(
    x: &[L; E],
    w: &[L; E],
    low: L,
    high: L,
    search: &Search,
) -> Best<L> {
    let inverse = L::splat(search.top) / (high - low);
    let scale = L::splat(1.0) / inverse;
    let mut error = L::splat(0.0);
    for i in 0..E {
        let code = (inverse * (x[i] - low)).code(0.0, search.top);
        error = error + w[i] * cost(scale * code + low - x[i], search.cost);
    }
    Best {
        error,
        scale,
        min: low,
        inverse,
        base: low,
    }
}

#[inline(always)]
fn cost<L: Lanes>(diff: L, cost: Cost) -> L {
    match cost {
        Cost::Square => diff * diff,
        Cost::Absolute => diff.abs(),
    }
}

/// Codes for `inverse`, the least-squares line through them, and its error.
#[inline(always)]
fn try_step<L: Lanes, const E: usize>(
    x: &[L; E],
    w: &[L; E],
    (sum_w, sum_x): (L, L),
    inverse: L,
    best: &mut Best<L>,
    search: &Search,
) {
    let zero = L::splat(0.0);
    let mut codes = [zero; E];
    let (mut sum_l, mut sum_l2, mut sum_xl) = (zero, zero, zero);
    for i in 0..E {
        let l = (inverse * (x[i] - best.min)).code(0.0, search.top);
        codes[i] = l;
        let wl = w[i] * l;
        sum_l = sum_l + wl;
        sum_l2 = sum_l2 + wl * l;
        sum_xl = sum_xl + wl * x[i];
    }
    let det = sum_w * sum_l2 - sum_l * sum_l;
    let mut scale = (sum_w * sum_xl - sum_x * sum_l) / det;
    let mut min = (sum_l2 * sum_x - sum_l * sum_xl) / det;
    let positive = zero.lt(min);
    min = L::pick(positive, zero, min);
    scale = L::pick(positive, sum_xl / sum_l2, scale);
    let mut error = zero;
    for i in 0..E {
        error = error + w[i] * cost(scale * codes[i] + min - x[i], search.cost);
    }
    let better = L::both(zero.lt(det), error.lt(best.error));
    if L::any(better) {
        best.base = L::pick(better, best.min, best.base);
        best.inverse = L::pick(better, inverse, best.inverse);
        best.error = L::pick(better, error, best.error);
        best.scale = L::pick(better, scale, best.scale);
        best.min = L::pick(better, min, best.min);
    }
}

/// Sub-blocks without a range get scale zero and codes zero.
#[inline(always)]
fn finish<L: Lanes>(low: L, high: L, sum_w: L, best: &Best<L>, search: &Search) -> Fit {
    let zero = L::splat(0.0);
    let ranged = low.lt(high);
    let min = L::pick(ranged, best.min, low);
    Fit {
        scale: L::pick(ranged, best.scale, zero).to_array(),
        // A minimum of plus zero turns into minus zero.
        min: (L::splat(-0.0) - min).to_array(),
        weight: sum_w.to_array(),
        inverse: L::pick(ranged, best.inverse, zero).to_array(),
        base: L::pick(ranged, best.base, zero).to_array(),
        top: search.top as i32,
    }
}
