//! A lowered plan: launches in order, their grids by the size of a step.

use tokkata_ir::Lead;

use crate::driver::{Function, Mode, Result, Stream};

/// Most rows that attend with the heads of those before them, as `attend` of `flash.cu` does it.
pub(crate) const FEW_ROWS: u32 = 4;

/// Most rows, sequences and logit rows of the steps that a replay serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bucket {
    pub(crate) rows: u32,
    pub(crate) seqs: u32,
    pub(crate) logits: u32,
    /// Which kinds of rows there are.
    pub(crate) kinds: Kinds,
    /// Whether there is one row of every sequence, and none of a prompt.
    pub(crate) singles: bool,
    /// Of steps that a tape serves, whether more is cached than a block for each split takes.
    pub(crate) deep: bool,
    /// Whether log-probabilities are told of a row.
    pub(crate) told: bool,
    /// Whether the time of each item is taken, which no tape tells.
    pub(crate) measured: bool,
}

/// Kinds of rows that a step has: their sums have orders of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kinds {
    pub(crate) prompts: bool,
    pub(crate) replies: bool,
}

/// For which kind of rows a launch is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    Prompt,
    Reply,
}

impl Bucket {
    /// Whether a tape serves such steps: one row, and no prompt's.
    pub(crate) fn is_taped(self) -> bool {
        self.singles && self.rows == 1 && self.logits <= 1 && !self.measured
    }

    /// Whether its rows turn their heads while they attend: one of each sequence, or few.
    fn turns_heads(self) -> bool {
        self.singles || (self.rows <= FEW_ROWS && !self.kinds.prompts)
    }

    fn of(self, lead: Lead) -> u64 {
        u64::from(match lead {
            Lead::Rows => self.rows,
            Lead::Seqs => self.seqs,
            Lead::LogitRows => self.logits,
        })
    }
}

/// One dimension of a grid: `⌈lead · times / per⌉`, at most `most`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    lead: Option<Lead>,
    times: u64,
    per: u64,
    most: u64,
}

impl Extent {
    pub(crate) const ONE: Extent = Extent::fixed(1);

    pub(crate) const fn fixed(n: u32) -> Extent {
        Extent {
            lead: None,
            times: n as u64,
            per: 1,
            most: u64::MAX,
        }
    }

    /// A block for every `per` of so many elements of each row of a lead.
    pub(crate) fn elements(lead: Lead, times: u64, per: u32) -> Extent {
        Extent {
            lead: Some(lead),
            times,
            per: per.into(),
            most: u64::MAX,
        }
    }

    pub(crate) fn rows(lead: Lead) -> Extent {
        Extent::elements(lead, 1, 1)
    }

    pub(crate) fn at_most(self, most: u32) -> Extent {
        Extent {
            most: most.into(),
            ..self
        }
    }

    fn of(self, bucket: Bucket) -> u32 {
        let lead = self.lead.map_or(1, |lead| bucket.of(lead));
        let blocks = (lead * self.times).div_ceil(self.per).clamp(1, self.most);
        u32::try_from(blocks).expect("grids fit 32 bits")
    }
}

/// Kernels of one purpose for one, two, four and eight rows at a time.
pub(crate) type ByRows = [Function; 4];

/// What is launched.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    One(Function),
    /// That for as many rows at a time as the bucket of the lead has; the grid's second dimension follows.
    ByRows(Lead, ByRows),
    /// Tiles of rows by outputs: the large ones where there are enough of them to keep the device busy.
    Tiles(Lead, [Tile; 2]),
    /// Tiles of rows by outputs that blocks take in rounds, and what a round costs: those that cost least in all.
    Rounds(Lead, [(Tile, u32); 2]),
    /// Tiles of rows by outputs: the first that hold all rows, or the last.
    Fitting(Lead, Box<[Tile]>),
}

/// A kernel that computes tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub(crate) function: Function,
    /// Rows of a tile.
    pub(crate) rows: u32,
    /// Blocks for the tiles beside each other.
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    /// Used where there are at least so many blocks.
    pub(crate) least: u32,
    /// Most blocks, which go on to further tiles; without one each has a tile.
    pub(crate) most: Option<u32>,
}

impl Tile {
    /// Tiles below each other.
    fn down(&self, rows: u64) -> u32 {
        (rows as u32).div_ceil(self.rows).max(1)
    }

    /// Tiles that the busiest block has.
    fn rounds(&self, rows: u64) -> u32 {
        let all = self.down(rows) * self.blocks;
        all.div_ceil(self.most.unwrap_or(all))
    }
}

/// For which buckets a launch is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// Up to so many rows.
    Few(u32),
    /// More rows than that.
    Many(u32),
    /// So many of a lead at least, and at most.
    Counts(Lead, u32, u32),
    /// Where log-probabilities are told.
    Told,
}

impl When {
    /// One of a lead.
    pub(crate) const fn one(lead: Lead) -> When {
        When::Counts(lead, 1, 1)
    }

    /// More of a lead.
    pub(crate) const fn more(lead: Lead) -> When {
        When::Counts(lead, 2, u32::MAX)
    }

    fn holds(self, bucket: Bucket) -> bool {
        match self {
            When::Always => true,
            When::Few(rows) => bucket.rows <= rows,
            When::Many(rows) => bucket.rows > rows,
            When::Counts(lead, least, most) => {
                (u64::from(least)..=u64::from(most)).contains(&bucket.of(lead))
            }
            When::Told => bucket.told,
        }
    }
}

/// A kernel with its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The item that it does, or does a part of.
    pub(crate) item: Option<usize>,
    pub(crate) when: When,
    /// Made for steps with such rows; `None`: for all.
    pub(crate) kind: Option<RowKind>,
    /// Made only for steps of one row of each sequence, or of few, and at most so many, or only for others.
    pub(crate) singles: Option<(bool, u32)>,
    /// Made only for steps that a tape serves, or only for others.
    pub(crate) taped: Option<bool>,
    /// Made only for deep caches, or only for others.
    pub(crate) deep: Option<bool>,
    pub(crate) kernel: Kernel,
    pub(crate) mode: Mode,
    pub(crate) grid: [Extent; 3],
    pub(crate) block: u32,
    pub(crate) shared: u32,
    pub(crate) params: Vec<u8>,
}

impl Launch {
    /// Whether steps of a bucket have it.
    pub(crate) fn is_of(&self, bucket: Bucket) -> bool {
        let made = self.when.holds(bucket);
        let wanted = match self.kind {
            None => true,
            Some(RowKind::Prompt) => bucket.kinds.prompts,
            Some(RowKind::Reply) => bucket.kinds.replies,
        };
        let fits = self
            .singles
            .is_none_or(|(is, most)| is == (bucket.turns_heads() && bucket.rows <= most));
        let taped = self.taped.is_none_or(|is| is == bucket.is_taped());
        let deep = self.deep.is_none_or(|is| is == bucket.deep);
        made && wanted && fits && taped && deep
    }

    /// Launches it, if steps of the bucket have it.
    pub(crate) fn run(&self, stream: &Stream, bucket: Bucket) -> Result<()> {
        if !self.is_of(bucket) {
            return Ok(());
        }
        let mut grid = self.grid.map(|extent| extent.of(bucket));
        let function = match &self.kernel {
            &Kernel::One(function) => function,
            &Kernel::ByRows(lead, functions) => {
                let rows = bucket.of(lead) as u32;
                let size = rows.next_power_of_two().trailing_zeros().min(3);
                grid[1] = rows.div_ceil(1 << size).max(1);
                functions[size as usize]
            }
            Kernel::Tiles(lead, tiles) => {
                let rows = bucket.of(*lead);
                let busy = |t: &&Tile| t.down(rows) * t.blocks >= t.least;
                let tile = tiles.iter().find(busy).unwrap_or(&tiles[1]);
                return self.tiled(stream, tile, rows);
            }
            Kernel::Rounds(lead, tiles) => {
                let rows = bucket.of(*lead);
                let cheapest = tiles
                    .iter()
                    .min_by_key(|(tile, each)| tile.rounds(rows) * each);
                return self.tiled(stream, &cheapest.expect("there are tiles").0, rows);
            }
            Kernel::Fitting(lead, tiles) => {
                let rows = bucket.of(*lead);
                let holds = |t: &&Tile| u64::from(t.rows) >= rows;
                let fits = tiles.iter().find(holds).or(tiles.last());
                return self.tiled(stream, fits.expect("there are tiles"), rows);
            }
        };
        let shape = (self.block, self.shared);
        stream.launch_as(self.mode, function, grid, shape, &self.params)
    }

    /// Tiles of the same outputs run side by side, so that weights are read once.
    fn tiled(&self, stream: &Stream, tile: &Tile, rows: u64) -> Result<()> {
        let down = tile.down(rows);
        let grid = match tile.most {
            Some(most) => [(down * tile.blocks).min(most), 1, 1],
            None => [down, tile.blocks, 1],
        };
        let shape = (tile.threads, tile.shared);
        stream.launch_as(self.mode, tile.function, grid, shape, &self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of so many rows of as many sequences.
    fn singles(rows: u32) -> Bucket {
        Bucket {
            rows,
            seqs: rows,
            logits: rows,
            kinds: Kinds {
                prompts: false,
                replies: true,
            },
            singles: true,
            deep: false,
            told: false,
            measured: false,
        }
    }

    #[test]
    fn launches_are_for_so_many_of_a_lead() {
        let few = When::Counts(Lead::Rows, 2, 4);
        let made = [1, 2, 4, 8].map(|rows| few.holds(singles(rows)));
        assert_eq!(made, [false, true, true, false]);
        assert!(When::one(Lead::LogitRows).holds(singles(1)));
        assert!(!When::more(Lead::Seqs).holds(singles(1)));
        assert!(When::more(Lead::Seqs).holds(singles(256)));
    }

    #[test]
    fn grids_follow_the_bucket() {
        let bucket = Bucket {
            rows: 4,
            seqs: 2,
            logits: 1,
            kinds: Kinds {
                prompts: true,
                replies: true,
            },
            singles: false,
            deep: false,
            told: false,
            measured: false,
        };
        assert_eq!(Extent::elements(Lead::Rows, 100, 256).of(bucket), 2);
        assert_eq!(
            Extent::elements(Lead::Rows, 1000, 1).at_most(64).of(bucket),
            64
        );
        assert_eq!(Extent::rows(Lead::Seqs).of(bucket), 2);
        assert_eq!(Extent::ONE.of(bucket), 1);
    }
}
