//! zlib's lengths on ten thousand texts. `crates/conformance/data/speech/lengths.py` wrote them.

use tokkata_speech::ratio::compressed_bytes;

const WORDS: &str = "the of and a to in is you that it he was for on are as with his they I at be this have from or one \
    had by word but not what all were we when your can said there use an each which she do how their if will up other \
    about out many then them these so some her would make like him into time has look two more write go see number no \
    way could people my than first water been call who oil its now find long down day did get come made may part";

fn text(case: u64) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut x = case + 1;
    let mut word = || {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) as usize
    };
    let (n, few) = (word() % 120, 1 + word() % 98);
    let mut out: Vec<String> = Vec::new();
    for _ in 0..n {
        let k = word() % 12;
        let w = words[word() % few];
        let w = match k {
            0 => format!("{w},"),
            1 => format!("{}{w}", char::from_u32(0xe0 + word() as u32 % 30).unwrap()),
            2 => (word() % 10_000).to_string(),
            3 if !out.is_empty() => {
                let last = 1 + word() % 9;
                out[out.len().saturating_sub(last)..].join(" ")
            }
            _ => w.to_owned(),
        };
        out.push(w);
    }
    out.join(" ")
}

#[test]
fn lengths_are_those_of_zlib() {
    let golden = include_bytes!("lengths.u16").chunks_exact(2);
    assert_eq!(golden.len(), 10_000);
    let mut wrong = Vec::new();
    for (case, bytes) in golden.enumerate() {
        let expected = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let found = compressed_bytes(text(case as u64).as_bytes());
        if found != expected {
            wrong.push((case, found, expected));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ: {:?}",
        wrong.len(),
        &wrong[..wrong.len().min(5)]
    );
    println!("| lengths beside zlib's, 10,000 texts | equal | equal |");
}
