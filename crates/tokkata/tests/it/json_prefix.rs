//! Whether a text is the beginning of a JSON text: a check of its own that knows no grammar library.
#![allow(dead_code, unreachable_pub, missing_docs)]

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Value,
    /// The first element of a list, or its end.
    FirstElement,
    /// The first key of an object, or its end.
    FirstKey,
    Key,
    Colon,
    /// A value is over.
    After,
}

pub fn is_prefix(text: &str) -> bool {
    let mut reader = Reader {
        rest: text.as_bytes(),
        open: Vec::new(),
        state: State::Value,
    };
    while let Some(step) = reader.step() {
        if !step {
            return false;
        }
    }
    true
}

struct Reader<'t> {
    rest: &'t [u8],
    open: Vec<u8>,
    state: State,
}

impl Reader<'_> {
    /// `None` at the end of the text, `Some(false)` at what JSON does not allow.
    fn step(&mut self) -> Option<bool> {
        while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
        let (&first, rest) = self.rest.split_first()?;
        let is_end = |open: &[u8], end| open.last() == Some(&end) && first == end;
        self.rest = rest;
        Some(match (self.state, first) {
            (State::FirstElement, b']') | (State::FirstKey, b'}') => self.close(),
            (State::Value | State::FirstElement, _) => self.value(first),
            (State::FirstKey | State::Key, b'"') => self.string(State::Colon),
            (State::Colon, b':') => self.become_(State::Value),
            (State::After, b',') => match self.open.last() {
                Some(b']') => self.become_(State::Value),
                Some(_) => self.become_(State::Key),
                None => false,
            },
            (State::After, end) if is_end(&self.open, end) => self.close(),
            _ => false,
        })
    }

    fn become_(&mut self, state: State) -> bool {
        self.state = state;
        true
    }

    fn close(&mut self) -> bool {
        self.open.pop();
        self.become_(State::After)
    }

    fn value(&mut self, first: u8) -> bool {
        match first {
            b'{' => {
                self.open.push(b'}');
                self.become_(State::FirstKey)
            }
            b'[' => {
                self.open.push(b']');
                self.become_(State::FirstElement)
            }
            b'"' => self.string(State::After),
            b't' => self.word(b"rue"),
            b'f' => self.word(b"alse"),
            b'n' => self.word(b"ull"),
            _ => self.number(first),
        }
    }

    fn word(&mut self, rest: &[u8]) -> bool {
        let len = rest.len().min(self.rest.len());
        let same = self.rest[..len] == rest[..len];
        self.rest = &self.rest[len..];
        same && self.become_(State::After)
    }

    fn string(&mut self, next: State) -> bool {
        while let Some((&byte, rest)) = self.rest.split_first() {
            self.rest = rest;
            match byte {
                b'"' => return self.become_(next),
                b'\\' => {
                    let Some((&escaped, rest)) = self.rest.split_first() else {
                        return true;
                    };
                    self.rest = rest;
                    if escaped == b'u' {
                        let digits = rest.len().min(4);
                        if !rest[..digits].iter().all(u8::is_ascii_hexdigit) {
                            return false;
                        }
                        self.rest = &rest[digits..];
                    } else if !b"\"\\/bfnrt".contains(&escaped) {
                        return false;
                    }
                }
                0..0x20 => return false,
                _ => {}
            }
        }
        true
    }

    /// `-? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?`, as far as there is text.
    fn number(&mut self, first: u8) -> bool {
        let mut digit = Some(first);
        if first == b'-' {
            digit = self.take(|_| true);
        }
        match digit {
            None => return true,
            Some(b'0') => {}
            Some(b'1'..=b'9') => self.digits(),
            Some(_) => return false,
        }
        if self.take(|b| b == b'.').is_some() && !self.some_digits() {
            return false;
        }
        if self.take(|b| b == b'e' || b == b'E').is_some() {
            self.take(|b| b == b'+' || b == b'-');
            if !self.some_digits() {
                return false;
            }
        }
        self.become_(State::After)
    }

    fn take(&mut self, wanted: impl Fn(u8) -> bool) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        wanted(first).then(|| {
            self.rest = rest;
            first
        })
    }

    fn digits(&mut self) {
        while self.take(|b| b.is_ascii_digit()).is_some() {}
    }

    fn some_digits(&mut self) -> bool {
        let before = self.rest.len();
        self.digits();
        self.rest.len() < before || before == 0
    }
}

#[test]
fn prefixes_are_told_from_other_text() {
    let text = r#" {"a": [1, -0.5e+3, "x\u00e9\n", null], "b": {}, "c": [], "d": true} "#;
    for (at, _) in text.char_indices() {
        assert!(is_prefix(&text[..at]), "{}", &text[..at]);
    }
    let wrong = [
        "}", "[1,]", "{,", "{\"a\"}", "{1", "01", "1.e", "-a", "tru3", "\"\\x", "\"\n", "[1 2",
        "1 2", "[}", "\"\\u00g",
    ];
    for text in wrong {
        assert!(!is_prefix(text), "{text}");
    }
}
