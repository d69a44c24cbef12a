//! Changes to GGUF bytes that keep most of the structure, so that what is wrong lies deep inside.
//! The fuzz targets use this file too.

/// One change, all of it derived from two numbers so that it shrinks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    /// Which field, as a share of 65536.
    pub(crate) place: u16,
    /// What happens to it.
    pub(crate) action: u64,
}

/// A header field: a number that a parser acts on.
#[derive(Clone, Copy)]
struct Field {
    at: usize,
    width: usize,
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    big: bool,
    fields: Vec<Field>,
}

/// Fields of one file worth changing; a long array adds only its first ones.
const MAX_FIELDS: usize = 4096;

impl Walk<'_> {
    fn number(&mut self, width: usize) -> Option<u64> {
        let raw = self.bytes.get(self.at..self.at.checked_add(width)?)?;
        if self.fields.len() < MAX_FIELDS {
            self.fields.push(Field { at: self.at, width });
        }
        self.at += width;
        let join = |n: u64, b: &u8| (n << 8) | u64::from(*b);
        Some(if self.big {
            raw.iter().fold(0, join)
        } else {
            raw.iter().rev().fold(0, join)
        })
    }

    fn skip(&mut self, len: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(len).ok()?)?;
        (self.at <= self.bytes.len()).then_some(())
    }

    fn text(&mut self) -> Option<()> {
        let len = self.number(8)?;
        self.skip(len)
    }

    fn value(&mut self) -> Option<()> {
        match self.number(4)? {
            0 | 1 | 7 => self.number(1).map(drop),
            2 | 3 => self.number(2).map(drop),
            4..=6 => self.number(4).map(drop),
            8 => self.text(),
            9 => self.array(),
            _ => self.number(8).map(drop),
        }
    }

    fn array(&mut self) -> Option<()> {
        let width = match self.number(4)? {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 => {
                let count = self.number(8)?;
                return (0..count).try_for_each(|_| self.text());
            }
            _ => 8,
        };
        let count = self.number(8)?;
        self.skip(count.checked_mul(width)?)
    }

    fn tensor(&mut self) -> Option<()> {
        self.text()?;
        let dims = self.number(4)?;
        (0..dims).try_for_each(|_| self.number(8).map(drop))?;
        self.number(4)?;
        self.number(8).map(drop)
    }

    fn file(&mut self) -> Option<()> {
        self.number(4)?;
        self.big = self.bytes.get(4..6) == Some(&[0, 0]);
        self.number(4)?;
        let tensors = self.number(8)?;
        let pairs = self.number(8)?;
        (0..pairs).try_for_each(|_| self.text().and_then(|()| self.value()))?;
        (0..tensors).try_for_each(|_| self.tensor())
    }
}

/// The fields as far as the bytes make sense, and whether numbers are big-endian.
fn fields(bytes: &[u8]) -> (Vec<Field>, bool) {
    let mut walk = Walk {
        bytes,
        at: 0,
        big: false,
        fields: Vec::new(),
    };
    // Half a walk is as good: the fields so far are what there is to change.
    let _ = walk.file();
    (walk.fields, walk.big)
}

/// Applies `edits` one after another, keeping the result within `max_len`.
pub(crate) fn mutate(bytes: &mut Vec<u8>, edits: &[Edit], max_len: usize) {
    for edit in edits {
        let (fields, big) = fields(bytes);
        let pick = |share: u16| {
            fields
                .get(usize::from(share) * fields.len() / 65_536)
                .copied()
        };
        let Some(field) = pick(edit.place) else {
            return;
        };
        let other = pick((edit.action >> 16) as u16).unwrap_or(field);
        apply(bytes, edit.action, Targets { field, other, big });
        bytes.truncate(max_len);
    }
}

#[derive(Clone, Copy)]
struct Targets {
    field: Field,
    other: Field,
    big: bool,
}

fn apply(bytes: &mut Vec<u8>, action: u64, to: Targets) {
    let Field { at, width } = to.field;
    let (low, high) = (at.min(to.other.at), at.max(to.other.at));
    match action % 16 {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(low..high)),
        2 => {
            let copy = bytes[low..high.min(low + 512)].to_vec();
            drop(bytes.splice(high..high, copy));
        }
        3 => bytes.extend(std::iter::repeat_n(0, (action >> 32) as usize % 300)),
        4 => bytes[at + (action >> 8) as usize % width] ^= 1 << (action >> 32 & 7),
        5 => bytes.copy_within(to.other.at..to.other.at + to.other.width.min(width), at),
        6 | 7 => set(bytes, to, action >> 8 & 63),
        _ => {
            let number = interesting(bytes, action >> 8, to);
            set(bytes, to, number);
        }
    }
}

fn set(bytes: &mut [u8], to: Targets, number: u64) {
    let Field { at, width } = to.field;
    let slot = &mut bytes[at..at + width];
    slot.copy_from_slice(&number.to_le_bytes()[..width]);
    if to.big {
        slot.reverse();
    }
}

/// Numbers at the edges of what a parser may take.
fn interesting(bytes: &[u8], choice: u64, to: Targets) -> u64 {
    let Field { at, width } = to.field;
    let join = |n: u64, b: &u8| (n << 8) | u64::from(*b);
    let raw = &bytes[at..at + width];
    let own = if to.big {
        raw.iter().fold(0, join)
    } else {
        raw.iter().rev().fold(0, join)
    };
    let len = bytes.len() as u64;
    let left = len - at as u64;
    let table = [
        own.wrapping_add(1),
        own.wrapping_sub(1),
        own.wrapping_mul(2),
        own ^ 0x20,
        own.wrapping_add(32),
        len,
        left,
        left.wrapping_sub(width as u64),
        left / 8,
        u64::MAX,
        u64::MAX - 31,
        i64::MAX as u64,
        1 << 63,
        1 << 32,
        1 << 31,
        u64::from(u32::MAX),
        1 << 24,
        1 << 16,
        u64::MAX / 8 + 1,
        u64::MAX / 18,
        256,
        32,
        1,
        0,
    ];
    table[choice as usize % table.len()]
}
