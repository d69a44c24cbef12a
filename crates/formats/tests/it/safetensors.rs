//! safetensors files and the directories made of them.

use std::fmt::Write;
use std::path::Path;

use tokkata_core::DType;
use tokkata_formats::{Container, Fault, ModelFile, SafetensorsWriter, Storage};

/// A file with this header text and this many bytes of data.
pub(crate) fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

fn open(header: &str, data: usize) -> tokkata_formats::Result<ModelFile> {
    ModelFile::from_safetensors_bytes(file(header, data))
}

pub(crate) const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;

#[test]
fn tensors_come_with_shape_type_and_bytes() {
    let model = open(TWO, 16).unwrap();
    assert_eq!(model.container(), Container::Safetensors);
    assert_eq!(model.metadata().str("format"), Some("pt"));
    assert!(model.layout().is_none() && model.directory().is_none());
    let b = model.tensor("b").unwrap();
    assert_eq!(
        (b.dtype, b.shape.as_slice(), b.bytes),
        (DType::BF16, &[2, 3][..], 12)
    );
    assert_eq!(model.data(b).unwrap(), (4..16).collect::<Vec<u8>>());
    let mut buf = [0; 2];
    model.read_at(b, 10, &mut buf).unwrap();
    assert_eq!(buf, [14, 15]);
    assert_eq!(model.tensor("a").unwrap().elements(), 1);
}

#[test]
fn every_stored_type_has_its_size() {
    for &storage in Storage::ALL {
        assert_eq!(Storage::from_name(storage.name()), Some(storage));
        let bytes = storage.bits() as usize;
        let header =
            format!(r#"{{"t":{{"dtype":"{storage}","shape":[2,4],"data_offsets":[0,{bytes}]}}}}"#);
        let model = open(&header, bytes).unwrap();
        match storage.dtype() {
            Some(dtype) => assert_eq!(model.tensor("t").unwrap().dtype, dtype),
            None => {
                let stored = &model.other_tensors()[0];
                assert_eq!((stored.storage, stored.bytes), (storage, bytes as u64));
                let mut buf = vec![0; bytes];
                model.read_stored_at(stored, 0, &mut buf).unwrap();
                assert_eq!(buf, (0..bytes).map(|i| i as u8).collect::<Vec<_>>());
                assert!(model.read_stored_at(stored, 1, &mut buf).is_err());
            }
        }
    }
}

#[test]
fn a_tensor_without_elements_is_a_tensor() {
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"z":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]}}"#;
    let model = open(header, 4).unwrap();
    let z = model.tensor("z").unwrap();
    assert_eq!(
        (z.elements(), z.rows(), z.row_elems(), z.row_bytes()),
        (0, 3, 0, 0)
    );
    assert!(model.data(z).unwrap().is_empty());
}

#[test]
fn more_than_four_dimensions_fold_in_ggml_order() {
    let header = r#"{"p":{"dtype":"I8","shape":[2,3,1,5,7],"data_offsets":[0,210]}}"#;
    assert_eq!(
        open(header, 210).unwrap().tensors()[0].dims_ggml(),
        [7, 5, 1, 6]
    );
}

/// Wrong files by name.
fn wrong_files() -> Vec<(&'static str, Vec<u8>)> {
    let one = |dtype: &str, shape: &str, offsets: &str, data: usize| {
        let offsets = format!(r#""data_offsets":[{offsets}]"#);
        file(
            &format!(r#"{{"t":{{"dtype":"{dtype}","shape":[{shape}],{offsets}}}}}"#),
            data,
        )
    };
    let entry = r#"{"dtype":"I8","shape":[2],"data_offsets":[0,2]}"#;
    vec![
        ("empty", vec![]),
        ("seven bytes", vec![0; 7]),
        (
            "header past the end",
            [&100u64.to_le_bytes()[..], b"{}"].concat(),
        ),
        ("huge header", [&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
        ("not JSON", file("{\"a\":\n\u{7}", 0)),
        ("not UTF-8", [&3u64.to_le_bytes()[..], b"{\"\xff"].concat()),
        ("not an object", file("[1]", 0)),
        ("deep nesting", file(&"[".repeat(100_000), 0)),
        (
            "deep nesting inside",
            file(&format!("{{\"t\":{}", "[".repeat(100_000)), 0),
        ),
        (
            "unknown field",
            file(
                r#"{"t":{"dtype":"I8","shape":[2],"data_offsets":[0,2],"strides":[1]}}"#,
                2,
            ),
        ),
        (
            "missing field",
            file(r#"{"t":{"dtype":"I8","shape":[2]}}"#, 2),
        ),
        ("negative size", one("I8", "-1", "0,1", 1)),
        ("metadata not text", file(r#"{"__metadata__":{"a":1}}"#, 0)),
        ("unknown type", one("F3", "2", "0,2", 2)),
        ("nine dimensions", one("I8", "1,1,1,1,1,1,1,1,1", "0,1", 1)),
        (
            "overflowing shape",
            one("F32", "4294967296,4294967296", "0,1", 1),
        ),
        (
            "overflow beside a zero",
            one("F32", "4294967296,4294967296,0", "0,0", 0),
        ),
        ("half a byte", one("F4", "3", "0,1", 1)),
        ("shape and offsets", one("F32", "2", "0,4", 4)),
        ("backward offsets", one("I8", "2", "2,0", 2)),
        ("past the end", one("I8", "4", "0,4", 2)),
        ("gap before", one("I8", "2", "2,4", 4)),
        ("more data", one("I8", "2", "0,2", 9)),
        ("twice", file(&format!(r#"{{"t":{entry},"t":{entry}}}"#), 2)),
        (
            "overlap",
            file(&format!(r#"{{"t":{entry},"u":{entry}}}"#), 2),
        ),
        (
            "metadata key twice",
            file(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0),
        ),
    ]
}

#[test]
fn every_fault_has_its_text() {
    let mut texts = String::new();
    for (name, bytes) in wrong_files() {
        let text = ModelFile::from_safetensors_bytes(bytes)
            .expect_err(name)
            .to_string();
        assert_eq!(text.lines().count(), 1, "{name}");
        writeln!(texts, "{name}: {text}").unwrap();
    }
    insta::assert_snapshot!(texts);
}

#[test]
fn a_name_both_packed_and_plain_is_refused() {
    let header = r#"{"t":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"t":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#;
    let error = open(header, 4).unwrap_err();
    assert!(matches!(*error.fault, Fault::DuplicateTensor { .. }));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = file(TWO, 16);
    for len in 0..bytes.len() {
        assert!(
            ModelFile::from_safetensors_bytes(bytes[..len].to_vec()).is_err(),
            "{len}"
        );
    }
    assert!(ModelFile::from_safetensors_bytes(bytes).is_ok());
}

#[test]
fn what_is_written_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let mut writer = SafetensorsWriter::new(&path, [("format", "pt")]);
    writer.declare("none", DType::F32, &[0]).unwrap();
    writer.declare("logits", DType::F32, &[2, 2]).unwrap();
    writer.declare("ids", DType::I64, &[1]).unwrap();
    writer.declare("end", DType::F16, &[4, 0]).unwrap();
    assert!(writer.declare("ids", DType::I64, &[1]).is_err());
    assert!(writer.declare("q", DType::Q4_0, &[32]).is_err());
    assert!(writer.declare("q", DType::F64, &[usize::MAX]).is_err());
    let mut output = writer.create().unwrap();
    (0..16u8).for_each(|i| output.write(&[i]).unwrap());
    assert!(output.write(&[0; 9]).is_err());
    output.write(&[9; 8]).unwrap();
    assert!(!path.exists());
    assert_eq!(output.finish().unwrap(), path);
    let model = ModelFile::open(&path).unwrap();
    assert_eq!(model.metadata().str("format"), Some("pt"));
    let logits = model.tensor("logits").unwrap();
    assert_eq!(logits.shape, [2, 2]);
    assert_eq!(logits.offset % 8, 0);
    assert_eq!(model.data(logits).unwrap(), (0..16).collect::<Vec<u8>>());
    assert_eq!(
        model.tensor("none").unwrap().bytes + model.tensor("end").unwrap().bytes,
        0
    );
}

#[test]
fn an_unfinished_file_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = SafetensorsWriter::new(dir.path().join("x.safetensors"), []);
    writer.declare("a", DType::F32, &[1]).unwrap();
    let output = writer.create().unwrap();
    let error = output.finish().unwrap_err().to_string();
    assert!(
        error.ends_with("0 bytes were given for tensor \"a\", expected 4"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A directory of two shards with an index, and the files around them.
pub(crate) fn directory(at: &Path) {
    let put = |name: &str, bytes: &[u8]| std::fs::write(at.join(name), bytes).unwrap();
    put("config.json", br#"{"model_type":"llama","hidden_size":2}"#);
    put("tokenizer.json", b"{}");
    put("chat_template.jinja", b"{{ x }}");
    put("one.safetensors", &file(TWO, 16));
    put(
        "two.safetensors",
        &file(
            r#"{"c":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
            2,
        ),
    );
    let map = r#"{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}"#;
    index(at, map);
    std::fs::create_dir(at.join("1_Pooling")).unwrap();
    put("1_Pooling/config.json", b"{}");
}

fn index(at: &Path, map: &str) {
    let text = format!(r#"{{"metadata":{{"total_size":18}},"weight_map":{map}}}"#);
    std::fs::write(at.join("model.safetensors.index.json"), text).unwrap();
}

#[test]
fn a_directory_of_shards_is_one_model() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    let model = ModelFile::open(dir.path()).unwrap();
    assert_eq!(model.architecture(), Some("llama"));
    assert_eq!((model.tensors().len(), model.other_tensors().len()), (2, 1));
    assert_eq!(model.part_names().len(), 2);
    let side = model.directory().unwrap();
    assert_eq!(side.config()["hidden_size"], 2);
    let names = [
        "1_Pooling/config.json",
        "chat_template.jinja",
        "config.json",
        "tokenizer.json",
    ];
    let mut listed = side.side_files().unwrap();
    listed.sort_unstable();
    assert_eq!(listed, names);
    assert_eq!(
        side.read("chat_template.jinja").unwrap().unwrap(),
        b"{{ x }}"
    );
    assert_eq!(side.read("none").unwrap(), None);
    assert_eq!(
        side.read_json("tokenizer.json").unwrap(),
        Some(serde_json::json!({}))
    );
    let mut buf = [0; 2];
    model
        .read_stored_at(&model.other_tensors()[0], 0, &mut buf)
        .unwrap();
    assert_eq!(buf, [0, 1]);
}

#[test]
fn one_file_takes_the_configuration_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    let model = ModelFile::open(dir.path().join("one.safetensors")).unwrap();
    assert_eq!(model.architecture(), Some("llama"));
    assert_eq!(model.tensors().len(), 2);
}

#[test]
fn mlx_directories_are_known_by_their_configuration() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    let config = br#"{"model_type":"llama","quantization":{"group_size":64,"bits":4}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    assert_eq!(
        ModelFile::open(dir.path()).unwrap().container(),
        Container::Mlx
    );
}

#[test]
fn an_index_and_files_that_disagree_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    let refused = |map: &str| {
        index(dir.path(), map);
        ModelFile::open(dir.path()).unwrap_err().to_string()
    };
    let full = r#""a":"one.safetensors","b":"one.safetensors""#;
    let missing = refused(&format!(r#"{{{full},"c":"three.safetensors"}}"#));
    assert!(
        missing.contains("three.safetensors: found nothing under this name"),
        "{missing}"
    );
    let moved = refused(r#"{"a":"two.safetensors","b":"one.safetensors","c":"two.safetensors"}"#);
    assert!(
        moved.contains("found tensor \"a\" in one.safetensors, expected it in two.safetensors"),
        "{moved}"
    );
    let absent = refused(&format!(
        r#"{{{full},"c":"two.safetensors","d":"two.safetensors"}}"#
    ));
    assert!(absent.contains("found no tensor \"d\""), "{absent}");
    let extra = refused(r#"{"a":"one.safetensors","c":"two.safetensors"}"#);
    assert!(
        extra.contains("found tensor \"b\" in one.safetensors"),
        "{extra}"
    );
    let doubled = refused(&format!(
        r#"{{{full},"c":"two.safetensors","c":"two.safetensors"}}"#
    ));
    assert!(
        doubled.contains("found no tensor \"c\", expected it once"),
        "{doubled}"
    );
    let outside = refused(&format!(r#"{{{full},"c":"../two.safetensors"}}"#));
    assert!(
        outside.contains("found the file name \"../two.safetensors\""),
        "{outside}"
    );
    let broken = refused(&format!(r#"{{{full},"c":"two\n.safetensors"}}"#));
    assert!(
        broken.contains(r#"found the file name "two\n.safetensors""#),
        "{broken}"
    );
    let shape = refused("[]");
    assert!(shape.contains("does not parse"), "{shape}");
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    std::fs::write(dir.path().join("two.safetensors"), file(TWO, 16)).unwrap();
    index(
        dir.path(),
        r#"{"a":"one.safetensors","b":"two.safetensors"}"#,
    );
    let error = ModelFile::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("tensor \"a\" in one.safetensors and two.safetensors"),
        "{error}"
    );
}

#[test]
fn incomplete_directories_say_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let refused = || ModelFile::open(dir.path()).unwrap_err().to_string();
    assert!(
        refused().contains("found a directory without config.json"),
        "{}",
        refused()
    );
    std::fs::write(dir.path().join("m.gguf"), b"").unwrap();
    assert!(
        refused().contains("name the .gguf file inside it"),
        "{}",
        refused()
    );
    std::fs::write(dir.path().join("config.json"), b"{").unwrap();
    assert!(
        refused().contains("config.json: found a JSON file that does not parse"),
        "{}",
        refused()
    );
    std::fs::write(dir.path().join("config.json"), b"{}").unwrap();
    assert!(
        refused().contains("found no safetensors file"),
        "{}",
        refused()
    );
    for name in ["a.safetensors", "b.safetensors"] {
        std::fs::write(dir.path().join(name), file("{}", 0)).unwrap();
    }
    assert!(
        refused().contains("found several safetensors files and no index"),
        "{}",
        refused()
    );
    std::fs::write(dir.path().join("model.safetensors"), file(TWO, 16)).unwrap();
    assert_eq!(ModelFile::open(dir.path()).unwrap().tensors().len(), 2);
}
