//! Which parts of a recording hold sound that may be speech, by energy alone.
//!
//! A frame counts as sound when its loudness lies above a threshold between the quiet and the loud frames of the whole
//! recording. It tells pauses from speech where the background is steady; it does not tell speech from music.

/// Loudness of every frame of a recording, a byte each: half decibels above −127.5 dB.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    levels: Vec<u8>,
}

/// Frames in a row, `from..to`, in hundredths of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First frame.
    pub from: usize,
    /// One past the last.
    pub to: usize,
}

impl Stretch {
    /// From and to, in seconds.
    #[must_use]
    pub fn seconds(self) -> [f64; 2] {
        [self.from, self.to].map(|frame| frame as f64 / 100.0)
    }
}

/// How sound is cut at silence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// Sound shorter than this many frames is none.
    pub min_sound: usize,
    /// Silence shorter than this many frames is none.
    pub min_silence: usize,
    /// Frames around each stretch that belong to it.
    pub pad: usize,
    /// Longest stretch.
    pub most: usize,
}

impl Default for Cut {
    fn default() -> Self {
        Cut {
            min_sound: 25,
            min_silence: 10,
            pad: 3,
            most: 3000,
        }
    }
}

impl Gate {
    /// Adds frames of samples, [`HOP`](crate::HOP) each; the last may be shorter.
    pub(crate) fn push(&mut self, samples: &[f32]) {
        for frame in samples.chunks(crate::HOP) {
            let power = frame.iter().map(|s| f64::from(*s).powi(2)).sum::<f64>();
            let level = 10.0 * (power / frame.len() as f64).max(1e-13).log10();
            self.levels
                .push(((level + 127.5) * 2.0).clamp(0.0, 255.0) as u8);
        }
    }

    /// The level above which frames count as sound: a third of the way from the quietest tenth to the loudest twentieth,
    /// at least −60 dB, and infinite where all is even.
    fn threshold(&self) -> Option<u8> {
        let mut sorted = self.levels.clone();
        sorted.sort_unstable();
        let at = |part: f64| sorted.get((sorted.len() as f64 * part) as usize).copied();
        let (quiet, loud) = (at(0.1)?, at(0.95)?);
        const SILENCE: u8 = 135;
        if loud < SILENCE {
            return None;
        }
        if loud - quiet < 12 {
            // All of it is as loud: sound without a pause.
            return Some(0);
        }
        Some((quiet + (loud - quiet) / 3).max(SILENCE))
    }

    /// Stretches of sound, in order.
    #[must_use]
    pub fn stretches(&self, cut: Cut) -> Vec<Stretch> {
        let Some(threshold) = self.threshold() else {
            return Vec::new();
        };
        let mut found: Vec<Stretch> = Vec::new();
        for (i, _) in (0..).zip(&self.levels).filter(|(_, l)| **l >= threshold) {
            match found.last_mut() {
                Some(last) if i - last.to < cut.min_silence => last.to = i + 1,
                _ => found.push(Stretch { from: i, to: i + 1 }),
            }
        }
        found.retain(|s| s.to - s.from >= cut.min_sound);
        for s in &mut found {
            s.from = s.from.saturating_sub(cut.pad);
            s.to = (s.to + cut.pad).min(self.levels.len());
        }
        found
            .into_iter()
            .flat_map(|s| self.halved(s, cut))
            .collect()
    }

    /// A stretch that is too long, cut where it is quietest.
    fn halved(&self, s: Stretch, cut: Cut) -> Vec<Stretch> {
        let mut parts = Vec::new();
        let mut from = s.from;
        while s.to - from > cut.most {
            let (a, b) = (from + cut.most / 2, from + cut.most);
            let quietest = (a..b).min_by_key(|&i| (self.levels[i], b - i));
            let to = quietest.unwrap_or(b).max(from + 1);
            parts.push(Stretch { from, to });
            from = to;
        }
        parts.push(Stretch { from, to: s.to });
        parts
    }
}

/// Joins neighbouring stretches into windows of at most so many frames.
#[must_use]
pub fn windows(stretches: &[Stretch], most: usize) -> Vec<Stretch> {
    let mut joined: Vec<Stretch> = Vec::new();
    for s in stretches {
        match joined.last_mut() {
            Some(last) if s.to - last.from <= most => last.to = s.to,
            _ => joined.push(*s),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(seconds: f64, volume: f32) -> Vec<f32> {
        let n = (seconds * 16_000.0) as usize;
        (0..n).map(|i| volume * (i as f32 * 0.2).sin()).collect()
    }

    #[test]
    fn sound_is_found_between_pauses() {
        let mut gate = Gate::default();
        for (seconds, volume) in [
            (1.0, 1e-4),
            (0.5, 0.3),
            (0.05, 1e-4),
            (0.5, 0.3),
            (1.0, 1e-4),
            (0.1, 0.3),
            (1.0, 1e-4),
            (1.0, 0.1),
        ] {
            gate.push(&tone(seconds, volume));
        }
        let found = gate.stretches(Cut::default());
        let near = |s: &Stretch, from: usize, to: usize| {
            s.from.abs_diff(from) <= 4 && s.to.abs_diff(to) <= 4
        };
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            near(&found[0], 100, 205) && near(&found[1], 415, 515),
            "{found:?}"
        );
        assert_eq!(windows(&found, 3000).len(), 1);
        assert_eq!(windows(&found, 200).len(), 2);
    }

    #[test]
    fn silence_has_no_sound_and_an_even_tone_no_pause() {
        let mut silent = Gate::default();
        silent.push(&vec![0.0; 160_000]);
        assert!(silent.stretches(Cut::default()).is_empty());
        let mut even = Gate::default();
        even.push(&tone(70.0, 0.2));
        let found = even.stretches(Cut::default());
        assert_eq!(found.iter().map(|s| s.to - s.from).sum::<usize>(), 7000);
        assert!(found.iter().all(|s| s.to - s.from <= 3000), "{found:?}");
    }
}
