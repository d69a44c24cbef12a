//! Packets of Opus (RFC 6716) in any container, with the header of RFC 7845.

use opus_decoder::{OpusDecoder, OpusMultistreamDecoder};
use symphonia::core::errors::Error as Fault;

/// Decodes the packets of one track.
pub struct OpusStream {
    decoder: Decoder,
    channels: usize,
    /// Samples per channel that are still to be dropped at the beginning.
    skip: usize,
    /// Multiplies samples.
    gain: f32,
    pcm: Vec<f32>,
}

enum Decoder {
    One(Box<OpusDecoder>),
    Many(OpusMultistreamDecoder),
}

impl OpusStream {
    /// Samples per second that it gives, whatever was recorded.
    pub const RATE: u32 = 48_000;

    /// For a track with this header; without one, for so many channels.
    ///
    /// # Errors
    /// A header or a number of channels that is not known.
    pub fn new(header: Option<&[u8]>, channels: Option<usize>) -> Result<Self, Fault> {
        let header = header.filter(|h| h.starts_with(b"OpusHead") && h.len() >= 19);
        let Some(h) = header else {
            return Self::with(channels.unwrap_or(2), None, 0, 0);
        };
        let skip = usize::from(u16::from_le_bytes([h[10], h[11]]));
        let gain = i16::from_le_bytes([h[16], h[17]]);
        let count = usize::from(h[9]);
        let mapping = match h[18] {
            0 => None,
            _ => {
                let mapping = h.get(21..21 + count);
                let mapping = mapping.ok_or(Fault::DecodeError("opus: header too short"))?;
                Some((usize::from(h[19]), usize::from(h[20]), mapping))
            }
        };
        Self::with(count, mapping, skip, gain)
    }

    fn with(
        channels: usize,
        mapping: Option<(usize, usize, &[u8])>,
        skip: usize,
        gain: i16,
    ) -> Result<Self, Fault> {
        let decoder = match mapping {
            None => OpusDecoder::new(Self::RATE, channels).map(|d| Decoder::One(Box::new(d))),
            Some((streams, coupled, mapping)) => {
                OpusMultistreamDecoder::new(Self::RATE, channels, streams, coupled, mapping)
                    .map(Decoder::Many)
            }
        };
        let decoder = decoder.map_err(|_| Fault::Unsupported("opus: channels"))?;
        Ok(OpusStream {
            decoder,
            channels,
            skip,
            // In 1/256 of a decibel.
            gain: 10f32.powf(f32::from(gain) / (20.0 * 256.0)),
            pcm: vec![0.0; OpusDecoder::MAX_FRAME_SIZE_48K * channels],
        })
    }

    /// Channels of its samples.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Appends a packet's interleaved samples but the last `trim` of each channel, and without those that RFC 7845 wants
    /// dropped at the beginning.
    ///
    /// # Errors
    /// A packet that breaks the format.
    pub fn decode(&mut self, packet: &[u8], trim: usize, out: &mut Vec<f32>) -> Result<(), Fault> {
        let samples = match &mut self.decoder {
            Decoder::One(one) => one.decode_float(packet, &mut self.pcm, false),
            Decoder::Many(many) => many.decode_float(packet, &mut self.pcm, false),
        };
        let samples = samples.map_err(|_| Fault::DecodeError("opus: broken packet"))?;
        let from = self.skip.min(samples);
        self.skip -= from;
        let to = samples.saturating_sub(trim).max(from);
        let kept = &self.pcm[from * self.channels..to * self.channels];
        out.extend(kept.iter().map(|s| s * self.gain));
        Ok(())
    }
}
