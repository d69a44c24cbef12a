//! Rows of a cache as floats: one by one, or sixteen side by side.
#![allow(unsafe_code)]
// Counted loops over constants unroll into registers.
#![allow(clippy::needless_range_loop)]

use tokkata_quant::num::f16_to_f32;

use super::super::lanes::{Lanes, N, simd_fn};

/// Columns of one entry that lie side by side, padded to sixteen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row {
    Floats(*const f32),
    Halves(*const u16),
    /// Codes, and one half for each 32 of them.
    Codes(*const i8, *const u16),
}

/// Sixteen columns from `column` on, a multiple of sixteen.
///
/// # Safety
/// The row has them.
#[inline(always)]
unsafe fn columns<L: Lanes>(row: Row, column: usize) -> L {
    // SAFETY: the caller's promise.
    unsafe {
        match row {
            Row::Floats(p) => L::read(p.add(column)),
            Row::Halves(p) => L::read_half(p.add(column)),
            Row::Codes(p, scales) => {
                let scale = f16_to_f32(scales.add(column / 32).read());
                L::read_i8(p.add(column)).mul(L::splat(scale))
            }
        }
    }
}

#[inline(always)]
unsafe fn panel<L: Lanes>(rows: &[Row; N], dim: usize, to: &mut [f32]) {
    assert!(to.len() >= dim * N);
    for first in (0..dim).step_by(N) {
        let mut x = [L::zero(); N];
        for i in 0..N {
            // SAFETY: the caller's promise.
            x[i] = unsafe { columns::<L>(rows[i], first) };
        }
        let x = L::transpose(x);
        for i in 0..N.min(dim - first) {
            x[i].store(&mut to[(first + i) * N..]);
        }
    }
}

#[inline(always)]
unsafe fn floats<L: Lanes>(row: Row, to: &mut [f32]) {
    let (mut at, n) = (0, to.len());
    // SAFETY: the caller's promise.
    unsafe {
        while at + N <= n {
            columns::<L>(row, at).store(&mut to[at..]);
            at += N;
        }
        if at < n {
            columns::<L>(row, at).store_part(&mut to[at..]);
        }
    }
}

/// Defines a function of rows for every kind of vectors.
macro_rules! of_rows {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) = $kernel:ident;) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Rows have so many columns, padded to sixteen, and no one writes them.
        pub(crate) unsafe fn $name(set: crate::kernels::Kernel, $($arg: $ty),*) {
            simd_fn! {
                fn safe($($arg: $ty),*) = inner;
            }
            #[inline(always)]
            fn inner<L: Lanes>($($arg: $ty),*) {
                // SAFETY: the caller's promise.
                unsafe { $kernel::<L>($($arg),*) }
            }
            safe(set, $($arg),*);
        }
    };
}

of_rows! {
    /// `dim` columns of sixteen rows side by side, `[dim][16]`.
    panel_of_rows(rows: &[Row; N], dim: usize, to: &mut [f32]) = panel;
}

of_rows! {
    /// The first columns of a row, as many as `to` holds.
    row_floats(row: Row, to: &mut [f32]) = floats;
}

#[cfg(test)]
mod tests {
    use tokkata_quant::num::f32_to_f16;

    use super::*;
    use crate::caps::Caps;
    use crate::kernels::Kernel;

    #[test]
    fn panels_hold_their_rows() {
        let dim = 45;
        let value = |row: usize, column: usize| (row * 64 + column) as f32 / 8.0;
        let floats: Vec<f32> = (0..N * 48).map(|i| value(i / 48, i % 48)).collect();
        let halves: Vec<u16> = floats.iter().map(|&x| f32_to_f16(x)).collect();
        let codes: Vec<i8> = (0..N * 48).map(|i| (i % 251) as u8 as i8).collect();
        let scales: Vec<u16> = (0..N * 2).map(|i| f32_to_f16(i as f32)).collect();
        let kinds: [&dyn Fn(usize) -> Row; 3] = [
            &|r| Row::Floats(floats[r * 48..].as_ptr()),
            &|r| Row::Halves(halves[r * 48..].as_ptr()),
            &|r| Row::Codes(codes[r * 48..].as_ptr(), scales[r * 2..].as_ptr()),
        ];
        for name in ["portable", "avx2", "avx512"] {
            let Some(set) = Caps::limited_to(name).ok().and_then(|c| Kernel::new(&c)) else {
                continue;
            };
            for (kind, row) in kinds.iter().enumerate() {
                let mut panel = vec![-1.0; dim * N];
                // SAFETY: the rows above.
                unsafe { panel_of_rows(set, &std::array::from_fn(row), dim, &mut panel) };
                for r in 0..N {
                    let mut own = [0.0; 45];
                    // SAFETY: the rows above.
                    unsafe { row_floats(set, row(r), &mut own) };
                    for (c, &own) in own.iter().enumerate() {
                        let want = match kind {
                            2 => f32::from(codes[r * 48 + c]) * (r * 2 + c / 32) as f32,
                            _ => value(r, c),
                        };
                        assert_eq!(
                            (own, panel[c * N + r]),
                            (want, want),
                            "{name} {kind} {r} {c}"
                        );
                    }
                }
            }
        }
    }
}
