//! What is written reads back the same.

use tokkata_core::{DType, Metadata, Value};
use tokkata_formats::{Endian, Fault, GgufWriter, ModelFile, ShardLimit};

use crate::build::{every_pair, every_tensor, everything};

fn check(model: &ModelFile, left_out: &[DType]) {
    for (key, value) in every_pair().iter() {
        assert_eq!(model.metadata().get(key), Some(value), "{key}");
    }
    let kept = || {
        every_tensor()
            .into_iter()
            .filter(|t| !left_out.contains(&t.1))
    };
    assert_eq!(model.tensors().len(), kept().count());
    for (info, (name, dtype, shape, data)) in model.tensors().iter().zip(kept()) {
        assert_eq!(
            (&info.name, info.dtype, info.shape.as_slice()),
            (&name, dtype, &shape[..])
        );
        assert_eq!(model.data(info).unwrap(), data, "{name}");
        check_reads(model, info, &data);
    }
}

/// Every range that begins and ends inside, at and across the first blocks.
fn check_reads(model: &ModelFile, info: &tokkata_formats::TensorInfo, data: &[u8]) {
    let end = data.len();
    for start in [0, 1, 2, 17, end / 2, end - 1, end] {
        for stop in [start, start + 1, start + 3, end] {
            let stop = stop.min(end);
            if start <= stop {
                let mut buf = vec![0; stop - start];
                model.read_at(info, start as u64, &mut buf).unwrap();
                assert_eq!(buf, data[start..stop], "{} {start}..{stop}", info.name);
            }
        }
    }
    let outside = model.read_at(info, end as u64, &mut [0]).unwrap_err();
    assert!(matches!(*outside.fault, Fault::ReadRange { .. }));
}

#[test]
fn everything_reads_back_at_any_alignment() {
    for alignment in [1, 2, 8, 32, 64, 4096, 8192] {
        let model = ModelFile::from_bytes(everything(Endian::Little, alignment)).unwrap();
        assert_eq!(model.layout().unwrap().alignment, u64::from(alignment));
        check(&model, &[]);
        assert!(
            model
                .tensors()
                .iter()
                .all(|t| t.offset % u64::from(alignment) == 0)
        );
    }
}

#[test]
fn big_endian_files_give_little_endian_bytes() {
    let model = ModelFile::from_bytes(everything(Endian::Big, 32)).unwrap();
    assert_eq!(model.layout().unwrap().endian, Endian::Big);
    check(&model, &[DType::IQ2_XXS, DType::IQ3_XXS, DType::IQ1_M]);
}

#[test]
fn big_endian_bytes_are_really_turned_round() {
    let mut writer = GgufWriter::new("<memory>", Metadata::default())
        .unwrap()
        .with_endian(Endian::Big);
    writer.declare("a", DType::F32, &[1]).unwrap();
    let bytes = writer.to_bytes([&1.0f32.to_le_bytes()[..]]).unwrap();
    assert_eq!(bytes[4..8], 3u32.to_be_bytes());
    assert_eq!(bytes[64..68], 1.0f32.to_be_bytes());
}

#[test]
fn a_long_big_endian_tensor_reads_in_pieces() {
    let mut writer = GgufWriter::new("<memory>", Metadata::default())
        .unwrap()
        .with_endian(Endian::Big);
    writer.declare("a", DType::Q8_0, &[1000, 32]).unwrap();
    let data: Vec<u8> = (0..34_000u32).map(|i| (i * 13 / 7) as u8).collect();
    let model = ModelFile::from_bytes(writer.to_bytes([&data[..]]).unwrap()).unwrap();
    let mut buf = vec![0; 33_900];
    model.read_at(&model.tensors()[0], 77, &mut buf).unwrap();
    assert_eq!(buf, data[77..33_977]);
}

#[test]
fn version_2_reads_like_version_3() {
    let mut bytes = everything(Endian::Little, 32);
    bytes[4] = 2;
    let model = ModelFile::from_bytes(bytes).unwrap();
    assert_eq!(model.layout().unwrap().version, 2);
    check(&model, &[]);
}

#[test]
fn a_file_without_tensors_or_padding_reads() {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::from("llama"));
    let mut bytes = GgufWriter::new("<memory>", metadata)
        .unwrap()
        .to_bytes([])
        .unwrap();
    bytes.truncate(24 + 8 + 20 + 4 + 8 + 5);
    let model = ModelFile::from_bytes(bytes).unwrap();
    assert_eq!(model.architecture(), Some("llama"));
}

#[test]
fn the_same_file_comes_from_disk_and_from_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let mut writer = GgufWriter::new(&path, every_pair()).unwrap();
    for (name, dtype, shape, _) in every_tensor() {
        writer.declare(&name, dtype, &shape).unwrap();
    }
    let mut output = writer.create(ShardLimit::Whole).unwrap();
    for (name, _, _, data) in every_tensor() {
        assert_eq!(output.current(), Some(name.as_str()));
        data.chunks(13)
            .for_each(|chunk| output.write(chunk).unwrap());
    }
    assert!(!path.exists());
    assert_eq!(output.finish().unwrap(), std::slice::from_ref(&path));
    check(&ModelFile::open(&path).unwrap(), &[]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn nothing_is_left_when_writing_stops() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, b"the old file").unwrap();
    let start = || {
        let mut writer = GgufWriter::new(&path, Metadata::default()).unwrap();
        writer.declare("a", DType::F32, &[4]).unwrap();
        writer.create(ShardLimit::Whole).unwrap()
    };
    drop(start());
    let mut output = start();
    output.write(&[0; 15]).unwrap();
    let error = output.finish().unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("15 bytes were given for tensor \"a\", expected 16"),
        "{error}"
    );
    let error = start().write(&[0; 17]).unwrap_err();
    assert!(matches!(
        *error.fault,
        Fault::Given {
            found: 17,
            expected: 16,
            ..
        }
    ));
    assert_eq!(std::fs::read(&path).unwrap(), b"the old file");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut writer = GgufWriter::new("<memory>", Metadata::default()).unwrap();
    writer.declare("a", DType::Q4_K, &[1, 256]).unwrap();
    let mut fault =
        |name: &str, dtype, shape: &[usize]| *writer.declare(name, dtype, shape).unwrap_err().fault;
    assert!(matches!(
        fault("a", DType::F32, &[1]),
        Fault::DuplicateTensor { .. }
    ));
    assert!(matches!(
        fault(&"n".repeat(64), DType::F32, &[1]),
        Fault::TensorName { .. }
    ));
    assert!(matches!(
        fault("", DType::F32, &[1]),
        Fault::TensorName { .. }
    ));
    assert!(matches!(
        fault("b", DType::Q4_K, &[8, 128]),
        Fault::RowBlocks { .. }
    ));
    assert!(matches!(
        fault("b", DType::F32, &[1; 5]),
        Fault::Dims { .. }
    ));
    assert!(matches!(fault("b", DType::F32, &[0]), Fault::Shape { .. }));
    assert!(matches!(
        fault("b", DType::F32, &[usize::MAX, 2]),
        Fault::Shape { .. }
    ));
    let mut metadata = Metadata::default();
    metadata.insert("general.alignment", Value::U32(24));
    let error = GgufWriter::new("x", metadata).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("found 24 for metadata key general.alignment")
    );
}
