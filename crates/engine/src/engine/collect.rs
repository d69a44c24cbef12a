//! What works under way have done.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokkata_ir::sample::BadLogits;
use tokkata_ir::{BackendError, Lead, PlanRole, Progress, RowResult, RowStatus};

use super::{Ending, Engine, SNAPSHOT_TOKENS};
use crate::error::EngineError;
use crate::flight::{Flight, Part};
use crate::report::logprobs;
use crate::request::{EventKind, FinishReason};
use crate::task::{Goal, Read, Task, place_of};

impl Engine {
    /// Takes news of the works under way; says whether there were any.
    pub(super) fn listen(&mut self, patient: bool) -> bool {
        if self.flights.is_empty() {
            return false;
        }
        let executor = &mut self.executor;
        // A panic is a bug of ours; requests end by name and the process goes on.
        let news = catch_unwind(AssertUnwindSafe(|| match patient {
            true => executor.wait(),
            false => executor.poll(),
        }));
        match news {
            Ok(Ok(None)) => false,
            Ok(Ok(Some(progress))) => {
                self.collect(progress);
                true
            }
            Ok(Err(error)) => {
                self.lose(&error);
                true
            }
            Err(_) => {
                self.lose(&BackendError::Lost("a step panicked".to_owned()));
                true
            }
        }
    }

    fn collect(&mut self, mut news: Progress) {
        self.steps += 1;
        let mut flight = self
            .flights
            .pop_front()
            .expect("there are news of works under way only");
        if let Some(error) = news.failure {
            return match &flight.turning {
                Some(turning) => self.turning_failed(turning, error.into()),
                None => self.failed(&flight, error),
            };
        }
        if flight.turning.is_some() {
            return self.turned(&mut flight);
        }
        flight.results += news.rows.len();
        if news.done {
            self.time(&flight);
        }
        if !std::mem::replace(&mut flight.begun, true) {
            self.begun(&flight, &news.rows);
        }
        self.look(&flight, &mut news.rows);
        let mut rows = news.rows.into_iter().peekable();
        while let Some(row) = rows.next() {
            let tries = |p: &&Part| p.slot == row.slot && p.tried > 0;
            let Some(part) = flight.parts.iter().find(tries).copied() else {
                self.settle(&flight, row);
                continue;
            };
            let mut own = vec![row];
            while let Some(row) = rows.next_if(|r| r.slot == part.slot) {
                own.push(row);
            }
            self.settle_draft(&part, own);
        }
        if news.done {
            self.landed(&flight);
        } else {
            self.flights.push_front(flight);
        }
    }

    /// Learns from how long a step of a work took that is done.
    fn time(&mut self, flight: &Flight) {
        let now = (self.clock)();
        let since = self
            .last_news
            .map_or(flight.submitted, |t| t.max(flight.submitted));
        self.last_news = Some(now);
        let (answers, prompts) = flight.rows();
        self.costs
            .saw(answers, &prompts, (now - since) / flight.ran());
    }

    /// The first step of a work is done: rows without results count, and readers get their values.
    fn begun(&mut self, flight: &Flight, results: &[RowResult]) {
        let stopped = |part: &Part| {
            let own = |r: &RowResult| r.slot == part.slot && r.status == RowStatus::Stopped;
            results.iter().any(own)
        };
        self.follow(flight);
        let (mut before, mut logits_before) = (0, 0);
        for (seq, part) in flight.parts.iter().enumerate() {
            if let Some(read) = part.read {
                let at = [before, logits_before, seq];
                self.read_values(flight, part, (read, at));
            }
            before += part.rows;
            logits_before += part.logit_rows();
            if part.encodes {
                self.encoded(part);
            } else if part.draws == 0 && !stopped(part) {
                self.commit(part, part.rows);
            }
        }
    }

    /// What a task's encoder wrote is there for its other rows.
    fn encoded(&mut self, part: &Part) {
        let task = self.running.iter_mut().find(|t| t.id == part.task);
        if let Some(encode) = task.and_then(|t| t.encode.as_mut()) {
            encode.done = true;
        }
    }

    fn read_values(&mut self, flight: &Flight, part: &Part, (read, at): (Read, [usize; 3])) {
        let Some(i) = place_of(&self.running, part.task) else {
            return;
        };
        let plan = self.program.plan(read.role).map(|(_, plan)| plan);
        let shape = &plan.expect("the plan runs").value(read.value).shape;
        let rows = match shape.lead {
            Lead::Rows => at[0]..at[0] + part.rows,
            Lead::LogitRows => at[1]..at[1] + part.rows,
            Lead::Seqs => at[2]..at[2] + 1,
        };
        let width = shape.width();
        let mut values = vec![0.0; rows.len() * width];
        let ticket = flight.ticket.as_ref().expect("the work was submitted");
        let copied = self.executor.read(ticket, read.value, rows, &mut values);
        match copied {
            Ok(()) => self.say(part.task, EventKind::Values { values, width }),
            Err(error) => self.end(i, Some(Err(error.into()))),
        }
    }

    /// Whether the host looks at a part's rows of logits.
    pub(super) fn reads_rows(&self, part: &Part) -> bool {
        let task = place_of(&self.running, part.task).map(|i| &self.running[i].goal);
        matches!(task, Some(Goal::Answer(answer)) if part.draws > 0 && answer.reads_rows())
    }

    /// Draws and reports what answers ask of their rows and devices do not do. Such works have one step.
    fn look(&mut self, flight: &Flight, rows: &mut [RowResult]) {
        let (Some(value), Some(ticket)) = (self.ports.logits, &flight.ticket) else {
            return;
        };
        let mut logits = Vec::new();
        let mut before = 0;
        for part in &flight.parts {
            let own = rows.iter_mut().filter(|r| r.slot == part.slot);
            let task = place_of(&self.running, part.task);
            if let Some(i) = task.filter(|_| self.reads_rows(part)) {
                let main = self.program.plan(PlanRole::Main).map(|(_, plan)| plan);
                logits.resize(main.map_or(0, |plan| plan.value(value).shape.width()), 0.0);
                for (at, row) in (before..).zip(own) {
                    if !matches!(row.status, RowStatus::Drawn(_)) {
                        continue;
                    }
                    let copied = self.executor.read(ticket, value, at..at + 1, &mut logits);
                    if let Err(error) = copied {
                        self.end(i, Some(Err(error.into())));
                        break;
                    }
                    self.running[i].look(row, &logits);
                }
            }
            before += part.logit_rows();
        }
    }

    /// Counts rows of a part as cached, and tells how far its prompt got.
    pub(super) fn commit(&mut self, part: &Part, rows: usize) {
        let Some(i) = place_of(&self.running, part.task) else {
            return;
        };
        let task = &mut self.running[i];
        let (request, total, at) = (task.id, task.tokens.len(), task.seq.len());
        let rows = rows.min(task.seq.ahead);
        let tokens = task.tokens[at..at + rows].to_vec();
        task.computed(rows);
        // A chain goes on from a prompt with an answer.
        let answer = part.answer || at >= part.start + part.rows;
        if part.tried > 0 && self.cache.is_recurrent() {
            self.cache.commit_kept(&mut task.seq, &tokens, answer);
        } else {
            self.cache.commit(&mut task.seq, &tokens, answer);
        }
        let cached = task.seq.len();
        if answer {
            return;
        }
        let due = cached - task.seq.snapshot_len.min(cached) >= SNAPSHOT_TOKENS;
        if cached == task.prompt_len || due {
            self.cache.snapshot(&mut task.seq);
        }
        let read_all = matches!(task.goal, Goal::Read(_)) && cached == total;
        let reused = task.stats.reused_tokens;
        let prompt = EventKind::Prompt {
            cached,
            reused,
            total,
        };
        self.say(request, prompt);
        if read_all {
            self.end(i, Some(Ok(FinishReason::EndOfText)));
        }
    }

    /// A row has its result.
    fn settle(&mut self, flight: &Flight, row: RowResult) {
        let part = flight.parts.iter().find(|p| p.slot == row.slot);
        let Some(part) = part.filter(|p| p.draws > 0).copied() else {
            return;
        };
        let Some(i) = place_of(&self.running, part.task) else {
            return self.ran_after_the_end(&part, row.status);
        };
        if self.running[i].refused {
            return;
        }
        let refused = self.running[i].refuses(&row);
        if row.status != RowStatus::Stopped {
            // A row whose token is refused runs again.
            let cached = row.position as usize + usize::from(!refused);
            let len = self.running[i].seq.len();
            if cached > len {
                self.commit(&part, cached - len);
            }
        }
        let ending = if refused {
            self.refuse(i)
        } else {
            self.outcome(i, row)
        };
        self.end(i, ending);
    }

    /// A token that was drawn without a mask is refused: it is drawn again by one, once nothing of its task is under
    /// way.
    pub(super) fn refuse(&mut self, i: usize) -> Option<Ending> {
        let task = &mut self.running[i];
        task.refused = true;
        if let Some(slot) = task.slot {
            self.executor.stop(slot);
        }
        let masked = task.answer_mut()?.draw_by_mask();
        masked.err().map(|why| Err(EngineError::Constraint(why)))
    }

    /// A task that has ended had rows under way. A state that they changed cannot be taken back.
    fn ran_after_the_end(&mut self, part: &Part, status: RowStatus) {
        let task = self.leaving.iter_mut().find(|t| t.id == part.task);
        if let Some(task) = task
            && status != RowStatus::Stopped
            && self.cache.is_recurrent()
        {
            self.cache.abandon(&mut task.seq);
            self.cache.clear(&mut task.seq);
        }
    }

    pub(super) fn outcome(&mut self, i: usize, row: RowResult) -> Option<Ending> {
        let task = &mut self.running[i];
        if let Some(answer) = task.answer_mut() {
            answer.draws = answer.draws.saturating_sub(1);
        }
        match row.status {
            RowStatus::Drawn(token) => self.take(i, token, row.logprobs),
            RowStatus::NotANumber => {
                self.cache.abandon(&mut task.seq);
                self.cache.clear(&mut task.seq);
                Some(Err(EngineError::NotANumber))
            }
            RowStatus::NoCandidate => Some(Err(EngineError::NoCandidate)),
            RowStatus::Computed | RowStatus::Stopped => None,
        }
    }

    /// Gives a task the token that was drawn for it.
    fn take(
        &mut self,
        i: usize,
        token: u32,
        logprobs: Option<tokkata_ir::Logprobs>,
    ) -> Option<Ending> {
        self.written += 1;
        let ctx = self.limits().ctx as usize;
        let task = &mut self.running[i];
        let ctx = task.room(ctx);
        let request = task.id;
        let (kind, reason) = task.accept(token, logprobs, ctx);
        let asked = task.answer_mut().map_or(Ok(()), |answer| {
            answer.own.next = None;
            answer.ask_after(token)
        });
        if let Some(kind) = kind {
            self.say(request, kind);
        }
        if reason.is_some() {
            return reason.map(Ok);
        }
        if let Err(why) = asked {
            return Some(Err(EngineError::Constraint(why)));
        }
        let task = &self.running[i];
        let drawn = task.answer_wants_more();
        (!drawn).then_some(Ok(FinishReason::MaxTokens))
    }

    /// A work is done.
    fn landed(&mut self, flight: &Flight) {
        for part in &flight.parts {
            if let Some(i) = place_of(&self.running, part.task) {
                let task = &mut self.running[i];
                task.flights -= 1;
                if task.refused && task.flights == 0 {
                    self.begin_again(i);
                    continue;
                }
                let nothing_drawn = matches!(&task.goal, Goal::Answer(a) if a.wants_none());
                if task.pending().is_empty() && task.flights == 0 && nothing_drawn {
                    self.end(i, Some(Ok(FinishReason::MaxTokens)));
                }
            } else if let Some(i) = place_of(&self.leaving, part.task) {
                self.leaving[i].flights -= 1;
                if self.leaving[i].flights == 0 {
                    let task = self.leaving.remove(i);
                    self.park(task);
                }
            }
        }
    }

    /// A work did not run to its end: nothing of it counts. One task alone is to blame; of several each runs alone
    /// next, so that only the one that fails then is.
    fn failed(&mut self, flight: &Flight, error: BackendError) {
        if let [part] = flight.parts[..]
            && let Some(i) = place_of(&self.running, part.task)
        {
            self.begin_again(i);
            self.running[i].flights -= 1;
            if part.tried > 0 {
                return self.go_on_without(i);
            }
            return self.end(i, Some(Err(error.into())));
        }
        for part in &flight.parts {
            if let Some(i) = place_of(&self.running, part.task) {
                self.begin_again(i);
                self.running[i].alone = true;
            } else if let Some(task) = self.leaving.iter_mut().find(|t| t.id == part.task) {
                self.cache.abandon(&mut task.seq);
            }
        }
        self.landed(flight);
    }

    /// Rows of a task that were under way do not count; its slot is set right with the next ones.
    fn begin_again(&mut self, i: usize) {
        let recurrent = self.cache.is_recurrent();
        let task = &mut self.running[i];
        if let Some(answer) = task.answer_mut() {
            answer.draws = 0;
            answer.own.trial = None;
        }
        task.refused = false;
        self.cache.abandon(&mut task.seq);
        if recurrent {
            task.note_kinds();
            self.cache.clear(&mut task.seq);
            task.forget_encoded();
        }
        task.fresh = true;
        task.seq.forget_synced();
    }
}

impl Part {
    /// Logit rows that it has in its work.
    fn logit_rows(&self) -> usize {
        match self.read {
            Some(read) if read.by_logit_row => self.rows,
            _ => self.draws.min(1) + self.tried,
        }
    }
}

impl Task {
    /// Draws from a row's logits in place of the device where that is asked for, and reports of them.
    fn look(&mut self, row: &mut RowResult, logits: &[f32]) {
        let Goal::Answer(answer) = &self.goal else {
            return;
        };
        if let Some(mark) = answer.sampling.mark() {
            let seen = (&self.tokens[..=row.position as usize], self.prompt_len);
            row.status = match answer.draw((mark, row.position), seen, logits) {
                Ok(token) => RowStatus::Drawn(token),
                Err(BadLogits::NotANumber) => RowStatus::NotANumber,
                Err(BadLogits::NoCandidate) => RowStatus::NoCandidate,
            };
            // The slot has counted the device's own token, which may even have ended it.
            self.tried = true;
        }
        if let (RowStatus::Drawn(token), Some(told)) = (row.status, answer.tells_of_rows()) {
            // Whoever drew from them has seen that they are numbers.
            row.logprobs = logprobs(logits, token, told).ok();
        }
    }

    /// Whether a row drew, without a mask, a token that the mask forbids.
    pub(super) fn refuses(&mut self, row: &RowResult) -> bool {
        match (row.status, self.answer_mut()) {
            (RowStatus::Drawn(token), Some(answer)) => answer.refuses(token),
            _ => false,
        }
    }

    fn answer_wants_more(&self) -> bool {
        match &self.goal {
            Goal::Answer(answer) => {
                answer.draws > 0 || answer.wants_token(self.stats.generated_tokens)
            }
            Goal::Read(_) => true,
        }
    }
}
