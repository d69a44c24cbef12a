//! Models: opened, asked, looked at.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokkata::grammar::{Trigger, constrain};
use tokkata::sample::{Mask, Scratch, sample as draw};
use tokkata::speech::Listener;
use tokkata::{DecodeOptions, EncodeOptions, Pooling, Sampling, Urgency, normalize, pair};
use tokkata_requests::chat;
use tokkata_requests::fields::Fields;
use tokkata_requests::params::MOST_LOGPROBS;
use tokkata_requests::reply::Reply as Asked;
use tokkata_requests::served::Served;
use tokkata_requests::style::Style;

use crate::answer::{Answer, Reply, check_process, values};
use crate::failure::{engine, error, facade, request};
use crate::floats::Floats;
use crate::grammar::{Grammar, source};
use crate::opening::{Info, Loaded, Opening, load};
use crate::session::{self, Session};
use crate::speech::{self, Hear, Sound, Transcript};

/// A loaded model, for any number of threads.
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Model {
    /// Always there, until it is dropped.
    loaded: Option<Loaded>,
    info: Info,
    process: u32,
}

impl Drop for Model {
    fn drop(&mut self) {
        let Some(loaded) = self.loaded.take() else {
            return;
        };
        if check_process(self.process).is_err() {
            // The threads that it would wait for are the parent's.
            std::mem::forget(loaded);
            return;
        }
        Python::attach(|py| py.detach(|| drop(loaded)));
    }
}

fn wrong(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

/// How tokens are picked.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Picking {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    typical_p: f32,
    repeat_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    repeat_last_n: i64,
    logit_bias: Vec<(u32, f32)>,
    seed: u64,
}

impl From<Picking> for Sampling {
    fn from(given: Picking) -> Self {
        Sampling {
            temperature: given.temperature,
            top_k: given.top_k,
            top_p: given.top_p,
            min_p: given.min_p,
            typical_p: given.typical_p,
            repeat_penalty: given.repeat_penalty,
            frequency_penalty: given.frequency_penalty,
            presence_penalty: given.presence_penalty,
            repeat_last_n: usize::try_from(given.repeat_last_n).ok(),
            bias: given.logit_bias,
            seed: given.seed,
            ..Sampling::default()
        }
    }
}

/// Where an answer ends, and what else is asked of it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Ends {
    max_tokens: Option<usize>,
    stop: Vec<String>,
    stop_tokens: Vec<u32>,
    ignore_end: bool,
    logprobs: Option<usize>,
    priority: i32,
    timeout: Option<f64>,
}

/// A value of metadata as text; of a list how long it is.
fn shown(value: &tokkata::Value) -> String {
    use tokkata::Value;
    match value {
        Value::Str(text) => text.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        Value::Array(array) => format!("{} elements", array.len()),
        other => match (other.as_int(), other.as_uint()) {
            (Some(n), _) => n.to_string(),
            (None, n) => n.unwrap_or_default().to_string(),
        },
    }
}

impl Model {
    fn here(&self) -> PyResult<&Arc<Served>> {
        check_process(self.process)?;
        match &self.loaded {
            Some(Loaded::Text(served)) => Ok(served),
            _ => Err(error(
                "the model was opened for speech; open it with another purpose",
            )),
        }
    }

    fn listener(&self) -> PyResult<&Listener> {
        check_process(self.process)?;
        match &self.loaded {
            Some(Loaded::Speech(listener)) => Ok(listener),
            _ => Err(error(
                "the model was not opened for speech; open it with purpose='speech'",
            )),
        }
    }

    fn known<'a>(&self, ids: impl IntoIterator<Item = &'a u32>) -> PyResult<()> {
        let n_vocab = self.here()?.service.n_vocab();
        match ids.into_iter().find(|&&id| id >= n_vocab) {
            Some(id) => Err(wrong(format!(
                "token {id} is not in the vocabulary of {n_vocab} tokens"
            ))),
            None => Ok(()),
        }
    }
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (path, options, progress=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        options: Opening,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (loaded, info) = load(py, &path, options, progress.as_ref())?;
        Ok(Model {
            loaded: Some(loaded),
            info,
            process: std::process::id(),
        })
    }

    /// Numbers that describe it, by name.
    fn info(&self) -> Info {
        self.info.clone()
    }

    /// The file's metadata as text, by GGUF's keys.
    fn metadata(&self) -> PyResult<HashMap<String, String>> {
        let all = self.here()?.service.checkpoint().metadata().iter();
        Ok(all.map(|(k, v)| (k.to_owned(), shown(v))).collect())
    }

    /// Name, type and shape of each tensor.
    fn tensors(&self) -> PyResult<Vec<(String, &'static str, Vec<usize>)>> {
        let all = self.here()?.service.checkpoint().file().tensors().iter();
        Ok(all
            .map(|t| (t.name.clone(), t.dtype.name(), t.shape.clone()))
            .collect())
    }

    /// The source of the chat template.
    fn template(&self) -> PyResult<Option<String>> {
        let template = self.here()?.service.template();
        Ok(template.map(|t| t.source().to_owned()))
    }

    /// Special tokens by name, those that the file has.
    fn special_tokens(&self) -> PyResult<HashMap<&'static str, u32>> {
        let special = self.here()?.service.tokenizer().map_err(facade)?.special();
        let all = [
            ("bos", special.bos),
            ("eos", special.eos),
            ("eot", special.eot),
            ("pad", special.pad),
            ("unk", special.unk),
            ("sep", special.sep),
        ];
        Ok(all
            .into_iter()
            .filter_map(|(name, id)| Some((name, id?)))
            .collect())
    }

    /// The tokens that end an answer.
    fn end_tokens(&self) -> PyResult<Vec<u32>> {
        Ok(self
            .here()?
            .service
            .tokenizer()
            .map_err(facade)?
            .eog()
            .to_vec())
    }

    fn tokenize(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let tokenizer = self.here()?.service.tokenizer().map_err(facade)?;
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        Ok(py.detach(|| tokenizer.encode(text, options)))
    }

    fn detokenize<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        special: bool,
        continues: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.known(&ids)?;
        let tokenizer = self.here()?.service.tokenizer().map_err(facade)?;
        let bytes = tokenizer.decode(&ids, DecodeOptions { special, continues });
        Ok(PyBytes::new(py, &bytes))
    }

    /// The bytes of every token, by id, and which of them are special.
    fn vocabulary<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Bound<'py, PyBytes>>, Vec<bool>)> {
        let tokenizer = self.here()?.service.tokenizer().map_err(facade)?;
        let ids = 0..tokenizer.vocab_size() as u32;
        let bytes = ids
            .clone()
            .map(|id| PyBytes::new(py, tokenizer.token_bytes(id)));
        Ok((
            bytes.collect(),
            ids.map(|id| tokenizer.is_special(id)).collect(),
        ))
    }

    /// The prompt of a chat request in JSON: text and tokens.
    fn render(&self, py: Python<'_>, body: &str) -> PyResult<(String, Vec<u32>)> {
        let served = self.here()?;
        let rendered = py.detach(|| {
            let mut fields = Fields::body(parsed(body)?)?;
            fields.text("model")?;
            let (talk, ..) = chat::read(&Style::default(), served, &mut fields)?;
            talk.render(served)
        });
        let rendered = rendered.map_err(request)?;
        Ok((rendered.text, rendered.ids))
    }

    /// Asks in OpenAI's terms, with a body in JSON.
    fn ask(&self, py: Python<'_>, body: &str) -> PyResult<Reply> {
        let served = self.here()?;
        let reply = py.detach(|| Asked::ask(served, &Style::default(), parsed(body)?));
        Ok(Reply::new(reply.map_err(request)?))
    }

    /// Asks for what follows these tokens.
    #[pyo3(signature = (ids, sampling, ends, grammar=None, session=None))]
    fn generate(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        sampling: Picking,
        ends: Ends,
        grammar: Option<PyRef<'_, Grammar>>,
        session: Option<PyRef<'_, Session>>,
    ) -> PyResult<Answer> {
        let service = &self.here()?.service;
        self.known(sampling.logit_bias.iter().map(|(id, _)| id))?;
        if let Some(n) = ends.logprobs.filter(|&n| n > MOST_LOGPROBS) {
            return Err(wrong(format!(
                "logprobs: found {n}, expected {MOST_LOGPROBS} at most"
            )));
        }
        let mut request = service.request(ids).map_err(facade)?;
        request.sampling = sampling.into();
        if ends.ignore_end {
            let own = request.stop.stop_ids.drain(..);
            let bias = &mut request.sampling.bias;
            bias.extend(own.map(|id| (id, f32::NEG_INFINITY)));
        }
        request.stop.max_tokens = ends.max_tokens;
        request.stop.stop_ids.extend(ends.stop_tokens);
        request.stop.stop_strings = ends.stop.into_iter().map(String::into_bytes).collect();
        request.logprobs = ends.logprobs;
        let seconds = ends
            .timeout
            .and_then(|s| Duration::try_from_secs_f64(s).ok());
        request.urgency = Urgency {
            priority: ends.priority,
            deadline: seconds.and_then(|s| Instant::now().checked_add(s)),
        };
        if let Some(grammar) = grammar {
            constrain(&mut request, &grammar.0);
        }
        let answer = match session {
            Some(session) => session.open()?.generate(request),
            None => py.detach(|| service.generate(request)),
        };
        Ok(Answer::new(answer))
    }

    /// The vectors of texts: one row each.
    fn embed(&self, py: Python<'_>, texts: Vec<String>, normalized: bool) -> PyResult<Floats> {
        let service = &self.here()?.service;
        let width = service.vector_width().map_err(facade)?;
        let mut answers = Vec::with_capacity(texts.len());
        for text in &texts {
            let ids = service
                .checkpoint()
                .encode_text(text.as_bytes())
                .map_err(facade)?;
            answers.push(service.vector(ids, Urgency::default()).map_err(facade)?);
        }
        let mut rows = Vec::with_capacity(texts.len() * width);
        for answer in answers {
            let all = values(py, answer)?;
            match service.pooling() {
                Some(Pooling::None) => rows.extend(all),
                // Of a pooled output the newest row stands for all before it.
                _ => rows.extend(&all[all.len().saturating_sub(width)..]),
            }
        }
        if normalized {
            rows.chunks_mut(width.max(1)).for_each(normalize);
        }
        Ok(Floats::new(rows, width))
    }

    /// How well each text fits a query.
    fn rerank(&self, py: Python<'_>, query: &str, texts: Vec<String>) -> PyResult<Vec<f32>> {
        let service = &self.here()?.service;
        if service.pooling() != Some(Pooling::Rank) {
            return Err(error(
                "the model was not loaded to rank; load it with purpose='vectors', pooling='rank'",
            ));
        }
        let mut answers = Vec::with_capacity(texts.len());
        for text in &texts {
            let ids = pair(service.checkpoint(), query, text).map_err(facade)?;
            answers.push(service.vector(ids, Urgency::default()).map_err(facade)?);
        }
        let first = |answer| Ok(values(py, answer)?.first().copied().unwrap_or(f32::NAN));
        answers.into_iter().map(first).collect()
    }

    /// The logits after each of these tokens.
    fn logits(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<Floats> {
        self.known(&ids)?;
        let service = &self.here()?.service;
        let answer = service.logits(ids, Urgency::default());
        Ok(Floats::new(values(py, answer)?, service.n_vocab() as usize))
    }

    /// What goes into every product, by the name of its weight.
    fn taps(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<Vec<(String, Floats)>> {
        self.known(&ids)?;
        let service = &self.here()?.service;
        let tapped = py.detach(|| service.taps(&ids)).map_err(facade)?;
        let one = |t: tokkata::Tapped| (t.name, Floats::new(t.values, t.width));
        Ok(tapped.into_iter().map(one).collect())
    }

    /// Asks what is said in a recording: a file, a file's bytes, or samples of one channel at a rate.
    fn transcribe(&self, py: Python<'_>, sound: Sound, asked: Hear) -> PyResult<Transcript> {
        speech::start(py, self.listener()?, sound, asked)
    }

    fn open_session(&self, py: Python<'_>) -> PyResult<Session> {
        let served = self.here()?;
        let session = py
            .detach(|| served.service.open_session())
            .map_err(facade)?;
        Ok(Session::new(session, served))
    }

    fn load_session(&self, py: Python<'_>, path: PathBuf) -> PyResult<Session> {
        let served = self.here()?;
        let session = py
            .detach(|| served.service.load_session(&path))
            .map_err(facade)?;
        Ok(Session::new(session, served))
    }

    /// One step of many sessions: the logits of the last token of each.
    fn step(
        &self,
        py: Python<'_>,
        feeds: Vec<(PyRef<'_, Session>, Vec<u32>)>,
        answers: bool,
    ) -> PyResult<Floats> {
        session::step(py, self.here()?, &feeds, answers)
    }

    fn grammar(&self, py: Python<'_>, kind: &str, text: String) -> PyResult<Grammar> {
        let source = source(kind, text)?;
        let service = &self.here()?.service;
        let grammar = py.detach(|| service.grammar(source, Trigger::Now));
        Ok(Grammar(grammar.map_err(|e| wrong(e.to_string()))?))
    }

    /// Forgets every stored prefix.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        let service = &self.here()?.service;
        py.detach(|| service.forget_prefixes()).map_err(engine)
    }
}

fn parsed(body: &str) -> tokkata_requests::error::Result<serde_json::Value> {
    serde_json::from_str(body).map_err(|e| {
        tokkata_requests::error::ApiError::invalid(format!("the request is no JSON: {e}"))
    })
}

/// Draws a token from logits as the engine would.
#[pyfunction]
#[pyo3(signature = (logits, sampling, position, recent, mask=None))]
pub(crate) fn sample(
    logits: pyo3::buffer::PyBuffer<f32>,
    py: Python<'_>,
    sampling: Picking,
    position: u32,
    recent: Vec<u32>,
    mask: Option<Vec<u8>>,
) -> PyResult<u32> {
    let logits = logits.to_vec(py)?;
    let sampling: Sampling = sampling.into();
    sampling.check().map_err(|e| wrong(e.to_string()))?;
    let beyond = |id: u32| id as usize >= logits.len();
    let mut named = recent
        .iter()
        .copied()
        .chain(sampling.bias.iter().map(|b| b.0));
    if let Some(id) = named.find(|&id| beyond(id)) {
        return Err(wrong(format!("token {id} is beyond the logits")));
    }
    let word = |b: &[u8]| b.iter().rev().fold(0u32, |w, &b| w << 8 | u32::from(b));
    let mask = mask.map(|bytes| Mask::new(bytes.chunks(4).map(word).collect()));
    let sampler = sampling.sampler();
    let side = sampler.side(&recent, mask, Vec::new());
    let row = side.row(&logits, position);
    let drawn = draw(&sampler.record, &row, &mut Scratch::default());
    drawn.map_err(|_| wrong("the logits are not numbers, or no token may come"))
}

/// Names and descriptions of what can compute on this machine.
#[pyfunction]
pub(crate) fn devices() -> Vec<(String, String)> {
    tokkata::present()
}
