//! Parameters of a dispatch: words of a uniform, in the order in which its kernel names them.

/// Bytes of a dispatch's parameters; dynamic offsets are multiples of it on every adapter.
pub(crate) const PARAM_BYTES: usize = 256;

/// In the place of an address: nothing is there.
pub(crate) const NONE: u32 = u32::MAX;

/// Words of a dispatch's parameters, filled in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Params(Vec<u32>);

impl Params {
    pub(crate) fn new() -> Self {
        Params::default()
    }

    pub(crate) fn u32(mut self, x: u32) -> Self {
        self.0.push(x);
        self
    }

    pub(crate) fn u32s(mut self, x: &[u32]) -> Self {
        self.0.extend(x);
        self
    }

    pub(crate) fn f32(self, x: f32) -> Self {
        self.u32(x.to_bits())
    }

    /// All of them, with zeros behind.
    pub(crate) fn words(&self) -> [u32; PARAM_BYTES / 4] {
        assert!(
            self.0.len() <= PARAM_BYTES / 4,
            "a kernel has too many parameters"
        );
        let mut words = [0; PARAM_BYTES / 4];
        words[..self.0.len()].copy_from_slice(&self.0);
        words
    }
}
