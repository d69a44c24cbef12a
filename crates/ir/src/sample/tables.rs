//! Exponentials and logarithms by tables of 32-bit integers, the same on every device.
//!
//! Between two entries they are linear. A product of two words is needed in [`exp`] alone, its upper word.

/// `2^(−i/256)` with 31 fraction bits.
pub static EXP: [u32; 257] = exponentials();
/// `−ln(½ + i/1024)` with 24 fraction bits.
pub static LN: [u32; 513] = logarithms();
/// `ln(−ln(1 − v) / v)` at `v = i/512` with 24 fraction bits.
pub static LN_LN: [u32; 257] = double_logarithms();

/// `log₂ e` with 31 fraction bits.
pub const LOG2_E: u32 = 3_098_164_009;
/// `ln 2` with 24 fraction bits.
pub const LN_2: u32 = 11_629_080;

/// `e^(−d)` with 31 fraction bits, of `d` with 16. It falls, 0 from about 22.2 on; within 1.2·10⁻⁶ of its value and
/// half of its last bit.
#[must_use]
#[inline]
pub fn exp(d: u32) -> u32 {
    if d >= 1 << 21 {
        return 0;
    }
    // `d · log₂ e`, with 25 fraction bits.
    let turns = upper(d << 10, LOG2_E);
    let (n, i) = (turns >> 25, (turns >> 17 & 255) as usize);
    let fall = upper(EXP[i] - EXP[i + 1], turns << 15);
    let value = EXP[i] - fall;
    match n {
        0 => value,
        1..32 => (value + (1 << (n - 1))) >> n,
        _ => 0,
    }
}

/// The upper word of a product.
#[inline]
fn upper(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

/// `−ln v` with 24 fraction bits, of `v` in 0..1 with 64 (its last bit counts as set), within 1.2·10⁻⁶; at most
/// 64 ln 2.
#[must_use]
#[inline]
pub fn neg_ln(v: u64) -> u32 {
    let v = v | 1;
    let zeros = v.leading_zeros();
    let mantissa = ((v << zeros) >> 32) as u32;
    let (i, rest) = ((mantissa >> 22 & 511) as usize, mantissa >> 6 & 0xFFFF);
    zeros * LN_2 + LN[i] - (((LN[i] - LN[i + 1]) * rest) >> 16)
}

/// `−ln(−ln(1 − v))` with 24 fraction bits, of `v` as for [`neg_ln`], within 4·10⁻⁶: Gumbel's distribution where `v`
/// is uniform. Between −3.8 and 44.4.
///
/// Small `v` give large numbers, the ones that win: they keep all the bits of `v`.
#[must_use]
#[inline]
pub fn gumbel(v: u64) -> i32 {
    if v >> 63 != 0 {
        let exponential = neg_ln(!v);
        return neg_ln(u64::from(exponential) << 32) as i32 - 8 * LN_2 as i32;
    }
    let (i, rest) = ((v >> 55) as usize, (v >> 39) as u32 & 0xFFFF);
    let bend = LN_LN[i] + (((LN_LN[i + 1] - LN_LN[i]) * rest) >> 16);
    neg_ln(v) as i32 - bend as i32
}

/// What [`gumbel`] of `v` cannot exceed.
#[inline]
pub(super) fn gumbel_bound(v: u64) -> i32 {
    ((v.leading_zeros() + 1) * LN_2) as i32 + 1
}

const fn exponentials() -> [u32; 257] {
    let mut table = [0; 257];
    let mut i = 0;
    while i < table.len() {
        let x = -(i as f64) / 256.0 * std::f64::consts::LN_2;
        // The exponential's series.
        let (mut term, mut sum, mut n) = (1.0, 1.0, 1);
        while n < 24 {
            term *= x / n as f64;
            sum += term;
            n += 1;
        }
        table[i] = (sum * 2_147_483_648.0 + 0.5) as u32;
        i += 1;
    }
    table
}

const fn logarithms() -> [u32; 513] {
    let mut table = [0; 513];
    let mut i = 0;
    while i < table.len() {
        let minus = -ln(0.5 + i as f64 / 1024.0);
        table[i] = (minus * 16_777_216.0 + 0.5) as u32;
        i += 1;
    }
    table
}

const fn double_logarithms() -> [u32; 257] {
    let mut table = [0; 257];
    let mut i = 0;
    while i < table.len() {
        let v = i as f64 / 512.0;
        // −ln(1 − v) / v = 1 + v/2 + v²/3 + …
        let (mut power, mut sum, mut n) = (1.0, 0.0, 1);
        while n < 64 {
            sum += power / n as f64;
            power *= v;
            n += 1;
        }
        table[i] = (ln(sum) * 16_777_216.0 + 0.5) as u32;
        i += 1;
    }
    table
}

/// The logarithm's series in `(x − 1)/(x + 1)`, for `x` near 1.
const fn ln(x: f64) -> f64 {
    let z = (x - 1.0) / (x + 1.0);
    let (mut power, mut sum, mut n) = (z, 0.0, 1);
    while n < 60 {
        sum += power / n as f64;
        power *= z * z;
        n += 2;
    }
    2.0 * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_what_they_say() {
        for (i, &entry) in EXP.iter().enumerate() {
            let want = (-(i as f64) / 256.0).exp2() * 2f64.powi(31);
            assert!((f64::from(entry) - want).abs() <= 0.501, "{i}");
        }
        for (i, &entry) in LN.iter().enumerate() {
            let want = -(0.5 + i as f64 / 1024.0).ln() * 2f64.powi(24);
            assert!((f64::from(entry) - want).abs() <= 0.501, "{i}");
        }
        for (i, &entry) in LN_LN.iter().enumerate().skip(1) {
            let v = i as f64 / 512.0;
            let want = (-(-v).ln_1p() / v).ln() * 2f64.powi(24);
            assert!((f64::from(entry) - want).abs() <= 0.501, "{i}");
        }
        assert_eq!((EXP[0], LN[0], LN_LN[0]), (1 << 31, LN_2, 0));
        assert_eq!(
            f64::from(LOG2_E),
            (std::f64::consts::LOG2_E * 2f64.powi(31)).round()
        );
    }

    #[test]
    fn exponentials_are_close_and_fall() {
        let mut last = u32::MAX;
        for d in (0..1 << 21).step_by(3).chain([1 << 21, u32::MAX]) {
            let (got, want) = (exp(d), (-f64::from(d) / 65_536.0).exp() * 2f64.powi(31));
            let error = (f64::from(got) - want).abs();
            assert!(error <= 1.2e-6 * want + 0.51, "{d}: {got} {want}");
            assert!(got <= last, "{d}");
            last = got;
        }
        assert_eq!((exp(0), last), (1 << 31, 0));
    }

    /// Numbers of every size in 0..1, as 64 fraction bits.
    fn numbers() -> impl Iterator<Item = u64> {
        let some = |i: u64| super::super::uniform(5, i) | 1;
        (0..64).flat_map(move |size| (0..400).map(move |i| some(i) >> size | 1))
    }

    #[test]
    fn logarithms_are_close() {
        for v in numbers().chain([0, 1, u64::MAX]) {
            let want = -((v | 1) as f64 / 2f64.powi(64)).ln() * 2f64.powi(24);
            let error = (f64::from(neg_ln(v)) - want).abs();
            assert!(error / 2f64.powi(24) < 1.2e-6, "{v:x}: {error}");
        }
    }

    #[test]
    fn gumbel_numbers_are_close_and_bounded() {
        for v in numbers().flat_map(|v| [v, !v]).chain([0, u64::MAX]) {
            let below = (v | 1) as f64 / 2f64.powi(64);
            let exponential = match v >> 63 {
                0 => -(-below).ln_1p(),
                _ => -((!v | 1) as f64 / 2f64.powi(64)).ln(),
            };
            let (got, want) = (f64::from(gumbel(v)) / 2f64.powi(24), -exponential.ln());
            assert!((got - want).abs() < 4e-6, "{v:x}: {got} {want}");
            assert!(gumbel(v) <= gumbel_bound(v), "{v:x}");
            assert!((-3.8..44.4).contains(&got), "{v:x}: {got}");
        }
    }
}
