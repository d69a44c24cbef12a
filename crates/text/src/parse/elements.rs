//! Arguments as elements named after their keys.

use serde_json::{Map, Value as Json};

use super::calls::typed;

/// Elements nested deeper are text that happens to look like some.
const MAX_DEPTH: usize = 32;
/// The elements of a list.
const ITEM: &str = "item";

/// Why an element was not read.
pub(super) enum Trouble {
    More,
    Fail,
}

/// Reads elements, each within `mark<key>` and `mark</key>`.
pub(super) struct Elements<'t, 'm> {
    pub(super) rest: &'t str,
    pub(super) mark: &'m str,
}

impl<'t> Elements<'t, '_> {
    /// The next field of the object that elements make, whose schema this is; `None` at a closing marker, which stays.
    pub(super) fn field(&mut self, schema: &Json) -> Result<Option<(&'t str, Json)>, Trouble> {
        let Some(key) = self.open()? else {
            return Ok(None);
        };
        let value = self.value(key, &schema["properties"][key], 0)?;
        Ok(Some((key, value)))
    }

    /// The key of an opening marker; `None` before a closing one.
    fn open(&mut self) -> Result<Option<&'t str>, Trouble> {
        let bare = self.rest.trim_start();
        let Some(tag) = bare.strip_prefix(self.mark) else {
            let more = self.mark.starts_with(bare);
            return Err(if more { Trouble::More } else { Trouble::Fail });
        };
        if tag.is_empty() || tag == "<" {
            return Err(Trouble::More);
        }
        if tag.starts_with("</") {
            self.rest = bare;
            return Ok(None);
        }
        let tag = tag.strip_prefix('<').ok_or(Trouble::Fail)?;
        let (key, rest) = tag.split_once('>').ok_or(Trouble::More)?;
        self.rest = rest;
        Ok(Some(key))
    }

    fn value(&mut self, key: &str, schema: &Json, depth: usize) -> Result<Json, Trouble> {
        let close = format!("{}</{key}>", self.mark);
        let nested = format!("{}<", self.mark);
        let is_nested = self.rest.trim_start().starts_with(&nested)
            && !self.rest.trim_start().starts_with(&close);
        if !is_nested {
            let (text, rest) = self.rest.split_once(&close).ok_or(Trouble::More)?;
            self.rest = rest;
            return Ok(scalar(text, schema));
        }
        if depth == MAX_DEPTH {
            return Err(Trouble::Fail);
        }
        let value = self.children(schema, depth)?;
        let rest = self.rest.strip_prefix(&close);
        self.rest = rest.ok_or(if close.starts_with(self.rest) {
            Trouble::More
        } else {
            Trouble::Fail
        })?;
        Ok(value)
    }

    fn children(&mut self, schema: &Json, depth: usize) -> Result<Json, Trouble> {
        let (mut list, mut fields) = (Vec::new(), Map::new());
        while let Some(key) = self.open()? {
            let items = key == ITEM && schema["properties"].get(ITEM).is_none();
            let inner = if items {
                &schema["items"]
            } else {
                &schema["properties"][key]
            };
            let value = self.value(key, inner, depth + 1)?;
            if items {
                list.push(value);
            } else {
                fields.insert(key.to_owned(), value);
            }
        }
        let is_list = fields.is_empty() && !list.is_empty();
        Ok(if is_list {
            Json::Array(list)
        } else {
            Json::Object(fields)
        })
    }
}

fn scalar(text: &str, schema: &Json) -> Json {
    match schema["type"].as_str() {
        Some("array") if text.trim().is_empty() => Json::Array(Vec::new()),
        Some("object") if text.trim().is_empty() => Json::Object(Map::new()),
        kind => typed(text, kind.map(|kind| kind == "string")),
    }
}
