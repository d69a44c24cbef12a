//! A lowered plan: dispatches in order, their grids by the size of a step.

use std::sync::{Arc, OnceLock};

use tokkata_ir::{BackendError, Lead};

use crate::gpu::Gpu;
use crate::preprocess::Constants;

/// Rows, sequences and logit rows of a step, and which kinds of rows there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size {
    pub(crate) rows: u32,
    pub(crate) seqs: u32,
    pub(crate) logits: u32,
    pub(crate) prompts: bool,
    pub(crate) replies: bool,
    /// Whether there is one row of every sequence, and none of a prompt.
    pub(crate) singles: bool,
}

impl Size {
    pub(crate) fn of(self, lead: Lead) -> u32 {
        match lead {
            Lead::Rows => self.rows,
            Lead::Seqs => self.seqs,
            Lead::LogitRows => self.logits,
        }
    }
}

/// For which kind of rows a dispatch is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    Prompt,
    Reply,
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

    /// A workgroup for every `per` of so many elements of each row of a lead.
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

    fn of(self, size: Size) -> u32 {
        let lead = self.lead.map_or(1, |lead| u64::from(size.of(lead)));
        let groups = (lead * self.times).div_ceil(self.per).min(self.most);
        u32::try_from(groups).expect("grids fit 32 bits")
    }
}

/// A variant of a kernel, made when it is first used.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    kernel: (&'static str, &'static str),
    constants: Constants,
    made: Arc<OnceLock<wgpu::ComputePipeline>>,
}

impl Pipeline {
    pub(crate) fn new(kernel: (&'static str, &'static str), constants: Constants) -> Self {
        Pipeline {
            kernel,
            constants,
            made: Arc::default(),
        }
    }

    pub(crate) fn get(&self, gpu: &Gpu) -> Result<wgpu::ComputePipeline, BackendError> {
        if let Some(made) = self.made.get() {
            return Ok(made.clone());
        }
        let pipeline = gpu.pipeline(self.kernel, &self.constants)?;
        Ok(self.made.get_or_init(|| pipeline).clone())
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

/// A kernel with its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Made for steps with such rows; `None`: for all.
    pub(crate) kind: Option<RowKind>,
    /// Made only for steps of one row of each sequence, or only for others.
    pub(crate) singles: Option<bool>,
    pub(crate) kernel: Kernel,
    pub(crate) grid: [Extent; 3],
    /// The arena of weights that it reads.
    pub(crate) arena: usize,
    /// Its place among the parameters.
    pub(crate) params: u32,
}

impl Launch {
    /// The pipeline and the grid for a step; `None` where nothing is to be done.
    pub(crate) fn of(&self, size: Size) -> Option<(&Pipeline, [u32; 3])> {
        let wanted = match self.kind {
            None => true,
            Some(RowKind::Prompt) => size.prompts,
            Some(RowKind::Reply) => size.replies,
        };
        let fits = self.singles.is_none_or(|is| is == size.singles);
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
        (wanted && fits && !grid.contains(&0)).then_some((pipeline, grid))
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
            replies: true,
            singles: false,
        };
        assert_eq!(Extent::elements(Lead::Rows, 100, 256).of(size), 2);
        let many = Extent::elements(Lead::Rows, 1000, 1).at_most(64);
        assert_eq!(many.of(size), 64);
        assert_eq!(Extent::rows(Lead::Seqs).of(size), 2);
        assert_eq!(Extent::rows(Lead::LogitRows).of(size), 0);
        assert_eq!(Extent::ONE.of(size), 1);
    }
}
