//! The presets of llama-quantize as tables.

use tokkata_core::DType::{self, *};

use super::roles::Role;

/// A named mix.
#[derive(Debug)]
pub struct Preset {
    /// The name users write.
    pub name: &'static str,
    /// The value of `general.file_type`.
    pub file_type: u32,
    /// The type of every tensor that no rule mentions.
    pub base: DType,
    /// The type of the output matrix.
    pub(super) head: DType,
    /// One of the 1- and 2-bit lattice mixes, which follow rules of their own.
    pub(super) tiny: bool,
    rules: &'static [Rule],
}

/// In tensors of `role`, where all of `when` holds, use `dtype`.
#[derive(Debug)]
pub(super) struct Rule {
    role: Role,
    pub(super) when: &'static [When],
    pub(super) dtype: DType,
}

/// A condition on the model or on a tensor's place among those of its role.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// In the first of this many equal parts.
    FirstOf(usize),
    /// One of the first few.
    Before(usize),
    /// In neither the first nor the last eighth.
    Middle,
    /// In the first or last eighth, or every third between.
    MoreBits,
    /// At least four query heads share a key.
    Grouped,
    /// The same, or at least four experts.
    GroupedOrExperts,
    EightExperts,
    Importance,
    NoImportance,
    /// The architecture with its own notion of what is sensitive.
    Falcon,
    NotFalcon,
}

use Role::{Down, Embedding, Gate, Key, Mixed, Query, Up, Value};
use When::*;

const fn rule(role: Role, when: &'static [When], dtype: DType) -> Rule {
    Rule { role, when, dtype }
}

/// Rules of every preset that is not tiny; they come first.
const COMMON: &[Rule] = &[
    rule(Value, &[EightExperts], Q8_0),
    rule(Key, &[EightExperts], Q8_0),
];

/// Rules of every tiny preset; they come first.
const TINY: &[Rule] = &[
    rule(Value, &[GroupedOrExperts], Q4_K),
    rule(Key, &[EightExperts], Q4_K),
    rule(Mixed, &[EightExperts], Q5_K),
];

/// The rules for tensors of `role`, most important first.
pub(super) fn rules(preset: &Preset, role: Role) -> impl Iterator<Item = &'static Rule> {
    let first = if preset.tiny { TINY } else { COMMON };
    first
        .iter()
        .chain(preset.rules)
        .filter(move |rule| rule.role == role)
}

const fn plain(name: &'static str, file_type: u32, base: DType) -> Preset {
    let head = if matches!(base, Q8_0) { Q8_0 } else { Q6_K };
    Preset {
        name,
        file_type,
        base,
        head,
        tiny: false,
        rules: &[],
    }
}

const fn with(name: &'static str, file_type: u32, base: DType, rules: &'static [Rule]) -> Preset {
    Preset {
        rules,
        ..plain(name, file_type, base)
    }
}

const fn tiny(name: &'static str, file_type: u32, base: DType, rules: &'static [Rule]) -> Preset {
    Preset {
        tiny: true,
        head: Q5_K,
        ..with(name, file_type, base, rules)
    }
}

const EXPERTS_MIXED: Rule = rule(Mixed, &[EightExperts, NotFalcon], Q5_K);
const TERNARY: &[Rule] = &[rule(Embedding, &[], Q4_K)];

const TWO_BIT: &[Rule] = &[
    rule(Embedding, &[], Q2_K),
    rule(Value, &[], Q2_K),
    rule(Down, &[FirstOf(8)], Q2_K),
];

const ONE_BIT: &[Rule] = &[
    rule(Embedding, &[], Q2_K),
    rule(Value, &[], Q2_K),
    rule(Down, &[FirstOf(8)], Q2_K),
    rule(Mixed, &[], IQ2_XXS),
];

const TWO_AND_A_HALF_BIT: &[Rule] = &[
    rule(Embedding, &[], IQ3_S),
    rule(Value, &[], IQ3_S),
    rule(Down, &[FirstOf(8)], IQ3_S),
    rule(Mixed, &[], IQ3_S),
];

const NON_LINEAR: &[Rule] = &[
    rule(Value, &[Grouped], Q5_K),
    rule(Down, &[FirstOf(8), NoImportance], Q5_K),
    EXPERTS_MIXED,
];

/// Every preset, in the order of their file types.
pub static PRESETS: &[Preset] = &[
    plain("F32", 0, F32),
    plain("F16", 1, F16),
    with(
        "Q4_0",
        2,
        Q4_0,
        &[rule(Down, &[Importance, FirstOf(8)], Q4_1)],
    ),
    plain("Q4_1", 3, Q4_1),
    plain("Q8_0", 7, Q8_0),
    with(
        "Q5_0",
        8,
        Q5_0,
        &[rule(Down, &[Importance, FirstOf(8)], Q5_1)],
    ),
    plain("Q5_1", 9, Q5_1),
    with(
        "Q2_K",
        10,
        Q2_K,
        &[
            rule(Value, &[Grouped], Q4_K),
            rule(Value, &[], Q3_K),
            rule(Down, &[], Q3_K),
            EXPERTS_MIXED,
            rule(Mixed, &[NotFalcon], Q3_K),
        ],
    ),
    with("Q3_K_S", 11, Q3_K, &[EXPERTS_MIXED]),
    with(
        "Q3_K_M",
        12,
        Q3_K,
        &[
            rule(Value, &[Before(2)], Q5_K),
            rule(Value, &[], Q4_K),
            rule(Down, &[FirstOf(16)], Q5_K),
            rule(Down, &[NotFalcon], Q4_K),
            rule(Down, &[MoreBits], Q4_K),
            EXPERTS_MIXED,
            rule(Mixed, &[NotFalcon], Q4_K),
        ],
    ),
    with(
        "Q3_K_L",
        13,
        Q3_K,
        &[
            rule(Value, &[], Q5_K),
            rule(Down, &[Falcon], Q4_K),
            rule(Down, &[], Q5_K),
            rule(Mixed, &[Falcon], Q4_K),
            rule(Mixed, &[EightExperts], Q3_K),
            rule(Mixed, &[], Q5_K),
        ],
    ),
    with(
        "Q4_K_S",
        14,
        Q4_K,
        &[
            rule(Value, &[Before(4)], Q5_K),
            rule(Down, &[NotFalcon, FirstOf(8)], Q5_K),
            EXPERTS_MIXED,
        ],
    ),
    with(
        "Q4_K_M",
        15,
        Q4_K,
        &[
            rule(Value, &[MoreBits], Q6_K),
            rule(Down, &[Falcon, FirstOf(16)], Q6_K),
            rule(Down, &[Falcon, MoreBits], Q5_K),
            rule(Down, &[NotFalcon, MoreBits], Q6_K),
            EXPERTS_MIXED,
        ],
    ),
    plain("Q5_K_S", 16, Q5_K),
    with(
        "Q5_K_M",
        17,
        Q5_K,
        &[
            rule(Value, &[MoreBits], Q6_K),
            rule(Down, &[MoreBits], Q6_K),
        ],
    ),
    plain("Q6_K", 18, Q6_K),
    tiny("IQ2_XXS", 19, IQ2_XXS, TWO_BIT),
    tiny("IQ2_XS", 20, IQ2_XS, TWO_BIT),
    with(
        "Q2_K_S",
        21,
        Q2_K,
        &[
            rule(Value, &[Grouped], Q4_K),
            rule(Down, &[FirstOf(8)], Q4_K),
        ],
    ),
    with(
        "IQ3_XS",
        22,
        IQ3_S,
        &[
            rule(Value, &[Grouped], Q4_K),
            rule(Key, &[], IQ3_XXS),
            rule(Query, &[], IQ3_XXS),
            rule(Gate, &[Middle], IQ3_XXS),
            rule(Up, &[Middle], IQ3_XXS),
            EXPERTS_MIXED,
        ],
    ),
    Preset {
        head: Q5_K,
        ..with(
            "IQ3_XXS",
            23,
            IQ3_XXS,
            &[
                rule(Embedding, &[], IQ3_S),
                rule(Value, &[Grouped], Q4_K),
                rule(Value, &[NoImportance], IQ3_S),
                rule(Key, &[], IQ2_S),
                rule(Query, &[], IQ2_S),
                rule(Down, &[NoImportance, FirstOf(8)], Q4_K),
                rule(Down, &[NoImportance], Q3_K),
                EXPERTS_MIXED,
                rule(Mixed, &[NotFalcon], IQ3_S),
            ],
        )
    },
    tiny("IQ1_S", 24, IQ1_S, ONE_BIT),
    with("IQ4_NL", 25, IQ4_NL, NON_LINEAR),
    with(
        "IQ3_S",
        26,
        IQ3_S,
        &[rule(Value, &[Grouped], Q4_K), EXPERTS_MIXED],
    ),
    with(
        "IQ3_M",
        27,
        IQ3_S,
        &[
            rule(Value, &[], Q4_K),
            rule(Down, &[FirstOf(8)], Q4_K),
            rule(Down, &[EightExperts, MoreBits], Q4_K),
            EXPERTS_MIXED,
            rule(Mixed, &[NotFalcon], Q4_K),
        ],
    ),
    tiny("IQ2_S", 28, IQ2_XS, TWO_AND_A_HALF_BIT),
    tiny("IQ2_M", 29, IQ2_S, TWO_AND_A_HALF_BIT),
    with("IQ4_XS", 30, IQ4_XS, NON_LINEAR),
    tiny("IQ1_M", 31, IQ1_M, ONE_BIT),
    plain("BF16", 32, BF16),
    with("TQ1_0", 36, TQ1_0, TERNARY),
    with("TQ2_0", 37, TQ2_0, TERNARY),
    plain("MXFP4_MOE", 38, MXFP4),
    plain("Q1_0", 40, Q1_0),
    with("Q2_0", 41, Q2_0, TERNARY),
];

/// Short names that stand for a preset.
const ALIASES: &[(&str, &str)] = &[("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M")];

impl Preset {
    /// The preset called `name`, whatever the case; also by an alias such as `Q4_K`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<&'static Self> {
        let alias = ALIASES
            .iter()
            .find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |&(_, name)| name);
        PRESETS
            .iter()
            .find(|preset| preset.name.eq_ignore_ascii_case(name))
    }

    /// The preset that a file's `general.file_type` means.
    #[must_use]
    pub fn from_file_type(file_type: u32) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.file_type == file_type)
    }
}
