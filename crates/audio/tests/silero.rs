//! Silero's net and rules against the Python package's (`crates/conformance/data/speech/vad.py`).

use std::path::Path;

use tokkata_audio::vad::{self, Rules, Span, Speech};
use tokkata_audio::{Bands, Mix, Recording, Silero, Source};
use tokkata_formats::ModelFile;

mod signals;
use signals::{noise, signal};

const CASES: [(&str, usize); 3] = [("noise", 24_000), ("sweep", 40_123), ("bursts", 36_007)];

/// Names, shapes, and the powers of two that scale made-up weights.
const TENSORS: [(&str, &[usize], i32); 15] = [
    ("stft_conv.weight", &[258, 1, 256], -2),
    ("conv1.weight", &[128, 129, 3], -3),
    ("conv1.bias", &[128], -3),
    ("conv2.weight", &[64, 128, 3], -3),
    ("conv2.bias", &[64], -3),
    ("conv3.weight", &[64, 64, 3], -3),
    ("conv3.bias", &[64], -3),
    ("conv4.weight", &[128, 64, 3], -2),
    ("conv4.bias", &[128], -3),
    ("lstm_cell.weight_ih", &[512, 128], -2),
    ("lstm_cell.weight_hh", &[512, 128], -2),
    ("lstm_cell.bias_ih", &[512], -2),
    ("lstm_cell.bias_hh", &[512], -2),
    ("final_conv.weight", &[1, 128, 1], 0),
    ("final_conv.bias", &[1], -1),
];

type Tensor = (String, Vec<usize>, Vec<f32>);

fn made_up() -> Vec<Tensor> {
    let one = |(seed, (name, shape, scale)): (u32, (&str, &[usize], i32))| {
        let numbers = noise(shape.iter().product(), seed, 32_768);
        let numbers = numbers.into_iter().map(|x| x as f32 / 32_768.0);
        let numbers = numbers.map(|x| x * 2f32.powi(scale)).collect();
        (name.to_owned(), shape.to_vec(), numbers)
    };
    (101..).zip(TENSORS).map(one).collect()
}

fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut places, mut data) = (Vec::new(), Vec::new());
    for (name, shape, numbers) in tensors {
        let from = data.len();
        data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        let to = data.len();
        places.push(format!(
            r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{from},{to}]}}"#
        ));
    }
    let head = format!("{{{}}}", places.join(","));
    let size = (head.len() as u64).to_le_bytes();
    [&size[..], head.as_bytes(), &data].concat()
}

/// As whisper.cpp's script writes them.
fn ggml(tensors: &[Tensor]) -> Vec<u8> {
    let mut out = b"lmgg\x0a\0\0\0silero-16k".to_vec();
    let sizes = [512, 64, 4, 129, 128, 3, 128, 64, 3, 64, 64, 3, 64, 128, 3];
    let numbers = [6, 2, 0].into_iter().chain(sizes).chain([128, 128, 128, 1]);
    out.extend(numbers.flat_map(u32::to_le_bytes));
    for (name, shape, numbers) in tensors {
        let name = match name.split_once('.').unwrap() {
            ("stft_conv", _) => "stft.forward_basis_buffer".to_owned(),
            ("lstm_cell", part) => format!("decoder.rnn.{part}"),
            ("final_conv", part) => format!("decoder.decoder.2.{part}"),
            (conv, part) => {
                let layer: u32 = conv[4..].parse().unwrap();
                format!("encoder.{}.reparam_conv.{part}", layer - 1)
            }
        };
        let name = format!("_model.{name}");
        let sizes = shape.iter().rev().copied();
        let sizes: Vec<usize> = sizes.filter(|&n| n > 1 || name.contains("stft")).collect();
        let head = [sizes.len(), name.len(), 0].into_iter().chain(sizes);
        out.extend(head.flat_map(|n| (n as u32).to_le_bytes()));
        out.extend(name.bytes());
        out.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    }
    out
}

fn net() -> Silero {
    Silero::new(&ModelFile::from_safetensors_bytes(safetensors(&made_up())).unwrap()).unwrap()
}

fn hear(net: &Silero, samples: &[f32]) -> Vec<f32> {
    let source = Source::samples("sound", samples.to_vec());
    let speech = net.hear(source.open(Mix::Mean).unwrap()).unwrap();
    speech.probabilities().to_vec()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let four = bytes.chunks_exact(4);
    four.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

fn worst(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let off = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
    off.fold(0.0, f32::max)
}

#[test]
fn probabilities_are_those_of_the_net_in_doubles() {
    let net = net();
    let ours: Vec<f32> = CASES
        .iter()
        .flat_map(|(kind, n)| hear(&net, &signal(kind, *n)))
        .collect();
    let off = worst(&ours, &floats(include_bytes!("data/silero.f32")));
    println!("| Silero's net beside numpy's doubles, 3 signals | {off:.1e} | 2e-6 |");
    assert!(off <= 2e-6, "{off:e}");
}

#[test]
fn probabilities_do_not_depend_on_blocks() {
    let (net, sound) = (net(), signal("sweep", 9001));
    let whole = hear(&net, &sound);
    assert_eq!(whole.len(), 18);
    for size in [1, 7, 512, 513, 3000] {
        let (mut listener, mut out) = (net.listen(), Vec::new());
        sound
            .chunks(size)
            .for_each(|block| listener.push(block, &mut out));
        listener.finish(&mut out);
        assert_eq!(out, whole, "blocks of {size}");
    }
    assert_eq!(hear(&net, &sound[..1024]), whole[..2]);
}

#[test]
fn both_files_hold_the_same_net() {
    let file = ModelFile::from_named_bytes("net.bin", ggml(&made_up())).unwrap();
    assert_eq!(file.metadata().str("general.version"), Some("6.2.0"));
    let sound = signal("bursts", 9001);
    let theirs = hear(&Silero::new(&file).unwrap(), &sound);
    assert_eq!(theirs, hear(&net(), &sound));
}

/// What is said of a file with these bytes and this name.
fn said(name: &str, bytes: &[u8]) -> String {
    let path = std::env::temp_dir().join(format!("tokkata-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let error = Silero::open(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(!error.contains('\n'), "{error}");
    let (_, said) = error.split_once(&format!("{name}: ")).unwrap();
    said.to_owned()
}

#[test]
fn other_files_are_told_in_a_line() {
    let (tensors, whole) = (made_up(), ggml(&made_up()));
    let either = "expected silero_vad_16k.safetensors of the Python package silero-vad, or whisper.cpp's ggml-silero-*.bin";
    let expect = |name, bytes: &[u8], text: &str| {
        let said = said(name, bytes);
        assert!(said.contains(text), "{name}: {said}");
    };
    let named = |found: &str| format!("found {found}, {either}");
    expect("a.gguf", b"GGUF\x03\0\0\0", &named("a GGUF file"));
    expect("a.onnx", b"\x08\x07\x12\x07pytorch", &named("an ONNX file"));
    expect(
        "a.jit",
        b"PK\x03\x04",
        &named("a ZIP archive, as those of TorchScript are"),
    );
    expect("a.wav", b"RIFFsome", &named("a file of another kind"));
    expect("short.bin", b"abc", &named("a file of another kind"));
    expect("empty.bin", b"", "the file is empty");
    expect(
        "cut.bin",
        &whole[..whole.len() - 1],
        "bytes left for a tensor",
    );
    expect("head.bin", &whole[..40], "bytes left for the sizes");
    let kind = [&whole[..15], b"-8k", &whole[18..]].concat();
    expect(
        "kind.bin",
        &kind,
        "found a net of the kind \"silero--8k\", expected \"silero-16k\"",
    );
    let sizes = [&whole[..30], &[0, 1, 0, 0], &whole[34..]].concat();
    expect("sizes.bin", &sizes, "found the sizes [256, 64, 4,");
    let missing = ggml(&tensors[1..]);
    expect(
        "missing.bin",
        &missing,
        &named("no tensor stft_conv.weight"),
    );
    let other = safetensors(&[("model.embed".to_owned(), vec![2], vec![0.0; 2])]);
    expect(
        "other.safetensors",
        &other,
        &named("no tensor stft_conv.weight"),
    );
    let raw = safetensors(&tensors);
    expect("cut.safetensors", &raw[..raw.len() - 1], "expected");
    let mut more = tensors.clone();
    more.push(("more".to_owned(), vec![1], vec![0.0]));
    expect(
        "more.safetensors",
        &safetensors(&more),
        "found 16 tensors, expected 15",
    );
    let mut shape = tensors.clone();
    shape[2].1 = vec![64, 2];
    expect(
        "shape.safetensors",
        &safetensors(&shape),
        "found the shape [64, 2] for the tensor conv1.bias, expected [128]",
    );
    let mut broken = tensors;
    broken[3].2[5] = f32::NAN;
    expect(
        "nan.safetensors",
        &safetensors(&broken),
        "found what is no number in the tensor conv2.weight",
    );
    let gone = Silero::open("/no/such.bin").unwrap_err().to_string();
    assert!(
        gone.starts_with("/no/such.bin: found nothing under this name"),
        "{gone}"
    );
}

fn spans(text: &str) -> Vec<Span> {
    let one = |s: &str| {
        let (from, to) = s.split_once('-').unwrap();
        Span {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
        }
    };
    text.split_whitespace().map(one).collect()
}

/// Probabilities that wander.
fn walk(seed: u32, step: i64) -> Vec<f32> {
    let mut at = 512;
    let wander = noise(400, seed, step).into_iter().map(|d| {
        at = (at + d).clamp(0, 1023);
        at as f32 / 1024.0
    });
    wander.collect()
}

#[test]
fn speech_begins_and_ends_where_the_package_says() {
    let mut count = 0;
    for line in include_str!("data/silero.txt").lines() {
        let (numbers, expected) = line.split_once('|').unwrap();
        let numbers: Vec<&str> = numbers.split_whitespace().collect();
        let number = |i: usize| numbers[i].parse::<f64>().unwrap();
        let rules = Rules {
            threshold: number(2),
            min_speech_ms: number(3) as u32,
            min_silence_ms: number(4) as u32,
            max_speech_s: number(5),
            pad_ms: number(6) as u32,
            neg_threshold: (numbers[7] != "-").then(|| number(7)),
            overlap_s: 0.0,
        };
        let speech = Speech::new(
            walk(number(0) as u32, number(1) as i64),
            400 * 512 - number(8) as usize,
        );
        let found = speech.spans(&rules);
        assert_eq!(found, spans(expected), "{line}");
        count += found.len();
    }
    println!("| starts and ends of speech beside Silero's own | {count} equal | equal |");
}

#[test]
fn pieces_are_speech_that_one_window_holds() {
    let net = net();
    let sound: Vec<f32> = signal("bursts", 160_000);
    let record = |sound: &[f32]| {
        let source = Source::samples("sound", sound.to_vec());
        Recording::measure(source, Mix::Mean, Bands::slaney(80)).unwrap()
    };
    let recording = record(&sound);
    let rules = Rules {
        threshold: 0.75,
        neg_threshold: Some(0.74),
        min_speech_ms: 0,
        min_silence_ms: 0,
        ..Rules::default()
    };
    let speech = net.hear(recording.samples().unwrap()).unwrap();
    let stretches = speech.stretches(&rules);
    assert!(stretches.len() > 3, "{stretches:?}");
    for (span, stretch) in speech.spans(&rules).iter().zip(&stretches) {
        assert!(span.from.abs_diff(stretch.from * 160) <= 80);
        assert!(span.to.abs_diff(stretch.to * 160) <= 80);
    }
    let find = |rules: &Rules, most| vad::pieces(&recording, Some(&net), rules, most).unwrap();
    let joined = find(&rules, 3000);
    let ends = |s: &[tokkata_audio::Stretch]| (s[0].from, s[s.len() - 1].to);
    assert_eq!((joined.len(), ends(&joined)), (1, ends(&stretches)));
    assert_eq!(find(&rules, 1), stretches);
    // What goes on behind its end stops where the next begins.
    let far = Rules {
        overlap_s: 100.0,
        ..rules
    };
    let far = find(&far, 900);
    assert!(far.windows(2).all(|s| s[0].to == s[1].from), "{far:?}");
    assert_eq!(far[far.len() - 1].to, recording.frames());
    let loud = vad::pieces(&recording, None, &Rules::default(), 3000).unwrap();
    assert_eq!(loud.len(), 1);
    assert!(
        vad::pieces(&record(&[0.0; 16_000]), None, &rules, 3000)
            .unwrap()
            .is_empty()
    );
}

/// A file of the user's: `TOKKATA_SILERO` names the net, the recording and what `vad.py real` wrote.
#[test]
#[ignore = "needs a file that is not ours"]
fn a_real_net_says_what_onnxruntime_says() {
    let Ok(named) = std::env::var("TOKKATA_SILERO") else {
        println!("| Silero's net beside onnxruntime | no file named | 1e-4 |");
        return;
    };
    let [net, sound, expected] =
        <[&str; 3]>::try_from(named.split(':').collect::<Vec<_>>()).expect("NET:SOUND:EXPECTED");
    let expected = std::fs::read_to_string(expected).unwrap();
    let lines: Vec<&str> = expected.lines().collect();
    let probabilities = lines[0].split(' ').map(|p| p.parse().unwrap());
    let probabilities: Vec<f32> = probabilities.collect();
    let net = Silero::open(net).unwrap();
    let (mut samples, mut all) = (
        Source::file(Path::new(sound)).open(Mix::Mean).unwrap(),
        Vec::new(),
    );
    while samples.next_block(&mut all).unwrap() {}
    let samples = Source::samples("sound", all).open(Mix::Mean).unwrap();
    let begin = std::time::Instant::now();
    let speech = net.hear(samples).unwrap();
    let seconds = probabilities.len() as f64 * 0.032;
    let times = seconds / begin.elapsed().as_secs_f64();
    let off = worst(speech.probabilities(), &probabilities);
    println!(
        "| Silero's net beside onnxruntime, {seconds:.0} s at {times:.0} times their speed | {off:.1e} | 1e-4 |"
    );
    assert!(off <= 1e-4, "{off:e}");
    let usual = Rules {
        max_speech_s: f64::INFINITY,
        ..Rules::default()
    };
    let short = Rules {
        max_speech_s: 4.0,
        ..usual
    };
    let wide = Rules {
        threshold: 0.3,
        min_silence_ms: 500,
        pad_ms: 200,
        ..usual
    };
    for (rules, line) in [usual, short, wide].iter().zip(&lines[1..]) {
        assert_eq!(speech.spans(rules), spans(line), "{rules:?}");
    }
}
