//! Words and when they were said.

use crate::align::{cheapest_path, combine};
use crate::language;
use crate::tokens::Vocabulary;
use crate::transcript::{Segment, Word};

/// Before the word behind them.
const PREPENDED: &str = "\"'“¿([{-";
/// Behind the word before them.
const APPENDED: &str = "\"'.。,，!！?？:：”)]}、";
/// Ends of sentences.
const ENDS: &str = ".。!！?？";
/// Positions of an encoder per second.
const POSITIONS: f64 = 50.0;

/// A word with its tokens, in seconds from the beginning of its window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timed {
    /// Its text.
    pub word: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Where it begins.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
    /// Mean probability of its tokens.
    pub probability: f64,
}

/// What an alignment is made of.
pub struct Heard<'a> {
    /// Attention of the chosen heads over the positions that are heard, each `[rows, positions]`, after softmax; rows are
    /// the prompt's tokens, the text's and the end's.
    pub heads: &'a [Vec<f32>],
    /// Rows.
    pub rows: usize,
    /// Positions.
    pub positions: usize,
    /// Rows of the prompt before the one that asks for no timestamps.
    pub start: usize,
    /// Probabilities of the text's tokens.
    pub probabilities: &'a [f32],
}

/// Times the words of a text.
#[must_use]
pub fn align(v: &Vocabulary, code: &str, text: &[u32], heard: &Heard<'_>) -> Vec<Timed> {
    let split = split(v, code, text);
    if text.is_empty() || split.is_empty() {
        return Vec::new();
    }
    let matrix = combine(heard.heads, heard.rows, heard.positions);
    let used = &matrix[heard.start * heard.positions..(heard.rows - 1) * heard.positions];
    let costs: Vec<f64> = used.iter().map(|w| -w).collect();
    let path = cheapest_path(&costs, heard.rows - 1 - heard.start, heard.positions);
    // Where each token's row is first reached.
    let mut jumps = Vec::new();
    let mut row = None;
    for (i, j) in path {
        if row != Some(i) {
            jumps.push(j as f64 / POSITIONS);
            row = Some(i);
        }
    }
    let mut at = 0;
    let mut timed = Vec::new();
    for (word, tokens) in split {
        let next = at + tokens.len();
        let own = &heard.probabilities[at..next];
        let sum: f64 = own.iter().map(|p| f64::from(*p)).sum();
        timed.push(Timed {
            word,
            start: jumps[at],
            end: jumps[next],
            probability: sum / own.len() as f64,
            tokens,
        });
        at = next;
    }
    timed
}

/// A text's words and their tokens.
#[must_use]
pub fn split(v: &Vocabulary, code: &str, text: &[u32]) -> Vec<(String, Vec<u32>)> {
    let parts = characters(v, text);
    if language::is_unspaced(code) {
        return parts;
    }
    let mut words: Vec<(String, Vec<u32>)> = Vec::new();
    for (part, tokens) in parts {
        let trimmed = part.trim();
        // Python's "in" a text: an empty one is in every text, several characters must follow one another there.
        const MARKS: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
        let new = part.starts_with(' ') || MARKS.contains(trimmed);
        match words.last_mut() {
            Some(last) if !new => {
                last.0.push_str(&part);
                last.1.extend(tokens);
            }
            _ => words.push((part, tokens)),
        }
    }
    words
}

/// The shortest runs of tokens that are whole characters.
fn characters(v: &Vocabulary, text: &[u32]) -> Vec<(String, Vec<u32>)> {
    const BROKEN: char = '\u{fffd}';
    let whole: Vec<char> = v.decode(text).chars().collect();
    let (mut found, mut tokens, mut offset) = (Vec::new(), Vec::new(), 0);
    for &token in text {
        tokens.push(token);
        let part = v.decode(&tokens);
        let broken = part.chars().position(|c| c == BROKEN);
        let settled = broken.is_none_or(|i| whole.get(offset + i) == Some(&BROKEN));
        if settled {
            offset += part.chars().count();
            found.push((part, std::mem::take(&mut tokens)));
        }
    }
    found
}

/// Puts marks to the words they belong to; their own places become empty.
fn merge_marks(timed: &mut [Timed]) {
    let mut j = timed.len().saturating_sub(1);
    for i in (0..timed.len().saturating_sub(1)).rev() {
        let before = &timed[i];
        if before.word.starts_with(' ') && PREPENDED.contains(before.word.trim()) {
            let before = std::mem::take(&mut timed[i]);
            timed[j].word.insert_str(0, &before.word);
            timed[j].tokens.splice(0..0, before.tokens);
            (timed[i].start, timed[i].end) = (before.start, before.end);
        } else {
            j = i;
        }
    }
    let mut i = 0;
    for j in 1..timed.len() {
        if !timed[i].word.ends_with(' ') && APPENDED.contains(&timed[j].word) {
            let word = std::mem::take(&mut timed[j].word);
            let tokens = std::mem::take(&mut timed[j].tokens);
            timed[i].word.push_str(&word);
            timed[i].tokens.extend(tokens);
        } else {
            i = j;
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// Gives segments of one window their words, and their beginnings and ends by them.
pub(crate) fn place(
    segments: &mut [Segment],
    texts: &[Vec<u32>],
    mut timed: Vec<Timed>,
    mut last_speech: f64,
) {
    let durations = timed.iter().map(|t| t.end - t.start);
    let durations: Vec<f64> = durations.filter(|d| *d != 0.0).collect();
    let usual = median(durations.clone()).min(0.7);
    let most = usual * 2.0;
    if !durations.is_empty() {
        // Words where a sentence ends are not longer than twice the usual.
        for i in 1..timed.len() {
            if timed[i].end - timed[i].start > most {
                if ENDS.contains(&timed[i].word) {
                    timed[i].end = timed[i].start + most;
                } else if ENDS.contains(&timed[i - 1].word) {
                    timed[i].start = timed[i].end - most;
                }
            }
        }
    }
    merge_marks(&mut timed);
    let Some(first) = segments.first() else {
        return;
    };
    let offset = first.seek as f64 / 100.0;
    let mut timed = timed.into_iter().peekable();
    for (segment, text) in segments.iter_mut().zip(texts) {
        let (mut saved, mut words) = (0, Vec::new());
        while saved < text.len()
            && let Some(t) = timed.next()
        {
            saved += t.tokens.len();
            if !t.word.is_empty() {
                words.push(Word {
                    start: hundredths(offset + t.start),
                    end: hundredths(offset + t.end),
                    word: t.word,
                    probability: t.probability,
                });
            }
        }
        if !words.is_empty() {
            bound(segment, &mut words, (usual, most), last_speech);
            last_speech = segment.end;
        }
        segment.words = words;
    }
}

/// Keeps words at a segment's ends from reaching into silence.
fn bound(segment: &mut Segment, words: &mut [Word], (usual, most): (f64, f64), last_speech: f64) {
    let n = words.len();
    let long = words[0].end - words[0].start > most
        || (n > 1 && words[1].end - words[0].start > most * 2.0);
    if words[0].end - last_speech > usual * 4.0 && long {
        if n > 1 && words[1].end - words[1].start > most {
            let edge = (words[1].end / 2.0).max(words[1].end - most);
            words[0].end = edge;
            words[1].start = edge;
        }
        words[0].start = (words[0].end - most).max(0.0);
    }
    if segment.start < words[0].end && segment.start - 0.5 > words[0].start {
        words[0].start = (words[0].end - usual).min(segment.start).max(0.0);
    } else {
        segment.start = words[0].start;
    }
    if segment.end > words[n - 1].start && segment.end + 0.5 < words[n - 1].end {
        words[n - 1].end = (words[n - 1].start + usual).max(segment.end);
    } else {
        segment.end = words[n - 1].end;
    }
}

/// Rounded to hundredths, as a decimal number is.
fn hundredths(seconds: f64) -> f64 {
    format!("{seconds:.2}").parse().unwrap_or(seconds)
}

/// Where the last word ends, or the last segment where there are no words.
pub(crate) fn end(segments: &[Segment]) -> Option<f64> {
    let words = segments.iter().rev().flat_map(|s| s.words.iter().rev());
    let word = words.map(|w| w.end).next();
    word.or_else(|| segments.last().map(|s| s.end))
}

/// Whether the first words of a segment are too short, too long or too unlikely to be speech.
pub(crate) fn is_anomaly(segment: &Segment) -> bool {
    if segment.words.is_empty() {
        return false;
    }
    let marks = format!("{PREPENDED}{APPENDED}");
    let words = segment.words.iter().filter(|w| !marks.contains(&w.word));
    let words: Vec<&Word> = words.take(8).collect();
    let score: f64 = words.iter().map(|w| strangeness(w)).sum();
    score >= 3.0 || score + 0.01 >= words.len() as f64
}

fn strangeness(word: &Word) -> f64 {
    let duration = word.end - word.start;
    let mut score = f64::from(u8::from(word.probability < 0.15));
    if duration < 0.133 {
        score += (0.133 - duration) * 15.0;
    }
    if duration > 2.0 {
        score += duration - 2.0;
    }
    score
}
