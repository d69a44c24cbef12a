//! Questions of a conversation: lines that are edited and remembered at a terminal, plain lines otherwise.

use std::borrow::Cow;
use std::io::BufRead;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

use super::show::Style;

const PROMPT: &str = "> ";
/// Begins and ends a text of several lines.
const FENCE: &str = "\"\"\"";

/// What came in.
pub(super) enum Input {
    /// A question.
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Nothing will come any more.
    End,
}

/// Where lines come from.
pub(super) enum Lines {
    /// A terminal, with its history file.
    Terminal(Box<Editor<Asker, FileHistory>>, Option<PathBuf>),
    /// Anything else.
    Plain,
}

impl Lines {
    pub(super) fn open(interactive: bool, style: Style) -> Result<Self> {
        if !interactive {
            return Ok(Lines::Plain);
        }
        let mut editor = Editor::new()?;
        editor.set_helper(Some(Asker {
            colored: style.colored,
        }));
        let history = history_file();
        if let Some(path) = &history {
            // No history yet is no error.
            let _ = editor.load_history(path);
        }
        Ok(Lines::Terminal(Box::new(editor), history))
    }

    pub(super) fn next(&mut self) -> Result<Input> {
        match self {
            Lines::Plain => plain(&mut std::io::stdin().lock()),
            Lines::Terminal(editor, history) => match editor.readline(PROMPT) {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    if let Some(path) = history {
                        // A history that cannot be kept is no reason to stop talking.
                        let _ = editor.save_history(path);
                    }
                    Ok(Input::Text(joined(&line)))
                }
                Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
                Err(ReadlineError::Eof) => Ok(Input::End),
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// How questions look while they are typed, and when they are whole.
pub(super) struct Asker {
    colored: bool,
}

impl Helper for Asker {}

impl Completer for Asker {
    type Candidate = String;
}

impl Hinter for Asker {
    type Hint = String;
}

impl Validator for Asker {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match goes_on(ctx.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Highlighter for Asker {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        match self.colored {
            true => Cow::Owned(format!("\x1b[1m{line}\x1b[0m")),
            false => Cow::Borrowed(line),
        }
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        match self.colored {
            true => Cow::Owned(format!("\x1b[1;32m{prompt}\x1b[0m")),
            false => Cow::Borrowed(prompt),
        }
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        self.colored
    }
}

/// Whether the text wants another line.
fn goes_on(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => !rest.trim_end().ends_with(FENCE),
        None => text.ends_with('\\') && !text.ends_with("\\\\"),
    }
}

/// The text of several lines without what joined them.
fn joined(text: &str) -> String {
    let inside = text.trim().strip_prefix(FENCE);
    match inside.and_then(|t| t.strip_suffix(FENCE)) {
        Some(inside) => inside.trim_matches('\n').to_owned(),
        None => text.replace("\\\n", "\n"),
    }
}

/// A question from plain lines.
fn plain(input: &mut impl BufRead) -> Result<Input> {
    let mut text = String::new();
    loop {
        let Some(line) = plain_line(input)? else {
            return Ok(match text.is_empty() {
                true => Input::End,
                false => Input::Text(joined(&text)),
            });
        };
        text += &line;
        if !goes_on(&text) {
            return Ok(Input::Text(joined(&text)));
        }
        text.push('\n');
    }
}

fn plain_line(input: &mut impl BufRead) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    if input.read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    while bytes.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
        bytes.pop();
    }
    let text = String::from_utf8(bytes);
    let wrong = |_| anyhow!("the prompt is not UTF-8; write it as UTF-8");
    text.map(Some).map_err(wrong)
}

/// `$XDG_STATE_HOME/tokkata/history`, or under `~/.local/state`.
fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let dir = state.or_else(home)?.join("tokkata");
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn questions(text: &str) -> Vec<String> {
        let mut input = text.as_bytes();
        let mut all = Vec::new();
        while let Input::Text(question) = plain(&mut input).expect("text") {
            all.push(question);
        }
        all
    }

    #[test]
    fn lines_are_joined_by_fences_and_backslashes() {
        assert_eq!(questions("a\nb"), ["a", "b"]);
        assert_eq!(questions("a\\\nb\nc"), ["a\nb", "c"]);
        assert_eq!(questions("\"\"\"\na\n\nb\n\"\"\"\nc\n"), ["a\n\nb", "c"]);
        assert_eq!(questions("\"\"\"a b\"\"\"\n"), ["a b"]);
        assert_eq!(questions("C:\\\\\n"), ["C:\\\\"]);
        assert_eq!(questions("\"\"\"a\n"), ["\"\"\"a\n"]);
    }
}
