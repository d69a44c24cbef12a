//! What stands for the small model in a program built without it.

/// What `-m` would call it.
pub(crate) const NAME: &str = "demo";

/// Never said.
pub(crate) const NOTE: &str = "";

/// There is none.
pub(crate) const BYTES: Option<&[u8]> = None;
