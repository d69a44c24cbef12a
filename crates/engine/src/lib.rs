//! Sequences, cache blocks, scheduling, sampling and generation.
