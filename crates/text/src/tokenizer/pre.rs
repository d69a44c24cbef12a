//! The splitting rules behind each name of `tokenizer.ggml.pre`: a table, nothing else.

#[cfg(test)]
mod tests;

use super::split::runs::{DigitGroups, Ranges, Runs};
use super::split::words as w;
use super::split::{Rule, Step};
use super::unicode::{LETTER, NUMBER, PUNCT};

/// What a name says beyond the splits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Flags {
    /// A word that is a token needs no merges.
    pub(super) whole_words: bool,
    /// A text begins with BOS unless the file says otherwise.
    pub(super) add_bos: bool,
    /// BOS is prepended whatever the file says.
    pub(super) force_bos: bool,
    /// The kind's usual BOS does not stand when the file names none.
    pub(super) no_default_bos: bool,
    /// A pair of texts is separated.
    pub(super) add_sep: bool,
    /// Spaces are written as `▁` and symbols are characters, not bytes.
    pub(super) characters: bool,
    /// Symbols are characters, and white space is dropped.
    pub(super) dropped_spaces: bool,
    /// A run of line feeds that is a token needs no merges.
    pub(super) whole_line_feeds: bool,
}

/// A pre-tokenizer.
#[derive(Clone, Debug)]
pub(super) struct Pre {
    pub(super) steps: Vec<Step>,
    pub(super) flags: Flags,
}

/// The rules and flags of `name`.
pub(super) fn find(name: &str) -> Option<Pre> {
    let &(_, rules, flags) = TABLE.iter().find(|(names, ..)| names.contains(&name))?;
    let step = if flags.dropped_spaces {
        Step::kept
    } else {
        Step::isolated
    };
    Some(Pre {
        steps: rules().into_iter().map(step).collect(),
        flags,
    })
}

/// Every known name.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|(names, ..)| names.iter().copied())
}

type Row = (&'static [&'static str], fn() -> Vec<Rule>, Flags);

const NONE: Flags = Flags {
    whole_words: false,
    add_bos: false,
    force_bos: false,
    no_default_bos: false,
    add_sep: false,
    characters: false,
    dropped_spaces: false,
    whole_line_feeds: false,
};
const WHOLE: Flags = Flags {
    whole_words: true,
    ..NONE
};
const WHOLE_BOS: Flags = Flags {
    add_bos: true,
    ..WHOLE
};
const BOS: Flags = Flags {
    add_bos: true,
    ..NONE
};
const SEP: Flags = Flags {
    add_sep: true,
    ..NONE
};
const NO_DEFAULT_BOS: Flags = Flags {
    no_default_bos: true,
    ..NONE
};
const CHARACTERS: Flags = Flags {
    characters: true,
    ..NONE
};
const GEMMA4: Flags = Flags {
    force_bos: true,
    whole_line_feeds: true,
    ..CHARACTERS
};
const DROPPED_SPACES: Flags = Flags {
    dropped_spaces: true,
    ..NONE
};

#[rustfmt::skip]
const TABLE: &[Row] = &[
    (&["default"], default, NONE),
    (&["minicpm5"], || vec![digits(3), words(&w::MINICPM5)], WHOLE),
    (&["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
       "jina-v5-nano"], llama3, WHOLE_BOS),
    (&["dbrx", "smaug-bpe"], llama3, NONE),
    (&["chatglm-bpe"], llama3, NO_DEFAULT_BOS),
    (&["glm4", "glm5"], llama3, Flags { no_default_bos: true, ..WHOLE }),
    (&["jais-2"], || vec![words(&w::JAIS2)], NONE),
    (&["deepseek-llm"], deepseek_llm, NONE),
    (&["deepseek-coder"], deepseek_coder, NONE),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], || deepseek3(&w::DEEPSEEK3), NONE),
    (&["spark2_5"], spark, NONE),
    (&["youtu"], youtu, WHOLE),
    (&["falcon"], falcon, NONE),
    (&["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
     || vec![digits(1), Rule::Gpt2], NONE),
    (&["gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
       "mellum", "modern-bert", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"],
     gpt2, NONE),
    (&["jina-v1-en", "jina-v2-code", "roberta-bpe"], gpt2, SEP),
    (&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", "megrez",
       "grok-2"], qwen2, NONE),
    (&["qwen35"], || vec![words(&w::QWEN35)], NONE),
    (&["poro-chat", "bloom", "gpt3-finnish"], || vec![bloom()], NONE),
    (&["viking"], || vec![bloom(), digits(1)], NONE),
    (&["tekken"], || vec![words(&w::TEKKEN)], WHOLE_BOS),
    (&["chameleon"], chameleon, BOS),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], gpt4o, NONE),
    (&["granite-embed-multi-97m"], gpt4o, WHOLE),
    (&["tiny_aya", "cohere2moe"],
     || vec![groups(DigitGroups::AtBoundary), words(&w::GPT4O)], NONE),
    (&["superbpe"], || vec![digits(usize::MAX), groups(DigitGroups::Between)], NONE),
    (&["kimi-k2"], || vec![words(&w::KIMI_K2)], NONE),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], || vec![words(&w::BAILING)], NONE),
    (&["seed-coder"], || vec![words(&w::SEED_CODER)], NONE),
    (&["ufakzeka"], || vec![words(&w::UFAKZEKA)], NONE),
    (&["afmoe"], afmoe, NONE),
    (&["laguna"], || vec![Rule::Runs(Runs::Lines), words(&w::QWEN2)], NONE),
    (&["exaone-moe"], || vec![words(&w::EXAONE_MOE)], NONE),
    (&["gemma4", "granite-embed-multi-311m"], lines, GEMMA4),
    (&["sarvam-moe"], lines, CHARACTERS),
    (&["whitespace"], || vec![Rule::Runs(Runs::NonSpace)], DROPPED_SPACES),
];

fn words(words: &'static w::Words) -> Rule {
    Rule::Words(words)
}

fn digits(most: usize) -> Rule {
    Rule::Runs(Runs::Class(NUMBER, most))
}

fn groups(groups: DigitGroups) -> Rule {
    Rule::Runs(Runs::DigitGroups(groups))
}

fn bloom() -> Rule {
    Rule::Runs(Runs::SpaceNot("(|.,!?…。，、।۔،)"))
}

fn gpt2() -> Vec<Rule> {
    vec![Rule::Gpt2]
}

fn llama3() -> Vec<Rule> {
    vec![words(&w::LLAMA3_WORDS)]
}

fn qwen2() -> Vec<Rule> {
    vec![words(&w::QWEN2)]
}

fn gpt4o() -> Vec<Rule> {
    vec![words(&w::GPT4O)]
}

fn lines() -> Vec<Rule> {
    vec![Rule::Runs(Runs::Lines)]
}

fn default() -> Vec<Rule> {
    let punct = Rule::Runs(Runs::PunctOr("$+<=>^~|"));
    vec![
        punct,
        Rule::Gpt2,
        digits(usize::MAX),
        Rule::Runs(Runs::ThreeDigits),
    ]
}

fn falcon() -> Vec<Rule> {
    vec![
        Rule::Runs(Runs::PunctOr("$+<=>^~|`")),
        Rule::Gpt2,
        Rule::Runs(Runs::ThreeDigits),
    ]
}

fn deepseek_coder() -> Vec<Rule> {
    vec![
        Rule::Runs(Runs::LineEnd),
        Rule::Runs(Runs::SpaceClass(LETTER)),
        Rule::Runs(Runs::SpaceClass(PUNCT)),
        Rule::Runs(Runs::AnyOf(&[CJK_AND_MORE])),
        digits(1),
    ]
}

fn deepseek_llm() -> Vec<Rule> {
    vec![
        Rule::Runs(Runs::LineEnd),
        Rule::Runs(Runs::SpaceRanges(DEEPSEEK_LETTERS)),
        Rule::Runs(Runs::SpaceRanges(DEEPSEEK_PUNCT)),
        Rule::Runs(Runs::TrailingSpace),
        Rule::Runs(Runs::AnyOf(&[CJK_AND_MORE])),
        digits(usize::MAX),
    ]
}

fn deepseek3(main: &'static w::Words) -> Vec<Rule> {
    vec![
        digits(3),
        Rule::Runs(Runs::AnyOf(&[HAN_AND_KANA])),
        words(main),
    ]
}

fn spark() -> Vec<Rule> {
    let mut rules = deepseek3(&w::SPARK);
    rules.push(digits(1));
    rules
}

fn youtu() -> Vec<Rule> {
    const SCRIPTS: &[Ranges] = &[HANGUL, CJK_PUNCT, BOPOMOFO, HAN_AND_KANA];
    vec![Rule::Runs(Runs::AnyOf(SCRIPTS)), words(&w::YOUTU)]
}

fn chameleon() -> Vec<Rule> {
    vec![
        Rule::Runs(Runs::Sentinel),
        Rule::Runs(Runs::ImageTokens),
        Rule::Runs(Runs::TabsAndPairs),
        digits(1),
        Rule::Runs(Runs::OnePunctOrAscii),
        Rule::Gpt2,
    ]
}

fn afmoe() -> Vec<Rule> {
    vec![
        groups(DigitGroups::Always),
        Rule::Runs(Runs::AnyOf(&[ASIAN])),
        words(&w::DEEPSEEK3),
    ]
}

const HAN_AND_KANA: Ranges = &[('一', '龥'), ('\u{3040}', 'ゟ'), ('゠', 'ヿ')];
const HANGUL: Ranges = &[('가', '힣'), ('ㄱ', 'ㆎ')];
const BOPOMOFO: Ranges = &[('ㄅ', 'ㄯ')];
const CJK_PUNCT: Ranges = &[
    ('！', '！'),
    ('…', '…'),
    ('“', '”'),
    ('‘', '’'),
    ('—', '—'),
    ('：', '：'),
    ('；', '；'),
    ('，', '，'),
    ('、', '〿'),
    ('︰', '﹏'),
];
const CJK_AND_MORE: Ranges = &[('一', '龥'), ('ࠀ', '一'), ('가', '\u{d7ff}')];
const ASIAN: Ranges = &[
    ('一', '鿿'),
    ('㐀', '䶿'),
    ('\u{f900}', '\u{faff}'),
    ('\u{3040}', 'ゟ'),
    ('゠', 'ヿ'),
    ('･', 'ﾟ'),
    ('⼀', '⿟'),
    ('เ', '\u{e7f}'),
    ('\u{e80}', '\u{eff}'),
    ('ក', '\u{17ff}'),
    ('က', '႟'),
    ('ꩠ', 'ꩿ'),
    ('ꧠ', '\u{a9ff}'),
    ('가', '\u{d7af}'),
    ('ᄀ', 'ᇿ'),
];
const DEEPSEEK_PUNCT: Ranges = &[
    ('!', '/'),
    (':', '~'),
    ('！', '／'),
    ('：', '～'),
    ('‘', '‟'),
    ('\u{3000}', '。'),
];
/// Letters with case, as this family lists them.
#[rustfmt::skip]
const DEEPSEEK_LETTERS: Ranges = &[
    ('\u{41}', '\u{5a}'), ('\u{61}', '\u{7a}'), ('\u{b5}', '\u{b5}'), ('\u{c0}', '\u{d6}'),
    ('\u{d8}', '\u{f6}'), ('\u{f8}', '\u{1ba}'), ('\u{1bc}', '\u{1bf}'), ('\u{1c4}', '\u{293}'),
    ('\u{295}', '\u{2af}'), ('\u{370}', '\u{373}'), ('\u{376}', '\u{376}'), ('\u{377}', '\u{377}'),
    ('\u{37b}', '\u{37d}'), ('\u{37f}', '\u{37f}'), ('\u{386}', '\u{386}'), ('\u{388}', '\u{38a}'),
    ('\u{38c}', '\u{38c}'), ('\u{38e}', '\u{3a1}'), ('\u{3a3}', '\u{3f5}'), ('\u{3f7}', '\u{481}'),
    ('\u{48a}', '\u{52f}'), ('\u{531}', '\u{556}'), ('\u{10a0}', '\u{10c5}'),
    ('\u{13a0}', '\u{13f5}'), ('\u{13f8}', '\u{13fd}'), ('\u{1c90}', '\u{1cba}'),
    ('\u{1cbd}', '\u{1cbf}'), ('\u{1d00}', '\u{1d2b}'), ('\u{1d6b}', '\u{1d77}'),
    ('\u{1d79}', '\u{1d9a}'), ('\u{1e00}', '\u{1f15}'), ('\u{1f18}', '\u{1f1d}'),
    ('\u{1f20}', '\u{1f45}'), ('\u{1f48}', '\u{1f4d}'), ('\u{1f50}', '\u{1f57}'),
    ('\u{1f59}', '\u{1f59}'), ('\u{1f5b}', '\u{1f5b}'), ('\u{1f5d}', '\u{1f5d}'),
    ('\u{1f5f}', '\u{1f7d}'), ('\u{1f80}', '\u{1fb4}'), ('\u{1fb6}', '\u{1fbc}'),
    ('\u{1fbe}', '\u{1fbe}'), ('\u{1fc2}', '\u{1fc4}'), ('\u{1fc6}', '\u{1fcc}'),
    ('\u{1fd0}', '\u{1fd3}'), ('\u{1fd6}', '\u{1fdb}'), ('\u{1fe0}', '\u{1fec}'),
    ('\u{1ff2}', '\u{1ff4}'), ('\u{1ff6}', '\u{1ffc}'), ('\u{2102}', '\u{2102}'),
    ('\u{2107}', '\u{2107}'), ('\u{210a}', '\u{2113}'), ('\u{2115}', '\u{2115}'),
    ('\u{2119}', '\u{211d}'), ('\u{2124}', '\u{2124}'), ('\u{2126}', '\u{2126}'),
    ('\u{2128}', '\u{2128}'), ('\u{212a}', '\u{212d}'), ('\u{212f}', '\u{2134}'),
    ('\u{2139}', '\u{2139}'), ('\u{213c}', '\u{213f}'), ('\u{2145}', '\u{2149}'),
    ('\u{214e}', '\u{214e}'), ('\u{2183}', '\u{2183}'), ('\u{2184}', '\u{2184}'),
    ('\u{2c00}', '\u{2c7b}'), ('\u{2c7e}', '\u{2ce4}'), ('\u{2ceb}', '\u{2cee}'),
    ('\u{2cf2}', '\u{2cf2}'), ('\u{2cf3}', '\u{2cf3}'), ('\u{a640}', '\u{a66d}'),
    ('\u{a680}', '\u{a69b}'), ('\u{a722}', '\u{a76f}'), ('\u{a771}', '\u{a787}'),
    ('\u{a78b}', '\u{a78e}'), ('\u{ab70}', '\u{abbf}'), ('\u{fb00}', '\u{fb06}'),
    ('\u{fb13}', '\u{fb17}'), ('\u{ff21}', '\u{ff3a}'), ('\u{ff41}', '\u{ff5a}'),
    ('\u{10400}', '\u{1044f}'), ('\u{104b0}', '\u{104d3}'), ('\u{104d8}', '\u{104fb}'),
    ('\u{10c80}', '\u{10cb2}'), ('\u{10cc0}', '\u{10cf2}'), ('\u{118a0}', '\u{118df}'),
    ('\u{1e900}', '\u{1e943}'),
];
