//! Sound for models: files to samples, samples to the features that a model reads.
//!
//! A [`Source`] is opened as a [`Samples`]: one channel, or the mean of all, at [`RATE`]. A [`Recording`] has looked at
//! all of it once, and gives windows of log-mel features (a [`Window`] of frames by bands) in a second pass; [`Live`]
//! gives them while sound still comes in. [`vad`] tells where somebody speaks, by loudness or by a net of the user's
//! ([`Silero`]). The crate knows no other models and no network.
//!
//! Invariants: memory does not grow with the length of a recording, but for one byte per hundredth of a second, and four per step
//! of the net; features
//! depend on the samples alone, however they were cut into blocks; a hostile file gives an [`AudioError`] of one line
//! and never a panic.
//!
//! Reading order: [`source`], [`resample`], [`mel`], [`recording`], [`gate`], [`silero`], [`vad`], [`wav`].
//!
//! ```
//! use tokkata_audio::{Bands, Mix, Recording, Source};
//! let silence = Source::samples("silence", vec![0.0; 16_000]);
//! let recording = Recording::measure(silence, Mix::Mean, Bands::slaney(80)).unwrap();
//! assert_eq!(recording.frames(), 100);
//! ```

pub mod error;
pub mod gate;
pub mod mel;
pub mod opus;
pub mod recording;
pub mod resample;
pub mod silero;
pub mod source;
pub mod vad;
pub mod wav;

pub use error::{AudioError, Result};
pub use gate::{Gate, Stretch};
pub use mel::{Bands, LogMel};
pub use recording::{Live, Recording, Window, Windows};
pub use resample::Resampler;
pub use silero::Silero;
pub use source::{Mix, Samples, Source};

/// Samples per second that models read.
pub const RATE: u32 = 16_000;

/// Samples from one frame of features to the next: a hundredth of a second.
pub const HOP: usize = 160;
