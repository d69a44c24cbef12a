//! What a program needs and what the machine has.

use tokkata_ir::{Program, RawRows, WeightSource};

/// Bytes that a loaded program occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights in the formats of the file.
    pub weights: u64,
    /// Cache blocks of every group.
    pub caches: u64,
    /// Logits of every logit row.
    pub logits: u64,
}

impl MemoryNeed {
    /// What `program` needs, its weights taken from `source`.
    #[must_use]
    pub fn of(program: &Program, source: &dyn WeightSource) -> Self {
        let caches = program
            .caches
            .iter()
            .map(|g| g.block_bytes() * u64::from(g.n_blocks))
            .sum();
        let logits = u64::from(program.limits.logit_rows) * u64::from(program.n_vocab) * 4;
        let weights = program
            .weights
            .iter()
            .map(|w| weight_bytes(source, &w.recipe))
            .sum();
        MemoryNeed {
            weights,
            caches,
            logits,
        }
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.caches)
            .saturating_add(self.logits)
    }
}

/// Bytes of a weight in the formats it is stored in.
#[must_use]
pub fn weight_bytes(source: &dyn WeightSource, recipe: &tokkata_ir::Recipe) -> u64 {
    let Ok(rows) = RawRows::new(source, recipe) else {
        return 0;
    };
    let segments = rows.segments().iter();
    segments
        .map(|s| (s.dtype.row_bytes(s.cols).unwrap_or(0) as u64) * s.rows as u64)
        .sum()
}

/// Bytes that can be allocated without swapping, as far as the system tells: the smaller of the free memory, the
/// control group's and the address-space limit's remainder.
#[must_use]
pub fn available() -> Option<u64> {
    [meminfo(), cgroup(), address_space()]
        .into_iter()
        .flatten()
        .min()
}

fn meminfo() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn cgroup() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let max: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let cached = read("memory.stat").and_then(|text| {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix("inactive_file "))?;
        line.trim().parse::<u64>().ok()
    });
    Some(max.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

fn address_space() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let used = pages.split_whitespace().next()?.parse::<u64>().ok()? * 4096;
    Some(limit.saturating_sub(used))
}
