//! A GGUF model from one file or several.

use std::path::Path;

use super::cursor::Endian;
use super::header::Header;
use super::split::{Split, sibling_paths};
use crate::error::{Fault, FormatError, Result};
use crate::model::{Container, Contents, Layout};
use crate::part::Part;
use crate::source::ReadRanges;

/// Opens the file, and the others of its split.
pub(crate) fn open(path: &Path) -> Result<Contents> {
    let part = Part::open(path)?;
    let (header, split) = header(&part, 0)?;
    if split.count == 1 {
        return join(vec![part], (header, split));
    }
    let paths = sibling_paths(path, &split).map_err(|fault| FormatError::at(path, fault))?;
    let parts = paths.iter().map(|p| Part::open(p)).collect::<Result<_>>()?;
    from_parts(parts)
}

/// Bytes of the first read of a header, whose length nobody knows.
const FIRST_READ: u64 = 1 << 20;
/// Bytes that a header may have.
const MOST_HEAD: u64 = 1 << 28;

/// Reads the header of a file that can only be read in ranges, of which its first bytes are kept.
pub(crate) fn from_ranges(name: &str, file: Box<dyn ReadRanges>) -> Result<Contents> {
    let named = |fault| FormatError::new(name, fault);
    let (bytes, header) = head(file.as_ref()).map_err(named)?;
    let split = Split::read(&header.metadata).map_err(named)?;
    let part = Part::ranges(name.to_owned(), bytes, file);
    join(vec![part], (header, split))
}

/// The first bytes of a file, and the header that they begin with.
fn head(file: &dyn ReadRanges) -> std::result::Result<(Vec<u8>, Header), Fault> {
    let size = file.size();
    let mut wanted = FIRST_READ.min(size);
    let mut bytes = Vec::new();
    loop {
        let from = bytes.len();
        bytes.resize(wanted as usize, 0);
        let read = file.read_at(from as u64, &mut bytes[from..]);
        read.map_err(Fault::io("read the file"))?;
        match Header::parse(&bytes, size, 0) {
            Err(Fault::Truncated { .. }) if wanted < size.min(MOST_HEAD) => {
                wanted = (wanted * 4).min(size);
            }
            parsed => return Ok((bytes, parsed?)),
        }
    }
}

/// Joins the files of one model, given in order.
pub(crate) fn from_parts(parts: Vec<Part>) -> Result<Contents> {
    let Some(first) = parts.first() else {
        return Err(FormatError::new("<memory>", Fault::Empty));
    };
    let head = header(first, 0)?;
    join(parts, head)
}

fn header(part: &Part, index: usize) -> Result<(Header, Split)> {
    let parsed = Header::parse(part.bytes(), part.size(), index)
        .and_then(|header| Split::read(&header.metadata).map(|split| (header, split)));
    parsed.map_err(|fault| part.fail(fault))
}

/// Joins files, of which the first was parsed already.
fn join(parts: Vec<Part>, (mut head, split): (Header, Split)) -> Result<Contents> {
    let first = &parts[0];
    expect_parts(&split, parts.len()).map_err(|fault| first.fail(fault))?;
    for (i, part) in parts.iter().enumerate().skip(1) {
        let (next, own) = header(part, i)?;
        split.expect(&own, i).map_err(|fault| part.fail(fault))?;
        same_order(head.endian, next.endian).map_err(|fault| part.fail(fault))?;
        head.tensors.extend(next.tensors);
    }
    expect_tensors(&split, head.tensors.len()).map_err(|fault| first.fail(fault))?;
    let Header {
        version,
        endian,
        alignment,
        metadata,
        tensors,
    } = head;
    Ok(Contents {
        container: Container::Gguf,
        layout: Some(Layout {
            version,
            endian,
            alignment,
        }),
        parts,
        metadata,
        tensors,
        packed: Vec::new(),
        other: Vec::new(),
        directory: None,
    })
}

fn expect_parts(split: &Split, given: usize) -> std::result::Result<(), Fault> {
    if split.number == 0 && split.count == given as u64 {
        return Ok(());
    }
    Err(Fault::Split {
        found: format!(
            "file {} of {} and {given} given",
            split.number + 1,
            split.count
        ),
        expected: "all files of the split model, the first one first".to_owned(),
        advice: "open the model by path, or hand over every file",
    })
}

fn expect_tensors(split: &Split, found: usize) -> std::result::Result<(), Fault> {
    match split.tensors {
        Some(expected) if expected != found as u64 => Err(Fault::Split {
            found: format!("{found} tensors in all files"),
            expected: format!("{expected}, as split.tensors.count says"),
            advice: "copy the files of the split model again",
        }),
        _ => Ok(()),
    }
}

fn same_order(first: Endian, own: Endian) -> std::result::Result<(), Fault> {
    if first == own {
        return Ok(());
    }
    let name = |e| match e {
        Endian::Big => "big-endian",
        Endian::Little => "little-endian",
    };
    Err(Fault::Split {
        found: format!("a {} file", name(own)),
        expected: format!("the {} order of the first file", name(first)),
        advice: "copy the files of the split model again",
    })
}
