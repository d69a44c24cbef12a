//! Models: opened, looked at, freed.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Map, Value, json};
use tokkata::speech::{HYPOTHESES, Listener, Room, Transcriber};
use tokkata::{
    AdapterSource, Checkpoint, DType, Drafts, GpuLayers, Model, ModelFile, OpenOptions, Placement,
    Pooling, Purpose, Service, Value as Meta,
};
use tokkata_requests::served::Served;

use crate::border::{deliver, fill, guard, list, maybe_text, options, place, text};
use crate::handle::{Home, Table};
use crate::library::{LOG_INFO, log};
use crate::status::{CANCELLED, END, Error, OK, UNSUPPORTED};
use crate::types::{
    tokkata_figures, tokkata_model, tokkata_model_info, tokkata_model_options, tokkata_tensor,
};

static MODELS: Table<Loaded> = Table::new();

/// `TOKKATA_FOR_SPEECH`.
const FOR_SPEECH: i32 = 3;

/// Elements of a list of metadata that are written out.
const LISTED: usize = 64;

/// A loaded model and the process it was loaded in.
pub(crate) struct Loaded {
    what: ManuallyDrop<What>,
    info: tokkata_model_info,
    pub(crate) home: Home,
}

/// What a model was loaded for.
enum What {
    Text(Arc<Served>),
    Speech(Listener),
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // The threads that it would wait for are the parent's.
        if self.home.is_here() {
            // SAFETY: nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.what) };
        }
    }
}

impl Loaded {
    pub(crate) fn served(&self) -> Result<&Arc<Served>, Error> {
        let message = "the model was opened for speech; open it with another purpose";
        match &*self.what {
            What::Text(served) => Ok(served),
            What::Speech(_) => Err(Error::new(UNSUPPORTED, message)),
        }
    }

    pub(crate) fn service(&self) -> Result<&Service, Error> {
        Ok(&self.served()?.service)
    }

    pub(crate) fn listener(&self) -> Result<&Listener, Error> {
        let message = "the model was not opened for speech; open it with TOKKATA_FOR_SPEECH";
        match &*self.what {
            What::Text(_) => Err(Error::new(UNSUPPORTED, message)),
            What::Speech(listener) => Ok(listener),
        }
    }
}

/// The model of a handle, in the process that may use it.
pub(crate) fn model(handle: *const tokkata_model) -> Result<Arc<Loaded>, Error> {
    let model = MODELS.get(handle)?;
    model.home.check()?;
    Ok(model)
}

fn pooling(number: i32) -> Result<Option<Pooling>, Error> {
    if number == -1 {
        return Ok(None);
    }
    let found = usize::try_from(number)
        .ok()
        .and_then(|n| Pooling::ALL.get(n));
    let wrong = || Error::argument(format!("pooling: found {number}, expected -1 to 4"));
    found.map(|p| Some(p.1)).ok_or_else(wrong)
}

/// What the facade is told.
///
/// # Safety
/// Pointers of the options are as the header says.
unsafe fn open_options(given: &tokkata_model_options) -> Result<OpenOptions, Error> {
    let pooling = pooling(given.pooling)?;
    let mut out = OpenOptions {
        purpose: match given.purpose {
            0 => Purpose::Text,
            1 => Purpose::Vectors(pooling),
            2 => Purpose::Both(pooling),
            FOR_SPEECH => Purpose::Text,
            other => {
                return Err(Error::argument(format!(
                    "purpose: found {other}, expected 0 to 3"
                )));
            }
        },
        ctx: NonZeroU32::new(given.n_ctx),
        seqs: given.n_seqs.max(1),
        logit_rows: given.n_logit_rows,
        threads: (given.threads > 0).then_some(given.threads as usize),
        kv_memory: (given.kv_memory_bytes > 0).then_some(given.kv_memory_bytes),
        placement: Placement {
            layers: match given.gpu_layers {
                0 => GpuLayers::Auto,
                n => GpuLayers::Count(n),
            },
            cpu_experts: given.cpu_experts,
            ..Placement::default()
        },
        product_inputs: given.taps != 0,
        ..OpenOptions::default()
    };
    if given.n_rows > 0 {
        out.rows = given.n_rows;
    }
    // SAFETY: the caller's promise.
    unsafe {
        out.device = maybe_text(given.device, given.device_len, "device")?;
        out.cpu_features = maybe_text(given.cpu_features, given.cpu_features_len, "cpu_features")?;
        out.tuning = maybe_text(given.tuning, given.tuning_len, "tuning")?;
        if let Some(name) = maybe_text(given.kv_type, given.kv_type_len, "kv_type")? {
            let wrong = || {
                Error::argument(format!(
                    "kv_type: found '{name}', expected f16, f32, bf16, q8_0 or q4_0"
                ))
            };
            out.kv = DType::from_name(&name).ok_or_else(wrong)?;
        }
        let small = maybe_text(given.draft_model, given.draft_model_len, "draft_model")?;
        let most = NonZeroU32::new(given.draft_max);
        let name = maybe_text(given.speculation, given.speculation_len, "speculation")?;
        let name = name.as_deref().unwrap_or("auto");
        out.drafts = Drafts::named(name, small.map(Into::into), most)?;
        for adapter in list(given.adapters, given.n_adapters, "adapters")? {
            let path = text(adapter.path, adapter.path_len, "adapter path")?;
            let mut source = AdapterSource::new(path);
            source.scale = adapter.scale;
            out.adapters.push(source);
        }
    }
    Ok(out)
}

/// Loads an opened file.
///
/// # Safety
/// Pointers of the options are as the header says.
unsafe fn load(file: ModelFile, given: &tokkata_model_options) -> Result<Loaded, Error> {
    // SAFETY: the caller's promise.
    let options = unsafe { open_options(given) }?;
    let began = Instant::now();
    let cancelled = AtomicBool::new(false);
    let (call, user) = (given.progress, given.progress_user.expose_provenance());
    let progress = |done, total| {
        let Some(call) = call else {
            return ControlFlow::Continue(());
        };
        let user = std::ptr::with_exposed_provenance_mut::<c_void>(user);
        // SAFETY: the caller gave function and user for it.
        match unsafe { call(user, done, total) } {
            0 => ControlFlow::Continue(()),
            _ => {
                cancelled.store(true, Ordering::Relaxed);
                ControlFlow::Break(())
            }
        }
    };
    let checkpoint = Checkpoint::new(file, &[])?;
    let path = checkpoint.path().display().to_string();
    let loaded = match given.purpose {
        FOR_SPEECH => hearing(checkpoint, &options, given.words != 0, &progress),
        _ => writing(checkpoint, &options, &progress),
    };
    if cancelled.load(Ordering::Relaxed) {
        return Err(Error::new(CANCELLED, "the load was cancelled"));
    }
    let (what, info) = loaded?;
    log(
        LOG_INFO,
        &format!("{path}: loaded in {:.2} s", began.elapsed().as_secs_f64()),
    );
    Ok(Loaded {
        what: ManuallyDrop::new(what),
        info,
        home: Home::here(),
    })
}

type Progress<'a> = &'a (dyn Fn(u64, u64) -> ControlFlow<()> + Sync);

fn writing(
    checkpoint: Checkpoint,
    options: &OpenOptions,
    progress: Progress<'_>,
) -> tokkata::Result<(What, tokkata_model_info)> {
    let model = Model::load(checkpoint, options, Some(progress))?;
    for note in model.notes() {
        log(LOG_INFO, note);
    }
    let info = info_of(&model);
    let service = model.serve()?;
    let info = tokkata_model_info {
        vector_width: service.vector_width().unwrap_or(0) as u32,
        writes_text: service.writes().into(),
        has_template: service.template().is_some().into(),
        ..info
    };
    Ok((What::Text(Arc::new(Served::alone(service))), info))
}

fn hearing(
    checkpoint: Checkpoint,
    options: &OpenOptions,
    words: bool,
    progress: Progress<'_>,
) -> tokkata::Result<(What, tokkata_model_info)> {
    let room = Room {
        windows: options.seqs,
        hypotheses: HYPOTHESES,
        words,
    };
    let transcriber = Transcriber::load(checkpoint, options, room, Some(progress))?;
    let info = tokkata_model_info {
        n_seqs: room.windows,
        hears: 1,
        ..info_of(transcriber.model())
    };
    Ok((What::Speech(transcriber.serve()?), info))
}

/// What a loaded model is, whatever it was loaded for.
fn info_of(model: &Model) -> tokkata_model_info {
    let checkpoint = model.checkpoint();
    let (metadata, tensors) = (checkpoint.metadata(), checkpoint.file().tensors());
    let arch = metadata.str("general.architecture").unwrap_or_default();
    let layers = metadata.uint(&format!("{arch}.block_count"));
    tokkata_model_info {
        n_vocab: model.n_vocab(),
        n_ctx: model.limits().ctx,
        n_ctx_train: checkpoint.trained_ctx().unwrap_or(0),
        n_embd: model.program().n_embd,
        n_layers: layers.unwrap_or(0) as u32,
        n_seqs: model.limits().seqs,
        n_rows: model.limits().rows,
        n_tensors: tensors.len() as u32,
        n_params: checkpoint.n_params(),
        file_bytes: checkpoint.file().size_bytes(),
        memory_bytes: model.memory_bytes(),
        ..tokkata_model_info::default()
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_model_open(
    path: *const c_char,
    path_len: usize,
    options: *const tokkata_model_options,
    out: *mut *mut tokkata_model,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let (path, out) = (text(path, path_len, "path")?, place(out, "out")?);
        let given = self::options(options, "options")?;
        let file = ModelFile::open(Path::new(path)).map_err(tokkata::Error::from)?;
        out.write(MODELS.add(load(file, &given)?));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_model_open_bytes(
    bytes: *const c_void,
    len: usize,
    options: *const tokkata_model_options,
    out: *mut *mut tokkata_model,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let bytes = list(bytes.cast::<u8>(), len, "bytes")?;
        let out = place(out, "out")?;
        let given = self::options(options, "options")?;
        let file = ModelFile::from_named_bytes("memory", bytes.to_vec());
        out.write(MODELS.add(load(file.map_err(tokkata::Error::from)?, &given)?));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_model_free(model: *mut tokkata_model) -> i32 {
    guard(|| {
        MODELS.remove(model)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_model_get_info(
    model: *const tokkata_model,
    info: *mut tokkata_model_info,
) -> i32 {
    guard(|| {
        let model = self::model(model)?;
        // SAFETY: the caller's struct.
        unsafe { deliver(&model.info, info, "info") }
    })
}

fn written(value: &Meta) -> Value {
    match value {
        Meta::Array(array) if array.len() > LISTED => json!({"length": array.len()}),
        Meta::Array(array) => (0..array.len())
            .filter_map(|i| array.get(i))
            .map(|v| written(&v))
            .collect(),
        Meta::Str(text) => json!(text.to_string()),
        Meta::Bool(b) => json!(b),
        // The shortest decimal of an f32, not that of the f64 nearest to it.
        Meta::F32(x) => json!(x.to_string().parse::<f64>().ok()),
        Meta::F64(x) => json!(x),
        other => (other.as_int()).map_or_else(|| json!(other.as_uint()), |n| json!(n)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_model_metadata(
    model: *const tokkata_model,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let model = self::model(model)?;
        let all = model.service()?.checkpoint().metadata().iter();
        let members: Map<String, Value> = all.map(|(k, v)| (k.to_string(), written(v))).collect();
        let text = Value::Object(members).to_string();
        // SAFETY: the caller's buffer.
        unsafe { fill(text.as_bytes(), (out.cast(), capacity), needed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_model_tensor(
    model: *const tokkata_model,
    index: usize,
    tensor: *mut tokkata_tensor,
) -> i32 {
    guard(|| {
        let model = self::model(model)?;
        let Some(found) = model.service()?.checkpoint().file().tensors().get(index) else {
            return Ok(END);
        };
        let mut dims = [0; 4];
        for (dim, &n) in dims.iter_mut().zip(&found.shape) {
            *dim = n as u64;
        }
        let kind: &'static str = found.dtype.name();
        let value = tokkata_tensor {
            size: 0,
            n_dims: found.shape.len() as u32,
            dims,
            bytes: found.bytes,
            name: found.name.as_ptr().cast(),
            name_len: found.name.len(),
            r#type: kind.as_ptr().cast(),
            type_len: kind.len(),
        };
        // SAFETY: the caller's struct.
        unsafe { deliver(&value, tensor, "tensor") }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_model_figures(
    model: *const tokkata_model,
    figures: *mut tokkata_figures,
) -> i32 {
    guard(|| {
        let now = self::model(model)?.service()?.figures()?;
        let value = tokkata_figures {
            size: 0,
            waiting: now.waiting as u32,
            running: now.running as u32,
            reserved: 0,
            cache_usage: now.cache_usage,
        };
        // SAFETY: the caller's struct.
        unsafe { deliver(&value, figures, "figures") }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tokkata_model_forget(model: *const tokkata_model) -> i32 {
    guard(|| {
        self::model(model)?.service()?.forget_prefixes()?;
        Ok(OK)
    })
}
