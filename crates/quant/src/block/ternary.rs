//! Three-valued codes: `TQ1_0` (five to a byte) and `TQ2_0` (four to a byte).

use super::{Unpacked, half_at};

/// 48 bytes of five, 4 bytes of four, half scale.
pub(super) fn tq1_0(b: &[u8; 54], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 52), 0.0);
    (u.scales[0], u.mins[0]) = (1, 0);
    trits(&b[..32], &mut u.codes[..160]);
    trits(&b[32..48], &mut u.codes[160..240]);
    trits(&b[48..52], &mut u.codes[240..]);
}

/// A byte is a fraction of 256 in base 3: digit `n` of every byte fills run `n`.
fn trits(packed: &[u8], codes: &mut [i8]) {
    let mut power = 1u8;
    for codes in codes.chunks_exact_mut(packed.len()) {
        for (code, &byte) in codes.iter_mut().zip(packed) {
            let fraction = u16::from(byte.wrapping_mul(power));
            *code = ((fraction * 3) >> 8) as i8 - 1;
        }
        power = power.wrapping_mul(3);
    }
}

/// 64 bytes of four, half scale; code 3 reads as 2.
pub(super) fn tq2_0(b: &[u8; 66], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 64), 0.0);
    (u.scales[0], u.mins[0]) = (1, 0);
    for (codes, packed) in u.codes.chunks_exact_mut(128).zip(b.chunks_exact(32)) {
        for (r, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, &byte) in codes.iter_mut().zip(packed) {
                *code = ((byte >> (2 * r)) & 3) as i8 - 1;
            }
        }
    }
}
