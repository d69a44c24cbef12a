//! Filters over strings.

use super::super::args::{Args, flag, required};
use super::super::error::{Result, type_error};
use super::super::methods;
use super::super::ops;
use super::super::printf;
use super::super::python::to_text;
use super::super::text::{Text, is_space};
use super::super::value::Value;
use std::rc::Rc;

pub(super) fn exists(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "trim",
        "upper",
        "lower",
        "title",
        "capitalize",
        "replace",
        "indent",
        "format",
        "center",
        "truncate",
        "wordcount",
        "urlencode",
    ];
    NAMES.contains(&name)
}

pub(super) fn apply(name: &str, value: &Value, args: Args) -> Result<Value> {
    let text = to_text(value);
    match name {
        "trim" => methods::call(&Value::text(text), "strip", args),
        "upper" | "lower" | "capitalize" => methods::call(&Value::text(text), name, args),
        "title" => Ok(Value::text(title(&text))),
        "center" => centre(text, args),
        "replace" => replace(&text, args),
        "indent" => indent(&text, args),
        "format" => printf::percent(&Rc::new(text), &Value::tuple(args.positional)),
        "truncate" => truncate(&text, args),
        "wordcount" => Ok(Value::int(word_count(text.as_str()))),
        "urlencode" => Ok(Value::text(url_encode(&text))),
        _ => type_error(format!("the filter `{name}` is not for chat templates")),
    }
}

/// Jinja2's own title case: capitals after spaces, hyphens and opening brackets.
fn title(text: &Text) -> Text {
    let mut start = true;
    text.map_chars(|c, out| {
        if start {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        start = is_space(c) || "-({[<".contains(c);
    })
}

fn centre(text: Text, args: Args) -> Result<Value> {
    let [width] = args.bind(["width"])?;
    let width = width.unwrap_or(Value::Int(80));
    methods::call(&Value::text(text), "center", Args::of(vec![width]))
}

fn replace(text: &Text, args: Args) -> Result<Value> {
    let [old, new, count] = args.bind(["old", "new", "count"])?;
    let (old, new) = (
        to_text(&required(old, "old")?),
        to_text(&required(new, "new")?),
    );
    let limit = match count {
        None | Some(Value::None) => usize::MAX,
        Some(count) => usize::try_from(count.expect_int()?).unwrap_or(usize::MAX),
    };
    let count = text.count(old.as_str(), limit);
    ops::fits(text.len(), count, new.len())?;
    Ok(Value::text(
        text.replace(old.as_str(), &new, limit).with_markup(false),
    ))
}

fn indent(text: &Text, args: Args) -> Result<Value> {
    let [width, first, blank] = args.bind(["width", "first", "blank"])?;
    let prefix = match width {
        Some(Value::Str(prefix)) => (*prefix).clone(),
        Some(width) => Text::trusted(super::spaces(&width)?),
        None => Text::trusted("    "),
    };
    let blank = flag(blank);
    ops::fits(text.len(), text.lines(false).len() + 1, prefix.len())?;
    let mut source = text.clone();
    source.push_str("\n");
    let mut out = if flag(first) {
        prefix.clone()
    } else {
        Text::default()
    };
    for (i, line) in source.lines(false).iter().enumerate() {
        if i > 0 {
            out.push_str("\n");
            if blank || line.len() > 0 {
                out.push(&prefix);
            }
        }
        out.push(line);
    }
    Ok(Value::text(out.with_markup(text.is_markup())))
}

fn truncate(text: &Text, args: Args) -> Result<Value> {
    let [length, kill_words, end, leeway] = args.bind(["length", "killwords", "end", "leeway"])?;
    let number = |value: Option<Value>, default| value.map_or(Ok(default), |v| v.expect_int());
    let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
    let end = end.map_or_else(|| Text::trusted("..."), |end| to_text(&end));
    let count = |text: &Text| text.as_str().chars().count() as i128;
    if count(text) <= length + leeway {
        return Ok(Value::text(text.clone()));
    }
    let kept = usize::try_from(length - count(&end)).unwrap_or(0);
    let mut head = text.slice(0..text.char_offset(kept));
    if !flag(kill_words) {
        let space = head.as_str().rfind(' ').unwrap_or(head.len());
        head = head.slice(0..space);
    }
    ops::binary(
        minijinja::machinery::ast::BinOpKind::Add,
        &Value::text(head),
        &Value::text(end),
    )
}

fn word_count(text: &str) -> usize {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .count()
}

fn url_encode(text: &Text) -> Text {
    text.map_chars(|c, out| match c {
        'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '.' | '-' | '~' | '/' => out.push(c),
        _ => {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
    })
}
