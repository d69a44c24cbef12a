//! Drafts over models of every family, on the processor: texts and caches are those of a run without. The usual run is a
//! cover of the choices, in which every family meets every drafter and every way to draw and end meets every drafter;
//! the product of all is `cargo test --release -p tokkata --test it speculation:: -- --ignored`.

use std::collections::HashMap;
use std::num::NonZeroU32;

use crate::common::{checkpoint, options};
use tokkata::{
    Constraint, Drafts, Dry, Event, EventKind, Feed, FeedLogits, FinishReason, Logprobs, Model,
    OpenOptions, Request, RequestId, RowKind, Sampling, SessionId,
};
use tokkata_conformance::golden::Golden;
use tokkata_engine::speculate::model::DraftModel;
use tokkata_engine::speculate::ngram::Ngram;
use tokkata_engine::speculate::{Drafter, Guess, OwnHead, Speculation, Wanted};
use tokkata_ir::sample::{Mask, uniform};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Right,
    Wrong,
    Half,
    Random,
    Ngram,
    /// Another copy of the model.
    Model,
    /// The heads in the model's file, or the drafter that reads its states.
    Head,
}

const ALL: [Who; 6] = [
    Who::Right,
    Who::Wrong,
    Who::Half,
    Who::Random,
    Who::Ngram,
    Who::Model,
];

/// Knows the answers, and says what it is told to make of them.
struct Scripted {
    who: Who,
    n_vocab: u32,
    texts: Vec<Vec<u32>>,
}

impl Scripted {
    fn token(&self, tokens: &[u32], j: usize) -> u32 {
        let text = self.texts.iter().find(|t| t.starts_with(tokens));
        let next = text.and_then(|t| t.get(tokens.len() + j)).copied();
        let at = uniform(tokens.len() as u64, j as u64);
        let any = (at % u64::from(self.n_vocab)) as u32;
        match (self.who, next) {
            (Who::Right, Some(next)) => next,
            (Who::Wrong, Some(next)) => (next + 1) % self.n_vocab,
            (Who::Half, Some(next)) if at.is_multiple_of(2) => next,
            _ => any,
        }
    }
}

impl Drafter for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        let one = |w: &Wanted<'_>| Guess {
            tokens: (0..w.most).map(|j| self.token(w.tokens, j)).collect(),
            class: 0,
        };
        wanted.iter().map(one).collect()
    }
}

/// Allows ids of one remainder by three, in turn.
struct Thirds {
    n_vocab: u32,
    taken: usize,
}

impl Constraint for Thirds {
    fn accept(&mut self, token: u32, _: &mut Vec<u32>) -> Result<(), String> {
        assert_eq!(token as usize % 3, self.taken % 3, "it is allowed");
        self.taken += 1;
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        let mut words = vec![0; self.n_vocab.div_ceil(32) as usize];
        let allowed = (0..self.n_vocab).filter(|&id| id as usize % 3 == self.taken % 3);
        allowed.for_each(|id| words[id as usize / 32] |= 1 << (id % 32));
        Ok(Some(Mask::new(words)))
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), String> {
        self.taken -= tokens;
        Ok(())
    }

    fn goes_back(&self) -> bool {
        true
    }
}

type Asks = (&'static str, fn(&mut Request, u32));

fn warm() -> Sampling {
    Sampling {
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 11,
        ..Sampling::default()
    }
}

const ASKS: &[Asks] = &[
    ("greedy", |_, _| {}),
    ("warm", |r, _| r.sampling = warm()),
    ("usual filters", |r, _| r.sampling = Sampling::default()),
    ("typical, n-sigma", |r, _| {
        r.sampling = warm();
        (r.sampling.typical_p, r.sampling.top_n_sigma) = (0.7, 1.5);
    }),
    ("xtc", |r, _| {
        r.sampling = warm();
        (r.sampling.xtc_probability, r.sampling.xtc_threshold) = (0.5, 0.01);
    }),
    ("penalties", |r, _| {
        r.sampling.repeat_penalty = 1.3;
        r.sampling.frequency_penalty = 0.3;
    }),
    ("dry", |r, _| {
        r.sampling.dry = Some(Dry {
            multiplier: 1.0,
            base: 1.75,
            allowed_length: 1,
            last_n: None,
            breakers: Default::default(),
        });
    }),
    ("grammar", |r, n_vocab| {
        r.sampling = warm();
        r.constraint = Some(Box::new(Thirds { n_vocab, taken: 0 }));
    }),
    ("end tokens", |r, n_vocab| {
        r.sampling = warm();
        r.stop.stop_ids = (0..n_vocab / 8).collect();
    }),
];

/// What an answer is, and the logits that its cache gives behind another token.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    tokens: Vec<(u32, Option<Logprobs>)>,
    reason: Option<FinishReason>,
    next: Vec<u32>,
}

/// One model, with and without drafts.
struct Bench {
    model: Model,
    prompts: Vec<Vec<u32>>,
}

impl Bench {
    fn request(&self, ask: &Asks, prompt: &[u32]) -> Request {
        let mut request = Request {
            prompt: prompt.to_vec(),
            sampling: Sampling::greedy(),
            logprobs: Some(1),
            ..Request::default()
        };
        request.stop.max_tokens = Some(10);
        ask.1(&mut request, self.model.n_vocab());
        request
    }

    /// Answers to all prompts, `together` at a time.
    fn answers(&mut self, ask: &Asks, together: usize) -> Vec<Seen> {
        let prompts = self.prompts.clone();
        let mut all = Vec::new();
        for prompts in prompts.chunks(together) {
            let asked: Vec<(SessionId, RequestId)> = prompts
                .iter()
                .map(|prompt| {
                    let session = self.model.open_session();
                    let request = self.request(ask, prompt);
                    let id = self.model.engine().submit_to(session, request);
                    (session, id.expect("it fits"))
                })
                .collect();
            let mut seen: HashMap<RequestId, Seen> = HashMap::new();
            while !self.model.engine().is_idle() {
                for Event { request, kind } in self.model.engine().step() {
                    let seen = seen.entry(request).or_default();
                    match kind {
                        EventKind::Token { id, logprobs, .. } => seen.tokens.push((id, logprobs)),
                        EventKind::Finished { reason, .. } => seen.reason = Some(reason),
                        EventKind::Failed(error) => panic!("{error}"),
                        _ => {}
                    }
                }
            }
            for (session, id) in asked {
                let mut one = seen.remove(&id).expect("an answer");
                one.next = self.next(session);
                self.model.engine().close_session(session);
                all.push(one);
            }
        }
        all
    }

    /// Bits of the logits behind one more token.
    fn next(&mut self, session: SessionId) -> Vec<u32> {
        let engine = self.model.engine();
        let port = engine.logits_port().expect("logits");
        let feed = Feed {
            session,
            tokens: &[5],
            rows: RowKind::Answer,
            logits: FeedLogits::Last,
        };
        let fed = engine.feed(&[feed], &[port]).expect("a step");
        let logits = engine.read(&fed, port, None).expect("logits");
        logits.iter().map(|x| x.to_bits()).collect()
    }

    fn speculate(&mut self, drafter: Option<Box<dyn Drafter>>) {
        self.model.engine().speculate(Speculation {
            drafters: drafter.into_iter().collect(),
            most: 4,
            adaptive: false,
            pretended: None,
        });
        self.model.engine().forget_prefixes();
    }
}

fn load(name: &str, golden: &Golden) -> Option<Model> {
    let checkpoint = checkpoint(name, golden);
    let writes = checkpoint.must_write().is_ok();
    let spec = checkpoint.spec(96).ok()?;
    if !writes || spec.encoder.is_some() || spec.bidirectional {
        return None;
    }
    let options = OpenOptions {
        ctx: NonZeroU32::new(96),
        rows: 64,
        seqs: 8,
        logit_rows: 40,
        drafts: Drafts {
            most: NonZeroU32::new(4),
            ..Drafts::default()
        },
        threads: Some(1),
        ..options()
    };
    let model = Model::load(checkpoint, &options, None).ok()?;
    (!model.is_diffusion()).then_some(model)
}

fn drafter(
    who: Who,
    bench: &Bench,
    want: &[Seen],
    again: &mut dyn FnMut() -> Model,
) -> Box<dyn Drafter> {
    match who {
        Who::Ngram => Box::new(Ngram::new()),
        Who::Head => {
            let spec = bench.model.checkpoint().spec(96).expect("it was loaded");
            let form = spec.drafts.first().map(|draft| draft.form.clone());
            Box::new(OwnHead {
                form: form.unwrap_or_default(),
                ..OwnHead::default()
            })
        }
        Who::Model => Box::new(DraftModel::new(again().into_engine(), None)),
        _ => {
            let text = |(prompt, seen): (&Vec<u32>, &Seen)| {
                let answer = seen.tokens.iter().map(|t| t.0);
                prompt.iter().copied().chain(answer).collect()
            };
            Box::new(Scripted {
                who,
                n_vocab: bench.model.n_vocab(),
                texts: bench.prompts.iter().zip(want).map(text).collect(),
            })
        }
    }
}

/// A drafter, the place of what is asked, and answers at once.
type Choice = (Who, usize, usize);

/// Every model that is taken, with what `choose` takes of drafters, asks and the number at once.
fn verify(takes: impl Fn(usize, &str) -> bool, choose: impl Fn(usize) -> Vec<Choice>) -> usize {
    let folder = Golden::folder();
    let (mut ran, mut wrong) = (0, Vec::new());
    for (n, name) in Golden::list(&folder)
        .expect("goldens")
        .into_iter()
        .enumerate()
    {
        if !takes(n, &name) {
            continue;
        }
        let golden = Golden::read(&folder, &name).expect("golden");
        let Some(model) = load(&name, &golden) else {
            continue;
        };
        let n_vocab = model.n_vocab();
        let token = |seed: u64| move |i| (uniform(seed, i) % u64::from(n_vocab)) as u32;
        let random = |(seed, n): (u64, u64)| (0..n).map(token(seed)).collect::<Vec<u32>>();
        let mut prompts: Vec<Vec<u32>> = [(1, 3), (3, 34)].map(random).into();
        prompts.push((0..40).map(|i| [3, 8, 1, 9][i % 4]).collect());
        let mut bench = Bench { model, prompts };
        for (who, ask, together) in choose(n) {
            let ask = &ASKS[ask];
            bench.speculate(None);
            let want = bench.answers(ask, 8);
            let mut again = || load(&name, &golden).expect("it was loaded before");
            if who == Who::Model && bench.model.engine().cache().is_recurrent() {
                continue;
            }
            let drafter = drafter(who, &bench, &want, &mut again);
            bench.speculate(Some(drafter));
            let tried = |bench: &mut Bench| {
                let counts = bench.model.engine().draft_counts();
                counts.iter().map(|c| c.1.tried).sum::<u64>()
            };
            for stored in [false, true] {
                let got = bench.answers(ask, together);
                for (prompt, _) in got
                    .iter()
                    .zip(&want)
                    .enumerate()
                    .filter(|(_, (g, w))| g != w)
                {
                    let what = (ask.0, who, together, stored, prompt);
                    wrong.push(format!("{name}: {what:?}"));
                }
            }
            if who == Who::Head && tried(&mut bench) == 0 {
                wrong.push(format!("{name}: nothing was guessed for {}", ask.0));
            }
            bench.speculate(None);
        }
        ran += 1;
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    ran
}

/// Every family meets a drafter, every drafter each way to draw, alone and beside others.
fn cover(n: usize) -> Vec<Choice> {
    let who = ALL[n % ALL.len()];
    vec![(who, n / ALL.len() % ASKS.len(), [8, 1][n / 2 % 2])]
}

#[test]
fn texts_and_caches_of_every_family_are_those_without_drafts() {
    let ran = verify(|n, _| n % 2 == 0, cover);
    assert!(ran > 40, "{ran} models write");
}

#[test]
fn and_those_of_the_other_half() {
    let ran = verify(|n, _| n % 2 == 1, cover);
    assert!(ran > 40, "{ran} models write");
}

#[test]
fn and_those_with_guesses_of_the_head_in_the_file() {
    let every = |_| {
        let asks = 0..ASKS.len();
        asks.map(|a| (Who::Head, a, [8, 1][a % 2])).collect()
    };
    let ran = verify(|_, name| name.ends_with("+heads"), every);
    assert!(ran >= 19, "{ran} models have a drafter of their own");
}

#[test]
#[ignore = "every choice with every other: hours"]
fn every_choice_with_every_other() {
    let each = |_| {
        let asks = || (0..ASKS.len()).flat_map(|a| [8, 1].map(|n| (a, n)));
        let of = |who: &Who| asks().map(|(a, n)| (*who, a, n)).collect::<Vec<_>>();
        ALL.iter().flat_map(of).collect()
    };
    verify(|_, _| true, each);
}
