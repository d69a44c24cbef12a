//! Draws against the exact distribution, and at every edge.

use super::*;

fn warm(temperature: f32, seed: u64) -> Parameters {
    Parameters {
        temperature,
        seed,
        ..Parameters::default()
    }
}

fn drawn(parameters: &Parameters, logits: &[f32], position: u32) -> Result<u32, BadLogits> {
    let row = Row {
        logits,
        position,
        ..Row::default()
    };
    sample(&parameters.record(), &row, &mut Scratch::default())
}

/// Normal numbers by Box and Muller.
fn normal(seed: u64, i: u64) -> f32 {
    let unit = |i| (uniform(seed, i) >> 11) as f64 / 2f64.powi(53) + 2f64.powi(-54);
    let radius = (-2.0 * unit(2 * i).ln()).sqrt();
    (radius * (std::f64::consts::TAU * unit(2 * i + 1)).cos()) as f32
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let powers = logits.iter().map(|&x| (f64::from(x) / temperature).exp());
    let powers: Vec<f64> = powers.collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// Panics when counts differ from what is expected with a significance of 1 in 1,000 (Pearson's statistic against
/// Wilson and Hilferty's approximation of its distribution).
fn assert_fits(counts: &[u32], shares: &[f64], what: &str) {
    let n: f64 = counts.iter().map(|&c| f64::from(c)).sum();
    let cells = counts.iter().zip(shares);
    let term = |(&c, s): (&u32, &f64)| (f64::from(c) - n * s).powi(2) / (n * s);
    let found: f64 = cells.map(term).sum();
    let degrees = shares.len() as f64 - 1.0;
    let ninth = 2.0 / (9.0 * degrees);
    let critical = degrees * (1.0 - ninth + 3.09 * ninth.sqrt()).powi(3);
    assert!(found < critical, "{what}: {found} above {critical}");
}

const DRAWS: u32 = 200_000;

/// Ten tokens whose chances go from a third down to 1 in 2,000.
fn ten() -> Vec<f32> {
    (0..10).map(|i| 4.0 - 0.72 * i as f32).collect()
}

#[test]
fn draws_follow_the_softmax_over_seeds_and_over_positions() {
    let logits = ten();
    type Place = fn(u32) -> (u64, u32);
    let ways: [(&str, Place); 6] = [
        ("neighbours", |i| (3, i)),
        ("far apart", |i| (3, i.wrapping_mul(0x9E37_79B1))),
        ("by a power of two", |i| (3, i << 12)),
        ("seeds", |i| (i.into(), 17)),
        ("seeds far apart", |i| (uniform(1, i.into()), 17)),
        ("upper halves of seeds", |i| (u64::from(i) << 32, 0)),
    ];
    for (what, place) in ways {
        for temperature in [0.6f32, 1.0, 2.5] {
            let mut counts = [0; 10];
            for i in 0..DRAWS {
                let (seed, position) = place(i);
                let id = drawn(&warm(temperature, seed), &logits, position);
                counts[id.unwrap() as usize] += 1;
            }
            assert_fits(&counts, &softmax(&logits, temperature.into()), what);
        }
    }
}

#[test]
fn draws_of_neighbouring_rows_are_independent() {
    let logits = [0.5f32, 0.0, 1.0, 0.25, -0.5];
    let p = softmax(&logits, 1.0);
    let pairs: Vec<f64> = p
        .iter()
        .flat_map(|a| p.iter().map(move |b| a * b))
        .collect();
    for apart in [1, 2, 64] {
        let mut counts = [0; 25];
        for i in 0..DRAWS {
            let at = |position| drawn(&warm(1.0, 9), &logits, position).unwrap();
            let first = 2 * apart * i;
            counts[(at(first) * 5 + at(first + apart)) as usize] += 1;
        }
        assert_fits(&counts, &pairs, "pairs");
    }
}

#[test]
fn many_tokens_and_rare_ones_have_their_chance() {
    // 4,096 equal tokens in 32 groups, and one as likely as all of them.
    let mut logits = vec![0.0f32; 4097];
    logits[4096] = 4096f32.ln();
    let mut counts = [0; 33];
    for i in 0..20_000 {
        let id = drawn(&warm(1.0, 2), &logits, i).unwrap();
        counts[id as usize / 128] += 1;
    }
    let mut shares = vec![0.5 / 32.0; 32];
    shares.push(0.5);
    assert_fits(&counts, &shares, "groups");
}

/// How often a drafter whose logits are off by so much picks the same token, with the same noise.
fn accepted(off: f32) -> f64 {
    const ROWS: u32 = 800;
    let agrees = |row: u32| {
        let at = |id: u64| u64::from(row) << 32 | id;
        let ours: Vec<f32> = (0..2000).map(|id| 3.0 * normal(1, at(id))).collect();
        let theirs = (0u64..).zip(&ours);
        let theirs: Vec<f32> = theirs.map(|(id, x)| x + off * normal(2, at(id))).collect();
        drawn(&warm(1.0, 4), &ours, row) == drawn(&warm(1.0, 4), &theirs, row)
    };
    (0..ROWS).filter(|&row| agrees(row)).count() as f64 / f64::from(ROWS)
}

#[test]
fn a_drafter_with_the_same_noise_is_accepted() {
    for (off, want) in [(0.3, 0.85), (0.7, 0.68), (1.2, 0.52)] {
        let share = accepted(off);
        assert!((share - want).abs() < 0.04, "{off}: {share}, not {want}");
    }
}

/// Numbers with many equals, zeros of both signs and −∞ among them.
fn awkward(n: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| match (i * 7919 + seed * 104_729) % 97 {
        0 => -0.0,
        1 => 0.0,
        2 => f32::NEG_INFINITY,
        x => (x as f32 - 60.0) / 4.0,
    };
    (0..n).map(number).collect()
}

#[test]
fn the_best_are_those_of_a_sort() {
    for n in [1, 15, 31, 32, 33, 100, 1000] {
        for k in [1, 2, 5, 16, 40, 99, 2000, usize::MAX] {
            let logits = awkward(n, n + k % 1000);
            let row = Row {
                logits: &logits,
                ..Row::default()
            };
            let mut best = Vec::new();
            select(&row, &[], k, &mut best).unwrap();
            best.sort_by(Candidate::order);
            let best: Vec<u32> = best.iter().map(|c| c.id).collect();
            let mut all: Vec<u32> = (0..n as u32).collect();
            all.retain(|&id| logits[id as usize] > f32::NEG_INFINITY);
            // Sorting is stable, so that the lowest ids come first; zeros are equal.
            all.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap());
            assert_eq!(argmax(&logits).ok(), all.first().copied(), "{n}");
            all.truncate(k);
            assert_eq!(best, all, "{k} of {n}");
        }
    }
}

#[test]
fn greedy_is_the_largest_logit_as_it_came() {
    // Equal in fixed point, but not as `f32`.
    let close = [20.000_002, 20.0, 20.000_004, 20.000_004];
    assert_eq!(Fixed::new(close[0]), Fixed::new(close[2]));
    assert_eq!(argmax(&close), Ok(2));
    assert_eq!(argmax(&[1e6, f32::INFINITY, 2e6]), Ok(1));
    assert_eq!(argmax(&[-0.0, 0.0]), Ok(0));
    assert_eq!(argmax(&[]), Err(BadLogits::NoCandidate));
    assert_eq!(
        argmax(&[f32::NEG_INFINITY; 40]),
        Err(BadLogits::NoCandidate)
    );
    assert_eq!(argmax(&[1.0, f32::NAN]), Err(BadLogits::NotANumber));
    for n in [1, 31, 32, 33, 500] {
        let logits: Vec<f32> = (0..n).map(|i| normal(8, i)).collect();
        let mut best = 0;
        for (i, x) in logits.iter().enumerate() {
            if *x > logits[best] {
                best = i;
            }
        }
        assert_eq!(argmax(&logits), Ok(best as u32));
    }
}

#[test]
fn greedy_sees_what_touches_logits() {
    let fixed = |x| Fixed::new(x).unwrap();
    let mut logits: Vec<f32> = (0..100).map(|i| normal(3, i)).collect();
    (logits[20], logits[60], logits[90]) = (9.0, 8.0, 8.0);
    let pick = |row: Row<'_>| sample(&SamplerRecord::default(), &row, &mut Scratch::default());
    let plain = Row {
        logits: &logits,
        ..Row::default()
    };
    let biased = |bias: &[(u32, Fixed)]| pick(Row { bias, ..plain });
    assert_eq!(biased(&[]), Ok(20));
    assert_eq!(biased(&[(20, Fixed::EXCLUDED)]), Ok(60));
    // Equal in fixed point: the larger logit as it came, then the lowest id.
    assert_eq!(biased(&[(20, fixed(-1.0))]), Ok(20));
    assert_eq!(biased(&[(60, fixed(1.0)), (90, fixed(1.0))]), Ok(20));
    assert_eq!(biased(&[(20, fixed(-9.0)), (90, fixed(0.5))]), Ok(90));
    assert_eq!(biased(&[(99, fixed(100.0))]), Ok(99));
    let mask = [0, 0, 1 << 26, 0];
    let masked = Row {
        mask: Some(&mask),
        ..plain
    };
    assert_eq!(pick(masked), Ok(90));
    let none = Row {
        bias: &[(90, Fixed::EXCLUDED)],
        ..masked
    };
    assert_eq!(pick(none), Err(BadLogits::NoCandidate));
}

#[test]
fn edges_of_temperature_and_of_candidates() {
    let logits = [1.0f32, 3.0, 3.0, 2.99];
    for position in 0..50 {
        // So cold that nothing but ties is random.
        let cold = drawn(&warm(1e-30, 1), &logits, position).unwrap();
        assert!(cold == 1 || cold == 2, "{cold}");
        let one = Parameters {
            top_k: 1,
            ..warm(1.0, 1)
        };
        assert_eq!(drawn(&one, &logits, position), Ok(1));
        let alone = [f32::NEG_INFINITY, 7.0, f32::NEG_INFINITY];
        assert_eq!(drawn(&warm(1e30, 1), &alone, position), Ok(1));
        assert_eq!(
            drawn(&warm(1.0, 1), &[f32::NAN, 0.0], position),
            Err(BadLogits::NotANumber)
        );
        let nothing = [f32::NEG_INFINITY; 3];
        assert_eq!(
            drawn(&warm(1.0, 1), &nothing, position),
            Err(BadLogits::NoCandidate)
        );
    }
    let mut counts = [0; 4];
    for position in 0..20_000 {
        counts[drawn(&warm(1e30, 1), &logits, position).unwrap() as usize] += 1;
    }
    assert_fits(&counts, &[0.25; 4], "hot");
}

#[test]
fn equal_logits_are_cut_at_the_lowest_ids() {
    let logits = vec![0.25f32; 64];
    let highest = |p: Parameters| {
        let ids = (0..400).map(|position| drawn(&p, &logits, position).unwrap());
        ids.max().unwrap()
    };
    let base = warm(1.0, 6);
    assert_eq!(highest(Parameters { top_k: 7, ..base }), 6);
    assert_eq!(
        highest(Parameters {
            top_p: 0.125,
            ..base
        }),
        7
    );
    assert_eq!(
        highest(Parameters {
            typical_p: 0.0625,
            ..base
        }),
        4
    );
    assert!(highest(Parameters { min_p: 1.0, ..base }) > 60);
    let xtc = Parameters {
        xtc_probability: 1.0,
        xtc_threshold: 0.01,
        ..base
    };
    // Every token is above the threshold; the least of equals is the last.
    assert_eq!(drawn(&xtc, &logits, 3), Ok(63));
}

#[test]
fn filters_keep_what_they_say() {
    let logits = [4.0, 3.0, 2.0, 1.0, 0.0];
    let seen = |p: Parameters| {
        let ids = (0..400).map(|position| drawn(&p, &logits, position).unwrap());
        let mut ids: Vec<u32> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let base = warm(1.5, 3);
    assert_eq!(seen(base), [0, 1, 2, 3, 4]);
    assert_eq!(seen(Parameters { top_k: 2, ..base }), [0, 1]);
    assert_eq!(seen(Parameters { top_p: 0.6, ..base }), [0]);
    assert_eq!(seen(Parameters { top_p: 0.7, ..base }), [0, 1]);
    assert_eq!(seen(Parameters { min_p: 0.3, ..base }), [0, 1]);
    assert_eq!(
        seen(Parameters {
            top_n_sigma: 1.0,
            ..base
        }),
        [0, 1]
    );
    assert_eq!(
        seen(Parameters {
            top_n_sigma: 1.5,
            ..base
        }),
        [0, 1, 2]
    );
    let xtc = Parameters {
        xtc_probability: 1.0,
        xtc_threshold: 0.2,
        top_k: 3,
        ..base
    };
    assert_eq!(seen(xtc), [1, 2]);
    let never = Parameters {
        xtc_probability: 0.0,
        ..xtc
    };
    assert_eq!(seen(never), [0, 1, 2]);
}

#[test]
fn xtc_applies_as_often_as_it_is_asked_to() {
    let logits = [0.0f32, 0.0];
    let p = Parameters {
        xtc_probability: 0.3,
        xtc_threshold: 0.1,
        ..warm(1.0, 12)
    };
    let mut counts = [0; 2];
    for position in 0..DRAWS {
        counts[drawn(&p, &logits, position).unwrap() as usize] += 1;
    }
    // Where it applies, the first of the two goes.
    assert_fits(&counts, &[0.35, 0.65], "xtc");
}

#[test]
fn a_large_vocabulary_is_drawn_from() {
    let logits: Vec<f32> = (0..1 << 18).map(|i| 3.0 * normal(5, i)).collect();
    let all = Parameters {
        top_p: 0.9,
        typical_p: 0.95,
        top_n_sigma: 4.0,
        xtc_probability: 0.5,
        xtc_threshold: 0.001,
        ..warm(0.9, 1)
    };
    for parameters in [warm(1.0, 1), all] {
        let ids: Vec<u32> = (0..8)
            .map(|p| drawn(&parameters, &logits, p).unwrap())
            .collect();
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 5, "{ids:?}");
    }
}
