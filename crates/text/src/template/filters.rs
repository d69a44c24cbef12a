//! Jinja2's filters, with Transformers' `tojson`.

mod lists;
mod texts;

use super::args::{Args, flag};
use super::error::{Result, TemplateError, type_error};
use super::eval::subscript;
use super::python::{JsonStyle, to_text};
use super::text::Text;
use super::value::Value;

/// Applies the filter `name`.
pub(crate) fn apply(name: &str, value: Value, args: Args) -> Result<Value> {
    match name {
        "default" | "d" => default(value, args),
        "length" | "count" => Ok(Value::int(value.length()?)),
        "string" => Ok(Value::text(to_text(&value))),
        "tojson" => to_json(&value, args),
        "int" => int(&value, args),
        "float" => float(&value, args),
        "abs" => abs(&value),
        "round" => round(&value, args),
        "attr" => {
            let [name] = args.bind(["name"])?;
            let name = to_text(&name.unwrap_or(Value::None));
            super::eval::attribute(&value, name.as_str())
        }
        "safe" => Ok(Value::text(to_text(&value).with_markup(true))),
        "escape" | "e" => Ok(Value::text(to_text(&value).escaped())),
        "forceescape" => Ok(Value::text(to_text(&value).with_markup(false).escaped())),
        _ if texts::exists(name) => texts::apply(name, &value, args),
        _ if lists::exists(name) => lists::apply(name, &value, args),
        _ => Err(TemplateError::Unknown(format!("the filter `{name}`"))),
    }
}

/// Whether there is a filter of this name.
pub(crate) fn exists(name: &str) -> bool {
    const SCALAR: [&str; 16] = [
        "default",
        "d",
        "length",
        "count",
        "string",
        "tojson",
        "int",
        "float",
        "abs",
        "round",
        "attr",
        "safe",
        "escape",
        "e",
        "forceescape",
        "items",
    ];
    SCALAR.contains(&name) || texts::exists(name) || lists::exists(name)
}

fn default(value: Value, args: Args) -> Result<Value> {
    let [default, boolean] = args.bind(["default_value", "boolean"])?;
    let absent = value.is_undefined() || (flag(boolean) && !value.is_true());
    Ok(if absent {
        default.unwrap_or_else(|| Value::str(""))
    } else {
        value
    })
}

fn to_json(value: &Value, args: Args) -> Result<Value> {
    let [ensure_ascii, indent, separators, sort_keys] =
        args.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some((*text).clone()),
        Some(count) => Some(Text::trusted(spaces(&count)?)),
    };
    let (item_separator, key_separator) = match separators {
        None | Some(Value::None) if indent.is_some() => (Text::trusted(","), Text::trusted(": ")),
        None | Some(Value::None) => (Text::trusted(", "), Text::trusted(": ")),
        Some(pair) => match pair.items()?.as_slice() {
            [item, key] => (
                (**item.expect_text()?).clone(),
                (**key.expect_text()?).clone(),
            ),
            _ => return type_error("separators must be a pair"),
        },
    };
    let style = JsonStyle {
        ensure_ascii: flag(ensure_ascii),
        sort_keys: flag(sort_keys),
        indent,
        item_separator,
        key_separator,
    };
    let mut out = Text::default();
    style.write(&mut out, value, 0)?;
    Ok(Value::text(out))
}

fn spaces(count: &Value) -> Result<String> {
    match usize::try_from(count.expect_int()?) {
        Ok(count) if count > 1_000 => type_error("indent too large"),
        Ok(count) => Ok(" ".repeat(count)),
        Err(_) => Ok(String::new()),
    }
}

fn int(value: &Value, args: Args) -> Result<Value> {
    let [default, base] = args.bind(["default", "base"])?;
    let base = base.map_or(Ok(10), |base| base.expect_int())?;
    let parsed = match value {
        Value::Str(text) => parse_int(text.as_str().trim(), base),
        Value::Float(float) if float.is_finite() => Some(float.trunc() as i128),
        other => other.as_int(),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
}

fn parse_int(text: &str, base: i128) -> Option<i128> {
    let radix = u32::try_from(base)
        .ok()
        .filter(|radix| (2..=36).contains(radix))?;
    let digits = text.replace('_', "");
    let whole = i128::from_str_radix(&digits, radix).ok();
    whole.or_else(|| {
        text.parse::<f64>()
            .ok()
            .filter(|f| f.is_finite())
            .map(|f| f.trunc() as i128)
    })
}

fn float(value: &Value, args: Args) -> Result<Value> {
    let [default] = args.bind(["default"])?;
    let parsed = match value {
        Value::Str(text) => text.as_str().trim().parse().ok(),
        other => other.as_float(),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
}

fn abs(value: &Value) -> Result<Value> {
    match (value.as_int(), value.as_float()) {
        (Some(int), _) => Ok(Value::Int(int.abs())),
        (_, Some(float)) => Ok(Value::Float(float.abs())),
        _ => type_error(format!("bad operand type for abs(): {}", value.kind())),
    }
}

fn round(value: &Value, args: Args) -> Result<Value> {
    let [precision, method] = args.bind(["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |precision| precision.expect_int())?;
    let Some(number) = value.as_float() else {
        return type_error("round needs a number");
    };
    if let (Some(int), true) = (value.as_int(), precision == 0) {
        return Ok(Value::Int(int));
    }
    let scale = 10f64.powi(i32::try_from(precision).unwrap_or(0));
    let rounded = match method.as_ref().and_then(Value::as_str).unwrap_or("common") {
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        _ if precision >= 0 => {
            let digits = usize::try_from(precision).unwrap_or(0).min(300);
            format!("{number:.digits$}").parse().unwrap_or(number)
        }
        _ => (number * scale).round_ties_even() / scale,
    };
    Ok(Value::Float(rounded))
}

/// Follows a dotted attribute, as `map(attribute="a.b")` does.
fn path(value: &Value, attribute: &Value) -> Result<Value> {
    if attribute.as_int().is_some() {
        return subscript(value, attribute);
    }
    let mut value = value.clone();
    for part in attribute.expect_text()?.as_str().split('.') {
        let key = part.parse().map_or_else(|_| Value::str(part), Value::Int);
        value = subscript(&value, &key)?;
    }
    Ok(value)
}
