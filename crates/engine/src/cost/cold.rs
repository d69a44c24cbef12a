//! How much slower answers are behind a slice, whose weights and keys have pushed theirs out of the processor's caches.
//!
//! Deep answers take longer than they did, so what a step takes alone cannot be remembered: what is remembered is its
//! share of what steps behind a slice take. Now and then answers run on until they are as fast as alone, to look again.

/// Steps of answers behind a slice until they are as fast as alone.
pub(super) const COLD: u32 = 16;
/// Steps behind those that are looked at.
const LOOKED_AT: u32 = 8;
/// Slices from one look to the next, and to the first.
const BETWEEN: u32 = 32;
const FIRST: u32 = 4;
/// What a look may find: one that other programs disturbed says little, in both directions.
const FOUND: (f64, f64) = (0.75, 1.25);
/// Weight of the newest look.
const NEWEST: f64 = 0.25;

/// Steps since the last slice, and what those before told.
#[derive(Clone, Debug)]
pub(super) struct Cold {
    /// Steps since then.
    since: u32,
    /// Rows of each of them, if they have been the same.
    rows: Option<usize>,
    /// What the first of them took, and those behind them that are looked at.
    cold_ns: f64,
    warm_ns: f64,
    /// Slices since the last look.
    slices: u32,
    /// What a step alone takes of one behind a slice.
    share: Option<f64>,
}

impl Default for Cold {
    fn default() -> Self {
        Cold {
            since: 0,
            rows: None,
            cold_ns: 0.0,
            warm_ns: 0.0,
            slices: BETWEEN - FIRST,
            share: None,
        }
    }
}

impl Cold {
    /// A slice ran.
    pub(super) fn slice(&mut self) {
        *self = Cold {
            slices: self.slices.saturating_add(1),
            share: self.share,
            ..Cold::default()
        };
    }

    /// A step of so many rows of answers alone took so long.
    pub(super) fn step(&mut self, rows: usize, ns: f64) {
        if self.since == 0 {
            self.rows = Some(rows);
        }
        self.rows = self.rows.filter(|&same| same == rows);
        self.since = self.since.saturating_add(1);
        match self.since {
            ..=COLD => self.cold_ns += ns,
            n if n <= COLD + LOOKED_AT => self.warm_ns += ns,
            _ => return,
        }
        if self.since == COLD + LOOKED_AT && self.slices > 0 {
            self.slices = 0;
            if self.rows.is_some() {
                let cold = self.cold_ns / f64::from(COLD);
                let share = (self.warm_ns / f64::from(LOOKED_AT) / cold).clamp(FOUND.0, FOUND.1);
                let old = self.share.unwrap_or(share);
                self.share = Some(old + NEWEST * (share - old));
            }
        }
    }

    /// Whether steps are as fast as alone again.
    pub(super) fn is_over(&self) -> bool {
        self.since > COLD
    }

    /// Whether answers are to run on until it is seen what they take alone.
    pub(super) fn looks(&self) -> bool {
        self.slices >= BETWEEN && self.since < COLD + LOOKED_AT
    }

    /// What a step alone takes of one that runs now, once it was seen.
    pub(super) fn share(&self) -> Option<f64> {
        match self.is_over() {
            true => Some(1.0),
            false => self.share.map(|share| share.min(1.0)),
        }
    }
}
