//! Texts that are known, written again by guesses of n-grams: how often these are right, without a model.

use tokkata_engine::speculate::ngram::Ngram;
use tokkata_engine::speculate::{Drafter, Wanted};
use tokkata_engine::{RequestId, Sampling};

/// What became of guesses while texts were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Tokens that were written.
    pub tokens: usize,
    /// Steps that it took: each gives the right tokens of a guess, and one more.
    pub steps: usize,
    /// Steps with a guess.
    pub guesses: usize,
    /// Tokens that were guessed.
    pub tried: usize,
    /// Those that were right.
    pub right: usize,
}

/// Writes an answer behind a prompt, every step with a guess of up to `most` tokens where there is one.
#[must_use]
pub fn replay(prompt: &[u32], answer: &[u32], most: usize) -> Replayed {
    let mut drafter = Ngram::new();
    let sampling = Sampling::greedy();
    let text = [prompt, answer].concat();
    let mut seen = Replayed::default();
    let mut at = prompt.len();
    while at < text.len() {
        let wanted = Wanted {
            request: RequestId(0),
            family: 0,
            tokens: &text[..at],
            sampling: &sampling,
            most: most.min(text.len() - at - 1),
        };
        let guess = drafter.guess(&[wanted]).remove(0).tokens;
        let right = guess.iter().zip(&text[at..]).take_while(|(a, b)| a == b);
        let right = right.count();
        seen.steps += 1;
        seen.guesses += usize::from(!guess.is_empty());
        seen.tried += guess.len();
        seen.right += right;
        at += 1 + right;
    }
    seen.tokens = answer.len();
    seen
}

impl std::ops::AddAssign for Replayed {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.steps += other.steps;
        self.guesses += other.guesses;
        self.tried += other.tried;
        self.right += other.right;
    }
}

#[cfg(test)]
mod tests {
    use super::replay;

    #[test]
    fn what_is_there_already_is_written_in_few_steps() {
        let text: Vec<u32> = (0..64).map(|i| i * i % 61 + 64 * (i % 7)).collect();
        let again = replay(&text, &text, 8);
        assert_eq!(again.tokens, 64);
        assert!(again.steps < 64 / 5, "{again:?}");
        assert_eq!(again.steps + again.right, 64);
        let other: Vec<u32> = (1000..1064).collect();
        let other = replay(&text, &other, 8);
        assert_eq!((other.steps, other.right), (64, 0));
    }
}
