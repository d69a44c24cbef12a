//! How often guesses are right, by class and place.

use super::CLASSES;

/// Places that are counted by themselves; later ones count as the last.
const PLACES: usize = 8;
/// What a count keeps of itself with each new one.
const KEEPS: f64 = 0.95;
/// Tries that what was known before is worth.
const WEIGHT: f64 = 3.0;

/// Tries of one place, the newest counting most.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    hits: f64,
    tries: f64,
}

impl Count {
    fn saw(&mut self, hit: bool) {
        self.hits = self.hits * KEEPS + f64::from(u8::from(hit));
        self.tries = self.tries * KEEPS + 1.0;
    }

    fn share(&self, before: f64) -> f64 {
        (self.hits + WEIGHT * before) / (self.tries + WEIGHT)
    }
}

/// Counts by class and place, over what was thought before.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    priors: [[f64; PLACES]; CLASSES],
    counts: [[Count; PLACES]; CLASSES],
}

impl Rates {
    /// Nothing was tried; of a class's tokens at a place such a share will be right.
    pub(crate) fn new(prior: impl Fn(usize, usize) -> f64) -> Self {
        let of = |class| std::array::from_fn(|place| prior(class, place));
        Rates {
            priors: std::array::from_fn(of),
            counts: Default::default(),
        }
    }

    /// The same thoughts, and nothing tried.
    pub(crate) fn unseen(&self) -> Self {
        Rates {
            priors: self.priors,
            counts: Default::default(),
        }
    }

    /// The token at this place was tried, those before it being right.
    pub(crate) fn saw(&mut self, class: usize, place: usize, hit: bool) {
        self.counts[class][place.min(PLACES - 1)].saw(hit);
    }

    /// The share of tokens at this place that are right where those before them are.
    pub(crate) fn share(&self, class: usize, place: usize) -> f64 {
        let place = place.min(PLACES - 1);
        self.counts[class][place].share(self.priors[class][place])
    }

    /// As [`Rates::share`], where `all` says what to think of what was not tried here.
    pub(crate) fn share_of(&self, all: &Rates, class: usize, place: usize) -> f64 {
        self.counts[class][place.min(PLACES - 1)].share(all.share(class, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_replaces_what_was_thought() {
        let mut rates = Rates::new(|_, place| [0.6, 0.8][place.min(1)]);
        assert!((rates.share(0, 0) - 0.6).abs() < 1e-9);
        for _ in 0..12 {
            rates.saw(0, 0, false);
        }
        assert!(rates.share(0, 0) < 0.15, "{}", rates.share(0, 0));
        assert!((rates.share(1, 0) - 0.6).abs() < 1e-9, "classes are apart");
        assert!((rates.share(0, 1) - 0.8).abs() < 1e-9, "so are places");
        for _ in 0..60 {
            rates.saw(0, 20, true);
        }
        assert!(rates.share(0, 7) > 0.95 && rates.share(0, 6) < 0.9);
        let own = Rates::new(|_, _| 0.9);
        assert!(own.share_of(&rates, 0, 0) < 0.15, "others' tries count");
    }
}
