//! Every op against small tables worked out by hand, and the invariants of caches and states.

mod attention;
mod columns;
mod elementwise;
mod experts;
mod invariants;
mod linear;
mod rows;
mod scans;
mod selection;
mod shapes;
mod summaries;
mod support;
