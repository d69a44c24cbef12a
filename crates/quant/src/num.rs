//! Small floats: half, bfloat, and the power-of-two and 8-bit scales of the FP4 formats.
//!
//! Written without branches where a loop over them should become vector code.

/// The value of an IEEE half. Signalling NaNs become quiet.
#[inline(always)]
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    let wide = u32::from(bits);
    let magnitude = (wide & 0x7fff) << 13;
    // Shifting the exponent bias by a product gives subnormals the right value without a branch.
    let value = (f32::from_bits(magnitude) * f32::from_bits((254 - 15) << 23)).to_bits();
    let quiet = if magnitude > 0x0f80_0000 {
        0x0040_0000
    } else {
        0
    };
    let special = if magnitude >= 0x0f80_0000 {
        0x7f80_0000 | quiet
    } else {
        0
    };
    f32::from_bits(value | special | ((wide & 0x8000) << 16))
}

/// The nearest IEEE half, ties to even; NaNs become the quiet NaN of their sign.
#[inline(always)]
#[must_use]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let rounded = if magnitude < 0x3880_0000 {
        // Below the normal range: let the adder round at the subnormal's last place.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    } else {
        let odd = (magnitude >> 13) & 1;
        (magnitude.wrapping_add(0xc800_0fff + odd)) >> 13
    };
    let finite = rounded.min(0x7c00);
    let half = if magnitude > 0x7f80_0000 {
        0x7e00
    } else {
        finite
    };
    (sign | half) as u16
}

/// The value of a bfloat.
#[inline(always)]
#[must_use]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat, ties to even; NaNs keep their sign and high bits and become quiet.
#[inline(always)]
#[must_use]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 64;
    }
    ((bits + (0x7fff + ((bits >> 16) & 1))) >> 16) as u16
}

/// Half the value of an E8M0 exponent byte, as the doubled FP4 codes need it. 255 is not treated as NaN.
#[must_use]
pub(crate) fn e8m0_half(byte: u8) -> f32 {
    match byte {
        0 | 1 => f32::from_bits(0x0020_0000 << byte),
        _ => f32::from_bits((u32::from(byte) - 1) << 23),
    }
}

/// An unsigned E4M3 byte in units of 2^-9; the NaN code 0x7f reads as zero. Bit 7 is ignored.
#[must_use]
pub(crate) fn ue4m3_units(byte: u8) -> i32 {
    if byte == 0x7f {
        return 0;
    }
    let (exponent, mantissa) = (i32::from(byte >> 3) & 15, i32::from(byte & 7));
    match exponent {
        0 => mantissa,
        _ => (8 + mantissa) << (exponent - 1),
    }
}

/// The nearest unsigned E4M3 byte, halves up; 0 for anything not positive, at most 0x7e.
#[must_use]
pub(crate) fn f32_to_ue4m3(value: f32) -> u8 {
    if value.is_nan() || value <= 0.0 {
        return 0;
    }
    let bits = value.min(448.0).to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        return ((value * 512.0 + 0.5) as u8).min(7);
    }
    // Rounding may carry from the mantissa into the exponent.
    let rounded = (exponent << 3) + (bits >> 20 & 7) as i32 + (bits >> 19 & 1) as i32;
    if exponent >= 15 || rounded >= 15 << 3 {
        0x7e
    } else {
        rounded as u8
    }
}
