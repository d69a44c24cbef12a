//! DRY: penalises the token that would continue a run already seen.

use std::collections::{HashMap, HashSet};

use tokkata_ir::sample::Fixed;

/// Parameters of DRY, named as llama.cpp names them.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Strength; 0 is off.
    pub multiplier: f32,
    /// Growth per token of the repeated run.
    pub base: f32,
    /// Runs up to this length cost nothing.
    pub allowed_length: usize,
    /// How many of the newest tokens are searched; `None` for all.
    pub last_n: Option<usize>,
    /// Tokens that no run crosses.
    pub breakers: HashSet<u32>,
}

/// The penalty of each token that would make the newest tokens repeat an earlier run.
#[must_use]
pub fn dry_penalties(dry: &Dry, tokens: &[u32]) -> Vec<(u32, Fixed)> {
    let recent = &tokens[tokens.len() - dry.last_n.unwrap_or(tokens.len()).min(tokens.len())..];
    if dry.multiplier == 0.0 || dry.base < 1.0 || recent.len() <= dry.allowed_length {
        return Vec::new();
    }
    let newest_first: Vec<u32> = recent.iter().rev().copied().collect();
    let longest = newest_first
        .iter()
        .take_while(|t| !dry.breakers.contains(t))
        .count();
    let mut runs: HashMap<u32, usize> = HashMap::new();
    for (i, &run) in matches(&newest_first).iter().enumerate().skip(1) {
        let (next, run) = (newest_first[i - 1], run.min(longest));
        if run >= dry.allowed_length && run > 0 && !dry.breakers.contains(&next) {
            let best = runs.entry(next).or_default();
            *best = run.max(*best);
        }
    }
    let penalty = |run: usize| {
        let over = (run - dry.allowed_length).min(i32::MAX as usize) as i32;
        Fixed::new(dry.multiplier * dry.base.powi(over)).unwrap_or(Fixed::MAX)
    };
    let mut out: Vec<(u32, Fixed)> = runs.into_iter().map(|(t, run)| (t, penalty(run))).collect();
    out.sort_unstable_by_key(|&(token, _)| token);
    out
}

/// For each place, how many tokens from there equal those from the beginning (the Z-function).
fn matches(tokens: &[u32]) -> Vec<usize> {
    let mut z = vec![0; tokens.len()];
    let (mut left, mut right) = (0, 0);
    for i in 1..tokens.len() {
        let mut n = if i < right {
            z[i - left].min(right - i)
        } else {
            0
        };
        while i + n < tokens.len() && tokens[n] == tokens[i + n] {
            n += 1;
        }
        if i + n > right {
            (left, right) = (i, i + n);
        }
        z[i] = n;
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dry() -> Dry {
        Dry {
            multiplier: 1.0,
            base: 2.0,
            allowed_length: 2,
            last_n: None,
            breakers: HashSet::from([99]),
        }
    }

    fn penalties(dry: &Dry, tokens: &[u32]) -> Vec<(u32, f32)> {
        let found = dry_penalties(dry, tokens).into_iter();
        found.map(|(token, x)| (token, x.to_f32())).collect()
    }

    #[test]
    fn the_continuation_of_the_longest_run_is_penalised() {
        let tokens = [1, 2, 3, 4, 5, 1, 2, 3];
        assert_eq!(penalties(&dry(), &tokens), [(4, 2.0)]);
        assert_eq!(penalties(&dry(), &[7, 8, 9, 7]), []);
        assert_eq!(penalties(&dry(), &[1, 2, 3, 1, 2]), [(3, 1.0)]);
    }

    #[test]
    fn breakers_end_a_run() {
        assert_eq!(penalties(&dry(), &[1, 99, 3, 4, 1, 99, 3]), []);
        assert_eq!(penalties(&dry(), &[1, 2, 3, 99, 1, 2, 3]), []);
    }

    #[test]
    fn only_the_newest_tokens_are_searched() {
        let near = Dry {
            last_n: Some(4),
            ..dry()
        };
        assert_eq!(penalties(&near, &[1, 2, 3, 4, 5, 1, 2, 3]), []);
    }
}
