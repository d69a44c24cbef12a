//! Nearest points of the IQ formats' lattices.

use std::sync::OnceLock;

use super::lanes::{LANES, Lanes, nearest};
use crate::grids;

/// The points of one format, with `N` elements each, and for every tuple of levels the points near it.
pub(super) struct Lattice<const N: usize> {
    /// Odd values `2 * level + 1`.
    points: Vec<[f32; N]>,
    /// Per packed tuple of levels: a point, or the place of its list in `neighbours`.
    places: Vec<Place>,
    neighbours: Vec<Near<N>>,
    levels: Levels,
}

/// Sixteen neighbours; the last of a list repeats where there are fewer.
#[derive(Clone, Copy)]
struct Near<const N: usize> {
    points: [u16; LANES],
    /// Odd values, by element and then by neighbour.
    values: [[u8; LANES]; N],
}

/// The values of levels: `stretch * odd + shift`.
#[derive(Clone, Copy)]
pub(super) struct Values {
    pub(super) stretch: f32,
    pub(super) shift: f32,
}

#[derive(Clone, Copy)]
enum Place {
    Point(u16),
    List {
        start: u32,
        len: u16,
    },
    /// Holds a level that the format does not have.
    Invalid,
}

/// How levels are packed into a key.
#[derive(Clone, Copy)]
struct Levels {
    bits: u32,
    top: i32,
}

/// A point, and whether the rounded levels were that point.
#[derive(Clone, Copy)]
pub(super) struct Hit {
    pub(super) point: u16,
    pub(super) exact: bool,
}

const PAIRS: Levels = Levels { bits: 2, top: 2 };
const TRIPLES: Levels = Levels { bits: 3, top: 7 };

macro_rules! lattices {
    ($($name:ident: $elems:literal, $table:ident, $levels:ident, $shells:literal;)*) => {
        $(
            #[doc = concat!("The lattice of `", stringify!($table), "`, built on first use.")]
            pub(super) fn $name() -> &'static Lattice<$elems> {
                static LATTICE: OnceLock<Lattice<$elems>> = OnceLock::new();
                LATTICE.get_or_init(|| Lattice::new(&grids::$table, $levels, $shells))
            }
        )*
    };
}

// The last column: how many distinct distances a list of neighbours covers.
lattices! {
    iq2_xxs: 8, IQ2_XXS, PAIRS, 2;
    iq2_xs: 8, IQ2_XS, PAIRS, 2;
    iq2_s: 8, IQ2_S, PAIRS, 1;
    iq1: 8, IQ1, PAIRS, 3;
    iq3_xxs: 4, IQ3_XXS, TRIPLES, 2;
    iq3_s: 4, IQ3_S, TRIPLES, 3;
}

impl<const N: usize> Lattice<N> {
    fn new(packed: &[u16], levels: Levels, shells: usize) -> Self {
        let points: Vec<[i32; N]> = packed.iter().map(|&key| levels.unpack(key)).collect();
        let keys = 1 << (levels.bits * N as u32);
        let mut lattice = Self {
            points: points
                .iter()
                .map(|p| p.map(|level| (2 * level + 1) as f32))
                .collect(),
            places: vec![Place::Invalid; keys],
            neighbours: Vec::new(),
            levels,
        };
        for (i, &key) in packed.iter().enumerate() {
            lattice.places[usize::from(key)] = Place::Point(i as u16);
        }
        for key in 0..keys {
            lattice.add_neighbours(key, &points, shells);
        }
        lattice
    }

    /// Points by distance, then by number, up to the given number of distinct distances.
    fn add_neighbours(&mut self, key: usize, points: &[[i32; N]], shells: usize) {
        let target: [i32; N] = self.levels.unpack(key as u16);
        let valid = target.iter().all(|&level| level <= self.levels.top);
        if !valid || matches!(self.places[key], Place::Point(_)) {
            return;
        }
        let distance = |p: &[i32; N]| (0..N).map(|i| (p[i] - target[i]).pow(2)).sum::<i32>() as u8;
        let distances: Vec<u8> = points.iter().map(distance).collect();
        let mut near = Vec::new();
        let mut present = [false; 256];
        distances
            .iter()
            .for_each(|&d| present[usize::from(d)] = true);
        for shell in (0..=255u8)
            .filter(|&d| present[usize::from(d)])
            .take(shells)
        {
            let at = (0..).zip(&distances).filter(|&(_, &d)| d == shell);
            near.extend(at.map(|(i, _): (u16, _)| i));
        }
        let start = self.neighbours.len() as u32;
        let len = near.len().div_ceil(LANES) as u16;
        self.neighbours
            .extend(near.chunks(LANES).map(|group| Near::new(group, points)));
        self.places[key] = Place::List { start, len };
    }

    /// Levels nearest to `inverse * x`.
    #[inline(always)]
    pub(super) fn round(&self, x: &[f32; N], inverse: f32) -> [i32; N] {
        x.map(|x| nearest(0.5 * (inverse * x - 1.0)).clamp(0, self.levels.top))
    }

    /// The point with these levels, or the neighbour with the least weighted error at `scale`.
    #[inline(always)]
    pub(super) fn find<L: Lanes>(
        &self,
        levels: &[i32; N],
        (x, w): (&[f32; N], &[f32; N]),
        (scale, values): (f32, Values),
    ) -> Hit {
        match self.places[self.levels.pack(levels)] {
            Place::Point(point) => Hit { point, exact: true },
            Place::List { start, len } => {
                let list = &self.neighbours[start as usize..start as usize + usize::from(len)];
                Hit {
                    point: cheapest::<L, N>(list, (x, w), (scale, values)),
                    exact: false,
                }
            }
            Place::Invalid => unreachable!("levels are clamped to the format's"),
        }
    }

    /// The odd values of `point`.
    #[inline(always)]
    pub(super) fn values(&self, point: u16) -> &[f32; N] {
        &self.points[usize::from(point)]
    }
}

impl<const N: usize> Near<N> {
    fn new(group: &[u16], points: &[[i32; N]]) -> Self {
        let numbers = std::array::from_fn(|j| group[j.min(group.len() - 1)]);
        let value = |i: usize, j: usize| (2 * points[usize::from(numbers[j])][i] + 1) as u8;
        let values = std::array::from_fn(|i| std::array::from_fn(|j| value(i, j)));
        Self {
            points: numbers,
            values,
        }
    }
}

/// The first neighbour of least cost; sixteen are weighed at once.
#[inline(always)]
fn cheapest<L: Lanes, const N: usize>(
    list: &[Near<N>],
    (x, w): (&[f32; N], &[f32; N]),
    (scale, values): (f32, Values),
) -> u16 {
    let (scale, stretch, shift) = (
        L::splat(scale),
        L::splat(values.stretch),
        L::splat(values.shift),
    );
    let (mut least, mut group) = (L::splat(f32::MAX), L::splat(0.0));
    for (g, near) in list.iter().enumerate() {
        let mut cost = L::splat(0.0);
        for i in 0..N {
            let value = L::from_bytes(&near.values[i]) * stretch + shift;
            let diff = scale * value - L::splat(x[i]);
            cost = cost + L::splat(w[i]) * diff * diff;
        }
        let better = cost.lt(least);
        least = L::pick(better, cost, least);
        group = L::pick(better, L::splat(g as f32), group);
    }
    let (least, group) = (least.to_array(), group.to_array());
    let place = |j: usize| (group[j] as usize, j);
    let mut best = 0;
    for j in 1..LANES {
        if least[j] < least[best] || (least[j] == least[best] && place(j) < place(best)) {
            best = j;
        }
    }
    list[place(best).0].points[best]
}

impl Levels {
    fn unpack<const N: usize>(self, key: u16) -> [i32; N] {
        std::array::from_fn(|i| i32::from(key >> (self.bits * i as u32)) & ((1 << self.bits) - 1))
    }

    #[inline(always)]
    fn pack<const N: usize>(self, levels: &[i32; N]) -> usize {
        (0..N).fold(0, |key, i| {
            key | (levels[i] as usize) << (self.bits * i as u32)
        })
    }
}
