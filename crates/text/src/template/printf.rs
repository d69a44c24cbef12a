//! Python's two string formatting languages: `%` and `str.format`.

use std::rc::Rc;

use super::args::Args;
use super::error::{Result, type_error};
use super::eval::{attribute, subscript};
use super::ops::MAX_LEN;
use super::python::{float_repr, repr, to_text};
use super::text::Text;
use super::value::Value;

/// How one value is laid out.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    plus: bool,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn write(&self, value: &Value) -> Result<Text> {
        let body = match (self.kind, value) {
            (Some('s') | None, _) if !is_number(value) || self.kind.is_some() => {
                let text = to_text(value);
                let end = self
                    .precision
                    .map_or(text.len(), |count| text.char_offset(count));
                text.slice(0..end)
            }
            (Some('r'), _) => repr(value),
            _ => Text::trusted(self.number(value)?),
        };
        self.pad(&body, is_number(value) && self.kind != Some('s'))
    }

    fn number(&self, value: &Value) -> Result<String> {
        let digits = match (self.kind, value.as_int(), value.as_float()) {
            (Some('d' | 'i' | 'u') | None, Some(int), _) => int.to_string(),
            (Some('d' | 'i' | 'u'), None, Some(float)) => format!("{float:.0}"),
            (Some('x'), Some(int), _) => format!("{int:x}"),
            (Some('X'), Some(int), _) => format!("{int:X}"),
            (Some('o'), Some(int), _) => format!("{int:o}"),
            (Some('b'), Some(int), _) => format!("{int:b}"),
            (Some('f' | 'F'), _, Some(float)) => format!("{float:.*}", self.precision.unwrap_or(6)),
            (Some('%'), _, Some(float)) => {
                format!("{:.*}%", self.precision.unwrap_or(6), float * 100.0)
            }
            (None, _, Some(float)) if self.precision.is_none() => float_repr(float),
            _ => return type_error(format!("cannot format {} this way", value.kind())),
        };
        Ok(if self.plus && !digits.starts_with('-') {
            format!("+{digits}")
        } else {
            digits
        })
    }

    fn pad(&self, body: &Text, right: bool) -> Result<Text> {
        if self.width > MAX_LEN {
            return type_error("width too large");
        }
        let missing = self.width.saturating_sub(body.as_str().chars().count());
        let fill = self.fill.unwrap_or(' ').to_string();
        let (sign, digits) = match self.align {
            Some('=') if body.as_str().starts_with(['-', '+']) => (1, body.len()),
            _ => (0, body.len()),
        };
        let left = match self.align.unwrap_or(if right { '>' } else { '<' }) {
            '<' => 0,
            '^' => missing / 2,
            _ => missing,
        };
        let mut out = body.slice(0..sign);
        out.push_str(&fill.repeat(left));
        out.push(&body.slice(sign..digits));
        out.push_str(&fill.repeat(missing - left));
        Ok(out)
    }
}

fn is_number(value: &Value) -> bool {
    matches!(value, Value::Int(_) | Value::Float(_))
}

/// Reads a template text piece by piece.
struct Cursor<'t> {
    text: &'t Text,
    at: usize,
}

impl Cursor<'_> {
    fn rest(&self) -> &str {
        &self.text.as_str()[self.at..]
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> String {
        let rest = self.rest();
        let end = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        let taken = rest[..end].to_owned();
        self.at += end;
        taken
    }

    fn eat(&mut self, wanted: &str) -> bool {
        let found = self.rest().starts_with(wanted);
        if found {
            self.at += wanted.len();
        }
        found
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn number(&mut self) -> Option<usize> {
        self.take_while(|c| c.is_ascii_digit()).parse().ok()
    }

    /// Copies up to the next of `stops`, keeping the origin of the bytes.
    fn copy_until(&mut self, stops: &[char], out: &mut Text) {
        let start = self.at;
        self.take_while(|c| !stops.contains(&c));
        out.push(&self.text.slice(start..self.at));
    }
}

/// `text % values`.
pub(crate) fn percent(text: &Rc<Text>, values: &Value) -> Result<Value> {
    let mut positional = match values {
        Value::Tuple(items) => items.to_vec(),
        single => vec![single.clone()],
    }
    .into_iter();
    let mut cursor = Cursor { text, at: 0 };
    let (mut out, mut named) = (Text::default(), false);
    loop {
        cursor.copy_until(&['%'], &mut out);
        if !cursor.eat("%") {
            break;
        }
        if cursor.eat("%") {
            out.push_str("%");
            continue;
        }
        let key = cursor.eat("(").then(|| cursor.take_while(|c| c != ')'));
        named |= key.is_some() && cursor.eat(")");
        let spec = percent_spec(&mut cursor)?;
        let value = match key {
            Some(key) => subscript(values, &Value::str(key))?,
            None => positional
                .next()
                .map_or_else(|| type_error("not enough arguments"), Ok)?,
        };
        value.expect_defined().or_else(|e| {
            if spec.kind == Some('s') {
                Ok(())
            } else {
                Err(e)
            }
        })?;
        out.push(&spec.write(&value)?);
    }
    if positional.next().is_some() && !named && !matches!(values, Value::Dict(_)) {
        return type_error("not all arguments converted during string formatting");
    }
    Ok(Value::text(out.with_markup(text.is_markup())))
}

fn percent_spec(cursor: &mut Cursor<'_>) -> Result<Spec> {
    let flags = cursor.take_while(|c| "-+ 0#".contains(c));
    let mut spec = Spec {
        plus: flags.contains('+'),
        align: Some('>'),
        ..Spec::default()
    };
    if flags.contains('-') {
        spec.align = Some('<');
    } else if flags.contains('0') {
        (spec.fill, spec.align) = (Some('0'), Some('='));
    }
    spec.width = cursor.number().unwrap_or(0);
    if cursor.eat(".") {
        spec.precision = Some(cursor.number().unwrap_or(0));
    }
    spec.kind = cursor.next();
    match spec.kind {
        Some('s' | 'r' | 'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'f' | 'F') => Ok(spec),
        _ => type_error("unsupported format character"),
    }
}

/// `text.format(args)`.
pub(crate) fn format(text: &Rc<Text>, args: &Args) -> Result<Value> {
    let mut cursor = Cursor { text, at: 0 };
    let (mut out, mut automatic) = (Text::default(), Numbering::default());
    loop {
        cursor.copy_until(&['{', '}'], &mut out);
        if cursor.eat("{{") {
            out.push_str("{");
        } else if cursor.eat("}}") {
            out.push_str("}");
        } else if cursor.eat("{") {
            out.push(&replacement(&mut cursor, args, &mut automatic)?);
        } else if cursor.rest().is_empty() {
            return Ok(Value::text(out.with_markup(text.is_markup())));
        } else {
            return type_error("single '}' encountered in format string");
        }
    }
}

fn replacement(cursor: &mut Cursor<'_>, args: &Args, automatic: &mut Numbering) -> Result<Text> {
    let field = cursor.take_while(|c| !"!:}".contains(c));
    let conversion = if cursor.eat("!") { cursor.next() } else { None };
    let spec = if cursor.eat(":") {
        format_spec(&cursor.take_while(|c| c != '}'))?
    } else {
        Spec::default()
    };
    if !cursor.eat("}") {
        return type_error("expected '}' before end of string");
    }
    let value = field_value(&field, args, automatic)?;
    match conversion {
        Some('r' | 'a') => spec.write(&Value::text(repr(&value))),
        Some(_) => spec.write(&Value::text(to_text(&value))),
        None => spec.write(&value),
    }
}

/// Fields are numbered by themselves or by hand, not both.
#[derive(Default)]
struct Numbering {
    given: usize,
    by_hand: bool,
}

impl Numbering {
    fn next(&mut self) -> Result<usize> {
        self.given += 1;
        if self.by_hand {
            Self::mixed()
        } else {
            Ok(self.given - 1)
        }
    }

    fn manual(&mut self) -> Result<()> {
        self.by_hand = true;
        if self.given > 0 {
            Self::mixed()
        } else {
            Ok(())
        }
    }

    fn mixed<T>() -> Result<T> {
        type_error("cannot switch between automatic and manual field numbering")
    }
}

fn field_value(field: &str, args: &Args, automatic: &mut Numbering) -> Result<Value> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let (name, mut path) = field.split_at(end);
    let index = if name.is_empty() {
        automatic.next().map(Ok)?
    } else {
        name.parse::<usize>()
    };
    if !name.is_empty() && index.is_ok() {
        automatic.manual()?;
    }
    let found = match index {
        Ok(index) => args.positional.get(index).cloned(),
        Err(_) => args
            .keywords
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, v)| v.clone()),
    };
    let Some(mut value) = found else {
        return type_error(format!("format has no argument {name:?}"));
    };
    while !path.is_empty() {
        let (step, rest) = path[1..].split_at(path[1..].find(['.', '[']).unwrap_or(path.len() - 1));
        value = match (path.as_bytes()[0], step.trim_end_matches(']')) {
            (b'.', name) => attribute(&value, name)?,
            (_, key) => match key.parse::<i128>() {
                Ok(index) => subscript(&value, &Value::Int(index))?,
                Err(_) => subscript(&value, &Value::str(key))?,
            },
        };
        path = rest;
    }
    Ok(value)
}

fn format_spec(source: &str) -> Result<Spec> {
    let text = Text::trusted(source);
    let mut cursor = Cursor { text: &text, at: 0 };
    let mut spec = Spec::default();
    let mut chars = source.chars();
    if let (Some(fill), Some(align @ ('<' | '>' | '^' | '='))) = (chars.next(), chars.next()) {
        (spec.fill, spec.align) = (Some(fill), Some(align));
        cursor.at = fill.len_utf8() + 1;
    } else if source.starts_with(['<', '>', '^', '=']) {
        spec.align = cursor.next();
    }
    spec.plus = cursor.eat("+");
    if cursor.eat("0") {
        (spec.fill, spec.align) = (spec.fill.or(Some('0')), spec.align.or(Some('=')));
    }
    spec.width = cursor.number().unwrap_or(0);
    if cursor.eat(".") {
        spec.precision = cursor.number();
    }
    spec.kind = cursor.next();
    match (spec.kind, cursor.rest()) {
        (None | Some('s' | 'd' | 'x' | 'X' | 'o' | 'b' | 'f' | 'F' | '%'), "") => Ok(spec),
        _ => type_error(format!("invalid format specifier {source:?}")),
    }
}
