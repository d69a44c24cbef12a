//! The small model inside the program.

/// What `-m` calls it.
pub(crate) const NAME: &str = "demo";

/// Said when it runs because no model was named.
pub(crate) const NOTE: &str = "no model was named, so the small built-in one answers (-m demo); \
                               a larger one comes from a file or the hub: -m FILE, -hf USER/NAME";

/// Tensors are read where they lie, so the file is aligned as in memory that was mapped.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../demo/demo.gguf"));

/// The model file, as `xtask demo` wrote it.
pub(crate) const BYTES: Option<&[u8]> = Some(&MODEL.0);
