//! Quantisers of `IQ1_S` and `IQ1_M`: levels -1, 0, 1, moved by an eighth up or down.

use tokkata_core::DType;

use super::Task;
use super::lanes::{self, Job, LANES, Lanes, nearest};
use super::lattice::{self, Lattice, Values};
use super::weights::sum_of_squares;
use crate::num::f32_to_f16;

const BLOCK: usize = 256;

/// Quantises whole rows to `IQ1_S` or `IQ1_M`.
pub(super) fn quantize(task: Task<'_>) {
    lanes::run(Blocks(task));
}

struct Blocks<'a>(Task<'a>);

impl Job for Blocks<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        blocks::<L>(self.0);
    }
}

#[inline(always)]
fn blocks<L: Lanes>(task: Task<'_>) {
    let lattice = lattice::iq1();
    let Task { dtype, input, dst } = task;
    let blocks = dst.chunks_exact_mut(dtype.block_bytes());
    for (tile, dst) in input.tiles(BLOCK).zip(blocks) {
        let importance = tile.importance().expect("importance was checked");
        let w = weights(tile.src, &importance);
        let x = tile.src.try_into().expect("rows are whole blocks");
        match dtype {
            DType::IQ1_S => iq1_s::<L>(x, &w, lattice, dst),
            _ => iq1_m::<L>(x, &w, lattice, dst),
        }
    }
}

fn weights(x: &[f32], importance: &[f32]) -> [f32; BLOCK] {
    let sigma = 2.0 * sum_of_squares(x) / BLOCK as f32;
    std::array::from_fn(|i| importance[i] * (sigma + x[i] * x[i]).sqrt())
}

/// Which way a group's levels are moved.
#[derive(Clone, Copy, PartialEq)]
enum Shift {
    Up,
    Down,
}

impl Shift {
    /// Values of levels 0 to 2.
    const fn values(self) -> [f32; 3] {
        match self {
            Shift::Up => [-0.875, 0.125, 1.125],
            Shift::Down => [-1.125, -0.125, 0.875],
        }
    }

    const fn of_odd(self) -> Values {
        let shift = match self {
            Shift::Up => -1.375,
            Shift::Down => -1.625,
        };
        Values {
            stretch: 0.5,
            shift,
        }
    }

    const fn turned(self) -> Self {
        match self {
            Shift::Up => Shift::Down,
            Shift::Down => Shift::Up,
        }
    }
}

/// A sub-block in the making: `G` groups of eight.
#[derive(Clone, Copy)]
struct Sub<const G: usize> {
    scale: f32,
    points: [u16; G],
    shifts: [Shift; G],
}

impl<const G: usize> Sub<G> {
    const ZERO: Self = Self {
        scale: 0.0,
        points: [0; G],
        shifts: [Shift::Up; G],
    };
}

/// The best way to cut sorted elements into three runs of equal level.
struct Split<const G: usize> {
    score: f32,
    scale: f32,
    cuts: Option<(usize, usize)>,
    shifts: [Shift; G],
}

impl<const G: usize> Split<G> {
    #[inline(always)]
    fn offer(&mut self, (qx, q2): (f32, f32), cuts: (usize, usize), shifts: [Shift; G]) {
        if q2 > 0.0 && qx * qx > self.score * q2 {
            self.scale = qx / q2;
            self.score = self.scale * qx;
            self.cuts = Some(cuts);
            self.shifts = shifts;
        }
    }
}

/// Elements in ascending order.
fn order<const E: usize>(x: &[f32; E]) -> [usize; E] {
    let mut order = std::array::from_fn(|i| i);
    order.sort_by(|&a, &b| x[a].total_cmp(&x[b]));
    order
}

/// Running sums of a sub-block of `E` elements in ascending order. They go on unchanged past the
/// end, so that [`LANES`] of them can be read from any place.
struct Running {
    x: [f32; 64],
    w: [f32; 64],
}

impl Running {
    /// Sums over the elements that `counts` accepts; the others add nothing.
    fn new<const E: usize>(
        (x, w): (&[f32; E], &[f32; E]),
        order: &[usize; E],
        counts: impl Fn(usize) -> bool,
    ) -> Self {
        let mut sums = Self {
            x: [0.0; 64],
            w: [0.0; 64],
        };
        for j in 0..63 {
            let next = order.get(j).copied().filter(|&i| counts(i));
            sums.x[j + 1] = next.map_or(sums.x[j], |i| sums.x[j] + w[i] * x[i]);
            sums.w[j + 1] = next.map_or(sums.w[j], |i| sums.w[j] + w[i]);
        }
        sums
    }
}

#[inline(always)]
fn load<L: Lanes>(sums: &[f32; 64], at: usize) -> L {
    L::load(sums[at..].first_chunk().expect("sums go on past the end"))
}

/// Whether any lane would improve on a split of this score.
#[inline(always)]
fn improves<L: Lanes>(score: f32, (qx, q2): (L, L)) -> bool {
    let better = (L::splat(score) * q2).lt(qx * qx);
    L::any(L::both(L::splat(0.0).lt(q2), better))
}

/// Cuts after `a` and after each of the lanes' places.
trait Cuts<L: Lanes, const G: usize> {
    /// Whether one of the cuts `(a, b)` to `(a, b + 15)` may be better.
    fn promising(&self, a: usize, b: usize, score: f32) -> bool;
    /// Tries the cuts `(a, b)`.
    fn offer(&self, a: usize, b: usize, best: &mut Split<G>);
}

/// All pairs of cuts of `E` elements, in order.
#[inline(always)]
fn best_split<L: Lanes, C: Cuts<L, G>, const E: usize, const G: usize>(cuts: &C) -> Split<G> {
    let mut best = Split {
        score: f32::MIN,
        scale: 0.0,
        cuts: None,
        shifts: [Shift::Up; G],
    };
    for a in 0..=E {
        for start in (a..=E).step_by(LANES) {
            if cuts.promising(a, start, best.score) {
                for b in start..(start + LANES).min(E + 1) {
                    cuts.offer(a, b, &mut best);
                }
            }
        }
    }
    best
}

/// One shift for the whole sub-block of 32.
struct Whole(Running);

impl Whole {
    #[inline(always)]
    fn sums(&self, a: usize, b: usize, shift: Shift) -> (f32, f32) {
        let q = shift.values();
        let runs = |s: &[f32; 64]| [s[a], s[b] - s[a], s[32] - s[b]];
        let (x, w) = (runs(&self.0.x), runs(&self.0.w));
        let qx = x[0] * q[0] + x[1] * q[1] + x[2] * q[2];
        let q2 = w[0] * q[0] * q[0] + w[1] * q[1] * q[1] + w[2] * q[2] * q[2];
        (qx, q2)
    }

    #[inline(always)]
    fn lanes<L: Lanes>(&self, a: usize, b: usize, shift: Shift) -> (L, L) {
        let q = shift.values();
        let (q0, q1, q2) = (L::splat(q[0]), L::splat(q[1]), L::splat(q[2]));
        let (xa, xb) = (L::splat(self.0.x[a]), load::<L>(&self.0.x, b));
        let (wa, wb) = (L::splat(self.0.w[a]), load::<L>(&self.0.w, b));
        let (x, w) = (L::splat(self.0.x[32]), L::splat(self.0.w[32]));
        let qx = xa * q0 + (xb - xa) * q1 + (x - xb) * q2;
        let qq = wa * q0 * q0 + (wb - wa) * q1 * q1 + (w - wb) * q2 * q2;
        (qx, qq)
    }
}

impl<L: Lanes> Cuts<L, 4> for Whole {
    #[inline(always)]
    fn promising(&self, a: usize, b: usize, score: f32) -> bool {
        improves::<L>(score, self.lanes(a, b, Shift::Up))
            || improves::<L>(score, self.lanes(a, b, Shift::Down))
    }

    #[inline(always)]
    fn offer(&self, a: usize, b: usize, best: &mut Split<4>) {
        for shift in [Shift::Up, Shift::Down] {
            best.offer(self.sums(a, b, shift), (a, b), [shift; 4]);
        }
    }
}

/// A shift for each half of a sub-block of sixteen.
struct Halves([Running; 2]);

impl Halves {
    /// Levels are 1 apart, so two differences of the total are enough.
    #[inline(always)]
    fn sums(&self, half: usize, a: usize, b: usize, shift: Shift) -> (f32, f32) {
        let (q, s) = (shift.values(), &self.0[half]);
        let (first, second) = (q[0] * q[0] - q[1] * q[1], q[1] * q[1] - q[2] * q[2]);
        let qx = s.x[16] * q[2] - (s.x[a] + s.x[b]);
        let q2 = s.w[16] * q[2] * q[2] + s.w[a] * first + s.w[b] * second;
        (qx, q2)
    }

    #[inline(always)]
    fn lanes<L: Lanes>(&self, half: usize, a: usize, b: usize, shift: Shift) -> (L, L) {
        let (q, s) = (shift.values(), &self.0[half]);
        let (first, second) = (q[0] * q[0] - q[1] * q[1], q[1] * q[1] - q[2] * q[2]);
        let qx = L::splat(s.x[16] * q[2]) - (L::splat(s.x[a]) + load(&s.x, b));
        let start = L::splat(s.w[16] * q[2] * q[2] + s.w[a] * first);
        (qx, start + load::<L>(&s.w, b) * L::splat(second))
    }
}

impl<L: Lanes> Cuts<L, 2> for Halves {
    #[inline(always)]
    fn promising(&self, a: usize, b: usize, score: f32) -> bool {
        let up = [
            self.lanes::<L>(0, a, b, Shift::Up),
            self.lanes(1, a, b, Shift::Up),
        ];
        let down = [
            self.lanes::<L>(0, a, b, Shift::Down),
            self.lanes(1, a, b, Shift::Down),
        ];
        let sum = |one: (L, L), two: (L, L)| (one.0 + two.0, one.1 + two.1);
        improves(score, sum(up[0], up[1]))
            || improves(score, sum(up[0], down[1]))
            || improves(score, sum(down[0], up[1]))
            || improves(score, sum(down[0], down[1]))
    }

    #[inline(always)]
    fn offer(&self, a: usize, b: usize, best: &mut Split<2>) {
        let of = |half| [Shift::Up, Shift::Down].map(|shift| (shift, self.sums(half, a, b, shift)));
        let seconds = of(1);
        for (first, (qx, q2)) in of(0) {
            for (second, (qx2, q22)) in seconds {
                best.offer((qx + qx2, q2 + q22), (a, b), [first, second]);
            }
        }
    }
}

/// Turns a split into points of the lattice and the scale that fits them.
#[inline(always)]
fn settle<L: Lanes, const E: usize, const G: usize>(
    x: &[f32; E],
    w: &[f32; E],
    (split, order): (Split<G>, &[usize; E]),
    lattice: &Lattice<8>,
) -> Sub<G> {
    let Some((a, b)) = split.cuts else {
        return Sub::ZERO;
    };
    let mut levels = [0; E];
    for (j, &i) in order.iter().enumerate() {
        levels[i] = i32::from(j >= a) + i32::from(j >= b);
    }
    let mut sub = Sub {
        scale: split.scale,
        points: [0; G],
        shifts: split.shifts,
    };
    if sub.scale < 0.0 {
        levels = levels.map(|level| 2 - level);
        sub.scale = -sub.scale;
        sub.shifts = sub.shifts.map(Shift::turned);
    }
    if !look_up::<L, E, G>(&mut sub, &levels, (x, w), lattice) {
        let (qx, q2) = sums(&sub, (x, w), lattice);
        if qx > 0.0 && q2 > 0.0 {
            sub.scale = qx / q2;
        }
    }
    sub
}

/// Finds each group's point; whether all were met exactly.
#[inline(always)]
fn look_up<L: Lanes, const E: usize, const G: usize>(
    sub: &mut Sub<G>,
    levels: &[i32; E],
    (x, w): (&[f32; E], &[f32; E]),
    lattice: &Lattice<8>,
) -> bool {
    let mut exact = true;
    for (g, levels) in levels.as_chunks::<8>().0.iter().enumerate() {
        let group = (&x.as_chunks::<8>().0[g], &w.as_chunks::<8>().0[g]);
        let hit = lattice.find::<L>(levels, group, (sub.scale, sub.shifts[g].of_odd()));
        exact &= hit.exact;
        sub.points[g] = hit.point;
    }
    exact
}

/// The value of a level given as `2 * level + 1`.
#[inline(always)]
fn value(odd: f32, shift: Shift) -> f32 {
    shift.values()[(odd as usize - 1) / 2]
}

fn sums<const E: usize, const G: usize>(
    sub: &Sub<G>,
    (x, w): (&[f32; E], &[f32; E]),
    lattice: &Lattice<8>,
) -> (f32, f32) {
    let (mut qx, mut q2) = (0.0, 0.0);
    for g in 0..G {
        for (i, &odd) in lattice.values(sub.points[g]).iter().enumerate() {
            let (q, w, x) = (value(odd, sub.shifts[g]), w[8 * g + i], x[8 * g + i]);
            qx += w * q * x;
            q2 += w * q * q;
        }
    }
    (qx, q2)
}

fn largest_magnitude(x: &[f32]) -> f32 {
    x.iter()
        .fold(0.0, |a: f32, v| if v.abs() > a { v.abs() } else { a })
}

/// A scale's 3-bit code.
fn scale_code(scale: f32, d: f32) -> u16 {
    nearest(0.5 * ((1.0 / d) * scale - 1.0)).clamp(0, 7) as u16
}

#[inline(always)]
fn iq1_s<L: Lanes>(x: &[f32; BLOCK], w: &[f32; BLOCK], lattice: &Lattice<8>, dst: &mut [u8]) {
    let pairs = x.as_chunks::<32>().0.iter().zip(w.as_chunks::<32>().0);
    let mut subs = [Sub::<4>::ZERO; 8];
    for ((x, w), sub) in pairs.zip(&mut subs) {
        if largest_magnitude(x) >= 1e-12 {
            let order = order(x);
            let cuts = Whole(Running::new((x, w), &order, |_| true));
            let split = best_split::<L, _, 32, 4>(&cuts);
            *sub = settle::<L, 32, 4>(x, w, (split, &order), lattice);
        }
    }
    let d = subs.iter().fold(0.0, |a: f32, s| a.max(s.scale)) / 15.0;
    dst.fill(0);
    dst[..2].copy_from_slice(&f32_to_f16(d * 1.125).to_le_bytes());
    if d == 0.0 {
        return;
    }
    for (s, sub) in subs.iter().enumerate() {
        let down = u16::from(sub.shifts[0] == Shift::Down);
        let mut word = scale_code(sub.scale, d) << 12 | down << 15;
        for (g, &point) in sub.points.iter().enumerate() {
            dst[2 + 4 * s + g] = point as u8;
            word |= (point >> 8) << (3 * g);
        }
        dst[34 + 2 * s..36 + 2 * s].copy_from_slice(&word.to_le_bytes());
    }
}

#[inline(always)]
fn iq1_m<L: Lanes>(x: &[f32; BLOCK], w: &[f32; BLOCK], lattice: &Lattice<8>, dst: &mut [u8]) {
    let pairs = x.as_chunks::<16>().0.iter().zip(w.as_chunks::<16>().0);
    let mut subs = [Sub::<2>::ZERO; 16];
    for ((x, w), sub) in pairs.zip(&mut subs) {
        if largest_magnitude(x) >= 1e-7 {
            let order = order(x);
            let cuts = Halves([0, 1].map(|half| Running::new((x, w), &order, |i| i / 8 == half)));
            let split = best_split::<L, _, 16, 2>(&cuts);
            *sub = settle::<L, 16, 2>(x, w, (split, &order), lattice);
        }
    }
    let d = subs.iter().fold(0.0, |a: f32, s| a.max(s.scale)) / 15.0;
    dst.fill(0);
    if d == 0.0 {
        return;
    }
    let codes = subs.map(|sub| scale_code(sub.scale, d));
    let factor = f32_to_f16(best_factor(x, w, (&subs, &codes, d), lattice) * 1.1125);
    put_iq1_m(&subs, &codes, factor, dst);
}

/// The block's factor that fits all points with their rounded scales.
fn best_factor(
    x: &[f32; BLOCK],
    w: &[f32; BLOCK],
    (subs, codes, d): (&[Sub<2>; 16], &[u16; 16], f32),
    lattice: &Lattice<8>,
) -> f32 {
    let (mut qx, mut q2) = (0.0, 0.0);
    for (s, (sub, &code)) in subs.iter().zip(codes).enumerate() {
        for g in 0..2 {
            for (i, &odd) in lattice.values(sub.points[g]).iter().enumerate() {
                let at = 16 * s + 8 * g + i;
                let q = value(odd, sub.shifts[g]) * f32::from(2 * code + 1);
                qx += w[at] * q * x[at];
                q2 += w[at] * q * q;
            }
        }
    }
    if q2 > 0.0 { qx / q2 } else { d }
}

fn put_iq1_m(subs: &[Sub<2>; 16], codes: &[u16; 16], factor: u16, dst: &mut [u8]) {
    let mut words: [u16; 4] = std::array::from_fn(|i| ((factor >> (4 * i)) & 15) << 12);
    for (s, (sub, &code)) in subs.iter().zip(codes).enumerate() {
        words[s / 4] |= code << (3 * (s % 4));
        for g in 0..2 {
            let down = u8::from(sub.shifts[g] == Shift::Down);
            dst[2 * s + g] = sub.points[g] as u8;
            dst[32 + s] |= ((sub.points[g] >> 8) as u8 | down << 3) << (4 * g);
        }
    }
    for (word, dst) in words.iter().zip(dst[48..].chunks_exact_mut(2)) {
        dst.copy_from_slice(&word.to_le_bytes());
    }
}
