//! Guesses of the model's own drafters: multi-token-prediction heads, and drafters of another file that read its states.
//!
//! A head is a plan of the same program, with slots of its own in the same blocks. At position p it reads token p and the
//! state that the trunk made of position p − 1, and tells what follows token p. So rows of the trunk leave their states
//! here until the head has run over the tokens behind them, and a guess goes on from the head's own states. Where there are
//! several heads, the second reads what the first made of each position, and so on: each guesses one token, the last one all
//! that come after. The rows of some drafters stand one position earlier, at that of the state.
//!
//! A drafter that fills blocks keeps what it reads of the trunk as keys and values, which the trunk's own plan writes: it has
//! nothing to follow, and one run of masked tokens guesses all.
//!
//! What a head left in a block that another request goes on from is as good as if it had run there itself; where it had
//! not, or read no state, its guesses are worse, and no text is different.

mod own;
mod run;

use tokkata_ir::sample::{Scratch, sample};
use tokkata_ir::spec::{DraftForm, MaskedBlock};
use tokkata_ir::{BlockCopy, Lead, LogitRow, Plan, PlanRole, Program, Source, ValueId};

use super::Engine;
use crate::flight::{Flight, Part};
use crate::speculate::Guess;
use crate::task::{Goal, Task, place_of};
pub(crate) use own::Own;
use own::There;
pub(crate) use run::Guessing;

/// The drafters of a program.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    /// The trunk's output that the first one reads, `[rows, width]`; `None` where the trunk keeps it.
    state: Option<ValueId>,
    width: usize,
    stages: Vec<Stage>,
    /// The same with fewer columns: they tell only the first tokens of the vocabulary apart. None, or one for each.
    short: Vec<Stage>,
    form: DraftForm,
}

/// The place of one in the program.
#[derive(Clone, Copy, Debug)]
struct Stage {
    plan: usize,
    input: Option<ValueId>,
    logits: ValueId,
    columns: usize,
    /// The state that it makes itself.
    next: ValueId,
}

/// Tokens of a text by whose kind it is seen which heads are enough.
const RECENT: usize = 256;
/// Of so many of them all but one are common, where the short heads are.
const COMMON: usize = 8;

/// Rows of a request for a head.
struct Fed {
    i: usize,
    at: usize,
    tokens: Vec<u32>,
    /// Those of several requests are the host's.
    states: Source,
    copies: Vec<BlockCopy>,
    /// How many of its last rows tell what follows.
    guesses: usize,
    /// How the last of them draws.
    row: LogitRow,
}

/// What the rows of a request gave: logits of those that guess, or what the device drew of them, and states of all.
struct Made {
    logits: Vec<f32>,
    drawn: Option<u32>,
    states: Vec<f32>,
}

/// A request for which something is guessed: its place among those, and what is fed next.
struct Turn {
    n: usize,
    /// Tokens that are known.
    end: usize,
    fed: Fed,
}

impl Stage {
    fn of(program: &Program, number: u32) -> Option<Stage> {
        let (plan, head): (usize, &Plan) = program.plan(PlanRole::Draft(number))?;
        let logits = head.output("logits")?;
        Some(Stage {
            plan,
            input: head.input("hidden"),
            logits,
            columns: head.value(logits).shape.width(),
            next: head.output("hidden")?,
        })
    }
}

impl Heads {
    /// The drafters of a program that has any.
    pub(crate) fn of(program: &Program, form: &DraftForm) -> Option<Heads> {
        let mut stages: Vec<Stage> = (0..).map_while(|n| Stage::of(program, n)).collect();
        let whole = form
            .ids
            .as_ref()
            .map_or(program.n_vocab as usize, |ids| ids.len());
        let fewer = stages.iter().position(|stage| stage.columns < whole);
        let mut short = stages.split_off(fewer.unwrap_or(stages.len()));
        short.truncate(stages.len());
        let (_, main) = program.plan(PlanRole::Main)?;
        let state = main.output("draft_input");
        let (first, whole) = (stages.first()?, |v| main.value(v).shape.lead == Lead::Rows);
        if first.input.is_some() != state.is_some_and(whole) {
            return None;
        }
        Some(Heads {
            width: state.map_or(0, |state| main.value(state).shape.width()),
            state,
            stages,
            short,
            form: form.clone(),
        })
    }

    /// Whether the short heads know nearly all tokens of a text.
    fn is_common(&self, tokens: &[u32]) -> bool {
        let Some(short) = self.short.first() else {
            return false;
        };
        let recent = &tokens[tokens.len().saturating_sub(RECENT)..];
        let rare = recent.iter().filter(|&&t| t as usize >= short.columns);
        rare.count() * COMMON <= recent.len()
    }

    /// Whether the device draws its guesses as it draws the trunk's rows: its rows stand where the trunk's do, and it has
    /// their vocabulary or the beginning of it.
    fn draws(&self) -> bool {
        self.shift() == 0 && self.form.ids.is_none() && self.form.block.is_none()
    }

    /// Whether what it reads for the next guess is on the device when one is drawn: its token and its state.
    fn goes_ahead(&self) -> bool {
        self.draws() && self.stages.len() == 1 && self.state.is_some()
    }

    /// Positions by which its rows stand before their tokens.
    fn shift(&self) -> usize {
        usize::from(self.form.at_state)
    }

    /// Positions that a guess of so many tokens takes.
    pub(crate) fn reach(&self, most: usize) -> usize {
        let block = self.form.block.map_or(0, |block| block.size as usize);
        1 + most.max(block)
    }
}

impl Engine {
    /// Whether the program has a drafter of its own that can guess when it is run so.
    #[must_use]
    pub fn has_head(&self, form: &DraftForm) -> bool {
        Heads::of(&self.program, form).is_some()
    }

    /// Whether nothing more is launched until what is under way has landed: its states are needed in order.
    pub(super) fn waits_for_states(&self) -> bool {
        self.heads.is_some()
            && !self.flights.is_empty()
            && self.running.iter().any(Task::keeps_states_for_head)
    }

    /// The output to keep of a work whose parts have use for it.
    pub(super) fn kept_for_head(&self, parts: &[Part]) -> Option<ValueId> {
        let state = self.heads.as_ref()?.state?;
        let needs = |part: &Part| {
            let task = place_of(&self.running, part.task).map(|i| &self.running[i]);
            task.is_some_and(Task::keeps_states_for_head)
        };
        parts.iter().any(needs).then_some(state)
    }

    /// Brings states that lie with the device.
    fn bring_states(&mut self, heads: &Heads, i: usize) {
        let own = &mut self.running[i].head;
        let Some(there) = own.stage(0).bring() else {
            return;
        };
        let mut states = vec![0.0; there.rows.len() * heads.width];
        let rows = there.rows.clone();
        match self
            .executor
            .read(&there.ticket, there.value, rows, &mut states)
        {
            Ok(()) => own.stage(0).keep(there.start, &states, heads.width),
            Err(_) => own.give_up(),
        }
    }

    /// The states before positions `from..to` of a task, over which the first head is to run now: left where they are, if
    /// it runs over these alone.
    fn read_states(
        &mut self,
        heads: &Heads,
        (i, alone): (usize, bool),
        (from, to): (usize, usize),
    ) -> Source {
        let width = heads.width;
        let kept = self.running[i].head.stage(0);
        let there = alone.then(|| kept.read_there(from, to, width));
        if let Some(there) = there.flatten() {
            return there;
        }
        self.bring_states(heads, i);
        Source::Host(self.running[i].head.stage(0).read(from, to, width))
    }

    /// Notes where the states of a part's rows are, which are those from `before` on in its work.
    fn take_states(&mut self, heads: &Heads, flight: &Flight, part: &Part, before: usize) {
        let (Some(i), Some(ticket)) = (place_of(&self.running, part.task), &flight.ticket) else {
            return;
        };
        let Some(state) = heads.state else {
            return;
        };
        if part.encodes || !self.running[i].keeps_states_for_head() {
            return;
        }
        self.bring_states(heads, i);
        let there = There {
            ticket: ticket.clone(),
            value: state,
            start: part.start,
            rows: before..before + part.rows,
        };
        let own = &mut self.running[i].head;
        own.stage(0).keep_there(there, heads.width);
    }

    /// Takes the states of a work's rows, and runs the heads over the same rows before anything else becomes of them: what a
    /// window passes is given back when they count.
    pub(super) fn follow(&mut self, flight: &Flight) {
        let Some(heads) = self.heads.clone().filter(|h| h.state.is_some()) else {
            return;
        };
        let mut before = 0;
        for part in &flight.parts {
            self.take_states(&heads, flight, part, before);
            before += part.rows;
        }
        if !self.flights.is_empty() {
            return;
        }
        for stage in 0..heads.stages.len() {
            let alone = flight.parts.len() == 1;
            let behind = |part| self.behind(&heads, (stage, alone), part);
            let fed: Vec<Fed> = flight.parts.iter().filter_map(behind).collect();
            let made = match fed.is_empty() {
                true => break,
                false => self.run_head(&heads, &heads.stages[stage], &fed),
            };
            for (fed, made) in fed.iter().zip(&made) {
                let to = fed.at + fed.tokens.len();
                self.pass_on(&heads, stage, (fed, to), made);
            }
        }
    }

    /// The rows of a part that a head has not run over.
    fn behind(&mut self, heads: &Heads, (stage, alone): (usize, bool), part: &Part) -> Option<Fed> {
        let i = place_of(&self.running, part.task)?;
        let task = &mut self.running[i];
        if part.encodes || !task.keeps_states_for_head() || task.fresh {
            return None;
        }
        let to = task.tokens.len().min(part.start + part.rows - part.tried);
        let kept = task.head.stage(stage);
        let from = kept.done.max(heads.shift());
        if !(part.start..to).contains(&from) {
            return None;
        }
        let states = match stage {
            0 => self.read_states(heads, (i, alone), (from, to)),
            _ => Source::Host(kept.read(from, to, heads.width)),
        };
        Some(Fed {
            i,
            at: from,
            tokens: self.running[i].tokens[from..to].to_vec(),
            states,
            copies: Vec::new(),
            guesses: 0,
            row: LogitRow::default(),
        })
    }

    /// What a head made of rows before `to` is what the next one reads of them.
    fn pass_on(&mut self, heads: &Heads, stage: usize, (fed, to): (&Fed, usize), made: &Made) {
        if stage + 1 < heads.stages.len() {
            let known = (to - fed.at) * heads.width;
            let next = self.running[fed.i].head.stage(stage + 1);
            next.keep(fed.at, &made.states[..known], heads.width);
        }
    }

    /// Guesses so many tokens for each of these tasks.
    pub(super) fn guess_by_head(&mut self, asked: &[(usize, usize)]) -> Vec<Guess> {
        let mut guesses = vec![Guess::default(); asked.len()];
        if let Some(heads) = self.heads.clone().filter(|_| self.flights.is_empty()) {
            match heads.form.block {
                Some(block) => self.guess_blocks(&heads, block, asked, &mut guesses),
                None => self.guess_chains(&heads, asked, &mut guesses),
            }
        }
        guesses
    }

    /// One token after another, all requests at once.
    fn guess_chains(&mut self, heads: &Heads, asked: &[(usize, usize)], guesses: &mut [Guess]) {
        let mut open = Vec::new();
        let mut rows = self.limits().rows as usize;
        for (n, &ask) in asked.iter().enumerate() {
            let turn = self.open(heads, (n, asked.len() == 1), ask, rows);
            // The last head is fed what all before it guessed.
            rows -= turn.as_ref().map_or(0, |t| {
                (t.fed.tokens.len() + heads.stages.len() - 1).min(rows)
            });
            open.extend(turn);
        }
        let ahead = heads.goes_ahead() && open.len() == 1;
        if let Some(Turn { n, fed, .. }) = open.pop_if(|t| ahead && self.draws_alone(t.fed.i)) {
            let at = self.stage_of(heads, 0, std::slice::from_ref(&fed));
            let unseen = self.tries_unseen(fed.i);
            let guessing = self.guess_ahead(heads, at, (fed, asked[n].1));
            if unseen && !guessing.failed {
                guesses[n].tokens = vec![0; asked[n].1];
                self.guessing = Some(guessing);
            } else {
                guesses[n].tokens = self.guessed(guessing);
            }
        }
        let (mut scratch, mut stage) = (Scratch::default(), 0);
        while !open.is_empty() {
            let (turns, fed): (Vec<(usize, usize)>, Vec<Fed>) = open
                .into_iter()
                .map(|t: Turn| ((t.n, t.end), t.fed))
                .unzip();
            let of = self.stage_of(heads, stage, &fed);
            let made = self.run_head(heads, of, &fed);
            open = Vec::new();
            for (((n, end), fed), made) in turns.into_iter().zip(fed).zip(made) {
                let at = fed.at + fed.tokens.len();
                let guess = &mut guesses[n].tokens;
                let token = if heads.draws() {
                    made.drawn
                } else {
                    let logits = heads.spread(&made.logits, self.program.n_vocab);
                    self.draw((fed.i, at - 1), guess, &fed.row, &logits, &mut scratch)
                };
                let Some(token) = token else {
                    continue;
                };
                guess.push(token);
                if guess.len() < asked[n].1 {
                    let fed = self.next(heads, stage, (&fed, end), (&made, guess));
                    open.push(Turn { n, end, fed });
                }
            }
            stage = (stage + 1).min(heads.stages.len() - 1);
        }
    }

    /// A head, or its short form where that tells all that these texts need.
    fn stage_of<'a>(&self, heads: &'a Heads, stage: usize, fed: &[Fed]) -> &'a Stage {
        let common = |fed: &Fed| heads.is_common(&self.running[fed.i].tokens);
        match heads.short.get(stage) {
            Some(short) if fed.iter().all(common) => short,
            _ => &heads.stages[stage],
        }
    }

    /// What is fed behind a guess: to the head after this one all that it has not seen, to the last one the guess.
    fn next(
        &mut self,
        heads: &Heads,
        stage: usize,
        (fed, end): (&Fed, usize),
        (made, guess): (&Made, &[u32]),
    ) -> Fed {
        let (i, width) = (fed.i, heads.width);
        let last = |rows: usize| made.states[made.states.len() - rows * width..].to_vec();
        if stage + 1 == heads.stages.len() {
            return Fed {
                i,
                at: fed.at + fed.tokens.len(),
                tokens: guess[guess.len() - 1..].to_vec(),
                states: Source::Host(last(1)),
                copies: Vec::new(),
                guesses: 1,
                row: self.guess_row(i, guess),
            };
        }
        self.pass_on(heads, stage, (fed, end), made);
        let row = self.guess_row(i, guess);
        let least = heads.shift().max(end.saturating_sub(self.cache.slack()));
        let task = &mut self.running[i];
        let kept = task.head.stage(stage + 1);
        let from = kept.done.max(least).min(end - 1);
        let known = kept.read(from, end, width);
        Fed {
            i,
            at: from,
            tokens: [&task.tokens[from..end], guess].concat(),
            states: Source::Host([known, last(guess.len())].concat()),
            copies: Vec::new(),
            guesses: 1,
            row,
        }
    }

    /// Blocks of masked tokens behind the newest ones, all requests at once.
    fn guess_blocks(
        &mut self,
        heads: &Heads,
        block: MaskedBlock,
        asked: &[(usize, usize)],
        guesses: &mut [Guess],
    ) {
        let (mut rows, mut told) = (self.limits().rows, self.limits().logit_rows);
        let mut turns = Vec::new();
        for (n, &(i, count)) in asked.iter().enumerate() {
            let most = count.min(block.size as usize - 1).min(told as usize);
            let Some(fed) = self
                .masked(block, (i, most))
                .filter(|f| f.tokens.len() <= rows as usize)
            else {
                continue;
            };
            rows -= fed.tokens.len() as u32;
            told -= fed.guesses as u32;
            let end = self.running[i].tokens.len();
            turns.push((n, end, fed));
        }
        if turns.is_empty() {
            return;
        }
        let (places, fed): (Vec<(usize, usize)>, Vec<Fed>) = turns
            .into_iter()
            .map(|(n, end, fed)| ((n, end), fed))
            .unzip();
        let made = self.run_head(heads, &heads.stages[0], &fed);
        let mut scratch = Scratch::default();
        for (((n, end), fed), made) in places.into_iter().zip(fed).zip(made) {
            let guess = &mut guesses[n].tokens;
            for (j, row) in made.logits.chunks(heads.stages[0].columns).enumerate() {
                let logits = heads.spread(row, self.program.n_vocab);
                let place = (fed.i, end - 1 + j);
                let drawn = self.guess_row(fed.i, guess);
                match self.draw(place, guess, &drawn, &logits, &mut scratch) {
                    Some(token) => guess.push(token),
                    None => break,
                }
            }
        }
    }

    /// The newest tokens of a task with the rest of a block behind them, of which so many masked ones are read at most.
    fn masked(&mut self, block: MaskedBlock, (i, most): (usize, usize)) -> Option<Fed> {
        let task = &self.running[i];
        if !task.keeps_states_for_head() || task.fresh || most == 0 {
            return None;
        }
        let (len, end) = (task.seq.len(), task.tokens.len());
        let room = (self.limits().ctx as usize).saturating_sub(end);
        let masks = (block.size as usize - 1).min(room);
        if masks == 0 {
            return None;
        }
        let copies = self.reserve_ahead(i, end - len + masks)?;
        let task = &self.running[i];
        let mut tokens = task.tokens[len..end].to_vec();
        tokens.resize(end - len + masks, block.mask);
        Some(Fed {
            i,
            at: len,
            tokens,
            states: Source::Host(Vec::new()),
            copies,
            guesses: most.min(masks),
            row: LogitRow::default(),
        })
    }

    /// Blocks for rows that are fed to a drafter before the trunk's.
    fn reserve_ahead(&mut self, i: usize, rows: usize) -> Option<Vec<BlockCopy>> {
        let task = &mut self.running[i];
        let copies = self.cache.reserve(&mut task.seq, rows).ok()?;
        task.seq.ahead -= rows;
        Some(copies)
    }

    /// What the first head is fed for a guess: the newest tokens of a task, with room for the guess behind them.
    fn open(
        &mut self,
        heads: &Heads,
        (n, alone): (usize, bool),
        (i, count): (usize, usize),
        most: usize,
    ) -> Option<Turn> {
        let task = &mut self.running[i];
        if !task.keeps_states_for_head() || task.fresh {
            return None;
        }
        let (len, end) = (task.seq.len(), task.tokens.len());
        // What windows have passed cannot be read again.
        let done = task.head.stage(0).done;
        let from = done.max(len.saturating_sub(self.cache.slack()));
        let from = from.max(heads.shift()).min(end - 1);
        if end - from + heads.stages.len() - 1 > most {
            return None;
        }
        let room = (self.limits().ctx as usize).saturating_sub(end);
        let copies = self.reserve_ahead(i, end - len + (count - 1).min(room))?;
        let row = self.guess_row(i, &[]);
        let kept = self.running[i].head.stage(0);
        kept.forget(len, heads.width);
        let fed = Fed {
            i,
            at: from,
            tokens: self.running[i].tokens[from..end].to_vec(),
            states: self.read_states(heads, (i, alone), (from, end)),
            copies,
            guesses: 1,
            row,
        };
        Some(Turn { n, end, fed })
    }

    /// Whether the device knows by itself how what follows a guess of a task is drawn.
    fn draws_alone(&self, i: usize) -> bool {
        matches!(&self.running[i].goal, Goal::Answer(answer) if answer.sampling.dry.is_none())
    }

    /// Whether guesses of a task may be tried before the host has seen them: nothing depends on them but their own rows, which
    /// stand behind the one that is next.
    fn tries_unseen(&self, i: usize) -> bool {
        let task = &self.running[i];
        let free = matches!(&task.goal, Goal::Answer(answer) if answer.runs_ahead(false));
        free && task.pending().len() == 1
    }

    /// How what follows a task's tokens and a guess behind them is drawn.
    fn guess_row(&self, i: usize, guessed: &[u32]) -> LogitRow {
        let task = &self.running[i];
        let Goal::Answer(answer) = &task.goal else {
            return LogitRow::default();
        };
        let tokens = match answer.sampling.dry {
            Some(_) => [&task.tokens[..], guessed].concat(),
            None => Vec::new(),
        };
        LogitRow {
            best: None,
            ..answer.masked_row(0, &tokens, None)
        }
    }

    /// Draws from a head's logits as the task's next row will from the trunk's: with the same noise.
    fn draw(
        &self,
        (i, position): (usize, usize),
        guessed: &[u32],
        drawn: &LogitRow,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Option<u32> {
        let task = &self.running[i];
        let Goal::Answer(answer) = &task.goal else {
            return None;
        };
        let tokens = [&task.tokens[..], guessed].concat();
        let sampler = answer.sampling.sampler();
        let side = sampler.side(&tokens, None, drawn.dry.clone());
        let row = side.row(logits, position as u32);
        sample(&sampler.record, &row, scratch).ok()
    }

    /// Whether steps that could follow each other on the device do not, because heads need the states of each.
    pub(super) fn heads_hold_steps(&self) -> bool {
        let follow = self.options.ahead.min(self.executor.depth()) > 1 || self.options.chain > 0;
        follow && self.heads.is_some() && self.running.iter().any(Task::keeps_states_for_head)
    }

    /// Notes whether the heads were worth asking for a token of a task.
    pub(super) fn note_head(&mut self, i: usize, asked: bool) {
        self.running[i].head.note(asked);
    }
}

impl Task {
    /// Whether states of its rows are kept for the heads.
    pub(super) fn keeps_states_for_head(&self) -> bool {
        let answers = matches!(&self.goal, Goal::Answer(answer) if !answer.own.never);
        answers
            && !self.head.is_off()
            && self.media.is_empty()
            && !self.alone
            && self.encode.is_none()
    }
}
