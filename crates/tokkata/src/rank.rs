//! Scores of pairs and classes of texts: what a model's classifier says.

use std::ops::Range;

use tokkata_core::{Array, Value};
use tokkata_text::tokenizer::EncodeOptions;

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::model::Model;

/// What the template of a pair calls its two texts.
const PLACES: [&str; 2] = ["{query}", "{document}"];

/// The tokens of a query with a document, as the file wants them: by its template `rerank`, or else
/// `BOS query EOS SEP document EOS` with those of the special tokens that the file adds. Special tokens are not
/// recognised in the two texts.
///
/// # Errors
/// A file without a tokenizer.
pub fn pair(checkpoint: &Checkpoint, query: &str, document: &str) -> Result<Vec<u32>> {
    let tokenizer = checkpoint.tokenizer()?;
    let template = checkpoint
        .file()
        .metadata()
        .str("tokenizer.chat_template.rerank");
    if let Some(template) = template {
        let (text, untrusted) = filled(template, [query, document]);
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        return Ok(tokenizer.encode_guarded(&text, &untrusted, options));
    }
    let special = tokenizer.special();
    let bos = special.bos.filter(|_| special.add_bos);
    let eos = special.eos.or(special.sep).filter(|_| special.add_eos);
    let sep = special.sep.filter(|_| special.add_sep);
    let mut ids: Vec<u32> = bos.into_iter().collect();
    ids.extend(tokenizer.encode(query, EncodeOptions::default()));
    ids.extend(eos.into_iter().chain(sep));
    ids.extend(tokenizer.encode(document, EncodeOptions::default()));
    ids.extend(eos);
    Ok(ids)
}

/// A template with its places filled, and where they came to lie.
fn filled(template: &str, texts: [&str; 2]) -> (String, Vec<Range<usize>>) {
    let (mut out, mut places) = (String::new(), Vec::new());
    let mut rest = template;
    loop {
        let found = (0..2).filter_map(|i| Some((rest.find(PLACES[i])?, i)));
        let Some((at, which)) = found.min() else {
            out.push_str(rest);
            return (out, places);
        };
        out.push_str(&rest[..at]);
        let start = out.len();
        out.push_str(texts[which]);
        places.push(start..out.len());
        rest = &rest[at + PLACES[which].len()..];
    }
}

/// The labels of a classifier's scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Labels {
    names: Vec<String>,
    /// The model gives probabilities itself.
    softmax: bool,
}

impl Labels {
    /// The labels of a file.
    ///
    /// # Errors
    /// A model that cannot be run.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let spec = checkpoint.spec(1)?;
        let key = format!("{}.classifier.output_labels", spec.arch);
        let names = match checkpoint.metadata().get(&key) {
            Some(Value::Array(Array::Str(names))) => {
                names.iter().map(ToString::to_string).collect()
            }
            _ => Vec::new(),
        };
        let softmax = spec.main.head.classifier.is_some_and(|c| c.softmax);
        Ok(Labels { names, softmax })
    }

    /// The name of a label; its number where the file gives none.
    #[must_use]
    pub fn name(&self, label: usize) -> String {
        let name = self.names.get(label).filter(|n| !n.is_empty());
        name.map_or_else(|| label.to_string(), Clone::clone)
    }

    /// Probabilities of a text's scores: softmax over several labels, the logistic function of a single score.
    #[must_use]
    pub fn probabilities(&self, scores: &[f32]) -> Vec<f32> {
        match scores {
            _ if self.softmax => scores.to_vec(),
            &[score] => vec![(1.0 / (1.0 + (-f64::from(score)).exp())) as f32],
            _ => softmax(scores),
        }
    }
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = scores.iter().map(|&s| f64::from(s - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| (p / sum) as f32).collect()
}

impl Model {
    /// How well each pair of [`pair`] fits, in order: the first score of its classifier. The model is opened with
    /// [`Pooling::Rank`](crate::Pooling::Rank).
    ///
    /// # Errors
    /// As [`Model::embed`].
    pub fn rank(&mut self, pairs: &[Vec<u32>]) -> Result<Vec<f32>> {
        let scores = self.embed(pairs)?;
        Ok(scores.into_iter().map(|s| s[0]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_once() {
        let (text, places) = filled("<q>{query}</q><d>{document}", ["a {document}", "b"]);
        assert_eq!(text, "<q>a {document}</q><d>b");
        assert_eq!(places, [3..15, 22..23]);
        assert_eq!(filled("x", ["a", "b"]), ("x".to_owned(), vec![]));
    }

    #[test]
    fn probabilities_sum_to_one() {
        let labels = |softmax| Labels {
            names: vec!["no".to_owned(), String::new()],
            softmax,
        };
        let p = labels(false).probabilities(&[1.0, 3.0]);
        assert!((p[0] + p[1] - 1.0).abs() < 1e-6 && (p[1] / p[0]).ln() - 2.0 < 1e-5);
        assert_eq!(labels(false).probabilities(&[0.0]), [0.5]);
        assert_eq!(labels(true).probabilities(&[0.2, 0.8]), [0.2, 0.8]);
        assert_eq!([0, 1, 2].map(|i| labels(false).name(i)), ["no", "1", "2"]);
    }
}
