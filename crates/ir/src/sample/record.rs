//! A sequence's sampling parameters, as people give them and as devices read them.

use super::fixed::Fixed;
use super::tables::neg_ln;

/// Words of a record in the step state.
pub const RECORD_WORDS: usize = 16;

/// A share of one that filters read as everything.
pub const ALL: u32 = u32::MAX;

/// How tokens are picked. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// 0 picks the largest logit.
    pub temperature: f32,
    /// Candidates kept; 0 keeps all.
    pub top_k: u32,
    /// Smallest set of this probability mass; 1 keeps all.
    pub top_p: f32,
    /// Least probability relative to the best; 0 keeps all.
    pub min_p: f32,
    /// Locally typical mass; 1 keeps all.
    pub typical_p: f32,
    /// Keep logits within this many standard deviations of the best; 0 keeps all.
    pub top_n_sigma: f32,
    /// Probability that XTC removes the top candidates; 0 never.
    pub xtc_probability: f32,
    /// XTC removes candidates of at least this probability, except the last of them; above ½ there are no two.
    pub xtc_threshold: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repeat: f32,
    /// Subtracted per recent occurrence.
    pub frequency: f32,
    /// Subtracted once from recent tokens.
    pub presence: f32,
    /// How many of the newest tokens are recent; [`u32::MAX`] for all.
    pub recent: u32,
    /// Seed; with a row's position it decides the row's draw alone.
    pub seed: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 1.0,
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
            recent: u32::MAX,
            seed: 0,
        }
    }
}

impl Parameters {
    /// The record: every constant that a draw needs, in fixed point. What is not a number counts as off.
    #[must_use]
    pub fn record(&self) -> SamplerRecord {
        let penalises = self.repeat != 1.0 || self.frequency != 0.0 || self.presence != 0.0;
        let never = self.xtc_threshold > 0.5;
        SamplerRecord {
            coldness: Coldness::of(self.temperature),
            top_k: self.top_k,
            top_p: share(self.top_p),
            typical_p: share(self.typical_p),
            min_p: depth(self.min_p),
            top_n_sigma: deviations(self.top_n_sigma),
            xtc_probability: if never {
                0
            } else {
                share(self.xtc_probability)
            },
            xtc_threshold: share(self.xtc_threshold),
            repeat: factor(f64::from(self.repeat)),
            repeat_inverse: factor(1.0 / f64::from(self.repeat)),
            frequency: Fixed::new(self.frequency).unwrap_or(Fixed::ZERO),
            presence: Fixed::new(self.presence).unwrap_or(Fixed::ZERO),
            recent: if penalises { self.recent } else { 0 },
            seed: self.seed,
        }
    }
}

/// Parameters of one sequence's draws, in fixed point. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplerRecord {
    /// `1/T`; none is greedy.
    pub coldness: Option<Coldness>,
    /// Candidates kept; 0 keeps all.
    pub top_k: u32,
    /// Mass of top-p with 32 fraction bits; [`ALL`] is off.
    pub top_p: u32,
    /// Mass of the typical with 32 fraction bits; [`ALL`] is off.
    pub typical_p: u32,
    /// `−ln` of min-p with 16 fraction bits: how far below the best a candidate may be; [`ALL`] is off.
    pub min_p: u32,
    /// Standard deviations with 16 fraction bits; 0 is off.
    pub top_n_sigma: u32,
    /// Chance that XTC applies with 32 fraction bits; 0 is never, [`ALL`] always.
    pub xtc_probability: u32,
    /// Probability from which XTC removes with 32 fraction bits.
    pub xtc_threshold: u32,
    /// Factor of negative logits of recent tokens with 24 fraction bits.
    pub repeat: u32,
    /// Factor of positive logits of recent tokens with 24 fraction bits.
    pub repeat_inverse: u32,
    /// Subtracted per recent occurrence.
    pub frequency: Fixed,
    /// Subtracted once from recent tokens.
    pub presence: Fixed,
    /// How many of the newest tokens are recent; 0 where nothing is penalised, [`ALL`] for all.
    pub recent: u32,
    /// Seed of the noise.
    pub seed: u64,
}

impl Default for SamplerRecord {
    fn default() -> Self {
        Parameters::default().record()
    }
}

impl SamplerRecord {
    /// The record as words of the step state.
    #[must_use]
    pub fn to_words(self) -> [u32; RECORD_WORDS] {
        let (mantissa, shift) = self.coldness.map_or((0, 0), |c| (c.mantissa, c.shift));
        [
            mantissa,
            shift,
            self.top_k,
            self.top_p,
            self.typical_p,
            self.min_p,
            self.top_n_sigma,
            self.xtc_probability,
            self.xtc_threshold,
            self.repeat,
            self.repeat_inverse,
            self.frequency.to_bits() as u32,
            self.presence.to_bits() as u32,
            self.recent,
            self.seed as u32,
            (self.seed >> 32) as u32,
        ]
    }

    /// The record from words of the step state; greedy where all of them are 0.
    #[must_use]
    pub fn from_words(words: &[u32]) -> Self {
        SamplerRecord {
            coldness: Coldness::of_words(words[0], words[1]),
            top_k: words[2],
            top_p: words[3],
            typical_p: words[4],
            min_p: words[5],
            top_n_sigma: words[6],
            xtc_probability: words[7],
            xtc_threshold: words[8],
            repeat: words[9],
            repeat_inverse: words[10],
            frequency: Fixed::from_bits(words[11] as i32),
            presence: Fixed::from_bits(words[12] as i32),
            recent: words[13],
            seed: u64::from(words[14]) | u64::from(words[15]) << 32,
        }
    }
}

/// An inverse temperature: `256 / T = mantissa / 2^shift`, so that the product with a difference of 16 fraction bits,
/// shifted, has 24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coldness {
    mantissa: u32,
    shift: u32,
}

impl Coldness {
    /// That of a temperature; none when it is not above 0.
    #[must_use]
    pub fn of(temperature: f32) -> Option<Self> {
        if temperature.is_nan() || temperature <= 0.0 {
            return None;
        }
        let bits = (256.0 / f64::from(temperature)).to_bits();
        let exponent = (bits >> 52) as i32 - 1023;
        let mantissa = (bits >> 21) as u32 | 1 << 31;
        let coldness = match 31 - exponent {
            ..0 => Coldness {
                mantissa: u32::MAX,
                shift: 0,
            },
            shift => Coldness {
                mantissa,
                shift: shift.min(63) as u32,
            },
        };
        Some(coldness)
    }

    fn of_words(mantissa: u32, shift: u32) -> Option<Self> {
        let shift = shift.min(63);
        (mantissa != 0).then_some(Coldness { mantissa, shift })
    }

    /// A difference of logits over the temperature, with 24 fraction bits, at most 64: more than any noise makes up.
    #[inline]
    pub(super) fn cool(self, below: u32) -> i32 {
        let product = (u64::from(below) * u64::from(self.mantissa)) >> self.shift;
        product.min(1 << 30) as i32
    }
}

/// A share of one with 32 fraction bits.
fn share(p: f32) -> u32 {
    if p >= 1.0 {
        return ALL;
    }
    (f64::from(p) * 4_294_967_296.0) as u32
}

/// How far below the best a candidate of this relative probability is.
fn depth(p: f32) -> u32 {
    if p.is_nan() || p <= 0.0 {
        return ALL;
    }
    if p >= 1.0 {
        return 0;
    }
    (neg_ln(u64::from(share(p)) << 32) + 128) >> 8
}

fn deviations(n: f32) -> u32 {
    if n.is_nan() || n <= 0.0 {
        return 0;
    }
    ((n * 65_536.0) as u32).max(1)
}

/// A factor with 24 fraction bits; below 256.
fn factor(x: f64) -> u32 {
    (x * 16_777_216.0).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_step_state() {
        let record = Parameters {
            temperature: 0.8,
            top_k: 40,
            frequency: -1.5,
            repeat: 1.1,
            recent: 64,
            seed: u64::MAX - 5,
            ..Parameters::default()
        }
        .record();
        assert_eq!(SamplerRecord::from_words(&record.to_words()), record);
        let greedy = SamplerRecord::default();
        assert_eq!(SamplerRecord::from_words(&greedy.to_words()), greedy);
    }

    #[test]
    fn constants_are_in_fixed_point() {
        let record = Parameters {
            temperature: 0.5,
            top_p: 0.75,
            min_p: 0.05,
            top_n_sigma: 1.5,
            xtc_probability: 0.5,
            xtc_threshold: 0.25,
            repeat: 1.25,
            ..Parameters::default()
        }
        .record();
        assert_eq!(record.coldness.unwrap().cool(3 << 16), 6 << 24);
        assert_eq!((record.top_p, record.typical_p), (3 << 30, ALL));
        assert_eq!(record.min_p, (20f64.ln() * 65_536.0).round() as u32);
        assert_eq!(record.top_n_sigma, 3 << 15);
        assert_eq!(
            (record.xtc_probability, record.xtc_threshold),
            (1 << 31, 1 << 30)
        );
        assert_eq!(
            (record.repeat, record.repeat_inverse),
            (20 << 20, 13_421_773)
        );
    }

    #[test]
    fn temperatures_of_any_size_stay_in_range() {
        for exponent in -149..128 {
            let temperature = 2f64.powi(exponent) as f32;
            let cold = Coldness::of(temperature).unwrap();
            for below in [0, 1, 65_536, u32::MAX >> 1] {
                let want = f64::from(below) * 256.0 / f64::from(temperature);
                assert_eq!(f64::from(cold.cool(below)), want.floor().min(2f64.powi(30)));
            }
        }
        assert_eq!(Coldness::of(f32::INFINITY).unwrap().cool(u32::MAX >> 1), 0);
        for greedy in [0.0, -1.0, f32::NAN] {
            assert_eq!(Coldness::of(greedy), None);
        }
    }

    #[test]
    fn what_is_off_costs_nothing() {
        let record = SamplerRecord::default();
        assert_eq!((record.recent, record.xtc_probability), (0, 0));
        assert_eq!(
            (record.min_p, record.top_p, record.typical_p),
            (ALL, ALL, ALL)
        );
        let never = Parameters {
            xtc_probability: 1.0,
            xtc_threshold: 0.6,
            ..Parameters::default()
        };
        assert_eq!(never.record().xtc_probability, 0);
        let bad = Parameters {
            frequency: f32::NAN,
            min_p: f32::NAN,
            top_n_sigma: f32::NAN,
            ..Parameters::default()
        };
        let bad = bad.record();
        assert_eq!(
            (bad.frequency, bad.min_p, bad.top_n_sigma),
            (Fixed::ZERO, ALL, 0)
        );
    }
}
