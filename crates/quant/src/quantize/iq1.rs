//! Quantisers of `IQ1_S` and `IQ1_M`: levels -1, 0, 1, moved by an eighth up or down.

use tokkata_core::DType;

use super::Task;
use super::lanes::nearest;
use super::lattice::{self, Lattice};
use super::weights::sum_of_squares;
use crate::num::f32_to_f16;

const BLOCK: usize = 256;

/// Quantises whole rows to `IQ1_S` or `IQ1_M`.
pub(super) fn quantize(task: Task<'_>) {
    let lattice = lattice::iq1();
    let Task { dtype, input, dst } = task;
    let blocks = dst.chunks_exact_mut(dtype.block_bytes());
    for (tile, dst) in input.tiles(BLOCK).zip(blocks) {
        let importance = tile.importance().expect("importance was checked");
        let w = weights(tile.src, &importance);
        let x = tile.src.try_into().expect("rows are whole blocks");
        match dtype {
            DType::IQ1_S => iq1_s(x, &w, lattice, dst),
            _ => iq1_m(x, &w, lattice, dst),
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

/// Exact search for one shift of the whole sub-block, from running sums in ascending order.
fn split_whole(x: &[f32; 32], w: &[f32; 32], order: &[usize; 32]) -> Split<4> {
    let (mut sx, mut sw) = ([0.0; 33], [0.0; 33]);
    for (j, &i) in order.iter().enumerate() {
        sx[j + 1] = sx[j] + w[i] * x[i];
        sw[j + 1] = sw[j] + w[i];
    }
    let mut best = Split {
        score: f32::MIN,
        scale: 0.0,
        cuts: None,
        shifts: [Shift::Up; 4],
    };
    for a in 0..=32 {
        for b in a..=32 {
            for shift in [Shift::Up, Shift::Down] {
                let q = shift.values();
                let runs = |s: &[f32; 33]| [s[a], s[b] - s[a], s[32] - s[b]];
                let (x, w) = (runs(&sx), runs(&sw));
                let qx = x[0] * q[0] + x[1] * q[1] + x[2] * q[2];
                let q2 = w[0] * q[0] * q[0] + w[1] * q[1] * q[1] + w[2] * q[2] * q[2];
                best.offer((qx, q2), (a, b), [shift; 4]);
            }
        }
    }
    best
}

/// Running sums over one half of a sub-block of sixteen, in the order of all of it.
struct Half {
    x: [f32; 17],
    w: [f32; 17],
}

impl Half {
    fn new(x: &[f32; 16], w: &[f32; 16], order: &[usize; 16], half: usize) -> Self {
        let mut sums = Self {
            x: [0.0; 17],
            w: [0.0; 17],
        };
        for (j, &i) in order.iter().enumerate() {
            let here = i / 8 == half;
            sums.x[j + 1] = if here {
                sums.x[j] + w[i] * x[i]
            } else {
                sums.x[j]
            };
            sums.w[j + 1] = if here { sums.w[j] + w[i] } else { sums.w[j] };
        }
        sums
    }

    /// Sums for cuts `a` and `b`: levels are 1 apart, so two differences of the total are enough.
    #[inline(always)]
    fn sums(&self, a: usize, b: usize, shift: Shift) -> (f32, f32) {
        let q = shift.values();
        let (first, second) = (q[0] * q[0] - q[1] * q[1], q[1] * q[1] - q[2] * q[2]);
        let qx = self.x[16] * q[2] - (self.x[a] + self.x[b]);
        let q2 = self.w[16] * q[2] * q[2] + self.w[a] * first + self.w[b] * second;
        (qx, q2)
    }
}

/// Exact search for a shift of each half of the sub-block.
fn split_halves(x: &[f32; 16], w: &[f32; 16], order: &[usize; 16]) -> Split<2> {
    let halves = [0, 1].map(|half| Half::new(x, w, order, half));
    let mut best = Split {
        score: f32::MIN,
        scale: 0.0,
        cuts: None,
        shifts: [Shift::Up; 2],
    };
    for a in 0..=16 {
        for b in a..=16 {
            let of = |h: usize| {
                [Shift::Up, Shift::Down].map(|shift| (shift, halves[h].sums(a, b, shift)))
            };
            let seconds = of(1);
            for (first, (qx, q2)) in of(0) {
                for (second, (qx2, q22)) in seconds {
                    best.offer((qx + qx2, q2 + q22), (a, b), [first, second]);
                }
            }
        }
    }
    best
}

/// Turns a split into points of the lattice and the scale that fits them.
fn settle<const E: usize, const G: usize>(
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
    if !look_up(&mut sub, &levels, (x, w), lattice) {
        let (qx, q2) = sums(&sub, (x, w), lattice);
        if qx > 0.0 && q2 > 0.0 {
            sub.scale = qx / q2;
        }
    }
    sub
}

/// Finds each group's point; whether all were met exactly.
fn look_up<const E: usize, const G: usize>(
    sub: &mut Sub<G>,
    levels: &[i32; E],
    (x, w): (&[f32; E], &[f32; E]),
    lattice: &Lattice<8>,
) -> bool {
    let mut exact = true;
    for (g, levels) in levels.as_chunks::<8>().0.iter().enumerate() {
        let (x, w) = (&x[8 * g..8 * g + 8], &w[8 * g..8 * g + 8]);
        let hit = lattice.find(levels, |odd| {
            (0..8).fold(0.0, |sum, i| {
                let diff = sub.scale * value(odd[i], sub.shifts[g]) - x[i];
                sum + w[i] * diff * diff
            })
        });
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

fn iq1_s(x: &[f32; BLOCK], w: &[f32; BLOCK], lattice: &Lattice<8>, dst: &mut [u8]) {
    let pairs = x.as_chunks::<32>().0.iter().zip(w.as_chunks::<32>().0);
    let mut subs = [Sub::<4>::ZERO; 8];
    for ((x, w), sub) in pairs.zip(&mut subs) {
        if largest_magnitude(x) >= 1e-12 {
            let order = order(x);
            *sub = settle(x, w, (split_whole(x, w, &order), &order), lattice);
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

fn iq1_m(x: &[f32; BLOCK], w: &[f32; BLOCK], lattice: &Lattice<8>, dst: &mut [u8]) {
    let pairs = x.as_chunks::<16>().0.iter().zip(w.as_chunks::<16>().0);
    let mut subs = [Sub::<2>::ZERO; 16];
    for ((x, w), sub) in pairs.zip(&mut subs) {
        if largest_magnitude(x) >= 1e-7 {
            let order = order(x);
            *sub = settle(x, w, (split_halves(x, w, &order), &order), lattice);
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
