//! Filters over sequences and mappings.

use std::cmp::Ordering;

use super::super::args::{Args, flag, required};
use super::super::error::{Result, type_error};
use super::super::ops;
use super::super::predicates;
use super::super::python::to_text;
use super::super::text::Text;
use super::super::value::Value;
use super::path;

pub(super) fn exists(name: &str) -> bool {
    const NAMES: [&str; 19] = [
        "first",
        "last",
        "join",
        "list",
        "items",
        "reverse",
        "sort",
        "dictsort",
        "unique",
        "min",
        "max",
        "sum",
        "map",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
        "batch",
        "groupby",
    ];
    NAMES.contains(&name)
}

pub(super) fn apply(name: &str, value: &Value, args: Args) -> Result<Value> {
    match name {
        "first" => Ok(end_item(value.items()?.first())),
        "last" if !matches!(value, Value::Lazy(_)) => Ok(end_item(value.items()?.last())),
        "list" => Ok(Value::list(value.items()?.to_vec())),
        "items" => items(value),
        "join" => join(value, args),
        "reverse" => reverse(value),
        "sort" => sort(value, args),
        "dictsort" => dict_sort(value, args),
        "unique" => unique(value, args),
        "min" | "max" => extreme(name, value, args),
        "sum" => sum(value, args),
        "map" => map(value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, value, args),
        "batch" => batch(value, args),
        "groupby" => group_by(value, args),
        _ => type_error(format!("the filter `{name}` is not for chat templates")),
    }
}

fn end_item(item: Option<&Value>) -> Value {
    item.cloned()
        .unwrap_or_else(|| Value::undefined("an item of an empty sequence"))
}

fn items(value: &Value) -> Result<Value> {
    match value {
        Value::Undefined(_) => Ok(Value::lazy(Vec::new())),
        Value::Dict(dict) => {
            let pairs = dict.entries().iter().cloned();
            Ok(Value::lazy(
                pairs.map(|(k, v)| Value::tuple(vec![k, v])).collect(),
            ))
        }
        _ => type_error("can only get item pairs from a mapping"),
    }
}

fn join(value: &Value, args: Args) -> Result<Value> {
    let [separator, attribute] = args.bind(["d", "attribute"])?;
    let separator = separator.map_or_else(Text::default, |separator| to_text(&separator));
    let mut parts = Vec::new();
    for item in value.items()?.iter() {
        parts.push(to_text(&picked(item, attribute.as_ref())?));
    }
    let whole = parts.iter().map(Text::len).sum();
    ops::fits(whole, parts.len(), separator.len())?;
    Ok(Value::text(Text::join(&separator, &parts)))
}

fn picked(item: &Value, attribute: Option<&Value>) -> Result<Value> {
    match attribute {
        None | Some(Value::None) => Ok(item.clone()),
        Some(attribute) => path(item, attribute),
    }
}

fn reverse(value: &Value) -> Result<Value> {
    let mut items = value.items()?.to_vec();
    items.reverse();
    match value {
        Value::Str(_) => {
            let parts: Vec<Text> = items.iter().map(to_text).collect();
            Ok(Value::text(Text::join(&Text::default(), &parts)))
        }
        _ => Ok(Value::lazy(items)),
    }
}

/// A sort key: case is ignored unless asked for.
fn key(value: Value, case_sensitive: bool) -> Value {
    match &value {
        Value::Str(text) if !case_sensitive => Value::text(text.lower()),
        _ => value,
    }
}

fn sorted(mut keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Value> {
    let mut failure = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let ordering = ops::order(a, b).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            None
        });
        let ordering = ordering.unwrap_or(Ordering::Equal);
        if reverse {
            ordering.reverse()
        } else {
            ordering
        }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(Value::list(
            keyed.into_iter().map(|(_, item)| item).collect(),
        )),
    }
}

fn sort(value: &Value, args: Args) -> Result<Value> {
    let [reverse, case_sensitive, attribute] =
        args.bind(["reverse", "case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive);
    let mut keyed = Vec::new();
    for item in value.items()?.iter() {
        let sort_key = match attribute.as_ref().and_then(Value::as_str) {
            Some(names) => {
                let parts = names
                    .split(',')
                    .map(|name| Ok(key(path(item, &Value::str(name))?, case_sensitive)));
                Value::list(parts.collect::<Result<_>>()?)
            }
            None => key(picked(item, attribute.as_ref())?, case_sensitive),
        };
        keyed.push((sort_key, item.clone()));
    }
    sorted(keyed, flag(reverse))
}

fn dict_sort(value: &Value, args: Args) -> Result<Value> {
    let [case_sensitive, by, reverse] = args.bind(["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value else {
        return type_error("dictsort needs a mapping");
    };
    let by_value = match by.as_ref().and_then(Value::as_str).unwrap_or("key") {
        "key" => false,
        "value" => true,
        _ => return type_error("you can only sort by either \"key\" or \"value\""),
    };
    let case_sensitive = flag(case_sensitive);
    let keyed = dict.entries().iter().map(|(k, v)| {
        let by = if by_value { v } else { k };
        (
            key(by.clone(), case_sensitive),
            Value::tuple(vec![k.clone(), v.clone()]),
        )
    });
    sorted(keyed.collect(), flag(reverse))
}

fn unique(value: &Value, args: Args) -> Result<Value> {
    let [case_sensitive, attribute] = args.bind(["case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive);
    let (mut seen, mut kept): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    for item in value.items()?.iter() {
        let key = key(picked(item, attribute.as_ref())?, case_sensitive);
        if !seen.iter().any(|known| known.equals(&key)) {
            seen.push(key);
            kept.push(item.clone());
        }
    }
    Ok(Value::lazy(kept))
}

fn extreme(name: &str, value: &Value, args: Args) -> Result<Value> {
    let [case_sensitive, attribute] = args.bind(["case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive);
    let wanted = if name == "min" {
        Ordering::Less
    } else {
        Ordering::Greater
    };
    let mut best: Option<(Value, Value)> = None;
    for item in value.items()?.iter() {
        let key = key(picked(item, attribute.as_ref())?, case_sensitive);
        let better = match &best {
            None => true,
            Some((best, _)) => ops::order(&key, best)? == Some(wanted),
        };
        if better {
            best = Some((key, item.clone()));
        }
    }
    Ok(best.map_or_else(
        || Value::undefined("an item of an empty sequence"),
        |(_, item)| item,
    ))
}

fn sum(value: &Value, args: Args) -> Result<Value> {
    let [attribute, start] = args.bind(["attribute", "start"])?;
    let mut total = start.unwrap_or(Value::Int(0));
    for item in value.items()?.iter() {
        let item = picked(item, attribute.as_ref())?;
        total = ops::binary(minijinja::machinery::ast::BinOpKind::Add, &total, &item)?;
    }
    Ok(total)
}

fn map(value: &Value, mut args: Args) -> Result<Value> {
    let attribute = args.take_keyword("attribute");
    let default = args.take_keyword("default");
    let mut out = Vec::new();
    if !value.is_true() {
        return Ok(Value::lazy(out));
    }
    if let Some(attribute) = attribute {
        for item in value.items()?.iter() {
            let found = path(item, &attribute)?;
            out.push(match (&default, found.is_undefined()) {
                (Some(default), true) => default.clone(),
                _ => found,
            });
        }
        return Ok(Value::lazy(out));
    }
    let name = args.shift("the filter's name")?;
    for item in value.items()?.iter() {
        out.push(super::apply(
            name.expect_text()?.as_str(),
            item.clone(),
            args.clone(),
        )?);
    }
    Ok(Value::lazy(out))
}

fn select(name: &str, value: &Value, mut args: Args) -> Result<Value> {
    let attribute = if name.ends_with("attr") {
        Some(args.shift("the attribute")?)
    } else {
        None
    };
    let test = if args.positional.is_empty() {
        None
    } else {
        Some(args.shift("the test")?)
    };
    let wanted = name.starts_with("select");
    let mut kept = Vec::new();
    if !value.is_true() {
        return Ok(Value::lazy(kept));
    }
    for item in value.items()?.iter() {
        let subject = picked(item, attribute.as_ref())?;
        let holds = match &test {
            Some(test) => predicates::holds(test.expect_text()?.as_str(), &subject, args.clone())?,
            None => subject.is_true(),
        };
        if holds == wanted {
            kept.push(item.clone());
        }
    }
    Ok(Value::lazy(kept))
}

fn batch(value: &Value, args: Args) -> Result<Value> {
    let [size, fill] = args.bind(["linecount", "fill_with"])?;
    let size = usize::try_from(required(size, "linecount")?.expect_int()?).unwrap_or(0);
    if size == 0 || size > ops::MAX_LEN {
        return type_error("batch needs a positive size");
    }
    let mut batches: Vec<Vec<Value>> = value.items()?.chunks(size).map(<[Value]>::to_vec).collect();
    if let (Some(last), Some(fill)) = (batches.last_mut(), fill) {
        last.resize(size, fill);
    }
    Ok(Value::lazy(batches.into_iter().map(Value::list).collect()))
}

fn group_by(value: &Value, args: Args) -> Result<Value> {
    let [attribute, default, case_sensitive] =
        args.bind(["attribute", "default", "case_sensitive"])?;
    let attribute = required(attribute, "attribute")?;
    let case_sensitive = flag(case_sensitive);
    let mut keyed = Vec::new();
    for item in value.items()?.iter() {
        let found = path(item, &attribute)?;
        let found = if found.is_undefined() {
            default.clone().unwrap_or(found)
        } else {
            found
        };
        keyed.push((
            key(found.clone(), case_sensitive),
            Value::tuple(vec![found, item.clone()]),
        ));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for pair in sorted(keyed, false)?.items()?.iter() {
        let pair = pair.items()?;
        let [found, item] = pair.as_slice() else {
            return type_error("not a pair");
        };
        let sort_key = key(found.clone(), case_sensitive);
        match groups
            .last_mut()
            .filter(|(known, ..)| known.equals(&sort_key))
        {
            Some((.., members)) => members.push(item.clone()),
            None => groups.push((sort_key, found.clone(), vec![item.clone()])),
        }
    }
    let pairs = groups
        .into_iter()
        .map(|(_, label, members)| Value::tuple(vec![label, Value::list(members)]));
    Ok(Value::list(pairs.collect()))
}
