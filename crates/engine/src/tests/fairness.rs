//! How prompts and answers share the time, on a clock that the model turns.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::*;

/// Tokens of the prompt that takes long.
const LONG: usize = 4000;
/// Tokens of the one that comes after it.
const SHORT: usize = 100;

everywhere! {
    answers_and_prompts_share_the_time
    prompts_of_many_hardly_wait_for_one_answer
    a_short_request_does_not_wait_for_a_long_prompt
    vectors_that_are_read_leave_answers_their_pace
}

/// An engine whose time is what its model spends.
struct Timed {
    engine: Engine,
    model: Model,
    answers: HashMap<RequestId, Given>,
    /// When the prompt of each was seen to begin, and when its first token came, on the clock.
    began: HashMap<RequestId, Duration>,
    answered: HashMap<RequestId, Duration>,
    ended: HashMap<RequestId, Duration>,
}

impl Timed {
    fn new() -> Self {
        let limits = Limits {
            rows: 512,
            ctx: 8192,
            ..limits()
        };
        let (mut engine, model) = engine_and_model(&[FULL], 16, 20_000, limits);
        let (start, spent) = (Instant::now(), model.spent.clone());
        engine.clock =
            Box::new(move || start + Duration::from_nanos(spent.load(Ordering::Relaxed)));
        engine.measure_costs().unwrap();
        Timed {
            engine,
            model,
            answers: HashMap::new(),
            began: HashMap::new(),
            answered: HashMap::new(),
            ended: HashMap::new(),
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.model.spent.load(Ordering::Relaxed))
    }

    fn ask(&mut self, tokens: usize, n: usize) -> RequestId {
        let prompt = prompt(tokens, tokens as u64);
        self.engine.submit(request(&prompt, n)).unwrap()
    }

    fn step(&mut self) {
        let events = self.engine.step();
        let now = self.now();
        for event in &events {
            let times = match event.kind {
                EventKind::Prompt { .. } => &mut self.began,
                EventKind::Token { .. } => &mut self.answered,
                _ => &mut self.ended,
            };
            times.entry(event.request).or_insert(now);
        }
        collect(&mut self.answers, events);
    }

    fn written(&self, id: RequestId) -> usize {
        self.answers.get(&id).map_or(0, |a| a.tokens.len())
    }

    /// Runs until a request has so many tokens.
    fn until(&mut self, id: RequestId, tokens: usize) {
        while self.written(id) < tokens {
            self.step();
        }
    }

    /// From now until the first token of such a prompt, with nobody beside it.
    fn alone(tokens: usize) -> Duration {
        let mut alone = Timed::new();
        let before = alone.now();
        let id = alone.ask(tokens, 1);
        alone.until(id, 1);
        alone.now() - before
    }
}

/// How many times as long.
fn times(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

fn answers_and_prompts_share_the_time() {
    let mut timed = Timed::new();
    let answer = timed.ask(8, 1000);
    timed.until(answer, 8);
    let before = timed.now();
    timed.until(answer, 48);
    let token = (timed.now() - before) / 40;
    let (before, written) = (timed.now(), timed.written(answer));
    let long = timed.ask(LONG, 1);
    timed.until(long, 1);
    let took = timed.answered[&long] - before;
    let written = timed.written(answer) - written;
    let speed = times(token * written as u32, took);
    assert!(speed >= 0.5, "an answer keeps {speed:.2} of its speed");
    let longer = times(took, Timed::alone(LONG));
    assert!(longer < 2.5, "a prompt takes {longer:.2} times as long");
    timed.engine.cancel(answer);
    let prompt = prompt(LONG, LONG as u64);
    assert_eq!(timed.answers[&long].tokens, greedy(&prompt, 1, &[FULL]));
}

fn prompts_of_many_hardly_wait_for_one_answer() {
    let until_all = |timed: &mut Timed| {
        let before = timed.now();
        let ids: Vec<RequestId> = (0..7).map(|n| timed.ask(1000 + n, 1)).collect();
        ids.into_iter().for_each(|id| timed.until(id, 1));
        timed.now() - before
    };
    let mut timed = Timed::new();
    let answer = timed.ask(8, 1000);
    timed.until(answer, 48);
    let (before, written) = (timed.now(), timed.written(answer));
    let took = until_all(&mut timed);
    let longer = times(took, until_all(&mut Timed::new()));
    assert!(longer < 1.2, "they take {longer:.2} times as long");
    let written = timed.written(answer) - written;
    let speed = times(
        Duration::from_millis(20) * written as u32,
        timed.now() - before,
    );
    assert!(speed > 0.1, "an answer keeps {speed:.2} of its speed");
}

fn a_short_request_does_not_wait_for_a_long_prompt() {
    let alone = Timed::alone(SHORT);
    // It comes while the others are anywhere between a slice and the next.
    let longer: Vec<f64> = (0..12)
        .map(|later| {
            let mut timed = Timed::new();
            let answer = timed.ask(8, 1000);
            timed.until(answer, 8);
            let long = timed.ask(LONG, 1);
            timed.until(answer, 40 + later);
            assert_eq!(timed.written(long), 0);
            let before = timed.now();
            let short = timed.ask(SHORT, 1);
            timed.until(short, 1);
            assert_eq!(timed.written(long), 0);
            times(timed.now() - before, alone)
        })
        .collect();
    let most = longer.into_iter().fold(0.0, f64::max);
    assert!(most < 4.0, "its first token takes {most:.2} times as long");
}

fn vectors_that_are_read_leave_answers_their_pace() {
    let mut timed = Timed::new();
    let answer = timed.ask(8, 1000);
    timed.until(answer, 8);
    let read = ReadRequest::new(prompt(LONG, 3), tokkata_ir::PlanRole::Main, "logits");
    let read = timed.engine.submit_read(read).unwrap();
    let (before, written) = (timed.now(), timed.written(answer));
    while !timed.ended.contains_key(&read) {
        timed.step();
    }
    let took = timed.now() - before;
    let written = timed.written(answer) - written;
    let speed = times(Duration::from_millis(20) * written as u32, took);
    assert!(speed >= 0.5, "an answer keeps {speed:.2} of its speed");
}
