//! Forms of several parts (RFC 7578), as files are sent in.

use axum::http::{HeaderMap, header};
use bytes::Bytes;

use crate::error::{ApiError, Result};

/// A part of a form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// The name of its file, where it is one.
    pub(crate) file: Option<String>,
    pub(crate) bytes: Bytes,
}

impl Part {
    /// Its text.
    ///
    /// # Errors
    /// Bytes that are no text.
    pub(crate) fn text(&self) -> Result<String> {
        let text = std::str::from_utf8(&self.bytes);
        let text =
            text.map_err(|_| ApiError::field(self.name.as_str(), "found bytes that are no text"))?;
        Ok(text.to_owned())
    }
}

/// What parts the parts of a form, where a body is one.
pub(crate) fn boundary(headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let (kind, rest) = kind.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(rest, "boundary").filter(|b| !b.is_empty())
}

/// The parts of a form.
///
/// # Errors
/// A body that is none.
pub(crate) fn parts(body: &Bytes, boundary: &str) -> Result<Vec<Part>> {
    let wrong = |what: &str| ApiError::invalid(format!("the form cannot be read: {what}"));
    let mark = format!("--{boundary}");
    let mut at = find(body, mark.as_bytes(), 0).ok_or_else(|| wrong("its boundary is missing"))?;
    let mut parts = Vec::new();
    loop {
        at += mark.len();
        if body[at..].starts_with(b"--") {
            return Ok(parts);
        }
        let head = find(body, b"\r\n", at).ok_or_else(|| wrong("it ends in a boundary"))? + 2;
        let inner = format!("\r\n{mark}");
        // A part without headers begins with the empty line that ends them.
        let end = match body[head..].starts_with(b"\r\n") {
            true => head,
            false => find(body, b"\r\n\r\n", head).ok_or_else(|| wrong("a part has no body"))? + 2,
        };
        let from = end + 2;
        let to = find(body, inner.as_bytes(), end)
            .ok_or_else(|| wrong("its last boundary is missing"))?;
        let headers = String::from_utf8_lossy(&body[head..end]);
        let disposition = headers.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim()
                .eq_ignore_ascii_case("content-disposition")
                .then_some(value)
        });
        let disposition = disposition.ok_or_else(|| wrong("a part has no name"))?;
        parts.push(Part {
            name: parameter(disposition, "name").ok_or_else(|| wrong("a part has no name"))?,
            file: parameter(disposition, "filename"),
            bytes: body.slice(from.min(to)..to),
        });
        at = to + 2;
    }
}

fn find(body: &[u8], what: &[u8], from: usize) -> Option<usize> {
    let first = *what.first()?;
    let mut at = from;
    loop {
        let rest = body.get(at..)?;
        at += rest.iter().position(|&b| b == first)?;
        if body[at..].starts_with(what) {
            return Some(at);
        }
        at += 1;
    }
}

/// A parameter of a header, with or without quotes.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c == ';' || c.is_whitespace());
        let (key, after) = rest.split_once('=')?;
        let key = key.rsplit(';').next().unwrap_or(key).trim();
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = left;
    }
}

/// What stands before the closing quote, and what behind it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Vec<Part>> {
        parts(&Bytes::copy_from_slice(body.as_bytes()), "xyz")
    }

    #[test]
    fn parts_have_names_files_and_bytes() {
        let body = "--xyz\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nbase\r\n--xyz\r\n\
            content-disposition: form-data; name=file; filename=\"a \\\"b\\\";c.wav\"\r\nContent-Type: audio/wav\r\n\r\n\
            1\r\n2\r\n--xyz--\r\n";
        let parts = read(body).expect("a form");
        assert_eq!(
            (parts[0].name.as_str(), parts[0].text().as_deref()),
            ("model", Ok("base"))
        );
        assert_eq!(parts[1].file.as_deref(), Some("a \"b\";c.wav"));
        assert_eq!(&parts[1].bytes[..], b"1\r\n2");
        let empty = "--xyz\r\ncontent-disposition: form-data; name=a\r\n\r\n\r\n--xyz--";
        assert_eq!(read(empty).expect("a form")[0].bytes.len(), 0);
        assert_eq!(read("--xyz--"), Ok(Vec::new()));
    }

    #[test]
    fn every_cut_of_a_form_is_an_error_or_a_form() {
        let body = "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--xyz\r\n\r\nc\r\n--xyz--";
        for end in 0..=body.len() {
            let _ = read(&body[..end]);
        }
        assert!(read(body).is_err());
        let mut headers = HeaderMap::new();
        assert_eq!(boundary(&headers), None);
        let kind = "Multipart/Form-Data; charset=x; boundary=\"a b\"";
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        assert_eq!(boundary(&headers).as_deref(), Some("a b"));
    }
}
