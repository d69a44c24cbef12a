//! A progress bar with rate and remaining time, on terminals only.

use std::io::Write;
use std::time::{Duration, Instant};

use tokkata::Bytes;

use crate::console::is_fancy;

const REDRAW: Duration = Duration::from_millis(100);
const WIDTH: usize = 30;

/// Shows how far something has come. Dropping it wipes the line.
pub(crate) struct Bar {
    what: String,
    start: Instant,
    drawn: Option<Instant>,
    shown: bool,
}

impl Bar {
    /// A bar for `what`, such as "quantizing".
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Bar {
            what: what.into(),
            start: Instant::now(),
            drawn: None,
            shown: is_fancy(),
        }
    }

    /// Notes that `done` of `total` bytes are done.
    pub(crate) fn set(&mut self, done: u64, total: u64) {
        let recent = self.drawn.is_some_and(|at| at.elapsed() < REDRAW);
        if !self.shown || recent {
            return;
        }
        self.drawn = Some(Instant::now());
        let line = line(done, total, self.start.elapsed());
        // The terminal may be gone, and the work goes on without it.
        let mut err = std::io::stderr();
        let _ = write!(err, "\r\x1b[K{} {line}", self.what).and_then(|()| err.flush());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(done: u64, total: u64, elapsed: Duration) -> String {
    let part = done as f64 / total.max(1) as f64;
    let full = (part * WIDTH as f64) as usize;
    let bar: String = (0..WIDTH)
        .map(|i| if i < full { '█' } else { '░' })
        .collect();
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = ((total - done.min(total)) as f64 / rate.max(1.0)) as u64;
    let (minutes, seconds) = (left / 60, left % 60);
    let rate = Bytes(rate as u64);
    format!(
        "{bar} {:>3} %  {rate}/s  {minutes}:{seconds:02} left",
        (part * 100.0) as u64
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_remaining_time_are_shown() {
        let text = line(64 << 20, 256 << 20, Duration::from_secs(32));
        assert!(text.ends_with(" 25 %  2.0 MiB/s  1:36 left"), "{text}");
        assert_eq!(text.chars().filter(|&c| c == '█').count(), 7);
    }
}
