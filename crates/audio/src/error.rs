//! What can be wrong with sound. Every text is one line.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, AudioError>;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum AudioError {
    #[error("{name}: cannot be read: {source}")]
    Io {
        name: String,
        source: std::io::Error,
    },
    #[error(
        "{name}: found no audio in it ({what}), expected WAV, FLAC, MP3, OGG (Vorbis or Opus), M4A, MKV, WebM or AIFF"
    )]
    NotAudio { name: String, what: String },
    #[error("{name}: found no audio track, expected at least one")]
    NoTrack { name: String },
    #[error(
        "{name}: found a codec that is not known ({what}), expected PCM, FLAC, MP3, AAC, ALAC, Vorbis or Opus"
    )]
    Codec { name: String, what: String },
    #[error("{name}: found {found} Hz, expected 1,000 to 768,000 samples per second")]
    Rate { name: String, found: u32 },
    #[error("{name}: found {found} channels, expected channel {wanted} (counted from 0)")]
    Channel {
        name: String,
        found: usize,
        wanted: usize,
    },
    #[error("{name}: broken after {seconds:.2} s: {what}")]
    Broken {
        name: String,
        seconds: f64,
        what: String,
    },
    #[error("{name}: the sample at {seconds:.4} s is not a number; repair the file")]
    NotANumber { name: String, seconds: f64 },
    #[error("{name}: holds no sound (0 samples)")]
    Empty { name: String },
    #[error("{name}: found {found}, expected {expected}")]
    Net {
        name: String,
        found: String,
        expected: String,
    },
    #[error(transparent)]
    NetFile(#[from] tokkata_formats::FormatError),
}
