//! Requests and their events.

use std::ffi::{c_char, c_void};
use std::ptr::null;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use tokkata::speech::Hush;
use tokkata::{Answer, Canceller, EventKind, FinishReason, Request, Sampling, Stats, Urgency};
use tokkata_requests::params::MOST_LOGPROBS;
use tokkata_requests::reply::{Next, Reply};
use tokkata_requests::run::Stopper;
use tokkata_requests::style::Style;

use crate::border::{Sized32, deliver, guard, list, options, place, text};
use crate::grammar::grammar;
use crate::handle::Table;
use crate::model::{Loaded, model};
use crate::session::session;
use crate::speech::{Part, Speech};
use crate::status::{BUSY, END, Error, OK, Outcome, TIMEOUT};
use crate::tokens::{known, parsed};
use crate::types::{
    tokkata_bias, tokkata_event, tokkata_event_fn, tokkata_generate_options, tokkata_logprob,
    tokkata_model, tokkata_request, tokkata_sampling, tokkata_text, tokkata_word,
};

static REQUESTS: Table<Asked> = Table::new();

/// Something asked for.
struct Asked {
    inner: Mutex<Inner>,
    stop: Stop,
    // Dropped last, so that a process that was forked off leaves it alone.
    model: Arc<Loaded>,
}

/// Ends a request from any thread.
enum Stop {
    Reply(Stopper),
    Answer(Canceller),
    Speech(Hush),
}

/// Where events come from.
pub(crate) enum Source {
    Reply(Box<Reply>),
    Answer(Answer),
    Speech(Box<Speech>),
}

/// What only one caller at a time may touch.
struct Inner {
    source: Source,
    /// What the newest event points to.
    bytes: Vec<u8>,
    values: Vec<f32>,
    top: Vec<tokkata_logprob>,
    words: Vec<tokkata_word>,
    over: bool,
}

/// Keeps something that was asked for.
pub(crate) fn ask(model: Arc<Loaded>, source: Source) -> *mut tokkata_request {
    let stop = match &source {
        Source::Reply(reply) => Stop::Reply(reply.stopper()),
        Source::Answer(answer) => Stop::Answer(answer.canceller()),
        Source::Speech(speech) => Stop::Speech(speech.canceller()),
    };
    let inner = Inner {
        source,
        bytes: Vec::new(),
        values: Vec::new(),
        top: Vec::new(),
        words: Vec::new(),
        over: false,
    };
    REQUESTS.add(Asked {
        inner: Mutex::new(inner),
        stop,
        model,
    })
}

/// The right to a thing that one caller at a time may use.
pub(crate) fn alone<'a, T>(thing: &'a Mutex<T>, what: &str) -> Result<MutexGuard<'a, T>, Error> {
    match thing.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Error::new(
            BUSY,
            format!("the {what} serves another caller, or is called from its own callback"),
        )),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_request_json(
    model: *const tokkata_model,
    json: *const c_char,
    len: usize,
    out: *mut *mut tokkata_request,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let (json, out) = (text(json, len, "json")?, place(out, "out")?);
        let reply = Reply::ask(model.served()?, &Style::default(), parsed(json)?)?;
        out.write(ask(model, Source::Reply(Box::new(reply))));
        Ok(OK)
    })
}

/// How tokens are picked.
pub(crate) fn sampling(given: &tokkata_sampling, biases: &[tokkata_bias]) -> Sampling {
    Sampling {
        temperature: given.temperature,
        top_k: given.top_k,
        top_p: given.top_p,
        min_p: given.min_p,
        typical_p: given.typical_p,
        top_n_sigma: given.top_n_sigma,
        xtc_probability: given.xtc_probability,
        xtc_threshold: given.xtc_threshold,
        repeat_penalty: given.repeat_penalty,
        frequency_penalty: given.frequency_penalty,
        presence_penalty: given.presence_penalty,
        repeat_last_n: usize::try_from(given.repeat_last_n).ok(),
        dry: None,
        bias: biases.iter().map(|b| (b.token, b.bias)).collect(),
        seed: given.seed,
        watermark: None,
    }
}

/// A request of the engine.
///
/// # Safety
/// Pointers of the options are as the header says.
unsafe fn request(
    model: &Loaded,
    ids: &[u32],
    given: &tokkata_generate_options,
) -> Result<Request, Error> {
    let mut request = model.service()?.request(ids.to_vec())?;
    // SAFETY: the caller's promise.
    unsafe {
        let biases = list(given.biases, given.n_biases, "biases")?;
        request.sampling = sampling(&options(given.sampling, "sampling")?, biases);
        for stop in list::<tokkata_text>(given.stop, given.n_stop, "stop")? {
            let stop = text(stop.data, stop.len, "stop")?;
            request.stop.stop_strings.push(stop.as_bytes().to_vec());
        }
        if given.ignore_end != 0 {
            let ends = request.stop.stop_ids.drain(..);
            let bias = &mut request.sampling.bias;
            bias.extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
        let own = list(given.stop_tokens, given.n_stop_tokens, "stop_tokens")?;
        request.stop.stop_ids.extend(own);
    }
    request.stop.max_tokens = (given.max_tokens > 0).then_some(given.max_tokens as usize);
    request.logprobs = usize::try_from(given.logprobs).ok();
    if let Some(n) = request.logprobs.filter(|&n| n > MOST_LOGPROBS) {
        return Err(Error::argument(format!(
            "logprobs: found {n}, expected at most {MOST_LOGPROBS}"
        )));
    }
    let timeout = (given.timeout_ms > 0).then(|| Duration::from_millis(given.timeout_ms.into()));
    request.urgency = Urgency {
        priority: given.priority,
        deadline: timeout.and_then(|t| Instant::now().checked_add(t)),
    };
    request.salt = given.salt;
    if !given.grammar.is_null() {
        tokkata::grammar::constrain(&mut request, &*grammar(given.grammar)?);
    }
    Ok(request)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_request_tokens(
    model: *const tokkata_model,
    ids: *const u32,
    n: usize,
    options: *const tokkata_generate_options,
    out: *mut *mut tokkata_request,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let (ids, out) = (known(&model, ids, n)?, place(out, "out")?);
        let given = self::options(options, "options")?;
        let request = request(&model, ids, &given)?;
        let answer = match given.session.is_null() {
            true => model.service()?.generate(request),
            false => alone(&session(given.session)?.inner, "session")?.generate(request),
        };
        out.write(ask(model, Source::Answer(answer)));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_request_vector(
    model: *const tokkata_model,
    ids: *const u32,
    n: usize,
    out: *mut *mut tokkata_request,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let (ids, out) = (known(&model, ids, n)?, place(out, "out")?);
        let answer = model.service()?.vector(ids.to_vec(), Urgency::default())?;
        out.write(ask(model, Source::Answer(answer)));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_request_logits(
    model: *const tokkata_model,
    ids: *const u32,
    n: usize,
    out: *mut *mut tokkata_request,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let (ids, out) = (known(&model, ids, n)?, place(out, "out")?);
        let answer = model.service()?.logits(ids.to_vec(), Urgency::default());
        out.write(ask(model, Source::Answer(answer)));
        Ok(OK)
    })
}

const JSON: i32 = 1;
const PROGRESS: i32 = 2;
const TOKEN: i32 = 3;
const VALUES: i32 = 4;
pub(crate) const FINISHED: i32 = 5;

fn finish(reason: FinishReason) -> i32 {
    match reason {
        FinishReason::EndOfText => 0,
        FinishReason::StopString(_) => 1,
        FinishReason::MaxTokens => 2,
        FinishReason::ContextFull => 3,
        FinishReason::Cancelled => 4,
    }
}

impl Inner {
    /// The next event; `Err` with a status where there is none, or with an error.
    fn next(&mut self, patience: Option<Duration>) -> Result<Result<tokkata_event, i32>, Error> {
        if self.over {
            return Ok(Err(END));
        }
        let kind = match &mut self.source {
            Source::Reply(reply) => match reply.next(patience) {
                Ok(Next::Object(object)) => {
                    self.bytes = object.to_string().into_bytes();
                    return Ok(Ok(self.event(JSON)));
                }
                Ok(Next::Nothing) => return Ok(Err(TIMEOUT)),
                Ok(Next::Over) => None,
                Err(error) => {
                    self.over = true;
                    return Err(error.into());
                }
            },
            Source::Speech(speech) => {
                return match speech.next(patience)? {
                    Some(part) => Ok(Ok(self.heard(part))),
                    None if speech.is_over() => {
                        self.over = true;
                        Ok(Err(END))
                    }
                    None => Ok(Err(TIMEOUT)),
                };
            }
            Source::Answer(answer) => {
                let kind = match patience {
                    None => answer.next_blocking(),
                    Some(patience) => answer.next_within(patience),
                };
                if kind.is_none() && !answer.is_over() {
                    return Ok(Err(TIMEOUT));
                }
                kind
            }
        };
        match kind {
            None => {
                self.over = true;
                Ok(Err(END))
            }
            Some(EventKind::Failed(error)) => {
                self.over = true;
                Err(error.into())
            }
            Some(kind) => Ok(Ok(self.told(kind))),
        }
    }

    /// The event of a part of a transcript.
    fn heard(&mut self, part: Part) -> tokkata_event {
        self.bytes = part.text.into_bytes();
        self.bytes
            .extend(part.words.iter().flat_map(|w| w.word.bytes()));
        let mut at = self.bytes.len();
        at -= part.words.iter().map(|w| w.word.len()).sum::<usize>();
        let text_len = at;
        self.words.clear();
        for word in &part.words {
            self.words.push(tokkata_word {
                text: self.bytes[at..].as_ptr().cast(),
                len: word.word.len(),
                start: word.start,
                end: word.end,
                probability: word.probability,
            });
            at += word.word.len();
        }
        tokkata_event {
            text_len,
            logprob: part.logprob,
            finish: part.finish,
            start: part.start,
            end: part.end,
            no_speech: part.no_speech,
            words: self.words.as_ptr(),
            n_words: self.words.len(),
            ..self.event(part.kind)
        }
    }

    fn told(&mut self, kind: EventKind) -> tokkata_event {
        match kind {
            EventKind::Prompt { cached, total, .. } => tokkata_event {
                n_cached: cached as u32,
                n_prompt: total as u32,
                ..self.event(PROGRESS)
            },
            EventKind::Token { id, text, logprobs } => {
                self.bytes = text;
                self.top.clear();
                let logprob = logprobs.map_or(0.0, |logprobs| {
                    let one = |l: &tokkata::Logprob| tokkata_logprob {
                        token: l.token,
                        logprob: l.logprob,
                    };
                    self.top.extend(logprobs.top.iter().map(one));
                    logprobs.picked.logprob
                });
                tokkata_event {
                    token: id,
                    logprob,
                    top: self.top.as_ptr(),
                    n_top: self.top.len(),
                    ..self.event(TOKEN)
                }
            }
            EventKind::Values { values, width } => {
                self.bytes.clear();
                self.values = values;
                tokkata_event {
                    values: self.values.as_ptr(),
                    n_values: self.values.len(),
                    width,
                    ..self.event(VALUES)
                }
            }
            EventKind::Finished {
                text,
                reason,
                stats,
            } => {
                self.bytes = text;
                self.ended(reason, stats)
            }
            EventKind::Failed(_) => tokkata_event::INIT,
        }
    }

    fn ended(&mut self, reason: FinishReason, stats: Stats) -> tokkata_event {
        tokkata_event {
            finish: finish(reason),
            n_prompt: stats.prompt_tokens as u32,
            n_cached: stats.prompt_tokens as u32,
            n_reused: stats.reused_tokens as u32,
            n_generated: stats.generated_tokens as u32,
            prompt_ns: stats.prompt_ns,
            generate_ns: stats.generate_ns,
            n_drafted: stats.drafted_tokens as u32,
            n_accepted: stats.accepted_tokens as u32,
            ..self.event(FINISHED)
        }
    }

    fn event(&self, kind: i32) -> tokkata_event {
        let text = match self.bytes.is_empty() || kind == PROGRESS {
            true => (null(), 0),
            false => (self.bytes.as_ptr().cast(), self.bytes.len()),
        };
        tokkata_event {
            kind,
            text: text.0,
            text_len: text.1,
            ..tokkata_event::INIT
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_next_event(
    request: *mut tokkata_request,
    timeout_ns: i64,
    event: *mut tokkata_event,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let request = REQUESTS.get(request)?;
        request.model.home.check()?;
        // Looked at before anything is taken, so that no event is lost to a struct that cannot hold it.
        deliver(&tokkata_event::INIT, event, "event")?;
        let patience = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        match alone(&request.inner, "request")?.next(patience)? {
            Ok(found) => deliver(&found, event, "event"),
            Err(status) => Ok(status),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_request_run(
    request: *mut tokkata_request,
    each: tokkata_event_fn,
    user: *mut c_void,
) -> i32 {
    guard(|| {
        let asked = REQUESTS.get(request)?;
        asked.model.home.check()?;
        let each = each.ok_or_else(|| Error::argument("each: found NULL, expected a function"))?;
        let mut inner = alone(&asked.inner, "request")?;
        loop {
            match inner.next(None)? {
                Err(_) => return Ok(OK),
                Ok(event) => {
                    // SAFETY: the event lives during the call; the caller gave function and user for it.
                    if unsafe { each(user, &raw const event) } != 0 {
                        asked.cancel();
                    }
                }
            }
        }
    })
}

impl Asked {
    fn cancel(&self) {
        match &self.stop {
            Stop::Reply(stopper) => stopper.stop(),
            Stop::Answer(canceller) => canceller.cancel(),
            Stop::Speech(hush) => hush.cancel(),
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_cancel(request: *mut tokkata_request) -> i32 {
    guard(|| {
        let request = REQUESTS.get(request)?;
        request.model.home.check()?;
        request.cancel();
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_request_free(request: *mut tokkata_request) -> i32 {
    guard(|| freed(REQUESTS.remove(request)?))
}

/// Lets go of what was freed; another caller may still be in it.
fn freed(request: Option<Arc<Asked>>) -> Outcome {
    if let Some(request) = request.filter(|r| r.model.home.is_here()) {
        request.cancel();
    }
    Ok(OK)
}
