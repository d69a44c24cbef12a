//! 64-bit integers as two words; no operation here is on more than 32 bits.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wide {
    pub(crate) high: u32,
    pub(crate) low: u32,
}

/// The product of two words, by halves.
pub(crate) fn product(a: u32, b: u32) -> Wide {
    let (a1, a0, b1, b0) = (a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF);
    let low = a0 * b0;
    let middle = a1 * b0 + (low >> 16);
    let other = a0 * b1 + (middle & 0xFFFF);
    Wide {
        high: a1 * b1 + (middle >> 16) + (other >> 16),
        low: other << 16 | low & 0xFFFF,
    }
}

impl Wide {
    pub(crate) const ZERO: Wide = Wide { high: 0, low: 0 };

    pub(crate) fn plus(self, other: Wide) -> Wide {
        let low = self.low.wrapping_add(other.low);
        let carry = u32::from(low < self.low);
        let high = self.high.wrapping_add(other.high).wrapping_add(carry);
        Wide { high, low }
    }

    pub(crate) fn minus(self, other: Wide) -> Wide {
        let borrow = u32::from(self.low < other.low);
        Wide {
            high: self.high.wrapping_sub(other.high).wrapping_sub(borrow),
            low: self.low.wrapping_sub(other.low),
        }
    }

    /// The lower 64 bits of a product.
    pub(crate) fn times(self, factor: u32) -> Wide {
        let low = product(self.low, factor);
        let high = low.high.wrapping_add(self.high.wrapping_mul(factor));
        Wide { high, ..low }
    }

    pub(crate) fn at_least(self, other: Wide) -> bool {
        self.high > other.high || self.high == other.high && self.low >= other.low
    }

    pub(crate) fn shifted(self, n: u32) -> Wide {
        match n {
            0 => self,
            1..32 => Wide {
                high: self.high >> n,
                low: self.low >> n | self.high << (32 - n),
            },
            _ => Wide {
                high: 0,
                low: self.high >> (n - 32),
            },
        }
    }

    pub(crate) fn raised(self, n: u32) -> Wide {
        match n {
            0 => self,
            1..32 => Wide {
                high: self.high << n | self.low >> (32 - n),
                low: self.low << n,
            },
            _ => Wide {
                high: self.low << (n - 32),
                low: 0,
            },
        }
    }

    pub(crate) fn leading_zeros(self) -> u32 {
        match self.high {
            0 => 32 + self.low.leading_zeros(),
            high => high.leading_zeros(),
        }
    }

    /// The share `p / 2³²`, rounded down.
    pub(crate) fn part(self, p: u32) -> Wide {
        product(self.high, p).plus(product(product(self.low, p).high, 1))
    }

    /// The quotient, bit by bit.
    pub(crate) fn over(self, divisor: Wide) -> Wide {
        let (mut quotient, mut rest) = (Wide::ZERO, Wide::ZERO);
        for bit in (0..64).rev() {
            rest = rest.raised(1);
            rest.low |= self.shifted(bit).low & 1;
            quotient = quotient.raised(1);
            if rest.at_least(divisor) {
                rest = rest.minus(divisor);
                quotient.low |= 1;
            }
        }
        quotient
    }

    /// The square root, rounded down, bit by bit.
    pub(crate) fn root(self) -> u32 {
        let mut root = 0;
        for bit in (0..32).rev() {
            let tried = root | 1 << bit;
            if self.at_least(product(tried, tried)) {
                root = tried;
            }
        }
        root
    }
}
