//! The hand-written splitters against the regular expressions they stand for.

use std::sync::LazyLock;

use fancy_regex::Regex;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::split::known::*;
use super::super::split::split;
use super::*;

const HAN_KANA: &str = r"[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const CJK_MORE: &str = r"[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";

/// The expressions of one name of each row; a piece of one is split by the next.
const EXPRESSIONS: &[(&str, &[&str])] = &[
    (
        "default",
        &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    ),
    ("minicpm5", &[r"\p{N}{1,3}", MINICPM5]),
    ("llama3", &[LLAMA3]),
    ("dbrx", &[LLAMA3]),
    ("chatglm-bpe", &[LLAMA3]),
    ("glm4", &[LLAMA3]),
    ("jais-2", &[JAIS2]),
    (
        "deepseek-coder",
        &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_MORE, r"\p{N}"],
    ),
    ("deepseek-v3", &[r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3]),
    ("spark2_5", &[r"\p{N}{1,3}", HAN_KANA, SPARK, r"\p{N}"]),
    (
        "youtu",
        &[
            r"[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[！…“”‘’—：；，\u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
            YOUTU,
        ],
    ),
    (
        "falcon",
        &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    ),
    ("starcoder", &[r"\p{N}", GPT2]),
    ("gpt-2", &[GPT2]),
    ("roberta-bpe", &[GPT2]),
    ("qwen2", &[QWEN2]),
    ("qwen35", &[QWEN35]),
    ("bloom", &[BLOOM]),
    ("viking", &[BLOOM, r"\p{N}"]),
    ("tekken", &[TEKKEN]),
    (
        "chameleon",
        &[
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            "([\\t\\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    ),
    ("gpt-4o", &[GPT4O]),
    ("granite-embed-multi-97m", &[GPT4O]),
    // The word boundary of `\d{1,3}(?=(?:\d{3})*\b)`, with the word characters of that engine spelled out.
    (
        "tiny_aya",
        &[
            r"\d{1,3}(?=(?:\d{3})*(?![\p{Alphabetic}\p{M}\p{N}\p{Pc}]))",
            GPT4O,
        ],
    ),
    ("superbpe", &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    ("kimi-k2", &[KIMI]),
    ("bailingmoe", &[BAILING]),
    ("seed-coder", &[SEED_CODER]),
    ("ufakzeka", &[UFAKZEKA]),
    ("laguna", &[r"[^\n]+|[\n]+", QWEN2]),
    ("exaone-moe", &[EXAONE_MOE]),
    ("gemma4", &[r"[^\n]+|[\n]+"]),
    ("sarvam-moe", &[r"[^\n]+|[\n]+"]),
];

/// Names with a test of their own.
const BY_HAND: &[&str] = &["afmoe", "deepseek-llm", "whitespace"];

/// Every expression compiled; `deepseek-llm` is built from the ranges of the table.
static COMPILED: LazyLock<Vec<(&str, Vec<Regex>)>> = LazyLock::new(|| {
    let compile = |sources: &[&str]| sources.iter().map(|s| Regex::new(s).unwrap()).collect();
    let mut all: Vec<_> = EXPRESSIONS
        .iter()
        .map(|(name, sources)| (*name, compile(sources)))
        .collect();
    let [letters, punct] = [DEEPSEEK_LETTERS, DEEPSEEK_PUNCT].map(class);
    let sources = ["[\r\n]", &letters, &punct, r"\s+$", CJK_MORE, r"\p{N}+"];
    all.push(("deepseek-llm", compile(&sources)));
    all
});

fn class(ranges: Ranges) -> String {
    let range = |(a, b): &(char, char)| format!("\\u{{{:x}}}-\\u{{{:x}}}", *a as u32, *b as u32);
    format!("\\s?[{}]+", ranges.iter().map(range).collect::<String>())
}

fn reference<'a>(expressions: &[Regex], text: &'a str) -> Vec<&'a str> {
    let Some((first, rest)) = expressions.split_first() else {
        return vec![text];
    };
    let mut out = Vec::new();
    let mut gap = 0;
    for found in first.find_iter(text) {
        let found = found.unwrap();
        for piece in [&text[gap..found.start()], found.as_str()] {
            if !piece.is_empty() {
                out.extend(reference(rest, piece));
            }
        }
        gap = found.end();
    }
    if gap < text.len() {
        out.extend(reference(rest, &text[gap..]));
    }
    out
}

fn ours(steps: &[Step], text: &str) -> Vec<String> {
    let mut out = Vec::new();
    split(steps, text, true, &mut |piece| out.push(piece.to_owned()));
    out
}

#[rustfmt::skip]
const ALPHABET: &[&str] = &[
    " ", " ", " ", "  ", "    ", "\n", "\n", "\r", "\t", "\u{b}", "\u{85}", "\u{a0}", "\u{3000}",
    "\u{2028}", "\u{1c}", "\u{0}", "\u{200b}", "\u{e000}", "'", "'", "'", "s", "t", "re", "ve",
    "m", "ll", "d", "S", "RE", "lL", "ſ", "a", "b", "z", "A", "B", "Z", "é", "É", "ß", "ǅ", "ª",
    "ʰ", "中", "国", "々", "〇", "あ", "ア", "ー", "한", "ㄱ", "ㄅ", "א", "ع", "ह", "\u{93f}", "\u{94d}",
    "\u{301}", "\u{20dd}", "ก", "0", "1", "2", "3", "9", "٣", "²", "½", "Ⅷ", "१", "１", "!", "\"",
    "#", "$", "%", "(", ")", "*", "+", ",", "-", ".", "/", ":", ";", "<", "=", ">", "?", "@",
    "[", "\\", "]", "^", "_", "`", "{", "|", "}", "~", "…", "“", "—", "。", "，", "、", "。", "：",
    "｡", "।", "۔", "،", "€", "¬", "×", "😀", "👍🏽", "\u{200d}", "\u{fe0f}", "▁", "<sentinel:12>",
    "IMGIMGABZ", "IMGIMGABCDEZ", "豈", "\u{f900}", "ヿ", "𠀀", "𝒜", "ⓐ", "‿",
];

fn check(name: &str, text: &str) {
    let (_, expressions) = COMPILED.iter().find(|(n, _)| *n == name).unwrap();
    let steps = find(name).unwrap().steps;
    assert_eq!(
        ours(&steps, text),
        reference(expressions, text),
        "{name} splits {text:?}"
    );
}

#[test]
fn every_row_has_its_expression() {
    for (names, ..) in TABLE {
        let known = |n: &&str| EXPRESSIONS.iter().any(|(e, _)| e == n) || BY_HAND.contains(n);
        assert!(names.iter().any(known), "{names:?}");
    }
    let mut names: Vec<_> = names().collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splitters_equal_their_expressions(
        row in 0..COMPILED.len(),
        parts in prop::collection::vec(select(ALPHABET), 0..24),
    ) {
        check(COMPILED[row].0, &parts.concat());
    }
}

#[test]
fn long_runs_of_space() {
    for n in [3, 4, 5, 127, 128, 129, 511, 512, 513, 1600] {
        for end in ["", "x", "\n", "\nx", " 1"] {
            for name in ["jais-2", "llama3", "gpt-2", "kimi-k2", "chameleon"] {
                check(name, &format!("a{}{end}", " ".repeat(n)));
            }
        }
    }
}

#[test]
fn grouped_digits() {
    let afmoe = find("afmoe").unwrap().steps;
    assert_eq!(
        ours(&afmoe, "ab1234567x 12"),
        ["ab", "1", "234", "567", "x", " ", "12"]
    );
    let aya = find("tiny_aya").unwrap().steps;
    assert_eq!(
        ours(&aya, "1234567 12ab"),
        ["1", "234", "567", " ", "12", "ab"]
    );
}

#[test]
fn dropped_white_space() {
    let steps = find("whitespace").unwrap().steps;
    assert_eq!(ours(&steps, " a\u{3000}bc\r\n"), ["a", "bc"]);
}
