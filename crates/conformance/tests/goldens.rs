//! Every golden on every device, in every way of feeding.

use tokkata_conformance::devices;
use tokkata_conformance::golden::{Golden, verify};

#[test]
fn every_device_agrees_with_every_golden() {
    let names = Golden::list(&Golden::folder()).expect("goldens");
    for device in devices() {
        verify(device.as_ref(), &names);
    }
}

#[test]
fn goldens_are_small() {
    for entry in std::fs::read_dir(Golden::folder()).expect("goldens") {
        let entry = entry.expect("entry");
        let bytes = entry.metadata().expect("metadata").len();
        assert!(bytes < 50_000, "{:?} has {bytes} bytes", entry.file_name());
    }
}
