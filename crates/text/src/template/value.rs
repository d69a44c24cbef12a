//! The values a template computes with: Python's, as far as templates can tell.

use std::cell::RefCell;
use std::rc::Rc;

use super::error::{Result, TemplateError, type_error};
use super::text::Text;

/// A template value. Containers are immutable, as in Transformers' sandbox.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Holds what was missing, for the message.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Rc<Text>),
    List(Rc<Vec<Value>>),
    Tuple(Rc<Vec<Value>>),
    Dict(Rc<Dict>),
    /// What Python returns lazily: it can be iterated, but has no subscripts and is not JSON.
    Lazy(Rc<Vec<Value>>),
    /// A view of a mapping: lazy, but with a length.
    View(Rc<Vec<Value>>),
    Namespace(Rc<RefCell<Dict>>),
    Loop(Rc<LoopState>),
    Callable(Callable),
}

/// Something that can be called.
#[derive(Clone, Debug)]
pub(crate) enum Callable {
    Global(&'static str),
    Method(Rc<(Value, String)>),
    /// An index into the interpreter's macros.
    Macro(usize),
}

/// A position in a running loop.
#[derive(Debug)]
pub(crate) struct LoopState {
    pub(crate) items: Rc<Vec<Value>>,
    pub(crate) index0: usize,
    pub(crate) depth0: usize,
    /// What `loop.changed` saw last.
    pub(crate) seen: Rc<RefCell<Option<Vec<Value>>>>,
    /// Where a recursive loop is registered.
    pub(crate) recursive: Option<usize>,
}

/// An ordered mapping.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
}

impl Dict {
    pub(crate) fn from_unique(entries: Vec<(Value, Value)>) -> Self {
        Dict { entries }
    }

    pub(crate) fn get(&self, key: &Value) -> Option<&Value> {
        self.entries
            .iter()
            .find(|(k, _)| k.equals(key))
            .map(|(_, v)| v)
    }

    pub(crate) fn get_str(&self, key: &str) -> Option<&Value> {
        self.entries
            .iter()
            .find(|(k, _)| k.as_str() == Some(key))
            .map(|(_, v)| v)
    }

    pub(crate) fn insert(&mut self, key: Value, value: Value) {
        match self.entries.iter_mut().find(|(k, _)| k.equals(&key)) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key, value)),
        }
    }

    pub(crate) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Value {
    pub(crate) fn undefined(what: impl AsRef<str>) -> Value {
        Value::Undefined(Rc::from(what.as_ref()))
    }

    pub(crate) fn str(text: impl Into<String>) -> Value {
        Value::Str(Rc::new(Text::trusted(text)))
    }

    pub(crate) fn text(text: Text) -> Value {
        Value::Str(Rc::new(text))
    }

    pub(crate) fn list(items: Vec<Value>) -> Value {
        Value::List(Rc::new(items))
    }

    pub(crate) fn lazy(items: Vec<Value>) -> Value {
        Value::Lazy(Rc::new(items))
    }

    pub(crate) fn tuple(items: Vec<Value>) -> Value {
        Value::Tuple(Rc::new(items))
    }

    pub(crate) fn int(value: usize) -> Value {
        Value::Int(value as i128)
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text.as_str()),
            _ => None,
        }
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's name of the value's type.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Lazy(_) => "generator",
            Value::View(_) => "dict view",
            Value::Namespace(_) => "Namespace",
            Value::Loop(_) => "LoopContext",
            Value::Callable(_) => "function",
        }
    }

    pub(crate) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => text.len() > 0,
            Value::List(items) | Value::Tuple(items) | Value::View(items) => !items.is_empty(),
            Value::Dict(dict) => dict.len() > 0,
            Value::Lazy(_) | Value::Namespace(_) | Value::Loop(_) | Value::Callable(_) => true,
        }
    }

    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Bool(value) => Some(i128::from(*value)),
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    pub(crate) fn expect_int(&self) -> Result<i128> {
        self.expect_defined()?;
        self.as_int().map_or_else(
            || type_error(format!("expected an integer, found {}", self.kind())),
            Ok,
        )
    }

    pub(crate) fn expect_text(&self) -> Result<&Rc<Text>> {
        match self {
            Value::Str(text) => Ok(text),
            Value::Undefined(what) => Err(TemplateError::Undefined(what.to_string())),
            _ => type_error(format!("expected a string, found {}", self.kind())),
        }
    }

    pub(crate) fn expect_defined(&self) -> Result<()> {
        match self {
            Value::Undefined(what) => Err(TemplateError::Undefined(what.to_string())),
            _ => Ok(()),
        }
    }

    /// Python's `==`.
    /// Whether there are values inside it.
    pub(crate) fn holds_others(&self) -> bool {
        matches!(
            self,
            Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Lazy(_) | Value::View(_)
        )
    }

    pub(crate) fn equals(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => a == b,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.equals(b))
            }
            (Value::Dict(a), Value::Dict(b)) => {
                let same = |(k, v): &(Value, Value)| b.get(k).is_some_and(|w| v.equals(w));
                a.len() == b.len() && a.entries().iter().all(same)
            }
            (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
            (Value::Callable(a), Value::Callable(b)) => a.same(b),
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => self.as_float().is_some_and(|a| other.as_float() == Some(a)),
            },
        }
    }

    /// Iterates as Python's `iter` does: mappings by key, strings by character.
    pub(crate) fn items(&self) -> Result<Rc<Vec<Value>>> {
        match self {
            Value::List(items) | Value::Tuple(items) => Ok(items.clone()),
            Value::Lazy(items) | Value::View(items) => Ok(items.clone()),
            Value::Dict(dict) => Ok(Rc::new(
                dict.entries().iter().map(|(k, _)| k.clone()).collect(),
            )),
            Value::Str(text) => Ok(Rc::new(characters(text))),
            Value::Undefined(_) => Ok(Rc::new(Vec::new())),
            Value::Loop(state) => Ok(state.items.clone()),
            _ => type_error(format!("{} is not iterable", self.kind())),
        }
    }

    /// Python's `len`.
    pub(crate) fn length(&self) -> Result<usize> {
        match self {
            Value::Str(text) => Ok(text.as_str().chars().count()),
            Value::Dict(dict) => Ok(dict.len()),
            Value::List(items) | Value::Tuple(items) | Value::View(items) => Ok(items.len()),
            Value::Undefined(_) => Ok(0),
            Value::Loop(state) => Ok(state.items.len()),
            _ => type_error(format!("{} has no length", self.kind())),
        }
    }
}

impl Callable {
    fn same(&self, other: &Callable) -> bool {
        match (self, other) {
            (Callable::Global(a), Callable::Global(b)) => a == b,
            (Callable::Macro(a), Callable::Macro(b)) => a == b,
            _ => false,
        }
    }
}

fn characters(text: &Text) -> Vec<Value> {
    let pieces = text.as_str().char_indices();
    pieces
        .map(|(at, c)| Value::text(text.slice(at..at + c.len_utf8())))
        .collect()
}
