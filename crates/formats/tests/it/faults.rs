//! Every kind of wrong file gives its own one-line error.

use std::fmt::Write;

use tokkata_formats::{Endian, ModelFile};

use crate::build::{Raw, everything};

fn error(bytes: Vec<u8>) -> String {
    ModelFile::from_bytes(bytes)
        .expect_err("the file is wrong")
        .to_string()
}

/// Wrong files by name.
type Wrong = Vec<(&'static str, Vec<u8>)>;

fn wrong_starts() -> Wrong {
    vec![
        ("empty", vec![]),
        ("zip", b"PK\x03\x04....".to_vec()),
        ("html", b"<!DOCTYPE html>".to_vec()),
        (
            "lfs pointer",
            b"version https://git-lfs.github.com/spec/v1".to_vec(),
        ),
        ("safetensors", b"\x40\0\0\0\0\0\0\0{\"a\":1}".to_vec()),
        ("noise", b"\0\x01\n\xff\0\0".to_vec()),
        ("magic only", b"GGUF".to_vec()),
        ("version 1", Raw(b"GGUF".to_vec()).u32(1).u64(0).u64(0).0),
        ("version 4", Raw(b"GGUF".to_vec()).u32(4).u64(0).u64(0).0),
        ("version 0", Raw(b"GGUF".to_vec()).u32(0).u64(0).u64(0).0),
        (
            "swapped version 9",
            Raw(b"GGUF".to_vec()).u32(9 << 24).u64(0).u64(0).0,
        ),
        ("huge tensor count", Raw::header(u64::MAX, 0).0),
        ("huge metadata count", Raw::header(0, 1 << 60).0),
        ("huge key", Raw::header(0, 1).u64(u64::MAX).data(1, 40).0),
    ]
}

fn wrong_metadata() -> Wrong {
    let pair = |raw: Raw| raw.data(32, 64).0;
    let key = || Raw::header(0, 1).text(b"k");
    vec![
        ("empty key", pair(Raw::header(0, 1).text(b"").u32(4).u32(1))),
        (
            "key not UTF-8",
            pair(Raw::header(0, 1).text(b"a\xff\n").u32(4).u32(1)),
        ),
        (
            "key twice",
            pair(Raw::header(0, 2).pair("k", 1).pair("k", 2)),
        ),
        ("unknown value type", pair(key().u32(13))),
        ("unknown element type", pair(key().u32(9).u32(99).u64(0))),
        ("nested array", pair(key().u32(9).u32(9).u64(1))),
        ("huge array", pair(key().u32(9).u32(12).u64(u64::MAX / 4))),
        ("huge string array", pair(key().u32(9).u32(8).u64(1 << 40))),
        (
            "string array past the end",
            pair(key().u32(9).u32(8).u64(1000)),
        ),
        ("huge string", pair(key().u32(8).u64(1 << 62))),
        (
            "alignment 24",
            pair(Raw::header(0, 1).pair("general.alignment", 24)),
        ),
        (
            "alignment 0",
            pair(Raw::header(0, 1).pair("general.alignment", 0)),
        ),
        (
            "alignment text",
            pair(
                Raw::header(0, 1)
                    .text(b"general.alignment")
                    .u32(8)
                    .text(b"32"),
            ),
        ),
    ]
}

fn wrong_tensors() -> Wrong {
    let one = |dims: &[u64], code, offset| Raw::header(1, 0).tensor("t", dims, code, offset);
    let two = |name| {
        Raw::header(2, 0)
            .tensor("a", &[8], 0, 0)
            .tensor(name, &[8], 0, 0)
    };
    vec![
        (
            "five dimensions",
            one(&[1, 1, 1, 1, 1], 0, 0).data(32, 64).0,
        ),
        ("zero dimension", one(&[0, 4], 0, 0).data(32, 64).0),
        (
            "overflowing shape",
            one(&[1 << 32, 1 << 32], 0, 0).data(32, 64).0,
        ),
        ("overflowing bytes", one(&[1 << 62], 0, 0).data(32, 64).0),
        ("huge shape", one(&[1 << 40], 0, 0).data(32, 64).0),
        ("row not blocks", one(&[48, 2], 2, 0).data(32, 64).0),
        ("removed type", one(&[32], 4, 0).data(32, 64).0),
        ("repacked type", one(&[32], 31, 0).data(32, 64).0),
        ("unknown type", one(&[32], 99, 0).data(32, 64).0),
        ("misaligned", one(&[8], 0, 4).data(32, 64).0),
        ("past the end", one(&[8], 0, 64).data(32, 64).0),
        (
            "offset overflow",
            one(&[8], 0, u64::MAX - 31).data(32, 64).0,
        ),
        ("overlap", two("b").data(32, 64).0),
        ("tensor twice", two("a").data(32, 64).0),
    ]
}

fn wrong_splits() -> Wrong {
    let pair = |raw: Raw| raw.data(32, 64).0;
    vec![
        (
            "split number",
            pair(Raw::header(0, 2).pair("split.no", 3).pair("split.count", 2)),
        ),
        (
            "split count type",
            pair(Raw::header(0, 1).text(b"split.count").u32(8).text(b"2")),
        ),
        (
            "split tensors",
            pair(
                Raw::header(0, 2)
                    .pair("split.count", 1)
                    .pair("split.tensors.count", 4),
            ),
        ),
        (
            "lone file of a split",
            pair(Raw::header(0, 2).pair("split.no", 0).pair("split.count", 2)),
        ),
    ]
}

#[test]
fn every_fault_has_its_text() {
    let mut texts = String::new();
    let all = [
        wrong_starts(),
        wrong_metadata(),
        wrong_tensors(),
        wrong_splits(),
    ];
    for (name, bytes) in all.concat() {
        let text = error(bytes);
        assert_eq!(text.lines().count(), 1, "{name}");
        writeln!(texts, "{name}: {text}").unwrap();
    }
    insta::assert_snapshot!(texts);
}

#[test]
fn separate_tensors_may_come_in_any_order_with_gaps() {
    let raw = Raw::header(2, 0)
        .tensor("a", &[8], 0, 96)
        .tensor("b", &[8], 0, 0)
        .data(32, 128);
    let model = ModelFile::from_bytes(raw.0).unwrap();
    assert_eq!(model.tensors()[0].offset - model.tensors()[1].offset, 96);
}

#[test]
fn a_type_that_was_not_written_is_refused() {
    let relabelled = |dtype: u32| {
        let raw = Raw::header(2, 0)
            .tensor("a", &[32, 4], dtype, 0)
            .tensor("b", &[32], 0, 512)
            .data(32, 640);
        raw.0
    };
    assert!(ModelFile::from_bytes(relabelled(0)).is_ok());
    let text = error(relabelled(1));
    assert!(
        text.contains("of type F16") && text.contains("as many as F32 takes"),
        "{text}"
    );
}

#[test]
fn a_number_without_dimensions_reads() {
    let raw = Raw::header(1, 0).tensor("a", &[], 0, 0).data(32, 4);
    let model = ModelFile::from_bytes(raw.0).unwrap();
    let a = &model.tensors()[0];
    assert_eq!(
        (a.elements(), a.rows(), a.row_elems(), a.bytes),
        (1, 1, 1, 4)
    );
}

#[test]
fn every_truncation_is_an_error() {
    for endian in [Endian::Little, Endian::Big] {
        let bytes = everything(endian, 32);
        let model = ModelFile::from_bytes(bytes.clone()).unwrap();
        let end = model
            .tensors()
            .iter()
            .map(|t| t.offset + t.bytes)
            .max()
            .unwrap() as usize;
        for len in 0..end {
            let text = error(bytes[..len].to_vec());
            assert!(text.lines().count() == 1, "{len}: {text}");
        }
        assert!(ModelFile::from_bytes(bytes[..end].to_vec()).is_ok());
    }
}

#[test]
fn what_is_no_file_is_refused_by_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        ModelFile::open(dir.path().join(name))
            .unwrap_err()
            .to_string()
    };
    assert!(open("none.gguf").contains("none.gguf: found nothing under this name"));
    assert!(open("a\nb\u{1b}c.gguf").contains("a\\nb\\u{1b}c.gguf: found nothing"));
    assert!(open("").contains("found a directory without config.json, expected a model file"));
    std::fs::write(dir.path().join("empty.gguf"), b"").unwrap();
    assert!(open("empty.gguf").contains("the file is empty"));
    #[cfg(unix)]
    assert!(
        ModelFile::open("/dev/null")
            .unwrap_err()
            .to_string()
            .contains("a pipe or device")
    );
}
