//! What becomes of a transcript: lines, and files in several formats.

use std::path::{Path, PathBuf};

use clap::Args;
use tokkata::transcript::Segment;
use tokkata::transcript::format::{Format, shortened};

/// Flags of what is written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print text without times (also -nt)
    #[arg(long)]
    no_timestamps: bool,
    /// Time every word
    #[arg(long)]
    word_timestamps: bool,
    /// Characters of a line at most; times words (also -ml)
    #[arg(long, value_name = "N")]
    max_len: Option<usize>,
    /// Cut such lines between words only (also -sow)
    #[arg(long, requires = "max_len")]
    split_on_word: bool,
    /// Write text to a file (also -otxt)
    #[arg(long)]
    output_txt: bool,
    /// Write subtitles of SubRip (also -osrt)
    #[arg(long)]
    output_srt: bool,
    /// Write subtitles of the web (also -ovtt)
    #[arg(long)]
    output_vtt: bool,
    /// Write lyrics (also -olrc)
    #[arg(long)]
    output_lrc: bool,
    /// Write a table (also -ocsv)
    #[arg(long)]
    output_csv: bool,
    /// Write JSON (also -ojson)
    #[arg(long)]
    output_json: bool,
    /// Write JSON with tokens and words (also -ojf)
    #[arg(long, conflicts_with = "output_json")]
    output_json_full: bool,
    /// Name of these files, without their endings, for one recording (also -of)
    #[arg(long, value_name = "NAME")]
    output_file: Option<PathBuf>,
    /// Print nothing but errors (also -np)
    #[arg(long)]
    no_prints: bool,
}

impl OutputArgs {
    /// Whether words must be timed.
    pub(super) fn needs_words(&self) -> bool {
        self.word_timestamps || self.max_len.is_some() || self.output_json_full
    }

    /// The formats that are written.
    pub(super) fn formats(&self) -> impl Iterator<Item = Format> {
        let all = [
            (self.output_txt, Format::Txt),
            (self.output_srt, Format::Srt),
            (self.output_vtt, Format::Vtt),
            (self.output_lrc, Format::Lrc),
            (self.output_csv, Format::Csv),
            (self.output_json, Format::Json),
            (self.output_json_full, Format::JsonFull),
        ];
        all.into_iter().filter(|f| f.0).map(|f| f.1)
    }

    /// Where a format of a recording is written: beside it, with another ending behind its own.
    pub(super) fn path(&self, audio: &Path, format: Format) -> PathBuf {
        let stem = match &self.output_file {
            Some(name) => name.display().to_string(),
            None if audio == Path::new("-") => "stdin".to_owned(),
            None => audio.display().to_string(),
        };
        PathBuf::from(format!("{stem}.{}", format.ending()))
    }

    pub(super) fn prints(&self) -> bool {
        !self.no_prints
    }

    pub(super) fn quiet(&self) -> bool {
        self.no_prints || self.no_timestamps
    }

    /// Whether segments are printed as they come.
    pub(super) fn streams(&self) -> bool {
        !self.no_prints
    }

    /// Whether they are printed without times.
    pub(super) fn plain(&self) -> bool {
        self.no_timestamps
    }

    /// Segments as long as lines may be.
    pub(super) fn cut(&self, segments: &[Segment]) -> Vec<Segment> {
        match self.max_len {
            Some(most) => shortened(segments, most.max(1), self.split_on_word),
            None => segments.to_vec(),
        }
    }
}
