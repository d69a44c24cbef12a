//! Builds programs from model specifications, runs passes, matches fusions.
