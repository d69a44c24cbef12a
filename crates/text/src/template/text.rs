//! Strings that remember which of their bytes came from outside the template.

use std::ops::Range;

/// White space as Python's `str.isspace` sees it.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// A string with the byte ranges that did not come from the template's own source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    text: String,
    /// Sorted, disjoint and non-empty byte ranges on character boundaries.
    untrusted: Vec<Range<usize>>,
    /// Jinja2's `Markup`: joining it with plain text escapes the plain text.
    markup: bool,
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Text {
    pub(crate) fn trusted(text: impl Into<String>) -> Self {
        Text {
            text: text.into(),
            ..Text::default()
        }
    }

    pub(crate) fn untrusted(text: impl Into<String>) -> Self {
        let mut out = Text::trusted(text);
        if !out.text.is_empty() {
            out.untrusted.push(0..out.text.len());
        }
        out
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn is_markup(&self) -> bool {
        self.markup
    }

    pub(crate) fn with_markup(mut self, markup: bool) -> Self {
        self.markup = markup;
        self
    }

    pub(crate) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        (self.text, self.untrusted)
    }

    /// Appends text of the template's own.
    pub(crate) fn push_str(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(crate) fn push(&mut self, other: &Text) {
        let base = self.text.len();
        self.text.push_str(&other.text);
        for range in &other.untrusted {
            self.mark(base + range.start..base + range.end);
        }
    }

    fn mark(&mut self, range: Range<usize>) {
        match self.untrusted.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.untrusted.push(range),
        }
    }

    /// The bytes in `range`, which must lie on character boundaries.
    pub(crate) fn slice(&self, range: Range<usize>) -> Text {
        let mut out = Text::trusted(&self.text[range.clone()]).with_markup(self.markup);
        for marked in &self.untrusted {
            let start = marked.start.max(range.start);
            let end = marked.end.min(range.end);
            if start < end {
                out.mark(start - range.start..end - range.start);
            }
        }
        out
    }

    /// Replaces every character by a string, which inherits the character's origin.
    pub(crate) fn map_chars(&self, mut map: impl FnMut(char, &mut String)) -> Text {
        let mut out = Text {
            markup: self.markup,
            ..Text::default()
        };
        let mut marks = self.untrusted.iter().peekable();
        for (at, c) in self.text.char_indices() {
            while marks.next_if(|range| range.end <= at).is_some() {}
            let start = out.text.len();
            map(c, &mut out.text);
            if marks.peek().is_some_and(|range| range.start <= at) {
                out.mark(start..out.text.len());
            }
        }
        out
    }

    pub(crate) fn upper(&self) -> Text {
        self.map_chars(|c, out| out.extend(c.to_uppercase()))
    }

    pub(crate) fn lower(&self) -> Text {
        self.map_chars(|c, out| out.extend(c.to_lowercase()))
    }

    /// Escapes for HTML as `markupsafe.escape` does; markup is left alone.
    pub(crate) fn escaped(&self) -> Text {
        if self.markup {
            return self.clone();
        }
        let escaped = self.map_chars(|c, out| match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        });
        escaped.with_markup(true)
    }

    /// Concatenates as Python's `+` does, markup included.
    pub(crate) fn concat(&self, other: &Text) -> Text {
        let markup = self.markup || other.markup;
        let mut out = if markup { self.escaped() } else { self.clone() };
        if markup {
            out.push(&other.escaped());
        } else {
            out.push(other);
        }
        out.with_markup(markup)
    }

    pub(crate) fn join<'t>(separator: &Text, parts: impl IntoIterator<Item = &'t Text>) -> Text {
        let mut out = Text::default();
        for (i, part) in parts.into_iter().enumerate() {
            if i > 0 {
                out.push(separator);
            }
            out.push(part);
        }
        out
    }

    pub(crate) fn trim_by(&self, ends: Ends, strip: impl Fn(char) -> bool) -> Text {
        let mut kept = self.text.as_str();
        if ends != Ends::Right {
            kept = kept.trim_start_matches(&strip);
        }
        let start = if ends == Ends::Right {
            0
        } else {
            self.text.len() - kept.len()
        };
        if ends != Ends::Left {
            kept = kept.trim_end_matches(&strip);
        }
        self.slice(start..start + kept.len())
    }

    /// How often `old` is replaced with at most `limit` replacements.
    pub(crate) fn count(&self, old: &str, limit: usize) -> usize {
        self.text.match_indices(old).take(limit).count()
    }

    /// `str.replace`, with at most `limit` replacements.
    pub(crate) fn replace(&self, old: &str, new: &Text, limit: usize) -> Text {
        let mut out = Text::default();
        let (mut done, mut marks) = (0, self.untrusted.as_slice());
        for (at, found) in self.text.match_indices(old).take(limit) {
            marks = out.push_part(self, done..at, marks);
            out.push(new);
            done = at + found.len();
        }
        out.push_part(self, done..self.text.len(), marks);
        out.with_markup(self.markup)
    }

    /// Appends the bytes of `other` in `range`. `marks` are its marks but for some that end before; gives those that do not
    /// end before `range` does.
    fn push_part<'m>(
        &mut self,
        other: &Text,
        range: Range<usize>,
        mut marks: &'m [Range<usize>],
    ) -> &'m [Range<usize>] {
        let base = self.text.len();
        self.text.push_str(&other.text[range.clone()]);
        while let Some(marked) = marks.first().filter(|m| m.start < range.end) {
            let (start, end) = (marked.start.max(range.start), marked.end.min(range.end));
            if start < end {
                self.mark(base + start - range.start..base + end - range.start);
            }
            if marked.end > range.end {
                break;
            }
            marks = &marks[1..];
        }
        marks
    }

    /// The byte offset of the character at `index`, or the end.
    pub(crate) fn char_offset(&self, index: usize) -> usize {
        self.text
            .char_indices()
            .nth(index)
            .map_or(self.text.len(), |(at, _)| at)
    }

    /// Lines as `str.splitlines` cuts them.
    pub(crate) fn lines(&self, keep_ends: bool) -> Vec<Text> {
        let mut lines = Vec::new();
        let (mut start, mut chars) = (0, self.text.char_indices().peekable());
        while let Some((at, c)) = chars.next() {
            if !is_line_end(c) {
                continue;
            }
            let mut next = at + c.len_utf8();
            if c == '\r' && chars.next_if(|&(_, c)| c == '\n').is_some() {
                next += 1;
            }
            lines.push(self.slice(start..if keep_ends { next } else { at }));
            start = next;
        }
        if start < self.text.len() {
            lines.push(self.slice(start..self.text.len()));
        }
        lines
    }
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Which ends of a string are stripped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Left,
    Right,
    Both,
}
