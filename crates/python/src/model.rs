//! Models: opened, asked, looked at.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokkata::grammar::{Trigger, constrain};
use tokkata::sample::{Mask, Scratch, sample as draw};
use tokkata::{
    AdapterSource, Checkpoint, DType, DecodeOptions, EncodeOptions, OpenOptions, Pooling, Purpose,
    Sampling, Urgency, normalize, pair,
};
use tokkata_requests::chat;
use tokkata_requests::fields::Fields;
use tokkata_requests::reply::Reply as Asked;
use tokkata_requests::served::Served;
use tokkata_requests::style::Style;

use crate::answer::{Answer, Reply, check_process, values};
use crate::failure::{engine, error, facade, request};
use crate::floats::Floats;
use crate::grammar::{Grammar, source};
use crate::session::{self, Session};

/// A loaded model, for any number of threads.
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Model {
    served: Arc<Served>,
    process: u32,
}

fn wrong(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

fn pooling(name: Option<&str>) -> PyResult<Option<Pooling>> {
    name.map(|name| {
        let why = || {
            wrong(format!(
                "pooling: found '{name}', expected none, mean, cls, last or rank"
            ))
        };
        Pooling::from_name(name).ok_or_else(why)
    })
    .transpose()
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

/// Choices of a load.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Opening {
    purpose: String,
    pooling: Option<String>,
    n_ctx: Option<u32>,
    n_seqs: u32,
    n_rows: Option<u32>,
    n_logit_rows: u32,
    threads: Option<usize>,
    device: Option<String>,
    kv_type: String,
    kv_memory: Option<u64>,
    cpu_features: Option<String>,
    adapters: Vec<(PathBuf, f32)>,
    taps: bool,
}

impl Opening {
    fn options(self) -> PyResult<OpenOptions> {
        let pooling = pooling(self.pooling.as_deref())?;
        let usual = OpenOptions::default();
        let kv = DType::from_name(&self.kv_type);
        let adapters = self
            .adapters
            .into_iter()
            .map(|(path, scale)| AdapterSource { path, scale });
        Ok(OpenOptions {
            purpose: match self.purpose.as_str() {
                "text" => Purpose::Text,
                "vectors" => Purpose::Vectors(pooling),
                "both" => Purpose::Both(pooling),
                other => {
                    return Err(wrong(format!(
                        "purpose: found '{other}', expected text, vectors or both"
                    )));
                }
            },
            ctx: self.n_ctx.and_then(NonZeroU32::new),
            seqs: self.n_seqs.max(1),
            rows: self.n_rows.unwrap_or(usual.rows),
            logit_rows: self.n_logit_rows,
            threads: self.threads,
            device: self.device,
            kv: kv.ok_or_else(|| {
                wrong(format!(
                    "kv_type: found '{}', expected f16, f32, bf16, q8_0 or q4_0",
                    self.kv_type
                ))
            })?,
            kv_memory: self.kv_memory,
            cpu_features: self.cpu_features,
            adapters: adapters.collect(),
            product_inputs: self.taps,
            ..usual
        })
    }
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

fn load(
    py: Python<'_>,
    path: &std::path::Path,
    options: &OpenOptions,
    progress: Option<&Py<PyAny>>,
) -> PyResult<tokkata::Model> {
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let heard = |done: u64, total: u64| {
        let told = Python::attach(|py| {
            py.check_signals()?;
            progress.map_or(Ok(()), |call| call.call1(py, (done, total)).map(drop))
        });
        match told {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    let silent = |_, _| ControlFlow::Continue(());
    let loaded = py.detach(|| {
        let checkpoint = Checkpoint::open(path, &[])?;
        match progress {
            Some(_) => tokkata::Model::load(checkpoint, options, Some(&heard)),
            None => tokkata::Model::load(checkpoint, options, Some(&silent)),
        }
    });
    match raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => loaded.map_err(facade),
    }
}

impl Model {
    fn here(&self) -> PyResult<&Arc<Served>> {
        check_process(self.process)?;
        Ok(&self.served)
    }

    fn known(&self, ids: &[u32]) -> PyResult<()> {
        let n_vocab = self.served.service.n_vocab();
        match ids.iter().find(|&&id| id >= n_vocab) {
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
        let options = options.options()?;
        let model = load(py, &path, &options, progress.as_ref())?;
        let service = py.detach(|| model.serve()).map_err(facade)?;
        Ok(Model {
            served: Arc::new(Served::alone(service)),
            process: std::process::id(),
        })
    }

    /// Numbers that describe it, by name.
    fn info(&self) -> PyResult<HashMap<&'static str, u64>> {
        let service = &self.here()?.service;
        let file = service.checkpoint().file();
        let elements = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
        Ok(HashMap::from([
            ("n_vocab", u64::from(service.n_vocab())),
            ("n_ctx", service.limits().ctx.into()),
            (
                "n_ctx_train",
                service.checkpoint().trained_ctx().unwrap_or(0).into(),
            ),
            ("n_embd", service.program().n_embd.into()),
            ("n_seqs", service.limits().seqs.into()),
            ("n_rows", service.limits().rows.into()),
            ("vector_width", service.vector_width().unwrap_or(0) as u64),
            ("writes_text", service.writes().into()),
            (
                "n_params",
                file.tensors().iter().map(|t| elements(&t.shape)).sum(),
            ),
            ("file_bytes", file.size_bytes()),
            ("memory_bytes", service.memory_bytes()),
        ]))
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
            deadline: seconds.map(|s| Instant::now() + s),
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
