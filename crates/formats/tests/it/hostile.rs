//! Files changed at random, and files that lie: no panic, no large allocation.

use proptest::prelude::*;
use tokkata_formats::{Endian, Fault, ModelFile};

use crate::build::{Raw, every_pair, everything};
use crate::exercise::{exercise, exercise_safetensors};
use crate::mutate::{Edit, mutate};

const MAX_LEN: usize = 1 << 17;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let raw = Raw::header(3, 2)
        .pair("general.alignment", 64)
        .pair("llama.block_count", 2)
        .tensor("a", &[8, 2], 0, 0)
        .tensor("b", &[32], 2, 64)
        .tensor("c", &[256, 1, 1, 1], 12, 128);
    let pairs = tokkata_formats::GgufWriter::new("<memory>", every_pair()).unwrap();
    vec![
        raw.data(64, 272).0,
        pairs.to_bytes([]).unwrap(),
        everything(Endian::Little, 32),
        everything(Endian::Big, 8),
    ]
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = (any::<u16>(), any::<u64>()).prop_map(|(place, action)| Edit { place, action });
    proptest::collection::vec(edit, 1..5)
}

/// What a safetensors header is made of, and what it is not.
const WORDS: &[&str] = &[
    "",
    "0",
    "4",
    "16",
    "-1",
    "18446744073709551615",
    "9223372036854775808",
    "1e99",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\u0000",
    "null",
    "F32",
    "U8",
    "F4",
    "\"shape\":[]",
    "\"a\":",
    "[4,16]",
    "\"__metadata__\":",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_files_open_soundly_or_not_at_all(seed in 0usize..4, edits in edits()) {
        let mut bytes = seeds().swap_remove(seed);
        mutate(&mut bytes, &edits, MAX_LEN);
        exercise(&bytes);
    }

    #[test]
    fn changed_safetensors_open_soundly_or_not_at_all(
        changes in proptest::collection::vec((any::<u16>(), 0usize..20, 0usize..WORDS.len()), 1..4),
        data in 0usize..40,
    ) {
        let mut header = crate::safetensors::TWO.as_bytes().to_vec();
        for (place, len, word) in changes {
            let at = usize::from(place) * header.len() / 65_536;
            let end = (at + len).min(header.len());
            drop(header.splice(at..end, WORDS[word].bytes()));
        }
        exercise_safetensors(&crate::safetensors::file(&String::from_utf8_lossy(&header), data));
    }

    #[test]
    fn noise_after_a_header_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..400)) {
        exercise(&Raw::header(2, 3).bytes(&noise).0);
        exercise(&noise);
    }
}

#[test]
fn changes_do_not_all_break_the_file() {
    let seeds = seeds();
    let edit = |i: u64| Edit {
        place: (i * 7919) as u16,
        action: i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    };
    let opened = (0..4000u64).filter(|&i| {
        let mut bytes = seeds[i as usize % 4].clone();
        mutate(&mut bytes, &[edit(i)], MAX_LEN);
        exercise(&bytes)
    });
    let opened = opened.count();
    assert!((400..3600).contains(&opened), "{opened} of 4000 opened");
}

/// Headers that ask for as much memory as they can while keeping to the rules of the format.
fn greedy_files() -> Vec<(&'static str, Vec<u8>)> {
    let array = |code: u32, count: u64| Raw::header(0, 1).text(b"k").u32(9).u32(code).u64(count);
    let mut names = Raw::header(1 << 20, 0);
    for i in 0..1u32 << 20 {
        names = names.tensor(&i.to_string(), &[], 24, u64::from(i) * 32);
    }
    let mut pairs = Raw::header(0, 1 << 16);
    for i in 0..1u32 << 16 {
        pairs = pairs.text(i.to_string().as_bytes()).u32(0).bytes(&[0]);
    }
    vec![
        ("strings", array(8, 1 << 22).zeros(8 << 22).0),
        ("bytes", array(0, 200 << 20).data(1, 200 << 20).0),
        (
            "long string",
            Raw::header(0, 1)
                .text(b"k")
                .u32(8)
                .u64(200 << 20)
                .data(1, 200 << 20)
                .0,
        ),
        ("tensors", names.data(32, 32 << 20).0),
        ("pairs", pairs.0),
        (
            "count",
            Raw::header(u64::MAX / 25, u64::MAX / 14).data(1, 1 << 20).0,
        ),
    ]
}

/// The same for safetensors headers: many pairs, many tensors, long shapes, long names.
fn greedy_headers() -> Vec<(&'static str, String)> {
    let many = |entry: &str, count: usize| {
        let entries: Vec<String> = (0..count)
            .map(|i| entry.replace('#', &i.to_string()))
            .collect();
        entries.join(",")
    };
    let entry = r##""#":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}"##;
    let shape = "0,".repeat(40 << 20);
    vec![
        (
            "pairs",
            format!(
                r#"{{"__metadata__":{{{}}}}}"#,
                many(r##""#":"""##, (1 << 20) + 1)
            ),
        ),
        ("tensors", format!("{{{}}}", many(entry, (1 << 20) + 1))),
        ("most tensors", format!("{{{}}}", many(entry, 1 << 19))),
        (
            "shape",
            format!(r#"{{"t":{{"dtype":"I8","shape":[{shape}0],"data_offsets":[0,0]}}}}"#),
        ),
        (
            "name",
            format!(r#"{{"{}":{{"dtype":"I8"}}}}"#, "n".repeat(90 << 20)),
        ),
    ]
}

#[test]
#[ignore = "run by stays_below_one_gigabyte in a process of its own"]
fn limited_process() {
    for (name, bytes) in greedy_files() {
        let outcome = ModelFile::from_bytes(bytes).map(|model| model.metadata().len());
        eprintln!("{name}: {outcome:?}");
        assert_eq!(
            outcome.is_ok(),
            matches!(name, "strings" | "pairs" | "tensors"),
            "{name}"
        );
    }
    for (name, header) in greedy_headers() {
        let outcome = ModelFile::from_safetensors_bytes(crate::safetensors::file(&header, 0));
        eprintln!("{name}: {:?}", outcome.as_ref().map(|m| m.tensors().len()));
        assert_eq!(outcome.is_ok(), name == "most tensors", "{name}");
    }
    let seeds = seeds();
    for i in 0..2000u64 {
        let mut bytes = seeds[i as usize % 4].clone();
        let action = |k: u64| (i * 4 + k).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let edit = |k| Edit {
            place: (action(k) >> 48) as u16,
            action: action(k),
        };
        mutate(&mut bytes, &[edit(0), edit(1)], MAX_LEN);
        exercise(&bytes);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn stays_below_one_gigabyte() {
    let limited = "ulimit -v 1048576 && exec \"$0\" \"$@\"";
    let child = std::process::Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "hostile::limited_process",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}");
    assert!(
        said.contains("pairs: Ok(65536)") && said.contains("most tensors: Ok(524288)"),
        "{said}"
    );
}

#[test]
fn limits_are_named() {
    let text = |raw: Raw| ModelFile::from_bytes(raw.0).unwrap_err();
    let tensors = text(Raw::header((1 << 20) + 1, 0).data(1, 30 << 20));
    assert!(matches!(
        *tensors.fault,
        Fault::Count {
            what: "tensors",
            ..
        }
    ));
    let pairs = text(Raw::header(0, (1 << 16) + 1).data(1, 1 << 20));
    assert!(matches!(
        *pairs.fault,
        Fault::Count {
            what: "metadata keys",
            ..
        }
    ));
    let long = Raw::header(0, 1)
        .text(b"k")
        .u32(8)
        .u64(128 << 20)
        .data(1, 128 << 20);
    assert!(matches!(
        *text(long).fault,
        Fault::Count {
            what: "header bytes",
            ..
        }
    ));
}
