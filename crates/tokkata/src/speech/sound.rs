//! Where windows come from: a recording that was heard once, or sound that is still coming in.

use std::io::Read;

use tokkata_audio::{AudioError, Bands, Live, Recording, Window, Windows, wav};

use crate::error::Result;

/// What is transcribed.
pub enum Sound {
    /// A recording, heard once.
    Recording(Recording),
    /// Raw 16-bit PCM at 16 kHz, one channel, as it comes.
    Live(Box<dyn Read + Send>),
}

/// Gives the windows of a sound.
pub(super) enum Ears {
    Recording(Box<Windows>),
    Live {
        from: Box<dyn Read + Send>,
        live: Box<Live>,
        odd: Vec<u8>,
    },
}

impl Ears {
    pub(super) fn new(sound: Sound, bands: usize) -> Self {
        match sound {
            Sound::Recording(recording) => Ears::Recording(Box::new(recording.windows())),
            Sound::Live(from) => Ears::Live {
                from,
                live: Box::new(Live::new(Bands::slaney(bands))),
                odd: Vec::new(),
            },
        }
    }

    /// Frames that are there.
    pub(super) fn frames(&self) -> usize {
        match self {
            Ears::Recording(windows) => windows.recording().frames(),
            Ears::Live { live, .. } => live.frames(),
        }
    }

    /// Waits until so many frames are there, or no more will come.
    pub(super) fn wait_for(&mut self, frames: usize) -> Result<()> {
        let Ears::Live { from, live, odd } = self else {
            return Ok(());
        };
        let mut block = [0; 1 << 14];
        while !live.is_ended() && live.frames() < frames {
            let read = from.read(&mut block).map_err(|source| AudioError::Io {
                name: "standard input".to_owned(),
                source,
            })?;
            if read == 0 {
                live.end();
            }
            odd.extend_from_slice(&block[..read]);
            let whole = odd.len() / 2 * 2;
            live.push(&wav::pcm16(&odd[..whole]));
            odd.drain(..whole);
        }
        Ok(())
    }

    /// `size` frames from `seek` on.
    pub(super) fn window(&mut self, seek: usize, size: usize) -> Result<Window> {
        Ok(match self {
            Ears::Recording(windows) => windows.window(seek, size)?,
            Ears::Live { live, .. } => live.window(seek, size),
        })
    }

    /// The first `size` frames, with silence behind a shorter recording.
    pub(super) fn opening(&mut self, size: usize) -> Result<Window> {
        Ok(match self {
            Ears::Recording(windows) => windows.opening(size)?,
            Ears::Live { live, .. } => live.window(0, size),
        })
    }
}
