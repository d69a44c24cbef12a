//! Completions: what is asked, and how answers are written.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokkata::{DecodeOptions, Logprobs, Tokenizer};

use crate::chat::finish_word;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::logprobs::{Telling, TextLogprobs, at_most, prompt_entries};
use crate::names::{HINTS, LABELS, fingerprint};
use crate::params::Params;
use crate::prompts::{Given, encode, prompts};
use crate::run::{End, Part, Run, Step, Usage, Whole, id, metrics, timings};
use crate::scores::prompt_logprobs;
use crate::served::{Served, now};
use crate::style::Style;
use crate::talk::Prepared;
use crate::write::Write;

/// What the dialect alone asks for.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    stream: bool,
    usage: bool,
    usage_always: bool,
    /// How long the answer took is told at its end.
    metrics: bool,
    logprobs: Option<Telling>,
    /// The prompt's own, and so many of the likeliest tokens in each place.
    prompt_logprobs: Option<usize>,
    echo: bool,
    best_of: usize,
    /// `None` where it was not said.
    token_ids: Option<bool>,
    /// So many tokens of a prompt are kept: the last ones, or the first.
    truncate: Option<(usize, bool)>,
}

/// Prompts as tokens, with what their answers must follow.
pub struct Ready {
    prepared: Vec<Prepared>,
    /// Answers to a prompt that are given.
    per_prompt: usize,
    wishes: Wishes,
    warnings: Vec<String>,
}

/// Encodes prompts.
///
/// # Errors
/// A prompt with tokens that are not known; a grammar that cannot be followed.
pub fn prepare(model: &Served, asked: Asked, warnings: Vec<String>) -> Result<Ready> {
    let (prompts, suffix, params, wishes) = asked;
    let per_prompt = params.n;
    let params = Params {
        n: wishes.best_of.max(params.n),
        ..params
    };
    let one = |prompt: Given| {
        let mut ids = encode(model, &prompt, suffix.as_deref())?;
        match wishes.truncate.filter(|(most, _)| ids.len() > *most) {
            Some((most, true)) => drop(ids.drain(..ids.len() - most)),
            Some((most, false)) => ids.truncate(most),
            None => {}
        }
        Prepared::plain(model, ids, params.clone())
    };
    let prepared: Result<Vec<Prepared>> = prompts.into_iter().map(one).collect();
    Ok(Ready {
        prepared: prepared?,
        per_prompt,
        wishes,
        warnings,
    })
}

impl Ready {
    /// Asks for the answers.
    ///
    /// # Errors
    /// A prompt that does not fit; a full queue; probabilities of a prompt that cannot be had.
    pub async fn start(self, model: &Arc<Served>) -> Result<(Run, Writer)> {
        let Ready {
            prepared,
            per_prompt,
            wishes,
            warnings,
        } = self;
        let prompt_ids: Vec<Vec<u32>> = prepared.iter().map(|p| p.ids.clone()).collect();
        let echoes = echoes(model, &prompt_ids, &wishes).await?;
        let mut known = Vec::new();
        if let Some(most) = wishes.prompt_logprobs {
            for ids in &prompt_ids {
                let scored = prompt_logprobs(model, ids, (most, &[])).await?;
                known.push(prompt_entries(model.service.tokenizer()?, &scored));
            }
        }
        let run = Run::start(model, prepared)?;
        let writer = Writer {
            id: id("cmpl-"),
            created: now(),
            model: Arc::clone(model),
            warnings,
            per_prompt,
            drawn: wishes.best_of.max(per_prompt),
            echoes,
            prompt_logprobs: known,
            prompt_ids,
            state: Stream::new(run.len()),
            wishes,
        };
        Ok((run, writer))
    }
}

/// Prompts, what stands behind the gap, and how the answers are made.
pub type Asked = (Vec<Given>, Option<String>, Params, Wishes);

/// Reads a request.
///
/// # Errors
/// A field that cannot be honoured, by its name.
pub fn read(style: &Style, model: &Served, fields: &mut Fields) -> Result<Asked> {
    let prompts = prompts("prompt", fields.needed("prompt")?)?;
    let suffix = fields.text("suffix")?.filter(|s| !s.is_empty());
    let mut params = Params::take(fields, &model.defaults, model.service.tokenizer()?)?;
    let most = fields.integer(&["max_tokens", "max_completion_tokens", "n_predict"])?;
    params.max_tokens = match most {
        None => Some(model.defaults.max_tokens.unwrap_or(16)),
        Some(n) => usize::try_from(n).ok(),
    };
    let (usage, usage_always) = style.usage(fields)?;
    let mut wishes = Wishes {
        usage,
        usage_always,
        metrics: style.metrics,
        stream: fields.boolean("stream")?.unwrap_or(false),
        echo: fields.boolean("echo")?.unwrap_or(false),
        best_of: fields.count(&["best_of"])?.unwrap_or(1),
        token_ids: fields.boolean("return_token_ids")?,
        ..Wishes::default()
    };
    let most = at_most(fields, "logprobs", model)?;
    wishes.logprobs = Telling::take(fields, most, (model, style))?;
    wishes.prompt_logprobs = at_most(fields, "prompt_logprobs", model)?;
    if wishes.prompt_logprobs.is_some() && wishes.stream {
        return Err(ApiError::field("prompt_logprobs", "cannot be streamed"));
    }
    if wishes.best_of > 1 && wishes.stream {
        return Err(ApiError::field(
            "best_of",
            "the best answer is known only when all have ended; do not stream",
        ));
    }
    if wishes.best_of > params.n && params.beams.is_some() {
        return Err(ApiError::field(
            "best_of",
            "a beam search (use_beam_search) finds the best `n`",
        ));
    }
    if wishes.best_of > 1 && wishes.best_of < params.n {
        return Err(ApiError::field("best_of", "is less than n"));
    }
    params.logprobs = most.or((wishes.best_of > params.n).then_some(0));
    params.told = wishes
        .logprobs
        .iter()
        .flat_map(|l| l.told.clone())
        .collect();
    fields.labels(&LABELS);
    fields.labels(&["cache_prompt", "timings_per_token", "add_special_tokens"]);
    fields.hints(&HINTS);
    fields.refuse(&["prompt_embeds"], "prompts are texts or tokens")?;
    wishes.truncate = truncation(model, fields)?;
    fields.finish(style.strict_fields)?;
    Ok((prompts, suffix, params, wishes))
}

/// How a prompt is cut to so many tokens: its last ones are kept, or with `truncation_side` right its first ones.
fn truncation(model: &Served, fields: &mut Fields) -> Result<Option<(usize, bool)>> {
    let left = match fields.text("truncation_side")?.as_deref() {
        None | Some("left") => true,
        Some("right") => false,
        Some(other) => {
            let text = format!("found '{other}', expected left or right");
            return Err(ApiError::field("truncation_side", text));
        }
    };
    let ctx = model.service.limits().ctx as usize;
    match fields.integer(&["truncate_prompt_tokens"])? {
        None => Ok(None),
        Some(-1) => Ok(Some((ctx.saturating_sub(1), left))),
        Some(n) => match usize::try_from(n).ok().filter(|n| (1..=ctx).contains(n)) {
            Some(n) => Ok(Some((n, left))),
            None => Err(ApiError::field(
                "truncate_prompt_tokens",
                format!("found {n}, expected 1 to {ctx}, or -1 for as many as fit"),
            )),
        },
    }
}

/// What is repeated of a prompt.
#[derive(Clone, Debug, Default)]
struct Echo {
    text: String,
    logprobs: TextLogprobs,
}

/// The prompts that are to be repeated, with the probabilities of their tokens if they are wanted.
async fn echoes(model: &Arc<Served>, prompts: &[Vec<u32>], wishes: &Wishes) -> Result<Vec<Echo>> {
    if !wishes.echo {
        return Ok(vec![Echo::default(); prompts.len()]);
    }
    let tokenizer = Arc::clone(model.service.tokenizer()?);
    let mut echoes = Vec::with_capacity(prompts.len());
    for ids in prompts {
        let mut echo = Echo {
            text: plain_text(&tokenizer, ids),
            logprobs: TextLogprobs::default(),
        };
        if let Some(telling) = &wishes.logprobs {
            let asked = (telling.most, telling.told.as_slice());
            let known = prompt_logprobs(model, ids, asked).await?;
            let mut offset = 0;
            for (&id, scored) in ids.iter().zip(&known) {
                let logprobs = scored.as_ref().map(|s| &s.logprobs);
                let place = (telling, offset);
                echo.logprobs.push(&tokenizer, id, logprobs, place);
                offset += plain_text(&tokenizer, &[id]).chars().count();
            }
        }
        echoes.push(echo);
    }
    Ok(echoes)
}

fn plain_text(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let bytes = tokenizer.decode(ids, DecodeOptions::default());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes texts as OpenAI does.
pub struct Writer {
    id: String,
    created: u64,
    model: Arc<Served>,
    warnings: Vec<String>,
    /// Answers to a prompt that are given, of those that are drawn.
    per_prompt: usize,
    drawn: usize,
    echoes: Vec<Echo>,
    /// Those of each prompt, where they are asked for.
    prompt_logprobs: Vec<Value>,
    prompt_ids: Vec<Vec<u32>>,
    wishes: Wishes,
    state: Stream,
}

impl Writer {
    fn head(&self) -> Map<String, Value> {
        let head = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.id,
            "system_fingerprint": fingerprint(),
        });
        match head {
            Value::Object(head) => head,
            _ => Map::new(),
        }
    }

    /// The likeliest per token of the answers that were drawn.
    fn best<'a>(&self, drawn: &'a [Whole]) -> Vec<&'a Whole> {
        let mean = |one: &&Whole| {
            let known = one.tokens.iter().filter_map(|t| t.logprobs.as_ref());
            let all: Vec<f64> = known.map(|l| f64::from(l.picked.logprob)).collect();
            match all.len() {
                0 => 0.0,
                n => all.iter().sum::<f64>() / n as f64,
            }
        };
        let mut order: Vec<&Whole> = drawn.iter().collect();
        if self.drawn > self.per_prompt {
            order.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        }
        order.truncate(self.per_prompt);
        order
    }

    fn choice(&self, index: usize, prompt: usize, one: &Whole) -> Result<Value> {
        let tokenizer = self.model.service.tokenizer()?;
        let echo = &self.echoes[prompt];
        let logprobs = self.wishes.logprobs.as_ref().map(|telling| {
            let mut logprobs = echo.logprobs.clone();
            let mut offset = echo.text.chars().count();
            for token in &one.tokens {
                let certain = certain(token.id);
                let known = token.logprobs.as_ref().unwrap_or(&certain);
                logprobs.push(tokenizer, token.id, Some(known), (telling, offset));
                offset += plain_text(tokenizer, &[token.id]).chars().count();
            }
            logprobs.object()
        });
        let mut choice = json!({
            "text": format!("{}{}", echo.text, one.content),
            "index": index,
            "logprobs": logprobs,
            "prompt_logprobs": self.prompt_logprobs.get(prompt),
            "finish_reason": one.end.as_ref().map(|end| finish_word(&end.finish)),
        });
        let told = self.wishes.token_ids == Some(true);
        choice["token_ids"] = told.then(|| one.ids()).into();
        choice["prompt_token_ids"] = told.then(|| self.prompt_ids[prompt].clone()).into();
        Ok(choice)
    }

    fn usage(&self) -> Usage {
        let state = &self.state;
        let mut usage = Usage::default();
        for (i, end) in state.ends.iter().enumerate() {
            match end {
                Some(end) => usage.add(end, i % self.drawn == 0),
                None if i % self.drawn == 0 => {
                    usage.prompt += self.prompt_ids[i / self.drawn].len();
                }
                None => {}
            }
        }
        usage.completion = usage.completion.max(state.tokens);
        usage
    }

    fn chunk(&mut self, index: usize, text: &str, end: Option<End>) -> Value {
        let logprobs = std::mem::take(&mut self.state.logprobs[index]);
        let logprobs =
            (self.wishes.logprobs.is_some() && !logprobs.is_empty()).then(|| logprobs.object());
        let mut choice = json!({
            "text": text,
            "index": index,
            "logprobs": logprobs,
            "finish_reason": end.as_ref().map(|end| finish_word(&end.finish)),
        });
        let mut ids = std::mem::take(&mut self.state.token_ids[index]);
        if self.wishes.token_ids == Some(true) {
            ids.extend(end.as_ref().and_then(|end| end.stats.end_token));
            choice["token_ids"] = ids.into();
            if !std::mem::replace(&mut self.state.told[index], true) {
                let prompt = &self.prompt_ids[index / self.drawn];
                choice["prompt_token_ids"] = prompt.clone().into();
            }
        }
        let mut chunk = self.head();
        chunk.insert("choices".to_owned(), json!([choice]));
        if let Some(end) = &end {
            chunk.insert("timings".to_owned(), timings(&end.stats));
            if !self.warnings.is_empty() {
                chunk.insert("warnings".to_owned(), self.warnings.clone().into());
            }
        }
        let ends = &mut self.state.ends;
        ends[index] = end.or(ends[index].take());
        if self.wishes.usage_always {
            chunk.insert("usage".to_owned(), self.usage().object());
        } else if self.wishes.usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        chunk.into()
    }
}

impl Write for Writer {
    fn streams(&self) -> bool {
        self.wishes.stream
    }

    fn whole(&mut self, all: &[Whole]) -> Result<Value> {
        let mut usage = Usage::default();
        for (i, one) in all.iter().enumerate() {
            if let Some(end) = &one.end {
                usage.add(end, i % self.drawn == 0);
            }
        }
        let mut choices = Vec::new();
        for (prompt, drawn) in all.chunks(self.drawn).enumerate() {
            for one in self.best(drawn) {
                choices.push(self.choice(choices.len(), prompt, one)?);
            }
        }
        let mut body = self.head();
        body.insert("choices".to_owned(), choices.into());
        body.insert("usage".to_owned(), usage.object());
        let stats = all.first().map(Whole::stats).unwrap_or_default();
        body.insert("timings".to_owned(), timings(&stats));
        let end = all.first().and_then(|one| one.end.as_ref());
        if let Some(end) = end.filter(|_| self.wishes.metrics) {
            body.insert("metrics".to_owned(), metrics(end));
        }
        if !self.warnings.is_empty() {
            body.insert("warnings".to_owned(), self.warnings.clone().into());
        }
        Ok(body.into())
    }

    fn step(&mut self, run: &mut Run, mut step: Step, out: &mut Vec<Value>) {
        if step.progress.is_some() {
            return;
        }
        let index = step.choice;
        if let Some(last) = run.end_at_hand(index) {
            step.parts.extend(last.parts);
            step.end = last.end;
        }
        let (echo, state) = (&self.echoes[index / self.drawn], &mut self.state);
        let mut text = String::new();
        if !std::mem::replace(&mut state.begun[index], true) {
            text.push_str(&echo.text);
            state.logprobs[index] = echo.logprobs.clone();
            state.offset[index] = echo.text.chars().count();
        }
        if let (Some(token), Ok(tokenizer)) = (&step.token, self.model.service.tokenizer()) {
            state.tokens += 1;
            state.token_ids[index].push(token.id);
            if let Some(telling) = &self.wishes.logprobs {
                let certain = certain(token.id);
                let known = token.logprobs.as_ref().unwrap_or(&certain);
                let place = (telling, state.offset[index]);
                state.logprobs[index].push(tokenizer, token.id, Some(known), place);
                state.offset[index] += plain_text(tokenizer, &[token.id]).chars().count();
            }
        }
        for part in step.parts {
            if let Part::Content(more) = part {
                text.push_str(&more);
            }
        }
        if !text.is_empty() || step.end.is_some() {
            out.push(self.chunk(index, &text, step.end));
        }
    }

    fn last(&mut self, out: &mut Vec<Value>) {
        if self.wishes.usage {
            let mut chunk = self.head();
            chunk.insert("choices".to_owned(), json!([]));
            chunk.insert("usage".to_owned(), self.usage().object());
            let end = self.state.ends.iter().flatten().next();
            if let Some(end) = end.filter(|_| self.wishes.metrics) {
                chunk.insert("metrics".to_owned(), metrics(end));
            }
            out.push(chunk.into());
        }
    }
}

/// How far a stream of several answers has come.
struct Stream {
    ends: Vec<Option<End>>,
    logprobs: Vec<TextLogprobs>,
    token_ids: Vec<Vec<u32>>,
    offset: Vec<usize>,
    begun: Vec<bool>,
    /// Whether the prompt's tokens were told.
    told: Vec<bool>,
    tokens: usize,
}

impl Stream {
    fn new(choices: usize) -> Self {
        Stream {
            ends: vec![None; choices],
            logprobs: vec![TextLogprobs::default(); choices],
            token_ids: vec![Vec::new(); choices],
            offset: vec![0; choices],
            begun: vec![false; choices],
            told: vec![false; choices],
            tokens: 0,
        }
    }
}

/// A token that was not drawn but forced.
fn certain(token: u32) -> Logprobs {
    Logprobs {
        picked: tokkata::Logprob {
            token,
            logprob: 0.0,
        },
        top: Vec::new(),
    }
}
