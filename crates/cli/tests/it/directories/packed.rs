//! A directory of packed weights keeps them packed, and says the same as its floats.

use std::path::Path;

use tokkata::DType;
use tokkata_formats::ModelFile;

use super::{checkpoint, config, logits_on, stdout, text, weights};

/// A tensor of a file in the making: its name, type, shape and bytes.
type Stored = (String, &'static str, Vec<usize>, Vec<u8>);

/// A weight in MLX's packing of 4 bits and groups of 32, its codes made up; factors that are no halves where asked for.
fn packed(name: &str, shape: &[usize], odd: bool) -> Vec<Stored> {
    let (rows, cols) = (shape[0], shape[1]);
    let module = name.trim_end_matches(".weight");
    let seed = name
        .bytes()
        .fold(7u32, |h, b| h.wrapping_mul(31) + u32::from(b));
    let byte = |i: usize| (seed.wrapping_add(i as u32).wrapping_mul(0x9E37_79B9) >> 24) as u8;
    let factor = |i: usize| f32::from(1 + i as u16 % 7) / 256.0;
    let numbers = |of: &dyn Fn(usize) -> f32| -> Vec<u8> {
        let all = (0..rows * cols / 32).map(of);
        match odd {
            true => all.flat_map(|x| (x / 3.0).to_le_bytes()).collect(),
            false => all
                .map(|x| (x.to_bits() >> 16) as u16)
                .flat_map(u16::to_le_bytes)
                .collect(),
        }
    };
    let float = if odd { "F32" } else { "BF16" };
    let groups = vec![rows, cols / 32];
    let offset = |i: usize| -8.0 * factor(i);
    vec![
        (
            name.to_owned(),
            "U32",
            vec![rows, cols / 8],
            (0..rows * cols / 2).map(byte).collect(),
        ),
        (
            format!("{module}.scales"),
            float,
            groups.clone(),
            numbers(&factor),
        ),
        (format!("{module}.biases"), float, groups, numbers(&offset)),
    ]
}

/// Packs every matrix but the routers.
fn pack(folder: &Path) {
    let file = ModelFile::open(folder).expect("a model");
    let mut stored = Vec::new();
    for t in file.tensors() {
        if t.shape.len() == 2 && !t.name.ends_with(".gate.weight") {
            let odd = t.name.contains("layers.1.block_sparse_moe.experts.2.w1");
            stored.extend(packed(&t.name, &t.shape, odd));
        } else {
            let bytes = file.data(t).expect("bytes").to_vec();
            stored.push((t.name.clone(), "F32", t.shape.clone(), bytes));
        }
    }
    drop(file);
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in stored {
        let place = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": place});
        header.insert(name, entry);
        data.extend(bytes);
    }
    let header = serde_json::Value::from(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    let bytes = [&length[..], header.as_bytes(), &data].concat();
    std::fs::write(weights(folder), bytes).expect("a file");
    config(folder, |c| {
        c["quantization"] = serde_json::json!({"bits": 4, "group_size": 32});
    });
}

#[test]
fn packed_directories_stay_packed_and_say_what_their_floats_say() {
    let (from, to) = (
        checkpoint("mixtral"),
        tempfile::tempdir().expect("a folder"),
    );
    pack(from.path());
    let at = |file: &str| to.path().join(file);
    let (floats, own) = (at("floats.gguf"), at("own.gguf"));
    let convert = |to: &Path, types: &str| {
        stdout(&["convert", text(from.path()), text(to), "--outtype", types]);
    };
    convert(&floats, "f32");
    convert(&own, "auto");
    for (device, like) in [("ref", &floats), ("ref", &own), ("cpu", &own)] {
        let directory = logits_on(device, from.path(), &at("a.safetensors"));
        let same = directory == logits_on(device, like, &at("b.safetensors"));
        assert!(same, "{device} {}", like.display());
    }
    let own = ModelFile::open(&own).expect("GGUF");
    let dtype = |name: &str| own.tensor(name).expect(name).dtype;
    assert_eq!(dtype("blk.0.attn_q.weight"), DType::Q4_1);
    assert_eq!(dtype("blk.0.ffn_gate_exps.weight"), DType::Q4_1);
    // One of the experts has factors that are no halves, and a stack has one type.
    assert_eq!(dtype("blk.1.ffn_gate_exps.weight"), DType::F32);
    assert_eq!(dtype("blk.1.ffn_up_exps.weight"), DType::Q4_1);
}
