//! Heads that guess for their own trunk, and drafters that read its states: no text changes, and a guess is what their
//! logits say.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokkata_archs::{Registry, ResolveOptions};
use tokkata_core::DType;
use tokkata_engine::speculate::{DraftCounts, Drafter, Guess, OwnHead, Speculation, Wanted};
use tokkata_engine::{Engine, EventKind, Request, Sampling, StopRules};
use tokkata_ir::spec::DraftForm;
use tokkata_ir::{Device, Limits, Program};
use tokkata_plan::BuildOptions;

use crate::generate;
use crate::golden::{Golden, Rows, ids};
use crate::models::{Failure, Feeding, Target, load_for};
use crate::turns::engine;

const CTX: usize = 128;
/// Tokens of a prompt and of its answer.
const PROMPT: usize = 20;
const ANSWER: usize = 60;
/// Requests at once.
const SEQS: u32 = 3;
/// Tokens of a guess.
const MOST: usize = 3;
/// Tokens that short heads do not know.
const RARE: u32 = 3;
/// Rows of a step, so that prompts take several.
const ROWS: u32 = 13;

/// A model with its drafter, ready for an engine.
struct Model {
    golden: Golden,
    program: Arc<Program>,
    form: DraftForm,
    /// Drafters that follow each other.
    heads: usize,
    /// Tokens that these also tell apart alone; 0 where they do not.
    short: u32,
}

/// Tokens of a text, and how few of them may be unknown to a short head for it to guess.
const RECENT: usize = 256;
const COMMON: usize = 8;

impl Model {
    fn new(name: &str, short: bool) -> Result<Self, Failure> {
        let golden = Golden::read(&Golden::folder(), name)?;
        let file = generate::model(&golden)?;
        let ctx = CTX as u32;
        let spec = Registry::builtin().resolve(&file, &ResolveOptions { ctx });
        let spec = spec.map_err(|e| e.to_string())?;
        let limits = Limits {
            rows: ROWS,
            seqs: SEQS,
            logit_rows: SEQS * (1 + MOST as u32),
            ctx,
            draft: 1 + MOST as u32,
            kv_dtype: DType::F32,
            ..Limits::default()
        };
        let build = BuildOptions {
            drafts: usize::MAX,
            short: if short { spec.n_vocab - RARE } else { 0 },
            ..BuildOptions::default()
        };
        let (form, heads) = match spec.drafts.first() {
            Some(draft) => (draft.form.clone(), spec.drafts.len()),
            None => return Err("the model has no drafter".to_owned()),
        };
        let program = tokkata_plan::build_with(&spec, &limits, &build);
        let program = Arc::new(program.map_err(|e| e.to_string())?);
        Ok(Model {
            golden,
            program,
            short: if form == DraftForm::default() {
                build.short
            } else {
                0
            },
            form,
            heads,
        })
    }

    /// An engine, whose head guesses so many tokens, whether it pays or not; none for 0.
    fn engine(&self, device: &dyn Device, most: usize, stores: bool) -> Result<Engine, Failure> {
        self.engine_beside(device, most, stores, None)
    }

    /// The same where another drafter is asked before the head.
    fn engine_beside(
        &self,
        device: &dyn Device,
        most: usize,
        stores: bool,
        first: Option<Box<dyn Drafter>>,
    ) -> Result<Engine, Failure> {
        let copies = u64::from(2 * SEQS);
        let mut engine = engine(&self.golden, device, &self.program, (copies, stores))?;
        if most > 0 {
            let head = OwnHead {
                form: self.form.clone(),
                ..OwnHead::default()
            };
            let head: Box<dyn Drafter> = Box::new(head);
            engine.speculate(Speculation {
                drafters: first.into_iter().chain([head]).collect(),
                most,
                adaptive: false,
                pretended: None,
            });
        }
        Ok(engine)
    }

    fn prompt(&self, seed: u32, len: usize) -> Vec<u32> {
        ids(seed, len, self.program.n_vocab)
    }

    /// Tokens of a guess that the logits of rows fed whole tell: one of each head, or a block's.
    fn told(&self) -> usize {
        self.form.block.map_or(self.heads, |b| b.size as usize - 1)
    }

    /// Logits behind every position of a text, by rows that were fed whole: of each head, or place of a block.
    fn told_by(&self, device: &dyn Device, tokens: &[u32]) -> Result<Vec<f32>, Failure> {
        let file = generate::model(&self.golden)?;
        let target = Target {
            output: Rows::Heads.output(),
            ..Target::new(device, CTX, Feeding::WHOLE)
        };
        let mut loaded = load_for(&file, &Registry::builtin(), &target)?;
        loaded.heads(tokens, None, Feeding::WHOLE)
    }

    /// What is guessed by such logits of `count` rows, of the first so many tokens.
    fn best(&self, logits: &[f32], count: usize, known: usize) -> Result<Vec<Vec<u32>>, Failure> {
        let best = |row: &[f32]| {
            let found = tokkata_ir::sample::argmax(&row[..known]);
            found.map_err(|e| format!("{e:?}"))
        };
        let width = self.program.n_vocab as usize;
        let heads = logits.chunks(width * count).take(self.told());
        heads.map(|h| h.chunks(width).map(best).collect()).collect()
    }

    /// Whether short heads guess behind a text.
    fn is_common(&self, text: &[u32]) -> bool {
        let recent = &text[text.len().saturating_sub(RECENT)..];
        let rare = recent.iter().filter(|&&t| t >= self.short).count();
        self.short > 0 && rare * COMMON <= recent.len()
    }

    /// The guess behind the first `n` tokens of a text, whose own tokens it is right up to each.
    fn guess(&self, best: &[Vec<u32>], n: usize) -> Vec<u32> {
        let place = |j| match self.form.block {
            Some(_) => n - 1,
            None => n - 1 + j,
        };
        let of = |(j, rows): (usize, &Vec<u32>)| rows.get(place(j)).copied();
        best.iter().enumerate().map_while(of).collect()
    }

    /// What becomes of guesses of `most` tokens while a text is written, when these are the best.
    fn expected(&self, text: &[u32], best: [&[Vec<u32>]; 2], most: usize) -> DraftCounts {
        let mut counts = DraftCounts::default();
        let mut n = PROMPT + 1;
        while n + 1 < text.len() {
            let guess = self.guess(best[usize::from(self.is_common(&text[..n]))], n);
            let guess = &guess[..most.min(text.len() - n - 1).min(guess.len())];
            let right = guess.iter().zip(&text[n..]).take_while(|(a, b)| a == b);
            let right = right.count();
            counts.drafts += 1;
            counts.tried += guess.len() as u64;
            counts.accepted += right as u64;
            n += 1 + right;
        }
        counts
    }
}

/// A drafter that knows whole texts, and tells two tokens of them at every third place.
struct Knows(Vec<Vec<u32>>);

impl Drafter for Knows {
    fn name(&self) -> &'static str {
        "knows"
    }

    fn guess(&mut self, wanted: &[Wanted<'_>]) -> Vec<Guess> {
        let guess = |w: &Wanted<'_>| {
            let at = w.tokens.len();
            let text = self.0.iter().find(|t| t.starts_with(w.tokens));
            let next = text.map_or(&[][..], |t| &t[at..]);
            let most = if at.is_multiple_of(3) {
                w.most.min(2)
            } else {
                0
            };
            Guess {
                tokens: next.iter().copied().take(most).collect(),
                class: 0,
            }
        };
        wanted.iter().map(guess).collect()
    }
}

fn sampling(way: usize) -> Sampling {
    match way {
        0 => Sampling::greedy(),
        1 => Sampling {
            temperature: 0.8,
            seed: 7,
            ..Sampling::greedy()
        },
        _ => Sampling {
            temperature: 1.1,
            seed: 3,
            top_k: 20,
            frequency_penalty: 0.4,
            ..Sampling::greedy()
        },
    }
}

/// The answers to prompts that are asked at once, each drawn in its own way.
fn answers(engine: &mut Engine, prompts: &[(Vec<u32>, usize)]) -> Result<Vec<Vec<u32>>, Failure> {
    let ask = |(prompt, way): &(Vec<u32>, usize)| Request {
        prompt: prompt.clone(),
        sampling: sampling(*way),
        stop: StopRules {
            max_tokens: Some(ANSWER),
            ..StopRules::default()
        },
        ..Request::default()
    };
    let ids = prompts.iter().map(|p| engine.submit(ask(p)));
    let ids: Vec<_> = ids
        .collect::<Result<_, _>>()
        .map_err(|e: tokkata_engine::EngineError| e.to_string())?;
    let mut all = vec![Vec::new(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step() {
            let at = ids.iter().position(|&id| id == event.request);
            match (at, event.kind) {
                (Some(at), EventKind::Token { id, .. }) => all[at].push(id),
                (_, EventKind::Failed(error)) => return Err(error.to_string()),
                _ => {}
            }
        }
    }
    Ok(all)
}

/// A text of a request alone, by guesses of one token and of as many as logits tell; how many were right.
fn alone(model: &Model, device: &dyn Device, seed: u32) -> Result<u64, Failure> {
    let prompt = [(model.prompt(seed, PROMPT), 0)];
    let text = answers(&mut model.engine(device, 0, false)?, &prompt)?;
    let text = [&prompt[0].0[..], &text[0]].concat();
    let logits = model.told_by(device, &text)?;
    let of = |known| model.best(&logits, text.len(), known as usize);
    let (all, common) = (of(model.program.n_vocab)?, of(model.short.max(1))?);
    let mut right = 0;
    for most in BTreeSet::from([1, model.told().min(MOST)]) {
        let mut engine = model.engine(device, most, false)?;
        if answers(&mut engine, &prompt)?[0] != text[PROMPT..] {
            return Err("another text alone".to_owned());
        }
        let want = model.expected(&text, [&all, &common], most);
        let counts = engine.draft_counts();
        let [(_, found)] = counts[..] else {
            return Err(format!("counts of {counts:?}"));
        };
        if found != want {
            return Err(format!("{most}: {found:?}, by the logits {want:?}"));
        }
        right += found.accepted;
    }
    match [
        counted(model, device, &prompt[..1])?,
        counted(model, device, &[&prompt[..], &prompt[..]].concat())?,
    ] {
        [one, two] if [2 * one.tried, 2 * one.accepted] == [two.tried, two.accepted] => Ok(right),
        other => Err(format!(
            "other guesses alone than beside another: {other:?}"
        )),
    }
}

/// What becomes of guesses while answers to prompts are written at once.
fn counted(
    model: &Model,
    device: &dyn Device,
    prompts: &[(Vec<u32>, usize)],
) -> Result<DraftCounts, Failure> {
    let mut engine = model.engine(device, MOST, false)?;
    answers(&mut engine, prompts)?;
    let counts = engine.draft_counts();
    let first = counts.first().ok_or("nobody guessed")?;
    Ok(first.1)
}

/// How many guesses were right in texts that are written alone.
fn all_alone(name: &str, device: &dyn Device) -> Result<u64, Failure> {
    let short = Model::new(name, true)?;
    let model = Model::new(name, false)?;
    let mut accepted = 0;
    for seed in [5, 6, 7] {
        accepted += alone(&model, device, seed)?;
        if short.short > 0 {
            accepted += alone(&short, device, seed)?;
        }
    }
    Ok(accepted)
}

/// Texts that are written beside others, with the head's guesses alone and beside another drafter's.
fn beside_others(name: &str, device: &dyn Device) -> Result<(), Failure> {
    let model = Model::new(name, false)?;
    // Several at once, of which some go on from what others stored.
    let prompts =
        |seed: u32| (0..4u32).map(move |i| (seed + i / 2, PROMPT + 5 * i as usize, i as usize));
    let prompts: Vec<(Vec<u32>, usize)> = prompts(9)
        .map(|(seed, len, way)| (model.prompt(seed, len), way % 3))
        .collect();
    let want = answers(&mut model.engine(device, 0, false)?, &prompts)?;
    for stores in [false, true] {
        let mut engine = model.engine(device, MOST, stores)?;
        for _ in 0..2 {
            if answers(&mut engine, &prompts)? != want {
                return Err(format!("another text, blocks stored: {stores}"));
            }
        }
        let tried: u64 = engine.draft_counts().iter().map(|c| c.1.tried).sum();
        if tried == 0 {
            return Err("nothing was guessed".to_owned());
        }
    }
    // Where some guesses are another drafter's, rows of the head stand before those that were right.
    let texts = prompts.iter().zip(&want);
    let texts = texts.map(|((prompt, _), answer)| [&prompt[..], answer].concat());
    let knows = Box::new(Knows(texts.collect()));
    let mut engine = model.engine_beside(device, MOST, false, Some(knows))?;
    if answers(&mut engine, &prompts)? != want {
        return Err("another text beside another drafter".to_owned());
    }
    let counts = engine.draft_counts();
    if counts.len() != 2 || counts[0].1.accepted == 0 || counts[1].1.tried == 0 {
        return Err(format!("one of two drafters guessed nothing: {counts:?}"));
    }
    Ok(())
}

/// Goldens of heads and of drafters.
fn names() -> Vec<String> {
    let names = Golden::list(&Golden::folder()).expect("goldens");
    let names: Vec<String> = names
        .into_iter()
        .filter(|n| n.ends_with("+heads"))
        .collect();
    assert!(names.len() >= 19, "found {} goldens", names.len());
    names
}

/// What each golden gives, if all are without a fault.
fn without_faults<T>(of: impl Fn(&str) -> Result<T, Failure>) -> Vec<T> {
    let mut good = Vec::new();
    let mut faults = Vec::new();
    for name in names() {
        match of(&name) {
            Ok(found) => good.push(found),
            Err(error) => faults.push(format!("{name}: {error}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    good
}

/// Every golden of heads and of drafters: answers are the same with their guesses, among others and beside another drafter's.
///
/// # Panics
/// Where that is not so.
pub fn verify_texts(device: &dyn Device) {
    without_faults(|name| beside_others(name, device));
}

/// The same, and alone; and guesses are what their logits say, on a device whose rows have the same bits fed whole.
///
/// # Panics
/// Where that is not so, or where hardly a guess is right.
pub fn verify(device: &dyn Device) {
    verify_texts(device);
    let accepted: u64 = without_faults(|name| all_alone(name, device)).iter().sum();
    assert!(accepted >= 10, "only {accepted} guesses were right");
}
