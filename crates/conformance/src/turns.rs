//! Turns of a conversation, counted: what is computed of a prompt that goes on from the one before it, or leaves it.

use std::sync::Arc;

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_core::DType;
use tokkata_engine::{
    CacheOptions, Engine, EngineOptions, EventKind, Request, Sampling, SessionId, Stats, StopRules,
};
use tokkata_ir::spec::DraftForm;
use tokkata_ir::{ArenaLayout, CacheGroup, CacheKind, Device, Limits, LoadOptions, Program};
use tokkata_plan::BuildOptions;

use crate::generate;
use crate::golden::{Golden, ids};
use crate::models::Failure;

/// Positions of a sequence, where the model has as many.
const CTX: usize = 1152;
/// Tokens of the first turn, of its answer, and of what comes next.
const TURN: [usize; 3] = [12, 4, 3];
/// Tokens of a long prompt, and those that the next one shares with it: a state of the first 1,024 is kept.
const LONG: [usize; 2] = [1120, 1060];
/// Tokens between two states that are kept.
const KEPT: usize = 1024;

/// A model, loaded for one conversation.
struct Talk {
    engine: Engine,
    session: SessionId,
}

/// What came of a turn.
#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    stats: Stats,
}

/// The program of a golden that writes text from tokens alone, with so many of its drafters, and how these are run.
///
/// # Errors
/// The text of whatever failed.
pub(crate) fn program(
    golden: &Golden,
    limits: &Limits,
    drafts: usize,
) -> Result<Option<(Program, Option<DraftForm>)>, Failure> {
    let file = generate::model(golden)?;
    let ctx = limits.ctx;
    let spec = Registry::builtin().resolve(&file, &ResolveOptions { ctx });
    let spec = spec.map_err(|e| e.to_string())?;
    let build = BuildOptions {
        drafts,
        ..BuildOptions::default()
    };
    let program = tokkata_plan::build_with(&spec, limits, &build);
    let program = program.map_err(|e| e.to_string())?;
    let writes = program.plans[0].output("tokens").is_some();
    let encodes = program.caches.iter().any(|g| g.kind == CacheKind::Cross);
    let form = spec.drafts.first().filter(|_| drafts > 0);
    let form = form.map(|draft| draft.form.clone());
    Ok((writes && !encodes && !spec.bidirectional).then_some((program, form)))
}

/// An engine over a golden's program, with blocks for so many whole sequences, that stores prefixes or does not.
///
/// # Errors
/// The text of whatever failed.
pub(crate) fn engine(
    golden: &Golden,
    device: &dyn Device,
    program: &Arc<Program>,
    (copies, stores): (u64, bool),
) -> Result<Engine, Failure> {
    let file = generate::model(golden)?;
    let (weights, load) = (FileWeights(&file), LoadOptions::default());
    let loaded = device.load(program.clone(), &weights, &load);
    let loaded = loaded.map_err(|e| e.to_string())?;
    let counts = program.caches.iter();
    let counts = counts.map(|g| g.blocks_of_sequence(&program.limits) * copies);
    let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &counts.collect::<Vec<_>>());
    let executor = loaded.open(arena).map_err(|e| e.to_string())?;
    let options = EngineOptions {
        cache: CacheOptions {
            no_prefix_cache: !stores,
            ..CacheOptions::default()
        },
        ..EngineOptions::default()
    };
    Engine::new(program.clone(), executor, options).map_err(|e| e.to_string())
}

impl Talk {
    fn new(
        golden: &Golden,
        device: &dyn Device,
        program: &Arc<Program>,
        stores: bool,
    ) -> Result<Self, Failure> {
        let mut engine = engine(golden, device, program, (3, stores))?;
        let session = engine.open_session(0);
        Ok(Talk { engine, session })
    }

    fn turn(&mut self, prompt: &[u32], tokens: usize) -> Result<Answer, Failure> {
        let request = Request {
            prompt: prompt.to_vec(),
            sampling: Sampling::greedy(),
            stop: StopRules {
                max_tokens: Some(tokens),
                ..StopRules::default()
            },
            ..Request::default()
        };
        let id = self.engine.submit_to(self.session, request);
        let id = id.map_err(|e| e.to_string())?;
        let mut tokens = Vec::new();
        loop {
            self.engine.wait();
            while let Some(event) = self.engine.next_event(id) {
                match event {
                    EventKind::Token { id, .. } => tokens.push(id),
                    EventKind::Finished { stats, .. } => return Ok(Answer { tokens, stats }),
                    EventKind::Failed(error) => return Err(error.to_string()),
                    EventKind::Prompt { .. } | EventKind::Values { .. } => {}
                }
            }
        }
    }
}

/// What is wrong with the turns of one golden's model; `None` where it does not write text from tokens alone.
fn faults(golden: &Golden, device: &dyn Device) -> Result<Option<Vec<String>>, Failure> {
    // Learned positions end where the file's do.
    let long = faults_within(golden, device, CTX);
    long.or_else(|_| faults_within(golden, device, golden.positions))
}

fn faults_within(
    golden: &Golden,
    device: &dyn Device,
    ctx: usize,
) -> Result<Option<Vec<String>>, Failure> {
    let limits = Limits {
        rows: 256,
        seqs: 2,
        logit_rows: 2,
        ctx: ctx as u32,
        kv_dtype: DType::F32,
        ..Limits::default()
    };
    let Some((program, _)) = program(golden, &limits, 0)? else {
        return Ok(None);
    };
    let program = Arc::new(program);
    let mut talk = Talk::new(golden, device, &program, true)?;
    let mut fresh = Talk::new(golden, device, &program, false)?;
    let mut faults = Vec::new();
    let mut check =
        |talk: &mut Talk, prompt: &[u32], reused: std::ops::RangeInclusive<usize>, answer| {
            let got = talk.turn(prompt, answer)?;
            fresh
                .engine
                .truncate_session(fresh.session, 0)
                .map_err(|e| e.to_string())?;
            let want = fresh.turn(prompt, answer)?;
            let (stats, len) = (got.stats, prompt.len());
            if !reused.contains(&stats.reused_tokens)
                || stats.reused_tokens + stats.computed_tokens != len
            {
                faults.push(format!(
                    "of {len} tokens {} were known and {} computed, expected {reused:?} known",
                    stats.reused_tokens, stats.computed_tokens
                ));
            }
            if got.tokens != want.tokens {
                faults.push(format!("{:?} differs from {:?}", got.tokens, want.tokens));
            }
            Ok::<_, Failure>(got.tokens)
        };
    let all = |n: usize| ids(golden.seed, n, golden.vocabulary() as u32);
    let [first, answer, next] = TURN;
    let mut told = all(first);
    for turn in 0..3 {
        // The newest token of an answer was never fed.
        let known = if turn == 0 { 0 } else { told.len() - next - 1 };
        let written = check(&mut talk, &told, known..=known, answer)?;
        told.extend(written);
        told.extend(&all(first + next)[first..]);
    }
    let [long, shared] = LONG;
    if long < ctx {
        let mut told = all(long);
        check(&mut talk, &told, 0..=first, 1)?;
        told.truncate(shared);
        told.extend([1, 2, 3]);
        let goes_back = |g: &CacheGroup| g.kind == CacheKind::Full;
        let least = match program.caches.iter().all(goes_back) {
            true => shared,
            false => KEPT,
        };
        check(&mut talk, &told, least..=shared, 1)?;
    }
    Ok(Some(faults))
}

/// Runs a conversation with every named golden's model: three turns that go on, then a long prompt and one that leaves
/// it half-way, each against the answer of a model that was told all of it anew.
///
/// # Panics
/// With what differs, or when fewer than `least` models have turns.
pub fn verify(device: &dyn Device, names: &[String], least: usize) {
    Golden::hold(names, (least, 1), |_, golden| faults(golden, device));
}
