//! Draws from a large vocabulary, to be counted: `valgrind --tool=callgrind` or `perf stat -e instructions`.
//!
//! `draw WAY [DRAWS]`, WAY one of `greedy`, `usual` (top-k 40, top-p 0.95, min-p 0.05), `all` (no filter), `mass`
//! (top-p 0.95 of the whole vocabulary).

use tokkata_ir::sample::{Parameters, Row, Scratch, sample, uniform};

fn main() {
    let mut args = std::env::args().skip(1);
    let way = args.next().unwrap_or_default();
    let draws = args.next().and_then(|n| n.parse().ok()).unwrap_or(20);
    let logit = |i| {
        (0..6)
            .map(|j| (uniform(j, i) >> 40) as f32 / 1_048_576.0 - 8.0)
            .sum()
    };
    let logits: Vec<f32> = (0..151_936).map(logit).collect();
    let usual = Parameters {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..Parameters::default()
    };
    let parameters = match way.as_str() {
        "greedy" => Parameters::default(),
        "usual" => usual,
        "all" => Parameters {
            temperature: 0.8,
            ..Parameters::default()
        },
        "mass" => Parameters {
            top_k: 0,
            min_p: 0.0,
            ..usual
        },
        _ => panic!("found the way {way:?}, expected greedy, usual, all or mass"),
    };
    let (record, mut scratch) = (parameters.record(), Scratch::default());
    for position in 0..draws {
        let row = Row {
            logits: &logits,
            position,
            ..Row::default()
        };
        println!("{:?}", sample(&record, &row, &mut scratch));
    }
}
