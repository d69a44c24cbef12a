//! Logits in fixed point.

/// A logit with 16 fraction bits, at most [`Fixed::MAX`] in magnitude, or [`Fixed::EXCLUDED`].
///
/// `f32` becomes fixed once, by truncation towards zero (an error below 2⁻¹⁶), saturating; −∞ is excluded. The range
/// leaves a bit free, so that a device adds two of them in 32 bits and cuts afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fixed(i32);

impl Fixed {
    /// No candidate: below every logit, and nothing added to it changes that.
    pub const EXCLUDED: Fixed = Fixed(i32::MIN);
    /// 0.
    pub const ZERO: Fixed = Fixed(0);
    /// The largest: 16384 − 2⁻¹⁰, which `f32` can say.
    pub const MAX: Fixed = Fixed((1 << 30) - (1 << 6));

    /// The number nearest to `x` towards zero; `None` when `x` is not a number.
    #[must_use]
    pub fn new(x: f32) -> Option<Fixed> {
        (!x.is_nan()).then(|| Fixed::of(x))
    }

    /// As [`Fixed::new`] for what is known to be a number.
    #[inline]
    pub(super) fn of(x: f32) -> Fixed {
        if x == f32::NEG_INFINITY {
            return Fixed::EXCLUDED;
        }
        let most = Fixed::MAX.0 as f32;
        Fixed((x * 65_536.0).clamp(-most, most) as i32)
    }

    /// The number as a word of a device.
    #[must_use]
    pub fn to_bits(self) -> i32 {
        self.0
    }

    /// The number of a word; what is out of range is cut.
    #[must_use]
    pub fn from_bits(bits: i32) -> Fixed {
        if bits == i32::MIN {
            Fixed::EXCLUDED
        } else {
            Fixed(bits.clamp(-Fixed::MAX.0, Fixed::MAX.0))
        }
    }

    /// The nearest `f32`; −∞ for what is excluded.
    #[must_use]
    pub fn to_f32(self) -> f32 {
        if self == Fixed::EXCLUDED {
            return f32::NEG_INFINITY;
        }
        self.0 as f32 / 65_536.0
    }

    /// The largest `f32` whose logits are all at most this: where `x` is no larger, neither is its fixed number.
    pub(super) fn floor(self) -> f32 {
        let near = self.0 as f32;
        let down = if near as i32 > self.0 {
            near.next_down()
        } else {
            near
        };
        down / 65_536.0
    }

    /// One step below, to compare with.
    pub(super) fn next_down(self) -> Fixed {
        Fixed(self.0 - 1)
    }

    /// The sum, cut to the range.
    #[must_use]
    pub fn plus(self, other: Fixed) -> Fixed {
        if self == Fixed::EXCLUDED || other == Fixed::EXCLUDED {
            return Fixed::EXCLUDED;
        }
        Fixed::from_bits(self.0 + other.0)
    }

    /// The difference, cut to the range; what is excluded stays so, and taking it away excludes.
    #[must_use]
    pub fn minus(self, other: Fixed) -> Fixed {
        if other == Fixed::EXCLUDED {
            return Fixed::EXCLUDED;
        }
        self.plus(Fixed(-other.0))
    }

    /// The product with a factor of 24 fraction bits, its magnitude rounded down, cut to the range.
    #[must_use]
    pub fn scaled(self, factor: u32) -> Fixed {
        self.product(factor, 24)
    }

    /// `count` times this, cut to the range.
    #[must_use]
    pub fn times(self, count: u32) -> Fixed {
        self.product(count, 0)
    }

    /// A product of 30 and 32 bits: two words on a device.
    fn product(self, factor: u32, shift: u32) -> Fixed {
        if self == Fixed::EXCLUDED {
            return self;
        }
        let magnitude = (u64::from(self.0.unsigned_abs()) * u64::from(factor)) >> shift;
        let magnitude = magnitude.min(Fixed::MAX.0 as u64) as i32;
        Fixed(magnitude * self.0.signum())
    }

    /// How far this is below `best`, which is no smaller; neither is excluded.
    #[inline]
    pub(super) fn below(self, best: Fixed) -> u32 {
        (best.0 - self.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The conversion in integers alone, for devices whose compilers forget what is not a number.
    fn by_bits(x: f32) -> Option<Fixed> {
        let (bits, magnitude) = (x.to_bits(), x.to_bits() & 0x7FFF_FFFF);
        if magnitude > 0x7F80_0000 {
            return None;
        }
        if bits == 0xFF80_0000 {
            return Some(Fixed::EXCLUDED);
        }
        let (exponent, mantissa) = (magnitude >> 23, magnitude & 0x7F_FFFF | 0x80_0000);
        let value = match exponent {
            0..111 => 0,
            111..134 => mantissa >> (134 - exponent),
            134..141 => mantissa << (exponent - 134),
            _ => u32::MAX,
        };
        let value = value.min(Fixed::MAX.0 as u32) as i32;
        Some(Fixed(if bits >> 31 == 0 { value } else { -value }))
    }

    #[test]
    fn conversion_truncates_and_saturates() {
        let of = |x| Fixed::new(x).map(Fixed::to_bits);
        assert_eq!(of(1.0), Some(65_536));
        assert_eq!(of(-1.5 / 65_536.0), Some(-1));
        assert_eq!(of(0.9 / 65_536.0), Some(0));
        assert_eq!(of(f32::NAN), None);
        assert_eq!(of(f32::NEG_INFINITY), Some(i32::MIN));
        assert_eq!(of(f32::INFINITY), Some(Fixed::MAX.0));
        assert_eq!(of(f32::MIN), Some(-Fixed::MAX.0));
    }

    #[test]
    fn conversion_is_the_same_in_integers_and_monotone() {
        let mut last = Fixed::EXCLUDED;
        for step in 0..=0xFF80u32 {
            for low in [0, 1, 0x7FFF, 0xFFFF] {
                let bits = step << 16 | low;
                for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                    assert_eq!(Fixed::new(x), by_bits(x), "{bits:x}");
                }
                let Some(value) = Fixed::new(f32::from_bits(bits)).filter(|_| bits >> 31 == 0)
                else {
                    continue;
                };
                assert!(value >= last, "{bits:x}");
                last = value;
            }
        }
    }

    #[test]
    fn sums_and_products_are_cut() {
        let (most, one) = (Fixed::MAX, Fixed(65_536));
        assert_eq!(most.plus(most), most);
        assert_eq!(Fixed::ZERO.minus(most).minus(most), Fixed(-most.0));
        assert_eq!(Fixed::EXCLUDED.plus(most), Fixed::EXCLUDED);
        assert_eq!(most.plus(Fixed::EXCLUDED), Fixed::EXCLUDED);
        assert_eq!(one.minus(Fixed::EXCLUDED), Fixed::EXCLUDED);
        assert_eq!(Fixed(-3 * 65_536).scaled(1 << 23), Fixed(-98_304));
        assert_eq!(Fixed(-most.0).scaled(u32::MAX), Fixed(-most.0));
        assert_eq!(one.times(3), Fixed(196_608));
        assert_eq!(Fixed(-65_536).times(u32::MAX), Fixed(-most.0));
    }

    #[test]
    fn the_floor_of_a_number_is_not_above_it() {
        for bits in [
            0,
            1,
            -1,
            16_777_217,
            -16_777_217,
            Fixed::MAX.0,
            -Fixed::MAX.0,
        ] {
            let floor = Fixed(bits).floor();
            assert!(Fixed::of(floor) <= Fixed(bits), "{bits}");
            assert!(
                f64::from(floor) * 65_536.0 > f64::from(bits) - 129.0,
                "{bits}"
            );
        }
    }
}
