//! A lowered plan: dispatches in order, their grids by the size of a step.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use tokkata_ir::{BackendError, Lead};

use crate::gpu::Gpu;
use crate::preprocess::Constants;
use crate::replay::{Prepared, Replay};

/// Rows, sequences and logit rows of a step, and which kinds of rows there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size {
    pub(crate) rows: u32,
    pub(crate) seqs: u32,
    pub(crate) logits: u32,
    pub(crate) prompts: bool,
    /// Of each lead, those up to the last one of a reply: what comes behind is a prompt's, whether it runs or not.
    pub(crate) replies: [u32; 3],
    /// Whether there is one row of every sequence, and none of a prompt.
    pub(crate) singles: bool,
    /// Positions of the longest sequence, or more.
    pub(crate) positions: u32,
    /// How keys are divided in any case.
    pub(crate) told: Option<Split>,
}

impl Size {
    pub(crate) fn of(self, lead: Lead) -> u32 {
        match lead {
            Lead::Rows => self.rows,
            Lead::Seqs => self.seqs,
            Lead::LogitRows => self.logits,
        }
    }

    /// What kernels for such rows see of the step; `None` where it has none.
    fn for_kind(self, kind: Option<RowKind>) -> Option<Size> {
        match kind {
            None => Some(self),
            Some(RowKind::Prompt) => self.prompts.then_some(self),
            Some(RowKind::Reply) => {
                let [rows, seqs, logits] = self.replies;
                let size = Size {
                    rows,
                    seqs,
                    logits,
                    ..self
                };
                (rows > 0).then_some(size)
            }
        }
    }
}

/// For which kind of rows a dispatch is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    Prompt,
    Reply,
}

/// What a dimension of a grid follows.
#[derive(Clone, Copy, Debug)]
enum Follows {
    Nothing,
    Lead(Lead),
    Positions,
}

/// One dimension of a grid: `⌈what it follows · times / per⌉`, at most `most`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    follows: Follows,
    times: u64,
    per: u64,
    most: u64,
}

impl Extent {
    pub(crate) const ONE: Extent = Extent::fixed(1);

    pub(crate) const fn fixed(n: u32) -> Extent {
        Extent {
            follows: Follows::Nothing,
            times: n as u64,
            per: 1,
            most: u64::MAX,
        }
    }

    /// A workgroup for every `per` of so many elements of each row of a lead.
    pub(crate) fn elements(lead: Lead, times: u64, per: u32) -> Extent {
        Extent {
            follows: Follows::Lead(lead),
            times,
            per: per.into(),
            most: u64::MAX,
        }
    }

    /// A workgroup for every so many positions of the longest sequence.
    pub(crate) fn positions(per: u32) -> Extent {
        Extent {
            follows: Follows::Positions,
            per: per.into(),
            ..Extent::ONE
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

    fn of(self, size: Size) -> u32 {
        let n = match self.follows {
            Follows::Nothing => 1,
            Follows::Lead(lead) => u64::from(size.of(lead)),
            Follows::Positions => u64::from(size.positions),
        };
        let groups = (n * self.times).div_ceil(self.per).min(self.most);
        u32::try_from(groups).expect("grids fit 32 bits")
    }
}

/// Positions of a unit and of a span, as `attend.wgsl` has them.
pub(crate) const UNIT: u32 = 64;
pub(crate) const SPAN: u32 = 16 * UNIT;

/// How a row's keys are divided among workgroups; it changes no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Split {
    Whole,
    Spans,
    Units,
}

/// What an attention leaves where a row's keys are divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    /// Positions that rows see, where that does not follow from the longest sequence.
    pub(crate) positions: Option<u32>,
    /// Workgroups of a row, and how many leave none of the adapter idle.
    pub(crate) groups: u32,
    pub(crate) enough: u32,
    /// Words that a part of a row leaves, and room for all.
    pub(crate) words: u64,
    pub(crate) room: u64,
}

impl Division {
    /// The finest that is worth its second dispatch, and for which there is room.
    fn of(self, size: Size) -> Split {
        if let Some(told) = size.told {
            return told;
        }
        let positions = self.positions.unwrap_or(size.positions);
        let rows = u64::from(size.rows);
        let fits = |per: u32| rows * u64::from(positions.div_ceil(per)) * self.words <= self.room;
        let busy = rows * u64::from(self.groups) >= self.enough.into();
        match () {
            () if positions <= UNIT || busy => Split::Whole,
            () if fits(UNIT) => Split::Units,
            () if positions > SPAN && fits(SPAN) => Split::Spans,
            () => Split::Whole,
        }
    }
}

/// A variant of a kernel, made when it is first used.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    kernel: (&'static str, &'static str),
    constants: Constants,
    made: Arc<OnceLock<wgpu::ComputePipeline>>,
    /// As it is replayed.
    prepared: Arc<OnceLock<Prepared>>,
}

impl Pipeline {
    pub(crate) fn new(kernel: (&'static str, &'static str), constants: Constants) -> Self {
        Pipeline {
            kernel,
            constants,
            made: Arc::default(),
            prepared: Arc::default(),
        }
    }

    pub(crate) fn get(&self, gpu: &Gpu) -> Result<wgpu::ComputePipeline, BackendError> {
        if let Some(made) = self.made.get() {
            return Ok(made.clone());
        }
        let pipeline = gpu.pipeline(self.kernel, &self.constants)?;
        Ok(self.made.get_or_init(|| pipeline).clone())
    }

    /// The same for the only one who replays it.
    pub(crate) fn prepared(&self, replay: &Replay) -> Result<Prepared, BackendError> {
        if let Some(&made) = self.prepared.get() {
            return Ok(made);
        }
        let made = replay.prepare(self.kernel, &self.constants)?;
        Ok(*self.prepared.get_or_init(|| made))
    }
}

#[cfg(test)]
impl Pipeline {
    /// Constants whose values are the model's or the adapter's: any.
    const SIZES: &[&str] = &["DIM_K", "DIM_V", "CHUNK", "HALVES", "CACHE", "MOST_GROUPS"];

    fn own(&self) -> impl Iterator<Item = &(String, u32)> {
        let of_all = |name: &str| name.starts_with("S_") || name.starts_with("T_");
        let own = self.constants.iter();
        own.filter(move |c| !of_all(&c.0) && c.0 != "SUBGROUPS")
    }

    /// Whether it is a variant, of whatever size.
    pub(crate) fn is_like(&self, (file, constants): &crate::kernels::Variant) -> bool {
        let value = |name: &str| constants.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
        let same = |c: &(String, u32)| Self::SIZES.contains(&c.0.as_str()) || value(&c.0) == c.1;
        let has = |c: &(&str, u32)| {
            c.1 == 0 || c.0 == "HALVES" || c.0 == "CACHE" || self.own().any(|own| own.0 == c.0)
        };
        *file == self.kernel.0 && self.own().all(same) && constants.iter().all(has)
    }

    pub(crate) fn said(&self) -> String {
        let own = self.own().map(|c| format!(" {}={}", c.0, c.1));
        std::iter::once(format!("{:?}", self.kernel))
            .chain(own)
            .collect()
    }
}

/// What is dispatched.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    One(Pipeline),
    /// That for as many rows at a time as the step's lead has, of which the grid's second dimension has so many for each; by
    /// powers of two.
    ByRows(Lead, u32, Vec<Pipeline>),
}

#[cfg(test)]
impl Kernel {
    pub(crate) fn pipelines(&self) -> &[Pipeline] {
        match self {
            Kernel::One(pipeline) => std::slice::from_ref(pipeline),
            Kernel::ByRows(_, _, pipelines) => pipelines,
        }
    }
}

/// A kernel with its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Made for steps with such rows; `None`: for all.
    pub(crate) kind: Option<RowKind>,
    /// Made only for steps of one row of each sequence, or only for others.
    pub(crate) singles: Option<bool>,
    /// Made only for steps that have so many of a lead, of its kind.
    pub(crate) count: Option<(Lead, Range<u32>)>,
    /// Made only where keys are divided so.
    pub(crate) split: Option<(Division, Split)>,
    pub(crate) kernel: Kernel,
    pub(crate) grid: [Extent; 3],
    /// It reads nothing that the dispatch before it writes, nor is anything that is read there written here.
    pub(crate) beside: bool,
    /// The arena of weights that it reads.
    pub(crate) arena: usize,
    /// Its place among the parameters.
    pub(crate) params: u32,
}

impl Launch {
    /// The pipeline and the grid for a step; `None` where nothing is to be done.
    pub(crate) fn of(&self, size: Size) -> Option<(&Pipeline, [u32; 3])> {
        let size = size.for_kind(self.kind)?;
        let divided = self.split.is_none_or(|(d, split)| d.of(size) == split);
        let fits = divided && self.singles.is_none_or(|is| is == size.singles);
        let counts = |(lead, range): &(Lead, Range<u32>)| range.contains(&size.of(*lead));
        let fits = fits && self.count.as_ref().is_none_or(counts);
        let mut grid = self.grid.map(|extent| extent.of(size));
        let pipeline = match &self.kernel {
            Kernel::One(pipeline) => pipeline,
            Kernel::ByRows(lead, times, pipelines) => {
                let rows = size.of(*lead) * times;
                let most = pipelines.len() - 1;
                let by = (rows.max(1).next_power_of_two().trailing_zeros() as usize).min(most);
                grid[1] = rows.div_ceil(1 << by);
                &pipelines[by]
            }
        };
        (fits && !grid.contains(&0)).then_some((pipeline, grid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_follow_the_step() {
        let size = Size {
            rows: 4,
            seqs: 2,
            logits: 0,
            prompts: true,
            replies: [1, 1, 0],
            singles: false,
            positions: 130,
            told: None,
        };
        assert_eq!(Extent::positions(64).of(size), 3);
        assert_eq!(Extent::elements(Lead::Rows, 100, 256).of(size), 2);
        let many = Extent::elements(Lead::Rows, 1000, 1).at_most(64);
        assert_eq!(many.of(size), 64);
        assert_eq!(Extent::rows(Lead::Seqs).of(size), 2);
        assert_eq!(Extent::rows(Lead::LogitRows).of(size), 0);
        assert_eq!(Extent::ONE.of(size), 1);
    }

    #[test]
    fn rows_of_replies_end_where_those_of_prompts_begin() {
        let launch = |kind| Launch {
            kind,
            singles: None,
            count: None,
            split: None,
            kernel: Kernel::ByRows(
                Lead::Rows,
                1,
                ["one", "two", "four"]
                    .map(|name| Pipeline::new(("products.wgsl", name), Vec::new()))
                    .into(),
            ),
            grid: [Extent::fixed(7), Extent::ONE, Extent::ONE],
            beside: false,
            arena: 0,
            params: 0,
        };
        let size = |replies| Size {
            rows: 512,
            seqs: 4,
            logits: 4,
            prompts: true,
            replies: [replies, replies, replies],
            singles: false,
            positions: 600,
            told: None,
        };
        let of = |kind, replies| {
            let launch = launch(kind);
            let found = launch.of(size(replies));
            found.map(|(pipeline, grid)| (pipeline.kernel.1, grid))
        };
        let (prompt, reply) = (Some(RowKind::Prompt), Some(RowKind::Reply));
        assert_eq!(of(None, 3), Some(("four", [7, 128, 1])));
        assert_eq!(of(prompt, 3), Some(("four", [7, 128, 1])));
        assert_eq!(of(reply, 0), None);
        assert_eq!(of(reply, 1), Some(("one", [7, 1, 1])));
        assert_eq!(of(reply, 2), Some(("two", [7, 1, 1])));
        assert_eq!(of(reply, 9), Some(("four", [7, 3, 1])));
    }

    #[test]
    fn keys_are_divided_where_few_workgroups_would_run() {
        let size = |rows, positions| Size {
            rows,
            seqs: rows,
            logits: rows,
            prompts: false,
            replies: [rows; 3],
            singles: true,
            positions,
            told: None,
        };
        let division = Division {
            positions: None,
            groups: 8,
            enough: 256,
            words: 100,
            room: 10_000,
        };
        let of = |rows, positions| division.of(size(rows, positions));
        assert_eq!(of(1, 64), Split::Whole);
        assert_eq!(of(1, 65), Split::Units);
        assert_eq!(of(1, 100 * UNIT), Split::Units);
        assert_eq!(of(1, 101 * UNIT), Split::Spans);
        assert_eq!(of(1, 101 * SPAN), Split::Whole);
        assert_eq!(of(32, 65), Split::Whole);
        let cross = Division {
            positions: Some(1500),
            ..division
        };
        assert_eq!(cross.of(size(1, 3)), Split::Units);
    }
}
