//! Which rows run next.
//!
//! Answers under way come first, one row each. Beside them prompts run in slices, and wait after a slice until answers
//! have written what they are owed ([`crate::cost`]); one that is short or has not begun does not wait, within bounds. Of
//! the slices every other one is shared by all prompts, and every other one belongs to the prompt that needs fewest rows.
//! Cutting a prompt never changes a bit of it.

use std::time::Duration;

use tokkata_ir::{
    Delta, GroupId, LogitRow, PlanRole, Refusal, RowInput, SeqRows, Source, ValueId, Work,
};

use super::{Engine, SNAPSHOT_TOKENS};
use crate::cost::PromptRows;
use crate::flight::{Flight, Part};
use crate::input::EncoderInput;
use crate::task::{Goal, Task, place_of};

/// How long a chain may last while somebody waits.
const CHAIN: Duration = Duration::from_millis(5);

/// What a step has left.
#[derive(Clone, Copy, Debug)]
struct Budget {
    rows: usize,
    seqs: usize,
    logit_rows: usize,
    /// Answers that are to have a row of it yet.
    awaited: usize,
}

/// Rows that a task gets.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Those that read tokens which are known.
    rows: usize,
    /// Whether the last of them draws.
    draws: bool,
    /// Those behind them that try a draft, and draw.
    tried: usize,
}

/// Rows that a task could have next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chance {
    rows: usize,
    logits: Logits,
}

/// Which of them need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logits {
    None,
    /// The last, if it is among those that run.
    Last,
    All,
}

impl Engine {
    /// The next work, if anything can run.
    pub(super) fn form(&mut self) -> Option<(Work, Flight)> {
        let answers = self.running.iter().filter(|t| t.is_decoding()).count();
        self.costs.shared(answers, self.running.len() - answers);
        self.spare_heads();
        loop {
            let held = self.holds_prompts();
            let role = self.next_role(held)?;
            let mut work = Work {
                plan: self.program.plan(role)?.0,
                ..Work::default()
            };
            let (mut parts, starved) = self.choose((role, held), &mut work);
            if !parts.is_empty() {
                self.chain(&mut parts, &mut work);
                self.last_role = Some(role);
                self.note_reads(&mut work, &parts);
                if role == PlanRole::Main {
                    work.keep.extend(self.kept_for_head(&parts));
                }
                let mut flight = Flight::new(parts, (self.clock)());
                flight.steps += work.chained;
                self.account(&flight);
                return Some((work, flight));
            }
            if !starved || !self.flights.is_empty() || !self.leaving.is_empty() {
                return None;
            }
            self.make_room(role);
        }
    }

    /// Nobody can have a row: the youngest gives its blocks back, and one that is alone cannot be helped.
    fn make_room(&mut self, role: PlanRole) {
        if self.running.len() > 1 {
            self.preempt(self.running.len() - 1);
            return;
        }
        let needs = self.running.iter().position(|t| t.role() == role);
        if let Some(i) = needs {
            let Err(error) = self.cache.reserve(&mut self.running[i].seq, 1) else {
                unreachable!("it was seen that it cannot have a row");
            };
            let task = self.running.remove(i);
            self.leave(task, Err(error));
        }
    }

    /// The plan whose tasks are served next: each in its turn.
    fn next_role(&self, held: bool) -> Option<PlanRole> {
        let ready = self.running.iter();
        let ready = ready.filter(|t| !self.is_held(t, held) && self.chance(t).is_some());
        let mut roles: Vec<PlanRole> = ready.map(Task::role).collect();
        roles.dedup();
        let other = roles.iter().find(|&&r| Some(r) != self.last_role);
        other.or(roles.first()).copied()
    }

    /// Whether a task waits where prompts are held.
    fn is_held(&self, task: &Task, held: bool) -> bool {
        let goes_on = task.has_begun() && !self.costs.is_short(task.prompt_rows());
        held && !task.is_decoding() && (goes_on || self.costs.owes_much())
    }

    /// Whether prompts wait: answers run, or are about to, that are owed time.
    fn holds_prompts(&self) -> bool {
        let runs = |t: &Task| t.is_decoding() && (t.flights > 0 || self.chance(t).is_some());
        self.costs.owes() && self.running.iter().any(runs)
    }

    /// Notes the time that a work gives to answers and to prompts.
    fn account(&mut self, flight: &Flight) {
        let (answers, prompts) = flight.rows();
        let steps = usize::from(answers > 0) * flight.steps as usize;
        let beside = answers > 0 || self.running.iter().any(Task::is_decoding);
        self.costs.formed(steps, &prompts, beside);
    }

    /// Fills a work with rows. Says also whether some task could not have blocks.
    fn choose(&mut self, (role, held): (PlanRole, bool), work: &mut Work) -> (Vec<Part>, bool) {
        let limits = *self.limits();
        let mut budget = Budget {
            rows: limits.rows as usize,
            seqs: limits.seqs as usize,
            logit_rows: limits.logit_rows as usize,
            awaited: 0,
        };
        let (mut parts, mut starved) = (Vec::new(), false);
        let of_role = |t: &Task| t.role() == role;
        let lonely = self.running.iter().position(|t| t.alone && of_role(t));
        let (answers, prompts): (Vec<usize>, Vec<usize>) = (0..self.running.len())
            .filter(|&i| of_role(&self.running[i]) && lonely.is_none_or(|l| l == i))
            .filter(|&i| !self.is_held(&self.running[i], held))
            .filter(|&i| self.chance(&self.running[i]).is_some())
            .partition(|&i| self.running[i].is_decoding());
        let count = answers.len();
        for (n, i) in answers.into_iter().enumerate() {
            budget.awaited = count - n - 1;
            self.add(i, 1, (&mut budget, work), &mut parts, &mut starved);
        }
        self.add_prompts(prompts, (&mut budget, work), &mut parts, &mut starved);
        (parts, starved)
    }

    /// Gives prompts what a step has for them.
    fn add_prompts(
        &mut self,
        mut prompts: Vec<usize>,
        (budget, work): (&mut Budget, &mut Work),
        parts: &mut Vec<Part>,
        starved: &mut bool,
    ) {
        let beside = !parts.is_empty() || self.running.iter().any(Task::is_decoding);
        let mut slice = self.costs.slice(beside, self.options.prompt_step);
        prompts.sort_by_key(|&i| {
            (
                self.running[i].whole_rows().is_none(),
                self.running[i].pending().len(),
            )
        });
        let count = prompts.len();
        let shared = count < 2 || !self.shared_slice;
        self.shared_slice = shared;
        for (n, i) in prompts.into_iter().enumerate() {
            let depth = self.running[i].seq.end();
            let share = match &slice {
                None => budget.rows.div_ceil(count - n),
                Some(slice) if shared => {
                    // One that is nearly through does not wait for its last rows.
                    let most = slice.rows(&self.costs, depth, 1) * 3 / 4;
                    let pending = self.running[i].pending().len();
                    let ends = (n == 0 && pending <= most).then_some(pending);
                    ends.unwrap_or_else(|| slice.rows(&self.costs, depth, count - n))
                }
                Some(slice) if n == 0 || slice.is_left() => slice.rows(&self.costs, depth, 1),
                Some(_) => break,
            };
            let share = self.running[i].whole_rows().unwrap_or(share);
            let before = budget.rows;
            self.add(i, share, (budget, work), parts, starved);
            let rows = before - budget.rows;
            if let Some(slice) = &mut slice {
                slice.take(&self.costs, PromptRows { rows, depth });
            }
        }
    }

    /// The rows that a task could have next; none while it waits for news of its last ones, or for a mask.
    fn chance(&self, task: &Task) -> Option<Chance> {
        if task.turning || task.refused || task.seq.end() >= self.limits().ctx as usize {
            return None;
        }
        let recurrent = self.cache.is_recurrent();
        let rows = task.runnable();
        let chance = |rows, logits| (rows > 0).then_some(Chance { rows, logits });
        if task.encodes() {
            let rows = task.whole_rows().filter(|_| task.flights == 0);
            return chance(rows.unwrap_or(0), Logits::None);
        }
        let answer = match &task.goal {
            Goal::Read(_) if task.flights > 0 => return None,
            Goal::Read(read) if read.by_logit_row => return chance(rows, Logits::All),
            Goal::Read(_) => return chance(rows, Logits::None),
            Goal::Answer(answer) => answer,
        };
        if answer.draws > 0 {
            let room = task.seq.end() < self.limits().ctx as usize;
            let wanted = answer.wants_token(task.stats.generated_tokens);
            let settled = !recurrent || task.stats.generated_tokens > 0;
            let ready = room && wanted && settled && self.runs_ahead(answer);
            return chance(usize::from(ready), Logits::Last);
        }
        // A state is kept after each stretch of a prompt, before later rows change it.
        if recurrent && task.flights > 0 {
            return None;
        }
        if rows < task.pending().len() || !answer.wants_token(task.stats.generated_tokens) {
            return chance(rows, Logits::None);
        }
        if answer.knows_mask() {
            return chance(rows, Logits::Last);
        }
        chance(rows.saturating_sub(1), Logits::None)
    }

    /// Gives a task up to `most` rows, as far as there are blocks.
    fn add(
        &mut self,
        i: usize,
        most: usize,
        (budget, work): (&mut Budget, &mut Work),
        parts: &mut Vec<Part>,
        starved: &mut bool,
    ) {
        let Some(chance) = self.chance(&self.running[i]) else {
            return;
        };
        let mut rows = chance.rows.min(most).min(budget.rows);
        if chance.logits == Logits::All {
            rows = rows.min(budget.logit_rows);
        }
        if !self.running[i].encodes() {
            rows = self.up_to_snapshot(i, rows);
        }
        let whole = self.running[i].whole_rows();
        if budget.seqs == 0 || rows == 0 || whole.is_some_and(|n| n > rows) {
            return;
        }
        let mut draws = chance.logits == Logits::Last && rows == chance.rows;
        if draws && budget.logit_rows == 0 {
            rows -= 1;
            draws = false;
        }
        let tried = if draws {
            self.tries(i, rows, budget)
        } else {
            0
        };
        let tried = self.reserve_draft(i, (rows, tried), work);
        while tried == 0 && rows > 0 && !self.reserve(i, rows, work) {
            *starved = true;
            rows = if whole.is_some() { 0 } else { rows / 2 };
            draws = false;
        }
        if rows == 0 {
            return;
        }
        let share = Share { rows, draws, tried };
        let part = self.part(i, share, work);
        budget.rows -= rows + tried;
        budget.seqs -= 1;
        budget.logit_rows -= work.rows.last().map_or(0, |r| r.logits.len());
        parts.push(part);
    }

    /// Tokens of its draft that a task may try behind so many rows.
    fn tries(&self, i: usize, rows: usize, budget: &Budget) -> usize {
        let task = &self.running[i];
        let (Goal::Answer(answer), end) = (&task.goal, task.seq.end()) else {
            return 0;
        };
        let Some(draft) = answer.own.next.as_ref().filter(|_| end >= task.prompt_len) else {
            return 0;
        };
        let limits = self.limits();
        let left = answer.remaining(task.stats.generated_tokens) as usize;
        let most = [
            draft.tokens.len(),
            budget.rows.saturating_sub(rows + budget.awaited),
            budget.logit_rows.saturating_sub(1 + budget.awaited),
            (limits.ctx as usize).saturating_sub(end + rows),
            left.saturating_sub(1),
            match self.cache.is_recurrent() {
                true => (limits.draft as usize).saturating_sub(rows),
                false => usize::MAX,
            },
        ];
        most.into_iter().min().unwrap_or(0)
    }

    /// Blocks for rows and a draft behind them, if they can be had without anybody making room; the draft's rows.
    fn reserve_draft(&mut self, i: usize, (rows, tried): (usize, usize), work: &mut Work) -> usize {
        if tried == 0 {
            return 0;
        }
        let seq = &mut self.running[i].seq;
        let copies = match self.cache.is_recurrent() {
            true => self.cache.reserve_kept(seq, rows + tried),
            false => self.cache.reserve(seq, rows + tried),
        };
        match copies {
            Ok(copies) => {
                work.copies.extend(copies);
                tried
            }
            Err(_) => 0,
        }
    }

    /// Lets every task of a work that only writes go on for some steps without the host.
    fn chain(&mut self, parts: &mut [Part], work: &mut Work) {
        let most = self.chain_steps();
        if most == 0 || self.kept_for_head(parts).is_some() {
            return;
        }
        let steps = parts.iter().map(|part| self.chainable(part, most)).min();
        let Some(steps) = steps.filter(|&n| n > 0) else {
            return;
        };
        for done in 0..parts.len() {
            let i = self.place_of(&parts[done]);
            if !self.reserve(i, steps, work) {
                parts[..done]
                    .iter_mut()
                    .for_each(|part| self.shorten(part, steps));
                return;
            }
            let (part, task) = (&mut parts[done], &mut self.running[i]);
            if let Some(answer) = task.answer_mut() {
                answer.draws += steps;
            }
            part.draws += steps;
            let changes = task.seq.changes();
            work.deltas
                .extend(changes.into_iter().map(|d| (part.slot, d)));
        }
        work.chained = steps as u32;
    }

    /// Takes steps of a chain from a part again. Their blocks stay with its sequence.
    fn shorten(&mut self, part: &mut Part, steps: usize) {
        let i = self.place_of(part);
        let task = &mut self.running[i];
        task.seq.ahead -= steps;
        part.draws -= steps;
        if let Some(answer) = task.answer_mut() {
            answer.draws -= steps;
        }
    }

    fn place_of(&self, part: &Part) -> usize {
        let place = place_of(&self.running, part.task);
        place.expect("the task of a work that is being formed runs")
    }

    /// Steps, at most so many, that a part's task could go on for without the host.
    fn chainable(&self, part: &Part, most: usize) -> usize {
        let task = &self.running[self.place_of(part)];
        let recurrent = self.cache.is_recurrent();
        let Goal::Answer(answer) = &task.goal else {
            return 0;
        };
        let ahead = part.draws == 1 && part.tried == 0 && self.runs_ahead(answer);
        let alone = ahead && (part.answer || !recurrent) && !answer.reads_rows();
        if !alone {
            return 0;
        }
        let room = (self.limits().ctx as usize).saturating_sub(task.seq.end());
        let left = answer.remaining(task.stats.generated_tokens) as usize;
        most.min(room).min(left.saturating_sub(answer.draws))
    }

    /// Steps that a chain may have: while anything waits it lasts a few milliseconds.
    fn chain_steps(&self) -> usize {
        let most = self.options.chain as usize;
        let prompts = || self.running.iter().any(|t| !t.is_decoding());
        let waits = !self.waiting.is_empty() || self.masks.is_busy() || prompts();
        match self.costs.answer_step().filter(|_| waits) {
            Some(step) => most.min((CHAIN.as_nanos() / step.as_nanos().max(1)) as usize),
            None => most,
        }
    }

    /// Rows up to the next place where a state must be kept.
    fn up_to_snapshot(&self, i: usize, rows: usize) -> usize {
        let seq = &self.running[i].seq;
        if !self.cache.is_recurrent() {
            return rows;
        }
        let since = seq.end() - seq.snapshot_len.min(seq.end());
        rows.min(SNAPSHOT_TOKENS.saturating_sub(since).max(1))
    }

    /// Blocks for rows of a task; parked sessions make room for it.
    fn reserve(&mut self, i: usize, rows: usize, work: &mut Work) -> bool {
        let rows = if self.running[i].encodes() { 0 } else { rows };
        loop {
            match self.cache.reserve(&mut self.running[i].seq, rows) {
                Ok(copies) => {
                    work.copies.extend(copies);
                    return true;
                }
                Err(_) if self.yield_session() => {}
                Err(_) => return false,
            }
        }
    }

    /// Writes a task's rows, whose blocks are reserved, into a work.
    fn part(&mut self, i: usize, share: Share, work: &mut Work) -> Part {
        let rows = share.rows + share.tried;
        let keeps_states = share.tried > 0 && self.cache.is_recurrent();
        let task = &mut self.running[i];
        let role = task.role();
        let slot = task.slot.expect("a running task has a slot");
        task.start();
        let encodes = task.encodes();
        let start = if encodes { 0 } else { task.seq.end() - rows };
        work.deltas
            .extend(task.deltas(start).into_iter().map(|d| (slot, d)));
        let answer = task.is_answer(start);
        let (mut input, fed) = task.input(start, share.rows);
        let fed = fed.map(<[f32]>::to_vec);
        let span_end = match task.media.at(start) {
            Some((places, media)) if media.span => places.end as u32,
            _ => 0,
        };
        let mut logits = Vec::new();
        let mut read = None;
        match &mut task.goal {
            _ if encodes => {}
            Goal::Answer(own) if share.draws => {
                let seen = &task.tokens[..task.tokens.len().min(start + share.rows)];
                logits.extend(own.logit_row(share.rows - 1, seen));
                own.draws += 1;
                if let (1.., RowInput::Tokens(tokens)) = (share.tried, &mut input) {
                    let draft = own.try_now(share.tried);
                    logits.extend(own.draft_rows(share.rows, seen, &draft));
                    match draft.unseen {
                        true => input = RowInput::Held(rows as u32),
                        false => tokens.extend(&draft.tokens),
                    }
                    own.own.trial = Some(draft);
                }
            }
            Goal::Answer(_) => {}
            Goal::Read(own) => {
                if own.by_logit_row {
                    logits = (0..rows as u32)
                        .map(|row| LogitRow {
                            row,
                            ..LogitRow::default()
                        })
                        .collect();
                }
                read = Some(*own);
            }
        }
        task.flights += 1;
        work.rows.push(SeqRows {
            input,
            logits,
            prompt: !answer,
            span_end,
            adapter: task.seq.adapter_number(),
            keeps_states,
            ..SeqRows::tokens(slot, &[])
        });
        for fed in task.fed.iter().filter(|_| !encodes) {
            let values = &fed.rows[start * fed.width..(start + rows) * fed.width];
            feed(work, fed.port, values);
        }
        if let Some(values) = fed {
            let (_, plan) = self.program.plan(role).expect("the plan of the work");
            let port = plan.inputs.first().expect("it was checked");
            feed(work, port.value, &values);
        }
        Part {
            task: task.id,
            slot,
            start,
            rows,
            answer,
            encodes,
            draws: usize::from(share.draws),
            tried: share.tried,
            read,
        }
    }

    /// Where a work's readers find their rows, and what it keeps for them.
    fn note_reads(&self, work: &mut Work, parts: &[Part]) {
        for part in parts {
            if let Some(read) = part.read
                && !work.keep.contains(&read.value)
            {
                work.keep.push(read.value);
            }
            if let Some(logits) = self.ports.logits
                && self.reads_rows(part)
                && !work.keep.contains(&logits)
            {
                work.keep.push(logits);
            }
        }
    }

    /// Hands a work to the device, behind guesses that are under way.
    pub(super) fn launch(&mut self, mut work: Work, mut flight: Flight) {
        let submitted = loop {
            match self.executor.submit(work) {
                Err(Refusal::Busy(back)) => work = *back,
                submitted => break submitted,
            }
            let mut guessing = self.guessing.take();
            let heard = guessing.as_mut().is_some_and(|g| self.hear_a_guess(g));
            assert!(heard, "no more works than the device takes");
            self.guessing = guessing;
        };
        flight.ticket = submitted.as_ref().ok().cloned();
        self.flights.push_back(flight);
        if let Err(Refusal::Backend(error)) = submitted {
            self.lose(&error);
        }
    }
}

/// More rows for a port.
fn feed(work: &mut Work, port: ValueId, values: &[f32]) {
    match work.feeds.iter_mut().find(|f| f.0 == port) {
        Some((_, Source::Host(all))) => all.extend_from_slice(values),
        Some((_, Source::Kept { .. })) => unreachable!("the engine feeds from the host"),
        None => work.feeds.push((port, Source::Host(values.to_vec()))),
    }
}

impl Task {
    /// What its next rows read, and what is fed for them.
    fn input(&self, start: usize, rows: usize) -> (RowInput, Option<&[f32]>) {
        if let Some(encode) = self.encode.as_ref().filter(|e| !e.done) {
            return match &encode.input {
                EncoderInput::Tokens(tokens) => (RowInput::Tokens(tokens.clone()), None),
                EncoderInput::Rows { values, count } => {
                    (RowInput::Embeds(*count as u32), Some(values))
                }
            };
        }
        if let Some((places, media)) = self.media.at(start) {
            let width = media.rows.len() / places.len();
            let first = (start - places.start) * width;
            let values = &media.rows[first..first + rows * width];
            return (RowInput::Embeds(rows as u32), Some(values));
        }
        match self.tokens.get(start..start + rows) {
            Some(tokens) => (RowInput::Tokens(tokens.to_vec()), None),
            None => (RowInput::Drawn, None),
        }
    }

    /// Whether it may go on from stored blocks: what it reads of rows must be computed.
    pub(super) fn may_reuse(&self) -> bool {
        match &self.goal {
            Goal::Answer(_) => true,
            Goal::Read(_) => false,
        }
    }

    /// What its slot must be told before rows from `start` on run.
    pub(super) fn deltas(&mut self, start: usize) -> Vec<Delta> {
        let mut deltas = Vec::new();
        if std::mem::take(&mut self.fresh) {
            deltas.push(Delta::Clear);
            if let Some(encode) = &mut self.encode {
                encode.told = false;
            }
            if let Goal::Answer(answer) = &self.goal {
                deltas.push(Delta::Sampler(Box::new(answer.sampling.sampler())));
                deltas.push(Delta::Stop {
                    ids: answer.stop_ids.clone(),
                    remaining: answer.remaining(self.stats.generated_tokens),
                });
            }
            if start > 0 {
                deltas.push(Delta::Tokens {
                    first: 0,
                    tokens: self.tokens[..start].to_vec(),
                });
                deltas.push(Delta::Length(start as u32));
            }
        } else if let (true, Goal::Answer(answer)) = (self.tried, &self.goal) {
            if self.told < start {
                deltas.push(Delta::Tokens {
                    first: self.told as u32,
                    tokens: self.tokens[self.told..start].to_vec(),
                });
            }
            deltas.push(Delta::Length(start as u32));
            deltas.push(Delta::Stop {
                ids: answer.stop_ids.clone(),
                remaining: answer.remaining(self.stats.generated_tokens),
            });
        }
        (self.tried, self.told) = (false, usize::MAX);
        deltas.extend(self.seq.changes());
        if let Some(encode) = self.encode.as_mut().filter(|e| e.done && !e.told) {
            encode.told = true;
            deltas.push(Delta::Length(start as u32));
            deltas.push(Delta::Encoded(encode.input.len() as u32));
        }
        deltas
    }
}

impl crate::sequence::Sequence {
    /// What changed of its tables since the device was told last.
    pub(crate) fn changes(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        for (g, table) in self.tables.iter().enumerate() {
            let first = self.synced[g].min(table.len());
            if first < table.len() {
                deltas.push(Delta::Table {
                    group: GroupId(g as u32),
                    first: first as u32,
                    blocks: table[first..].to_vec(),
                });
            }
            self.synced[g] = table.len();
        }
        deltas
    }
}
