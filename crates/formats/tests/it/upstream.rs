//! Files written by the reference Python library (`tests/data/make.py`) and by MLX (`make_mlx.py`).

use std::path::Path;

use tokkata_core::{Array, DType, Value};
use tokkata_formats::{Container, Endian, ModelFile, Scheme};

fn open(name: &str) -> ModelFile {
    ModelFile::open(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name),
    )
    .unwrap()
}

#[test]
fn reference_files_read_in_both_byte_orders() {
    let (little, big) = (open("upstream-le.gguf"), open("upstream-be.gguf"));
    assert_eq!(
        (
            little.layout().unwrap().endian,
            big.layout().unwrap().endian
        ),
        (Endian::Little, Endian::Big)
    );
    assert_eq!(little.metadata(), big.metadata());
    assert_eq!(little.tensors().len(), 11);
    for (a, b) in little.tensors().iter().zip(big.tensors()) {
        assert_eq!(a, b);
        assert_eq!(little.data(a).unwrap(), big.data(b).unwrap(), "{}", a.name);
    }
}

#[test]
fn a_reference_file_has_what_was_written() {
    let model = open("upstream-le.gguf");
    assert_eq!(model.layout().unwrap().alignment, 64);
    let expected = [
        ("general.architecture", Value::from("llama")),
        ("a.u8", Value::U8(200)),
        ("a.i16", Value::I16(-300)),
        ("a.u64", Value::U64(1 << 63)),
        ("a.f64", Value::F64(-0.1)),
        ("a.bool", Value::Bool(true)),
        ("a.text", Value::from("π")),
        ("a.ints", Value::Array(Array::I32(vec![1, -2, 3]))),
        ("a.floats", Value::Array(Array::F32(vec![0.5, -2.0]))),
        (
            "a.strings",
            Value::Array(Array::Str(vec!["".into(), "ab".into()])),
        ),
    ];
    for (key, value) in expected {
        assert_eq!(model.metadata().get(key), Some(&value), "{key}");
    }
    let floats = model.tensor("F32").unwrap();
    assert_eq!(
        (floats.dtype, floats.shape.as_slice()),
        (DType::F32, &[2, 3][..])
    );
    let bytes: Vec<u8> = (0..6u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    assert_eq!(model.data(floats).unwrap(), bytes);
    for info in &model.tensors()[2..] {
        assert_eq!(info.name, info.dtype.name());
        assert_eq!(info.shape, [2, 2 * info.dtype.block_elems()]);
        let bytes: Vec<u8> = (0..4 * info.dtype.block_bytes())
            .map(|i| (i * 7) as u8)
            .collect();
        assert_eq!(model.data(info).unwrap(), bytes, "{}", info.name);
    }
}

#[test]
fn a_directory_that_mlx_wrote_is_described() {
    let model = open("mlx");
    assert_eq!(model.container(), Container::Mlx);
    let names: Vec<_> = model.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["plain.weight"]);
    assert!(model.other_tensors().is_empty());
    let mut schemes: Vec<_> = model
        .packed()
        .iter()
        .map(|w| (w.name.as_str(), w.scheme))
        .collect();
    schemes.sort_unstable_by_key(|scheme| scheme.0);
    let affine = |bits, group| Scheme::Affine { bits, group };
    let expected = [
        ("affine2.weight", affine(2, 64)),
        ("affine3.weight", affine(3, 64)),
        ("affine4.weight", affine(4, 64)),
        ("affine5.weight", affine(5, 64)),
        ("affine6.weight", affine(6, 64)),
        ("affine8.weight", affine(8, 64)),
        ("group128.weight", affine(4, 128)),
        ("group32.weight", affine(4, 32)),
        ("mxfp4.weight", Scheme::Mxfp4),
        ("mxfp8.weight", Scheme::Mxfp8),
        ("nvfp4.weight", Scheme::Nvfp4),
    ];
    assert_eq!(schemes, expected);
    assert!(model.packed().iter().all(|weight| weight.shape == [3, 128]));
}
