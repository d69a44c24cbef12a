//! The header of one safetensors file.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::error::{Fault, Quoted};
use crate::tensor::{Storage, StoredTensor};

/// The limit that the format sets.
const MAX_HEADER: u64 = 100_000_000;
/// Most entries of one object, far beyond any model: each costs some 200 bytes of memory.
const MAX_ENTRIES: usize = 1 << 20;
const MAX_DIMS: usize = 8;

/// What one file says about itself.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Vec<(String, String)>,
    pub(super) tensors: Vec<StoredTensor>,
}

/// One entry as written. An unknown field could change what the bytes mean.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    #[serde(deserialize_with = "few_numbers")]
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Sizes of a shape. More than a tensor may have are counted, not kept.
fn few_numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of sizes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
            let mut sizes = Vec::new();
            while let Some(size) = seq.next_element()? {
                if sizes.len() == MAX_DIMS {
                    return Err(A::Error::custom(format!("more than {MAX_DIMS} dimensions")));
                }
                sizes.push(size);
            }
            Ok(sizes)
        }
    }
    deserializer.deserialize_seq(Few)
}

/// The entries in file order; a map would hide names that come twice.
#[derive(Default)]
struct Entries {
    metadata: Option<Pairs>,
    tensors: Vec<(String, Entry)>,
}

/// A JSON object of strings in file order, with what comes twice.
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

impl Header {
    pub(super) fn parse(bytes: &[u8], part: usize) -> Result<Self, Fault> {
        let json = json(bytes)?;
        let data = 8 + json.len() as u64;
        let entries: Entries = serde_json::from_slice(json).map_err(|error| Fault::Json {
            what: "safetensors header",
            reason: Quoted::new(error.to_string()),
        })?;
        let tensors: Result<Vec<_>, _> = entries
            .tensors
            .into_iter()
            .map(|(name, entry)| stored(name, &entry, part))
            .collect();
        let mut tensors = tensors?;
        tensors.sort_by_key(|t| (t.offset, t.bytes));
        place(&mut tensors, data, bytes.len() as u64)?;
        let metadata = entries.metadata.map_or_else(Vec::new, |pairs| pairs.0);
        Ok(Self { metadata, tensors })
    }
}

/// The JSON text, whose length the first 8 bytes give.
fn json(bytes: &[u8]) -> Result<&[u8], Fault> {
    const WHAT: &str = "the safetensors header";
    let (have, need) = (bytes.len() as u64, 8);
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(Fault::Truncated {
            what: WHAT,
            at: 0,
            need,
            have,
        });
    };
    let (need, have) = (u64::from_le_bytes(*length), rest.len() as u64);
    if need > MAX_HEADER {
        return Err(Fault::HeaderLength {
            found: need,
            limit: MAX_HEADER,
        });
    }
    if need > have {
        return Err(Fault::Truncated {
            what: WHAT,
            at: 8,
            need,
            have,
        });
    }
    Ok(&rest[..need as usize])
}

fn stored(name: String, entry: &Entry, part: usize) -> Result<StoredTensor, Fault> {
    let tensor = || Quoted::new(&name);
    let Some(storage) = Storage::from_name(&entry.dtype) else {
        return Err(Fault::StorageType {
            tensor: tensor(),
            found: Quoted::new(&entry.dtype),
        });
    };
    let [start, end] = entry.data_offsets;
    let Some((shape, bytes)) = sized(storage, &entry.shape) else {
        return Err(Fault::Shape {
            tensor: tensor(),
            shape: entry.shape.clone(),
        });
    };
    if end.checked_sub(start) != Some(bytes) {
        let expected = format!("{bytes} bytes for shape {:?} of {storage}", entry.shape);
        return Err(Fault::DataOffsets {
            tensor: tensor(),
            start,
            end,
            expected,
        });
    }
    Ok(StoredTensor {
        name,
        storage,
        shape,
        part,
        offset: start,
        bytes,
    })
}

/// The shape as sizes in memory and the bytes it takes, if these are whole and countable.
fn sized(storage: Storage, shape: &[u64]) -> Option<(Vec<usize>, u64)> {
    let sizes: Option<Vec<usize>> = shape.iter().map(|&d| usize::try_from(d).ok()).collect();
    // Without the zeros, so that no later product of a few sizes can overflow either.
    let span = shape
        .iter()
        .filter(|&&d| d > 0)
        .try_fold(1u64, |n, &d| n.checked_mul(d))?;
    span.checked_mul(storage.bits())
        .filter(|&bits| bits <= i64::MAX as u64)?;
    let bits = shape.iter().product::<u64>() * storage.bits();
    bits.is_multiple_of(8).then_some((sizes?, bits / 8))
}

/// Turns offsets from the data into offsets from the start; tensors must fill the file without gaps.
fn place(tensors: &mut [StoredTensor], data: u64, size: u64) -> Result<(), Fault> {
    let mut next = 0;
    for t in tensors {
        let (start, end) = (t.offset, t.offset + t.bytes);
        let room = size - data;
        if start != next || end > room {
            let expected = format!("a start at {next} and an end by {room}");
            return Err(Fault::DataOffsets {
                tensor: Quoted::new(&t.name),
                start,
                end,
                expected,
            });
        }
        t.offset += data;
        next = end;
    }
    match size - data {
        room if room == next => Ok(()),
        room => Err(Fault::DataLength {
            found: room,
            expected: next,
        }),
    }
}

fn too_many<E: Error>(so_far: usize) -> Result<(), E> {
    if so_far < MAX_ENTRIES {
        return Ok(());
    }
    Err(E::custom(format!("more than {MAX_ENTRIES} entries")))
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Entries::default();
        while let Some(name) = map.next_key::<String>()? {
            too_many(entries.tensors.len())?;
            if name == "__metadata__" {
                entries.metadata = Some(map.next_value()?);
            } else {
                entries.tensors.push((name, map.next_value()?));
            }
        }
        Ok(entries)
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            too_many(pairs.len())?;
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}
