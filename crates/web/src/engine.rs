//! What a worker calls.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use serde_json::{Value, json};
use tokkata::{Checkpoint, Drafts, Driver, Model, ModelFile, OpenOptions, Turned};
use tokkata_requests::reply::Reply;
use tokkata_requests::served::Served;
use tokkata_requests::style::Style;
use wasm_bindgen::prelude::*;

use crate::file::PageFile;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn log_error(text: &str);
}

/// Asks the browser for its GPU, and says what it is.
///
/// # Errors
/// Why there is none.
#[wasm_bindgen]
pub async fn gpu() -> Result<String, JsError> {
    std::panic::set_hook(Box::new(|panic| log_error(&panic.to_string())));
    let found = tokkata::device::ask().await;
    found.map_err(|why| JsError::new(&why))
}

/// A loaded model and the answers that it is writing.
#[wasm_bindgen]
pub struct Engine {
    driver: Driver,
    model: Arc<Served>,
    style: Style,
    replies: HashMap<u32, Reply>,
    next: u32,
}

#[wasm_bindgen]
impl Engine {
    /// Reads the GGUF file of this name and of `size` bytes by `read(offset, length)`, with a context of `ctx` tokens at
    /// most.
    ///
    /// # Errors
    /// A file that is no model, that cannot be run, or that does not fit.
    pub fn open(
        name: &str,
        size: f64,
        read: js_sys::Function,
        ctx: u32,
    ) -> Result<Engine, JsError> {
        let file = PageFile::new(read, size as u64);
        let opened = ModelFile::from_ranges(name, Box::new(file));
        let checkpoint = Checkpoint::new(opened?, &[])?;
        let trained = checkpoint.trained_ctx().unwrap_or(ctx);
        let options = OpenOptions {
            device: Some("wgpu:0".to_owned()),
            ctx: NonZeroU32::new(ctx.min(trained)),
            rows: 128,
            drafts: Drafts::none(),
            ..OpenOptions::default()
        };
        let model = Model::load(checkpoint, &options, None)?;
        let (service, driver) = model.driven()?;
        Ok(Engine {
            driver,
            model: Arc::new(Served::alone(service)),
            style: Style::default(),
            replies: HashMap::new(),
            next: 0,
        })
    }

    /// The list of models, as `/v1/models` gives it.
    #[must_use]
    pub fn models(&self) -> String {
        let model = json!({"id": self.model.id, "object": "model", "created": self.model.created, "owned_by": "tokkata"});
        json!({"object": "list", "data": [model]}).to_string()
    }

    /// Asks for a chat completion, and gives the number of its answer.
    ///
    /// # Errors
    /// What a server would answer with a status.
    pub fn ask(&mut self, body: &str) -> Result<u32, JsError> {
        let body: Value = serde_json::from_str(body)?;
        let reply = Reply::ask(&self.model, &self.style, body);
        let reply = reply.map_err(|error| JsError::new(&error.message))?;
        self.next += 1;
        self.replies.insert(self.next, reply);
        Ok(self.next)
    }

    /// One turn: 0 when nothing is left to do, 1 when there may be more at once, 2 when the GPU must be waited for.
    pub fn turn(&mut self) -> u32 {
        match self.driver.turn() {
            Turned::Idle | Turned::Over => 0,
            Turned::On => 1,
            Turned::Waiting => 2,
        }
    }

    /// The next object of an answer as JSON: `undefined` when none has come yet, `null` after the last.
    ///
    /// # Errors
    /// An answer that failed.
    pub fn next(&mut self, answer: u32) -> Result<JsValue, JsError> {
        let Some(reply) = self.replies.get_mut(&answer) else {
            return Ok(JsValue::NULL);
        };
        let mut context = Context::from_waker(Waker::noop());
        let failed = match reply.poll_next(&mut context) {
            Poll::Pending => return Ok(JsValue::UNDEFINED),
            Poll::Ready(Some(Ok(object))) => return Ok(object.to_string().into()),
            Poll::Ready(Some(Err(error))) => Err(JsError::new(&error.message)),
            Poll::Ready(None) => Ok(JsValue::NULL),
        };
        self.replies.remove(&answer);
        failed
    }

    /// Ends an answer, of which nothing more comes.
    pub fn stop(&mut self, answer: u32) {
        self.replies.remove(&answer);
    }

    /// Bytes held for weights, caches and work space.
    #[must_use]
    pub fn memory_bytes(&self) -> f64 {
        self.model.service.memory_bytes() as f64
    }
}
