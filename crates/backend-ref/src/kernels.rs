//! The meaning of each op, one plain function each.

pub(crate) mod adapt;
pub(crate) mod attention;
pub(crate) mod columns;
pub(crate) mod compress;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod gather;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod scan;
pub(crate) mod selection;
