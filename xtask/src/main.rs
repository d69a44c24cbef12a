//! The project's own checks and measurements.

fn main() {}
