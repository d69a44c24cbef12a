//! Every container and codec, and what is none. `crates/conformance/data/speech/files.py` wrote the files: half a second of one signal.

use tokkata_audio::{AudioError, Bands, Mix, Recording, Resampler, Source, wav};

mod signals;
use signals::{noise, sweep};

fn all(source: &Source, mix: Mix) -> Result<Vec<f32>, AudioError> {
    let (mut samples, mut out) = (source.open(mix)?, Vec::new());
    while samples.next_block(&mut out)? {}
    Ok(out)
}

/// The signal that all files hold, at 16 kHz.
fn signal() -> Vec<f32> {
    let both = sweep(24_000, 1200, 5200, 12_000).into_iter();
    let both = both.zip(noise(24_000, 3, 300));
    let at_48: Vec<f32> = both.map(|(a, b)| (a + b) as f32 / 32_768.0).collect();
    let (mut resampler, mut out) = (Resampler::new(48_000), Vec::new());
    resampler.push(&at_48, &mut out);
    resampler.finish(&mut out);
    out
}

/// How alike two signals are where they lie best upon each other, and how far one is late.
fn alike(a: &[f32], b: &[f32]) -> (f64, isize) {
    let dot = |shift: isize| {
        let (mut ab, mut aa, mut bb) = (0.0, 1e-30, 1e-30);
        for (i, x) in a.iter().enumerate() {
            let Some(y) = b.get((i as isize + shift) as usize) else {
                continue;
            };
            let (x, y) = (f64::from(*x), f64::from(*y));
            (ab, aa, bb) = (ab + x * y, aa + x * x, bb + y * y);
        }
        ab / (aa * bb).sqrt()
    };
    let shifts = -500isize..=500;
    let best = shifts.max_by(|&i, &j| dot(i).total_cmp(&dot(j))).unwrap();
    (dot(best), best)
}

macro_rules! file {
    ($name:literal) => {
        ($name, &include_bytes!(concat!("data/", $name))[..])
    };
}

#[test]
fn containers_and_codecs_hold_the_same_sound() {
    let expected = signal();
    // Name, bytes, likeness, samples that an encoder may have added or lost, and lateness.
    for ((name, bytes), least, slack, late) in [
        (file!("a.flac"), 0.999, 2, 1),
        (file!("a.mka"), 0.999, 2, 1),
        (file!("alac.m4a"), 0.999, 2, 1),
        (file!("a.ogg"), 0.9, 700, 400),
        (file!("a.mp3"), 0.98, 700, 400),
        (file!("a.m4a"), 0.9, 1100, 400),
        (file!("a.opus"), 0.95, 700, 4),
        (file!("a.webm"), 0.95, 700, 4),
        (file!("silk.opus"), 0.7, 1000, 40),
    ] {
        let found = all(&Source::bytes(name, bytes), Mix::Mean).unwrap();
        let (likeness, shift) = alike(&expected, &found);
        println!(
            "{name}: {} samples, {likeness:.4} alike, {shift} late",
            found.len()
        );
        assert!(
            found.len().abs_diff(expected.len()) <= slack,
            "{name}: {}",
            found.len()
        );
        assert!(likeness > least, "{name}: {likeness}");
        assert!(shift.abs() <= late, "{name}: {shift}");
    }
}

#[test]
fn channels_are_mixed_or_apart() {
    let stereo: Vec<f32> = (0..3200)
        .flat_map(|i| [0.5, if i < 1600 { -0.25 } else { 0.25 }])
        .collect();
    let source = Source::bytes("two.wav", wav::encode(&stereo, 16_000, 2));
    assert_eq!(source.channels().unwrap(), 2);
    let mean = all(&source, Mix::Mean).unwrap();
    assert_eq!((mean[0], mean[3199], mean.len()), (0.125, 0.375, 3200));
    let right = all(&source, Mix::Channel(1)).unwrap();
    assert_eq!((right[0], right[3199]), (-0.25, 0.25));
    let error = all(&source, Mix::Channel(2)).unwrap_err().to_string();
    assert_eq!(
        error,
        "two.wav: found 2 channels, expected channel 2 (counted from 0)"
    );
}

/// A WAV file with any format chunk.
fn any_wav(format: u16, bits: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wav::encode(&[], rate, 1);
    bytes[4..8].copy_from_slice(&(36 + data.len() as u32).to_le_bytes());
    bytes[20..22].copy_from_slice(&format.to_le_bytes());
    bytes[28..32].copy_from_slice(&(rate * u32::from(bits) / 8).to_le_bytes());
    bytes[32..34].copy_from_slice(&(bits / 8).to_le_bytes());
    bytes[34..36].copy_from_slice(&bits.to_le_bytes());
    bytes[40..44].copy_from_slice(&(data.len() as u32).to_le_bytes());
    bytes.extend_from_slice(data);
    bytes
}

#[test]
fn odd_rates_and_depths_are_read() {
    let three = |i: i32| ((i % 100) << 16).to_le_bytes()[..3].to_vec();
    let data: Vec<u8> = (0..1600).flat_map(three).collect();
    let found = all(
        &Source::bytes("a.wav", any_wav(1, 24, 16_000, &data)),
        Mix::Mean,
    )
    .unwrap();
    assert_eq!((found.len(), found[50]), (1600, 50.0 / 128.0));
    for rate in [8000, 192_000, 1000, 11_024] {
        let source = Source::bytes("a.wav", wav::encode(&vec![0.5; rate as usize], rate, 1));
        let found = all(&source, Mix::Mean).unwrap();
        assert_eq!(found.len(), 16_000, "{rate}");
        assert!((found[8000] - 0.5).abs() < 1e-3, "{rate}");
    }
}

#[test]
fn bad_input_is_one_line() {
    let nan: Vec<u8> = (0..4000)
        .flat_map(|i| if i == 2000 { f32::NAN } else { 0.1 }.to_le_bytes())
        .collect();
    let flac = &include_bytes!("data/a.flac")[..];
    let cases: [(&str, Vec<u8>, &str); 7] = [
        (
            "text.wav",
            b"This is no sound, it is a text, however long it goes on.".repeat(20),
            "text.wav: found no audio in it (",
        ),
        ("none.mp3", Vec::new(), "none.mp3: found no audio in it ("),
        (
            "half.flac",
            flac[..30].to_vec(),
            "half.flac: found no audio in it (",
        ),
        (
            "zero.wav",
            wav::encode(&[], 16_000, 1),
            "zero.wav: holds no sound (0 samples)",
        ),
        (
            "nan.wav",
            any_wav(3, 32, 16_000, &nan),
            "nan.wav: the sample at 0.1250 s is not a number; repair the file",
        ),
        (
            "slow.wav",
            wav::encode(&[0.0; 100], 100, 1),
            "slow.wav: found 100 Hz, expected 1,000 to 768,000 samples per second",
        ),
        (
            "noise.ogg",
            (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect(),
            "noise.ogg: ",
        ),
    ];
    for (name, bytes, text) in cases {
        let error = Recording::measure(Source::bytes(name, bytes), Mix::Mean, Bands::slaney(80));
        let error = error
            .err()
            .unwrap_or_else(|| panic!("{name} was read"))
            .to_string();
        assert!(error.starts_with(text), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let missing = all(&Source::file("no/such.wav"), Mix::Mean)
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with("no/such.wav: cannot be read: "),
        "{missing}"
    );
    let folder = all(&Source::file("tests"), Mix::Mean)
        .unwrap_err()
        .to_string();
    assert!(folder.starts_with("tests: cannot be read: "), "{folder}");
}

#[test]
fn what_was_cut_off_is_read_as_far_as_it_goes() {
    for (name, bytes) in [file!("a.flac"), file!("a.mp3")] {
        let whole = all(&Source::bytes(name, bytes), Mix::Mean).unwrap().len();
        let cut = bytes[..bytes.len() * 2 / 3].to_vec();
        let found = all(&Source::bytes(name, cut), Mix::Mean).unwrap().len();
        assert!(
            found > whole / 5 && found < whole,
            "{name}: {found} of {whole}"
        );
    }
    // Containers whose index or only page is gone say so.
    for (name, bytes) in [file!("a.m4a"), file!("a.mka"), file!("a.ogg")] {
        let cut = Source::bytes(name, bytes[..bytes.len() / 3].to_vec());
        let error = all(&cut, Mix::Mean).unwrap_err().to_string();
        assert!(error.starts_with(name) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn damage_is_no_panic() {
    let files = [
        file!("a.flac"),
        file!("a.mp3"),
        file!("a.ogg"),
        file!("a.mka"),
        file!("a.webm"),
        file!("a.m4a"),
        file!("a.opus"),
        file!("silk.opus"),
        file!("alac.m4a"),
    ];
    for (name, bytes) in files {
        let mut seed = 1u32;
        for _ in 0..40 {
            let mut bytes = bytes.to_vec();
            for _ in 0..8 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = seed as usize % bytes.len();
                bytes[at] = (seed >> 24) as u8;
            }
            if let Err(error) = all(&Source::bytes(name, bytes), Mix::Mean) {
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
}
