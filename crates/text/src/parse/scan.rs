//! Looking for markers in text that is still growing.

/// What a search found in the text so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The marker of this index, at this offset.
    At(usize, usize),
    /// No marker; from this offset on, the text may be the beginning of one.
    Held(usize),
}

/// The first of `markers` in `text`; at one place the longest wins. Empty markers are never found.
pub(super) fn find(text: &str, markers: &[&str]) -> Found {
    let mut best: Option<(usize, usize)> = None;
    for (index, marker) in markers
        .iter()
        .enumerate()
        .filter(|(_, marker)| !marker.is_empty())
    {
        let Some(at) = text.find(marker) else {
            continue;
        };
        let better = best.is_none_or(|(known, other): (usize, usize)| {
            at < other || (at == other && marker.len() > markers[known].len())
        });
        if better {
            best = Some((index, at));
        }
    }
    let held = held_from(text, markers);
    match best {
        // A longer marker may still turn out to begin there or before.
        Some((index, at)) if at < held => Found::At(index, at),
        _ => Found::Held(held),
    }
}

/// The offset of the longest end of `text` that a marker begins with, short of the whole marker.
fn held_from(text: &str, markers: &[&str]) -> usize {
    let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
    let start = text.len().saturating_sub(longest.saturating_sub(1));
    let starts = (start..text.len()).filter(|at| text.is_char_boundary(*at));
    let begins = |at: &usize| {
        markers
            .iter()
            .any(|marker| marker.len() > text.len() - at && marker.starts_with(&text[*at..]))
    };
    starts.into_iter().find(begins).unwrap_or(text.len())
}

/// The end of the JSON value at the start of `text`, or `None` while it is incomplete.
pub(super) fn json_end(text: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => depth += 1,
            b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        let scalar_quote = byte == b'"' && !quoted && at > 0;
        if depth == 0 && !quoted && (matches!(byte, b'}' | b']') || scalar_quote) {
            return Some(at + 1);
        }
    }
    None
}

/// Drops white space at the start.
pub(super) fn skip_space(text: &str) -> &str {
    text.trim_start()
}
