//! Answers without tools hold no calls, whatever the model wants; other answers are as they were, and cost as much.

use std::sync::Arc;

use crate::tiny::{END, Tiny, tiny};
use tokkata::answer::OutputFormat;
use tokkata::rules::CallRule;
use tokkata::{ChatTemplate, Constraint, Request};

/// Calls begin with a marker of three letters.
const TEMPLATE: &str = concat!(
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<c>",
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</c>{% endfor %}",
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
);

fn rule(tiny: &Tiny) -> Arc<CallRule> {
    let format = OutputFormat::derive(&ChatTemplate::parse(TEMPLATE).expect("a template"));
    assert_eq!(format.call_marker(), Some("<c>"));
    let tokenizer = tiny.model.tokenizer().expect("a tokenizer");
    CallRule::new(&format, tokenizer.clone())
}

/// Makes the model want the marker's letters, and little else.
fn wants_marker(request: &mut Request, tiny: &Tiny) {
    let tokenizer = tiny.model.tokenizer().expect("a tokenizer");
    let letter = |letter: u8| (0..END).find(|&id| tokenizer.token_bytes(id) == [letter]);
    for id in [b'<', b'c', b'>'].map(letter) {
        request.sampling.bias.push((id.expect("a byte"), 30.0));
    }
}

#[test]
fn a_model_that_wants_to_call_spells_no_marker() {
    let mut tiny = tiny();
    let rule = rule(&tiny);
    let mut spelled = 0;
    for seed in 0..10 {
        for greedy in [false, true] {
            let asked = |tiny: &Tiny| {
                let mut asked = tiny.warm(seed, 200);
                wants_marker(&mut asked, tiny);
                if greedy {
                    asked.sampling.temperature = 0.0;
                    asked.sampling.repeat_penalty = 1.5;
                    asked.sampling.repeat_last_n = Some(2);
                    asked.prompt.push(seed as u32);
                }
                asked
            };
            let free = asked(&tiny);
            spelled += usize::from(tiny.answer(free).1.contains("<c>"));
            let mut kept = asked(&tiny);
            rule.forbid(&mut kept, "<|assistant|>");
            let (tokens, text, _) = tiny.answer(kept);
            assert_eq!(tokens.len(), 200);
            assert!(!text.contains("<c>"), "{text}");
            assert!(greedy || text.contains("<c"), "{text}");
        }
    }
    assert!(
        spelled >= 10,
        "{spelled} of 20 answers held the marker without the rule"
    );
}

#[test]
fn other_answers_are_as_they_were_and_cost_as_much() {
    for seed in 0..6 {
        let cost = |kept: bool| {
            // What was said before may be guessed again.
            let mut tiny = tiny();
            let mut asked = tiny.warm(seed, 200);
            if kept {
                rule(&tiny).forbid(&mut asked, "<|assistant|>");
                assert!(asked.constraint.is_some());
            }
            let before = tiny.model.engine().steps();
            let answer = tiny.answer(asked);
            (answer, tiny.model.engine().steps() - before)
        };
        let (free, kept) = (cost(false), cost(true));
        assert!(
            !free.0.1.contains("<c>"),
            "seed {seed} has a marker by chance"
        );
        assert_eq!(kept, free, "{seed}");
    }
}

/// The mask forbids exactly what is refused, token by token.
#[test]
fn masks_are_what_is_refused() {
    let tiny = tiny();
    let rule = rule(&tiny);
    let mut no_calls = rule.after("<|assistant|>").expect("a marker");
    let tokenizer = tiny.model.tokenizer().expect("a tokenizer");
    let (mut masks, mut taken) = (0, 0);
    for i in 0..400u64 {
        let mask = no_calls.mask().expect("a mask");
        masks += usize::from(mask.is_some());
        let ids = 0..u32::try_from(tokenizer.vocab_size()).expect("a small vocabulary");
        for id in ids {
            let allowed = mask.as_ref().is_none_or(|m| m.allows(id));
            assert_eq!(!allowed, no_calls.refuses(id), "token {id} after {taken}");
        }
        if i % 7 == 6 {
            no_calls.rollback(3).expect("they were taken");
            taken -= 3;
        }
        let letters = b"<c>x<c<";
        let letter = letters[(i * i + i / 3) as usize % letters.len()];
        let id = (0..END).find(|&id| tokenizer.token_bytes(id) == [letter]);
        let id = id.filter(|&id| !no_calls.refuses(id)).unwrap_or(0);
        no_calls.accept(id, &mut Vec::new()).expect("it may come");
        taken += 1;
    }
    assert!((20..380).contains(&masks), "{masks} masks");
    assert!(no_calls.rollback(taken + 1).is_err());
}
