//! A row of logits as a draw sees it: bias, mask and penalties applied where they are looked at.

use super::BadLogits;
use super::fixed::Fixed;
use super::mask::Mask;
use super::record::SamplerRecord;

/// What a draw needs beyond the record: per logit row, prepared by the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSide {
    /// Added to logits by id.
    pub bias: Vec<(u32, Fixed)>,
    /// What is allowed; `None` allows all.
    pub mask: Option<Mask>,
    /// Tokens before the one drawn, oldest first: at least as many as the record calls recent, or all there are.
    pub recent: Vec<u32>,
    /// Subtracted from logits by id (DRY).
    pub dry: Vec<(u32, Fixed)>,
}

impl SampleSide {
    /// Together with logits, as a draw takes them.
    #[must_use]
    pub fn row<'a>(&'a self, logits: &'a [f32], position: u32) -> Row<'a> {
        Row {
            logits,
            position,
            bias: &self.bias,
            mask: self.mask.as_ref().map(Mask::words),
            recent: &self.recent,
            dry: &self.dry,
        }
    }
}

/// A row of logits, and what changes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row<'a> {
    /// Logits by id.
    pub logits: &'a [f32],
    /// The row's own position: that of the token it was computed from, one before the token that is drawn.
    pub position: u32,
    /// Added to logits by id, in this order.
    pub bias: &'a [(u32, Fixed)],
    /// One bit per id, 1 allowed; ids beyond its words are not. `None` allows all.
    pub mask: Option<&'a [u32]>,
    /// Tokens before the one drawn, oldest first; penalties see the newest of them.
    pub recent: &'a [u32],
    /// Subtracted from logits by id, after the penalties.
    pub dry: &'a [(u32, Fixed)],
}

/// Logits looked at together: one word of a mask, and independent enough for vectors.
const BLOCK: usize = 32;

impl Row<'_> {
    /// The word of a mask that a block has.
    fn allowed(&self, block: usize) -> u32 {
        self.mask
            .map_or(u32::MAX, |mask| mask.get(block).copied().unwrap_or(0))
    }

    fn allows(&self, id: u32) -> bool {
        self.allowed(id as usize / BLOCK) >> (id as usize % BLOCK) & 1 != 0
    }

    /// Ids whose logits change, ascending, with the changed logits: bias, mask, penalties and DRY.
    pub(super) fn touched(&self, record: &SamplerRecord, out: &mut Vec<(u32, Fixed)>) {
        let recent = self.recent.len().min(record.recent as usize);
        let recent = &self.recent[self.recent.len() - recent..];
        let side = self.bias.iter().chain(self.dry).map(|&(id, _)| id);
        let ids = side.chain(recent.iter().copied());
        out.clear();
        out.extend(ids.map(|id| (id, Fixed::ZERO)));
        out.sort_unstable_by_key(|t| t.0);
        out.dedup_by_key(|t| t.0);
        out.retain(|t| (t.0 as usize) < self.logits.len());
        for (id, value) in out.iter_mut() {
            if self.allows(*id) {
                *value = Fixed::of(self.logits[*id as usize]);
            } else {
                *value = Fixed::EXCLUDED;
            }
        }
        for &(id, bias) in self.bias {
            change(out, id, |x| x.plus(bias));
        }
        penalise(out, recent, record);
        for &(id, penalty) in self.dry {
            change(out, id, |x| x.minus(penalty));
        }
    }

    /// Visits candidates in order of their ids, with their values and their logits as they came. A visit returns a
    /// logit: untouched logits up to it are not visited any more.
    ///
    /// # Errors
    /// A logit that is not a number, wherever it is.
    pub(super) fn walk(
        &self,
        mut touched: &[(u32, Fixed)],
        mut visit: impl FnMut(u32, Fixed, f32) -> f32,
    ) -> Result<(), BadLogits> {
        if self.mask.is_some() && any(self.logits, f32::is_nan) {
            return Err(BadLogits::NotANumber);
        }
        let mut least = f32::NEG_INFINITY;
        for (b, block) in self.logits.chunks(BLOCK).enumerate() {
            let (start, allowed) = ((b * BLOCK) as u32, self.allowed(b));
            let here = touched.partition_point(|t| t.0 < start + BLOCK as u32);
            let here = touched.split_off(..here).unwrap_or_default();
            // What is not a number is not "at most" either, and so is looked at.
            #[allow(clippy::neg_cmp_op_on_partial_ord)]
            let above = |x: f32| !(x <= least);
            if allowed == 0 || here.is_empty() && !any(block, above) {
                continue;
            }
            for (i, &x) in block.iter().enumerate() {
                let id = start + i as u32;
                if x.is_nan() {
                    return Err(BadLogits::NotANumber);
                }
                let known = here.iter().find(|t| t.0 == id).map(|t| t.1);
                let skipped = known.is_none() && x <= least;
                if skipped || allowed >> i & 1 == 0 {
                    continue;
                }
                let value = known.unwrap_or_else(|| Fixed::of(x));
                if value != Fixed::EXCLUDED {
                    least = visit(id, value, x);
                }
            }
        }
        Ok(())
    }
}

/// Whether any logit is such; whole blocks go into vectors.
#[inline]
fn any(logits: &[f32], such: impl Fn(f32) -> bool) -> bool {
    let fold = |block: &[f32]| block.iter().fold(false, |any, &x| any | such(x));
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    blocks.iter().any(|block| fold(block)) || fold(rest)
}

fn change(touched: &mut [(u32, Fixed)], id: u32, to: impl FnOnce(Fixed) -> Fixed) {
    if let Ok(at) = touched.binary_search_by_key(&id, |t| t.0) {
        touched[at].1 = to(touched[at].1);
    }
}

/// Penalties of tokens by how often each occurs.
fn penalise(touched: &mut [(u32, Fixed)], recent: &[u32], record: &SamplerRecord) {
    let mut sorted = recent.to_vec();
    sorted.sort_unstable();
    for run in sorted.chunk_by(|a, b| a == b) {
        change(touched, run[0], |x| penalised(x, run.len() as u32, record));
    }
}

/// A logit whose token was seen `count` times of late.
#[must_use]
pub fn penalised(logit: Fixed, count: u32, record: &SamplerRecord) -> Fixed {
    let factor = if logit > Fixed::ZERO {
        record.repeat_inverse
    } else {
        record.repeat
    };
    let per_token = record.frequency.times(count);
    logit.scaled(factor).minus(per_token.plus(record.presence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Parameters;

    fn fixed(x: f32) -> Fixed {
        Fixed::new(x).unwrap()
    }

    #[test]
    fn bias_mask_and_penalties_apply_in_order() {
        let record = Parameters {
            repeat: 2.0,
            presence: 1.0,
            frequency: 0.5,
            recent: 2,
            ..Parameters::default()
        };
        let row = Row {
            logits: &[0.0, 3.0, 1.0, -1.0],
            bias: &[
                (0, fixed(10.0)),
                (1, fixed(0.5)),
                (1, fixed(0.5)),
                (9, fixed(1.0)),
            ],
            mask: Some(&[0b1110]),
            recent: &[3, 1, 1],
            dry: &[(2, fixed(0.25)), (1, fixed(0.125))],
            ..Row::default()
        };
        let mut touched = Vec::new();
        row.touched(&record.record(), &mut touched);
        // 3 + ½ + ½, halved, less 2·½ and 1, less ⅛.
        let want = [(0, Fixed::EXCLUDED), (1, fixed(-0.125)), (2, fixed(0.75))];
        assert_eq!(touched, want);
        let negative = penalised(fixed(-1.0), 1, &record.record());
        assert_eq!(negative, fixed(-3.5));
    }

    #[test]
    fn what_is_excluded_stays_so() {
        let record = Parameters {
            frequency: -9.0,
            ..Parameters::default()
        };
        let row = Row {
            logits: &[f32::NEG_INFINITY, 1.0],
            bias: &[(0, Fixed::MAX), (1, Fixed::EXCLUDED)],
            recent: &[0, 1],
            ..Row::default()
        };
        let mut touched = Vec::new();
        row.touched(&record.record(), &mut touched);
        assert_eq!(touched, [(0, Fixed::EXCLUDED), (1, Fixed::EXCLUDED)]);
    }

    #[test]
    fn walks_visit_what_is_above_and_what_is_touched() {
        let mut logits = vec![0.0; 100];
        (logits[40], logits[70], logits[71]) = (2.0, 3.0, -1.0);
        let row = Row {
            logits: &logits,
            ..Row::default()
        };
        let mut seen = Vec::new();
        let touched = [(10, Fixed::EXCLUDED), (71, Fixed::MAX)];
        row.walk(&touched, |id, value, _| {
            seen.push((id, value));
            2.0f32.min(logits[40].max(logits[id as usize]))
        })
        .unwrap();
        let want = [(0, Fixed::ZERO), (70, fixed(3.0)), (71, Fixed::MAX)];
        assert_eq!(seen, want);
    }

    #[test]
    fn one_logit_that_is_not_a_number_is_enough() {
        for at in [0, 5, 31, 32, 64, 98] {
            for mask in [None, Some(&[0, 1, 0, 0][..])] {
                let mut logits = vec![1.0; 99];
                logits[at] = f32::NAN;
                let row = Row {
                    logits: &logits,
                    mask,
                    ..Row::default()
                };
                let found = row.walk(&[], |_, _, _| 9.0);
                assert_eq!(found, Err(BadLogits::NotANumber), "{at}");
            }
        }
    }
}
