//! Methods of strings, mappings and lists. Those that would change a value are refused, as in Transformers' sandbox.

mod strings;

use super::args::{Args, required};
use super::error::{Result, TemplateError, type_error};
use super::value::{Dict, LoopState, Value};

const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LIST: [&str; 2] = ["index", "count"];
const MUTATING_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const MUTATING_LIST: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];

/// Whether values of this kind have the method.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => strings::NAMES.contains(&name),
        Value::Dict(_) => DICT.contains(&name) || MUTATING_DICT.contains(&name),
        Value::List(_) => LIST.contains(&name) || name == "copy" || MUTATING_LIST.contains(&name),
        Value::Tuple(_) => LIST.contains(&name),
        Value::Loop(_) => matches!(name, "cycle" | "changed"),
        _ => false,
    }
}

pub(crate) fn call(receiver: &Value, name: &str, args: Args) -> Result<Value> {
    match receiver {
        Value::Str(text) => strings::call(text, name, args),
        Value::Dict(_) if MUTATING_DICT.contains(&name) => forbidden("dict", name),
        Value::Dict(dict) => dict_method(dict, name, args),
        Value::List(_) if MUTATING_LIST.contains(&name) => forbidden("list", name),
        Value::List(items) | Value::Tuple(items) => list_method(receiver, items, name, args),
        Value::Loop(state) => loop_method(state, name, args),
        _ => type_error(format!("{} has no method {name}", receiver.kind())),
    }
}

fn forbidden(kind: &str, name: &str) -> Result<Value> {
    Err(TemplateError::Forbidden(format!(
        "change a {kind} in place with `{name}`"
    )))
}

fn dict_method(dict: &Dict, name: &str, args: Args) -> Result<Value> {
    if name == "get" {
        let [key, default] = args.bind(["key", "default"])?;
        let found = dict.get(&required(key, "key")?).cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    let [] = args.bind([])?;
    let entries = dict.entries().iter().cloned();
    Ok(match name {
        "items" => view(entries.map(|(k, v)| Value::tuple(vec![k, v]))),
        "keys" => view(entries.map(|(k, _)| k)),
        "values" => view(entries.map(|(_, v)| v)),
        _ => Value::Dict(std::rc::Rc::new(dict.clone())),
    })
}

fn view(items: impl Iterator<Item = Value>) -> Value {
    Value::View(std::rc::Rc::new(items.collect()))
}

fn list_method(receiver: &Value, items: &[Value], name: &str, args: Args) -> Result<Value> {
    if name == "copy" {
        return Ok(receiver.clone());
    }
    let [wanted] = args.bind(["value"])?;
    let wanted = required(wanted, "value")?;
    let mut matches = items
        .iter()
        .enumerate()
        .filter(|(_, item)| item.equals(&wanted));
    match (name, matches.next()) {
        ("count", first) => Ok(Value::int(usize::from(first.is_some()) + matches.count())),
        (_, Some((at, _))) => Ok(Value::int(at)),
        _ => type_error("the value is not in the list"),
    }
}

fn loop_method(state: &LoopState, name: &str, args: Args) -> Result<Value> {
    if name == "changed" {
        let mut seen = state.seen.borrow_mut();
        let now = Value::list(args.positional.clone());
        let same = seen
            .as_ref()
            .is_some_and(|before| Value::list(before.clone()).equals(&now));
        *seen = Some(args.positional);
        return Ok(Value::Bool(!same));
    }
    match args.positional.len() {
        0 => type_error("no items for cycling given"),
        count => Ok(args.positional[state.index0 % count].clone()),
    }
}
