//! Jinja2's tests.

use super::args::Args;
use super::error::{Result, TemplateError, type_error};
use super::filters;
use super::ops;
use super::python::to_text;
use super::value::Value;
use minijinja::machinery::ast::CompareOpKind;

/// Whether `value is name(args)`.
pub(crate) fn holds(name: &str, value: &Value, args: Args) -> Result<bool> {
    if let Some(op) = comparison(name) {
        return ops::compare(op, value, &single(args)?);
    }
    Ok(match name {
        "divisibleby" => value.expect_int()?.checked_rem(single(args)?.expect_int()?) == Some(0),
        "sameas" => same(value, &single(args)?),
        "filter" => filters::exists(value.expect_text()?.as_str()),
        "test" => exists(value.expect_text()?.as_str()),
        _ => return unary(name, value),
    })
}

fn unary(name: &str, value: &Value) -> Result<bool> {
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Undefined(_)
        ),
        "iterable" => value.items().is_ok(),
        "callable" => matches!(value, Value::Callable(_) | Value::Undefined(_)),
        "escaped" => matches!(value, Value::Str(text) if text.is_markup()),
        "odd" => value.expect_int()?.rem_euclid(2) == 1,
        "even" => value.expect_int()?.rem_euclid(2) == 0,
        "lower" => is_cased(value, char::is_uppercase, char::is_lowercase),
        "upper" => is_cased(value, char::is_lowercase, char::is_uppercase),
        _ => return Err(TemplateError::Unknown(format!("the test `{name}`"))),
    })
}

fn comparison(name: &str) -> Option<CompareOpKind> {
    Some(match name {
        "eq" | "equalto" | "==" => CompareOpKind::Eq,
        "ne" | "!=" => CompareOpKind::Ne,
        "lt" | "lessthan" | "<" => CompareOpKind::Lt,
        "le" | "<=" => CompareOpKind::Lte,
        "gt" | "greaterthan" | ">" => CompareOpKind::Gt,
        "ge" | ">=" => CompareOpKind::Gte,
        "in" => CompareOpKind::In,
        _ => return None,
    })
}

fn exists(name: &str) -> bool {
    let known = ["divisibleby", "sameas", "filter", "test"].contains(&name);
    let unknown = matches!(unary(name, &Value::Int(0)), Err(TemplateError::Unknown(_)));
    comparison(name).is_some() || known || !unknown
}

fn single(mut args: Args) -> Result<Value> {
    let value = args.shift("the test's argument")?;
    if !args.positional.is_empty() || !args.keywords.is_empty() {
        return type_error("the test takes one argument");
    }
    Ok(value)
}

fn same(a: &Value, b: &Value) -> bool {
    a.kind() == b.kind() && a.equals(b)
}

fn is_cased(value: &Value, wrong: fn(char) -> bool, right: fn(char) -> bool) -> bool {
    let text = to_text(value);
    !text.as_str().contains(wrong) && text.as_str().contains(right)
}
