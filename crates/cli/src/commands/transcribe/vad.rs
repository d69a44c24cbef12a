//! How a recording is cut where nobody speaks, with whisper.cpp's flags.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tokkata::audio::vad::{self, Rules};
use tokkata::audio::{Recording, Silero};
use tokkata::transcript::WINDOW;

/// Flags of the cuts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Voice activity")]
pub(super) struct VadArgs {
    /// Cut where nobody speaks, by loudness, and hear the parts side by side
    #[arg(long, conflicts_with_all = ["clip_timestamps", "offset", "duration"])]
    vad: bool,
    /// Tell speech by Silero's net instead: silero_vad_16k.safetensors, or whisper.cpp's ggml-silero-*.bin (also -vm)
    #[arg(long, value_name = "FILE", requires = "vad")]
    vad_model: Option<PathBuf>,
    /// How likely speech has to be where it begins, by that net (also -vt)
    #[arg(
        long,
        value_name = "P",
        requires = "vad_model",
        value_parser = probability,
        default_value_t = Rules::default().threshold,
        hide_short_help = true
    )]
    vad_threshold: f64,
    /// Speech that is shorter is none (also -vspd)
    #[arg(
        long,
        value_name = "MS",
        requires = "vad",
        default_value_t = Rules::default().min_speech_ms,
        hide_short_help = true
    )]
    vad_min_speech_duration_ms: u32,
    /// Silence that is shorter is none (also -vsd)
    #[arg(
        long,
        value_name = "MS",
        requires = "vad",
        default_value_t = Rules::default().min_silence_ms,
        hide_short_help = true
    )]
    vad_min_silence_duration_ms: u32,
    /// Speech that is longer is cut, where it pauses longest (also -vmsd)
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "vad",
        value_parser = a_second,
        default_value_t = Rules::default().max_speech_s,
        hide_short_help = true
    )]
    vad_max_speech_duration_s: f64,
    /// What belongs to speech on both sides (also -vp)
    #[arg(
        long,
        value_name = "MS",
        requires = "vad",
        default_value_t = Rules::default().pad_ms,
        hide_short_help = true
    )]
    vad_speech_pad_ms: u32,
    /// How far speech is heard behind its end, where no other begins (also -vo)
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "vad",
        value_parser = seconds,
        default_value_t = Rules::default().overlap_s,
        hide_short_help = true
    )]
    vad_samples_overlap: f64,
}

fn number(text: &str, least: f64, most: f64, what: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x| (least..=most).contains(x));
    number.ok_or_else(|| format!("expected {what}"))
}

fn probability(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1.0, "a number from 0 to 1")
}

fn a_second(text: &str) -> Result<f64, String> {
    number(text, 1.0, f64::INFINITY, "one second or more")
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.0, 30.0, "0 to 30 seconds")
}

/// What cuts recordings.
pub(super) struct Cutter {
    net: Option<Silero>,
    rules: Rules,
}

impl VadArgs {
    /// What cuts recordings, where it is asked for; the net's file is read.
    pub(super) fn cutter(&self) -> Result<Option<Cutter>> {
        if !self.vad {
            return Ok(None);
        }
        let rules = Rules {
            threshold: self.vad_threshold,
            neg_threshold: None,
            min_speech_ms: self.vad_min_speech_duration_ms,
            min_silence_ms: self.vad_min_silence_duration_ms,
            max_speech_s: self.vad_max_speech_duration_s,
            pad_ms: self.vad_speech_pad_ms,
            overlap_s: self.vad_samples_overlap,
        };
        let net = self.vad_model.as_ref().map(Silero::open).transpose()?;
        Ok(Some(Cutter { net, rules }))
    }
}

impl Cutter {
    /// Seconds of a recording's pieces, from and to.
    pub(super) fn clips(&self, recording: &Recording) -> Result<Vec<Vec<f64>>> {
        let pieces = vad::pieces(recording, self.net.as_ref(), &self.rules, WINDOW)?;
        Ok(pieces
            .iter()
            .map(|piece| piece.seconds().to_vec())
            .collect())
    }
}
