//! Multi-token-prediction heads, run behind the trunk.

use tokkata_ir::{PlanRole, SeqRows, Source, Ticket, ValueId, Work};

use super::{Failure, Feeding, Loaded, Seen, every_row, slots};

/// The output of the trunk that the first head reads; who asks for it gets the heads built.
pub(crate) const DRAFT_INPUT: &str = "draft_input";

/// A head's plan: where it stands and the values it is run by.
struct Head {
    plan: usize,
    hidden: ValueId,
    logits: ValueId,
    next: Option<ValueId>,
}

impl Loaded {
    /// Logits `[H, T, vocabulary]` of every head over `ids` from an empty cache. Row t of a head reads token t and what the
    /// trunk, or the head before it, made of the position before; row 0 reads zeros there. With `kept` a wrong ending
    /// after so many positions was fed and taken back.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn heads(
        &mut self,
        ids: &[u32],
        kept: Option<usize>,
        feeding: Feeding,
    ) -> Result<Vec<f32>, Failure> {
        let mut hidden = match kept {
            Some(kept) => self.truncated(ids, kept, feeding)?,
            None => self.logits(ids, feeding)?,
        };
        let mut all = Vec::new();
        for number in 0.. {
            let Some(head) = self.head(number) else { break };
            hidden = later(&hidden, ids.len());
            let mut both = (Vec::new(), Vec::new());
            let kept = kept.unwrap_or(ids.len());
            if kept < ids.len() {
                let mut wrong = ids.to_vec();
                wrong[kept..].rotate_left(1);
                self.feed_head(
                    &head,
                    &wrong,
                    &hidden,
                    (0, feeding),
                    &mut Default::default(),
                )?;
            }
            self.feed_head(&head, &ids[..kept], &hidden, (0, feeding), &mut both)?;
            self.feed_head(&head, &ids[kept..], &hidden, (kept, feeding), &mut both)?;
            all.extend(both.0);
            hidden = both.1;
        }
        if all.is_empty() {
            return Err("the model has no head".to_owned());
        }
        Ok(all)
    }

    /// Every float value of the heads over `ids`, behind a trunk that was fed them and gave `hidden` for the first.
    pub(super) fn trace_heads(
        &mut self,
        ids: &[u32],
        mut hidden: Vec<f32>,
    ) -> Result<Vec<Seen>, Failure> {
        let mut all = Vec::new();
        for number in 0.. {
            let Some(head) = self.head(number) else { break };
            hidden = later(&hidden, ids.len());
            let made = self.floats_of(head.plan);
            let keep = made.iter().map(|(value, ..)| *value).collect();
            let ticket = self.step_head(&head, (ids, &hidden), (0, ids.len(), 1), keep)?;
            all.extend(self.seen(head.plan, made, &ticket)?);
            hidden = match head.next {
                Some(next) => self.read_of(&ticket, (head.plan, next))?,
                None => break,
            };
        }
        Ok(all)
    }

    fn head(&self, number: u32) -> Option<Head> {
        let (index, plan) = self.program.plan(PlanRole::Draft(number))?;
        Some(Head {
            plan: index,
            hidden: plan.input("hidden")?,
            logits: plan.output("logits")?,
            next: plan.output("hidden"),
        })
    }

    /// Feeds `ids` after `past` positions and adds the rows of logits and of the next head's input.
    fn feed_head(
        &mut self,
        head: &Head,
        ids: &[u32],
        hidden: &[f32],
        (past, feeding): (usize, Feeding),
        out: &mut (Vec<f32>, Vec<f32>),
    ) -> Result<(), Failure> {
        let (copies, mut done, end) = (feeding.sequences, past, past + ids.len());
        for chunk in ids.chunks(feeding.chunk.min(ids.len()).max(1)) {
            let keep = [Some(head.logits), head.next];
            let keep = keep.into_iter().flatten().collect();
            let ticket = self.step_head(head, (chunk, hidden), (done, end, copies), keep)?;
            let logits = (head.plan, head.logits);
            out.0.extend(self.first_copy(&ticket, logits, copies)?);
            if let Some(next) = head.next {
                let next = (head.plan, next);
                out.1.extend(self.first_copy(&ticket, next, copies)?);
            }
            done += chunk.len();
        }
        Ok(())
    }

    /// One step over a chunk that begins at `done` of `end` positions in all.
    fn step_head(
        &mut self,
        head: &Head,
        (chunk, hidden): (&[u32], &[f32]),
        (done, end, copies): (usize, usize, usize),
        keep: Vec<ValueId>,
    ) -> Result<Ticket, Failure> {
        let input = self.program.plans[head.plan].value(head.hidden);
        let width = input.shape.width();
        let rows = |slot| SeqRows {
            logits: every_row(chunk.len()),
            ..SeqRows::tokens(slot, chunk)
        };
        let fed = hidden[done * width..(done + chunk.len()) * width].repeat(copies);
        let deltas = (0..copies).flat_map(|s| self.deltas(s, (done, end)));
        let work = Work {
            plan: head.plan,
            deltas: deltas.collect(),
            rows: slots(copies).map(rows).collect(),
            feeds: vec![(head.hidden, Source::Host(fed))],
            keep,
            ..Work::default()
        };
        self.finish(work)
    }

    fn first_copy(
        &mut self,
        ticket: &Ticket,
        value: (usize, ValueId),
        copies: usize,
    ) -> Result<Vec<f32>, Failure> {
        self.copies_of(ticket, value, copies)?
            .ok_or_else(|| "copies of a head differ".to_owned())
    }
}

/// Each of `count` rows one place later, zeros first.
fn later(rows: &[f32], count: usize) -> Vec<f32> {
    let width = rows.len() / count;
    let mut out = vec![0.0; width];
    out.extend_from_slice(&rows[..rows.len() - width]);
    out
}
