//! Every golden on every device, in every way of feeding.

use tokkata_archs::Registry;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::devices;
use tokkata_conformance::golden::{Golden, selection, verify};

#[test]
fn every_device_agrees_with_every_golden() {
    let names = Golden::list(&Golden::folder()).expect("goldens");
    for device in devices() {
        verify(device.as_ref(), &names);
    }
}

#[test]
fn indexers_choose_what_the_oracle_does() {
    let (folder, registry) = (Golden::folder(), Registry::builtin());
    let mut indexers = 0;
    for name in Golden::list(&folder).expect("goldens") {
        let golden = Golden::read(&folder, &name).expect("golden");
        if golden.selections.is_empty() {
            continue;
        }
        let found = selection::found(&golden, &registry, &RefBackend::default()).expect(&name);
        assert_eq!(found.len(), golden.selections.len(), "indexers of {name}");
        for (found, want) in found.iter().zip(&golden.selections) {
            let layer = want.layer;
            assert_eq!(found.layer, layer, "{name}");
            assert_eq!(selection::units(found), want.units, "{name}, layer {layer}");
            assert!(
                want.margin > 1e-5,
                "{name}, layer {layer}: a margin of {}",
                want.margin
            );
            indexers += 1;
        }
    }
    assert!(indexers > 0, "no golden has an indexer");
}

#[test]
fn goldens_are_small() {
    for entry in std::fs::read_dir(Golden::folder()).expect("goldens") {
        let entry = entry.expect("entry");
        let bytes = entry.metadata().expect("metadata").len();
        assert!(bytes < 50_000, "{:?} has {bytes} bytes", entry.file_name());
    }
}
