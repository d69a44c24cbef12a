//! Importance matrices: how strongly each column of a weight is used, in llama.cpp's files.

mod collect;
mod file;
mod statistics;

use std::collections::BTreeMap;

use tokkata_formats::FormatError;

pub(crate) use collect::product_values;
pub use collect::{Collected, Collector};
pub use statistics::{LayerStatistics, TensorStatistics, layers, tensors};

/// Why an importance matrix could not be read or used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ImportanceError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("{file}: cannot read the importance matrix: {source}")]
    Io {
        file: String,
        source: std::io::Error,
    },
    #[error(
        "{file}: found {found}, expected an importance matrix in llama.cpp's GGUF or older format"
    )]
    Shape { file: String, found: String },
    #[error("{file}: found {found} for {weight}, expected {expected}; it belongs to another model")]
    Merge {
        file: String,
        weight: String,
        found: usize,
        expected: usize,
    },
    #[error("{weight}: its inputs are not finite; the model or its file is broken")]
    NotFinite { weight: String },
}

/// Squared inputs of one weight, added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// One sum per column, for each expert after the other.
    pub sums: Vec<f32>,
    /// Rows that were added, for each expert or once for all.
    pub counts: Vec<u64>,
}

impl Inputs {
    /// Means of squared inputs; ones for an expert that nothing went through.
    #[must_use]
    pub fn means(&self) -> Vec<f32> {
        let width = (self.sums.len() / self.counts.len().max(1)).max(1);
        let experts = self.sums.chunks(width).zip(&self.counts);
        experts
            .flat_map(|(sums, &count)| {
                sums.iter().map(move |sum| match count {
                    0 => 1.0,
                    _ => sum / count as f32,
                })
            })
            .collect()
    }

    /// Adds the squares of one input row of expert `expert` of `experts`.
    pub fn add(&mut self, row: &[f32], expert: usize, experts: usize) {
        if self.sums.is_empty() {
            self.sums = vec![0.0; row.len() * experts];
            self.counts = vec![0; experts];
        }
        let sums = &mut self.sums[expert * row.len()..][..row.len()];
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += x * x;
        }
        self.counts[expert] += 1;
    }

    /// Adds what was measured elsewhere; `Err` has the number of values found and the number expected.
    fn merge(&mut self, other: &Inputs) -> Result<(), (usize, usize)> {
        if self.sums.is_empty() {
            self.sums = vec![0.0; other.sums.len()];
            self.counts = vec![0; other.counts.len()];
        }
        if self.counts.len() == 1 && other.counts.len() > 1 {
            // One count for all experts, as older files have it.
            self.counts = vec![self.counts[0]; other.counts.len()];
        }
        let fits = |mine: usize, others: usize| match mine == others {
            true => Ok(()),
            false => Err((others, mine)),
        };
        fits(self.sums.len(), other.sums.len())?;
        if other.counts.len() > 1 {
            fits(self.counts.len(), other.counts.len())?;
        }
        self.sums
            .iter_mut()
            .zip(&other.sums)
            .for_each(|(a, b)| *a += b);
        let counts = self.counts.iter_mut().zip(other.counts.iter().cycle());
        counts.for_each(|(a, b)| *a += b);
        Ok(())
    }
}

/// What was measured of each weight, by the weight's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// The measurements.
    pub entries: BTreeMap<String, Inputs>,
    /// Names of the texts that the model read.
    pub datasets: Vec<String>,
    /// Chunks of text.
    pub chunks: u32,
    /// Tokens of a chunk; `None` in old files.
    pub chunk_tokens: Option<u32>,
}

impl Importance {
    /// Adds what `other`, read from `file`, measured. Files of the older kind are means over chunks, here of
    /// `chunk_tokens` tokens.
    ///
    /// # Errors
    /// [`ImportanceError::Merge`] for a file of another model.
    pub fn merge(
        &mut self,
        mut other: Importance,
        file: &str,
        chunk_tokens: u32,
    ) -> Result<(), ImportanceError> {
        if other.chunk_tokens.is_none() {
            other.scale(chunk_tokens);
        }
        for (weight, inputs) in &other.entries {
            let entry = self.entries.entry(weight.clone()).or_default();
            let wrong = |(found, expected)| ImportanceError::Merge {
                file: file.to_owned(),
                weight: weight.clone(),
                found,
                expected,
            };
            entry.merge(inputs).map_err(wrong)?;
        }
        self.datasets.extend(other.datasets);
        self.count_chunks(chunk_tokens);
        Ok(())
    }

    /// Counts chunks as the most rows that any weight saw.
    pub fn count_chunks(&mut self, chunk_tokens: u32) {
        let counts = self.entries.values().flat_map(|inputs| &inputs.counts);
        let most = counts.max().copied().unwrap_or(0) / u64::from(chunk_tokens.max(1));
        self.chunks = u32::try_from(most).unwrap_or(u32::MAX);
        self.chunk_tokens = Some(chunk_tokens);
    }

    fn scale(&mut self, chunk_tokens: u32) {
        for inputs in self.entries.values_mut() {
            inputs
                .sums
                .iter_mut()
                .for_each(|sum| *sum *= chunk_tokens as f32);
            let counts = inputs.counts.iter_mut();
            counts.for_each(|count| *count *= u64::from(chunk_tokens));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Importance {
        let mut inputs = Inputs::default();
        inputs.add(&[1.0, 2.0], 0, 2);
        inputs.add(&[3.0, 4.0], 0, 2);
        Importance {
            entries: [("blk.0.ffn_up_exps.weight".to_owned(), inputs)].into(),
            datasets: vec!["text.txt".into()],
            chunks: 3,
            chunk_tokens: Some(512),
        }
    }

    #[test]
    fn experts_without_inputs_weigh_one() {
        let means = sample().entries["blk.0.ffn_up_exps.weight"].means();
        assert_eq!(means, [5.0, 10.0, 1.0, 1.0]);
    }

    #[test]
    fn files_of_other_kinds_add_up() {
        let mut all = sample();
        all.merge(sample(), "b", 2).unwrap();
        let inputs = &all.entries["blk.0.ffn_up_exps.weight"];
        assert_eq!(inputs.counts, [4, 0]);
        assert_eq!(inputs.sums, [20.0, 40.0, 0.0, 0.0]);
        assert_eq!((all.chunks, all.datasets.len()), (2, 2));
        let mut old = sample();
        old.chunk_tokens = None;
        all.merge(old, "c", 2).unwrap();
        assert_eq!(all.entries["blk.0.ffn_up_exps.weight"].counts, [8, 0]);
        let mut other = sample();
        let wide = other.entries.values_mut().next().unwrap();
        wide.sums.push(1.0);
        let error = all.merge(other, "other.gguf", 2).unwrap_err().to_string();
        assert!(error.contains("other.gguf: found 5 for blk.0"), "{error}");
    }
}
