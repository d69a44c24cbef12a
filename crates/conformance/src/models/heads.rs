//! Multi-token-prediction heads, run behind the trunk.

use tokkata_ir::spec::MaskedBlock;
use tokkata_ir::{PlanRole, SeqRows, Source, Ticket, ValueId, Work};

use super::{Failure, Feeding, Loaded, Seen, every_row, slots};

/// The output of the trunk that the first head reads; who asks for it gets the heads built.
pub(crate) const DRAFT_INPUT: &str = "draft_input";

/// A head's plan: where it stands and the values it is run by.
struct Head {
    plan: usize,
    hidden: Option<ValueId>,
    logits: ValueId,
    next: Option<ValueId>,
}

impl Loaded {
    /// Logits `[H, T, vocabulary]` of every head over `ids` from an empty cache. Row t of a head reads token t and what the
    /// trunk, or the head before it, made of the position before; row 0 reads zeros there. With `kept` a wrong ending
    /// after so many positions was fed and taken back. A drafter whose rows stand at its states is run twice, the second
    /// time over what it made itself, and has no row 0: zeros. Of one that fills blocks the rows of H are those of the
    /// tokens that it guesses behind token t.
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
        if let Some(block) = self.form.block {
            return self.blocks(ids, block, feeding.sequences);
        }
        let mut all = Vec::new();
        let passes = if self.form.at_state { 2 } else { u32::MAX };
        for number in 0..passes {
            let number = if self.form.at_state { 0 } else { number };
            let Some(head) = self.head(number) else { break };
            hidden = later(&hidden, ids.len());
            let kept = kept.unwrap_or(ids.len());
            if kept < ids.len() {
                let mut wrong = ids.to_vec();
                wrong[kept..].rotate_left(1);
                let whole = (0, wrong.len());
                self.feed_head(&head, &wrong, &hidden, (whole, feeding))?;
            }
            let first = usize::from(self.form.at_state);
            let mut both = self.unfed(&head, first);
            for part in [(first, kept), (kept, ids.len())] {
                let (logits, next) = self.feed_head(&head, ids, &hidden, (part, feeding))?;
                both.0.extend(logits);
                both.1.extend(next);
            }
            all.extend(self.spread(&both.0));
            hidden = both.1;
        }
        if all.is_empty() {
            return Err("the model has no head".to_owned());
        }
        Ok(all)
    }

    /// Zeros in the place of rows that a drafter does not have: logits and states.
    fn unfed(&self, head: &Head, rows: usize) -> (Vec<f32>, Vec<f32>) {
        let plan = &self.program.plans[head.plan];
        let width = |v| plan.value(v).shape.width();
        let states = head.next.map_or(0, width);
        (
            vec![0.0; rows * width(head.logits)],
            vec![0.0; rows * states],
        )
    }

    /// Logits of all tokens, of a drafter that knows fewer; rows that it does not have stay zeros.
    fn spread(&self, rows: &[f32]) -> Vec<f32> {
        let Some(ids) = &self.form.ids else {
            return rows.to_vec();
        };
        let n_vocab = self.program.n_vocab as usize;
        let one = |row: &[f32]| {
            let empty = row.iter().all(|&x| x == 0.0);
            let mut all = vec![if empty { 0.0 } else { f32::NEG_INFINITY }; n_vocab];
            ids.iter()
                .zip(row)
                .for_each(|(&id, &x)| all[id as usize] = x);
            all
        };
        rows.chunks(ids.len()).flat_map(one).collect()
    }

    /// Logits of the tokens that a block guesses behind each position, from the last one on: what a block leaves in the
    /// caches lies behind what the ones before it read.
    fn blocks(
        &mut self,
        ids: &[u32],
        block: MaskedBlock,
        copies: usize,
    ) -> Result<Vec<f32>, Failure> {
        let head = self.head(0).ok_or("the model has no drafter")?;
        let size = block.size as usize;
        let mut by_position = Vec::new();
        for t in (0..ids.len()).rev() {
            let mut tokens = vec![ids[t]];
            tokens.resize(size, block.mask);
            let keep = vec![head.logits];
            let at = (t, t + size, copies);
            let ticket = self.step_head(&head, (&tokens, &[]), at, keep)?;
            let logits = self.first_copy(&ticket, (head.plan, head.logits), copies)?;
            by_position.push(self.spread(&logits));
        }
        by_position.reverse();
        let width = self.program.n_vocab as usize;
        let row = |j: usize| move |all: &Vec<f32>| all[j * width..(j + 1) * width].to_vec();
        let rows = (1..size).flat_map(|j| by_position.iter().flat_map(row(j)));
        Ok(rows.collect())
    }

    /// Every float value of the heads over `ids`, behind a trunk that was fed them and gave `hidden` for the first.
    pub(super) fn trace_heads(
        &mut self,
        ids: &[u32],
        mut hidden: Vec<f32>,
    ) -> Result<Vec<Seen>, Failure> {
        let mut all = Vec::new();
        if let (Some(block), Some(head)) = (self.form.block, self.head(0)) {
            let made = self.floats_of(head.plan);
            let keep = made.iter().map(|(value, ..)| *value).collect();
            let t = ids.len() - 1;
            let mut tokens = vec![ids[t]];
            tokens.resize(block.size as usize, block.mask);
            let ticket = self.step_head(&head, (&tokens, &[]), (t, t + tokens.len(), 1), keep)?;
            return self.seen(head.plan, made, &ticket);
        }
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
            hidden: plan.input("hidden"),
            logits: plan.output("logits")?,
            next: plan.output("hidden"),
        })
    }

    /// Feeds positions `from..to` of `ids`: the rows of logits and of the next head's input.
    fn feed_head(
        &mut self,
        head: &Head,
        ids: &[u32],
        hidden: &[f32],
        ((from, to), feeding): ((usize, usize), Feeding),
    ) -> Result<(Vec<f32>, Vec<f32>), Failure> {
        let (copies, mut done) = (feeding.sequences, from);
        let mut out = (Vec::new(), Vec::new());
        let ids = &ids[from..to];
        for chunk in ids.chunks(feeding.chunk.min(ids.len()).max(1)) {
            let keep = [Some(head.logits), head.next];
            let keep = keep.into_iter().flatten().collect();
            let ticket = self.step_head(head, (chunk, hidden), (done, to, copies), keep)?;
            let logits = (head.plan, head.logits);
            out.0.extend(self.first_copy(&ticket, logits, copies)?);
            if let Some(next) = head.next {
                let next = (head.plan, next);
                out.1.extend(self.first_copy(&ticket, next, copies)?);
            }
            done += chunk.len();
        }
        Ok(out)
    }

    /// One step over a chunk that begins at `done` of `end` positions in all.
    fn step_head(
        &mut self,
        head: &Head,
        (chunk, hidden): (&[u32], &[f32]),
        (done, end, copies): (usize, usize, usize),
        keep: Vec<ValueId>,
    ) -> Result<Ticket, Failure> {
        let rows = |slot| SeqRows {
            logits: every_row(chunk.len()),
            ..SeqRows::tokens(slot, chunk)
        };
        let feeds = head.hidden.map(|input| {
            let width = self.program.plans[head.plan].value(input).shape.width();
            let fed = &hidden[done * width..(done + chunk.len()) * width];
            (input, Source::Host(fed.repeat(copies)))
        });
        let shift = usize::from(self.form.at_state);
        let place = (done - shift.min(done), end);
        let deltas = (0..copies).flat_map(|s| self.deltas(s, place));
        let work = Work {
            plan: head.plan,
            deltas: deltas.collect(),
            rows: slots(copies).map(rows).collect(),
            feeds: feeds.into_iter().collect(),
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
