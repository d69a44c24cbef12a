//! A draw as a device without 64-bit integers makes it: 32-bit words, no sorting, edges found by bisection, sums that
//! any order of additions gives. It must find what the reference semantics say.

#[path = "device/chance.rs"]
mod chance;
#[path = "device/wide.rs"]
mod wide;

use chance::Chance;
use tokkata_ir::sample::tables::{EXP, LN, LN_2, LN_LN, LOG2_E};
use tokkata_ir::sample::{ALL, BadLogits, Row, Scratch, sample};
use wide::{Wide, product};

const EXCLUDED: i32 = i32::MIN;
const MOST: i32 = (1 << 30) - (1 << 6);

/// A logit's bits in fixed point.
fn fixed(bits: u32) -> i32 {
    let magnitude = bits & 0x7FFF_FFFF;
    let (exponent, mantissa) = (magnitude >> 23, magnitude & 0x7F_FFFF | 0x80_0000);
    let value = match exponent {
        0..111 => 0,
        111..134 => mantissa >> (134 - exponent),
        134..141 => mantissa << (exponent - 134),
        _ if bits == 0xFF80_0000 => return EXCLUDED,
        _ => u32::MAX,
    };
    let value = value.min(MOST as u32) as i32;
    if bits >> 31 == 0 { value } else { -value }
}

fn add(a: i32, b: i32) -> i32 {
    if a == EXCLUDED || b == EXCLUDED {
        return EXCLUDED;
    }
    (a + b).clamp(-MOST, MOST)
}

fn subtract(a: i32, b: i32) -> i32 {
    if b == EXCLUDED { EXCLUDED } else { add(a, -b) }
}

fn scale(a: i32, factor: u32, shift: u32) -> i32 {
    if a == EXCLUDED {
        return a;
    }
    let product = product(a.unsigned_abs(), factor).shifted(shift);
    let magnitude = match product.high {
        0 => product.low.min(MOST as u32) as i32,
        _ => MOST,
    };
    if a < 0 { -magnitude } else { magnitude }
}

fn exp(d: u32) -> u32 {
    if d >= 1 << 21 {
        return 0;
    }
    let turns = product(d << 10, LOG2_E).high;
    let (n, i) = (turns >> 25, (turns >> 17 & 255) as usize);
    let value = EXP[i] - product(EXP[i] - EXP[i + 1], turns << 15).high;
    match n {
        0 => value,
        1..32 => (value + (1 << (n - 1))) >> n,
        _ => 0,
    }
}

fn neg_ln(v: Wide) -> u32 {
    let v = Wide {
        low: v.low | 1,
        ..v
    };
    let zeros = v.leading_zeros();
    let mantissa = v.raised(zeros).high;
    let (i, rest) = ((mantissa >> 22 & 511) as usize, mantissa >> 6 & 0xFFFF);
    zeros * LN_2 + LN[i] - (((LN[i] - LN[i + 1]) * rest) >> 16)
}

fn gumbel(v: Wide) -> i32 {
    if v.high >> 31 != 0 {
        let flipped = Wide {
            high: !v.high,
            low: !v.low,
        };
        let exponential = Wide {
            high: neg_ln(flipped),
            low: 0,
        };
        return neg_ln(exponential) as i32 - 8 * LN_2 as i32;
    }
    let (i, rest) = ((v.high >> 23) as usize, v.high >> 7 & 0xFFFF);
    let bend = LN_LN[i] + (((LN_LN[i + 1] - LN_LN[i]) * rest) >> 16);
    neg_ln(v) as i32 - bend as i32
}

fn noise(key: [u32; 2], position: u32, id: u32) -> Wide {
    let turns = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], 0x1BD1_1BDA ^ key[0] ^ key[1]];
    let (mut a, mut b) = (position.wrapping_add(keys[0]), id.wrapping_add(keys[1]));
    for round in 0..13 {
        a = a.wrapping_add(b);
        b = b.rotate_left(turns[round / 4 % 2][round % 4]) ^ a;
        if round % 4 == 3 {
            let n = round / 4 + 1;
            a = a.wrapping_add(keys[n % 3]);
            b = b.wrapping_add(keys[(n + 1) % 3]).wrapping_add(n as u32);
        }
    }
    Wide { high: a, low: b }
}

/// One row's candidates: values by id, [`EXCLUDED`] for those that are out.
struct Drawer<'a> {
    words: [u32; 16],
    row: Row<'a>,
    values: Vec<i32>,
}

impl Drawer<'_> {
    fn adjust(&mut self) {
        for &(id, bias) in self.row.bias {
            self.change(id, |x| add(x, bias.to_bits()));
        }
        for id in 0..self.values.len() {
            let allowed = |mask: &[u32]| mask.get(id / 32).is_some_and(|w| w >> (id % 32) & 1 != 0);
            if !self.row.mask.is_none_or(allowed) {
                self.values[id] = EXCLUDED;
            }
        }
        let recent = self.row.recent.len().min(self.words[13] as usize);
        let recent = &self.row.recent[self.row.recent.len() - recent..];
        let words = self.words;
        for (i, &id) in recent.iter().enumerate() {
            if !recent[..i].contains(&id) {
                let count = recent.iter().filter(|&&t| t == id).count() as u32;
                self.change(id, |x| {
                    let factor = if x > 0 { words[10] } else { words[9] };
                    let per_token = scale(words[11] as i32, count, 0);
                    subtract(scale(x, factor, 24), add(per_token, words[12] as i32))
                });
            }
        }
        for &(id, dry) in self.row.dry {
            self.change(id, |x| subtract(x, dry.to_bits()));
        }
    }

    fn change(&mut self, id: u32, to: impl FnOnce(i32) -> i32) {
        if let Some(value) = self.values.get_mut(id as usize) {
            *value = to(*value);
        }
    }

    fn best(&self) -> i32 {
        self.values.iter().copied().fold(EXCLUDED, i32::max)
    }

    /// The largest value, then the largest logit as it came, then the lowest id.
    fn greedy(&self) -> u32 {
        let order = |x: f32| {
            // Both zeros alike, then the order of floats as that of integers.
            let bits = if x == 0.0 { 0 } else { x.to_bits() as i32 };
            if bits < 0 { bits ^ i32::MAX } else { bits }
        };
        let mut best = (EXCLUDED, i32::MIN, 0);
        for (id, &value) in (0..).zip(&self.values) {
            let raw = order(self.row.logits[id as usize]);
            if (value, raw) > (best.0, best.1) {
                best = (value, raw, id);
            }
        }
        best.2
    }

    /// Distances to the best, `u32::MAX` for what is out.
    fn distances(&self) -> Vec<u32> {
        let best = self.best();
        let of = |&x: &i32| match x {
            EXCLUDED => u32::MAX,
            x => (best - x) as u32,
        };
        self.values.iter().map(of).collect()
    }

    fn keep(&mut self, keeps: impl Fn(usize) -> bool) {
        for (id, value) in self.values.iter_mut().enumerate() {
            if !keeps(id) {
                *value = EXCLUDED;
            }
        }
    }

    fn sigma(&mut self) {
        let distances = self.distances();
        let (mut count, mut sum, mut squares) = (0u32, Wide::ZERO, Wide::ZERO);
        for &d in distances.iter().filter(|&&d| d != u32::MAX) {
            let d = (d >> 8).min((1 << 22) - 1);
            count += 1;
            sum = sum.plus(product(d, 1));
            squares = squares.plus(product(d, d));
        }
        let n = product(count, 1);
        let mean = sum.over(n).low;
        let about = squares
            .plus(product(mean, mean).times(count))
            .minus(sum.times(2 * mean));
        let deviation = about.over(n).raised(16).root();
        let most = product(deviation, self.words[6]).shifted(16);
        let most = if most.high == 0 { most.low } else { u32::MAX };
        self.keep(|id| distances[id] <= most);
    }

    fn top_k(&mut self) {
        let keys = self.distances();
        let ones = vec![1; keys.len()];
        self.keep_mass(&keys, &ones, product(self.words[2], 1));
    }

    /// Keeps what has the smallest keys, the lowest ids among equals, until the weights reach the target.
    fn keep_mass(&mut self, keys: &[u32], weights: &[u32], target: Wide) {
        let live: Vec<bool> = self.values.iter().map(|&x| x != EXCLUDED).collect();
        let mass = |most: u32| {
            let ids = (0..keys.len()).filter(|&id| live[id] && keys[id] <= most);
            ids.fold(Wide::ZERO, |sum, id| sum.plus(product(weights[id], 1)))
        };
        let (mut low, mut high) = (0u32, u32::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            if mass(middle).at_least(target) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let mut sum = if low == 0 { Wide::ZERO } else { mass(low - 1) };
        let mut first = true;
        let mut edge = |id: usize| {
            // The first is kept where nothing is asked for.
            let kept = !sum.at_least(target) || first && low == 0;
            first = false;
            sum = sum.plus(product(weights[id], 1));
            kept
        };
        let kept: Vec<bool> = (0..keys.len())
            .map(|id| live[id] && (keys[id] < low || keys[id] == low && edge(id)))
            .collect();
        self.keep(|id| kept[id]);
    }

    fn weights(&self) -> (Vec<u32>, Wide) {
        let weights: Vec<u32> = self.distances().into_iter().map(exp).collect();
        let total = weights
            .iter()
            .fold(Wide::ZERO, |sum, &w| sum.plus(product(w, 1)));
        (weights, total)
    }

    fn typical(&mut self) {
        let distances = self.distances();
        let (weights, total) = self.weights();
        let terms = distances.iter().zip(&weights);
        let sum = terms.fold(Wide::ZERO, |sum, (&d, &w)| {
            sum.plus(product(w, d).shifted(8))
        });
        let mean = sum.over(total.shifted(8)).low;
        let keys: Vec<u32> = distances.iter().map(|d| d.abs_diff(mean)).collect();
        let target = total.part(self.words[4]).plus(product(1, 1));
        self.keep_mass(&keys, &weights, target);
    }

    fn top_p(&mut self) {
        let (weights, total) = self.weights();
        self.keep_mass(&self.distances(), &weights, total.part(self.words[3]));
    }

    fn xtc(&mut self) {
        let chance = noise(
            [self.words[14], self.words[15]],
            self.row.position,
            u32::MAX,
        )
        .high;
        if self.words[7] != ALL && chance >= self.words[7] {
            return;
        }
        let (weights, total) = self.weights();
        let threshold = total.part(self.words[8]);
        let above = |id: usize| product(weights[id], 1).at_least(threshold);
        let above = |id: usize| self.values[id] != EXCLUDED && above(id);
        let least = (0..weights.len())
            .filter(|&id| above(id))
            .max_by_key(|&id| (-self.values[id], id));
        let kept: Vec<bool> = (0..weights.len())
            .map(|id| !above(id) || Some(id) == least)
            .collect();
        self.keep(|id| kept[id]);
    }

    fn draw(&self) -> u32 {
        let mut best = (i32::MIN, 0);
        for (id, d) in (0..).zip(self.distances()) {
            if self.values[id as usize] == EXCLUDED {
                continue;
            }
            let loss = product(d, self.words[0]).shifted(self.words[1]);
            let loss = if loss.high == 0 {
                loss.low.min(1 << 30) as i32
            } else {
                1 << 30
            };
            let bits = noise([self.words[14], self.words[15]], self.row.position, id);
            let score = gumbel(bits) - loss;
            if score > best.0 {
                best = (score, id);
            }
        }
        best.1
    }
}

fn drawn(words: [u32; 16], row: Row<'_>) -> Result<u32, BadLogits> {
    let bits = row.logits.iter().map(|x| x.to_bits());
    if bits.clone().any(|b| b & 0x7FFF_FFFF > 0x7F80_0000) {
        return Err(BadLogits::NotANumber);
    }
    let values = bits.map(fixed).collect();
    let mut drawer = Drawer { words, row, values };
    drawer.adjust();
    if drawer.best() == EXCLUDED {
        return Err(BadLogits::NoCandidate);
    }
    if words[0] == 0 {
        return Ok(drawer.greedy());
    }
    type Filter = fn(&mut Drawer<'_>);
    let filters: [(bool, Filter); 6] = [
        (words[6] != 0, |d| d.sigma()),
        (words[2] != 0, |d| d.top_k()),
        (words[4] != ALL, |d| d.typical()),
        (words[3] != ALL, |d| d.top_p()),
        (words[5] != ALL, |d| {
            let (distances, most) = (d.distances(), d.words[5]);
            d.keep(|id| distances[id] <= most);
        }),
        (words[7] != 0, |d| d.xtc()),
    ];
    for (on, filter) in filters {
        if on {
            filter(&mut drawer);
        }
    }
    Ok(drawer.draw())
}

#[test]
fn words_of_32_bits_find_the_same_tokens() {
    let (mut tokens, mut failures) = (0, 0);
    for case in 0..3000 {
        let mut chance = Chance::new(case);
        let (parameters, mut logits) = (chance.parameters(), chance.logits());
        let n = logits.len();
        if chance.next().is_multiple_of(40) {
            logits[n / 2] = f32::NAN;
        }
        let (bias, dry) = (chance.pairs(n, 4.0), chance.pairs(n, 3.0));
        let mask: Vec<u32> = (0..n.div_ceil(32)).map(|_| chance.next() as u32).collect();
        let recent: Vec<u32> = (0..12)
            .map(|_| (chance.next() % (n as u64 + 2)) as u32)
            .collect();
        let row = Row {
            logits: &logits,
            position: chance.next() as u32,
            bias: &bias,
            mask: chance.next().is_multiple_of(3).then_some(&mask),
            recent: &recent,
            dry: &dry,
        };
        let record = parameters.record();
        let want = sample(&record, &row, &mut Scratch::default());
        let found = drawn(record.to_words(), row);
        assert_eq!(found, want, "{case}: {parameters:?}, {n} logits");
        tokens += usize::from(found.is_ok());
        failures += usize::from(found.is_err());
    }
    assert!(tokens > 2000 && failures > 50, "{tokens} {failures}");
}
