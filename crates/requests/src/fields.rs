//! A request's body, field by field: what nobody asks for is left over and told.

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};

/// The members of a JSON object that have not been read yet. A member that is `null` counts as absent.
#[derive(Debug, Default)]
pub struct Fields {
    /// What the object is called in messages: empty for the body, else a path with a dot at its end.
    path: String,
    left: Map<String, Value>,
    /// What a caller should know.
    pub warnings: Vec<String>,
}

impl Fields {
    /// The members of the body.
    pub fn body(value: Value) -> Result<Self> {
        match value {
            Value::Object(left) => Ok(Fields {
                left,
                ..Fields::default()
            }),
            other => Err(ApiError::invalid(format!(
                "the body must be a JSON object, not {}",
                kind(&other)
            ))),
        }
    }

    /// The members of an object called `path`.
    pub fn of(path: &str, value: Value) -> Result<Self> {
        match value {
            Value::Object(left) => Ok(Fields {
                path: format!("{path}."),
                left,
                warnings: Vec::new(),
            }),
            other => Err(wrong(path, &other, "an object")),
        }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// The member, if it is there.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.left.shift_remove(name).filter(|v| !v.is_null())
    }

    /// The first of several names that is there; all are read.
    pub fn take_any(&mut self, names: &[&str]) -> Option<(String, Value)> {
        let mut found = None;
        for &name in names {
            let value = self.take(name);
            found = found.or(value.map(|v| (self.name(name), v)));
        }
        found
    }

    /// The member, which stays unread.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.left.get(name).filter(|v| !v.is_null())
    }

    /// Whether the member is there.
    pub fn has(&self, name: &str) -> bool {
        self.peek(name).is_some()
    }

    /// A member that must be there.
    pub fn needed(&mut self, name: &str) -> Result<Value> {
        self.take(name)
            .ok_or_else(|| ApiError::field(self.name(name), "is missing"))
    }

    /// A text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.name(name), &other, "a string")),
        }
    }

    /// True or false.
    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(&self.name(name), &other, "true or false")),
        }
    }

    /// A whole number, perhaps negative.
    pub fn integer(&mut self, names: &[&str]) -> Result<Option<i64>> {
        let Some((name, value)) = self.take_any(names) else {
            return Ok(None);
        };
        integer(&value)
            .map(Some)
            .ok_or_else(|| wrong(&name, &value, "a whole number"))
    }

    /// A number of things.
    pub fn count(&mut self, names: &[&str]) -> Result<Option<usize>> {
        let Some((name, value)) = self.take_any(names) else {
            return Ok(None);
        };
        let count = integer(&value).and_then(|n| usize::try_from(n).ok());
        count
            .map(Some)
            .ok_or_else(|| wrong(&name, &value, "a whole number of at least 0"))
    }

    /// A number, and the name it came under.
    pub fn number(&mut self, names: &[&str]) -> Result<Option<(String, f64)>> {
        let Some((name, value)) = self.take_any(names) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) => Ok(Some((name, number))),
            None => Err(wrong(&name, &value, "a number")),
        }
    }

    /// A number from `low` to `high`.
    pub fn within(&mut self, names: &[&str], low: f64, high: f64) -> Result<Option<f32>> {
        let Some((name, number)) = self.number(names)? else {
            return Ok(None);
        };
        if !(low..=high).contains(&number) {
            let range = match (low.is_finite(), high.is_finite()) {
                (true, true) => format!("a number from {low} to {high}"),
                (true, false) => format!("a number of at least {low}"),
                _ => "a number".to_owned(),
            };
            return Err(ApiError::field(
                name,
                format!("found {number}, expected {range}"),
            ));
        }
        Ok(Some(number as f32))
    }

    /// A list.
    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(&self.name(name), &other, "a list")),
        }
    }

    /// A list of texts, or one text.
    pub fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let name = self.name(name);
        let text = |value: Value| match value {
            Value::String(text) => Ok(text),
            other => Err(wrong(&name, &other, "a string")),
        };
        match value {
            Value::Array(items) => items.into_iter().map(text).collect::<Result<_>>().map(Some),
            other => Ok(Some(vec![text(other)?])),
        }
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(members)) => Ok(Some(members)),
            Some(other) => Err(wrong(&self.name(name), &other, "an object")),
        }
    }

    /// An object, field by field.
    pub fn nested(&mut self, name: &str) -> Result<Option<Fields>> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => Fields::of(&self.name(name), value).map(Some),
        }
    }

    /// Hints that change no answer here: each that is there and says something is told.
    pub fn hints(&mut self, names: &[&str]) {
        for &name in names {
            let said = self.take(name).is_some_and(|v| says_something(&v));
            if said {
                let warning = format!("{} has no effect here", self.name(name));
                self.warnings.push(warning);
            }
        }
    }

    /// Fields that are accepted in silence, since nothing could differ: identifiers of the caller and the like.
    pub fn labels(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.take(name)));
    }

    /// Refuses fields that would change the answer, and cannot be honoured.
    pub fn refuse(&mut self, names: &[&str], why: &str) -> Result<()> {
        for &name in names {
            if let Some(value) = self.take(name)
                && says_something(&value)
            {
                return Err(ApiError::field(
                    self.name(name),
                    format!("cannot be used: {why}"),
                ));
            }
        }
        Ok(())
    }

    /// What is left is unknown: told, or with `strict` refused.
    pub fn finish(&mut self, strict: bool) -> Result<()> {
        let left = std::mem::take(&mut self.left);
        let unknown = left.into_iter().filter(|(_, v)| !v.is_null());
        for (name, _) in unknown {
            let name = self.name(&name);
            if strict {
                return Err(ApiError::field(name, "is not a known field"));
            }
            self.warnings
                .push(format!("{name} is not a known field and was ignored"));
        }
        Ok(())
    }

    /// The same for an object within another one, which hears the warnings.
    pub fn close(mut self, strict: bool, outer: &mut Fields) -> Result<()> {
        self.finish(strict)?;
        outer.warnings.append(&mut self.warnings);
        Ok(())
    }
}

fn integer(value: &Value) -> Option<i64> {
    let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}

/// Whether a hint is more than a default written out.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Bool(true) => true,
    }
}

/// What a value is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A value of the wrong kind.
pub fn wrong(name: &str, found: &Value, expected: &str) -> ApiError {
    ApiError::field(name, format!("found {}, expected {expected}", kind(found)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_nobody_reads_is_told() {
        let body = json!({"a": 1, "b": null, "hint": "x", "no_hint": false, "strange": 1});
        let mut fields = Fields::body(body).expect("an object");
        assert_eq!(fields.count(&["a"]), Ok(Some(1)));
        assert_eq!(fields.text("b"), Ok(None));
        fields.hints(&["hint", "no_hint"]);
        fields.finish(false).expect("not strict");
        assert_eq!(
            fields.warnings,
            [
                "hint has no effect here",
                "strange is not a known field and was ignored"
            ]
        );
        let mut strict = Fields::body(json!({"strange": 1})).expect("an object");
        let error = strict.finish(true).expect_err("strict");
        assert_eq!(error.param.as_deref(), Some("strange"));
    }

    #[test]
    fn values_of_the_wrong_kind_are_named() {
        let body = json!({"t": "x", "n": 1.5, "m": -1, "p": 2});
        let mut fields = Fields::body(body).expect("an object");
        let message = |e: Result<_>| e.map(|_: Option<()>| ()).expect_err("wrong").message;
        let boolean = fields.boolean("t").map(|_| None);
        assert_eq!(
            message(boolean),
            "t: found a string, expected true or false"
        );
        let count = fields.count(&["n"]).map(|_| None);
        assert!(message(count).contains("a whole number of at least 0"));
        let count = fields.count(&["m"]).map(|_| None);
        assert!(message(count).starts_with("m: "));
        let within = fields.within(&["p"], 0.0, 1.0).map(|_| None);
        assert_eq!(message(within), "p: found 2, expected a number from 0 to 1");
    }
}
