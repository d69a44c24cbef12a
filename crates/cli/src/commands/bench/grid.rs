//! Lists and ranges of numbers on the command line.

use std::str::FromStr;

/// Numbers written `1,2,8-32*2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers(Vec<usize>);

/// The numbers of every flag given.
pub(super) fn all(flags: &[Numbers]) -> impl Iterator<Item = usize> {
    flags.iter().flat_map(|n| n.0.iter().copied())
}

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("found '{text}', expected numbers such as 512, 1,2,4, 8-32+8 or 8-64*2");
        let mut numbers = Vec::new();
        for part in text.split(',') {
            numbers.extend(range(part.trim()).ok_or_else(wrong)?);
        }
        Ok(Numbers(numbers))
    }
}

/// From one number of a range to the next.
enum Step {
    Plus(usize),
    Times(usize),
}

impl Step {
    fn after(&self, n: usize) -> Option<usize> {
        match *self {
            Step::Plus(by) => n.checked_add(by),
            Step::Times(by) => n.checked_mul(by),
        }
    }
}

fn range(text: &str) -> Option<Vec<usize>> {
    const MOST: usize = 10_000;
    let Some((first, rest)) = text.split_once('-') else {
        return Some(vec![text.parse().ok()?]);
    };
    let first: usize = first.parse().ok()?;
    let (last, step): (&str, Step) = if let Some((last, by)) = rest.split_once('*') {
        (last, Step::Times(by.parse().ok().filter(|&n| n > 1)?))
    } else {
        let (last, by) = rest.split_once('+').unwrap_or((rest, "1"));
        (last, Step::Plus(by.parse().ok().filter(|&n| n > 0)?))
    };
    let last: usize = last.parse().ok()?;
    let grows = |&n: &usize| step.after(n).filter(|&next| next > n);
    let numbers: Vec<usize> = std::iter::successors(Some(first), grows)
        .take_while(|&n| n <= last)
        .take(MOST)
        .collect();
    (!numbers.is_empty()).then_some(numbers)
}

/// Two numbers written `512,128`.
pub(super) fn pair(text: &str) -> Result<(usize, usize), String> {
    let parts = text
        .split_once(',')
        .and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    parts.ok_or_else(|| format!("found '{text}', expected two numbers such as 512,128"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        let numbers = |text: &str| text.parse::<Numbers>().map(|n| n.0);
        assert_eq!(numbers("512"), Ok(vec![512]));
        assert_eq!(numbers("1,2,8-32*2"), Ok(vec![1, 2, 8, 16, 32]));
        assert_eq!(numbers("8-20+5"), Ok(vec![8, 13, 18]));
        assert_eq!(numbers("3-5"), Ok(vec![3, 4, 5]));
        assert!(numbers("5-3").is_err() && numbers("x").is_err() && numbers("1-9*1").is_err());
        assert!(numbers("0-9*2").is_ok_and(|n| n == [0]));
        assert_eq!(pair("512, 128"), Ok((512, 128)));
    }
}
