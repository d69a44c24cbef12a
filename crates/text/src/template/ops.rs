//! Python's operators, subscripts and slices.

use std::cmp::Ordering;
use std::rc::Rc;

use minijinja::machinery::ast::{BinOpKind, CompareOpKind};

use super::error::{Result, TemplateError, type_error};
use super::printf;
use super::python::to_text;
use super::text::Text;
use super::value::Value;

/// No template needs longer strings, lists or ranges.
pub(crate) const MAX_LEN: usize = 1 << 24;

/// Refuses to make a text of `parts` times `len` bytes and more, before memory is reserved for it.
pub(crate) fn fits(whole: usize, parts: usize, len: usize) -> Result<()> {
    let total = parts.checked_mul(len).and_then(|n| n.checked_add(whole));
    match total {
        Some(total) if total <= MAX_LEN => Ok(()),
        _ => Err(TemplateError::Limit("output")),
    }
}

pub(crate) fn binary(op: BinOpKind, left: &Value, right: &Value) -> Result<Value> {
    if matches!(op, BinOpKind::Concat) {
        let parts = [to_text(left), to_text(right)];
        return Ok(Value::text(Text::join(&Text::default(), &parts)));
    }
    left.expect_defined()?;
    right.expect_defined()?;
    match op {
        BinOpKind::Add => add(left, right),
        BinOpKind::Mul => multiply(left, right),
        BinOpKind::Rem if left.as_str().is_some() => printf::percent(left.expect_text()?, right),
        _ => arithmetic(op, left, right),
    }
}

fn add(left: &Value, right: &Value) -> Result<Value> {
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => Ok(Value::text(a.concat(b))),
        (Value::List(a), Value::List(b)) => Ok(Value::list([&a[..], &b[..]].concat())),
        (Value::Tuple(a), Value::Tuple(b)) => Ok(Value::tuple([&a[..], &b[..]].concat())),
        _ => arithmetic(BinOpKind::Add, left, right),
    }
}

fn multiply(left: &Value, right: &Value) -> Result<Value> {
    let (sequence, times) = match (left.as_int(), right.as_int()) {
        (None, Some(times)) => (left, times),
        (Some(times), None) => (right, times),
        _ => return arithmetic(BinOpKind::Mul, left, right),
    };
    let bounded = |len: usize| {
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        let fits = len.checked_mul(times).is_some_and(|total| total <= MAX_LEN);
        if fits {
            Ok(times)
        } else {
            Err(TemplateError::Limit("output"))
        }
    };
    match sequence {
        Value::Str(text) => {
            let copies = vec![&**text; bounded(text.len())?];
            Ok(Value::text(
                Text::join(&Text::default(), copies).with_markup(text.is_markup()),
            ))
        }
        Value::List(items) => Ok(Value::list(repeat(items, bounded(items.len())?))),
        Value::Tuple(items) => Ok(Value::tuple(repeat(items, bounded(items.len())?))),
        _ => arithmetic(BinOpKind::Mul, left, right),
    }
}

fn repeat(items: &[Value], times: usize) -> Vec<Value> {
    std::iter::repeat_n(items, times)
        .flatten()
        .cloned()
        .collect()
}

fn arithmetic(op: BinOpKind, left: &Value, right: &Value) -> Result<Value> {
    let unsupported = || {
        format!(
            "unsupported operand types: {} and {}",
            left.kind(),
            right.kind()
        )
    };
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return int_arithmetic(op, a, b);
    }
    match (left.as_float(), right.as_float()) {
        (Some(a), Some(b)) => float_arithmetic(op, a, b),
        _ => type_error(unsupported()),
    }
}

fn int_arithmetic(op: BinOpKind, a: i128, b: i128) -> Result<Value> {
    let result = match op {
        BinOpKind::Add => a.checked_add(b),
        BinOpKind::Sub => a.checked_sub(b),
        BinOpKind::Mul => a.checked_mul(b),
        BinOpKind::FloorDiv | BinOpKind::Rem if b == 0 => return type_error("division by zero"),
        BinOpKind::FloorDiv => Some(floor_div(a, b)),
        BinOpKind::Rem => Some(a - b * floor_div(a, b)),
        BinOpKind::Pow if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        _ => return float_arithmetic(op, a as f64, b as f64),
    };
    result
        .map(Value::Int)
        .ok_or(TemplateError::Limit("integer size"))
}

fn floor_div(a: i128, b: i128) -> i128 {
    let quotient = a.wrapping_div(b);
    if a % b != 0 && (a < 0) != (b < 0) {
        quotient - 1
    } else {
        quotient
    }
}

fn float_arithmetic(op: BinOpKind, a: f64, b: f64) -> Result<Value> {
    let division = matches!(op, BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem);
    if division && b == 0.0 {
        return type_error("division by zero");
    }
    Ok(Value::Float(match op {
        BinOpKind::Add => a + b,
        BinOpKind::Sub => a - b,
        BinOpKind::Mul => a * b,
        BinOpKind::Div => a / b,
        BinOpKind::FloorDiv => (a / b).floor(),
        BinOpKind::Rem => a - b * (a / b).floor(),
        BinOpKind::Pow => a.powf(b),
        _ => return type_error("not an arithmetic operator"),
    }))
}

pub(crate) fn compare(op: CompareOpKind, left: &Value, right: &Value) -> Result<bool> {
    Ok(match op {
        CompareOpKind::Eq => left.equals(right),
        CompareOpKind::Ne => !left.equals(right),
        CompareOpKind::In => contains(right, left)?,
        CompareOpKind::NotIn => !contains(right, left)?,
        CompareOpKind::Lt => order(left, right)?.is_some_and(Ordering::is_lt),
        CompareOpKind::Lte => order(left, right)?.is_some_and(Ordering::is_le),
        CompareOpKind::Gt => order(left, right)?.is_some_and(Ordering::is_gt),
        CompareOpKind::Gte => order(left, right)?.is_some_and(Ordering::is_ge),
    })
}

/// Python's ordering; `None` when a NaN is involved.
pub(crate) fn order(left: &Value, right: &Value) -> Result<Option<Ordering>> {
    left.expect_defined()?;
    right.expect_defined()?;
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => Ok(Some(a.as_str().cmp(b.as_str()))),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            match a.iter().zip(b.iter()).find(|(a, b)| !a.equals(b)) {
                Some((a, b)) => order(a, b),
                None => Ok(Some(a.len().cmp(&b.len()))),
            }
        }
        _ => match (
            left.as_int(),
            right.as_int(),
            left.as_float(),
            right.as_float(),
        ) {
            (Some(a), Some(b), ..) => Ok(Some(a.cmp(&b))),
            (.., Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => type_error(format!(
                "{} and {} have no order",
                left.kind(),
                right.kind()
            )),
        },
    }
}

pub(crate) fn contains(container: &Value, item: &Value) -> Result<bool> {
    match container {
        Value::Str(text) => Ok(text.as_str().contains(item.expect_text()?.as_str())),
        Value::Dict(dict) => Ok(dict.get(item).is_some()),
        _ => Ok(container.items()?.iter().any(|other| other.equals(item))),
    }
}

/// The item at a subscript, if the container has subscripts and this one exists.
pub(crate) fn item(container: &Value, key: &Value) -> Option<Value> {
    match container {
        Value::Dict(dict) => dict.get(key).cloned(),
        Value::List(items) | Value::Tuple(items) => {
            items.get(absolute(key.as_int()?, items.len())?).cloned()
        }
        Value::Str(text) => {
            let count = text.as_str().chars().count();
            let start = text.char_offset(absolute(key.as_int()?, count)?);
            let width = text.as_str()[start..]
                .chars()
                .next()
                .map_or(0, char::len_utf8);
            Some(Value::text(text.slice(start..start + width)))
        }
        _ => None,
    }
}

fn absolute(index: i128, len: usize) -> Option<usize> {
    let from_start = if index < 0 {
        index + len as i128
    } else {
        index
    };
    usize::try_from(from_start)
        .ok()
        .filter(|&index| index < len)
}

/// The three parts of `[start:stop:step]`.
#[derive(Debug)]
pub(crate) struct Bounds {
    pub(crate) start: Value,
    pub(crate) stop: Value,
    pub(crate) step: Value,
}

impl Bounds {
    /// The indices selected from a sequence of `len` items.
    fn indices(&self, len: usize) -> Result<Vec<usize>> {
        let len = len as i128;
        let step = if matches!(self.step, Value::None) {
            1
        } else {
            self.step.expect_int()?
        };
        if step == 0 {
            return type_error("slice step cannot be zero");
        }
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let bound = |value: &Value, default: i128| -> Result<i128> {
            if matches!(value, Value::None) {
                return Ok(default);
            }
            let index = value.expect_int()?;
            Ok(if index < 0 {
                index.saturating_add(len)
            } else {
                index
            }
            .clamp(low, high))
        };
        let (first, end) = if step > 0 { (low, high) } else { (high, low) };
        let (mut at, stop) = (bound(&self.start, first)?, bound(&self.stop, end)?);
        let mut picked = Vec::new();
        while (step > 0 && at < stop) || (step < 0 && at > stop) {
            picked.push(at as usize);
            at = at.saturating_add(step);
        }
        Ok(picked)
    }
}

pub(crate) fn slice(value: &Value, bounds: &Bounds) -> Result<Value> {
    value.expect_defined()?;
    let picked = |items: &Rc<Vec<Value>>| -> Result<Vec<Value>> {
        Ok(bounds
            .indices(items.len())?
            .into_iter()
            .map(|i| items[i].clone())
            .collect())
    };
    match value {
        Value::List(items) => Ok(Value::list(picked(items)?)),
        Value::Tuple(items) => Ok(Value::tuple(picked(items)?)),
        Value::Str(text) => slice_text(text, bounds),
        _ => Ok(Value::undefined("a slice")),
    }
}

fn slice_text(text: &Text, bounds: &Bounds) -> Result<Value> {
    let starts: Vec<usize> = text.as_str().char_indices().map(|(at, _)| at).collect();
    let end = |index: usize| starts.get(index + 1).copied().unwrap_or(text.len());
    let picked = bounds.indices(starts.len())?;
    let contiguous = picked.windows(2).all(|pair| pair[1] == pair[0] + 1);
    if let (true, Some(&first), Some(&last)) = (contiguous, picked.first(), picked.last()) {
        return Ok(Value::text(text.slice(starts[first]..end(last))));
    }
    let mut out = Text::default();
    for index in picked {
        out.push(&text.slice(starts[index]..end(index)));
    }
    Ok(Value::text(out))
}
