//! Random numbers that follow from what they are for.

/// Stands for a token in the noise of the choice whether XTC applies; no token has this id.
const CHANCE: u32 = u32::MAX;

/// Threefry-2×32 with 13 rounds (Salmon and others, *Parallel random numbers: as easy as 1, 2, 3*, 2011): additions,
/// rotations and exclusive ors of 32-bit words alone.
#[inline]
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const EVEN: [u32; 4] = [13, 15, 26, 6];
    const ODD: [u32; 4] = [17, 29, 16, 24];
    let [k0, k1] = key;
    let k2 = 0x1BD1_1BDA ^ k0 ^ k1;
    let x = added(counter, [k0, k1]);
    let x = added(rounds(x, EVEN), [k1, k2.wrapping_add(1)]);
    let x = added(rounds(x, ODD), [k2, k0.wrapping_add(2)]);
    let x = added(rounds(x, EVEN), [k0, k1.wrapping_add(3)]);
    rounds(x, [ODD[0]])
}

#[inline]
fn added(x: [u32; 2], key: [u32; 2]) -> [u32; 2] {
    [x[0].wrapping_add(key[0]), x[1].wrapping_add(key[1])]
}

#[inline]
fn rounds<const N: usize>([mut a, mut b]: [u32; 2], turns: [u32; N]) -> [u32; 2] {
    for turn in turns {
        a = a.wrapping_add(b);
        b = b.rotate_left(turn) ^ a;
    }
    [a, b]
}

/// 64 random bits of a token in the row at `position`: the first word of Threefry is the upper half.
#[must_use]
#[inline]
pub fn noise(seed: u64, position: u32, id: u32) -> u64 {
    let [high, low] = threefry([seed as u32, (seed >> 32) as u32], [position, id]);
    u64::from(high) << 32 | u64::from(low)
}

/// 32 random bits of the row at `position` itself.
#[must_use]
pub fn chance(seed: u64, position: u32) -> u32 {
    (noise(seed, position, CHANCE) >> 32) as u32
}

/// Uniform 64 bits of (seed, counter): SplitMix64's finaliser over both words. For what needs numbers on the host
/// alone; draws use [`noise`].
#[must_use]
pub fn uniform(seed: u64, counter: u64) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    mix(mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15)) ^ counter.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published known answers of the generator.
    #[test]
    fn threefry_gives_its_known_answers() {
        let ones = [u32::MAX; 2];
        assert_eq!(threefry([0; 2], [0; 2]), [0x9D1C_5EC6, 0x8BD5_0731]);
        assert_eq!(threefry(ones, ones), [0xFD36_D048, 0x2D17_272C]);
        let (counter, key) = ([0x243F_6A88, 0x85A3_08D3], [0x1319_8A2E, 0x0370_7344]);
        assert_eq!(threefry(key, counter), [0xBA3E_4725, 0xF27D_669E]);
    }

    #[test]
    fn every_word_of_what_noise_is_for_changes_it() {
        let all = [
            noise(1, 2, 3),
            noise(1 | 1 << 32, 2, 3),
            noise(2, 1, 3),
            noise(1, 3, 2),
            noise(1, 2, 4),
        ];
        let mut different = all.to_vec();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), all.len());
        assert_eq!(u64::from(chance(1, 2)), noise(1, 2, CHANCE) >> 32);
    }
}
