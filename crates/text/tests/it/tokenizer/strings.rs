//! Random texts of the kinds that tokenizers get wrong.

/// A small generator of random numbers (xorshift64*), the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    fn between(&mut self, (first, last): (u32, u32)) -> char {
        let c = first + self.below((last - first + 1) as usize) as u32;
        char::from_u32(c).unwrap_or('\u{fffd}')
    }
}

/// One random text; `pieces` are texts of the vocabulary under test.
pub(crate) fn text(random: &mut Random, pieces: &[String]) -> String {
    let mut out = String::new();
    for _ in 0..1 + random.below(4) {
        let kind = random.below(12);
        for _ in 0..1 + random.below(12) {
            add(random, kind, pieces, &mut out);
        }
    }
    out
}

fn add(random: &mut Random, kind: usize, pieces: &[String], out: &mut String) {
    match kind {
        0 => out.push(random.between((0, 0x10_FFFF))),
        1 => out.push(random.between((0, 0xFF))),
        2 => out.push(random.between((0x20, 0x7E))),
        3 => out.push_str(random.pick(WORDS)),
        4 => out.push_str(random.pick(SPACES)),
        5 => out.push_str(random.pick(CODE)),
        6 => out.push_str(random.pick(EMOJI)),
        7 => add_script(random, RIGHT_TO_LEFT, out),
        8 => add_script(random, EAST_ASIAN, out),
        9 => add_script(random, OTHER, out),
        10 => out.push_str(random.pick(DIGITS)),
        _ if pieces.is_empty() => out.push('x'),
        _ => out.push_str(&pieces[random.below(pieces.len())]),
    }
    if random.below(5) == 0 {
        out.push_str(random.pick(SPACES));
    }
}

fn add_script(random: &mut Random, ranges: &[(u32, u32)], out: &mut String) {
    let range = ranges[random.below(ranges.len())];
    for _ in 0..1 + random.below(6) {
        out.push(random.between(range));
    }
}

const WORDS: &[&str] = &[
    "the",
    "Hello",
    "WORLD",
    "don't",
    "I'M",
    "we'LL",
    "they've",
    "he'd",
    "x'RE",
    "'s",
    "'S",
    "'",
    "ÉCOLE",
    "naïve",
    "straße",
    "İstanbul",
    "ǅungla",
    "ﬁne",
    "camelCaseWord",
    "snake_case",
    "SHOUTING",
    "iPhone",
    "e\u{301}te\u{301}",
    "Å",
    "A\u{30a}",
    "µm",
    "ªº",
    "CO₂",
    "1st",
    "n°3",
    "...",
    "—",
    "“quote”",
    "¿qué?",
    "l'eau",
    "rock'n'roll",
    "http://a.b/c?d=e#f",
    "a@b.co",
];
const SPACES: &[&str] = &[
    " ", "  ", "   ", "     ", "\n", "\n\n", "\n\n\n", "\r\n", "\r", "\t", "\t\t", " \n", "\n ",
    " \t ", "\u{a0}", "\u{3000}", "\u{2003}", "\u{2028}", "\u{85}", "\u{b}", "\u{c}", "\u{200b}",
    "\u{feff}", "\u{1c}", "▁", " ▁",
];
const CODE: &[&str] = &[
    "fn main() {",
    "    return x;",
    "if (a&&b||!c)",
    "for(int i=0;i<n;++i)",
    "\tprint(\"%s\\n\")",
    "<div class=\"a\">",
    "</div>",
    "#include <stdio.h>",
    "// comment",
    "/* */",
    "x += 1",
    "=>",
    "->",
    "::<>",
    "${var}",
    "$HOME",
    "a[i][j]",
    "!=",
    "==",
    "<<=",
    "0x1F",
    "1e-9",
    "@decorator",
    "#!",
    "\\",
    "/",
    "//",
    "/\n",
    "?\r\n",
    ";\n\n",
    "``` ",
    "|",
    "~",
    "^",
];
const EMOJI: &[&str] = &[
    "😀",
    "🦙",
    "👨‍👩‍👧‍👦",
    "👍🏽",
    "🇩🇪",
    "❤️",
    "☀",
    "🏳️‍🌈",
    "1️⃣",
    "🫠",
    "🀄",
    "\u{fe0f}",
    "\u{200d}",
    "\u{1f3fb}",
];
const DIGITS: &[&str] = &[
    "0",
    "7",
    "42",
    "123",
    "1234",
    "12345",
    "1234567",
    "3.14",
    "1,000,000",
    "²",
    "½",
    "Ⅷ",
    "٣",
    "१२३४",
    "１２３４",
    "٠١٢٣",
    "1 2",
    "00:00",
    "−5",
    "12abc",
    "x86_64",
];
const RIGHT_TO_LEFT: &[(u32, u32)] = &[
    (0x590, 0x5FF),
    (0x600, 0x6FF),
    (0x700, 0x74F),
    (0xFB1D, 0xFDFF),
    (0xFE70, 0xFEFF),
    (0x200E, 0x200F),
];
const EAST_ASIAN: &[(u32, u32)] = &[
    (0x4E00, 0x9FFF),
    (0x3040, 0x30FF),
    (0xAC00, 0xD7A3),
    (0x3000, 0x303F),
    (0xFF00, 0xFFEF),
    (0x1100, 0x11FF),
    (0x3100, 0x318F),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0xF900, 0xFAFF),
];
const OTHER: &[(u32, u32)] = &[
    (0x100, 0x24F),
    (0x300, 0x36F),
    (0x370, 0x3FF),
    (0x400, 0x4FF),
    (0x900, 0x97F),
    (0x980, 0x9FF),
    (0xE00, 0xE7F),
    (0x1E00, 0x1EFF),
    (0x2000, 0x206F),
    (0x2070, 0x209F),
    (0x20A0, 0x20CF),
    (0x2100, 0x214F),
    (0x2190, 0x21FF),
    (0x2200, 0x22FF),
    (0x2500, 0x257F),
    (0x1D400, 0x1D7FF),
    (0x1F000, 0x1FAFF),
    (0xE000, 0xE0FF),
    (0x10A0, 0x10FF),
    (0x1780, 0x17FF),
];
