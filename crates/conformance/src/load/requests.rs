//! What is asked: kinds, lengths and parameters of requests, all from one seed.

use tokkata_engine::{Answer, EngineHandle, ReadRequest, Request, Sampling, StopRules};
use tokkata_engine::{Constraint, Dry};
use tokkata_ir::PlanRole;
use tokkata_ir::sample::{Mask, uniform};
use tokkata_text::grammar::{Grammar, GrammarSource, GrammarState, TokenTrie, Vocabulary};

use crate::models::Failure;

/// Longest prompt.
const LONGEST: f64 = 4000.0;
/// Beginnings that requests share, and their tokens.
const STEMS: u64 = 8;
const STEM_TOKENS: usize = 900;
/// What a constrained answer may say.
const REGEX: &str = "[a-m]{2,5}( [n-z]{1,3}){1,4}";

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Greedy,
    Sampled,
    Penalised,
    Grammar,
    Hidden,
    Logits,
    Cancelled,
    Bad,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Greedy,
        Kind::Sampled,
        Kind::Penalised,
        Kind::Grammar,
        Kind::Hidden,
        Kind::Logits,
        Kind::Cancelled,
        Kind::Bad,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Greedy => "greedy",
            Kind::Sampled => "sampled",
            Kind::Penalised => "penalised",
            Kind::Grammar => "grammar",
            Kind::Hidden => "vectors",
            Kind::Logits => "logits",
            Kind::Cancelled => "cancelled",
            Kind::Bad => "bad",
        }
    }

    fn of(percent: u64) -> Self {
        match percent {
            0..30 => Kind::Greedy,
            30..60 => Kind::Sampled,
            60..75 => Kind::Penalised,
            75..87 => Kind::Grammar,
            87..95 => Kind::Hidden,
            95..98 => Kind::Logits,
            98 => Kind::Cancelled,
            _ => Kind::Bad,
        }
    }
}

/// All requests of a run.
pub(super) struct Plans {
    seed: u64,
    count: usize,
    n_vocab: u32,
    grammar: Grammar,
}

/// One request.
pub(super) struct Plan {
    pub(super) number: usize,
    pub(super) kind: Kind,
    tokens: Vec<u32>,
    generated: usize,
    /// It is cancelled once it has so many tokens.
    pub(super) cancel_after: Option<usize>,
    seed: u64,
    grammar: Grammar,
}

impl Plans {
    pub(super) fn new(seed: u64, count: usize, n_vocab: u32) -> Result<Self, Failure> {
        // Letters, spaces and an end stand for the first tokens; the others have no text.
        let text = |id: u32| match id {
            0 => b"<end>".to_vec(),
            1 => b" ".to_vec(),
            2..28 => vec![b'a' + (id - 2) as u8],
            _ => Vec::new(),
        };
        let vocabulary = Vocabulary {
            tokens: (0..n_vocab).map(text).collect(),
            special: vec![0],
            eos: vec![0],
        };
        let trie = TokenTrie::new(vocabulary).map_err(|e| e.to_string())?;
        let source = GrammarSource::Regex(REGEX.to_owned());
        let grammar = Grammar::compile(source, &trie).map_err(|e| e.to_string())?;
        Ok(Plans {
            seed,
            count,
            n_vocab,
            grammar,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Positions that all requests need together.
    pub(super) fn positions(&self) -> u64 {
        let one = |i| {
            let plan = self.get(i);
            (plan.tokens.len() + plan.generated) as u64
        };
        (0..self.count).map(one).sum()
    }

    /// How many there are of each kind.
    pub(super) fn kinds(&self) -> Vec<(&'static str, usize)> {
        let of = |kind: Kind| {
            (0..self.count)
                .filter(|&i| self.get(i).kind == kind)
                .count()
        };
        Kind::ALL.map(|kind| (kind.name(), of(kind))).into()
    }

    pub(super) fn get(&self, number: usize) -> Plan {
        let random = |what: u64| uniform(self.seed.wrapping_add(what), number as u64);
        let share = |what| (random(what) >> 11) as f64 / (1u64 << 53) as f64;
        let len = LONGEST.powf(share(1)).ceil() as usize;
        let stem = (random(2) % 100 < 30).then(|| random(3) % STEMS);
        let token =
            |seed: u64, i: usize| (uniform(seed, i as u64) % u64::from(self.n_vocab)) as u32;
        let own = random(4);
        let tokens = (0..len).map(|i| match stem {
            Some(stem) if i < STEM_TOKENS.min(len - 1) => token(self.seed ^ stem, i),
            _ => token(own, i),
        });
        let kind = Kind::of(random(5) % 100);
        let mut tokens: Vec<u32> = tokens.collect();
        let generated = 1 + (random(6) % 24) as usize;
        if kind == Kind::Bad {
            tokens = if random(7) % 2 == 0 {
                vec![]
            } else {
                vec![self.n_vocab]
            };
        }
        let cancelled = kind == Kind::Cancelled;
        Plan {
            number,
            kind,
            tokens,
            generated: if cancelled { 90 } else { generated },
            cancel_after: cancelled.then_some((random(8) % 6) as usize),
            seed: random(9),
            grammar: self.grammar.clone(),
        }
    }
}

impl Plan {
    /// The same request, left to its end.
    pub(super) fn uncancelled(self) -> Self {
        Plan {
            cancel_after: None,
            ..self
        }
    }

    /// Asks for it.
    pub(super) fn ask(&self, handle: &EngineHandle) -> Answer {
        let read = |output: &str| {
            handle.read(ReadRequest::new(
                self.tokens.iter().take(600).copied().collect(),
                PlanRole::Main,
                output,
            ))
        };
        match self.kind {
            Kind::Hidden => read("hidden"),
            Kind::Logits => read("logits"),
            _ => handle.generate(self.request()),
        }
    }

    fn request(&self) -> Request {
        let constraint = || -> Box<dyn Constraint> {
            let words = self.grammar.mask_len();
            Box::new(Walk {
                state: self.grammar.start(),
                words,
            })
        };
        Request {
            prompt: self.tokens.clone(),
            sampling: self.sampling(),
            stop: StopRules {
                max_tokens: Some(self.generated),
                stop_ids: vec![0],
                ..StopRules::default()
            },
            constraint: (self.kind == Kind::Grammar).then(constraint),
            ..Request::default()
        }
    }

    fn sampling(&self) -> Sampling {
        let sampled = Sampling {
            seed: self.seed,
            ..Sampling::default()
        };
        match self.kind {
            Kind::Sampled | Kind::Grammar => sampled,
            Kind::Penalised => Sampling {
                repeat_penalty: 1.3,
                frequency_penalty: 0.2,
                bias: vec![(7, 2.0), (9, f32::NEG_INFINITY)],
                dry: (self.seed.is_multiple_of(2)).then(|| Dry {
                    multiplier: 0.8,
                    base: 1.75,
                    allowed_length: 2,
                    last_n: None,
                    breakers: [1].into(),
                }),
                ..sampled
            },
            _ => Sampling::greedy(),
        }
    }
}

/// One answer on its way through the grammar.
struct Walk {
    state: GrammarState,
    words: usize,
}

impl Constraint for Walk {
    fn accept(&mut self, token: u32, _: &mut Vec<u32>) -> Result<(), String> {
        self.state.accept(token).map_err(|e| e.to_string())
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        let mut words = vec![0; self.words];
        self.state.mask(&mut words).map_err(|e| e.to_string())?;
        Ok(Some(Mask::new(words)))
    }
}
