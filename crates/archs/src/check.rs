//! Mistakes of a descriptor that its schema cannot see: names that nothing has.
//!
//! A rule that names nothing is no error while a file is read, since the file may lack the key; whoever writes a
//! descriptor wants to know.

use std::collections::BTreeSet;

use crate::error::ArchError;
use crate::expr::Expr;
use crate::near::nearest;
use crate::registry::{BUILTIN, Registry};
use crate::resolve::{BLOCKS, builtin_names};
use crate::schema::Descriptor;

/// What rules may call.
const FUNCTIONS: [&str; 19] = [
    "exists",
    "nz",
    "sqrt",
    "ln",
    "exp",
    "floor",
    "pow",
    "min",
    "max",
    "has",
    "has_global",
    "rows",
    "cols",
    "rows_global",
    "cols_global",
    "first",
    "max_of",
    "is_array",
    "pattern",
];

/// What rules may read beside variables and keys.
const STATE: [&str; 5] = ["il", "n_ctx", "swa", "encoder", "draft"];

impl Registry {
    /// Reads a descriptor as [`Registry::parse`] does, and looks for names of blocks, variables and functions that
    /// nothing has.
    ///
    /// # Errors
    /// [`ArchError::Descriptor`] with the line of the mistake, and what was probably meant.
    pub fn check(&self, file: &str, text: &str) -> Result<Descriptor, ArchError> {
        let descriptor = self.parse(file, text)?;
        let found = blocks(&descriptor).or_else(|| names(&descriptor, text));
        let Some((word, what)) = found else {
            return Ok(descriptor);
        };
        let line = text.lines().position(|l| l.contains(&word));
        let place = line.map_or(String::new(), |at| format!("line {}: ", at + 1));
        Err(ArchError::Descriptor {
            file: file.to_owned(),
            what: format!("{place}{what}"),
        })
    }
}

/// A block in `run` that does not exist, and what to say.
fn blocks(descriptor: &Descriptor) -> Option<(String, String)> {
    let draft = descriptor.draft.iter().flat_map(|d| &d.steps);
    let steps = descriptor.steps.iter().chain(&descriptor.encoder_steps);
    let named = steps.chain(draft).flat_map(|step| &step.run);
    let wrong = named
        .into_iter()
        .find(|name| !BLOCKS.contains(&name.as_str()))?;
    let what = match nearest(wrong, BLOCKS) {
        Some(near) => format!("found the block '{wrong}', did you mean '{near}'?"),
        None => format!(
            "found the block '{wrong}', expected one of {}",
            BLOCKS.join(", ")
        ),
    };
    Some((wrong.clone(), what))
}

/// A name in a rule that nothing has, and what to say.
fn names(descriptor: &Descriptor, text: &str) -> Option<(String, String)> {
    let own = descriptor.vars.keys().map(String::as_str);
    let familiar: BTreeSet<&str> = BUILTIN.iter().flat_map(|(_, text)| words(text)).collect();
    let given = builtin_names().chain(STATE).map(|name| -> &str { name });
    let known: BTreeSet<&str> = own.chain(given).collect();
    let rules = rules(text);
    let functions = rules.iter().flat_map(Expr::functions);
    if let Some(wrong) = functions
        .into_iter()
        .find(|f| !FUNCTIONS.contains(&f.as_str()))
    {
        let what = match nearest(&wrong, FUNCTIONS) {
            Some(near) => format!("found the function '{wrong}', did you mean '{near}'?"),
            None => format!(
                "found the function '{wrong}', expected one of {}",
                FUNCTIONS.join(", ")
            ),
        };
        return Some((wrong, what));
    }
    let names = rules.iter().flat_map(Expr::names);
    let bare = names.filter(|n| !n.contains('.') && !n.starts_with('$'));
    let wrong = bare
        .into_iter()
        .find(|n| !known.contains(n.as_str()) && !familiar.contains(n.as_str()))?;
    let near = nearest(
        &wrong,
        known.iter().copied().chain(familiar.iter().copied()),
    );
    let near = near.map_or(String::new(), |n| format!(", did you mean '{n}'?"));
    let what = format!(
        "found the name '{wrong}', which is no variable and no key of a known family{near}; a new key is written whole, as in $NAME.{wrong}"
    );
    Some((wrong, what))
}

/// The words of a descriptor's text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let other = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(move |line| line.split(other))
}

/// The expressions of a descriptor, less those about directories, which read other names. Which texts are expressions
/// is for the schema to say: it refuses a broken one in their place.
fn rules(text: &str) -> Vec<Expr> {
    let Ok(mut table) = text.parse::<toml::Table>() else {
        return Vec::new();
    };
    for other in ["hf", "names", "about", "extends", "unused"] {
        table.remove(other);
    }
    let mut paths = Vec::new();
    gather(
        &toml::Value::Table(table.clone()),
        &mut Vec::new(),
        &mut paths,
    );
    let all = paths.iter().filter_map(|(path, text)| {
        let (mark, source) = match text.strip_prefix('=') {
            Some(source) => ("=", source),
            None => ("", text.as_str()),
        };
        let mut broken = toml::Value::Table(table.clone());
        *at(&mut broken, path)? = toml::Value::String(format!("{mark}1 +"));
        let read: Result<Descriptor, _> = broken.try_into();
        read.is_err().then(|| Expr::parse(source).ok()).flatten()
    });
    all.collect()
}

/// Where a text stands.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Place(usize),
}

fn gather(value: &toml::Value, path: &mut Vec<Step>, out: &mut Vec<(Vec<Step>, String)>) {
    match value {
        toml::Value::String(text) => out.push((path.clone(), text.clone())),
        toml::Value::Table(table) => {
            for (key, value) in table {
                path.push(Step::Key(key.clone()));
                gather(value, path, out);
                path.pop();
            }
        }
        toml::Value::Array(list) => {
            for (place, value) in list.iter().enumerate() {
                path.push(Step::Place(place));
                gather(value, path, out);
                path.pop();
            }
        }
        _ => {}
    }
}

fn at<'v>(value: &'v mut toml::Value, path: &[Step]) -> Option<&'v mut toml::Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key.as_str()),
        Step::Place(place) => value.get_mut(*place),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(text: &str) -> String {
        let text = format!("names = ['x']\n{text}");
        match Registry::builtin().check("my.toml", &text) {
            Ok(_) => "none".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn blocks_names_and_functions_that_nothing_has_are_found() {
        assert_eq!(
            mistake("steps = [{ run = ['attention', 'fnn'] }]"),
            "my.toml: line 2: found the block 'fnn', did you mean 'ffn'?"
        );
        let text = mistake("[attention]\nscale = '1 / sqrt(headdim)'");
        assert!(
            text.contains("line 3") && text.contains("'headdim'"),
            "{text}"
        );
        assert!(text.contains("did you mean 'head_dim'"), "{text}");
        let text = mistake("[attention]\nscale = '1 / sqrtt(head_dim)'");
        assert!(
            text.contains("function 'sqrtt', did you mean 'sqrt'"),
            "{text}"
        );
        let text = mistake("[norm]\nkind = '= headdim > 1 ? 1 : 2'");
        assert!(text.contains("'headdim'"), "{text}");
        let text = mistake("[attention]\nq_norm = { tensor = 'a', eps = 'headdim' }");
        assert!(text.contains("'headdim'"), "{text}");
    }

    #[test]
    fn own_variables_and_whole_keys_are_names() {
        let good = "[vars]\nmine = '2'\n[attention]\nq = 'some_tensor'\nscale = 'mine / sqrt(head_dim) + $x.other'";
        assert_eq!(mistake(good), "none");
        assert_eq!(
            mistake("[attention]\nscale = 'attention.brand_new ?? 1'"),
            "none"
        );
    }

    #[test]
    fn the_built_in_descriptors_have_no_mistake() {
        let registry = Registry::builtin();
        for (stem, text) in BUILTIN {
            if let Err(error) = registry.check(&format!("{stem}.toml"), text) {
                panic!("{error}");
            }
        }
    }
}
