//! The small model of speech that follows from names: what `data/speech/fixture.py` makes, as a file of whisper.cpp.

use half::f16;

/// Sizes as the file's header has them: vocabulary, encoder, decoder, bands, type.
const SIZES: [u32; 11] = [51_865, 1500, 64, 2, 2, 448, 64, 2, 3, 80, 1];
const WIDTH: usize = 64;

/// Numbers that follow from a name, nearly normal.
#[must_use]
pub fn noise(name: &str, n: usize) -> Vec<f64> {
    let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let one = |i: u64| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let sum: u64 = (0..4).map(|k| (z >> (16 * k)) & 0xffff).sum();
        (sum as f64 - 131_070.0) / 37_837.0
    };
    (1..=n as u64).map(one).collect()
}

/// Tensors by name and shape, in the file's order.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let w = WIDTH;
    let mut out: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: String, shape: &[usize]| out.push((name, shape.to_vec()));
    add("encoder.conv1.weight".into(), &[w, 80, 3]);
    add("encoder.conv1.bias".into(), &[w]);
    add("encoder.conv2.weight".into(), &[w, w, 3]);
    add("encoder.conv2.bias".into(), &[w]);
    add("encoder.positional_embedding".into(), &[1500, w]);
    let block = |add: &mut dyn FnMut(String, &[usize]), p: &str, cross: bool| {
        for attn in ["attn", "cross_attn"].iter().take(1 + usize::from(cross)) {
            for part in ["query", "key", "value", "out"] {
                add(format!("{p}.{attn}.{part}.weight"), &[w, w]);
                if part != "key" {
                    add(format!("{p}.{attn}.{part}.bias"), &[w]);
                }
            }
            add(format!("{p}.{attn}_ln.weight"), &[w]);
            add(format!("{p}.{attn}_ln.bias"), &[w]);
        }
        add(format!("{p}.mlp.0.weight"), &[4 * w, w]);
        add(format!("{p}.mlp.0.bias"), &[4 * w]);
        add(format!("{p}.mlp.2.weight"), &[w, 4 * w]);
        add(format!("{p}.mlp.2.bias"), &[w]);
        add(format!("{p}.mlp_ln.weight"), &[w]);
        add(format!("{p}.mlp_ln.bias"), &[w]);
    };
    for i in 0..2 {
        block(&mut add, &format!("encoder.blocks.{i}"), false);
    }
    add("encoder.ln_post.weight".into(), &[w]);
    add("encoder.ln_post.bias".into(), &[w]);
    add("decoder.positional_embedding".into(), &[448, w]);
    add("decoder.token_embedding.weight".into(), &[51_865, w]);
    for i in 0..3 {
        block(&mut add, &format!("decoder.blocks.{i}"), true);
    }
    add("decoder.ln.weight".into(), &[w]);
    add("decoder.ln.bias".into(), &[w]);
    out
}

/// A tensor's values, each of them a half.
fn values(name: &str, shape: &[usize]) -> Vec<f16> {
    let fan_in: usize = shape[1..].iter().product();
    let (offset, factor) = match name {
        "decoder.token_embedding.weight" | "encoder.positional_embedding" => (0.0, 0.25),
        "decoder.positional_embedding" => (0.0, 1.0),
        _ if shape.len() > 1 => (0.0, 1.5 / (fan_in as f64).sqrt()),
        _ if name.ends_with(".weight") => (1.0, 0.1),
        _ => (0.0, 0.1),
    };
    let noise = noise(name, shape.iter().product());
    noise
        .into_iter()
        .map(|x| f16::from_f32((offset + x * factor) as f32))
        .collect()
}

/// Bytes, then pairs of earlier tokens.
#[must_use]
pub fn vocabulary() -> Vec<Vec<u8>> {
    const COMMON: &[u8] = b" etaoinshrdlucmfwypvbgk";
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    let mut seen: std::collections::HashSet<Vec<u8>> = tokens.iter().cloned().collect();
    let mut z = 1u64;
    while tokens.len() < 50_257 {
        z = z
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let pick = |v: usize| {
            let made = tokens.len() - 256;
            if made == 0 || v.is_multiple_of(3) {
                vec![COMMON[v % COMMON.len()]]
            } else {
                tokens[256 + v % made].clone()
            }
        };
        let (a, b) = ((z >> 33) & 0x7fff, (z >> 48) & 0xffff);
        let token = [pick(a as usize), pick(b as usize)].concat();
        if token.len() <= 8 && !token[1..].contains(&b' ') && seen.insert(token.clone()) {
            tokens.push(token);
        }
    }
    tokens
}

/// The file.
#[must_use]
pub fn file() -> Vec<u8> {
    let mut out = b"lmgg".to_vec();
    let word = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u32).to_le_bytes());
    for size in SIZES {
        word(&mut out, size as usize);
    }
    word(&mut out, 80);
    word(&mut out, 201);
    out.resize(out.len() + 80 * 201 * 4, 0);
    let tokens = vocabulary();
    word(&mut out, tokens.len());
    for token in tokens {
        word(&mut out, token.len());
        out.extend_from_slice(&token);
    }
    for (name, shape) in shapes() {
        let half = shape.len() > 1 && !name.ends_with("positional_embedding");
        let column = name.starts_with("encoder.conv") && shape.len() == 1;
        let dims: Vec<usize> = match column {
            true => vec![1, shape[0]],
            false => shape.iter().rev().copied().collect(),
        };
        word(&mut out, dims.len());
        word(&mut out, name.len());
        word(&mut out, usize::from(half));
        dims.iter().for_each(|&d| word(&mut out, d));
        out.extend_from_slice(name.as_bytes());
        for value in values(&name, &shape) {
            match half {
                true => out.extend_from_slice(&value.to_le_bytes()),
                false => out.extend_from_slice(&value.to_f32().to_le_bytes()),
            }
        }
    }
    out
}

/// Tensors of Silero's net.
const NET: [(&str, &[usize]); 15] = [
    ("stft_conv.weight", &[258, 1, 256]),
    ("conv1.weight", &[128, 129, 3]),
    ("conv1.bias", &[128]),
    ("conv2.weight", &[64, 128, 3]),
    ("conv2.bias", &[64]),
    ("conv3.weight", &[64, 64, 3]),
    ("conv3.bias", &[64]),
    ("conv4.weight", &[128, 64, 3]),
    ("conv4.bias", &[128]),
    ("lstm_cell.weight_ih", &[512, 128]),
    ("lstm_cell.weight_hh", &[512, 128]),
    ("lstm_cell.bias_ih", &[512]),
    ("lstm_cell.bias_hh", &[512]),
    ("final_conv.weight", &[1, 128, 1]),
    ("final_conv.bias", &[1]),
];

/// A net of that kind as safetensors, which always says the same: that speech is likely where `says` is above zero.
#[must_use]
pub fn constant_silero(says: f32) -> Vec<u8> {
    let (mut places, mut at) = (Vec::new(), 0);
    for (name, shape) in NET {
        let end = at + shape.iter().product::<usize>() * 4;
        places.push(format!(
            r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    let head = format!("{{{}}}", places.join(","));
    let size = (head.len() as u64).to_le_bytes();
    let zeros = vec![0; at - 4];
    [&size[..], head.as_bytes(), &zeros, &says.to_le_bytes()].concat()
}
