//! Runs a prompt and a few decoding steps and adds up what the backend measured of each.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use tokkata::cost::StepClass;
use tokkata::{Feed, FeedLogits, Model, RowKind, SessionId, StepTime};

/// Steps of one kind.
#[derive(Debug, Default)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// Tokens computed.
    pub(super) tokens: u64,
    /// By the clock, all included.
    pub(super) wall_ns: u64,
    /// What each replay was.
    pub(super) classes: Vec<StepClass>,
    /// By plan, node and kernel.
    pub(super) times: BTreeMap<(usize, usize, &'static str), Spent>,
}

/// Time of one kernel of one node over all steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Spent {
    pub(super) layer: Option<u32>,
    pub(super) role: String,
    pub(super) wait_ns: u64,
    pub(super) run_ns: u64,
}

impl Phase {
    fn add(&mut self, class: StepClass, wall_ns: u64, times: Vec<StepTime>) {
        self.tokens += class.rows;
        self.wall_ns += wall_ns;
        self.classes.push(class);
        for time in times {
            let key = (time.plan, time.node, time.kernel);
            let spent = self.times.entry(key).or_insert_with(|| Spent {
                layer: time.site.layer,
                role: time.site.role,
                ..Spent::default()
            });
            spent.wait_ns += time.wait_ns;
            spent.run_ns += time.run_ns;
        }
    }
}

/// A sequence that is fed measured steps.
struct Subject<'a> {
    model: &'a mut Model,
    session: SessionId,
    past: u64,
}

impl Subject<'_> {
    fn step(&mut self, rows: u32, kind: RowKind, phase: &mut Phase) -> Result<()> {
        let vocabulary = self.model.n_vocab().max(1);
        let token = |i: u64| (i.wrapping_mul(2_654_435_761) % u64::from(vocabulary)) as u32;
        let tokens: Vec<u32> = (0..u64::from(rows)).map(|i| token(self.past + i)).collect();
        let feed = Feed {
            session: self.session,
            tokens: &tokens,
            rows: kind,
            logits: FeedLogits::Last,
        };
        let start = Instant::now();
        let fed = self.model.engine().feed(&[feed], &[])?;
        let wall = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let class = StepClass {
            rows: rows.into(),
            logit_rows: 1,
            past: self.past,
        };
        phase.add(class, wall, self.model.engine().times(&fed));
        self.past += u64::from(rows);
        Ok(())
    }

    fn prompt(&mut self, tokens: u32, phase: &mut Phase) -> Result<()> {
        let rows = self.model.limits().rows;
        let mut left = tokens;
        while left > 0 {
            self.step(left.min(rows), RowKind::Prompt, phase)?;
            left -= left.min(rows);
        }
        Ok(())
    }
}

/// Feeds `depth` tokens unmeasured, then `prompt` at once and `generated` one by one.
pub(super) fn phases(
    model: &mut Model,
    depth: u32,
    prompt: u32,
    generated: u32,
) -> Result<Vec<Phase>> {
    warm_up(model, prompt)?;
    let session = model.open_session();
    let mut subject = Subject {
        model,
        session,
        past: 0,
    };
    subject.prompt(depth, &mut Phase::default())?;
    subject.model.engine().measure(true);
    let mut prefill = Phase {
        name: "prefill",
        ..Phase::default()
    };
    subject.prompt(prompt, &mut prefill)?;
    let mut decode = Phase {
        name: "decode",
        ..Phase::default()
    };
    for _ in 0..generated {
        subject.step(1, RowKind::Answer, &mut decode)?;
    }
    let phases = [prefill, decode];
    Ok(phases.into_iter().filter(|p| p.tokens > 0).collect())
}

/// A first prompt and step touch memory that later ones find in place.
fn warm_up(model: &mut Model, prompt: u32) -> Result<()> {
    let session = model.open_session();
    let mut subject = Subject {
        model,
        session,
        past: 0,
    };
    subject.prompt(prompt, &mut Phase::default())?;
    let ctx = u64::from(subject.model.limits().ctx);
    if subject.past < ctx {
        subject.step(1, RowKind::Answer, &mut Phase::default())?;
    }
    model.engine().close_session(session);
    Ok(())
}
