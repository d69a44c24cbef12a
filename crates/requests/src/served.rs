//! A model that answers requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokkata::Service;
use web_time::{SystemTime, UNIX_EPOCH};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::metrics::Metrics;
use crate::params::Defaults;
use crate::talk::Manners;

/// A model and what it is called.
pub struct Named {
    /// What answers call it.
    pub id: String,
    /// Other names that callers may use.
    pub aliases: Vec<String>,
    /// Words that describe it, for lists of models.
    pub tags: Vec<String>,
    /// The model.
    pub service: Service,
    /// Its chat template is a common one, since its file has none.
    pub borrowed_template: bool,
}

/// A model that is served.
pub struct Served {
    /// What answers call it.
    pub id: String,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// Words that describe it.
    pub tags: Vec<String>,
    /// Its file.
    pub path: PathBuf,
    /// The model.
    pub service: Service,
    /// What its template allows.
    pub manners: Manners,
    /// What holds where a request says nothing.
    pub defaults: Defaults,
    /// The template is not the file's own.
    pub borrowed_template: bool,
    /// What was counted, now and when the model was in memory before.
    pub metrics: Arc<Metrics>,
    /// Seconds since 1970 at which it was loaded.
    pub created: u64,
    /// Answers under way, waiting ones included.
    busy: AtomicUsize,
    most: usize,
}

/// The right to one answer, until it is dropped.
pub struct Permit {
    model: Arc<Served>,
}

impl Served {
    /// A model with what holds where requests say nothing, and so many that may wait.
    pub fn new(named: Named, defaults: Defaults, queue: usize) -> Self {
        let Named {
            id,
            aliases,
            tags,
            service,
            borrowed_template,
        } = named;
        let seqs = service.limits().seqs as usize;
        Served {
            manners: Manners::of(&service),
            path: service.checkpoint().path().to_owned(),
            id,
            aliases,
            tags,
            service,
            defaults,
            borrowed_template,
            metrics: Arc::default(),
            created: now(),
            busy: AtomicUsize::new(0),
            most: seqs.saturating_add(queue),
        }
    }

    /// The only model of a process, called as its file.
    #[must_use]
    pub fn alone(service: Service) -> Self {
        let path = service.checkpoint().path();
        let id = path.file_stem().unwrap_or(path.as_os_str());
        let named = Named {
            id: id.to_string_lossy().into_owned(),
            aliases: Vec::new(),
            tags: Vec::new(),
            service,
            borrowed_template: false,
        };
        Served::new(named, Defaults::default(), usize::MAX)
    }

    /// Answers under way, waiting ones included, and how many run at once.
    pub fn load(&self) -> (usize, usize) {
        let busy = self.busy.load(Ordering::Relaxed);
        (busy, self.service.limits().seqs as usize)
    }

    /// The right to one more answer.
    pub fn admit(self: &Arc<Self>) -> Result<Permit> {
        let more = |n: usize| (n < self.most).then_some(n + 1);
        let taken = self
            .busy
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        match taken {
            Ok(_) => Ok(Permit {
                model: Arc::clone(self),
            }),
            Err(busy) => {
                let waiting = busy.saturating_sub(self.service.limits().seqs as usize);
                self.metrics.refused.fetch_add(1, Ordering::Relaxed);
                let seconds = self
                    .metrics
                    .wait_seconds(waiting, self.service.limits().seqs);
                Err(ApiError::overloaded(
                    format!("{waiting} requests are waiting; try again in {seconds} s"),
                    seconds,
                ))
            }
        }
    }

    /// Tells whoever chats that the template is not the model's own.
    pub fn warn_of_template(&self, fields: &mut Fields, has_tools: bool) {
        if has_tools && !self.service.format().has_tool_calls() {
            let text = "tools: the model's chat template shows none, and they are described to it in words";
            fields.warnings.push(text.to_owned());
        }
        if self.borrowed_template {
            let text = "the model's file has no chat template, and chatml stands in for it";
            fields.warnings.push(text.to_owned());
        }
    }

    /// What the file says of itself, as llama.cpp names it.
    pub fn meta(&self) -> Value {
        let checkpoint = self.service.checkpoint();
        let metadata = checkpoint.metadata();
        let tensors = checkpoint.file().tensors();
        let bytes: u64 = tensors.iter().map(|t| t.bytes).sum();
        let arch = metadata.str("general.architecture").unwrap_or_default();
        let uint = |key: &str| metadata.uint(&format!("{arch}.{key}"));
        let kind = metadata.uint("general.file_type");
        let kind = kind.and_then(|n| tokkata::file_type_name(u32::try_from(n).ok()?));
        json!({
            "vocab_type": 2,
            "n_vocab": self.service.n_vocab(),
            "n_ctx": self.service.limits().ctx,
            "n_ctx_train": checkpoint.trained_ctx(),
            "n_embd": uint("embedding_length"),
            "n_params": checkpoint.n_params(),
            "size": bytes,
            "ftype": kind,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.model.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}
