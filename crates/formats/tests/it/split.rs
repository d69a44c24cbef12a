//! Models in several files.

use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tokkata_core::{DType, Value};
use tokkata_formats::{Fault, GgufWriter, ModelFile, ShardLimit, copy_gguf};

use crate::build::{every_pair, every_tensor};

fn whole(dir: &Path) -> ModelFile {
    let mut metadata = every_pair();
    metadata.insert("general.alignment", Value::U32(64));
    let mut writer = GgufWriter::new(dir.join("m.gguf"), metadata).unwrap();
    for (name, dtype, shape, _) in every_tensor() {
        writer.declare(&name, dtype, &shape).unwrap();
    }
    let mut output = writer.create(ShardLimit::Whole).unwrap();
    every_tensor()
        .iter()
        .for_each(|(.., data)| output.write(data).unwrap());
    ModelFile::open(&output.finish().unwrap()[0]).unwrap()
}

fn tensors(most: usize) -> ShardLimit {
    ShardLimit::Tensors(NonZeroUsize::new(most).unwrap())
}

fn cut(dir: &Path, limit: ShardLimit) -> Vec<PathBuf> {
    copy_gguf(&whole(dir), &dir.join("cut.gguf"), limit, |_| {
        ControlFlow::Continue(())
    })
    .unwrap()
}

/// The files of a small split model.
pub(crate) fn two_parts() -> [Vec<u8>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let paths = cut(dir.path(), tensors(20));
    [0, 1].map(|i: usize| std::fs::read(&paths[i]).unwrap())
}

fn same(a: &ModelFile, b: &ModelFile) {
    assert_eq!(a.tensors().len(), b.tensors().len());
    for (x, y) in a.tensors().iter().zip(b.tensors()) {
        assert_eq!((&x.name, x.dtype, &x.shape), (&y.name, y.dtype, &y.shape));
        assert_eq!(a.data(x).unwrap(), b.data(y).unwrap());
    }
}

#[test]
fn split_and_merge_give_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = whole(dir.path());
    let count = model.tensors().len();
    for most in [1, 2, 7, count, count + 1] {
        let paths = cut(dir.path(), tensors(most));
        assert_eq!(paths.len(), count.div_ceil(most));
        assert!(paths[0].ends_with(format!("cut-00001-of-{:05}.gguf", paths.len())));
        for path in [&paths[0], paths.last().unwrap()] {
            let split = ModelFile::open(path).unwrap();
            same(&model, &split);
            assert_eq!(
                split.metadata().uint("split.count"),
                Some(paths.len() as u64)
            );
            let merged = dir.path().join("merged.gguf");
            let mut copied = 0;
            copy_gguf(&split, &merged, ShardLimit::Whole, |n| {
                copied += n;
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(copied, model.tensors().iter().map(|t| t.bytes).sum::<u64>());
            let original = std::fs::read(dir.path().join("m.gguf")).unwrap();
            assert_eq!(std::fs::read(merged).unwrap(), original);
        }
        paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
    }
}

#[test]
fn a_byte_limit_holds_unless_one_tensor_is_larger() {
    let dir = tempfile::tempdir().unwrap();
    let paths = cut(dir.path(), ShardLimit::Bytes(NonZeroU64::new(600).unwrap()));
    let split = ModelFile::open(&paths[0]).unwrap();
    for part in 0..paths.len() {
        let own: Vec<_> = split.tensors().iter().filter(|t| t.part == part).collect();
        assert!(own.len() == 1 || own.iter().map(|t| t.bytes).sum::<u64>() <= 600);
    }
    assert!(paths.len() > 5);
}

#[test]
fn the_files_of_a_split_read_from_memory_together_only() {
    let dir = tempfile::tempdir().unwrap();
    let paths = cut(dir.path(), tensors(20));
    let part = |i: usize| std::fs::read(&paths[i]).unwrap();
    let together = ModelFile::from_bytes_parts([part(0), part(1)]).unwrap();
    same(&whole(dir.path()), &together);
    let alone = ModelFile::from_bytes(part(0)).unwrap_err();
    assert!(matches!(*alone.fault, Fault::Split { .. }), "{alone}");
    let twice = ModelFile::from_bytes_parts([part(0), part(0)]).unwrap_err();
    assert!(matches!(*twice.fault, Fault::Split { .. }), "{twice}");
    assert!(ModelFile::from_bytes_parts::<Vec<u8>>([]).is_err());
}

#[test]
fn missing_doubled_and_renamed_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let paths = cut(dir.path(), tensors(12));
    assert_eq!(paths.len(), 3);
    let failure = || ModelFile::open(&paths[0]).unwrap_err().to_string();
    let second = std::fs::read(&paths[1]).unwrap();

    std::fs::remove_file(&paths[1]).unwrap();
    assert!(
        failure().contains("cut-00002-of-00003.gguf: found nothing under this name"),
        "{}",
        failure()
    );

    std::fs::copy(&paths[2], &paths[1]).unwrap();
    assert!(failure().contains("found file 3 of 3 of a split model, expected file 2 of 3"));

    std::fs::write(&paths[1], &second).unwrap();
    let odd = dir.path().join("odd.gguf");
    std::fs::copy(&paths[0], &odd).unwrap();
    let error = ModelFile::open(&odd).unwrap_err().to_string();
    assert!(
        error.contains("expected a name ending in -00001-of-00003.gguf"),
        "{error}"
    );
    assert!(ModelFile::open(&paths[0]).is_ok());
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let file = |number: u16, name: &str| {
        let mut metadata = tokkata_core::Metadata::default();
        metadata.insert("split.no", Value::U16(number));
        metadata.insert("split.count", Value::U16(2));
        metadata.insert("split.tensors.count", Value::I32(2));
        let mut writer = GgufWriter::new("x", metadata).unwrap();
        writer.declare(name, DType::I8, &[1]).unwrap();
        writer.to_bytes([&[0][..]]).unwrap()
    };
    let open = |parts: [_; 2]| ModelFile::from_bytes_parts(parts);
    assert!(open([file(0, "a"), file(1, "b")]).is_ok());
    let error = open([file(0, "a"), file(1, "a")]).unwrap_err();
    assert!(matches!(*error.fault, Fault::DuplicateTensor { .. }));
}

#[test]
fn a_stopped_copy_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = whole(dir.path());
    let before = std::fs::read_dir(dir.path()).unwrap().count();
    let mut steps = 0;
    let stop = |_| {
        steps += 1;
        if steps < 20 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let error = copy_gguf(&model, &dir.path().join("cut.gguf"), tensors(3), stop).unwrap_err();
    assert!(matches!(*error.fault, Fault::Stopped), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before);
}
