//! What is known of one request's drafts.

use tokkata_ir::sample::Mask;

use super::{Guess, Rates};

/// Tokens between probes of a drafter that does not pay, at first and at most.
const PROBES: [usize; 2] = [16, 256];

/// A draft, cut to what may be tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) drafter: usize,
    pub(crate) class: usize,
    pub(crate) tokens: Vec<u32>,
    /// They stand for tokens that are being drawn.
    pub(crate) unseen: bool,
    /// What may come after each of them, where a constraint says so.
    pub(crate) masks: Vec<Option<Mask>>,
    /// What may come before the first, while the constraint is asked about them.
    pub(crate) first: Option<Mask>,
}

/// A guess that is only watched: how far it was right, and what it says of later tokens.
#[derive(Debug)]
struct Watched {
    drafter: usize,
    guess: Guess,
    /// Place in the text of the first token that is not compared yet.
    at: usize,
    /// Tokens of the guess that were compared.
    right: usize,
}

/// Drafts of a request.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// What is tried next; `None` until somebody was asked since the newest token came.
    pub(crate) next: Option<Draft>,
    /// What is being tried.
    pub(crate) trial: Option<Draft>,
    /// A step with a draft failed: this request goes on without.
    pub(crate) never: bool,
    /// Its next row runs once the newest token is known, so that something can be guessed after it.
    pub(crate) waits: bool,
    /// Whether a drafter that takes time has read its prompt.
    pub(crate) read: bool,
    /// Tokens that it had when somebody was asked last.
    pub(crate) looked: usize,
    rates: Vec<Rates>,
    watched: Option<Watched>,
    /// Tokens until the next probe, and from that one to the one after it.
    probe: [usize; 2],
}

impl Own {
    /// Nothing was guessed yet, and its first guess is waited for.
    pub(crate) fn new() -> Self {
        Own {
            waits: true,
            ..Own::default()
        }
    }

    /// Whether its newest token is waited for.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waits && !self.never
    }

    /// Likelihood that a draft of so many tokens is right up to each of them.
    pub(crate) fn right(
        &mut self,
        all: &[Rates],
        (drafter, class): (usize, usize),
        most: usize,
    ) -> Vec<f64> {
        let all_of = &all[drafter];
        let own = self.rates_of(all, drafter);
        let mut right = 1.0;
        let places = 0..most;
        let each = places.map(|place| {
            right *= own.share_of(all_of, class, place);
            right
        });
        each.collect()
    }

    fn rates_of(&mut self, all: &[Rates], drafter: usize) -> &mut Rates {
        if self.rates.is_empty() {
            self.rates = all.iter().map(Rates::unseen).collect();
        }
        &mut self.rates[drafter]
    }

    /// A token of a draft was right or not.
    pub(crate) fn saw(
        &mut self,
        all: &mut [Rates],
        (drafter, class): (usize, usize),
        (place, hit): (usize, bool),
    ) {
        self.rates_of(all, drafter).saw(class, place, hit);
        all[drafter].saw(class, place, hit);
    }

    /// Watches a guess that is not tried, unless another one is watched.
    pub(crate) fn watch(&mut self, drafter: usize, guess: &Guess, tokens: usize) {
        if self.watched.is_none() && !guess.tokens.is_empty() {
            self.watched = Some(Watched {
                drafter,
                guess: guess.clone(),
                at: tokens,
                right: 0,
            });
        }
    }

    /// What a draft tries, or would have tried behind so many tokens, was drawn.
    pub(crate) fn learn(&mut self, guessed: Vec<u32>, tokens: usize) {
        let tried = self.trial.is_some();
        let Some(draft) = self.trial.as_mut().or(self.next.as_mut()) else {
            return;
        };
        let places = draft.tokens.len().min(guessed.len());
        draft.unseen = false;
        draft.masks.truncate(places);
        draft.tokens = guessed[..places].to_vec();
        if !tried {
            let (drafter, class) = (draft.drafter, draft.class);
            let guess = Guess {
                tokens: guessed,
                class,
            };
            self.watch(drafter, &guess, tokens);
        }
    }

    /// Compares what is watched with what came.
    pub(crate) fn compare(&mut self, all: &mut [Rates], tokens: &[u32]) {
        let Some(mut watched) = self.watched.take() else {
            return;
        };
        while let (Some(&came), Some(&guessed)) = (
            tokens.get(watched.at),
            watched.guess.tokens.get(watched.right),
        ) {
            let hit = came == guessed;
            let what = (watched.drafter, watched.guess.class);
            self.saw(all, what, (watched.right, hit));
            if !hit {
                return;
            }
            watched.at += 1;
            watched.right += 1;
        }
        if watched.right < watched.guess.tokens.len() {
            self.watched = Some(watched);
        }
    }

    /// What is watched is being tried now, or its place is no more.
    pub(crate) fn unwatch(&mut self) {
        self.watched = None;
    }

    /// Whether a drafter that does not pay is to be tried again; so many tokens came since it was asked.
    pub(crate) fn probes(&mut self, came: usize) -> bool {
        let [left, gap] = &mut self.probe;
        *gap = (*gap).max(PROBES[0]);
        if *left > came {
            *left -= came;
            return false;
        }
        let due = *left > 0;
        if due {
            *gap = (2 * *gap).min(PROBES[1]);
        }
        *left = *gap;
        due
    }

    /// It pays: probes are soon again when it stops doing so.
    pub(crate) fn pays(&mut self) {
        self.probe = [0; 2];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_counts_as_if_it_were_tried() {
        let mut all = vec![Rates::new(|_, place| [0.5, 0.8][place.min(1)])];
        let mut own = Own::default();
        let guess = Guess {
            tokens: vec![1, 2, 3],
            class: 2,
        };
        own.watch(0, &guess, 4);
        own.compare(&mut all, &[9, 9, 9, 9, 1]);
        own.watch(0, &guess, 5);
        own.compare(&mut all, &[9, 9, 9, 9, 1, 2, 8]);
        let right = own.right(&all, (0, 2), 3);
        assert!(right[0] > 0.55 && all[0].share(2, 0) > 0.5, "{right:?}");
        let second = right[1] / right[0];
        let third = right[2] / right[1];
        assert!(second > 0.8 && third < 0.8, "{second} {third}");
    }

    #[test]
    fn probes_grow_rarer_until_it_pays() {
        let mut own = Own::default();
        let gaps = |tokens: usize, own: &mut Own| {
            let due: Vec<usize> = (0..tokens).filter(|_| own.probes(1)).collect();
            due.windows(2).map(|w| w[1] - w[0]).collect::<Vec<_>>()
        };
        assert_eq!(gaps(1200, &mut own), [32, 64, 128, 256, 256, 256]);
        own.pays();
        assert_eq!(gaps(100, &mut own), [32]);
    }
}
