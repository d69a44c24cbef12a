//! What people ask the model in the box first: the questions of `demo/asked.txt`, written by hand and kept out of its
//! training, with a judge that computes or knows what is right.

mod judge;

use std::path::PathBuf;

use judge::{Judge, judge};
use tokkata::chat::chat_request;
use tokkata::{EventKind, Message, Model, OpenOptions, Sampling, Service};

/// Share of the questions that must be answered right.
const GOAL: f64 = 0.9;
/// Conversations at a time.
const TOGETHER: usize = 16;

/// A question, after those that lead to it, and what is right.
struct Question {
    turns: Vec<String>,
    judge: Judge,
    right: String,
}

fn questions() -> Vec<Question> {
    let mut judge = None;
    let mut found = Vec::new();
    for line in include_str!("../../../../demo/asked.txt").lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            judge = Some(Judge::named(heading));
        } else if let (false, Some((question, right))) =
            (line.starts_with('#'), line.split_once(" =>"))
        {
            found.push(Question {
                turns: question.split(" // ").map(str::to_owned).collect(),
                judge: judge.expect("a heading comes first"),
                right: right.trim().to_owned(),
            });
        }
    }
    found
}

/// The greedy answers to all turns.
fn answers(service: &Service, conversations: &[Question]) -> Vec<Vec<String>> {
    let mut said = vec![Vec::new(); conversations.len()];
    let longest = conversations.iter().map(|q| q.turns.len()).max();
    for turn in 0..longest.unwrap_or(0) {
        let asked = |i: &usize| turn < conversations[*i].turns.len();
        let open: Vec<usize> = (0..conversations.len()).filter(asked).collect();
        let begun = open
            .iter()
            .map(|&i| begin(service, &conversations[i].turns[..=turn], &said[i]));
        let begun: Vec<_> = begun.collect();
        for (i, answer) in open.into_iter().zip(begun) {
            said[i].push(text(answer));
        }
    }
    said
}

fn begin(service: &Service, asked: &[String], said: &[String]) -> tokkata::Answer {
    let mut messages = Vec::new();
    for (turn, question) in asked.iter().enumerate() {
        messages.push(Message::new("user", question));
        messages.extend(said.get(turn).map(|text| Message::new("assistant", text)));
    }
    let chat = chat_request(&messages, service.tokenizer().expect("a tokenizer"));
    let prompt = service.prompt(&chat).expect("a template");
    let mut request = service.request(prompt.ids).expect("it writes");
    request.sampling = Sampling::greedy();
    request.stop.max_tokens = Some(400);
    service.generate(request)
}

fn text(mut answer: tokkata::Answer) -> String {
    let mut bytes = Vec::new();
    while let Some(event) = answer.next_blocking() {
        match event {
            EventKind::Token { text, .. } => bytes.extend_from_slice(&text),
            EventKind::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

fn service() -> Service {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.gguf");
    let options = OpenOptions {
        device: Some("cpu".to_owned()),
        threads: Some(2),
        seqs: TOGETHER as u32,
        logit_rows: TOGETHER as u32,
        ..OpenOptions::default()
    };
    Model::open(path, &options)
        .expect("it loads")
        .serve()
        .expect("a thread")
}

#[test]
fn nine_in_ten_of_what_people_ask_first_are_answered_right() {
    let questions = questions();
    assert_eq!(questions.len(), 500);
    let service = service();
    let mut wrong = Vec::new();
    let mut refusals = std::collections::HashSet::new();
    for some in questions.chunks(TOGETHER) {
        for (question, said) in some.iter().zip(answers(&service, some)) {
            if question.judge == Judge::Refuses {
                refusals.insert(said.last().cloned());
            }
            if let Err(fault) = judge(question.judge, &said, &question.right) {
                wrong.push(format!(
                    "{fault}\n  {:?}\n  {:?}",
                    question.turns,
                    said.last()
                ));
            }
        }
    }
    let right = questions.len() - wrong.len();
    println!(
        "{}\n{right} of {} are right",
        wrong.join("\n"),
        questions.len()
    );
    assert!(
        right as f64 >= GOAL * questions.len() as f64,
        "{right} are right:\n{}",
        wrong.join("\n")
    );
    assert!(refusals.len() >= 8, "refusals are varied: {refusals:?}");
}
