//! The expression language of descriptors: how a rule turns into a value for one layer.
//!
//! ```text
//! expr    := or-else ('?' expr ':' expr)?          condition
//! or-else := or ('??' or)*                         the right side when the left is missing
//! or      := and ('||' and)*     and := cmp ('&&' cmp)*
//! cmp     := sum (('==' | '!=' | '<' | '<=' | '>' | '>=') sum)?
//! sum     := term (('+' | '-') term)*              term := unary (('*' | '/' | '%') unary)*
//! unary   := ('-' | '!') unary | atom
//! atom    := number | 'text' | name | name '(' args ')' | '(' expr ')'
//! ```
//!
//! A name is a variable (`il`, `n_embd`, those of `[vars]`…) or else a metadata key below the architecture's
//! prefix; `$name` is a whole key. A key that holds an array gives the element of the layer. A missing key makes
//! the whole expression missing up to the nearest `??`. Truth is 1 and 0.

use std::fmt;

/// A value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Val {
    /// A number; truth is 1.
    Num(f64),
    /// A text.
    Text(String),
}

impl Val {
    /// Whether the value counts as true.
    #[must_use]
    pub fn truth(&self) -> bool {
        match self {
            Val::Num(x) => *x != 0.0,
            Val::Text(t) => !t.is_empty(),
        }
    }
}

/// A parsed expression with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    source: String,
    node: Node,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Const(Val),
    Name(String),
    Key(String),
    Call(String, Vec<Node>),
    Unary(char, Box<Node>),
    Binary(Op, Box<Node>, Box<Node>),
    OrElse(Box<Node>, Box<Node>),
    If(Box<Node>, Box<Node>, Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalError {
    /// Nothing defines this key or variable.
    Missing(String),
    /// The expression makes no sense.
    Bad(String),
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvalError::Missing(name) => write!(f, "{name} is not in the file"),
            EvalError::Bad(what) => f.write_str(what),
        }
    }
}

/// What names and functions mean.
pub trait Env {
    /// The value of a variable or of a metadata key below the prefix.
    ///
    /// # Errors
    /// [`EvalError::Missing`] when nothing defines it.
    fn name(&self, name: &str) -> Result<Val, EvalError>;

    /// The value of a whole metadata key.
    ///
    /// # Errors
    /// [`EvalError::Missing`] when the file lacks it.
    fn key(&self, key: &str) -> Result<Val, EvalError>;

    /// A function that looks at the file, such as `has`.
    ///
    /// # Errors
    /// [`EvalError::Bad`] for an unknown function or wrong arguments.
    fn call(&self, name: &str, args: &[Val]) -> Result<Val, EvalError>;
}

impl Expr {
    /// Parses `source`.
    ///
    /// # Errors
    /// A message with the column of the mistake.
    pub fn parse(source: &str) -> Result<Self, String> {
        let tokens = lex(source)?;
        let mut parser = Parser {
            tokens: &tokens,
            at: 0,
            len: source.len(),
        };
        let node = parser.expr()?;
        if let Some((column, token)) = parser.tokens.get(parser.at) {
            return Err(format!("unexpected {token} at column {}", column + 1));
        }
        Ok(Expr {
            source: source.to_owned(),
            node,
        })
    }

    /// A constant.
    #[must_use]
    pub fn constant(x: f64) -> Self {
        Expr {
            source: x.to_string(),
            node: Node::Const(Val::Num(x)),
        }
    }

    /// A constant text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Expr {
            source: format!("'{text}'"),
            node: Node::Const(Val::Text(text.to_owned())),
        }
    }

    /// The text it was parsed from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Names and keys the expression may read.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        collect(&self.node, &mut names);
        names
    }

    /// Functions the expression calls.
    #[must_use]
    pub fn functions(&self) -> Vec<String> {
        let mut names = Vec::new();
        called(&self.node, &mut names);
        names
    }

    /// Its value.
    ///
    /// # Errors
    /// [`EvalError`] with the name that is missing.
    pub fn eval(&self, env: &dyn Env) -> Result<Val, EvalError> {
        eval(&self.node, env)
    }
}

fn collect(node: &Node, names: &mut Vec<String>) {
    match node {
        Node::Const(_) => {}
        Node::Name(n) => names.push(n.clone()),
        Node::Key(k) => names.push(format!("${k}")),
        Node::Call(name, args) => {
            match (name.as_str(), args.first()) {
                ("setting", _) => names.push(composed(args)),
                (
                    "at" | "count" | "index" | "len" | "letter" | "contains",
                    Some(Node::Const(Val::Text(path))),
                ) => {
                    names.push(path.clone());
                }
                _ => {}
            }
            args.iter().for_each(|a| collect(a, names));
        }
        Node::Unary(_, a) => collect(a, names),
        Node::Binary(_, a, b) | Node::OrElse(a, b) => {
            collect(a, names);
            collect(b, names);
        }
        Node::If(a, b, c) => [a, b, c].into_iter().for_each(|x| collect(x, names)),
    }
}

fn called(node: &Node, names: &mut Vec<String>) {
    match node {
        Node::Const(_) | Node::Name(_) | Node::Key(_) => {}
        Node::Call(name, args) => {
            names.push(name.clone());
            args.iter().for_each(|a| called(a, names));
        }
        Node::Unary(_, a) => called(a, names),
        Node::Binary(_, a, b) | Node::OrElse(a, b) => {
            [a, b].into_iter().for_each(|x| called(x, names));
        }
        Node::If(a, b, c) => [a, b, c].into_iter().for_each(|x| called(x, names)),
    }
}

/// The path that `setting` composes, with `*` for what is only known later.
fn composed(args: &[Node]) -> String {
    let part = |arg: &Node| match arg {
        Node::Const(Val::Text(text)) => text.clone(),
        _ => "*".to_owned(),
    };
    args.iter().map(part).collect::<Vec<_>>().join(".")
}

fn eval(node: &Node, env: &dyn Env) -> Result<Val, EvalError> {
    match node {
        Node::Const(v) => Ok(v.clone()),
        Node::Name(n) => env.name(n),
        Node::Key(k) => env.key(k),
        Node::Call(name, args) => call(name, args, env),
        Node::Unary('!', a) => Ok(truth(!eval(a, env)?.truth())),
        Node::Unary(_, a) => Ok(Val::Num(-number(&eval(a, env)?)?)),
        Node::Binary(Op::And, a, b) => Ok(truth(eval(a, env)?.truth() && eval(b, env)?.truth())),
        Node::Binary(Op::Or, a, b) => Ok(truth(eval(a, env)?.truth() || eval(b, env)?.truth())),
        Node::Binary(op, a, b) => binary(*op, &eval(a, env)?, &eval(b, env)?),
        Node::OrElse(a, b) => match eval(a, env) {
            Err(EvalError::Missing(_)) => eval(b, env),
            other => other,
        },
        Node::If(c, a, b) => eval(if eval(c, env)?.truth() { a } else { b }, env),
    }
}

fn truth(b: bool) -> Val {
    Val::Num(f64::from(u8::from(b)))
}

fn number(v: &Val) -> Result<f64, EvalError> {
    match v {
        Val::Num(x) => Ok(*x),
        Val::Text(t) => Err(EvalError::Bad(format!(
            "'{t}' is a text where a number is needed"
        ))),
    }
}

fn binary(op: Op, a: &Val, b: &Val) -> Result<Val, EvalError> {
    if matches!(op, Op::Eq | Op::Ne) {
        return Ok(truth((a == b) == (op == Op::Eq)));
    }
    let (x, y) = (number(a)?, number(b)?);
    Ok(match op {
        Op::Add => Val::Num(x + y),
        Op::Sub => Val::Num(x - y),
        Op::Mul => Val::Num(x * y),
        Op::Div => Val::Num(x / y),
        Op::Rem => Val::Num(x % y),
        Op::Lt => truth(x < y),
        Op::Le => truth(x <= y),
        Op::Gt => truth(x > y),
        Op::Ge => truth(x >= y),
        Op::Eq | Op::Ne | Op::And | Op::Or => unreachable!("handled above"),
    })
}

fn call(name: &str, args: &[Node], env: &dyn Env) -> Result<Val, EvalError> {
    if name == "exists" {
        return match args {
            [a] => match eval(a, env) {
                Err(EvalError::Missing(_)) => Ok(truth(false)),
                other => other.map(|_| truth(true)),
            },
            _ => Err(EvalError::Bad("exists takes one argument".to_owned())),
        };
    }
    let values = args
        .iter()
        .map(|a| eval(a, env))
        .collect::<Result<Vec<_>, _>>()?;
    match (name, values.as_slice()) {
        ("nz", [v]) if !v.truth() => Err(EvalError::Missing("a value other than 0".to_owned())),
        ("nz", [v]) => Ok(v.clone()),
        ("sqrt", [v]) => Ok(Val::Num(number(v)?.sqrt())),
        ("ln", [v]) => Ok(Val::Num(number(v)?.ln())),
        ("exp", [v]) => Ok(Val::Num(number(v)?.exp())),
        ("floor", [v]) => Ok(Val::Num(number(v)?.floor())),
        ("pow", [a, b]) => Ok(Val::Num(number(a)?.powf(number(b)?))),
        ("min", [a, b]) => Ok(Val::Num(number(a)?.min(number(b)?))),
        ("max", [a, b]) => Ok(Val::Num(number(a)?.max(number(b)?))),
        _ => env.call(name, &values),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Num(f64),
    Text(String),
    Name(String),
    Key(String),
    Sym(&'static str),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Num(x) => write!(f, "{x}"),
            Token::Text(t) => write!(f, "'{t}'"),
            Token::Name(n) => f.write_str(n),
            Token::Key(k) => write!(f, "${k}"),
            Token::Sym(s) => f.write_str(s),
        }
    }
}

const SYMBOLS: [&str; 20] = [
    "??", "==", "!=", "<=", ">=", "&&", "||", "?", ":", "<", ">", "+", "-", "*", "/", "%", "!",
    "(", ")", ",",
];

fn lex(source: &str) -> Result<Vec<(usize, Token)>, String> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = source[at..].chars().next() {
        let rest = &source[at..];
        let (token, len) = if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        } else if c.is_ascii_digit() {
            lex_number(rest)?
        } else if c == '\'' {
            let end = rest[1..]
                .find('\'')
                .ok_or_else(|| format!("text without end at column {}", at + 1))?;
            (Token::Text(rest[1..=end].to_owned()), end + 2)
        } else if c == '$' {
            let len = name_len(&rest[1..]);
            (Token::Key(rest[1..=len].to_owned()), len + 1)
        } else if c.is_ascii_alphabetic() || c == '_' {
            let len = name_len(rest);
            (Token::Name(rest[..len].to_owned()), len)
        } else {
            let symbol = SYMBOLS.iter().find(|s| rest.starts_with(**s));
            let symbol = symbol.ok_or_else(|| format!("unexpected {c:?} at column {}", at + 1))?;
            (Token::Sym(symbol), symbol.len())
        };
        tokens.push((at, token));
        at += len;
    }
    Ok(tokens)
}

fn name_len(text: &str) -> usize {
    text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'))
        .unwrap_or(text.len())
}

fn lex_number(rest: &str) -> Result<(Token, usize), String> {
    let mut len = 0;
    let bytes = rest.as_bytes();
    while len < bytes.len() {
        let exponent_sign =
            matches!(bytes[len], b'-' | b'+') && matches!(bytes[len - 1], b'e' | b'E');
        if !(bytes[len].is_ascii_digit()
            || matches!(bytes[len], b'.' | b'e' | b'E')
            || exponent_sign)
        {
            break;
        }
        len += 1;
    }
    let number = rest[..len]
        .parse()
        .map_err(|_| format!("{} is not a number", &rest[..len]))?;
    Ok((Token::Num(number), len))
}

struct Parser<'a> {
    tokens: &'a [(usize, Token)],
    at: usize,
    len: usize,
}

impl Parser<'_> {
    fn accept(&mut self, symbols: &[&'static str]) -> Option<&'static str> {
        match self.tokens.get(self.at) {
            Some((_, Token::Sym(s))) if symbols.contains(s) => {
                self.at += 1;
                Some(s)
            }
            _ => None,
        }
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), String> {
        let column = self.tokens.get(self.at).map_or(self.len, |t| t.0) + 1;
        self.accept(&[symbol])
            .map(|_| ())
            .ok_or_else(|| format!("expected {symbol} at column {column}"))
    }

    fn expr(&mut self) -> Result<Node, String> {
        let condition = self.or_else()?;
        if self.accept(&["?"]).is_none() {
            return Ok(condition);
        }
        let yes = self.expr()?;
        self.expect(":")?;
        Ok(Node::If(
            Box::new(condition),
            Box::new(yes),
            Box::new(self.expr()?),
        ))
    }

    fn or_else(&mut self) -> Result<Node, String> {
        let left = self.or()?;
        if self.accept(&["??"]).is_none() {
            return Ok(left);
        }
        Ok(Node::OrElse(Box::new(left), Box::new(self.or_else()?)))
    }

    fn or(&mut self) -> Result<Node, String> {
        let mut left = self.and()?;
        while self.accept(&["||"]).is_some() {
            left = Node::Binary(Op::Or, Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Node, String> {
        let mut left = self.cmp()?;
        while self.accept(&["&&"]).is_some() {
            left = Node::Binary(Op::And, Box::new(left), Box::new(self.cmp()?));
        }
        Ok(left)
    }

    fn cmp(&mut self) -> Result<Node, String> {
        let left = self.sum()?;
        let op = match self.accept(&["==", "!=", "<=", ">=", "<", ">"]) {
            Some("==") => Op::Eq,
            Some("!=") => Op::Ne,
            Some("<=") => Op::Le,
            Some(">=") => Op::Ge,
            Some("<") => Op::Lt,
            Some(_) => Op::Gt,
            None => return Ok(left),
        };
        Ok(Node::Binary(op, Box::new(left), Box::new(self.sum()?)))
    }

    fn sum(&mut self) -> Result<Node, String> {
        let mut left = self.term()?;
        while let Some(s) = self.accept(&["+", "-"]) {
            let op = if s == "+" { Op::Add } else { Op::Sub };
            left = Node::Binary(op, Box::new(left), Box::new(self.term()?));
        }
        Ok(left)
    }

    fn term(&mut self) -> Result<Node, String> {
        let mut left = self.unary()?;
        while let Some(s) = self.accept(&["*", "/", "%"]) {
            let op = match s {
                "*" => Op::Mul,
                "/" => Op::Div,
                _ => Op::Rem,
            };
            left = Node::Binary(op, Box::new(left), Box::new(self.unary()?));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Node, String> {
        match self.accept(&["-", "!"]) {
            Some("-") => Ok(Node::Unary('-', Box::new(self.unary()?))),
            Some(_) => Ok(Node::Unary('!', Box::new(self.unary()?))),
            None => self.atom(),
        }
    }

    fn atom(&mut self) -> Result<Node, String> {
        if self.accept(&["("]).is_some() {
            let inner = self.expr()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let Some((column, token)) = self.tokens.get(self.at) else {
            return Err("the expression ends too early".to_owned());
        };
        self.at += 1;
        match token.clone() {
            Token::Num(x) => Ok(Node::Const(Val::Num(x))),
            Token::Text(t) => Ok(Node::Const(Val::Text(t))),
            Token::Key(k) => Ok(Node::Key(k)),
            Token::Name(n) if self.accept(&["("]).is_some() => Ok(Node::Call(n, self.args()?)),
            Token::Name(n) => Ok(match n.as_str() {
                "true" => Node::Const(truth(true)),
                "false" => Node::Const(truth(false)),
                _ => Node::Name(n),
            }),
            Token::Sym(s) => Err(format!("unexpected {s} at column {}", column + 1)),
        }
    }

    fn args(&mut self) -> Result<Vec<Node>, String> {
        let mut args = Vec::new();
        if self.accept(&[")"]).is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.accept(&[")"]).is_some() {
                return Ok(args);
            }
            self.expect(",")?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Env for Fixed {
        fn name(&self, name: &str) -> Result<Val, EvalError> {
            match name {
                "il" => Ok(Val::Num(5.0)),
                "a.b" => Ok(Val::Num(0.0)),
                "kind" => Ok(Val::Text("yarn".to_owned())),
                _ => Err(EvalError::Missing(name.to_owned())),
            }
        }

        fn key(&self, key: &str) -> Result<Val, EvalError> {
            self.name(key.strip_prefix("x.").unwrap_or("none"))
        }

        fn call(&self, name: &str, _: &[Val]) -> Result<Val, EvalError> {
            Err(EvalError::Bad(format!("no function {name}")))
        }
    }

    fn num(source: &str) -> Result<f64, EvalError> {
        Expr::parse(source)
            .unwrap()
            .eval(&Fixed)
            .map(|v| number(&v).unwrap())
    }

    #[test]
    fn arithmetic_and_logic() {
        assert_eq!(num("1 + 2 * 3 - -4"), Ok(11.0));
        assert_eq!(num("(il + 1) % 4 != 0 && !(il == 4)"), Ok(1.0));
        assert_eq!(num("il < 6 ? sqrt(16) : 1e-5"), Ok(4.0));
        assert_eq!(num("kind == 'yarn' ? 1 : 0"), Ok(1.0));
        assert_eq!(num("$x.il / 2"), Ok(2.5));
    }

    #[test]
    fn missing_reaches_the_nearest_default() {
        assert_eq!(num("gone ?? il"), Ok(5.0));
        assert_eq!(num("gone + 1 ?? other ?? 3"), Ok(3.0));
        assert_eq!(num("nz(a.b) ?? 7"), Ok(7.0));
        assert_eq!(num("exists(gone) + exists(il)"), Ok(1.0));
        assert_eq!(num("gone + 1"), Err(EvalError::Missing("gone".to_owned())));
    }

    #[test]
    fn mistakes_name_their_column() {
        assert_eq!(
            Expr::parse("1 + * 2").unwrap_err(),
            "unexpected * at column 5"
        );
        assert_eq!(
            Expr::parse("min(1, 2").unwrap_err(),
            "expected , at column 9"
        );
        assert_eq!(Expr::parse("a b").unwrap_err(), "unexpected b at column 3");
    }
}
