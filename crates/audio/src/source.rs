//! Files, bytes and samples as one stream of samples at [`RATE`].

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use symphonia::core::audio::Channels;
use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use crate::RATE;
use crate::error::{AudioError, Result};
use crate::opus::OpusStream;
use crate::resample::Resampler;

/// Rates that are read.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// Where sound comes from. It can be read as often as one likes.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    Bytes(Arc<[u8]>),
    Samples(Arc<[f32]>),
}

/// What becomes of several channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    /// The mean of all.
    #[default]
    Mean,
    /// This one, counted from 0.
    Channel(usize),
}

impl Source {
    /// A file of any known container.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Source {
            name: path.display().to_string(),
            place: Place::File(path),
        }
    }

    /// The bytes of a file; the name stands in messages, and its ending helps to tell what it is.
    #[must_use]
    pub fn bytes(name: &str, bytes: impl Into<Arc<[u8]>>) -> Self {
        Source {
            name: name.to_owned(),
            place: Place::Bytes(bytes.into()),
        }
    }

    /// Samples at [`RATE`], in −1 to 1.
    #[must_use]
    pub fn samples(name: &str, samples: impl Into<Arc<[f32]>>) -> Self {
        Source {
            name: name.to_owned(),
            place: Place::Samples(samples.into()),
        }
    }

    /// Samples at another rate, in −1 to 1, of one channel.
    ///
    /// # Errors
    /// An odd rate.
    pub fn samples_at(name: &str, samples: &[f32], rate: u32) -> Result<Self> {
        if !RATES.contains(&rate) {
            return Err(AudioError::Rate {
                name: name.to_owned(),
                found: rate,
            });
        }
        let (mut resampler, mut out) = (Resampler::new(rate), Vec::new());
        // A sample that is no number would spread; it is found where it stands.
        if samples.iter().all(|s| s.is_finite()) {
            resampler.push(samples, &mut out);
            resampler.finish(&mut out);
        } else {
            out.extend_from_slice(samples);
        }
        Ok(Source::samples(name, out))
    }

    /// The name in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads it from the beginning.
    ///
    /// # Errors
    /// What is no audio, has no such channel, or an odd rate.
    pub fn open(&self, mix: Mix) -> Result<Samples> {
        let name = self.name.clone();
        let stream: Box<dyn MediaSource> = match &self.place {
            Place::Samples(samples) => {
                return Ok(Samples {
                    name,
                    feed: Feed::Given(samples.clone(), 0),
                    seconds: 0.0,
                });
            }
            Place::Bytes(bytes) => Box::new(Cursor::new(bytes.clone())),
            Place::File(path) => Box::new(opened(path, &name)?),
        };
        let track = Track::open(&name, stream)?;
        Samples::new(name, track, mix)
    }

    /// Channels of the audio.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn channels(&self) -> Result<usize> {
        match self.open(Mix::Mean)?.feed {
            Feed::Given(..) => Ok(1),
            Feed::Track(feed) => Ok(feed.track.channels),
        }
    }
}

fn opened(path: &Path, name: &str) -> Result<File> {
    let io = |source| AudioError::Io {
        name: name.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.is_dir() {
        return Err(io(std::io::ErrorKind::IsADirectory.into()));
    }
    Ok(file)
}

/// Samples at [`RATE`] from a source, block by block.
pub struct Samples {
    name: String,
    feed: Feed,
    seconds: f64,
}

enum Feed {
    Given(Arc<[f32]>, usize),
    Track(Box<TrackFeed>),
}

struct TrackFeed {
    track: Track,
    mix: Mix,
    resampler: Resampler,
    interleaved: Vec<f32>,
    mono: Vec<f32>,
    ended: bool,
}

/// Samples that are handed out at once of those that are in memory already.
const BLOCK: usize = 1 << 14;

impl Samples {
    fn new(name: String, track: Track, mix: Mix) -> Result<Self> {
        if let Mix::Channel(wanted) = mix
            && wanted >= track.channels
        {
            let found = track.channels;
            return Err(AudioError::Channel {
                name,
                found,
                wanted,
            });
        }
        let resampler = Resampler::new(track.rate);
        let feed = TrackFeed {
            track,
            mix,
            resampler,
            interleaved: Vec::new(),
            mono: Vec::new(),
            ended: false,
        };
        Ok(Samples {
            name,
            feed: Feed::Track(Box::new(feed)),
            seconds: 0.0,
        })
    }

    /// Appends the next samples; false at the end.
    ///
    /// # Errors
    /// Broken data before anything could be read, and samples that are no numbers. A file that ends early ends here.
    pub fn next_block(&mut self, out: &mut Vec<f32>) -> Result<bool> {
        let before = out.len();
        let more = match &mut self.feed {
            Feed::Given(samples, at) => {
                let end = (*at + BLOCK).min(samples.len());
                out.extend_from_slice(&samples[*at..end]);
                let more = end > *at;
                *at = end;
                more
            }
            Feed::Track(feed) => feed.next(&self.name, self.seconds, out)?,
        };
        let bad = out[before..].iter().position(|s| !s.is_finite());
        let seconds = |n: usize| n as f64 / f64::from(RATE);
        if let Some(bad) = bad {
            return Err(AudioError::NotANumber {
                name: self.name.clone(),
                seconds: self.seconds + seconds(bad),
            });
        }
        self.seconds += seconds(out.len() - before);
        Ok(more)
    }
}

impl TrackFeed {
    fn next(&mut self, name: &str, seconds: f64, out: &mut Vec<f32>) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        self.interleaved.clear();
        match self.track.decode(&mut self.interleaved) {
            Ok(true) => {}
            Ok(false) => {
                self.ended = true;
                self.resampler.finish(out);
                return Ok(true);
            }
            // What was read so far counts; a file of which nothing can be read is broken.
            Err(_) if seconds > 0.0 => {
                self.ended = true;
                self.resampler.finish(out);
                return Ok(true);
            }
            Err(fault) => {
                return Err(AudioError::Broken {
                    name: name.to_owned(),
                    seconds,
                    what: fault.to_string(),
                });
            }
        }
        let channels = self.track.channels;
        self.mono.clear();
        let frames = self.interleaved.chunks_exact(channels);
        match self.mix {
            Mix::Channel(c) => self.mono.extend(frames.map(|f| f[c])),
            Mix::Mean if channels == 1 => self.mono.extend_from_slice(&self.interleaved),
            Mix::Mean => {
                let mean = |f: &[f32]| f.iter().sum::<f32>() / channels as f32;
                self.mono.extend(frames.map(mean));
            }
        }
        if let Some(bad) = self.mono.iter().position(|s| !s.is_finite()) {
            return Err(AudioError::NotANumber {
                name: name.to_owned(),
                seconds: seconds + bad as f64 / f64::from(self.track.rate),
            });
        }
        self.resampler.push(&self.mono, out);
        Ok(true)
    }
}

/// The audio track of a container, with its decoder.
struct Track {
    format: Box<dyn FormatReader>,
    id: u32,
    codec: Codec,
    rate: u32,
    channels: usize,
}

enum Codec {
    Any(Box<dyn AudioDecoder>),
    Opus(Box<OpusStream>),
}

impl Track {
    fn open(name: &str, stream: Box<dyn MediaSource>) -> Result<Self> {
        let stream = MediaSourceStream::new(stream, Default::default());
        let mut hint = Hint::new();
        if let Some(extension) = Path::new(name).extension().and_then(|e| e.to_str()) {
            hint.with_extension(extension);
        }
        let probe = symphonia::default::get_probe();
        let found = probe.probe(
            &hint,
            stream,
            FormatOptions::default(),
            MetadataOptions::default(),
        );
        let format = found.map_err(|fault| match fault {
            Fault::IoError(source) if source.kind() != std::io::ErrorKind::UnexpectedEof => {
                AudioError::Io {
                    name: name.to_owned(),
                    source,
                }
            }
            other => AudioError::NotAudio {
                name: name.to_owned(),
                what: other.to_string(),
            },
        })?;
        let track = format.default_track(TrackType::Audio);
        let of = |p: &Option<CodecParameters>| match p {
            Some(CodecParameters::Audio(audio)) => Some(audio.clone()),
            _ => None,
        };
        let Some((id, params)) = track.and_then(|t| Some((t.id, of(&t.codec_params)?))) else {
            return Err(AudioError::NoTrack {
                name: name.to_owned(),
            });
        };
        let codec = codec(name, &params)?;
        let mut track = Track {
            format,
            id,
            rate: params.sample_rate.unwrap_or(0),
            channels: params.channels.as_ref().map_or(0, Channels::count),
            codec,
        };
        if let Codec::Opus(opus) = &track.codec {
            (track.rate, track.channels) = (OpusStream::RATE, opus.channels());
        }
        track.settle(name)?;
        Ok(track)
    }

    /// Rate and channels, which some containers leave to the first packet.
    fn settle(&mut self, name: &str) -> Result<()> {
        if let (Codec::Any(decoder), true) = (&self.codec, self.rate == 0 || self.channels == 0) {
            let params = decoder.codec_params();
            self.rate = params.sample_rate.unwrap_or(self.rate);
            let count = params.channels.as_ref().map(Channels::count);
            self.channels = count.unwrap_or(self.channels);
        }
        if !RATES.contains(&self.rate) {
            return Err(AudioError::Rate {
                name: name.to_owned(),
                found: self.rate,
            });
        }
        // Unknown until a packet is decoded; the mean of one is itself.
        self.channels = self.channels.max(1);
        Ok(())
    }

    /// Appends the next packet's interleaved samples; false at the end.
    fn decode(&mut self, out: &mut Vec<f32>) -> std::result::Result<bool, Fault> {
        /// Packets in a row that may be undecodable before the file counts as broken.
        const PATIENCE: usize = 64;
        let mut last = None;
        for _ in 0..PATIENCE {
            let packet = match self.format.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(false),
                Err(Fault::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(false);
                }
                Err(fault) => return Err(fault),
            };
            if packet.track_id != self.id {
                continue;
            }
            match self.decode_packet(&packet, out) {
                Ok(()) if out.is_empty() => {}
                Ok(()) => return Ok(true),
                // Lost, as any player has it.
                Err(fault @ (Fault::DecodeError(_) | Fault::IoError(_))) => last = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        last.map_or(Ok(true), Err)
    }

    fn decode_packet(
        &mut self,
        packet: &Packet,
        out: &mut Vec<f32>,
    ) -> std::result::Result<(), Fault> {
        let buffer = match &mut self.codec {
            Codec::Opus(opus) => {
                let trim = packet.trim_end.get() as usize;
                return opus.decode(&packet.data, trim, out);
            }
            Codec::Any(decoder) => decoder.decode(packet)?,
        };
        let spec = buffer.spec();
        let (rate, channels) = (spec.rate(), spec.channels().count());
        if (rate, channels) != (self.rate, self.channels) {
            return Err(Fault::Unsupported("rate or channels change on the way"));
        }
        let mut block = Vec::new();
        buffer.copy_to_vec_interleaved(&mut block);
        out.append(&mut block);
        Ok(())
    }
}

fn codec(name: &str, params: &AudioCodecParameters) -> Result<Codec> {
    let unknown = |fault: Fault| AudioError::Codec {
        name: name.to_owned(),
        what: fault.to_string(),
    };
    if params.codec == CODEC_ID_OPUS {
        let channels = params.channels.as_ref().map(Channels::count);
        let opus = OpusStream::new(params.extra_data.as_deref(), channels).map_err(unknown)?;
        return Ok(Codec::Opus(Box::new(opus)));
    }
    let codecs = symphonia::default::get_codecs();
    let decoder = codecs.make_audio_decoder(params, &AudioDecoderOptions::default());
    decoder.map(Codec::Any).map_err(unknown)
}
