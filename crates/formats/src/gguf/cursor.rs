//! A checked walk over header bytes.

use bstr::BString;
use tokkata_core::{Array, Value};

use crate::error::{Fault, Quoted};

/// Byte order of a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Endian {
    Little,
    Big,
}

/// Longest metadata key or tensor name, as the GGUF specification has it for keys.
const MAX_NAME: u64 = 65_535;
/// Most strings in one array: each costs 24 bytes of memory and as few as 8 of the file.
const MAX_STRINGS: u64 = 1 << 22;
/// Longest header: the largest vocabularies take 16 MB, and each byte may cost three of memory.
const MAX_HEADER: usize = 128 << 20;

/// Reads numbers and strings, refusing whatever reaches past the end before touching it.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    endian: Endian,
}

/// A number that GGUF stores in its file's byte order.
trait Number: Sized {
    const BYTES: usize;
    fn from_bytes(bytes: &[u8], endian: Endian) -> Self;
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Number for $t {
            const BYTES: usize = size_of::<$t>();
            fn from_bytes(bytes: &[u8], endian: Endian) -> Self {
                let raw = std::array::from_fn(|i| bytes[i]);
                match endian {
                    Endian::Little => <$t>::from_le_bytes(raw),
                    Endian::Big => <$t>::from_be_bytes(raw),
                }
            }
        }
    )*};
}

numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Number for bool {
    const BYTES: usize = 1;
    fn from_bytes(bytes: &[u8], _: Endian) -> Self {
        bytes[0] != 0
    }
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], pos: usize, endian: Endian) -> Self {
        Self { bytes, pos, endian }
    }

    pub(crate) fn pos(&self) -> u64 {
        self.pos as u64
    }

    fn take(&mut self, need: u64, what: &'static str) -> Result<&'a [u8], Fault> {
        self.room_for(need, 1, what)?;
        let start = self.pos;
        self.pos += need as usize;
        Ok(&self.bytes[start..self.pos])
    }

    fn number<T: Number>(&mut self, what: &'static str) -> Result<T, Fault> {
        let endian = self.endian;
        self.take(T::BYTES as u64, what)
            .map(|raw| T::from_bytes(raw, endian))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Fault> {
        self.number(what)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Fault> {
        self.number(what)
    }

    fn string(&mut self, what: &'static str) -> Result<&'a [u8], Fault> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// A metadata key or tensor name.
    pub(crate) fn name(&mut self, what: &'static str) -> Result<&'a str, Fault> {
        let raw = self.string(what)?;
        match std::str::from_utf8(raw) {
            Ok(text) if !raw.is_empty() && raw.len() as u64 <= MAX_NAME => Ok(text),
            _ => Err(Fault::Name {
                what,
                found: Quoted::new(raw),
            }),
        }
    }

    /// The value of metadata `key`, with its type code in front.
    pub(crate) fn value(&mut self, key: &str) -> Result<Value, Fault> {
        const WHAT: &str = "a metadata value";
        Ok(match self.u32(WHAT)? {
            0 => Value::U8(self.number(WHAT)?),
            1 => Value::I8(self.number(WHAT)?),
            2 => Value::U16(self.number(WHAT)?),
            3 => Value::I16(self.number(WHAT)?),
            4 => Value::U32(self.number(WHAT)?),
            5 => Value::I32(self.number(WHAT)?),
            6 => Value::F32(self.number(WHAT)?),
            7 => Value::Bool(self.number(WHAT)?),
            8 => Value::Str(self.string(WHAT)?.into()),
            9 => Value::Array(self.array(key)?),
            10 => Value::U64(self.number(WHAT)?),
            11 => Value::I64(self.number(WHAT)?),
            12 => Value::F64(self.number(WHAT)?),
            code => {
                return Err(Fault::ValueType {
                    key: Quoted::new(key),
                    code,
                });
            }
        })
    }

    fn array(&mut self, key: &str) -> Result<Array, Fault> {
        let code = self.u32("an array's element type")?;
        let count = self.u64("an array's length")?;
        Ok(match code {
            0 => Array::U8(self.numbers(count)?),
            1 => Array::I8(self.numbers(count)?),
            2 => Array::U16(self.numbers(count)?),
            3 => Array::I16(self.numbers(count)?),
            4 => Array::U32(self.numbers(count)?),
            5 => Array::I32(self.numbers(count)?),
            6 => Array::F32(self.numbers(count)?),
            7 => Array::Bool(self.numbers(count)?),
            8 => Array::Str(self.strings(count)?),
            9 => {
                return Err(Fault::NestedArray {
                    key: Quoted::new(key),
                });
            }
            10 => Array::U64(self.numbers(count)?),
            11 => Array::I64(self.numbers(count)?),
            12 => Array::F64(self.numbers(count)?),
            code => {
                return Err(Fault::ValueType {
                    key: Quoted::new(key),
                    code,
                });
            }
        })
    }

    fn numbers<T: Number>(&mut self, count: u64) -> Result<Vec<T>, Fault> {
        let endian = self.endian;
        let need = count.saturating_mul(T::BYTES as u64);
        let raw = self.take(need, "an array")?;
        Ok(raw
            .chunks_exact(T::BYTES)
            .map(|c| T::from_bytes(c, endian))
            .collect())
    }

    fn strings(&mut self, count: u64) -> Result<Vec<BString>, Fault> {
        if count > MAX_STRINGS {
            let what = "strings in one array";
            return Err(Fault::Count {
                what,
                found: count,
                limit: MAX_STRINGS,
            });
        }
        self.room_for(count, 8, "an array of strings")?;
        (0..count)
            .map(|_| self.string("a string in an array").map(BString::from))
            .collect()
    }

    /// Refuses a count whose elements, at `min_bytes` each, cannot be in what is left.
    pub(crate) fn room_for(
        &self,
        count: u64,
        min_bytes: u64,
        what: &'static str,
    ) -> Result<(), Fault> {
        let (need, have) = (
            count.saturating_mul(min_bytes),
            (self.bytes.len() - self.pos) as u64,
        );
        let end = self.pos().saturating_add(need);
        if need > have {
            Err(Fault::Truncated {
                what,
                at: self.pos(),
                need,
                have,
            })
        } else if end > MAX_HEADER as u64 {
            Err(Fault::Count {
                what: "header bytes",
                found: end,
                limit: MAX_HEADER as u64,
            })
        } else {
            Ok(())
        }
    }
}
