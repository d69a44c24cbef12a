//! Floats on their way into a cache of halves.
#![allow(unsafe_code)]
// Counted loops over constants unroll into registers.
#![allow(clippy::needless_range_loop)]

use super::super::lanes::{Lanes, N, simd_fn};

#[inline(always)]
fn halves<L: Lanes>(x: &[f32], out: &mut [u16]) {
    let (mut at, n) = (0, out.len());
    let x = &x[..n];
    while at + N <= n {
        // SAFETY: sixteen more halves.
        unsafe { L::load(&x[at..]).write_half(out[at..].as_mut_ptr()) };
        at += N;
    }
    if at == n {
        return;
    }
    let mut lanes = [0; N];
    // SAFETY: sixteen halves.
    unsafe { L::load_part(&x[at..], 0.0).write_half(lanes.as_mut_ptr()) };
    out[at..].copy_from_slice(&lanes[..n - at]);
}

simd_fn! {
    /// The nearest halves.
    pub(crate) fn halves_run(x: &[f32], out: &mut [u16]) = halves;
}

#[inline(always)]
fn panel<L: Lanes>(rows: &[&[f32]; N], out: &mut [u16]) {
    let dim = out.len() / N;
    assert!(dim.is_multiple_of(N) && out.len().is_multiple_of(N));
    for first in (0..dim).step_by(N) {
        let mut x = [L::zero(); N];
        for i in 0..N {
            x[i] = L::load(&rows[i][first..]);
        }
        let x = L::transpose(x);
        let out = &mut out[first * N..][..N * N];
        for i in 0..N {
            // SAFETY: sixteen of the halves above.
            unsafe { x[i].write_half(out[i * N..].as_mut_ptr()) };
        }
    }
}

simd_fn! {
    /// The nearest halves of sixteen rows, side by side, `[columns][16]`; columns are a multiple of sixteen.
    pub(crate) fn halves_panel(rows: &[&[f32]; N], out: &mut [u16]) = panel;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::Caps;
    use crate::kernels::Kernel;

    #[test]
    fn a_panel_holds_the_halves_of_its_rows() {
        for name in ["portable", "avx2", "avx512"] {
            let Some(set) = Caps::limited_to(name).ok().and_then(|c| Kernel::new(&c)) else {
                continue;
            };
            let rows: Vec<Vec<f32>> = (0..N)
                .map(|r| (0..48).map(|c| (r * 48 + c) as f32 / 7.0).collect())
                .collect();
            let mut panel = [0; 48 * N];
            halves_panel(set, &std::array::from_fn(|i| &rows[i][..]), &mut panel);
            for (r, row) in rows.iter().enumerate() {
                let mut halves = [0; 48];
                halves_run(set, row, &mut halves);
                let column: Vec<u16> = panel.iter().skip(r).step_by(N).copied().collect();
                assert_eq!(column, halves, "row {r} with {name}");
            }
        }
    }
}
