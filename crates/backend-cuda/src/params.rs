//! Parameters of kernels, laid out as the C++ compiler lays out structures.

/// Bytes of a kernel's parameters, filled in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params(Vec<u8>);

impl Params {
    pub(crate) fn new() -> Self {
        Params::default()
    }

    /// Parameters that begin with those of another kernel.
    pub(crate) fn beginning(bytes: &[u8]) -> Self {
        Params(bytes.to_vec())
    }

    /// Fills up to a multiple of `bytes`: before and after a structure that holds addresses.
    pub(crate) fn align(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(bytes), 0);
        self
    }

    pub(crate) fn u32(self, x: u32) -> Self {
        let mut params = self.align(4);
        params.0.extend(x.to_le_bytes());
        params
    }

    pub(crate) fn u32s(self, x: &[u32]) -> Self {
        x.iter().fold(self, |params, &x| params.u32(x))
    }

    pub(crate) fn f32(self, x: f32) -> Self {
        self.u32(x.to_bits())
    }

    /// An address or another number of 64 bits.
    pub(crate) fn u64(self, x: u64) -> Self {
        let mut params = self.align(8);
        params.0.extend(x.to_le_bytes());
        params
    }

    pub(crate) fn u64s(self, x: &[u64]) -> Self {
        x.iter().fold(self, |params, &x| params.u64(x))
    }

    /// Another structure behind this one.
    pub(crate) fn then(self, other: &Params) -> Self {
        let mut params = self.align(8);
        params.0.extend(&other.0);
        params
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Params;

    #[test]
    fn fields_lie_at_multiples_of_their_sizes() {
        let params = Params::new().u32(1).u64(2).f32(1.0).align(8).u32(3);
        let words: Vec<u32> = params
            .bytes()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b))
            .collect();
        assert_eq!(words, [1, 0, 2, 0, 0x3F80_0000, 0, 3]);
    }
}
