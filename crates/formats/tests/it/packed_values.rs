//! Elements of packed weights against fixtures: a restatement of each packing in NumPy, and MLX itself.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use tokkata_formats::{ModelFile, PackedWeight};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/packed")
}

fn fixtures() -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder()).expect("fixtures");
    let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
    let named = paths.into_iter().map(|p| (name(&p).unwrap_or_default(), p));
    named.collect()
}

/// Weights of a fixture, packed ones as floats, that differ from what is wanted.
fn differences(path: &Path) -> Vec<String> {
    let file = ModelFile::open(path).unwrap_or_else(|e| panic!("{e}"));
    let want = std::fs::read(path.join("want.bin")).expect("wanted values");
    let want = ModelFile::from_safetensors_bytes(want).expect("safetensors");
    let mut faults = Vec::new();
    let mut seen = 0;
    for tensor in want.tensors() {
        let bytes = want.data(tensor).expect("bytes").as_chunks::<4>().0;
        let expected: Vec<u32> = bytes.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let Some(packed) = file.packed_weight(&tensor.name) else {
            assert!(
                file.tensor(&tensor.name).is_some(),
                "{} is missing",
                tensor.name
            );
            continue;
        };
        seen += 1;
        assert_eq!(packed.shape, tensor.shape, "{}", tensor.name);
        let mut found = vec![0.0; expected.len()];
        file.read_packed(packed, 0, &mut found).expect("values");
        let differing = found
            .iter()
            .zip(&expected)
            .filter(|(f, e)| f.to_bits() != **e)
            .count();
        if differing > 0 {
            let first = found
                .iter()
                .zip(&expected)
                .position(|(f, e)| f.to_bits() != *e);
            let first = first.unwrap_or(0);
            let wanted = f32::from_bits(expected[first]);
            faults.push(format!(
                "{}: {differing} differ, at {first} {} for {wanted}",
                tensor.name, found[first]
            ));
        }
    }
    assert!(seen > 0, "{} has no packed weight", path.display());
    faults
}

#[test]
fn packed_weights_have_the_values_that_their_packing_says() {
    let mut faults = Vec::new();
    let fixtures = fixtures();
    assert!(fixtures.len() > 50, "found {} fixtures", fixtures.len());
    for (name, path) in fixtures {
        faults.extend(
            differences(&path)
                .into_iter()
                .map(|f| format!("{name}: {f}")),
        );
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Elements of a weight as it is kept.
fn kept(file: &ModelFile, packed: &PackedWeight) -> Vec<f32> {
    let mut bytes = vec![0; packed.rows() * packed.row_bytes()];
    file.read_kept(packed, 0, &mut bytes).expect("rows");
    let elements = packed.rows() * packed.cols();
    tokkata_quant::dequantize_vec(packed.kept, &bytes, elements).expect("whole blocks")
}

/// The type of each fixture's weights, after each element was compared; -0 and 0 are one value.
#[test]
fn weights_are_kept_in_a_type_that_holds_each_element() {
    let mut types = String::new();
    for (name, path) in fixtures() {
        let file = ModelFile::open(&path).unwrap_or_else(|e| panic!("{e}"));
        let mut seen: Vec<&str> = Vec::new();
        for packed in file.packed() {
            let mut want = vec![0.0; packed.rows() * packed.cols()];
            file.read_packed(packed, 0, &mut want).expect("values");
            let found = kept(&file, packed);
            let differs = found.iter().zip(&want).position(|(f, w)| f != w);
            assert_eq!(differs, None, "{name} {} {}", packed.name, packed.kept);
            seen.push(packed.kept.name());
        }
        seen.dedup();
        writeln!(types, "{name}: {}", seen.join(" ")).expect("text");
    }
    insta::assert_snapshot!(types);
}

#[test]
fn rows_are_read_alone_as_well_as_together() {
    let file = ModelFile::open(folder().join("gptq-4")).expect("a fixture");
    let packed = file.packed_weight("a.weight").expect("a weight");
    let [rows, cols] = packed.shape[..] else {
        panic!("two dimensions")
    };
    let mut all = vec![0.0; rows * cols];
    file.read_packed(packed, 0, &mut all).expect("values");
    let mut one = vec![0.0; cols];
    file.read_packed(packed, rows - 1, &mut one)
        .expect("values");
    assert_eq!(one, all[(rows - 1) * cols..]);
    let mut last = vec![0; packed.row_bytes()];
    file.read_kept(packed, rows - 1, &mut last).expect("a row");
    let last = tokkata_quant::dequantize_vec(packed.kept, &last, cols).expect("a row");
    assert_eq!(last, one);
    let beyond = file
        .read_packed(packed, rows, &mut one)
        .expect_err("no such row");
    assert!(beyond.to_string().contains("a.weight"), "{beyond}");
}
