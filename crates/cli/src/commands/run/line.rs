//! Lines of a conversation: edited and remembered at a terminal, plain from a pipe.

use std::io::BufRead;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

/// What came in.
pub(super) enum Input {
    /// A line.
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Nothing will come any more.
    End,
}

/// Where lines come from.
pub(super) enum Lines {
    /// A terminal, with its history file.
    Terminal(Box<DefaultEditor>, Option<PathBuf>),
    /// Anything else.
    Plain,
}

impl Lines {
    pub(super) fn open(interactive: bool) -> Result<Self> {
        if !interactive {
            return Ok(Lines::Plain);
        }
        let mut editor = DefaultEditor::new()?;
        let history = history_file();
        if let Some(path) = &history {
            // No history yet is no error.
            let _ = editor.load_history(path);
        }
        Ok(Lines::Terminal(Box::new(editor), history))
    }

    pub(super) fn next(&mut self) -> Result<Input> {
        match self {
            Lines::Plain => plain(),
            Lines::Terminal(editor, history) => match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    if let Some(path) = history {
                        // A history that cannot be kept is no reason to stop talking.
                        let _ = editor.save_history(path);
                    }
                    Ok(Input::Text(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
                Err(ReadlineError::Eof) => Ok(Input::End),
                Err(error) => Err(error.into()),
            },
        }
    }
}

fn plain() -> Result<Input> {
    let mut bytes = Vec::new();
    if std::io::stdin().lock().read_until(b'\n', &mut bytes)? == 0 {
        return Ok(Input::End);
    }
    while bytes.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
        bytes.pop();
    }
    let text = String::from_utf8(bytes);
    Ok(Input::Text(text.map_err(|_| {
        anyhow!("the prompt is not UTF-8; write it as UTF-8")
    })?))
}

/// `$XDG_STATE_HOME/tokkata/history`, or under `~/.local/state`.
fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let dir = state.or_else(home)?.join("tokkata");
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join("history"))
}
