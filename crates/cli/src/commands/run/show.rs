//! How a conversation looks: lines that break between words, questions that stand out.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use unicode_width::UnicodeWidthStr;

use crate::console;

/// Columns of a line on a terminal that does not tell.
const USUAL_WIDTH: usize = 80;

/// Begins and ends code.
const FENCE: &str = "```";

/// How questions and answers look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    /// Questions are bold and their prompt is green.
    pub(super) colored: bool,
    /// Columns after which lines of an answer break; none outside of terminals.
    width: Option<usize>,
}

impl Style {
    /// Text just as it is.
    pub(super) fn plain() -> Self {
        Style {
            colored: false,
            width: width(),
        }
    }

    /// With colours wherever text goes.
    pub(super) fn colored() -> Self {
        Style {
            colored: true,
            width: width(),
        }
    }

    /// With colours on a terminal that wants them.
    pub(super) fn of_terminal() -> Self {
        Style {
            colored: console::wants_color(&std::io::stdout()),
            width: width(),
        }
    }
}

fn width() -> Option<usize> {
    let told = || terminal_size::terminal_size_of(std::io::stdout()).map(|s| usize::from(s.0.0));
    let on_terminal = std::io::stdout().is_terminal();
    on_terminal.then(|| told().filter(|&w| w > 0).unwrap_or(USUAL_WIDTH))
}

/// Writes an answer to standard output as it comes, and breaks its lines between words.
pub(super) struct Words {
    width: Option<usize>,
    column: usize,
    /// White space before the word.
    gap: String,
    word: String,
    /// Bytes of a character that is not whole yet.
    half: Vec<u8>,
    /// Inside ``` lines are left as they are.
    fenced: bool,
    line: String,
}

impl Words {
    pub(super) fn new(style: Style) -> Self {
        Words {
            width: style.width,
            column: 0,
            gap: String::new(),
            word: String::new(),
            half: Vec::new(),
            fenced: false,
            line: String::new(),
        }
    }

    /// Takes more text. The last word is held back until it is whole.
    pub(super) fn write(&mut self, text: &[u8]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.width.is_none() {
            out.write_all(text)?;
        } else {
            self.half.extend(text);
            let whole = whole_len(&self.half);
            let text: Vec<u8> = self.half.drain(..whole).collect();
            let text = String::from_utf8_lossy(&text).into_owned();
            out.write_all(self.broken(&text).as_bytes())?;
        }
        Ok(out.flush()?)
    }

    /// Forgets what was held back, of an answer that nobody wants to hear on.
    pub(super) fn forget(&mut self) {
        (self.gap, self.word) = (String::new(), String::new());
    }

    /// Ends the answer with a new line.
    pub(super) fn end(&mut self) -> Result<()> {
        let word = self.flushed();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{word}")?;
        Ok(out.flush()?)
    }

    fn broken(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            if !c.is_whitespace() {
                self.word.push(c);
                continue;
            }
            if !self.word.is_empty() {
                out += &self.flushed();
            }
            self.gap.push(c);
            if c == '\n' {
                self.fenced ^= self.line.trim_start().starts_with(FENCE);
                self.line.clear();
                self.column = 0;
                out += &std::mem::take(&mut self.gap);
            }
        }
        out
    }

    /// The word that was held back, on a new line if it does not fit.
    fn flushed(&mut self) -> String {
        let (gap, word) = (
            std::mem::take(&mut self.gap),
            std::mem::take(&mut self.word),
        );
        let wide = UnicodeWidthStr::width(word.as_str());
        let both = gap.chars().count() + wide;
        self.line += &gap;
        self.line += &word;
        if self.fits(both) || self.column == 0 {
            self.column += both;
            return gap + &word;
        }
        self.column = wide;
        format!("\n{word}")
    }

    fn fits(&self, columns: usize) -> bool {
        let width = self.width.unwrap_or(usize::MAX);
        let code = self.fenced || self.line.trim_start().starts_with(FENCE);
        code || self.column + columns <= width
    }
}

/// Bytes up to the last character that is whole.
fn whole_len(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_some() => bytes.len(),
        Err(error) => error.valid_up_to(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(width: usize, pieces: &[&str]) -> String {
        let mut words = Words::new(Style {
            colored: false,
            width: Some(width),
        });
        let mut text: String = pieces.iter().map(|p| words.broken(p)).collect();
        text += &words.flushed();
        text
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(
            shown(10, &["one two th", "ree four"]),
            "one two\nthree four"
        );
        assert_eq!(shown(4, &["abcdefgh ij"]), "abcdefgh\nij");
        assert_eq!(shown(7, &["one two ", "three"]), "one two\nthree");
        assert_eq!(shown(10, &["a\nb c"]), "a\nb c");
    }

    #[test]
    fn code_is_left_as_it_is() {
        let code = "```\nlet a = 1 + 2 + 3;\n```\n";
        assert_eq!(shown(8, &[code]), code);
        assert_eq!(
            shown(8, &[code, "one two three"]),
            format!("{code}one two\nthree")
        );
    }

    #[test]
    fn wide_letters_take_two_columns() {
        assert_eq!(shown(6, &["日本 語文"]), "日本\n語文");
        assert_eq!(whole_len("é".as_bytes()), 2);
        assert_eq!(whole_len(&"aé".as_bytes()[..2]), 1);
    }
}
