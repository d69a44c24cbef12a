//! SHA-256, as FIPS 180-4 writes it: files of a hub are named and checked by it.

/// The first 32 bits of the fractions of the square roots of the first primes.
const START: [u32; 8] = [
    0x6A09_E667,
    0xBB67_AE85,
    0x3C6E_F372,
    0xA54F_F53A,
    0x510E_527F,
    0x9B05_688C,
    0x1F83_D9AB,
    0x5BE0_CD19,
];

/// The same of the cube roots.
const ROUND: [u32; 64] = [
    0x428A_2F98,
    0x7137_4491,
    0xB5C0_FBCF,
    0xE9B5_DBA5,
    0x3956_C25B,
    0x59F1_11F1,
    0x923F_82A4,
    0xAB1C_5ED5,
    0xD807_AA98,
    0x1283_5B01,
    0x2431_85BE,
    0x550C_7DC3,
    0x72BE_5D74,
    0x80DE_B1FE,
    0x9BDC_06A7,
    0xC19B_F174,
    0xE49B_69C1,
    0xEFBE_4786,
    0x0FC1_9DC6,
    0x240C_A1CC,
    0x2DE9_2C6F,
    0x4A74_84AA,
    0x5CB0_A9DC,
    0x76F9_88DA,
    0x983E_5152,
    0xA831_C66D,
    0xB003_27C8,
    0xBF59_7FC7,
    0xC6E0_0BF3,
    0xD5A7_9147,
    0x06CA_6351,
    0x1429_2967,
    0x27B7_0A85,
    0x2E1B_2138,
    0x4D2C_6DFC,
    0x5338_0D13,
    0x650A_7354,
    0x766A_0ABB,
    0x81C2_C92E,
    0x9272_2C85,
    0xA2BF_E8A1,
    0xA81A_664B,
    0xC24B_8B70,
    0xC76C_51A3,
    0xD192_E819,
    0xD699_0624,
    0xF40E_3585,
    0x106A_A070,
    0x19A4_C116,
    0x1E37_6C08,
    0x2748_774C,
    0x34B0_BCB5,
    0x391C_0CB3,
    0x4ED8_AA4A,
    0x5B9C_CA4F,
    0x682E_6FF3,
    0x748F_82EE,
    0x78A5_636F,
    0x84C8_7814,
    0x8CC7_0208,
    0x90BE_FFFA,
    0xA450_6CEB,
    0xBEF9_A3F7,
    0xC671_78F2,
];

/// A hash in the making.
#[derive(Clone, Debug)]
pub struct Sha256 {
    state: [u32; 8],
    rest: Vec<u8>,
    len: u64,
}

impl Default for Sha256 {
    fn default() -> Self {
        Sha256 {
            state: START,
            rest: Vec::new(),
            len: 0,
        }
    }
}

impl Sha256 {
    /// The hash of some bytes, in hexadecimal.
    #[must_use]
    pub fn hex(bytes: &[u8]) -> String {
        let mut hash = Sha256::default();
        hash.update(bytes);
        hash.finish()
    }

    /// Adds bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if !self.rest.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(64 - self.rest.len()));
            self.rest.extend_from_slice(now);
            bytes = later;
            if self.rest.len() < 64 {
                return;
            }
            let block = std::mem::take(&mut self.rest);
            self.blocks(&block);
        }
        let whole = bytes.len() - bytes.len() % 64;
        self.blocks(&bytes[..whole]);
        self.rest.extend_from_slice(&bytes[whole..]);
    }

    /// The hash of everything added, in hexadecimal.
    #[must_use]
    pub fn finish(mut self) -> String {
        let bits = self.len * 8;
        let mut last = std::mem::take(&mut self.rest);
        last.push(0x80);
        last.resize((last.len() + 8).next_multiple_of(64) - 8, 0);
        last.extend_from_slice(&bits.to_be_bytes());
        self.blocks(&last);
        self.state.iter().map(|w| format!("{w:08x}")).collect()
    }

    fn blocks(&mut self, bytes: &[u8]) {
        for block in bytes.as_chunks::<64>().0 {
            self.block(block);
        }
    }

    fn block(&mut self, block: &[u8; 64]) {
        let mut w = [0u32; 64];
        for (w, bytes) in w.iter_mut().zip(block.as_chunks::<4>().0) {
            *w = u32::from_be_bytes(*bytes);
        }
        for i in 16..64 {
            let (a, b) = (w[i - 15], w[i - 2]);
            let low = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
            let high = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
            w[i] = w[i - 16]
                .wrapping_add(low)
                .wrapping_add(w[i - 7])
                .wrapping_add(high);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = self.state;
        for (w, k) in w.into_iter().zip(ROUND) {
            let big = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let one = h
                .wrapping_add(big)
                .wrapping_add(choice)
                .wrapping_add(k)
                .wrapping_add(w);
            let small = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let most = (a & b) ^ (a & c) ^ (b & c);
            (h, g, f, e) = (g, f, e, d.wrapping_add(one));
            (d, c, b, a) = (c, b, a, one.wrapping_add(small.wrapping_add(most)));
        }
        for (state, x) in self.state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *state = state.wrapping_add(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_standard() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha256::hex(b""), empty);
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Sha256::hex(b"abc"), abc);
        let million = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        let mut hash = Sha256::default();
        (0..10_000).for_each(|_| hash.update(&[b'a'; 100]));
        assert_eq!(hash.finish(), million);
    }
}
