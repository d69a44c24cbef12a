//! Random draws: parameters, logits, and what touches them.

use tokkata_ir::sample::{Fixed, Parameters, uniform};

/// Random parameters, rows and what touches them.
pub(crate) struct Chance {
    seed: u64,
    count: u64,
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Chance { seed, count: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.count += 1;
        uniform(self.seed, self.count)
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 16_777_216.0
    }

    /// One in three times.
    fn some(&mut self, on: f32, off: f32) -> f32 {
        if self.next().is_multiple_of(3) {
            on
        } else {
            off
        }
    }

    pub(crate) fn parameters(&mut self) -> Parameters {
        let power = |x: f32| 10f32.powf(6.0 * x - 3.0);
        let unit = [(); 12].map(|()| self.unit());
        Parameters {
            temperature: self.some(0.0, power(unit[0])),
            top_n_sigma: self.some(3.0 * unit[1], 0.0),
            top_k: self.some(60.0 * unit[2], 0.0) as u32,
            typical_p: self.some(unit[3], 1.0),
            top_p: self.some(unit[4], 1.0),
            min_p: self.some(unit[5].powi(3), 0.0),
            xtc_probability: self.some(2.0 * unit[6], 0.0),
            xtc_threshold: 0.3 * unit[7],
            repeat: self.some(0.5 + unit[8], 1.0),
            frequency: self.some(unit[9] - 0.3, 0.0),
            presence: self.some(unit[10] - 0.3, 0.0),
            recent: self.some(5.0, 1e9) as u32,
            seed: self.next(),
        }
    }

    pub(crate) fn logits(&mut self) -> Vec<f32> {
        let n = 1 + self.next() % 150;
        let spread = 10f32.powf(4.0 * self.unit() - 1.0);
        let step = self.some(0.5, 1e-6);
        let holes = self.some(0.4, 0.0);
        let mut one = || {
            let x = (self.unit() - 0.4) * spread;
            if self.unit() < holes {
                f32::NEG_INFINITY
            } else {
                (x / step).round() * step
            }
        };
        (0..n).map(|_| one()).collect()
    }

    pub(crate) fn pairs(&mut self, n: usize, span: f32) -> Vec<(u32, Fixed)> {
        let count = (self.some(8.0, 0.0)) as usize;
        let one = |_| {
            let x = if self.next().is_multiple_of(9) {
                f32::NEG_INFINITY
            } else {
                span * self.unit() - 1.0
            };
            (
                (self.next() % (n as u64 + 3)) as u32,
                Fixed::new(x).unwrap(),
            )
        };
        (0..count).map(one).collect()
    }
}
