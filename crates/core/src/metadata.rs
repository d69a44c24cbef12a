//! Typed key–value pairs of a model file, in file order.

use std::collections::HashMap;

use bstr::{BStr, BString};

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Bytes that are normally UTF-8; files in the wild break that rule.
    Str(BString),
    Array(Array),
}

/// A homogeneous array value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Str(Vec<BString>),
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Str(v) => v.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i` as a scalar value.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<Value> {
        match self {
            Array::U8(v) => v.get(i).map(|&x| Value::U8(x)),
            Array::I8(v) => v.get(i).map(|&x| Value::I8(x)),
            Array::U16(v) => v.get(i).map(|&x| Value::U16(x)),
            Array::I16(v) => v.get(i).map(|&x| Value::I16(x)),
            Array::U32(v) => v.get(i).map(|&x| Value::U32(x)),
            Array::I32(v) => v.get(i).map(|&x| Value::I32(x)),
            Array::U64(v) => v.get(i).map(|&x| Value::U64(x)),
            Array::I64(v) => v.get(i).map(|&x| Value::I64(x)),
            Array::F32(v) => v.get(i).map(|&x| Value::F32(x)),
            Array::F64(v) => v.get(i).map(|&x| Value::F64(x)),
            Array::Bool(v) => v.get(i).map(|&x| Value::Bool(x)),
            Array::Str(v) => v.get(i).map(|x| Value::Str(x.clone())),
        }
    }
}

impl Value {
    /// The value as a number; booleans count as 0 and 1.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v as f64,
            Value::I64(v) => v as f64,
            Value::F32(v) => v.into(),
            Value::F64(v) => v,
            Value::Bool(v) => f64::from(u8::from(v)),
            Value::Str(_) | Value::Array(_) => return None,
        })
    }

    /// The value as a non-negative integer.
    #[must_use]
    pub fn as_uint(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a signed integer.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        match *self {
            Value::I8(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::I64(v) => Some(v),
            _ => self.as_uint().and_then(|v| v.try_into().ok()),
        }
    }

    /// The value as a boolean; no number stands for one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The bytes of a string value.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&BStr> {
        match self {
            Value::Str(v) => Some(v.as_ref()),
            _ => None,
        }
    }

    /// A string value that is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        self.as_bytes().and_then(|b| std::str::from_utf8(b).ok())
    }

    /// An array value.
    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(a) => Some(a),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Str(text.into())
    }
}

/// Key–value pairs in insertion order. Keys are unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Sets `key`, replacing and returning an earlier value.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        let key = key.into();
        if let Some(&i) = self.index.get(&key) {
            return Some(std::mem::replace(&mut self.entries[i].1, value));
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// All pairs in insertion order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A UTF-8 string value.
    #[must_use]
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// A non-negative integer value.
    #[must_use]
    pub fn uint(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_uint()
    }

    /// A number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    /// A boolean.
    #[must_use]
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    /// An array.
    #[must_use]
    pub fn array(&self, key: &str) -> Option<&Array> {
        self.get(key)?.as_array()
    }

    /// An array of strings.
    #[must_use]
    pub fn strings(&self, key: &str) -> Option<&[BString]> {
        match self.array(key)? {
            Array::Str(v) => Some(v),
            _ => None,
        }
    }
}
