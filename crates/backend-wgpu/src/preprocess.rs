//! WGSL with includes and conditions, as text for naga.
//!
//! Lines that begin with `#` are `#include "file"` (once a module), `#if NAME`, `#if NAME == 3`, `#if NAME != 3`, `#elif`,
//! `#else` and `#endif`, and `#for t NAME` up to `#end`, which stand for what is between them so many times, with the turn's number in the place
//! of `$t`: arrays that loops go through are memory to some drivers. Names are the constants of a variant, which also stand at the head of the
//! module; unknown ones are 0. Lines that begin with `enable` go before everything else.

use std::collections::BTreeSet;

/// Constants of a variant by name.
pub(crate) type Constants = Vec<(String, u32)>;

/// The text of a module.
///
/// # Panics
/// Where a source is malformed or absent, which a test finds.
pub(crate) fn expand(
    file: &str,
    constants: &[(String, u32)],
    source: &dyn Fn(&str) -> Option<&'static str>,
) -> String {
    let mut text = String::new();
    for (name, value) in constants {
        text += &format!("const {name}: u32 = {value}u;\n");
    }
    let mut seen = BTreeSet::new();
    include(file, constants, source, (&mut seen, &mut text));
    let (first, rest): (Vec<&str>, Vec<&str>) = text
        .split_inclusive('\n')
        .partition(|line| line.starts_with("enable "));
    [first, rest].concat().concat()
}

/// A condition around lines: whether they count, and whether an earlier branch did.
struct Branch {
    on: bool,
    taken: bool,
}

fn include(
    file: &str,
    constants: &[(String, u32)],
    source: &dyn Fn(&str) -> Option<&'static str>,
    (seen, text): (&mut BTreeSet<String>, &mut String),
) {
    if !seen.insert(file.to_owned()) {
        return;
    }
    let lines = source(file).unwrap_or_else(|| panic!("there is no kernel source {file}"));
    let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    let mut unrolled = Vec::new();
    unroll(&lines, file, constants, &mut unrolled);
    let mut branches: Vec<Branch> = Vec::new();
    for line in unrolled {
        let on = branches.iter().all(|b| b.on);
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            if on {
                text.push_str(&line);
                text.push('\n');
            }
            continue;
        };
        let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
        match word {
            "include" if on => {
                let name = rest.trim().trim_matches('"');
                include(name, constants, source, (seen, text));
            }
            "include" => {}
            "if" => {
                let on = holds(rest, constants);
                branches.push(Branch { on, taken: on });
            }
            "elif" => {
                let branch = branches.last_mut().expect("#elif stands behind an #if");
                branch.on = !branch.taken && holds(rest, constants);
                branch.taken |= branch.on;
            }
            "else" => {
                let branch = branches.last_mut().expect("#else stands behind an #if");
                branch.on = !branch.taken;
                branch.taken = true;
            }
            "endif" => drop(branches.pop().expect("#endif stands behind an #if")),
            other => panic!("{file}: #{other} is no directive"),
        }
    }
    assert!(branches.is_empty(), "{file}: an #if has no end");
}

/// Adds lines, those of loops as often as these turn.
fn unroll(lines: &[String], file: &str, constants: &[(String, u32)], out: &mut Vec<String>) {
    let is_loop = |line: &String| line.trim_start().starts_with("#for ");
    let mut rest = lines;
    while let Some(first) = rest.iter().position(is_loop) {
        out.extend_from_slice(&rest[..first]);
        let words: Vec<&str> = rest[first].split_whitespace().collect();
        let &[_, name, times] = &words[..] else {
            panic!("{file}: {}: not a loop", rest[first]);
        };
        let mut open = 0;
        let length = rest[first..].iter().position(|line| {
            open += i32::from(is_loop(line)) - i32::from(line.trim() == "#end");
            open == 0
        });
        let length = length.unwrap_or_else(|| panic!("{file}: a #for has no end"));
        let (body, after) = rest[first + 1..].split_at(length - 1);
        for i in 0..value(times, constants) {
            let (name, i) = (format!("${name}"), i.to_string());
            let turn: Vec<String> = body.iter().map(|line| line.replace(&name, &i)).collect();
            unroll(&turn, file, constants, out);
        }
        rest = &after[1..];
    }
    out.extend_from_slice(rest);
}

/// A number, or a constant's.
fn value(name: &str, constants: &[(String, u32)]) -> u32 {
    let found = || constants.iter().find(|c| c.0 == name.trim());
    name.parse().unwrap_or_else(|_| found().map_or(0, |c| c.1))
}

/// Whether a condition holds: alternatives by `||`, each `NAME`, `NAME == n` or `NAME != n`.
fn holds(condition: &str, constants: &[(String, u32)]) -> bool {
    let value = |name: &str| value(name, constants);
    let number = |text: &str| -> u32 {
        let parsed = text.trim().trim_end_matches('u').parse();
        parsed.unwrap_or_else(|_| panic!("{condition}: not a number"))
    };
    let one = |term: &str| match (term.split_once("=="), term.split_once("!=")) {
        (Some((name, n)), _) => value(name) == number(n),
        (_, Some((name, n))) => value(name) != number(n),
        _ => value(term) != 0,
    };
    condition.split("||").any(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str) -> Option<&'static str> {
        match name {
            "a" => Some(
                "#include \"b\"\n#include \"b\"\n#if F == 2 || G\ntwo\n#elif F == 3\nthree\n#else\nother\n#endif\nend",
            ),
            "c" => Some("#include \"b\"\nenable f16;\nend"),
            "d" => Some("#for t F\n#for u 2\nx$t y$u\n#end\n#if G\nz$t\n#endif\n#end\nend"),
            "b" => Some("#if SUB\nsub\n#if F != 2\nnested\n#endif\n#endif\nb"),
            _ => None,
        }
    }

    #[test]
    fn branches_and_includes_are_resolved() {
        let of = |constants: &[(&str, u32)]| {
            let constants: Constants = constants.iter().map(|c| (c.0.to_owned(), c.1)).collect();
            let text = expand("a", &constants, &source);
            let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("const")).collect();
            lines.join(" ")
        };
        assert_eq!(of(&[("F", 2)]), "b two end");
        assert_eq!(of(&[("F", 3), ("SUB", 1)]), "sub nested b three end");
        assert_eq!(of(&[("F", 2), ("SUB", 1)]), "sub b two end");
        assert_eq!(of(&[("G", 1)]), "b two end");
        assert_eq!(of(&[]), "b other end");
        let text = expand("c", &[("F".to_owned(), 2)], &source);
        assert_eq!(text, "enable f16;\nconst F: u32 = 2u;\nb\nend\n");
        let loops = |f: u32, g: u32| {
            let constants = [("F".to_owned(), f), ("G".to_owned(), g)];
            let text = expand("d", &constants, &source);
            text.lines().skip(2).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(loops(2, 1), "x0 y0 x0 y1 z0 x1 y0 x1 y1 z1 end");
        assert_eq!([loops(1, 0), loops(0, 1)], ["x0 y0 x0 y1 end", "end"]);
    }
}
