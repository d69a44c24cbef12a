//! Names, as Jinja2 scopes them: loops, macros and `with` open a scope, `if` does not.

use std::cell::RefCell;
use std::rc::Rc;

use super::value::Value;

/// One scope and the scopes around it; a macro keeps the scope it was defined in.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    names: RefCell<Vec<(String, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub(crate) fn root() -> Rc<Scope> {
        Rc::default()
    }

    pub(crate) fn inside(parent: &Rc<Scope>) -> Rc<Scope> {
        Rc::new(Scope {
            names: RefCell::default(),
            parent: Some(parent.clone()),
        })
    }

    pub(crate) fn set(&self, name: &str, value: Value) {
        let mut names = self.names.borrow_mut();
        match names.iter_mut().find(|(known, _)| known == name) {
            Some(entry) => entry.1 = value,
            None => names.push((name.to_owned(), value)),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            if let Some((_, value)) = current
                .names
                .borrow()
                .iter()
                .find(|(known, _)| known == name)
            {
                return Some(value.clone());
            }
            scope = current.parent.as_deref();
        }
        None
    }
}
