//! Memory at hand.

/// Bytes that may be taken without swapping: the smallest of what the machine, the control groups of the process and
/// its address-space limit leave; `None` where unknown.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    [machine(), groups(), address_space()]
        .into_iter()
        .flatten()
        .min()
}

#[cfg(target_os = "linux")]
fn machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(number_after(&text, "MemAvailable:")? * 1024)
}

/// The first number of the line that starts with `name`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The least that any control group (version 2) above the process leaves.
#[cfg(target_os = "linux")]
fn groups() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|l| l.strip_prefix("0::"))?.trim();
    let root = std::path::Path::new("/sys/fs/cgroup");
    let folder = root.join(path.trim_start_matches('/'));
    let inside = folder.ancestors().take_while(|f| f.starts_with(root));
    inside
        .filter_map(|folder| group(&|name| std::fs::read_to_string(folder.join(name)).ok()))
        .min()
}

/// What one control group leaves; pages of files that can be dropped count as free. `None` without a limit.
fn group(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (max, current) = (number("memory.max")?, number("memory.current")?);
    let stat = read("memory.stat").unwrap_or_default();
    let file = |name| number_after(&stat, name).unwrap_or(0);
    let reclaimable = file("inactive_file ") + file("active_file ");
    Some(max.saturating_sub(current.saturating_sub(reclaimable)))
}

#[cfg(target_os = "linux")]
fn address_space() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let limit = number_after(&limits, "Max address space")?;
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let used = pages.split_whitespace().next()?.parse::<u64>().ok()? * 4096;
    Some(limit.saturating_sub(used))
}

#[cfg(not(target_os = "linux"))]
fn machine() -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
fn groups() -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
fn address_space() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_leaves_what_it_does_not_use_but_for_pages_it_can_drop() {
        let files = |max: &'static str| {
            move |name: &str| match name {
                "memory.max" => Some(max.to_owned()),
                "memory.current" => Some("700\n".to_owned()),
                "memory.stat" => {
                    Some("anon 500\nfile 200\nactive_file 90\ninactive_file 60\n".to_owned())
                }
                _ => None,
            }
        };
        assert_eq!(group(&files("1000\n")), Some(450));
        assert_eq!(group(&files("500\n")), Some(0));
        assert_eq!(group(&files("max\n")), None);
        assert_eq!(group(&|_| None), None);
    }
}
