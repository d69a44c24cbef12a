//! How a model is opened, and what it is loaded for.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokkata::speech::{HYPOTHESES, Listener, Room, Transcriber};
use tokkata::{AdapterSource, Checkpoint, DType, Drafts, OpenOptions, Placement, Pooling, Purpose};
use tokkata_requests::served::Served;

use crate::failure::facade;

/// Numbers that describe a model, by name.
pub(crate) type Info = HashMap<&'static str, u64>;

/// What a model was loaded for.
pub(crate) enum Loaded {
    Text(Arc<Served>),
    Speech(Listener),
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

/// Choices of a load.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Opening {
    purpose: String,
    pooling: Option<String>,
    n_ctx: Option<u32>,
    n_seqs: u32,
    n_rows: Option<u32>,
    n_logit_rows: u32,
    threads: Option<usize>,
    device: Option<String>,
    gpu_layers: String,
    cpu_experts: u32,
    kv_type: String,
    kv_memory: Option<u64>,
    cpu_features: Option<String>,
    adapters: Vec<(PathBuf, f32)>,
    taps: bool,
    words: bool,
    speculation: String,
    draft_model: Option<PathBuf>,
    draft_max: Option<u32>,
}

impl Opening {
    fn is_speech(&self) -> bool {
        self.purpose == "speech"
    }

    fn options(self) -> PyResult<OpenOptions> {
        let pooling = pooling(self.pooling.as_deref())?;
        let most = self.draft_max.and_then(NonZeroU32::new);
        let drafts = Drafts::named(&self.speculation, self.draft_model, most);
        let usual = OpenOptions::default();
        let kv = DType::from_name(&self.kv_type);
        let adapters = self
            .adapters
            .into_iter()
            .map(|(path, scale)| AdapterSource { path, scale });
        Ok(OpenOptions {
            purpose: match self.purpose.as_str() {
                "text" | "speech" => Purpose::Text,
                "vectors" => Purpose::Vectors(pooling),
                "both" => Purpose::Both(pooling),
                other => {
                    return Err(wrong(format!(
                        "purpose: found '{other}', expected text, vectors, both or speech"
                    )));
                }
            },
            ctx: self.n_ctx.and_then(NonZeroU32::new),
            seqs: self.n_seqs.max(1),
            rows: self.n_rows.unwrap_or(usual.rows),
            logit_rows: self.n_logit_rows,
            threads: self.threads,
            device: self.device,
            placement: Placement {
                layers: self.gpu_layers.parse().map_err(wrong)?,
                cpu_experts: self.cpu_experts,
                ..Placement::default()
            },
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
            drafts: drafts.map_err(|e| wrong(e.to_string()))?,
            ..usual
        })
    }
}

/// Loads what is at a path; `progress` hears bytes read and bytes in all, and what it raises ends the load.
pub(crate) fn load(
    py: Python<'_>,
    path: &Path,
    opening: Opening,
    progress: Option<&Py<PyAny>>,
) -> PyResult<(Loaded, Info)> {
    let (speech, words) = (opening.is_speech(), opening.words);
    let options = opening.options()?;
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
    let loaded = py.detach(|| {
        let checkpoint = Checkpoint::open(path, &[])?;
        match speech {
            true => hearing(checkpoint, &options, words, &heard),
            false => writing(checkpoint, &options, &heard),
        }
    });
    match raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => loaded.map_err(facade),
    }
}

type Progress<'a> = &'a (dyn Fn(u64, u64) -> ControlFlow<()> + Sync);

fn writing(
    checkpoint: Checkpoint,
    options: &OpenOptions,
    progress: Progress<'_>,
) -> tokkata::Result<(Loaded, Info)> {
    let model = tokkata::Model::load(checkpoint, options, Some(progress))?;
    let mut info = info_of(&model);
    let service = model.serve()?;
    let width = service.vector_width().unwrap_or(0);
    info.insert("vector_width", width as u64);
    info.insert("writes_text", service.writes().into());
    Ok((Loaded::Text(Arc::new(Served::alone(service))), info))
}

fn hearing(
    checkpoint: Checkpoint,
    options: &OpenOptions,
    words: bool,
    progress: Progress<'_>,
) -> tokkata::Result<(Loaded, Info)> {
    let room = Room {
        windows: options.seqs,
        hypotheses: HYPOTHESES,
        words,
    };
    let transcriber = Transcriber::load(checkpoint, options, room, Some(progress))?;
    let mut info = info_of(transcriber.model());
    info.insert("n_seqs", room.windows.into());
    Ok((Loaded::Speech(transcriber.serve()?), info))
}

fn info_of(model: &tokkata::Model) -> Info {
    let (checkpoint, limits) = (model.checkpoint(), model.limits());
    let file = checkpoint.file();
    let trained = checkpoint.trained_ctx().unwrap_or(0);
    HashMap::from([
        ("n_vocab", u64::from(model.n_vocab())),
        ("n_ctx", limits.ctx.into()),
        ("n_ctx_train", trained.into()),
        ("n_embd", model.program().n_embd.into()),
        ("n_seqs", limits.seqs.into()),
        ("n_rows", limits.rows.into()),
        ("vector_width", 0),
        ("writes_text", 0),
        ("n_params", checkpoint.n_params()),
        ("file_bytes", file.size_bytes()),
        ("memory_bytes", model.memory_bytes()),
    ])
}
