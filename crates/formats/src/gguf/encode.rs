//! Header values as GGUF bytes.

use bstr::BString;
use tokkata_core::{Array, Metadata, Value};

use super::cursor::Endian;

/// Collects header bytes in one byte order.
pub(super) struct Encoder {
    pub(super) bytes: Vec<u8>,
    endian: Endian,
}

/// A number in either byte order.
trait Put: Copy {
    fn put(self, out: &mut Encoder);
}

macro_rules! puts {
    ($($t:ty),*) => {$(
        impl Put for $t {
            fn put(self, out: &mut Encoder) {
                match out.endian {
                    Endian::Little => out.bytes.extend(self.to_le_bytes()),
                    Endian::Big => out.bytes.extend(self.to_be_bytes()),
                }
            }
        }
    )*};
}

puts!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Put for bool {
    fn put(self, out: &mut Encoder) {
        out.bytes.push(self.into());
    }
}

impl Encoder {
    pub(super) fn new(endian: Endian) -> Self {
        Self {
            bytes: Vec::new(),
            endian,
        }
    }

    pub(super) fn u32(&mut self, value: u32) {
        value.put(self);
    }

    pub(super) fn u64(&mut self, value: u64) {
        value.put(self);
    }

    pub(super) fn string(&mut self, text: &[u8]) {
        self.u64(text.len() as u64);
        self.bytes.extend(text);
    }

    pub(super) fn pairs(&mut self, metadata: &Metadata) {
        for (key, value) in metadata.iter() {
            self.string(key.as_bytes());
            self.value(value);
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::U8(v) => self.tagged(0, *v),
            Value::I8(v) => self.tagged(1, *v),
            Value::U16(v) => self.tagged(2, *v),
            Value::I16(v) => self.tagged(3, *v),
            Value::U32(v) => self.tagged(4, *v),
            Value::I32(v) => self.tagged(5, *v),
            Value::F32(v) => self.tagged(6, *v),
            Value::Bool(v) => self.tagged(7, *v),
            Value::U64(v) => self.tagged(10, *v),
            Value::I64(v) => self.tagged(11, *v),
            Value::F64(v) => self.tagged(12, *v),
            Value::Str(v) => {
                self.u32(8);
                self.string(v);
            }
            Value::Array(v) => {
                self.u32(9);
                self.array(v);
            }
        }
    }

    fn tagged(&mut self, code: u32, value: impl Put) {
        self.u32(code);
        value.put(self);
    }

    fn array(&mut self, array: &Array) {
        match array {
            Array::U8(v) => self.numbers(0, v),
            Array::I8(v) => self.numbers(1, v),
            Array::U16(v) => self.numbers(2, v),
            Array::I16(v) => self.numbers(3, v),
            Array::U32(v) => self.numbers(4, v),
            Array::I32(v) => self.numbers(5, v),
            Array::F32(v) => self.numbers(6, v),
            Array::Bool(v) => self.numbers(7, v),
            Array::Str(v) => self.strings(v),
            Array::U64(v) => self.numbers(10, v),
            Array::I64(v) => self.numbers(11, v),
            Array::F64(v) => self.numbers(12, v),
        }
    }

    fn numbers(&mut self, code: u32, values: &[impl Put]) {
        self.u32(code);
        self.u64(values.len() as u64);
        for &value in values {
            value.put(self);
        }
    }

    fn strings(&mut self, values: &[BString]) {
        self.u32(8);
        self.u64(values.len() as u64);
        for value in values {
            self.string(value);
        }
    }
}
