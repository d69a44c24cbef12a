//! Kernel sources, and the text of their variants.

#[cfg(test)]
mod tests;
mod variants;

use crate::preprocess::{Constants, expand};
pub use variants::{Module, modules};
#[cfg(test)]
pub(crate) use variants::{Variant, variants};

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        /// Every source that a module may be made of.
        #[cfg(test)]
        pub(crate) const SOURCES: &[&str] = &[$($name),*];

        fn source(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("../kernels/", $name))),)*
                _ => None,
            }
        }
    };
}

sources![
    "activations.wgsl",
    "adapt.wgsl",
    "attend.wgsl",
    "attend_prompts.wgsl",
    "attention.wgsl",
    "cache.wgsl",
    "columns.wgsl",
    "common.wgsl",
    "experts.wgsl",
    "formats.wgsl",
    "formats_iq.wgsl",
    "formats_k.wgsl",
    "formats_k_scales.wgsl",
    "formats_plain.wgsl",
    "formats_simple.wgsl",
    "formats_tables.wgsl",
    "formats_ternary.wgsl",
    "formats_wide.wgsl",
    "halve.wgsl",
    "halves.wgsl",
    "heads.wgsl",
    "integers.wgsl",
    "integers_of_rows.wgsl",
    "masks.wgsl",
    "matmul.wgsl",
    "num.wgsl",
    "parts.wgsl",
    "products.wgsl",
    "recurrent.wgsl",
    "reduce.wgsl",
    "row_known.wgsl",
    "rows.wgsl",
    "sample.wgsl",
    "several.wgsl",
    "step.wgsl",
    "store.wgsl",
    "tile_rows.wgsl",
    "tiles.wgsl",
    "tiles_coop.wgsl",
    "tiles_routed.wgsl",
    "touch.wgsl",
    "turn.wgsl",
    "unit.wgsl",
    "wide.wgsl",
    "wide_reduce.wgsl",
];

/// The module of a source with these constants.
pub(crate) fn text(file: &str, constants: &Constants) -> String {
    let text = expand(file, constants, &source);
    assert!(!text.is_empty(), "{file} has no text");
    text
}

/// Whether any source has a text.
#[cfg(test)]
pub(crate) fn has_text(text: &str) -> bool {
    let mut sources = SOURCES.iter().filter_map(|name| source(name));
    sources.any(|source| source.contains(text))
}

/// Whether a source has cooperative matrices.
pub(crate) fn is_cooperative(file: &str) -> bool {
    file.contains("coop")
}
