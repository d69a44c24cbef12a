//! Ten thousand random states of a search: what may come next is what openai's filters leave.
//! `crates/conformance/data/speech/rules.py` wrote the masks.

use tokkata_speech::{Rules, Tokens};

fn noise(name: &str, n: usize) -> Vec<f64> {
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

/// Forty texts, the end, three marks, and twenty timestamps.
fn small() -> Tokens {
    Tokens {
        eot: 40,
        no_timestamps: 43,
        times: 44,
        vocab: 64,
        ..Tokens::of_vocab(51_865).unwrap()
    }
}

#[test]
fn masks_are_those_of_openai() {
    let masks = include_bytes!("rules.u64").chunks_exact(8);
    assert_eq!(masks.len(), 10_000);
    let mut kinds = std::collections::HashSet::new();
    for (case, mask) in masks.enumerate() {
        let mut x = case as u64 + 1;
        let mut word = || {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) as u32
        };
        let (n, begin) = (word() % 7, (word() % 3) as usize);
        let tokens: Vec<u32> = (0..begin + n as usize)
            .map(|_| match word() % 2 {
                0 => 44 + word() % 20,
                _ => word() % 64,
            })
            .collect();
        let latest = [None, Some(5), Some(19)][word() as usize % 3];
        let scale = [0.5, 3.0, 8.0][word() as usize % 3];
        let logits = noise(&format!("rules.{case}"), 64);
        let mut logits: Vec<f32> = logits.iter().map(|l| (l * scale) as f32).collect();
        let rules = Rules {
            tokens: small(),
            suppressed: vec![7, 41, 42],
            blank: vec![3, 40],
            times: Some(latest),
        };
        rules.apply(&mut logits, &tokens[begin..]);
        let bits = logits.iter().enumerate();
        let ours = bits.fold(0u64, |m, (i, l)| {
            m | u64::from(*l == f32::NEG_INFINITY) << i
        });
        let theirs = u64::from_le_bytes(mask.try_into().unwrap());
        assert_eq!(
            ours, theirs,
            "case {case}: {tokens:?} from {begin}, {latest:?}"
        );
        kinds.insert(ours);
    }
    println!("| rules of the next token, 10,000 random states | equal | equal |");
    assert!(kinds.len() > 50, "{}", kinds.len());
}
