//! Base64 as tokenizer files use it.

/// The bytes that `text` stands for; `None` where it is not base64.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let body = text
        .strip_suffix(b"==")
        .or_else(|| text.strip_suffix(b"="))
        .unwrap_or(text);
    let mut out = Vec::with_capacity(body.len() / 4 * 3 + 2);
    for chunk in body.chunks(4) {
        if chunk.len() == 1 {
            return None;
        }
        let mut word = 0;
        for (i, &letter) in chunk.iter().enumerate() {
            word |= digit(letter)? << (18 - 6 * i);
        }
        out.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Some(out)
}

fn digit(letter: u8) -> Option<u32> {
    Some(u32::from(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn known_values() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYmE=", "fooba"),
        ] {
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(decode(b"/+8="), Some(vec![0xff, 0xef]));
        assert_eq!(decode(b"Z"), None);
        assert_eq!(decode(b"Z!=="), None);
    }
}
