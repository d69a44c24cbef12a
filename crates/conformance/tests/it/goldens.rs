//! Every golden on every device, in every way of feeding.

use tokkata_archs::Registry;
use tokkata_conformance::golden::{Golden, selection, verify};
use tokkata_conformance::models::{Feeding, Target, load_for};
use tokkata_conformance::{devices, generate};
use tokkata_formats::ModelFile;

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
        for device in devices() {
            let found = selection::found(&golden, &registry, device.as_ref()).expect(&name);
            assert_eq!(found.len(), golden.selections.len(), "indexers of {name}");
            for (found, want) in found.iter().zip(&golden.selections) {
                let at = format!("{name}, layer {} on {}", want.layer, device.name());
                assert_eq!(found.layer, want.layer, "{at}");
                assert_eq!(selection::units(found), want.units, "{at}");
                assert!(want.margin > 1e-5, "{at}: a margin of {}", want.margin);
                indexers += 1;
            }
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

/// The file of a golden whose matrix of queries of the second layer begins with what is not a number.
fn spoilt(golden: &Golden) -> ModelFile {
    const NAME: &str = "blk.1.attn_q.weight";
    let mut bytes = generate::gguf(golden).expect("a file");
    let (_, shape) = (golden.tensors.iter().find(|(name, _)| *name == NAME)).expect(NAME);
    let values = generate::values(NAME, shape);
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let at = bytes.windows(data.len()).position(|part| part == data);
    let at = at.expect("the values lie in the file");
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    ModelFile::from_bytes(bytes).expect("a file")
}

#[test]
fn a_query_that_is_not_a_number_reaches_the_logits() {
    for name in ["llama", "gpt-oss"] {
        let golden = Golden::read(&Golden::folder(), name).expect("golden");
        let file = spoilt(&golden);
        for device in devices() {
            let target = Target::new(device.as_ref(), golden.positions, Feeding::WHOLE);
            let mut loaded = load_for(&file, &Registry::builtin(), &target).expect("a load");
            let rows = loaded.logits(&golden.ids(), Feeding::WHOLE).expect("rows");
            let numbers = rows.iter().filter(|x| !x.is_nan()).count();
            assert_eq!(numbers, 0, "{name} on {}", device.name());
        }
    }
}
