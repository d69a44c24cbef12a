//! How many tokens of each draft are worth their rows.

/// What a draft of one request may bring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chance {
    /// By place: how likely it and all before it are right. Not rising.
    pub(crate) right: Vec<f64>,
    /// Nanoseconds to draft a token.
    pub(crate) draft_ns: f64,
}

/// The least gain that is worth a change.
const LEAST_GAIN: f64 = 1.02;

/// Tokens of each draft so that most tokens come per second from a step that has `rows` rows without drafts; `step` is
/// what a step of so many rows takes, in nanoseconds.
pub(crate) fn allot(chances: &[Chance], rows: usize, step: impl Fn(usize) -> f64) -> Vec<usize> {
    let places = |(i, chance): (usize, &Chance)| {
        let each = move |(j, &right): (usize, &f64)| (right, j, i);
        chance
            .right
            .iter()
            .enumerate()
            .map(each)
            .collect::<Vec<_>>()
    };
    let mut all: Vec<(f64, usize, usize)> = chances.iter().enumerate().flat_map(places).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let plain = rows as f64 / step(rows).max(1.0);
    let (mut best, mut taken) = (plain * LEAST_GAIN, 0);
    let (mut gained, mut drafting) = (0.0, 0.0);
    for (n, &(right, _, i)) in all.iter().enumerate() {
        gained += right;
        drafting += chances[i].draft_ns;
        let rate = (rows as f64 + gained) / (step(rows + n + 1) + drafting).max(1.0);
        if rate > best {
            (best, taken) = (rate, n + 1);
        }
    }
    let mut counts = vec![0; chances.len()];
    all[..taken].iter().for_each(|&(_, _, i)| counts[i] += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chance(first: f64, places: usize) -> Chance {
        Chance {
            right: (1..=places as i32).map(|j| first.powi(j)).collect(),
            draft_ns: 0.0,
        }
    }

    #[test]
    fn drafts_are_as_long_as_they_pay() {
        let free = |_: usize| 100.0;
        assert_eq!(allot(&[chance(0.9, 4)], 1, free), [4], "rows cost nothing");
        let dear = |rows: usize| 100.0 * rows as f64;
        assert_eq!(allot(&[chance(0.9, 4)], 1, dear), [0], "a row costs a step");
        let some = |rows: usize| 80.0 + 20.0 * rows as f64;
        assert_eq!(allot(&[chance(0.1, 4)], 1, some), [0]);
        let two = allot(&[chance(0.9, 8), chance(0.3, 8)], 2, some);
        assert!(two[0] > two[1] && two[0] > 3, "{two:?}");
    }

    #[test]
    fn a_draft_that_takes_long_to_make_is_shorter() {
        let step = |rows: usize| 90.0 + 10.0 * rows as f64;
        let quick = allot(&[chance(0.8, 8)], 1, step)[0];
        let slow = Chance {
            draft_ns: 30.0,
            ..chance(0.8, 8)
        };
        let slow = allot(&[slow], 1, step)[0];
        assert!(slow < quick && slow > 0, "{slow} {quick}");
    }
}
