//! The smallest container: PCM in a WAV file, written for tests and tools; and raw PCM, read.

/// Samples as a WAV file of 16-bit PCM, interleaved where there are several channels.
#[must_use]
pub fn encode(samples: &[f32], rate: u32, channels: u16) -> Vec<u8> {
    let bytes = samples.len() as u32 * 2;
    let mut out = Vec::with_capacity(44 + bytes as usize);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&(36 + bytes).to_le_bytes());
    out.extend_from_slice(b"WAVEfmt ");
    out.extend_from_slice(&16u32.to_le_bytes());
    out.extend_from_slice(&1u16.to_le_bytes());
    out.extend_from_slice(&channels.to_le_bytes());
    out.extend_from_slice(&rate.to_le_bytes());
    out.extend_from_slice(&(rate * u32::from(channels) * 2).to_le_bytes());
    out.extend_from_slice(&(channels * 2).to_le_bytes());
    out.extend_from_slice(&16u16.to_le_bytes());
    out.extend_from_slice(b"data");
    out.extend_from_slice(&bytes.to_le_bytes());
    for s in samples {
        let s = (s * 32_768.0).round_ties_even().clamp(-32_768.0, 32_767.0);
        out.extend_from_slice(&(s as i16).to_le_bytes());
    }
    out
}

/// Raw 16-bit PCM, little-endian, as samples; a byte left over is ignored.
#[must_use]
pub fn pcm16(bytes: &[u8]) -> Vec<f32> {
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|p| f32::from(i16::from_le_bytes([p[0], p[1]])) / 32_768.0)
        .collect()
}
