//! What the processor can do, and what the user allows of it.

/// A kernel set, from the slowest that runs anywhere to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Plain Rust, any processor.
    Portable,
    /// NEON on 64-bit ARM.
    Neon,
    /// NEON and dot products of bytes.
    Dotprod,
    /// NEON, dot products and 8-bit matrix instructions.
    I8mm,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX2 and VNNI on 256 bits.
    AvxVnni,
    /// AVX-512 F, BW, DQ and VL.
    Avx512Bw,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX-512, and tiles of bytes and of bfloat16.
    Amx,
}

impl Level {
    /// Every level, slowest first.
    pub const ALL: [Level; 9] = [
        Level::Portable,
        Level::Neon,
        Level::Dotprod,
        Level::I8mm,
        Level::Avx2,
        Level::AvxVnni,
        Level::Avx512Bw,
        Level::Avx512,
        Level::Amx,
    ];

    /// The name that `--cpu-features` takes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Neon => "neon",
            Level::Dotprod => "dotprod",
            Level::I8mm => "i8mm",
            Level::Avx2 => "avx2",
            Level::AvxVnni => "avxvnni",
            Level::Avx512Bw => "avx512bw",
            Level::Avx512 => "avx512",
            Level::Amx => "amx",
        }
    }

    /// Whether both sets give the same bits: all do but the set with tiles.
    #[must_use]
    pub const fn agrees_with(self, other: Level) -> bool {
        matches!(self, Level::Amx) == matches!(other, Level::Amx)
    }

    /// The vectors that everything but products of weights is computed with.
    pub(crate) const fn vectors(self) -> Vectors {
        match self {
            Level::Portable => Vectors::Portable,
            Level::Neon | Level::Dotprod | Level::I8mm => Vectors::Neon,
            Level::Avx2 | Level::AvxVnni => Vectors::Avx2,
            Level::Avx512Bw | Level::Avx512 | Level::Amx => Vectors::Avx512,
        }
    }
}

/// Vectors of sixteen floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    /// Plain Rust.
    Portable,
    /// Four of 128 bits.
    Neon,
    /// Two of 256 bits.
    Avx2,
    /// One of 512 bits.
    Avx512,
}

/// A family of processors that other choices suit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// AMD's of family 25 with AVX2 alone.
    Zen3,
    /// The others of AMD's family 25, with AVX-512.
    Zen4,
    /// AMD's of family 26, of which Zen 5 is known.
    Zen5,
    /// Others of AMD's, since Zen.
    Amd,
    /// Every other.
    Other,
}

impl Processor {
    /// The processor at hand.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let id = std::arch::x86_64::__cpuid(0);
            let vendor = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
            if vendor.as_flattened() == b"AuthenticAMD" {
                return Self::of_amd(std::arch::x86_64::__cpuid(1).eax);
            }
        }
        Self::Other
    }

    /// AMD's with this signature.
    #[cfg(target_arch = "x86_64")]
    const fn of_amd(signature: u32) -> Self {
        match (family(signature), model(signature)) {
            (25, 0x00..=0x0f | 0x20..=0x5f) => Self::Zen3,
            (25, _) => Self::Zen4,
            (26, _) => Self::Zen5,
            _ => Self::Amd,
        }
    }
}

/// The family in a processor's signature: a number of four bits and, where that is full, one of eight bits more.
#[cfg(target_arch = "x86_64")]
const fn family(signature: u32) -> u32 {
    let base = signature >> 8 & 15;
    if base == 15 {
        base + (signature >> 20 & 255)
    } else {
        base
    }
}

/// The model in a processor's signature, of a family whose number has both parts: four bits, and four higher ones.
#[cfg(target_arch = "x86_64")]
const fn model(signature: u32) -> u32 {
    signature >> 4 & 15 | signature >> 12 & 0xf0
}

/// A request for a kernel set that cannot be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapsError {
    /// No kernel set has this name.
    #[error(
        "unknown CPU feature set `{0}`: use portable, neon, dotprod, i8mm, avx2, avxvnni, avx512bw, avx512 or amx"
    )]
    Unknown(String),
    /// The processor lacks the instructions of the set.
    #[error("this processor cannot run the `{wanted}` kernels; its best set is `{best}`")]
    Missing {
        /// The set that was asked for.
        wanted: &'static str,
        /// The best set of this processor.
        best: &'static str,
    },
}

/// The highest kernel set that may run. Only [`Caps::detect`] raises it, so a value proves support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    level: Level,
}

impl Caps {
    /// The best set this processor has.
    #[must_use]
    pub fn detect() -> Self {
        let level = Level::ALL.into_iter().rev().find(|&l| supported(l));
        Self {
            level: level.unwrap_or(Level::Portable),
        }
    }

    /// The set called `name`, for tests and `--cpu-features`.
    ///
    /// # Errors
    /// When the name is unknown or the processor cannot run the set.
    pub fn limited_to(name: &str) -> Result<Self, CapsError> {
        let found = Level::ALL.into_iter().find(|l| l.name() == name);
        let level = found.ok_or_else(|| CapsError::Unknown(name.to_owned()))?;
        if supported(level) {
            return Ok(Self { level });
        }
        Err(CapsError::Missing {
            wanted: level.name(),
            best: Self::detect().level.name(),
        })
    }

    /// Every set this processor has, slowest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Level::ALL
            .into_iter()
            .filter(|&l| supported(l))
            .map(|level| Self { level })
            .collect()
    }

    /// The set with tiles, which tests compute without them where there are none.
    #[cfg(test)]
    pub(crate) fn tiles() -> Option<Self> {
        let level = Level::Amx;
        supported(Level::Avx512).then_some(Self { level })
    }

    /// The highest set that may run.
    #[must_use]
    pub const fn level(self) -> Level {
        self.level
    }
}

#[cfg(target_arch = "x86_64")]
fn supported(level: Level) -> bool {
    use std::arch::is_x86_feature_detected as has;
    match level {
        Level::Portable => true,
        Level::Avx2 => has!("avx2") && has!("fma") && has!("f16c"),
        Level::AvxVnni => supported(Level::Avx2) && has!("avxvnni"),
        Level::Avx512Bw => {
            supported(Level::Avx2)
                && has!("avx512f")
                && has!("avx512bw")
                && has!("avx512dq")
                && has!("avx512vl")
        }
        Level::Avx512 => supported(Level::Avx512Bw) && has!("avx512vnni"),
        Level::Amx => supported(Level::Avx512) && crate::kernels::matmul::amx::available(),
        Level::Neon | Level::Dotprod | Level::I8mm => false,
    }
}

#[cfg(target_arch = "aarch64")]
fn supported(level: Level) -> bool {
    use std::arch::is_aarch64_feature_detected as has;
    match level {
        Level::Portable | Level::Neon => true,
        Level::Dotprod => has!("dotprod"),
        Level::I8mm => supported(Level::Dotprod) && has!("i8mm"),
        _ => false,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn supported(level: Level) -> bool {
    level == Level::Portable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_family_is_the_sum_of_its_two_numbers() {
        assert_eq!(family(0x00a1_0f11), 25);
        assert_eq!(family(0x00b0_0f21), 26);
        assert_eq!(family(0x000c_06f2), 6);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn signatures_tell_zen_3_to_zen_5() {
        // Milan, Vermeer, Cezanne; Genoa, Raphael, Bergamo; Turin; Naples.
        for signature in [0x00a0_0f11, 0x00a2_0f12, 0x00a5_0f00] {
            assert_eq!(Processor::of_amd(signature), Processor::Zen3);
        }
        for signature in [0x00a1_0f11, 0x00a6_0f12, 0x00aa_0f01] {
            assert_eq!(Processor::of_amd(signature), Processor::Zen4);
        }
        assert_eq!(Processor::of_amd(0x00b0_0f21), Processor::Zen5);
        assert_eq!(Processor::of_amd(0x0080_0f12), Processor::Amd);
    }

    #[test]
    fn the_portable_set_is_always_there() {
        assert_eq!(
            Caps::limited_to("portable").unwrap().level(),
            Level::Portable
        );
        assert_eq!(Caps::all()[0].level(), Level::Portable);
        assert_eq!(*Caps::all().last().unwrap(), Caps::detect());
    }

    #[test]
    fn an_unknown_set_is_an_error_that_names_it() {
        let error = Caps::limited_to("mmx").unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown CPU feature set `mmx`: use portable, neon, dotprod, i8mm, avx2, avxvnni, avx512bw, avx512 or amx"
        );
    }
}
