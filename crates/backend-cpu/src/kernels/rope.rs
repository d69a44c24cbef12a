//! Rotary positions. Angles are computed in f64, so that far positions keep their digits.

use tokkata_ir::Pairing;

use super::lanes::{Lanes, N, simd_fn};

/// Cosine and sine of every pair of one row.
pub(crate) struct Turns<'a> {
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
}

/// Cosines and sines of `angles · position`.
pub(crate) fn turn(freq: f32, position: u32, magnitude: f32, inverse: bool) -> (f32, f32) {
    let angle = f64::from(position) * f64::from(freq);
    let (sin, cos) = angle.sin_cos();
    let magnitude = f64::from(magnitude);
    let sin = if inverse { -sin } else { sin };
    ((cos * magnitude) as f32, (sin * magnitude) as f32)
}

#[inline(always)]
fn halves<L: Lanes>(x: &mut [f32], turns: &Turns<'_>) {
    let n = turns.cos.len();
    let (low, high) = x.split_at_mut(n);
    for at in (0..n).step_by(N) {
        let end = (at + N).min(n);
        let (a, b) = (
            L::load_part(&low[at..end], 0.0),
            L::load_part(&high[at..end], 0.0),
        );
        let cos = L::load_part(&turns.cos[at..end], 0.0);
        let sin = L::load_part(&turns.sin[at..end], 0.0);
        a.mul(cos).sub(b.mul(sin)).store_part(&mut low[at..end]);
        a.mul(sin).add(b.mul(cos)).store_part(&mut high[at..end]);
    }
}

#[inline(always)]
fn rotate<L: Lanes>(pairing: Pairing, x: &mut [f32], turns: &Turns<'_>) {
    match pairing {
        Pairing::Halves => halves::<L>(x, turns),
        Pairing::Adjacent => {
            for (pair, (&cos, &sin)) in x.chunks_exact_mut(2).zip(turns.cos.iter().zip(turns.sin)) {
                let (a, b) = (pair[0], pair[1]);
                (pair[0], pair[1]) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }
}

simd_fn! {
    /// Rotates the pairs of one head; `x` holds twice as many columns as there are turns.
    pub(crate) fn rotate_head(pairing: Pairing, x: &mut [f32], turns: &Turns<'_>) = rotate;
}
