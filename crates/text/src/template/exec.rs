//! Statements.

use std::cell::RefCell;
use std::rc::Rc;

use minijinja::machinery::ast::{self, Expr, Stmt};

use super::args::Args;
use super::clock::Clock;
use super::error::{Result, TemplateError, type_error};
use super::python::to_text;
use super::scope::Scope;
use super::text::Text;
use super::value::{Callable, LoopState, Value};

/// Steps of a template, about a second's worth.
const FUEL: u64 = 500_000;
/// Steps more for each byte of the request, which is the caller's own: some templates gather the text anew with each
/// message.
const FUEL_PER_BYTE: u64 = 16;
/// Steps of an iteration beside those of its body.
const ITERATION: u64 = 4;
/// Bytes of text per step.
const BYTES: u64 = 16;
const MAX_DEPTH: usize = 96;
/// Statements and expressions inside each other, macros' included.
const MAX_NESTED: usize = 500;

/// How a statement ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    Break,
    Continue,
}

struct MacroDef<'a> {
    decl: &'a ast::Macro<'a>,
    scope: Rc<Scope>,
}

struct LoopDef<'a> {
    body: &'a ast::ForLoop<'a>,
    scope: Rc<Scope>,
}

/// Runs one template over one request.
pub(crate) struct Interpreter<'a> {
    macros: Vec<MacroDef<'a>>,
    loops: Vec<LoopDef<'a>>,
    clock: Clock,
    fuel: u64,
    depth: usize,
    nested: usize,
}

impl<'a> Interpreter<'a> {
    /// An interpreter for a request of so many bytes.
    pub(crate) fn new(clock: Clock, request_bytes: usize) -> Self {
        Interpreter {
            macros: Vec::new(),
            loops: Vec::new(),
            clock,
            fuel: FUEL.saturating_add(FUEL_PER_BYTE.saturating_mul(request_bytes as u64)),
            depth: 0,
            nested: 0,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn render(&mut self, template: &'a Stmt<'a>, scope: &Rc<Scope>) -> Result<Text> {
        let Stmt::Template(template) = template else {
            return type_error("not a template");
        };
        let mut out = Text::default();
        self.run(&template.children, scope, &mut out)?;
        Ok(out)
    }

    pub(crate) fn spend(&mut self, steps: u64) -> Result<()> {
        self.fuel = self
            .fuel
            .checked_sub(steps)
            .ok_or(TemplateError::Limit("steps"))?;
        Ok(())
    }

    /// Charges for the size of a value just made, so that doubling a string is not free. What one operation makes is
    /// bounded by [`ops::MAX_LEN`](super::ops::MAX_LEN).
    pub(crate) fn spend_on(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Str(text) => self.spend(text.len() as u64 / BYTES),
            Value::List(items) | Value::Tuple(items) | Value::Lazy(items) => {
                self.spend(items.len() as u64)
            }
            _ => Ok(()),
        }
    }

    /// Charges for everything inside a value, before it is written out or compared: a list may hold another many
    /// times over.
    pub(crate) fn spend_inside(&mut self, value: &Value) -> Result<()> {
        let mut left = self.fuel;
        let afforded = afford(value, &mut left);
        self.fuel = left;
        afforded.ok_or(TemplateError::Limit("steps"))
    }

    /// Runs something that lies inside something else.
    pub(crate) fn nest<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.nested == MAX_NESTED {
            return Err(TemplateError::Limit("recursion"));
        }
        self.nested += 1;
        let result = run(self);
        self.nested -= 1;
        result
    }

    fn enter<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(TemplateError::Limit("recursion"));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn run(&mut self, body: &'a [Stmt<'a>], scope: &Rc<Scope>, out: &mut Text) -> Result<Flow> {
        for stmt in body {
            let flow = self.nest(|this| this.statement(stmt, scope, out))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn capture(&mut self, body: &'a [Stmt<'a>], scope: &Rc<Scope>) -> Result<Text> {
        let mut out = Text::default();
        self.run(body, scope, &mut out)?;
        Ok(out)
    }

    fn statement(&mut self, stmt: &'a Stmt<'a>, scope: &Rc<Scope>, out: &mut Text) -> Result<Flow> {
        self.spend(1)?;
        match stmt {
            Stmt::EmitRaw(raw) => out.push_str(raw.raw),
            Stmt::EmitExpr(emit) => {
                let value = self.eval(&emit.expr, scope)?;
                self.spend_inside(&value)?;
                out.push(&to_text(&value));
            }
            Stmt::IfCond(cond) => {
                let holds = self.eval(&cond.expr, scope)?.is_true();
                return self.run(
                    if holds {
                        &cond.true_body
                    } else {
                        &cond.false_body
                    },
                    scope,
                    out,
                );
            }
            Stmt::ForLoop(body) => self.for_loop(body, scope, out)?,
            Stmt::Set(set) => {
                let value = self.eval(&set.expr, scope)?;
                self.assign(&set.target, value, scope)?;
            }
            Stmt::Break(_) => return Ok(Flow::Break),
            Stmt::Continue(_) => return Ok(Flow::Continue),
            other => return self.rare_statement(other, scope, out),
        }
        Ok(Flow::Next)
    }

    fn rare_statement(
        &mut self,
        stmt: &'a Stmt<'a>,
        scope: &Rc<Scope>,
        out: &mut Text,
    ) -> Result<Flow> {
        match stmt {
            Stmt::SetBlock(set) => self.set_block(set, scope)?,
            Stmt::WithBlock(with) => return self.with_block(with, scope, out),
            Stmt::AutoEscape(auto) => return self.run(&auto.body, &Scope::inside(scope), out),
            Stmt::FilterBlock(block) => {
                let text = self.capture(&block.body, &Scope::inside(scope))?;
                out.push(&to_text(&self.filter_block(&block.filter, text, scope)?));
            }
            Stmt::Macro(decl) => {
                let value = self.define(decl, scope);
                scope.set(decl.name, value);
            }
            Stmt::CallBlock(block) => {
                let caller = self.define(&block.macro_decl, scope);
                out.push(&to_text(&self.call_with_caller(
                    &block.call,
                    caller,
                    scope,
                )?));
            }
            _ => {
                return Err(TemplateError::Unknown(
                    "a statement for several templates".into(),
                ));
            }
        }
        Ok(Flow::Next)
    }

    fn filter_block(
        &mut self,
        filter: &'a Expr<'a>,
        text: Text,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        match filter {
            Expr::Filter(filter) => self.filter(filter, Some(Value::text(text)), scope),
            _ => type_error("a filter block without a filter"),
        }
    }

    fn set_block(&mut self, set: &'a ast::SetBlock<'a>, scope: &Rc<Scope>) -> Result<()> {
        let text = self.capture(&set.body, &Scope::inside(scope))?;
        let value = match &set.filter {
            Some(filter) => self.filter_block(filter, text, scope)?,
            None => Value::text(text),
        };
        self.assign(&set.target, value, scope)
    }

    fn with_block(
        &mut self,
        with: &'a ast::WithBlock<'a>,
        scope: &Rc<Scope>,
        out: &mut Text,
    ) -> Result<Flow> {
        let inner = Scope::inside(scope);
        for (target, expr) in &with.assignments {
            let value = self.eval(expr, scope)?;
            self.assign(target, value, &inner)?;
        }
        self.run(&with.body, &inner, out)
    }

    fn assign(&mut self, target: &'a Expr<'a>, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Expr::Var(var) => scope.set(var.id, value),
            Expr::Tuple(tuple) => self.unpack(&tuple.items, &value, scope)?,
            Expr::List(list) => self.unpack(&list.items, &value, scope)?,
            Expr::GetAttr(get) => match self.eval(&get.expr, scope)? {
                Value::Namespace(_) if get.name.starts_with('_') => {
                    return Err(TemplateError::Forbidden(
                        "set names that begin with `_`".into(),
                    ));
                }
                Value::Namespace(names) => names.borrow_mut().insert(Value::str(get.name), value),
                _ => return type_error("cannot assign attribute on non-namespace object"),
            },
            _ => return type_error("cannot assign to this expression"),
        }
        Ok(())
    }

    fn unpack(&mut self, targets: &'a [Expr<'a>], value: &Value, scope: &Rc<Scope>) -> Result<()> {
        value.expect_defined()?;
        let items = value.items()?;
        if items.len() != targets.len() {
            return type_error(format!(
                "{} values for {} names",
                items.len(),
                targets.len()
            ));
        }
        for (target, item) in targets.iter().zip(items.iter()) {
            self.assign(target, item.clone(), scope)?;
        }
        Ok(())
    }

    fn for_loop(
        &mut self,
        body: &'a ast::ForLoop<'a>,
        scope: &Rc<Scope>,
        out: &mut Text,
    ) -> Result<()> {
        let iterated = self.eval(&body.iter, scope)?;
        let recursive = body.recursive.then(|| {
            self.loops.push(LoopDef {
                body,
                scope: scope.clone(),
            });
            self.loops.len() - 1
        });
        self.iterate(
            body,
            &iterated,
            LoopPlace {
                scope,
                depth0: 0,
                recursive,
            },
            out,
        )
    }

    fn iterate(
        &mut self,
        body: &'a ast::ForLoop<'a>,
        iterated: &Value,
        place: LoopPlace<'_>,
        out: &mut Text,
    ) -> Result<()> {
        self.spend_items(iterated)?;
        let items = self.loop_items(body, iterated, place.scope)?;
        if items.is_empty() {
            self.run(&body.else_body, &Scope::inside(place.scope), out)?;
            return Ok(());
        }
        let seen = Rc::new(RefCell::new(None));
        for index0 in 0..items.len() {
            self.spend(ITERATION)?;
            let inner = Scope::inside(place.scope);
            self.assign(&body.target, items[index0].clone(), &inner)?;
            let state = LoopState {
                items: items.clone(),
                index0,
                depth0: place.depth0,
                seen: Rc::clone(&seen),
                recursive: place.recursive,
            };
            inner.set("loop", Value::Loop(Rc::new(state)));
            if self.run(&body.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// Charges for the characters of a text that is taken apart.
    fn spend_items(&mut self, iterated: &Value) -> Result<()> {
        match iterated {
            Value::Str(text) => self.spend(text.len() as u64),
            _ => Ok(()),
        }
    }

    fn loop_items(
        &mut self,
        body: &'a ast::ForLoop<'a>,
        iterated: &Value,
        scope: &Rc<Scope>,
    ) -> Result<Rc<Vec<Value>>> {
        let items = iterated.items()?;
        let Some(condition) = &body.filter_expr else {
            return Ok(items);
        };
        let mut kept = Vec::new();
        for item in items.iter() {
            self.spend(ITERATION)?;
            let inner = Scope::inside(scope);
            self.assign(&body.target, item.clone(), &inner)?;
            if self.eval(condition, &inner)?.is_true() {
                kept.push(item.clone());
            }
        }
        Ok(Rc::new(kept))
    }

    /// `loop(items)` inside a recursive loop.
    pub(crate) fn call_loop(&mut self, state: &LoopState, args: Args) -> Result<Value> {
        let [items] = args.bind(["iterable"])?;
        let Some(index) = state.recursive else {
            return type_error("the loop is not marked `recursive`");
        };
        let (body, scope) = (self.loops[index].body, self.loops[index].scope.clone());
        let place = LoopPlace {
            scope: &scope,
            depth0: state.depth0 + 1,
            recursive: state.recursive,
        };
        let mut out = Text::default();
        self.enter(|this| this.iterate(body, &items.unwrap_or(Value::None), place, &mut out))?;
        Ok(Value::text(out))
    }

    fn define(&mut self, decl: &'a ast::Macro<'a>, scope: &Rc<Scope>) -> Value {
        self.macros.push(MacroDef {
            decl,
            scope: scope.clone(),
        });
        Value::Callable(Callable::Macro(self.macros.len() - 1))
    }

    pub(crate) fn call_macro(&mut self, index: usize, mut args: Args) -> Result<Value> {
        let decl = self.macros[index].decl;
        let scope = Scope::inside(&self.macros[index].scope);
        let caller = args
            .take_keyword("caller")
            .unwrap_or_else(|| Value::undefined("`caller`"));
        scope.set("caller", caller);
        self.bind_parameters(decl, &mut args, &scope)?;
        let varargs = std::mem::take(&mut args.positional);
        scope.set("varargs", Value::tuple(varargs));
        let text = self.enter(|this| this.capture(&decl.body, &scope))?;
        Ok(Value::text(text))
    }

    fn bind_parameters(
        &mut self,
        decl: &'a ast::Macro<'a>,
        args: &mut Args,
        scope: &Rc<Scope>,
    ) -> Result<()> {
        let optional_from = decl.args.len() - decl.defaults.len();
        let mut positional = std::mem::take(&mut args.positional).into_iter();
        for (i, parameter) in decl.args.iter().enumerate() {
            let Expr::Var(var) = parameter else {
                return type_error("a parameter is not a name");
            };
            let value = match positional.next().or_else(|| args.take_keyword(var.id)) {
                Some(value) => value,
                None if i >= optional_from => {
                    self.eval(&decl.defaults[i - optional_from], scope)?
                }
                None => Value::undefined(format!("parameter `{}`", var.id)),
            };
            scope.set(var.id, value);
        }
        args.positional = positional.collect();
        match args.keywords.first() {
            Some((name, _)) => type_error(format!("macro {} takes no argument {name}", decl.name)),
            None => Ok(()),
        }
    }
}

/// Takes a step for each value inside another, and for the bytes of texts; none if they do not suffice.
fn afford(value: &Value, left: &mut u64) -> Option<()> {
    let bytes = match value {
        Value::Str(text) => text.len() as u64,
        _ => 0,
    };
    *left = left.checked_sub(1 + bytes / BYTES)?;
    match value {
        Value::List(items) | Value::Tuple(items) | Value::Lazy(items) | Value::View(items) => {
            items.iter().try_for_each(|item| afford(item, left))
        }
        Value::Dict(dict) => {
            let mut entries = dict.entries().iter();
            entries.try_for_each(|(k, v)| afford(k, left).and_then(|()| afford(v, left)))
        }
        _ => Some(()),
    }
}

/// Where a loop runs.
#[derive(Clone, Copy)]
struct LoopPlace<'s> {
    scope: &'s Rc<Scope>,
    depth0: usize,
    recursive: Option<usize>,
}
