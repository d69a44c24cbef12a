//! What a model reads beside tokens: embeddings in a prompt, and what an encoder looks at.

use std::ops::Range;
use std::sync::Arc;

use tokkata_ir::sample::uniform;

use crate::error::EngineError;

/// A stretch of a prompt that is given as embeddings, such as an image's.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    /// Its first place in the prompt. It covers a place for each of its rows; the tokens there are not read.
    pub at: usize,
    /// `[rows, D]`, in the place of rows of the embedding table: a model that scales those scales these.
    pub rows: Arc<[f32]>,
    /// Names what it shows: prefixes are shared only where names are equal.
    pub hash: u64,
    /// Whether its rows see each other in both directions; they run in one step then.
    pub span: bool,
}

/// What the encoder of a request reads.
#[derive(Clone, Debug, PartialEq)]
pub enum EncoderInput {
    /// Tokens.
    Tokens(Vec<u32>),
    /// Rows of the encoder's first input port.
    Rows {
        /// `[count, width]`.
        values: Arc<[f32]>,
        /// How many.
        count: usize,
    },
}

impl EncoderInput {
    /// Rows that the encoder's plan runs.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            EncoderInput::Tokens(tokens) => tokens.len(),
            EncoderInput::Rows { count, .. } => *count,
        }
    }

    /// Whether there is nothing to read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// In the place of a token: a row of media. It is in no vocabulary, and differs from media to media and row to row.
fn name(hash: u64, row: usize) -> u32 {
    1 << 31 | (uniform(hash, row as u64) >> 33) as u32
}

/// The media of a prompt, in order.
#[derive(Debug, Default)]
pub(crate) struct AllMedia(Vec<(Range<usize>, Media)>);

impl AllMedia {
    /// Whether the prompt has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts media into a prompt of tokens, for a model whose embeddings have `width` columns.
    pub(crate) fn new(
        media: Vec<Media>,
        prompt: &mut [u32],
        width: usize,
    ) -> Result<Self, EngineError> {
        let mut all: Vec<(Range<usize>, Media)> = Vec::new();
        for media in media {
            let rows = media.rows.len() / width.max(1);
            let places = media.at..media.at.saturating_add(rows);
            let before = all.last().map_or(0, |m| m.0.end);
            let whole = rows > 0 && media.rows.len() == rows * width;
            if !whole || places.start < before || places.end > prompt.len() {
                let (at, floats) = (media.at, media.rows.len());
                return Err(EngineError::BadMedia { at, floats, width });
            }
            for (row, token) in prompt[places.clone()].iter_mut().enumerate() {
                *token = name(media.hash, row);
            }
            all.push((places, media));
        }
        Ok(AllMedia(all))
    }

    /// The media whose row stands at a place.
    pub(crate) fn at(&self, place: usize) -> Option<&(Range<usize>, Media)> {
        let found = self.0.iter().find(|m| place < m.0.end)?;
        found.0.contains(&place).then_some(found)
    }

    /// The first place from `start` on, but not `start` itself, where rows of another sort begin.
    pub(crate) fn end_of_stretch(&self, start: usize) -> usize {
        let next = self.0.iter().find(|m| start < m.0.end);
        next.map_or(usize::MAX, |m| match m.0.contains(&start) {
            true => m.0.end,
            false => m.0.start,
        })
    }

    /// Whether the token at a place stands for a row of media.
    pub(crate) fn covers(&self, place: usize) -> bool {
        self.at(place).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(at: usize, rows: usize, hash: u64) -> Media {
        Media {
            at,
            rows: vec![0.0; rows * 4].into(),
            hash,
            span: false,
        }
    }

    #[test]
    fn stretches_end_where_media_begin_and_end() {
        let mut prompt = vec![7; 10];
        let all = AllMedia::new(vec![media(2, 3, 1), media(5, 1, 2)], &mut prompt, 4).unwrap();
        let ends: Vec<usize> = [0, 2, 4, 5, 6].map(|i| all.end_of_stretch(i)).into();
        assert_eq!(ends, [2, 5, 5, 6, usize::MAX]);
        assert_eq!(
            [1, 2, 5, 6].map(|i| all.covers(i)),
            [false, true, true, false]
        );
        let tokens: Vec<bool> = prompt.iter().map(|&t| t == 7).collect();
        assert_eq!(tokens.iter().filter(|&&t| t).count(), 6);
        assert_eq!(&tokens[..3], [true, true, false]);
    }

    #[test]
    fn names_follow_from_what_is_shown_and_its_row() {
        let mut prompts = [vec![0; 3], vec![0; 3], vec![0; 3]];
        for (prompt, hash) in prompts.iter_mut().zip([5, 5, 6]) {
            AllMedia::new(vec![media(0, 3, hash)], prompt, 4).unwrap();
        }
        assert_eq!(prompts[0], prompts[1]);
        assert!(prompts[0].iter().zip(&prompts[2]).all(|(a, b)| a != b));
        assert_ne!(prompts[0][0], prompts[0][1]);
    }

    #[test]
    fn media_that_do_not_fit_are_refused() {
        let refused = |media: Vec<Media>| {
            let refused = AllMedia::new(media, &mut [0; 6], 4);
            refused.is_err()
        };
        assert!(!refused(vec![media(0, 2, 0), media(2, 4, 0)]));
        assert!(
            refused(vec![media(0, 2, 0), media(1, 2, 0)]),
            "they overlap"
        );
        assert!(refused(vec![media(4, 3, 0)]), "past the prompt");
        assert!(
            refused(vec![media(usize::MAX, 1, 0)]),
            "far past the prompt"
        );
        assert!(refused(vec![media(0, 0, 0)]), "nothing");
        let ragged = Media {
            rows: vec![0.0; 5].into(),
            ..media(0, 1, 0)
        };
        assert!(refused(vec![ragged]), "half a row");
    }
}
