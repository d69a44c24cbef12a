//! Every architecture that writes: a turn computes what is new in it, by count.

use tokkata_backend_cpu::CpuBackend;
use tokkata_conformance::golden::Golden;
use tokkata_conformance::turns;

#[test]
fn a_turn_computes_what_is_new_in_every_architecture() {
    let mut names = Golden::list(&Golden::folder()).expect("goldens");
    // Variants keep the same of the past, mostly.
    names.retain(|name| !name.contains('+'));
    turns::verify(&CpuBackend, &names, 129);
}
