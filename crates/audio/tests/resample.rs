//! The resampler's filter, measured: tones go in at each rate, and what comes out is weighed.

use tokkata_audio::{RATE, Resampler};

/// What becomes of a tone: its level in decibels, and that of everything else.
fn measure(rate: u32, hertz: f64) -> (f64, f64) {
    let turn = std::f64::consts::TAU * hertz / f64::from(rate);
    let tone: Vec<f32> = (0..rate * 2)
        .map(|i| (turn * f64::from(i)).sin() as f32)
        .collect();
    let (mut resampler, mut out) = (Resampler::new(rate), Vec::new());
    tone.chunks(1000).for_each(|t| resampler.push(t, &mut out));
    resampler.finish(&mut out);
    assert_eq!(out.len(), 2 * RATE as usize);
    // A second from the middle, where nothing has an end; the tone is taken out of it by least squares.
    let middle: Vec<f64> = out[8000..24_000].iter().map(|&x| f64::from(x)).collect();
    let turn = std::f64::consts::TAU * hertz / f64::from(RATE);
    let wave: Vec<(f64, f64)> = (8000..24_000)
        .map(|i| (turn * f64::from(i)).sin_cos())
        .collect();
    let n = middle.len() as f64;
    let of = |pick: fn(&(f64, f64)) -> f64| {
        let sum: f64 = middle.iter().zip(&wave).map(|(x, w)| x * pick(w)).sum();
        2.0 * sum / n
    };
    let (s, c) = (of(|w| w.0), of(|w| w.1));
    let rest: f64 = middle
        .iter()
        .zip(&wave)
        .map(|(x, w)| (x - s * w.0 - c * w.1).powi(2))
        .sum();
    let level = |power: f64| 10.0 * power.max(1e-30).log10();
    (level(s * s + c * c), level(2.0 * rest / n))
}

#[test]
fn what_a_model_hears_passes_and_what_it_cannot_is_gone() {
    for rate in [
        8000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000,
    ] {
        let top = f64::from(rate.min(RATE)) * 0.45;
        for part in [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 1.0] {
            let (level, rest) = measure(rate, (top * part).round());
            assert!(
                level.abs() < 0.1,
                "{rate} Hz: {level} dB at {} Hz",
                top * part
            );
            assert!(
                rest < -80.0,
                "{rate} Hz: {rest} dB beside {} Hz",
                top * part
            );
        }
        let half = f64::from(RATE) / 2.0;
        let own = f64::from(rate) / 2.0;
        if own > half * 1.05 {
            for part in [0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.98] {
                let hertz = (half + 100.0 + (own - half - 100.0) * part).round();
                let (_, rest) = measure(rate, hertz);
                assert!(rest < -80.0, "{rate} Hz: {rest} dB from {hertz} Hz");
            }
        }
    }
}

#[test]
fn a_recording_keeps_its_length_and_its_beginning() {
    for (rate, n) in [
        (8000u32, 1usize),
        (8000, 12_345),
        (44_100, 44_101),
        (48_000, 7),
        (192_000, 100_000),
        (16_000, 99),
        (11_025, 0),
    ] {
        let impulse: Vec<f32> = (0..n).map(|i| if i == n / 2 { 1.0 } else { 0.0 }).collect();
        let (mut resampler, mut out) = (Resampler::new(rate), Vec::new());
        resampler.push(&impulse, &mut out);
        resampler.finish(&mut out);
        assert_eq!(
            out.len(),
            (n * 16_000).div_ceil(rate as usize),
            "{rate} {n}"
        );
        let largest = (0..out.len()).max_by(|&a, &b| out[a].abs().total_cmp(&out[b].abs()));
        if let Some(at) = largest.filter(|_| n > 100) {
            let expected = n / 2 * 16_000 / rate as usize;
            assert!(at.abs_diff(expected) <= 1, "{rate} {n}: {at} {expected}");
        }
    }
}
