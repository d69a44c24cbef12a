//! What is guessed before a step, and what became of it after.

use std::time::Duration;

use tokkata_ir::sample::uniform;
use tokkata_ir::{RowResult, RowStatus};

use super::Engine;
use super::heads::Heads;
use crate::flight::Part;
use crate::sequence::Sequence;
use crate::speculate::{
    Chance, Draft, DraftCounts, Guess, Running, Speculation, Speculator, Wanted, allot,
};
use crate::task::{Answer, Goal, Task, place_of};

/// Tokens of an answer that may stand before a draft in one step: the newest, and those that a grammar forced.
const MOST_PENDING: usize = 16;

/// Somebody for whom something could be guessed.
struct Candidate {
    /// Place among the running tasks.
    i: usize,
    /// Whether it can be tried in the next step; otherwise rows are under way, and it is only looked.
    ready: bool,
    most: usize,
    /// Who guesses, and what was guessed already.
    drafter: Option<usize>,
    guess: Guess,
}

impl Engine {
    /// Speculates from now on.
    pub fn speculate(&mut self, speculation: Speculation) {
        let form = speculation.drafters.iter().find_map(|d| d.own_form());
        self.heads = form.and_then(|form| Heads::of(&self.program, form));
        if let Some(heads) = &self.heads {
            self.cache.keep_slack(heads.reach(speculation.most));
        }
        self.speculator = Some(Speculator::new(speculation));
    }

    /// What each drafter's guesses came to, by its name.
    #[must_use]
    pub fn draft_counts(&self) -> Vec<(&'static str, DraftCounts)> {
        let Some(speculator) = &self.speculator else {
            return Vec::new();
        };
        let names = speculator.speculation.drafters.iter().map(|d| d.name());
        names.zip(speculator.counts.iter().copied()).collect()
    }

    pub(super) fn speculates(&self) -> bool {
        self.speculator.is_some()
    }

    /// Whether an answer's rows may run on a token that is not known yet.
    pub(super) fn runs_ahead(&self, answer: &Answer) -> bool {
        let waits = self.speculator.is_some() && answer.own.is_waiting();
        !waits && answer.runs_ahead(self.cache.is_recurrent())
    }

    /// Guesses what comes next, for everybody who has a new token.
    pub(super) fn guess(&mut self) {
        let Some(mut speculator) = self.speculator.take() else {
            return;
        };
        let mut candidates: Vec<Candidate> = (0..self.running.len())
            .filter_map(|i| self.candidate(i, speculator.speculation.most))
            .collect();
        if !candidates.is_empty() {
            self.compare(&mut speculator, &candidates);
            self.ask_free(&mut speculator, &mut candidates);
            let mut counts = self.worth(&mut speculator, &mut candidates);
            let keeps_pace = self.keeps_pace(&mut speculator);
            if !keeps_pace {
                counts.fill(0);
            }
            self.ask_dear(&mut speculator, &mut candidates, &counts);
            let head = speculator.own_head();
            let held = !keeps_pace && speculator.pace.pauses_long() && self.heads_hold_steps();
            for (candidate, count) in candidates.into_iter().zip(counts) {
                if head.is_some() && candidate.ready {
                    let asked = count > 0 && candidate.drafter == head;
                    match held {
                        true => self.running[candidate.i].head.give_up(),
                        false => self.note_head(candidate.i, asked),
                    }
                }
                self.note(candidate, count);
            }
        }
        self.speculator = Some(speculator);
    }

    /// Answers that begin while drafts pause for long go on without a head, whose states would hold back everybody's prompts.
    pub(super) fn spare_heads(&mut self) {
        let Some(speculator) = self.speculator.as_ref() else {
            return;
        };
        let is_answer = |task: &&Task| matches!(task.goal, Goal::Answer(_));
        let answers = self.running.iter().filter(is_answer).count();
        if speculator.speculation.adaptive && speculator.pace.rests((self.clock)(), answers) {
            let begins = |task: &&mut Task| task.tokens.len() <= task.prompt_len;
            let beginning = self.running.iter_mut().filter(begins);
            beginning.for_each(|task| task.head.give_up());
        }
    }

    /// Whether drafts do not hold back all answers together.
    fn keeps_pace(&self, speculator: &mut Speculator) -> bool {
        if !speculator.speculation.adaptive {
            return true;
        }
        let others = self.running.iter().any(|t| !t.is_decoding());
        let answers = if others { 0 } else { self.running.len() };
        let waits =
            |task: &Task| matches!(&task.goal, Goal::Answer(answer) if answer.own.is_waiting());
        let running = Running {
            answers,
            waits: self.running.iter().any(waits),
            tokens: self.written,
            drafts: speculator.counts.iter().map(|c| c.drafts).sum(),
            held: self.heads_hold_steps(),
            step_ns: self.costs.seen(answers),
        };
        speculator.pace.allows((self.clock)(), running)
    }

    fn candidate(&self, i: usize, most: usize) -> Option<Candidate> {
        let task = &self.running[i];
        let Goal::Answer(answer) = &task.goal else {
            return None;
        };
        let (end, own) = (task.seq.end(), &answer.own);
        let written = task.tokens.len() > task.prompt_len;
        let quiet = task.alone || task.refused || task.turning || task.cancelled || task.encodes();
        if !written || quiet || own.next.is_some() || !answer.may_try() {
            return None;
        }
        let ready = task.flights == 0
            && answer.draws == 0
            && end >= task.prompt_len
            && task.pending().len() <= MOST_PENDING;
        let looks = answer.draws > 0 && !own.waits && own.looked < task.tokens.len();
        let limits = self.limits();
        let room = (limits.ctx as usize).saturating_sub(task.tokens.len());
        let left = answer.remaining(task.stats.generated_tokens) as usize;
        let states = match self.cache.is_recurrent() {
            true => (limits.draft as usize).saturating_sub(1),
            false => usize::MAX,
        };
        let most = most.min(room).min(left.saturating_sub(1)).min(states);
        (ready || looks).then_some(Candidate {
            i,
            ready,
            most,
            drafter: None,
            guess: Guess::default(),
        })
    }

    fn answer_of(&mut self, i: usize) -> (&mut Answer, &[u32], &Sequence) {
        let task = &mut self.running[i];
        match &mut task.goal {
            Goal::Answer(answer) => (answer, &task.tokens, &task.seq),
            Goal::Read(_) => unreachable!("only answers are guessed"),
        }
    }

    /// Compares what was guessed, and not tried, with what came.
    fn compare(&mut self, speculator: &mut Speculator, candidates: &[Candidate]) {
        for candidate in candidates {
            let (answer, tokens, _) = self.answer_of(candidate.i);
            answer.own.compare(&mut speculator.rates, tokens);
        }
    }

    fn wanted<'a>(&'a self, i: usize, most: usize) -> Wanted<'a> {
        let task = &self.running[i];
        let Goal::Answer(answer) = &task.goal else {
            unreachable!("only answers are guessed");
        };
        Wanted {
            request: task.id,
            family: task.seq.family(),
            tokens: &task.tokens,
            sampling: &answer.sampling,
            most,
        }
    }

    /// Asks the drafters that cost nothing; each candidate has the guess of the first that has one.
    fn ask_free(&self, speculator: &mut Speculator, candidates: &mut [Candidate]) {
        let drafters = speculator.speculation.drafters.iter_mut().enumerate();
        for (d, drafter) in drafters.filter(|d| d.1.is_free()) {
            let mut open: Vec<&mut Candidate> = candidates
                .iter_mut()
                .filter(|c| c.drafter.is_none())
                .collect();
            let wanted: Vec<Wanted<'_>> = open.iter().map(|c| self.wanted(c.i, c.most)).collect();
            for (candidate, guess) in open.iter_mut().zip(drafter.guess(&wanted)) {
                if !guess.tokens.is_empty() {
                    (candidate.drafter, candidate.guess) = (Some(d), guess);
                }
            }
        }
    }

    /// Tokens of each candidate's draft that are worth their rows.
    fn worth(&mut self, speculator: &mut Speculator, candidates: &mut [Candidate]) -> Vec<usize> {
        let dear = speculator
            .speculation
            .drafters
            .iter()
            .position(|d| !d.is_free());
        let head = speculator.own_head();
        let mut chances = Vec::new();
        for candidate in candidates.iter_mut() {
            let keeps = self.running[candidate.i].keeps_states_for_head();
            let dear = dear.filter(|_| dear != head || keeps);
            let all = &speculator.rates;
            let own = &mut self.answer_of(candidate.i).0.own;
            let mut right = match candidate.drafter {
                Some(d) => {
                    let places = candidate.guess.tokens.len().min(candidate.most);
                    own.right(all, (d, candidate.guess.class), places)
                }
                None => Vec::new(),
            };
            if let Some(d) = dear {
                let other = own.right(all, (d, 0), candidate.most);
                if other.first() > right.first() {
                    (candidate.drafter, candidate.guess) = (Some(d), Guess::default());
                    right = other;
                }
            }
            let draft_ns = candidate.drafter.map_or(0.0, |d| speculator.draft_ns[d]);
            chances.push(Chance { right, draft_ns });
        }
        if !speculator.speculation.adaptive {
            return candidates.iter().map(|c| c.most).collect();
        }
        let rows = self.running.iter().filter(|t| t.is_decoding()).count();
        let counts = allot(&chances, rows.max(1), |rows| self.costs.answers(rows));
        let probed = |(candidate, count): (&Candidate, usize)| {
            let tokens = self.running[candidate.i].tokens.len();
            let own = &mut self.answer_of(candidate.i).0.own;
            let came = tokens - own.looked.min(tokens);
            let asks = candidate.drafter == dear && dear.is_some();
            match count {
                1.. => own.pays(),
                0 if asks && candidate.most > 0 && own.probes(came) => return 1,
                0 => {}
            }
            count
        };
        candidates.iter().zip(counts).map(probed).collect()
    }

    /// Asks the drafters that take time, for as many tokens as are worth it.
    fn ask_dear(
        &mut self,
        speculator: &mut Speculator,
        candidates: &mut [Candidate],
        counts: &[usize],
    ) {
        let drafters = speculator.speculation.drafters.iter_mut().enumerate();
        for (d, drafter) in drafters.filter(|d| !d.1.is_free()) {
            let asks = |asking: &(&mut Candidate, &usize)| {
                let (c, count) = asking;
                c.ready && **count > 0 && c.drafter.is_none_or(|by| by == d)
            };
            let mut asking: Vec<_> = candidates.iter_mut().zip(counts).filter(asks).collect();
            if asking.is_empty() {
                continue;
            }
            let started = (self.clock)();
            let guesses = if drafter.own_form().is_some() {
                let asked: Vec<_> = asking.iter().map(|(c, count)| (c.i, **count)).collect();
                self.guess_by_head(&asked)
            } else {
                let wanted: Vec<Wanted<'_>> = asking
                    .iter()
                    .map(|(c, count)| self.wanted(c.i, **count))
                    .collect();
                drafter.guess(&wanted)
            };
            let tokens = guesses.iter().map(|g| g.tokens.len()).sum();
            let asked_until = (self.clock)();
            // What a whole prompt takes says nothing of the tokens behind it.
            let places: Vec<usize> = asking.iter().map(|(c, _)| c.i).collect();
            let read = places
                .into_iter()
                .map(|i| std::mem::replace(&mut self.answer_of(i).0.own.read, true));
            let all_read = read.fold(true, |all, read| all & read);
            match &mut self.guessing {
                Some(guessing) => guessing.timed = all_read.then_some((d, started)),
                None if all_read => {
                    took(&mut speculator.draft_ns[d], asked_until - started, tokens);
                }
                None => {}
            }
            for ((candidate, _), guess) in asking.iter_mut().zip(guesses) {
                (candidate.drafter, candidate.guess) = (Some(d), guess);
            }
        }
    }

    /// Notes what a candidate tries next.
    fn note(&mut self, candidate: Candidate, count: usize) {
        let Candidate {
            i,
            ready,
            drafter,
            mut guess,
            ..
        } = candidate;
        let n_vocab = self.program.n_vocab;
        let task = self.running[i].id;
        let unseen = self.guessing.as_ref().is_some_and(|g| g.task == task);
        let (answer, tokens, _) = self.answer_of(i);
        let tokens = tokens.len();
        answer.own.looked = tokens;
        answer.own.waits = count > 0;
        if let Some(drafter) = drafter.filter(|_| !unseen) {
            answer.own.watch(drafter, &guess, tokens);
        }
        if !ready {
            return;
        }
        guess.tokens.truncate(count);
        let unknown = guess.tokens.iter().position(|&t| t >= n_vocab);
        guess.tokens.truncate(unknown.unwrap_or(count));
        let draft = Draft {
            drafter: drafter.unwrap_or(0),
            class: guess.class,
            tokens: guess.tokens,
            unseen,
            ..Draft::default()
        };
        answer.try_next(draft);
    }

    /// Tells a draft what was guessed for it, once that is drawn.
    pub(super) fn learn_guesses(&mut self) {
        let Some(guessing) = self.guessing.take() else {
            return;
        };
        let (task, timed) = (guessing.task, guessing.timed);
        let guessed = self.guessed(guessing);
        let now = (self.clock)();
        // The step behind them begins only now.
        if let Some(flight) = self.flights.back_mut() {
            flight.submitted = now;
        }
        if let (Some((d, started)), Some(speculator)) = (timed, &mut self.speculator) {
            took(&mut speculator.draft_ns[d], now - started, guessed.len());
        }
        if let Some(i) = place_of(&self.running, task) {
            let (answer, tokens, _) = self.answer_of(i);
            let tokens = tokens.len();
            answer.own.learn(guessed, tokens);
        }
    }

    /// The rows of a draft have their results.
    pub(super) fn settle_draft(&mut self, part: &Part, mut rows: Vec<RowResult>) {
        let Some(mut i) = place_of(&self.running, part.task) else {
            // States were kept: nothing of its sequence has changed.
            return;
        };
        let task = &mut self.running[i];
        task.tried = true;
        let Some(draft) = task.answer_mut().and_then(|answer| {
            answer.draws = 0;
            answer.own.trial.take()
        }) else {
            return;
        };
        if rows.iter().all(|r| r.status == RowStatus::Stopped) {
            return self.cache.abandon(&mut self.running[i].seq);
        }
        if let Some(shares) = self
            .speculator
            .as_ref()
            .and_then(|s| s.speculation.pretended.as_ref())
        {
            pretend(&mut rows, &draft.tokens, shares);
        }
        let drawn = |row: &RowResult| match row.status {
            RowStatus::Drawn(token) => Some(token),
            _ => None,
        };
        let pairs = rows.iter().zip(&draft.tokens);
        let right = pairs.take_while(|(row, token)| drawn(row) == Some(**token));
        let mut right = right.count();
        let before = part.rows - part.tried;
        let mut ending = None;
        let mut taken = 0;
        for row in rows.into_iter().take(right + 1) {
            if self.running[i].refuses(&row) {
                ending = self.refuse(i);
                right = right.min(taken);
                break;
            }
            taken += 1;
            ending = self.outcome(i, row);
            if ending.is_some() {
                break;
            }
        }
        i = place_of(&self.running, part.task).expect("nobody leaves while draws are taken");
        self.count(i, &draft, right, taken);
        // The row of a token that is refused runs again.
        self.commit(part, (before + taken).saturating_sub(1));
        self.cache.abandon(&mut self.running[i].seq);
        self.end(i, ending);
    }

    /// Counts what a draft came to: how many of its tokens are right, and how many rows the answer took before it ended.
    fn count(&mut self, i: usize, draft: &Draft, right: usize, taken: usize) {
        let Some(mut speculator) = self.speculator.take() else {
            return;
        };
        let own = &mut self.answer_of(i).0.own;
        let what = (draft.drafter, draft.class);
        for place in 0..draft.tokens.len().min(right + 1) {
            own.saw(&mut speculator.rates, what, (place, place < right));
        }
        let accepted = right.min(taken);
        let counts = &mut speculator.counts[draft.drafter];
        counts.drafts += 1;
        counts.tried += draft.tokens.len() as u64;
        counts.accepted += accepted as u64;
        let stats = &mut self.running[i].stats;
        stats.drafts += 1;
        stats.drafted_tokens += draft.tokens.len();
        stats.accepted_tokens += accepted;
        self.speculator = Some(speculator);
    }

    /// A step with a draft failed: it may have been the draft's fault.
    pub(super) fn go_on_without(&mut self, i: usize) {
        if let Some(answer) = self.running[i].answer_mut() {
            answer.own.never = true;
        }
    }

    /// Nothing more is guessed for a task.
    pub(super) fn forget_drafts(&mut self, task: &Task) {
        if let (Some(speculator), Goal::Answer(_)) = (&mut self.speculator, &task.goal) {
            for drafter in &mut speculator.speculation.drafters {
                drafter.ended(task.id, task.seq.family(), &task.tokens);
            }
        }
    }
}

/// Notes how long a drafter took for some tokens: a running mean of nanoseconds for each.
fn took(mean: &mut f64, time: Duration, tokens: usize) {
    if tokens == 0 {
        return;
    }
    let new = time.as_nanos() as f64 / tokens as f64;
    *mean = if *mean == 0.0 {
        new
    } else {
        *mean + (new - *mean) / 8.0
    };
}

/// Takes guesses for right as often as it is told to.
fn pretend(rows: &mut [RowResult], guessed: &[u32], shares: &[f64]) {
    for (place, (row, &token)) in rows.iter_mut().zip(guessed).enumerate() {
        let share = shares.get(place).or(shares.last()).copied().unwrap_or(0.0);
        let noise = uniform(u64::from(row.position), place as u64) >> 11;
        let right = (noise as f64 / (1u64 << 53) as f64) < share;
        let other = token.checked_sub(1).unwrap_or(1);
        row.status = RowStatus::Drawn(if right { token } else { other });
    }
}
