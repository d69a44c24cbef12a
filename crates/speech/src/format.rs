//! Transcripts as files: text, subtitles, tables and JSON.

use serde_json::{Value, json};

use crate::language;
use crate::transcript::{Segment, Word};

/// The formats, by their endings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line of text per segment.
    Txt,
    /// Subtitles of SubRip.
    Srt,
    /// Subtitles of the web.
    Vtt,
    /// Lyrics.
    Lrc,
    /// A table: begin and end in milliseconds, text.
    Csv,
    /// JSON as whisper.cpp writes it.
    Json,
    /// The same with tokens and words.
    JsonFull,
}

/// What a transcript's file says beside its segments.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The model's name.
    pub model: String,
    /// Code of the language.
    pub language: String,
    /// Whether it is a translation.
    pub translate: bool,
}

impl Format {
    /// The ending of its files.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Format::Txt => "txt",
            Format::Srt => "srt",
            Format::Vtt => "vtt",
            Format::Lrc => "lrc",
            Format::Csv => "csv",
            Format::Json | Format::JsonFull => "json",
        }
    }

    /// A transcript in it.
    #[must_use]
    pub fn write(self, segments: &[Segment], about: &About) -> String {
        let said: Vec<&Segment> = segments
            .iter()
            .filter(|s| !s.text.trim().is_empty())
            .collect();
        let lines = |line: &dyn Fn(usize, &Segment) -> String| {
            let lines = said.iter().enumerate().map(|(i, s)| line(i, s));
            lines.collect::<String>()
        };
        match self {
            Format::Txt => lines(&|_, s| format!("{}\n", s.text.trim())),
            Format::Srt => lines(&|i, s| {
                let times = span(s, ',');
                format!("{}\n{times}\n{}\n\n", i + 1, s.text.trim())
            }),
            Format::Vtt => {
                let cues = lines(&|_, s| {
                    let text = s.text.trim().replace("-->", "->");
                    format!("{}\n{text}\n\n", span(s, '.'))
                });
                format!("WEBVTT\n\n{cues}")
            }
            Format::Lrc => {
                let all = lines(&|_, s| {
                    let hundredths = (s.start * 100.0).round() as u64;
                    let (m, s100) = (hundredths / 6000, hundredths % 6000);
                    let (sec, part) = (s100 / 100, s100 % 100);
                    format!("[{m:02}:{sec:02}.{part:02}]{}\n", s.text.trim())
                });
                format!("[by:tokkata]\n{all}")
            }
            Format::Csv => {
                let rows = lines(&|_, s| {
                    let text = s.text.trim().replace('"', "\"\"");
                    format!("{},{},\"{text}\"\n", millis(s.start), millis(s.end))
                });
                format!("start,end,text\n{rows}")
            }
            Format::Json | Format::JsonFull => {
                let full = self == Format::JsonFull;
                let value = json(&said, about, full);
                let mut text = serde_json::to_string_pretty(&value).unwrap_or_default();
                text.push('\n');
                text
            }
        }
    }
}

fn json(said: &[&Segment], about: &About, full: bool) -> Value {
    let part = |s: &&Segment| {
        let mut part = json!({
            "timestamps": { "from": clock(s.start, ','), "to": clock(s.end, ',') },
            "offsets": { "from": millis(s.start), "to": millis(s.end) },
            "text": s.text,
        });
        if full {
            part["tokens"] = json!(s.tokens);
            part["temperature"] = json!(s.temperature);
            part["avg_logprob"] = json!(s.avg_logprob);
            part["compression_ratio"] = json!(s.ratio);
            part["no_speech_prob"] = json!(s.no_speech);
            part["words"] = s.words.iter().map(word).collect();
        }
        part
    };
    json!({
        "model": { "name": about.model },
        "params": { "language": about.language, "translate": about.translate },
        "result": { "language": about.language },
        "transcription": said.iter().map(part).collect::<Value>(),
    })
}

fn word(w: &Word) -> Value {
    json!({ "word": w.word, "start": w.start, "end": w.end, "probability": w.probability })
}

/// A transcript as OpenAI's API has it in `verbose_json`.
#[must_use]
pub fn verbose(segments: &[Segment], about: &About, seconds: f64, words: bool) -> Value {
    let text: String = segments.iter().map(|s| s.text.as_str()).collect();
    let part = |(id, s): (usize, &Segment)| {
        json!({
            "id": id, "seek": s.seek, "start": s.start, "end": s.end, "text": s.text, "tokens": s.tokens,
            "temperature": s.temperature, "avg_logprob": s.avg_logprob, "compression_ratio": s.ratio,
            "no_speech_prob": s.no_speech,
        })
    };
    let task = if about.translate {
        "translate"
    } else {
        "transcribe"
    };
    let mut all = json!({
        "task": task,
        "language": language::name(&about.language).unwrap_or(&about.language),
        "duration": seconds,
        "text": text.trim(),
        "segments": segments.iter().enumerate().map(part).collect::<Value>(),
    });
    if words {
        let all_words = segments.iter().flat_map(|s| &s.words);
        all["words"] = all_words
            .map(|w| json!({ "word": w.word.trim(), "start": w.start, "end": w.end }))
            .collect();
    }
    all
}

fn span(s: &Segment, mark: char) -> String {
    format!("{} --> {}", clock(s.start, mark), clock(s.end, mark))
}

/// Hours, minutes, seconds and thousandths.
#[must_use]
pub fn clock(seconds: f64, mark: char) -> String {
    let ms = millis(seconds);
    let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{h:02}:{m:02}:{s:02}{mark}{:03}", ms % 1000)
}

fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0).round().max(0.0) as u64
}

/// Segments no longer than so many characters, cut between words that were timed; with `whole`, never inside a word.
#[must_use]
pub fn shortened(segments: &[Segment], most: usize, whole: bool) -> Vec<Segment> {
    segments
        .iter()
        .flat_map(|s| shorten(s, most, whole))
        .collect()
}

fn shorten(s: &Segment, most: usize, whole: bool) -> Vec<Segment> {
    if s.words.is_empty() || s.text.chars().count() <= most {
        return vec![s.clone()];
    }
    let mut parts: Vec<Segment> = Vec::new();
    for w in &s.words {
        let len = w.word.chars().count();
        match parts.last_mut() {
            Some(p)
                if p.text.chars().count() + len <= most || (whole && !w.word.starts_with(' ')) =>
            {
                p.text.push_str(&w.word);
                p.end = w.end;
                p.words.push(w.clone());
            }
            _ => parts.push(Segment {
                start: w.start,
                end: w.end,
                text: w.word.clone(),
                words: vec![w.clone()],
                tokens: Vec::new(),
                ..s.clone()
            }),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Vec<Segment> {
        let segment = |start, end, text: &str| Segment {
            start,
            end,
            text: text.to_owned(),
            ..Segment::default()
        };
        vec![
            segment(0.0, 2.5, " Hello \"you\"."),
            segment(2.5, 2.5, ""),
            segment(3661.25, 3662.0, " Bye."),
        ]
    }

    #[test]
    fn formats_are_written() {
        let about = About {
            language: "en".to_owned(),
            ..About::default()
        };
        let write = |f: Format| f.write(&said(), &about);
        assert_eq!(write(Format::Txt), "Hello \"you\".\nBye.\n");
        assert_eq!(
            write(Format::Srt),
            "1\n00:00:00,000 --> 00:00:02,500\nHello \"you\".\n\n2\n01:01:01,250 --> 01:01:02,000\nBye.\n\n"
        );
        assert!(write(Format::Vtt).starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nHello"));
        assert_eq!(
            write(Format::Lrc),
            "[by:tokkata]\n[00:00.00]Hello \"you\".\n[61:01.25]Bye.\n"
        );
        assert_eq!(
            write(Format::Csv),
            "start,end,text\n0,2500,\"Hello \"\"you\"\".\"\n3661250,3662000,\"Bye.\"\n"
        );
        let json: Value = serde_json::from_str(&write(Format::Json)).unwrap();
        assert_eq!(json["transcription"][1]["offsets"]["from"], 3_661_250);
        assert_eq!(json["transcription"][0]["text"], " Hello \"you\".");
        let verbose = verbose(&said(), &about, 3662.0, false);
        assert_eq!(
            (&verbose["language"], &verbose["text"]),
            (&json!("english"), &json!("Hello \"you\". Bye."))
        );
    }

    #[test]
    fn long_segments_are_cut_between_words() {
        let word = |i: usize, word: &str| Word {
            word: word.to_owned(),
            start: i as f64,
            end: i as f64 + 0.5,
            probability: 1.0,
        };
        let words = [" one", " two", "-three", " four"];
        let one = Segment {
            text: words.concat(),
            words: words.iter().enumerate().map(|(i, w)| word(i, w)).collect(),
            ..Segment::default()
        };
        let texts = |most, whole| {
            let parts = shortened(std::slice::from_ref(&one), most, whole);
            parts
                .iter()
                .map(|p| (p.text.clone(), p.start))
                .collect::<Vec<_>>()
        };
        let own = |t: &str, s| (t.to_owned(), s);
        assert_eq!(
            texts(8, false),
            [own(" one two", 0.0), own("-three", 2.0), own(" four", 3.0)]
        );
        assert_eq!(
            texts(8, true),
            [own(" one two-three", 0.0), own(" four", 3.0)]
        );
        assert_eq!(texts(100, true).len(), 1);
    }
}
