//! Which rules can end: those from which some finite text follows.

use super::Node;

/// What an expression needs before it can end: so many of those that tell it when they can.
#[derive(Debug)]
struct Need {
    left: usize,
    /// The expressions that wait for it.
    told: Vec<usize>,
}

/// For each rule, whether it can end. Every expression is looked at once.
pub(super) fn ends(bodies: &[Node]) -> Vec<bool> {
    let rule = || Need {
        left: 1,
        told: Vec::new(),
    };
    let mut needs: Vec<Need> = bodies.iter().map(|_| rule()).collect();
    let mut ready = Vec::new();
    for (rule, body) in bodies.iter().enumerate() {
        add(body, rule, &mut needs, &mut ready);
    }
    while let Some(expression) = ready.pop() {
        for told in std::mem::take(&mut needs[expression].told) {
            // An alternative more tells one that can end already.
            let left = needs[told].left;
            needs[told].left = left.saturating_sub(1);
            if left == 1 {
                ready.push(told);
            }
        }
    }
    let rules = needs.iter().take(bodies.len());
    rules.map(|need| need.left == 0).collect()
}

/// Adds an expression that tells `above` when it can end.
fn add(node: &Node, above: usize, needs: &mut Vec<Need>, ready: &mut Vec<usize>) {
    let (left, parts): (usize, &[Node]) = match node {
        Node::Rule(rule) => return needs[*rule].told.push(above),
        Node::Seq(parts) => (parts.len(), parts),
        Node::Alt(parts) => (1, parts),
        Node::Repeat { node, min: 1.., .. } => (1, std::slice::from_ref(node)),
        Node::One(_) | Node::Token(_) | Node::Repeat { .. } => (0, &[]),
    };
    let this = needs.len();
    needs.push(Need {
        left,
        told: vec![above],
    });
    if left == 0 {
        ready.push(this);
    }
    for part in parts {
        add(part, this, needs, ready);
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::rules;

    /// What is wrong with a grammar, if anything.
    fn fault(source: &str) -> Option<String> {
        rules(source).err().map(|error| error.to_string())
    }

    #[test]
    fn rules_that_never_end_are_refused() {
        for source in [
            "root ::= root",
            "root ::= root \"a\" | \"b\" root",
            "root ::= a\na ::= root+ | a \"x\"",
            "root ::= \"a\" (root | root)",
        ] {
            let fault = fault(source).expect(source);
            assert!(fault.contains("`root` never ends"), "{source}: {fault}");
        }
        for source in [
            "root ::= root \"a\" | \"b\"",
            "root ::= root* \"a\"",
            "root ::= a\na ::= root? \"x\"",
            "root ::= \"\" | root root",
            "root ::= [a]\nb ::= b",
        ] {
            assert_eq!(fault(source), None, "{source}");
        }
    }

    #[test]
    fn a_long_chain_of_rules_is_looked_at_once() {
        let chain = (0..50_000).map(|i| format!("r{i} ::= r{}\n", i + 1));
        let source = format!("root ::= r0\n{}r50000 ::= \"x\"", chain.collect::<String>());
        let begin = web_time::Instant::now();
        assert_eq!(fault(&source), None);
        assert!(begin.elapsed().as_secs() < 20);
    }

    #[test]
    fn symbols_are_counted_while_they_are_read() {
        let words = (0..100_000)
            .map(|i| format!("\"word{i}\""))
            .collect::<Vec<_>>();
        let fault = fault(&format!("root ::= {}", words.join(" | "))).expect("too many");
        assert!(fault.contains("more than 500000 symbols"), "{fault}");
    }
}
