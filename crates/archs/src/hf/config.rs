//! `config.json` as expressions read it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use super::normal;
use super::rules::{Formula, HfRule, shared};
use tokkata_formats::ModelFile;

use crate::error::ArchError;
use crate::expr::{Env, EvalError, Expr, Val};
use crate::resolve::glob;
use crate::schema::Rule;

/// A configuration with the rules that read it.
pub(crate) struct Config<'a> {
    root: &'a Json,
    rule: &'a HfRule,
    file: &'a ModelFile,
    layer: Cell<Option<u32>>,
    /// Variables being evaluated: inside, their names mean the settings they complete.
    open: RefCell<Vec<String>>,
}

/// Tables inside which a text model's settings stand in files of models that also see or hear.
const NESTED: [&str; 4] = [
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
];

/// The whole model decides whether its output is its embedding, whatever its text part would do alone.
const TIED: &str = "tie_word_embeddings";

impl<'a> Config<'a> {
    pub(crate) fn new(root: &'a Json, rule: &'a HfRule, file: &'a ModelFile) -> Self {
        Config {
            root,
            rule,
            file,
            layer: Cell::new(None),
            open: RefCell::default(),
        }
    }

    /// Sets the layer that `il` and arrays stand for.
    pub(crate) fn set_layer(&self, layer: Option<u32>) {
        self.layer.set(layer);
    }

    /// The layer that `il` and arrays stand for.
    pub(crate) fn layer(&self) -> Option<u32> {
        self.layer.get()
    }

    /// The value at a path, in the text model's settings first.
    pub(crate) fn find(&self, path: &str) -> Option<&'a Json> {
        if path == TIED && self.root.get(path).is_some() {
            return descend(self.root, path);
        }
        let nested = NESTED.iter().filter_map(|n| self.root.get(n));
        let mut roots = nested.chain([self.root]);
        roots.find_map(|root| descend(root, path))
    }

    pub(crate) fn eval(&self, expr: &Expr) -> Result<Option<Val>, ArchError> {
        match expr.eval(self) {
            Ok(value) => Ok(Some(value)),
            Err(EvalError::Missing(_)) => Ok(None),
            Err(EvalError::Bad(what)) => Err(ArchError::Rule {
                rule: format!("\"{}\"", expr.source()),
                what,
            }),
        }
    }

    /// The number that a rule gives, if its keys are there.
    pub(crate) fn number(&self, rule: &Rule) -> Result<Option<f64>, ArchError> {
        match self.eval(&rule.0)? {
            Some(Val::Num(x)) => Ok(Some(x)),
            Some(Val::Text(text)) => Err(ArchError::Rule {
                rule: format!("\"{}\"", rule.0.source()),
                what: format!("'{text}' is a text where a number is needed"),
            }),
            None => Ok(None),
        }
    }

    /// Whether a rule holds; a missing key is false.
    pub(crate) fn truth(&self, rule: &Rule) -> Result<bool, ArchError> {
        Ok(self.eval(&rule.0)?.is_some_and(|v| v.truth()))
    }

    /// A size that must be there.
    pub(crate) fn size(&self, rule: &Rule) -> Result<usize, ArchError> {
        let source = || format!("\"{}\"", rule.0.source());
        match self.eval(&rule.0)? {
            Some(Val::Num(x)) if x >= 0.0 && x.fract() == 0.0 && x < 1e9 => Ok(x as usize),
            Some(other) => Err(ArchError::Rule {
                rule: source(),
                what: format!("{other:?} is no size"),
            }),
            None => Err(ArchError::ConfigMissing {
                what: rule.0.names().join(" or "),
                rule: source(),
            }),
        }
    }

    fn formula(&self, formula: &Formula, name: &str) -> Result<Val, EvalError> {
        let missing = || EvalError::Missing(name.to_owned());
        let expr = formula.0.as_ref().ok_or_else(missing)?;
        self.open.borrow_mut().push(name.to_owned());
        let value = expr.eval(self);
        self.open.borrow_mut().pop();
        value
    }

    /// Refuses settings that no rule reads, unless they are off or known to be harmless.
    pub(crate) fn check(&self) -> Result<(), ArchError> {
        let read = self.read_paths();
        let mut nested = Vec::new();
        for (key, value) in self.root.as_object().into_iter().flatten() {
            match NESTED.contains(&key.as_str()) {
                true => nested.push(value),
                false => self.check_one(key, value, &read)?,
            }
        }
        for (key, value) in nested.into_iter().filter_map(Json::as_object).flatten() {
            self.check_one(key, value, &read)?;
        }
        self.requirements()
    }

    fn check_one(
        &self,
        path: &str,
        value: &Json,
        read: &BTreeSet<String>,
    ) -> Result<(), ArchError> {
        let patterns = self.rule.harmless.iter().chain(&shared().harmless);
        let harmless = patterns.into_iter().any(|p| glob(p, path));
        let expected = HfRule::merged(&self.rule.expect, &shared().expect);
        if let Some(values) = expected.get(path) {
            return expect(path, value, values);
        }
        if harmless || off(value) || read.contains(&numberless(path)) {
            return Ok(());
        }
        let inside = format!("{}.", numberless(path));
        match value.as_object() {
            Some(table) if read.iter().any(|r| r.starts_with(&inside)) => table
                .iter()
                .try_for_each(|(k, v)| self.check_one(&format!("{path}.{k}"), v, read)),
            _ => Err(ArchError::ConfigKey {
                key: path.to_owned(),
                value: shown(value),
            }),
        }
    }

    /// A requirement that speaks of `il` holds for every layer; one about a missing key holds.
    fn requirements(&self) -> Result<(), ArchError> {
        let all = self.rule.require.iter().chain(&shared().require);
        for rule in all {
            let layers = match rule.that.0.names().iter().any(|n| n == "il") {
                true => self.layers()?.map(Some).collect(),
                false => vec![None],
            };
            for layer in layers {
                self.set_layer(layer);
                let holds = self.eval(&rule.that.0)?.is_none_or(|v| v.truth());
                self.set_layer(None);
                if !holds {
                    let say = rule.say.clone();
                    return Err(ArchError::ConfigRequirement { say });
                }
            }
        }
        Ok(())
    }

    fn layers(&self) -> Result<std::ops::Range<u32>, ArchError> {
        let count = self.size(&Rule::of("$block_count"))?;
        Ok(0..count.min(1 << 16) as u32)
    }

    /// Name of a tensor in a rule, where `{il}` stands for the layer.
    fn tensor_name(&self, name: &str) -> String {
        name.replace("{il}", &self.layer.get().unwrap_or(0).to_string())
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let name = self.tensor_name(name);
        let plain = self.file.tensor(&name).map(|t| t.shape.clone());
        plain.or_else(|| Some(self.file.packed_weight(&name)?.shape.clone()))
    }

    /// The setting whose path is made of parts.
    fn setting(&self, parts: &[Val]) -> Result<Val, EvalError> {
        let word = |part: &Val| match part {
            Val::Num(x) => x.to_string(),
            Val::Text(text) => text.clone(),
        };
        let path = parts.iter().map(word).collect::<Vec<_>>().join(".");
        let found = self.find(&path).ok_or_else(|| missing(&path))?;
        val(found, self.layer.get()).ok_or_else(|| missing(&path))
    }

    /// Whether a list has a value or a text a part.
    fn contains(&self, path: &str, wanted: &Val) -> Option<bool> {
        match (self.find(path)?, wanted) {
            (Json::Array(list), _) => {
                Some(list.iter().any(|v| val(v, None).as_ref() == Some(wanted)))
            }
            (Json::String(text), Val::Text(part)) => Some(text.contains(part.as_str())),
            _ => None,
        }
    }

    /// The first value of a tensor.
    fn first_value(&self, name: &str) -> Option<f64> {
        let tensor = self.file.tensor(&self.tensor_name(name))?;
        if tensor.dtype.block_elems() != 1 || tensor.elements() == 0 {
            return None;
        }
        let mut bytes = vec![0; tensor.dtype.block_bytes()];
        self.file.read_at(tensor, 0, &mut bytes).ok()?;
        let mut value = [0.0];
        tokkata_quant::dequantize(tensor.dtype, &bytes, &mut value).ok()?;
        Some(value[0].into())
    }

    /// Every path that some rule reads.
    fn read_paths(&self) -> BTreeSet<String> {
        let common = shared();
        let mut exprs: Vec<&Expr> = Vec::new();
        let tables: [(&BTreeMap<_, _>, &BTreeMap<_, _>); 3] = [
            (&self.rule.vars, &common.vars),
            (&self.rule.keys, &common.keys),
            (&self.rule.layer_keys, &common.layer_keys),
        ];
        for (own, base) in tables {
            let merged = HfRule::merged(own, base);
            exprs.extend(merged.values().filter_map(|f| f.0.as_ref()));
        }
        let requirements = self.rule.require.iter().chain(&common.require);
        exprs.extend(requirements.map(|r| &r.that.0));
        exprs.extend(self.rule.when.as_ref().map(|r| &r.0));
        let factors = [&self.rule.rope_factors, &common.rope_factors];
        let scaling = factors.into_iter().flat_map(|f| &f.scaling);
        let words = [
            "type",
            "rope_type",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
        ];
        let longer = [
            "original_max_position_embeddings",
            "long_factor",
            "short_factor",
        ];
        let own = scaling.flat_map(|s| {
            let words = words.iter().chain(&longer);
            words.map(move |w| format!("{s}.{w}"))
        });
        let tensors = [
            &self.rule.tensors,
            &self.rule.layers,
            &common.tensors,
            &common.layers,
        ];
        let rules = tensors.into_iter().flat_map(BTreeMap::values);
        let folds: Vec<String> = (rules.flat_map(super::rules::TensorRules::all))
            .flat_map(|rule| rule.names())
            .collect();
        let named = exprs.iter().flat_map(|e| e.names());
        let lists = self.rule.lists.values().flat_map(|l| l.from.clone());
        named.chain(own).chain(folds).chain(lists).collect()
    }
}

/// A path with `*` for each number in it, as rules that compose paths name them.
fn numberless(path: &str) -> String {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts = path.split('.');
    let parts: Vec<&str> = parts.map(|p| if digits(p) { "*" } else { p }).collect();
    parts.join(".")
}

/// Whether a setting is as if it were not there.
fn off(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(list) => list.is_empty(),
        Json::Object(table) => table.is_empty(),
        _ => false,
    }
}

fn expect(path: &str, value: &Json, values: &[toml::Value]) -> Result<(), ArchError> {
    let same = |want: &toml::Value, value: &Json| match want {
        toml::Value::String(s) => value.as_str() == Some(s),
        toml::Value::Boolean(b) => value.as_bool() == Some(*b),
        toml::Value::Integer(i) => value.as_f64() == Some(*i as f64),
        toml::Value::Float(x) => value.as_f64() == Some(*x),
        _ => false,
    };
    let fits = |value: &Json| value.is_null() || values.iter().any(|want| same(want, value));
    let all = value.as_array().is_some_and(|list| list.iter().all(fits));
    if all || fits(value) {
        return Ok(());
    }
    let expected: Vec<String> = values.iter().map(ToString::to_string).collect();
    let expected = match expected.is_empty() {
        true => "none, or null".to_owned(),
        false => expected.join(" or "),
    };
    Err(ArchError::ConfigValue {
        key: path.to_owned(),
        value: shown(value),
        expected,
    })
}

/// A setting as it may stand in a message.
fn shown(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn descend<'v>(root: &'v Json, path: &str) -> Option<&'v Json> {
    let found = match (root.get(path), path.split_once('.')) {
        (Some(value), _) => value,
        (None, Some((head, rest))) => descend(root.get(head)?, rest)?,
        (None, None) => return None,
    };
    (!found.is_null()).then_some(found)
}

fn val(value: &Json, layer: Option<u32>) -> Option<Val> {
    match value {
        Json::Bool(b) => Some(Val::Num(f64::from(u8::from(*b)))),
        Json::Number(n) => n.as_f64().map(Val::Num),
        Json::String(s) => Some(Val::Text(s.clone())),
        Json::Array(list) => val(list.get(layer.unwrap_or(0) as usize)?, None),
        Json::Null | Json::Object(_) => None,
    }
}

fn missing(name: &str) -> EvalError {
    EvalError::Missing(name.to_owned())
}

impl Env for Config<'_> {
    fn name(&self, name: &str) -> Result<Val, EvalError> {
        if name == "il" {
            let layer = self.layer.get().ok_or_else(|| missing("il"))?;
            return Ok(Val::Num(layer.into()));
        }
        let vars = [&self.rule.vars, &shared().vars];
        let inside = self.open.borrow().iter().any(|open| open == name);
        match vars.into_iter().find_map(|v| v.get(name)) {
            Some(formula) if !inside => self.formula(formula, name),
            _ => {
                let found = self.find(name).ok_or_else(|| missing(name))?;
                val(found, self.layer.get()).ok_or_else(|| missing(name))
            }
        }
    }

    fn key(&self, key: &str) -> Result<Val, EvalError> {
        let tables = [&self.rule.keys, &shared().keys];
        let found = tables.into_iter().find_map(|t| t.get(key));
        let name = format!("${key}");
        if self.open.borrow().contains(&name) {
            return Err(EvalError::Bad(format!("{key} depends on itself")));
        }
        self.formula(found.ok_or_else(|| missing(key))?, &name)
    }

    fn call(&self, name: &str, args: &[Val]) -> Result<Val, EvalError> {
        let flag = |b: bool| Ok(Val::Num(f64::from(u8::from(b))));
        let list = |path: &str| self.find(path).and_then(Json::as_array);
        match (name, args) {
            ("has", [Val::Text(t)]) => flag(self.shape(t).is_some()),
            ("rows", [Val::Text(t)]) => {
                let shape = self.shape(t).ok_or_else(|| missing(t))?;
                Ok(Val::Num(shape.first().copied().unwrap_or(1) as f64))
            }
            ("cols", [Val::Text(t)]) => {
                let shape = self.shape(t).ok_or_else(|| missing(t))?;
                Ok(Val::Num(shape.last().copied().unwrap_or(1) as f64))
            }
            ("value", [Val::Text(t)]) => {
                self.first_value(t).map(Val::Num).ok_or_else(|| missing(t))
            }
            ("setting", parts) => self.setting(parts),
            ("normal_quantile", [Val::Num(p)]) => Ok(Val::Num(normal::quantile(*p))),
            ("len", [Val::Text(path)]) => {
                let list = list(path).ok_or_else(|| missing(path))?;
                Ok(Val::Num(list.len() as f64))
            }
            ("count", [Val::Text(path), wanted]) => {
                let list = list(path).ok_or_else(|| missing(path))?;
                let found = list
                    .iter()
                    .filter(|v| val(v, None).as_ref() == Some(wanted));
                Ok(Val::Num(found.count() as f64))
            }
            ("index", [Val::Text(path), wanted]) => {
                let list = list(path).ok_or_else(|| missing(path))?;
                let found = list
                    .iter()
                    .position(|v| val(v, None).as_ref() == Some(wanted));
                Ok(Val::Num(found.ok_or_else(|| missing(path))? as f64))
            }
            ("at", [Val::Text(path), Val::Num(i)]) => {
                let value = list(path).and_then(|l| val(l.get(*i as usize)?, None));
                value.ok_or_else(|| missing(path))
            }
            ("letter", [Val::Text(path), Val::Num(i)]) => {
                let text = self.find(path).and_then(Json::as_str);
                let letter = text.and_then(|t| t.chars().nth(*i as usize));
                let letter = letter.ok_or_else(|| missing(path))?;
                Ok(Val::Text(letter.to_string()))
            }
            ("contains", [Val::Text(path), wanted]) => {
                flag(self.contains(path, wanted).ok_or_else(|| missing(path))?)
            }
            _ => Err(EvalError::Bad(format!(
                "no function {name} with {} arguments",
                args.len()
            ))),
        }
    }
}
