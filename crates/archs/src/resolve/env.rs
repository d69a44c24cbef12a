//! What names and functions in rules mean.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tokkata_core::Value;

use super::{Resolver, Side};
use crate::expr::{Env, EvalError, Val};
use crate::schema::Rule;

/// Variables every descriptor may use and override in `[vars]`.
const BUILTIN: &[(&str, &str)] = &[
    ("n_embd", "embedding_length"),
    ("n_layers", "block_count - (nextn_predict_layers ?? 0)"),
    ("n_head", "attention.head_count"),
    ("n_head_kv", "attention.head_count_kv ?? n_head"),
    ("n_ff", "feed_forward_length"),
    ("n_vocab", "rows_global('token_embd')"),
    ("n_ctx_train", "context_length"),
    ("n_expert", "expert_count ?? 0"),
    ("n_expert_used", "expert_used_count ?? 0"),
    ("n_ff_exp", "expert_feed_forward_length ?? n_ff"),
    ("leading_dense", "leading_dense_block_count ?? 0"),
    ("moe_layer", "n_expert > 0 && il >= leading_dense"),
    (
        "full_head_dim",
        "nz(attention.key_length) ?? n_embd / first('attention.head_count')",
    ),
    (
        "full_head_dim_v",
        "nz(attention.value_length) ?? n_embd / first('attention.head_count')",
    ),
    (
        "head_dim",
        "swa ? nz(attention.key_length_swa) ?? full_head_dim : full_head_dim",
    ),
    (
        "head_dim_v",
        "swa ? nz(attention.value_length_swa) ?? full_head_dim_v : full_head_dim_v",
    ),
    ("full_n_rot", "nz(rope.dimension_count) ?? full_head_dim"),
    (
        "n_rot",
        "swa ? nz(rope.dimension_count_swa) ?? full_n_rot : full_n_rot",
    ),
    ("theta", "nz(rope.freq_base) ?? 10000"),
    ("theta_swa", "nz(rope.freq_base_swa) ?? 10000"),
    ("rope_scaling", "rope.scaling.type ?? 'linear'"),
    (
        "n_ctx_orig",
        "nz(rope.scaling.original_context_length) ?? n_ctx_train",
    ),
    (
        "rope_factor",
        "nz(rope.scaling.factor) ?? nz(rope.scale_linear) ?? 1",
    ),
    ("window_size", "attention.sliding_window ?? 0"),
    ("d_conv", "ssm.conv_kernel"),
    ("d_inner", "ssm.inner_size"),
    ("d_state", "ssm.state_size"),
    ("dt_rank", "ssm.time_step_rank"),
    ("n_group", "ssm.group_count ?? 1"),
];

/// Names of the variables every descriptor may use.
pub(crate) fn builtin_names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|&(name, _)| name)
}

/// The variables every descriptor may use.
pub(crate) fn builtin() -> &'static BTreeMap<&'static str, Rule> {
    static RULES: LazyLock<BTreeMap<&'static str, Rule>> = LazyLock::new(|| {
        BUILTIN
            .iter()
            .map(|&(name, source)| (name, Rule::of(source)))
            .collect()
    });
    &RULES
}

fn val(value: &Value, layer: Option<u32>) -> Option<Val> {
    match value {
        Value::Array(a) => a
            .get(layer.unwrap_or(0) as usize)
            .and_then(|v| val(&v, None)),
        Value::Str(s) => Some(Val::Text(s.to_string())),
        other => other.as_f64().map(Val::Num),
    }
}

impl Env for Resolver<'_> {
    fn name(&self, name: &str) -> Result<Val, EvalError> {
        match name {
            "il" => {
                return self
                    .layer
                    .get()
                    .map(|l| Val::Num(l.into()))
                    .ok_or_else(|| missing("il"));
            }
            "n_ctx" => return Ok(Val::Num(self.options.ctx.into())),
            "swa" => return self.windowed(),
            "encoder" => return Ok(flag(self.side.get() == Side::Encoder)),
            "draft" => return Ok(flag(self.side.get() == Side::Draft)),
            _ => {}
        }
        match self.desc.vars.get(name).or_else(|| self.builtin.get(name)) {
            Some(rule) => self.nested(rule),
            None => self.key(&format!("{}.{name}", self.prefix)),
        }
    }

    fn key(&self, key: &str) -> Result<Val, EvalError> {
        self.meta
            .get(key)
            .and_then(|v| val(v, self.layer.get()))
            .ok_or_else(|| missing(key))
    }

    fn call(&self, name: &str, args: &[Val]) -> Result<Val, EvalError> {
        match (name, args) {
            ("has", [Val::Text(t)]) => Ok(flag(self.find(t).is_some())),
            ("has_global", [Val::Text(t)]) => Ok(flag(self.find_global(t).is_some())),
            ("rows", [Val::Text(t)]) => self.shape(self.find(t), t, false),
            ("cols", [Val::Text(t)]) => self.shape(self.find(t), t, true),
            ("rows_global", [Val::Text(t)]) => self.shape(self.find_global(t), t, false),
            ("cols_global", [Val::Text(t)]) => self.shape(self.find_global(t), t, true),
            ("first", [Val::Text(k)]) => self.first(k),
            ("max_of", [Val::Text(k)]) => self.max_of(k),
            ("is_array", [Val::Text(k)]) => Ok(flag(
                self.meta
                    .get(&format!("{}.{k}", self.prefix))
                    .is_some_and(|v| v.as_array().is_some()),
            )),
            ("pattern", [Val::Text(k), Val::Num(n), Val::Text(full)]) => self.pattern(k, *n, full),
            _ => Err(EvalError::Bad(format!(
                "no function {name} with {} arguments",
                args.len()
            ))),
        }
    }
}

fn missing(name: &str) -> EvalError {
    EvalError::Missing(name.to_owned())
}

fn flag(b: bool) -> Val {
    Val::Num(f64::from(u8::from(b)))
}

impl Resolver<'_> {
    fn nested(&self, rule: &Rule) -> Result<Val, EvalError> {
        let depth = self.depth.get();
        if depth > 32 {
            return Err(EvalError::Bad(
                "variables refer to each other in a circle".to_owned(),
            ));
        }
        self.depth.set(depth + 1);
        let value = rule.0.eval(self);
        self.depth.set(depth);
        value
    }

    fn windowed(&self) -> Result<Val, EvalError> {
        let rule = &self.desc.window;
        let (Some(pattern), Some(_)) = (&rule.pattern, self.layer.get()) else {
            return Ok(Val::Num(0.0));
        };
        let size = match &rule.size {
            Some(size) => self.nested(size)?,
            None => self.name("window_size")?,
        };
        if !size.truth() {
            return Ok(Val::Num(0.0));
        }
        self.nested(pattern)
    }

    fn shape(
        &self,
        tensor: Option<(String, Vec<usize>)>,
        name: &str,
        cols: bool,
    ) -> Result<Val, EvalError> {
        let (_, shape) = tensor.ok_or_else(|| missing(name))?;
        let (last, rest) = shape
            .split_last()
            .map_or((1, 1), |(l, r)| (*l, r.iter().product()));
        Ok(Val::Num(if cols { last } else { rest } as f64))
    }

    pub(super) fn numbers(&self, key: &str) -> Result<Vec<f64>, EvalError> {
        let full = format!("{}.{key}", self.prefix);
        let value = self.meta.get(&full).ok_or_else(|| missing(&full))?;
        Ok(match value.as_array() {
            Some(a) => (0..a.len()).filter_map(|i| a.get(i)?.as_f64()).collect(),
            None => value.as_f64().into_iter().collect(),
        })
    }

    /// First element that is not zero: geometry of the first layer that has the part.
    fn first(&self, key: &str) -> Result<Val, EvalError> {
        let all = self.numbers(key)?;
        let x = all.iter().find(|x| **x != 0.0).or(all.first());
        let full = || missing(&format!("{}.{key}", self.prefix));
        x.map(|&x| Val::Num(x)).ok_or_else(full)
    }

    fn max_of(&self, key: &str) -> Result<Val, EvalError> {
        let all = self.numbers(key)?;
        all.into_iter()
            .reduce(f64::max)
            .map(Val::Num)
            .ok_or_else(|| missing(&format!("{}.{key}", self.prefix)))
    }

    /// A per-layer array as it is, or a period whose `first` or `last` layer is full; the default is a period.
    fn pattern(&self, key: &str, default: f64, full: &str) -> Result<Val, EvalError> {
        let il = f64::from(self.layer_index());
        let value = self.meta.get(&format!("{}.{key}", self.prefix));
        if value.is_some_and(|v| v.as_array().is_some()) {
            return self.key(&format!("{}.{key}", self.prefix));
        }
        let period = value.and_then(Value::as_f64).unwrap_or(default);
        let windowed = match full {
            _ if period == 0.0 => true,
            "last" => il % period < period - 1.0,
            "first" => il % period != 0.0,
            other => {
                return Err(EvalError::Bad(format!(
                    "'{other}' is neither 'first' nor 'last'"
                )));
            }
        };
        Ok(flag(windowed))
    }
}
