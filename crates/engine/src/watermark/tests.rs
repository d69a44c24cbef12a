use tokkata_ir::sample::{Parameters, argmax};

use super::*;

/// The published known answers of the generator.
#[test]
fn philox_gives_its_known_answers() {
    let ones = u32::MAX;
    let zero = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    assert_eq!(philox([0; 4], [0; 2]), zero);
    let one = [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd];
    assert_eq!(philox([ones; 4], [ones; 2]), one);
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    let key = [0xa409_3822, 0x299f_31d0];
    let want = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
    assert_eq!(philox(pi, key), want);
}

/// The numbers that vLLM's tests have for its function.
#[test]
fn noise_is_that_of_vllm() {
    let parts = |context: [u32; 4]| {
        let noise = Noise::new(42, context.into_iter());
        [noise.word(7) >> 8, noise.word(8) >> 8]
    };
    assert_eq!(parts([1, 2, 3, 4]), [1_661_833, 10_571_167]);
    assert_eq!(parts([4, 5, 6, 7]), [9_742_331, 13_375_724]);
}

struct Golden {
    made: Watermark,
    found: Watermark,
    once: bool,
    vocabulary: u32,
    favour: (Option<u32>, i64),
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    want: Detection,
}

impl Golden {
    fn all() -> Vec<Golden> {
        let lines = include_str!("vllm.txt").lines();
        lines
            .filter(|l| !l.starts_with('#'))
            .map(Self::of)
            .collect()
    }

    fn of(line: &str) -> Self {
        let parts: Vec<Vec<&str>> = line
            .split('|')
            .map(|p| p.split_whitespace().collect())
            .collect();
        let of = |word: &str| word.parse().unwrap();
        let number = |word: &str| -> Option<usize> { (word != "-").then(|| word.parse().unwrap()) };
        let ids = |words: &[&str]| words.iter().map(|w| w.parse().unwrap()).collect();
        let how = &parts[0];
        let made = Watermark {
            key: how[0].parse().unwrap(),
            width: how[2].parse().unwrap(),
            repeats: match how[3] {
                "none" => Repeats::None,
                "single_turn" => Repeats::Answer,
                _ => Repeats::Everything,
            },
            reach: number(how[4]),
        };
        Golden {
            made,
            found: Watermark {
                key: how[1].parse().unwrap(),
                ..made
            },
            once: how[5] == "true",
            vocabulary: how[6].parse().unwrap(),
            favour: (number(how[7]).map(|n| n as u32), how[8].parse().unwrap()),
            prompt: ids(&parts[1]),
            tokens: ids(&parts[2]),
            want: Detection {
                scored: parts[3][0].parse().unwrap(),
                score: of(parts[3][1]),
                p_value: of(parts[3][2]),
            },
        }
    }

    fn logits(&self, position: usize) -> Vec<f32> {
        let (favoured, gains) = self.favour;
        let of = |id: u32| {
            let value = (i64::from(id) * 37 + position as i64 * 17) % 131 - 56;
            (value + if favoured == Some(id) { gains } else { 0 }) as f32 / 16.0
        };
        (0..self.vocabulary).map(of).collect()
    }
}

#[test]
fn texts_are_those_that_vllm_draws_with_the_same_key() {
    let record = Parameters {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..Parameters::default()
    }
    .record();
    for golden in Golden::all() {
        let mut tokens = golden.prompt.clone();
        for at in 0..golden.tokens.len() {
            let logits = golden.logits(at);
            // Where the seed draws, its goldens take the likeliest.
            let token = match golden.made.noise_after(&tokens, golden.prompt.len()) {
                None => argmax(&logits).unwrap(),
                Some(noise) => {
                    let row = Row {
                        logits: &logits,
                        ..Row::default()
                    };
                    sample_by(&record, &row, &mut Scratch::default(), |id| noise.bits(id)).unwrap()
                }
            };
            tokens.push(token);
        }
        assert_eq!(
            tokens[golden.prompt.len()..],
            golden.tokens,
            "{:?}",
            golden.made
        );
    }
}

#[test]
fn texts_are_found_as_vllm_finds_them() {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
    for golden in Golden::all() {
        let found = golden.found.score(&golden.tokens, golden.once);
        let (want, made) = (golden.want, golden.made);
        assert_eq!(found.scored, want.scored, "{made:?}");
        assert!(
            close(found.score, want.score),
            "{made:?}: {found:?} {want:?}"
        );
        assert!(
            close(found.p_value, want.p_value),
            "{made:?}: {found:?} {want:?}"
        );
    }
}

#[test]
fn contexts_count_once() {
    let narrow = Watermark {
        width: 1,
        ..Watermark::new(42)
    };
    assert_eq!(narrow.detect(&[1, 1, 1, 1, 1]).scored, 2);
    assert_eq!(narrow.score(&[1, 1, 1, 1, 1], false).scored, 5);
    assert_eq!(narrow.detect(&[1, 2, 1, 3]).scored, 3);
    let nothing = narrow.detect(&[]);
    assert_eq!((nothing.scored, nothing.p_value), (0, 1.0));
}

#[test]
fn nobody_sees_the_key() {
    let text = format!("{:?}", Watermark::new(987_654_321));
    assert!(!text.contains("987"), "{text}");
}
