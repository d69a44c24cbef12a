//! Every golden with states on every device, going on from each state that rows kept.

use tokkata_conformance::golden::Golden;
use tokkata_conformance::{devices, kept};

/// Variants have the same states with other numbers, mostly.
fn names() -> Vec<String> {
    let mut names = Golden::list(&Golden::folder()).expect("goldens");
    names.retain(|name| !name.contains('+'));
    names
}

#[test]
fn every_state_that_was_kept_can_be_gone_on_from() {
    for device in devices() {
        kept::verify(device.as_ref(), &names(), 20);
    }
}
