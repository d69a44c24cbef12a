//! What a misspelled word may have meant.

/// Letters of a word that says anything.
const SHORTEST: usize = 3;

/// The known word that is nearest to `word`, if it is near: a letter in three may be changed, added, left out or
/// swapped with its neighbour.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let letters = word.trim_start_matches('-').chars().count();
    if letters < SHORTEST {
        return None;
    }
    let scored = known.into_iter().map(|k| (distance(word, k), k));
    let best = scored.min_by_key(|s| s.0)?;
    (best.0 <= letters / 3).then_some(best.1)
}

fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen_are_near_and_other_words_are_not() {
        let known = ["--mlock", "--block-size", "merge"];
        assert_eq!(nearest("--mlok", known), Some("--mlock"));
        assert_eq!(nearest("--mlcok", known), Some("--mlock"));
        assert_eq!(nearest("--size", known), None);
        assert_eq!(nearest("serve", known), None);
        assert_eq!(nearest("-m", known), None);
    }
}
