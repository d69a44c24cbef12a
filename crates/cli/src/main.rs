//! The `tokkata` command.

fn main() {}
