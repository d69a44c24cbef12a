//! Reading GBNF.

use std::collections::HashMap;

use super::chars::Chars;
use super::{GrammarError, Node, Rules, ends};

const MAX_DEPTH: usize = 100;
const MAX_REPEAT: usize = 2_000;
/// Characters, classes, references and alternatives; the parser behind would refuse more, after seconds.
const MAX_SYMBOLS: usize = 500_000;

struct Parser<'s> {
    source: &'s str,
    at: usize,
    depth: usize,
    symbols: usize,
    names: Vec<String>,
    /// By rule: the byte at which it is defined, or at first named.
    places: Vec<usize>,
    index: HashMap<String, usize>,
    bodies: Vec<Option<Node>>,
}

pub(super) fn rules(source: &str) -> Result<Rules, GrammarError> {
    let mut parser = Parser {
        source,
        at: 0,
        depth: 0,
        symbols: 0,
        names: Vec::new(),
        places: Vec::new(),
        index: HashMap::new(),
        bodies: Vec::new(),
    };
    parser.skip(true);
    while !parser.rest().is_empty() {
        parser.rule()?;
        parser.skip(true);
    }
    parser.finish()
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Result<char, GrammarError> {
        let c = self.peek().ok_or_else(|| self.error("unexpected end"))?;
        self.at += c.len_utf8();
        Ok(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn error(&self, message: impl Into<String>) -> GrammarError {
        self.error_at(self.at, message)
    }

    fn error_at(&self, at: usize, message: impl Into<String>) -> GrammarError {
        let line = self.source[..at].matches('\n').count() + 1;
        GrammarError::Gbnf {
            line,
            message: message.into(),
        }
    }

    /// A symbol more, charged before it is kept.
    fn charge(&mut self) -> Result<(), GrammarError> {
        self.symbols += 1;
        if self.symbols > MAX_SYMBOLS {
            return Err(self.error(format!("the grammar has more than {MAX_SYMBOLS} symbols")));
        }
        Ok(())
    }

    /// Skips spaces and comments, and new lines if asked.
    fn skip(&mut self, lines: bool) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\r' | '\n') if lines => self.at += 1,
                Some('#') => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<usize, GrammarError> {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        let name = rest[..end.unwrap_or(rest.len())].to_owned();
        if name.is_empty() {
            return Err(self.error("expected a rule name"));
        }
        self.at += name.len();
        if let Some(&index) = self.index.get(&name) {
            return Ok(index);
        }
        self.index.insert(name.clone(), self.names.len());
        self.places.push(self.at - name.len());
        self.names.push(name);
        self.bodies.push(None);
        Ok(self.names.len() - 1)
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let place = self.at;
        let index = self.name()?;
        self.skip(false);
        if !self.eat("::=") {
            return Err(self.error("expected `::=`"));
        }
        self.skip(true);
        let body = self.alternatives(false)?;
        if self.bodies[index].replace(body).is_some() {
            let message = format!("the rule `{}` is defined twice", self.names[index]);
            return Err(self.error_at(place, message));
        }
        self.places[index] = place;
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(c) => Err(self.error(format!("expected a new line, found `{c}`"))),
        }
    }

    fn alternatives(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut alternatives = vec![self.sequence(nested)?];
        while self.eat("|") {
            self.skip(true);
            self.charge()?;
            alternatives.push(self.sequence(nested)?);
        }
        Ok(if alternatives.len() == 1 {
            alternatives.remove(0)
        } else {
            Node::Alt(alternatives)
        })
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut items = Vec::new();
        while let Some(item) = self.item()? {
            self.charge()?;
            let item = self.repeated(item)?;
            items.push(item);
            self.skip(nested);
        }
        Ok(Node::Seq(items))
    }

    fn item(&mut self) -> Result<Option<Node>, GrammarError> {
        Ok(Some(match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.at += 1;
                Node::One(Chars::any())
            }
            Some('(') => self.group()?,
            Some('<') => self.token()?,
            Some('!') => return Err(self.error("negated tokens are not supported")),
            Some(c) if c.is_ascii_alphanumeric() || c == '_' => Node::Rule(self.name()?),
            _ => return Ok(None),
        }))
    }

    fn group(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("groups are nested too deeply"));
        }
        self.skip(true);
        let inner = self.alternatives(true)?;
        self.depth -= 1;
        if self.eat(")") {
            Ok(inner)
        } else {
            Err(self.error("expected `)`"))
        }
    }

    fn token(&mut self) -> Result<Node, GrammarError> {
        let end = self
            .rest()
            .find('>')
            .ok_or_else(|| self.error("expected `>`"))?;
        let token = self.rest()[..=end].to_owned();
        self.at += token.len();
        Ok(Node::Token(token))
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let mut items = Vec::new();
        while !self.eat("\"") {
            self.charge()?;
            items.push(Node::One(Chars::of(self.character()?)));
        }
        Ok(Node::Seq(items))
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.eat("]") {
            let low = self.character()? as u32;
            let high = if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                self.character()? as u32
            } else {
                low
            };
            if high < low {
                return Err(self.error("a range ends before it begins"));
            }
            ranges.push((low, high));
        }
        let chars = Chars::from_ranges(ranges);
        let chars = if negated { chars.negated() } else { chars };
        if chars.is_empty() {
            return Err(self.error("an empty class matches nothing"));
        }
        Ok(Node::One(chars))
    }

    fn character(&mut self) -> Result<char, GrammarError> {
        match self.next()? {
            '\\' => match self.next()? {
                'x' => self.hex(2),
                'u' => self.hex(4),
                'U' => self.hex(8),
                't' => Ok('\t'),
                'r' => Ok('\r'),
                'n' => Ok('\n'),
                c @ ('\\' | '"' | '[' | ']' | '-' | '^') => Ok(c),
                c => Err(self.error(format!("unknown escape `\\{c}`"))),
            },
            c => Ok(c),
        }
    }

    fn hex(&mut self, digits: usize) -> Result<char, GrammarError> {
        let code = self
            .rest()
            .get(..digits)
            .and_then(|text| u32::from_str_radix(text, 16).ok());
        let c = code
            .and_then(char::from_u32)
            .ok_or_else(|| self.error("not a code point"))?;
        self.at += digits;
        Ok(c)
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, GrammarError> {
        loop {
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat {
                node: Box::new(node),
                min,
                max,
            };
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`, up to the closing brace.
    fn bounds(&mut self) -> Result<(usize, Option<usize>), GrammarError> {
        let end = self
            .rest()
            .find('}')
            .ok_or_else(|| self.error("expected `}`"))?;
        let inner = self.rest()[1..end].replace([' ', '\t'], "");
        let (min, max) = inner
            .split_once(',')
            .map_or((&*inner, Some(&*inner)), |(min, max)| (min, Some(max)));
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| self.error("expected a repetition count"))
        };
        let min = number(min)?;
        let max = match max {
            Some("") | None => None,
            Some(max) => Some(number(max)?),
        };
        if max.is_some_and(|max| max < min) || max.unwrap_or(min) > MAX_REPEAT {
            return Err(self.error("the repetition count is out of range"));
        }
        self.at += end;
        Ok((min, max))
    }

    fn finish(self) -> Result<Rules, GrammarError> {
        let root = self.index.get("root").copied();
        let root = root.ok_or_else(|| self.error("there is no rule `root`"))?;
        let mut bodies = Vec::with_capacity(self.bodies.len());
        for (i, body) in self.bodies.iter().enumerate() {
            let missing = || {
                let message = format!("the rule `{}` is not defined", self.names[i]);
                self.error_at(self.places[i], message)
            };
            bodies.push(body.clone().ok_or_else(missing)?);
        }
        if !ends::ends(&bodies)[root] {
            return Err(self.error_at(
                self.places[root],
                "the rule `root` never ends: each of its alternatives leads back to itself",
            ));
        }
        Ok(Rules {
            names: self.names,
            bodies,
            root,
        })
    }
}
