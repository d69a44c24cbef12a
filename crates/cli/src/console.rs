//! What people see: errors of one line, progress of what takes long, output that may be cut off.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tokkata::archs::ArchError;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How long something takes before people are told.
const PATIENCE: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(200);
const RETELL: Duration = Duration::from_secs(5);

/// Whether an error shows a place in a descriptor, which takes several lines.
fn shows_place(error: &anyhow::Error) -> bool {
    let descriptor = |e: &ArchError| matches!(e, ArchError::Descriptor { .. });
    let direct = error.downcast_ref::<ArchError>().is_some_and(descriptor);
    let within = error.downcast_ref::<tokkata::Error>();
    direct || within.is_some_and(|e| matches!(e, tokkata::Error::Descriptor(e) if descriptor(e)))
}

/// Prints an error on stderr: as one line, unless it shows a place in a text.
pub(crate) fn report(error: &anyhow::Error) {
    let mut text = String::new();
    for part in error.chain().map(ToString::to_string) {
        // Most errors of the libraries end with their cause already.
        if !text.ends_with(&part) {
            text += if text.is_empty() { "" } else { ": " };
            text += &part;
        }
    }
    if shows_place(error) {
        // Marks stand below what they point at.
        return print_line(&format!("tokkata: {}", text.trim_end()));
    }
    let line: Vec<&str> = text
        .split(['\n', '\r'])
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    say(&format!("tokkata: {}", line.join(" ")));
}

/// Prints a line on stderr, which may be closed. A terminal's lines break between words.
pub(crate) fn say(line: &str) {
    match width() {
        Some(width) => print_line(&wrapped(line, width)),
        None => print_line(line),
    }
}

fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Columns of the terminal that stderr is, if it is one and tells.
fn width() -> Option<usize> {
    let stderr = std::io::stderr();
    let told = || terminal_size::terminal_size_of(std::io::stderr());
    let columns = stderr.is_terminal().then(told).flatten()?.0.0;
    Some(usize::from(columns)).filter(|&columns| columns > 0)
}

/// A text whose lines break before the word that would not fit. Words are never broken.
fn wrapped(text: &str, width: usize) -> String {
    let lines = text.split('\n').map(|line| {
        let (mut out, mut column) = (String::new(), 0);
        for word in line.split_inclusive(' ') {
            let wide = UnicodeWidthStr::width(word.trim_end());
            if column > 0 && column + wide > width {
                out.truncate(out.trim_end().len());
                out.push('\n');
                column = 0;
            }
            out += word;
            column += UnicodeWidthStr::width(word);
        }
        out
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// As much of a line as a width has room for.
fn cut(line: &str, width: usize) -> String {
    let mut columns = 0;
    let fits = |c: &char| {
        columns += UnicodeWidthChar::width(*c).unwrap_or(0);
        columns <= width
    };
    line.chars().take_while(fits).collect()
}

/// Whether output went to a reader that left.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .filter_map(|e| e.downcast_ref::<std::io::Error>());
    io.into_iter()
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Turns a bug of ours into one line.
pub(crate) fn install_panic_message() {
    std::panic::set_hook(Box::new(|info| {
        say(&format!(
            "tokkata: internal error, please report it: {}",
            info.to_string().replace('\n', " ")
        ));
    }));
}

/// Whether stderr is a terminal that understands colours and cursor moves, and may be given them.
pub(crate) fn is_fancy() -> bool {
    wants_color(&std::io::stderr())
}

/// The same for any stream.
pub(crate) fn wants_color(stream: &impl IsTerminal) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    stream.is_terminal() && !dumb && !set("NO_COLOR")
}

/// Shows what is being waited for, once that takes longer than a second. Dropping it ends the wait.
pub(crate) struct Wait {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    what: String,
    done: AtomicU64,
    total: AtomicU64,
    over: Mutex<bool>,
    wake: Condvar,
}

impl Wait {
    /// Begins to wait for `what`, such as "loading model.gguf".
    pub(crate) fn new(what: impl Into<String>) -> Self {
        let shared = Arc::new(Shared {
            what: what.into(),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            over: Mutex::new(false),
            wake: Condvar::new(),
        });
        let inner = shared.clone();
        let thread = std::thread::Builder::new().spawn(move || inner.show()).ok();
        Wait { shared, thread }
    }

    /// Notes how much is done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.shared.done.store(done, Ordering::Relaxed);
        self.shared.total.store(total, Ordering::Relaxed);
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        *self.shared.lock() = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread only draws; a panic in it is no reason for another.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, bool> {
        self.over
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sleeps; true when the wait is over.
    fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut over = self.lock();
        while !*over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            over = match self.wake.wait_timeout(over, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }

    fn show(&self) {
        if self.sleep(PATIENCE) {
            return;
        }
        let fancy = is_fancy();
        loop {
            if fancy {
                // A line that breaks could not be drawn over.
                let line = cut(&self.line(), width().unwrap_or(usize::MAX));
                let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
                let _ = std::io::stderr().flush();
            } else {
                say(&self.line());
            }
            if self.sleep(if fancy { REDRAW } else { RETELL }) {
                break;
            }
        }
        if fancy {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn line(&self) -> String {
        let (done, total) = (
            self.done.load(Ordering::Relaxed),
            self.total.load(Ordering::Relaxed),
        );
        match (done * 100).checked_div(total) {
            Some(percent) => format!("{} … {percent} %", self.what),
            None => format!("{} …", self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_break_between_words() {
        assert_eq!(wrapped("one two three", 8), "one two\nthree");
        assert_eq!(wrapped("one two three", 13), "one two three");
        assert_eq!(wrapped("abcdefghij kl", 4), "abcdefghij\nkl");
        assert_eq!(wrapped("a b\n  c d e", 5), "a b\n  c d\ne");
        assert_eq!(wrapped("日本 語文", 6), "日本\n語文");
        assert_eq!(wrapped("", 6), "");
    }

    #[test]
    fn a_line_that_is_drawn_over_has_room() {
        assert_eq!(cut("loading model.gguf … 30 %", 12), "loading mode");
        assert_eq!(cut("日本語", 5), "日本");
        assert_eq!(cut("short", 80), "short");
    }
}
