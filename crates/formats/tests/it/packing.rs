//! Packed weights of quantised directories.

use std::fmt::Write;

use tokkata_core::DType;
use tokkata_formats::{GptqZeros, ModelFile, PackedWeight, Piece, Result, Scheme, Storage};

/// Tensors by name, type and shape, each filled with its own number.
type Tensors<'a> = &'a [(&'a str, &'a str, &'a [u64])];

/// Opens a directory of one file with these tensors.
fn open(config: &str, tensors: Tensors<'_>) -> Result<ModelFile> {
    let dir = tempfile::tempdir().unwrap();
    let (mut entries, mut at) = (Vec::new(), 0);
    for (name, dtype, shape) in tensors {
        let bits = Storage::from_name(dtype).unwrap().bits();
        let end = at + shape.iter().product::<u64>() * bits / 8;
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    let file = crate::safetensors::file(&format!("{{{}}}", entries.join(",")), at as usize);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let config = format!(r#"{{"model_type":"llama",{config}}}"#);
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    ModelFile::open(dir.path())
}

fn only(model: &ModelFile) -> &PackedWeight {
    let [weight] = model.packed() else {
        panic!("{:?}", model.packed())
    };
    assert!(model.other_tensors().is_empty());
    weight
}

const NORM: (&str, &str, &[u64]) = ("norm.weight", "BF16", &[64]);

#[test]
fn affine_weights_with_modules_of_their_own() {
    let config = r#""quantization":{"group_size":64,"bits":4,"a.v":{"group_size":32,"bits":6},"a.n":false,"a.q":true}"#;
    let model = open(
        config,
        &[
            ("a.q.weight", "U32", &[5, 16]),
            ("a.q.scales", "BF16", &[5, 2]),
            ("a.q.biases", "BF16", &[5, 2]),
            ("a.q.bias", "BF16", &[5]),
            ("a.v.weight", "U32", &[2, 7, 12]),
            ("a.v.scales", "F16", &[2, 7, 2]),
            ("a.v.biases", "F16", &[2, 7, 2]),
            ("a.n.weight", "F16", &[4, 4]),
            NORM,
        ],
    )
    .unwrap();
    let [q, v] = model.packed() else { panic!() };
    assert_eq!(
        (q.name.as_str(), q.shape.as_slice()),
        ("a.q.weight", &[5, 128][..])
    );
    assert_eq!(q.scheme, Scheme::Affine { bits: 4, group: 64 });
    assert_eq!(q.bytes(), 5 * 16 * 4 + 2 * 5 * 2 * 2);
    assert_eq!(
        (v.shape.as_slice(), v.scheme),
        (&[2, 7, 64][..], Scheme::Affine { bits: 6, group: 32 })
    );
    let plain: Vec<_> = model.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(plain, ["a.q.bias", "a.n.weight", "norm.weight"]);
    let scales = q.piece(Piece::Scales).unwrap();
    let mut buf = [0; 4];
    model.read_stored_at(scales, 2, &mut buf).unwrap();
    assert_eq!(buf, [66, 67, 68, 69]);
    assert_eq!(q.piece(Piece::Zeros), None);
}

#[test]
fn float_modes_have_no_biases() {
    for (mode, words, group, scheme) in [
        ("mxfp4", 8, 32, Scheme::Mxfp4),
        ("mxfp8", 16, 32, Scheme::Mxfp8),
        ("nvfp4", 8, 16, Scheme::Nvfp4),
    ] {
        let config = format!(r#""quantization":{{"mode":"{mode}"}}"#);
        let tensors: Tensors<'_> = &[
            ("l.weight", "U32", &[3, words]),
            ("l.scales", "U8", &[3, 64 / group]),
            NORM,
        ];
        let model = open(&config, tensors).unwrap();
        assert_eq!(
            (only(&model).scheme, only(&model).shape.as_slice()),
            (scheme, &[3, 64][..])
        );
    }
}

#[test]
fn gptq_with_and_without_groups() {
    let config = r#""quantization_config":{"quant_method":"gptq","bits":3,"group_size":32,"desc_act":true,"sym":false,"dataset":"c4"}"#;
    let tensors: Tensors<'_> = &[
        ("l.qweight", "I32", &[6, 32]),
        ("l.qzeros", "I32", &[2, 3]),
        ("l.scales", "F16", &[2, 32]),
        ("l.g_idx", "I32", &[64]),
        ("l.bias", "F16", &[32]),
    ];
    let model = open(config, tensors).unwrap();
    let weight = only(&model);
    assert_eq!(
        (weight.name.as_str(), weight.shape.as_slice()),
        ("l.weight", &[32, 64][..])
    );
    let zeros = GptqZeros::LessOne;
    assert_eq!(
        weight.scheme,
        Scheme::Gptq {
            bits: 3,
            group: Some(32),
            zeros
        }
    );
    assert_eq!(model.tensors().len(), 1);

    let config = r#""quantization_config":{"quant_method":"gptq","bits":8,"group_size":-1,"checkpoint_format":"gptq_v2"}"#;
    let tensors: Tensors<'_> = &[
        ("l.qweight", "I32", &[16, 8]),
        ("l.qzeros", "I32", &[1, 2]),
        ("l.scales", "F16", &[1, 8]),
    ];
    let model = open(config, tensors).unwrap();
    assert_eq!(
        only(&model).scheme,
        Scheme::Gptq {
            bits: 8,
            group: None,
            zeros: GptqZeros::Exact
        }
    );
}

#[test]
fn awq_fp8_and_expert_blocks() {
    let awq = r#""quantization_config":{"quant_method":"awq","bits":4,"group_size":32,"zero_point":true,"version":"gemm"}"#;
    let tensors: Tensors<'_> = &[
        ("l.qweight", "I32", &[64, 3]),
        ("l.qzeros", "I32", &[2, 3]),
        ("l.scales", "F16", &[2, 24]),
    ];
    let model = open(awq, tensors).unwrap();
    assert_eq!(only(&model).shape, [24, 64]);

    let fp8 = r#""quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[4,8],"activation_scheme":"dynamic"}"#;
    let tensors: Tensors<'_> = &[
        ("l.weight", "F8_E4M3", &[5, 16]),
        ("l.weight_scale_inv", "F32", &[2, 2]),
        NORM,
    ];
    let model = open(fp8, tensors).unwrap();
    assert_eq!(
        only(&model).scheme,
        Scheme::Fp8 {
            block: Some([4, 8])
        }
    );

    let fp8 = r#""quantization_config":{"quant_method":"fp8","fmt":"e4m3","scale_fmt":"ue8m0","weight_block_size":[4,8]}"#;
    let tensors: Tensors<'_> = &[
        ("e.weight", "I8", &[5, 32]),
        ("e.scale", "F8_E8M0", &[5, 2]),
        ("l.weight", "F8_E4M3", &[5, 16]),
        ("l.scale", "F8_E8M0", &[2, 2]),
    ];
    let model = open(fp8, tensors).unwrap();
    let [experts, floats] = model.packed() else {
        panic!()
    };
    assert_eq!(experts.shape, [5, 64]);
    assert_eq!(experts.scheme, Scheme::Mxfp4Bytes);
    assert_eq!(floats.shape, [5, 16]);

    let fp8 = r#""quantization_config":{"quant_method":"fp8"}"#;
    let whole: &[u64] = &[];
    for scale in [whole, &[1], &[5], &[5, 1]] {
        let tensors: Tensors<'_> = &[
            ("l.weight", "F8_E4M3", &[5, 16]),
            ("l.weight_scale", "BF16", scale),
        ];
        assert_eq!(only(&open(fp8, tensors).unwrap()).shape, [5, 16]);
    }

    let mxfp4 =
        r#""quantization_config":{"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]}"#;
    let tensors: Tensors<'_> = &[
        ("e.up_blocks", "U8", &[2, 3, 4, 16]),
        ("e.up_scales", "U8", &[2, 3, 4]),
        ("e.up_bias", "BF16", &[2, 3]),
    ];
    let model = open(mxfp4, tensors).unwrap();
    assert_eq!(
        (only(&model).name.as_str(), only(&model).shape.as_slice()),
        ("e.up", &[2, 3, 128][..])
    );
}

#[test]
fn without_a_configuration_nothing_is_packed() {
    let model = open(
        r#""x":1"#,
        &[("l.weight", "U32", &[1, 4]), ("l.scales", "F16", &[1, 1])],
    )
    .unwrap();
    assert!(model.packed().is_empty());
    assert_eq!(model.other_tensors()[0].storage, Storage::U32);
    assert_eq!(model.tensors()[0].dtype, DType::F16);
}

/// Configurations and tensors that do not fit, by name.
type Wrong = Vec<(&'static str, String, Tensors<'static>)>;

fn hugging_face(settings: &str) -> String {
    format!(r#""quantization_config":{{{settings}}}"#)
}

fn wrong_mlx() -> Wrong {
    let hf = hugging_face;
    let mlx = |settings: &str| format!(r#""quantization":{{{settings}}}"#);
    const AFFINE: Tensors<'static> = &[
        ("l.weight", "U32", &[1, 8]),
        ("l.scales", "F16", &[1, 1]),
        ("l.biases", "F16", &[1, 1]),
    ];
    vec![
        ("no method", hf(""), AFFINE),
        (
            "bitsandbytes",
            hf(r#""quant_method":"bitsandbytes""#),
            AFFINE,
        ),
        (
            "compressed tensors",
            hf(r#""quant_method":"compressed-tensors""#),
            AFFINE,
        ),
        ("not an object", r#""quantization":4"#.to_owned(), AFFINE),
        ("bits", mlx(r#""bits":7"#), AFFINE),
        ("group", mlx(r#""group_size":48"#), AFFINE),
        ("mode", mlx(r#""mode":"fp3""#), AFFINE),
        ("mode and bits", mlx(r#""mode":"mxfp4","bits":8"#), AFFINE),
        ("unknown setting", mlx(r#""rotate":7"#), AFFINE),
        (
            "unknown setting of a module",
            mlx(r#""l":{"bits":4,"rotate":7}"#),
            AFFINE,
        ),
        ("module bits", mlx(r#""l":{"bits":1}"#), AFFINE),
        (
            "wrong bits for the shape",
            mlx(r#""bits":8,"group_size":64"#),
            AFFINE,
        ),
        ("no scales", mlx(r#""bits":4"#), &AFFINE[..1]),
        ("no biases", mlx(r#""bits":4"#), &AFFINE[..2]),
    ]
}

fn wrong_hugging_face() -> Wrong {
    let hf = hugging_face;
    const GPTQ: Tensors<'static> = &[
        ("l.qweight", "I32", &[4, 8]),
        ("l.qzeros", "I32", &[1, 1]),
        ("l.scales", "F16", &[1, 8]),
    ];
    const FP8: Tensors<'static> = &[
        ("l.weight", "F8_E4M3", &[4, 8]),
        ("l.weight_scale", "F32", &[3]),
    ];
    vec![
        (
            "gptq unknown setting",
            hf(r#""quant_method":"gptq","rotation":"hadamard""#),
            GPTQ,
        ),
        (
            "gptq dynamic",
            hf(r#""quant_method":"gptq","dynamic":{"a":1}"#),
            GPTQ,
        ),
        (
            "gptq marlin",
            hf(r#""quant_method":"gptq","is_marlin_format":true"#),
            GPTQ,
        ),
        (
            "gptq format",
            hf(r#""quant_method":"gptq","checkpoint_format":"marlin""#),
            GPTQ,
        ),
        (
            "gptq group",
            hf(r#""quant_method":"gptq","group_size":0"#),
            GPTQ,
        ),
        (
            "gptq shape",
            hf(r#""quant_method":"gptq","group_size":16"#),
            GPTQ,
        ),
        (
            "awq version",
            hf(r#""quant_method":"awq","version":"gemv""#),
            GPTQ,
        ),
        (
            "awq zero point",
            hf(r#""quant_method":"awq","zero_point":false"#),
            GPTQ,
        ),
        (
            "fp8 format",
            hf(r#""quant_method":"fp8","fmt":"e5m2""#),
            FP8,
        ),
        (
            "fp8 block",
            hf(r#""quant_method":"fp8","weight_block_size":[0,1]"#),
            FP8,
        ),
        ("fp8 scales", hf(r#""quant_method":"fp8""#), FP8),
        ("fp8 no scales", hf(r#""quant_method":"fp8""#), &FP8[..1]),
    ]
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let mut texts = String::new();
    for (name, config, tensors) in [wrong_mlx(), wrong_hugging_face()].concat() {
        let error = open(&config, tensors).expect_err(name);
        assert!(error.file.ends_with("config.json"), "{error}");
        writeln!(texts, "{name}: {}", error.fault).unwrap();
    }
    insta::assert_snapshot!(texts);
}

#[test]
fn a_packed_and_a_plain_weight_of_one_name_are_refused() {
    let config = r#""quantization_config":{"quant_method":"gptq","group_size":-1}"#;
    let tensors: Tensors<'_> = &[
        ("l.qweight", "I32", &[4, 8]),
        ("l.qzeros", "I32", &[1, 1]),
        ("l.scales", "F16", &[1, 8]),
        ("l.weight", "F16", &[8, 32]),
    ];
    assert!(
        open(config, tensors)
            .unwrap_err()
            .to_string()
            .contains("\"l.weight\" twice")
    );
}
