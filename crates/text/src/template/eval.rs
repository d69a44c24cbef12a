//! Expressions.

use std::rc::Rc;

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CallType, CompareOpKind, Expr};

use super::args::Args;
use super::error::{Result, TemplateError, type_error};
use super::exec::Interpreter;
use super::ops::{self, Bounds};
use super::scope::Scope;
use super::value::{Callable, Dict, LoopState, Value};
use super::{filters, functions, methods, predicates};

/// Filters that write a value out, or compare what it holds.
const WRITING: [&str; 14] = [
    "tojson", "string", "join", "pprint", "format", "replace", "indent", "escape", "e", "unique",
    "sort", "groupby", "min", "max",
];

impl<'a> Interpreter<'a> {
    pub(crate) fn eval(&mut self, expr: &'a Expr<'a>, scope: &Rc<Scope>) -> Result<Value> {
        self.spend(1)?;
        self.nest(|this| this.eval_inside(expr, scope))
    }

    fn eval_inside(&mut self, expr: &'a Expr<'a>, scope: &Rc<Scope>) -> Result<Value> {
        match expr {
            Expr::Var(var) => Ok(lookup(var.id, scope)),
            Expr::Const(constant) => constant_value(&constant.value),
            Expr::Slice(slice) => self.slice(slice, scope),
            Expr::UnaryOp(unary) => self.unary(unary, scope),
            Expr::BinOp(op) => self.binary(op, scope),
            Expr::Compare(compare) => self.compare(compare, scope),
            Expr::IfExpr(choice) => self.choose(choice, scope),
            Expr::Filter(filter) => self.filter(filter, None, scope),
            Expr::Test(test) => self.test(test, scope),
            Expr::GetAttr(get) => attribute(&self.eval(&get.expr, scope)?, get.name),
            Expr::GetItem(get) => {
                let container = self.eval(&get.expr, scope)?;
                subscript(&container, &self.eval(&get.subscript_expr, scope)?)
            }
            Expr::Call(call) => self.call(call, scope),
            Expr::List(list) => Ok(Value::list(self.eval_all(&list.items, scope)?)),
            Expr::Tuple(tuple) => Ok(Value::tuple(self.eval_all(&tuple.items, scope)?)),
            Expr::Map(map) => self.map(map, scope),
        }
    }

    fn eval_all(&mut self, exprs: &'a [Expr<'a>], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    fn eval_or_none(&mut self, expr: Option<&'a Expr<'a>>, scope: &Rc<Scope>) -> Result<Value> {
        expr.map_or(Ok(Value::None), |expr| self.eval(expr, scope))
    }

    fn slice(&mut self, slice: &'a ast::Slice<'a>, scope: &Rc<Scope>) -> Result<Value> {
        let value = self.eval(&slice.expr, scope)?;
        let bounds = Bounds {
            start: self.eval_or_none(slice.start.as_ref(), scope)?,
            stop: self.eval_or_none(slice.stop.as_ref(), scope)?,
            step: self.eval_or_none(slice.step.as_ref(), scope)?,
        };
        ops::slice(&value, &bounds)
    }

    fn unary(&mut self, unary: &'a ast::UnaryOp<'a>, scope: &Rc<Scope>) -> Result<Value> {
        let value = self.eval(&unary.expr, scope)?;
        match unary.op {
            ast::UnaryOpKind::Not => Ok(Value::Bool(!value.is_true())),
            ast::UnaryOpKind::Neg => match value {
                Value::Float(float) => Ok(Value::Float(-float)),
                other => ops::binary(BinOpKind::Sub, &Value::Int(0), &other),
            },
        }
    }

    fn binary(&mut self, op: &'a ast::BinOp<'a>, scope: &Rc<Scope>) -> Result<Value> {
        let left = self.eval(&op.left, scope)?;
        match (op.op, left.is_true()) {
            (BinOpKind::ScAnd, false) | (BinOpKind::ScOr, true) => return Ok(left),
            (BinOpKind::ScAnd | BinOpKind::ScOr, _) => return self.eval(&op.right, scope),
            _ => {}
        }
        let right = self.eval(&op.right, scope)?;
        match comparison(op.op) {
            Some(kind) => self.compared(kind, &left, &right).map(Value::Bool),
            None => {
                if matches!(op.op, BinOpKind::Mul) {
                    self.spend_product(&left, &right)?;
                }
                if matches!(op.op, BinOpKind::Concat | BinOpKind::Rem) {
                    self.spend_inside(&left)?;
                    self.spend_inside(&right)?;
                }
                let result = ops::binary(op.op, &left, &right)?;
                self.spend_on(&result)?;
                Ok(result)
            }
        }
    }

    fn compare(&mut self, compare: &'a ast::Compare<'a>, scope: &Rc<Scope>) -> Result<Value> {
        let mut left = self.eval(&compare.expr, scope)?;
        for op in &compare.ops {
            let right = self.eval(&op.expr, scope)?;
            if !self.compared(op.op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    /// Charges for a text or a list that is about to be repeated.
    fn spend_product(&mut self, left: &Value, right: &Value) -> Result<()> {
        let (Some(times), other) = (match (left.as_int(), right.as_int()) {
            (None, times) => (times, left),
            (times, _) => (times, right),
        }) else {
            return Ok(());
        };
        let times = u64::try_from(times.max(0)).unwrap_or(u64::MAX);
        match other {
            Value::Str(_) | Value::List(_) | Value::Tuple(_) => self.spend(times),
            _ => Ok(()),
        }
    }

    /// Compares; two values that hold others are paid for first.
    fn compared(&mut self, op: CompareOpKind, left: &Value, right: &Value) -> Result<bool> {
        if left.holds_others() && right.holds_others() {
            self.spend_inside(left)?;
            self.spend_inside(right)?;
        }
        ops::compare(op, left, right)
    }

    fn choose(&mut self, choice: &'a ast::IfExpr<'a>, scope: &Rc<Scope>) -> Result<Value> {
        if self.eval(&choice.test_expr, scope)?.is_true() {
            return self.eval(&choice.true_expr, scope);
        }
        match &choice.false_expr {
            Some(expr) => self.eval(expr, scope),
            None => Ok(Value::undefined("an `if` without `else`")),
        }
    }

    /// Applies a filter; `input` stands in where a block is filtered.
    pub(crate) fn filter(
        &mut self,
        filter: &'a ast::Filter<'a>,
        input: Option<Value>,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let value = match (&filter.expr, input) {
            (Some(Expr::Filter(inner)), Some(input)) => self.filter(inner, Some(input), scope)?,
            (Some(expr), _) => self.eval(expr, scope)?,
            (None, Some(input)) => input,
            (None, None) => return type_error("a filter without a value"),
        };
        let args = self.args(&filter.args, scope)?;
        if WRITING.contains(&filter.name) {
            self.spend_inside(&value)?;
            args.positional
                .iter()
                .try_for_each(|a| self.spend_inside(a))?;
        }
        let result = filters::apply(filter.name, value, args)?;
        self.spend_on(&result)?;
        Ok(result)
    }

    fn test(&mut self, test: &'a ast::Test<'a>, scope: &Rc<Scope>) -> Result<Value> {
        let value = self.eval(&test.expr, scope)?;
        let args = self.args(&test.args, scope)?;
        if let Some(other) = args.positional.first().filter(|a| a.holds_others())
            && value.holds_others()
        {
            self.spend_inside(&value)?;
            self.spend_inside(other)?;
        }
        Ok(Value::Bool(predicates::holds(test.name, &value, args)?))
    }

    fn map(&mut self, map: &'a ast::Map<'a>, scope: &Rc<Scope>) -> Result<Value> {
        let mut dict = Dict::default();
        for (key, value) in map.keys.iter().zip(&map.values) {
            let key = self.eval(key, scope)?;
            dict.insert(key, self.eval(value, scope)?);
        }
        Ok(Value::Dict(Rc::new(dict)))
    }

    fn args(&mut self, args: &'a [CallArg<'a>], scope: &Rc<Scope>) -> Result<Args> {
        let mut out = Args::default();
        for arg in args {
            match arg {
                CallArg::Pos(expr) => out.positional.push(self.eval(expr, scope)?),
                CallArg::Kwarg(name, expr) => {
                    out.keywords
                        .push(((*name).to_owned(), self.eval(expr, scope)?));
                }
                CallArg::PosSplat(expr) => {
                    out.positional
                        .extend(self.eval(expr, scope)?.items()?.iter().cloned());
                }
                CallArg::KwargSplat(expr) => splat(&self.eval(expr, scope)?, &mut out)?,
            }
        }
        Ok(out)
    }

    fn call(&mut self, call: &'a ast::Call<'a>, scope: &Rc<Scope>) -> Result<Value> {
        let callee = self.callee(call, scope)?;
        let args = self.args(&call.args, scope)?;
        self.invoke(&callee, args)
    }

    fn callee(&mut self, call: &'a ast::Call<'a>, scope: &Rc<Scope>) -> Result<Value> {
        match call.identify_call() {
            CallType::Function(name) => Ok(lookup(name, scope)),
            CallType::Method(expr, name) => attribute(&self.eval(expr, scope)?, name),
            CallType::Object(expr) => self.eval(expr, scope),
            CallType::Block(name) => Err(TemplateError::Unknown(format!("the block {name}"))),
        }
    }

    pub(crate) fn call_with_caller(
        &mut self,
        call: &'a ast::Call<'a>,
        caller: Value,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let callee = self.callee(call, scope)?;
        let mut args = self.args(&call.args, scope)?;
        args.keywords.push(("caller".into(), caller));
        self.invoke(&callee, args)
    }

    fn invoke(&mut self, callee: &Value, args: Args) -> Result<Value> {
        let result = match callee {
            Value::Callable(Callable::Global(name)) => functions::call(name, args, self.clock()),
            Value::Callable(Callable::Method(bound)) => {
                let others = args.positional.iter().filter(|a| a.holds_others());
                others.into_iter().try_for_each(|a| self.spend_inside(a))?;
                methods::call(&bound.0, &bound.1, args)
            }
            Value::Callable(Callable::Macro(index)) => self.call_macro(*index, args),
            Value::Loop(state) => self.call_loop(state, args),
            _ => {
                callee.expect_defined()?;
                type_error(format!("{} is not callable", callee.kind()))
            }
        }?;
        self.spend_on(&result)?;
        Ok(result)
    }
}

fn splat(value: &Value, out: &mut Args) -> Result<()> {
    let Value::Dict(dict) = value else {
        return type_error("** needs a mapping");
    };
    for (key, value) in dict.entries() {
        out.keywords
            .push((key.expect_text()?.as_str().to_owned(), value.clone()));
    }
    Ok(())
}

fn lookup(name: &str, scope: &Scope) -> Value {
    scope
        .get(name)
        .or_else(|| functions::global(name).map(|name| Value::Callable(Callable::Global(name))))
        .unwrap_or_else(|| Value::undefined(format!("`{name}`")))
}

fn constant_value(value: &minijinja::Value) -> Result<Value> {
    use minijinja::value::ValueKind;
    match value.kind() {
        ValueKind::None => Ok(Value::None),
        ValueKind::Bool => Ok(Value::Bool(value.is_true())),
        ValueKind::String => Ok(Value::str(value.as_str().unwrap_or_default())),
        ValueKind::Number => match i128::try_from(value.clone()) {
            Ok(int) if value.is_integer() => Ok(Value::Int(int)),
            _ => f64::try_from(value.clone())
                .map(Value::Float)
                .or_else(|_| type_error("number too large")),
        },
        kind => type_error(format!("unexpected constant of kind {kind}")),
    }
}

fn comparison(op: BinOpKind) -> Option<CompareOpKind> {
    Some(match op {
        BinOpKind::Eq => CompareOpKind::Eq,
        BinOpKind::Ne => CompareOpKind::Ne,
        BinOpKind::Lt => CompareOpKind::Lt,
        BinOpKind::Lte => CompareOpKind::Lte,
        BinOpKind::Gt => CompareOpKind::Gt,
        BinOpKind::Gte => CompareOpKind::Gte,
        BinOpKind::In => CompareOpKind::In,
        _ => return None,
    })
}

/// `value.name`: the attribute first, then the item.
pub(crate) fn attribute(value: &Value, name: &str) -> Result<Value> {
    value.expect_defined()?;
    let found = own_attribute(value, name).or_else(|| ops::item(value, &Value::str(name)));
    Ok(found.unwrap_or_else(|| Value::undefined(format!("`{name}` of a {}", value.kind()))))
}

/// `value[key]`: the item first, then the attribute.
pub(crate) fn subscript(value: &Value, key: &Value) -> Result<Value> {
    value.expect_defined()?;
    let found = ops::item(value, key).or_else(|| own_attribute(value, key.as_str()?));
    Ok(found.unwrap_or_else(|| Value::undefined(format!("an item of a {}", value.kind()))))
}

fn own_attribute(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Namespace(names) => names.borrow().get_str(name).cloned(),
        Value::Loop(state) => loop_attribute(state, name).or_else(|| method(value, name)),
        _ => method(value, name),
    }
}

fn method(value: &Value, name: &str) -> Option<Value> {
    let known = methods::exists(value, name);
    known.then(|| Value::Callable(Callable::Method(Rc::new((value.clone(), name.to_owned())))))
}

fn loop_attribute(state: &LoopState, name: &str) -> Option<Value> {
    let (at, count) = (state.index0, state.items.len());
    let neighbour = |index: Option<usize>| {
        let found = index.and_then(|index| state.items.get(index)).cloned();
        found.unwrap_or_else(|| Value::undefined(format!("`loop.{name}`")))
    };
    Some(match name {
        "index" => Value::int(at + 1),
        "index0" => Value::int(at),
        "revindex" => Value::int(count - at),
        "revindex0" => Value::int(count - at - 1),
        "first" => Value::Bool(at == 0),
        "last" => Value::Bool(at + 1 == count),
        "length" => Value::int(count),
        "depth" => Value::int(state.depth0 + 1),
        "depth0" => Value::int(state.depth0),
        "previtem" => neighbour(at.checked_sub(1)),
        "nextitem" => neighbour(Some(at + 1)),
        _ => return None,
    })
}
