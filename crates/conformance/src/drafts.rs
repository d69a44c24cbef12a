//! Drafts of every kind in front of every golden's model: whatever is guessed, texts and caches are those of the run without.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tokkata_core::DType;
use tokkata_engine::speculate::model::DraftModel;
use tokkata_engine::speculate::ngram::Ngram;
use tokkata_engine::speculate::{DraftCounts, Drafter, Guess, OwnHead, Speculation, Wanted};
use tokkata_engine::{
    Constraint, Dry, Engine, EventKind, FinishReason, KeptSession, Request, RequestId, Sampling,
    StopRules,
};
use tokkata_ir::sample::{Mask, uniform};
use tokkata_ir::spec::DraftForm;
use tokkata_ir::{CacheGroup, CacheKind, Device, Limits, Program, SlotDef};

use crate::golden::{Golden, ids};
use crate::models::Failure;
use crate::turns::{engine, program};

const CTX: u32 = 64;
/// Requests at once.
const SEQS: u32 = 8;
/// Tokens of a guess, and of an answer.
const MOST: usize = 4;
const ANSWER: usize = 14;
/// How names end of goldens of drafters in their models' files.
const OWN: &str = "+heads";

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Made {
    /// N-grams of the text.
    Ngrams,
    /// The same model in an engine of its own.
    Model,
    /// Somebody who knows the text.
    Right,
    /// The same, telling other tokens.
    Wrong,
    /// The same, telling every other token.
    Halves,
    /// Somebody who tells any token.
    Random,
    /// The drafter in the model's file: its heads, or one that reads its states.
    Own,
}

/// Those that any model has.
const MADE: [Made; 6] = [
    Made::Ngrams,
    Made::Model,
    Made::Right,
    Made::Wrong,
    Made::Halves,
    Made::Random,
];

/// How tokens are drawn: whether of all, and what is asked beside.
type Ask = (&'static str, bool, fn(&mut Request, u32));

/// Every filter, penalties, DRY and a grammar, of the likeliest token and of any.
const ASKS: [Ask; 12] = [
    ("greedy", false, |_, _| {}),
    ("warm", true, |_, _| {}),
    ("top-k", true, |r, _| r.sampling.top_k = 5),
    ("top-p", true, |r, _| r.sampling.top_p = 0.7),
    ("min-p", true, |r, _| r.sampling.min_p = 0.2),
    ("typical", true, |r, _| r.sampling.typical_p = 0.6),
    ("n-sigma", true, |r, _| r.sampling.top_n_sigma = 1.0),
    ("xtc", true, |r, _| {
        (r.sampling.xtc_probability, r.sampling.xtc_threshold) = (0.5, 0.02);
    }),
    ("penalties", true, |r, _| {
        r.sampling.repeat_penalty = 1.3;
        r.sampling.frequency_penalty = 0.4;
        r.sampling.presence_penalty = 0.2;
    }),
    ("dry", false, |r, _| {
        r.sampling.dry = Some(Dry {
            multiplier: 2.0,
            base: 1.5,
            allowed_length: 1,
            last_n: None,
            breakers: HashSet::new(),
        });
    }),
    ("grammar", false, |r, n| {
        r.constraint = Some(Thirds::boxed(n));
    }),
    ("warm grammar", true, |r, n| {
        r.constraint = Some(Thirds::boxed(n));
    }),
];

fn warm() -> Sampling {
    Sampling {
        temperature: 0.8,
        seed: 7,
        ..Sampling::greedy()
    }
}

/// Allows every third token, in turn; behind multiples of ten two tokens are forced.
struct Thirds {
    n_vocab: u32,
    taken: usize,
}

impl Thirds {
    fn boxed(n_vocab: u32) -> Box<dyn Constraint> {
        Box::new(Thirds { n_vocab, taken: 0 })
    }
}

impl Constraint for Thirds {
    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String> {
        let third = (self.taken % 3) as u32;
        if token % 3 != third {
            return Err(format!("{token} is refused"));
        }
        self.taken += 1;
        if token.is_multiple_of(10) {
            forced.extend([1, 2].map(|i| (third + i) % 3));
            self.taken += 2;
        }
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        let mut words = vec![0; self.n_vocab.div_ceil(32) as usize];
        for id in (0..self.n_vocab).filter(|id| *id as usize % 3 == self.taken % 3) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        Ok(Some(Mask::new(words)))
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), String> {
        self.taken = self.taken.checked_sub(tokens).ok_or("fewer were taken")?;
        Ok(())
    }

    fn goes_back(&self) -> bool {
        true
    }
}

/// Knows the answers beforehand, or tells any token.
struct Scripted {
    made: Made,
    n_vocab: u32,
    /// Tokens of prompts, and these with their answers.
    texts: Vec<(usize, Vec<u32>)>,
}

impl Scripted {
    fn token(&self, tokens: &[u32], j: usize) -> u32 {
        // A short prompt may be how a longer one begins.
        let own = |(prompt, text): &&(usize, Vec<u32>)| {
            *prompt <= tokens.len() && text.starts_with(tokens)
        };
        let text = self.texts.iter().find(own);
        let next = text.and_then(|t| t.1.get(tokens.len() + j)).copied();
        let at = uniform(tokens.len() as u64 + 9, j as u64);
        match (self.made, next) {
            (Made::Right, Some(next)) => next,
            (Made::Wrong, Some(next)) => (next + 1) % self.n_vocab,
            (Made::Halves, Some(next)) if at.is_multiple_of(2) => next,
            _ => (at % u64::from(self.n_vocab)) as u32,
        }
    }
}

impl Drafter for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn is_free(&self) -> bool {
        self.made != Made::Halves
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        let one = |w: &Wanted<'_>| Guess {
            tokens: (0..w.most).map(|j| self.token(w.tokens, j)).collect(),
            class: 0,
        };
        wanted.iter().map(one).collect()
    }
}

/// A run of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Way {
    /// Which of [`ASKS`].
    ask: usize,
    /// Whether all are asked at once.
    together: bool,
    /// Whether prefixes are stored, and all were asked once before.
    stored: bool,
}

/// What becomes of a request.
#[derive(Debug, PartialEq)]
struct Seen {
    tokens: Vec<u32>,
    reason: Option<FinishReason>,
    cache: KeptSession,
}

/// A golden's model in an engine that guesses and in one that does not, of those that store prefixes or do not.
struct Model<'a> {
    golden: &'a Golden,
    device: &'a dyn Device,
    program: Arc<Program>,
    /// How the drafter in its file is run.
    form: Option<DraftForm>,
    /// By group of caches: slots of the model itself, which stand before those of the drafter in its file.
    slots: Vec<usize>,
    plain: [Engine; 2],
    drafts: [Engine; 2],
    /// What comes of runs without guesses.
    known: HashMap<Way, Vec<Seen>>,
}

fn error(error: impl std::fmt::Display) -> Failure {
    error.to_string()
}

impl<'a> Model<'a> {
    /// None where it does not write text from tokens alone.
    fn new(golden: &'a Golden, device: &'a dyn Device, ctx: u32) -> Result<Option<Self>, Failure> {
        let limits = Limits {
            rows: 48,
            seqs: SEQS,
            logit_rows: SEQS * (1 + MOST as u32),
            draft: 1 + MOST as u32,
            ctx,
            kv_dtype: DType::F32,
            ..Limits::default()
        };
        let Some((program, form)) = program(golden, &limits, usize::MAX)? else {
            return Ok(None);
        };
        let slots = own_slots(golden, &limits, &program)?;
        let program = Arc::new(program);
        let copies = u64::from(2 * SEQS);
        let of = |stores| engine(golden, device, &program, (copies, stores));
        Ok(Some(Model {
            golden,
            device,
            plain: [of(false)?, of(true)?],
            drafts: [of(false)?, of(true)?],
            program: Arc::clone(&program),
            form,
            slots,
            known: HashMap::new(),
        }))
    }

    /// Prompts of noise, and of loops that n-grams know how to go on from.
    fn prompts(&self, way: Way) -> Vec<Vec<u32>> {
        let n_vocab = self.program.n_vocab;
        let noise = |n: usize| ids(self.golden.seed + n as u32, n, n_vocab);
        let looped = |n: usize| {
            let few = ids(self.golden.seed, 4, n_vocab);
            (0..n).map(|i| few[i % 4]).collect()
        };
        let all = [noise(3), looped(13), noise(9), looped(22)];
        match way.together {
            true => [&all[..], &[noise(17), looped(18), noise(2), noise(9)]].concat(),
            false => all[..2].to_vec(),
        }
    }

    fn drafter(&self, made: Made, way: Way) -> Result<Box<dyn Drafter>, Failure> {
        let n_vocab = self.program.n_vocab;
        let prompts = self.prompts(way).into_iter();
        let texts = prompts.zip(&self.known[&way]);
        let texts =
            texts.map(|(prompt, seen)| (prompt.len(), [&prompt[..], &seen.tokens].concat()));
        Ok(match made {
            Made::Ngrams => Box::new(Ngram::new()),
            Made::Model => {
                let copies = (u64::from(SEQS), false);
                let engine = engine(self.golden, self.device, &self.program, copies)?;
                Box::new(DraftModel::new(engine, None))
            }
            Made::Own => Box::new(OwnHead {
                form: self.form.clone().ok_or("the file has no drafter")?,
                ..OwnHead::default()
            }),
            _ => Box::new(Scripted {
                made,
                n_vocab,
                texts: texts.collect(),
            }),
        })
    }

    /// Runs requests with guesses: what became of these, and where anything else comes out than without.
    fn compare(&mut self, made: Made, way: Way) -> Result<(DraftCounts, Option<String>), Failure> {
        let (prompts, n_vocab) = (self.prompts(way), self.program.n_vocab);
        if !self.known.contains_key(&way) {
            let engine = &mut self.plain[usize::from(way.stored)];
            let seen = answers(engine, way, &prompts, n_vocab)?;
            self.known.insert(way, seen);
        }
        let drafter = self.drafter(made, way)?;
        let engine = &mut self.drafts[usize::from(way.stored)];
        engine.speculate(Speculation {
            drafters: vec![drafter],
            most: MOST,
            adaptive: false,
            pretended: None,
        });
        let found = answers(engine, way, &prompts, n_vocab)?;
        let counts = engine.draft_counts();
        let (_, counts) = *counts.first().ok_or("nobody guessed")?;
        let differs = found.iter().zip(&self.known[&way]).enumerate();
        let mut differs = differs.filter_map(|(i, (found, want))| {
            let what = self.differs(found, want)?;
            Some(format!("request {i}: {what}"))
        });
        Ok((counts, differs.next()))
    }

    /// What differs, of all that a caller sees and of what the cache holds of tokens that count.
    fn differs(&self, found: &Seen, want: &Seen) -> Option<String> {
        let (a, b) = (&found.cache, &want.cache);
        if (&found.tokens, found.reason) != (&want.tokens, want.reason) {
            return Some(format!("{:?} instead of {:?}", found.tokens, want.tokens));
        }
        if a.tokens != b.tokens || a.answers != b.answers {
            return Some("other tokens are cached".to_owned());
        }
        let there: BTreeMap<(u32, u32), &Vec<f32>> =
            a.blocks.iter().map(|b| ((b.0, b.1), &b.2)).collect();
        for (group, place, data) in &b.blocks {
            let Some(own) = there.get(&(*group, *place)) else {
                return Some(format!("block {place} of group {group} is not there"));
            };
            let committed = |data| self.committed((*group, *place), data, b.tokens.len());
            if committed(own) != committed(data) {
                return Some(format!("block {place} of group {group}"));
            }
        }
        None
    }

    /// The bits of a block that belong to the first so many tokens.
    fn committed(&self, (group, place): (u32, u32), data: &[f32], tokens: usize) -> Vec<u32> {
        let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let own = self.slots[group as usize];
        let group = &self.program.caches[group as usize];
        let positions = match group.kind {
            // The other places are states behind rows that may not count.
            CacheKind::Recurrent => return if place == 0 { bits(data) } else { Vec::new() },
            CacheKind::Entries(n) => n as usize,
            _ => 1,
        };
        let entries = group.block_size as usize / positions;
        let kept = (tokens / positions).saturating_sub(place as usize * entries);
        let (kept, mut rest, mut all) = (kept.min(entries), data, Vec::new());
        for slot in &group.slots[..own] {
            let SlotDef::Kv {
                n_kv_heads,
                dim_k,
                dim_v,
            } = *slot
            else {
                return bits(data);
            };
            for width in [dim_k, dim_v.unwrap_or(0)].map(|dim| (n_kv_heads * dim) as usize) {
                let (own, others) = rest.split_at(entries * width);
                all.extend(bits(&own[..kept * width]));
                rest = others;
            }
        }
        all
    }
}

/// By group of caches of a program with the drafter in its file: slots that are there without it.
fn own_slots(golden: &Golden, limits: &Limits, program: &Program) -> Result<Vec<usize>, Failure> {
    let (alone, _) = self::program(golden, limits, 0)?.ok_or("it writes no text")?;
    let own = |(i, group): (usize, &CacheGroup)| {
        let own = alone.caches.get(i).map_or(&[][..], |group| &group.slots);
        match group.slots.starts_with(own) {
            true => Ok(own.len()),
            false => Err(format!("group {i}: {own:?} are not the first slots")),
        }
    };
    program.caches.iter().enumerate().map(own).collect()
}

/// The answers to prompts, in sessions of their own.
fn answers(
    engine: &mut Engine,
    way: Way,
    prompts: &[Vec<u32>],
    n_vocab: u32,
) -> Result<Vec<Seen>, Failure> {
    let request = |prompt: &Vec<u32>| {
        let (_, warm_too, ask) = ASKS[way.ask];
        let mut request = Request {
            prompt: prompt.clone(),
            sampling: if warm_too { warm() } else { Sampling::greedy() },
            stop: StopRules {
                max_tokens: Some(ANSWER),
                ..StopRules::default()
            },
            ..Request::default()
        };
        ask(&mut request, n_vocab);
        request
    };
    let mut seen = Vec::new();
    for _ in 0..1 + usize::from(way.stored) {
        seen.clear();
        for some in prompts.chunks(if way.together { prompts.len() } else { 1 }) {
            let mut own: Vec<(RequestId, _, Vec<u32>, Option<FinishReason>)> = Vec::new();
            for prompt in some {
                let session = engine.open_session(0);
                let id = engine.submit_to(session, request(prompt)).map_err(error)?;
                own.push((id, session, Vec::new(), None));
            }
            while !engine.is_idle() {
                for event in engine.step() {
                    let one = own.iter_mut().find(|one| one.0 == event.request);
                    match (one, event.kind) {
                        (Some(one), EventKind::Token { id, .. }) => one.2.push(id),
                        (Some(one), EventKind::Finished { reason, .. }) => one.3 = Some(reason),
                        (_, EventKind::Failed(why)) => return Err(why.to_string()),
                        _ => {}
                    }
                }
            }
            for (_, session, tokens, reason) in own {
                let cache = engine.copy_session(session).map_err(error)?;
                engine.close_session(session);
                seen.push(Seen {
                    tokens,
                    reason,
                    cache,
                });
            }
        }
    }
    Ok(seen)
}

/// How much is tried of each golden: a cover of all pairs over all goldens, or everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// Every golden with every way to draw and every drafter; every drafter with every way to draw somewhere.
    Pairs,
    /// Everything with everything.
    All,
}

impl Cover {
    /// The runs of the `i`-th golden; one of a drafter in the model's file is there for that alone.
    fn ways(self, (i, own): (usize, bool)) -> Vec<(Made, Way)> {
        let asks = 0..ASKS.len();
        let pair = |ask: usize| {
            let way = Way {
                ask,
                together: (ask + i / 6).is_multiple_of(2),
                stored: (ask / 2 + i / 12).is_multiple_of(2),
            };
            let made = if own {
                Made::Own
            } else {
                MADE[(ask + i) % MADE.len()]
            };
            (made, way)
        };
        let every = |ask: usize| {
            let way = move |n: usize| Way {
                ask,
                together: n % 2 == 1,
                stored: n / 2 == 1,
            };
            let of = move |made: Made| (0..4).map(move |n| (made, way(n)));
            let all = MADE.into_iter().chain([Made::Own]);
            all.filter(move |&made| own == (made == Made::Own))
                .flat_map(of)
        };
        match self {
            Cover::Pairs => asks.map(pair).collect(),
            Cover::All => asks.flat_map(every).collect(),
        }
    }
}

/// What is wrong with the runs of a golden's model; `None` where it does not write text from tokens alone.
fn faults(
    (i, golden): (usize, &Golden),
    device: &dyn Device,
    cover: Cover,
) -> Result<Option<Vec<String>>, Failure> {
    // Learned positions end where the file's do.
    let model = Model::new(golden, device, CTX);
    let own = || Model::new(golden, device, golden.positions as u32);
    let Some(mut model) = model.or_else(|_| own())? else {
        return Ok(None);
    };
    let (mut faults, mut counts) = (Vec::new(), BTreeMap::<Made, [u64; 2]>::new());
    for (made, way) in cover.ways((i, golden.name.ends_with(OWN))) {
        let (found, fault) = model.compare(made, way)?;
        let [tried, right] = counts.entry(made).or_default();
        (*tried, *right) = (*tried + found.tried, *right + found.accepted);
        let told = fault.map(|fault| format!("{made:?}, {}, {way:?}: {fault}", ASKS[way.ask].0));
        faults.extend(told);
    }
    // What is compared was guessed, and went as its kind says.
    for (made, [tried, right]) in counts {
        let fits = match made {
            Made::Right => tried > 0 && right == tried,
            Made::Wrong => tried > 0 && right == 0,
            Made::Halves => right > 0 && right < tried,
            Made::Ngrams => true,
            Made::Model | Made::Random | Made::Own => tried > 0,
        };
        if !fits {
            faults.push(format!("{made:?}: {right} of {tried} were right"));
        }
    }
    Ok(Some(faults))
}

/// Goldens whose models are run, of which some are there for the drafters in their files; how many of these write text.
///
/// # Panics
/// Without goldens.
#[must_use]
pub fn names() -> (Vec<String>, usize) {
    let mut names = Golden::list(&Golden::folder()).expect("goldens");
    names.retain(|name| !name.contains('+') || name.ends_with(OWN));
    (names, 148)
}

/// Runs every named golden's model with drafts and without, `jobs` of them at a time. How many of them write text.
///
/// # Panics
/// With what differs, or when fewer than `least` models write text.
pub fn verify(
    device: &dyn Device,
    names: &[String],
    cover: Cover,
    (least, jobs): (usize, usize),
) -> usize {
    Golden::hold(names, (least, jobs), |i, golden| {
        faults((i, golden), device, cover)
    })
}
