//! GGUF bytes made by hand, wrong on purpose where a test asks for it.

use tokkata_core::{Array, DType, Metadata, Value};
use tokkata_formats::{Endian, GgufWriter};

/// Little-endian header bytes, field by field.
#[derive(Clone, Default)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// A version 3 header with these counts.
    pub(crate) fn header(tensors: u64, pairs: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(pairs)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn text(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// A key with a 32-bit value.
    pub(crate) fn pair(self, key: &str, value: u32) -> Self {
        self.text(key.as_bytes()).u32(4).u32(value)
    }

    pub(crate) fn tensor(self, name: &str, dims: &[u64], code: u32, offset: u64) -> Self {
        let named = self.text(name.as_bytes()).u32(dims.len() as u32);
        let shaped = dims.iter().fold(named, |raw, &d| raw.u64(d));
        shaped.u32(code).u64(offset)
    }

    pub(crate) fn zeros(mut self, len: usize) -> Self {
        self.0.resize(self.0.len() + len, 0);
        self
    }

    /// Padding to `alignment`, then `len` bytes of data.
    pub(crate) fn data(mut self, alignment: usize, len: usize) -> Self {
        let size = self.0.len().next_multiple_of(alignment) + len;
        self.0.resize(size, 7);
        self
    }
}

/// One value of every type.
pub(crate) fn every_value() -> Vec<Value> {
    let text = || vec!["".into(), "ab".into(), b"\xff\0".as_slice().into()];
    vec![
        Value::U8(200),
        Value::I8(-2),
        Value::U16(65_535),
        Value::I16(-300),
        Value::U32(1 << 31),
        Value::I32(-70_000),
        Value::U64(1 << 63),
        Value::I64(i64::MIN),
        Value::F32(1.5),
        Value::F64(-0.1),
        Value::Bool(true),
        Value::Str(b"not \xff UTF-8".as_slice().into()),
        Value::Array(Array::U8(vec![1, 2, 3])),
        Value::Array(Array::I8(vec![-1])),
        Value::Array(Array::U16(vec![258])),
        Value::Array(Array::I16(vec![-258])),
        Value::Array(Array::U32(vec![])),
        Value::Array(Array::I32(vec![-1, 5])),
        Value::Array(Array::U64(vec![u64::MAX])),
        Value::Array(Array::I64(vec![-9])),
        Value::Array(Array::F32(vec![0.25, -3.0])),
        Value::Array(Array::F64(vec![1e300])),
        Value::Array(Array::Bool(vec![true, false])),
        Value::Array(Array::Str(text())),
    ]
}

pub(crate) fn every_pair() -> Metadata {
    let mut metadata = Metadata::default();
    for (i, value) in every_value().into_iter().enumerate() {
        metadata.insert(format!("key.{i}"), value);
    }
    metadata
}

/// A tensor of every type, with two rows of two blocks, and its bytes.
pub(crate) fn every_tensor() -> Vec<(String, DType, [usize; 2], Vec<u8>)> {
    let tensor = |(i, &dtype): (usize, &DType)| {
        let shape = [2, 2 * dtype.block_elems()];
        let len = 4 * dtype.block_bytes();
        let data = (0..len).map(|b| (b * 7 + i * 31) as u8).collect();
        (format!("{i}.{dtype}"), dtype, shape, data)
    };
    DType::ALL.iter().enumerate().map(tensor).collect()
}

/// A small valid file with all of that. Types without a byte-order rule are left out of big-endian files.
pub(crate) fn everything(endian: Endian, alignment: u32) -> Vec<u8> {
    let mut metadata = every_pair();
    metadata.insert("general.alignment", Value::U32(alignment));
    let mut writer = GgufWriter::new("<memory>", metadata)
        .unwrap()
        .with_endian(endian);
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in every_tensor() {
        if writer.declare(&name, dtype, &shape).is_ok() {
            data.push(bytes);
        }
    }
    writer.to_bytes(data.iter().map(Vec::as_slice)).unwrap()
}
