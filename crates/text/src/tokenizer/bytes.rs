//! The alphabet in which byte-level vocabularies spell bytes: printable characters stand for
//! themselves, the other 68 bytes for the code points from U+0100 on.

/// The character that spells `byte`.
pub(super) fn letter(byte: u8) -> char {
    match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => byte as char,
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap_or_default(),
        0x7F..=0xA0 => char::from_u32(0x100 + 33 + u32::from(byte - 0x7F)).unwrap_or_default(),
        0xAD => '\u{143}',
    }
}

/// The byte that `letter` spells.
pub(super) fn byte(letter: char) -> Option<u8> {
    let byte = match letter as u32 {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => code,
        code @ 0x100..=0x120 => code - 0x100,
        code @ 0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Appends the bytes spelled by `text` to `out`, unless it has a character outside the alphabet.
pub(super) fn push_from_alphabet(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    for letter in std::str::from_utf8(text).ok()?.chars() {
        out.push(byte(letter)?);
    }
    Some(())
}

/// The bytes spelled by `text`, unless it has a character outside the alphabet.
pub(super) fn from_alphabet(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    push_from_alphabet(text, &mut out)?;
    Some(out)
}

/// The spelling of `bytes`.
pub(super) fn to_alphabet(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| letter(b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_letter() {
        let mut letters: Vec<char> = (0..=255).map(letter).collect();
        assert!((0..=255).all(|b| byte(letter(b)) == Some(b)));
        assert_eq!(
            [
                letter(0),
                letter(0x20),
                letter(0x7F),
                letter(0xA0),
                letter(0xAD)
            ],
            ['Ā', 'Ġ', 'ġ', 'ł', 'Ń']
        );
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), 256);
    }
}
