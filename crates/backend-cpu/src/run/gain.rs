//! Whether steps of a small model are worth more than one worker.

use std::time::Duration;

/// Weights of a model whose steps of few rows may be over before workers have met as often as they must.
const SMALL_BYTES: u64 = 32 << 20;
/// Rows of such a step.
const FEW_ROWS: usize = 4;
/// Steps of each kind that are looked at, after one that warms up.
const LOOKS: u32 = 3;
/// Steps until it is looked at again.
const LASTS: u32 = 2000;
/// Of the time that one worker takes, what all must stay below.
const WORTH: f64 = 0.9;

/// Looks at some steps with one worker and at some with all, then goes on with what was faster.
#[derive(Debug, Default)]
pub(super) struct Gain {
    small: bool,
    steps: u32,
    /// Time of the steps that were looked at: with one worker, and with all.
    took: [Duration; 2],
}

impl Gain {
    pub(super) fn new(weight_bytes: u64, workers: usize) -> Self {
        Gain {
            small: weight_bytes <= SMALL_BYTES && workers > 1,
            ..Gain::default()
        }
    }

    /// Workers that a step of so many rows is to have at most.
    pub(super) fn most(&self, rows: usize) -> usize {
        let one = match self.steps / (LOOKS + 1) {
            0 => true,
            1 => false,
            _ => self.took[1].as_secs_f64() > WORTH * self.took[0].as_secs_f64(),
        };
        if self.small && rows <= FEW_ROWS && one {
            1
        } else {
            usize::MAX
        }
    }

    /// A step of so many rows took so long.
    pub(super) fn saw(&mut self, rows: usize, took: Duration) {
        if !self.small || rows > FEW_ROWS {
            return;
        }
        let kind = (self.steps / (LOOKS + 1)) as usize;
        if let (Some(all), 1..) = (self.took.get_mut(kind), self.steps % (LOOKS + 1)) {
            *all += took;
        }
        self.steps += 1;
        if self.steps == LASTS {
            (self.steps, self.took) = (0, [Duration::ZERO; 2]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers of steps of one row that take so many microseconds with one and with all.
    fn chosen(gain: &mut Gain, one: u64, all: u64) -> usize {
        for _ in 0..2 * (LOOKS + 1) {
            let took = if gain.most(1) == 1 { one } else { all };
            gain.saw(1, Duration::from_micros(took));
        }
        gain.most(1)
    }

    #[test]
    fn small_models_have_what_is_faster() {
        let mut gain = Gain::new(5 << 20, 2);
        assert_eq!(chosen(&mut gain, 140, 150), 1);
        assert_eq!(gain.most(64), usize::MAX, "prompts gain");
        for _ in 2 * (LOOKS + 1)..LASTS {
            gain.saw(1, Duration::from_micros(140));
        }
        assert_eq!(chosen(&mut gain, 140, 80), usize::MAX, "times change");
    }

    #[test]
    fn others_are_not_looked_at() {
        assert_eq!(chosen(&mut Gain::new(400 << 20, 16), 100, 1000), usize::MAX);
        assert_eq!(chosen(&mut Gain::new(5 << 20, 1), 100, 1000), usize::MAX);
    }
}
