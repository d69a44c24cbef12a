//! How Python writes values: `str`, `repr` and `json.dumps`.

use super::error::{Result, TemplateError, type_error};
use super::text::Text;
use super::value::{Dict, Value};

/// `str(value)`.
pub(crate) fn to_text(value: &Value) -> Text {
    match value {
        Value::Str(text) => (**text).clone(),
        Value::Undefined(_) => Text::default(),
        _ => {
            let mut out = Text::default();
            write_repr(&mut out, value);
            out
        }
    }
}

/// `repr(value)`.
pub(crate) fn repr(value: &Value) -> Text {
    let mut out = Text::default();
    write_repr(&mut out, value);
    out
}

fn write_repr(out: &mut Text, value: &Value) {
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Float(value) => out.push_str(&float_repr(*value)),
        Value::Str(text) => write_str_repr(out, text),
        Value::List(items) => write_items(out, ["[", "]"], items),
        Value::Tuple(items) if items.len() == 1 => write_items(out, ["(", ",)"], items),
        Value::Tuple(items) => write_items(out, ["(", ")"], items),
        Value::Dict(dict) => write_dict(out, dict),
        Value::Lazy(_) => out.push_str("<generator>"),
        Value::View(items) => write_items(out, ["dict_view([", "])"], items),
        Value::Namespace(_) => out.push_str("<Namespace>"),
        Value::Loop(_) => out.push_str("<LoopContext>"),
        Value::Callable(_) => out.push_str("<function>"),
    }
}

fn write_items(out: &mut Text, brackets: [&str; 2], items: &[Value]) {
    out.push_str(brackets[0]);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_repr(out, item);
    }
    out.push_str(brackets[1]);
}

fn write_dict(out: &mut Text, dict: &Dict) {
    out.push_str("{");
    for (i, (key, value)) in dict.entries().iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_repr(out, key);
        out.push_str(": ");
        write_repr(out, value);
    }
    out.push_str("}");
}

fn write_str_repr(out: &mut Text, text: &Text) {
    let has = |c| text.as_str().contains(c);
    let quote = if has('\'') && !has('"') { '"' } else { '\'' };
    let mark = if text.is_markup() {
        ["Markup(", ")"]
    } else {
        ["", ""]
    };
    out.push_str(mark[0]);
    out.push_str(quote.encode_utf8(&mut [0; 4]));
    out.push(&text.map_chars(|c, out| match c {
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        _ if c == quote => out.extend(['\\', c]),
        _ if is_printable(c) => out.push(c),
        _ => out.push_str(&python_escape(c)),
    }));
    out.push_str(quote.encode_utf8(&mut [0; 4]));
    out.push_str(mark[1]);
}

fn python_escape(c: char) -> String {
    match c as u32 {
        code @ ..0x100 => format!("\\x{code:02x}"),
        code @ ..0x10000 => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// `str.isprintable`, less the code points that are not assigned.
fn is_printable(c: char) -> bool {
    let format = matches!(c as u32,
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x180e
        | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfeff
        | 0xfff0..=0xfffb | 0x110bd | 0x110cd | 0x1d173..=0x1d17a | 0xe0000..);
    c == ' ' || !(format || c.is_control() || c.is_whitespace())
}

/// `repr(float)`: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if value != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ if value.fract() == 0.0 => format!("{value:.1}"),
        _ => value.to_string(),
    }
}

/// The options of `json.dumps`.
#[derive(Debug)]
pub(crate) struct JsonStyle {
    pub(crate) ensure_ascii: bool,
    pub(crate) sort_keys: bool,
    pub(crate) indent: Option<Text>,
    pub(crate) item_separator: Text,
    pub(crate) key_separator: Text,
}

impl JsonStyle {
    /// Appends `json.dumps(value)`.
    pub(crate) fn write(&self, out: &mut Text, value: &Value, level: usize) -> Result<()> {
        match value {
            Value::Str(text) => self.write_str(out, text),
            Value::None => out.push_str("null"),
            Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Value::Int(value) => out.push_str(&value.to_string()),
            Value::Float(value) => out.push_str(&json_float(*value)),
            Value::List(items) | Value::Tuple(items) => return self.write_list(out, items, level),
            Value::Dict(dict) => return self.write_dict(out, dict, level),
            _ => {
                return type_error(format!(
                    "Object of type {} is not JSON serializable",
                    value.kind()
                ));
            }
        }
        Ok(())
    }

    fn write_list(&self, out: &mut Text, items: &[Value], level: usize) -> Result<()> {
        if items.is_empty() {
            out.push_str("[]");
            return Ok(());
        }
        out.push_str("[");
        for (i, item) in items.iter().enumerate() {
            self.separate(out, i, level + 1);
            self.write(out, item, level + 1)?;
        }
        self.new_line(out, level);
        out.push_str("]");
        Ok(())
    }

    fn write_dict(&self, out: &mut Text, dict: &Dict, level: usize) -> Result<()> {
        if dict.len() == 0 {
            out.push_str("{}");
            return Ok(());
        }
        let mut entries: Vec<_> = dict.entries().iter().collect();
        if self.sort_keys {
            entries.sort_by(|a, b| a.0.as_str().cmp(&b.0.as_str()));
        }
        out.push_str("{");
        for (i, (key, value)) in entries.into_iter().enumerate() {
            self.separate(out, i, level + 1);
            self.write_str(out, &json_key(key)?);
            out.push(&self.key_separator);
            self.write(out, value, level + 1)?;
        }
        self.new_line(out, level);
        out.push_str("}");
        Ok(())
    }

    fn separate(&self, out: &mut Text, index: usize, level: usize) {
        if index > 0 {
            out.push(&self.item_separator);
        }
        self.new_line(out, level);
    }

    fn new_line(&self, out: &mut Text, level: usize) {
        let Some(indent) = &self.indent else { return };
        out.push_str("\n");
        for _ in 0..level {
            out.push(indent);
        }
    }

    fn write_str(&self, out: &mut Text, text: &Text) {
        out.push_str("\"");
        out.push(&text.map_chars(|c, out| self.escape(c, out)));
        out.push_str("\"");
    }

    fn escape(&self, c: char, out: &mut String) {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            '\u{7f}'.. if self.ensure_ascii => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(c),
        }
    }
}

fn json_float(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => float_repr(value),
    }
}

fn json_key(key: &Value) -> Result<Text> {
    Ok(match key {
        Value::Str(text) => (**text).clone(),
        Value::None => Text::trusted("null"),
        Value::Bool(value) => Text::trusted(value.to_string()),
        Value::Int(value) => Text::trusted(value.to_string()),
        Value::Float(value) => Text::trusted(json_float(*value)),
        _ => {
            return Err(TemplateError::Type(format!(
                "keys must be str, not {}",
                key.kind()
            )));
        }
    })
}
