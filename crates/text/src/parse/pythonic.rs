//! Calls written as expressions: `[name(key='value')]`, and `name{key:value}` with bare keys.

use serde_json::{Map, Value as Json};

use super::ToolCall;

/// `Ok(None)` while the text is incomplete; `Err` if it is something else.
type Reading<T> = Result<Option<T>, ()>;

enum Stop {
    More,
    Wrong,
}

struct Cursor<'t> {
    text: &'t str,
    at: usize,
    /// What strings stand between, besides `'` and `"`.
    quote: &'t str,
}

/// A list of calls, or a single one, and its length.
pub(super) fn calls(text: &str) -> Reading<(Vec<ToolCall>, usize)> {
    let mut cursor = Cursor {
        text,
        at: 0,
        quote: "",
    };
    let found = cursor.call_list();
    settle(found, cursor.at)
}

/// A mapping with bare keys, and its length.
pub(super) fn bare(text: &str, quote: &str) -> Reading<(Json, usize)> {
    let mut cursor = Cursor { text, at: 0, quote };
    let found = cursor.value(0);
    settle(found, cursor.at)
}

fn settle<T>(found: Result<T, Stop>, len: usize) -> Reading<(T, usize)> {
    match found {
        Ok(value) => Ok(Some((value, len))),
        Err(Stop::More) => Ok(None),
        Err(Stop::Wrong) => Err(()),
    }
}

impl Cursor<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, text: &str) -> bool {
        self.space();
        let found = !text.is_empty() && self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn expect(&mut self, text: &str) -> Result<(), Stop> {
        if self.eat(text) {
            return Ok(());
        }
        Err(if text.starts_with(self.rest()) {
            Stop::More
        } else {
            Stop::Wrong
        })
    }

    fn name(&mut self) -> Result<String, Stop> {
        self.space();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || "_-.".contains(c)))
            .ok_or(Stop::More)?;
        if end == 0 {
            return Err(Stop::Wrong);
        }
        let name = rest[..end].to_owned();
        self.at += end;
        Ok(name)
    }

    fn call_list(&mut self) -> Result<Vec<ToolCall>, Stop> {
        if !self.eat("[") {
            return Ok(vec![self.call()?]);
        }
        let mut calls = vec![self.call()?];
        while !self.eat("]") {
            self.expect(",")?;
            calls.push(self.call()?);
        }
        Ok(calls)
    }

    fn call(&mut self) -> Result<ToolCall, Stop> {
        let name = self.name()?;
        self.expect("(")?;
        let mut arguments = Map::new();
        while !self.eat(")") {
            if !arguments.is_empty() {
                self.expect(",")?;
            }
            let key = self.name()?;
            self.expect("=")?;
            arguments.insert(key, self.value(0)?);
        }
        Ok(ToolCall {
            id: None,
            name,
            arguments: Json::Object(arguments).to_string(),
        })
    }

    fn value(&mut self, depth: usize) -> Result<Json, Stop> {
        self.space();
        if depth > 64 {
            return Err(Stop::Wrong);
        }
        let quote = self.quote.to_owned();
        if self.eat(&quote) {
            return self.until(&quote);
        }
        if begins(self.rest(), &quote) {
            return Err(Stop::More);
        }
        match self.rest().chars().next() {
            None => Err(Stop::More),
            Some('{') => self.mapping(depth),
            Some('[') => self.list(depth),
            Some(mark @ ('\'' | '"')) => self.string(mark),
            Some(_) => self.scalar(),
        }
    }

    fn until(&mut self, quote: &str) -> Result<Json, Stop> {
        let end = self.rest().find(quote).ok_or(Stop::More)?;
        let value = self.rest()[..end].to_owned();
        self.at += end + quote.len();
        Ok(Json::String(value))
    }

    fn mapping(&mut self, depth: usize) -> Result<Json, Stop> {
        self.expect("{")?;
        let mut map = Map::new();
        while !self.eat("}") {
            if !map.is_empty() {
                self.expect(",")?;
            }
            self.space();
            let quoted = self.rest().starts_with(['\'', '"'])
                || (!self.quote.is_empty() && self.rest().starts_with(self.quote));
            let key = if quoted {
                self.value(depth)?.as_str().unwrap_or_default().to_owned()
            } else {
                self.name()?
            };
            self.expect(":")?;
            map.insert(key, self.value(depth + 1)?);
        }
        Ok(Json::Object(map))
    }

    fn list(&mut self, depth: usize) -> Result<Json, Stop> {
        self.expect("[")?;
        let mut items = Vec::new();
        while !self.eat("]") {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(self.value(depth + 1)?);
        }
        Ok(Json::Array(items))
    }

    fn string(&mut self, mark: char) -> Result<Json, Stop> {
        let mut value = String::new();
        let mut chars = self.rest()[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => {
                    let (_, escaped) = chars.next().ok_or(Stop::More)?;
                    match escaped {
                        'n' => value.push('\n'),
                        't' => value.push('\t'),
                        'r' => value.push('\r'),
                        '\\' | '\'' | '"' => value.push(escaped),
                        other => value.extend(['\\', other]),
                    }
                }
                _ if c == mark => {
                    self.at += at + 2;
                    return Ok(Json::String(value));
                }
                _ => value.push(c),
            }
        }
        Err(Stop::More)
    }

    fn scalar(&mut self) -> Result<Json, Stop> {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || "+-._".contains(c)))
            .ok_or(Stop::More)?;
        let value = match &rest[..end] {
            "True" | "true" => Json::Bool(true),
            "False" | "false" => Json::Bool(false),
            "None" | "null" => Json::Null,
            number => serde_json::from_str(number).map_err(|_| Stop::Wrong)?,
        };
        self.at += end;
        Ok(value)
    }
}

fn begins(text: &str, marker: &str) -> bool {
    marker.len() > text.len() && marker.starts_with(text)
}
