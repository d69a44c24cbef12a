//! Quantisers of the 2- and 3-bit lattice formats.

use tokkata_core::DType;

use super::Task;
use super::lanes::{self, Job, Lanes, nearest};
use super::lattice::{self, Hit, Lattice, Values};
use super::scales::fit_positive;
use super::symmetric::TINY;
use super::weights::sum_of_squares;
use crate::num::f32_to_f16;

const BLOCK: usize = 256;
/// Most groups of 8 signs, and twice that of points, in a sub-block.
const MAX_SIGNS: usize = 4;

/// Quantises whole rows to one of the 2- and 3-bit lattice formats.
pub(super) fn quantize(task: Task<'_>) {
    lanes::run(Blocks(task));
}

struct Blocks<'a>(Task<'a>);

impl Job for Blocks<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let task = self.0;
        match task.dtype {
            DType::IQ2_XXS => blocks::<L, 8, 32>(task, lattice::iq2_xxs(), &IQ2_XXS),
            DType::IQ2_XS => blocks::<L, 8, 16>(task, lattice::iq2_xs(), &IQ2_XS),
            DType::IQ2_S => blocks::<L, 8, 16>(task, lattice::iq2_s(), &IQ2_S),
            DType::IQ3_XXS => blocks::<L, 4, 32>(task, lattice::iq3_xxs(), &IQ3_XXS),
            DType::IQ3_S => blocks::<L, 4, 32>(task, lattice::iq3_s(), &IQ3_S),
            other => unreachable!("{other} is not one of these formats"),
        }
    }
}

/// What differs between the formats.
struct Format {
    /// Share of the block's mean square in a weight.
    variance: f32,
    /// The same where importance is not known.
    plain_variance: f32,
    /// Sub-blocks whose largest magnitude is below this count as zero.
    tiny: f32,
    signs: Signs,
    search: Search,
    /// What the block's factor is multiplied by in the end.
    factor: f32,
    put: fn(&[Sub; 16], &mut [u8]),
}

/// How many of the eight signs of a group are free.
#[derive(Clone, Copy, PartialEq)]
enum Signs {
    All,
    /// The number of minus signs is even.
    Even,
}

struct Search {
    /// The highest value, `2 * levels - 1`.
    top: f32,
    steps: i8,
    step: f32,
    range: Range,
    refit: Refit,
}

/// What is divided into steps.
#[derive(Clone, Copy, PartialEq)]
enum Range {
    /// The largest magnitude.
    Largest,
    /// What a search for a plain scale with this many steps makes of it.
    Fitted { steps: i32 },
}

/// Which points are looked up again with the final scale.
#[derive(Clone, Copy, PartialEq)]
enum Refit {
    Inexact,
    AllIfInexact,
    All,
}

const IQ2_XXS: Format = Format {
    variance: 1.0,
    plain_variance: 0.0,
    tiny: TINY,
    signs: Signs::Even,
    search: Search {
        top: 5.0,
        steps: 6,
        step: 0.1,
        range: Range::Fitted { steps: 4 },
        refit: Refit::All,
    },
    factor: 1.0,
    put: put_iq2_xxs,
};

const IQ2_XS: Format = Format {
    search: Search {
        top: 5.0,
        steps: 9,
        step: 0.1,
        range: Range::Largest,
        refit: Refit::Inexact,
    },
    put: put_iq2_xs,
    ..IQ2_XXS
};

const IQ2_S: Format = Format {
    variance: 2.0,
    plain_variance: 0.25,
    tiny: 1e-8,
    signs: Signs::All,
    factor: 0.9875,
    put: put_iq2_s,
    ..IQ2_XS
};

const IQ3_XXS: Format = Format {
    variance: 2.0,
    plain_variance: 0.0,
    tiny: 1e-8,
    signs: Signs::Even,
    search: Search {
        top: 15.0,
        steps: 15,
        step: 0.2,
        range: Range::Largest,
        refit: Refit::Inexact,
    },
    factor: 1.0125,
    put: put_iq3_xxs,
};

const IQ3_S: Format = Format {
    tiny: f32::MIN_POSITIVE,
    signs: Signs::All,
    search: Search {
        top: 15.0,
        steps: 9,
        step: 0.2,
        range: Range::Largest,
        refit: Refit::AllIfInexact,
    },
    factor: 1.033,
    put: put_iq3_s,
    ..IQ3_XXS
};

/// A sub-block in the making; all zeros stand for a zero sub-block.
#[derive(Clone, Copy, Default)]
struct Sub {
    scale: f32,
    points: [u16; 2 * MAX_SIGNS],
    signs: [u8; MAX_SIGNS],
    /// The scale's 4-bit code.
    code: u8,
}

#[inline(always)]
fn blocks<L: Lanes, const N: usize, const E: usize>(
    task: Task<'_>,
    lattice: &Lattice<N>,
    format: &Format,
) {
    let Task { dtype, input, dst } = task;
    let blocks = dst.chunks_exact_mut(dtype.block_bytes());
    for (tile, dst) in input.tiles(BLOCK).zip(blocks) {
        let mean = sum_of_squares(tile.src) / BLOCK as f32;
        let importance = tile.importance();
        let mut subs = [Sub::default(); 16];
        let parts = tile.src.as_chunks::<E>().0;
        for (s, (x, sub)) in parts.iter().zip(&mut subs).enumerate() {
            let importance = importance.as_deref().map(|w| &w[s * E..(s + 1) * E]);
            let w = weights(x, importance, mean, format);
            *sub = search::<L, N, E>(x, &w, lattice, format);
        }
        finish(&mut subs[..BLOCK / E], format.factor, dst);
        (format.put)(&subs, dst);
    }
}

#[inline(always)]
fn weights<const E: usize>(
    x: &[f32; E],
    importance: Option<&[f32]>,
    mean: f32,
    format: &Format,
) -> [f32; E] {
    let sigma = format.variance * mean;
    match importance {
        Some(importance) => std::array::from_fn(|i| importance[i] * (sigma + x[i] * x[i]).sqrt()),
        None => x.map(|x| format.plain_variance * sigma + x * x),
    }
}

/// Gives every scale its code, clears the block and writes its factor.
fn finish(subs: &mut [Sub], factor: f32, dst: &mut [u8]) {
    let largest = subs
        .iter()
        .fold(0.0, |a: f32, s| if a > s.scale { a } else { s.scale });
    dst.fill(0);
    if largest == 0.0 {
        return subs.fill(Sub::default());
    }
    let d = largest / 31.0;
    dst[..2].copy_from_slice(&f32_to_f16(d * factor).to_le_bytes());
    for sub in subs {
        sub.code = nearest(0.5 * ((1.0 / d) * sub.scale - 1.0)).clamp(0, 15) as u8;
    }
}

#[inline(always)]
fn search<L: Lanes, const N: usize, const E: usize>(
    x: &[f32; E],
    w: &[f32; E],
    lattice: &Lattice<N>,
    format: &Format,
) -> Sub {
    let mut magnitudes = *x;
    let mut signs = [0; MAX_SIGNS];
    for ((x, w), sign) in magnitudes
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(w.as_chunks().0)
        .zip(&mut signs)
    {
        *sign = take_signs(x, w, format.signs);
    }
    let largest = magnitudes
        .iter()
        .fold(magnitudes[0], |a, &v| if a > v { a } else { v });
    if largest < format.tiny {
        return Sub::default();
    }
    let groups = Groups {
        lattice,
        x: &magnitudes,
        w,
        roots: w.map(f32::sqrt),
    };
    let Some((scale, points)) = groups.search::<L>(largest, &format.search) else {
        return Sub::default();
    };
    if scale < 0.0 {
        let mask = if format.signs == Signs::Even {
            127
        } else {
            255
        };
        signs = signs.map(|s| !s & mask);
    }
    Sub {
        scale: scale.abs(),
        points,
        signs,
        code: 0,
    }
}

/// Makes `x` positive and returns what was negative. With even signs the cheapest element may turn
/// negative instead, and the eighth sign goes unsaid.
#[inline(always)]
fn take_signs(x: &mut [f32; 8], w: &[f32; 8], kind: Signs) -> u8 {
    let mut signs = (0..8).fold(0u8, |s, i| s | u8::from(x[i] < 0.0) << i);
    let cost: [f32; 8] = std::array::from_fn(|i| w[i] * x[i] * x[i]);
    *x = x.map(f32::abs);
    if kind == Signs::All {
        return signs;
    }
    if signs.count_ones() % 2 == 1 {
        let cheapest = (1..8).fold(0, |best, i| if cost[i] < cost[best] { i } else { best });
        x[cheapest] = -x[cheapest];
        signs ^= 1 << cheapest;
    }
    signs & 127
}

/// One sub-block in groups of `N` elements.
struct Groups<'a, const N: usize, const E: usize> {
    lattice: &'a Lattice<N>,
    x: &'a [f32; E],
    w: &'a [f32; E],
    roots: [f32; E],
}

type Points = [u16; 2 * MAX_SIGNS];

impl<const N: usize, const E: usize> Groups<'_, N, E> {
    /// The best scale and its points; `None` when all is zero.
    #[inline(always)]
    fn search<L: Lanes>(&self, largest: f32, search: &Search) -> Option<(f32, Points)> {
        let (range, mut scale) = self.range(largest, search)?;
        let mut best = 0.0;
        let mut hits = [Hit {
            point: 0,
            exact: search.refit != Refit::AllIfInexact,
        }; 2 * MAX_SIGNS];
        for step in -search.steps..=search.steps {
            let inverse = (search.top + f32::from(step) * search.step) / range;
            let trial = self.assign::<L>(inverse, 1.0 / inverse);
            let (qx, q2) = self.sums(&trial);
            if q2 > 0.0 && qx * qx > best * q2 {
                scale = qx / q2;
                best = scale * qx;
                hits = trial;
            }
        }
        Some((
            self.refit::<L>(scale, &mut hits, search.refit),
            hits.map(|hit| hit.point),
        ))
    }

    /// What the steps divide, and the scale to begin with.
    fn range(&self, largest: f32, search: &Search) -> Option<(f32, f32)> {
        match search.range {
            Range::Largest => Some((largest, largest / search.top)),
            Range::Fitted { steps } => {
                let scale = fit_positive(self.x, self.w, steps, &mut [0; E]);
                let range = scale * (steps - 1) as f32;
                (range > 0.0).then_some((range, scale))
            }
        }
    }

    #[inline(always)]
    fn assign<L: Lanes>(&self, inverse: f32, scale: f32) -> [Hit; 2 * MAX_SIGNS] {
        let mut hits = [Hit {
            point: 0,
            exact: true,
        }; 2 * MAX_SIGNS];
        for (g, hit) in hits[..E / N].iter_mut().enumerate() {
            *hit = self.hit::<L>(g, inverse, scale);
        }
        hits
    }

    #[inline(always)]
    fn hit<L: Lanes>(&self, g: usize, inverse: f32, scale: f32) -> Hit {
        let (x, w) = (
            &self.x.as_chunks::<N>().0[g],
            &self.roots.as_chunks::<N>().0[g],
        );
        let levels = self.lattice.round(x, inverse);
        self.lattice.find::<L>(
            &levels,
            (x, w),
            (
                scale,
                Values {
                    stretch: 1.0,
                    shift: 0.0,
                },
            ),
        )
    }

    #[inline(always)]
    fn sums(&self, hits: &[Hit]) -> (f32, f32) {
        let groups = self
            .x
            .as_chunks::<N>()
            .0
            .iter()
            .zip(self.w.as_chunks::<N>().0)
            .zip(hits);
        let (mut qx, mut q2) = (0.0, 0.0);
        for ((x, w), hit) in groups {
            let q = self.lattice.values(hit.point);
            for i in 0..N {
                qx += w[i] * x[i] * q[i];
                q2 += w[i] * q[i] * q[i];
            }
        }
        (qx, q2)
    }

    /// Looks points up again with the best scale, and returns the scale that then fits best.
    #[inline(always)]
    fn refit<L: Lanes>(&self, scale: f32, hits: &mut [Hit; 2 * MAX_SIGNS], refit: Refit) -> f32 {
        let inexact = hits[..E / N].iter().any(|hit| !hit.exact);
        if scale <= 0.0 || !(inexact || refit == Refit::All) {
            return scale;
        }
        for (g, hit) in hits[..E / N].iter_mut().enumerate() {
            if refit != Refit::Inexact || !hit.exact {
                *hit = self.hit::<L>(g, 1.0 / scale, scale);
            }
        }
        let (qx, q2) = self.sums(hits);
        if q2 > 0.0 { qx / q2 } else { scale }
    }
}

fn put_iq2_xxs(subs: &[Sub; 16], dst: &mut [u8]) {
    for (sub, dst) in subs.iter().zip(dst[2..].chunks_exact_mut(8)) {
        for (byte, &point) in dst.iter_mut().zip(&sub.points[..4]) {
            *byte = point as u8;
        }
        dst[4..].copy_from_slice(&signs_and_scale(sub).to_le_bytes());
    }
}

/// Four sets of seven signs below a 4-bit scale.
fn signs_and_scale(sub: &Sub) -> u32 {
    let signs = (0..4).fold(0, |word, i| word | u32::from(sub.signs[i]) << (7 * i));
    signs | u32::from(sub.code) << 28
}

fn put_iq2_xs(subs: &[Sub; 16], dst: &mut [u8]) {
    for (s, sub) in subs.iter().enumerate() {
        for k in 0..2 {
            let word = sub.points[k] | u16::from(sub.signs[k]) << 9;
            let at = 2 + 4 * s + 2 * k;
            dst[at..at + 2].copy_from_slice(&word.to_le_bytes());
        }
        dst[66 + s / 2] |= sub.code << (4 * (s % 2));
    }
}

fn put_iq2_s(subs: &[Sub; 16], dst: &mut [u8]) {
    for (s, sub) in subs.iter().enumerate() {
        for k in 0..2 {
            let g = 2 * s + k;
            dst[2 + g] = sub.points[k] as u8;
            dst[34 + g] = sub.signs[k];
            dst[66 + g / 4] |= ((sub.points[k] >> 8) as u8) << (2 * (g % 4));
        }
        dst[74 + s / 2] |= sub.code << (4 * (s % 2));
    }
}

fn put_iq3_xxs(subs: &[Sub; 16], dst: &mut [u8]) {
    for (s, sub) in subs[..8].iter().enumerate() {
        for (byte, &point) in dst[2 + 8 * s..10 + 8 * s].iter_mut().zip(&sub.points) {
            *byte = point as u8;
        }
        dst[66 + 4 * s..70 + 4 * s].copy_from_slice(&signs_and_scale(sub).to_le_bytes());
    }
}

fn put_iq3_s(subs: &[Sub; 16], dst: &mut [u8]) {
    for (s, sub) in subs[..8].iter().enumerate() {
        for (k, &point) in sub.points.iter().enumerate() {
            dst[2 + 8 * s + k] = point as u8;
            dst[66 + s] |= ((point >> 8) as u8) << k;
        }
        dst[74 + 4 * s..78 + 4 * s].copy_from_slice(&sub.signs);
        dst[106 + s / 2] |= sub.code << (4 * (s % 2));
    }
}
