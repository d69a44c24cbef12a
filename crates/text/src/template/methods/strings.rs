//! Methods of strings.

use std::rc::Rc;

use super::super::args::{Args, flag, required};
use super::super::error::{Result, type_error};
use super::super::ops::{self, MAX_LEN};
use super::super::printf;
use super::super::text::{Ends, Text, is_space};
use super::super::value::Value;

pub(super) const NAMES: [&str; 40] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "startswith",
    "endswith",
    "replace",
    "upper",
    "lower",
    "title",
    "capitalize",
    "swapcase",
    "casefold",
    "find",
    "rfind",
    "index",
    "rindex",
    "count",
    "join",
    "format",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "zfill",
    "ljust",
    "rjust",
    "center",
    "isdigit",
    "isdecimal",
    "isnumeric",
    "isalpha",
    "isalnum",
    "isspace",
    "isupper",
    "islower",
    "isascii",
    "isidentifier",
];

pub(super) fn call(text: &Rc<Text>, name: &str, args: Args) -> Result<Value> {
    match name {
        "strip" | "lstrip" | "rstrip" => strip(text, name, args),
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => cut(text, name, args),
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => {
            search(text, name, args)
        }
        "replace" => replace(text, args),
        "join" => join(text, args),
        "format" => printf::format(text, &args),
        "removeprefix" | "removesuffix" => remove_affix(text, name, args),
        "zfill" | "ljust" | "rjust" | "center" => pad(text, name, args),
        _ => {
            let [] = args.bind([])?;
            Ok(recase(text, name).unwrap_or_else(|| Value::Bool(classify(text.as_str(), name))))
        }
    }
}

fn strip(text: &Text, name: &str, args: Args) -> Result<Value> {
    let [chars] = args.bind(["chars"])?;
    let ends = match name {
        "lstrip" => Ends::Left,
        "rstrip" => Ends::Right,
        _ => Ends::Both,
    };
    Ok(Value::text(strip_chars(text, ends, chars.as_ref())?))
}

/// Strips the given characters, or white space.
pub(crate) fn strip_chars(text: &Text, ends: Ends, chars: Option<&Value>) -> Result<Text> {
    match chars {
        None | Some(Value::None) => Ok(text.trim_by(ends, is_space)),
        Some(chars) => {
            let chars = chars.expect_text()?.as_str().to_owned();
            Ok(text.trim_by(ends, |c| chars.contains(c)))
        }
    }
}

fn cut(text: &Text, name: &str, args: Args) -> Result<Value> {
    if name == "splitlines" {
        let [keep_ends] = args.bind(["keepends"])?;
        return Ok(texts(text.lines(flag(keep_ends))));
    }
    let [separator, limit] = args.bind(["sep", "maxsplit"])?;
    let limit = limit.map_or(Ok(-1), |limit| limit.expect_int())?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let separator = match separator {
        None | Some(Value::None) if name.ends_with("partition") => {
            return type_error("no separator");
        }
        None | Some(Value::None) => return Ok(texts(split_space(text, name == "rsplit", limit))),
        Some(separator) => separator.expect_text()?.as_str().to_owned(),
    };
    if separator.is_empty() {
        return type_error("empty separator");
    }
    match name {
        "partition" => Ok(partition(
            text,
            &separator,
            text.as_str().find(&separator),
            true,
        )),
        "rpartition" => Ok(partition(
            text,
            &separator,
            text.as_str().rfind(&separator),
            false,
        )),
        _ => Ok(texts(split_on(text, &separator, name == "rsplit", limit))),
    }
}

fn texts(parts: Vec<Text>) -> Value {
    Value::list(parts.into_iter().map(Value::text).collect())
}

fn split_on(text: &Text, separator: &str, from_right: bool, limit: usize) -> Vec<Text> {
    let source = text.as_str();
    let mut starts: Vec<usize> = if from_right {
        source
            .rmatch_indices(separator)
            .take(limit)
            .map(|(at, _)| at)
            .collect()
    } else {
        source
            .match_indices(separator)
            .take(limit)
            .map(|(at, _)| at)
            .collect()
    };
    starts.sort_unstable();
    let mut parts = Vec::with_capacity(starts.len() + 1);
    let mut done = 0;
    for at in starts {
        parts.push(text.slice(done..at));
        done = at + separator.len();
    }
    parts.push(text.slice(done..text.len()));
    parts
}

fn split_space(text: &Text, from_right: bool, limit: usize) -> Vec<Text> {
    let (mut rest, mut parts) = (text.clone(), Vec::new());
    let (near, far) = if from_right {
        (Ends::Right, Ends::Left)
    } else {
        (Ends::Left, Ends::Right)
    };
    loop {
        rest = rest.trim_by(near, is_space);
        if rest.len() == 0 {
            break;
        }
        let source = rest.as_str();
        let gap = if from_right {
            source.rfind(is_space)
        } else {
            source.find(is_space)
        };
        let Some(at) = gap.filter(|_| parts.len() < limit) else {
            parts.push(rest.trim_by(far, is_space));
            break;
        };
        let after = at + source[at..].chars().next().map_or(0, char::len_utf8);
        let (word, left) = if from_right {
            (after..source.len(), 0..at)
        } else {
            (0..at, after..source.len())
        };
        parts.push(rest.slice(word));
        rest = rest.slice(left);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn partition(text: &Text, separator: &str, found: Option<usize>, empty_last: bool) -> Value {
    let parts = match found {
        Some(at) => {
            let end = at + separator.len();
            vec![
                text.slice(0..at),
                text.slice(at..end),
                text.slice(end..text.len()),
            ]
        }
        None if empty_last => vec![text.clone(), Text::default(), Text::default()],
        None => vec![Text::default(), Text::default(), text.clone()],
    };
    Value::tuple(parts.into_iter().map(Value::text).collect())
}

fn search(text: &Text, name: &str, args: Args) -> Result<Value> {
    let [wanted, start, end] = args.bind(["sub", "start", "end"])?;
    let wanted = required(wanted, "sub")?;
    let bounds = ops::Bounds {
        start: start.clone().unwrap_or(Value::None),
        stop: end.unwrap_or(Value::None),
        step: Value::None,
    };
    let window = ops::slice(&Value::text(text.clone()), &bounds)?;
    let window = window.expect_text()?.as_str();
    if let ("startswith" | "endswith", Value::Tuple(options)) = (name, &wanted) {
        let options = options.iter().map(|v| v.expect_text().map(|t| t.as_str()));
        let options = options.collect::<Result<Vec<_>>>()?;
        return Ok(Value::Bool(
            options
                .into_iter()
                .any(|option| affix(window, name, option)),
        ));
    }
    let wanted = wanted.expect_text()?.as_str();
    let base = start.map_or(Ok(0), |start| start.expect_int())?.max(0);
    let found = if name.starts_with('r') {
        window.rfind(wanted)
    } else {
        window.find(wanted)
    };
    match (name, found) {
        ("startswith" | "endswith", _) => Ok(Value::Bool(affix(window, name, wanted))),
        ("count", _) => Ok(Value::int(window.matches(wanted).count())),
        (_, Some(at)) => Ok(Value::Int(base + window[..at].chars().count() as i128)),
        ("find" | "rfind", None) => Ok(Value::Int(-1)),
        _ => type_error("substring not found"),
    }
}

fn affix(text: &str, name: &str, wanted: &str) -> bool {
    if name == "startswith" {
        text.starts_with(wanted)
    } else {
        text.ends_with(wanted)
    }
}

fn replace(text: &Text, args: Args) -> Result<Value> {
    let [old, new, count] = args.bind(["old", "new", "count"])?;
    let (old, new) = (required(old, "old")?, required(new, "new")?);
    let limit = count.map_or(Ok(-1), |count| count.expect_int())?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (old, new) = (old.expect_text()?.as_str(), new.expect_text()?);
    ops::fits(text.len(), text.count(old, limit), new.len())?;
    Ok(Value::text(text.replace(old, new, limit)))
}

fn join(separator: &Text, args: Args) -> Result<Value> {
    let [parts] = args.bind(["iterable"])?;
    let parts = required(parts, "iterable")?.items()?;
    let parts = parts
        .iter()
        .map(|part| part.expect_text().cloned())
        .collect::<Result<Vec<_>>>()?;
    let whole = parts.iter().map(|part| part.len()).sum();
    ops::fits(whole, parts.len(), separator.len())?;
    Ok(Value::text(Text::join(
        separator,
        parts.iter().map(|part| &**part),
    )))
}

fn remove_affix(text: &Text, name: &str, args: Args) -> Result<Value> {
    let [affix] = args.bind(["affix"])?;
    let affix = required(affix, "affix")?;
    let affix = affix.expect_text()?.as_str();
    let source = text.as_str();
    Ok(Value::text(match name {
        "removeprefix" if source.starts_with(affix) => text.slice(affix.len()..source.len()),
        "removesuffix" if source.ends_with(affix) => text.slice(0..source.len() - affix.len()),
        _ => text.clone(),
    }))
}

fn pad(text: &Text, name: &str, args: Args) -> Result<Value> {
    let [width, fill] = args.bind(["width", "fillchar"])?;
    let width = usize::try_from(required(width, "width")?.expect_int()?).unwrap_or(0);
    if width > MAX_LEN {
        return type_error("width too large");
    }
    let missing = width.saturating_sub(text.as_str().chars().count());
    let fill = fill.map_or(Ok(" ".to_owned()), |fill| {
        fill.expect_text().map(|t| t.as_str().to_owned())
    })?;
    let signed = text.as_str().starts_with(['+', '-']);
    Ok(Value::text(match name {
        "zfill" if signed => surround(
            &text.slice(0..1),
            0,
            "",
            &text.slice(1..text.len()),
            missing,
            "0",
        ),
        "zfill" => surround(&Text::default(), 0, "", text, missing, "0"),
        "ljust" => surround(text, 0, "", &Text::default(), missing, &fill),
        "rjust" => surround(&Text::default(), 0, "", text, missing, &fill),
        _ => centre(text, missing, width, &fill),
    }))
}

/// `before`, `count` fills, then `after`.
fn surround(
    before: &Text,
    lead: usize,
    lead_fill: &str,
    after: &Text,
    count: usize,
    fill: &str,
) -> Text {
    let mut out = Text::trusted(lead_fill.repeat(lead));
    out.push(before);
    out.push_str(&fill.repeat(count));
    out.push(after);
    out
}

fn centre(text: &Text, missing: usize, width: usize, fill: &str) -> Text {
    let left = missing / 2 + (missing & width & 1);
    surround(text, left, fill, &Text::default(), missing - left, fill)
}

fn recase(text: &Text, name: &str) -> Option<Value> {
    Some(Value::text(match name {
        "upper" => text.upper(),
        "lower" | "casefold" => text.lower(),
        "title" => title(text),
        "capitalize" => capitalize(text),
        "swapcase" => text.map_chars(|c, out| {
            if c.is_uppercase() {
                out.extend(c.to_lowercase());
            } else {
                out.extend(c.to_uppercase());
            }
        }),
        _ => return None,
    }))
}

/// `str.title`: capitals after anything that is not a cased letter.
fn title(text: &Text) -> Text {
    let mut inside = false;
    text.map_chars(|c, out| {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_uppercase() || c.is_lowercase();
    })
}

/// `str.capitalize`.
pub(crate) fn capitalize(text: &Text) -> Text {
    let mut first = true;
    text.map_chars(|c, out| {
        if std::mem::take(&mut first) {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
    })
}

fn classify(text: &str, name: &str) -> bool {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    match name {
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(is_space),
        "isupper" => text.contains(char::is_uppercase) && !text.contains(char::is_lowercase),
        "islower" => text.contains(char::is_lowercase) && !text.contains(char::is_uppercase),
        "isascii" => text.is_ascii(),
        _ => {
            let tail = text.chars().all(|c| c == '_' || c.is_alphanumeric());
            tail && text.starts_with(|c: char| c == '_' || c.is_alphabetic())
        }
    }
}
