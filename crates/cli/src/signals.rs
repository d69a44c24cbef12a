//! Signals that end the program: what is half written goes away first.

/// Removes unfinished files when a signal ends the program.
#[cfg(unix)]
pub(crate) fn clean_up() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let ignored = ignored();
    let wanted = [SIGHUP, SIGINT, SIGTERM];
    let wanted = wanted
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    // Without a handler a signal ends the process, which is no worse than before.
    let Ok(mut signals) = Signals::new(wanted) else {
        return;
    };
    let act = move || {
        for signal in signals.forever() {
            tokkata::remove_unfinished();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    let _ = std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(act);
}

#[cfg(not(unix))]
pub(crate) fn clean_up() {}

/// A bit for each signal that whoever started the program wants ignored, such as `nohup`.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
