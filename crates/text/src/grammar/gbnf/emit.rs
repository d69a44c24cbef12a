//! Writing Lark, with terminals no longer than is safe.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::chars::Chars;
use super::{Node, Rules};

/// Longer regular expressions are left as rules.
const MAX_REGEX: usize = 20_000;

/// What is known of the texts of a regular node.
struct Shape {
    first: Chars,
    nullable: bool,
    /// No text is a proper prefix of another.
    prefix_free: bool,
    /// All texts have so many characters.
    length: Option<usize>,
    /// It is a repetition of something prefix-free, so that one character tells a further step from what follows.
    steps_free: bool,
}

struct Emitter<'r> {
    rules: &'r Rules,
    /// The regular expression of each rule that has one.
    regexes: Vec<Option<String>>,
    /// Terminals that turned out to compete with another one.
    banned: BTreeSet<String>,
    /// The terminals in use, with their first characters and whether they are longer than one.
    used: BTreeMap<String, (Chars, bool)>,
}

pub(super) fn lark(rules: &Rules) -> String {
    let mut emitter = Emitter {
        rules,
        regexes: vec![None; rules.bodies.len()],
        banned: BTreeSet::new(),
        used: BTreeMap::new(),
    };
    for index in 0..rules.bodies.len() {
        emitter.regexes[index] = emitter.rule_regex(index, &mut Vec::new());
    }
    if let Some(regex) = &emitter.regexes[rules.root] {
        return format!("start: /{regex}/\n");
    }
    loop {
        emitter.used.clear();
        let out = emitter.grammar();
        if !emitter.ban_competitors() {
            return out;
        }
    }
}

impl Emitter<'_> {
    /// The regular expression of a rule, unless it is recursive or too long.
    fn rule_regex(&self, index: usize, above: &mut Vec<usize>) -> Option<String> {
        if above.contains(&index) {
            return None;
        }
        if let Some(known) = &self.regexes[index] {
            return Some(known.clone());
        }
        above.push(index);
        let regex = self.regex(&self.rules.bodies[index], above);
        above.pop();
        regex
    }

    fn regex(&self, node: &Node, above: &mut Vec<usize>) -> Option<String> {
        let regex = match node {
            Node::One(chars) => chars.regex(),
            Node::Rule(index) => format!("(?:{})", self.rule_regex(*index, above)?),
            Node::Token(_) => return None,
            Node::Seq(items) => {
                let parts = items.iter().map(|item| self.regex(item, above));
                parts.collect::<Option<String>>()?
            }
            Node::Alt(items) => {
                let parts = items.iter().map(|item| self.regex(item, above));
                format!("(?:{})", parts.collect::<Option<Vec<_>>>()?.join("|"))
            }
            Node::Repeat { node, min, max } => {
                format!("(?:{}){}", self.regex(node, above)?, bounds(*min, *max))
            }
        };
        (regex.len() <= MAX_REGEX).then_some(regex)
    }

    /// The shape of a regular node.
    fn shape(&self, node: &Node) -> Shape {
        match node {
            Node::One(chars) => {
                let first = chars.clone();
                Shape {
                    first,
                    nullable: false,
                    prefix_free: true,
                    length: Some(1),
                    steps_free: false,
                }
            }
            Node::Rule(index) => self.shape(&self.rules.bodies[*index]),
            Node::Token(_) => {
                let first = Chars::any();
                Shape {
                    first,
                    nullable: false,
                    prefix_free: false,
                    length: None,
                    steps_free: false,
                }
            }
            Node::Seq(items) => self.seq_shape(items),
            Node::Alt(items) => self.alt_shape(items),
            Node::Repeat { node, min, max } => self.repeat_shape(node, *min, *max),
        }
    }

    fn seq_shape(&self, items: &[Node]) -> Shape {
        let first = Chars::default();
        let mut tail = Shape {
            first,
            nullable: true,
            prefix_free: true,
            length: Some(0),
            steps_free: false,
        };
        for item in items.iter().rev() {
            let shape = self.shape(item);
            let length = shape.length.zip(tail.length).map(|(a, b)| a + b);
            let decided = !tail.nullable && !shape.first.meets(&tail.first) && shape.steps_free;
            let prefix_free = tail.prefix_free && (shape.prefix_free || decided);
            let first = if shape.nullable {
                shape.first.union(&tail.first)
            } else {
                shape.first
            };
            tail = Shape {
                first,
                nullable: shape.nullable && tail.nullable,
                prefix_free: prefix_free || length.is_some(),
                length,
                steps_free: items.len() == 1 && shape.steps_free,
            };
        }
        tail
    }

    fn alt_shape(&self, items: &[Node]) -> Shape {
        let shapes: Vec<Shape> = items.iter().map(|item| self.shape(item)).collect();
        let nullable = shapes.iter().any(|shape| shape.nullable);
        let apart = |i: usize| {
            shapes[..i]
                .iter()
                .all(|other| !other.first.meets(&shapes[i].first))
        };
        let all_free = shapes.iter().all(|shape| shape.prefix_free);
        let length = shapes[0]
            .length
            .filter(|_| shapes.iter().all(|s| s.length == shapes[0].length));
        let first = shapes
            .iter()
            .fold(Chars::default(), |all, shape| all.union(&shape.first));
        let prefix_free =
            length.is_some() || (!nullable && all_free && (0..shapes.len()).all(apart));
        Shape {
            first,
            nullable,
            prefix_free,
            length,
            steps_free: false,
        }
    }

    fn repeat_shape(&self, node: &Node, min: usize, max: Option<usize>) -> Shape {
        let step = self.shape(node);
        let exact = max == Some(min);
        Shape {
            nullable: min == 0 || step.nullable,
            prefix_free: exact && step.prefix_free,
            length: step.length.filter(|_| exact).map(|length| length * min),
            steps_free: step.prefix_free && !step.nullable,
            first: step.first,
        }
    }

    fn grammar(&mut self) -> String {
        let mut out = String::new();
        let (mut todo, mut done) = (vec![self.rules.root], BTreeSet::new());
        while let Some(index) = todo.pop() {
            if !done.insert(index) {
                continue;
            }
            let rules = self.rules;
            let body = self.lark_node(&rules.bodies[index], &mut todo);
            let name = if index == rules.root {
                "start".to_owned()
            } else {
                format!("r{index}")
            };
            let _ = writeln!(out, "// {}\n{name}: {body}", rules.names[index]);
        }
        out
    }

    fn lark_node(&mut self, node: &Node, todo: &mut Vec<usize>) -> String {
        if let Some(terminal) = self.terminal(node) {
            return terminal;
        }
        match node {
            Node::One(chars) => self.terminal_of(chars.regex(), chars.clone(), false),
            Node::Token(token) => token.clone(),
            Node::Rule(index) => {
                todo.push(*index);
                if *index == self.rules.root {
                    "start".to_owned()
                } else {
                    format!("r{index}")
                }
            }
            Node::Seq(items) if items.is_empty() => "\"\"".to_owned(),
            Node::Seq(items) => self.lark_all(items, todo).join(" "),
            Node::Alt(items) => format!("({})", self.lark_all(items, todo).join(" | ")),
            Node::Repeat { node, min, max } => {
                format!("({}){}", self.lark_node(node, todo), bounds(*min, *max))
            }
        }
    }

    fn lark_all(&mut self, items: &[Node], todo: &mut Vec<usize>) -> Vec<String> {
        items
            .iter()
            .map(|item| self.lark_node(item, todo))
            .collect()
    }

    /// The node as one terminal longer than a character, if that is safe as far as is known.
    fn terminal(&mut self, node: &Node) -> Option<String> {
        if matches!(node, Node::One(_)) {
            return None;
        }
        let regex = self.regex(node, &mut Vec::new())?;
        let shape = self.shape(node);
        if !shape.prefix_free || shape.nullable || self.banned.contains(&regex) {
            return None;
        }
        Some(self.terminal_of(regex, shape.first, shape.length != Some(1)))
    }

    fn terminal_of(&mut self, regex: String, first: Chars, long: bool) -> String {
        let terminal = format!("/{regex}/");
        self.used.insert(regex, (first, long));
        terminal
    }

    /// Bans long terminals that share a first character with another; says whether there were any.
    fn ban_competitors(&mut self) -> bool {
        let before = self.banned.len();
        for (regex, (first, long)) in &self.used {
            let competes = |(other, (chars, _)): (&String, &(Chars, bool))| {
                other != regex && chars.meets(first)
            };
            if *long && self.used.iter().any(competes) {
                self.banned.insert(regex.clone());
            }
        }
        self.banned.len() > before
    }
}

fn bounds(min: usize, max: Option<usize>) -> String {
    match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) if min == max => format!("{{{min}}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}
