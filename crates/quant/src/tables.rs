//! Short tables of the formats: values of 4-bit indices, levels of lattice points, sign patterns.

/// Values of the nibbles of `IQ4_NL` and `IQ4_XS`.
pub(crate) const IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice the values of E2M1 nibbles.
pub(crate) const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Values of the levels of `IQ2_XXS`, `IQ2_XS` and `IQ2_S` points.
pub(crate) const IQ2_LEVELS: [i8; 4] = [8, 25, 43, 0];

/// Values of the levels of `IQ3_XXS` points.
pub(crate) const IQ3_XXS_LEVELS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// Eight signs from seven stored bits: the eighth makes the number of minus signs even.
#[inline(always)]
pub(crate) fn even_signs(stored: u32) -> u8 {
    let low = (stored & 127) as u8;
    low | ((low.count_ones() as u8 & 1) << 7)
}
