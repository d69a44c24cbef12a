//! Heads that guess for their own trunk: no text changes, and a guess is what the head's logits say.

use std::sync::Arc;

use tokkata_archs::{Registry, ResolveOptions};
use tokkata_core::DType;
use tokkata_engine::speculate::{DraftCounts, OwnHead, Speculation};
use tokkata_engine::{Engine, EventKind, Request, Sampling, StopRules};
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
/// Rows of a step, so that prompts take several.
const ROWS: u32 = 13;

/// A model with its first head, ready for an engine.
struct Model {
    golden: Golden,
    program: Arc<Program>,
}

impl Model {
    fn new(name: &str) -> Result<Self, Failure> {
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
            drafts: 1,
            ..BuildOptions::default()
        };
        let program = tokkata_plan::build_with(&spec, &limits, &build);
        let program = Arc::new(program.map_err(|e| e.to_string())?);
        Ok(Model { golden, program })
    }

    /// An engine, whose head guesses so many tokens, whether it pays or not; none for 0.
    fn engine(&self, device: &dyn Device, most: usize, stores: bool) -> Result<Engine, Failure> {
        let copies = u64::from(2 * SEQS);
        let mut engine = engine(&self.golden, device, &self.program, (copies, stores))?;
        if most > 0 {
            engine.speculate(Speculation {
                drafters: vec![Box::new(OwnHead)],
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

    /// What the head guesses behind every position of a text, by rows that were fed whole.
    fn best(&self, device: &dyn Device, tokens: &[u32]) -> Result<Vec<u32>, Failure> {
        let file = generate::model(&self.golden)?;
        let target = Target {
            device,
            ctx: CTX,
            feeding: Feeding::WHOLE,
            output: Rows::Heads.output(),
            encoder: &[],
            draft: 0,
            adapters: 0,
        };
        let mut loaded = load_for(&file, &Registry::builtin(), &target)?;
        let logits = loaded.heads(tokens, None, Feeding::WHOLE)?;
        let rows = logits.chunks(self.program.n_vocab as usize);
        let best = |row: &[f32]| tokkata_ir::sample::argmax(row).map_err(|e| format!("{e:?}"));
        rows.take(tokens.len()).map(best).collect()
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

/// What becomes of guesses of one token each while a text is written, when these are the guesses.
fn expected(text: &[u32], best: &[u32]) -> DraftCounts {
    let mut counts = DraftCounts::default();
    let mut n = PROMPT + 1;
    while n + 1 < text.len() {
        counts.drafts += 1;
        counts.tried += 1;
        let right = best[n - 1] == text[n];
        counts.accepted += u64::from(right);
        n += 1 + usize::from(right);
    }
    counts
}

/// A text of a request alone, by guesses of one token; how many were right.
fn alone(model: &Model, device: &dyn Device, seed: u32) -> Result<u64, Failure> {
    let prompt = [(model.prompt(seed, PROMPT), 0)];
    let text = answers(&mut model.engine(device, 0, false)?, &prompt)?;
    let text = [&prompt[0].0[..], &text[0]].concat();
    let mut engine = model.engine(device, 1, false)?;
    if answers(&mut engine, &prompt)?[0] != text[PROMPT..] {
        return Err("another text alone".to_owned());
    }
    let want = expected(&text, &model.best(device, &text)?);
    let counts = engine.draft_counts();
    let [("mtp", found)] = counts[..] else {
        return Err(format!("counts of {counts:?}"));
    };
    match found == want {
        true => Ok(found.accepted),
        false => Err(format!("{found:?}, by the head's logits {want:?}")),
    }
}

fn fault(name: &str, device: &dyn Device) -> Result<u64, Failure> {
    let model = Model::new(name)?;
    let mut accepted = 0;
    for seed in [5, 6, 7] {
        accepted += alone(&model, device, seed)?;
    }
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
    Ok(accepted)
}

/// Every golden of heads: answers are the same with guesses of the first head, alone and among others, and guesses are what
/// its logits say.
///
/// # Panics
/// Where that is not so, or where hardly a guess is right.
pub fn verify(device: &dyn Device) {
    let names = Golden::list(&Golden::folder()).expect("goldens");
    let names: Vec<String> = names
        .into_iter()
        .filter(|n| n.ends_with("+heads"))
        .collect();
    assert!(names.len() >= 14, "found {} goldens", names.len());
    let mut accepted = 0;
    let mut faults = Vec::new();
    for name in &names {
        match fault(name, device) {
            Ok(right) => accepted += right,
            Err(error) => faults.push(format!("{name}: {error}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(accepted >= 10, "only {accepted} guesses were right");
}
