//! Where an answer ends by its text: stop strings, held back until they are certain.

/// Finds the first of several byte strings in a stream, releasing text as soon as no match can begin in it.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<Vec<u8>>,
    held: Vec<u8>,
}

/// What a piece of text led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Bytes that are certain to belong to the answer.
    pub text: Vec<u8>,
    /// Which stop string was found; nothing after `text` belongs to the answer.
    pub stopped: Option<usize>,
}

impl StopStrings {
    /// Empty strings never match.
    #[must_use]
    pub fn new(strings: Vec<Vec<u8>>) -> Self {
        StopStrings {
            strings,
            held: Vec::new(),
        }
    }

    /// Takes the next bytes of the answer.
    pub fn push(&mut self, bytes: &[u8]) -> Scan {
        self.held.extend_from_slice(bytes);
        if let Some((at, which)) = self.find() {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return Scan {
                text,
                stopped: Some(which),
            };
        }
        let keep = self.pending();
        let rest = self.held.split_off(self.held.len() - keep);
        Scan {
            text: std::mem::replace(&mut self.held, rest),
            stopped: None,
        }
    }

    /// The answer ended otherwise: what was held back belongs to it.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// The earliest match, the longest among those.
    fn find(&self) -> Option<(usize, usize)> {
        (0..self.held.len()).find_map(|at| {
            let rest = &self.held[at..];
            let hits = self.strings.iter().enumerate();
            let hits = hits.filter(|(_, s)| !s.is_empty() && rest.starts_with(s));
            hits.max_by_key(|(_, s)| s.len())
                .map(|(which, _)| (at, which))
        })
    }

    /// Length of the longest end of the held bytes that begins a stop string.
    fn pending(&self) -> usize {
        let begins = |n: &usize| {
            let end = &self.held[self.held.len() - n..];
            self.strings
                .iter()
                .any(|s| s.len() > *n && s.starts_with(end))
        };
        let longest = self.strings.iter().map(Vec::len).max().unwrap_or(0);
        (1..=self.held.len().min(longest))
            .rev()
            .find(begins)
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(strings: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut stop = StopStrings::new(strings.iter().map(|s| s.as_bytes().to_vec()).collect());
        let mut out = Vec::new();
        for piece in pieces {
            let scan = stop.push(piece.as_bytes());
            out.extend(scan.text);
            if scan.stopped.is_some() {
                return (String::from_utf8(out).unwrap(), scan.stopped);
            }
        }
        out.extend(stop.finish());
        (String::from_utf8(out).unwrap(), None)
    }

    #[test]
    fn a_string_is_found_across_pieces() {
        assert_eq!(
            run(&["</s>"], &["ab<", "/", "s>cd"]),
            ("ab".into(), Some(0))
        );
        assert_eq!(run(&["</s>"], &["ab<", "/", "q"]), ("ab</q".into(), None));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some(0)));
        assert_eq!(run(&["x", "xy"], &["axy"]), ("a".into(), Some(1)));
        assert_eq!(run(&[""], &["abc"]), ("abc".into(), None));
    }

    #[test]
    fn text_is_released_as_soon_as_it_is_safe() {
        let mut stop = StopStrings::new(vec![b"END".to_vec()]);
        assert_eq!(stop.push(b"one E").text, b"one ");
        assert_eq!(stop.push(b"x").text, b"Ex");
        assert_eq!(stop.push(b"EN").text, b"");
        assert_eq!(stop.finish(), b"EN");
    }
}
