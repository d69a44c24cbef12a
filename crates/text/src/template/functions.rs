//! The functions every template can call.

use std::cell::RefCell;
use std::rc::Rc;

use super::args::{Args, required};
use super::clock::Clock;
use super::error::{Result, TemplateError, type_error};
use super::python::to_text;
use super::value::{Dict, Value};

/// Jinja2 refuses longer ranges in its sandbox.
const MAX_RANGE: i128 = 100_000;

const NAMES: [&str; 5] = [
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "dict",
];

/// The function of this name.
pub(crate) fn global(name: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|known| *known == name)
}

pub(crate) fn call(name: &str, args: Args, clock: &Clock) -> Result<Value> {
    match name {
        "raise_exception" => {
            let [message] = args.bind(["message"])?;
            let message = to_text(&required(message, "message")?);
            Err(TemplateError::Raised(message.as_str().to_owned()))
        }
        "strftime_now" => {
            let [format] = args.bind(["format"])?;
            let format = required(format, "format")?;
            Ok(Value::str(clock.format(format.expect_text()?.as_str())))
        }
        "namespace" => {
            let dict = dict(args)?;
            if dict
                .entries()
                .iter()
                .any(|(k, _)| k.as_str().is_some_and(|k| k.starts_with('_')))
            {
                return Err(TemplateError::Forbidden(
                    "set names that begin with `_`".into(),
                ));
            }
            Ok(Value::Namespace(Rc::new(RefCell::new(dict))))
        }
        "range" => range(&args),
        "dict" => Ok(Value::Dict(Rc::new(dict(args)?))),
        _ => Err(TemplateError::Unknown(format!("the function {name}"))),
    }
}

fn dict(args: Args) -> Result<Dict> {
    let mut out = Dict::default();
    match args.positional.as_slice() {
        [] => {}
        [Value::Dict(dict)] => out = (**dict).clone(),
        [pairs] => {
            for pair in pairs.items()?.iter() {
                let pair = pair.items()?;
                let [key, value] = pair.as_slice() else {
                    return type_error("not a pair");
                };
                out.insert(key.clone(), value.clone());
            }
        }
        _ => return type_error("dict expected at most 1 argument"),
    }
    for (name, value) in args.keywords {
        out.insert(Value::str(name), value);
    }
    Ok(out)
}

fn range(args: &Args) -> Result<Value> {
    let bounds = args
        .positional
        .iter()
        .map(Value::expect_int)
        .collect::<Result<Vec<_>>>()?;
    let (start, stop, step) = match bounds[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] if step != 0 => (start, stop, step),
        _ => return type_error("range needs one to three integers, the last not zero"),
    };
    let distance = if step > 0 {
        stop.saturating_sub(start)
    } else {
        start.saturating_sub(stop)
    };
    let count = (distance.max(0) + step.abs() - 1) / step.abs();
    if count > MAX_RANGE {
        return Err(TemplateError::Limit("range length"));
    }
    Ok(Value::list(
        (0..count).map(|i| Value::Int(start + i * step)).collect(),
    ))
}
