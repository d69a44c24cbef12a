//! What a server tells while it runs.

use tracing_subscriber::filter::LevelFilter;

/// Logs to standard error: warnings, and with `verbose` every call.
pub(super) fn start(json: bool, verbose: bool) {
    let level = match verbose || json {
        true => LevelFilter::INFO,
        false => LevelFilter::WARN,
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(std::io::stderr);
    // Whoever embeds the program may have set another one.
    let _ = match json {
        true => builder.json().flatten_event(true).try_init(),
        false => builder.try_init(),
    };
}
