//! Log-mel features against openai's, whole and in pieces.

use std::sync::Arc;

use tokkata_audio::{Bands, Live, LogMel, Mix, Recording, Source, mel};

mod signals;
use signals::signal;

const CASES: [(&str, usize); 3] = [("noise", 24_000), ("sweep", 40_123), ("bursts", 36_007)];

#[test]
fn features_are_those_of_openai() {
    let golden = include_bytes!("data/mel.f32");
    let mut expected = golden
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let mut worst = 0.0f32;
    for bands in [80, 128] {
        for (kind, n) in CASES {
            let source = Source::samples(kind, signal(kind, n));
            let recording = Recording::measure(source, Mix::Mean, Bands::slaney(bands)).unwrap();
            let frames = recording.frames();
            assert_eq!(frames, n / 160);
            let rows = recording.windows().window(0, frames).unwrap();
            for row in rows.chunks_exact(bands).step_by(9) {
                for (ours, theirs) in row.iter().zip(&mut expected) {
                    worst = worst.max((ours - theirs).abs());
                }
            }
        }
    }
    assert_eq!(expected.next(), None);
    println!("| features beside openai's, 6 signals | {worst:.1e} | 2e-5 |");
    assert!(worst <= 2e-5, "{worst:e}");
}

#[test]
fn windows_do_not_depend_on_the_way_there() {
    let source = Source::samples("sweep", signal("sweep", 160_000));
    let recording = Recording::measure(source, Mix::Mean, Bands::slaney(80)).unwrap();
    let all = recording.windows().window(0, 1000).unwrap();
    let mut windows = recording.windows();
    for (from, len) in [
        (0, 100),
        (37, 300),
        (36, 10),
        (400, 5),
        (990, 30),
        (990, 8),
        (2000, 3),
    ] {
        let window = windows.window(from, len).unwrap();
        for (i, row) in window.chunks_exact(80).enumerate() {
            let frame = from + i;
            let expected = all.get(frame * 80..frame * 80 + 80);
            assert_eq!(row, expected.unwrap_or(&[0.0; 80]), "frame {frame}");
        }
    }
}

#[test]
fn pieces_make_the_same_frames() {
    let samples = signal("bursts", 10_007);
    let bands = Arc::new(Bands::slaney(80));
    let made = |piece: usize| {
        let (mut log_mel, mut out) = (LogMel::new(bands.clone()), Vec::new());
        samples
            .chunks(piece)
            .for_each(|p| log_mel.push(p, &mut out));
        let end = log_mel.finish(&mut out);
        (out, end)
    };
    let whole = made(samples.len());
    assert_eq!(whole.0.len(), 62 * 80);
    for piece in [1, 7, 160, 201, 399, 4000] {
        assert_eq!(made(piece), whole, "{piece}");
    }
    // Shorter than the mirrored beginning.
    for n in [1, 100, 160, 200, 201] {
        let (mut log_mel, mut out) = (LogMel::new(bands.clone()), Vec::new());
        log_mel.push(&samples[..n], &mut out);
        assert_eq!(log_mel.finish(&mut out).0 as usize, n / 160);
        assert_eq!(out.len(), n / 160 * 80);
    }
}

#[test]
fn live_features_settle_on_those_of_the_recording() {
    let samples = signal("sweep", 48_000);
    let source = Source::samples("sweep", samples.clone());
    let recording = Recording::measure(source, Mix::Mean, Bands::slaney(80)).unwrap();
    let expected = recording.windows().window(0, 300).unwrap();
    let mut live = Live::new(Bands::slaney(80));
    samples.chunks(1000).for_each(|s| live.push(s));
    live.end();
    assert_eq!(live.frames(), 300);
    assert_eq!(live.window(0, 300), expected);
    assert_eq!(live.window(100, 300)[..80], expected[8000..8080]);
}

#[test]
fn bands_of_a_file_are_those_that_were_written() {
    let bands = Bands::slaney(128);
    let rows = bands.rows();
    assert_eq!(rows.len(), 128 * mel::BINS);
    assert_eq!(Bands::from_rows(128, &rows), Some(bands));
    assert_eq!(Bands::from_rows(80, &rows), None);
    // Equal areas: each triangle sums to about 1/40 per bin of 40 Hz.
    let sum: f32 = rows[mel::BINS * 60..mel::BINS * 61].iter().sum();
    assert!((sum * 40.0 - 1.0).abs() < 0.1, "{sum}");
}
